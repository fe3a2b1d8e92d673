//! An action that fails in the middle leaves nothing behind, and nothing waits for what only it could give.

use crate::Test;
use crate::bench::{Bench, Machine, data, failed, held, part_ref, step, tier_ref, used};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tarn_mover::Trees;
use tarn_node::{MAX_MOVING, held_by_others};
use tarn_ports::{Control, CopyJob, CopyReport, Mover, MoverError, TreeCapabilities, World};
use tarn_types::action::Do;
use tarn_types::event::{Event, RunErrorKind};
use tarn_types::id::DataId;
use tarn_types::layout::TierDir;
use tarn_types::manifest::Manifest;
use tarn_types::part::{Place, StoreKey};
use tarn_types::units::SECOND;
use tarn_types::workflow::{Dataset, Distribution, Role, VersionPartitioning};

pub(crate) const TESTS: &[Test] = &[
    (
        "whole::a_transfer_that_fails_at_its_last_part_leaves_none",
        a_transfer_that_fails_at_its_last_part_leaves_none,
    ),
    (
        "whole::a_commit_that_fails_at_its_second_output_leaves_none",
        a_commit_that_fails_at_its_second_output_leaves_none,
    ),
    (
        "whole::manifests_that_cannot_be_written_leave_no_halves",
        manifests_that_cannot_be_written_leave_no_halves,
    ),
    (
        "whole::a_listing_ends_with_its_world",
        a_listing_ends_with_its_world,
    ),
    (
        "whole::transfers_that_wait_for_space_do_not_hold_up_evictions",
        transfers_that_wait_for_space_do_not_hold_up_evictions,
    ),
];

/// A source `raw` with these files, an entry a part.
fn bench(files: &[(&str, usize)]) -> Bench {
    let raw = Dataset {
        partition: VersionPartitioning::Entries,
        ..data("raw")
    };
    let mut bench = Bench::new(vec![raw], vec![]);
    for (name, bytes) in files {
        bench.write(&format!("raw/{name}"), &"x".repeat(*bytes));
    }
    bench.workflow.data[0].source = Some(bench.path("raw"));
    bench
}

/// So small a tier that what a run claims beyond what it holds is less than a block.
const CAPACITY: u64 = 4 << 20;

/// Whether another run would find a replica claimed on the tier.
fn claimed(bench: &Bench) -> bool {
    held_by_others(&bench.path("tier"), "somebody else") >= 4096
}

fn replica(bench: &Bench, key: &StoreKey) -> PathBuf {
    TierDir::new(&bench.path("tier"), "ws", "n0").part(key)
}

fn a_transfer_that_fails_at_its_last_part_leaves_none() {
    for to in [Place::Node(tier_ref(0)), Place::Drained] {
        let mut bench = bench(&[("a", 10), ("b", 10), ("c", 10)]);
        bench.capacity = CAPACITY;
        let mut world = bench.world();
        let infos = world.list(0).unwrap();
        std::fs::remove_file(bench.path("raw/c")).unwrap();
        let failure = world.transfer(0, 0, &infos, &Place::Source, &to);
        assert_eq!(failure.unwrap_err().kind, RunErrorKind::SourceChanged);
        for info in &infos {
            assert!(!replica(&bench, &info.key).exists(), "{}", info.key.0);
        }
        assert!(!bench.path("external/tarn-ws").exists());
        assert!(!claimed(&bench));
        // Without the last, it is whole.
        world
            .transfer(0, 0, &infos[..2], &Place::Source, &to)
            .unwrap();
        assert_eq!(claimed(&bench), to != Place::Drained);
        assert_eq!(
            bench.path("external/tarn-ws").exists(),
            to == Place::Drained
        );
    }
}

fn a_commit_that_fails_at_its_second_output_leaves_none() {
    let run = "echo 1 > $TARN_one/f; echo 2 > $TARN_two/f";
    let made = |at| used(at, Role::Out, Distribution::Single);
    let mut bench = Bench::new(
        vec![data("one"), data("two")],
        vec![step(run, vec![made(0), made(1)])],
    );
    bench.capacity = CAPACITY;
    let mut world = bench.world();
    let key = |number: u32| StoreKey(format!("r1.s0.a1.{number}"));
    let manifest = |number| bench.state().manifest("ws", &key(number));
    // In the place of the second output's manifest there is something that cannot be replaced.
    std::fs::create_dir_all(manifest(1).join("in the way")).unwrap();
    let (kind, message, _) = failed(world.run(vec![vec![], vec![]]));
    assert_eq!(kind, RunErrorKind::Io, "{message}");
    assert!(!replica(&bench, &key(0)).exists());
    assert!(!manifest(0).exists());
    assert!(!claimed(&bench));
}

