//! Events of a site: the inputs of the planner.

use super::action::MoveId;
use super::job::{Item, ItemId, Job, JobId};
use crate::id::NodeId;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum SiteEvent {
    /// Jobs came in: one batch job, or a whole workflow at once. Ids are never used twice; everything that `jobs` name (items,
    /// jobs they wait for) is in this event or an earlier one. The order is the order of the queue.
    Submitted {
        /// Jobs with their numbers.
        jobs: Vec<(JobId, Arc<Job>)>,
        /// Items with their numbers.
        items: Vec<(ItemId, Item)>,
    },
    /// A move is complete.
    Moved {
        /// The move.
        id: MoveId,
    },
    /// A move failed, or was cancelled: nothing of it is at its destination.
    MoveFailed {
        /// The move.
        id: MoveId,
    },
    /// A job's program has ended.
    Ended {
        /// The job.
        job: JobId,
        /// Whether it succeeded; its outputs count only then.
        ok: bool,
        /// The true sizes of its outputs, where they differ from those given at submission.
        sizes: Vec<(ItemId, u64)>,
    },
    /// A node has rebooted into another memory mode, or failed to (and is in its old one).
    ModeSet {
        /// The node.
        node: NodeId,
        /// Whether it is in the requested mode.
        ok: bool,
    },
    /// A node that slept can be used.
    Awake {
        /// The node.
        node: NodeId,
    },
    /// A node is gone with everything on it; its jobs have ended, moves from and to it have failed (no events of
    /// their own follow).
    NodeLost {
        /// The node.
        node: NodeId,
    },
    /// A node is back, empty, awake and in the mode it starts in.
    NodeBack {
        /// The node.
        node: NodeId,
    },
    /// The moment that the planner set has come.
    Timer,
}
