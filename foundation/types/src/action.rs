//! Actions: the outputs of the engine, and the other half of every record of the event log.

use crate::checkpoint::CheckpointId;
use crate::hash::Hash;
pub use crate::id::Subject;
use crate::id::{DataId, InstanceId, PartitionId, TierRef};
use crate::part::{PartRef, Place, StoreKey, Transfer};
use crate::reason::Reason;
use crate::units::Time;
use serde::{Deserialize, Serialize};

/// Something to be done, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// The action.
    #[serde(flatten)]
    pub what: Do,
    /// Why.
    pub why: Reason,
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Do {
    /// List an external dataset (ends in `SourceListed` or `SourceFailed`).
    List {
        /// The dataset.
        data: DataId,
    },
    /// Move parts (ends in `TransferDone` or `TransferFailed`).
    Transfer(Transfer),
    /// Abandon a transfer (it ends in `TransferFailed`).
    Abandon {
        /// The transfer.
        id: crate::id::TransferId,
    },
    /// Choose where an instance will run and begin to move its inputs there. The world does nothing.
    Assign {
        /// The instance.
        instance: InstanceId,
        /// Its nodes in order, each with the tier of its inputs and outputs.
        nodes: Vec<TierRef>,
        /// Bytes reserved on each of those tiers for its outputs.
        reserve: u64,
        /// When it is expected to end.
        end: Time,
    },
    /// Take an assignment back. The world does nothing.
    Unassign {
        /// The instance.
        instance: InstanceId,
    },
    /// Run an instance (ends in `Ended`).
    Run(Box<AttemptSpec>),
    /// Stop an instance (it ends in `Ended`).
    Stop {
        /// The instance.
        instance: InstanceId,
        /// Its attempt.
        attempt: u32,
    },
    /// Take the outputs of an earlier run instead of running. The world does nothing.
    Reuse {
        /// The instance.
        instance: InstanceId,
        /// Position in [`crate::event::Start::prior`].
        prior: u32,
    },
    /// Remove a replica (ends in `Evicted`).
    Evict {
        /// The part.
        part: PartRef,
        /// The key under which it is stored.
        key: StoreKey,
        /// From where: a node or the drained area.
        at: Place,
    },
    /// Leave a replica that no step of the run reads any more as cache: it goes as soon as its space is needed, by this run or
    /// another.
    Cache {
        /// The part.
        part: PartRef,
        /// The key under which it is stored.
        key: StoreKey,
        /// The tier that it is stored on.
        at: TierRef,
        /// Bytes that all cached data may take on that tier.
        share: u64,
    },
    /// Copy an image of an instance's processes to another node (ends in an `Image` of `Copied` or `NotCopied`).
    CopyImage {
        /// The instance.
        instance: InstanceId,
        /// Its attempt.
        attempt: u32,
        /// The image.
        image: CheckpointId,
        /// The tier that it is stored on.
        from: TierRef,
        /// The tier for its copy.
        to: TierRef,
        /// Bytes that its copies may take there before others must make space.
        reserve: u64,
    },
    /// Remove the checkpoints of an instance from these places. The world reports nothing about it.
    Forget {
        /// The instance.
        instance: InstanceId,
        /// All tiers on which it ran.
        at: Vec<TierRef>,
    },
    /// Remove a partition that was kept for the workflow. The world reports nothing about it.
    Discard {
        /// The partition.
        partition: PartitionId,
        /// The key under which it is stored.
        key: StoreKey,
        /// All tiers that have it.
        at: Vec<TierRef>,
    },
    /// Nothing but a reason worth knowing: something waits. The world does nothing.
    Note {
        /// The subject.
        about: Subject,
    },
    /// The run is over. The last action of a log (until it is resumed).
    Finish {
        /// The outcome.
        outcome: Outcome,
    },
}

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Every step is committed, every `dest` written.
    Done,
    /// A step or transfer failed for good.
    Failed,
    /// The machine can never meet its needs: nothing was started.
    Refused,
    /// It was interrupted by this signal.
    Interrupted(i32),
}

/// One attempt of an instance, with everything the world needs to run it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptSpec {
    /// The instance.
    pub instance: InstanceId,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The element of a `foreach` step: `$TARN_ITEM` and `{item}`.
    pub item: Option<String>,
    /// Its nodes in order, each with the tier of its outputs and scratch.
    pub nodes: Vec<TierRef>,
    /// For each `in` and `inout` (in the order of the step's uses) and each node, the replicas that make up
    /// the view of the node: `views[use][node]`; `out`s have an empty list of nodes.
    pub views: Vec<Vec<Vec<NodeReplica>>>,
    /// Its identity: hash of the step's code, the element and its inputs' content.
    pub identity: Hash,
    /// Prefix of the store keys of its outputs; the world appends `.<seq>`.
    pub store: String,
    /// Bytes that its outputs and scratch may take on each node's tier before others must make space.
    pub reserve: u64,
    /// Its partitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<PartitionAssignment>,
}

/// A partition of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionAssignment {
    /// The partition.
    pub partition: PartitionId,
    /// The key under which it is stored: of one that is kept for the workflow, after the attempt that was the first to use it.
    pub key: StoreKey,
    /// Its tier on each of the step's nodes, in their order.
    #[serde(rename = "spots")]
    pub tier_refs: Vec<TierRef>,
    /// A step that used it has committed: it is not made again if it is not there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub filled: bool,
}

/// A replica on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReplica {
    /// The part.
    pub part: PartRef,
    /// The key under which it is stored.
    pub key: StoreKey,
    /// The tier it is stored on.
    #[serde(rename = "spot")]
    pub tier_ref: TierRef,
}
