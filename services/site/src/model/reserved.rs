//! The nodes that the planner keeps for a job that has none yet.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Nodes for a job that waits: its inputs are brought there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReservedNodes {
    pub(crate) nodes: Vec<String>,
    /// Those to which nothing more is brought, as it would fail again.
    pub(crate) given_up: BTreeSet<String>,
    /// How far that is, as the job's history has it.
    pub(crate) progress: String,
}
