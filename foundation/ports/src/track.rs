//! Which pages of a program's memory were written.

use std::ops::Range;

/// Why writes cannot be tracked.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    /// There is no mechanism for it, or this process may not use it; and what is done instead.
    #[error("writes to memory cannot be tracked here: {0}")]
    Unsupported(String),
    /// The system refused something.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Memory of this program that is watched for writes, and read while the program may be writing to it. Offsets count from its beginning.
pub trait WatchedMemory: Send {
    /// Bytes.
    fn size(&self) -> u64;

    /// All pages count as clean from now on.
    ///
    /// # Errors
    /// When the system refuses.
    fn arm(&mut self) -> Result<(), TrackError>;

    /// What was written since it was armed, by whole pages or several together, in order and apart. It counts as clean again if `again`.
    ///
    /// # Errors
    /// When the system refuses: everything counts as written then.
    fn written(&mut self, again: bool) -> Result<Vec<Range<u64>>, TrackError>;

    /// Pages are not watched any more, and cost nothing.
    ///
    /// # Errors
    /// When the system refuses.
    fn disarm(&mut self) -> Result<(), TrackError>;

    /// Copies bytes out, whoever may be writing to them: then they are any mixture, which [`WatchedMemory::written`] tells.
    fn copy(&self, at: u64, into: &mut [u8]);
}
