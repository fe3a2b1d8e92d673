//! Removing trees, whatever their permissions; counting their blocks.

use crate::beneath::Root;
use crate::error::{Result, Side, failed, show_path};
use crate::meta::Status;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, openat, statat, unlinkat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::path::Path;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

type Sys<T> = std::result::Result<T, Errno>;

/// Removes a tree; a missing one is not an error.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let error = |e| failed(Side::Dest, "remove", &show_path(path), e);
    match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map(Status::from) {
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(error(errno)),
        Ok(status) if status.kind != FileType::Directory => missing_is_fine(unlinkat(CWD, path, AtFlags::empty())).map_err(error),
        Ok(_) => {
            let folder = open_forced(CWD, path).map_err(error)?;
            empty(folder).map_err(error)?;
            missing_is_fine(unlinkat(CWD, path, AtFlags::REMOVEDIR)).map_err(error)
        }
    }
}

fn missing_is_fine(outcome: Sys<()>) -> Sys<()> {
    match outcome {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Opens a folder so that it can be listed and emptied, giving its owner the right to it if need be.
fn open_forced<P: rustix::path::Arg + Copy>(at: impl AsFd, name: P) -> Sys<OwnedFd> {
    let status = statat(&at, name, AtFlags::SYMLINK_NOFOLLOW).map(Status::from)?;
    if status.kind == FileType::Directory && status.mode & 0o700 != 0o700 {
        // A folder of somebody else cannot be changed, but may still be open to us.
        let _ = chmodat(&at, name, Mode::RWXU, AtFlags::empty());
    }
    openat(at, name, FOLDER, Mode::empty())
}

/// Names in a folder, with what they are.
fn names(folder: &OwnedFd) -> Sys<Vec<(Vec<u8>, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map(|s| Status::from(s).kind)?,
            kind => kind,
        };
        found.push((name.to_vec(), kind));
    }
    Ok(found)
}

/// Removes what a folder holds. A stack of its own: trees may be deep. Folders below are opened one from the
/// other, never by a path that somebody could redirect; a folder is reopened through `..` never.
fn empty(top: OwnedFd) -> Sys<()> {
    let mut stack = vec![(top, Vec::new(), None::<Vec<(Vec<u8>, FileType)>>)];
    while let Some((folder, _, listed)) = stack.last_mut() {
        let left = match listed {
            Some(left) => left,
            None => listed.insert(names(folder)?),
        };
        match left.pop() {
            Some((name, FileType::Directory)) => {
                let below = open_forced(&*folder, &*name)?;
                if stack.len() < MAX_OPEN {
                    stack.push((below, name, None));
                } else {
                    // Too deep to keep every folder open: bring it up to where there is room.
                    hoist(&stack, &name)?;
                }
            }
            Some((name, _)) => missing_is_fine(unlinkat(&*folder, &*name, AtFlags::empty()))?,
            None => {
                let Some((_, name, _)) = stack.pop() else { break };
                if let Some((above, ..)) = stack.last() {
                    missing_is_fine(unlinkat(above, &*name, AtFlags::REMOVEDIR))?;
                }
            }
        }
    }
    Ok(())
}
