//! Opening files beneath a folder, and never anything else: no symbolic link and no `..` leads out.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Set once `openat2` has turned out to be missing (before Linux 5.6) or forbidden (a container's filter).
static NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// A folder that everything is opened beneath.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    /// As it was named, for messages.
    pub path: PathBuf,
}

impl Root {
    /// Opens a folder. Its own path is trusted, links in it are followed except the last component.
    ///
    /// # Errors
    /// The error of openat(2).
    pub fn open(path: &Path) -> Result<Self, Errno> {
        let fd = openat(CWD, path, FOLDER, Mode::empty())?;
        Ok(Self {
            fd,
            path: path.to_path_buf(),
        })
    }

    /// Opens a folder by its absolute path, in which no link is followed.
    ///
    /// # Errors
    /// As for [`Root::folder`].
    pub fn real(path: &Path) -> Result<Self, Errno> {
        use std::os::unix::ffi::OsStrExt;
        let top = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = Self {
            fd: openat(CWD, "/", top, Mode::empty())?,
            path: PathBuf::from("/"),
        };
        let relative = path.strip_prefix("/").map_err(|_| Errno::INVAL)?;
        Ok(Self {
            fd: top.folder(relative.as_os_str().as_bytes())?,
            path: path.to_path_buf(),
        })
    }

    /// A folder beneath this one, as one that everything is opened beneath.
    ///
    /// # Errors
    /// As for [`Root::folder`].
    pub fn beneath(&self, relative: &[u8]) -> Result<Self, Errno> {
        use std::os::unix::ffi::OsStrExt;
        Ok(Self {
            fd: self.folder(relative)?,
            path: self.path.join(std::ffi::OsStr::from_bytes(relative)),
        })
    }

    /// Opens the folder `relative` (components joined by `/`; empty for the root itself).
    ///
    /// # Errors
    /// The error of openat2(2); `XDEV` or `LOOP` where the way would lead out.
    pub fn folder(&self, relative: &[u8]) -> Result<OwnedFd, Errno> {
        if relative.is_empty() {
            return openat(&self.fd, ".", FOLDER, Mode::empty());
        }
        match self.at_once(relative, FOLDER) {
            Some(outcome) => outcome,
            None => self.folder_by_components(relative),
        }
    }

    /// Opens what `relative` names for reading: a file, one hopes; never through a link, and never waiting for the
    /// other end of a FIFO.
    ///
    /// # Errors
    /// As for [`Root::folder`].
    pub fn file(&self, relative: &[u8]) -> Result<OwnedFd, Errno> {
        match self.at_once(relative, FILE) {
            Some(outcome) => outcome,
            None => self.file_by_components(relative),
        }
    }

    fn file_by_components(&self, relative: &[u8]) -> Result<OwnedFd, Errno> {
        let (above, name) = split(relative);
        if matches!(name, b"" | b"." | b"..") {
            return Err(Errno::XDEV);
        }
        let above = match above {
            b"" => None,
            above => Some(self.folder_by_components(above)?),
        };
        let above = above.as_ref().map_or(self.fd.as_fd(), |fd| fd.as_fd());
        openat(above, name, FILE, Mode::empty())
    }

    /// By one call, where the kernel has it.
    fn at_once(&self, relative: &[u8], flags: OFlags) -> Option<Result<OwnedFd, Errno>> {
        if NO_OPENAT2.load(Ordering::Relaxed) {
            return None;
        }
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(&self.fd, relative, flags, Mode::empty(), resolve) {
            Err(Errno::NOSYS | Errno::PERM) => {
                NO_OPENAT2.store(true, Ordering::Relaxed);
                None
            }
            other => Some(other),
        }
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
    ///
    /// # Errors
    /// As for [`Root::folder`].
    pub fn holder<'p>(&self, relative: &'p [u8]) -> Result<(OwnedFd, &'p [u8]), Errno> {
        let (above, name) = split(relative);
        Ok((self.folder(above)?, name))
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Writes a small file in a folder that may be somebody else's: a link that stands in its place is not followed.
///
/// # Errors
/// The error of openat(2) or write(2); when something else than a plain file is there.
pub fn write_in_place(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = openat(CWD, path, flags, Mode::from_raw_mode(0o666))?;
    let mut file = std::fs::File::from(opened);
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is no plain file"));
    }
    file.set_len(0)?;
    std::io::Write::write_all(&mut file, content)
}

/// A path's folder (empty at the top) and last component.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// `folder/name`, or `name` at the top.
pub fn join(folder: &[u8], name: &[u8]) -> Box<[u8]> {
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
    fn what_is_written_in_place_goes_through_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        symlink(&precious, dir.path().join("link")).unwrap();
        assert!(write_in_place(&dir.path().join("link"), b"x").is_err());
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
        for text in ["longer", "new"] {
            write_in_place(&dir.path().join("new"), text.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read(dir.path().join("new")).unwrap(), b"new");
    }

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
        std::fs::write(top.join("a/f"), b"f").unwrap();
        std::fs::write(dir.path().join("secret/f"), b"s").unwrap();
        symlink("../secret/f", top.join("link")).unwrap();
        for open in [Root::file, Root::file_by_components] {
            assert!(open(&root, b"a/f").is_ok());
            for bad in [
                &b""[..],
                b"..",
                b"../secret/f",
                b"link",
                b"out/f",
                b"a/../../secret/f",
                b"/etc/passwd",
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
