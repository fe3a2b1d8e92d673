//! The state of the simulated world of a run: virtual time, running instances, transfers, replicas.

use crate::estimates::Estimates;
use crate::faults::FaultPlan;
use crate::model::{
    LostNodeReplicas, Outage, ScheduledEvent, SimulatedAttempt, SimulatedTransfer, part_ref,
};
use crate::network::Network;
use crate::store::SimulatedStorage;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tarn_types::cluster::Cluster;
use tarn_types::event::{Event, PriorData, PriorInstance, Start};
use tarn_types::id::{InstanceId, NodeId, TierRef, TransferId};
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
    /// Events at a known time, in order.
    pub(crate) due: BTreeMap<(Time, u64), ScheduledEvent>,
    /// Events that were not fetched yet.
    pub(crate) ready: VecDeque<(Time, Event)>,
    pub(crate) running: BTreeMap<InstanceId, SimulatedAttempt>,
    /// Which prior an instance was taken from: it makes the same when it has to run all the same.
    pub(crate) reused: BTreeMap<InstanceId, u32>,
    pub(crate) moving: BTreeMap<TransferId, SimulatedTransfer>,
    /// A replica can be read while it arrives.
    pub(crate) chains: bool,
    pub(crate) network: Network,
    pub(crate) store: SimulatedStorage,
    /// Nodes that are lost, with the replicas on them.
    pub(crate) lost: BTreeMap<NodeId, LostNodeReplicas>,
    /// Nodes that were lost once: orders from before that was known may miss something there.
    pub(crate) shaken: BTreeSet<NodeId>,
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
            for (tier_ref, _) in &prior.at {
                store.publish_others(part, *tier_ref);
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

    /// Begins at a later time: a run that continues.
    pub fn starting_at(mut self, now: Time) -> Self {
        self.network.advance(&self.cluster, now);
        self.now = now;
        self
    }

    /// Puts a replica there before the run; false when its tier has no space for it.
    pub fn put(&mut self, part: PartRef, info: PartInfo, at: Place) -> bool {
        self.store.know(part, info);
        let wanted = self.store.wanted(part, &at);
        if let Place::Node(tier_ref) = at
            && !self.store.reserve(tier_ref, wanted)
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

    /// The description of a part, if it is known.
    pub fn info(&self, part: PartRef) -> Option<&PartInfo> {
        self.store.info(part)
    }

    /// Bytes taken on a tier now, those of transfers in flight included.
    pub fn used(&self, tier_ref: TierRef) -> u64 {
        self.store.used(tier_ref)
    }

    /// The most bytes that were ever taken on a tier.
    pub fn peak(&self, tier_ref: TierRef) -> u64 {
        self.store.peak(tier_ref)
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
}
