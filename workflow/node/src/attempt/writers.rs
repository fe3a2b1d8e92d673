//! Watches the files that steps write to tiers in memory, and ends the step that fills its job's memory with more than was set aside for it.
//!
//! Such files are charged to the job, and go with no process: the kernel, which ends processes when memory runs out, would
//! come to tarnd in the end. So a step is ended while there is some memory left, and what it wrote is removed.

use crate::helper::launch::StepStopper;
use crate::storage::store::disk_use;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tarn_sys::memory::Gauge;
use tarn_types::units::Bytes;

/// Memory is nearly gone when less than one in so many of its bytes is free, ...
const LOW_SHARE: u64 = 16;
/// ... with these bounds: for tarnd and the kernel, and for the bytes that are written until a step has ended.
const LOW: std::ops::RangeInclusive<u64> = (32 << 20)..=(256 << 20);
/// Bytes a second that a processor fills memory with at most (`fallocate` on a tmpfs, measured): so soon it is looked at again.
const FILLS: u64 = 4 << 30;
/// Between two looks.
const LOOK: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(5)..=Duration::from_millis(500);
/// How long a step that was ended may take to give its memory back before another one is.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A step on a node, as far as it writes to a tier in memory.
#[derive(Debug, Clone)]
pub(crate) struct MemoryTierWriter {
    /// The folders to which it writes.
    pub(crate) folders: Vec<PathBuf>,
    /// Bytes that were set aside for that.
    pub(crate) reserve: u64,
    pub(crate) node: String,
    pub(crate) tier: String,
    pub(crate) stop: Arc<StepStopper>,
}

impl MemoryTierWriter {
    /// The error text if the step is to blame for memory running out: it has written so much more than was set aside for it that
    /// without it there would be twice as much.
    pub(crate) fn blame(&self, free: u64, total: u64) -> Option<(u64, String)> {
        if free >= low(total) {
            return None;
        }
        let folders = self.folders.iter().map(|f| disk_use(f));
        let written = folders.fold(0, u64::saturating_add);
        let excess = written.saturating_sub(self.reserve);
        (excess > free).then(|| {
            let text = format!(
                "out of memory: it has written {} to tier `{}` of node `{}`, which is in memory, {} more than were reserved for it, and {} of {} were left; it was ended before the kernel ends others, and nothing it wrote was kept; \
                 state the `size` of its output, so that space is kept for it, ask for more memory, or give it a tier on \
                 disk (--tier NAME=PATH:SIZE)",
                Bytes(written),
                self.tier,
                self.node,
                Bytes(excess),
                Bytes(free),
                Bytes(total)
            );
            (excess, text)
        })
    }
}

/// Below so many bytes free, memory is nearly gone.
fn low(total: u64) -> u64 {
    (total / LOW_SHARE).clamp(*LOW.start(), *LOW.end())
}

/// With so many bytes free there is no need to know exactly.
fn plenty(total: u64) -> u64 {
    2 * low(total)
}

/// When to look again while so much is free, with so many processors.
fn pause(free: u64, total: u64, processors: u64) -> Duration {
    let left = free.saturating_sub(low(total));
    let micros = left / (FILLS / 1_000_000) / processors.max(1);
    Duration::from_micros(micros).clamp(*LOOK.start(), *LOOK.end())
}

#[derive(Debug, Default)]
struct MemoryWriterTable {
    all: BTreeMap<u64, MemoryTierWriter>,
    next: u64,
    ends: bool,
}

/// All that write now.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    state: Mutex<MemoryWriterTable>,
    changed: Condvar,
}

