//! A file of a source that is open, and where its content goes.

use crate::meta::FileStatus;
use crate::sealed_file::FileSealing;
use rustix::fd::OwnedFd;
use tarn_seal::file::FileCipher;
use tarn_types::hash::Hash;
use tarn_types::manifest::{Entry, EntryKind, Xattr};

/// The place from which a source file's content is read.
pub(crate) enum Content {
    /// From this file.
    File(OwnedFd),
    /// From this sealed file.
    Sealed(OwnedFd, Box<FileCipher>),
    /// From the stream of the thread that reads it; with the hash that it must have, and its cipher, if it is sealed and its
    /// header has come.
    Peer(Option<Hash>, Option<Box<FileCipher>>),
}

/// An open source file.
pub(crate) struct OpenSourceFile {
    pub(crate) tree: u32,
    /// In the result.
    pub(crate) path: Box<[u8]>,
    pub(crate) from: Content,
    pub(crate) status: FileStatus,
    pub(crate) xattrs: Box<[Xattr]>,
    /// Its hash is known and neither size nor time have changed since: it need not be read to be known.
    pub(crate) known: Option<Hash>,
}

impl OpenSourceFile {
    /// Its cipher, if it is sealed.
    pub(crate) fn cipher(&self) -> Option<&FileCipher> {
        match &self.from {
            Content::Sealed(_, cipher) | Content::Peer(_, Some(cipher)) => Some(cipher),
            Content::File(_) | Content::Peer(_, None) => None,
        }
    }

    /// The manifest entry of the file; its path and attributes are taken.
    pub(crate) fn entry(self, hash: Hash, extents: Box<[(u64, u64)]>) -> Entry {
        Entry {
            path: self.path,
            kind: EntryKind::File {
                size: self.status.size,
                hash: Some(hash),
                link_group: 0,
                extents,
            },
            mode: self.status.mode,
            mtime: self.status.mtime,
            xattrs: self.xattrs,
        }
    }
}

/// The destination of a file's content.
pub(crate) enum Sink {
    /// Nowhere: it is only read.
    Nowhere,
    /// Into this file; its mode is still to be set, or not; it is sealed, or not.
    File(OwnedFd, bool, Option<Box<FileSealing>>),
}
