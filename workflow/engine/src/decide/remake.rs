//! Makes parts again that are needed and have no replica left; the remains of an earlier attempt go before.

use super::Decide;
use crate::data::PartReplicaState;
use tarn_types::action::{Do, Subject};
use tarn_types::id::InstanceId;
use tarn_types::part::{PartRef, Place};
use tarn_types::reason::Reason;

impl Decide<'_> {
    /// A part is needed and no replica of it is left: its producer runs again.
    pub(super) fn make_again(&mut self, name: PartRef) {
        let Some(producer) = self.state.producer(name) else {
            return self.others_lost(name);
        };
        let instance = self.state.steps.instance(producer);
        let keeps = (self.state.partitions).keeps(&self.state.start.workflow, producer.step);
        if instance.is_some_and(|i| i.finished()) && keeps {
            let w = &self.state.start.workflow;
            let message = format!(
                "no replica of {} is left, and step {}, which made it, has used a partition that is kept for the workflow and has changed since; `tarn run` starts again",
                w.dataset(name.data).name,
                w.step(producer.step).name,
            );
            let about = Subject::Data(name.data);
            self.note(about, Reason::Failed { message });
        } else if instance.is_some_and(|i| i.finished()) {
            let about = Subject::Instance(producer);
            self.emit(Do::Note { about }, Reason::OutputLost { data: name.data });
        }
    }

    /// No replica is left of data that another workflow has made: the instances that need it are given up.
    fn others_lost(&mut self, name: PartRef) {
        let mut all = self.state.start.prior_data.iter();
        let Some(prior) = all.find(|p| p.data == name.data) else {
            return;
        };
        let message = format!(
            "`{0}` of workflow {1} is damaged or gone, and only that workflow can make it again; `tarn data verify {0}` shows what is left of it",
            prior.dataset, prior.workflow
        );
        if self.state.start.options.fail_fast {
            let about = Subject::Data(name.data);
            return self.note(about, Reason::Failed { message });
        }
        for id in self.state.readers_to_begin(name) {
            self.give_up(id, &message);
        }
    }

    /// Removes first the outputs that an earlier run of an instance has left on nodes, so that the two runs' outputs
    /// never mix. A replica that is being read goes after that has ended; nobody begins to read it, or its copy
    /// outside.
    pub(super) fn clear_remade(&mut self) {
        for producer in self.state.steps.remade.clone() {
            for (part, at, removable) in self.leftovers(producer) {
                if removable {
                    self.evict(part, &at, Reason::OutputLost { data: part.data });
                }
            }
        }
    }

    /// Whether a part is being made again, or will be.
    pub(super) fn is_remade(&self, name: PartRef) -> bool {
        let remade = &self.state.steps.remade;
        let producer = || self.state.producer(name);
        !remade.is_empty() && producer().is_some_and(|id| remade.contains(&id))
    }

    /// The replicas that a new run of an instance would contradict; whether each can go now.
    pub(super) fn leftovers(&self, id: InstanceId) -> Vec<(PartRef, Place, bool)> {
        let mut all = Vec::new();
        for name in self.state.made_by(id) {
            let replicas = self.state.data.part(name).map(|p| &p.replicas);
            let bound = replicas.into_iter().flatten();
            let bound = bound.filter(|(p, _)| !matches!(p, Place::External(_) | Place::Source));
            all.extend(bound.map(|(at, r)| {
                let there = matches!(
                    r.state,
                    PartReplicaState::Present | PartReplicaState::Bad | PartReplicaState::Cached
                );
                (name, at.clone(), there && r.pins == 0)
            }));
        }
        all
    }

    /// Removes a replica.
    pub(super) fn evict(&mut self, part: PartRef, at: &Place, why: Reason) {
        let Some(key) = self.state.data.part(part).map(|p| p.info.key.clone()) else {
            return;
        };
        let what = Do::Evict {
            part,
            key,
            at: at.clone(),
        };
        self.emit(what, why);
    }
}
