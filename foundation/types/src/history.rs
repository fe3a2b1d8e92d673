//! A plain fold over the records of an event log: the state of a run, without the engine that decided it.
//! The one read model of `tarn status`, `why`, `data`, the catalogue and the report.

mod audit;
mod elements;
mod model;
mod nodes;

pub use model::*;
pub use nodes::NodeLoss;

use crate::account;
use crate::action::{Action, Do, Outcome, Subject};
use crate::event::{
    AttemptOutcome, Event, Imaged, Output, RunError, Start, Usage, of_others, version_hash,
};
use crate::id::{DataId, InstanceId, NodeId, StepId, TierRef, TransferId};
use crate::part::{PartInfo, PartRef, Place, StoreKey, TransferKind};
use crate::reason::Reason;
use crate::units::Time;
use std::collections::BTreeMap;

/// The state that the records applied so far give. It grows with the log: a summary for each part, transfer, attempt and eviction
/// in it, never a file list.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    /// The first record; `None` before it was applied.
    pub start: Option<Box<Start>>,
    /// The time of the last record.
    pub now: Time,
    /// Instances that anything was decided about.
    pub instances: BTreeMap<InstanceId, InstanceHistory>,
    /// Every part that was listed, committed or reused.
    pub parts: BTreeMap<PartRef, PartInfo>,
    /// The replicas that are there now, the sources themselves excepted.
    pub replicas: BTreeMap<PartRef, BTreeMap<Place, Replica>>,
    /// Replicas that were there and are not any more: when they went.
    pub removed: BTreeMap<(StoreKey, Place), Time>,
    /// Replicas on nodes that were lost: whether they are still stored there is not known, so they are neither there nor gone.
    pub unreachable: BTreeMap<(StoreKey, Place), Unreachable>,
    /// Replicas that were not found when the run was last resumed. Of a node that is lost then, nobody may have been able to look.
    missed: BTreeMap<(StoreKey, Place), Unreachable>,
    /// Every transfer.
    pub transfers: BTreeMap<TransferId, TransferHistory>,
    /// Every eviction, in order.
    pub evictions: Vec<Eviction>,
    /// The engine's deeds, by their subjects.
    pub deeds: BTreeMap<Subject, Deeds>,
    /// Sources that could not be listed.
    pub source_failures: BTreeMap<DataId, RunError>,
    /// The elements of `foreach` steps over entries, in the order of their instances, once they are known.
    elements: BTreeMap<StepId, Vec<String>>,
    /// The content of the datasets' `dest`.
    pub delivered: BTreeMap<DataId, Delivery>,
    /// For each tier that ever held a replica: (time, bytes held from then on).
    pub fill: BTreeMap<TierRef, Vec<(Time, u64)>>,
    /// Changes of the run's capacity on a tier: (time, bytes).
    pub capacity: BTreeMap<TierRef, Vec<(Time, u64)>>,
    /// Bytes that did not move because they were where they were needed.
    pub retained: u64,
    /// Every loss of a node, in order.
    pub losses: Vec<NodeLoss>,
    /// Steps that do not run because of a failure, each with why.
    pub not_run: BTreeMap<StepId, Reason>,
    /// Datasets that request to be drained when the run ends early and were not, or not all of them, each with why.
    pub not_rescued: BTreeMap<DataId, Reason>,
    /// Signals that requested the run's end: (time, number).
    pub interruptions: Vec<(Time, i32)>,
    /// The times at which the run was resumed after an interruption.
    pub resumptions: Vec<Time>,
    /// When it was over, and how; `None` while it runs or when it died.
    pub outcome: Option<(Time, Outcome)>,
}

impl History {
    /// An empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies one record.
    pub fn apply(&mut self, now: Time, event: &Event, actions: &[Action]) {
        self.now = self.now.max(now);
        self.happened(event);
        for action in actions {
            self.decided(action);
        }
        if cfg!(debug_assertions) {
            self.recount();
        }
    }

