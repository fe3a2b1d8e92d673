//! One operation on trees: the data that its threads share, and their results.

use crate::large_file::{Large, is_shared};
use crate::queue::OperationQueue;
use crate::target::CopyTarget;
use crate::task::ScanTask;
use crate::tree::{SourceTree, TreeOrigin};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use tarn_ports::{Control, Watch};
use tarn_seal::file::stretch;
use tarn_types::manifest::Entry;

/// The operation on the files of a tree.
pub(crate) enum Goal {
    /// They are listed.
    List,
    /// They are read.
    Digest {
        /// Whether this checks a fresh copy: cached pages are dropped before, and it does not count as progress.
        read_back: bool,
    },
    /// They are copied.
    Copy(Box<CopyTarget>),
}

/// An operation.
pub(crate) struct TreeOperation<'a> {
    pub(crate) trees: &'a [SourceTree<'a>],
    pub(crate) goal: Goal,
    pub(crate) control: &'a Control,
    pub(crate) threads: usize,
    pub(crate) queue: OperationQueue<ScanTask, Large>,
    pub(crate) firsts: Mutex<Firsts>,
    /// Entries found, to keep within the bound.
    pub(crate) entries: AtomicU64,
    /// Folders that links led to, by device and inode.
    pub(crate) linked: Mutex<HashSet<(u64, u64)>>,
    /// Bytes of the names in those that were listed again.
    pub(crate) repeated: AtomicU64,
}

/// The first path of every file with several links: by tree, device and inode.
type Firsts = HashMap<(u32, u64, u64), Box<[u8]>>;

/// A path of a tree that points to another.
pub(crate) struct Pointer {
    pub(crate) tree: u32,
    pub(crate) path: Box<[u8]>,
    pub(crate) to: Box<[u8]>,
}

/// A folder that was listed.
pub(crate) struct Listed {
    pub(crate) tree: u32,
    pub(crate) path: Box<[u8]>,
    /// Its modification time when it was.
    pub(crate) mtime: i64,
    /// Its real path, if it is there by a link.
    pub(crate) real: Option<PathBuf>,
}

/// The results of a thread.
#[derive(Default)]
pub(crate) struct WorkerOutput {
    /// Entries by tree.
    pub(crate) found: Vec<(u32, Entry)>,
    /// Further names of files, and the names they were first found under.
    pub(crate) linked: Vec<Pointer>,
    /// Symbolic links whose targets can only be judged with the whole tree.
    pub(crate) undecided: Vec<Pointer>,
    /// Folders that were listed.
    pub(crate) folders: Vec<Listed>,
    /// Entries that were not made because something of that name was there: (tree, path).
    pub(crate) taken: Vec<(u32, Box<[u8]>)>,
    pub(crate) bytes: u64,
    pub(crate) resumed: u64,
}

impl WorkerOutput {
    pub(crate) fn absorb(&mut self, mut other: Self) {
        self.found.append(&mut other.found);
        self.linked.append(&mut other.linked);
        self.undecided.append(&mut other.undecided);
        self.folders.append(&mut other.folders);
        self.taken.append(&mut other.taken);
        self.bytes += other.bytes;
        self.resumed += other.resumed;
    }
}

impl<'a> TreeOperation<'a> {
    pub(crate) fn new(
        trees: &'a [SourceTree<'a>],
        goal: Goal,
        control: &'a Control,
        threads: usize,
    ) -> Self {
        Self {
            trees,
            goal,
            control,
            threads,
            queue: OperationQueue::new(Vec::new()),
            firsts: Mutex::default(),
            entries: AtomicU64::new(0),
            linked: Mutex::default(),
            repeated: AtomicU64::new(0),
        }
    }

    /// Threads that have something to do: a file alone that is not split is one thread's.
    pub(crate) fn useful(&self) -> usize {
        match (self.trees, &self.goal) {
            ([tree], goal) if matches!(tree.origin, TreeOrigin::Single { .. }) => {
                let small = tree.expected.is_some_and(|m| !is_shared(m.bytes()));
                if small || matches!(goal, Goal::List) {
                    1
                } else {
                    self.threads
                }
            }
            _ => self.threads,
        }
    }

    /// Counts bytes for observers.
    pub(crate) fn advance(&self, bytes: u64) {
        if !matches!(self.goal, Goal::Digest { read_back: true }) {
            self.control.advance(bytes);
        }
    }

    /// Tells whoever reads the destination while it grows what is there: these bytes of content.
    pub(crate) fn arrived(&self, path: &[u8], offset: u64, len: u64) {
        let Some(target) = self.target() else { return };
        let Some(arrivals) = &target.arrivals else {
            return;
        };
        if target.seal.is_none() {
            return arrivals.arrived(path, offset, len);
        }
        let (from, len) = stretch(offset, len);
        // The header was written before the first piece.
        let header = if offset == 0 { from } else { 0 };
        arrivals.arrived(path, from - header, len + header);
    }

    /// The destination, when there is one.
    pub(crate) fn target(&self) -> Option<&CopyTarget> {
        match &self.goal {
            Goal::Copy(target) => Some(target),
            _ => None,
        }
    }
}

impl Watch for TreeOperation<'_> {
    fn stopped(&self) -> bool {
        self.queue.check(self.control).is_err()
    }
}
