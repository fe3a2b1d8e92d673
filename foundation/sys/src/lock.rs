//! Locks of open folders, which a process that changes their names holds for a moment; and of bytes of a file, which an open file
//! holds.

use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ops::Range;
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
    pub fn wait(file: F, timeout: Duration) -> Result<Self, Errno> {
        let until = Instant::now() + timeout;
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

/// The lock of an open file on some of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeLockMode {
    /// Nothing.
    Nothing,
    /// Others may hold them so too.
    Shared,
    /// Nobody else holds them. The file is open to be written.
    Alone,
}

fn record(bytes: &Range<u64>, what: RangeLockMode) -> Result<libc::flock, Errno> {
    let number = |n: u64| libc::off_t::try_from(n).map_err(|_| Errno::INVAL);
    // SAFETY: a structure of numbers, for which all zeros are values. The process's must be 0.
    let mut record: libc::flock = unsafe { std::mem::zeroed() };
    record.l_type = match what {
        RangeLockMode::Nothing => libc::F_UNLCK,
        RangeLockMode::Shared => libc::F_RDLCK,
        RangeLockMode::Alone => libc::F_WRLCK,
    } as libc::c_short;
    record.l_whence = libc::SEEK_SET as libc::c_short;
    record.l_start = number(bytes.start)?;
    record.l_len = number(bytes.end.saturating_sub(bytes.start))?;
    Ok(record)
}

fn call(file: impl AsFd, command: libc::c_int, record: &mut libc::flock) -> Result<(), Errno> {
    loop {
        // SAFETY: the descriptor is open, and the kernel may write to the record for as long as the call takes.
        match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw mut *record) } {
            -1 => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                Some(Errno::INTR) => {}
                Some(e) => return Err(e),
                None => return Err(Errno::IO),
            },
            _ => return Ok(()),
        }
    }
}

/// Changes the lock of an open file on some bytes, at once or not at all; false where another open file holds some of them
/// otherwise. No bytes are all from there on. It goes with the open file: when all descriptors of it, in any process, are closed.
///
/// # Errors
/// `EBADF` when it is not open for that, and the other errors of fcntl(2).
pub fn hold(file: impl AsFd, bytes: &Range<u64>, what: RangeLockMode) -> Result<bool, Errno> {
    match call(file, libc::F_OFD_SETLK, &mut record(bytes, what)?) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Holds bytes alone, and waits for at most `timeout`; false where somebody else has held them for all that time.
///
/// # Errors
/// As [`hold`].
pub fn hold_alone(file: impl AsFd, bytes: &Range<u64>, timeout: Duration) -> Result<bool, Errno> {
    let until = Instant::now() + timeout;
    while !hold(&file, bytes, RangeLockMode::Alone)? {
        if Instant::now() >= until {
            return Ok(false);
        }
        std::thread::sleep(BETWEEN);
    }
    Ok(true)
}

/// Any of the bytes that another open file holds, however; the kernel reports one such lock, not the first.
///
/// # Errors
/// The error of fcntl(2).
pub fn held(file: impl AsFd, bytes: &Range<u64>) -> Result<Option<Range<u64>>, Errno> {
    let mut found = record(bytes, RangeLockMode::Alone)?;
    call(file, libc::F_OFD_GETLK, &mut found)?;
    if i32::from(found.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let start = found.l_start.cast_unsigned();
    let end = match found.l_len.cast_unsigned() {
        0 => u64::MAX,
        length => start.saturating_add(length),
    };
    Ok(Some(start..end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn an_open_file_holds_bytes_until_it_is_closed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let again = || File::options().read(true).write(true).open(file.path());
        let (one, other) = (again().unwrap(), again().unwrap());
        let (seven, eight) = (&(7..8), &(8..9));
        assert_eq!(hold(&one, seven, RangeLockMode::Shared), Ok(true));
        assert_eq!(hold(&other, seven, RangeLockMode::Shared), Ok(true));
        assert_eq!(hold(&one, seven, RangeLockMode::Alone), Ok(false));
        assert_eq!(hold(&one, eight, RangeLockMode::Alone), Ok(true));
        assert_eq!(held(&other, &(8..100)), Ok(Some(8..9)));
        assert_eq!(held(&one, eight), Ok(None));
        assert_eq!(hold(&other, seven, RangeLockMode::Nothing), Ok(true));
        assert_eq!(hold(&one, seven, RangeLockMode::Alone), Ok(true));
        assert_eq!(hold(&other, seven, RangeLockMode::Shared), Ok(false));
        assert_eq!(hold_alone(&other, seven, Duration::ZERO), Ok(false));
        drop(one);
        assert_eq!(hold_alone(&other, seven, Duration::from_secs(9)), Ok(true));
        let reader = File::open(file.path()).unwrap();
        assert_eq!(
            hold(&reader, &(9..10), RangeLockMode::Alone),
            Err(Errno::BADF)
        );
    }
}
