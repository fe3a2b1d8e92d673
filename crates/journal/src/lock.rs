//! One live run for a workflow and state folder.

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a lock file that are read: a process id is far shorter.
const MAX_LOCK_BYTES: u64 = 64;

/// How long a dead holder's lock is waited for. A process that it was just starting has its descriptors until it
/// runs another program.
const DEAD_PATIENCE: Duration = Duration::from_secs(5);

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("another run of this workflow is active{} and holds {}; wait for it, or stop it with `tarn cancel`", pid_text(*.pid), .path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
        /// Who has it, where the file says so.
        pid: Option<u32>,
    },
    /// The file system cannot lock.
    #[error("the file system of {} cannot lock files (flock: {source}); put the state folder elsewhere, or mount it with locks", .path.display())]
    Unsupported {
        /// The lock.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused something else.
    #[error("cannot lock {}: {source}", .path.display())]
    Io {
        /// The lock.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn pid_text(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (process {pid})"))
        .unwrap_or_default()
}

/// A lock that is held until it is dropped or its process ends. Not inherited over `exec`.
#[derive(Debug)]
pub struct RunLock {
    file: File,
    path: PathBuf,
}

impl RunLock {
    /// Takes the lock, without waiting, and writes this process's id into it.
    ///
    /// # Errors
    /// `Busy` with the holder when another has it.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        Self::take_with(path, FlockOperation::NonBlockingLockExclusive)
    }

    /// Takes the lock as soon as it is free.
    ///
    /// # Errors
    /// When it cannot be locked at all.
    pub fn wait(path: &Path) -> Result<Self, LockError> {
        Self::take_with(path, FlockOperation::LockExclusive)
    }

    fn take_with(path: &Path, operation: FlockOperation) -> Result<Self, LockError> {
        let failed = |source: io::Error| LockError::Io {
            path: path.to_path_buf(),
            source,
        };
        let mut file = open(path).map_err(failed)?;
        let since = Instant::now();
        loop {
            match rustix::fs::flock(&file, operation) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    let pid = read_pid(&mut file);
                    if pid.is_some_and(is_dead) && since.elapsed() < DEAD_PATIENCE {
                        std::thread::sleep(Duration::from_millis(5));
                        continue;
                    }
                    return Err(LockError::Busy {
                        path: path.to_path_buf(),
                        pid,
                    });
                }
                Err(e @ (Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK | Errno::INVAL)) => {
                    return Err(LockError::Unsupported {
                        path: path.to_path_buf(),
                        source: e.into(),
                    });
                }
                Err(e) => return Err(failed(e.into())),
            }
        }
        // What it says is for people and `tarn cancel`: on a full disk the lock holds all the same.
        let _ = write_pid(&mut file);
        let path = path.to_path_buf();
        Ok(Self { file, path })
    }

    /// Who holds a lock now: `None` when nobody does. The process id is unknown (`Some(None)`) when it could not
    /// be written.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn holder(path: &Path) -> Result<Option<Option<u32>>, LockError> {
        let file = match OpenOptions::new().read(true).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(LockError::Io {
                    path: path.to_path_buf(),
                    source,
                });
            }
        };
        // A shared lock: two that ask do not see each other as holders.
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Ok(Some(read_pid(&mut &file))),
            Ok(()) => Ok(None),
            Err(e) => Err(LockError::Unsupported {
                path: path.to_path_buf(),
                source: e.into(),
            }),
        }
    }

    /// The lock's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // The file stays: removing it would let two processes lock two files of one name.
        let _ = self.file.set_len(0);
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

fn read_pid(file: &mut (impl Read + Seek)) -> Option<u32> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(MAX_LOCK_BYTES).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Whether a process is gone, or was killed and nobody has asked how it ended.
fn is_dead(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The state comes behind the name in parentheses, which may hold anything.
        Ok(stat) => stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(e) => e.kind() == io::ErrorKind::NotFound && Path::new("/proc/self").exists(),
    }
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_the_holder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.lock");
        assert_eq!(RunLock::holder(&path).unwrap(), None);
        let held = RunLock::take(&path).unwrap();
        let pid = std::process::id();
        assert!(
            matches!(RunLock::take(&path), Err(LockError::Busy { pid: Some(p), .. }) if p == pid)
        );
        assert_eq!(RunLock::holder(&path).unwrap(), Some(Some(pid)));
        let message = RunLock::take(&path).unwrap_err().to_string();
        assert!(
            message.contains(&format!("process {pid}")) && message.contains("tarn cancel"),
            "{message}"
        );
        drop(held);
        assert_eq!(RunLock::holder(&path).unwrap(), None);
        RunLock::take(&path).unwrap();
    }

    #[test]
    fn what_a_dead_holder_started_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.lock");
        let mut holder = std::process::Command::new("true").spawn().unwrap();
        // It has ended, asked for or not.
        while !is_dead(holder.id()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::write(&path, format!("{}\n", holder.id())).unwrap();
        let file = open(&path).unwrap();
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        let child = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(file);
        });
        let since = Instant::now();
        RunLock::take(&path).unwrap();
        assert!(since.elapsed() >= Duration::from_millis(90));
        child.join().unwrap();
        holder.wait().unwrap();
        assert!(is_dead(holder.id()) && !is_dead(std::process::id()));
    }

    #[test]
    fn waiting_ends_when_the_holder_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.lock");
        let held = RunLock::take(&path).unwrap();
        let waiter = {
            let path = path.clone();
            std::thread::spawn(move || RunLock::wait(&path).is_ok())
        };
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiter.is_finished());
        drop(held);
        assert!(waiter.join().unwrap());
    }
}
