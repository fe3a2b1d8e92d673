//! Losses and returns of nodes.
//!
//! A loss needs no states of its own. At once: its replicas are forgotten (but for those on their way, which end with
//! their transfers), its capacity is nothing, nobody is placed there. An attempt there, or a transfer from or to it,
//! stays known until the world reports its end; until then the cores and the space that it has on other nodes are
//! really taken. A replica that a node brings back is used if nobody has made it again; the rest, each a *returned
//! replica*, are recorded beside the parts until they are removed, so that none is mistaken for newer content.

use crate::data::{PartReplica, PartReplicaState, TrackedPart, makes};
use crate::returned::ReturnedReplica;
use crate::state::EngineState;
use crate::steps::{InstanceProgress, StepInstance};
use std::collections::BTreeSet;
use tarn_types::account::sub;
use tarn_types::action::Subject;
use tarn_types::event::IntactReplica;
use tarn_types::id::{InstanceId, NodeId, TierRef};
use tarn_types::part::{PartRef, Place, StoreKey};
use tarn_types::workflow::Keep;

impl EngineState {
    pub(crate) fn node_lost(&mut self, node: NodeId) {
        if !self.ledger.nodes.lose(node) {
            return;
        }
        let there = |p: &Place| matches!(p, Place::Node(s) if s.node == node);
        let names: Vec<_> = self.data.parts().map(|(name, _)| name).collect();
        for name in names {
            let Some(part) = self.data.part_mut(name) else {
                continue;
            };
            let before = part.replicas.len();
            let mut leaving = 0;
            part.replicas.retain(|place, r| {
                let gone = there(place) && !matches!(r.state, PartReplicaState::Incoming(_));
                leaving += u64::from(gone && r.state == PartReplicaState::Leaving);
                !gone
            });
            let fewer = part.replicas.len() < before;
            sub(&mut self.leaving, leaving, "replicas that leave");
            if fewer {
                self.data.to_check.insert(name);
                self.note_unkept(name);
            }
        }
        self.cache.lose(node);
        self.steps.lose_images(&mut self.ledger, node);
        self.data.to_release.retain(|(_, place), _| !there(place));
        let leaving = self.returned.lose_node(node);
        sub(&mut self.leaving, leaving, "replicas that leave");
    }

    /// A part that its dataset promises to keep has to be made again if it is lost before the run ends.
    pub(crate) fn note_unkept(&mut self, name: PartRef) {
        let lost = self.data.part(name).is_some_and(TrackedPart::is_lost);
        if lost && self.kept(name) {
            self.unkept.insert(name);
        }
    }

    /// Whether a part is of a version that stays when the run is over.
    pub(crate) fn kept(&self, name: PartRef) -> bool {
        let w = &self.start.workflow;
        let keep = w.dataset(name.data).keep;
        matches!(keep, Keep::For(_) | Keep::Forever) && w.last_version(name.data) == name.version
    }

    /// Whether a part's version has yet to reach its `dest`.
    pub(crate) fn awaits_delivery(&self, name: PartRef) -> bool {
        let w = &self.start.workflow;
        let last = w.dataset(name.data).dest.is_some() && w.last_version(name.data) == name.version;
        last && !self.data.version(name.data, name.version).delivered
    }

    /// Whether somebody waits for a part: a step, its `dest`, or a promise that it stays.
    pub(crate) fn is_needed(&self, name: PartRef) -> bool {
        let readers = self.data.part(name).map_or(0, |p| p.readers);
        readers > 0 || self.is_awaited(name) || self.awaits_delivery(name) || self.kept(name)
    }

    /// The instances that are done and have to run again, as something that they have made is needed and no replica of it is left;
    /// with those whose outputs they need for that. They count as waiting from now on.
    pub(crate) fn runs_again(&mut self) -> BTreeSet<InstanceId> {
        let mut again = BTreeSet::new();
        loop {
            let lost = self
                .data
                .parts()
                .filter(|(name, part)| part.is_lost() && self.is_needed(*name));
            let makers = lost.filter_map(|(name, _)| self.producer(name));
            let done = |id: &InstanceId| self.steps.instance(*id).is_some_and(|i| i.finished());
            let makers: BTreeSet<InstanceId> = makers.filter(done).collect();
            if makers.is_empty() {
                return again;
            }
            makers.iter().for_each(|id| self.revive(*id));
            again.extend(makers);
        }
    }

    pub(crate) fn node_back(&mut self, node: NodeId, capacities: &[u64], whole: &[IntactReplica]) {
        if !self.ledger.nodes.regain(node, capacities) {
            return;
        }
        let tiers = self.start.cluster.node(node).tiers.len();
        for w in whole.iter().filter(|w| w.tier.at() < tiers) {
            let tier_ref = TierRef { node, tier: w.tier };
            self.ledger.nodes.occupy(tier_ref, w.stored);
            let returned_replica = ReturnedReplica {
                key: w.key.clone(),
                stored: w.stored,
                leaving: false,
            };
            match self.believes(w, tier_ref) {
                true => self.adopt(w.part, tier_ref, &returned_replica),
                false => {
                    self.returned.insert(w.part, tier_ref, returned_replica);
                }
            }
        }
    }

