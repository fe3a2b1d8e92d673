//! Dividing a tree by renames only.

use crate::error::{ErrorSide, Result, failed, show, show_in, show_path};
use crate::finish::seal_one;
use crate::meta::FileStatus;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, RenameFlags, chmodat, mkdirat, renameat, renameat_with,
    statat, unlinkat,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tarn_ports::MoverError;
use tarn_sys::beneath::{Root, split as split_path};
use tarn_types::event::RunErrorKind;
use tarn_types::manifest::{Entry, Manifest};

type SplitResult<T> = std::result::Result<T, Errno>;

/// Divides a tree. It finishes an earlier call that was interrupted: it finds moved files at their new place.
pub(crate) fn split(root: &Path, parts: &[(&Manifest, PathBuf)]) -> Result<()> {
    let error = |e| failed(ErrorSide::Dest, "divide", &show_path(root), e);
    let source = match Root::open(root) {
        Ok(source) => Some(source),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(error(errno)),
    };
    let mut owners: HashMap<&[u8], u32> = HashMap::new();
    for entry in parts
        .iter()
        .flat_map(|(m, _)| &m.entries)
        .filter(|e| e.is_folder())
    {
        *owners.entry(&entry.path).or_default() += 1;
    }
    for (manifest, dest) in parts {
        if dest.symlink_metadata().is_ok() {
            continue;
        }
        let Some(source) = &source else {
            return Err(MoverError::new(
                RunErrorKind::SourceChanged,
                format!(
                    "`{}` is gone, and its part `{}` is not there; make the data again",
                    show_path(root),
                    show_path(dest)
                ),
            ));
        };
        fill(source, manifest, dest, &owners)?;
    }
    source.map_or(Ok(()), |source| remove_folders(&source, root))
}

/// Moves one part's entries and lets it appear.
fn fill(
    source: &Root,
    manifest: &Manifest,
    dest: &Path,
    owners: &HashMap<&[u8], u32>,
) -> Result<()> {
    let mut staging = dest.as_os_str().to_os_string();
    staging.push(".splitting");
    let staging = PathBuf::from(staging);
    let error = |path: &[u8], e| failed(ErrorSide::Dest, "move", &show_in(&source.path, path), e);
    let io = |e: std::io::Error| error(b"", Errno::from_io_error(&e).unwrap_or(Errno::IO));
    std::fs::create_dir_all(&staging).map_err(io)?;
    let to = Root::open(&staging).map_err(|e| error(b"", e))?;
    let mut to_seal: Vec<&Entry> = Vec::new();
    let mut moved: Option<&[u8]> = None;
    for entry in &manifest.entries {
        if moved.is_some_and(|folder| below(folder, &entry.path)) {
            continue;
        }
        let whole = entry.is_folder() && owners.get(&*entry.path) == Some(&1);
        let outcome = if entry.is_folder() && !whole {
            to_seal.push(entry);
            make_folder(source, &to, &entry.path)
        } else {
            if whole {
                to_seal.push(entry);
                moved = Some(&entry.path);
            }
            move_entry(source, &to, entry)
        };
        outcome.map_err(|e| error(&entry.path, e))?;
    }
    for entry in to_seal.into_iter().rev() {
        seal_one(&to, entry).map_err(|e| error(&entry.path, e))?;
    }
    rename_new(&staging, dest).map_err(|e| failed(ErrorSide::Dest, "publish", &show_path(dest), e))
}

fn below(folder: &[u8], path: &[u8]) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// Not every file system knows the flag; nothing else makes `dest`.
fn rename_new(from: &Path, to: &Path) -> SplitResult<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => renameat(CWD, from, CWD, to),
        other => other,
    }
}

/// A folder that several parts share: made in this one, and opened up in the source so that it can be emptied.
fn make_folder(source: &Root, to: &Root, path: &[u8]) -> SplitResult<()> {
    let (above, name) = source.holder(path)?;
    open_up(above, name)?;
    let (above, name) = to.holder(path)?;
    match mkdirat(above, name, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// Moving a folder to another one, like emptying it, needs the right to write it.
fn open_up(above: impl rustix::fd::AsFd, name: &[u8]) -> SplitResult<()> {
    let status = statat(&above, name, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from)?;
    if status.kind == FileType::Directory && status.mode & 0o700 != 0o700 {
        chmodat(above, name, Mode::RWXU, AtFlags::empty())?;
    }
    Ok(())
}

fn move_entry(source: &Root, to: &Root, entry: &Entry) -> SplitResult<()> {
    let (new_above, name) = to.holder(&entry.path)?;
    let moved = source.holder(&entry.path).and_then(|(above, name)| {
        if entry.is_folder() {
            open_up(&above, name)?;
        }
        renameat(above, name, &new_above, name)
    });
    match moved {
        // An earlier call has moved it.
        Err(Errno::NOENT) => statat(new_above, name, AtFlags::SYMLINK_NOFOLLOW).map(drop),
        other => other,
    }
}

/// Removes the emptied tree. A file in it belongs to no part: it is not removed.
fn remove_folders(source: &Root, root: &Path) -> Result<()> {
    let mut folders: Vec<Box<[u8]>> = vec![Box::default()];
    let mut at = 0;
    while let Some(path) = folders.get(at).cloned() {
        let error = |e| failed(ErrorSide::Dest, "remove", &show_in(root, &path), e);
        let folder = source.folder(&path).map_err(error)?;
        for entry in Dir::read_from(&folder).map_err(error)? {
            let entry = entry.map_err(error)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let status = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from);
            if status.map_err(error)?.kind != FileType::Directory {
                return Err(MoverError::new(
                    RunErrorKind::SourceChanged,
                    format!(
                        "`{}` in `{}` belongs to no part of the dataset: it appeared while the tree was divided; remove it and run again",
                        show(&tarn_sys::beneath::join(&path, name)),
                        show_path(root)
                    ),
                ));
            }
            open_up(&folder, name).map_err(error)?;
            folders.push(tarn_sys::beneath::join(&path, name));
        }
        at += 1;
    }
    for path in folders.iter().rev() {
        let (above, name) = split_path(path);
        let gone = match name {
            b"" => unlinkat(CWD, root, AtFlags::REMOVEDIR),
            name => source
                .folder(above)
                .and_then(|fd| unlinkat(fd, name, AtFlags::REMOVEDIR)),
        };
        gone.map_err(|e| failed(ErrorSide::Dest, "remove", &show_in(root, path), e))?;
    }
    Ok(())
}
