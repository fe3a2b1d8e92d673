//! The last things of a copy: hard links, and what folders get once nothing more is put into them.

use crate::beneath::split;
use crate::error::Result;
use crate::gather::Link;
use crate::meta::Status;
use crate::target::Target;
use rustix::fs::{AtFlags, linkat};
use rustix::io::Errno;
use tarn_base::manifest::{EntryKind, Manifest};

/// Makes the further names of files.
pub(crate) fn link_files(target: &Target, links: &[Link]) -> Result<()> {
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

/// Gives the folders of a merged tree their attributes, modes and times; what they hold comes before them.
pub(crate) fn seal_folders(target: &Target, merged: &Manifest) -> Result<()> {
    for entry in merged.entries.iter().rev() {
        if !matches!(entry.kind, EntryKind::Directory) {
            continue;
        }
        let folder = target.root.folder(&entry.path);
        let folder = folder.map_err(|e| target.failed("open the folder", &entry.path, e))?;
        let status = Status::of(&folder).map_err(|e| target.failed("examine", &entry.path, e))?;
        let meta = Status {
            mode: entry.mode,
            mtime: entry.mtime,
            size: 0,
            ..status
        };
        target.finish(&folder, &entry.path, &meta, &entry.xattrs, true)?;
    }
    Ok(())
}
