//! Paths, opened beneath their space's root: no link and no `..` leads out of it.

use super::TaskEndpoint;
use crate::mover_error::code_of;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, fstat, fstatfs, mkdirat,
    openat, openat2, renameat_with, statat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tarn_ports::MoverError;
use tarn_proto::local::{Code, RequestError, TaskId};
use tarn_types::bounds::MAX_PATH_BYTES;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// File systems of the kernel (`linux/magic.h`): their files have other sizes than the bytes that are read.
const OF_KERNEL: [i64; 7] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
];

/// A file or folder, by any name: device and inode.
pub(crate) type Id = (u64, u64);

pub(crate) fn id_of(stat: &Stat) -> Id {
    (stat.st_dev, stat.st_ino)
}

/// A name in a folder that is open. The folder stays the same one, whoever renames folders above it.
#[derive(Debug)]
pub(crate) struct ConfinedPath {
    folder: OwnedFd,
    name: Vec<u8>,
    /// The folder's path, for messages.
    shown: PathBuf,
    /// As it was named, for messages.
    place: String,
}

fn refuse(place: &str, doing: &str, errno: Errno) -> RequestError {
    let code = match errno {
        Errno::NOENT | Errno::NOTDIR => Code::NotFound,
        Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::XDEV => Code::Denied,
        Errno::NOSPC => Code::NoSpace,
        Errno::DQUOT => Code::Quota,
        Errno::EXIST | Errno::NOTEMPTY => Code::Exists,
        _ => Code::Io,
    };
    let why = match errno {
        Errno::LOOP | Errno::XDEV => {
            "the path contains a symbolic link; tarnd follows none inside a dataspace".into()
        }
        errno => errno.to_string(),
    };
    RequestError::new(code, format!("cannot {doing} `{place}`: {why}"))
}

