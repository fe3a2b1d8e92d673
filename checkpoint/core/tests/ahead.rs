//! A commit has the bytes that are there at that time, whoever wrote to an object that was copied ahead, and when.

#[path = "common/hall.rs"]
#[allow(dead_code)]
mod hall;

use hall::Hall;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use tarn_checkpoint_core::manifest::CHUNK;
use tarn_checkpoint_core::rank::Replicate;
use tarn_checkpoint_core::{CommitObject, Distance, Empty, Options, Rank, Shape, StagingShare};
use tarn_dirty_pages::Tracker;
use tarn_media::{Device, Folder, Profile};
use tarn_ports::{TrackError, WatchedMemory};

const SIZE: usize = 20 * CHUNK as usize + 100;
/// Of a cycle.
const LENGTH: Duration = Duration::from_millis(160);

/// Cycles, for as long as something may be waited for: on a busy machine the helper does not come in every one.
fn cycles() -> impl Iterator<Item = u8> {
    let until = Instant::now() + Duration::from_secs(120);
    (0..=u8::MAX)
        .cycle()
        .take_while(move |_| Instant::now() < until)
}

struct Program {
    rank: Rank<Folder, Folder>,
    /// Two objects: `early` and `late`.
    memory: [&'static mut [u8]; 2],
}

const KEYS: [&[u8]; 2] = [b"early", b"late"];

fn begin(folder: &Path, audit: bool) -> Rank<Folder, Folder> {
    let device = Arc::new(Device::new(Profile::none()));
    let options = Options {
        run: b"run".as_slice().into(),
        identity: 1,
        staging: StagingShare::None,
        buddies: 0,
        same_node: false,
        distance: Distance::Near,
        replicate: Replicate::None,
        replicate_every: 1,
        timeout: Duration::from_secs(20),
        helpers: 1,
        audit,
        enter: Arc::new(|| ()),
        external: None,
        seal: None,
        leaves_out: false,
    };
    let tier = Folder::new(&folder.join("tier"), Arc::clone(&device)).unwrap();
    let memory = Folder::new(&folder.join("memory"), device).unwrap();
    Rank::begin(options, tier, memory, Hall::new(&["one"]).seat(0)).unwrap()
}

fn item<'a>(key: &'a [u8], bytes: &'a [u8]) -> CommitObject<'a> {
    CommitObject {
        key,
        unit: 1,
        shape: Shape::Own,
        bytes,
    }
}

fn empty<'a>(key: &'a [u8], bytes: &'a mut [u8]) -> Empty<'a> {
    Empty {
        key,
        shape: Shape::Own,
        bytes,
    }
}

impl Program {
    fn begin(tracker: &Tracker, folder: &Path, always: bool) -> Self {
        let mut rank = begin(folder, false);
        let mut watched = |key: &[u8], value| {
            let (memory, watches) = tracker.leak(SIZE, SIZE.next_multiple_of(1 << 20)).unwrap();
            memory.fill(value);
            watches
                .into_iter()
                .for_each(|w| rank.watch(key, Box::new(w), always));
            memory
        };
        let memory = [watched(KEYS[0], 1), watched(KEYS[1], 2)];
        Self { rank, memory }
    }

    /// Computes for a cycle: the first object is written in its first part, the second until its end.
    fn compute(&mut self, cycle: u8) {
        self.memory[0]
            .iter_mut()
            .for_each(|b| *b = b.wrapping_mul(31).wrapping_add(cycle));
        for part in 0..10 {
            let at = SIZE * part / 10;
            self.memory[1][at..at + SIZE / 10].fill(cycle ^ part as u8);
            std::thread::sleep(LENGTH / 10);
        }
    }

    fn commit(&mut self) {
        let items = KEYS
            .iter()
            .zip(&self.memory)
            .map(|(key, bytes)| item(key, bytes));
        self.rank.commit(&items.collect::<Vec<_>>()).unwrap();
    }

