//! Compares the accounts of tiers with a recount of the replicas, in debug builds.

use super::{History, tier_ref_of};
use crate::id::TierRef;
use std::collections::BTreeMap;

/// With more parts than so many each record would take too long.
const MAX_RECOUNTED: usize = 256;

impl History {
    /// Stops where the account of a tier is not the sum of its replicas.
    pub(super) fn recount(&self) {
        if self.replicas.len() > MAX_RECOUNTED {
            return;
        }
        let mut sums: BTreeMap<TierRef, u128> = BTreeMap::new();
        for (place, replica) in self.replicas.values().flatten() {
            if let Some(tier_ref) = tier_ref_of(place) {
                *sums.entry(tier_ref).or_default() += u128::from(replica.stored);
            }
        }
        for tier_ref in self.fill.keys() {
            let sum = sums.remove(tier_ref).unwrap_or(0);
            assert_eq!(
                u128::from(self.held(*tier_ref)),
                sum,
                "bytes held on {tier_ref:?}"
            );
        }
        assert!(sums.is_empty(), "replicas on tiers without an account");
    }
}
