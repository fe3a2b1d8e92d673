//! One live run for a workflow and state folder.

use crate::holder::Holder;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::ErrorKind::{AlreadyExists, NotFound};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a lock file that are read: a holder takes some 130.
const MAX_LOCK_BYTES: u64 = 512;

/// How long a dead holder's lock is waited for. A process that it was just starting has its descriptors until it
/// runs another program.
const DEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long shares, and holders without a name, are waited for: a process that checks for a holder has the lock for a moment.
const PROBE: Duration = Duration::from_millis(200);

/// How often the folder of a lock is made again that has gone before there was a lock in it.
const MAX_OPENS: u32 = 100;

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("a run of workflow {} is active{} and holds {}; wait for it, or stop it with `tarn cancel`", workflow(.path), named(.holder.as_ref()), .path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
        /// The holder, if the file names it.
        holder: Option<Holder>,
    },
    /// Runs of other workflows read data of this one.
    #[error("a run of another workflow reads data of workflow {} and holds {}; wait until it has ended, or stop it with `tarn cancel RUN`", workflow(.path), .path.display())]
    Read {
        /// The lock.
        path: PathBuf,
    },
    /// The file system cannot lock.
    #[error(
        "the file system of {} cannot lock files (flock: {source}); put the state folder elsewhere (--state DIR), or have it mounted with \
         locks: Lustre with `flock` (not `localflock`), NFS without `nolock`", .path.display()
    )]
    Unsupported {
        /// The lock.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused something else.
    #[error("cannot lock {}: {source}", .path.display())]
    Io {
        /// The lock.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The workflow whose runs the lock is for.
fn workflow(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_stem().unwrap_or_default().to_string_lossy()
}

fn named(holder: Option<&Holder>) -> String {
    holder.map(|h| format!(" ({h})")).unwrap_or_default()
}

/// A lock that is held until it is dropped or its process ends. Not inherited over `exec`.
#[derive(Debug)]
pub struct RunLock {
    file: File,
    path: PathBuf,
    /// Others may have it too: it names none of them.
    is_share: bool,
}

impl RunLock {
    /// Takes the lock, without waiting, and writes its holder into it.
    ///
    /// # Errors
    /// `Busy` with the holder when another has it.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        Self::take_with(path, FlockOperation::NonBlockingLockExclusive)
    }

    /// Takes a share of the lock, without waiting: as long as anybody has one nobody takes the lock, but others may have shares too.
    ///
    /// # Errors
    /// `Busy` when somebody has the lock.
    pub fn share(path: &Path) -> Result<Self, LockError> {
        Self::take_with(path, FlockOperation::NonBlockingLockShared)
    }

    /// Takes the lock as soon as it is free.
    ///
    /// # Errors
    /// When it cannot be locked at all.
    pub fn wait(path: &Path) -> Result<Self, LockError> {
        Self::take_with(path, FlockOperation::LockExclusive)
    }

    fn take_with(path: &Path, operation: FlockOperation) -> Result<Self, LockError> {
        let file = open(path).map_err(|source| LockError::Io {
            path: path.to_path_buf(),
            source,
        })?;
        let mut file = lock(file, path, operation)?;
        let is_share = operation == FlockOperation::NonBlockingLockShared;
        if !is_share {
            // The file's text is for people and `tarn cancel`: without it, on a full disk, the lock holds all the same.
            let _ = write_holder(&mut file);
        }
        let path = path.to_path_buf();
        Ok(Self {
            file,
            path,
            is_share,
        })
    }

    /// Whether the lock could be taken now. Nothing is made, and nothing is written.
    ///
    /// # Errors
    /// Those of [`take`](Self::take).
    pub fn could_take(path: &Path) -> Result<(), LockError> {
        let operation = FlockOperation::NonBlockingLockExclusive;
        match open_in_place(path, OFlags::RDWR) {
            Ok(file) => lock(file, path, operation).map(drop),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(LockError::Io {
                path: path.to_path_buf(),
                source,
            }),
        }
    }

    /// The holder of a lock: `None` when nobody holds it, `Some(None)` when the file does not name the holder.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn holder(path: &Path) -> Result<Option<Option<Holder>>, LockError> {
        let file = match open_in_place(path, OFlags::RDONLY) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(LockError::Io {
                    path: path.to_path_buf(),
                    source,
                });
            }
        };
        // A shared lock: two processes that check do not see each other as holders.
        match lock(file, path, FlockOperation::NonBlockingLockShared) {
            Err(LockError::Busy { holder, .. }) => Ok(Some(holder)),
            other => other.map(|_| None),
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
        if !self.is_share {
            let _ = self.file.set_len(0);
        }
    }
}

