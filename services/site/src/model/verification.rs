//! A verification under way, its requester and its findings.

use crate::event::Token;
use serde::{Deserialize, Serialize};
use tarn_proto::site::{ReplicaInfo, Uid};

/// A verification for which a user waits. One at a time of each, and of each owner, so that nobody fills the queues of
/// nodes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Verifying {
    pub(crate) token: Token,
    pub(crate) user: Uid,
    /// Replicas without a report yet.
    pub(crate) left: usize,
    pub(crate) found: Vec<ReplicaInfo>,
}
