//! Why a node does not do what it is asked, and why a session with it is over.

use crate::link::NoAnswer;
use tarn_proto::node::{NodeReply, NotAMessage};

/// This tarn's version.
pub(crate) const TARN: &str = env!("CARGO_PKG_VERSION");
/// Why a node is lost whose tarnd was told to end.
pub(crate) const ENDING: &str =
    "its tarnd was told to end: the job was cancelled, or its time is over";

/// A node does not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeCallError {
    /// There is no answer.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// The request cannot be written as a message.
    #[error("{0}")]
    Request(String),
    /// What it answered is no message.
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
    /// Nobody says why.
    #[error("its session has ended")]
    Ended,
    /// What its link says.
    #[error("{0}")]
    Over(String),
    /// Its link takes nothing, and does not say why.
    #[error("nothing can be sent to it")]
    Unsendable,
    /// What it sent is no message.
    #[error(transparent)]
    Notification(#[from] NotAMessage),
}
