//! Actions for lost nodes and for data that comes back with them. All else follows by itself: a node without capacity
//! gets no step, a part without a replica is made again, a transfer that has failed is ordered again.

use super::Decide;
use crate::data::TrackedPart;
use crate::steps::InstanceProgress;
use std::collections::BTreeMap;
use tarn_types::action::{Do, Subject};
use tarn_types::id::{DataId, InstanceId, TransferId};
use tarn_types::part::Place;
use tarn_types::reason::Reason;

impl Decide<'_> {
    /// Takes back the places that are on lost nodes.
    pub(super) fn leave_lost_nodes(&mut self) {
        if self.state.ledger.nodes.lost() == 0 {
            return;
        }
        let steps = &self.state.steps;
        let assigned = steps.placed.difference(&steps.running);
        let gone = assigned.filter_map(|id| {
            let tier_refs = &steps.instance(*id)?.placed()?.tier_refs;
            let lost = tier_refs
                .iter()
                .find(|s| self.state.ledger.nodes.is_lost(s.node))?;
            Some((*id, lost.node))
        });
        for (instance, node) in gone.collect::<Vec<_>>() {
            self.emit(Do::Unassign { instance }, Reason::NodeLost { node });
        }
    }

    /// Gives up transfers that read a copy that will not come. They are ordered again, from elsewhere.
    pub(super) fn leave_broken_chains(&mut self) {
        let kept = |id: &&TransferId| self.state.transfers.get(id).is_some_and(|t| !t.abandoned);
        for id in self
            .state
            .orphans
            .iter()
            .filter(kept)
            .copied()
            .collect::<Vec<_>>()
        {
            self.emit(Do::Abandon { id }, Reason::ChainBroken);
        }
    }

    /// Takes returned replicas that are wanted, and removes the rest. After a failure all stay, for `tarn resume`.
    pub(super) fn sort_returned(&mut self) {
        if self.state.stop.is_some() || !self.state.returned.take_unsorted() {
            return;
        }
        let mut producers: BTreeMap<InstanceId, DataId> = BTreeMap::new();
        for (name, ..) in self.state.returned.iter() {
            if let Some(id) = self.state.producer(name) {
                producers.entry(id).or_insert(name.data);
            }
        }
        for (id, data) in producers {
            let instance = self.state.steps.instance(id);
            let waits = instance.filter(|i| i.forced && self.made_whole(id));
            let why = Reason::OutputBack { data };
            match waits.map(|i| &i.progress) {
                Some(InstanceProgress::Assigned(_)) => {
                    self.emit(Do::Unassign { instance: id }, why.clone());
                }
                Some(InstanceProgress::Pending | InstanceProgress::Failed) => {}
                _ => continue,
            }
            let about = Subject::Instance(id);
            self.emit(Do::Note { about }, why);
        }
        let unwanted = self.state.returned.iter().filter(|(.., s)| !s.leaving);
        let unwanted = unwanted.map(|(part, tier_ref, s)| Do::Evict {
            part,
            key: s.key.clone(),
            at: Place::Node(tier_ref),
        });
        for what in unwanted.collect::<Vec<_>>() {
            self.emit(what, Reason::GivenUp);
        }
    }

    /// Whether none of an instance's outputs is wanted and lost, now that replicas have returned.
    fn made_whole(&self, id: InstanceId) -> bool {
        let state = &self.state;
        state.made_by(id).into_iter().all(|name| {
            let lost = state.data.part(name).is_some_and(TrackedPart::is_lost);
            !lost || !state.is_needed(name) || state.returned_of(name).next().is_some()
        })
    }

    /// Makes parts again that a dataset promises to keep and has lost.
    pub(super) fn restore_kept(&mut self) {
        for name in self.state.unkept.clone() {
            if self.state.data.part(name).is_some_and(TrackedPart::is_lost) {
                self.make_again(name);
            } else {
                self.state.unkept.remove(&name);
            }
        }
    }
}
