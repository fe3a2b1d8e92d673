//! The state of a run, and the two ways it changes: by an event, by an action. No choice is made here.

mod recount;
mod transfers;

use crate::cache::DataCache;
use crate::capacity::Demand;
use crate::data::{PartReplica, PartReplicaState, TrackedData, TrackedPart, makes, reads};
use crate::entries::read_by_element;
use crate::failed::GivenUp;
use crate::ledger::Ledger;
use crate::links::NodeLinkLoads;
use crate::lost::ReturnedReplicas;
use crate::partitions::Partitions;
use crate::rank;
use crate::steps::{InstancePlacement, InstanceProgress, Steps};
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::account::{add, sub};
use tarn_types::action::{Action, AttemptSpec, Do, Outcome, Subject};
use tarn_types::energy::EnergyRank;
use tarn_types::event::{AttemptOutcome, Event, FailureKind, PriorData, Start, Usage};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, NodeId, StepId, TierRef, TransferId};
use tarn_types::part::{PartInfo, PartRef, Place, Transfer, TransferKind};
use tarn_types::reason::Reason;
use tarn_types::units::Time;
use tarn_types::workflow::Workflow;

/// Tries to move a part, in a row and each with every place that it can be read from, after which the run gives up:
/// transient faults of a busy store pass within a few tries, lasting ones do not pass at all.
pub(crate) const MAX_TRANSFER_FAILURES: u32 = 3;

/// SIGTERM: what asks for an end in order, such as the end of an allocation.
const TERMINATE: i32 = 15;

/// Why nothing new is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunStopReason {
    /// This failed for good.
    Failed { about: Subject, message: String },
    /// All is done that does not need what has failed.
    Incomplete,
    /// Somebody asked for it.
    Interrupted(i32),
}

/// A transfer under way.
#[derive(Debug)]
pub(crate) struct EngineTransfer {
    pub(crate) transfer: Transfer,
    /// Its sources are to be removed once it is done.
    pub(crate) releases: bool,
    pub(crate) abandoned: bool,
    pub(crate) rescue: bool,
    /// Bytes of content it moves.
    pub(crate) bytes: u64,
}

fn node_of(place: &Place) -> Option<NodeId> {
    match place {
        Place::Node(spot) => Some(spot.node),
        _ => None,
    }
}

fn producers(w: &Workflow) -> BTreeMap<(DataId, u32), StepId> {
    let steps = (0u32..).map(StepId).zip(&w.steps);
    let made = steps.flat_map(|(id, step)| makes(step).map(move |version| (version, id)));
    made.collect()
}

fn readers(w: &Workflow) -> BTreeMap<(DataId, u32), Vec<StepId>> {
    let mut readers: BTreeMap<_, Vec<StepId>> = BTreeMap::new();
    for (i, step) in (0u32..).zip(&w.steps) {
        for version in reads(step) {
            readers.entry(version).or_default().push(StepId(i));
        }
    }
    readers
}