fn beneath(root: &OwnedFd, folder: &[u8]) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let folder = if folder.is_empty() { b"." } else { folder };
    match openat2(root, folder, FOLDER, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => {}
        other => return other,
    }
    // Before Linux 5.6, or forbidden by a container's filter: component by component.
    let mut at = openat(root, ".", FOLDER, Mode::empty())?;
    for name in folder.split(|b| *b == b'/').filter(|n| *n != b".") {
        at = openat(&at, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(at)
}

impl ConfinedPath {
    /// Opens the folder that holds a place; with `make`, folders that are missing are made.
    pub(crate) fn open(tier_ref: &TaskEndpoint, make: bool) -> Result<Self, RequestError> {
        let TaskEndpoint::Path { space, path } = tier_ref else {
            let text = "that is no path of this node";
            return Err(RequestError::new(Code::Internal, text));
        };
        let (above, name) = match path.iter().rposition(|b| *b == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&b""[..], &path[..]),
        };
        let text = |path: &[u8]| String::from_utf8_lossy(path).escape_debug().to_string();
        let Some((space, root)) = space else {
            let place = text(path);
            let above = Path::new(OsStr::from_bytes(if above.is_empty() {
                b"/"
            } else {
                above
            }));
            let made = if make {
                std::fs::create_dir_all(above)
            } else {
                Ok(())
            };
            let opened = made
                .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
                .and_then(|()| openat(CWD, above, FOLDER, Mode::empty()));
            return Ok(Self {
                folder: opened.map_err(|e| refuse(&place, "reach", e))?,
                name: name.to_vec(),
                shown: above.into(),
                place,
            });
        };
        let place = format!("{space}:{}", text(path));
        let error = |e| refuse(&place, "reach", e);
        let top = openat(CWD, root, FOLDER, Mode::empty()).map_err(error)?;
        if make {
            make_folders(&top, above).map_err(error)?;
        }
        Ok(Self {
            folder: beneath(&top, above).map_err(error)?,
            // The root itself is `.` in itself.
            name: if path.is_empty() {
                b".".to_vec()
            } else {
                name.to_vec()
            },
            shown: root.join(OsStr::from_bytes(above)),
            place,
        })
    }

    /// The path of a name in the folder, valid while this is.
    pub(crate) fn path_of(&self, name: &[u8]) -> PathBuf {
        let mut path = format!("/proc/self/fd/{}/", self.folder.as_raw_fd()).into_bytes();
        path.extend_from_slice(name);
        std::ffi::OsString::from_vec(path).into()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.path_of(&self.name)
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    pub(crate) fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    /// The folder's path, for messages.
    pub(crate) fn shown(&self) -> &Path {
        &self.shown
    }

    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    pub(crate) fn failed(&self, doing: &str, errno: Errno) -> RequestError {
        refuse(&self.place, doing, errno)
    }

    /// The status of the object there; `None` for nothing.
    pub(crate) fn stat(&self) -> Result<Option<Stat>, RequestError> {
        self.stat_of(&self.name)
    }

    pub(crate) fn stat_of(&self, name: &[u8]) -> Result<Option<Stat>, RequestError> {
        match statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(self.failed("examine", e)),
        }
    }

    /// Gives a name of this folder to `to`; an object there is replaced at once or, without `replace`, never.
    /// `Ok(false)` when they lie on different file systems.
    pub(crate) fn rename(
        &self,
        name: &[u8],
        to: &Self,
        replace: bool,
    ) -> Result<bool, RequestError> {
        let plain = |flags| renameat_with(&self.folder, name, &to.folder, &to.name[..], flags);
        let outcome = match plain(RenameFlags::NOREPLACE) {
            Err(Errno::EXIST | Errno::NOTEMPTY) if replace => plain(RenameFlags::EXCHANGE),
            // Not every file system knows the flags (NFS does not).
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if replace || to.stat()?.is_none() => {
                plain(RenameFlags::empty())
            }
            other => other,
        };
        match outcome {
            Ok(()) => Ok(true),
            Err(Errno::XDEV) => Ok(false),
            Err(Errno::EXIST | Errno::NOTEMPTY) => Err(to.exists()),
            Err(e) => Err(to.failed("make", e)),
        }
    }

    /// Gives it another name in its folder.
    pub(crate) fn aside(&self, name: &[u8]) -> Result<(), RequestError> {
        rustix::fs::renameat(&self.folder, &self.name[..], &self.folder, name)
            .map_err(|e| self.failed("remove", e))
    }

    /// Whether both are one name in one folder, by any path.
    pub(crate) fn is(&self, other: &Self) -> Result<bool, RequestError> {
        let folder = |held: &Self| {
            let stat = fstat(&held.folder).map_err(|e| held.failed("examine", e))?;
            Ok(id_of(&stat))
        };
        Ok(self.name == other.name && folder(self)? == folder(other)?)
    }

    /// Refuses files that the kernel makes up as they are read.
    pub(crate) fn check_readable(&self) -> Result<(), RequestError> {
        let about = fstatfs(&self.folder).map_err(|e| self.failed("examine", e))?;
        if !OF_KERNEL.contains(&about.f_type) {
            return Ok(());
        }
        let text = format!(
            "`{}` is made up by the kernel as it is read, and its size is not known before; write its content to a file, and name that",
            self.place
        );
        Err(RequestError::new(Code::Unsupported, text))
    }

    /// Makes the names of the folder durable.
    pub(crate) fn sync(&self) -> Result<(), RequestError> {
        rustix::fs::fsync(&self.folder).map_err(|e| self.failed("sync the folder of", e))
    }

    /// The same of a folder in it.
    pub(crate) fn sync_inside(&self, folder: &[u8]) -> Result<(), RequestError> {
        let synced = open_folder(&self.path_of(folder)).and_then(rustix::fs::fsync);
        synced.map_err(|e| self.failed("sync", e))
    }

    pub(crate) fn exists(&self) -> RequestError {
        RequestError::new(
            Code::Exists,
            format!(
                "`{}` exists already; remove it, or ask to replace it",
                self.place
            ),
        )
    }

    pub(crate) fn missing(&self) -> RequestError {
        RequestError::new(Code::NotFound, format!("`{}` does not exist", self.place))
    }
}

/// A mover's error for a reply, with the paths that people know.
pub(crate) fn to_request_error(error: &MoverError, places: &[&ConfinedPath]) -> RequestError {
    let mut text = error.failure.message.clone();
    for held in places {
        let fd = format!("/proc/self/fd/{}/", held.folder.as_raw_fd());
        let shown = held.shown.display().to_string();
        text = text.replace(&fd, &format!("{}/", shown.trim_end_matches('/')));
    }
    RequestError::new(code_of(error), text)
}