    fn happened(&mut self, event: &Event) {
        let now = self.now;
        match event {
            Event::Started(start) => self.started(start),
            Event::SourceListed { data, parts } => self.source_listed(*data, parts),
            Event::SourceFailed { data, failure } => {
                self.source_failures.insert(*data, failure.clone());
            }
            Event::TransferDone {
                id,
                bytes,
                hashes,
                stored,
                took,
            } => {
                let end = TransferEnd::Done {
                    bytes: *bytes,
                    took: *took,
                };
                self.transfer_done(*id, hashes, stored, end);
            }
            Event::TransferFailed {
                id,
                failure,
                damaged,
            } => self.transfer_failed(*id, failure, *damaged),
            Event::Ended {
                instance,
                attempt,
                ended,
                usage,
            } => self.attempt_ended(*instance, *attempt, ended, *usage),
            Event::Image {
                instance,
                attempt,
                what,
            } => self.image_changed(*instance, *attempt, what),
            Event::Evicted { part, at } => self.evicted(*part, at),
            Event::Capacity { tier_ref, bytes } => self
                .capacity
                .entry(*tier_ref)
                .or_default()
                .push((now, *bytes)),
            Event::Interrupted { signal } => self.interruptions.push((now, *signal)),
            Event::Resumed {
                found,
                pinned,
                set_aside,
            } => {
                if let Some(start) = &mut self.start {
                    start.resume(pinned, set_aside.as_deref());
                }
                self.resumed(found);
            }
            Event::NodeLost { node, why } => self.node_lost(*node, why),
            Event::NodeBack {
                node,
                capacities,
                whole,
            } => self.node_back(*node, capacities, whole),
            Event::Timer => {}
        }
    }

    fn started(&mut self, start: &Start) {
        for (part, prior) in start.prior_data.iter().flat_map(|d| d.parts()) {
            self.expand_again(part, &prior.info);
            self.parts.insert(part, prior.info.clone());
        }
        self.start = Some(Box::new(start.clone()));
    }

    fn source_listed(&mut self, data: DataId, parts: &[PartInfo]) {
        self.source_failures.remove(&data);
        for info in parts {
            let part = part_ref(data, 0, 0, info);
            self.expand_again(part, info);
            self.parts.insert(part, info.clone());
        }
    }

    fn image_changed(&mut self, instance: InstanceId, attempt: u32, what: &Imaged) {
        let open = |a: &&mut Attempt| a.attempt == attempt && a.ended.is_none();
        let attempts = self.instances.get_mut(&instance).map(|i| &mut i.attempts);
        if let Some(a) = attempts.and_then(|all| all.iter_mut().rev().find(open)) {
            a.images.add(what);
        }
    }

    /// The evicted copy is no replica of the part if the part has been made again, under another key, since.
    fn evicted(&mut self, part: PartRef, at: &Place) {
        let open = |e: &&mut Eviction| e.done.is_none() && e.part == part && e.at == *at;
        let mut key = None;
        if let Some(e) = self.evictions.iter_mut().rev().find(open) {
            e.done = Some(self.now);
            key = Some(e.key.clone());
        }
        let known = self.parts.get(&part).map(|i| i.key.clone());
        if key.is_none() || key == known {
            self.remove_replica(part, at);
        }
        let gone = key.or(known).map(|k| (k, at.clone()));
        if let Some(gone) = gone.filter(|gone| self.unreachable.remove(gone).is_some()) {
            self.removed.insert(gone, self.now);
        }
    }

    fn transfer_done(
        &mut self,
        id: TransferId,
        hashes: &[crate::hash::Hash],
        stored: &[u64],
        end: TransferEnd,
    ) {
        let now = self.now;
        let Some(t) = self.transfers.get_mut(&id) else {
            return;
        };
        t.ended = Some((now, end));
        let (to, data, version) = (t.order.to.clone(), t.order.data, t.order.version);
        let parts: Vec<PartRef> = t.order.parts.iter().map(|p| p.part).collect();
        for (at, part) in parts.iter().enumerate() {
            let Some(info) = self.parts.get_mut(part) else {
                continue;
            };
            if let Some(hash) = hashes.get(at) {
                info.hash = Some(*hash);
            }
            let stored = stored.get(at).copied().unwrap_or(info.stored);
            self.came(*part, to.clone(), stored);
        }
        self.note_delivery(data, version, to);
    }

