//! The partitions of steps: the places of those that are kept for the workflow, and the space that all of them take.
//!
//! A partition that is kept has its nodes from the placement of the first instance that uses it on, and its space there
//! until it is removed; nobody has used it before that instance runs. The partitions of a step are on the same nodes,
//! so partitions that are linked by steps are a *group*, which has its nodes as soon as one of them has.

use crate::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::action::PartitionAssignment;
use tarn_types::cluster::Cluster;
use tarn_types::id::{InstanceId, NodeId, PartitionId, StepId, TierId, TierRef};
use tarn_types::part::StoreKey;
use tarn_types::workflow::{KeepPartition, StoragePartition, Workflow};

/// A partition that is kept for the workflow.
#[derive(Debug)]
pub(crate) struct KeptPartition {
    pub(crate) tier_refs: Vec<TierRef>,
    /// Its key in the store; none before an instance that uses it has run.
    pub(crate) key: Option<StoreKey>,
    /// Instances with a place that use it.
    users: BTreeSet<InstanceId>,
}

#[derive(Debug)]
pub(crate) struct Partitions {
    /// By step.
    of_step: Vec<Vec<PartitionId>>,
    /// By partition: the one that represents its group.
    groups: Vec<PartitionId>,
    pub(crate) kept: BTreeMap<PartitionId, KeptPartition>,
}

/// The tier of a node for a partition, if there is one: the tier it names, or that of the step's outputs.
pub(crate) fn tier_ref_of(
    cluster: &Cluster,
    partition: &StoragePartition,
    home: TierRef,
) -> Option<TierRef> {
    let Some(name) = &partition.tier else {
        return Some(home);
    };
    let tiers = &cluster.node(home.node).tiers;
    let tier = tiers.iter().position(|t| t.name == *name)?;
    Some(TierRef {
        tier: TierId(tier as u32),
        ..home
    })
}

fn tier_refs_of(
    cluster: &Cluster,
    partition: &StoragePartition,
    homes: &[TierRef],
) -> Vec<TierRef> {
    let tier_ref = |home: &TierRef| tier_ref_of(cluster, partition, *home).unwrap_or(*home);
    homes.iter().map(tier_ref).collect()
}

impl Partitions {
    pub(crate) fn new(w: &Workflow) -> Self {
        let mut of_step = vec![Vec::new(); w.steps.len()];
        for (id, partition) in (0..).map(PartitionId).zip(&w.partitions) {
            for step in &partition.steps {
                if let Some(list) = of_step.get_mut(step.at()) {
                    list.push(id);
                }
            }
        }
        let is_kept = |id: &PartitionId| w.partition(*id).keep == KeepPartition::Workflow;
        let mut groups: Vec<PartitionId> =
            (0..).map(PartitionId).take(w.partitions.len()).collect();
        for list in &of_step {
            let mut kept = list.iter().filter(|id| is_kept(id));
            let Some(first) = kept.next().map(|id| groups[id.at()]) else {
                continue;
            };
            for other in kept.map(|id| groups[id.at()]).collect::<Vec<_>>() {
                let joins = |group: &&mut PartitionId| **group == other;
                groups.iter_mut().filter(joins).for_each(|g| *g = first);
            }
        }
        Self {
            of_step,
            groups,
            kept: BTreeMap::new(),
        }
    }

    pub(crate) fn of(&self, step: StepId) -> &[PartitionId] {
        self.of_step.get(step.at()).map_or(&[], Vec::as_slice)
    }

    /// Whether a step uses one that is kept: its inputs alone do not determine its outputs.
    pub(crate) fn keeps(&self, w: &Workflow, step: StepId) -> bool {
        let mut own = self.of(step).iter();
        own.any(|id| w.partition(*id).keep == KeepPartition::Workflow)
    }

    /// The nodes that an instance of a step must run on, as its partitions are there or will be, and a partition that
    /// decides it.
    pub(crate) fn home(&self, step: StepId) -> Option<(PartitionId, Vec<NodeId>)> {
        if self.kept.is_empty() {
            return None;
        }
        let own = self.of(step).iter();
        let groups: BTreeSet<PartitionId> = own.map(|id| self.groups[id.at()]).collect();
        let mut kept = self.kept.iter();
        let (id, placement) = kept.find(|(id, _)| groups.contains(&self.groups[id.at()]))?;
        Some((*id, placement.tier_refs.iter().map(|s| s.node).collect()))
    }

    /// The space that the partitions of a step take at a position on a node, by tier, if its outputs go to `home`: of
    /// those that are not there already. `None` if the node has no such tier.
    pub(crate) fn wanted(
        &self,
        w: &Workflow,
        cluster: &Cluster,
        step: StepId,
        home: TierRef,
    ) -> Option<Vec<(TierRef, u64)>> {
        let nodes = w.step(step).nodes as usize;
        let missing = self
            .of(step)
            .iter()
            .filter(|id| !self.kept.contains_key(id));
        missing
            .map(|id| {
                let partition = w.partition(*id);
                Some((
                    tier_ref_of(cluster, partition, home)?,
                    partition.takes(nodes),
                ))
            })
            .collect()
    }

