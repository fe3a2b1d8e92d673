//! A verification under way, for whom it is and what it has found.

use crate::event::Token;
use serde::{Deserialize, Serialize};
use tarn_proto::site::{ReplicaInfo, Uid};

/// What a user waits for. One at a time of each, and of each owner, so that nobody fills the queues of nodes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Verifying {
    pub(crate) token: Token,
    pub(crate) user: Uid,
    /// Replicas that nothing was heard of yet.
    pub(crate) left: usize,
    pub(crate) found: Vec<ReplicaInfo>,
}
