//! The memory of jobs that have encrypted data, where that is in clear: a tmpfs a job, which nobody reaches by a path, with a folder for
//! each user whose data is there. docs/internals/site.md, "Encryption between jobs".

use rustix::fd::OwnedFd;
use rustix::fs::{Gid as Group, Mode, OFlags, Uid as User, chmod, chown, mkdir, open};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Gid, SlurmJobId, Uid};
use tarn_sys::namespace::{mount_memory, unmount};

/// A process that has this folder open reaches jobs' memory; the one above it is root's alone.
const ALL: &str = "all";
/// Of folders that users pass through: they cannot be listed.
const PASSED: u32 = 0o711;

/// Memory of a job that no path leads to any more. It is free when nobody has it open.
pub(super) struct Rest {
    job: SlurmJobId,
    folder: OwnedFd,
}

fn not_removed(job: SlurmJobId, why: &dyn std::fmt::Display) -> RequestError {
    let text = format!("the unencrypted data of job {job} cannot be removed: {why}");
    RequestError::new(Code::Io, text)
}

impl Rest {
    /// Removes all that is in it: a process that still has it open sees nothing any more.
    pub(super) fn clear(self) -> Result<(), RequestError> {
        tarn_mover::clear(&self.folder).map_err(|e| not_removed(self.job, &e))
    }
}

/// The memory of all jobs of a node.
pub(super) struct JobMemory {
    all: PathBuf,
    /// One makes or removes at a time.
    busy: Mutex<()>,
}

fn is_there(made: Result<(), Errno>) -> std::io::Result<bool> {
    match made {
        Ok(()) => Ok(false),
        Err(Errno::EXIST) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

fn device(path: &Path) -> std::io::Result<u64> {
    let about = std::fs::symlink_metadata(path)?;
    Ok(std::os::unix::fs::MetadataExt::dev(&about))
}

impl JobMemory {
    /// Makes its folder below tarnd's, closed to everybody else.
    pub(super) fn new(run: &Path) -> std::io::Result<Self> {
        let closed = run.join("clear");
        is_there(mkdir(&closed, Mode::from_raw_mode(0o700)))?;
        let about = std::fs::symlink_metadata(&closed)?;
        let owner = std::os::unix::fs::MetadataExt::uid(&about);
        if !about.is_dir() || owner != 0 {
            let text = format!("{} is no folder of root's", closed.display());
            return Err(std::io::Error::other(text));
        }
        chmod(&closed, Mode::from_raw_mode(0o700))?;
        let all = closed.join(ALL);
        is_there(mkdir(&all, Mode::from_raw_mode(PASSED)))?;
        chmod(&all, Mode::from_raw_mode(PASSED))?;
        Ok(Self {
            all,
            busy: Mutex::default(),
        })
    }

    /// The current folder of workers.
    pub(super) fn all(&self) -> &Path {
        &self.all
    }

    /// A job's.
    pub(super) fn of(&self, job: SlurmJobId) -> PathBuf {
        self.all.join(job.to_string())
    }

    /// Sees to it that a job has memory of so many bytes at most, and a user a folder in it.
    pub(super) fn ensure(
        &self,
        job: SlurmJobId,
        bytes: u64,
        (user, group): (Uid, Gid),
    ) -> Result<(), RequestError> {
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |e: std::io::Error| {
            let text = format!("no memory for the unencrypted data of job {job}: {e}");
            RequestError::new(Code::Internal, text)
        };
        let place = self.of(job);
        is_there(mkdir(&place, Mode::from_raw_mode(0o700))).map_err(failed)?;
        let is_mounted = device(&place).map_err(failed)? != device(&self.all).map_err(failed)?;
        if !is_mounted {
            let free = tarn_sys::memory::memory().map_err(failed)?.free;
            if free < bytes {
                let _ = std::fs::remove_dir(&place);
                let text = format!(
                    "the encrypted data of job {job} takes {bytes} bytes of memory unencrypted, and {free} are free: give it more nodes, or nodes with more memory"
                );
                return Err(RequestError::new(Code::NoSpace, text));
            }
            mount_memory(&place, bytes).map_err(failed)?;
            chmod(&place, Mode::from_raw_mode(PASSED)).map_err(|e| failed(e.into()))?;
        }
        let own = place.join(format!("u{user}"));
        if !is_there(mkdir(&own, Mode::from_raw_mode(0o700))).map_err(failed)? {
            let (user, group) = (User::from_raw(user), Group::from_raw(group));
            chown(&own, Some(user), Some(group)).map_err(|e| failed(e.into()))?;
        }
        Ok(())
    }

    /// Takes a job's memory, if it has any, out of everybody's sight but that of processes that have it open. Its content is still
    /// to be [cleared](Rest::clear): there may be more than anybody wants to wait for.
    pub(super) fn remove(&self, job: SlurmJobId) -> Result<Option<Rest>, RequestError> {
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let place = self.of(job);
        let removed = || -> std::io::Result<Option<Rest>> {
            let mut rest = None;
            if device(&place)? != device(&self.all)? {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let folder = open(&place, flags, Mode::empty())?;
                unmount(&place)?;
                rest = Some(Rest { job, folder });
            }
            std::fs::remove_dir(&place)?;
            Ok(rest)
        };
        match removed() {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(not_removed(job, &e)),
            rest => Ok(rest.unwrap_or(None)),
        }
    }

    /// The jobs that have some.
    pub(super) fn jobs(&self) -> Vec<SlurmJobId> {
        let entries = std::fs::read_dir(&self.all);
        let names = entries.into_iter().flatten().flatten();
        names
            .filter_map(|e| e.file_name().to_str()?.parse().ok())
            .collect()
    }
}
