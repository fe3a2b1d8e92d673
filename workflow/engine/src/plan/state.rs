//! Everything that the planner of a site knows.

use super::items::{ItemState, Pin, SiteItems};
use super::leeway::Leeway;
use super::nodes::PlannerNodes;
use super::outbox::{MoveRequest, Outbox};
use super::queue::{JobQueueKey, PlannerJobQueue};
use super::reservations::{BackfillPromises, LaterJobs, PlanDeadlines, SpaceClaims};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tarn_types::policy::Policy;
use tarn_types::site::{FlowId, ItemId, Job, JobId, JobNodes, Machine, SiteAction, Store};
use tarn_types::units::{Nanos, Time};

/// How far a job has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlannerJobStage {
    /// Something that it waits for is not there.
    Blocked,
    /// It waits for nodes.
    Queued,
    /// It knows its nodes; its data moves there; it does not have them yet.
    Planned,
    /// It has its nodes; its data moves there.
    Staging,
    /// Its program runs.
    Running,
    /// Its program has ended; it has its nodes until its results are out.
    Draining,
    /// It has ended; the next job of its script uses its nodes.
    Handed,
    /// It has ended.
    Done,
}

/// A job.
#[derive(Debug, Clone)]
pub(crate) struct PlannerJob {
    pub(crate) job: Arc<Job>,
    /// Place in the order of submission: by time, then by number.
    pub(crate) seq: u64,
    pub(crate) submitted: Time,
    pub(crate) key: JobQueueKey,
    pub(crate) stage: PlannerJobStage,
    /// Items and jobs that it still waits for.
    pub(crate) lacks: u32,
    /// Jobs that wait for its end, beside the readers of its outputs.
    pub(crate) followers: Vec<JobId>,
    /// Jobs of its script that are still to use, or use, its allocation; and the present user.
    pub(crate) successors: u32,
    pub(crate) successor: Option<JobId>,
    /// It is to continue in another job's allocation, or does.
    pub(crate) attached: bool,
    /// The host gave it its nodes, and runs it (of one that has ended: ran it).
    pub(crate) by_host: bool,
    /// Planned or allocated nodes.
    pub(crate) nodes: JobNodes,
    /// Layouts that it reads: they stay.
    pub(crate) pinned: Vec<Pin>,
    /// Moves that it waits for now, beside those that its program makes itself to read.
    pub(crate) moving: u32,
    /// Items that it reads outside by itself although its nodes have tiers: that is faster.
    pub(crate) past_tiers: BTreeSet<ItemId>,
    /// Items that its program reads by itself in this allocation, and how many of them have not arrived.
    pub(crate) own: BTreeSet<ItemId>,
    pub(crate) own_left: u32,
    /// Direct moves that begin one after the other: a program on several nodes reads and writes an item through all of
    /// them, item by item. The first is under way.
    pub(crate) in_turn: VecDeque<MoveRequest>,
    /// One of its inputs is best taken from another node, once it is there.
    pub(crate) follows: bool,
    pub(crate) attempt: u32,
    /// When it got its nodes.
    pub(crate) began: Time,
    /// Since when it could have begun.
    pub(crate) ready: Time,
    /// How much of that it waited while nodes slept or woke up.
    pub(crate) held: Nanos,
    /// Its data does not go through its nodes' tiers (there are none, or too small ones): it reads and writes outside.
    pub(crate) direct: bool,
    /// How long its program is expected to read and write, outside by itself and on its nodes' tiers.
    pub(crate) io: Nanos,
    /// Planned: when it is expected to begin.
    pub(crate) begins: Time,
    /// Bytes of its input that lay on its nodes when it got them.
    pub(crate) retained: u64,
    /// Planned: when its max_wait with its node ends.
    pub(crate) max_wait: Time,
    /// Space reserved on each of its nodes for its outputs.
    pub(crate) promised: u64,
    /// Longest way from its begin to its workflow's end (HEFT's upward rank).
    pub(crate) rank: Nanos,
}