    /// The tiers on which partitions of a step with a place are yet to be made.
    pub(crate) fn to_make(
        &self,
        w: &Workflow,
        cluster: &Cluster,
        step: StepId,
        homes: &[TierRef],
    ) -> Vec<TierRef> {
        let own = self.of(step).iter();
        let of_one = |id: &PartitionId| match self.kept.get(id) {
            Some(placement) if placement.key.is_some() => Vec::new(),
            Some(placement) => placement.tier_refs.clone(),
            None => tier_refs_of(cluster, w.partition(*id), homes),
        };
        own.flat_map(of_one).collect()
    }

    /// Instances with a place that use the same partitions as this one, of those that are kept and yet to be made: as
    /// long as one has its place, their space is taken.
    pub(crate) fn sharers(&self, id: InstanceId) -> BTreeSet<InstanceId> {
        let own = self.of(id.step).iter().filter_map(|p| self.kept.get(p));
        let unmade = own.filter(|placement| placement.key.is_none());
        unmade
            .flat_map(|placement| &placement.users)
            .copied()
            .collect()
    }

    /// Whether an instance with a place uses it.
    pub(crate) fn is_used(&self, partition: PartitionId) -> bool {
        self.kept
            .get(&partition)
            .is_some_and(|p| !p.users.is_empty())
    }

    /// The partitions that an attempt of an instance gets. `filled`: whether a step that used it has committed.
    pub(crate) fn attached_partitions(
        &self,
        w: &Workflow,
        cluster: &Cluster,
        (id, attempt): (InstanceId, u32),
        homes: &[TierRef],
        filled: impl Fn(PartitionId) -> bool,
    ) -> Vec<PartitionAssignment> {
        let own = self.of(id.step).iter();
        own.map(|partition| {
            let about = w.partition(*partition);
            let placement = self.kept.get(partition);
            let key = placement.and_then(|p| p.key.clone());
            PartitionAssignment {
                partition: *partition,
                key: key.unwrap_or_else(|| StoreKey(format!("{}.{id}.{attempt}", about.name))),
                tier_refs: placement.map_or_else(
                    || tier_refs_of(cluster, about, homes),
                    |p| p.tier_refs.clone(),
                ),
                filled: about.keep == KeepPartition::Workflow && filled(*partition),
            }
        })
        .collect()
    }

    /// An attempt begins: a partition that it is the first to use gets the key of this attempt.
    pub(crate) fn run(&mut self, exported: &[PartitionAssignment]) {
        for exported in exported {
            if let Some(placement) = self.kept.get_mut(&exported.partition) {
                placement.key.get_or_insert_with(|| exported.key.clone());
            }
        }
    }

    /// The run resumes, all space is counted again: that of kept partitions. No instance has a place.
    pub(crate) fn resumed(&self, w: &Workflow, ledger: &mut Ledger) {
        for (id, placement) in &self.kept {
            let bytes = w.partition(*id).takes(placement.tier_refs.len());
            placement
                .tier_refs
                .iter()
                .for_each(|s| ledger.nodes.reserve(*s, bytes));
        }
    }

    /// An instance has a place: the space of its partitions is reserved.
    pub(crate) fn place(
        &mut self,
        (w, cluster): (&Workflow, &Cluster),
        ledger: &mut Ledger,
        id: InstanceId,
        homes: &[TierRef],
    ) {
        let Self { of_step, kept, .. } = self;
        for partition in of_step.get(id.step.at()).into_iter().flatten() {
            let about = w.partition(*partition);
            let tier_refs = tier_refs_of(cluster, about, homes);
            let is_kept = about.keep == KeepPartition::Workflow;
            if !is_kept || !kept.contains_key(partition) {
                let bytes = about.takes(homes.len());
                tier_refs
                    .iter()
                    .for_each(|s| ledger.nodes.reserve(*s, bytes));
            }
            if is_kept {
                let placement = kept.entry(*partition).or_insert_with(|| KeptPartition {
                    tier_refs,
                    key: None,
                    users: BTreeSet::new(),
                });
                placement.users.insert(id);
            }
        }
    }

    /// It has no place any more: releases its own partitions, and those that nobody has begun to use.
    pub(crate) fn displace(
        &mut self,
        (w, cluster): (&Workflow, &Cluster),
        ledger: &mut Ledger,
        id: InstanceId,
        homes: &[TierRef],
    ) {
        let Self { of_step, kept, .. } = self;
        for partition in of_step.get(id.step.at()).into_iter().flatten() {
            let about = w.partition(*partition);
            let bytes = about.takes(homes.len());
            if about.keep == KeepPartition::Step {
                let tier_refs = tier_refs_of(cluster, about, homes);
                tier_refs
                    .iter()
                    .for_each(|s| ledger.nodes.unreserve(*s, bytes));
            } else if let Some(placement) = kept.get_mut(partition) {
                placement.users.remove(&id);
                if placement.key.is_none() && placement.users.is_empty() {
                    let tier_refs = placement.tier_refs.iter();
                    tier_refs.for_each(|s| ledger.nodes.unreserve(*s, bytes));
                    kept.remove(partition);
                }
            }
        }
    }

    /// Removes a partition and releases its space.
    pub(crate) fn discard(&mut self, w: &Workflow, ledger: &mut Ledger, partition: PartitionId) {
        if let Some(placement) = self.kept.remove(&partition) {
            let bytes = w.partition(partition).takes(placement.tier_refs.len());
            let tier_refs = placement.tier_refs.iter();
            tier_refs.for_each(|s| ledger.nodes.unreserve(*s, bytes));
        }
    }
}
