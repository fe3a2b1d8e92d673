//! A tree that is being copied to this node, and is served to others meanwhile.

use crate::lock;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tarn_ports::Arrivals;
use tarn_sys::beneath::Root;

/// The stretches of a tree that have arrived. The copy reports them (this is the `arrivals` of its `CopyJob`), and the data
/// server waits for them.
#[derive(Debug, Default)]
pub struct Arriving {
    state: Mutex<ArrivalState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ArrivalState {
    /// The folder in which it grows. The descriptor follows it when it is published by a rename.
    root: Option<Arc<Root>>,
    /// Stretches that are there, by file: sorted, none touching the next. Copies work in order, so there are few.
    files: HashMap<Box<[u8]>, Vec<(u64, u64)>>,
    ended: Option<bool>,
}

impl ArrivalState {
    fn has(&self, path: &[u8], offset: u64, len: u64) -> bool {
        let Some(stretches) = self.files.get(path) else {
            return false;
        };
        let after = stretches.partition_point(|(from, _)| *from <= offset);
        let before = after.checked_sub(1).map(|at| stretches[at]);
        before.is_some_and(|(_, to)| offset + len <= to)
    }
}

/// The outcome of a wait.
#[derive(Debug)]
pub(crate) enum Waited {
    /// It is there, beneath this folder.
    There(Arc<Root>),
    /// Not yet.
    NotYet,
    /// It will not come: the copy has failed.
    Failed,
}

impl Arriving {
    /// A tree of which nothing is there yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for a stretch of a file, for at most `timeout`.
    pub(crate) fn wait(&self, path: &[u8], offset: u64, len: u64, timeout: Duration) -> Waited {
        let missing = |s: &mut ArrivalState| s.ended.is_none() && !s.has(path, offset, len);
        let waited = self
            .changed
            .wait_timeout_while(lock(&self.state), timeout, missing);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match (&state.root, state.ended) {
            (_, Some(false)) | (None, Some(true)) => Waited::Failed,
            (Some(root), Some(true)) => Waited::There(Arc::clone(root)),
            (Some(root), None) if state.has(path, offset, len) => Waited::There(Arc::clone(root)),
            _ => Waited::NotYet,
        }
    }

    fn change(&self, change: impl FnOnce(&mut ArrivalState)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }
}

impl Arrivals for Arriving {
    fn growing(&self, staging: &Path) {
        // If it cannot be opened, readers wait until the copy ends, and are refused then.
        let root = Root::open(staging).ok().map(Arc::new);
        self.change(|state| {
            *state = ArrivalState {
                root,
                ..ArrivalState::default()
            };
        });
    }

    fn arrived(&self, path: &[u8], offset: u64, len: u64) {
        self.change(|state| {
            let stretches = state.files.entry(path.into()).or_default();
            let (mut from, mut to) = (offset, offset + len);
            let first = stretches.partition_point(|s| s.1 < from);
            let last = stretches.partition_point(|s| s.0 <= to);
            for (f, t) in stretches.drain(first..last) {
                (from, to) = (from.min(f), to.max(t));
            }
            stretches.insert(first, (from, to));
        });
    }

    fn ended(&self, whole: bool) {
        self.change(|state| {
            // The first end counts, until it grows again.
            state.ended.get_or_insert(whole);
            state.files = HashMap::new();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_unite() {
        let arriving = Arriving::new();
        for (offset, len) in [(20, 5), (0, 10), (30, 5), (10, 10), (25, 5)] {
            arriving.arrived(b"f", offset, len);
        }
        arriving.arrived(b"g", 5, 5);
        arriving.arrived(b"empty", 0, 0);
        let state = lock(&arriving.state);
        assert_eq!(state.files[&b"f"[..]], [(0, 35)]);
        assert!(state.has(b"f", 0, 35) && state.has(b"f", 34, 1) && !state.has(b"f", 34, 2));
        assert!(state.has(b"g", 5, 5) && !state.has(b"g", 4, 2) && !state.has(b"g", 10, 1));
        assert!(state.has(b"empty", 0, 0) && !state.has(b"h", 0, 0));
    }

    #[test]
    fn a_wait_ends_with_the_stretch_the_end_or_the_patience() {
        let arriving = Arriving::new();
        let moment = Duration::from_millis(10);
        let wait = || arriving.wait(b"f", 0, 4, moment);
        assert!(matches!(wait(), Waited::NotYet));
        let dir = tempfile::tempdir().unwrap();
        arriving.growing(dir.path());
        assert!(matches!(wait(), Waited::NotYet));
        std::thread::scope(|scope| {
            scope.spawn(|| arriving.arrived(b"f", 0, 4));
            let long = Duration::from_secs(10);
            assert!(matches!(arriving.wait(b"f", 0, 4, long), Waited::There(_)));
        });
        arriving.ended(false);
        assert!(matches!(wait(), Waited::Failed));
        arriving.growing(dir.path());
        assert!(matches!(wait(), Waited::NotYet));
        arriving.ended(true);
        assert!(matches!(wait(), Waited::There(_)));
    }
}
