//! A store of media under names: a folder of a tier.

use crate::medium::{Medium, MediumError, ReadableMedium};
use std::os::fd::OwnedFd;

/// Keeps media under names such as `3/7.arena`. Those of one process at a time are written; anybody may read.
pub trait Vault: Send + Sync {
    /// A medium for its only writer.
    type Medium: Medium + 'static;
    /// The same for readers.
    type Seen: ReadableMedium + Send + Sync + 'static;

    /// Makes a medium of so many bytes, all of them taken, lets it be filled, and gives it its name: under this it is only ever
    /// whole. A medium that had the name before is gone.
    ///
    /// # Errors
    /// When there is no space, or it cannot be filled: nothing is left of it.
    fn create(
        &self,
        name: &str,
        size: u64,
        fill: &mut dyn FnMut(&mut Self::Medium) -> Result<(), MediumError>,
    ) -> Result<Self::Medium, MediumError>;

    /// Opens a medium for writing.
    ///
    /// # Errors
    /// When another process has it, or it is not there.
    fn open(&self, name: &str) -> Result<Self::Medium, MediumError>;

    /// Opens a medium for reading.
    ///
    /// # Errors
    /// When it is not there.
    fn see(&self, name: &str) -> Result<Self::Seen, MediumError>;

    /// Opens the file that a medium is, to send its bytes to others, or to let them write there.
    ///
    /// # Errors
    /// When it is not there.
    fn file(&self, name: &str, writable: bool) -> Result<OwnedFd, MediumError>;

    /// The names of all media, in their order.
    ///
    /// # Errors
    /// When the folder cannot be read.
    fn list(&self) -> Result<Vec<String>, MediumError>;

    /// Removes a medium; a process that has it open keeps its content.
    ///
    /// # Errors
    /// When it cannot be removed. That it is not there is none.
    fn remove(&self, name: &str) -> Result<(), MediumError>;
}
