//! The one account of capacity: cores, memory and GPUs of nodes and hosts, bytes of tiers.

use crate::capacity::{Compute, Demand};
use std::collections::BTreeSet;
use tarn_types::cluster::Cluster;
use tarn_types::id::{NodeId, TierRef};
use tarn_types::part::Place;
use tarn_types::space::TierSpace;

#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    nodes: Vec<Compute>,
    hosts: Vec<Compute>,
    host_of: Vec<u32>,
    tiers: Vec<Vec<TierSpace>>,
    /// Nodes that are lost: nothing of them is free.
    lost: BTreeSet<NodeId>,
}

impl Ledger {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let node = |n: &tarn_types::cluster::Node| Compute {
            cores: n.cores,
            memory: n.memory,
            gpus: n.gpus,
        };
        let host = |h: &tarn_types::cluster::Host| Compute {
            cores: h.cores,
            memory: h.memory,
            gpus: u32::MAX / 2,
        };
        let tiers = |n: &tarn_types::cluster::Node| {
            n.tiers.iter().map(|t| TierSpace::new(t.capacity)).collect()
        };
        Self {
            nodes: cluster.nodes.iter().map(node).collect(),
            hosts: cluster.hosts.iter().map(host).collect(),
            host_of: cluster.nodes.iter().map(|n| n.host).collect(),
            tiers: cluster.nodes.iter().map(tiers).collect(),
            lost: BTreeSet::new(),
        }
    }

    /// A node is lost with its data; reservations on its tiers are given back by their requesters. False if it was lost
    /// already or is none.
    pub(crate) fn lose(&mut self, node: NodeId) -> bool {
        let Some(tiers) = self.tiers.get_mut(node.at()) else {
            return false;
        };
        tiers.iter_mut().for_each(TierSpace::lose_used);
        self.lost.insert(node)
    }

    /// A lost node is there again, empty, with tiers of these capacities. False if it was not lost.
    pub(crate) fn regain(&mut self, node: NodeId, capacities: &[u64]) -> bool {
        let tiers = self.tiers.get_mut(node.at()).into_iter().flatten();
        for (tier, bytes) in tiers.zip(capacities) {
            tier.set_capacity(*bytes);
        }
        self.lost.remove(&node)
    }

    pub(crate) fn is_lost(&self, node: NodeId) -> bool {
        self.lost.contains(&node)
    }

    /// How many nodes are lost.
    pub(crate) fn lost(&self) -> u32 {
        self.lost.len() as u32
    }

    /// Whether a place is on a lost node.
    pub(crate) fn holds_lost(&self, place: &Place) -> bool {
        matches!(place, Place::Node(s) if self.is_lost(s.node))
    }

    fn space(&self, tier_ref: TierRef) -> &TierSpace {
        &self.tiers[tier_ref.node.at()][tier_ref.tier.at()]
    }

    fn tier(&mut self, tier_ref: TierRef) -> &mut TierSpace {
        &mut self.tiers[tier_ref.node.at()][tier_ref.tier.at()]
    }

    pub(crate) fn free(&self, tier_ref: TierRef) -> u64 {
        match self.is_lost(tier_ref.node) {
            true => 0,
            false => self.space(tier_ref).free(),
        }
    }

    /// Bytes of a tier that replicas take.
    pub(crate) fn used(&self, tier_ref: TierRef) -> u64 {
        self.space(tier_ref).used()
    }

    pub(crate) fn capacity(&self, tier_ref: TierRef) -> u64 {
        self.space(tier_ref).capacity()
    }

    /// Whether more of a tier is used and promised than there is: it has shrunk since.
    pub(crate) fn is_overdrawn(&self, tier_ref: TierRef) -> bool {
        self.space(tier_ref).is_overdrawn()
    }

    pub(crate) fn set_capacity(&mut self, tier_ref: TierRef, bytes: u64) {
        self.tier(tier_ref).set_capacity(bytes);
    }

    pub(crate) fn reserve(&mut self, tier_ref: TierRef, bytes: u64) {
        self.tier(tier_ref).reserve(bytes);
    }

    pub(crate) fn unreserve(&mut self, tier_ref: TierRef, bytes: u64) {
        self.tier(tier_ref).unreserve(bytes);
    }

    pub(crate) fn occupy(&mut self, tier_ref: TierRef, bytes: u64) {
        self.tier(tier_ref).occupy(bytes);
    }

    pub(crate) fn vacate(&mut self, tier_ref: TierRef, bytes: u64) {
        self.tier(tier_ref).vacate(bytes);
    }

    /// Forgets all bytes in use and reserved, those of other runs, and which nodes were lost: for recovery, which
    /// counts them again.
    pub(crate) fn clear_bytes(&mut self, cluster: &Cluster) {
        self.lost.clear();
        for (tiers, node) in self.tiers.iter_mut().zip(&cluster.nodes) {
            for (account, tier) in tiers.iter_mut().zip(&node.tiers) {
                *account = TierSpace::new(tier.capacity);
            }
        }
    }

    /// Whether a step could run on these nodes now, hosts' caps included.
    pub(crate) fn can_run(&self, tier_refs: &[TierRef], d: Demand) -> bool {
        tier_refs.iter().all(|s| {
            let host = self.host_of[s.node.at()];
            let sharing = tier_refs
                .iter()
                .filter(|o| self.host_of[o.node.at()] == host)
                .count();
            !self.is_lost(s.node)
                && self.nodes[s.node.at()].holds(d, 1)
                && self.hosts[host as usize].holds(d, sharing as u32)
        })
    }

    pub(crate) fn take(&mut self, tier_refs: &[TierRef], d: Demand) {
        for s in tier_refs {
            self.nodes[s.node.at()].take(d);
            self.hosts[self.host_of[s.node.at()] as usize].take(d);
        }
    }

    /// Takes the available share of the demand of a step that has its nodes already and waits for those before it: in a
    /// forecast, which may have less than all of them take together.
    pub(crate) fn expect(&mut self, tier_refs: &[TierRef], d: Demand) {
        for s in tier_refs {
            self.nodes[s.node.at()].expect(d);
            self.hosts[self.host_of[s.node.at()] as usize].expect(d);
        }
    }

    pub(crate) fn give(&mut self, tier_refs: &[TierRef], d: Demand) {
        for s in tier_refs {
            self.nodes[s.node.at()].give(d);
            self.hosts[self.host_of[s.node.at()] as usize].give(d);
        }
    }

    pub(crate) fn free_cores(&self, node: NodeId) -> u32 {
        if self.is_lost(node) {
            return 0;
        }
        self.nodes[node.at()].cores.min(self.host_free_cores(node))
    }

    fn host_free_cores(&self, node: NodeId) -> u32 {
        self.hosts[self.host_of[node.at()] as usize].cores
    }
}
