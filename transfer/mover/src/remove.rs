//! Removing trees with any permissions; counting their blocks.

use crate::deep::empty_all;
use crate::erase::{RemovalMethod, of_descriptor, way_of};
use crate::error::{ErrorSide, Result, failed, show_in};
use crate::meta::FileStatus;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, chmodat, statat, unlinkat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::path::Path;
use tarn_sys::beneath::{Root, join};

type RemovalResult<T> = std::result::Result<T, Errno>;

/// Removes a tree; a missing one is not an error.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let error = |at: &[u8], e| failed(ErrorSide::Dest, "remove", &show_in(path, at), e);
    match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from) {
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(error(b"", errno)),
        Ok(status) if status.kind != FileType::Directory => {
            let removed = way_of(path).remove(CWD, path, &status);
            missing_is_fine(removed).map_err(|e| error(b"", e))
        }
        Ok(status) => {
            open_up(CWD, path, &status);
            let root = Root::open(path).map_err(|e| error(b"", e))?;
            empty_all(&root, way_of(path)).map_err(|(at, e)| error(&at, e))?;
            missing_is_fine(unlinkat(CWD, path, AtFlags::REMOVEDIR)).map_err(|e| error(b"", e))
        }
    }
}

/// Removes a file in a folder that is open.
pub(crate) fn remove_file(folder: &OwnedFd, name: &[u8]) -> RemovalResult<()> {
    let status = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from)?;
    way_of(&of_descriptor(folder)).remove(folder, name, &status)
}

fn missing_is_fine(outcome: RemovalResult<()>) -> RemovalResult<()> {
    match outcome {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Gives a folder's owner the right to list and change it. A folder of somebody else cannot be changed, but may
/// still be open to us: then the operation that follows succeeds.
fn open_up<P: rustix::path::Arg>(at: impl AsFd, name: P, status: &FileStatus) {
    if status.mode & 0o700 != 0o700 {
        let _ = chmodat(at, name, Mode::RWXU, AtFlags::empty());
    }
}

enum RemovalStep {
    /// Remove what a folder holds.
    Empty(Box<[u8]>),
    /// Then the folder.
    Folder(Box<[u8]>),
}

/// Removes everything beneath a folder for which `keep` (given the path, and whether it is a folder) is false. Folders
/// are opened by their path from the root, so that few are open however deep the tree.
pub(crate) fn sweep(root: &Root, keep: impl Fn(&[u8], bool) -> bool) -> Result<()> {
    let way = way_of(&root.path);
    let mut steps = vec![RemovalStep::Empty(Box::default())];
    while let Some(step) = steps.pop() {
        let (path, outcome) = match step {
            RemovalStep::Empty(path) => {
                let outcome = empty((root, way), &path, &keep, &mut steps);
                (path, outcome)
            }
            RemovalStep::Folder(path) => {
                let gone = root
                    .holder(&path)
                    .and_then(|(above, name)| unlinkat(above, name, AtFlags::REMOVEDIR));
                (path, missing_is_fine(gone))
            }
        };
        outcome.map_err(|e| failed(ErrorSide::Dest, "remove", &show_in(&root.path, &path), e))?;
    }
    Ok(())
}

fn empty(
    (root, way): (&Root, RemovalMethod),
    path: &[u8],
    keep: &impl Fn(&[u8], bool) -> bool,
    steps: &mut Vec<RemovalStep>,
) -> RemovalResult<()> {
    let folder = root.folder(path)?;
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let below = join(path, name);
        let known = entry.file_type();
        let status = match known {
            FileType::RegularFile if way == RemovalMethod::Erase => {
                Some(statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from)?)
            }
            FileType::Directory | FileType::Unknown => {
                Some(statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from)?)
            }
            _ => None,
        };
        match status {
            Some(status) if status.kind == FileType::Directory => {
                open_up(&folder, name, &status);
                if !keep(&below, true) {
                    steps.push(RemovalStep::Folder(below.clone()));
                }
                steps.push(RemovalStep::Empty(below));
            }
            _ if keep(&below, false) => {}
            Some(status) => missing_is_fine(way.remove(&folder, name, &status))?,
            None => missing_is_fine(unlinkat(&folder, name, AtFlags::empty()))?,
        }
    }
    Ok(())
}

/// Bytes of the blocks of a tree, hard links counted once.
pub(crate) fn stored(path: &Path) -> Result<u64> {
    let error = |at: &[u8], e| failed(ErrorSide::Source, "examine", &show_in(path, at), e);
    let top = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from);
    let top = top.map_err(|e| error(b"", e))?;
    let mut bytes = top.blocks * 512;
    if top.kind != FileType::Directory {
        return Ok(bytes);
    }
    let root = Root::open(path).map_err(|e| error(b"", e))?;
    let mut seen: HashSet<(u64, u64)> = HashSet::new();
    let mut folders: Vec<Box<[u8]>> = vec![Box::default()];
    while let Some(at) = folders.pop() {
        let folder = root.folder(&at).map_err(|e| error(&at, e))?;
        for entry in Dir::read_from(&folder).map_err(|e| error(&at, e))? {
            let entry = entry.map_err(|e| error(&at, e))?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let status = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from);
            let status = status.map_err(|e| error(&join(&at, name), e))?;
            if status.kind == FileType::Directory {
                folders.push(join(&at, name));
            } else if status.links > 1 && !seen.insert((status.device, status.inode)) {
                continue;
            }
            bytes += status.blocks * 512;
        }
    }
    Ok(bytes)
}
