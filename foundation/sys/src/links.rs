//! Paths whose links are followed only where they are a user's own, or root's.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Links on one way, as the kernel has it.
const MAX_LINKS: usize = 40;
/// Root's links are followed for everybody.
const ROOT: u32 = 0;

/// Why there is no such path.
#[derive(Debug)]
pub enum Unresolved {
    /// A link on the way is somebody else's.
    Foreign {
        /// Its path.
        link: PathBuf,
        /// The owner.
        owner: u32,
        /// The user who follows links.
        user: u32,
    },
    /// The system's error.
    Io(std::io::Error),
}

impl std::fmt::Display for Unresolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Foreign { link, owner, user } => write!(
                f,
                "the symbolic link `{}` belongs to user {owner}, neither to user {user} nor to root, so it is not followed: copy what it leads to, or name that itself",
                link.display()
            ),
            Self::Io(e) => e.fmt(f),
        }
    }
}

impl From<std::io::Error> for Unresolved {
    fn from(e: std::io::Error) -> Self {
        Self::Io(e)
    }
}

impl From<Errno> for Unresolved {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// The target of a path, without any link, if all links on the way, the last name's among them, are this user's or root's. Open
/// the result without following links ([`super::beneath::Root::real`]): others may change the way.
///
/// # Errors
/// A link of somebody else's; the system's error.
pub fn resolve(path: &Path, user: u32) -> Result<PathBuf, Unresolved> {
    const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    const ANY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    let open = |at: &OwnedFd, name: &OsStr, flags| openat(at, name, flags, Mode::empty());
    let top = openat(CWD, "/", FOLDER, Mode::empty())?;
    let mut at = top.try_clone()?;
    let mut real = PathBuf::from("/");
    // The last one is the next.
    let mut left = Vec::new();
    push(&mut left, &std::path::absolute(path)?);
    let mut links = 0;
    while let Some(name) = left.pop() {
        if name == ".." {
            at = open(&at, &name, FOLDER)?;
            real.pop();
            continue;
        }
        let next = open(&at, &name, ANY)?;
        let about = fstat(&next)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::Symlink {
            real.push(name);
            at = next;
            continue;
        }
        if ![user, ROOT].contains(&about.st_uid) {
            return Err(Unresolved::Foreign {
                link: real.join(name),
                owner: about.st_uid,
                user,
            });
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = readlinkat(next.as_fd(), "", Vec::new())?.into_bytes();
        let target = PathBuf::from(OsString::from_vec(target));
        if target.is_absolute() {
            at = top.try_clone()?;
            real = PathBuf::from("/");
        }
        push(&mut left, &target);
    }
    Ok(real)
}

fn push(left: &mut Vec<OsString>, path: &Path) {
    let names = path.components().rev().filter_map(|c| match c {
        Component::Normal(name) => Some(name),
        Component::ParentDir => Some(OsStr::new("..")),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    });
    left.extend(names.map(OsStr::to_owned));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn a_path_leads_where_it_leads_without_tarn() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(top.join("a/b/file"), "x").unwrap();
        for (target, link) in [
            ("a/b", "l"),
            ("../l/../b/file", "a/up"),
            (top.join("l").to_str().unwrap(), "abs"),
            ("round", "round"),
            ("gone", "lost"),
        ] {
            symlink(target, top.join(link)).unwrap();
        }
        let user = rustix::process::geteuid().as_raw();
        for path in ["l", "l/file", "a/up", "abs/../up", "abs/file", "l/."] {
            let path = top.join(path);
            let is = path.canonicalize().unwrap();
            assert_eq!(resolve(&path, user).unwrap(), is, "{}", path.display());
        }
        for path in ["round", "lost", "l/none", "l/file/x"] {
            let why = resolve(&top.join(path), user).unwrap_err();
            assert!(matches!(why, Unresolved::Io(_)), "{path}: {why}");
        }
    }

    #[test]
    fn links_of_others_are_not_followed() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let link = |name: &str, target: &str, owner| {
            symlink(target, top.join(name)).unwrap();
            lchown(top.join(name), Some(owner), None).unwrap();
        };
        std::fs::create_dir(top.join("a")).unwrap();
        link("own", "a", 1_001);
        link("roots", "own", 0);
        link("bobs", "a", 1_002);
        link("through", "bobs/.", 1_001);
        for path in ["own", "roots"] {
            assert_eq!(resolve(&top.join(path), 1_001).unwrap(), top.join("a"));
        }
        for path in ["bobs", "through", "bobs/none"] {
            let why = resolve(&top.join(path), 1_001).unwrap_err();
            assert!(
                matches!(&why, Unresolved::Foreign { link, owner: 1_002, .. } if link.ends_with("bobs")),
                "{path}: {why}"
            );
        }
    }
}
