//! Requests of one node's tarnd to another's about tasks, and about the steps of a run: calls of the data plane
//! (`crate::data::DataCall`).
//!
//! A message is `u16` version, little-endian, then the message in postcard.

use super::{
    PartitionInfo, PathBytes, RemotePartition, RequestError, TaskId, TaskOutcome, TaskSpec,
    TaskStatus,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tarn_types::id::NodeId;
use tarn_types::nodes::AttemptId;

/// The version of these messages. Two tarnds whose versions differ refuse each other.
pub const PEER_VERSION: u16 = 6;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerTarndRequest {
    /// Lists the content of a file or tree of a dataspace. Answered by `Listed`.
    List {
        /// The dataspace.
        space: String,
        /// Below its root.
        path: PathBytes,
        /// Whether contents are read and hashed.
        hashes: bool,
    },
    /// Removes a file or tree that was moved to another node, unless it has changed. Answered by `Freed`.
    Release {
        /// The dataspace.
        space: String,
        /// Below its root.
        path: PathBytes,
        /// The requesting node.
        node: String,
        /// Its task.
        task: TaskId,
        /// The fingerprint of the moved file or tree.
        print: u128,
    },
    /// Takes a task over. Answered by `Taken`.
    Submit(Box<TaskSpec>),
    /// Looks at its state. Answered by `Stands`.
    Look(TaskId),
    /// It is not wanted any more. Answered by `Done`.
    Cancel(TaskId),
    /// Opens a partition. Answered by `Exported`; then the stream is given over to it (`crate::storage`).
    #[serde(rename = "Lend")]
    Export {
        /// The dataspace.
        space: String,
        /// The file, below its root.
        path: PathBytes,
        /// To be written, too.
        write: bool,
    },
    /// The partitions of a folder. Answered by `Partitions`.
    Partitions {
        /// The dataspace.
        space: String,
        /// The folder, below its root.
        path: PathBytes,
        /// Only those whose names come after this one.
        after: String,
    },
    /// A message about a step from one of its nodes to another. Answered by `Done`, also where it has come before; refused with
    /// `Busy` or `Lost` where it may be sent again.
    Step(StepMessage),
}

/// Bytes of a piece of a step's message: with its head it fits into a call.
pub const MAX_STEP_PIECE: usize = 128 << 10;

/// A piece of a message about a step, from one of its nodes to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepMessage {
    /// The sender.
    pub from: NodeId,
    /// Random, and the same for all that the sender sends until its part of the run ends.
    pub epoch: u64,
    /// Counts the pieces to this receiver in that time, from 1. A number that was seen, or passed, is not taken again.
    pub number: u64,
    /// The mark of the run that the receiver waits for before it takes this.
    pub after: u64,
    /// About which attempt.
    pub step: AttemptId,
    /// Whether a message begins with this piece.
    pub first: bool,
    /// Whether it ends with this piece.
    pub last: bool,
    /// At most [`MAX_STEP_PIECE`] bytes.
    pub piece: Vec<u8>,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerTarndReply {
    /// The entries, as a manifest is encoded.
    Listed {
        /// Whether it is a single file or link; its entry has its own name then.
        single: bool,
        /// See `tarn_types::manifest`.
        manifest: Vec<u8>,
        /// Tells whether it is still that and unchanged: for `Release`.
        print: u128,
    },
    /// It is removed, and so many bytes with it.
    Freed(u64),
    /// The task's id on the node that took it.
    Taken(TaskId),
    /// How far it is, and its end once it has one.
    Stands(TaskStatus, Option<TaskOutcome>),
    /// It is done.
    Done,
    /// It is open.
    #[serde(rename = "Lent")]
    Exported(RemotePartition),
    /// By name, as many as a packet of the local socket holds; none when there are no more.
    Partitions(Vec<PartitionInfo>),
    /// It is not done, and why.
    Refused(RequestError),
}

/// Why bytes are no message between two tarnds, or a message cannot be made into bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerCodeError {
    /// They are too few for a version.
    #[error("no message of tarn")]
    TooShort,
    /// The sender speaks another version.
    #[error(
        "a message of version {0}, where {PEER_VERSION} is spoken; use the same release of tarn on all nodes"
    )]
    OtherVersion(u16),
    /// They are none, or there are more bytes than the message has.
    #[error("bytes that are no message of tarn")]
    Malformed,
    /// It cannot be written.
    #[error(transparent)]
    NotEncoded(#[from] postcard::Error),
}

/// Writes a message.
///
/// # Errors
/// Never but for want of memory.
pub fn pack<T: Serialize>(message: &T) -> Result<Vec<u8>, PeerCodeError> {
    let head = PEER_VERSION.to_le_bytes().to_vec();
    Ok(postcard::to_extend(message, head)?)
}

/// Reads a message.
///
/// # Errors
/// When it is of another version or no message.
pub fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, PeerCodeError> {
    let (version, body) = bytes.split_first_chunk().ok_or(PeerCodeError::TooShort)?;
    let version = u16::from_le_bytes(*version);
    if version != PEER_VERSION {
        return Err(PeerCodeError::OtherVersion(version));
    }
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        _ => Err(PeerCodeError::Malformed),
    }
}
