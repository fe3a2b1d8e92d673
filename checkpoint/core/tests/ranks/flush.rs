//! Versions on an external store that is slow, full, gone, or returns other bytes: the version that `latest` names is whole,
//! always.

use crate::cluster::{Cluster, Gate, LocalRank, MOST, VERSIONS, damage, id, place, soon};
use crate::hall::Hall;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tarn_checkpoint_core::manifest::CHUNK;
use tarn_checkpoint_core::{
    CheckpointErrorCode, CommitObject, Empty, ExternalStore, PersistenceLevel, Shape, StagingShare,
    VersionId, flush,
};
use tarn_media::ExternalFolder;
use tarn_ports::{External, ExternalFileWriter, MediumError, ReadableMedium};

/// A store with faults.
struct EmulatedStore {
    inner: ExternalFolder,
    does: Arc<Does>,
}

#[derive(Default)]
pub(crate) struct Does {
    /// Bytes that can be written; none: any number.
    space: Option<AtomicU64>,
    /// A byte of each write is stored as another.
    damages: AtomicBool,
    /// Each write takes so many milliseconds longer.
    slow: AtomicU64,
    /// Nothing is there any more.
    gone: AtomicBool,
    /// Writes to parts of this version have to wait.
    held: Mutex<Option<&'static str>>,
}

impl Does {
    pub(crate) fn lose(&self) {
        self.gone.store(true, SeqCst);
    }

    pub(crate) fn find(&self) {
        self.gone.store(false, SeqCst);
    }

    fn hold(&self, version: Option<&'static str>) {
        *self.held.lock().unwrap() = version;
    }

    fn holds(&self, part: &str) -> bool {
        let held = self.held.lock().unwrap();
        held.is_some_and(|version| part.starts_with(&format!("{version}.")))
    }

    fn fails(&self) -> Result<(), MediumError> {
        match self.gone.load(SeqCst) {
            true => Err(error(std::io::ErrorKind::HostUnreachable)),
            false => Ok(()),
        }
    }
}

fn error(kind: std::io::ErrorKind) -> MediumError {
    MediumError::Io {
        doing: "use",
        what: "the emulated store".into(),
        source: kind.into(),
    }
}

impl External for EmulatedStore {
    fn create(&self, name: &str) -> Result<Box<dyn ExternalFileWriter>, MediumError> {
        self.does.fails()?;
        let inner = self.inner.create(name)?;
        let (does, name) = (Arc::clone(&self.does), name.to_owned());
        Ok(Box::new(EmulatedFileWriter { inner, does, name }))
    }

    fn see(&self, name: &str) -> Result<Box<dyn ReadableMedium + Send + Sync>, MediumError> {
        self.does.fails()?;
        self.inner.see(name)
    }

    fn list(&self, folder: &str) -> Result<Vec<String>, MediumError> {
        self.does.fails()?;
        self.inner.list(folder)
    }

    fn remove(&self, name: &str) -> Result<(), MediumError> {
        self.does.fails()?;
        self.inner.remove(name)
    }

    fn lock(&self) -> Result<Box<dyn Send>, MediumError> {
        self.does.fails()?;
        self.inner.lock()
    }
}

struct EmulatedFileWriter {
    inner: Box<dyn ExternalFileWriter>,
    does: Arc<Does>,
    name: String,
}

impl ReadableMedium for EmulatedFileWriter {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        self.does.fails()?;
        self.inner.read(at, into)
    }
}

