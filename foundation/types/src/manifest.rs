//! The file list of a part: everything needed to check it, to copy it again and to find its changes.

mod check;
mod codec;

pub use check::{PathError, check_path};
pub use codec::ManifestError;

use crate::hash::{Hash, Hasher};
use std::collections::BTreeMap;

/// The entries of a tree, sorted by path (bytewise); parents come before their content.
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
    /// Its kind.
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

/// The kind of an entry.
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
                EntryKind::File {
                    size, link_group, ..
                } if link_group == 0 || groups.insert(link_group) => size,
                _ => 0,
            })
            .sum()
    }

    /// Regular files.
    pub fn files(&self) -> u64 {
        let file = |e: &&Entry| matches!(e.kind, EntryKind::File { .. });
        self.entries.iter().filter(file).count() as u64
    }

    /// The entry of a path.
    pub fn find(&self, path: &[u8]) -> Option<&Entry> {
        let at = self
            .entries
            .binary_search_by(|e| (*e.path).cmp(path))
            .ok()?;
        self.entries.get(at)
    }

    /// Gives hard-link groups their canonical numbers: from 1 in the order of their first paths; a group of
    /// one is no group.
    pub fn renumber_links(&mut self) {
        let mut members: BTreeMap<u32, u32> = BTreeMap::new();
        for group in self.entries.iter().filter_map(Entry::link_group) {
            *members.entry(group).or_default() += 1;
        }
        let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
        for entry in &mut self.entries {
            let EntryKind::File { link_group, .. } = &mut entry.kind else {
                continue;
            };
            if *link_group == 0 {
                continue;
            }
            *link_group = match members.get(link_group) {
                Some(&n) if n > 1 => {
                    let next = numbers.len() as u32 + 1;
                    *numbers.entry(*link_group).or_insert(next)
                }
                _ => 0,
            };
        }
    }
}

impl Entry {
    /// Whether it is a folder.
    pub fn is_folder(&self) -> bool {
        matches!(self.kind, EntryKind::Directory)
    }

    /// Its hard-link group, when it has one.
    pub fn link_group(&self) -> Option<u32> {
        match self.kind {
            EntryKind::File { link_group, .. } if link_group != 0 => Some(link_group),
            _ => None,
        }
    }

    /// Whether two entries are of one kind and content, with the same mode and attributes. Times, extents
    /// and hard links do not count. A file that has not been read equals nothing.
    pub fn same_content(&self, other: &Entry) -> bool {
        let kind = match (&self.kind, &other.kind) {
            (EntryKind::Directory, EntryKind::Directory) => true,
            (EntryKind::Symlink(a), EntryKind::Symlink(b)) => a == b,
            (
                EntryKind::File { size, hash, .. },
                EntryKind::File {
                    size: other_size,
                    hash: other_hash,
                    ..
                },
            ) => size == other_size && hash.is_some() && hash == other_hash,
            _ => false,
        };
        kind && self.mode == other.mode && self.xattrs == other.xattrs
    }
}

/// The folder that holds a path, `None` at the top.
pub fn parent(path: &[u8]) -> Option<&[u8]> {
    path.iter().rposition(|&b| b == b'/').map(|at| &path[..at])
}
