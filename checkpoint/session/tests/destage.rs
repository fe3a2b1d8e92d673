//! The remains of dead programs in memory, and how they get to the tier.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use tarn_checkpoint::destage::{DestageOutcome, Destager};
use tarn_checkpoint::{
    CheckpointError, CheckpointErrorCode, CheckpointSession, Options, Properties, StagingShare,
    VersionId, VersionReader, VersionSelector,
};
use tarn_checkpoint_core::rank::left;
use tarn_media::{Device, Folder, MappedFile, Profile};
use tarn_ports::Vault;

/// Elements of an object: of some parts that are staged or not.
const LENGTH: usize = 300_000;

/// A node with a tier and a memory.
struct Node {
    folder: tempfile::TempDir,
    staging: StagingShare,
}

fn id(generation: u64, number: u64) -> VersionId {
    VersionId { generation, number }
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::create_dir(folder.path().join("tier")).unwrap();
        Self {
            folder,
            staging: StagingShare::All,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder of the program in memory.
    fn memory(&self) -> PathBuf {
        let user = rustix::process::geteuid().as_raw();
        self.path(&format!("memory/tarn-phx-{user}/heat"))
    }

    fn begin(
        &self,
        rank: u32,
        ranks: u32,
        timeout: Duration,
    ) -> Result<CheckpointSession, CheckpointError> {
        let mut session = CheckpointSession::begin(Options {
            rank,
            ranks,
            run: Some("heat".into()),
            tier: Some(self.path("tier")),
            memory: Some(self.path("memory")),
            staging: Some(self.staging),
            // All that is staged waits for the next commit.
            helper: false,
            timeout,
            ..Options::default()
        })?;
        session.create("rows", LENGTH * 8, 8, Properties::default())?;
        Ok(session)
    }

    /// A start of one rank: it has this version, and makes so many more. A session that is dropped ends as if it was killed.
    fn start(&self, from: Option<VersionId>, commits: u64) {
        let mut session = self.begin(0, 1, Duration::from_secs(60)).unwrap();
        self.goes_on(&mut session, from, commits);
    }

    fn goes_on(&self, session: &mut CheckpointSession, from: Option<VersionId>, commits: u64) {
        assert_eq!(session.restart(None).unwrap(), from);
        let rows = session.values::<u64>("rows").unwrap();
        if let Some(id) = from {
            assert!((0..).zip(&*rows).all(|(i, x)| *x == value(i, id.number)));
        }
        for number in 1..=commits {
            let rows = session.values::<u64>("rows").unwrap();
            (0..).zip(rows).for_each(|(i, x)| *x = value(i, number));
            session.commit().unwrap();
        }
    }

    fn destager(&self) -> Destager {
        Destager::new(&self.path("tier"), &self.path("memory"))
    }

    fn loses_its_memory(&self) {
        fs::remove_dir_all(self.path("memory")).unwrap();
    }
}

fn value(i: u64, number: u64) -> u64 {
    i * 7 + (number << 40)
}

/// The outcomes that are reported for the program's ranks.
fn outcomes_of(destager: &mut Destager) -> Vec<(u32, DestageOutcome)> {
    let mut all = Vec::new();
    let add = &mut |left: tarn_checkpoint::destage::DestagedArena| all.push((left.rank, left.what));
    destager.run(OsStr::new("heat"), add).unwrap();
    all
}

fn brought(version: VersionId) -> DestageOutcome {
    DestageOutcome::Brought(vec![(version, LENGTH as u64 * 8)])
}

#[test]
fn what_was_brought_to_the_tier_outlives_memory_and_what_was_not_does_not() {
    let node = Node::new();
    let mut destager = node.destager();
    assert!(destager.runs().unwrap().is_empty());
    node.start(None, 3);
    assert_eq!(destager.runs().unwrap(), ["heat"]);
    assert!(node.memory().join("0.staging").exists());
    assert_eq!(outcomes_of(&mut destager), [(0, brought(id(1, 3)))]);
    assert!(!node.memory().join("0.staging").exists());
    for _ in 0..3 {
        assert_eq!(outcomes_of(&mut destager), []);
    }
    node.loses_its_memory();
    assert_eq!(outcomes_of(&mut destager), []);
    node.start(Some(id(1, 3)), 2);
    assert_eq!(outcomes_of(&mut destager), [(0, brought(id(2, 2)))]);
    node.start(Some(id(2, 2)), 2);
    node.loses_its_memory();
    assert_eq!(
        outcomes_of(&mut destager),
        [(0, DestageOutcome::Lacking(vec![id(3, 2)]))]
    );
    assert!(!node.path("memory").exists(), "nothing is made for it");
    node.start(Some(id(3, 1)), 0);
}

/// The rest of a version that was staged in part is stored on the tier: the staged part goes to its place beside it.
#[test]
fn what_was_staged_in_part_lies_in_one_piece_afterwards_and_is_mapped_by_readers() {
    let node = Node {
        staging: StagingShare::Bytes(LENGTH as u64 * 4),
        ..Node::new()
    };
    node.start(None, 3);
    let size = || {
        fs::metadata(node.path("tier/phx/heat/1/0.arena"))
            .unwrap()
            .len()
    };
    let before = size();
    let outcomes = outcomes_of(&mut node.destager());
    let [(0, DestageOutcome::Brought(brought))] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    let all = LENGTH as u64 * 8;
    assert!(
        brought[0].0 == id(1, 3) && (1..all).contains(&brought[0].1),
        "{outcomes:?}"
    );
    assert_eq!(size(), before, "there was a place for it");
    let reader = VersionReader::open(VersionSelector {
        run: Some("heat".into()),
        tier: Some(node.path("tier")),
        ..VersionSelector::default()
    });
    let reader = reader.unwrap();
    assert_eq!(reader.version(), id(1, 3));
    let rows = reader.values::<u64>(0, "rows").unwrap();
    assert!((0..).zip(rows).all(|(i, x)| *x == value(i, 3)));
    node.start(Some(id(1, 3)), 1);
}

/// A process that begins meanwhile waits for the rank: to map all of a large arena takes seconds.
#[test]
fn of_a_large_arena_only_what_is_written_is_mapped() {
    let node = Node {
        staging: StagingShare::Bytes(512 << 10),
        ..Node::new()
    };
    node.start(None, 2);
    let size = fs::metadata(node.path("tier/phx/heat/1/0.arena"));
    let pages = size.unwrap().len() / rustix::param::page_size() as u64;
    let before = mapped_by_this_thread();
    let outcomes = outcomes_of(&mut node.destager());
    let mapped = mapped_by_this_thread() - before;
    assert!(
        matches!(outcomes[..], [(0, DestageOutcome::Brought(_))]),
        "{outcomes:?}"
    );
    assert!(mapped < pages / 4, "{mapped} of {pages} pages");
}

/// Pages, each by a fault.
fn mapped_by_this_thread() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
    // Behind the thread's name, which may have anything in it.
    let (_, numbers) = stat.rsplit_once(") ").unwrap();
    numbers.split(' ').nth(7).unwrap().parse().unwrap()
}