impl ExternalFileWriter for EmulatedFileWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<(), MediumError> {
        self.does.fails()?;
        soon(|| !self.does.holds(&self.name));
        std::thread::sleep(Duration::from_millis(self.does.slow.load(SeqCst)));
        if let Some(space) = &self.does.space
            && space
                .fetch_update(SeqCst, SeqCst, |r| r.checked_sub(bytes.len() as u64))
                .is_err()
        {
            return Err(error(std::io::ErrorKind::StorageFull));
        }
        let mut stored = bytes.to_vec();
        if self.does.damages.load(SeqCst)
            && let Some(last) = stored.last_mut()
        {
            *last ^= 1;
        }
        self.inner.append(&stored)
    }

    fn sync(&mut self) -> Result<(), MediumError> {
        self.does.fails()?;
        self.inner.sync()
    }

    fn publish(self: Box<Self>) -> Result<(), MediumError> {
        self.does.fails()?;
        self.inner.publish()
    }
}

/// The external store of a cluster, if it has one.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) every: u64,
    pub(crate) rate: u64,
    /// The faults of the store, by rank.
    pub(crate) does: Vec<Arc<Does>>,
    /// Its folder, if not in the cluster's.
    pub(crate) at: Option<PathBuf>,
}

impl Store {
    fn folder(&self, cluster: &Path) -> ExternalFolder {
        let store = self.at.clone().unwrap_or_else(|| cluster.join("store"));
        std::fs::create_dir_all(&store).unwrap();
        ExternalFolder::new(&store, Path::new("run")).unwrap()
    }

    /// As a rank sees it.
    pub(crate) fn of(&self, cluster: &Path, rank: u32) -> Option<ExternalStore> {
        let store = EmulatedStore {
            inner: self.folder(cluster),
            does: Arc::clone(self.does.get(rank as usize)?),
        };
        Some(ExternalStore {
            store: Arc::new(store),
            every: self.every,
            rate: self.rate,
        })
    }
}

