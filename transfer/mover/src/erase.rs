//! How files are removed: their names alone, or their content before, where whoever has a folder above wants that.

use crate::extents;
use crate::meta::FileStatus;
use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, chmodat, fdatasync, fstat, openat, statat, unlinkat,
};
use rustix::io::{Errno, pwrite};
use std::path::{Path, PathBuf};
use tarn_types::layout::ERASE;

/// Bytes that are overwritten at once.
const ZEROS: usize = 1 << 20;

/// A path of an open file.
pub(crate) fn of_descriptor(open: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", open.as_fd().as_raw_fd()))
}

/// How files go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemovalMethod {
    /// Their names.
    Unlink,
    /// Their content before.
    Erase,
}

/// As whoever has a folder above wants it.
pub(crate) fn way_of(path: &Path) -> RemovalMethod {
    let marked = |folder: &Path| {
        let mark = statat(CWD, folder.join(ERASE), AtFlags::SYMLINK_NOFOLLOW);
        mark.is_ok_and(|mark| FileStatus::from(mark).kind == FileType::RegularFile)
    };
    // A caller that has a folder open may name it by its descriptor.
    let real = path.canonicalize();
    let real = real.as_deref().unwrap_or(path);
    match real.ancestors().any(marked) {
        true => RemovalMethod::Erase,
        false => RemovalMethod::Unlink,
    }
}

impl RemovalMethod {
    pub(crate) fn remove<P: rustix::path::Arg + Copy>(
        self,
        at: impl AsFd,
        name: P,
        status: &FileStatus,
    ) -> Result<(), Errno> {
        if self == Self::Erase && status.kind == FileType::RegularFile {
            match erase(&at, name) {
                // A file that cannot be overwritten would stay for ever else: a full medium that copies the written bytes, a
                // program that runs, another user's file.
                Err(Errno::NOSPC | Errno::DQUOT | Errno::TXTBSY | Errno::PERM) => {}
                outcome => outcome?,
            }
        }
        unlinkat(at, name, AtFlags::empty())
    }
}

/// Overwrites what a file has, on its medium, unless it has another name still.
fn erase<P: rustix::path::Arg + Copy>(at: impl AsFd, name: P) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || openat(&at, name, flags, Mode::empty());
    let file = match open() {
        Err(Errno::ACCESS) => {
            // Of the file that is there now, even if another takes its place meanwhile.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let it = openat(&at, name, flags, Mode::empty())?;
            let mode = Mode::RUSR | Mode::WUSR;
            chmodat(CWD, of_descriptor(&it), mode, AtFlags::empty())?;
            open()?
        }
        opened => opened?,
    };
    let status = FileStatus::from(fstat(&file)?);
    if status.kind != FileType::RegularFile || status.links > 1 {
        return Ok(());
    }
    let extents = extents::of(&file, &status)?;
    let zeros = vec![0; ZEROS.min(status.size as usize)];
    for (is_data, mut at, length) in extents::pieces(&extents, 0, status.size) {
        let end = at + length;
        while is_data && at < end {
            let n = zeros.len().min((end - at) as usize);
            match pwrite(&file, &zeros[..n], at) {
                Ok(n) => at += n as u64,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    fdatasync(&file)
}
