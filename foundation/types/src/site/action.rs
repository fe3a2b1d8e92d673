//! Decisions of the planner.

use super::job::{ItemId, JobId, Spread};
use super::machine::Mode;
use crate::id::NodeId;
use crate::units::{Nanos, Time};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Nodes in the order of a job's ranks.
pub type JobNodes = Arc<[NodeId]>;

/// A move, numbered within its site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MoveId(pub u64);

/// Something to be done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum SiteAction {
    /// A job is to run on these nodes later; its data begins to move there. The world does nothing.
    Plan {
        /// The job.
        job: JobId,
        /// Its nodes.
        nodes: JobNodes,
        /// When it is expected to begin.
        begin: Time,
        /// Why there.
        why: AllocationReason,
    },
    /// A plan is taken back. The world does nothing.
    Unplan {
        /// The job.
        job: JobId,
    },
    /// A job has its nodes from now until they are released: it moves data (if any) and runs.
    Allocate {
        /// The job.
        job: JobId,
        /// Its nodes.
        nodes: JobNodes,
        /// Why there and now.
        why: AllocationReason,
    },
    /// Move data (ends in `Moved` or `MoveFailed`).
    Move(Move),
    /// Stop a move (it ends in `MoveFailed`).
    Cancel {
        /// The move.
        id: MoveId,
    },
    /// Run a job's program on its nodes (ends in `Ended`). All that it reads is there.
    Run {
        /// The job.
        job: JobId,
        /// Counts its attempts, from 1.
        attempt: u32,
        /// Bytes that its nodes read from their tiers, all nodes together.
        local_read: u64,
        /// Bytes that its nodes write to their tiers, all nodes together.
        local_write: u64,
        /// Its outputs are stored on its nodes' tiers then, in equal shares; otherwise they are in the memory of the job.
        to_tiers: bool,
        /// Bytes of its input that was stored on its nodes and did not have to be moved for it.
        retained: u64,
    },
    /// A job gives its nodes back.
    Release {
        /// The job.
        job: JobId,
    },
    /// Replicas go; at once.
    Drop {
        /// The item.
        item: ItemId,
        /// The nodes that have them: one layout.
        nodes: JobNodes,
        /// How it is spread over them.
        spread: Spread,
    },
    /// Reboot an idle node into another memory mode (ends in `ModeSet`).
    SetMode {
        /// The node.
        node: NodeId,
        /// The mode.
        mode: Mode,
    },
    /// Put an idle node to sleep; at once. Its tiers keep what they hold.
    Sleep {
        /// The node.
        node: NodeId,
    },
    /// Wake a node (ends in `Awake`).
    Wake {
        /// The node.
        node: NodeId,
    },
    /// A job can never run here and is taken out, with everything that waits for it.
    Refuse {
        /// The job.
        job: JobId,
        /// The resource that lacks, as a sentence.
        lacks: String,
    },
    /// A job failed as often as it may and is taken out, with everything that waits for it.
    GiveUp {
        /// The job.
        job: JobId,
    },
}

/// A movement of one item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Its number.
    pub id: MoveId,
    /// The item.
    pub item: ItemId,
    /// Bytes that travel, over all nodes together.
    pub bytes: u64,
    /// From where.
    pub from: Where,
    /// To where. Space there is taken from now on, unless the move is `direct`.
    pub to: Where,
    /// How it is spread over the nodes of `to`.
    pub spread: Spread,
    /// Streams that the external store sees (see [`super::Store::saturates`]), at least 1.
    pub streams: u32,
    /// The job's program itself reads or writes: the job has its nodes, and no tier is touched at its end.
    pub direct: bool,
    /// The job it is for.
    pub job: Option<JobId>,
    /// How urgent.
    pub urgency: Urgency,
}

/// How urgent a move is: less urgent ones use what the others leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Urgency {
    /// A copy that may turn out useful.
    Spare,
    /// Results on their way out while their nodes already do something else.
    Out,
    /// Inputs of a job that waits for its nodes.
    Ahead,
    /// A job has its nodes and waits for this.
    Now,
}

/// A place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Where {
    /// The external store.
    Outside,
    /// Tiers (or, of a direct move, the memory) of nodes.
    Nodes(JobNodes),
}

/// Why a job got its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
pub enum AllocationReason {
    /// It was first in the queue and its nodes were free.
    First,
    /// It fitted in before those ahead of it.
    Fits,
    /// It ends before the first in the queue can begin, or leaves enough nodes for it.
    Backfill,
    /// It begins first there: all counted, data too.
    EarliestEnd {
        /// When its data is there, from now.
        data_in: Nanos,
        /// When its nodes are free, from now.
        free_in: Nanos,
    },
    /// Its input is there.
    WithData,
    /// Its predecessor had these nodes.
    SameNodes,
    /// It continues in an allocation that its script already has.
    Continues,
}
