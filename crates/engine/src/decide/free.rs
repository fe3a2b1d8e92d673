//! What of the machine is free for a placement, and when: cores, memory and GPUs of nodes and of their hosts.

use super::Decide;
use crate::ledger::{Demand, Ledger};
use std::collections::BTreeMap;
use tarn_base::id::{InstanceId, NodeId, Spot, StepId, TierId};
use tarn_base::units::Nanos;

impl Decide<'_> {
    pub(super) fn all_nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.state.start.cluster.nodes.len() as u32).map(NodeId)
    }

    pub(super) fn demand(&self, step: StepId) -> Demand {
        Demand::of(self.state.start.workflow.step(step))
    }

    /// The ledger as it is once all that has a place runs.
    pub(super) fn ledger_to_be(&self) -> Ledger {
        let steps = &self.state.steps;
        let mut free = self.state.ledger.clone();
        for id in steps.placed.difference(&steps.running) {
            if let Some(placed) = steps.instance(*id).and_then(|i| i.placed()) {
                free.take(&placed.spots, self.demand(id.step));
            }
        }
        free
    }

    /// Nodes that are large enough for a step and have its tier, if it names one.
    pub(super) fn nodes_of_kind(&self, step: StepId) -> Vec<NodeId> {
        let d = self.demand(step);
        let tier = self.tier_of(step);
        let suits = |id: &NodeId| {
            let node = self.state.start.cluster.node(*id);
            let mut tiers = node.tiers.iter();
            let has_tier = tiers.any(|t| tier.is_none_or(|want| want == t.name));
            node.cores >= d.cores && node.memory >= d.memory && node.gpus >= d.gpus && has_tier
        };
        self.all_nodes().filter(suits).collect()
    }

    /// How many nodes at once the machine can give to a step when nothing else runs: nodes that share a host share its
    /// cores and memory.
    pub(super) fn most_nodes(&self, step: StepId) -> u64 {
        let d = self.demand(step);
        let cluster = &self.state.start.cluster;
        let mut by_host: BTreeMap<u32, u64> = BTreeMap::new();
        for node in self.nodes_of_kind(step) {
            *by_host.entry(cluster.node(node).host).or_default() += 1;
        }
        let holds = |(host, nodes): (u32, u64)| {
            let host = &cluster.hosts[host as usize];
            let by_cores = u64::from(host.cores / d.cores.max(1));
            nodes.min(by_cores).min(host.memory / d.memory.max(1))
        };
        by_host.into_iter().map(holds).sum()
    }

    /// Whether a step could begin on these nodes now, beside all that has a place.
    pub(super) fn free_for(&self, nodes: &[NodeId], demand: Demand) -> bool {
        let spot = |node: &NodeId| Spot {
            node: *node,
            tier: TierId(0),
        };
        let spots: Vec<_> = nodes.iter().map(spot).collect();
        self.turn.free.can_run(&spots, demand)
    }

    /// When a node has so many cores, by what runs and waits there and on its host.
    pub(super) fn free_in(&self, node: NodeId, cores: u32) -> Nanos {
        let all = self.state.start.cluster.node(node).cores;
        let here = self.enough_in(all, std::iter::once(node), cores);
        here.max(self.host_free_in(self.state.start.cluster.node(node).host, cores))
    }

    fn host_free_in(&self, host: u32, cores: u32) -> Nanos {
        let cluster = &self.state.start.cluster;
        let sharing = (0u32..)
            .zip(&cluster.nodes)
            .filter(|(_, n)| n.host == host)
            .map(|(i, _)| NodeId(i));
        self.enough_in(cluster.hosts[host as usize].cores, sharing, cores)
    }

    /// When `want` of `cores` cores are free that these nodes share.
    fn enough_in(&self, cores: u32, nodes: impl Iterator<Item = NodeId>, want: u32) -> Nanos {
        let mut ends = Vec::new();
        for id in nodes.flat_map(|n| &self.state.steps.on_node[n.at()]) {
            let Some(placed) = self.state.steps.instance(*id).and_then(|i| i.placed()) else {
                continue;
            };
            let taken = self.state.start.workflow.step(id.step).cores;
            ends.push((self.state.time_left(*id, placed), taken));
        }
        ends.sort_unstable();
        let mut free = i64::from(cores) - ends.iter().map(|(_, c)| i64::from(*c)).sum::<i64>();
        let mut at = 0;
        for (end, taken) in ends {
            if free >= i64::from(want) {
                break;
            }
            free += i64::from(taken);
            at = end;
        }
        at
    }

    /// The nodes that an instance could have first, and in how long.
    pub(super) fn first_free(&self, id: InstanceId) -> Option<(Nanos, Vec<NodeId>)> {
        let step = self.state.start.workflow.step(id.step);
        let (count, cores) = (step.nodes as usize, step.cores);
        let holds = self.holder(id, 0);
        let kind = self
            .nodes_of_kind(id.step)
            .into_iter()
            .filter(|n| holds(*n));
        let mut kind: Vec<_> = kind.map(|n| (self.free_in(n, cores), n)).collect();
        kind.sort_unstable();
        let mut nodes = Vec::with_capacity(count);
        let mut by_host: BTreeMap<u32, u32> = BTreeMap::new();
        for (_, node) in kind {
            let host = self.state.start.cluster.node(node).host;
            let sharing = by_host.entry(host).or_default();
            let most = self.state.start.cluster.hosts[host as usize].cores / cores.max(1);
            if nodes.len() < count && *sharing < most {
                *sharing += 1;
                nodes.push(node);
            }
        }
        if nodes.len() < count {
            return None;
        }
        let nodes_in = nodes.iter().map(|n| self.free_in(*n, cores)).max();
        let hosts_in = by_host
            .iter()
            .map(|(host, sharing)| self.host_free_in(*host, cores * sharing))
            .max();
        Some((nodes_in.max(hosts_in)?, nodes))
    }
}
