//! Jobs and the data between them, as the planner gets them at submission.

use super::machine::Mode;
use super::mask::NodeMask;
use crate::id::NodeId;
use crate::units::{Nanos, Time};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $letter:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The position in its table.
            pub fn at(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }
    };
}

number!(
    /// A job gets nodes as one. A batch job, or an instance of a step of a workflow.
    JobId,
    "j"
);
number!(
    /// An item of data.
    ItemId,
    "i"
);
number!(
    /// A workflow.
    FlowId,
    "w"
);

/// A job as it was submitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The workflow it is a step of.
    pub flow: Option<FlowId>,
    /// Nodes, at least 1.
    pub nodes: u32,
    /// Cores on each node; 0 for nodes as a whole, which nobody else may use meanwhile.
    pub cores: u32,
    /// Bytes of memory on each node.
    pub memory: u64,
    /// GPUs on each node.
    pub gpus: u32,
    /// The memory mode it needs; `None` where it does not matter.
    pub mode: Option<Mode>,
    /// Its user's time limit: nobody expects it to keep its nodes longer, reading and writing included.
    pub limit: Nanos,
    /// How long its program is expected to run when no data has to be moved; at most `limit`.
    pub expect: Nanos,
    /// Jobs that must have ended before, beside the producers of its inputs.
    pub after: Vec<JobId>,
    /// It continues in the allocation of this job, on the first `nodes` of its nodes, without queueing: both are parts of
    /// one batch script (Weiland, Figure 3). The allocation ends with the last of them.
    pub continues: Option<JobId>,
    /// Its inputs.
    pub reads: Vec<Input>,
    /// Its outputs: each node writes an equal share.
    pub writes: Vec<ItemId>,
    /// When it was submitted; `None`: when the planner got it. Of a step of a workflow: since when its workflow has its
    /// seniority; `None`: since the planner got the first of its jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted: Option<Time>,
    /// The place that the host's priorities give an ordinary job (one of no workflow), as a time: it queues as if it had been
    /// submitted then, and workflows that came later overtake it. Less goes first. No two jobs have the same. A step of a
    /// workflow that has one stands there too, without the seniority of its workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u64>,
    /// The only nodes that it may have; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<Arc<NodeMask>>,
    /// It does not begin before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_before: Time,
}

impl Job {
    /// Whether it may have a node.
    pub fn may_have(&self, node: NodeId) -> bool {
        self.on.as_deref().is_none_or(|on| on.contains(node))
    }
}

fn is_zero(time: &Time) -> bool {
    *time == 0
}

/// The share of each of its nodes that the host gave a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeShare {
    /// Cores; 0 for nodes as a whole.
    pub cores: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// GPUs.
    pub gpus: u32,
}

/// An input of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The item.
    pub item: ItemId,
    /// How it is spread over the job's nodes.
    pub spread: Spread,
}

/// How an item is spread over several nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// Each node has an equal share, in the order of the nodes.
    Share,
    /// Each node has the whole.
    Whole,
}

/// An item of data: data that is made by one job and read by the same jobs moves as one. It never changes once made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Bytes, as far as known at submission.
    pub bytes: u64,
    /// It is in the external store from the start; nobody writes it.
    pub outside: bool,
    /// It has to be in the external store in the end.
    pub keep: bool,
}
