//! Messages between the nodes of a step: one line of JSON, and after it the bytes of what it carries.

use crate::attempt::node_context::NodeContext;
use crate::attempt::node_task::{StepNodeTask, StepNodeTaskResult};
use crate::helper::protocol::{ExecReply, ExecRequest, HelperCommand, HelperReport};
use crate::helper::provider::ProviderAddress;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tarn_types::action::AttemptSpec;
use tarn_types::event::RunError;
use tarn_types::id::{NodeId, TierRef};
use tarn_types::manifest::{Manifest, ManifestError};
use tarn_types::nodes::AttemptId;
use tarn_types::part::PartRef;

/// Sent by the node that leads a step to one of the others (a *follower*), or back.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AttemptMessage {
    /// To a follower: this attempt begins.
    Begin(Box<AttemptSpec>),
    /// To a follower: do this. Answered by [`AttemptMessage::Done`].
    Do(StepNodeTask),
    /// To a follower: have the helper set everything up. Answered by [`AttemptMessage::Entered`].
    Enter,
    /// To a follower's helper.
    Order(HelperCommand),
    /// To a follower: kill the helper.
    Kill,
    /// To a follower: all its work should fail soon.
    Cancel,
    /// From a follower: the result of a task, and the damaged replicas that were removed.
    Done {
        result: Result<StepNodeTaskResult, RunError>,
        evicted: Vec<(PartRef, TierRef)>,
    },
    /// From a follower: whether everything is set up, and where its part of a shared namespace is reached.
    Entered(Result<Option<ProviderAddress>, HelperSetupError>),
    /// From a follower's helper.
    Report(HelperReport),
    /// From a follower: its helper is gone.
    Gone,
    /// From a follower: it knows nothing of this attempt (any more).
    Lost,
    /// Both ways, about a command of `tarn exec`.
    Exec { session: u32, about: Exec },
}

/// Why a follower's helper could not set everything up, as the follower reports it.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(transparent)]
#[error("{0}")]
pub(crate) struct HelperSetupError(pub(crate) String);

/// Why the bytes of a message cannot be understood.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvelopeError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Size(#[from] std::num::TryFromIntError),
    #[error("it is shorter than its length field")]
    TooShort,
    #[error("{0} bytes too many")]
    TooLong(usize),
    #[error("{0} trees are missing in it")]
    TreesMissing(usize),
    #[error(transparent)]
    Tree(#[from] ManifestError),
}

/// About a command that `tarn exec` started at the leader and that runs at a follower. Streams are numbered as a process
/// numbers them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Exec {
    /// To the follower: start it.
    Open(Box<ExecRequest>),
    /// Some bytes of a stream, in the order of the stream.
    Data { stream: u8 },
    /// Such bytes have been passed on: as many more may come.
    Taken { stream: u8 },
    /// Nothing more comes of a stream; or nothing more is taken of it.
    Close { stream: u8 },
    /// To the follower: the client has gone away.
    Gone,
    /// From the follower: how it ended. Its output was sent before.
    End(ExecReply),
}

