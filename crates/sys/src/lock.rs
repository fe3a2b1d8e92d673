//! Locks of open folders, which whoever changes their names holds for a moment.

use rustix::fd::AsFd;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Between two attempts.
const BETWEEN: Duration = Duration::from_millis(1);

/// Holds the lock of an open file or folder.
#[derive(Debug)]
pub struct Lock<F: AsFd>(F);

impl<F: AsFd> Lock<F> {
    /// Waits for it, for so long.
    ///
    /// # Errors
    /// `EWOULDBLOCK` when somebody else has had it for all that time.
    pub fn wait(file: F, patience: Duration) -> Result<Self, Errno> {
        let until = Instant::now() + patience;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                    std::thread::sleep(BETWEEN);
                }
                Err(e) => return Err(e),
            }
        }
    }
}

impl<F: AsFd> Drop for Lock<F> {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
