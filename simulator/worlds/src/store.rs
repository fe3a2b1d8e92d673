//! The replicas in the simulated world, and how full the tiers are.

use std::collections::{BTreeMap, BTreeSet};
use tarn_types::account::{add, sub};
use tarn_types::cluster::Cluster;
use tarn_types::event::IntactReplica;
use tarn_types::id::{NodeId, TierId, TierRef};
use tarn_types::part::{PartInfo, PartRef, Place, StoreKey};

/// Parts, replicas and tier space.
#[derive(Debug, Default)]
pub(crate) struct SimulatedStorage {
    parts: BTreeMap<PartRef, PartInfo>,
    replicas: BTreeMap<PartRef, BTreeSet<Place>>,
    /// Replicas of other workflows.
    others: BTreeSet<(PartRef, TierRef)>,
    /// Replicas of earlier makes of a part on tiers, with their space.
    returned: BTreeMap<(PartRef, StoreKey, TierRef), u64>,
    tiers: BTreeMap<TierRef, TierFillLevel>,
    /// Partitions, with their space.
    exported: BTreeMap<(StoreKey, TierRef), u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct TierFillLevel {
    capacity: u64,
    used: u64,
    peak: u64,
}

impl SimulatedStorage {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let mut tiers = BTreeMap::new();
        for (n, node) in cluster.nodes.iter().enumerate() {
            for (t, tier) in node.tiers.iter().enumerate() {
                let tier_ref = TierRef {
                    node: NodeId(n as u32),
                    tier: TierId(t as u32),
                };
                let fill = TierFillLevel {
                    capacity: tier.capacity,
                    ..TierFillLevel::default()
                };
                tiers.insert(tier_ref, fill);
            }
        }
        Self {
            tiers,
            ..Self::default()
        }
    }

    pub(crate) fn know(&mut self, part: PartRef, info: PartInfo) {
        self.parts.insert(part, info);
    }

    pub(crate) fn info(&self, part: PartRef) -> Option<&PartInfo> {
        self.parts.get(&part)
    }

    pub(crate) fn info_mut(&mut self, part: PartRef) -> Option<&mut PartInfo> {
        self.parts.get_mut(&part)
    }

    pub(crate) fn holds(&self, part: PartRef, at: &Place) -> bool {
        self.replicas.get(&part).is_some_and(|p| p.contains(at))
    }

    pub(crate) fn replicas(&self) -> impl Iterator<Item = (PartRef, &Place)> {
        self.replicas
            .iter()
            .flat_map(|(part, p)| p.iter().map(|place| (*part, place)))
    }

    /// Takes space; false when it is not there.
    pub(crate) fn reserve(&mut self, tier_ref: TierRef, bytes: u64) -> bool {
        let Some(fill) = self.tiers.get_mut(&tier_ref) else {
            return false;
        };
        let used = fill.used.checked_add(bytes);
        let Some(used) = used.filter(|used| *used <= fill.capacity) else {
            return false;
        };
        fill.used = used;
        fill.peak = fill.peak.max(used);
        true
    }

    pub(crate) fn release(&mut self, tier_ref: TierRef, bytes: u64) {
        if let Some(fill) = self.tiers.get_mut(&tier_ref) {
            sub(&mut fill.used, bytes, "bytes of a tier");
        }
    }

    pub(crate) fn has_partition(&self, key: &StoreKey, tier_ref: TierRef) -> bool {
        self.exported.contains_key(&(key.clone(), tier_ref))
    }

    /// Makes a partition if it is not there. Whether there was space.
    pub(crate) fn make_partition(&mut self, key: &StoreKey, tier_ref: TierRef, bytes: u64) -> bool {
        let at = (key.clone(), tier_ref);
        let there = self.exported.contains_key(&at) || self.reserve(tier_ref, bytes);
        if there {
            self.exported.entry(at).or_insert(bytes);
        }
        there
    }

    /// It is there no more.
    pub(crate) fn take_back(&mut self, key: &StoreKey, tier_ref: TierRef) {
        if let Some(bytes) = self.exported.remove(&(key.clone(), tier_ref)) {
            self.release(tier_ref, bytes);
        }
    }

    /// Space that a part takes where it is not yet.
    pub(crate) fn wanted(&self, part: PartRef, at: &Place) -> u64 {
        match (self.holds(part, at), at, self.parts.get(&part)) {
            (false, Place::Node(_), Some(info)) => info.stored,
            _ => 0,
        }
    }