impl Cluster {
    /// Nodes that are as fast as they can be, and a store.
    pub(crate) fn flushing(nodes: &[&'static str], every: u64) -> Self {
        Self {
            staging: StagingShare::None,
            tier: u64::MAX,
            store: Store {
                every,
                does: nodes.iter().map(|_| Arc::default()).collect(),
                ..Store::default()
            },
            ..Self::new(nodes)
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn store(&self) -> ExternalFolder {
        self.store.folder(self.folder.path())
    }

    pub(crate) fn latest(&self) -> Option<VersionId> {
        flush::latest(&self.store()).unwrap().map(|v| v.id)
    }

    /// The folder of a version on the store.
    fn parts(&self, version: &str) -> PathBuf {
        let all = self.path("store/phx/run").read_dir().unwrap();
        let mut all = all.map(|e| e.unwrap().path());
        let of = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem == version);
        all.find(of).unwrap()
    }

    /// All nodes are lost.
    fn lose_nodes(&self) {
        for node in self.nodes.iter().collect::<BTreeSet<_>>() {
            std::fs::remove_dir_all(self.path(node)).unwrap();
        }
    }
}

const ROWS: u64 = 3 * CHUNK / 8 + 7;

/// The rows of a rank in a step: as many on each, of eight bytes.
fn rows(rank: u32, ranks: u32, step: u64) -> Vec<u8> {
    let (first, end) = (
        ROWS * u64::from(rank) / u64::from(ranks),
        ROWS * (u64::from(rank) + 1) / u64::from(ranks),
    );
    (first..end)
        .flat_map(|row| {
            (row << 16 | step)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .to_le_bytes()
        })
        .collect()
}

fn commit(rank: &mut LocalRank, of: u32, ranks: u32, step: u64) -> VersionId {
    let bytes = rows(of, ranks, step);
    let item = |key, bytes, shape| CommitObject {
        key,
        unit: 1,
        shape,
        bytes,
    };
    let items = [
        item(b"rows", &*bytes, Shape::Irregular(8)),
        item(b"same", b"same", Shape::Replicated),
        item(b"zero", b"", Shape::Replicated),
    ];
    rank.commit(&items).unwrap().id
}

/// The restored version, which must be that step.
fn restart(rank: &mut LocalRank, of: u32, ranks: u32, step: u64) -> Option<VersionId> {
    let mut bytes = vec![0; rows(of, ranks, 0).len()];
    let mut same = [0; 4];
    let empty = |key, bytes, shape| Empty { key, shape, bytes };
    let mut objects = [
        empty(b"rows", &mut *bytes, Shape::Irregular(8)),
        empty(b"same", &mut same, Shape::Replicated),
        empty(b"zero", &mut [], Shape::Replicated),
    ];
    let restored = rank.restart(None, &mut objects).unwrap();
    if restored.is_some() {
        assert!(bytes == rows(of, ranks, step), "rank {of}: another step");
        assert_eq!(&same, b"same");
    }
    restored
}

#[test]
fn what_was_flushed_outlives_all_nodes_and_goes_to_any_number_of_ranks() {
    let mut cluster = Cluster::flushing(&["one", "one", "two"], 2);
    cluster.staging = StagingShare::All;
    cluster.start(|of, mut rank, _| {
        for step in 1..=5 {
            let version = commit(&mut rank, of, 3, step);
            if step % 2 == 0 {
                rank.wait(version, PersistenceLevel::Flushed, MOST).unwrap();
            }
        }
        let stats = rank.stats();
        assert_eq!(
            (stats.flushed, stats.flushes_skipped, stats.flush_failed),
            (2, 0, 0)
        );
        // The fourth has all that the third would have had.
        rank.wait(id(1, 3), PersistenceLevel::Flushed, MOST)
            .unwrap();
        assert_eq!(rank.stats().flushed, 2);
        // A wait for a version flushes it, whether it is its turn or not.
        rank.wait(id(1, 5), PersistenceLevel::Flushed, MOST)
            .unwrap();
        assert_eq!(rank.stats().flushed, 3);
        commit(&mut rank, of, 3, 6);
        rank.wait(id(1, 6), PersistenceLevel::Flushed, MOST)
            .unwrap();
        rank.wait(id(1, 6), PersistenceLevel::Flushed, MOST)
            .unwrap();
        assert_eq!(rank.stats().flushed, 4);
        commit(&mut rank, of, 3, 7);
        let never = rank
            .wait(id(1, 8), PersistenceLevel::Flushed, MOST)
            .unwrap_err();
        assert_eq!(never.code, CheckpointErrorCode::NotFound, "{never}");
        rank.end().unwrap();
    });
    assert_eq!(cluster.latest(), Some(id(1, 6)));
    // The nodes have something newer.
    cluster.start(|of, mut rank, _| {
        assert_eq!(restart(&mut rank, of, 3, 7), Some(id(1, 7)));
        let levels: Vec<_> = rank
            .restorable()
            .iter()
            .map(|v| (v.id.number, v.level))
            .collect();
        assert_eq!(
            levels,
            [
                (5, PersistenceLevel::Flushed),
                (6, PersistenceLevel::Flushed),
                (7, PersistenceLevel::Durable)
            ]
        );
    });
    cluster.lose_nodes();
    let (mut step, mut from) = (6, id(1, 6));
    for (nodes, generation) in [(vec!["one", "two", "two"], 2), (vec!["one", "two"], 3)] {
        cluster.nodes = nodes;
        let ranks = cluster.nodes.len() as u32;
        cluster.start(|of, mut rank, _| {
            let bytes = rows(of, 3, 0).len() as u64 + 4;
            assert_eq!(rank.restorable().last().unwrap().bytes, bytes);
            assert_eq!(restart(&mut rank, of, ranks, step), Some(from));
            // Greater than any generation that the store has ever had.
            assert_eq!(rank.generation(), generation);
            for step in step + 1..=step + 2 {
                commit(&mut rank, of, ranks, step);
            }
            rank.wait(id(generation, 2), PersistenceLevel::Flushed, MOST)
                .unwrap();
            rank.end().unwrap();
        });
        (step, from) = (step + 2, id(generation, 2));
        cluster.lose_nodes();
    }
    // The last two stay.
    let there: Vec<_> = flush::list(&cluster.store()).unwrap();
    let there: Vec<_> = there
        .iter()
        .map(|v| (v.version.id, v.ranks, v.is_complete()))
        .collect();
    assert_eq!(there, [(id(2, 2), 3, true), (id(3, 2), 2, true)]);
}

#[test]
fn what_is_damaged_on_a_node_is_read_from_the_store_and_the_other_way() {
    let cluster = Cluster::flushing(&["one", "two"], 1);
    cluster.start(|of, mut rank, _| {
        for step in 1..=2 {
            let version = commit(&mut rank, of, 2, step);
            rank.wait(version, PersistenceLevel::Flushed, MOST).unwrap();
        }
        rank.end().unwrap();
    });
    let tier = cluster.path("two/tier/1/1.arena");
    let at = place(&tier, id(1, 2), b"rows");
    damage(&tier, at..at + 1);
    let part = cluster.parts("1.2").join("0.arena");
    let at = place(&part, id(1, 2), b"rows");
    damage(&part, at..at + 1);
    let restarts = |version, step| {
        cluster.start(|of, mut rank, _| {
            assert_eq!(restart(&mut rank, of, 2, step), Some(version));
        });
    };
    restarts(id(1, 2), 2);
    // Of the newest nothing whole is left: the one before stands in.
    let part = cluster.parts("1.2").join("1.arena");
    std::fs::File::options()
        .write(true)
        .open(&part)
        .unwrap()
        .set_len(70_000)
        .unwrap();
    restarts(id(1, 1), 1);
    cluster.lose_nodes();
    restarts(id(1, 1), 1);
}

#[test]
fn a_store_that_is_full_gone_or_changes_bytes_has_no_part_and_holds_up_nothing() {
    let full = Does {
        space: Some(AtomicU64::new(300_000)),
        ..Does::default()
    };
    let damages = Does {
        damages: AtomicBool::new(true),
        ..Does::default()
    };
    let gone = Does {
        gone: AtomicBool::new(true),
        ..Does::default()
    };
    for (does, code, expected) in [
        (full, CheckpointErrorCode::NoSpace, "no storage space"),
        (
            damages,
            CheckpointErrorCode::Corrupt,
            "right after it was written",
        ),
        (gone, CheckpointErrorCode::Io, "host unreachable"),
    ] {
        let mut cluster = Cluster::flushing(&["one", "one"], 1);
        let gone = does.gone.swap(false, SeqCst);
        cluster.store.does[1] = Arc::new(does);
        let does = &cluster.store.does[1];
        cluster.start(|of, mut rank, _| {
            does.gone.store(gone, SeqCst);
            let version = commit(&mut rank, of, 2, 1);
            soon(|| rank.stats().flush_failed + rank.stats().flushed > 0);
            if of == 1 {
                let error = rank
                    .wait(version, PersistenceLevel::Flushed, MOST)
                    .unwrap_err();
                assert_eq!(error.code, code, "{error}");
                assert!(error.text.contains(expected) || gone, "{error}");
            } else {
                let timed_out = rank.wait(
                    version,
                    PersistenceLevel::Flushed,
                    Duration::from_millis(50),
                );
                assert_eq!(timed_out.unwrap_err().code, CheckpointErrorCode::TimedOut);
            }
            rank.end().unwrap();
        });
        assert_eq!(cluster.latest(), None, "{code:?}");
        let names = cluster.parts("1.1").read_dir().unwrap();
        let names: Vec<_> = names.map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["0.arena"], "{code:?}");
        // Once the store is well, the cluster continues.
        cluster.store.does[1] = Arc::default();
        cluster.start(|of, mut rank, _| {
            assert_eq!(restart(&mut rank, of, 2, 1), Some(id(1, 1)));
            let version = commit(&mut rank, of, 2, 2);
            rank.wait(version, PersistenceLevel::Flushed, MOST).unwrap();
        });
        let there: Vec<_> = flush::list(&cluster.store()).unwrap();
        assert_eq!(
            there.iter().map(|v| v.version.id).collect::<Vec<_>>(),
            [id(2, 1)]
        );
    }
}

/// Each rank skips other versions as its store is slow; yet again and again one becomes complete, and no commit waits for any.
#[test]
fn ranks_of_any_speed_complete_versions_that_none_has_skipped() {
    let cluster = Cluster::flushing(&["one", "one", "one"], 1);
    cluster.store.does[1].slow.store(61, SeqCst);
    cluster.store.does[2].slow.store(83, SeqCst);
    let last = AtomicU64::new(4000);
    let completed = cluster.start(|of, mut rank, _| {
        let mut named = BTreeSet::new();
        let mut step = 0;
        while step < last.load(SeqCst) {
            step += 1;
            commit(&mut rank, of, 3, step);
            if of == 0 {
                named.extend(cluster.latest());
                if named.len() == 6 {
                    // No rank is ahead of another by as many.
                    last.fetch_min(step + 8, SeqCst);
                }
            }
        }
        let stats = rank.stats();
        assert!(of == 0 || stats.flushes_skipped > 0);
        (named.len() as u64, stats.flushed)
    });
    let (complete, flushed) = completed[0];
    assert!(complete >= 6, "{completed:?}");
    // Ranks that met by chance would have flushed several times as many.
    assert!(flushed <= 2 * complete + 8, "{completed:?}");
    // The number of incomplete versions is bounded.
    let there = flush::list(&cluster.store()).unwrap();
    assert!(there.len() <= 2 + 3 * 9, "{there:?}");
}

#[test]
fn a_flush_takes_as_long_as_its_rate_says_and_ends_with_the_program() {
    let mut cluster = Cluster::flushing(&["one"], 1);
    // Written and read back: two times as many bytes.
    let bytes = 2 * rows(0, 1, 0).len() as u64;
    cluster.store.rate = bytes * 10;
    cluster.start(|of, mut rank, _| {
        let version = commit(&mut rank, of, 1, 1);
        rank.wait(version, PersistenceLevel::Flushed, MOST).unwrap();
        assert!(rank.stats().last_flush >= Duration::from_millis(100));
        rank.end().unwrap();
    });
    cluster.store.rate = 1;
    cluster.start(|of, mut rank, _| {
        let version = commit(&mut rank, of, 1, 2);
        commit(&mut rank, of, 1, 3);
        let late = rank
            .wait(
                version,
                PersistenceLevel::Flushed,
                Duration::from_millis(10),
            )
            .unwrap_err();
        assert_eq!(late.code, CheckpointErrorCode::TimedOut);
        // Its slot is not used again.
        for step in 4..9 {
            commit(&mut rank, of, 1, step);
        }
        rank.end().unwrap();
    });
    assert_eq!(cluster.latest(), Some(id(1, 1)));
    assert_eq!(cluster.parts("2.1").read_dir().unwrap().count(), 0);
}

/// All parts came, and no rank was left to report it.
#[test]
fn the_next_start_publishes_what_became_complete_as_the_last_one_ended() {
    let cluster = Cluster::flushing(&["one", "one"], 1);
    cluster.start(|of, mut rank, _| {
        let version = commit(&mut rank, of, 2, 1);
        rank.wait(version, PersistenceLevel::Flushed, MOST).unwrap();
    });
    std::fs::remove_file(cluster.path("store/phx/run/latest")).unwrap();
    cluster.lose_nodes();
    cluster.start(|of, mut rank, _| {
        assert_eq!(restart(&mut rank, of, 2, 1), Some(id(1, 1)));
        rank.wait(id(1, 1), PersistenceLevel::Flushed, MOST)
            .unwrap();
    });
    // The store's versions decide, whatever `latest` has.
    std::fs::write(cluster.path("store/phx/run/latest"), b"nonsense").unwrap();
    cluster.start(|of, mut rank, _| {
        assert_eq!(restart(&mut rank, of, 2, 1), Some(id(1, 1)));
    });
    assert_eq!(cluster.latest(), Some(id(1, 1)));
}

#[test]
fn ranks_that_are_told_different_things_are_refused() {
    let cluster = Cluster::flushing(&["one", "one"], 1);
    let hall = Hall::new(&cluster.nodes);
    let other = Cluster::flushing(&["one", "one"], 3);
    let refused = std::thread::scope(|scope| {
        let one = scope.spawn(|| cluster.begin(&hall, 0).map(drop));
        let two = scope.spawn(|| other.begin(&hall, 1).map(drop));
        [one.join().unwrap(), two.join().unwrap()]
    });
    for refused in refused {
        let fault = refused.unwrap_err();
        assert_eq!(fault.code, CheckpointErrorCode::Invalid, "{fault}");
        assert!(
            fault.text.contains("give all ranks the same settings"),
            "{fault}"
        );
    }
}

/// A rank tries a store again that does not answer for a while; if it never answers, the rank reports that at the deadline.
#[test]
fn who_waits_for_a_flush_asks_a_store_again_that_failed_for_a_while() {
    let cluster = Cluster::flushing(&["one"], 1);
    cluster.start(|of, mut rank, _| {
        let version = commit(&mut rank, of, 1, 1);
        rank.wait(version, PersistenceLevel::Flushed, MOST).unwrap();
        let gone = &cluster.store.does[0].gone;
        gone.store(true, SeqCst);
        // Enough for a request to the store, however busy the machine is.
        let error = rank.wait(version, PersistenceLevel::Flushed, Duration::from_secs(2));
        let error = error.unwrap_err();
        assert_eq!(error.code, CheckpointErrorCode::TimedOut, "{error}");
        assert!(error.text.contains("host unreachable"), "{error}");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                gone.store(false, SeqCst);
            });
            rank.wait(version, PersistenceLevel::Flushed, MOST).unwrap();
        });
        rank.end().unwrap();
    });
}

