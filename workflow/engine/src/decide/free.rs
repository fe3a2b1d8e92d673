//! The part of the machine that is free for a placement, and when: cores, memory and GPUs of nodes and of their hosts.

use super::Decide;
use crate::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::compute::Demand;
use tarn_types::id::{InstanceId, NodeId, StepId};
use tarn_types::units::Nanos;
use tarn_types::workflow::Distribution;

/// Cores, bytes of memory and GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Amount([i128; 3]);

impl Amount {
    /// The amount that a step takes on so many nodes.
    fn of(d: Demand, nodes: u32) -> Self {
        let one: [i128; 3] = [d.cores.into(), d.memory.into(), d.gpus.into()];
        Self(one.map(|a| a * i128::from(nodes)))
    }

    fn plus(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }

    fn less(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] - other.0[i]))
    }

    fn within(self, all: Self) -> bool {
        self.0.iter().zip(all.0).all(|(here, all)| *here <= all)
    }
}

impl Decide<'_> {
    /// The nodes that are not lost.
    pub(super) fn all_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.state.ledger.nodes.usable().map(|(id, _)| id)
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
                free.expect(&placed.tier_refs, self.demand(id.step));
            }
        }
        free
    }

    /// Nodes that are large enough for a step, as are their hosts, and have its tier, if it names one; of a step of several nodes
    /// those that have the first tier themselves.
    pub(super) fn nodes_of_kind(&self, step: StepId) -> Vec<NodeId> {
        let d = self.demand(step);
        let tier = self.tier_of(step);
        let of = self.state.start.workflow.step(step);
        let nodes = of.nodes;
        let shares = of
            .uses
            .iter()
            .any(|u| u.distribution == Distribution::Shared);
        let suits = |id: &NodeId| {
            let node = self.state.start.cluster.node(*id);
            let mut tiers = node.tiers.iter();
            let has_tier = tiers.any(|t| tier.is_none_or(|want| want == t.name));
            // A step sees its files at the same path on all of its nodes.
            let alike = nodes == 1 || node.tiers.first().is_none_or(|t| !t.elsewhere());
            // The file system of a namespace cannot be on one of its own kind.
            let alike =
                alike && (nodes == 1 || !shares || node.tiers.iter().all(|t| t.lender.is_none()));
            self.state.ledger.suits(*id, d) && has_tier && alike
        };
        self.all_nodes().filter(suits).collect()
    }

    /// How many of these nodes can run a step at once when nothing else runs: nodes that share a host share its cores and
    /// memory.
    pub(super) fn most_at_once(&self, nodes: &[NodeId], d: Demand) -> u64 {
        let cluster = &self.state.start.cluster;
        let mut by_host: BTreeMap<u32, u64> = BTreeMap::new();
        for node in nodes {
            *by_host.entry(cluster.node(*node).host).or_default() += 1;
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
        self.turn.free.can_run(nodes, demand)
    }

    /// When each of these nodes has so much to give, by the instances that run and wait there and on its host.
    pub(super) fn free_in(&self, nodes: &[NodeId], demand: Demand) -> Vec<Nanos> {
        let cluster = &self.state.start.cluster;
        let hosts: BTreeSet<u32> = nodes.iter().map(|n| cluster.node(*n).host).collect();
        let hosts: BTreeMap<u32, Nanos> = self.sharing(hosts, |host, sharing| {
            self.enough_in(self.of_host(host), sharing, Amount::of(demand, 1))
        });
        let free_in = |n: &NodeId| {
            let node = cluster.node(*n);
            let all = Amount([node.cores.into(), node.memory.into(), node.gpus.into()]);
            let here = self.enough_in(all, std::slice::from_ref(n), Amount::of(demand, 1));
            here.max(hosts.get(&node.host).copied().unwrap_or(0))
        };
        nodes.iter().map(free_in).collect()
    }

    /// Something for each of these hosts, from the nodes that share it.
    fn sharing<T>(
        &self,
        hosts: BTreeSet<u32>,
        of: impl Fn(u32, &[NodeId]) -> T,
    ) -> BTreeMap<u32, T> {
        let mut nodes: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
        // Of lost nodes too: a step that has not ended there still takes its host's cores.
        for (node, host) in (0..)
            .map(NodeId)
            .zip(self.state.start.cluster.nodes.iter().map(|n| n.host))
        {
            if hosts.contains(&host) {
                nodes.entry(host).or_default().push(node);
            }
        }
        let each = nodes.into_iter();
        each.map(|(host, nodes)| (host, of(host, &nodes))).collect()
    }

    /// The amount that the nodes of a host share; GPUs belong to nodes.
    fn of_host(&self, host: u32) -> Amount {
        let host = &self.state.start.cluster.hosts[host as usize];
        Amount([host.cores.into(), host.memory.into(), i128::MAX])
    }

    /// When `want` of `all` that these nodes share is free.
    fn enough_in(&self, all: Amount, nodes: &[NodeId], want: Amount) -> Nanos {
        let mut ends = Vec::new();
        let on_node = &self.state.steps.on_node;
        for id in nodes.iter().flat_map(|n| &on_node[n.at()]) {
            let Some(placed) = self.state.steps.instance(*id).and_then(|i| i.placed()) else {
                continue;
            };
            let taken = Amount::of(self.demand(id.step), 1);
            ends.push((self.state.time_left(*id, placed), taken));
        }
        ends.sort_unstable();
        let mut taken = Amount::default();
        for (_, amount) in &ends {
            taken = taken.plus(*amount);
        }
        let mut at = 0;
        for (end, amount) in ends {
            if taken.plus(want).within(all) {
                break;
            }
            taken = taken.less(amount);
            at = end;
        }
        at
    }

    /// The nodes that an instance could have first, and in how long.
    pub(super) fn first_free(&self, id: InstanceId) -> Option<(Nanos, Vec<NodeId>)> {
        let step = self.state.start.workflow.step(id.step);
        let (count, demand) = (step.nodes as usize, self.demand(id.step));
        let cluster = &self.state.start.cluster;
        let holds = self.holder(id, 0);
        let mut kind = self.nodes_of_kind(id.step);
        kind.retain(|n| holds(*n));
        let mut sooner: Vec<_> = self.free_in(&kind, demand).into_iter().zip(kind).collect();
        sooner.sort_unstable();
        let mut nodes = Vec::with_capacity(count);
        let mut at = 0;
        let mut by_host: BTreeMap<u32, u32> = BTreeMap::new();
        for (free_in, node) in sooner {
            let host = cluster.node(node).host;
            let taken = by_host.entry(host).or_default();
            let holds = Amount::of(demand, *taken + 1).within(self.of_host(host));
            if nodes.len() < count && holds {
                *taken += 1;
                nodes.push(node);
                at = free_in;
            }
        }
        by_host.retain(|_, taken| *taken > 1);
        let hosts = self.sharing(by_host.keys().copied().collect(), |host, sharing| {
            let taken = by_host.get(&host).copied().unwrap_or(0);
            self.enough_in(self.of_host(host), sharing, Amount::of(demand, taken))
        });
        let together = hosts.into_values().max().unwrap_or(0);
        (nodes.len() == count).then(|| (together.max(at), nodes))
    }
}
