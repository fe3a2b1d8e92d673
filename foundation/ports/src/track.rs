//! Finds the written pages of a program's memory.

use std::ops::Range;

/// Why writes cannot be tracked.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    /// There is no mechanism for it, or this process may not use it; with the alternative.
    #[error("writes to memory cannot be tracked here: {0}")]
    Unsupported(String),
    /// The system refused something.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The system's error.
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

    /// The bytes written since it was armed, by whole pages or several together, in order and apart. They count as clean again if
    /// `again`.
    ///
    /// # Errors
    /// When the system refuses: everything counts as written then.
    fn written(&mut self, again: bool) -> Result<Vec<Range<u64>>, TrackError>;

    /// Pages are not watched any more, and cost nothing.
    ///
    /// # Errors
    /// When the system refuses.
    fn disarm(&mut self) -> Result<(), TrackError>;

    /// Copies bytes out, also while others write to them: then they are any mixture, which [`WatchedMemory::written`] reports.
    fn copy(&self, at: u64, into: &mut [u8]);
}