/// Each rank had requested the first version while the second was being flushed, which stands for it.
#[test]
fn what_nobody_waits_for_any_more_is_not_flushed_and_nobody_waits_for_it() {
    let cluster = Cluster::flushing(&["one", "one"], 2);
    let [first, second] = [&cluster.store.does[0], &cluster.store.does[1]];
    first.hold(Some("1.2"));
    second.hold(Some("1.1"));
    let together = Gate::new(2);
    cluster.start(|of, mut rank, _| {
        rank.require(VERSIONS).unwrap();
        for step in 1..=2 {
            let version = commit(&mut rank, of, 2, step);
            rank.wait(version, PersistenceLevel::Durable, MOST).unwrap();
        }
        if of == 1 {
            soon(|| rank.stats().flushed == 1);
        }
        let late = rank.wait(
            id(1, 1),
            PersistenceLevel::Flushed,
            Duration::from_millis(50),
        );
        assert_eq!(late.unwrap_err().code, CheckpointErrorCode::TimedOut);
        together.wait();
        first.hold(None);
        // The second rank has the first version under way.
        rank.wait(id(1, 2), PersistenceLevel::Flushed, 2 * MOST)
            .unwrap();
        assert_eq!(rank.stats().flushed, 1, "rank {of}");
        together.wait();
        second.hold(None);
    });
}

