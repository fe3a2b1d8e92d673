//! The rules for data that is left for later runs.

use super::account::{ReplicaAccount, ReplicaStage, RunAccount};
use super::{RuleViolation, rule};
use tarn_types::id::TierRef;
use tarn_types::part::{PartRef, Place, StoreKey};
use tarn_types::reason::Reason;

impl RunAccount {
    pub(super) fn leave_cached(
        &mut self,
        part: PartRef,
        key: &StoreKey,
        tier_ref: TierRef,
    ) -> Result<(), RuleViolation> {
        let at = Place::Node(tier_ref);
        let same = self.parts.get(&part).is_some_and(|i| i.key == *key);
        let there = same && self.is_there(part, &at);
        rule("what is cached is there", there, || part.to_string())?;
        let needed = self.needed(part);
        rule(
            "nothing is cached while it is needed",
            needed.is_none(),
            || format!("{part}: {}", needed.unwrap_or_default()),
        )?;
        let mut runs = self.running.values();
        let read = runs.any(|run| {
            let mut held = run.views.iter().flatten().flatten();
            held.any(|h| h.part == part && h.tier_ref == tier_ref)
        });
        let mut moving = self.transfers.values();
        let moved = moving.any(|t| t.parts.iter().any(|m| m.part == part && m.from == at));
        rule("leases are honoured", !read && !moved, || part.to_string())?;
        let w = &self.workflow;
        let may = self.cache > 0
            && !w.erase
            && !w.dataset(part.data).encrypt
            && w.producer(part.data, part.version).is_some();
        rule("what is cached may be", may, || part.to_string())?;
        let copies = self.copies.entry(part).or_default();
        let state =
            |c: &ReplicaAccount| matches!(c.state, ReplicaStage::Leaving | ReplicaStage::Damaged);
        let others = copies.iter().filter(|(p, c)| **p != at && !state(c));
        let others = others.count();
        rule("one copy of a part is cached", others == 0, || {
            part.to_string()
        })?;
        if let Some(copy) = copies.get_mut(&at) {
            copy.state = ReplicaStage::Cached;
        }
        let (cached, share) = (self.cached(tier_ref), self.capacity[&tier_ref]);
        let share = u128::from(share) * u128::from(self.cache) / 100;
        rule(
            "cached data stays within its share",
            u128::from(cached) <= share,
            || format!("{cached} of {share} bytes of {tier_ref:?}"),
        )
    }

    /// Bytes that are cached on a tier.
    fn cached(&self, tier_ref: TierRef) -> u64 {
        let copies = self.copies.values();
        let here = copies.filter_map(|c| c.get(&Place::Node(tier_ref)));
        let cached = here.filter(|c| c.state == ReplicaStage::Cached);
        cached.map(|c| c.stored).sum()
    }

    /// Nobody waits for space on a tier that has cached data.
    pub(super) fn waits_for_no_cache(&self, why: &Reason) -> Result<(), RuleViolation> {
        let (Reason::WaitForSpace { tier_ref, .. } | Reason::WaitForOthers { tier_ref, .. }) = why
        else {
            return Ok(());
        };
        let cached = self.cached(*tier_ref);
        rule("cached data makes way", cached == 0, || {
            format!("{cached} bytes are cached on {tier_ref:?}")
        })
    }
}