/// Everything the engine knows.
#[derive(Debug)]
pub(crate) struct EngineState {
    pub(crate) start: Start,
    pub(crate) now: Time,
    pub(crate) data: TrackedData,
    pub(crate) steps: Steps,
    pub(crate) ledger: Ledger,
    pub(crate) partitions: Partitions,
    /// For each version, the steps that read it.
    pub(crate) readers: BTreeMap<(DataId, u32), Vec<StepId>>,
    /// For each version that is made, the step that makes it.
    pub(crate) producers: BTreeMap<(DataId, u32), StepId>,
    /// For each step, the versions of which its instances read entries of their own elements alone.
    pub(crate) by_element: Vec<BTreeSet<(DataId, u32)>>,
    /// Sources that have not been listed.
    pub(crate) unlisted: BTreeSet<DataId>,
    /// Datasets whose last version is sealed, has to go to a `dest` and is not on its way there.
    pub(crate) undelivered: BTreeSet<DataId>,
    /// Parts that are promised to be kept, were there and are lost.
    pub(crate) unkept: BTreeSet<PartRef>,
    /// What came back with lost nodes and is none of the replicas.
    pub(crate) returned: ReturnedReplicas,
    /// Some of them have not been looked at.
    pub(crate) strays_came: bool,
    pub(crate) transfers: BTreeMap<TransferId, EngineTransfer>,
    pub(crate) next_transfer: u64,
    /// Sources asked for and not yet listed.
    pub(crate) listing: BTreeSet<DataId>,
    pub(crate) prior: BTreeMap<Hash, u32>,
    pub(crate) stop: Option<RunStopReason>,
    /// What has failed for good while the rest goes on.
    pub(crate) given_up: GivenUp,
    /// Instances that were placed when an entry of a dataset, which they read, became another: they give their places back.
    pub(crate) outdated: BTreeMap<InstanceId, DataId>,
    /// The run was asked to end in order: what asks to be drained when it fails is brought out first.
    pub(crate) drains: bool,
    /// Last note about each subject: the same is not said twice.
    pub(crate) notes: BTreeMap<Subject, Reason>,
    pub(crate) finished: Option<Outcome>,
    pub(crate) deadline: Option<Time>,
    /// What the machine can never hold has been looked for.
    pub(crate) fits_checked: bool,
    /// Bytes under way on the external link (in, out) and between nodes.
    pub(crate) under_way: BTreeMap<TransferKind, u64>,
    /// Those between nodes, node by node.
    pub(crate) links: NodeLinkLoads,
    /// What each node drew for each core and how warm it was when the run began.
    pub(crate) draws: Vec<EnergyRank>,
    /// Transfers under way that read what was on its way to a node and has not come.
    pub(crate) orphans: BTreeSet<TransferId>,
    /// Until then some part rests whose move has failed: that is something under way.
    pub(crate) rests_until: Time,
    /// Evictions under way.
    pub(crate) leaving: u64,
    /// What stays on the tiers for later runs.
    pub(crate) cache: DataCache,
}

impl EngineState {
    pub(crate) fn new(now: Time, start: &Start) -> Self {
        let w = &start.workflow;
        let producers = producers(w);
        let by_element = w.steps.iter();
        let by_element = by_element.map(|step| read_by_element(w, step, &producers));
        let by_element = by_element.collect();
        let mut state = Self {
            now,
            data: TrackedData::new(w),
            steps: Steps::new(w, start.cluster.nodes.len(), start.options.policy.order),
            ledger: Ledger::new(&start.cluster),
            partitions: Partitions::new(w),
            readers: readers(w),
            producers,
            by_element,
            unlisted: (0u32..)
                .zip(&w.data)
                .filter(|(_, d)| d.source.is_some())
                .map(|(i, _)| DataId(i))
                .collect(),
            undelivered: BTreeSet::new(),
            unkept: BTreeSet::new(),
            returned: ReturnedReplicas::new(),
            strays_came: false,
            transfers: BTreeMap::new(),
            next_transfer: 0,
            listing: BTreeSet::new(),
            prior: start
                .prior
                .iter()
                .enumerate()
                .rev()
                .map(|(i, p)| (p.identity, i as u32))
                .collect(),
            stop: None,
            given_up: GivenUp::default(),
            outdated: BTreeMap::new(),
            drains: false,
            notes: BTreeMap::new(),
            finished: None,
            deadline: None,
            fits_checked: false,
            under_way: BTreeMap::new(),
            links: NodeLinkLoads::new(start.cluster.nodes.len()),
            draws: start.cluster.energy_ranks(),
            orphans: BTreeSet::new(),
            rests_until: 0,
            leaving: 0,
            cache: DataCache::default(),
            start: start.clone(),
        };
        for prior in &start.prior_data {
            state.take_from_others(prior);
        }
        rank::refresh(&mut state);
        state.settle();
        state
    }

