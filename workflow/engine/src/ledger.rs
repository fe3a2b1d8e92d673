//! The one account of capacity: cores, memory and GPUs of nodes and hosts, bytes of tiers.

use std::collections::BTreeSet;
use tarn_types::account::{add, sub};
use tarn_types::cluster::Cluster;
use tarn_types::id::{NodeId, TierRef};
use tarn_types::part::Place;
use tarn_types::workflow::Step;

/// What a step takes on each of its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) cores: u32,
    pub(crate) memory: u64,
    pub(crate) gpus: u32,
}

impl Demand {
    pub(crate) fn of(step: &Step) -> Self {
        Self {
            cores: step.cores,
            memory: step.memory,
            gpus: step.gpus,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct TierAccount {
    capacity: u64,
    /// Bytes of replicas that are present (or being removed).
    used: u64,
    /// Bytes promised to transfers under way and to outputs of assigned and running steps.
    reserved: u64,
}

/// Free compute resources of a node or a host.
#[derive(Debug, Clone, Copy)]
struct Compute {
    cores: u32,
    memory: u64,
    gpus: u32,
}

impl Compute {
    fn holds(self, d: Demand, times: u32) -> bool {
        self.cores >= d.cores * times
            && self.memory >= d.memory * u64::from(times)
            && self.gpus >= d.gpus * times
    }
    fn take(&mut self, d: Demand) {
        sub(&mut self.cores, d.cores, "free cores");
        sub(&mut self.memory, d.memory, "free memory");
        sub(&mut self.gpus, d.gpus, "free GPUs");
    }
    fn expect(&mut self, d: Demand) {
        self.cores = self.cores.saturating_sub(d.cores);
        self.memory = self.memory.saturating_sub(d.memory);
        self.gpus = self.gpus.saturating_sub(d.gpus);
    }
    fn give(&mut self, d: Demand) {
        add(&mut self.cores, d.cores, "free cores");
        add(&mut self.memory, d.memory, "free memory");
        add(&mut self.gpus, d.gpus, "free GPUs");
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    nodes: Vec<Compute>,
    hosts: Vec<Compute>,
    host_of: Vec<u32>,
    tiers: Vec<Vec<TierAccount>>,
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
            let account = |t: &tarn_types::cluster::Tier| TierAccount {
                capacity: t.capacity,
                ..TierAccount::default()
            };
            n.tiers.iter().map(account).collect()
        };
        Self {
            nodes: cluster.nodes.iter().map(node).collect(),
            hosts: cluster.hosts.iter().map(host).collect(),
            host_of: cluster.nodes.iter().map(|n| n.host).collect(),
            tiers: cluster.nodes.iter().map(tiers).collect(),
            lost: BTreeSet::new(),
        }
    }

    /// A node is lost with what it holds; what was promised of its tiers is given back by who asked for it. False if it was
    /// lost already or is none.
    pub(crate) fn lose(&mut self, node: NodeId) -> bool {
        let Some(tiers) = self.tiers.get_mut(node.at()) else {
            return false;
        };
        tiers.iter_mut().for_each(|t| t.used = 0);
        self.lost.insert(node)
    }

    /// A lost node is there again, empty, with tiers of these capacities. False if it was not lost.
    pub(crate) fn regain(&mut self, node: NodeId, capacities: &[u64]) -> bool {
        let tiers = self.tiers.get_mut(node.at()).into_iter().flatten();
        for (tier, bytes) in tiers.zip(capacities) {
            tier.capacity = *bytes;
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

    fn tier(&mut self, spot: TierRef) -> &mut TierAccount {
        &mut self.tiers[spot.node.at()][spot.tier.at()]
    }

    pub(crate) fn free(&self, spot: TierRef) -> u64 {
        if self.is_lost(spot.node) {
            return 0;
        }
        let t = self.tiers[spot.node.at()][spot.tier.at()];
        // More is used than there is where a tier has shrunk.
        t.capacity.saturating_sub(t.used).saturating_sub(t.reserved)
    }

    /// Bytes of a tier that replicas take.
    pub(crate) fn used(&self, spot: TierRef) -> u64 {
        self.tiers[spot.node.at()][spot.tier.at()].used
    }

    pub(crate) fn capacity(&self, spot: TierRef) -> u64 {
        self.tiers[spot.node.at()][spot.tier.at()].capacity
    }

    /// Whether more of a tier is used and promised than there is: it has shrunk since.
    pub(crate) fn is_overdrawn(&self, spot: TierRef) -> bool {
        let t = self.tiers[spot.node.at()][spot.tier.at()];
        t.used.saturating_add(t.reserved) > t.capacity
    }

    pub(crate) fn set_capacity(&mut self, spot: TierRef, bytes: u64) {
        self.tier(spot).capacity = bytes;
    }

    pub(crate) fn reserve(&mut self, spot: TierRef, bytes: u64) {
        add(&mut self.tier(spot).reserved, bytes, "bytes reserved");
    }

    pub(crate) fn unreserve(&mut self, spot: TierRef, bytes: u64) {
        sub(&mut self.tier(spot).reserved, bytes, "bytes reserved");
    }

    pub(crate) fn occupy(&mut self, spot: TierRef, bytes: u64) {
        add(&mut self.tier(spot).used, bytes, "bytes used");
    }

    pub(crate) fn vacate(&mut self, spot: TierRef, bytes: u64) {
        sub(&mut self.tier(spot).used, bytes, "bytes used");
    }

    /// Forgets all bytes in use and promised, what other runs held, and which nodes were lost: for recovery, which counts them
    /// anew.
    pub(crate) fn clear_bytes(&mut self, cluster: &Cluster) {
        self.lost.clear();
        for (tiers, node) in self.tiers.iter_mut().zip(&cluster.nodes) {
            for (account, tier) in tiers.iter_mut().zip(&node.tiers) {
                *account = TierAccount {
                    capacity: tier.capacity,
                    ..TierAccount::default()
                };
            }
        }
    }

    /// Whether a step could run on these nodes now, hosts' caps included.
    pub(crate) fn can_run(&self, spots: &[TierRef], d: Demand) -> bool {
        spots.iter().all(|s| {
            let host = self.host_of[s.node.at()];
            let sharing = spots
                .iter()
                .filter(|o| self.host_of[o.node.at()] == host)
                .count();
            !self.is_lost(s.node)
                && self.nodes[s.node.at()].holds(d, 1)
                && self.hosts[host as usize].holds(d, sharing as u32)
        })
    }

    pub(crate) fn take(&mut self, spots: &[TierRef], d: Demand) {
        for s in spots {
            self.nodes[s.node.at()].take(d);
            self.hosts[self.host_of[s.node.at()] as usize].take(d);
        }
    }

    /// Takes what is there of what a step will take that has its nodes already and waits for those before it: of a ledger of what is to
    /// come, which may have less than all of them take together.
    pub(crate) fn expect(&mut self, spots: &[TierRef], d: Demand) {
        for s in spots {
            self.nodes[s.node.at()].expect(d);
            self.hosts[self.host_of[s.node.at()] as usize].expect(d);
        }
    }

    pub(crate) fn give(&mut self, spots: &[TierRef], d: Demand) {
        for s in spots {
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
