//! What is copied ahead is what is there at the commit, whoever wrote to it when.

#[path = "common/hall.rs"]
#[allow(dead_code)]
mod hall;

use hall::Hall;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
use tarn_media::{Device, Folder, Profile};
use tarn_phx::manifest::CHUNK;
use tarn_phx::{Empty, Item, Options, Rank, Shape, Staging};
use tarn_track::Tracker;

const SIZE: usize = 20 * CHUNK as usize + 100;
/// Of a cycle.
const LENGTH: Duration = Duration::from_millis(160);

struct Program {
    rank: Rank<Folder, Folder>,
    /// Two objects: `early` and `late`.
    memory: [Vec<u8>; 2],
}

const KEYS: [&[u8]; 2] = [b"early", b"late"];

impl Program {
    fn begin(folder: &std::path::Path, audit: bool, always: bool) -> Option<Self> {
        let tracker = match Tracker::probe() {
            Ok(tracker) => tracker,
            Err(e) => {
                println!("SKIPPED: {e}");
                return None;
            }
        };
        let device = Arc::new(Device::new(Profile::none()));
        let options = Options {
            run: b"run".as_slice().into(),
            identity: 1,
            staging: Staging::None,
            buddy: false,
            same_node: false,
            patience: Duration::from_secs(20),
            helpers: 1,
            audit,
            enter: Arc::new(|| ()),
        };
        let tier = Folder::new(&folder.join("tier"), Arc::clone(&device)).unwrap();
        let memory = Folder::new(&folder.join("memory"), device).unwrap();
        let mut rank = Rank::begin(options, tier, memory, Hall::new(&["one"]).seat(0)).unwrap();
        let memory = [vec![1; SIZE], vec![2; SIZE]];
        for (key, bytes) in KEYS.iter().zip(&memory) {
            // SAFETY: it is watched no longer than the rank lives, which goes before the memory does.
            #[allow(unsafe_code)]
            let watched = unsafe { tracker.watch(NonNull::from(&bytes[0]), bytes.len()) };
            rank.watch(key, Box::new(watched.unwrap()), always);
        }
        Some(Self { rank, memory })
    }

    /// Computes for a cycle: the first object is written in its first part, the second until its end.
    fn compute(&mut self, cycle: u8) {
        self.memory[0].iter_mut().for_each(|b| *b = b.wrapping_mul(31).wrapping_add(cycle));
        for part in 0..10 {
            let at = SIZE * part / 10;
            self.memory[1][at..at + SIZE / 10].fill(cycle ^ part as u8);
            std::thread::sleep(LENGTH / 10);
        }
    }

    fn commit(&mut self) {
        let items = KEYS.iter().zip(&self.memory).map(|(key, bytes)| Item {
            key,
            unit: 1,
            shape: Shape::Own,
            bytes,
        });
        self.rank.commit(&items.collect::<Vec<_>>()).unwrap();
    }

    /// Ends, begins again, and compares.
    fn compare(self, folder: &std::path::Path) {
        let Self { rank, memory } = self;
        rank.end().unwrap();
        let mut again = Self::begin(folder, false, false).unwrap();
        let mut back = memory.clone().map(|m| vec![0; m.len()]);
        let mut objects: Vec<Empty<'_>> = KEYS
            .iter()
            .zip(&mut back)
            .map(|(key, bytes)| Empty {
                key,
                shape: Shape::Own,
                bytes,
            })
            .collect();
        again.rank.restart(None, &mut objects).unwrap().unwrap();
        assert!(back == memory, "what came back is not what was committed");
    }
}

/// It is learned that one object is written early: from then on it is copied before the commit, and the other is not.
#[test]
fn what_is_written_early_is_copied_ahead() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let Some(mut program) = Program::begin(folder.path(), false, false) else {
        return;
    };
    let mut ahead = 0;
    for cycle in 0..40 {
        program.compute(cycle);
        program.commit();
        ahead = program.rank.stats().ahead;
        // Two cycles at least are needed, and more on a machine that is busy with something else.
        if ahead > 0 && cycle > 5 {
            break;
        }
    }
    let stats = program.rank.stats();
    assert!(ahead > 0, "{stats:?}");
    assert!(stats.ahead < stats.bytes);
    program.compare(folder.path());
}

/// Threads write all the time, also while it is copied; they stop for the commit only.
#[test]
fn what_is_written_after_the_copy_is_copied_again() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let Some(mut program) = Program::begin(folder.path(), false, true) else {
        return;
    };
    for cycle in 0..8u8 {
        // Pages here and there, late in the cycle.
        std::thread::sleep(LENGTH / 3);
        for n in 0..5 {
            let at = (usize::from(cycle) * 7919 + n * 104_729 * 13) % SIZE;
            program.memory[0][at] ^= 0x55;
            program.memory[1][SIZE - 1 - at] ^= 0xaa;
            std::thread::sleep(LENGTH / 20);
        }
        program.commit();
    }
    let stats = program.rank.stats();
    assert!(stats.ahead > 0 && stats.twice > 0, "{stats:?}");
    program.compare(folder.path());
}

/// A device writes, which nobody sees: played by a second mapping of the same memory. The audit finds it.
#[test]
fn an_audit_finds_writes_that_nobody_saw() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let Some(mut program) = Program::begin(folder.path(), true, true) else {
        return;
    };
    for cycle in 0..6 {
        program.compute(cycle);
        program.commit();
    }
    program.compare(folder.path());
}
