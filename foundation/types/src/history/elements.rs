//! The elements of `foreach` steps, and how much of a version is made.

use super::{History, InstanceState};
use crate::action::{Do, Subject};
use crate::id::{DataId, InstanceId, StepId};
use crate::part::{PartClass, PartInfo, PartRef};
use crate::workflow::Foreach;
use std::collections::BTreeSet;

impl History {
    /// The element of an instance of a `foreach` step: written in the file, or the name of an entry of the version
    /// that the step ranges over, as the engine counts them: the distinct names that match, sorted.
    pub fn item(&self, id: InstanceId) -> Option<&str> {
        let step = self.start.as_ref()?.workflow.steps.get(id.step.at())?;
        let element = match &step.foreach {
            Some(Foreach::Values(values)) => values.get(id.index as usize),
            _ => self
                .instances
                .get(&id)
                .and_then(|i| i.item.as_ref())
                .or_else(|| self.elements.get(&id.step)?.get(id.index as usize)),
        };
        element.map(String::as_str)
    }

    /// Once anything is decided about an instance, its step has been expanded: the version that it ranges over is
    /// complete.
    pub(super) fn expand(&mut self, what: &Do) {
        let instance = match what {
            Do::Assign { instance, .. }
            | Do::Reuse { instance, .. }
            | Do::Note {
                about: Subject::Instance(instance),
            } => instance,
            Do::Run(run) => &run.instance,
            _ => return,
        };
        if self.elements.contains_key(&instance.step) {
            return;
        }
        let foreach = self
            .start
            .as_ref()
            .and_then(|s| s.workflow.steps.get(instance.step.at()))
            .and_then(|s| s.foreach.as_ref());
        let Some(Foreach::Entries {
            data,
            version,
            pattern,
            ..
        }) = foreach
        else {
            return;
        };
        let matching = |(_, info): (PartRef, &PartInfo)| match &info.class {
            PartClass::Entry(name) if pattern.matches(name) => Some(name.clone()),
            _ => None,
        };
        let names: BTreeSet<String> = self
            .parts_of(*data, *version)
            .filter_map(matching)
            .collect();
        self.elements
            .insert(instance.step, names.into_iter().collect());
    }

    /// A part that was not there, or held another entry, changes what a step ranges over.
    pub(super) fn expand_again(&mut self, part: PartRef, info: &PartInfo) {
        let same = self.parts.get(&part).is_some_and(|p| p.class == info.class);
        let Some(start) = self.start.as_ref().filter(|_| !same) else {
            return;
        };
        let over = |step: &StepId| match start.workflow.steps.get(step.at()).map(|s| &s.foreach) {
            Some(Some(Foreach::Entries { data, version, .. })) => (*data, *version),
            _ => (part.data, part.version),
        };
        self.elements
            .retain(|step, _| over(step) != (part.data, part.version));
    }

    /// How many of the instances that make a version are done, and how many there are in all, once that is known.
    /// A source that was listed is one of one.
    pub fn makers(&self, data: DataId, version: u32) -> (usize, Option<usize>) {
        let Some(start) = &self.start else {
            return (0, None);
        };
        let Some(step) = start.workflow.producer(data, version) else {
            return (
                usize::from(self.parts_of(data, version).next().is_some()),
                Some(1),
            );
        };
        let done = self.instances_of(step).filter(|(_, i)| i.state.is_done());
        (done.count(), self.instances_in(step))
    }

    /// How many instances a step has, once that is known.
    pub fn instances_in(&self, step: StepId) -> Option<usize> {
        match &self.start.as_ref()?.workflow.step(step).foreach {
            None => Some(1),
            Some(Foreach::Values(values)) => Some(values.len()),
            Some(Foreach::Entries { .. }) => self.elements.get(&step).map(Vec::len),
        }
    }

    /// How many instances of a step have not run, as long as that is not all of them; with their number.
    pub fn some_not_run(&self, step: StepId) -> Option<(usize, usize)> {
        let all = self.instances_in(step)?;
        let ran = self
            .instances_of(step)
            .filter(|(_, i)| i.state.is_done() || i.state == InstanceState::Failed);
        let left = all.saturating_sub(ran.count());
        (0 < left && left < all).then_some((left, all))
    }

    /// The finished instances whose parts of a version are not all there.
    pub fn makers_of_missing(
        &self,
        data: DataId,
        version: u32,
        is_there: impl Fn(PartRef, &PartInfo) -> bool,
    ) -> BTreeSet<InstanceId> {
        let start = self.start.as_ref();
        let Some(step) = start.and_then(|s| s.workflow.producer(data, version)) else {
            return BTreeSet::new();
        };
        let missing = self.parts_of(data, version);
        let missing = missing.filter(|(part, info)| !is_there(*part, info));
        let makers = missing.map(|(part, _)| InstanceId {
            step,
            index: part.origin,
        });
        let is_done = |id: &InstanceId| self.instances.get(id).is_some_and(|i| i.state.is_done());
        makers.filter(is_done).collect()
    }

    /// Whether every part of a version has been made.
    pub fn is_sealed(&self, data: DataId, version: u32) -> bool {
        let (done, all) = self.makers(data, version);
        all == Some(done)
    }
}