#[test]
fn a_rank_that_is_running_is_left_alone_and_the_others_are_not() {
    let node = Node::new();
    let (dead, looked) = (Barrier::new(2), Barrier::new(2));
    let begin = |rank| node.begin(rank, 2, Duration::from_secs(60)).unwrap();
    let mut destager = node.destager();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut lives = begin(0);
            node.goes_on(&mut lives, None, 1);
            dead.wait();
            looked.wait();
            drop(lives);
        });
        let mut dies = begin(1);
        node.goes_on(&mut dies, None, 1);
        drop(dies);
        dead.wait();
        let own = format!("process {} is its rank 0", std::process::id());
        let running = (0, DestageOutcome::Running(own));
        let all = outcomes_of(&mut destager);
        assert_eq!(all, [running.clone(), (1, brought(id(1, 1)))]);
        assert!(node.memory().join("0.staging").exists());
        assert_eq!(outcomes_of(&mut destager), [running]);
        looked.wait();
    });
    assert_eq!(outcomes_of(&mut destager), [(0, brought(id(1, 1)))]);
    assert_eq!(outcomes_of(&mut destager), []);
}

/// A staging file that is damaged is looked at again when it has changed, not before; its version is given up by nobody here.
#[test]
fn what_is_damaged_in_memory_is_told_once_and_stays() {
    let node = Node::new();
    let mut destager = node.destager();
    node.start(None, 2);
    let staging = node.memory().join("0.staging");
    let at = fs::metadata(&staging).unwrap().len() / 2;
    let flip = |path: &Path| {
        let file = fs::File::options().read(true).write(true).open(path);
        let file = file.unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    flip(&staging);
    assert_eq!(
        outcomes_of(&mut destager),
        [(0, DestageOutcome::Lacking(vec![id(1, 2)]))]
    );
    assert_eq!(outcomes_of(&mut destager), []);
    // A buddy's copy has it.
    flip(&staging);
    fs::copy(&staging, node.memory().join("0.buddy")).unwrap();
    flip(&staging);
    assert_eq!(outcomes_of(&mut destager), [(0, brought(id(1, 2)))]);
    node.loses_its_memory();
    node.start(Some(id(1, 2)), 0);
}

/// A damaged arena is looked at again and again: somebody may mend it.
#[test]
fn what_fails_again_for_the_same_reason_is_told_once() {
    let node = Node::new();
    let mut destager = node.destager();
    node.start(None, 2);
    let arena = node.path("tier/phx/heat/1/0.arena");
    let file = fs::File::options().read(true).write(true).open(&arena);
    let file = file.unwrap();
    let mut superblocks = [0; 8 << 10];
    file.read_exact_at(&mut superblocks, 4 << 10).unwrap();
    let mut something_else_in_memory = 0..;
    let mut looked_at = |destager: &mut Destager| {
        let name = format!("x{}", something_else_in_memory.next().unwrap());
        fs::write(node.memory().join(name), "").unwrap();
        outcomes_of(destager)
    };
    for _ in 0..2 {
        file.write_all_at(&[0; 8 << 10], 4 << 10).unwrap();
        let all = looked_at(&mut destager);
        let [(0, DestageOutcome::Failed(fault))] = &all[..] else {
            panic!("{all:?}");
        };
        assert!(fault.text.contains("superblocks are damaged"), "{fault}");
        assert_eq!(looked_at(&mut destager), []);
        // It is open for writing: that is another state.
        let held = MappedFile::open(&arena).unwrap();
        file.write_all_at(&superblocks, 4 << 10).unwrap();
        assert_eq!(looked_at(&mut destager), [(0, DestageOutcome::Busy)]);
        drop(held);
    }
    assert_eq!(looked_at(&mut destager), [(0, brought(id(1, 2)))]);
}

#[test]
fn a_start_waits_for_who_brings_its_arena_to_the_tier_and_is_told_if_that_does_not_end() {
    let node = Node::new();
    node.start(None, 2);
    let arena = node.path("tier/phx/heat/1/0.arena");
    let held = MappedFile::open(&arena).unwrap();
    assert_eq!(
        outcomes_of(&mut node.destager()),
        [(0, DestageOutcome::Busy)]
    );
    let refused = node.begin(0, 1, Duration::from_millis(50)).unwrap_err();
    assert_eq!(refused.code, CheckpointErrorCode::Busy);
    assert!(refused.text.contains("`tarn ckpt destage`"), "{refused}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            drop(held);
        });
        node.start(Some(id(1, 2)), 0);
    });
}

#[test]
fn a_staging_file_is_not_removed_while_something_of_it_waits() {
    let node = Node::new();
    node.start(None, 2);
    let folder = |path: &Path| Folder::there(path, Arc::new(Device::new(Profile::none())));
    let tier = folder(&node.path("tier/phx/heat")).unwrap();
    let memory = folder(&node.memory()).unwrap();
    let gives_back = || {
        left::give_back(&tier, "1/0.arena", &memory)
            .unwrap()
            .is_some()
    };
    assert!(!gives_back());
    let mut medium = tier.open("1/0.arena").unwrap();
    left::destage(&mut medium, &memory).unwrap();
    assert!(gives_back());
    assert!(!gives_back());
}

#[test]
fn attack_the_folder_of_another_user_is_not_used() {
    let node = Node::new();
    node.start(None, 1);
    let folder = node.path("tier/phx/heat");
    let open = |mode| {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
    };
    open(0o777);
    let refused = node.destager().run(OsStr::new("heat"), &mut |_| ());
    assert!(refused.unwrap_err().text.contains("others can write to it"));
    open(0o700);
    assert_eq!(outcomes_of(&mut node.destager()), [(0, brought(id(1, 1)))]);
}
