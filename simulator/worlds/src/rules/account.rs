//! The state of a run, from its log.

use std::collections::{BTreeMap, BTreeSet};
use tarn_types::action::{AttemptSpec, Outcome};
use tarn_types::cluster::Cluster;
use tarn_types::event::{PriorData, PriorInstance, Start};
use tarn_types::hash::Hash;
use tarn_types::id::{
    DataId, InstanceId, NodeId, PartitionId, StepId, TierId, TierRef, TransferId,
};
use tarn_types::part::{PartInfo, PartRef, Place, StoreKey, Transfer};
use tarn_types::workflow::{Keep, Workflow};

/// How far a replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplicaStage {
    Coming,
    /// It is there, and comes again.
    Renewed,
    There,
    /// Left for later runs: no step of this one reads it.
    Cached,
    Leaving,
    Damaged,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ReplicaAccount {
    pub(super) state: ReplicaStage,
    /// Bytes it takes on a tier.
    pub(super) stored: u64,
}

/// The tiers of an instance, and its reserved bytes.
#[derive(Debug)]
pub(super) struct InstanceReservation {
    pub(super) tier_refs: Vec<TierRef>,
    pub(super) reserve: u64,
}

/// A partition that is kept for the workflow.
#[derive(Debug)]
pub(super) struct WorkflowPartition {
    pub(super) tier_refs: Vec<TierRef>,
    /// Once a step has it.
    pub(super) key: Option<StoreKey>,
}

#[derive(Debug)]
pub(super) struct RunAccount {
    pub(super) workflow: Workflow,
    pub(super) cluster: Cluster,
    pub(super) prior: Vec<PriorInstance>,
    /// Hashes of earlier runs' results at destinations that have not been compared with them.
    pub(super) prior_dest: BTreeMap<DataId, Hash>,
    pub(super) parts: BTreeMap<PartRef, PartInfo>,
    /// Parts that had a copy once.
    pub(super) were_there: BTreeSet<PartRef>,
    pub(super) copies: BTreeMap<PartRef, BTreeMap<Place, ReplicaAccount>>,
    /// Replicas that came back with a node and are none of the copies: key and bytes.
    pub(super) returned: BTreeMap<(PartRef, TierRef), (StoreKey, u64)>,
    /// Copies that belong to other workflows.
    pub(super) others: BTreeSet<(PartRef, Place)>,
    /// As in [`Start::prior_data`].
    pub(super) prior_data: Vec<PriorData>,
    /// As in [`Start::pinned`].
    pub(super) pinned: Vec<(DataId, Keep)>,
    /// As in [`Start::set_aside`].
    pub(super) set_aside: Option<Vec<(TierRef, u64)>>,
    pub(super) listed: BTreeSet<DataId>,
    pub(super) failed_lists: BTreeSet<DataId>,
    /// Instances whose outputs are made, and need not be made again.
    pub(super) done: BTreeSet<InstanceId>,
    /// Instances that were done once.
    pub(super) ever: BTreeSet<InstanceId>,
    pub(super) placed: BTreeMap<InstanceId, InstanceReservation>,
    pub(super) running: BTreeMap<InstanceId, AttemptSpec>,
    /// Partitions that are kept for the workflow.
    pub(super) kept: BTreeMap<PartitionId, WorkflowPartition>,
    /// Attempts begun.
    pub(super) attempts: BTreeMap<InstanceId, u32>,
    pub(super) transfers: BTreeMap<TransferId, Transfer>,
    pub(super) next_transfer: u64,
    pub(super) lost: BTreeSet<NodeId>,
    pub(super) capacity: BTreeMap<TierRef, u64>,
    /// Datasets whose last version is stored at their `dest`.
    pub(super) delivered: BTreeSet<DataId>,
    /// Versions that were sent outside, with any result.
    pub(super) sent: BTreeSet<(DataId, u32)>,
    pub(super) finished: Option<Outcome>,
    pub(super) interrupted: bool,
    /// Instances that have failed for good while the rest continues.
    pub(super) given_up: BTreeSet<InstanceId>,
    /// Steps whose instances cannot be known, or made nothing.
    pub(super) given_up_steps: BTreeSet<StepId>,
    /// Datasets that could not be moved to their `dest`.
    pub(super) given_up_data: BTreeSet<DataId>,
    /// Datasets that were reported as not rescued.
    pub(super) not_rescued: BTreeSet<DataId>,
    /// The run received the request to start nothing new: since this record, and since an earlier one.
    pub(super) stops: bool,
    pub(super) stopped: bool,
    /// A replica can be read while it arrives.
    pub(super) chains: bool,
    /// How much of a tier may be cached data, in percent.
    pub(super) cache: u8,
}

