//! Making a copy durable and visible: at once, or not at all.

use crate::error::{ErrorSide, Result, failed, show_path};
use crate::remove::remove;
use crate::target::CopyTarget;
use rustix::fd::AsFd;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, fsync, openat, renameat, renameat_with, syncfs};
use rustix::io::Errno;
use std::path::Path;
use tarn_ports::MoverError;
use tarn_sys::beneath::Root;
use tarn_types::event::RunErrorKind;
use tarn_types::manifest::{EntryKind, Manifest};

/// Up to so many files each is synced; more are synced together with their file system (`syncfs`), which takes one
/// commit instead of one for each.
const SYNC_EACH: u64 = 64;

/// Makes files, folders and their names durable.
pub(crate) fn sync(target: &CopyTarget, merged: &Manifest) -> Result<()> {
    let whole = |_| syncfs(&target.root);
    let synced = if merged.files() <= SYNC_EACH && merged.entries.len() as u64 <= 2 * SYNC_EACH {
        // A file that its owner may not open is synced with all others.
        sync_each(&target.root, merged).or_else(|errno| match errno {
            Errno::ACCESS | Errno::PERM => whole(()),
            other => Err(other),
        })
    } else {
        whole(())
    };
    synced.map_err(|e| target.failed("sync", b"", e))
}

fn sync_each(root: &Root, merged: &Manifest) -> std::result::Result<(), Errno> {
    for entry in &merged.entries {
        match entry.kind {
            EntryKind::File { .. } => {
                let (folder, name) = root.holder(&entry.path)?;
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                fsync(openat(folder, name, flags, Mode::empty())?)?;
            }
            EntryKind::Directory => fsync(root.folder(&entry.path)?)?,
            EntryKind::Symlink(_) => {}
        }
    }
    fsync(root)
}

/// Renames the staging folder to `dest`; with `replace`, in exchange for the tree that is there, which is then removed.
pub(crate) fn publish(staging: &Path, dest: &Path, replace: bool, sync: bool) -> Result<()> {
    let error = |errno| failed(ErrorSide::Dest, "publish", &show_path(dest), errno);
    if let Some(above) = dest.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(above)
            .map_err(|e| error(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    }
    let replaced = rename(staging, dest, replace).map_err(|errno| match errno {
        Errno::EXIST | Errno::NOTEMPTY => exists(dest),
        errno => error(errno),
    })?;
    if sync {
        sync_holder(dest)
            .and_then(|()| sync_holder(staging))
            .map_err(error)?;
    }
    if replaced { remove(staging) } else { Ok(()) }
}

/// `dest` is there and may not be replaced.
pub(crate) fn exists(dest: &Path) -> MoverError {
    MoverError::new(
        RunErrorKind::Io,
        format!(
            "`{}` exists already; remove it, or name another destination",
            show_path(dest)
        ),
    )
}

/// `true` when staging now holds what was replaced.
fn rename(staging: &Path, dest: &Path, replace: bool) -> std::result::Result<bool, Errno> {
    match renameat_with(CWD, staging, CWD, dest, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) if replace => {}
        // Not every file system knows the flag (NFS does not).
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if !there(dest) => {
            return renameat(CWD, staging, CWD, dest).map(|()| false);
        }
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if replace => {}
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => return Err(Errno::EXIST),
        other => return other.map(|()| false),
    }
    match renameat_with(CWD, staging, CWD, dest, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            // Two renames, as close together as can be: `dest` is missing in between, never mixed.
            let mut aside = staging.as_os_str().to_os_string();
            aside.push(".replaced");
            let aside = Path::new(&aside);
            renameat(CWD, dest, CWD, aside)?;
            renameat(CWD, staging, CWD, dest)?;
            renameat(CWD, aside, CWD, staging).map(|()| true)
        }
        Err(errno) => Err(errno),
    }
}

fn there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn sync_holder(path: &Path) -> std::result::Result<(), Errno> {
    let above = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fsync(openat(CWD, above, flags, Mode::empty())?.as_fd())
}
