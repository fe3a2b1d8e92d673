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

/// Returned replicas by their parts, places and keys: a part that was made more than once can have two in one place.
#[derive(Debug, Default)]
pub(crate) struct ReturnedReplicas {
    all: BTreeMap<(PartRef, TierRef, StoreKey), ReturnedReplica>,
    /// Some of them have not been looked at.
    unsorted: bool,
}

impl ReturnedReplicas {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PartRef, TierRef, &ReturnedReplica)> {
        self.all
            .iter()
            .map(|((name, tier_ref, _), r)| (*name, *tier_ref, r))
    }

    pub(crate) fn insert(&mut self, name: PartRef, tier_ref: TierRef, replica: ReturnedReplica) {
        let before = self
            .all
            .insert((name, tier_ref, replica.key.clone()), replica);
        debug_assert!(before.is_none(), "{name} returned twice to {tier_ref:?}");
        self.unsorted = true;
    }

    pub(crate) fn remove(
        &mut self,
        name: PartRef,
        tier_ref: TierRef,
        key: &StoreKey,
    ) -> Option<ReturnedReplica> {
        self.all.remove(&(name, tier_ref, key.clone()))
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
        let first = TierRef {
            node: NodeId(0),
            tier: TierId(0),
        };
        let all = self.all.range((name, first, StoreKey(String::new()))..);
        all.take_while(move |((part, ..), _)| *part == name)
            .filter(move |(_, r)| Some(&r.key) == key && !r.leaving)
            .map(|((_, tier_ref, _), _)| *tier_ref)
    }

    /// The eviction of one begins. False where none with this key stays there.
    pub(crate) fn begin_eviction(
        &mut self,
        name: PartRef,
        key: &StoreKey,
        tier_ref: TierRef,
    ) -> bool {
        let replica = self.all.get_mut(&(name, tier_ref, key.clone()));
        let Some(replica) = replica.filter(|r| !r.leaving) else {
            return false;
        };
        replica.leaving = true;
        true
    }

    /// The eviction of one has ended: the bytes that it took. `None` where none was being evicted there.
    pub(crate) fn end_eviction(&mut self, name: PartRef, tier_ref: TierRef) -> Option<u64> {
        let from = self.all.range((name, tier_ref, StoreKey(String::new()))..);
        let mut here = from.take_while(|((part, at, _), _)| (*part, *at) == (name, tier_ref));
        let (leaving, _) = here.find(|(_, r)| r.leaving)?;
        let leaving = leaving.clone();
        Some(self.all.remove(&leaving)?.stored)
    }

    /// A node is lost, and all that had returned to it. How many of these were being evicted.
    pub(crate) fn lose_node(&mut self, node: NodeId) -> u64 {
        let lost = self
            .all
            .extract_if(.., |(_, tier_ref, _), _| tier_ref.node == node);
        lost.filter(|(_, r)| r.leaving).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_types::id::{DataId, TierId};

    #[test]
    fn a_part_that_was_made_twice_has_two_replicas_in_one_place() {
        let name = PartRef {
            data: DataId(0),
            version: 1,
            origin: 0,
            seq: 0,
        };
        let tier_ref = TierRef {
            node: NodeId(1),
            tier: TierId(0),
        };
        let key = |text: &str| StoreKey(text.into());
        let mut returned = ReturnedReplicas::default();
        for (text, stored) in [("first", 10), ("second", 20)] {
            let replica = ReturnedReplica {
                key: key(text),
                stored,
                leaving: false,
            };
            returned.insert(name, tier_ref, replica);
        }
        assert_eq!(returned.iter().count(), 2);
        assert_eq!(returned.staying(name, Some(&key("second"))).count(), 1);
        assert_eq!(returned.end_eviction(name, tier_ref), None);
        assert!(returned.begin_eviction(name, &key("second"), tier_ref));
        assert!(!returned.begin_eviction(name, &key("second"), tier_ref));
        assert_eq!(returned.end_eviction(name, tier_ref), Some(20));
        assert_eq!(
            returned
                .remove(name, tier_ref, &key("first"))
                .unwrap()
                .stored,
            10
        );
    }
}
