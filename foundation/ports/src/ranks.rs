//! The ranks of one program, as one of them sees them: how they meet, agree, and keep copies for each other.

use crate::medium::MediumError;
use crate::one_sided::KeepAliveGuard;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a word that all ranks get.
pub const MAX_WORD: usize = 16 << 20;

/// Why ranks did not come together.
#[derive(Debug, thiserror::Error)]
pub enum RanksError {
    /// Some did not come.
    #[error(
        "{who} did not {doing} within {seconds} s: is it alive, and does it make the same calls?"
    )]
    TimedOut {
        /// Which ranks, as a text: `rank 3`.
        who: String,
        /// The operation that the ranks did not do in time.
        doing: &'static str,
        /// The time that the others waited.
        seconds: u64,
    },
    /// A rank is gone.
    #[error("{who} is gone: {why}")]
    Lost {
        /// The rank.
        who: String,
        /// The sign of it.
        why: String,
    },
    /// Another program has the name.
    #[error(
        "another program with this name is running ({who}): give this one another name, or end that one"
    )]
    Taken {
        /// The other program.
        who: String,
    },
    /// A rank refused a request.
    #[error("{who} refused: {why}")]
    Refused {
        /// The rank.
        who: String,
        /// Its reason.
        why: String,
    },
    /// The input makes no sense.
    #[error("{0}")]
    Invalid(String),
}

/// Why a rank does not do another one's request. The other rank gets the text.
#[derive(Debug, thiserror::Error)]
pub enum RankServiceError {
    /// A medium of its node fails.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// The operating system, or a transport between nodes, fails.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The request does not fit what this rank has.
    #[error("{0}")]
    Unserved(&'static str),
}

/// How far a rank is: counts that only grow, and those of the last versions that it lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankProgress {
    /// The number of the newest version of this generation that it has tried to commit.
    pub committed: u64,
    /// The number of the newest that is stored on its persistent tier.
    pub durable: u64,
    /// The number of the newest of which other nodes have all that this rank sees to.
    pub replicated: u64,
    /// Bit n % 64 is set if it could not commit version n, of the last 64.
    pub missed: u64,
    /// Bit k % 64 is set if it could not see to it that other nodes have the k-th of those that they are to have.
    pub bare: u64,
}

impl RankProgress {
    /// The state of both together: the least of the counts, and the versions that either lacks.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            committed: self.committed.min(other.committed),
            durable: self.durable.min(other.durable),
            replicated: self.replicated.min(other.replicated),
            missed: self.missed | other.missed,
            bare: self.bare | other.bare,
        }
    }

    /// The counts, each of which only grows: committed, durable, replicated.
    pub fn counts(self) -> [u64; 3] {
        [self.committed, self.durable, self.replicated]
    }

    /// Whether it lacks that version, one of the last 64.
    pub fn lacks(self, number: u64) -> bool {
        self.missed & (1 << (number % 64)) != 0
    }
}

/// Bytes that a rank has given to ranks of other nodes and got from them, by how they went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carried {
    /// Given, written by [`OneSided`](crate::OneSided).
    pub put: u64,
    /// Given, by streams.
    pub put_by_stream: u64,
    /// Got, read by [`OneSided`](crate::OneSided).
    pub fetched: u64,
    /// Got, by streams.
    pub fetched_by_stream: u64,
}

