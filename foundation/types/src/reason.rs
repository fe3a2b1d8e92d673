//! Why the engine did something. Every answer of `tarn why` is one of these, as logged.

mod explain;

use crate::checkpoint::CheckpointId;
use crate::id::{DataId, InstanceId, NodeId, PartitionId, StepId, Subject, TierRef, TransferId};
use crate::units::Nanos;
use serde::{Deserialize, Serialize};

/// A reason, as data: printed by [`Reason::explain_with`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum Reason {
    /// A source is needed by the workflow.
    Needed,
    /// Placement: the node where it can end first.
    EarliestEnd {
        /// The node.
        node: NodeId,
        /// When its cores are free, from now.
        free_in: Nanos,
        /// When its data is there, from now.
        data_in: Nanos,
        /// Bytes it must get from elsewhere.
        missing: u64,
        /// Bytes that are stored there already, or are on their way there.
        local: u64,
        /// The next best node and how much later it would have ended.
        next: Option<(NodeId, Nanos)>,
        /// The next best is equal in all but this: the node draws less for each core, or is cooler.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        thriftier: bool,
    },
    /// Placement in the order of the queue, any job that fits: a node that is free.
    FirstFree {
        /// The node, the first of several.
        node: NodeId,
    },
    /// Placement of the first in the queue: a node that is free.
    FirstInQueue {
        /// The node, the first of several.
        node: NodeId,
    },
    /// Placement before others that go first: it does not delay them.
    Backfill {
        /// The node, the first of several.
        node: NodeId,
    },
    /// Placement by `same-nodes`: where most of its input was made.
    SameNodes {
        /// The node, the first of several.
        node: NodeId,
    },
    /// Inputs are there and cores are free.
    Ready,
    /// Another attempt after a failure.
    Retry {
        /// The attempt that begins, not counting those that were cancelled.
        attempt: u32,
        /// Attempts allowed in all.
        of: u32,
    },
    /// Another attempt of a step that continues from its checkpoints.
    Restart {
        /// The newest that its nodes could restore when the attempt before had failed, as far as that is known.
        from: Option<CheckpointId>,
        /// Which restart it is, from 1.
        restart: u32,
        /// Attempts that failed without a newer checkpoint.
        failures: u32,
        /// So many of these are allowed.
        retries: u32,
    },
    /// Placement: there it has its checkpoints.
    CheckpointsThere {
        /// The node, the first of several.
        node: NodeId,
    },
    /// The step continues there from it if this node is lost.
    Buddy {
        /// The node that has the image.
        node: NodeId,
    },
    /// No other node has as much free as the images of its processes take.
    NoBuddy {
        /// Bytes.
        bytes: u64,
    },
    /// Placement: there is a partition of its that is kept for the workflow.
    PartitionThere {
        /// The first of its nodes.
        node: NodeId,
        /// The partition.
        partition: PartitionId,
    },
    /// All steps that use it have committed.
    Used,
    /// It has committed: nothing continues from its checkpoints.
    Committed,
    /// It runs on another tier of their node: nothing continues from its checkpoints here.
    OtherTier,
    /// The data is read from the external store: no node has it, or the link is faster.
    ReadExternal {
        /// The instance that needs it.
        instance: InstanceId,
    },
    /// The data comes from another node.
    FetchPeer {
        /// The instance that needs it.
        instance: InstanceId,
        /// The node it comes from.
        from: NodeId,
    },
    /// The data comes from another node, at which it is still arriving.
    FollowPeer {
        /// The instance that needs it.
        instance: InstanceId,
        /// The node it comes from.
        from: NodeId,
    },
    /// The data is stored on a slower tier of the same node.
    PromoteForUse {
        /// The instance that needs it.
        instance: InstanceId,
    },
    /// It is retained: it is where it is needed, nothing moves.
    Retained {
        /// The bytes that did not move.
        bytes: u64,
    },
    /// The last version goes to its `dest`.
    Deliver,
    /// `stage-through`: a step's output goes out.
    StageOut,
    /// `cache`: a step's output goes out, and stays on its node as well.
    WriteThrough,
    /// A further replica, as `copies` requests.
    Copies {
        /// Replicas wanted.
        wanted: u32,
    },
    /// Nobody will read it any more.
    NotNeeded,
    /// No step of this run will read it any more: it stays for later runs while its tier has space.
    Cached,
    /// The workflow has ended and nothing requests to keep it.
    WorkflowEnded,
    /// `stage-through`: a node keeps nothing after a step.
    StagedOut,
    /// A tier is full and work under way can still free space there.
    #[serde(rename = "wait-for-room")]
    WaitForSpace {
        /// The tier.
        #[serde(rename = "spot")]
        tier_ref: TierRef,
        /// Bytes wanted.
        want: u64,
        /// Bytes free.
        free: u64,
    },
    /// A tier is full and replicas are on their way off it.
    #[serde(rename = "making-room")]
    MakingSpace {
        /// The tier.
        #[serde(rename = "spot")]
        tier_ref: TierRef,
        /// Bytes wanted.
        want: u64,
        /// Bytes free.
        free: u64,
        /// Bytes being removed.
        evicting: u64,
        /// Bytes on their way to a slower tier.
        demoting: u64,
        /// Bytes on their way to the external store.
        draining: u64,
    },
    /// A tier is full, and it is not this run that can free space: others hold a part of it.
    WaitForOthers {
        /// The tier.
        #[serde(rename = "spot")]
        tier_ref: TierRef,
        /// Bytes wanted.
        want: u64,
        /// Bytes free.
        free: u64,
        /// Bytes of the tier that other runs hold, or data kept from earlier ones.
        held: u64,
    },
    /// A tier is full and this is not needed by anything that waits.
    #[serde(rename = "evict-for-room")]
    EvictForSpace {
        /// The tier.
        #[serde(rename = "spot")]
        tier_ref: TierRef,
        /// Bytes wanted.
        want: u64,
        /// Bytes free.
        free: u64,
    },
    /// A tier is full, everything on it is needed: this goes to a slower tier.
    #[serde(rename = "demote-for-room")]
    DemoteForSpace {
        /// The tier.
        #[serde(rename = "spot")]
        tier_ref: TierRef,
        /// Bytes wanted.
        want: u64,
        /// Bytes free.
        free: u64,
    },
    /// A tier is full, slower tiers too: this goes to the external store.
    #[serde(rename = "drain-for-room")]
    DrainForSpace {
        /// The tier.
        #[serde(rename = "spot")]
        tier_ref: TierRef,
        /// Bytes wanted.
        want: u64,
        /// Bytes free.
        free: u64,
    },
    /// A verified replica is stored elsewhere; this one made space.
    MovedAway {
        /// The transfer that moved it.
        transfer: TransferId,
    },
    /// It was assigned, but the space for its inputs went to others before they were there.
    #[serde(rename = "room-gone")]
    SpaceGone,
    /// It was assigned, but an entry that it reads was changed or added to before it began.
    EntryChanged {
        /// The dataset.
        data: DataId,
    },
    /// No node has enough free cores, memory or GPUs.
    WaitForCores {
        /// The node that will be free first.
        node: NodeId,
        /// In how long, as far as is known.
        free_in: Nanos,
    },
    /// Waiting for the node that has the data ends sooner than moving the data.
    WaitForData {
        /// The node.
        node: NodeId,
        /// In how long it is free, as far as is known.
        free_in: Nanos,
    },
    /// It would fit now, but another goes first.
    WaitForTurn {
        /// The first in the queue that waits.
        first: InstanceId,
    },
    /// An earlier run committed the same: same command, environment and inputs.
    Unchanged,
    /// A replica does not match its hash any more.
    Damaged,
    /// It was committed, but its output is needed and no replica is left.
    OutputLost {
        /// The dataset.
        data: DataId,
    },
    /// Its lost output came back with its node before it was made again: it need not run.
    OutputBack {
        /// The dataset.
        data: DataId,
    },
    /// A node that it had a place on is lost.
    NodeLost {
        /// The node.
        node: NodeId,
    },
    /// The copy that it was reading from, on its way itself, has failed.
    ChainBroken,
    /// It came back with its node after it had been given up: it is being made again, or was.
    GivenUp,
    /// The nodes that are left cannot run it, and some are lost.
    WaitForLost {
        /// How many.
        nodes: u32,
    },
    /// Something failed for good, so nothing new is started.
    AfterFailure {
        /// The subject that failed.
        about: Subject,
    },
    /// It failed for good, and everything that does not need it continues.
    GaveUp {
        /// The failure, as it was reported.
        message: String,
    },
    /// It is not run because of a failure.
    NotRun {
        /// The subject that failed, of all that it needs.
        needs: Subject,
        /// Of a step: its instances that need nothing that failed, and that were not started after the failure that stopped the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_started: Option<NotStarted>,
    },
    /// All is done that does not need what has failed.
    Incomplete {
        /// The first few that failed.
        failed: Vec<Subject>,
        /// How many failed.
        failures: u64,
        /// The first few steps that did not run, or not all of them, because of it.
        not_run: Vec<StepId>,
        /// How many steps.
        steps: u64,
    },
    /// Rescue: the run has failed, or is to end (SIGTERM), and the dataset requests to be drained.
    Rescue,
    /// The dataset requests to be drained, and nothing of it was.
    NotRescued {
        /// Why.
        message: String,
    },
    /// The dataset requests to be drained. All of it had been made, and only the rest of it could be copied.
    RescuedInPart {
        /// How much, and why not all.
        message: String,
    },
    /// A failure, as it was reported.
    Failed {
        /// The message.
        message: String,
    },
    /// The run got a request to stop.
    Interrupted {
        /// The signal.
        signal: i32,
    },
    /// The run was interrupted; this was not finished and begins again.
    BeginAnew,
    /// Everything is done.
    AllDone,
}

/// Instances of a step that has instances which need what failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotStarted {
    /// How many need what failed.
    pub need_it: u64,
    /// How many do not.
    pub instances: u64,
    /// The failure that stopped the run.
    pub after: Subject,
}
