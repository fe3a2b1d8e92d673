//! The two ways in which the state of a run changes: by an event, by an action. No choice is made here.

mod transfers;

use crate::cache::DataCache;
use crate::data::{PartReplica, PartReplicaState, TrackedData, TrackedPart};
use crate::dataflow::{producers, read_by_element, readers};
use crate::given_up::GivenUp;
use crate::ledger::Ledger;
use crate::links::NodeLinkLoads;
use crate::partitions::Partitions;
use crate::returned::ReturnedReplicas;
use crate::state::{EngineState, RunStopReason};
use crate::steps::{InstanceProgress, Steps};
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::account::{add, sub};
use tarn_types::action::{Action, AttemptSpec, Do, Subject};
use tarn_types::compute::Demand;
use tarn_types::event::{AttemptOutcome, Event, Imaged, PriorData, RunErrorKind, Start, Usage};
use tarn_types::id::{DataId, InstanceId};
use tarn_types::part::{PartInfo, PartRef, Place};
use tarn_types::reason::Reason;
use tarn_types::units::Time;

/// SIGTERM: a request to end in order, such as at the end of an allocation.
const TERMINATE: i32 = 15;

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
            returned: ReturnedReplicas::default(),
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
        state.refresh_ranks();
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
            } => self.image_event(*instance, *attempt, what),
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
            Event::Capacity { tier_ref, bytes } => {
                self.ledger.nodes.set_capacity(*tier_ref, *bytes)
            }
            Event::Interrupted { signal } => {
                // After a second signal nothing is drained.
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
            } => (self.steps).begin_image_copy(&mut self.ledger, *instance, *to, *reserve),
            Do::Forget { instance, at } => {
                self.steps
                    .forget_checkpoints(&mut self.ledger, *instance, at);
            }
            Do::Discard { partition, .. } => {
                let w = &self.start.workflow;
                self.partitions.discard(w, &mut self.ledger, *partition);
            }
            Do::Evict { part, key, at } if self.begin_returned_eviction(*part, key, at) => {}
            Do::Evict { part, at, .. } => {
                self.data.to_release.remove(&(*part, at.clone()));
                self.uncached(*part, at);
                if let Some(r) = self.data.replica_mut(*part, at) {
                    r.state = PartReplicaState::Leaving;
                    self.leaving += 1;
                }
                // A part that is damaged or contradicts a new run is made again.
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
            let places = part.at.iter().map(|(tier_ref, _)| Place::Node(*tier_ref));
            let mut known = TrackedPart::new(part.info.clone());
            known
                .replicas
                .extend(places.map(|at| (at, PartReplica::OF_OTHERS)));
            version.insert((0, part.info.seq), known);
        }
        version.sealed = true;
    }

    /// Something about the images of an attempt's processes.
    fn image_event(&mut self, id: InstanceId, attempt: u32, what: &Imaged) {
        let restart = self.start.workflow.step(id.step).restart;
        if restart.is_some_and(|r| r.buddy) {
            self.steps.note_image(&self.ledger, id, attempt, what);
        }
    }

    /// Takes an instance from its nodes as if it had never been placed there.
    pub(crate) fn taken_back(&mut self, id: InstanceId) {
        let demand = Demand::of(self.start.workflow.step(id.step));
        if let Some(placed) = self.displaced(id)
            && placed.started.is_some()
        {
            self.ledger.give(&placed.tier_refs, demand);
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
        if self.start.workflow.step(id.step).restart.is_some() {
            self.steps.keep_checkpoints(run);
        }
        self.partitions.run(&run.partitions);
        let demand = Demand::of(self.start.workflow.step(id.step));
        self.ledger.take(&run.nodes, demand);
        let pinned: Vec<_> = run
            .views
            .iter()
            .flatten()
            .flatten()
            .map(|h| (h.part, h.tier_ref))
            .collect();
        for (part, tier_ref) in &pinned {
            if let Some(r) = self.data.replica_mut(*part, &Place::Node(*tier_ref)) {
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
        self.ledger.give(&placed.tier_refs, demand);
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
                    .saturating_add(stored / placed.tier_refs.len().max(1) as u64);
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
                let written = usage.written / placed.tier_refs.len().max(1) as u64;
                // Of a lost node's images there may be copies.
                let lost = failure.kind == RunErrorKind::NodeLost;
                let copy = self.steps.instance(id).filter(|_| lost);
                let copy = copy.and_then(|i| Some(i.kept.images.best(None)?.1));
                let newer = self.steps.note_progress(id, (*newest).max(copy));
                self.attempt_failed(id, failure, &placed, written, newer);
            }
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
        if let Place::Node(tier_ref) = at {
            self.ledger.nodes.vacate(*tier_ref, replica.stored);
        }
        // It may have to come there again.
        self.data.to_check.insert(part);
        self.note_unkept(part);
    }
}

#[cfg(test)]
mod tests;