    /// A replica whose space was reserved is there.
    pub(crate) fn publish(&mut self, part: PartRef, at: Place) {
        self.replicas.entry(part).or_default().insert(at);
    }

    /// A replica of another workflow is there, which takes no space of this one's.
    pub(crate) fn publish_others(&mut self, part: PartRef, tier_ref: TierRef) {
        self.publish(part, Place::Node(tier_ref));
        self.others.insert((part, tier_ref));
    }

    /// Removes a replica with its space; false when it was not there.
    pub(crate) fn remove(&mut self, part: PartRef, at: &Place) -> bool {
        if !self.replicas.get_mut(&part).is_some_and(|p| p.remove(at)) {
            return false;
        }
        if let (Place::Node(tier_ref), Some(info)) = (at, self.parts.get(&part))
            && !self.others.remove(&(part, *tier_ref))
        {
            let (tier_ref, stored) = (*tier_ref, info.stored);
            self.release(tier_ref, stored);
        }
        true
    }

    /// A part is made again. Its replicas on nodes stay until they are removed; outside, only replicas with the same
    /// content stay.
    pub(crate) fn replace(&mut self, part: PartRef, info: PartInfo) {
        let old = self.parts.get(&part).cloned();
        let same = old.as_ref().is_some_and(|o| o.hash == info.hash);
        for place in self.replicas.remove(&part).unwrap_or_default() {
            match (&place, &old) {
                (Place::Node(tier_ref), Some(old)) => {
                    let at = (part, old.key.clone(), *tier_ref);
                    // A replica with the same key there was replaced.
                    if let Some(replaced) = self.returned.insert(at, old.stored) {
                        self.release(*tier_ref, replaced);
                    }
                }
                (Place::External(_), _) if same => self.publish(part, place),
                _ => {}
            }
        }
        self.know(part, info);
    }

    /// Removes a replica of an earlier make of a part.
    pub(crate) fn remove_returned(&mut self, part: PartRef, key: &StoreKey, tier_ref: TierRef) {
        if let Some(stored) = self.returned.remove(&(part, key.clone(), tier_ref)) {
            self.release(tier_ref, stored);
        }
    }

    /// Takes all replicas from a node. Its tiers are empty then.
    pub(crate) fn take_node(&mut self, node: NodeId) -> Vec<IntactReplica> {
        let whole = |part: PartRef, key: &StoreKey, tier_ref: TierRef, stored: u64| IntactReplica {
            part,
            key: key.clone(),
            tier: tier_ref.tier,
            stored,
        };
        let mut taken = Vec::new();
        for (part, places) in &mut self.replicas {
            let Some(info) = self.parts.get(part) else {
                continue;
            };
            places.retain(|place| match place {
                Place::Node(tier_ref) if tier_ref.node == node => {
                    // The node does not report those of other workflows.
                    if !self.others.remove(&(*part, *tier_ref)) {
                        taken.push(whole(*part, &info.key, *tier_ref, info.stored));
                    }
                    false
                }
                _ => true,
            });
        }
        self.returned.retain(|(part, key, tier_ref), stored| {
            if tier_ref.node == node {
                taken.push(whole(*part, key, *tier_ref, *stored));
            }
            tier_ref.node != node
        });
        // Its partitions take no space any more.
        let exported = self
            .exported
            .iter_mut()
            .filter(|((_, s), _)| s.node == node);
        exported.for_each(|(_, bytes)| *bytes = 0);
        let fills = self.tiers.iter_mut().filter(|(s, _)| s.node == node);
        fills.for_each(|(_, fill)| fill.used = 0);
        taken
    }

    /// Puts the replicas that came back with a node where they were. Returns the capacities of the node's tiers.
    pub(crate) fn give_node(&mut self, node: NodeId, whole: &[IntactReplica]) -> Vec<u64> {
        for w in whole {
            let tier_ref = TierRef { node, tier: w.tier };
            if let Some(fill) = self.tiers.get_mut(&tier_ref) {
                add(&mut fill.used, w.stored, "bytes of a tier");
            }
            if self.parts.get(&w.part).is_some_and(|i| i.key == w.key) {
                self.publish(w.part, Place::Node(tier_ref));
            } else {
                self.returned
                    .insert((w.part, w.key.clone(), tier_ref), w.stored);
            }
        }
        let fills = self.tiers.iter().filter(|(s, _)| s.node == node);
        fills.map(|(_, fill)| fill.capacity).collect()
    }

