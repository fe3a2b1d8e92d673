//! Folders of tiers are made where a file system is: not on the root disk, in the place of one that is not mounted on this node.

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use std::error::Error;
use std::fmt::{Display, Formatter};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Everybody's files are there by intent, on any disk.
const TEMPORARY: &str = "/tmp";

/// Why a folder is not made.
#[derive(Debug)]
pub struct NotMade(String);

impl Display for NotMade {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for NotMade {}

impl From<NotMade> for io::Error {
    fn from(why: NotMade) -> Self {
        Self::other(why)
    }
}

/// The folder itself, if it is there, or its nearest existing ancestor, if it may be made there: not `/` or a folder in it,
/// unless another file system is mounted there or it is `/tmp`. Links are followed.
///
/// # Errors
/// Why it may not be made.
pub fn may_make(folder: &Path) -> Result<PathBuf, NotMade> {
    if folder.is_dir() {
        return Ok(folder.to_owned());
    }
    let refused = |why: &str| {
        Err(NotMade(format!(
            "{} is not there{why}: give a folder of the tier by its absolute path, and make it first (mkdir -p) if it is to be new",
            folder.display()
        )))
    };
    if !folder.is_absolute() {
        return refused(", and is not an absolute path");
    }
    let is_there = |path: &&Path| path.symlink_metadata().is_ok();
    let within = folder.ancestors().find(is_there);
    let within = within.unwrap_or(Path::new("/"));
    if !within.is_dir() {
        return Err(NotMade(format!("{} is no folder", within.display())));
    }
    let rest = folder.strip_prefix(within).unwrap_or(folder);
    if rest.components().any(|c| c == Component::ParentDir) {
        return refused(", and its path goes up (`..`) from a folder that is not there");
    }
    match within.canonicalize() {
        Ok(real) if is_of_root_disk(&real) => {
            refused(", and would be made on the node's root disk")
        }
        Ok(_) => Ok(within.to_owned()),
        Err(e) => Err(NotMade(format!("{}: {e}", within.display()))),
    }
}

/// Makes a folder, and those above it, where that [may be](may_make).
///
/// # Errors
/// When it may not, or cannot be made.
pub fn make(folder: &Path) -> io::Result<()> {
    may_make(folder)?;
    std::fs::create_dir_all(folder)
}

/// Whether a folder, by its path without links, is `/`, or one in it where other file systems are mounted but none is.
fn is_of_root_disk(folder: &Path) -> bool {
    let root = Path::new("/");
    if folder == root {
        return true;
    }
    let device = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev()).ok();
    folder.parent() == Some(root)
        && folder != Path::new(TEMPORARY)
        && device(folder) == device(root)
        && !is_mounted(folder)
}

/// Whether it is where something is mounted: a part of the root disk may be.
fn is_mounted(folder: &Path) -> bool {
    let about = statx(CWD, folder, AtFlags::empty(), StatxFlags::empty());
    about.is_ok_and(|about| about.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}
