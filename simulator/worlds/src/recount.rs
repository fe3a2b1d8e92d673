//! The accounts of the simulated world, counted again.

use crate::simulation::Simulation;
use std::collections::BTreeMap;
use tarn_types::id::{TierRef, TransferId};
use tarn_types::part::Place;

/// Above this number of transfers or replicas, they are not counted: the check follows each event.
const MOST: usize = 256;

impl Simulation {
    /// Counts the shares of replicas, partitions and transfers in tiers and links, and compares them with the accounts.
    ///
    /// # Panics
    /// When they differ: something was given back twice, or is never given back.
    pub(crate) fn check_accounts(&self) {
        if self.moving.len() > MOST || self.store.replicas().nth(MOST).is_some() {
            return;
        }
        let mut coming: BTreeMap<TierRef, u64> = BTreeMap::new();
        for moving in self.moving.values() {
            if let Place::Node(tier_ref) = moving.order.to {
                *coming.entry(tier_ref).or_default() += moving.space;
            }
        }
        self.store.check(&coming);
        let moves = self.moving.values().filter(|m| m.moved.is_none());
        let moves: Vec<TransferId> = moves.map(|m| m.order.id).collect();
        self.network.check(&self.cluster, &moves);
    }
}
