//! The tasks of the threads of an operation: folders, files and trees.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_sys::beneath::Root;

/// Something for a thread to do.
pub(crate) enum ScanTask {
    /// List a folder of a tree (its path in the result), which is there by a link or not.
    Folder(u32, Box<[u8]>, Option<Box<LinkedFolder>>),
    /// Do these files of a folder.
    Files(OpenFolder, Vec<Box<[u8]>>),
    /// Do a tree that is one file or link.
    Single(u32),
    /// Make the folders and links of a peer's tree, and give out its files.
    Peer(u32),
    /// Fetch these files of a peer's tree: indexes in its manifest, the last first.
    Fetch(u32, Vec<u32>),
}

/// An open folder.
pub(crate) struct ScanFolder {
    pub(crate) tree: u32,
    /// Its path in the result.
    pub(crate) path: Box<[u8]>,
    pub(crate) source: OwnedFd,
    /// The same folder in the destination.
    pub(crate) dest: Option<OwnedFd>,
    /// It is there by a link.
    pub(crate) linked: Option<Box<LinkedFolder>>,
}

/// A folder that stays open while its files are worked on.
pub(crate) type OpenFolder = Arc<ScanFolder>;

/// A folder that a link of a source points to.
#[derive(Debug, Clone)]
pub(crate) struct LinkedFolder {
    /// Its real path.
    pub(crate) real: PathBuf,
    /// The path of the link in the result: a link that leads out of there leads out.
    pub(crate) at: Box<[u8]>,
    /// The folders that hold the links on the way to it.
    pub(crate) way: Vec<PathBuf>,
    /// It has been listed before, by another link.
    pub(crate) again: bool,
}

impl LinkedFolder {
    /// A folder in this one.
    pub(crate) fn child(&self, name: &[u8]) -> Self {
        Self {
            real: self.real.join(Path::new(std::ffi::OsStr::from_bytes(name))),
            ..self.clone()
        }
    }

    /// Opens it as it is: by no link.
    pub(crate) fn open(&self) -> Result<OwnedFd, Errno> {
        Root::real(&self.real)?.folder(b"")
    }

    /// Bytes of names that are kept for it while it waits to be listed.
    pub(crate) fn kept(&self) -> usize {
        let way = self.way.iter().map(|w| w.as_os_str().len());
        self.at.len() + self.real.as_os_str().len() + way.sum::<usize>()
    }
}
