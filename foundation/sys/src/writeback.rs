//! Starting the write-back of file data early, so that a later sync finds little to do.

use rustix::fd::{AsFd, AsRawFd};
use std::io;

/// Asks the kernel to begin writing the dirty pages of a range to the device. Does not wait, and promises nothing:
/// a sync must follow.
///
/// # Errors
/// When the descriptor is not one of a regular file.
pub fn start(file: impl AsFd, offset: u64, length: u64) -> io::Result<()> {
    let range = (i64::try_from(offset), i64::try_from(length));
    let (Ok(offset), Ok(length)) = range else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // SAFETY: takes numbers only; the descriptor is borrowed for the length of the call.
    let rc = unsafe {
        libc::sync_file_range(
            file.as_fd().as_raw_fd(),
            offset,
            length,
            libc::SYNC_FILE_RANGE_WRITE,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
