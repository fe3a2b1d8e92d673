//! What requests are done by.

use crate::memory::Span;
use std::os::fd::BorrowedFd;

/// A request under way, as who has begun it numbers it.
pub type Ticket = u32;

/// Why a request was not done. The texts are what C programs are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It makes no sense: a region that there is not, bytes outside, a wrong right.
    #[error("the request is not valid")]
    Invalid,
    /// The request before it in its chain has failed.
    #[error("a request that this one is linked to has failed")]
    Cancelled,
    /// The medium keeps nothing without power.
    #[error("the medium is memory, which does not outlive a loss of power")]
    Volatile,
    /// What was stored is not there any more.
    #[error("the partition is broken")]
    Corrupt,
    /// The medium cannot.
    #[error("an input or output error")]
    Io,
    /// The other node does not answer.
    #[error("the other node is lost")]
    Lost,
}

impl Failure {
    /// Its number in C: one of `enum tarn_code`.
    pub fn code(self) -> i32 {
        match self {
            Self::Invalid => 1,
            Self::Corrupt => 9,
            Self::Io => 10,
            Self::Cancelled => 11,
            Self::Lost => 14,
            Self::Volatile => 18,
        }
    }
}

/// What became of a request that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// It is done, but for [`Storage::settle`]: what an atomic operation has found, or bytes.
    Done(Result<u64, Failure>),
    /// [`Storage::reap`] tells its end.
    Pending,
}

/// Storage memory, in the hands of one queue pair; others have the same in theirs. Offsets are bytes from the beginning of a partition, and
/// lie within it: who calls has looked.
pub trait Storage {
    /// Bytes of it now. They become no fewer.
    fn size(&mut self) -> u64;

    /// Whether what is flushed outlives a loss of power.
    fn is_persistent(&self) -> bool;

    /// Copies bytes out.
    fn read(&mut self, at: u64, to: Span, ticket: Ticket) -> Started;

    /// Copies bytes in; once it is done they are visible, or `persistent`.
    fn write(&mut self, at: u64, from: Span, persistent: bool, ticket: Ticket) -> Started;

    /// Adds to 8 aligned bytes.
    fn fetch_add(&mut self, at: u64, add: u64, ticket: Ticket) -> Started;

    /// Replaces 8 aligned bytes if they are what is expected.
    fn compare_swap(&mut self, at: u64, expected: u64, new: u64, ticket: Ticket) -> Started;

    /// Makes persistent what was done before, by whomever.
    fn flush(&mut self, ticket: Ticket) -> Started;

    /// Ends a doorbell: what was [`Started::Done`] since the last one is visible, and persistent where it was to be; what is pending is on
    /// its way.
    ///
    /// # Errors
    /// Why some of it may not be: all of it counts as failed.
    fn settle(&mut self) -> Result<(), Failure>;

    /// Tells the ends of requests that were pending.
    fn reap(&mut self, _ended: &mut dyn FnMut(Ticket, Result<u64, Failure>)) {}

    /// From now on an eventfd is told whenever [`Storage::reap`] may have more to tell; false where it is to be asked again and again.
    fn notify(&mut self, _event: BorrowedFd<'_>) -> bool {
        false
    }
}
