//! Descriptors: whether one can be read, and how an open folder is named.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

/// Whether reading would not block (there is something, or the end).
pub(crate) fn readable(fd: impl AsFd) -> io::Result<bool> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let n = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now))?;
    Ok(n > 0)
}

/// The path by which this process reaches an open folder.
pub(crate) fn reached(folder: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}