/// Locks an open file of this path.
fn lock(mut file: File, path: &Path, operation: FlockOperation) -> Result<File, LockError> {
    let since = Instant::now();
    loop {
        match rustix::fs::flock(&file, operation) {
            Ok(()) => return Ok(file),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                if operation == FlockOperation::NonBlockingLockExclusive && is_shared(&file) {
                    if since.elapsed() < PROBE {
                        std::thread::sleep(Duration::from_millis(5));
                        continue;
                    }
                    let path = path.to_path_buf();
                    return Err(LockError::Read { path });
                }
                let holder = read_holder(&mut file);
                let timeout = match &holder {
                    None => PROBE,
                    Some(holder) if holder.is_dead() => DEAD_TIMEOUT,
                    Some(_) => Duration::ZERO,
                };
                if since.elapsed() < timeout {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
                return Err(LockError::Busy {
                    path: path.to_path_buf(),
                    holder,
                });
            }
            Err(e @ (Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK | Errno::INVAL)) => {
                return Err(LockError::Unsupported {
                    path: path.to_path_buf(),
                    source: e.into(),
                });
            }
            Err(e) => {
                return Err(LockError::Io {
                    path: path.to_path_buf(),
                    source: e.into(),
                });
            }
        }
    }
}

/// The folder of locks: it is no link either.
const LOCKS: &str = "locks";

/// Opens a lock, made where there is none. It follows no link: the folder's owner may have put one there to another user's file.
fn open(path: &Path) -> io::Result<File> {
    let make = OFlags::CREATE | OFlags::RDWR;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let opened = || {
        if let Some(folder) = folder {
            std::fs::create_dir_all(folder)?;
        }
        open_in_place(path, make)
    };
    // `tarn plan` removes an empty state folder that was not there when it began: it may be the one that was just made here.
    for _ in 1..MAX_OPENS {
        match opened() {
            // The second of a folder that goes while it is found to be there.
            Err(e) if matches!(e.kind(), NotFound | AlreadyExists) => {}
            opened => return opened,
        }
    }
    opened()
}

fn open_in_place(path: &Path, flags: OFlags) -> io::Result<File> {
    let plain = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    let file = match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) if folder.file_name().is_some_and(|own| own == LOCKS) => {
            let no_link = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let folder = rustix::fs::open(folder, no_link, Mode::empty())?;
            rustix::fs::openat(folder, name, flags | plain, mode)?
        }
        _ => rustix::fs::open(path, flags | plain, mode)?,
    };
    let file = File::from(file);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no plain file")),
    }
}

/// Whether the holders of a lock have shares of it.
fn is_shared(file: &File) -> bool {
    // A lock that is taken here is released at once.
    let shared = rustix::fs::flock(file, FlockOperation::NonBlockingLockShared).is_ok();
    if shared {
        let _ = rustix::fs::flock(file, FlockOperation::Unlock);
    }
    shared
}

fn read_holder(file: &mut (impl Read + Seek)) -> Option<Holder> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(MAX_LOCK_BYTES).read_to_string(&mut text).ok()?;
    text.parse().ok()
}

