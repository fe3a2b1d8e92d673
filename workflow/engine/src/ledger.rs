//! The account of a run's resources: the shared ledgers of its nodes, and the cores and memory of the hosts that several
//! nodes may share.

use tarn_types::cluster::{Cluster, Host, Node};
use tarn_types::compute::{Compute, Demand};
use tarn_types::id::{NodeId, TierRef};
use tarn_types::ledger::{HasLedger, NodeLedger, NodeLedgers};
use tarn_types::space::TierSpace;

/// A node of a run.
#[derive(Debug, Clone)]
pub(crate) struct RunNode {
    ledger: NodeLedger,
    host: u32,
}

impl HasLedger for RunNode {
    type Tiers = Vec<TierSpace>;

    fn ledger(&self) -> &NodeLedger {
        &self.ledger
    }

    fn ledger_mut(&mut self) -> &mut NodeLedger {
        &mut self.ledger
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    pub(crate) nodes: NodeLedgers<RunNode>,
    hosts: Vec<Compute>,
}

impl Ledger {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let node = |n: &Node| {
            let all = Demand {
                cores: n.cores,
                memory: n.memory,
                gpus: n.gpus,
            };
            let tiers = n.tiers.iter().map(|t| TierSpace::new(t.capacity));
            RunNode {
                ledger: NodeLedger::new(all, tiers.collect()),
                host: n.host,
            }
        };
        let host = |h: &Host| {
            Compute::new(Demand {
                cores: h.cores,
                memory: h.memory,
                gpus: u32::MAX,
            })
        };
        Self {
            nodes: cluster.nodes.iter().map(node).collect(),
            hosts: cluster.hosts.iter().map(host).collect(),
        }
    }

    fn host(&self, node: NodeId) -> usize {
        self.nodes.node(node).host as usize
    }

    /// Whether a node and its host are large enough for a step.
    pub(crate) fn suits(&self, node: NodeId, d: Demand) -> bool {
        let here = [
            self.nodes.node(node).ledger.all(),
            self.hosts[self.host(node)].all(),
        ];
        here.into_iter().all(|all| all.holds(d, 1))
    }

    /// Whether a step could run on these nodes now, hosts' caps included.
    pub(crate) fn can_run(&self, nodes: &[NodeId], d: Demand) -> bool {
        nodes.iter().all(|n| {
            let host = self.host(*n);
            let sharing = nodes.iter().filter(|o| self.host(**o) == host);
            self.nodes.node(*n).ledger.can_run(d)
                && self.hosts[host].free().holds(d, sharing.count() as u32)
        })
    }

    pub(crate) fn take(&mut self, tier_refs: &[TierRef], d: Demand) {
        for s in tier_refs {
            let host = self.host(s.node);
            self.nodes.node_mut(s.node).ledger.take(d);
            self.hosts[host].take(d);
        }
    }

    /// Takes the available share of the demand of a step that has its nodes already and waits for those before it: in a
    /// forecast, which may have less than all of them take together.
    pub(crate) fn expect(&mut self, tier_refs: &[TierRef], d: Demand) {
        for s in tier_refs {
            let host = self.host(s.node);
            self.nodes.node_mut(s.node).ledger.expect(d);
            self.hosts[host].expect(d);
        }
    }

    pub(crate) fn give(&mut self, tier_refs: &[TierRef], d: Demand) {
        for s in tier_refs {
            let host = self.host(s.node);
            self.nodes.node_mut(s.node).ledger.give(d);
            self.hosts[host].give(d);
        }
    }

    pub(crate) fn free_cores(&self, node: NodeId) -> u32 {
        let ledger = &self.nodes.node(node).ledger;
        match ledger.is_usable() {
            true => ledger
                .free()
                .cores
                .min(self.hosts[self.host(node)].free().cores),
            false => 0,
        }
    }
}