fn manifests_that_cannot_be_written_leave_no_halves() {
    let files: Vec<String> = (0..20).map(|i| format!("f{i:02}")).collect();
    let files: Vec<_> = files.iter().map(|name| (name.as_str(), 1)).collect();
    let bench = bench(&files);
    // A source that may still change unseen has another name than one that is settled: it is the one both times.
    let file = std::fs::File::options()
        .write(true)
        .open(bench.path("raw/f00"));
    let later = SystemTime::now() + Duration::from_secs(3600);
    file.unwrap().set_modified(later).unwrap();
    let infos = bench.world().list(0).unwrap();
    let manifest = |at: usize| bench.state().manifest("ws", &infos[at].key);
    let folder = manifest(0).parent().map(Path::to_path_buf).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::create_dir_all(manifest(5).join("in the way")).unwrap();
    let failure = bench.world().list(0).unwrap_err();
    assert!(failure.message.contains("manifest"), "{}", failure.message);
    let left = std::fs::read_dir(&folder).unwrap().flatten();
    let names = left.map(|e| e.file_name().to_string_lossy().into_owned());
    let halves: Vec<_> = names.filter(|n| n.ends_with(".tmp")).collect();
    assert!(halves.is_empty(), "{halves:?}");
}

/// Its listings end only when they are cancelled.
struct Endless(Trees);

type Result<T> = std::result::Result<T, MoverError>;

impl Mover for Endless {
    fn capabilities(&self, folder: &Path) -> Result<TreeCapabilities> {
        self.0.capabilities(folder)
    }
    fn list(&self, root: &Path, control: &Control) -> Result<Manifest> {
        let begun = Instant::now();
        while !control.cancelled() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.0.list(root, control)
    }
    fn digest(&self, root: &Path, control: &Control) -> Result<Manifest> {
        self.0.digest(root, control)
    }
    fn verify(&self, root: &Path, manifest: &Manifest, control: &Control) -> Result<()> {
        self.0.verify(root, manifest, control)
    }
    fn copy(&self, job: &CopyJob, control: &Control) -> Result<CopyReport> {
        self.0.copy(job, control)
    }
    fn link_view(&self, roots: &[(PathBuf, Manifest)], dest: &Path) -> Result<()> {
        self.0.link_view(roots, dest)
    }
    fn clone_view(&self, r: &[(PathBuf, Manifest)], dest: &Path, c: &Control) -> Result<u64> {
        self.0.clone_view(r, dest, c)
    }
    fn split(&self, root: &Path, parts: &[(&Manifest, PathBuf)]) -> Result<()> {
        self.0.split(root, parts)
    }
    fn remove(&self, root: &Path) -> Result<()> {
        self.0.remove(root)
    }
    fn stored(&self, root: &Path) -> Result<u64> {
        self.0.stored(root)
    }
}

fn a_listing_ends_with_its_world() {
    let mut bench = bench(&[("a", 1)]);
    bench.mover = Arc::new(Endless(Trees::new()));
    let mut world = bench.world();
    world.perform(Do::List { data: DataId(0) });
    std::thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    drop(world);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

/// The next event that is no capacity of a tier, if it comes soon.
fn soon(world: &mut Machine) -> Option<Event> {
    let until = world.local.now() + 10 * SECOND;
    loop {
        match world.local.next(Some(until)).unwrap().1 {
            Event::Capacity { .. } => {}
            Event::Timer => return None,
            other => return Some(other),
        }
    }
}

fn transfers_that_wait_for_space_do_not_hold_up_evictions() {
    let mut bench = bench(&[("large", 600 << 10), ("small", 1 << 10)]);
    // Both nodes have the same tier: 2 MiB in all.
    (bench.nodes, bench.capacity) = (2, 1 << 20);
    let (to, from) = (Place::Node(tier_ref(0)), Place::Node(tier_ref(1)));
    let mut other = bench.world_of("other");
    let infos = other.list(0).unwrap();
    let (large, small) = infos.split_at(1);
    for place in [&to, &from] {
        other.transfer(0, 0, large, &Place::Source, place).unwrap();
    }
    let mut world = bench.world();
    world.perform(Do::List { data: DataId(0) });
    assert!(matches!(soon(&mut world), Some(Event::SourceListed { .. })));
    for (infos, place) in [(small, &to), (large, &from)] {
        world.order(0, 0, infos, &Place::Source, place);
        let event = soon(&mut world);
        assert!(
            matches!(event, Some(Event::TransferDone { .. })),
            "{event:?}"
        );
    }
    for _ in 0..MAX_MOVING {
        world.order(0, 0, large, &from, &to);
    }
    // By now all of them wait for what the other workflow holds.
    std::thread::sleep(Duration::from_millis(500));
    let key = held(0, 0, small, 0)[0].key.clone();
    let part = part_ref(0, 0, small[0].seq);
    world.perform(Do::Evict {
        part,
        key: key.clone(),
        at: to.clone(),
    });
    let event = soon(&mut world);
    assert_eq!(event, Some(Event::Evicted { part, at: to }));
    assert!(!replica(&bench, &key).exists());
}
