//! The external store: a file system that all nodes see and that outlives them; often slow, and used by others too.

use crate::medium::{MediumError, ReadableMedium};

/// Files below one folder of it, under names such as `3.7/0.arena`. A file that has its name is whole, and outlives a loss of power.
pub trait External: Send + Sync {
    /// Begins a file that has no name yet. A killed process's leftover for this name is gone.
    ///
    /// # Errors
    /// When it cannot be made.
    fn create(&self, name: &str) -> Result<Box<dyn ExternalFileWriter>, MediumError>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// When it is not there.
    fn see(&self, name: &str) -> Result<Box<dyn ReadableMedium + Send + Sync>, MediumError>;

    /// The names in a folder (the empty name: in the first one), in their order. One that is not there has none.
    ///
    /// # Errors
    /// When it cannot be read.
    fn list(&self, folder: &str) -> Result<Vec<String>, MediumError>;

    /// Removes a file, or a folder with all that is in it. That it is not there is no error.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn remove(&self, name: &str) -> Result<(), MediumError>;

    /// Keeps others from locking it, on any node, until this is dropped. Where the store has no locks nobody is kept.
    ///
    /// # Errors
    /// When somebody has it (`WouldBlock`).
    fn lock(&self) -> Result<Box<dyn Send>, MediumError>;
}

/// A file that has no name yet. One that is dropped is gone.
pub trait ExternalFileWriter: ReadableMedium + Send {
    /// Writes the next bytes.
    ///
    /// # Errors
    /// When it cannot be written.
    fn append(&mut self, bytes: &[u8]) -> Result<(), MediumError>;

    /// From now on the written bytes outlive a loss of power and are read from the store, as far as the system can be asked for
    /// that.
    ///
    /// # Errors
    /// When it cannot be synced: nothing is promised then.
    fn sync(&mut self) -> Result<(), MediumError>;

    /// Gives the file its name, in the place of the file that had it.
    ///
    /// # Errors
    /// When it cannot be renamed, or that cannot be synced.
    fn publish(self: Box<Self>) -> Result<(), MediumError>;
}