    /// A part found damaged outside stays there and is no replica any more. On nodes and in the drained area it is evicted.
    fn transfer_failed(&mut self, id: TransferId, failure: &RunError, damaged: Option<PartRef>) {
        let Some(t) = self.transfers.get_mut(&id) else {
            return;
        };
        t.ended = Some((self.now, TransferEnd::Failed(failure.clone())));
        let mut moves = t.order.parts.iter();
        let Some(m) = moves.find(|m| damaged == Some(m.part)).cloned() else {
            return;
        };
        if let Place::External(folder) = &m.from {
            self.remove_replica(m.part, &m.from);
            let (data, version) = (m.part.data, m.part.version);
            let holds = |d: &Delivery| d.version == version && d.path == *folder;
            if self.delivered.get(&data).is_some_and(holds) {
                self.delivered.remove(&data);
            }
        }
    }

    /// A transfer to the `dest` of its dataset is a delivery.
    fn note_delivery(&mut self, data: DataId, version: u32, to: Place) {
        let Place::External(path) = to else { return };
        let dataset = self
            .start
            .as_ref()
            .and_then(|s| s.workflow.data.get(data.at()));
        if dataset.and_then(|d| d.dest.as_ref()) != Some(&path) {
            return;
        }
        let hash = self.version_hash(data, version);
        let delivery = Delivery {
            version,
            path,
            hash,
            at: self.now,
        };
        self.delivered.insert(data, delivery);
    }

    fn attempt_ended(
        &mut self,
        id: InstanceId,
        attempt: u32,
        ended: &AttemptOutcome,
        usage: Usage,
    ) {
        let now = self.now;
        let instance = self.instances.entry(id).or_default();
        let end = match ended {
            AttemptOutcome::Committed {
                outputs,
                undeclared,
            } => {
                instance.state = InstanceState::Committed;
                instance.outputs.clone_from(outputs);
                AttemptEnd::Committed {
                    undeclared: undeclared.clone(),
                }
            }
            AttemptOutcome::Failed {
                failure, log_tail, ..
            } => {
                instance.state = InstanceState::Failed;
                AttemptEnd::Failed {
                    failure: failure.clone(),
                    log_tail: log_tail.clone(),
                }
            }
        };
        let open = |a: &&mut Attempt| a.attempt == attempt && a.ended.is_none();
        if let Some(a) = instance.attempts.iter_mut().rev().find(open) {
            a.ended = Some((now, end));
            a.usage = usage;
        }
        if let AttemptOutcome::Committed { outputs, .. } = ended {
            for output in outputs {
                self.add_output(id.index, output);
            }
        }
    }

    fn add_output(&mut self, origin: u32, output: &Output) {
        for (info, tier_refs) in &output.parts {
            let part = part_ref(output.data, output.version, origin, info);
            let places = tier_refs.iter().map(|s| Place::Node(*s));
            self.add_part(part, info, places);
        }
    }

    /// A part that is made again gets another key: replicas under the old one are none of it. A `dest` has no keys.
    fn add_part(&mut self, part: PartRef, info: &PartInfo, places: impl Iterator<Item = Place>) {
        if let Some(known) = self.parts.get(&part).filter(|k| k.key != info.key) {
            let same = known.hash == info.hash;
            let stays = |place: &&Place| same && matches!(place, Place::External(_));
            let old = self.places(part).filter(|place| !stays(place));
            let old: Vec<Place> = old.cloned().collect();
            let key = known.key.clone();
            for place in old {
                self.remove_replica(part, &place);
            }
            self.outdated(&key);
        }
        self.expand_again(part, info);
        self.parts.insert(part, info.clone());
        for place in places {
            self.came(part, place, info.stored);
        }
    }

