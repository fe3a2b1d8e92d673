//! What happens at a site: the inputs of the planner.

use super::action::MoveId;
use super::job::{Item, ItemId, Job, JobId};
use crate::id::NodeId;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum SiteEvent {
    /// Jobs came in: one batch job, or a whole workflow at once. Ids are never used twice; what `jobs` name (items,
    /// jobs they wait for) is in this event or an earlier one. The order is the order of the queue.
    Submitted {
        /// Jobs with their numbers.
        jobs: Vec<(JobId, Arc<Job>)>,
        /// Items with their numbers.
        items: Vec<(ItemId, Item)>,
    },
    /// A move is complete.
    Moved {
        /// Which.
        id: MoveId,
    },
    /// A move failed, or was cancelled: nothing of it is at its destination.
    MoveFailed {
        /// Which.
        id: MoveId,
    },
    /// A job's program has ended.
    Ended {
        /// Which.
        job: JobId,
        /// Whether it succeeded; what it wrote counts only then.
        ok: bool,
        /// The true sizes of what it wrote, where they differ from what was said at submission.
        sizes: Vec<(ItemId, u64)>,
    },
    /// A node has rebooted into another memory mode, or failed to (and is in its old one).
    ModeSet {
        /// Which.
        node: NodeId,
        /// Whether it is in the mode that was asked for.
        ok: bool,
    },
    /// A node that slept can be used.
    Awake {
        /// Which.
        node: NodeId,
    },
    /// A node is gone with everything on it; what ran on it has ended, moves from and to it have failed (no events of
    /// their own follow).
    NodeLost {
        /// Which.
        node: NodeId,
    },
    /// A node is back, empty, awake and in the mode it starts in.
    NodeBack {
        /// Which.
        node: NodeId,
    },
    /// The moment that the planner asked for has come.
    Timer,
}
