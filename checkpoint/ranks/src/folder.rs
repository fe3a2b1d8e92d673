//! The folder in which the ranks of a node find each other: the processes that hold ranks, and their sockets.

use crate::socket::{Listener, RankSocket};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tarn_ports::RanksError;

/// How long remains of a dying program are waited for: its memory is freed before its locks and ports are.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks.
pub(crate) const AGAIN: Duration = Duration::from_millis(5);
/// Bytes of a lock file that are read: a process id.
const MAX_HOLDER: u64 = 32;

/// A private folder, held open: a process that renames it or its parents changes nothing.
#[derive(Debug)]
pub(crate) struct PrivateFolder {
    fd: OwnedFd,
    path: PathBuf,
}

impl PrivateFolder {
    /// Makes it if it is not there.
    pub(crate) fn open(path: &Path) -> Result<Self, RanksError> {
        let shown = path.display();
        let wrong = |what: &str| {
            RanksError::Invalid(format!(
                "{shown}, where ranks meet, {what}: choose another folder in this node's memory"
            ))
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.or_else(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(wrong(&format!("cannot be made ({e})"))),
        })?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(wrong("is a link or no folder")),
            Err(e) => return Err(wrong(&format!("cannot be opened ({e})"))),
        };
        let about = rustix::fs::fstat(&fd).map_err(|e| wrong(&format!("cannot be read ({e})")))?;
        if about.st_uid != rustix::process::geteuid().as_raw() {
            return Err(wrong(&format!("belongs to user {}", about.st_uid)));
        }
        if about.st_mode & 0o077 != 0 {
            return Err(wrong("is open to other users (`chmod 700` closes it)"));
        }
        Ok(Self {
            fd,
            path: path.to_path_buf(),
        })
    }

    /// A path of this node's for one of its sockets: short, as a socket's must be, wherever the folder is.
    fn socket(&self, rank: u32) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{rank}.sock", self.fd.as_raw_fd()))
    }

    /// Connects to a rank of this node.
    pub(crate) fn connect(&self, rank: u32) -> io::Result<RankSocket> {
        RankSocket::unix(&self.socket(rank))
    }

    /// Takes a rank for this process, as soon as a dying process has let go of it.
    pub(crate) fn take(self, rank: u32, until: Instant) -> Result<RankLock, RanksError> {
        let until = until.min(Instant::now() + TIMEOUT);
        let mut lock = self.lock(rank, until)?;
        // For people; the lock holds without it.
        let _ = lock.set_len(0);
        let _ = lock.write_all(std::process::id().to_string().as_bytes());
        Ok(RankLock {
            folder: self,
            lock,
            rank,
        })
    }

    /// Locks a rank, as soon as nobody else has it.
    fn lock(&self, rank: u32, until: Instant) -> Result<File, RanksError> {
        let name = format!("{rank}.lock");
        let failed = |doing: &str, e: io::Error| {
            let path = self.path.join(&name);
            RanksError::Invalid(format!("cannot {doing} {}: {e}", path.display()))
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&self.fd, &name, flags, Mode::RUSR | Mode::WUSR);
        let lock = File::from(lock.map_err(|e| failed("open", e.into()))?);
        loop {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(lock),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(AGAIN),
                Err(Errno::WOULDBLOCK) => {
                    let mut holder = String::new();
                    let _ = lock.take(MAX_HOLDER).read_to_string(&mut holder);
                    let holder = holder.trim().parse::<u32>();
                    let holder = holder.map_or("a process".into(), |id| format!("process {id}"));
                    return Err(RanksError::Taken {
                        who: format!("{holder} is its rank {rank}"),
                    });
                }
                Err(e) => return Err(failed("lock", e.into())),
            }
        }
    }
}

/// A rank that no process is, or becomes, until this is dropped. To be held for a moment: a process that begins meanwhile waits.
#[derive(Debug)]
pub struct Vacant(File);

impl Vacant {
    /// Looks whether a rank of the program that meets in this folder is nobody's.
    ///
    /// # Errors
    /// [`RanksError::Taken`] by whom, or why the folder cannot be used.
    pub fn take(folder: &Path, rank: u32) -> Result<Self, RanksError> {
        let folder = PrivateFolder::open(folder)?;
        folder.lock(rank, Instant::now()).map(Self)
    }
}

impl Drop for Vacant {
    fn drop(&mut self) {
        // A child that is being forked has the same lock.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// A rank that is this process's until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct RankLock {
    pub(crate) folder: PrivateFolder,
    lock: File,
    rank: u32,
}

impl RankLock {
    /// Listens where the others of this node look. The remains of a dead process there are removed.
    pub(crate) fn listen(&self) -> Result<Listener, RanksError> {
        self.unlink();
        Listener::unix(&self.folder.socket(self.rank)).map_err(|e| {
            let path = self.folder.path.join(format!("{}.sock", self.rank));
            RanksError::Invalid(format!("cannot listen at {}: {e}", path.display()))
        })
    }

    fn unlink(&self) {
        let name = format!("{}.sock", self.rank);
        let about = rustix::fs::statat(&self.folder.fd, &name, AtFlags::SYMLINK_NOFOLLOW);
        if about.is_ok_and(|a| FileType::from_raw_mode(a.st_mode) == FileType::Socket) {
            let _ = rustix::fs::unlinkat(&self.folder.fd, &name, AtFlags::empty());
        }
    }
}

impl Drop for RankLock {
    fn drop(&mut self) {
        self.unlink();
        let _ = self.lock.set_len(0);
        // A child that was forked has the same lock. The file stays: removed, two could lock two files of one name.
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

/// The name of this node: ranks that fail together have the same.
pub(crate) fn node() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{host} {}", boot.trim()).trim_end().to_owned()
}
