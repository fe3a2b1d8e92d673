//! Consumed data: it stays as cache where it may, and makes way before anybody waits.

use super::Decide;
use crate::data::{PartReplica, PartReplicaState, TrackedPart};
use crate::state::EngineState;
use tarn_types::action::Do;
use tarn_types::id::TierRef;
use tarn_types::part::{PartRef, Place};
use tarn_types::policy::DataMode;
use tarn_types::reason::Reason;
use tarn_types::workflow::OnFailure;

/// Whether a part that was given up is read, or delivered, after all.
pub(super) fn is_wanted_again(state: &EngineState, name: PartRef, part: &TrackedPart) -> bool {
    let version = state.data.version(name.data, name.version);
    let w = &state.start.workflow;
    let has_dest = w.dataset(name.data).dest.is_some();
    let last = w.last_version(name.data) == name.version;
    part.readers > 0 || state.is_awaited(name) || has_dest && last && !version.delivered
}

impl Decide<'_> {
    /// Cached data on a tier may take so many bytes in all.
    fn cache_share(&self, tier_ref: TierRef) -> u64 {
        let percent = u128::from(self.state.start.options.cache.min(100));
        let share = u128::from(self.state.ledger.nodes.tier(tier_ref).capacity()) * percent / 100;
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Removes a replica that no step reads any more, unless it may stay as cache.
    pub(super) fn evict_or_cache(&mut self, name: PartRef, at: &Place, why: Reason) {
        let part = self.state.data.part(name);
        let found = part.and_then(|p| Some((p, *p.replicas.get(at)?)));
        let cached = found.and_then(|(part, replica)| {
            let tier_ref = self.may_be_cached(name, part, at, replica)?;
            Some((tier_ref, part.info.key.clone(), replica.stored))
        });
        let Some((tier_ref, key, stored)) = cached else {
            return self.evict(name, at, why);
        };
        let share = self.cache_share(tier_ref);
        let beside = share.saturating_sub(stored);
        let surplus = self.state.cache.bytes(tier_ref).saturating_sub(beside);
        self.clear_cache(tier_ref, surplus, &why);
        let what = Do::Cache {
            part: name,
            key,
            at: tier_ref,
            share,
        };
        self.emit(what, Reason::Cached);
    }

    /// The tier on which a replica may stay as cache: it is the last one of a step's output, in clear, of a run on this
    /// machine that has not failed.
    fn may_be_cached(
        &self,
        name: PartRef,
        part: &TrackedPart,
        at: &Place,
        replica: PartReplica,
    ) -> Option<TierRef> {
        let Place::Node(tier_ref) = at else {
            return None;
        };
        let state = &*self.state;
        let w = &state.start.workflow;
        let is_gone = |(place, r): (&Place, &PartReplica)| {
            place == at
                || *place == Place::Source
                || matches!(r.state, PartReplicaState::Leaving | PartReplicaState::Bad)
        };
        let may = state.start.options.cache > 0
            && state.start.allocation.is_none()
            && state.data_mode() == DataMode::Keep
            && state.stop.is_none()
            && replica.state == PartReplicaState::Present
            && replica.pins == 0
            && !w.erase
            && !w.dataset(name.data).encrypt
            && state.producer(name).is_some()
            && part.replicas.iter().all(is_gone)
            && !self.is_remade(name)
            && !state.cache.is_closed(*tier_ref)
            && replica.stored <= self.cache_share(*tier_ref);
        may.then_some(*tier_ref)
    }

    /// Removes cached data from a tier until so many bytes of it go, the oldest first; last the data that a rescue
    /// would send out. Data that is being rescued stays.
    pub(super) fn clear_cache(&mut self, tier_ref: TierRef, bytes: u64, why: &Reason) {
        let mut left = bytes;
        let mut going = Vec::new();
        let place = Place::Node(tier_ref);
        let is_read = |name: PartRef| {
            let replica = self
                .state
                .data
                .part(name)
                .and_then(|p| p.replicas.get(&place));
            replica.is_some_and(|r| r.pins > 0)
        };
        let all = self.state.cache.oldest(tier_ref);
        let mut all: Vec<_> = all.filter(|(name, _)| !is_read(*name)).collect();
        if !self.state.given_up.all.is_empty() {
            let w = &self.state.start.workflow;
            all.sort_by_key(|(name, _)| w.dataset(name.data).on_failure == OnFailure::Drain);
        }
        for (name, stored) in all {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(stored);
            going.push(name);
        }
        for name in going {
            self.evict(name, &place, why.clone());
        }
    }

    /// Whether so many bytes are free on a tier; if only cached data is in the way, it goes.
    pub(super) fn is_free(&mut self, tier_ref: TierRef, want: u64) -> bool {
        let free = self.state.ledger.nodes.free_in(tier_ref);
        if free >= want {
            return true;
        }
        let lack = (want - free).saturating_sub(self.leaving_from(tier_ref));
        self.clear_cache(
            tier_ref,
            lack,
            &Reason::EvictForSpace {
                tier_ref,
                want,
                free,
            },
        );
        false
    }

    /// Bytes that are free on a tier, or are as soon as cached data has gone.
    pub(super) fn free_but_for_cache(&self, tier_ref: TierRef) -> u64 {
        let free = self.state.ledger.nodes.free_in(tier_ref);
        free.saturating_add(self.state.cache.bytes(tier_ref))
    }

    /// Removes all cached data from tiers where a step ran out of space beside it.
    pub(super) fn empty_closed_caches(&mut self) {
        for tier_ref in self.state.cache.to_empty() {
            let bytes = self.state.cache.bytes(tier_ref);
            self.clear_cache(
                tier_ref,
                u64::MAX,
                &Reason::EvictForSpace {
                    tier_ref,
                    want: bytes,
                    free: self.state.ledger.nodes.free_in(tier_ref),
                },
            );
        }
    }

    /// Whether a tier is still being emptied for a step that ran out of space there.
    pub(super) fn is_being_emptied(&self, tier_ref: TierRef) -> bool {
        self.state.cache.is_closed(tier_ref) && self.leaving_from(tier_ref) > 0
    }
}
