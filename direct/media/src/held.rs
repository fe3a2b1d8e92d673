//! Open files that are locked.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// An open file whose lock goes with this, though a child that is being forked has the same open file until it is another program.
#[derive(Debug)]
pub(crate) struct LockedFile {
    file: OwnedFd,
    /// The process that owns the lock: its forked children do not.
    process: u32,
}

impl LockedFile {
    pub(crate) fn new(file: OwnedFd) -> Self {
        Self {
            file,
            process: std::process::id(),
        }
    }

    /// Locks it, if nobody else has it.
    pub(crate) fn lock(&self) -> Result<(), Errno> {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive)
    }
}

impl AsFd for LockedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            // One that has no lock stays without.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}
