//! The place that a path leads to, by whatever links and spellings.

use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// A folder that may not exist yet.
pub struct FolderLocation {
    /// Without links, as far as it exists.
    path: PathBuf,
    /// Device and inode of those of its ancestors that exist, its own first.
    above: Vec<(u64, u64)>,
    exists: bool,
}

impl FolderLocation {
    /// The place of a path, as it is now.
    pub fn of(root: &Path) -> Self {
        let path = real(root);
        let identity = |p: &Path| std::fs::metadata(p).ok().map(|m| (m.dev(), m.ino()));
        Self {
            exists: path.exists(),
            above: path.ancestors().filter_map(identity).collect(),
            path,
        }
    }

    /// Whether both are one folder.
    pub fn is(&self, other: &Self) -> bool {
        let one = self.exists && other.exists && self.above.first() == other.above.first();
        one || self.path == other.path
    }

    /// Whether the other is below this one.
    pub fn holds(&self, other: &Self) -> bool {
        let own = self.above.first().filter(|_| self.exists);
        own.is_some_and(|o| other.above.contains(o)) || other.path.starts_with(&self.path)
    }
}

/// A name of a folder: two that share one are the same folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum FolderIdentity {
    /// Device and inode.
    Inode(u64, u64),
    /// Its path, without links as far as it exists.
    Path(PathBuf),
}

impl FolderLocation {
    /// The folder's own names.
    pub fn names(&self) -> impl Iterator<Item = FolderIdentity> {
        let inode = self.above.first().filter(|_| self.exists);
        let inode = inode.map(|(device, inode)| FolderIdentity::Inode(*device, *inode));
        inode
            .into_iter()
            .chain([FolderIdentity::Path(self.path.clone())])
    }

    /// The names of the folders it is in.
    pub fn names_above(&self) -> impl Iterator<Item = FolderIdentity> {
        let inodes = self.above.iter().skip(usize::from(self.exists));
        let inodes = inodes.map(|(device, inode)| FolderIdentity::Inode(*device, *inode));
        let paths = self.path.ancestors().skip(1);
        inodes.chain(paths.map(|p| FolderIdentity::Path(p.to_path_buf())))
    }
}

/// The path without links: of its deepest ancestor that exists, and the rest as written.
fn real(path: &Path) -> PathBuf {
    let found = path
        .ancestors()
        .find_map(|a| Some((a, std::fs::canonicalize(a).ok()?)));
    let Some((ancestor, mut whole)) = found else {
        return path.to_path_buf();
    };
    let rest = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
    for part in rest.components() {
        match part {
            Component::ParentDir => drop(whole.pop()),
            other => whole.push(other),
        }
    }
    whole
}
