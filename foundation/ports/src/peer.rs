//! Trees on other nodes, as sources of a copy; and trees that are still arriving here, as sources for others.

use crate::operation::{Control, MoverError};
use std::fmt::Debug;
use std::path::Path;

/// Waits for a peer, and may stop waiting.
pub trait Watch: Sync {
    /// Whether to give up soon.
    fn stopped(&self) -> bool;
}

impl Watch for Control {
    fn stopped(&self) -> bool {
        self.cancelled()
    }
}

/// A tree on another node. Its manifest is known; here its contents are read.
pub trait PeerTree: Send + Sync + Debug {
    /// Its name in messages: node and tree.
    fn name(&self) -> String;

    /// A stream for one thread. Waits for the peer to be reached, and while it is busy.
    ///
    /// # Errors
    /// `Io` when it cannot be reached or is not who it should be, `Cancelled` when `watch` stops.
    fn open<'a>(&'a self, watch: &'a dyn Watch) -> Result<Box<dyn PeerStream + 'a>, MoverError>;

    /// How many streams keep it busy, if on each one file is waited for at a time; `None`: files are requested well ahead, and as
    /// many streams as a copy has threads do.
    fn streams(&self) -> Option<usize> {
        None
    }
}

/// A stretch of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Relative to the tree's root, components joined by `/`.
    pub path: &'a [u8],
    /// In bytes.
    pub offset: u64,
    /// In bytes. 0 requests whether the file is there.
    pub len: u64,
}

/// Pieces of files are requested, any number ahead, and then read in the order of the requests.
pub trait PeerStream {
    /// Asks for pieces. Does not wait.
    ///
    /// # Errors
    /// When the connection is lost.
    fn ask(&mut self, pieces: &[Piece<'_>]) -> Result<(), MoverError>;

    /// Fills `buffer` with the next bytes of the requested pieces. It must not reach beyond the end of a
    /// piece; a piece of length 0 takes one call with an empty buffer.
    ///
    /// # Errors
    /// `SourceChanged` when the peer has no such file or it is shorter, `Io` when the peer is silent, gone or sends
    /// bytes that were not requested. The stream is of no use afterwards.
    fn read(&mut self, buffer: &mut [u8]) -> Result<(), MoverError>;
}

/// Receives notifications about the bytes of a tree that have arrived while it is copied, so that it can be served before it is
/// whole. Called from the threads of the copy. Arrived bytes need not be verified to their end: a large file's hash is known with
/// its last byte. Every reader verifies them too.
pub trait Arrivals: Send + Sync + Debug {
    /// The folder in which the tree grows.
    fn growing(&self, staging: &Path);
    /// A stretch of a file (its path in the result) is there and will not be written again.
    fn arrived(&self, path: &[u8], offset: u64, len: u64);
    /// No more will come: the tree is whole, or the copy has failed.
    fn ended(&self, whole: bool);
}