    pub(crate) fn apply_event(&mut self, now: Time, event: &Event) {
        self.now = self.now.max(now);
        match event {
            Event::Started(_) | Event::Timer => {}
            Event::Image {
                instance,
                attempt,
                what,
            } => self.imaged(*instance, *attempt, what),
            Event::SourceListed { data, parts } => self.source_listed(*data, parts),
            Event::SourceFailed { data, failure } => {
                self.listing.remove(data);
                self.fail(Subject::Data(*data), failure.message.clone());
            }
            Event::TransferDone {
                id, hashes, stored, ..
            } => self.transfer_done(*id, hashes, stored),
            Event::TransferFailed {
                id,
                failure,
                damaged,
            } => self.transfer_failed(*id, failure, *damaged),
            Event::Ended {
                instance,
                ended,
                usage,
                ..
            } => self.ended(*instance, ended, usage),
            Event::Evicted { part, at } => self.evicted(*part, at),
            Event::Capacity { spot, bytes } => self.ledger.set_capacity(*spot, *bytes),
            Event::Interrupted { signal } => {
                // Whoever asks again is impatient.
                self.drains = *signal == TERMINATE
                    && !matches!(self.stop, Some(RunStopReason::Interrupted(_)));
                self.stop = Some(RunStopReason::Interrupted(*signal));
            }
            Event::Resumed {
                found,
                pinned,
                set_aside,
            } => {
                self.start.resume(pinned, set_aside.as_deref());
                self.resumed(found);
            }
            Event::NodeLost { node, .. } => self.node_lost(*node),
            Event::NodeBack {
                node,
                capacities,
                whole,
            } => self.node_back(*node, capacities, whole),
        }
        self.settle();
    }

    pub(crate) fn apply_action(&mut self, action: &Action) {
        match &action.what {
            Do::List { data } => {
                self.listing.insert(*data);
            }
            Do::Transfer(t) => self.transfer_begun(t, &action.why),
            Do::Abandon { id } => {
                if let Some(active) = self.transfers.get_mut(id) {
                    active.abandoned = true;
                }
            }
            Do::Assign {
                instance,
                nodes,
                reserve,
                end,
            } => self.assigned(*instance, nodes, *reserve, *end),
            Do::Unassign { instance } => self.taken_back(*instance),
            Do::Run(run) => self.run_begun(run),
            Do::Stop { instance, .. } => {
                if let Some(InstanceProgress::Running(p)) =
                    self.steps.instance_mut(*instance).map(|i| &mut i.progress)
                {
                    p.stopping = true;
                }
            }
            Do::Reuse { instance, prior } => self.reused(*instance, *prior),
            Do::CopyImage {
                instance,
                to,
                reserve,
                ..
            } => self.copy_begun(*instance, *to, *reserve),
            Do::Forget { instance, at } => self.forgotten(*instance, at),
            Do::Discard { partition, .. } => self.discarded(*partition),
            Do::Evict { part, key, at } if self.begin_returned_eviction(*part, key, at) => {}
            Do::Evict { part, at, .. } => {
                self.data.to_release.remove(&(*part, at.clone()));
                self.uncached(*part, at);
                if let Some(r) = self.data.replica_mut(*part, at) {
                    r.state = PartReplicaState::Leaving;
                    self.leaving += 1;
                }
                // What is damaged or contradicts a new run is made again.
                if !matches!(action.why, Reason::Damaged | Reason::OutputLost { .. }) {
                    self.note_thinned(*part);
                }
            }
            Do::Cache { part, at, .. } => {
                self.cached(*part, *at);
                self.note_thinned(*part);
            }
            Do::Note { about } => self.noted(*about, &action.why),
            Do::Finish { outcome } => self.finished = Some(*outcome),
        }
        self.settle();
    }

    /// The instance that makes a part; `None` for one of a source.
    pub(crate) fn producer(&self, name: PartRef) -> Option<InstanceId> {
        let step = *self.producers.get(&(name.data, name.version))?;
        Some(InstanceId {
            step,
            index: name.origin,
        })
    }

    /// Stops the run for good because of a failure; the first one counts.
    pub(crate) fn fail(&mut self, about: Subject, message: String) {
        self.stop
            .get_or_insert(RunStopReason::Failed { about, message });
    }

    fn noted(&mut self, about: Subject, why: &Reason) {
        self.notes.insert(about, why.clone());
        match (why, about) {
            (Reason::OutputLost { .. }, Subject::Instance(id)) => self.revive(id),
            (Reason::OutputBack { .. }, Subject::Instance(id)) => self.output_back(id),
            (Reason::Failed { message }, Subject::Instance(id)) => {
                if let Some(i) = self.steps.instance_mut(id) {
                    i.progress = InstanceProgress::Failed;
                }
                self.steps.dequeue(id);
                self.fail(about, message.clone());
            }
            (Reason::Failed { message }, _) => self.fail(about, message.clone()),
            (Reason::GaveUp { .. }, _) => self.gave_up(about),
            (Reason::Incomplete { .. }, Subject::Run) => {
                self.stop.get_or_insert(RunStopReason::Incomplete);
            }
            _ => {}
        }
    }

