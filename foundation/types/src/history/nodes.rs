//! Nodes that were lost, and replicas that came back with them. A lost node's replicas are out of reach, not gone: they are gone
//! once the node is back without them, was searched for them in vain, or their part was made again.

use super::{History, Replica, Unreachable, push_point, tier_ref_of};
use crate::event::IntactReplica;
use crate::id::{DataId, NodeId, TierId, TierRef};
use crate::part::{PartRef, Place, StoreKey};
use crate::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// A node that was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLoss {
    /// The node.
    pub node: NodeId,
    /// When it was noticed.
    pub at: Time,
    /// The sign of the loss.
    pub why: String,
    /// Replicas that were on it.
    pub replicas: u64,
    /// Bytes that they took.
    pub bytes: u64,
    /// Of them, those that were nowhere else: bytes of each dataset.
    pub alone: BTreeMap<DataId, u64>,
    /// When it could be used again; `None` while it is lost.
    pub back: Option<Time>,
}

impl History {
    /// Whether a node is lost now.
    pub fn is_lost(&self, node: NodeId) -> bool {
        let open = |l: &NodeLoss| l.node == node && l.back.is_none();
        self.losses.iter().any(open)
    }

    /// A replica has come to a place; to one on a node that has been lost meanwhile, it is kept for the node's return.
    pub(super) fn came(&mut self, part: PartRef, place: Place, stored: u64) {
        if !tier_ref_of(&place).is_some_and(|s| self.is_lost(s.node)) {
            return self.add_replica(part, place, stored);
        }
        let since = self.now;
        let replica = Replica { stored, since };
        self.unreachable
            .extend(self.out_of_reach(part, place, replica));
    }

    /// A replica of a part as it is now, out of reach.
    pub(super) fn out_of_reach(
        &self,
        part: PartRef,
        place: Place,
        replica: Replica,
    ) -> Option<((StoreKey, Place), Unreachable)> {
        let info = self.parts.get(&part)?;
        let bytes = info.bytes;
        let unreachable = Unreachable {
            part,
            bytes,
            replica,
        };
        Some(((info.key.clone(), place), unreachable))
    }

    /// The replicas under this key on lost nodes are of no use: the part was made again under another.
    pub(super) fn outdated(&mut self, key: &StoreKey) {
        let first = Place::Node(TierRef {
            node: NodeId(0),
            tier: TierId(0),
        });
        let from = self.unreachable.range((key.clone(), first)..);
        let old = from.take_while(|((k, _), _)| k == key);
        let old: Vec<_> = old.map(|(at, _)| at.clone()).collect();
        for at in old {
            self.unreachable.remove(&at);
            self.removed.insert(at, self.now);
        }
    }

    pub(super) fn node_lost(&mut self, node: NodeId, why: &str) {
        if self.is_lost(node) {
            return;
        }
        let here = |place: &&Place| tier_ref_of(place).is_some_and(|s| s.node == node);
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
            alone: BTreeMap::new(),
            back: None,
        };
        // A replica whose removal was ordered is not waited for.
        let open = self.evictions.iter().filter(|e| e.done.is_none());
        let leaving: BTreeSet<_> = open.map(|e| (e.key.clone(), e.at.clone())).collect();
        for (part, place) in gone {
            let Some(replica) = self.take_replica(part, &place) else {
                continue;
            };
            loss.bytes = loss.bytes.saturating_add(replica.stored);
            if self.replicas.get(&part).is_none_or(BTreeMap::is_empty) {
                let bytes = loss.alone.entry(part.data).or_default();
                *bytes = bytes.saturating_add(replica.stored);
            }
            let Some((at, replica)) = self.out_of_reach(part, place, replica) else {
                continue;
            };
            match leaving.contains(&at) {
                true => drop(self.removed.insert(at, self.now)),
                false => drop(self.unreachable.insert(at, replica)),
            }
        }
        self.mark_missed_unreachable(node);
        self.losses.push(loss);
        let none = vec![0; self.tiers_of(node).len()];
        self.may_use(node, &none);
    }

    /// A node that was lost when the run was resumed may not have been searched for its replicas.
    fn mark_missed_unreachable(&mut self, node: NodeId) {
        let here = |place: &Place| tier_ref_of(place).is_some_and(|s| s.node == node);
        let missed = std::mem::take(&mut self.missed);
        let (here, elsewhere) = missed.into_iter().partition(|((_, p), _)| here(p));
        self.missed = elsewhere;
        for (at, replica) in here {
            let current = |info: &crate::part::PartInfo| info.key == at.0;
            if self.parts.get(&replica.part).is_some_and(current) {
                self.removed.remove(&at);
                self.unreachable.insert(at, replica);
            }
        }
    }

    /// A node that is back holds what is `whole`; its other replicas are gone.
    pub(super) fn node_back(&mut self, node: NodeId, capacities: &[u64], whole: &[IntactReplica]) {
        let now = self.now;
        let open = |l: &&mut NodeLoss| l.node == node && l.back.is_none();
        if let Some(loss) = self.losses.iter_mut().find(open) {
            loss.back = Some(now);
        }
        self.may_use(node, capacities);
        for w in whole {
            if self.parts.get(&w.part).is_some_and(|i| i.key == w.key) {
                let tier = w.tier;
                self.add_replica(w.part, Place::Node(TierRef { node, tier }), w.stored);
            }
        }
        let here = |place: &Place| tier_ref_of(place).is_some_and(|s| s.node == node);
        let gone = self.unreachable.extract_if(.., |(_, place), _| here(place));
        let gone: Vec<_> = gone.map(|(at, _)| at).collect();
        self.removed.extend(gone.into_iter().map(|at| (at, now)));
    }

    /// A run that continues believes in all of its nodes, until it hears otherwise.
    pub(super) fn all_nodes_back(&mut self) {
        let open = self.losses.iter().filter(|l| l.back.is_none());
        let lost: Vec<NodeId> = open.map(|l| l.node).collect();
        for node in lost {
            let capacities = self.tiers_of(node);
            self.usable(node, &capacities);
        }
    }

    fn usable(&mut self, node: NodeId, capacities: &[u64]) {
        let open = |l: &&mut NodeLoss| l.node == node && l.back.is_none();
        if let Some(loss) = self.losses.iter_mut().find(open) {
            loss.back = Some(self.now);
        }
        self.may_use(node, capacities);
    }

    /// The capacities of a node's tiers, as they were at the start.
    fn tiers_of(&self, node: NodeId) -> Vec<u64> {
        let nodes = self.start.as_ref().map(|s| &s.cluster.nodes);
        let tiers = nodes.and_then(|n| n.get(node.at())).map(|n| &n.tiers);
        tiers.into_iter().flatten().map(|t| t.capacity).collect()
    }

    fn may_use(&mut self, node: NodeId, capacities: &[u64]) {
        for (tier, bytes) in (0..).map(TierId).zip(capacities) {
            let points = self.capacity.entry(TierRef { node, tier }).or_default();
            push_point(points, self.now, *bytes);
        }
    }
}