/// Opens a window: onto a file, of so many bytes.
pub type OpenWindow<'a> =
    dyn FnMut(BorrowedFd<'_>, u64) -> Result<KeepAliveGuard, RankServiceError> + 'a;

/// The services of a rank for other ranks. Called on threads of the adapter's own, several at a time.
pub trait RankService: Send + Sync {
    /// Takes memory of so many bytes for a rank's staged part. Memory that the rank got before, in this or an earlier generation,
    /// is taken away from it first: a late writer writes to memory that nobody reads. Returns the name of the memory, for ranks
    /// of the same node.
    ///
    /// # Errors
    /// When it cannot.
    fn grant(&self, of: u32, generation: u64, bytes: u64) -> Result<String, RankServiceError>;

    /// Keeps bytes of a rank's staged part, and returns the checksum (CRC-64/NVME) of the kept bytes.
    ///
    /// # Errors
    /// When nothing was granted for this generation, or less.
    fn put(&self, of: u32, generation: u64, at: u64, bytes: &[u8])
    -> Result<u64, RankServiceError>;

    /// Has a window opened onto the memory that was granted to a rank, to be written by it alone, and keeps that until the memory is taken
    /// away, or until the rank's bytes come by [`RankService::put`]: then the window is closed first, so that nothing lands late.
    ///
    /// # Errors
    /// When there is none.
    fn window(
        &self,
        of: u32,
        generation: u64,
        open: &mut OpenWindow<'_>,
    ) -> Result<(), RankServiceError> {
        let _ = (of, generation, open);
        Err(RankServiceError::Unserved("it has no windows"))
    }

    /// The checksum of bytes that are in the memory that was granted to a rank, once it reports that it has written them by its
    /// window.
    ///
    /// # Errors
    /// When no window is open, nothing was granted for this generation, or less.
    fn landed(
        &self,
        of: u32,
        generation: u64,
        at: u64,
        bytes: u64,
    ) -> Result<u64, RankServiceError> {
        let _ = (of, generation, at, bytes);
        Err(RankServiceError::Unserved("it has no windows"))
    }

    /// Opens the file that a medium of this rank's node is: its bytes are sent from there.
    ///
    /// # Errors
    /// When it cannot.
    fn file(&self, medium: &str) -> Result<OwnedFd, RankServiceError>;
}

/// All ranks of a program, in the hands of one. No call waits for ever.
pub trait Ranks: Send + Sync {
    /// Its number.
    fn rank(&self) -> u32;

    /// The number of ranks.
    fn ranks(&self) -> u32;

    /// The node that a rank is on: ranks that fail together have one name.
    fn node(&self, rank: u32) -> &str;

    /// The switches over the node of a rank, from the top down, with dots between them: nodes of one text are one switch away from each
    /// other. Empty where they are not known.
    fn switches(&self, _rank: u32) -> &str {
        ""
    }

    /// From now on others are served.
    fn serve(&self, host: Arc<dyn RankService>);

    /// Tells all ranks a word and returns everybody's, by rank. All ranks call it, in the same order of calls.
    ///
    /// # Errors
    /// When a rank does not come within the time, or is gone.
    fn exchange(&self, word: &[u8], within: Duration) -> Result<Vec<Box<[u8]>>, RanksError>;

    /// Makes known how far this rank is. Does not wait.
    fn report_progress(&self, progress: RankProgress);

    /// How far all ranks are ([`RankProgress::and`]).
    fn common_progress(&self) -> RankProgress;

    /// Waits until all ranks are so far, in all counts.
    ///
    /// # Errors
    /// When they are not within the time, or a rank is gone.
    fn wait(&self, least: RankProgress, within: Duration) -> Result<(), RanksError>;

    /// Asks a rank to take memory for this one's staged part: [`RankService::grant`].
    ///
    /// # Errors
    /// When it refuses or is gone.
    fn grant(
        &self,
        from: u32,
        generation: u64,
        bytes: u64,
        within: Duration,
    ) -> Result<String, RanksError>;

    /// Sends bytes of this rank's staged part to a rank that has granted memory for it: [`RankService::put`], piece by piece. Returns the
    /// checksum of the arrived bytes, as one.
    ///
    /// # Errors
    /// When it refuses or is gone.
    fn put(
        &self,
        to: u32,
        generation: u64,
        at: u64,
        bytes: &[u8],
        within: Duration,
    ) -> Result<u64, RanksError>;

    /// Reads bytes of a medium of a rank's node: [`RankService::file`], piece by piece. While more is on its way `arrived` is given all that is
    /// there so far, from the first byte on; in the end that is all of it.
    ///
    /// # Errors
    /// When it refuses or is gone.
    fn fetch(
        &self,
        from: u32,
        medium: &str,
        at: u64,
        into: &mut [u8],
        within: Duration,
        arrived: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RanksError>;

    /// Bytes that went to other nodes and came from there so far.
    fn carried(&self) -> Carried {
        Carried::default()
    }

    /// Why bytes went by streams although they were to go by [`OneSided`](crate::OneSided); reported once.
    fn detour(&self) -> Option<String> {
        None
    }
}
