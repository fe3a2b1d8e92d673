//! Empties a folder, however deep or wide its content and whoever made it: a bounded number of folders is open, only the position
//! in the tree is kept, and no link is followed.

use crate::erase::RemovalMethod;
use crate::error::{ErrorSide, Result, failed};
use crate::meta::FileStatus;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, chmodat, fchmod, fstat, openat,
    renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use tarn_sys::beneath::join;

/// Folders that are gone down into; deeper ones are moved up to the top first. Two descriptors each.
const DEPTH: usize = 32;
/// Times that a folder is emptied into which somebody puts something meanwhile.
const TRIES: usize = 4;
/// The prefix of the name of a folder that is moved to the top; a number follows.
const MOVED: &str = ".tarn-deep.";

type ErrnoResult<T> = std::result::Result<T, Errno>;

/// Empties a folder that is open. Its files go by their names alone.
///
/// # Errors
/// When something in it cannot be removed.
pub fn clear(folder: &OwnedFd) -> Result<()> {
    let cleared = empty_all(folder, RemovalMethod::Unlink);
    cleared.map_err(|(at, e)| {
        let at = String::from_utf8_lossy(&at).into_owned();
        failed(ErrorSide::Dest, "remove", &at, e)
    })
}

/// The path that could not be removed, and the error.
type Stuck = (Box<[u8]>, Errno);

/// Empties a folder.
pub(crate) fn empty_all(top: &impl AsFd, way: RemovalMethod) -> std::result::Result<(), Stuck> {
    let mut work = FolderEmptier {
        top,
        way,
        next: 0,
        moved: false,
        stuck: None,
    };
    loop {
        work.moved = false;
        let emptied = openat(top, ".", FOLDER, Mode::empty())
            .and_then(|folder| work.empty(&folder, &mut Vec::new()));
        emptied.map_err(|e| (work.stuck.take().unwrap_or_default(), e))?;
        if !work.moved {
            return Ok(());
        }
    }
}

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

struct FolderEmptier<'a, T> {
    top: &'a T,
    way: RemovalMethod,
    next: u64,
    /// Something was moved to the top since that was emptied last.
    moved: bool,
    stuck: Option<Box<[u8]>>,
}

impl<T: AsFd> FolderEmptier<'_, T> {
    /// Empties a folder, which is in those of `above`.
    fn empty(&mut self, folder: &OwnedFd, above: &mut Vec<Box<[u8]>>) -> ErrnoResult<()> {
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let removed = self.remove(folder, name, entry.file_type(), above);
            match removed {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => {
                    self.stuck.get_or_insert_with(|| {
                        above
                            .iter()
                            .fold(Box::default(), |path: Box<[u8]>, name| join(&path, name))
                    });
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn remove(
        &mut self,
        folder: &OwnedFd,
        name: &[u8],
        known: FileType,
        above: &mut Vec<Box<[u8]>>,
    ) -> ErrnoResult<()> {
        let is_plain = !matches!(known, FileType::Directory | FileType::Unknown)
            && (known != FileType::RegularFile || self.way == RemovalMethod::Unlink);
        if is_plain {
            return unlinkat(folder, name, AtFlags::empty());
        }
        let status = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from)?;
        if status.kind != FileType::Directory {
            return self.way.remove(folder, name, &status);
        }
        if above.len() >= DEPTH {
            return self.move_up(folder, name);
        }
        let mut tries = 0;
        loop {
            let inner = opened(folder, name)?;
            above.push(name.into());
            let emptied = self.empty(&inner, above);
            above.pop();
            emptied?;
            match unlinkat(folder, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) if tries < TRIES => tries += 1,
                other => return other,
            }
        }
    }

    /// Moves a folder to the top, from where it is gone down into again.
    fn move_up(&mut self, folder: &OwnedFd, name: &[u8]) -> ErrnoResult<()> {
        // Only who may write to a folder may move it.
        drop(opened(folder, name)?);
        loop {
            let fresh = format!("{MOVED}{}", self.next);
            self.next += 1;
            let flags = RenameFlags::NOREPLACE;
            let moved = match renameat_with(folder, name, self.top, &fresh[..], flags) {
                // Not every file system knows how.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                    match statat(self.top, &fresh[..], AtFlags::SYMLINK_NOFOLLOW) {
                        Err(Errno::NOENT) => renameat(folder, name, self.top, &fresh[..]),
                        Ok(_) => Err(Errno::EXIST),
                        Err(e) => Err(e),
                    }
                }
                other => other,
            };
            match moved {
                Err(Errno::EXIST | Errno::NOTEMPTY) => {}
                Ok(()) => {
                    self.moved = true;
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
    }
}

/// Opens a folder, whose owner gets the right to list and change it. A folder of somebody else cannot be changed, but may still
/// be open to us.
fn opened(folder: &OwnedFd, name: &[u8]) -> ErrnoResult<OwnedFd> {
    let open = || openat(folder, name, FOLDER, Mode::empty());
    let inner = match open() {
        Err(Errno::ACCESS) => {
            // Of the file that is there now, even if another takes its place meanwhile.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let it = openat(folder, name, flags, Mode::empty())?;
            let path = format!("/proc/self/fd/{}", it.as_raw_fd());
            chmodat(CWD, path, Mode::RWXU, AtFlags::empty())?;
            open()?
        }
        other => other?,
    };
    if FileStatus::from(fstat(&inner)?).mode & 0o700 != 0o700 {
        let _ = fchmod(&inner, Mode::RWXU);
    }
    Ok(inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mkdirat;
    use std::path::Path;

    /// So many folders, one in the other, and a file at the bottom; no path is as long.
    fn dig(top: &Path, depth: usize) {
        let mut at = openat(CWD, top, FOLDER, Mode::empty()).unwrap();
        for _ in 0..depth {
            mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = openat(&at, "d", FOLDER, Mode::empty()).unwrap();
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        openat(&at, "f", flags, Mode::RUSR).unwrap();
    }

    #[test]
    fn a_tree_goes_however_deep_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        for depth in [5_000, DEPTH, DEPTH + 1, 2 * DEPTH + 1] {
            let top = tree.join(format!("of {depth}"));
            std::fs::create_dir(&top).unwrap();
            dig(&top, depth);
        }
        std::fs::create_dir(tree.join(format!("{MOVED}0"))).unwrap();
        std::fs::write(tree.join(format!("{MOVED}1")), "x").unwrap();
        std::os::unix::fs::symlink("/etc", tree.join("link")).unwrap();
        let folder = openat(CWD, &tree, FOLDER, Mode::empty()).unwrap();
        clear(&folder).unwrap();
        std::fs::remove_dir(&tree).unwrap();
        assert!(!tree.exists() && Path::new("/etc").exists());
    }

    #[test]
    fn folders_that_cannot_be_listed_or_changed_go_too() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        for (name, mode) in [("none", 0o000), ("read", 0o500), ("write", 0o200)] {
            let folder = dir.path().join(name);
            std::fs::create_dir_all(folder.join("a/b")).unwrap();
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let folder = openat(CWD, dir.path(), FOLDER, Mode::empty()).unwrap();
        clear(&folder).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