    fn resumed(&mut self, found: &[(PartRef, Place)]) {
        let now = self.now;
        self.resumptions.push(now);
        self.outcome = None;
        self.not_run.clear();
        self.not_rescued.clear();
        self.all_nodes_back();
        for instance in self.instances.values_mut() {
            if matches!(
                instance.state,
                InstanceState::Assigned | InstanceState::Running
            ) {
                instance.state = InstanceState::Waiting;
            }
            for a in instance.attempts.iter_mut().filter(|a| a.ended.is_none()) {
                a.ended = Some((now, AttemptEnd::Interrupted));
            }
        }
        for t in self.transfers.values_mut().filter(|t| t.ended.is_none()) {
            t.ended = Some((now, TransferEnd::Interrupted));
        }
        let mut old = std::mem::take(&mut self.replicas);
        let mut unreachable = std::mem::take(&mut self.unreachable);
        self.missed.clear();
        for points in self.fill.values_mut() {
            push_point(points, now, 0);
        }
        let prior_data = self
            .start
            .as_ref()
            .map_or(&[][..], |s| s.prior_data.as_slice());
        let others = of_others(prior_data, found);
        let own = |at: &&(PartRef, Place)| at.1 != Place::Source && !others.contains_key(*at);
        for (part, place) in found.iter().filter(own) {
            let Some(info) = self.parts.get(part) else {
                continue;
            };
            let at = (info.key.clone(), place.clone());
            let was = old.get_mut(part).and_then(|p| p.remove(place));
            let was = was.or_else(|| unreachable.remove(&at).map(|u| u.replica));
            let stored = was.map_or(info.stored, |r| r.stored);
            self.add_replica(*part, place.clone(), stored);
            if let (Some(was), Some(new)) = (
                was,
                self.replicas.get_mut(part).and_then(|p| p.get_mut(place)),
            ) {
                new.since = was.since;
            }
        }
        for (part, places) in old {
            for (place, replica) in places {
                unreachable.extend(self.out_of_reach(part, place, replica));
            }
        }
        self.removed
            .extend(unreachable.keys().map(|at| (at.clone(), now)));
        self.missed = unreachable;
        self.missed
            .retain(|(_, place), _| matches!(place, Place::Node(_)));
    }

    fn decided(&mut self, action: &Action) {
        let now = self.now;
        self.expand(&action.what);
        if let Reason::Retained { bytes } = action.why {
            self.retained = self.retained.saturating_add(bytes);
        }
        match &action.what {
            Do::List { .. }
            | Do::Abandon { .. }
            | Do::Stop { .. }
            | Do::CopyImage { .. }
            | Do::Forget { .. }
            | Do::Discard { .. }
            | Do::Cache { .. } => {}
            Do::Transfer(order) => {
                let bytes =
                    |p: &crate::part::PartMove| self.parts.get(&p.part).map_or(0, |i| i.bytes);
                let transfer = TransferHistory {
                    expected: order.parts.iter().map(bytes).sum(),
                    order: order.clone(),
                    why: action.why.clone(),
                    instance: serves(&action.why),
                    ordered: now,
                    ended: None,
                };
                self.transfers.insert(order.id, transfer);
            }
            Do::Assign {
                instance, nodes, ..
            } => {
                let i = self.instances.entry(*instance).or_default();
                i.state = InstanceState::Assigned;
                i.nodes.clone_from(nodes);
                i.assigned = Some(now);
            }
            Do::Unassign { instance } => {
                self.instances.entry(*instance).or_default().state = InstanceState::Waiting;
            }
            Do::Run(run) => {
                let i = self.instances.entry(run.instance).or_default();
                i.state = InstanceState::Running;
                i.item.clone_from(&run.item);
                i.identity = Some(run.identity);
                i.nodes.clone_from(&run.nodes);
                i.attempts.push(Attempt {
                    attempt: run.attempt,
                    nodes: run.nodes.clone(),
                    partitions: run.partitions.clone(),
                    assigned: i.assigned.unwrap_or(now),
                    started: now,
                    ended: None,
                    usage: Usage::default(),
                    images: AttemptImages::default(),
                });
            }
            Do::Reuse { instance, prior } => self.reused(*instance, *prior),
            Do::Evict { part, key, at } => self.evictions.push(Eviction {
                part: *part,
                key: key.clone(),
                at: at.clone(),
                why: action.why.clone(),
                ordered: now,
                done: None,
            }),
            Do::Note { about } => self.noted(*about, &action.why),
            Do::Finish { outcome } => self.outcome = Some((now, *outcome)),
        }
        self.remember(action);
    }

