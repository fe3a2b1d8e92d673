//! The accounts of the ledger, counted again.

use super::EngineState;
use crate::data::PartReplicaState;
use std::collections::BTreeMap;
use tarn_types::compute::Demand;
use tarn_types::id::{TierId, TierRef};
use tarn_types::ledger::HasLedger;
use tarn_types::part::{PartRef, Place};

/// With more parts than this, they are not counted: it is done after each event.
const MOST: usize = 256;

impl EngineState {
    /// Counts the bytes of all replicas on nodes, their readers, and the shares of running steps, and compares that with
    /// the ledgers and the pins.
    ///
    /// # Panics
    /// When they differ: one was counted twice, or is not counted any more.
    pub(crate) fn check_ledger(&self) {
        if self.data.parts().nth(MOST).is_some() {
            return;
        }
        self.check_pins();
        let mut counted: BTreeMap<TierRef, u64> = BTreeMap::new();
        for (_, part) in self.data.parts() {
            for (place, replica) in &part.replicas {
                if let (Place::Node(tier_ref), false) = (
                    place,
                    matches!(replica.state, PartReplicaState::Incoming(_)),
                ) {
                    *counted.entry(*tier_ref).or_default() += replica.stored;
                }
            }
        }
        for (_, tier_ref, replica) in self.returned.iter() {
            *counted.entry(tier_ref).or_default() += replica.stored;
        }
        for (id, node) in self.ledger.nodes.iter() {
            if self.ledger.nodes.is_lost(id) {
                continue;
            }
            let tiers = 0..self.start.cluster.node(id).tiers.len() as u32;
            let tiers = tiers.map(|tier| TierRef {
                node: id,
                tier: TierId(tier),
            });
            let used = tiers.map(|at| counted.get(&at).copied().unwrap_or(0));
            let used: Vec<u64> = used.collect();
            let here = self.steps.on_node[id.at()].intersection(&self.steps.running);
            let shares = here.map(|id| Demand::of(self.start.workflow.step(id.step)));
            node.ledger().check(id, shares, &used, None);
        }
    }

    /// Counts the readers of each replica.
    fn check_pins(&self) {
        let mut counted: BTreeMap<(PartRef, Place), u32> = BTreeMap::new();
        for m in self.transfers.values().flat_map(|t| &t.transfer.parts) {
            *counted.entry((m.part, m.from.clone())).or_default() += 1;
        }
        let running = self.steps.running.iter();
        let placed = running.filter_map(|id| self.steps.instance(*id)?.placed());
        for (part, tier_ref) in placed.flat_map(|p| &p.pinned) {
            *counted.entry((*part, Place::Node(*tier_ref))).or_default() += 1;
        }
        for (name, part) in self.data.parts() {
            for (place, replica) in &part.replicas {
                let read = counted.get(&(name, place.clone())).copied().unwrap_or(0);
                let pins = read + u32::from(replica.is_others);
                assert_eq!(replica.pins, pins, "pins of {name} at {place:?}");
            }
        }
    }
}
