//! The cache: data that no step of the run reads any more and that stays while its tier has space: a later run may use
//! it. This run uses it only for a rescue. It is counted like all else on a tier, and leaves first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tarn_types::account::{add, sub};
use tarn_types::id::{NodeId, TierRef};
use tarn_types::part::PartRef;

/// The data cached on the tiers.
#[derive(Debug, Default)]
pub(crate) struct DataCache {
    tiers: BTreeMap<TierRef, TierCache>,
    /// Tiers where a step ran out of space beside cached data: nothing is cached there any more.
    closed: BTreeSet<TierRef>,
}

/// The data cached on one tier: the oldest first, each part with its bytes.
#[derive(Debug, Default)]
struct TierCache {
    bytes: u64,
    parts: VecDeque<(PartRef, u64)>,
}

impl DataCache {
    pub(crate) fn add(&mut self, tier_ref: TierRef, part: PartRef, bytes: u64) {
        let tier = self.tiers.entry(tier_ref).or_default();
        add(&mut tier.bytes, bytes, "bytes cached");
        tier.parts.push_back((part, bytes));
    }

    pub(crate) fn remove(&mut self, tier_ref: TierRef, part: PartRef) {
        let Some(tier) = self.tiers.get_mut(&tier_ref) else {
            return;
        };
        // It is nearly always the oldest.
        let Some(at) = tier.parts.iter().position(|(p, _)| *p == part) else {
            return;
        };
        if let Some((_, bytes)) = tier.parts.remove(at) {
            sub(&mut tier.bytes, bytes, "bytes cached");
        }
    }

    /// A node is lost with all that it had.
    pub(crate) fn lose(&mut self, node: NodeId) {
        self.tiers.retain(|tier_ref, _| tier_ref.node != node);
    }

    /// Nothing is known to be cached any more.
    pub(crate) fn clear(&mut self) {
        self.tiers.clear();
    }

    /// Bytes that are cached on a tier.
    pub(crate) fn bytes(&self, tier_ref: TierRef) -> u64 {
        self.tiers.get(&tier_ref).map_or(0, |t| t.bytes)
    }

    /// The parts cached on a tier, the oldest first, each with its bytes.
    pub(crate) fn oldest(&self, tier_ref: TierRef) -> impl Iterator<Item = (PartRef, u64)> {
        let tier = self.tiers.get(&tier_ref).into_iter();
        tier.flat_map(|t| t.parts.iter().copied())
    }

    /// A step ran out of space on these tiers. Whether cached data was in its way.
    pub(crate) fn was_in_the_way(&mut self, tier_refs: &[TierRef]) -> bool {
        let crowded: Vec<TierRef> = tier_refs
            .iter()
            .filter(|s| self.bytes(**s) > 0)
            .copied()
            .collect();
        self.closed.extend(&crowded);
        !crowded.is_empty()
    }

    /// Whether nothing is to be cached on a tier any more.
    pub(crate) fn is_closed(&self, tier_ref: TierRef) -> bool {
        self.closed.contains(&tier_ref)
    }

    /// The tiers that are closed and on which something is cached still.
    pub(crate) fn to_empty(&self) -> Vec<TierRef> {
        let closed = self.closed.iter();
        closed.filter(|s| self.bytes(**s) > 0).copied().collect()
    }
}
