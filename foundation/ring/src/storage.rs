//! The storage that does requests.

use crate::memory::MemorySpan;
use std::os::fd::BorrowedFd;

/// A request under way, as its sender numbers it.
pub type Ticket = u32;

/// Why a request was not done. C programs get these texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StorageRequestError {
    /// It makes no sense: a region that there is not, bytes outside, a wrong right.
    #[error("the request is not valid")]
    Invalid,
    /// Somebody else holds the lock.
    #[error("another program holds the lock")]
    Busy,
    /// It was opened to be read only.
    #[error("it was opened to be read only")]
    Denied,
    /// The request before it in its chain has failed.
    #[error("a request that this one is linked to has failed")]
    Cancelled,
    /// The medium keeps nothing without power.
    #[error("the medium is memory, which does not outlive a loss of power")]
    Volatile,
    /// The stored content is not there any more.
    #[error("the partition is broken")]
    Corrupt,
    /// The medium cannot.
    #[error("an input or output error")]
    Io,
    /// The other node does not answer.
    #[error("the other node is lost")]
    Lost,
}

impl StorageRequestError {
    /// The one of a number; an unknown number is an error of the medium.
    pub fn of_code(code: i32) -> Self {
        let all = [
            Self::Invalid,
            Self::Busy,
            Self::Denied,
            Self::Cancelled,
            Self::Volatile,
            Self::Corrupt,
            Self::Lost,
        ];
        let found = all.into_iter().find(|failure| failure.code() == code);
        found.unwrap_or(Self::Io)
    }

    /// Its number in C: one of `enum tarn_code`.
    #[inline]
    pub fn code(self) -> i32 {
        match self {
            Self::Invalid => 1,
            Self::Busy => 2,
            Self::Denied => 4,
            Self::Corrupt => 9,
            Self::Io => 10,
            Self::Cancelled => 11,
            Self::Lost => 14,
            Self::Volatile => 18,
        }
    }
}

/// The result of beginning a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitOutcome {
    /// It is done, but for [`Storage::settle`]: the old number of an atomic operation, or bytes.
    Done(Result<u64, StorageRequestError>),
    /// [`Storage::reap`] tells its end.
    Pending,
}

/// Storage memory that is used by one request after the other, from bytes that are this program's: for other nodes. Offsets and lengths may
/// be anything.
pub trait Target {
    /// Bytes of it now.
    fn size(&mut self) -> u64;

    /// Copies bytes out.
    ///
    /// # Errors
    /// `Invalid` for bytes that it does not have, and other errors.
    fn read(&mut self, at: u64, to: &mut [u8]) -> Result<(), StorageRequestError>;

    /// Copies bytes in: they are visible, or `persistent`.
    ///
    /// # Errors
    /// As [`Target::read`].
    fn write(&mut self, at: u64, from: &[u8], persistent: bool) -> Result<(), StorageRequestError>;

    /// Adds to 8 aligned bytes; returns the old number.
    ///
    /// # Errors
    /// As [`Target::read`].
    fn fetch_add(&mut self, at: u64, add: u64) -> Result<u64, StorageRequestError>;

    /// Replaces 8 aligned bytes if they are `expected`; returns the old number.
    ///
    /// # Errors
    /// As [`Target::read`].
    fn compare_swap(
        &mut self,
        at: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, StorageRequestError>;

    /// Holds its lock, shared or `alone`, or gives it back.
    ///
    /// # Errors
    /// `Busy` when somebody else holds it otherwise, `Denied` to hold alone a target that may not be written.
    fn hold(&mut self, alone: Option<bool>) -> Result<(), StorageRequestError>;

    /// Makes earlier operations persistent.
    ///
    /// # Errors
    /// As [`Target::read`].
    fn flush(&mut self) -> Result<(), StorageRequestError>;

    /// The file that it is, if a program that maps it sees the effect of requests, and the other way round.
    fn file(&self) -> Option<Exposed<'_>> {
        None
    }
}

/// A stretch of a file that is storage memory.
#[derive(Debug, Clone, Copy)]
pub struct Exposed<'a> {
    /// The file.
    pub file: BorrowedFd<'a>,
    /// Its begin, bytes.
    pub from: u64,
    /// Bytes of it.
    pub size: u64,
    /// Whether stores to a mapping become persistent by a flush, as far as the medium can, and are allowed.
    pub writable: bool,
}

/// Storage memory, in the hands of one queue pair; others have the same in theirs. Offsets are bytes from the beginning of a partition, and
/// are within it: the caller has checked.
pub trait Storage {
    /// Bytes of it now. They become no fewer.
    fn size(&mut self) -> u64;

    /// Whether flushed bytes outlive a loss of power.
    fn is_persistent(&self) -> bool;

    /// Copies bytes out.
    fn read(&mut self, at: u64, to: MemorySpan, ticket: Ticket) -> SubmitOutcome;

    /// Copies bytes in; once it is done they are visible, or `persistent`.
    fn write(
        &mut self,
        at: u64,
        from: MemorySpan,
        persistent: bool,
        ticket: Ticket,
    ) -> SubmitOutcome;

    /// Adds to 8 aligned bytes.
    fn fetch_add(&mut self, at: u64, add: u64, ticket: Ticket) -> SubmitOutcome;

    /// Replaces 8 aligned bytes if they are `expected`.
    fn compare_swap(&mut self, at: u64, expected: u64, new: u64, ticket: Ticket) -> SubmitOutcome;

    /// Makes all earlier operations persistent, by any program.
    fn flush(&mut self, ticket: Ticket) -> SubmitOutcome;

    /// Ends a doorbell: every request that was [`SubmitOutcome::Done`] since the last one is visible, and persistent where it was
    /// to be; what is pending is on its way.
    ///
    /// # Errors
    /// Why some of it may not be: all of it counts as failed.
    fn settle(&mut self) -> Result<(), StorageRequestError>;

    /// Reports the ends of requests that were pending.
    fn reap(&mut self, _ended: &mut dyn FnMut(Ticket, Result<u64, StorageRequestError>)) {}

    /// From now on `poll`, an epoll descriptor, is readable whenever [`Storage::reap`] may have more ends: it has the eventfd
    /// `event`, and may be given others. False where it must be called again and again.
    fn notify(&mut self, _event: BorrowedFd<'_>, _poll: BorrowedFd<'_>) -> bool {
        false
    }
}
