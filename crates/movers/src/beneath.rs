//! Opening what lies beneath a folder, and never anything else: no symbolic link and no `..` leads out.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Set once `openat2` has turned out to be missing (before Linux 5.6) or forbidden (a container's filter).
static NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// A folder that everything is opened beneath.
#[derive(Debug)]
pub(crate) struct Root {
    fd: OwnedFd,
    /// As it was named, for messages.
    pub(crate) path: PathBuf,
}

impl Root {
    /// Opens a folder. Its own path is trusted, links in it are followed except the last component.
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let fd = openat(CWD, path, FOLDER, Mode::empty())?;
        Ok(Self {
            fd,
            path: path.to_path_buf(),
        })
    }

    /// Opens the folder `relative` (components joined by `/`; empty for the root itself).
    pub(crate) fn folder(&self, relative: &[u8]) -> Result<OwnedFd, Errno> {
        if relative.is_empty() {
            return openat(&self.fd, ".", FOLDER, Mode::empty());
        }
        if !NO_OPENAT2.load(Ordering::Relaxed) {
            let resolve =
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            match openat2(&self.fd, relative, FOLDER, Mode::empty(), resolve) {
                Err(Errno::NOSYS | Errno::PERM) => NO_OPENAT2.store(true, Ordering::Relaxed),
                other => return other,
            }
        }
        self.folder_by_components(relative)
    }

    fn folder_by_components(&self, relative: &[u8]) -> Result<OwnedFd, Errno> {
        let mut at: Option<OwnedFd> = None;
        for component in relative.split(|&b| b == b'/') {
            if matches!(component, b"" | b"." | b"..") {
                return Err(Errno::XDEV);
            }
            let above = at.as_ref().map_or(self.fd.as_fd(), |fd| fd.as_fd());
            at = Some(openat(above, component, FOLDER, Mode::empty())?);
        }
        at.ok_or(Errno::XDEV)
    }

    /// The folder that holds `relative`, and its last component.
    pub(crate) fn holder<'p>(&self, relative: &'p [u8]) -> Result<(OwnedFd, &'p [u8]), Errno> {
        let (above, name) = split(relative);
        Ok((self.folder(above)?, name))
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A path's folder (empty at the top) and last component.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// `folder/name`, or `name` at the top.
pub(crate) fn join(folder: &[u8], name: &[u8]) -> Box<[u8]> {
    if folder.is_empty() {
        return name.into();
    }
    let mut path = Vec::with_capacity(folder.len() + 1 + name.len());
    path.extend_from_slice(folder);
    path.push(b'/');
    path.extend_from_slice(name);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn neither_way_of_opening_leaves_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::create_dir(dir.path().join("secret")).unwrap();
        symlink("../secret", top.join("out")).unwrap();
        symlink("a", top.join("in")).unwrap();
        let root = Root::open(&top).unwrap();
        for open in [Root::folder, Root::folder_by_components] {
            assert!(open(&root, b"a/b").is_ok());
            for bad in [
                &b".."[..],
                b"../secret",
                b"a/../../secret",
                b"out",
                b"in/b",
                b"/tmp",
                b"a/../..",
            ] {
                assert!(
                    open(&root, bad).is_err(),
                    "{}",
                    String::from_utf8_lossy(bad)
                );
            }
        }
    }
}