fn write_holder(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    writeln!(file, "{}", Holder::this()?.line())
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
        let (pid, this) = (std::process::id(), Holder::this().unwrap());
        assert!(
            matches!(RunLock::take(&path), Err(LockError::Busy { holder: Some(h), .. }) if h == this)
        );
        assert_eq!(RunLock::holder(&path).unwrap(), Some(Some(this)));
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
    fn shares_keep_the_lock_from_others_and_name_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.lock");
        let shares = [
            RunLock::share(&path).unwrap(),
            RunLock::share(&path).unwrap(),
        ];
        // `tarn cancel` finds nobody to stop.
        assert_eq!(RunLock::holder(&path).unwrap(), None);
        for share in shares {
            let refused = RunLock::take(&path);
            assert!(matches!(refused, Err(LockError::Read { .. })));
            drop(share);
        }
        let taken = RunLock::take(&path).unwrap();
        let refused = RunLock::share(&path);
        assert!(matches!(
            refused,
            Err(LockError::Busy {
                holder: Some(_),
                ..
            })
        ));
        drop(taken);
    }

    #[test]
    fn a_folder_that_somebody_removes_while_it_is_empty_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let path = state.join("locks/w.lock");
        // Each try that fails had a folder removed within it: with fewer removals than tries each lock is taken, however the threads are scheduled.
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let removed = std::sync::atomic::AtomicU32::new(0);
        let limit = std::sync::atomic::AtomicU32::new(0);
        let order = std::sync::atomic::Ordering::SeqCst;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(order) {
                    for folder in [&state.join("locks"), &state] {
                        if removed.load(order) < limit.load(order)
                            && std::fs::remove_dir(folder).is_ok()
                        {
                            removed.fetch_add(1, order);
                        }
                    }
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
            });
            let mut refused = Vec::new();
            for _ in 0..5000 {
                limit.store(removed.load(order) + MAX_OPENS - 1, order);
                match RunLock::take(&path) {
                    Ok(lock) => {
                        let _ = std::fs::remove_file(lock.path());
                    }
                    Err(e) => refused.push(e.to_string()),
                }
            }
            is_over.store(true, order);
            assert!(refused.is_empty(), "{}: {:?}", refused.len(), refused[0]);
            assert!(removed.load(order) > 0);
        });
    }

    #[test]
    fn whether_it_could_be_taken_is_found_out_without_a_trace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks/w.lock");
        RunLock::could_take(&path).unwrap();
        assert!(!dir.path().join("locks").exists());
        let held = RunLock::take(&path).unwrap();
        let this = Holder::this().unwrap();
        assert!(
            matches!(RunLock::could_take(&path), Err(LockError::Busy { holder: Some(h), .. }) if h == this)
        );
        drop(held);
        let share = RunLock::share(&path).unwrap();
        assert!(matches!(
            RunLock::could_take(&path),
            Err(LockError::Read { .. })
        ));
        drop(share);
        RunLock::could_take(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn a_link_in_a_locks_place_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        std::fs::create_dir(&precious).unwrap();
        std::fs::write(precious.join("f"), "precious").unwrap();
        let link = |to: &str, at: &str| {
            std::os::unix::fs::symlink(precious.join(to), dir.path().join(at)).unwrap();
        };
        link("f", "a.lock");
        link("new", "b.lock");
        link(".", "locks");
        for lock in ["a.lock", "b.lock", "locks/c.lock"] {
            let path = dir.path().join(lock);
            assert!(
                matches!(RunLock::take(&path), Err(LockError::Io { .. })),
                "{lock}"
            );
        }
        assert!(RunLock::holder(&dir.path().join("a.lock")).is_err());
        assert_eq!(
            std::fs::read_to_string(precious.join("f")).unwrap(),
            "precious"
        );
        assert_eq!(std::fs::read_dir(&precious).unwrap().count(), 1);
    }

    #[test]
    fn what_a_dead_holder_started_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.lock");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let holder = Holder::of(child.id()).unwrap();
        // It has ended, its status collected or not.
        while !holder.is_dead() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::write(&path, holder.line()).unwrap();
        let file = open(&path).unwrap();
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        let inherited = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(file);
        });
        let since = Instant::now();
        RunLock::take(&path).unwrap();
        assert!(since.elapsed() >= Duration::from_millis(90));
        inherited.join().unwrap();
        child.wait().unwrap();
        assert!(holder.is_dead() && !Holder::this().unwrap().is_dead());
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
