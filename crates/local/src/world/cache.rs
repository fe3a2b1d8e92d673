//! Data that no step of the run reads any more, and that stays while nobody needs its room.

use super::Local;
use crate::pool::Job;
use tarn_base::id::Spot;
use tarn_base::layout::TierDir;
use tarn_base::part::{PartRef, Place, StoreKey};

impl Local {
    /// What is cached goes where another run waits for room.
    pub(super) fn give_cache_up(&mut self) {
        for (spot, part, key) in self.shared.ledgers.wanted_by_others() {
            if let Some(pool) = &self.pool {
                self.owed += 1;
                let at = Place::Node(spot);
                pool.add(Job::Evict { part, key, at });
            }
        }
    }

    /// A replica stays as cache. What cannot be marked as such goes.
    pub(super) fn cache(&mut self, part: PartRef, key: &StoreKey, spot: Spot, share: u64) {
        let shared = &self.shared;
        let dir = shared.tier_dir(spot);
        let marks = |dir: &TierDir| {
            let replica = (spot, part, key);
            shared.ledgers.cache(replica, dir, share, &*shared.mover)
        };
        if !dir.is_ok_and(|dir| marks(&dir))
            && let Some(pool) = &self.pool
        {
            self.owed += 1;
            let (key, at) = (key.clone(), Place::Node(spot));
            pool.add(Job::Evict { part, key, at });
        }
    }
}