/// A folder by its path.
pub(crate) fn open_folder(path: &Path) -> Result<OwnedFd, Errno> {
    openat(CWD, path, FOLDER, Mode::empty())
}

/// A folder and those above it, as the file systems have them: links and other names make no difference.
pub(crate) fn above(folder: &OwnedFd) -> Vec<Id> {
    let mut ids: Vec<Id> = Vec::new();
    let up = |at: &OwnedFd| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(at, "..", flags, Mode::empty())
    };
    let mut next = folder.try_clone().ok();
    while let Some(at) = next.take_if(|_| ids.len() < MAX_PATH_BYTES) {
        let Ok(id) = fstat(&at).map(|stat| id_of(&stat)) else {
            break;
        };
        // The topmost one is above itself.
        if ids.last() == Some(&id) {
            break;
        }
        ids.push(id);
        next = up(&at).ok();
    }
    ids
}

/// Refuses an external destination that is in one of these dataspaces or around it: bytes that come there by that way would not be
/// counted.
pub(crate) fn check_outside(path: &[u8], spaces: &[(String, PathBuf)]) -> Result<(), RequestError> {
    let text = |path: &[u8]| String::from_utf8_lossy(path).escape_debug().to_string();
    let refuse = |what: String| Err(RequestError::new(Code::Invalid, what));
    let whole = Path::new(OsStr::from_bytes(path));
    // Its own name is replaced, not followed; a folder above it may not be made yet.
    let there = openat(CWD, whole, FOLDER | OFlags::NOFOLLOW, Mode::empty()).ok();
    let is_folder = there.is_some();
    let mut parents = whole.ancestors().skip(1);
    let Some(folder) = there.or_else(|| parents.find_map(|p| open_folder(p).ok())) else {
        return Ok(());
    };
    let ids = above(&folder);
    for (name, root) in spaces {
        let Ok(root) = open_folder(root) else {
            continue;
        };
        let roots = above(&root);
        if roots.first().is_some_and(|id| ids.contains(id)) {
            return refuse(format!(
                "`{}` is inside dataspace `{name}`: name it as a place of the dataspace, so that it is counted there",
                text(path)
            ));
        }
        if is_folder && ids.first().is_some_and(|id| roots.contains(id)) {
            return refuse(format!(
                "`{}` cannot be replaced: it contains the folder of dataspace `{name}`",
                text(path)
            ));
        }
    }
    Ok(())
}

fn make_folders(top: &OwnedFd, folders: &[u8]) -> Result<(), Errno> {
    let ends = folders.iter().enumerate().filter(|(_, b)| **b == b'/');
    let ends = ends.map(|(at, _)| at).chain([folders.len()]);
    for end in ends.filter(|end| *end > 0) {
        let path = &folders[..end];
        let above = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
        let name = if above == 0 { path } else { &path[above + 1..] };
        let holder = beneath(top, if above == 0 { b"" } else { &path[..above] })?;
        match mkdirat(&holder, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Tells this tarnd's half-done files from those of others: numbers of tasks are the same in all, and folders outside are
/// shared. It stays the same over restarts, as the state folder and the node do.
static TAG: OnceLock<String> = OnceLock::new();

/// Sets it, before anything is done.
pub(crate) fn set_tag(node: &str, state: &Path) {
    let mut hasher = tarn_types::hash::Hasher::new();
    hasher
        .field(node.as_bytes())
        .field(state.as_os_str().as_bytes());
    let _ = TAG.set(format!("{:08x}", hasher.finish().0 as u32));
}

/// A name of this tarnd's own beside a task's file.
pub(crate) fn hidden(id: TaskId, what: &str) -> Vec<u8> {
    let tag = TAG.get().map_or("", String::as_str);
    let name = format!("{id}-{tag}{what}");
    [tarn_tasks::HIDDEN, name.as_bytes()].concat()
}

/// The task that such a name is of, if it is this tarnd's; `rest` is the name after [`tarn_tasks::HIDDEN`].
pub(crate) fn task_of(rest: &[u8]) -> Option<TaskId> {
    let name = rest.split(|b| *b == b'.').next()?;
    let (id, tag) = std::str::from_utf8(name).ok()?.split_once('-')?;
    (Some(tag) == TAG.get().map(String::as_str)).then_some(())?;
    id.parse().ok()
}

/// The kind of file in a status.
pub(crate) fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}
