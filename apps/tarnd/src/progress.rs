//! How far running tasks are, and how long they will take.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tarn_ports::Control;
use tarn_types::units::{Nanos, SECOND, Time};

/// Rates are over at least so long, where a task has run so long.
const WINDOW: Nanos = 2 * SECOND;

/// Times and bytes done at them: the one that rates are taken over, and the one that follows it.
#[derive(Debug, Clone, Copy)]
struct Samples {
    older: (Time, u64),
    newer: (Time, u64),
}

/// A task under way.
#[derive(Debug)]
pub(crate) struct RunningTask {
    /// Progress and cancellation, shared with the threads that do it.
    pub(crate) control: Arc<Control>,
    keep: Arc<AtomicBool>,
    samples: RefCell<Samples>,
}

impl RunningTask {
    /// `keep` determines whether half-done work stays when the threads are stopped.
    pub(crate) fn new(now: Time, control: Arc<Control>, keep: Arc<AtomicBool>) -> Self {
        let none = (now, 0);
        let samples = RefCell::new(Samples {
            older: none,
            newer: none,
        });
        Self {
            control,
            keep,
            samples,
        }
    }

    /// Asks the threads to stop.
    pub(crate) fn stop(&self, keep: bool) {
        // A task that is stopped for good after it was paused keeps nothing.
        self.keep.store(keep, Ordering::Relaxed);
        self.control.cancel.store(true, Ordering::Relaxed);
    }

    /// Bytes done, and by the rate of the last seconds the time left for `all`.
    pub(crate) fn look(&self, now: Time, all: Option<u64>) -> (u64, Option<Nanos>) {
        let done = self.control.done.load(Ordering::Relaxed);
        let mut samples = self.samples.borrow_mut();
        let (since, before) = samples.older;
        let (moved, took) = (done.saturating_sub(before), now.saturating_sub(since));
        if now.saturating_sub(samples.newer.0) >= WINDOW {
            samples.older = samples.newer;
            samples.newer = (now, done);
        }
        let left = all.and_then(|all| time_left(all.saturating_sub(done), moved, took));
        (done, left)
    }
}

fn time_left(bytes: u64, moved: u64, took: Nanos) -> Option<Nanos> {
    let nanos = u128::from(bytes).checked_mul(u128::from(took))? / u128::from(moved).max(1);
    (moved > 0).then(|| u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let control = Arc::new(Control::default());
        let running = RunningTask::new(0, Arc::clone(&control), Arc::default());
        assert_eq!(running.look(0, Some(1000)), (0, None));
        // 10 bytes a second for 6 s, then 100 bytes a second.
        for second in 1..=6 {
            control.advance(10);
            running.look(second * SECOND, Some(1000));
        }
        assert_eq!(running.look(6 * SECOND, Some(1060)).1, Some(100 * SECOND));
        for second in 7..=12 {
            control.advance(100);
            running.look(second * SECOND, Some(1000));
        }
        assert_eq!(running.look(12 * SECOND, Some(1660)).1, Some(10 * SECOND));
        assert_eq!(running.look(12 * SECOND, None), (660, None));
    }
}
