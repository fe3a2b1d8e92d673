//! Why a call of the checkpoint library failed.

use crate::arena::ArenaError;
use tarn_ports::{MediumError, RanksError};

/// The kind of an error. The numbers are those of `phx.h` and never change.
///
/// # Examples
/// ```
/// use tarn_checkpoint_core::CheckpointErrorCode;
///
/// assert_eq!(CheckpointErrorCode::NotFound as i32, 4); // PHX_ENOTFOUND
/// let by_number = CheckpointErrorCode::ALL.into_iter().find(|code| *code as i32 == 6);
/// assert_eq!(by_number, Some(CheckpointErrorCode::NoSpace));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointErrorCode {
    /// An argument makes no sense.
    Invalid = 2,
    /// Another thread is in a call, or another program has this name.
    Busy = 3,
    /// There is no such object or version.
    NotFound = 4,
    /// It is there already.
    Exists = 5,
    /// The persistent tier has no space.
    NoSpace = 6,
    /// There is not enough memory.
    NoMem = 7,
    /// No undamaged copy is left.
    Corrupt = 8,
    /// Another input or output error.
    Io = 9,
    /// The time was over before that.
    TimedOut = 10,
    /// Another rank is gone.
    Lost = 11,
    /// This cannot be done here.
    Unsupported = 12,
    /// It is not known how an object divides among another number of ranks.
    Shape = 13,
    /// Nothing has begun.
    Init = 14,
    /// An error inside tarn.
    Internal = 15,
}

impl CheckpointErrorCode {
    /// All of them, by number.
    pub const ALL: [Self; 14] = [
        Self::Invalid,
        Self::Busy,
        Self::NotFound,
        Self::Exists,
        Self::NoSpace,
        Self::NoMem,
        Self::Corrupt,
        Self::Io,
        Self::TimedOut,
        Self::Lost,
        Self::Unsupported,
        Self::Shape,
        Self::Init,
        Self::Internal,
    ];
}

/// An error of checkpoints or of the object store: its kind, and a text with the failure, its cause and its
/// remedy.
///
/// # Examples
/// ```
/// use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode};
///
/// fn restarted(result: Result<u64, CheckpointError>) -> Result<Option<u64>, CheckpointError> {
///     match result {
///         Ok(step) => Ok(Some(step)),
///         Err(why) if why.code == CheckpointErrorCode::NotFound => Ok(None), // a fresh start
///         Err(why) => Err(why),
///     }
/// }
/// let none = CheckpointError::new(CheckpointErrorCode::NotFound, "there is no version 1.7");
/// assert_eq!(none.to_string(), "there is no version 1.7");
/// assert_eq!(restarted(Err(none)), Ok(None));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct CheckpointError {
    /// Its kind.
    pub code: CheckpointErrorCode,
    /// The error, its cause, and its remedy.
    pub text: String,
}

impl CheckpointError {
    /// An error of a kind.
    pub fn new(code: CheckpointErrorCode, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }
}

impl From<MediumError> for CheckpointError {
    fn from(error: MediumError) -> Self {
        let kind = match &error {
            MediumError::Io { source, .. } => Some(source.kind()),
            _ => None,
        };
        let code = match kind {
            Some(
                std::io::ErrorKind::StorageFull
                | std::io::ErrorKind::QuotaExceeded
                | std::io::ErrorKind::FileTooLarge,
            ) => CheckpointErrorCode::NoSpace,
            Some(std::io::ErrorKind::OutOfMemory) => CheckpointErrorCode::NoMem,
            Some(std::io::ErrorKind::WouldBlock) => CheckpointErrorCode::Busy,
            Some(std::io::ErrorKind::NotFound) => CheckpointErrorCode::NotFound,
            Some(_) => CheckpointErrorCode::Io,
            None => CheckpointErrorCode::Internal,
        };
        Self::new(code, error.to_string())
    }
}

impl From<ArenaError> for CheckpointError {
    fn from(error: ArenaError) -> Self {
        let code = match error {
            ArenaError::Medium(medium) => return medium.into(),
            ArenaError::NoArena | ArenaError::Damaged => CheckpointErrorCode::Corrupt,
            ArenaError::Unsettled => CheckpointErrorCode::TimedOut,
            ArenaError::Full { .. } => CheckpointErrorCode::NoSpace,
            ArenaError::TooMany { .. } => CheckpointErrorCode::Invalid,
            ArenaError::Malformed { .. } => CheckpointErrorCode::Internal,
            ArenaError::Unknown => CheckpointErrorCode::Io,
        };
        Self::new(code, error.to_string())
    }
}

impl From<RanksError> for CheckpointError {
    fn from(error: RanksError) -> Self {
        let code = match error {
            RanksError::TimedOut { .. } => CheckpointErrorCode::TimedOut,
            RanksError::Lost { .. } => CheckpointErrorCode::Lost,
            RanksError::Taken { .. } => CheckpointErrorCode::Busy,
            RanksError::Refused { .. } => CheckpointErrorCode::Io,
            RanksError::Invalid(_) => CheckpointErrorCode::Invalid,
        };
        Self::new(code, error.to_string())
    }
}