    fn source_listed(&mut self, data: DataId, parts: &[PartInfo]) {
        self.listing.remove(&data);
        let version = self.data.version_mut(data, 0);
        for info in parts {
            let key = (0, info.seq);
            if !version.parts.contains_key(&key) {
                version.insert(key, TrackedPart::new(info.clone()));
            }
            let Some(part) = version.parts.get_mut(&key) else {
                continue;
            };
            let replica = PartReplica {
                state: PartReplicaState::Present,
                stored: 0,
                pins: 0,
                staged: false,
                is_others: false,
            };
            part.replicas.insert(Place::Source, replica);
        }
        version.sealed = true;
        self.unlisted.remove(&data);
        self.note_sealed(data, 0);
        self.wake_readers(data, 0);
    }

    /// A dataset of another workflow is there, as a source is, on the nodes.
    fn take_from_others(&mut self, prior: &PriorData) {
        let version = self.data.version_mut(prior.data, 0);
        for part in &prior.parts {
            let places = part.at.iter().map(|(spot, _)| Place::Node(*spot));
            let mut known = TrackedPart::new(part.info.clone());
            known
                .replicas
                .extend(places.map(|at| (at, PartReplica::OF_OTHERS)));
            version.insert((0, part.info.seq), known);
        }
        version.sealed = true;
    }

    fn assigned(&mut self, id: InstanceId, spots: &[TierRef], reserve: u64, end: Time) {
        self.steps.dequeue(id);
        for s in spots {
            self.ledger.reserve(*s, reserve);
            self.steps.on_node[s.node.at()].insert(id);
        }
        self.steps.placed.insert(id);
        self.partitions_placed(id, spots);
        // What it sets aside for itself has room for images too.
        self.give_buddies_back(id, |at| spots.contains(&at));
        let factor = self.steps.all[id.step.at()].reserve_factor;
        if let Some(i) = self.steps.instance_mut(id) {
            i.progress = InstanceProgress::Assigned(InstancePlacement {
                spots: spots.to_vec(),
                reserve,
                factor,
                end,
                started: None,
                pinned: Vec::new(),
                stopping: false,
            });
        }
    }

    /// Takes an instance from its nodes; returns where it was.
    fn displaced(&mut self, id: InstanceId) -> Option<InstancePlacement> {
        let placed = self.steps.instance(id)?.placed()?.clone();
        for s in &placed.spots {
            self.ledger.unreserve(*s, placed.reserve);
            self.steps.on_node[s.node.at()].remove(&id);
        }
        self.partitions_displaced(id, &placed.spots);
        self.steps.placed.remove(&id);
        self.steps.running.remove(&id);
        if placed.spots.iter().any(|s| self.ledger.is_lost(s.node)) {
            // It is to be placed there itself; of older copies elsewhere the room stays counted.
            let next = self.steps.instance(id)?.kept.images.best(None);
            let next = next.map(|(at, _)| at.node);
            self.give_buddies_back(id, |at| next.is_none_or(|node| node == at.node));
        }
        Some(placed)
    }

    /// Takes an instance from its nodes as if it had never been placed there.
    pub(crate) fn taken_back(&mut self, id: InstanceId) {
        let demand = Demand::of(self.start.workflow.step(id.step));
        if let Some(placed) = self.displaced(id)
            && placed.started.is_some()
        {
            self.ledger.give(&placed.spots, demand);
        }
        if let Some(i) = self.steps.instance_mut(id) {
            i.progress = InstanceProgress::Pending;
            // Nobody may need them there now.
            self.data.to_check.extend(i.parts());
        }
        self.steps.enqueue(id);
        self.renew_entries(id);
    }

