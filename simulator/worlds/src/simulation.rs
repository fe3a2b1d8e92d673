//! The world itself: virtual time, running instances, and what ends when.

use crate::estimates::Estimates;
use crate::faults::FaultPlan;
use crate::instances::SimulatedAttempt;
use crate::network::Network;
use crate::nodes::{Keeps, LostNodeReplicas, Outage};
use crate::store::SimulatedStorage;
use crate::transfers::SimulatedTransfer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tarn_ports::{World, WorldError};
use tarn_types::action::{Action, Do};
use tarn_types::cluster::Cluster;
use tarn_types::event::{Event, Failure, FailureKind, PriorData, PriorInstance, Start};
use tarn_types::id::{DataId, InstanceId, NodeId, TierRef, TransferId};
use tarn_types::part::{PartInfo, PartRef, Place};
use tarn_types::units::Time;
use tarn_types::workflow::Workflow;

/// A world in virtual time. It holds a cluster, a workflow and [`Estimates`]; nothing in it depends on a clock,
/// a random source or the order of a hash table.
pub struct Simulation {
    pub(crate) cluster: Cluster,
    pub(crate) workflow: Workflow,
    pub(crate) prior: Vec<PriorInstance>,
    pub(crate) estimates: Estimates,
    pub(crate) faults: FaultPlan,
    pub(crate) now: Time,
    seq: u64,
    /// What happens at a known time, in order.
    due: BTreeMap<(Time, u64), ScheduledEvent>,
    /// What has happened and was not fetched yet.
    ready: VecDeque<(Time, Event)>,
    pub(crate) running: BTreeMap<InstanceId, SimulatedAttempt>,
    /// Which prior an instance was taken from: it makes the same when it has to run all the same.
    pub(crate) reused: BTreeMap<InstanceId, u32>,
    pub(crate) moving: BTreeMap<TransferId, SimulatedTransfer>,
    /// A replica can be read while it arrives.
    pub(crate) chains: bool,
    pub(crate) network: Network,
    pub(crate) store: SimulatedStorage,
    /// Nodes that are lost, with what is on them.
    pub(crate) lost: BTreeMap<NodeId, LostNodeReplicas>,
    /// Nodes that were lost once: what was ordered before that was known may miss something there.
    pub(crate) shaken: BTreeSet<NodeId>,
}

pub(crate) enum ScheduledEvent {
    Event(Event),
    End(InstanceId, u32),
    Lose(NodeId, Outage),
    Back(NodeId, Keeps),
    Slower(u64),
    Faster(u64),
}

/// What no correct engine orders.
pub(crate) fn broken<T>(what: String) -> Result<T, WorldError> {
    Err(WorldError(format!(
        "simulation: {what}; this is an error of the engine that ordered it"
    )))
}

impl Simulation {
    /// A world for one run, in which only the sources exist.
    pub fn new(start: &Start, estimates: Estimates) -> Self {
        let mut store = SimulatedStorage::new(&start.cluster);
        for (data, parts) in &estimates.sources {
            for info in parts.iter().flatten() {
                let part = part_ref(*data, 0, 0, info.seq);
                store.know(part, info.clone());
                store.publish(part, Place::Source);
            }
        }
        for (part, prior) in start.prior_data.iter().flat_map(PriorData::parts) {
            store.know(part, prior.info.clone());
            for (spot, _) in &prior.at {
                store.publish_others(part, *spot);
            }
        }
        Self {
            cluster: start.cluster.clone(),
            workflow: start.workflow.clone(),
            prior: start.prior.clone(),
            estimates,
            faults: FaultPlan::default(),
            now: 0,
            seq: 0,
            due: BTreeMap::new(),
            ready: VecDeque::new(),
            running: BTreeMap::new(),
            reused: BTreeMap::new(),
            moving: BTreeMap::new(),
            chains: start.allocation.is_some(),
            network: Network::default(),
            store,
            lost: BTreeMap::new(),
            shaken: BTreeSet::new(),
        }
    }

    /// Lets transfers and steps fail.
    pub fn with_faults(mut self, faults: FaultPlan) -> Self {
        self.faults = faults;
        self
    }

    /// Begins at a later time: a run that goes on.
    pub fn starting_at(mut self, now: Time) -> Self {
        self.network.advance(&self.cluster, now);
        self.now = now;
        self
    }

    /// Puts a replica there before the run; false when its tier has no space for it.
    pub fn put(&mut self, part: PartRef, info: PartInfo, at: Place) -> bool {
        self.store.know(part, info);
        let wanted = self.store.wanted(part, &at);
        if let Place::Node(spot) = at
            && !self.store.reserve(spot, wanted)
        {
            return false;
        }
        self.store.publish(part, at);
        true
    }

    /// Lets `event` happen at `at` (a capacity that changes, an interruption).
    pub fn inject(&mut self, at: Time, event: Event) {
        self.schedule(at, ScheduledEvent::Event(event));
    }