    fn noted(&mut self, about: Subject, why: &Reason) {
        if let (Subject::Step(id), Reason::NotRun { .. } | Reason::AfterFailure { .. }) =
            (about, why)
        {
            self.not_run.insert(id, why.clone());
        }
        if let (Subject::Data(id), Reason::NotRescued { .. } | Reason::RescuedInPart { .. }) =
            (about, why)
        {
            self.not_rescued.insert(id, why.clone());
        }
        let Subject::Instance(id) = about else { return };
        match why {
            Reason::OutputLost { .. } => {
                self.instances.entry(id).or_default().state = InstanceState::Waiting;
            }
            Reason::GaveUp { .. } => {
                self.instances.entry(id).or_default().state = InstanceState::Failed;
            }
            Reason::OutputBack { .. } => {
                let instance = self.instances.entry(id).or_default();
                let committed =
                    |a: &Attempt| matches!(a.ended, Some((_, AttemptEnd::Committed { .. })));
                instance.state = match instance.attempts.iter().any(committed) {
                    true => InstanceState::Committed,
                    false => InstanceState::Reused,
                };
            }
            _ => {}
        }
    }

    /// An earlier run may have numbered datasets and versions otherwise: outputs are matched to the step's uses
    /// by position.
    fn reused(&mut self, id: InstanceId, prior: u32) {
        let Some(start) = self.start.as_ref() else {
            return;
        };
        let (Some(prior), Some(step)) = (
            start.prior.get(prior as usize),
            start.workflow.steps.get(id.step.at()),
        ) else {
            return;
        };
        let prior = prior.clone();
        let made = step.uses.iter().filter_map(|u| Some((u.data, u.makes?)));
        let made: Vec<(DataId, u32)> = made.collect();
        let mut outputs = prior.outputs;
        for (at, (output, (data, version))) in outputs.iter_mut().zip(made).enumerate() {
            (output.data, output.version) = (data, version);
            for (n, (info, tier_refs)) in output.parts.iter_mut().enumerate() {
                let here = prior
                    .held
                    .iter()
                    .filter(|(o, p, _)| (*o as usize, *p as usize) == (at, n));
                let places: Vec<Place> = here.map(|(_, _, place)| place.clone()).collect();
                *tier_refs = places.iter().filter_map(tier_ref_of).collect();
                self.add_part(
                    part_ref(data, version, id.index, info),
                    info,
                    places.into_iter(),
                );
            }
        }
        let i = self.instances.entry(id).or_default();
        i.state = InstanceState::Reused;
        i.identity = Some(prior.identity);
        i.outputs = outputs;
    }

