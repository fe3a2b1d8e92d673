//! What the world needs of a connection to a node.

use std::sync::Arc;
use std::time::Duration;
use tarn_proto::node::Address;
use tarn_types::id::NodeId;

/// A call that has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The node is lost, and why it is held to be.
    #[error("{0}")]
    Lost(String),
    /// It is there, but did not answer in time.
    #[error("it did not answer within {0:?}")]
    Late(Duration),
}

/// A session with one node. What the node says unasked comes by [`crate::EventQueue`].
pub trait NodeLink: Send + Sync {
    /// Tells, without an answer; what is told is heard in order. May wait for the node to take it. False when the session
    /// is over.
    fn send_command(&self, message: Vec<u8>) -> bool;

    /// Asks, and waits for the answer: at most `timeout`, or as long as the session lasts.
    ///
    /// # Errors
    /// When the node is lost or late.
    fn call(&self, request: Vec<u8>, timeout: Option<Duration>) -> Result<Vec<u8>, NoAnswer>;

    /// Why the session is over, if it is.
    fn over(&self) -> Option<String>;

    /// Ends the session: whoever waits in it gets an error soon. Does not wait.
    fn end(&self);
}

/// A node that can be reached.
#[derive(Clone)]
pub struct ReachableNode {
    /// What it is called in messages, until it has said its own name.
    pub name: String,
    /// The session.
    pub link: Arc<dyn NodeLink>,
    /// Where it serves its files to other nodes.
    pub data: Address,
}

/// Opens a new session, of this number, with a lost node; `None` where it cannot be reached. Called from a thread of its own,
/// again and again while the run lasts; must come to an end by itself.
pub type Relink = Arc<dyn Fn(NodeId, u64) -> Option<ReachableNode> + Send + Sync>;
