//! Locks of open folders, which whoever changes their names holds for a moment; and of a byte of a file, which an open file holds.

use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Between two attempts.
const BETWEEN: Duration = Duration::from_millis(1);

/// Holds the lock of an open file or folder.
#[derive(Debug)]
pub struct Lock<F: AsFd>(F);

impl<F: AsFd> Lock<F> {
    /// Waits for it, for so long.
    ///
    /// # Errors
    /// `EWOULDBLOCK` when somebody else has had it for all that time.
    pub fn wait(file: F, patience: Duration) -> Result<Self, Errno> {
        let until = Instant::now() + patience;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                    std::thread::sleep(BETWEEN);
                }
                Err(e) => return Err(e),
            }
        }
    }
}

impl<F: AsFd> Drop for Lock<F> {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// What an open file holds of a byte of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Nothing.
    Nothing,
    /// Others may hold it so too.
    Shared,
    /// Nobody else holds it. The file is open to be written.
    Alone,
}

/// Changes what an open file holds of a byte, at once or not at all. It goes with the open file: when all descriptors of it, in whatever
/// process, are closed.
///
/// # Errors
/// `EWOULDBLOCK` when another open file holds it otherwise; `EBADF` when it is not open for that.
pub fn hold(file: impl AsFd, byte: u64, what: Hold) -> Result<(), Errno> {
    // SAFETY: a structure of numbers, for which all zeros are values.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = match what {
        Hold::Nothing => libc::F_UNLCK,
        Hold::Shared => libc::F_RDLCK,
        Hold::Alone => libc::F_WRLCK,
    } as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = libc::off_t::try_from(byte).map_err(|_| Errno::INVAL)?;
    lock.l_len = 1;
    loop {
        // SAFETY: the descriptor is open, and the structure is read only.
        match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
            0 => return Ok(()),
            _ => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                Some(Errno::INTR) => {}
                Some(Errno::ACCESS) => return Err(Errno::WOULDBLOCK),
                Some(e) => return Err(e),
                None => return Err(Errno::IO),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn an_open_file_holds_a_byte_until_it_is_closed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let again = || File::options().read(true).write(true).open(file.path());
        let (one, other) = (again().unwrap(), again().unwrap());
        hold(&one, 7, Hold::Shared).unwrap();
        hold(&other, 7, Hold::Shared).unwrap();
        assert_eq!(hold(&one, 7, Hold::Alone), Err(Errno::WOULDBLOCK));
        hold(&one, 8, Hold::Alone).unwrap();
        hold(&other, 7, Hold::Nothing).unwrap();
        hold(&one, 7, Hold::Alone).unwrap();
        assert_eq!(hold(&other, 7, Hold::Shared), Err(Errno::WOULDBLOCK));
        drop(one);
        hold(&other, 7, Hold::Alone).unwrap();
        let reader = File::open(file.path()).unwrap();
        assert_eq!(hold(&reader, 9, Hold::Alone), Err(Errno::BADF));
    }
}