impl PlannerJob {
    /// Of an ordinary job, as a time: its place among the others. (Half of the largest number is left for the order of
    /// workflows and jobs at the same time.)
    pub(crate) fn place(&self) -> Time {
        self.job.place.unwrap_or(self.submitted).min(Time::MAX >> 1)
    }
}

/// A workflow.
#[derive(Debug, Clone)]
pub(crate) struct FlowState {
    /// When its first job was submitted.
    pub(crate) arrived: Time,
    pub(crate) jobs: Vec<JobId>,
    /// Jobs that have not ended.
    pub(crate) left: u32,
}

/// The state of a site.
#[derive(Debug, Clone)]
pub(crate) struct PlannerState {
    pub(crate) now: Time,
    pub(crate) policy: Policy,
    pub(crate) store: Store,
    pub(crate) nodes: PlannerNodes,
    pub(crate) jobs: Vec<Option<Box<PlannerJob>>>,
    /// Jobs that wait for the end of a job that was withdrawn, and may be submitted again.
    pub(crate) orphans: BTreeMap<JobId, Vec<JobId>>,
    /// Jobs that may not begin yet.
    pub(crate) later: LaterJobs,
    pub(crate) items: SiteItems,
    pub(crate) flows: BTreeMap<FlowId, FlowState>,
    pub(crate) queue: PlannerJobQueue,
    pub(crate) outbox: Outbox,
    /// Moments at which jobs came so far, and the last of them.
    pub(crate) arrivals: (u64, Option<Time>),
    pub(crate) promises: BackfillPromises,
    pub(crate) plans: PlanDeadlines,
    pub(crate) claims: SpaceClaims,
    /// The first job that was checked for data to bring ahead, and the time of the next check.
    pub(crate) looked_ahead: Option<(JobId, Time)>,
    /// Jobs that run, move data or reboot nodes: nothing of it means that nothing will happen by itself.
    pub(crate) under_way: u32,
    pub(crate) leeway: Leeway,
    pub(crate) deadline: Option<Time>,
    pub(crate) actions: Vec<SiteAction>,
}

impl PlannerState {
    pub(crate) fn new(machine: &Machine, policy: Policy) -> Self {
        Self {
            now: 0,
            policy,
            store: machine.store,
            nodes: PlannerNodes::new(machine),
            jobs: Vec::new(),
            orphans: BTreeMap::new(),
            later: LaterJobs::default(),
            items: SiteItems::default(),
            flows: BTreeMap::new(),
            queue: PlannerJobQueue::default(),
            outbox: Outbox::default(),
            arrivals: (0, None),
            promises: BackfillPromises::default(),
            plans: PlanDeadlines::default(),
            claims: SpaceClaims::default(),
            looked_ahead: None,
            under_way: 0,
            leeway: Leeway::default(),
            deadline: None,
            actions: Vec::new(),
        }
    }

    pub(crate) fn job(&self, id: JobId) -> Option<&PlannerJob> {
        self.jobs.get(id.at())?.as_deref()
    }

    pub(crate) fn job_mut(&mut self, id: JobId) -> Option<&mut PlannerJob> {
        self.jobs.get_mut(id.at())?.as_deref_mut()
    }

    pub(crate) fn item(&self, id: ItemId) -> Option<&ItemState> {
        self.items.get(id)
    }

    pub(crate) fn item_mut(&mut self, id: ItemId) -> Option<&mut ItemState> {
        self.items.get_mut(id)
    }

    /// Asks to decide again at a time, even if nothing happens.
    pub(crate) fn remind(&mut self, at: Time) {
        let at = at.max(self.now + 1);
        self.deadline = Some(self.deadline.map_or(at, |d| d.min(at)));
    }

    pub(crate) fn emit(&mut self, action: SiteAction) {
        self.actions.push(action);
    }
}