    /// Lets a node be lost at `at`.
    pub fn lose_node(&mut self, at: Time, node: NodeId, outage: Outage) {
        self.schedule(at, ScheduledEvent::Lose(node, outage));
    }

    /// Lets the external store and the links between nodes carry `by` times less from `at` to `until`.
    pub fn slow_links(&mut self, at: Time, until: Time, by: u64) {
        self.schedule(at, ScheduledEvent::Slower(by.max(1)));
        self.schedule(until, ScheduledEvent::Faster(by.max(1)));
    }

    /// Every replica, those of the sources among them.
    pub fn replicas(&self) -> impl Iterator<Item = (PartRef, &Place)> {
        self.store.replicas()
    }

    /// What is known of a part.
    pub fn info(&self, part: PartRef) -> Option<&PartInfo> {
        self.store.info(part)
    }

    /// Bytes taken on a tier now, those of transfers in flight included.
    pub fn used(&self, spot: TierRef) -> u64 {
        self.store.used(spot)
    }

    /// The most bytes that were ever taken on a tier.
    pub fn peak(&self, spot: TierRef) -> u64 {
        self.store.peak(spot)
    }

    /// The transfers.
    pub fn network(&self) -> &Network {
        &self.network
    }

    pub(crate) fn schedule(&mut self, at: Time, due: ScheduledEvent) {
        self.due.insert((at.max(self.now), self.seq), due);
        self.seq += 1;
    }

    pub(crate) fn happen(&mut self, event: Event) {
        self.ready.push_back((self.now, event));
    }

    /// The time of the next thing that happens by itself.
    fn next_change(&self) -> Option<Time> {
        let due = self.due.keys().next().map(|(at, _)| *at);
        due.into_iter().chain(self.network.next_change()).min()
    }

    /// Lets time pass to `to` (not after the next change) and turns what then ends into events.
    fn advance(&mut self, to: Time) {
        self.now = self.now.max(to);
        for done in self.network.advance(&self.cluster, self.now) {
            self.finished(done);
        }
        while let Some(entry) = self.due.first_entry().filter(|e| e.key().0 <= self.now) {
            match entry.remove() {
                ScheduledEvent::End(id, attempt) => self.ended(id, attempt),
                ScheduledEvent::Event(Event::Capacity { spot, bytes }) => {
                    self.store.set_capacity(spot, bytes);
                    // Nobody can tell of a lost node how full its tiers are.
                    if !self.lost.contains_key(&spot.node) {
                        self.happen(Event::Capacity { spot, bytes });
                    }
                }
                ScheduledEvent::Event(event) => self.happen(event),
                ScheduledEvent::Lose(node, outage) => self.lose(node, outage),
                ScheduledEvent::Back(node, keeps) => self.back(node, keeps),
                ScheduledEvent::Slower(by) => self.links(|rate| (rate / by).max(1)),
                ScheduledEvent::Faster(by) => self.links(|rate| rate.saturating_mul(by)),
            }
        }
    }
}

impl World for Simulation {
    fn now(&self) -> Time {
        self.now
    }

    fn perform(&mut self, action: &Action) -> Result<(), WorldError> {
        match &action.what {
            Do::List { data } => self.list(*data),
            Do::Transfer(order) => self.transfer(order)?,
            Do::Abandon { id } => self.abandon(*id),
            Do::Run(run) => self.run(run)?,
            Do::Stop { instance, attempt } => self.stop(*instance, *attempt),
            Do::Reuse { instance, prior } => self.reuse(*instance, *prior)?,
            Do::Evict { part, key, at } => self.evict(*part, key, at)?,
            Do::Discard { key, at, .. } => {
                at.iter().for_each(|spot| self.store.take_back(key, *spot));
            }
            Do::Assign { .. }
            | Do::Unassign { .. }
            | Do::Cache { .. }
            | Do::CopyImage { .. }
            | Do::Forget { .. }
            | Do::Note { .. }
            | Do::Finish { .. } => {}
        }
        Ok(())
    }

    fn next(&mut self, until: Option<Time>) -> Result<(Time, Event), WorldError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            match (self.next_change(), until) {
                (Some(at), Some(until)) if until < at => {
                    self.advance(until);
                    return Ok((self.now, Event::Timer));
                }
                (Some(at), _) => self.advance(at),
                (None, Some(until)) => {
                    self.advance(until);
                    return Ok((self.now, Event::Timer));
                }
                (None, None) => {
                    return broken("nothing is under way and nothing is waited for".into());
                }
            }
        }
    }

    fn poll(&mut self) -> Option<(Time, Event)> {
        if self.ready.is_empty() && self.next_change().is_some_and(|at| at <= self.now) {
            self.advance(self.now);
        }
        self.ready.pop_front()
    }
}

pub(crate) fn part_ref(data: DataId, version: u32, origin: u32, seq: u32) -> PartRef {
    PartRef {
        data,
        version,
        origin,
        seq,
    }
}

pub(crate) fn failure(kind: FailureKind, message: impl Into<String>) -> Failure {
    Failure {
        kind,
        message: message.into(),
    }
}
