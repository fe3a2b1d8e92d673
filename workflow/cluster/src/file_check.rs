//! Whether the files that a step's command names are what they were when the run began.

use crate::MAX_LOOKS;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use tarn_ports::ChangedSince;
use tarn_types::id::StepId;

/// A step cannot be begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileCheckError {
    /// A file has changed.
    #[error(
        "{}, which its command names, is not what it was when the run began; it was not started: `tarn run` takes the \
         file as it is now and runs again only what that changes",
        .0.display()
    )]
    Changed(PathBuf),
    /// A file system has not answered for so long.
    #[error(
        "whether the files that its command names are what they were when the run began cannot be found out: their file system \
         has not answered for {0:?}; it was not started: look at that file system, then `tarn resume`"
    )]
    Hangs(Duration),
    /// The check could not begin.
    #[error("cannot start a thread to look at the files that its command names: {0}")]
    NoThread(std::io::Error),
}

/// Looks at files, each time on a thread that may be left to a file system which does not answer.
#[derive(Clone)]
pub(crate) struct FileCheck {
    changed_since: ChangedSince,
    timeout: Duration,
    /// Looks that have not come back.
    out: Arc<AtomicUsize>,
}

/// One of those looks, counted until it is dropped.
struct PendingFileCheck(Arc<AtomicUsize>);

impl PendingFileCheck {
    /// `None` when too many have not come back.
    fn begin(out: &Arc<AtomicUsize>) -> Option<Self> {
        let pending = Self(Arc::clone(out));
        (out.fetch_add(1, Ordering::Relaxed) < MAX_LOOKS).then_some(pending)
    }
}

impl Drop for PendingFileCheck {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a look at files ends that has not begun");
    }
}

impl FileCheck {
    pub(crate) fn new(changed_since: ChangedSince, timeout: Duration) -> Self {
        Self {
            changed_since,
            timeout,
            out: Arc::default(),
        }
    }

    /// # Errors
    /// Why the step cannot be begun.
    pub(crate) fn look(&self, step: StepId) -> Result<(), FileCheckError> {
        let Some(pending) = PendingFileCheck::begin(&self.out) else {
            return Err(FileCheckError::Hangs(self.timeout));
        };
        let (sender, receiver) = sync_channel(1);
        let changed_since = Arc::clone(&self.changed_since);
        let thread = std::thread::Builder::new().name("tarn-look".into());
        let started = thread.spawn(move || {
            let _pending = pending;
            let _ = sender.send(changed_since(step));
        });
        started.map_err(FileCheckError::NoThread)?;
        match receiver.recv_timeout(self.timeout) {
            Ok(None) => Ok(()),
            Ok(Some(path)) => Err(FileCheckError::Changed(path)),
            Err(_) => Err(FileCheckError::Hangs(self.timeout)),
        }
    }
}
