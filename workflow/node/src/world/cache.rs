//! A run that shares its tiers gives data up for other runs, and keeps some as cache while nobody needs the space.

use super::Local;
use crate::staging::inventory::is_protected;
use crate::staging::pool::{DataJob, DataPool};
use crate::storage::store::warn;
use std::time::Instant;
use tarn_types::event::Event;
use tarn_types::id::TierRef;
use tarn_types::layout::TierDir;
use tarn_types::part::{PartRef, Place, StoreKey, Transfer};
use tarn_types::reason::Reason;
use tarn_types::workflow::Keep;

impl Local {
    /// Takes in the changes of other runs on the tiers, not more often than is worth it.
    pub(super) fn look_at_ledgers(&mut self) {
        let pause = self.shared.ledgers.pause();
        if self.looked.is_none_or(|at| at.elapsed() >= pause) {
            self.looked = Some(Instant::now());
            let capacities = self.shared.ledgers.report_capacities();
            self.ahead.extend(
                capacities
                    .into_iter()
                    .map(|(tier_ref, bytes)| Event::Capacity { tier_ref, bytes }),
            );
            self.give_way();
            self.give_cache_up();
        }
    }

    /// When two runs hold a part each of the space that both need, the younger one's data goes, once it only waits: the engine
    /// fetches or makes it again. Data that is kept beyond the run stays.
    fn give_way(&mut self) {
        let steps = self.running.lock().map_or(0, |r| r.len()) + self.router.attended();
        let queued = self.pool.as_ref().map_or(0, DataPool::queued);
        if steps > 0 || self.owed > self.shared.ledgers.waiters() + queued {
            return;
        }
        for (tier_ref, key) in self.shared.ledgers.in_the_way() {
            let Some(part) = self.shared.part_of(&key) else {
                self.shared
                    .ledgers
                    .discard(tier_ref, &key, &*self.shared.mover);
                continue;
            };
            let keep = self.shared.dataset(part.data).map(|d| d.keep);
            if let Ok(Keep::UntilConsumed | Keep::Workflow) = keep {
                let at = Place::Node(tier_ref);
                self.add_job(DataJob::Evict { part, key, at });
            }
        }
    }

    /// Evicts cached data where another run waits for space.
    fn give_cache_up(&mut self) {
        for (tier_ref, part, key) in self.shared.ledgers.wanted_by_others() {
            let at = Place::Node(tier_ref);
            self.add_job(DataJob::Evict { part, key, at });
        }
    }

    /// The engine has no use for a replica any more.
    pub(super) fn evict(&mut self, part: PartRef, key: &StoreKey, at: &Place, why: &Reason) {
        if let Place::Node(tier_ref) = at
            && !self.shared.ledgers.evicts(*tier_ref, key)
        {
            return;
        }
        let at = at.clone();
        if self.stays_pinned(&at, key, why) {
            self.ahead.push(Event::Evicted { part, at });
            return;
        }
        let key = key.clone();
        self.add_job(DataJob::Evict { part, key, at });
    }

    /// Whether a replica that the run has no use for is the last one of a part that the user has pinned, wherever the run has put it: it
    /// stays, and its space is none of the run's any more. One that was moved to another place of this run's, or is damaged, is not meant.
    fn stays_pinned(&mut self, at: &Place, key: &StoreKey, why: &Reason) -> bool {
        if !self.pinned.contains(key) {
            return false;
        }
        let is_last = matches!(at, Place::Node(tier_ref) if self.last_pinned.remove(&(*tier_ref, key.clone())));
        let has_other = match why {
            Reason::MovedAway { .. } | Reason::EvictForSpace { .. } | Reason::StagedOut => !is_last,
            why => *why == Reason::Damaged,
        };
        let replica = match at {
            Place::Node(tier_ref) => self.shared.replica(*tier_ref, key),
            Place::Drained => self.shared.drained(key),
            Place::Source | Place::External(_) => return false,
        };
        let Some(replica) = replica.ok().filter(|_| !has_other) else {
            return false;
        };
        warn(&format!(
            "{} stays, as it is pinned: new versions are stored beside it",
            replica.display()
        ));
        if let Place::Node(tier_ref) = at {
            let ledgers = &self.shared.ledgers;
            ledgers.leave(*tier_ref, key.clone(), replica, true);
        }
        true
    }

    /// Data that is rescued from the cache is not removed meanwhile.
    pub(super) fn hold_cached(&self, t: &Transfer, why: &Reason) {
        if *why != Reason::Rescue {
            return;
        }
        for m in &t.parts {
            if let (Place::Node(tier_ref), Ok((_, key))) = (&m.from, self.shared.known(&m.part)) {
                self.shared.ledgers.hold(*tier_ref, &key);
            }
        }
    }

    /// A replica stays as cache. One that cannot be marked as such goes. A replica that somebody has pinned gets no mark: it
    /// stays, and no other workflow removes it for space.
    pub(super) fn cache(&mut self, part: PartRef, key: &StoreKey, tier_ref: TierRef, share: u64) {
        if self.pinned.contains(key) {
            self.last_pinned.insert((tier_ref, key.clone()));
            return;
        }
        let shared = &self.shared;
        let replica = shared.replica(tier_ref, key);
        if replica.is_ok_and(|r| is_protected(&self.protected, &r)) {
            return;
        }
        let dir = shared.tier_dir(tier_ref);
        let marks = |dir: &TierDir| {
            let replica = (tier_ref, part, key);
            shared.ledgers.cache(replica, dir, share, &*shared.mover)
        };
        if !dir.is_ok_and(|dir| marks(&dir)) {
            let (key, at) = (key.clone(), Place::Node(tier_ref));
            self.add_job(DataJob::Evict { part, key, at });
        }
    }
}
