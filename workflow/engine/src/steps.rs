//! Steps and their instances: how far each has come.

mod kept;

use crate::kept::InstanceCheckpoints;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, NodeId, StepId, TierId, TierRef};
use tarn_types::part::PartRef;
use tarn_types::policy::Order;
use tarn_types::units::{Nanos, Time};
use tarn_types::workflow::Workflow;

/// How far an instance has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InstanceProgress {
    /// It has no place yet.
    Pending,
    /// It has a place; its inputs are on their way.
    Assigned(InstancePlacement),
    /// Its process runs.
    Running(InstancePlacement),
    /// Committed in this run.
    Done,
    /// Committed by an earlier run.
    Reused,
    /// Failed for good.
    Failed,
}

/// The places of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InstancePlacement {
    pub(crate) tier_refs: Vec<TierRef>,
    /// Bytes reserved on each spot for its outputs.
    pub(crate) reserve: u64,
    /// Its step's [`StepState::reserve_factor`] when it was placed.
    pub(crate) factor: u64,
    /// When it was expected to end when it was placed.
    pub(crate) end: Time,
    /// When it was started, once it was.
    pub(crate) started: Option<Time>,
    /// Its stop was ordered.
    pub(crate) stopping: bool,
    /// The replicas it reads, once it was started.
    pub(crate) pinned: Vec<(PartRef, TierRef)>,
}

/// An entry that an instance reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntryInput {
    /// The position of the use in its step.
    pub(crate) used: usize,
    pub(crate) data: DataId,
    pub(crate) version: u32,
    pub(crate) name: String,
    /// The instance that is to make it, of the step that makes the version.
    pub(crate) maker: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct StepInstance {
    pub(crate) item: Option<String>,
    /// The parts it reads: `needs[use][position of node]`, empty lists for `out`s.
    pub(crate) needs: Vec<Vec<Vec<PartRef>>>,
    /// Entries that it waits for by itself, not with all others of its step.
    pub(crate) entries: Vec<EntryInput>,
    /// All that it reads is in `needs`: none of its entries is still to come.
    pub(crate) inputs_known: bool,
    pub(crate) progress: InstanceProgress,
    /// Since when its inputs are known.
    pub(crate) since: Time,
    /// The nodes of its newest attempt.
    pub(crate) ran_on: Vec<NodeId>,
    /// Attempts begun.
    pub(crate) attempts: u32,
    /// Attempts that failed.
    pub(crate) failures: u32,
    /// Attempts that were lost with a node.
    pub(crate) losses: u32,
    /// Of a step that continues from its checkpoints.
    pub(crate) kept: InstanceCheckpoints,
    /// The slowest tier on which an attempt ran out of space: the next one takes a slower one, if there is one.
    pub(crate) outgrown: Option<TierId>,
    /// The identity, once all its inputs have been read.
    pub(crate) identity: Option<Hash>,
    /// It has to run although an earlier run committed it: its output is lost.
    pub(crate) forced: bool,
}

impl StepInstance {
    /// Every part it reads, once.
    pub(crate) fn parts(&self) -> BTreeSet<PartRef> {
        self.needs.iter().flatten().flatten().copied().collect()
    }

    pub(crate) fn placed(&self) -> Option<&InstancePlacement> {
        match &self.progress {
            InstanceProgress::Assigned(p) | InstanceProgress::Running(p) => Some(p),
            _ => None,
        }
    }

    pub(crate) fn finished(&self) -> bool {
        matches!(
            self.progress,
            InstanceProgress::Done | InstanceProgress::Reused
        )
    }
}

#[derive(Debug, Default)]
pub(crate) struct StepState {
    /// `None` until its inputs are sealed, but for entries that each instance waits for by itself.
    pub(crate) instances: Option<Vec<StepInstance>>,
    /// Instances that are neither done nor reused.
    pub(crate) left: u32,
    /// Sum and number of observed run times.
    pub(crate) observed: (Nanos, u64),
    /// Sum of the bytes that its instances were seen to write on one node, and their number.
    pub(crate) written: (u64, u64),
    /// Doubles when an instance ran out of the space that was reserved with it.
    pub(crate) reserve_factor: u64,
    /// The most that an instance was seen to write on one node when it ran out of space.
    pub(crate) outgrew: u64,
    /// It was complete once: those that wait for it know.
    pub(crate) announced: bool,
}

impl StepState {
    /// Bound and nothing left to do.
    pub(crate) fn complete(&self) -> bool {
        self.instances.is_some() && self.left == 0
    }
}

