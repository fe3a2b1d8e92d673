//! The world's interface to a connection with a node.

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

/// A session with one node. The node's notifications come by [`crate::EventQueue`].
pub trait NodeLink: Send + Sync {
    /// Sends a command, without a reply; commands arrive in order. May wait for the node to take it. False when the session is
    /// over.
    fn send_command(&self, message: Vec<u8>) -> bool;

    /// Sends a request, and waits for the reply: at most `timeout`, or as long as the session lasts.
    ///
    /// # Errors
    /// When the node is lost or late.
    fn call(&self, request: Vec<u8>, timeout: Option<Duration>) -> Result<Vec<u8>, NoAnswer>;

    /// Why the session is over, if it is.
    fn over(&self) -> Option<String>;

    /// Ends the session: a call that waits in it gets an error soon. Does not wait.
    fn end(&self);
}

/// A node that can be reached.
#[derive(Clone)]
pub struct ReachableNode {
    /// Its name in messages, until it has sent its own name.
    pub name: String,
    /// The session.
    pub link: Arc<dyn NodeLink>,
    /// The address at which it serves its files to other nodes.
    pub data: Address,
}

/// Opens a new session, of this number, with a lost node; `None` where it cannot be reached. Called from a thread of its own,
/// again and again while the run lasts; must come to an end by itself.
pub type Relink = Arc<dyn Fn(NodeId, u64) -> Option<ReachableNode> + Send + Sync>;