/// Of a version that was never flushed, one of the same number, or a newer one, of another program is no flush.
#[test]
fn a_version_of_an_earlier_start_is_not_flushed_because_another_start_has_its_number() {
    let one = Cluster::flushing(&["one"], 2);
    let mut two = Cluster::flushing(&["one"], 1);
    two.store.at = Some(one.path("store"));
    one.start(|of, mut rank, _| {
        let version = commit(&mut rank, of, 1, 1);
        rank.wait(version, PersistenceLevel::Durable, MOST).unwrap();
    });
    two.start(|of, mut rank, _| {
        for step in 1..=3 {
            let version = commit(&mut rank, of, 1, step);
            rank.wait(version, PersistenceLevel::Flushed, MOST).unwrap();
        }
    });
    one.start(|of, mut rank, _| {
        let error = rank
            .wait(id(1, 1), PersistenceLevel::Flushed, MOST)
            .unwrap_err();
        assert_eq!(error.code, CheckpointErrorCode::NotFound, "{error}");
        commit(&mut rank, of, 1, 2);
        let version = commit(&mut rank, of, 1, 3);
        rank.wait(version, PersistenceLevel::Flushed, MOST).unwrap();
        // Now there is a version that continues from it.
        rank.wait(id(1, 1), PersistenceLevel::Flushed, MOST)
            .unwrap();
    });
}

