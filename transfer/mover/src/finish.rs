//! The last things of a copy: hard links, and the metadata of folders that are complete.

use crate::error::Result;
use crate::gather::HardLink;
use crate::meta::{set_mode_and_time, set_xattrs};
use crate::target::CopyTarget;
use rustix::fs::{AtFlags, linkat};
use rustix::io::Errno;
use tarn_sys::beneath::Root;
use tarn_types::manifest::{Entry, Manifest};

/// Makes the further names of files.
pub(crate) fn link_files(target: &CopyTarget, links: &[HardLink]) -> Result<()> {
    for (path, first) in links {
        let error = |e| target.failed("link", path, e);
        let (from, from_name) = target.root.holder(first).map_err(error)?;
        let (to, to_name) = target.root.holder(path).map_err(error)?;
        match linkat(&from, from_name, &to, to_name, AtFlags::empty()) {
            // Another tree has a file of that name: compared with this one before anything is published.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(error(errno)),
        }
    }
    Ok(())
}

/// Gives the folders of a tree their attributes, modes and times, each after its content. `false`: some
/// attributes could not be kept.
///
/// # Errors
/// The folder that failed.
pub(crate) fn seal(root: &Root, tree: &Manifest) -> std::result::Result<bool, (Box<[u8]>, Errno)> {
    let mut kept = true;
    for entry in tree.entries.iter().rev().filter(|e| e.is_folder()) {
        kept &= seal_one(root, entry).map_err(|errno| (entry.path.clone(), errno))?;
    }
    Ok(kept)
}

/// Gives one folder its attributes, mode and time.
pub(crate) fn seal_one(root: &Root, entry: &Entry) -> std::result::Result<bool, Errno> {
    let folder = root.folder(&entry.path)?;
    let kept = set_xattrs(&folder, &entry.xattrs)?;
    set_mode_and_time(&folder, Some(entry.mode), entry.mtime)?;
    Ok(kept)
}
