//! The file list of a part: everything needed to check it, to copy it again and to tell what changed.

use crate::hash::{Hash, Hasher};

/// The entries of a tree, sorted by path (bytewise); parents come before what they hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest {
    /// The entries. The root itself is not one of them.
    pub entries: Vec<Entry>,
}

/// One file, directory or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Relative to the tree's root, components joined by `/`; any bytes but NUL; never `.` or `..`.
    pub path: Box<[u8]>,
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits (`0o7777`).
    pub mode: u32,
    /// Modification time in nanoseconds since 1970.
    pub mtime: i64,
    /// Extended attributes (name, value), sorted by name.
    pub xattrs: Box<[Xattr]>,
}

/// An extended attribute: name and value.
pub type Xattr = (Box<[u8]>, Box<[u8]>);

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// Length in bytes.
        size: u64,
        /// Hash of its content; `None` when it has not been read.
        hash: Option<Hash>,
        /// Number of its hard-link group in this manifest, 0 when it has one link in the tree.
        link_group: u32,
        /// Allocated extents (offset, length) of a sparse file; empty when it has no holes.
        extents: Box<[(u64, u64)]>,
    },
    /// A symbolic link and its target.
    Symlink(Box<[u8]>),
}

impl Manifest {
    /// The content hash: paths, kinds, file contents, modes, link targets and extended attributes; not
    /// times, not extents. `None` when a file has not been read.
    pub fn hash(&self) -> Option<Hash> {
        let mut h = Hasher::new();
        h.field(b"tarn manifest content 1");
        for e in &self.entries {
            h.field(&e.path).number(u64::from(e.mode));
            match &e.kind {
                EntryKind::Directory => h.field(b"d"),
                EntryKind::File {
                    size,
                    hash,
                    link_group,
                    ..
                } => h
                    .field(b"f")
                    .number(*size)
                    .field(&(*hash)?.0.to_le_bytes())
                    .number(u64::from(*link_group)),
                EntryKind::Symlink(target) => h.field(b"l").field(target),
            };
            h.number(e.xattrs.len() as u64);
            for (name, value) in &e.xattrs {
                h.field(name).field(value);
            }
        }
        Some(h.finish())
    }

    /// Bytes of file content; hard links to one file count once.
    pub fn bytes(&self) -> u64 {
        let mut groups = std::collections::BTreeSet::new();
        self.entries
            .iter()
            .map(|e| match e.kind {
                EntryKind::File { size, link_group, .. } if link_group == 0 || groups.insert(link_group) => size,
                _ => 0,
            })
            .sum()
    }

    /// Regular files.
    pub fn files(&self) -> u64 {
        let file = |e: &&Entry| matches!(e.kind, EntryKind::File { .. });
        self.entries.iter().filter(file).count() as u64
    }
}
