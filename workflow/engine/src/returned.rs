//! Replicas that came back with lost nodes and are none of their parts', or not yet.

use std::collections::BTreeMap;
use tarn_types::id::{NodeId, TierId, TierRef};
use tarn_types::part::{PartRef, StoreKey};

/// A replica that a node has brought back, or that was found there when the run continued, and that is none of its part's, or not yet.
#[derive(Debug)]
pub(crate) struct ReturnedReplica {
    pub(crate) key: StoreKey,
    pub(crate) stored: u64,
    /// Its eviction is under way.
    pub(crate) leaving: bool,
}

/// Returned replicas by their parts and their places.
#[derive(Debug, Default)]
pub(crate) struct ReturnedReplicas {
    all: BTreeMap<(PartRef, TierRef), ReturnedReplica>,
    /// Some of them have not been looked at.
    unsorted: bool,
}

impl ReturnedReplicas {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&(PartRef, TierRef), &ReturnedReplica)> {
        self.all.iter()
    }

    pub(crate) fn insert(&mut self, name: PartRef, spot: TierRef, replica: ReturnedReplica) {
        let before = self.all.insert((name, spot), replica);
        debug_assert!(before.is_none(), "{name} returned twice to {spot:?}");
        self.unsorted = true;
    }

    pub(crate) fn remove(&mut self, name: PartRef, spot: TierRef) -> Option<ReturnedReplica> {
        self.all.remove(&(name, spot))
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether some have come since the last call.
    pub(crate) fn take_unsorted(&mut self) -> bool {
        std::mem::take(&mut self.unsorted)
    }

    /// The places of those of a part that have this key and stay so far.
    pub(crate) fn staying(
        &self,
        name: PartRef,
        key: Option<&StoreKey>,
    ) -> impl Iterator<Item = TierRef> {
        let spot = |n| TierRef {
            node: NodeId(n),
            tier: TierId(n),
        };
        let all = self.all.range((name, spot(0))..=(name, spot(u32::MAX)));
        all.filter(move |(_, r)| Some(&r.key) == key && !r.leaving)
            .map(|((_, spot), _)| *spot)
    }

    /// The eviction of one begins. False where none with this key stays there.
    pub(crate) fn begin_eviction(&mut self, name: PartRef, key: &StoreKey, spot: TierRef) -> bool {
        let replica = self.all.get_mut(&(name, spot));
        let Some(replica) = replica.filter(|r| r.key == *key && !r.leaving) else {
            return false;
        };
        replica.leaving = true;
        true
    }

    /// The eviction of one has ended: the bytes that it took. `None` where none was being evicted there.
    pub(crate) fn end_eviction(&mut self, name: PartRef, spot: TierRef) -> Option<u64> {
        self.all.get(&(name, spot)).filter(|r| r.leaving)?;
        Some(self.all.remove(&(name, spot))?.stored)
    }

    /// A node is lost, and all that had returned to it. How many of these were being evicted.
    pub(crate) fn lose_node(&mut self, node: NodeId) -> u64 {
        let lost = self.all.extract_if(.., |(_, spot), _| spot.node == node);
        lost.filter(|(_, r)| r.leaving).count() as u64
    }
}
