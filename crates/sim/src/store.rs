//! What lies where in the simulated world, and how full the tiers are.

use std::collections::{BTreeMap, BTreeSet};
use tarn_base::cluster::Cluster;
use tarn_base::id::{NodeId, Spot, TierId};
use tarn_base::part::{PartInfo, PartRef, Place};

/// Parts, replicas and tier space.
#[derive(Debug, Default)]
pub(crate) struct Store {
    parts: BTreeMap<PartRef, PartInfo>,
    replicas: BTreeMap<PartRef, BTreeSet<Place>>,
    tiers: BTreeMap<Spot, Fill>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Fill {
    capacity: u64,
    used: u64,
    peak: u64,
}

impl Store {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let mut tiers = BTreeMap::new();
        for (n, node) in cluster.nodes.iter().enumerate() {
            for (t, tier) in node.tiers.iter().enumerate() {
                let spot = Spot {
                    node: NodeId(n as u32),
                    tier: TierId(t as u32),
                };
                let fill = Fill {
                    capacity: tier.capacity,
                    ..Fill::default()
                };
                tiers.insert(spot, fill);
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
    pub(crate) fn reserve(&mut self, spot: Spot, bytes: u64) -> bool {
        let Some(fill) = self.tiers.get_mut(&spot) else {
            return false;
        };
        let used = fill.used.saturating_add(bytes);
        if used > fill.capacity {
            return false;
        }
        fill.used = used;
        fill.peak = fill.peak.max(used);
        true
    }

    pub(crate) fn release(&mut self, spot: Spot, bytes: u64) {
        if let Some(fill) = self.tiers.get_mut(&spot) {
            fill.used = fill.used.saturating_sub(bytes);
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

    /// Removes a replica with its space; false when it was not there.
    pub(crate) fn remove(&mut self, part: PartRef, at: &Place) -> bool {
        if !self.replicas.get_mut(&part).is_some_and(|p| p.remove(at)) {
            return false;
        }
        if let (Place::Node(spot), Some(info)) = (at, self.parts.get(&part)) {
            let (spot, stored) = (*spot, info.stored);
            self.release(spot, stored);
        }
        true
    }

    /// Removes all replicas of a part that is about to be made anew.
    pub(crate) fn replace(&mut self, part: PartRef, info: PartInfo) {
        for place in self.replicas.get(&part).cloned().unwrap_or_default() {
            self.remove(part, &place);
        }
        self.know(part, info);
    }

    pub(crate) fn set_capacity(&mut self, spot: Spot, bytes: u64) {
        if let Some(fill) = self.tiers.get_mut(&spot) {
            fill.capacity = bytes;
        }
    }

    pub(crate) fn used(&self, spot: Spot) -> u64 {
        self.tiers.get(&spot).map_or(0, |f| f.used)
    }

    pub(crate) fn peak(&self, spot: Spot) -> u64 {
        self.tiers.get(&spot).map_or(0, |f| f.peak)
    }
}
