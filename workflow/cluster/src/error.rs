//! Why a node does not carry out a request, and why a session with it is over.

use crate::link::NoAnswer;
use tarn_proto::node::{NodeReply, NotAMessage};

/// This tarn's version.
pub(crate) const TARN: &str = env!("CARGO_PKG_VERSION");
/// Why a node is lost whose tarnd was ordered to end.
pub(crate) const ENDING: &str =
    "its tarnd was told to end: the job was cancelled, or its time is over";

/// A node does not carry out a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeCallError {
    /// There is no answer.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// The request cannot be written as a message.
    #[error("{0}")]
    Request(String),
    /// Its reply is no message.
    #[error("{0}; is its tarnd of another version than this tarn ({TARN})?")]
    Reply(String),
    /// It answered another request.
    #[error("it sent a message that does not fit")]
    Mismatch,
    /// It cannot, and why.
    #[error("{0}")]
    Refused(String),
    /// Its tarnd ends.
    #[error("{ENDING}")]
    Ending,
    /// It was lost meanwhile.
    #[error("it was lost again")]
    LostAgain,
    /// This end failed.
    #[error("an error inside tarn")]
    Internal,
}

/// An answer, or why there is none.
pub(crate) type NodeReplyResult = Result<NodeReply, NodeCallError>;

/// A session with a node is over, or must be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeSessionError {
    /// No reason is known.
    #[error("its session has ended")]
    Ended,
    /// The reason that its link gives.
    #[error("{0}")]
    Over(String),
    /// Its link takes nothing, and gives no reason.
    #[error("nothing can be sent to it")]
    Unsendable,
    /// Its notification is no message.
    #[error(transparent)]
    Notification(#[from] NotAMessage),
}