impl RunAccount {
    pub(super) fn new(start: &Start) -> Self {
        let mut account = Self {
            workflow: start.workflow.clone(),
            cluster: start.cluster.clone(),
            prior: start.prior.clone(),
            prior_dest: start.prior_dest.iter().map(|p| (p.data, p.hash)).collect(),
            parts: BTreeMap::new(),
            were_there: BTreeSet::new(),
            copies: BTreeMap::new(),
            returned: BTreeMap::new(),
            others: BTreeSet::new(),
            prior_data: start.prior_data.clone(),
            pinned: start.pinned.clone(),
            set_aside: start.set_aside.clone(),
            listed: BTreeSet::new(),
            failed_lists: BTreeSet::new(),
            done: BTreeSet::new(),
            ever: BTreeSet::new(),
            placed: BTreeMap::new(),
            running: BTreeMap::new(),
            kept: BTreeMap::new(),
            attempts: BTreeMap::new(),
            transfers: BTreeMap::new(),
            next_transfer: 0,
            lost: BTreeSet::new(),
            capacity: BTreeMap::new(),
            delivered: BTreeSet::new(),
            sent: BTreeSet::new(),
            finished: None,
            interrupted: false,
            given_up: BTreeSet::new(),
            given_up_steps: BTreeSet::new(),
            given_up_data: BTreeSet::new(),
            not_rescued: BTreeSet::new(),
            stops: false,
            stopped: false,
            chains: start.allocation.is_some(),
            cache: match start.allocation {
                Some(_) => 0,
                None => start.options.cache,
            },
        };
        account.reset_capacity();
        account.take_from_others(start);
        account
    }

    /// Adds the replicas of other workflows: they take no space of this run's.
    fn take_from_others(&mut self, start: &Start) {
        for prior in &start.prior_data {
            self.listed.insert(prior.data);
            for (part, known) in prior.parts() {
                self.parts.insert(part, known.info.clone());
                for (tier_ref, _) in &known.at {
                    let at = Place::Node(*tier_ref);
                    self.others.insert((part, at.clone()));
                    self.add(part, at, ReplicaStage::There, 0);
                }
            }
        }
    }

    /// Sets the capacities of the tiers to those of the cluster.
    pub(super) fn reset_capacity(&mut self) {
        for (node, n) in (0..).map(NodeId).zip(&self.cluster.nodes) {
            for (tier, t) in (0..).map(TierId).zip(&n.tiers) {
                self.capacity.insert(TierRef { node, tier }, t.capacity);
            }
        }
    }

    pub(super) fn copy(&self, part: PartRef, at: &Place) -> Option<&ReplicaAccount> {
        self.copies.get(&part)?.get(at)
    }

    pub(super) fn add(&mut self, part: PartRef, at: Place, state: ReplicaStage, stored: u64) {
        if state == ReplicaStage::There {
            self.were_there.insert(part);
        }
        let copies = self.copies.entry(part).or_default();
        copies.insert(at, ReplicaAccount { state, stored });
    }

    pub(super) fn remove(&mut self, part: PartRef, at: &Place) -> Option<ReplicaAccount> {
        self.copies.get_mut(&part)?.remove(at)
    }

    pub(super) fn is_there(&self, part: PartRef, at: &Place) -> bool {
        self.copy(part, at)
            .is_some_and(|c| c.state == ReplicaStage::There)
    }

    pub(super) fn is_cached(&self, part: PartRef, at: &Place) -> bool {
        self.copy(part, at)
            .is_some_and(|c| c.state == ReplicaStage::Cached)
    }

    /// Whether a transfer may read it: it is there, or on its way to a node where it can be read meanwhile.
    pub(super) fn is_readable(&self, part: PartRef, at: &Place) -> bool {
        let comes =
            |c: &ReplicaAccount| c.state == ReplicaStage::Coming && matches!(at, Place::Node(_));
        self.is_there(part, at) || self.chains && self.copy(part, at).is_some_and(comes)
    }

    /// Whether a place is on a lost node.
    pub(super) fn on_lost(&self, at: &Place) -> bool {
        matches!(at, Place::Node(s) if self.lost.contains(&s.node))
    }

    /// Bytes of a tier that are taken or promised.
    pub(super) fn promised(&self, tier_ref: TierRef) -> u64 {
        let place = Place::Node(tier_ref);
        let copies = self.copies.values().filter_map(|c| c.get(&place));
        let returned = self.returned.iter().filter(|((_, s), _)| *s == tier_ref);
        let placed = self
            .placed
            .values()
            .filter(|p| p.tier_refs.contains(&tier_ref));
        copies.map(|c| c.stored).sum::<u64>()
            + returned.map(|(_, (_, stored))| stored).sum::<u64>()
            + placed.map(|p| p.reserve).sum::<u64>()
            + self.partitions_on(tier_ref)
    }

    /// The parts that an instance has made.
    pub(super) fn made_by(&self, id: InstanceId) -> impl Iterator<Item = PartRef> {
        let uses = self.workflow.step(id.step).uses.iter();
        let made = uses.filter_map(|u| Some((u.data, u.makes?)));
        made.flat_map(move |(data, version)| {
            let all = self.parts_of(data, version);
            all.filter(move |(p, _)| p.origin == id.index)
                .map(|(p, _)| p)
        })
    }

    pub(super) fn parts_of(
        &self,
        data: DataId,
        version: u32,
    ) -> impl Iterator<Item = (PartRef, &PartInfo)> {
        let at = |n| PartRef {
            data,
            version,
            origin: n,
            seq: n,
        };
        let range = self.parts.range(at(0)..=at(u32::MAX));
        range.map(|(part, info)| (*part, info))
    }

    pub(super) fn producer(&self, part: PartRef) -> Option<InstanceId> {
        let step = self.workflow.producer(part.data, part.version)?;
        Some(InstanceId {
            step,
            index: part.origin,
        })
    }

    /// Whether nothing of a part can be read any more, or will be.
    pub(super) fn is_lost(&self, part: PartRef) -> bool {
        let copies = self.copies.get(&part).into_iter().flatten();
        copies
            .filter(|(_, c)| c.state != ReplicaStage::Damaged)
            .count()
            == 0
    }
}