impl Writers {
    fn state(&self) -> MutexGuard<'_, MemoryWriterTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a step in until what is returned is dropped.
    pub(crate) fn add(&self, writer: MemoryTierWriter) -> Writing<'_> {
        let number = self.add_for_good(writer);
        Writing { of: self, number }
    }

    /// Counts something in as long as this is there; its number.
    pub(crate) fn add_for_good(&self, writer: MemoryTierWriter) -> u64 {
        let mut state = self.state();
        state.next += 1;
        let number = state.next;
        state.all.insert(number, writer);
        self.changed.notify_all();
        number
    }

    /// Looks after memory as long as there are writers, on a thread of its own.
    pub(crate) fn watch(writers: &Arc<Self>) -> std::io::Result<MemoryWatchdog> {
        let writers = Arc::clone(writers);
        let watched = Arc::clone(&writers);
        let gauge = Gauge::new()?;
        let thread = std::thread::Builder::new().name("tarn-memory".into());
        let thread = thread.spawn(move || watched.look_after(&gauge))?;
        Ok(MemoryWatchdog {
            writers,
            thread: Some(thread),
        })
    }

    fn look_after(&self, gauge: &Gauge) {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let mut ended = None;
        let mut state = self.state();
        while !state.ends {
            if state.all.is_empty() {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            let (free, total) = gauge.read(plenty);
            let waits = |(number, since): (u64, Instant)| {
                since.elapsed() < TIMEOUT && self.state().all.contains_key(&number)
            };
            if free < low(total) && !ended.is_some_and(waits) {
                ended = self.end_worst(free, total).map(|n| (n, Instant::now()));
            }
            let woken = self
                .changed
                .wait_timeout(self.state(), pause(free, total, processors));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the writer that is to blame most; which it was.
    fn end_worst(&self, free: u64, total: u64) -> Option<u64> {
        let all: Vec<(u64, MemoryTierWriter)> = {
            let state = self.state();
            let running = state.all.iter().filter(|(_, w)| !w.stop.is_requested());
            running.map(|(n, w)| (*n, w.clone())).collect()
        };
        let blamed = all
            .into_iter()
            .filter_map(|(n, w)| Some((w.blame(free, total)?, n, w)));
        let ((_, why), number, writer) = blamed.max_by_key(|((excess, _), ..)| *excess)?;
        writer.stop.out_of_memory(why);
        Some(number)
    }
}

/// A step that is counted in.
pub(crate) struct Writing<'a> {
    of: &'a Writers,
    number: u64,
}

impl Writing<'_> {
    /// The error text if the step is to blame now.
    pub(crate) fn blame(&self) -> Option<String> {
        let writer = self.of.state().all.get(&self.number).cloned()?;
        let (free, total) = Gauge::new().ok()?.read(plenty);
        Some(writer.blame(free, total)?.1)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.of.state().all.remove(&self.number);
    }
}

/// The thread that looks after memory; ends when it is dropped.
pub(crate) struct MemoryWatchdog {
    writers: Arc<Writers>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for MemoryWatchdog {
    fn drop(&mut self) {
        self.writers.state().ends = true;
        self.writers.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const MIB: u64 = 1 << 20;

    fn writer(folder: &Path, reserve: u64, bytes: usize) -> MemoryTierWriter {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("f"), vec![1; bytes]).unwrap();
        MemoryTierWriter {
            folders: vec![folder.into(), folder.join("none")],
            reserve,
            node: "n1".into(),
            tier: "shm".into(),
            stop: Arc::new(StepStopper::new().unwrap()),
        }
    }

    #[test]
    fn who_fills_memory_beyond_what_was_set_aside_is_ended_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| dir.path().join(name);
        let writers = Writers::default();
        let large = writer(&folder("large"), 4 * MIB, 4 << 20);
        let small = writer(&folder("small"), 0, 1 << 20);
        let worst = writer(&folder("worst"), MIB, 3 << 20);
        let stops = [&large, &small, &worst].map(|w| Arc::clone(&w.stop));
        let requested = || stops.each_ref().map(|s| s.is_requested());
        let _counted = [large, small, worst].map(|w| writers.add(w));
        // Much is free; little is, but whose excess is even less is not to blame.
        assert_eq!(writers.end_worst(64 * MIB, 1 << 30), None);
        assert_eq!(writers.end_worst(5 * MIB, 1 << 30), None);
        assert_eq!(requested(), [false; 3]);
        assert!(writers.end_worst(MIB, 1 << 30).is_some());
        assert_eq!(requested(), [false, false, true]);
        let why = stops[2].overran().unwrap();
        assert!(
            why.contains("3.00 MiB to tier `shm` of node `n1`") && why.contains("2.00 MiB more"),
            "{why}"
        );
        assert_eq!(writers.end_worst(MIB, 1 << 30), None, "it ends already");
        assert!(writers.end_worst(MIB / 2, 1 << 30).is_some());
        assert_eq!(requested(), [false, true, true]);
    }

    #[test]
    fn it_is_looked_the_sooner_the_less_is_free() {
        let total = 1 << 30;
        assert_eq!(pause(0, total, 4), *LOOK.start());
        assert_eq!(pause(u64::MAX, total, 4), *LOOK.end());
        let some = |processors| pause(low(total) + (1 << 30), total, processors).as_millis();
        assert_eq!([some(1), some(4)], [250, 62]);
    }

    #[test]
    fn the_thread_ends_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let writers = Arc::new(Writers::default());
        let watchdog = Writers::watch(&writers).unwrap();
        let counted = writers.add(writer(&dir.path().join("w"), 0, 1));
        assert_eq!(counted.blame(), None);
        drop(watchdog);
        assert_eq!(Arc::strong_count(&writers), 1);
    }
}