impl AttemptMessage {
    /// The trees that it carries.
    fn trees(&mut self) -> Vec<&mut Arc<Manifest>> {
        match self {
            Self::Do(StepNodeTask::Publish { parts, .. }) => {
                parts.iter_mut().map(|p| &mut p.manifest).collect()
            }
            Self::Done {
                result: Ok(StepNodeTaskResult::Tree { tree }),
                ..
            } => vec![tree],
            _ => Vec::new(),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Head<S> {
    /// The follower's position among the nodes of the step.
    at: usize,
    #[serde(rename = "say")]
    message: S,
    /// Bytes of each thing that follows.
    sizes: Vec<u64>,
}

/// A message that has arrived. Its cargo is not read before it is opened.
#[derive(Debug)]
pub(crate) struct Envelope {
    pub(crate) at: usize,
    pub(crate) message: AttemptMessage,
    cargo: Vec<Vec<u8>>,
}

impl Envelope {
    /// The message of some bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, EnvelopeError> {
        // JSON as it is written here has no newline.
        let end = bytes.iter().position(|b| *b == b'\n');
        let (line, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        let head: Head<AttemptMessage> = serde_json::from_slice(line)?;
        let mut rest = rest.get(1..).unwrap_or_default();
        let mut cargo = Vec::new();
        for size in head.sizes {
            let size = usize::try_from(size)?;
            let (one, more) = rest.split_at_checked(size).ok_or(EnvelopeError::TooShort)?;
            cargo.push(one.to_vec());
            rest = more;
        }
        if !rest.is_empty() {
            return Err(EnvelopeError::TooLong(rest.len()));
        }
        Ok(Self {
            at: head.at,
            message: head.message,
            cargo,
        })
    }

    /// The message with the trees that it carries.
    pub(crate) fn open(self) -> Result<AttemptMessage, EnvelopeError> {
        let mut message = self.message;
        let trees = message.trees();
        if trees.len() != self.cargo.len() {
            return Err(EnvelopeError::TreesMissing(trees.len()));
        }
        for (tree, bytes) in trees.into_iter().zip(self.cargo) {
            *tree = Arc::new(Manifest::decode(&bytes)?);
        }
        Ok(message)
    }

    /// About which command of `tarn exec` it is, what, and the bytes of a stream.
    pub(crate) fn exec(self) -> Result<(u32, Exec, Vec<u8>), Self> {
        match self.message {
            AttemptMessage::Exec { session, about } => Ok((
                session,
                about,
                self.cargo.into_iter().next().unwrap_or_default(),
            )),
            _ => Err(self),
        }
    }
}

fn encode(
    at: usize,
    mut message: AttemptMessage,
    bytes: Option<&[u8]>,
) -> serde_json::Result<Vec<u8>> {
    let mut cargo: Vec<Vec<u8>> = message.trees().into_iter().map(|t| t.encode()).collect();
    cargo.extend(bytes.map(<[u8]>::to_vec));
    let head = Head {
        at,
        message,
        sizes: cargo.iter().map(|c| c.len() as u64).collect(),
    };
    let mut encoded = serde_json::to_vec(&head)?;
    encoded.push(b'\n');
    cargo.iter().for_each(|c| encoded.extend_from_slice(c));
    Ok(encoded)
}

/// The other end of the messages about an attempt: the leader with the follower at one position, or that one with the leader.
#[derive(Clone, Copy)]
pub(crate) struct AttemptPeer<'a> {
    pub(crate) shared: &'a NodeContext,
    /// The other one.
    pub(crate) to: NodeId,
    pub(crate) step: AttemptId,
    /// The follower's position among the nodes of the step.
    pub(crate) at: usize,
}

impl AttemptPeer<'_> {
    /// Sends a message; false when the other node is lost.
    pub(crate) fn send_message(&self, message: AttemptMessage) -> bool {
        self.send(encode(self.at, message, None))
    }

    /// Sends a message about a command of `tarn exec`, with the bytes of a stream.
    pub(crate) fn exec(&self, session: u32, about: Exec, bytes: Option<&[u8]>) -> bool {
        self.send(encode(
            self.at,
            AttemptMessage::Exec { session, about },
            bytes,
        ))
    }

    fn send(&self, message: serde_json::Result<Vec<u8>>) -> bool {
        let (Some(followers), Ok(message)) = (&self.shared.followers, message) else {
            return false;
        };
        followers.send(self.to, self.step, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::node_task::PublishedPart;
    use tarn_types::id::DataId;
    use tarn_types::manifest::{Entry, EntryKind};
    use tarn_types::part::StoreKey;

    fn tree(name: &str) -> Arc<Manifest> {
        let entry = Entry {
            path: name.as_bytes().into(),
            kind: EntryKind::Directory,
            mode: 0o755,
            mtime: 7,
            xattrs: Box::default(),
        };
        let entries = vec![entry];
        Arc::new(Manifest { entries })
    }

    #[test]
    fn trees_travel_behind_their_message() {
        let piece = |name: &str| PublishedPart {
            key: StoreKey(name.into()),
            manifest: tree(name),
        };
        let parts = vec![piece("a"), piece("b")];
        let data = DataId(3);
        let bytes = encode(
            2,
            AttemptMessage::Do(StepNodeTask::Publish { data, parts }),
            None,
        )
        .unwrap();
        let envelope = Envelope::decode(&bytes).unwrap();
        assert_eq!(envelope.at, 2);
        let AttemptMessage::Do(StepNodeTask::Publish { parts, .. }) = envelope.open().unwrap()
        else {
            panic!("something else");
        };
        let names = ["a", "b"].map(tree);
        assert!(parts.iter().map(|p| &p.manifest).eq(&names));
        for cut in 0..bytes.len() {
            assert!(Envelope::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert!(Envelope::decode(&longer).is_err());
    }

    #[test]
    fn a_message_without_its_tree_is_refused() {
        let none = AttemptMessage::Done {
            result: Ok(StepNodeTaskResult::Nothing),
            evicted: Vec::new(),
        };
        let bytes = encode(0, none, Some(b"tree")).unwrap();
        assert!(Envelope::decode(&bytes).unwrap().open().is_err());
        let about = Exec::Data { stream: 1 };
        let bytes = encode(
            0,
            AttemptMessage::Exec { session: 9, about },
            Some(b"\n\0x"),
        )
        .unwrap();
        let (session, about, data) = Envelope::decode(&bytes).unwrap().exec().unwrap();
        assert!(matches!(about, Exec::Data { stream: 1 }));
        assert_eq!((session, &data[..]), (9, &b"\n\0x"[..]));
    }
}
