//! Nodes that were lost, and what came back with them.

use super::{History, push_point, spot_of};
use crate::event::Whole;
use crate::id::{NodeId, Spot, TierId};
use crate::part::{PartRef, Place};
use crate::units::Time;

/// A node that was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLoss {
    /// The node.
    pub node: NodeId,
    /// When it was noticed.
    pub at: Time,
    /// How it was noticed.
    pub why: String,
    /// Replicas that were on it.
    pub replicas: u64,
    /// Bytes that they took.
    pub bytes: u64,
    /// When it could be used again; `None` while it is lost.
    pub back: Option<Time>,
}

impl History {
    /// Whether a node is lost now.
    pub fn is_lost(&self, node: NodeId) -> bool {
        let open = |l: &NodeLoss| l.node == node && l.back.is_none();
        self.losses.iter().any(open)
    }

    /// Whether a place is on a node that is lost now.
    pub(super) fn on_lost(&self, place: &Place) -> bool {
        spot_of(place).is_some_and(|s| self.is_lost(s.node))
    }

    pub(super) fn node_lost(&mut self, node: NodeId, why: &str) {
        if self.is_lost(node) {
            return;
        }
        let here = |place: &&Place| spot_of(place).is_some_and(|s| s.node == node);
        let gone = self.replicas.iter().flat_map(|(part, places)| {
            let places = places.keys().filter(here);
            places.map(|place| (*part, place.clone()))
        });
        let gone: Vec<(PartRef, Place)> = gone.collect();
        let mut loss = NodeLoss {
            node,
            at: self.now,
            why: why.to_owned(),
            replicas: gone.len() as u64,
            bytes: 0,
            back: None,
        };
        for (part, place) in gone {
            let replica = self.replicas.get(&part).and_then(|p| p.get(&place));
            loss.bytes = loss.bytes.saturating_add(replica.map_or(0, |r| r.stored));
            self.remove_replica(part, &place);
        }
        self.losses.push(loss);
        let none = vec![0; self.tiers_of(node).len()];
        self.may_use(node, &none);
    }

    pub(super) fn node_back(&mut self, node: NodeId, capacities: &[u64], whole: &[Whole]) {
        let now = self.now;
        let open = |l: &&mut NodeLoss| l.node == node && l.back.is_none();
        if let Some(loss) = self.losses.iter_mut().find(open) {
            loss.back = Some(now);
        }
        self.may_use(node, capacities);
        for w in whole {
            if self.parts.get(&w.part).is_some_and(|i| i.key == w.key) {
                let tier = w.tier;
                self.add_replica(w.part, Place::Node(Spot { node, tier }), w.stored);
            }
        }
    }

    /// A run that goes on believes in all of its nodes, until it hears otherwise.
    pub(super) fn all_nodes_back(&mut self) {
        let open = self.losses.iter().filter(|l| l.back.is_none());
        let lost: Vec<NodeId> = open.map(|l| l.node).collect();
        for node in lost {
            let capacities = self.tiers_of(node);
            self.node_back(node, &capacities, &[]);
        }
    }

    /// The capacities of a node's tiers, as they were at the start.
    fn tiers_of(&self, node: NodeId) -> Vec<u64> {
        let nodes = self.start.as_ref().map(|s| &s.cluster.nodes);
        let tiers = nodes.and_then(|n| n.get(node.at())).map(|n| &n.tiers);
        tiers.into_iter().flatten().map(|t| t.capacity).collect()
    }

    fn may_use(&mut self, node: NodeId, capacities: &[u64]) {
        for (tier, bytes) in (0..).map(TierId).zip(capacities) {
            let points = self.capacity.entry(Spot { node, tier }).or_default();
            push_point(points, self.now, *bytes);
        }
    }
}
