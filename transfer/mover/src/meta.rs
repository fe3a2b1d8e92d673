//! A file's status and its extended attributes.

use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::{
    FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, XattrFlags, fchmod, fgetxattr,
    flistxattr, flistxattr_query, fsetxattr, fstat, futimens, llistxattr, openat,
};
use rustix::io::Errno;
use tarn_types::manifest::{EntryKind, Xattr};

/// The mode recorded for symbolic links: Linux gives them no other.
pub(crate) const LINK_MODE: u32 = 0o777;

/// The part of a file's status that matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStatus {
    pub(crate) kind: FileType,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) links: u64,
    pub(crate) mode: u32,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    /// Nanoseconds since 1970.
    pub(crate) mtime: i64,
    /// Nanoseconds since 1970.
    pub(crate) ctime: i64,
}

impl FileStatus {
    pub(crate) fn of(fd: impl AsFd) -> Result<Self, Errno> {
        fstat(fd).map(Self::from)
    }

    /// The same of a file with so many bytes of content and no holes.
    pub(crate) fn with_size(self, size: u64) -> Self {
        let blocks = size.div_ceil(512);
        Self {
            size,
            blocks,
            ..self
        }
    }

    /// Whether the file has holes, as far as its blocks show.
    pub(crate) fn may_have_holes(&self) -> bool {
        self.blocks.saturating_mul(512) < self.size
    }

    /// A regular file's kind, not read yet; it has data in these extents.
    pub(crate) fn unread(&self, extents: Box<[(u64, u64)]>) -> EntryKind {
        EntryKind::File {
            size: self.size,
            hash: None,
            link_group: 0,
            extents,
        }
    }
}

impl From<Stat> for FileStatus {
    // The fields' types differ between architectures.
    #[allow(clippy::unnecessary_cast)]
    fn from(s: Stat) -> Self {
        let nanos =
            |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
        Self {
            kind: FileType::from_raw_mode(s.st_mode as _),
            device: s.st_dev as u64,
            inode: s.st_ino as u64,
            links: s.st_nlink as u64,
            mode: s.st_mode as u32 & 0o7777 & !another_s(&s),
            size: u64::try_from(s.st_size).unwrap_or(0),
            blocks: u64::try_from(s.st_blocks).unwrap_or(0),
            mtime: nanos(s.st_mtime as i64, s.st_mtime_nsec as i64),
            ctime: nanos(s.st_ctime as i64, s.st_ctime_nsec as i64),
        }
    }
}

/// The bits of a file's mode that would let whoever runs a copy act as the copy's owner, where that is another than
/// the file's: setuid and setgid are a promise of the owner (or the group) and of nobody else. On a folder setgid only
/// decides which group its files get.
#[allow(clippy::unnecessary_cast)]
fn another_s(s: &Stat) -> u32 {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2000;
    let own_group = s.st_gid as u32 == rustix::process::getegid().as_raw();
    match FileType::from_raw_mode(s.st_mode as _) {
        FileType::Directory => 0,
        _ if s.st_uid as u32 != rustix::process::geteuid().as_raw() => SETUID | SETGID,
        _ if !own_group => SETGID,
        _ => 0,
    }
}

/// The times to set: this modification time, the access time as it is.
pub(crate) fn times(mtime: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: mtime.div_euclid(1_000_000_000),
            tv_nsec: mtime.rem_euclid(1_000_000_000),
        },
    }
}

/// Mode and modification time, the last things to be set.
pub(crate) fn set_mode_and_time(fd: impl AsFd, mode: Option<u32>, mtime: i64) -> Result<(), Errno> {
    if let Some(mode) = mode {
        fchmod(&fd, Mode::from_raw_mode(mode as _))?;
    }
    futimens(&fd, &times(mtime))
}

/// The `user.*` attributes, sorted by name; none where the file system has none.
pub(crate) fn xattrs(fd: impl AsFd) -> Result<Box<[Xattr]>, Errno> {
    let mut fixed = [0u8; 512];
    let names: Vec<u8> = match flistxattr(&fd, &mut fixed[..]) {
        Ok(0) | Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Box::default()),
        Ok(n) => fixed[..n].to_vec(),
        Err(Errno::RANGE) => {
            let mut names = vec![0; flistxattr_query(&fd)? + 512];
            let n = flistxattr(&fd, &mut names[..])?;
            names.truncate(n);
            names
        }
        Err(errno) => return Err(errno),
    };
    let mut found = Vec::new();
    for name in names.split(|&b| b == 0).filter(|n| n.starts_with(b"user.")) {
        match value(&fd, name) {
            Ok(value) => found.push((name.into(), value)),
            // Removed since it was listed.
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    found.sort();
    Ok(found.into())
}

fn value(fd: impl AsFd, name: &[u8]) -> Result<Box<[u8]>, Errno> {
    let mut fixed = [0u8; 1024];
    match fgetxattr(&fd, name, &mut fixed[..]) {
        Ok(n) => Ok(fixed[..n].into()),
        Err(Errno::RANGE) => {
            let mut value = vec![0; tarn_types::bounds::MAX_XATTR_BYTES];
            let n = fgetxattr(&fd, name, &mut value[..])?;
            value.truncate(n);
            Ok(value.into())
        }
        Err(errno) => Err(errno),
    }
}

/// Sets attributes. `false` when the file system cannot hold them (all or this many).
pub(crate) fn set_xattrs(fd: impl AsFd, xattrs: &[Xattr]) -> Result<bool, Errno> {
    for (name, value) in xattrs {
        match fsetxattr(&fd, &**name, value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::NOTSUP | Errno::NOSYS | Errno::RANGE | Errno::TOOBIG) => return Ok(false),
            // A full attribute block of ext4 says "no space" though the file system has some.
            Err(Errno::NOSPC) if has_free_blocks(&fd) => return Ok(false),
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

/// Whether the file system has space for at least some blocks.
fn has_free_blocks(fd: impl AsFd) -> bool {
    rustix::fs::fstatvfs(fd).is_ok_and(|s| s.f_bavail > 16)
}

/// The `user.*` attributes of a file that is not open: without opening it where `/proc` is there.
pub(crate) fn xattrs_of(folder: impl AsFd, name: &[u8]) -> Result<Box<[Xattr]>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut path = format!("/proc/self/fd/{}/", folder.as_fd().as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    match llistxattr(&*path, &mut [0u8; 512][..]) {
        Ok(0) | Err(Errno::NOTSUP | Errno::NOSYS) => Ok(Box::default()),
        Ok(_) | Err(Errno::RANGE | Errno::NOENT) => {
            xattrs(openat(folder, name, flags, Mode::empty())?)
        }
        Err(errno) => Err(errno),
    }
}