    fn remember(&mut self, action: &Action) {
        let (what, mut about) = match &action.what {
            Do::List { data } => (DeedKind::List, vec![Subject::Data(*data)]),
            Do::Transfer(t) => (DeedKind::Transfer(t.id), vec![Subject::Data(t.data)]),
            Do::Abandon { id } => {
                let data = self.transfers.get(id).map(|t| Subject::Data(t.order.data));
                (DeedKind::Abandon(*id), data.into_iter().collect())
            }
            Do::Assign {
                instance, nodes, ..
            } => (
                DeedKind::Assign(nodes.clone()),
                vec![Subject::Instance(*instance)],
            ),
            Do::Unassign { instance } => (DeedKind::Unassign, vec![Subject::Instance(*instance)]),
            Do::Run(run) => (
                DeedKind::Run(run.attempt),
                vec![Subject::Instance(run.instance)],
            ),
            Do::Stop { instance, attempt } => {
                (DeedKind::Stop(*attempt), vec![Subject::Instance(*instance)])
            }
            Do::CopyImage {
                instance,
                image,
                to,
                ..
            } => (
                DeedKind::CopyImage(*image, *to),
                vec![Subject::Instance(*instance)],
            ),
            Do::Forget { instance, .. } => (DeedKind::Forget, vec![Subject::Instance(*instance)]),
            Do::Discard { partition, .. } => (DeedKind::Discard(*partition), vec![Subject::Run]),
            Do::Reuse { instance, .. } => (DeedKind::Reuse, vec![Subject::Instance(*instance)]),
            Do::Evict { part, at, .. } => (
                DeedKind::Evict(*part, at.clone()),
                vec![Subject::Data(part.data)],
            ),
            Do::Cache { part, at, .. } => {
                (DeedKind::Cache(*part, *at), vec![Subject::Data(part.data)])
            }
            Do::Note { about } => (DeedKind::Note, vec![*about]),
            Do::Finish { outcome } => (DeedKind::Finish(*outcome), vec![Subject::Run]),
        };
        about.extend(serves(&action.why).map(Subject::Instance));
        about.extend(full_tier(&action.why).map(Subject::Tier));
        about.dedup();
        for subject in about {
            self.deeds.entry(subject).or_default().push(Deed {
                at: self.now,
                what: what.clone(),
                why: action.why.clone(),
            });
        }
    }

    fn add_replica(&mut self, part: PartRef, place: Place, stored: u64) {
        let since = self.now;
        let tier_ref = tier_ref_of(&place);
        if let Some(info) = self.parts.get(&part) {
            let at = (info.key.clone(), place.clone());
            self.removed.remove(&at);
            self.unreachable.remove(&at);
            self.missed.remove(&at);
        }
        let held = self.replicas.entry(part).or_default();
        let old = held.insert(place, Replica { stored, since });
        if let Some(tier_ref) = tier_ref {
            self.fill_changed(tier_ref, old.map_or(0, |r| r.stored), stored);
        }
    }

    fn remove_replica(&mut self, part: PartRef, place: &Place) {
        let old = self.take_replica(part, place);
        if let (Some(_), Some(info)) = (old, self.parts.get(&part)) {
            self.removed
                .insert((info.key.clone(), place.clone()), self.now);
        }
    }

    fn take_replica(&mut self, part: PartRef, place: &Place) -> Option<Replica> {
        let held = self.replicas.get_mut(&part)?;
        let old = held.remove(place);
        if held.is_empty() {
            self.replicas.remove(&part);
        }
        if let (Some(old), Some(tier_ref)) = (old, tier_ref_of(place)) {
            self.fill_changed(tier_ref, old.stored, 0);
        }
        old
    }

    fn fill_changed(&mut self, tier_ref: TierRef, minus: u64, plus: u64) {
        let points = self.fill.entry(tier_ref).or_default();
        let last = points.last().map_or(0, |p| p.1);
        let mut held = last;
        account::sub(&mut held, minus, "bytes on a tier");
        account::add(&mut held, plus, "bytes on a tier");
        push_point(points, self.now, held);
    }

    /// The places of a part's replicas.
    pub fn places(&self, part: PartRef) -> impl Iterator<Item = &Place> {
        self.replicas.get(&part).into_iter().flat_map(|p| p.keys())
    }

    /// The parts of a version, in order.
    pub fn parts_of(
        &self,
        data: DataId,
        version: u32,
    ) -> impl Iterator<Item = (PartRef, &PartInfo)> {
        let at = |origin, seq| PartRef {
            data,
            version,
            origin,
            seq,
        };
        let range = self.parts.range(at(0, 0)..=at(u32::MAX, u32::MAX));
        range.map(|(part, info)| (*part, info))
    }

    /// The content hash of a version; `None` when one of its parts has not been read yet, or it has none.
    pub fn version_hash(&self, data: DataId, version: u32) -> Option<crate::hash::Hash> {
        let parts: Option<Vec<_>> = self
            .parts_of(data, version)
            .map(|(_, i)| Some((&i.class, i.hash?)))
            .collect();
        let parts = parts.filter(|p| !p.is_empty())?;
        Some(version_hash(parts))
    }