/// A start that continues from an older version has nothing of the newer ones.
#[test]
fn a_version_that_the_next_start_did_not_go_on_from_is_not_flushed_with_that() {
    for lost in [false, true] {
        let cluster = Cluster::flushing(&["one"], 2);
        cluster.start(|of, mut rank, _| {
            rank.require(VERSIONS).unwrap();
            for step in 1..=3 {
                let version = commit(&mut rank, of, 1, step);
                rank.wait(version, PersistenceLevel::Durable, MOST).unwrap();
            }
            rank.wait(id(1, 2), PersistenceLevel::Flushed, MOST)
                .unwrap();
        });
        if lost {
            cluster.lose_nodes();
        }
        cluster.start(|of, mut rank, _| {
            let from = rank.restart(Some(id(1, 2)), &mut []).unwrap();
            assert_eq!(from, Some(id(1, 2)));
            commit(&mut rank, of, 1, 4);
            let version = commit(&mut rank, of, 1, 5);
            rank.wait(version, PersistenceLevel::Flushed, MOST).unwrap();
            rank.wait(id(1, 1), PersistenceLevel::Flushed, MOST)
                .unwrap();
            rank.wait(id(1, 2), PersistenceLevel::Flushed, MOST)
                .unwrap();
            let error = rank
                .wait(id(1, 3), PersistenceLevel::Flushed, MOST)
                .unwrap_err();
            assert_eq!(
                error.code,
                CheckpointErrorCode::NotFound,
                "lost: {lost}: {error}"
            );
        });
    }
}

