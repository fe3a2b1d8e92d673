//! The folder of one nbdkit, and the removal of those that killed servers have left.

use crate::error::{CliError, CliResult};
use crate::print::message;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, fstat, open, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use tarn_types::codes::Exit;

/// Folders of this name that are tried: one may be left from a process that was killed.
const MAX_FOLDERS: u32 = 100;
/// How their names begin: the process follows, and a number.
const NAME: &str = "tarn-block-";
/// The files that nbdkit creates in its folder.
const FILES: [&str; 2] = ["pid", "socket"];

/// A folder of this user alone, for nbdkit's files.
pub(super) struct NbdkitFolder {
    path: PathBuf,
    /// Locked as long as the server lives: by its process number alone it would seem dead from another PID namespace.
    _lock: Option<OwnedFd>,
}

impl NbdkitFolder {
    pub(super) fn new(parent: Option<&Path>) -> CliResult<Self> {
        let parent = parent.map_or_else(usual_parent, Path::to_owned);
        remove_leftovers(&parent);
        let mut number = 0;
        loop {
            let path = parent.join(format!("{NAME}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let _lock = lock(&path);
                    // Before it was locked, a start in another PID namespace may have taken it for a leftover.
                    if path.is_dir() {
                        return Ok(Self { path, _lock });
                    }
                }
                Err(e) if e.kind() == ErrorKind::AlreadyExists && number < MAX_FOLDERS => {
                    number += 1;
                }
                Err(e) => {
                    let text = format!("cannot make {}: {e}", path.display());
                    return Err(CliError::new(Exit::State, text));
                }
            }
        }
    }

    /// nbdkit writes it once it listens.
    pub(super) fn pid_file(&self) -> PathBuf {
        self.path.join(FILES[0])
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.path.join(FILES[1])
    }
}

impl Drop for NbdkitFolder {
    fn drop(&mut self) {
        for file in FILES {
            let _ = std::fs::remove_file(self.path.join(file));
        }
        if let Err(e) = std::fs::remove_dir(&self.path) {
            message!("warning: cannot remove {}: {e}", self.path.display());
        }
    }
}

fn usual_parent() -> PathBuf {
    std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|folder| folder.is_dir())
        .unwrap_or_else(std::env::temp_dir)
}

/// None where the file system has no locks of folders: there nothing is ever taken for a leftover.
fn lock(path: &Path) -> Option<OwnedFd> {
    let folder = open(path, FOLDER, Mode::empty()).ok()?;
    flock(&folder, FlockOperation::LockExclusive).ok()?;
    Some(folder)
}

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Removes the folders of this user's killed servers. A folder that cannot be removed stays for the next start.
fn remove_leftovers(parent: &Path) {
    let flags = FOLDER.difference(OFlags::NOFOLLOW);
    let holder = open(parent, flags, Mode::empty());
    let (Ok(holder), Ok(entries)) = (holder, std::fs::read_dir(parent)) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = process_of(&name);
        if process.is_some_and(|p| tarn_sys::process::start_time(p).is_none()) {
            let _ = remove_leftover(&holder, &name);
        }
    }
}

/// The process that a folder is named after, if it has the name of such a folder.
fn process_of(name: &OsStr) -> Option<i32> {
    let rest = name.to_str()?.strip_prefix(NAME)?;
    let (process, number) = rest.split_once('-')?;
    number.parse::<u32>().ok()?;
    process.parse().ok().filter(|p| *p > 0)
}

/// Removes what nbdkit makes and the folder, if it is this user's, nobody holds its lock, and nothing else is in it.
fn remove_leftover(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    let folder = openat(parent, name, FOLDER, Mode::empty())?;
    if fstat(&folder)?.st_uid != geteuid().as_raw() {
        return Ok(());
    }
    flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    for file in FILES {
        match unlinkat(&folder, file, AtFlags::empty()) {
            Err(Errno::NOENT) => {}
            removed => removed?,
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    /// The number of a process that has ended.
    fn dead() -> u32 {
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        let number = child.id();
        child.wait().expect("it ends");
        number
    }

    #[test]
    fn only_folders_of_dead_servers_of_this_user_are_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let (dead, own) = (dead(), std::process::id());
        let folder = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).expect("a folder");
            path
        };
        let empty = folder(&format!("{NAME}{dead}-0"));
        let with_files = folder(&format!("{NAME}{dead}-1"));
        for file in FILES {
            std::fs::write(with_files.join(file), "").expect("a file");
        }
        let alive = folder(&format!("{NAME}{own}-7"));
        let locked = folder(&format!("{NAME}{dead}-2"));
        let _lock = lock(&locked).expect("a lock");
        let with_more = folder(&format!("{NAME}{dead}-3"));
        std::fs::write(with_more.join("notes"), "").expect("a file");
        let target = folder("target");
        std::fs::write(target.join("pid"), "").expect("a file");
        let link = dir.path().join(format!("{NAME}{dead}-4"));
        symlink(&target, &link).expect("a link");
        let other = folder(&format!("{NAME}{dead}-x"));
        let of_another_user = folder(&format!("{NAME}{dead}-5"));
        let is_another_users = chown(&of_another_user, Some(54_321), None).is_ok();

        let new = NbdkitFolder::new(Some(dir.path())).expect("a folder");
        assert!(!empty.exists() && !with_files.exists());
        for stays in [&alive, &locked, &with_more, &other] {
            assert!(stays.is_dir(), "{}", stays.display());
        }
        assert!(link.is_symlink() && target.join("pid").exists());
        assert!(of_another_user.is_dir() == is_another_users);

        // The new one is in use, though its process would seem dead from elsewhere.
        let holder = open(dir.path(), FOLDER, Mode::empty()).expect("it is there");
        let name = new.path.file_name().expect("a name").to_owned();
        assert!(remove_leftover(&holder, &name).is_err());
        assert!(new.path.is_dir());
        let path = new.path.clone();
        drop(new);
        assert!(!path.exists());
    }
}
