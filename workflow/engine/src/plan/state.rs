//! Everything that the planner of a site knows.

use super::ahead::FirstJobReservation;
use super::energy::Leeway;
use super::moves::{MoveRequest, Outbox};
use super::nodes::PlannerNodes;
use super::queue::{JobQueueKey, PlannerJobQueue};
use super::view::Shadow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tarn_types::id::NodeId;
use tarn_types::policy::Policy;
use tarn_types::site::{
    FlowId, Item, ItemId, Job, JobId, JobNodes as NodeList, Machine, MoveId, SiteAction, Spread,
    Store,
};
use tarn_types::units::{Nanos, Time};

/// Attempts of a job after which it is given up: what fails three times fails for a reason of its own.
pub(crate) const MAX_ATTEMPTS: u32 = 3;

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
#[derive(Debug)]
pub(crate) struct PlannerJob {
    pub(crate) job: Arc<Job>,
    /// Place in the order of submission: by time, then by number.
    pub(crate) seq: u64,
    pub(crate) submitted: Time,
    pub(crate) key: JobQueueKey,
    pub(crate) stage: PlannerJobStage,
    /// Items and jobs that it still waits for.
    pub(crate) lacks: u32,
    /// Jobs that wait for its end, beside the readers of what it writes.
    pub(crate) followers: Vec<JobId>,
    /// Jobs of its script that are still to use, or use, its allocation; the one that does.
    pub(crate) successors: u32,
    pub(crate) successor: Option<JobId>,
    /// It is to go on in another job's allocation, or does.
    pub(crate) attached: bool,
    /// Planned or allocated nodes.
    pub(crate) nodes: NodeList,
    /// Layouts that it reads: they stay.
    pub(crate) pinned: Vec<Pin>,
    /// Moves that it waits for now, beside those that its program makes itself to read.
    pub(crate) moving: u32,
    /// Items that it reads outside by itself although its nodes have tiers: that is faster.
    pub(crate) past_tiers: BTreeSet<ItemId>,
    /// Items that its program reads by itself in this allocation, and how many of them have not arrived.
    pub(crate) own: BTreeSet<ItemId>,
    pub(crate) own_left: u32,
    /// Direct moves that begin one after the other: what a program on several nodes reads and writes, it reads and
    /// writes through all of them, item by item. The first is under way.
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
    /// Space promised on each of its nodes for what it writes.
    pub(crate) promised: u64,
    /// Longest way from its begin to its workflow's end (HEFT's upward rank).
    pub(crate) rank: Nanos,
}

/// A hold on a layout: given back once, and nothing where the layout is gone.
#[derive(Debug)]
pub(crate) struct Pin {
    pub(crate) item: ItemId,
    pub(crate) layout: u64,
}

/// Where an item lies: a list of nodes and how.
#[derive(Debug, Clone)]
pub(crate) struct ItemLayout {
    /// No other layout has or had it.
    pub(crate) number: u64,
    /// Bytes that it takes of each of its nodes.
    pub(crate) each: u64,
    pub(crate) nodes: NodeList,
    /// Positions in `nodes` by node; `None` where these ascend.
    pub(crate) positions: Option<Arc<[(NodeId, usize)]>>,
    pub(crate) spread: Spread,
    /// The move that brings it; `None` once it is there.
    pub(crate) coming: Option<MoveId>,
    /// When it was expected to be there, when it was ordered.
    pub(crate) eta: Time,
    /// Jobs and moves that read it.
    pub(crate) pins: u32,
    /// When it was last used.
    pub(crate) used: Time,
}

/// An item.
#[derive(Debug)]
pub(crate) struct ItemState {
    pub(crate) item: Item,
    pub(crate) producer: Option<JobId>,
    /// Its producer has ended (or nobody makes it), and it lies somewhere.
    pub(crate) made: bool,
    /// A copy is outside.
    pub(crate) outside: bool,
    /// The move that brings it outside.
    pub(crate) leaving: Option<MoveId>,
    /// Jobs that read it and have not ended.
    pub(crate) readers: BTreeSet<JobId>,
    pub(crate) layouts: Vec<ItemLayout>,
}

/// A workflow.
#[derive(Debug)]
pub(crate) struct FlowState {
    /// When its first job was submitted.
    pub(crate) arrived: Time,
    pub(crate) jobs: Vec<JobId>,
    /// Jobs that have not ended.
    pub(crate) left: u32,
}

/// What the first ordinary job that waits was promised.
#[derive(Debug)]
pub(crate) struct BackfillReservation {
    pub(crate) job: JobId,
    /// The earliest begin that it could rely on so far.
    pub(crate) begin: Time,
    /// When it could begin as things are, if there are nodes for it at all; and as they were: the time, and how often nodes
    /// had changed hands.
    pub(crate) now: Option<Shadow>,
    pub(crate) seen: (Time, u64),
}

/// The state of a site.
#[derive(Debug)]
pub(crate) struct PlannerState {
    pub(crate) now: Time,
    pub(crate) policy: Policy,
    pub(crate) store: Store,
    pub(crate) nodes: PlannerNodes,
    pub(crate) jobs: Vec<Option<Box<PlannerJob>>>,
    /// Jobs that were refused or given up.
    pub(crate) gone: BTreeSet<JobId>,
    pub(crate) items: Vec<Option<Box<ItemState>>>,
    pub(crate) flows: BTreeMap<FlowId, FlowState>,
    pub(crate) queue: PlannerJobQueue,
    pub(crate) outbox: Outbox,
    /// Layouts that there have been.
    pub(crate) layouts: u64,
    /// Moments at which jobs came so far, and the last of them.
    pub(crate) arrivals: (u64, Option<Time>),
    pub(crate) promise: Option<BackfillReservation>,
    /// Ordinary jobs in the queue, in its order (with `data` and `energy`).
    pub(crate) ordinary: BTreeSet<(JobQueueKey, JobId)>,
    /// Planned jobs by the end of their max_wait.
    pub(crate) plans: BTreeSet<(Time, JobId)>,
    /// Jobs that wait for room on tiers: tried again when something goes.
    pub(crate) roomless: BTreeSet<JobId>,
    /// In this round: space that is kept for the first of them.
    pub(crate) claim: Option<FirstJobReservation>,
    /// The first job for which it was asked whether its data should come ahead, and when that is asked again.
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
            gone: BTreeSet::new(),
            items: Vec::new(),
            flows: BTreeMap::new(),
            queue: PlannerJobQueue::default(),
            outbox: Outbox::default(),
            layouts: 0,
            arrivals: (0, None),
            promise: None,
            ordinary: BTreeSet::new(),
            plans: BTreeSet::new(),
            roomless: BTreeSet::new(),
            claim: None,
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
        self.items.get(id.at())?.as_deref()
    }

    pub(crate) fn item_mut(&mut self, id: ItemId) -> Option<&mut ItemState> {
        self.items.get_mut(id.at())?.as_deref_mut()
    }

    pub(crate) fn emit(&mut self, action: SiteAction) {
        self.actions.push(action);
    }
}