/// Both are the first start of their name, as far as they know.
#[test]
fn programs_of_one_name_on_different_nodes_do_not_mix_their_parts() {
    let one = Cluster::flushing(&["one"], 1);
    let mut two = Cluster::flushing(&["one"], 1);
    two.store.at = Some(one.path("store"));
    one.start(|of, mut rank, _| {
        two.start(|of, mut other, _| {
            commit(&mut other, of, 1, 2);
            soon(|| other.stats().flushed > 0);
        });
        commit(&mut rank, of, 1, 1);
        soon(|| rank.stats().flushed > 0);
    });
    let there = flush::list(&one.store()).unwrap();
    assert!(
        there
            .iter()
            .all(|v| v.version.id == id(1, 1) && v.is_complete())
    );
    assert_eq!(there.len(), 2);
    assert_ne!(there[0].version.start, there[1].version.start);
    one.lose_nodes();
    one.start(|_, mut rank, _| {
        let mut bytes = vec![0; rows(0, 1, 0).len()];
        let mut objects = [Empty {
            key: b"rows",
            shape: Shape::Irregular(8),
            bytes: &mut bytes,
        }];
        rank.restart(None, &mut objects).unwrap();
        assert!(bytes == rows(0, 1, 1) || bytes == rows(0, 1, 2));
    });
}