    /// Bytes that transfers have moved, by kind.
    pub fn moved(&self) -> BTreeMap<TransferKind, u64> {
        let mut sums = BTreeMap::new();
        for t in self.transfers.values() {
            let sum: &mut u64 = sums.entry(t.order.kind).or_default();
            *sum = sum.saturating_add(t.bytes());
        }
        sums.retain(|_, bytes| *bytes > 0);
        sums
    }

    /// Bytes held on a tier now.
    pub fn held(&self, tier_ref: TierRef) -> u64 {
        self.fill
            .get(&tier_ref)
            .and_then(|f| f.last())
            .map_or(0, |p| p.1)
    }

    /// The name of an instance: its step's, with the element (or its position) in brackets for `foreach`.
    pub fn instance_name(&self, id: InstanceId) -> String {
        let step = self
            .start
            .as_ref()
            .and_then(|s| s.workflow.steps.get(id.step.at()));
        match (step, self.item(id)) {
            (None, _) => id.to_string(),
            (Some(s), Some(item)) => format!("{}[{item}]", s.name),
            (Some(s), None) if s.foreach.is_some() => format!("{}[{}]", s.name, id.index),
            (Some(s), None) => s.name.clone(),
        }
    }

    /// The name of a node.
    pub fn node_name(&self, node: NodeId) -> String {
        let nodes = self.start.as_ref().map(|s| &s.cluster.nodes);
        let known = nodes.and_then(|n| n.get(node.at()));
        known.map_or_else(|| node.to_string(), |n| n.name.clone())
    }

    /// A reason as a sentence, with the run's names; before the run has begun, with ids.
    pub fn explain(&self, why: &Reason) -> String {
        let Some(start) = &self.start else {
            return format!("{why:?}");
        };
        let node = |n| self.node_name(n);
        let tier = |s: TierRef| {
            let tiers = start.cluster.nodes.get(s.node.at()).map(|n| &n.tiers);
            let tier = tiers.and_then(|t| t.get(s.tier.at()));
            let name = tier.map_or_else(|| s.tier.to_string(), |t| t.name.clone());
            format!("{name} of {}", node(s.node))
        };
        why.explain_with(&start.workflow, &node, &tier, &|i| self.instance_name(i))
    }

    /// The instances of a step that anything was decided about.
    pub fn instances_of(
        &self,
        step: StepId,
    ) -> impl Iterator<Item = (InstanceId, &InstanceHistory)> {
        let at = |index| InstanceId { step, index };
        self.instances
            .range(at(0)..=at(u32::MAX))
            .map(|(id, i)| (*id, i))
    }
}

fn part_ref(data: DataId, version: u32, origin: u32, info: &PartInfo) -> PartRef {
    PartRef {
        data,
        version,
        origin,
        seq: info.seq,
    }
}

fn tier_ref_of(place: &Place) -> Option<TierRef> {
    match place {
        Place::Node(tier_ref) => Some(*tier_ref),
        _ => None,
    }
}

/// One point a moment: the last value counts.
fn push_point(points: &mut Vec<(Time, u64)>, now: Time, bytes: u64) {
    match points.last_mut() {
        Some(last) if last.0 == now => last.1 = bytes,
        _ => points.push((now, bytes)),
    }
}

/// The instance for which something is moved.
fn serves(why: &Reason) -> Option<InstanceId> {
    match why {
        Reason::ReadExternal { instance }
        | Reason::FetchPeer { instance, .. }
        | Reason::FollowPeer { instance, .. }
        | Reason::PromoteForUse { instance } => Some(*instance),
        _ => None,
    }
}

/// The tier that is full.
fn full_tier(why: &Reason) -> Option<TierRef> {
    match why {
        Reason::WaitForSpace { tier_ref, .. }
        | Reason::MakingSpace { tier_ref, .. }
        | Reason::WaitForOthers { tier_ref, .. }
        | Reason::EvictForSpace { tier_ref, .. }
        | Reason::DemoteForSpace { tier_ref, .. }
        | Reason::DrainForSpace { tier_ref, .. } => Some(*tier_ref),
        _ => None,
    }
}
