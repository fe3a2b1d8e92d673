//! The usage of a space, by user.

use super::place::task_of;
use super::{LiveLeftovers, UsageByUser};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tarn_mover::Trees;
use tarn_ports::Mover;
use tarn_proto::local::{Code, RequestError};
use tarn_tasks::HIDDEN;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Folders within folders; deeper ones are not looked into.
const MAX_DEPTH: usize = 256;

struct Survey<'a> {
    used: UsageByUser,
    /// Files with several names that were counted.
    seen: HashSet<(u64, u64)>,
    kept: Option<&'a LiveLeftovers>,
    mover: &'a Trees,
}

/// Bytes of the blocks of every user's files below `root`, without half-done work of tasks. With `kept`, half-done work of tasks of
/// earlier tarnds is removed, unless they resume.
pub(super) fn survey(
    mover: &Trees,
    root: &Path,
    kept: Option<&LiveLeftovers>,
) -> Result<UsageByUser, RequestError> {
    let mut survey = Survey {
        used: UsageByUser::new(),
        seen: HashSet::new(),
        kept,
        mover,
    };
    let outcome =
        openat(CWD, root, FOLDER, Mode::empty()).and_then(|fd| survey.folder(fd, root, MAX_DEPTH));
    outcome.map_err(|e| {
        let text = format!(
            "the dataspace's folder {} cannot be read: {e}",
            root.display()
        );
        RequestError::new(Code::Io, text)
    })?;
    Ok(survey.used)
}

impl Survey<'_> {
    fn folder(&mut self, fd: OwnedFd, path: &Path, depth: usize) -> Result<(), Errno> {
        if depth == 0 {
            return Ok(());
        }
        for entry in Dir::read_from(&fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            if let Some(rest) = name.strip_prefix(HIDDEN) {
                self.leftover(&path.join(OsStr::from_bytes(name)), rest);
                continue;
            }
            let stat = match statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                // Programs work there meanwhile.
                Err(Errno::NOENT) => continue,
                other => other?,
            };
            if stat.st_nlink > 1
                && FileType::from_raw_mode(stat.st_mode) != FileType::Directory
                && !self.seen.insert((stat.st_dev, stat.st_ino))
            {
                continue;
            }
            let bytes = u64::try_from(stat.st_blocks)
                .unwrap_or(0)
                .saturating_mul(512);
            *self.used.entry(stat.st_uid).or_default() += bytes;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                match openat(&fd, name, FOLDER, Mode::empty()) {
                    Ok(inner) => {
                        self.folder(inner, &path.join(OsStr::from_bytes(name)), depth - 1)?;
                    }
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }

    /// Something of a task that is not (any more) under way.
    fn leftover(&self, path: &Path, rest: &[u8]) {
        let Some(kept) = self.kept else {
            return;
        };
        let Some(id) = task_of(rest) else {
            return;
        };
        if id < kept.own && !kept.live.contains(&id) {
            match self.mover.remove(path) {
                Ok(()) => tracing::info!(task = id, "removed {}", path.display()),
                Err(e) => tracing::warn!(task = id, "a leftover stays: {e}"),
            }
        }
    }
}
