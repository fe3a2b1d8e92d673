//! A file of more than a piece, or with holes, while threads copy it chunk by chunk.

use crate::content::{self, ChunkHash};
use crate::source_file::{Content, OpenSourceFile, Sink};
use rustix::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

/// Chunks that a thread takes at once: long enough to keep a device's read-ahead going.
pub(crate) const GRAIN: u64 = 8;
/// Files of more chunks are shared by threads.
pub(crate) const SHARED: u64 = 2 * GRAIN;

/// Whether a file of so many bytes is work for several threads.
pub(crate) fn is_shared(size: u64) -> bool {
    content::chunks(size) > SHARED
}

/// A file that is being copied.
pub(crate) struct Large {
    pub(crate) source: OpenSourceFile,
    pub(crate) sink: Sink,
    pub(crate) extents: Box<[(u64, u64)]>,
    /// Its content has been requested already, on the stream of the thread that begins it.
    pub(crate) is_requested: bool,
    pub(crate) hashes: Mutex<Vec<ChunkHash>>,
    /// The first chunk that no thread has taken.
    pub(crate) next: AtomicU64,
    /// Chunks that are finished.
    pub(crate) finished: AtomicU64,
}

impl Large {
    pub(crate) fn new(source: OpenSourceFile, sink: Sink, extents: Box<[(u64, u64)]>) -> Self {
        let chunks = content::chunks(source.status.size);
        Self {
            hashes: Mutex::new(vec![0; chunks as usize]),
            source,
            sink,
            extents,
            is_requested: false,
            next: AtomicU64::new(0),
            finished: AtomicU64::new(0),
        }
    }

    /// The tree of the file.
    pub(crate) fn tree(&self) -> u32 {
        self.source.tree
    }

    /// The same file, whose content is on its way.
    pub(crate) fn on_its_way(mut self) -> Self {
        self.is_requested = true;
        self
    }

    /// The descriptor that its bytes are read from; `None` for a peer's.
    pub(crate) fn fd(&self) -> Option<&OwnedFd> {
        match &self.source.from {
            Content::File(fd) | Content::Sealed(fd, _) => Some(fd),
            Content::Peer(..) => None,
        }
    }

    pub(crate) fn chunks(&self) -> u64 {
        content::chunks(self.source.status.size)
    }

    /// Whether the bytes that an earlier attempt has left of it count. A request sent before it was known how the file is sealed
    /// asked for the whole file.
    pub(crate) fn goes_on(&self) -> bool {
        match &self.sink {
            Sink::File(_, _, None) => true,
            Sink::File(_, _, Some(sealing)) => sealing.goes_on && !self.is_requested,
            Sink::Nowhere => false,
        }
    }
}