    pub(crate) fn set_capacity(&mut self, tier_ref: TierRef, bytes: u64) {
        if let Some(fill) = self.tiers.get_mut(&tier_ref) {
            fill.capacity = bytes;
        }
    }

    pub(crate) fn used(&self, tier_ref: TierRef) -> u64 {
        self.tiers.get(&tier_ref).map_or(0, |f| f.used)
    }

    pub(crate) fn peak(&self, tier_ref: TierRef) -> u64 {
        self.tiers.get(&tier_ref).map_or(0, |f| f.peak)
    }

    /// Counts the space of replicas and partitions, beside the space of data that is `coming`, and compares it with how
    /// full the tiers are.
    ///
    /// # Panics
    /// When they differ.
    pub(crate) fn check(&self, coming: &BTreeMap<TierRef, u64>) {
        let mut counted = coming.clone();
        for (part, place) in self.replicas() {
            let Place::Node(tier_ref) = place else {
                continue;
            };
            if !self.others.contains(&(part, *tier_ref)) {
                let stored = self.info(part).map_or(0, |i| i.stored);
                *counted.entry(*tier_ref).or_default() += stored;
            }
        }
        for ((_, _, tier_ref), stored) in &self.returned {
            *counted.entry(*tier_ref).or_default() += stored;
        }
        for ((_, tier_ref), bytes) in &self.exported {
            *counted.entry(*tier_ref).or_default() += bytes;
        }
        for (tier_ref, fill) in &self.tiers {
            let counted = counted.get(tier_ref).copied().unwrap_or(0);
            assert_eq!(fill.used, counted, "bytes on {tier_ref:?}");
            assert!(fill.peak >= fill.used, "the most that was on {tier_ref:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_types::cluster::{Host, Link, Node, Tier};
    use tarn_types::id::DataId;
    use tarn_types::part::PartClass;

    const TIER_REF: TierRef = TierRef {
        node: NodeId(0),
        tier: TierId(0),
    };
    const PART: PartRef = PartRef {
        data: DataId(0),
        version: 0,
        origin: 0,
        seq: 0,
    };

    fn store() -> SimulatedStorage {
        let link = Link {
            read: 0,
            write: 0,
            latency: 0,
            streams: 1,
            emulated: false,
        };
        SimulatedStorage::new(&Cluster {
            hosts: vec![Host {
                name: "h".into(),
                cores: 1,
                memory: 1,
                sockets: Vec::new(),
                draw: Default::default(),
            }],
            nodes: vec![Node {
                name: "n".into(),
                host: 0,
                cores: 1,
                memory: 1,
                gpus: 0,
                tiers: vec![Tier {
                    name: "t".into(),
                    root: "/t".into(),
                    capacity: 100,
                    read: 1,
                    write: 1,
                    lender: None,
                }],
            }],
            external: link.clone(),
            peer: link,
        })
    }

    fn info(key: &str) -> PartInfo {
        PartInfo {
            seq: 0,
            class: PartClass::Whole,
            bytes: 10,
            stored: 10,
            files: 1,
            hash: None,
            key: StoreKey(key.into()),
        }
    }

    #[test]
    fn a_part_that_is_made_again_under_the_same_key_takes_its_space_once() {
        let mut store = store();
        for (key, used) in [("a", 10), ("a", 20), ("a", 20), ("b", 20), ("c", 30)] {
            assert!(store.reserve(TIER_REF, 10));
            store.replace(PART, info(key));
            store.publish(PART, Place::Node(TIER_REF));
            store.check(&BTreeMap::new());
            assert_eq!(store.used(TIER_REF), used, "after {key}");
        }
    }

    #[test]
    fn a_node_that_is_back_does_not_report_replicas_of_other_workflows() {
        let mut store = store();
        store.know(PART, info("a"));
        store.publish_others(PART, TIER_REF);
        let whole = store.take_node(NodeId(0));
        assert!(whole.is_empty(), "{whole:?}");
        store.give_node(NodeId(0), &whole);
        store.check(&BTreeMap::new());
        assert_eq!(store.used(TIER_REF), 0);
    }
}