    fn run_begun(&mut self, run: &AttemptSpec) {
        let id = run.instance;
        self.keeps(run);
        self.partitions.run(&run.partitions);
        let demand = Demand::of(self.start.workflow.step(id.step));
        self.ledger.take(&run.nodes, demand);
        let pinned: Vec<_> = run
            .views
            .iter()
            .flatten()
            .flatten()
            .map(|h| (h.part, h.spot))
            .collect();
        for (part, spot) in &pinned {
            if let Some(r) = self.data.replica_mut(*part, &Place::Node(*spot)) {
                add(&mut r.pins, 1, "pins of a replica");
            }
        }
        let now = self.now;
        self.steps.running.insert(id);
        let Some(i) = self.steps.instance_mut(id) else {
            return;
        };
        i.attempts = run.attempt;
        i.ran_on = run.nodes.iter().map(|s| s.node).collect();
        i.identity = Some(run.identity);
        if let InstanceProgress::Assigned(mut p) = i.progress.clone() {
            (p.started, p.pinned) = (Some(now), pinned);
            i.progress = InstanceProgress::Running(p);
        }
    }

    fn ended(&mut self, id: InstanceId, ended: &AttemptOutcome, usage: &Usage) {
        let Some(placed) = self.displaced(id) else {
            return;
        };
        let demand = Demand::of(self.start.workflow.step(id.step));
        self.ledger.give(&placed.spots, demand);
        self.unpin_views(&placed);
        match ended {
            AttemptOutcome::Committed { outputs, .. } => {
                let step = &mut self.steps.all[id.step.at()];
                for observed in [&mut step.observed, &mut self.steps.observed] {
                    observed.0 = observed.0.saturating_add(usage.wall);
                    observed.1 += 1;
                }
                let stored: u64 = outputs
                    .iter()
                    .flat_map(|o| &o.parts)
                    .map(|(p, _)| p.stored)
                    .sum();
                step.written.0 = step
                    .written
                    .0
                    .saturating_add(stored / placed.spots.len().max(1) as u64);
                step.written.1 += 1;
                let doubled = step.observed.1 > 1 && step.observed.1.is_power_of_two();
                self.publish(id, outputs, false);
                self.complete(id, InstanceProgress::Done);
                if doubled {
                    self.ranks_age();
                }
            }
            AttemptOutcome::Failed {
                failure, newest, ..
            } => {
                let written = usage.written / placed.spots.len().max(1) as u64;
                // Of a lost node's images there may be copies.
                let lost = failure.kind == FailureKind::NodeLost;
                let copy = self.steps.instance(id).filter(|_| lost);
                let copy = copy.and_then(|i| Some(i.kept.images.best(None)?.1));
                let newer = self.came_further(id, (*newest).max(copy));
                self.attempt_failed(id, failure, &placed, written, newer);
            }
        }
    }

    fn unpin_views(&mut self, placed: &InstancePlacement) {
        for (part, spot) in &placed.pinned {
            self.unpin(*part, &Place::Node(*spot));
        }
    }

    fn unpin(&mut self, part: PartRef, at: &Place) {
        if let Some(r) = self.data.replica_mut(part, at) {
            // It may be another one than was pinned, which was lost: one that comes counts who still reads there.
            sub(&mut r.pins, 1, "pins of a replica");
        }
        self.data.to_check.insert(part);
    }

    /// A replica stays for later runs.
    fn cached(&mut self, part: PartRef, spot: TierRef) {
        if let Some(r) = self.data.replica_mut(part, &Place::Node(spot)) {
            r.state = PartReplicaState::Cached;
            let stored = r.stored;
            self.cache.add(spot, part, stored);
        }
    }

    /// One that did goes, or has gone.
    fn uncached(&mut self, part: PartRef, at: &Place) {
        let replica = self.data.replica_mut(part, at);
        let cached = replica.is_some_and(|r| r.state == PartReplicaState::Cached);
        if let (true, Place::Node(spot)) = (cached, at) {
            self.cache.remove(*spot, part);
        }
    }

    fn evicted(&mut self, part: PartRef, at: &Place) {
        if self.end_returned_eviction(part, at) {
            return;
        }
        self.uncached(part, at);
        self.data.to_release.remove(&(part, at.clone()));
        let Some(p) = self.data.part_mut(part) else {
            return;
        };
        let Some(replica) = p.replicas.remove(at) else {
            return;
        };
        if replica.state == PartReplicaState::Leaving {
            sub(&mut self.leaving, 1, "replicas that leave");
        }
        if let Place::Node(spot) = at {
            self.ledger.vacate(*spot, replica.stored);
        }
        // It may have to come there anew.
        self.data.to_check.insert(part);
        self.note_unkept(part);
    }
}

#[cfg(test)]
mod tests;
