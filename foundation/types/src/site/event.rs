//! Events of a site: the inputs of the planner. The host of a simulated cluster does what the planner decides; another,
//! such as Slurm, decides by itself too and reports the facts.

use super::action::{JobNodes, MoveId};
use super::job::{Item, ItemId, Job, JobId, NodeShare, Spread};
use super::machine::Mode;
use crate::id::NodeId;
use crate::units::Time;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum SiteEvent {
    /// Jobs came in: one batch job, or a whole workflow at once. Ids of jobs are used again after [`SiteEvent::Withdrawn`]
    /// alone; everything that `jobs` name (items, jobs they wait for) is in this event or an earlier one. Items that are known
    /// already stay as they are. The order is the order of the queue.
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
    /// The host found a node in this mode, whether the planner had it changed or not.
    InMode {
        /// The node.
        node: NodeId,
        /// Its mode.
        mode: Mode,
    },
    /// A node that slept can be used.
    Awake {
        /// The node.
        node: NodeId,
    },
    /// A node sleeps, by a decision of the host's: the planner wakes it before it gives it to a job. Nothing follows for one
    /// that has a job, which wakes it.
    Asleep {
        /// The node.
        node: NodeId,
    },
    /// The host can wake a node that sleeps, or cannot: one that is being powered down has to be off first.
    Wakeable {
        /// The node.
        node: NodeId,
        /// Whether it can.
        is_wakeable: bool,
    },
    /// The host has something on a node that the planner does not know, or has not any more.
    Needed {
        /// The node.
        node: NodeId,
        /// Whether it must not sleep for that.
        is_needed: bool,
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
    /// The host gave a job these nodes, whether the planner had chosen them or not. From now on the host runs the job: it ends
    /// in `Ended`, and is no more tried again by the planner.
    Began {
        /// The job.
        job: JobId,
        /// All its nodes, in the order of its ranks.
        nodes: JobNodes,
        /// Its share of each.
        share: NodeShare,
        /// Since when it has them.
        since: Time,
    },
    /// A job waits or runs no more: it was cancelled, is held, or is not eligible. What it reads stays where it is, and jobs
    /// that wait for its end or its outputs continue to wait, until a job with this id is submitted. An item that no job
    /// names any more and that is nowhere is forgotten.
    Withdrawn {
        /// The job.
        job: JobId,
    },
    /// A job has other properties. Its workflow, its script, the jobs before it and its data stay the same; of a job with
    /// nodes, its resources too.
    Changed {
        /// The job.
        job: JobId,
        /// All its properties from now on.
        spec: Arc<Job>,
    },
    /// A node takes no new jobs: it drains, is maintained, or is reserved for others. Its jobs and its data stay.
    Closed {
        /// The node.
        node: NodeId,
        /// Until when, if that is known. It stays closed until `Opened` comes.
        until: Option<Time>,
    },
    /// A node takes jobs again.
    Opened {
        /// The node.
        node: NodeId,
    },
    /// The host found an item here, or brought it by itself. A move that brings it there is over.
    Stored {
        /// The item.
        item: ItemId,
        /// The nodes that hold it: one layout. None for the external store.
        nodes: JobNodes,
        /// How it is spread over them.
        spread: Spread,
        /// Bytes of the item.
        bytes: u64,
    },
    /// An item is not here any more: the host dropped it, or it was lost. Moves that read it end with events of their own.
    Gone {
        /// The item.
        item: ItemId,
        /// The nodes that held it: one layout. None for the external store.
        nodes: JobNodes,
        /// How it was spread over them.
        spread: Spread,
    },
    /// The planner allocated nodes, and the host did not start the job there: it waits again in its place.
    NotBegun {
        /// The job.
        job: JobId,
    },
    /// The begin that an ordinary job was promised before the planner was made.
    Promised {
        /// The job.
        job: JobId,
        /// The begin.
        begin: Time,
    },
}

/// Why the planner refuses an event of the host: the host's state and the planner's differ. The event changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SiteEventError {
    /// The machine has no such node.
    #[error("the machine has no node {0}: make a planner for the present set of nodes")]
    UnknownNode(NodeId),
    /// A list of nodes has one twice.
    #[error("node {0} is in the list twice: give each node once")]
    NodeTwice(NodeId),
    /// A job has no nodes.
    #[error("job {0} begins without nodes: give all its nodes")]
    NoNodes(JobId),
    /// A node is lost.
    #[error("node {0} is lost: report that it is back first")]
    NodeIsLost(NodeId),
    /// A node is closed already.
    #[error("node {0} is closed already, until the same time: report changes only")]
    ClosedAlready(NodeId),
    /// A node is open already.
    #[error("node {0} is open: report changes only")]
    OpenAlready(NodeId),
    /// No such job was submitted, or it is out.
    #[error("job {0} is not known: submit it first")]
    UnknownJob(JobId),
    /// A job was submitted before.
    #[error("job {0} is known already: withdraw it before it is submitted again")]
    KnownJob(JobId),
    /// The number of a job or an item is too high for its table.
    #[error("number {0} is too high: number jobs and items from 0")]
    NumberTooHigh(u32),
    /// A job has ended.
    #[error("job {0} has ended: only its withdrawal is an event")]
    HasEnded(JobId),
    /// The host runs the job already.
    #[error("job {0} has begun already: report its end first")]
    HasBegun(JobId),
    /// The planner has allocated no nodes to the job.
    #[error("job {0} has no nodes that the host could refuse")]
    HasNoNodes(JobId),
    /// It continues in the allocation of another.
    #[error("job {0} continues in the allocation of another job: report that one")]
    Continues(JobId),
    /// The jobs that it waits for cannot change.
    #[error(
        "the workflow, the script, the predecessors or the data of job {0} would change: withdraw it and submit it again"
    )]
    OtherNeeds(JobId),
    /// Its resources cannot change while it has nodes.
    #[error("job {0} has nodes and would ask for others: report its end first")]
    OtherResources(JobId),
    /// A job asks for no nodes.
    #[error("job {0} asks for no nodes: give at least 1")]
    EmptyRequest(JobId),
    /// Jobs continue in each other's allocation.
    #[error(
        "job {0} would continue in an allocation that waits for it: give each script a first job"
    )]
    ContinuesItself(JobId),
    /// No such item was submitted, or it is forgotten.
    #[error("item {0} is not known: submit it first")]
    UnknownItem(ItemId),
    /// An item has more bytes than can be counted.
    #[error("item {0} has more bytes than a tier can have: give the bytes of the item")]
    TooManyBytes(ItemId),
    /// It is not there.
    #[error("item {0} is not known to be there: report changes only")]
    NotStored(ItemId),
    /// Only ordinary jobs that wait have a promise.
    #[error("job {0} is promised nothing: it is a workflow's, or does not wait for nodes")]
    NotPromised(JobId),
    /// Another job has the promise.
    #[error("job {0} has the promise, which one job has at a time")]
    OtherPromise(JobId),
    /// The policy promises nothing.
    #[error("this policy promises nothing: only `data` and `energy` do")]
    NoPromises,
}