    /// Whether the maker of a part has to run (again).
    pub(crate) fn was_to_run_again(&self, name: PartRef) -> bool {
        let producer = self.producer(name).and_then(|id| self.steps.instance(id));
        producer.is_some_and(|i| !i.finished())
    }

    /// A replica was found when the run continued, of a part that was to be made again: as if a node had come back with it.
    pub(crate) fn note_returned(&mut self, name: PartRef, tier_ref: TierRef) {
        let Some(part) = self.data.part(name) else {
            return;
        };
        let returned_replica = ReturnedReplica {
            key: part.info.key.clone(),
            stored: part.info.stored,
            leaving: false,
        };
        self.ledger.nodes.occupy(tier_ref, returned_replica.stored);
        self.returned.insert(name, tier_ref, returned_replica);
    }

    /// Whether a replica that came back is one of its part: of its newest make, which is not being made again.
    fn believes(&self, w: &IntactReplica, tier_ref: TierRef) -> bool {
        let workflow = &self.start.workflow;
        let known = w.part.data.at() < workflow.data.len()
            && w.part.version <= workflow.last_version(w.part.data);
        if !known {
            return false;
        }
        let same = self.data.part(w.part).is_some_and(|p| {
            p.info.key == w.key && !p.replicas.contains_key(&Place::Node(tier_ref))
        });
        let producer = self.producer(w.part).and_then(|id| self.steps.instance(id));
        same && producer.is_none_or(|i| i.finished())
    }

    /// Takes a returned replica as one of its part. Transfers and steps from before the loss may read it still.
    fn adopt(&mut self, name: PartRef, tier_ref: TierRef, returned_replica: &ReturnedReplica) {
        let at = Place::Node(tier_ref);
        let moves = self.transfers.values().flat_map(|t| &t.transfer.parts);
        let moved = moves.filter(|m| m.part == name && m.from == at).count();
        let running = self.steps.running.iter();
        let placed = running.filter_map(|id| self.steps.instance(*id)?.placed());
        let read = placed.flat_map(|p| &p.pinned);
        let read = read.filter(|p| **p == (name, tier_ref)).count();
        let replica = PartReplica {
            state: PartReplicaState::Present,
            stored: returned_replica.stored,
            pins: (moved + read) as u32,
            staged: false,
            is_others: false,
        };
        if let Some(part) = self.data.part_mut(name) {
            part.replicas.insert(at, replica);
        }
        self.data.to_check.insert(name);
    }

    /// The output of an instance that was to run again has come back.
    pub(crate) fn output_back(&mut self, id: InstanceId) {
        let waits = |i: &StepInstance| {
            i.forced
                && matches!(
                    i.progress,
                    InstanceProgress::Pending | InstanceProgress::Failed
                )
        };
        if !self.steps.instance(id).is_some_and(waits) {
            return;
        }
        self.given_up.all.remove(&Subject::Instance(id));
        let made = self.made_by(id);
        let back = made.iter().flat_map(|name| self.returned_of(*name));
        let back: Vec<_> = back.collect();
        for (name, tier_ref) in back {
            let key = self.data.part(name).map(|p| p.info.key.clone());
            let found = key.and_then(|key| self.returned.remove(name, tier_ref, &key));
            if let Some(returned_replica) = found {
                self.adopt(name, tier_ref, &returned_replica);
            }
        }
        self.complete(id, InstanceProgress::Done);
    }

    /// The parts that an instance has made.
    pub(crate) fn made_by(&self, id: InstanceId) -> Vec<PartRef> {
        let made = makes(self.start.workflow.step(id.step));
        let parts = made.flat_map(|(data, version)| {
            let all = &self.data.version(data, version).parts;
            let own = all.range((id.index, 0)..=(id.index, u32::MAX));
            own.map(move |((origin, seq), _)| PartRef {
                data,
                version,
                origin: *origin,
                seq: *seq,
            })
        });
        parts.collect()
    }

    /// The returned replicas of a part that are of its newest make, and stay so far.
    pub(crate) fn returned_of(&self, name: PartRef) -> impl Iterator<Item = (PartRef, TierRef)> {
        let key = self.data.part(name).map(|p| &p.info.key);
        let tier_refs = self.returned.staying(name, key);
        tier_refs.map(move |tier_ref| (name, tier_ref))
    }

    /// Whether an eviction was that of a returned replica: then it is over.
    pub(crate) fn end_returned_eviction(&mut self, part: PartRef, at: &Place) -> bool {
        let Place::Node(tier_ref) = at else {
            return false;
        };
        let Some(stored) = self.returned.end_eviction(part, *tier_ref) else {
            return false;
        };
        self.ledger.nodes.vacate(*tier_ref, stored);
        sub(&mut self.leaving, 1, "replicas that leave");
        true
    }

    /// Whether an ordered eviction is that of a returned replica.
    pub(crate) fn begin_returned_eviction(
        &mut self,
        part: PartRef,
        key: &StoreKey,
        at: &Place,
    ) -> bool {
        let Place::Node(tier_ref) = at else {
            return false;
        };
        let begins = self.returned.begin_eviction(part, key, *tier_ref);
        self.leaving += u64::from(begins);
        begins
    }
}