    /// Ends, begins again, and compares.
    fn compare(self, folder: &Path) {
        let Self { rank, memory } = self;
        rank.end().unwrap();
        let mut back = [vec![0; SIZE], vec![0; SIZE]];
        let objects = KEYS
            .iter()
            .zip(&mut back)
            .map(|(key, bytes)| empty(key, bytes));
        let mut objects: Vec<Empty<'_>> = objects.collect();
        begin(folder, false)
            .restart(None, &mut objects)
            .unwrap()
            .unwrap();
        assert!(
            back[0] == memory[0] && back[1] == memory[1],
            "what came back is not what was committed"
        );
    }
}

/// All ways to track that there are here.
fn trackers() -> impl Iterator<Item = Tracker> {
    let kernel = Tracker::probe().inspect_err(|e| println!("SKIPPED: {e}"));
    kernel.into_iter().chain([Tracker::by_mprotect().unwrap()])
}

/// It is learned that one object is written early: from then on it is copied before the commit, and the other is not.
#[test]
fn what_is_written_early_is_copied_ahead() {
    for tracker in trackers() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut program = Program::begin(&tracker, folder.path(), false);
        for cycle in cycles() {
            program.compute(cycle);
            program.commit();
            let stats = program.rank.stats();
            if stats.ahead > 0 && stats.commits > 5 {
                break;
            }
        }
        let stats = program.rank.stats();
        assert!(stats.ahead > 0, "{stats:?}");
        assert!(stats.ahead < stats.bytes);
        program.compare(folder.path());
    }
}

/// Threads write all the time, also while it is copied; they stop for the commit only.
#[test]
fn what_is_written_after_the_copy_is_copied_again() {
    for tracker in trackers() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut program = Program::begin(&tracker, folder.path(), true);
        for cycle in cycles() {
            // Pages here and there, late in the cycle.
            std::thread::sleep(LENGTH / 3);
            for n in 0..5 {
                let at = (usize::from(cycle) * 7919 + n * 104_729 * 13) % SIZE;
                program.memory[0][at] ^= 0x55;
                program.memory[1][SIZE - 1 - at] ^= 0xaa;
                std::thread::sleep(LENGTH / 20);
            }
            program.commit();
            let stats = program.rank.stats();
            if stats.ahead > 0 && stats.twice > 0 && stats.commits > 7 {
                break;
            }
        }
        let stats = program.rank.stats();
        assert!(stats.ahead > 0 && stats.twice > 0, "{stats:?}");
        program.compare(folder.path());
    }
}

/// Memory that a device writes to: nobody sees it.
struct Blind {
    memory: Arc<[AtomicU8]>,
    /// The middle byte when it was last copied ahead.
    copied: AtomicU8,
    /// The same, at the last commit.
    committed: Arc<AtomicU8>,
}

impl WatchedMemory for Blind {
    fn size(&self) -> u64 {
        self.memory.len() as u64
    }

    fn arm(&mut self) -> Result<(), TrackError> {
        Ok(())
    }

    fn written(&mut self, _: bool) -> Result<Vec<Range<u64>>, TrackError> {
        let copied = self.copied.load(Ordering::Relaxed);
        self.committed.store(copied, Ordering::Relaxed);
        Ok(Vec::new())
    }

    fn disarm(&mut self) -> Result<(), TrackError> {
        Ok(())
    }

    fn copy(&self, at: u64, into: &mut [u8]) {
        let from = &self.memory[at as usize..];
        into.iter_mut()
            .zip(from)
            .for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        let middle = (SIZE / 2).checked_sub(at as usize);
        if let Some(byte) = middle.and_then(|middle| into.get(middle)) {
            self.copied.store(*byte, Ordering::Relaxed);
        }
    }
}

#[test]
fn an_audit_finds_writes_that_nobody_saw() {
    for audit in [false, true] {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut rank = begin(folder.path(), audit);
        let memory: Arc<[AtomicU8]> = (0..SIZE).map(|_| AtomicU8::new(7)).collect();
        let committed = Arc::new(AtomicU8::new(7));
        let blind = Blind {
            memory: Arc::clone(&memory),
            copied: AtomicU8::new(7),
            committed: Arc::clone(&committed),
        };
        rank.watch(b"early", Box::new(blind), true);
        let now = || {
            memory
                .iter()
                .map(|b| b.load(Ordering::Relaxed))
                .collect::<Vec<u8>>()
        };
        let mut missed = false;
        for cycle in cycles() {
            std::thread::sleep(LENGTH);
            memory[SIZE / 2].store(cycle, Ordering::Relaxed);
            let (bytes, before) = (now(), rank.stats());
            rank.commit(&[item(b"early", &bytes)]).unwrap();
            let stats = rank.stats();
            let all = stats.ahead - before.ahead == SIZE as u64;
            // A helper that is late copies what the device has written too.
            missed = match audit {
                true => stats.twice > before.twice,
                false => all && committed.load(Ordering::Relaxed) != cycle,
            };
            if missed && stats.commits > 5 {
                break;
            }
        }
        assert!(missed, "{:?}", rank.stats());
        rank.end().unwrap();
        let mut back = vec![0; SIZE];
        let restored = begin(folder.path(), false).restart(None, &mut [empty(b"early", &mut back)]);
        assert!(restored.unwrap().is_some());
        assert_eq!(back == now(), audit, "without an audit it is an old one");
    }
}
