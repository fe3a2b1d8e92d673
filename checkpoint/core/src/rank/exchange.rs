//! Exchanges of words between all ranks at once, in the same order of calls on all.

use crate::fault::{CheckpointError, CheckpointErrorCode};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tarn_ports::Ranks;

/// The call that a word belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ExchangeKind {
    /// The begin: the inventory of a node.
    Begin,
    /// The inventory of a node once it was completed.
    Complete,
    /// Parts that were made again from parities.
    Mend,
    /// Versions in the external store.
    Outside,
    /// A restart: which version, and how many rows.
    Restart,
    /// Whether it succeeded.
    Restarted,
    /// Whether it is time for a commit.
    Due,
    /// The end.
    End,
}

/// Everybody's word, by rank.
///
/// # Errors
/// When ranks do not come, are in another call, or are of another version of tarn.
pub(super) fn agree<W: Serialize + for<'de> Deserialize<'de>>(
    ranks: &dyn Ranks,
    call: ExchangeKind,
    mine: &W,
    timeout: Duration,
) -> Result<Vec<W>, CheckpointError> {
    let word = postcard::to_stdvec(&(call, mine)).map_err(strange)?;
    let words = ranks.exchange(&word, timeout)?;
    let read = |(rank, word): (usize, &[u8])| {
        let (theirs, word): (ExchangeKind, &[u8]) =
            postcard::take_from_bytes(word).map_err(strange)?;
        if theirs != call {
            let text = format!(
                "rank {rank} {theirs}, and this one {call}: all ranks make the same calls in the same order"
            );
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        }
        postcard::from_bytes(word).map_err(strange)
    };
    let words = words.iter().map(|word| &**word);
    words.enumerate().map(read).collect()
}

fn strange(error: postcard::Error) -> CheckpointError {
    let text = format!(
        "ranks do not understand each other: {error}; do all run the same version of tarn?"
    );
    CheckpointError::new(CheckpointErrorCode::Internal, text)
}

impl std::fmt::Display for ExchangeKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Begin | Self::Complete | Self::Mend | Self::Outside => "begins",
            Self::Restart | Self::Restarted => "restarts",
            Self::Due => "asks whether a commit is due",
            Self::End => "ends",
        })
    }
}