#[derive(Debug)]
pub(crate) struct Steps {
    pub(crate) all: Vec<StepState>,
    /// Instances without a place, by [`Steps::turn`].
    pub(crate) pending: BTreeSet<(u64, InstanceId)>,
    /// The policy's order.
    order: Order,
    /// Declared time limits by step, [`Nanos::MAX`] where there is none.
    limits: Vec<Nanos>,
    /// Instances whose identity has just become known: perhaps an earlier run has committed them.
    pub(crate) fresh: BTreeSet<InstanceId>,
    /// Instances with a place, by node.
    pub(crate) on_node: Vec<BTreeSet<InstanceId>>,
    /// Instances with a place.
    pub(crate) placed: BTreeSet<InstanceId>,
    /// Instances that have to run although they have committed once: their output is lost.
    pub(crate) remade: BTreeSet<InstanceId>,
    /// Instances that have checkpoints somewhere.
    pub(crate) kept: BTreeSet<InstanceId>,
    /// Instances whose process runs.
    pub(crate) running: BTreeSet<InstanceId>,
    /// Upward ranks in nanoseconds, by step.
    pub(crate) ranks: Vec<u64>,
    /// Since the ranks were computed: steps bound, and doublings of a step's observed instances.
    pub(crate) stale: usize,
    /// Steps that each step must wait for beyond its data, and that are not complete.
    pub(crate) after_left: Vec<u32>,
    /// For each step, those that name it in `after`.
    pub(crate) followers: BTreeMap<StepId, Vec<StepId>>,
    /// Steps not yet bound whose inputs may all be sealed.
    pub(crate) to_bind: BTreeSet<StepId>,
    /// Steps not complete.
    pub(crate) incomplete: usize,
    /// Sum and number of the observed run times of all steps.
    pub(crate) observed: (Nanos, u64),
}

impl Steps {
    pub(crate) fn new(w: &Workflow, nodes: usize, order: Order) -> Self {
        let mut followers: BTreeMap<StepId, Vec<StepId>> = BTreeMap::new();
        for (i, step) in w.steps.iter().enumerate() {
            for before in &step.after {
                followers.entry(*before).or_default().push(StepId(i as u32));
            }
        }
        let ids = (0..w.steps.len()).map(|i| StepId(i as u32));
        Self {
            all: w
                .steps
                .iter()
                .map(|_| StepState {
                    reserve_factor: 1,
                    ..StepState::default()
                })
                .collect(),
            pending: BTreeSet::new(),
            order,
            limits: w
                .steps
                .iter()
                .map(|s| s.time.unwrap_or(Nanos::MAX))
                .collect(),
            fresh: BTreeSet::new(),
            on_node: vec![BTreeSet::new(); nodes],
            placed: BTreeSet::new(),
            remade: BTreeSet::new(),
            kept: BTreeSet::new(),
            running: BTreeSet::new(),
            ranks: vec![0; w.steps.len()],
            stale: usize::MAX,
            after_left: w.steps.iter().map(|s| s.after.len() as u32).collect(),
            followers,
            to_bind: ids.collect(),
            incomplete: w.steps.len(),
            observed: (0, 0),
        }
    }

    pub(crate) fn instance(&self, id: InstanceId) -> Option<&StepInstance> {
        self.all
            .get(id.step.at())?
            .instances
            .as_ref()?
            .get(id.index as usize)
    }

    pub(crate) fn instance_mut(&mut self, id: InstanceId) -> Option<&mut StepInstance> {
        self.all
            .get_mut(id.step.at())?
            .instances
            .as_mut()?
            .get_mut(id.index as usize)
    }

    /// An instance's place in the policy's order: lower goes first. Of equals, the first submitted: the earlier step of
    /// the file, the earlier element.
    pub(crate) fn turn(&self, id: InstanceId) -> (u64, InstanceId) {
        let key = match self.order {
            Order::Fcfs | Order::Greedy | Order::Easy | Order::Conservative | Order::SameNodes => 0,
            Order::SjfEasy => self.limits[id.step.at()],
            Order::Heft | Order::Data | Order::Energy => u64::MAX - self.ranks[id.step.at()],
        };
        (key, id)
    }

    /// Puts an instance among those that wait for a place, if all that it reads is known.
    pub(crate) fn enqueue(&mut self, id: InstanceId) {
        if self.instance(id).is_some_and(|i| !i.inputs_known) {
            return;
        }
        self.pending.insert(self.turn(id));
    }

    /// Takes an instance from those that wait for a place.
    pub(crate) fn dequeue(&mut self, id: InstanceId) {
        self.pending.remove(&self.turn(id));
    }

    /// The ranks of the steps are others: the instances that wait for a place get into the order of these.
    pub(crate) fn reorder(&mut self, ranks: Vec<Nanos>) {
        self.ranks = ranks;
        self.stale = 0;
        let waits = |i: &StepInstance| i.progress == InstanceProgress::Pending;
        let waiting = self.instances().filter(|(_, i)| waits(i));
        let waiting: Vec<InstanceId> = waiting.map(|(id, _)| id).collect();
        self.pending.clear();
        for id in waiting {
            self.enqueue(id);
        }
    }

    /// Every instance that is bound, with its name.
    pub(crate) fn instances(&self) -> impl Iterator<Item = (InstanceId, &StepInstance)> {
        self.all.iter().enumerate().flat_map(|(s, state)| {
            let list = state.instances.as_deref().unwrap_or_default();
            list.iter().enumerate().map(move |(i, instance)| {
                let id = InstanceId {
                    step: StepId(s as u32),
                    index: i as u32,
                };
                (id, instance)
            })
        })
    }
}
