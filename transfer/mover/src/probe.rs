//! The abilities of a file system: tried out, never guessed.

use crate::error::{ErrorSide, Result, failed, show_path};
use crate::remove::remove;
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags, flock,
    fsetxattr, fstat, ftruncate, ioctl_ficlone, lstat, mkdirat, openat, renameat_with, rmdir, seek,
    unlinkat,
};
use rustix::io::{Errno, pwrite};
use rustix::process::geteuid;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_ports::TreeCapabilities;
use tarn_sys::beneath::Root;

/// Bytes of the probing file's hole: larger than any file system's block.
const HOLE: u64 = 4 << 20;

/// Folders of these names that are tried: one may belong to another process, or another user.
const NAMES: u32 = 64;

/// Tries out what the file system of `folder` can do.
pub(crate) fn capabilities(folder: &Path) -> Result<TreeCapabilities> {
    let error = |e| failed(ErrorSide::Dest, "write", &show_path(folder), e);
    let (scratch, _lock) = scratch(folder).map_err(error)?;
    let found = Root::open(&scratch)
        .and_then(|root| probe(&root))
        .map_err(error);
    remove(&scratch)?;
    found
}

/// A folder to try things out in, for as long as its lock is held. One that a killed process has left is used again, so that no more
/// than that stays.
fn scratch(folder: &Path) -> std::result::Result<(PathBuf, Option<OwnedFd>), Errno> {
    scratch_locked_by(folder, |open| {
        flock(open, FlockOperation::NonBlockingLockExclusive)
    })
}

fn scratch_locked_by(
    folder: &Path,
    lock: impl Fn(&OwnedFd) -> std::result::Result<(), Errno>,
) -> std::result::Result<(PathBuf, Option<OwnedFd>), Errno> {
    for number in 0..NAMES {
        let scratch = folder.join(format!(".tarn-probe-{number}"));
        let is_new = match mkdirat(CWD, &scratch, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(e) => return Err(e),
        };
        match take(&scratch, &lock) {
            Ok(lock) => return Ok((scratch, Some(lock))),
            // Another process has it, or has just taken it away.
            Err(Errno::WOULDBLOCK | Errno::NOENT) => {}
            Err(e) => {
                if is_new {
                    let _ = rmdir(&scratch);
                }
                if matches!(e, Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO) {
                    return Err(e);
                }
                if is_new {
                    break;
                }
                // Another user's, or no folder.
            }
        }
    }
    // Reached if there are no locks, or others hold all of them.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let unique = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let scratch = folder.join(format!(".tarn-probe-{}-{}", unique.0, unique.1));
    mkdirat(CWD, &scratch, Mode::RWXU)?;
    Ok((scratch, None))
}

/// Locks a scratch folder that is still there and empties it.
fn take(
    scratch: &Path,
    lock: impl Fn(&OwnedFd) -> std::result::Result<(), Errno>,
) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = openat(CWD, scratch, flags, Mode::empty())?;
    lock(&open)?;
    let (locked, named) = (fstat(&open)?, lstat(scratch)?);
    if (locked.st_dev, locked.st_ino) != (named.st_dev, named.st_ino) {
        return Err(Errno::NOENT);
    }
    if locked.st_uid != geteuid().as_raw() {
        return Err(Errno::ACCESS);
    }
    for name in ["one", "two"] {
        match unlinkat(&open, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(open)
}

fn probe(root: &Root) -> std::result::Result<TreeCapabilities, Errno> {
    let (one, two) = (create(root, "one")?, create(root, "two")?);
    ftruncate(&one, HOLE)?;
    pwrite(&one, b"tarn", HOLE)?;
    let unnamed = openat(
        root,
        ".",
        OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    );
    Ok(TreeCapabilities {
        reflink: ioctl_ficlone(&two, &one).is_ok(),
        xattrs: fsetxattr(&one, "user.tarn", b"probe", XattrFlags::empty()).is_ok(),
        exchange: unnamed.is_ok()
            && renameat_with(root, "one", root, "two", RenameFlags::EXCHANGE).is_ok(),
        sparse: seek(&one, SeekFrom::Data(0)).is_ok_and(|data| data > 0),
    })
}

fn create(root: &Root, name: &str) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat(root, name, flags, Mode::RUSR | Mode::WUSR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_has_left_is_used_again_and_what_another_has_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let names = || std::fs::read_dir(&folder).unwrap().count();
        let left = folder.path().join(".tarn-probe-0");
        std::fs::create_dir(&left).unwrap();
        std::fs::write(left.join("one"), "1").unwrap();
        let (first, lock) = scratch(folder.path()).unwrap();
        assert_eq!(first, left);
        assert_eq!(std::fs::read_dir(&left).unwrap().count(), 0);
        let (second, other) = scratch(folder.path()).unwrap();
        assert_ne!(second, left);
        drop((lock, other));
        std::fs::remove_dir(second).unwrap();
        capabilities(folder.path()).unwrap();
        assert_eq!(names(), 0);
    }

    #[test]
    fn nothing_stays_where_there_are_no_locks() {
        let folder = tempfile::tempdir().unwrap();
        let names = || std::fs::read_dir(&folder).unwrap().count();
        // As Lustre reports it, NFS, and others.
        for e in [Errno::NOSYS, Errno::BADF, Errno::OPNOTSUPP, Errno::NOLCK] {
            let (scratch, lock) = scratch_locked_by(folder.path(), |_| Err(e)).unwrap();
            assert!(lock.is_none());
            assert_eq!(names(), 1, "{e}");
            std::fs::remove_dir(scratch).unwrap();
        }
        for e in [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO] {
            let failed = scratch_locked_by(folder.path(), |_| Err(e));
            assert_eq!(failed.unwrap_err(), e);
            assert_eq!(names(), 0, "{e}");
        }
    }

    #[test]
    fn names_that_are_no_folders_of_this_user_are_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let name = |number: u32| folder.path().join(format!(".tarn-probe-{number}"));
        let (_, _lock) = scratch(folder.path()).unwrap();
        std::fs::write(name(1), "mine").unwrap();
        std::os::unix::fs::symlink("nowhere", name(2)).unwrap();
        let (found, lock) = scratch(folder.path()).unwrap();
        assert_eq!((found, lock.is_some()), (name(3), true));
        assert_eq!(std::fs::read(name(1)).unwrap(), b"mine");
        // Nor do they keep those out who find nothing else.
        for number in 4..NAMES {
            std::fs::write(name(number), "").unwrap();
        }
        let (found, lock) = scratch(folder.path()).unwrap();
        assert!(found.is_dir() && lock.is_none());
    }
}
