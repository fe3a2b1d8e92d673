//! An operation on a tree: how far it is, how it is cancelled, why it failed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tarn_types::event::{RunError, RunErrorKind};

/// Progress and cancellation, shared with its watchers.
#[derive(Debug, Default)]
pub struct Control {
    /// Set to make the operation fail soon with [`RunErrorKind::Cancelled`].
    pub cancel: AtomicBool,
    /// Bytes done.
    pub done: AtomicU64,
}

impl Control {
    /// Whether cancellation was requested.
    pub fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
    /// Adds to the bytes done.
    pub fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Why an operation on a tree failed. It failed whole.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", .failure.message)]
pub struct MoverError {
    /// Why.
    pub failure: RunError,
    /// Which of a copy's sources is not what it must be, by its place in the order of the sources; `None` if that is not known, or
    /// if it is not because of one.
    pub tree: Option<usize>,
    /// The kind of an object store's refusal, if programs distinguish it.
    pub refused: Option<ObjectStoreError>,
}

/// Why an object store refuses, where that is more than an I/O error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectStoreError {
    /// There is no such bucket, or nothing at that place of it.
    Missing,
    /// There are no keys, the store does not take them, or they may not do that.
    Denied,
    /// Somebody else has put something there since it was looked at.
    Occupied,
    /// An upload in parts has met another request for its object, and has to be begun again.
    RestartUpload,
}

impl MoverError {
    /// An error of a kind, with a message: the failure, its reason, and what to do.
    pub fn new(kind: RunErrorKind, message: impl Into<String>) -> Self {
        Self {
            failure: RunError {
                kind,
                message: message.into(),
            },
            tree: None,
            refused: None,
        }
    }

    /// The same, as a store's refusal of this kind.
    #[must_use]
    pub fn refused(mut self, why: ObjectStoreError) -> Self {
        self.refused = Some(why);
        self
    }

    /// The same of one of the sources, if it is a source that has failed: bytes that are not what they must be, or not there.
    #[must_use]
    pub fn of_source(mut self, at: usize) -> Self {
        let kind = self.failure.kind;
        let bad = matches!(kind, RunErrorKind::Corrupt | RunErrorKind::SourceChanged);
        self.tree = self.tree.or(bad.then_some(at));
        self
    }
}

impl From<MoverError> for RunError {
    fn from(error: MoverError) -> Self {
        error.failure
    }
}
