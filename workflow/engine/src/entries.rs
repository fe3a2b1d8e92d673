//! Instances that read an entry of another `foreach` step's output: each waits only for the instance of its own
//! element.
//!
//! An entry is complete when the instance with the same element as its reader has committed it, as long as instances
//! write to entries of their own. When one has written to an entry that another was to make (the partitions of a
//! shuffle), or nobody is known to make an entry, it is complete with its version.

use crate::data::{EntryReader, makes, reads};
use crate::dataflow::ITEM;
use crate::identity::identity;
use crate::state::EngineState;
use crate::steps::{EntryInput, InstanceProgress, StepInstance};
use crate::unbound::BindError;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::account::sub;
use tarn_types::action::Subject;
use tarn_types::id::{DataId, InstanceId, StepId};
use tarn_types::part::{PartClass, PartRef};

impl EngineState {
    /// Whether all that the instances of a step depend on is known, beside the entries that each waits for itself.
    pub(crate) fn may_bind(&self, id: StepId) -> bool {
        let own = &self.by_element[id.at()];
        let mut inputs = reads(self.start.workflow.step(id)).into_iter();
        inputs.all(|(data, version)| {
            let sealed = self.data.version(data, version).sealed;
            let maker = || self.producers.get(&(data, version));
            let bound = || maker().is_some_and(|m| self.steps.all[m.at()].instances.is_some());
            sealed || own.contains(&(data, version)) && bound()
        })
    }

    /// The entries that an instance of a step waits for by itself.
    pub(crate) fn entry_inputs(&self, id: StepId, item: Option<&str>) -> Vec<EntryInput> {
        let own = &self.by_element[id.at()];
        let uses = self.start.workflow.step(id).uses.iter().enumerate();
        let inputs = uses.filter_map(|(used, u)| {
            let version = u.reads.filter(|v| own.contains(&(u.data, *v)))?;
            let name = u.entry.as_ref()?.replace(ITEM, item.unwrap_or_default());
            Some(EntryInput {
                used,
                data: u.data,
                version,
                name,
                maker: None,
            })
        });
        inputs.collect()
    }

    /// The instances of a step have become known: those that wait for entries of their own find the makers of these,
    /// and so do those that read entries of the step's outputs.
    pub(crate) fn expect_entries(&mut self, id: StepId) {
        let made: Vec<_> = makes(self.start.workflow.step(id)).collect();
        let readers = made.iter().flat_map(|v| self.readers.get(v)).flatten();
        let readers: BTreeSet<StepId> = readers.copied().collect();
        for reader in readers {
            self.steps.to_bind.insert(reader);
            self.find_makers(reader, |at| made.contains(&at));
        }
        self.find_makers(id, |_| true);
    }

    fn find_makers(&mut self, reader: StepId, which: impl Fn((DataId, u32)) -> bool) {
        let versions = self.by_element[reader.at()].iter().copied();
        for (data, version) in versions.filter(|at| which(*at)).collect::<Vec<_>>() {
            self.stop_expecting(reader, data, version);
            let elements = self.elements_of_maker(data, version);
            let Some(instances) = self.steps.all[reader.at()].instances.as_mut() else {
                continue;
            };
            let version = self.data.version_mut(data, version);
            for (index, instance) in (0u32..).zip(instances) {
                let item = instance.item.as_deref().unwrap_or_default();
                let maker = elements.get(item).copied();
                let inputs = instance.entries.iter_mut();
                for input in inputs.filter(|i| i.data == data) {
                    input.maker = maker;
                    let reader = InstanceId {
                        step: reader,
                        index,
                    };
                    let expected = version.expected.entry(input.name.clone()).or_default();
                    expected.push(EntryReader { reader, maker });
                }
            }
            version.crossed = version.is_crossed();
        }
    }

    /// By element, the instances of the step that makes a version.
    fn elements_of_maker(&self, data: DataId, version: u32) -> BTreeMap<String, u32> {
        let maker = self.producers.get(&(data, version));
        let instances = maker.and_then(|m| self.steps.all[m.at()].instances.as_ref());
        let instances = (0u32..).zip(instances.into_iter().flatten());
        let named = instances.filter_map(|(at, i)| Some((i.item.clone()?, at)));
        named.collect()
    }

    /// The instances of a step do not expect entries of a version any more.
    pub(crate) fn stop_expecting(&mut self, step: StepId, data: DataId, version: u32) {
        let version = self.data.version_mut(data, version);
        version.expected.retain(|_, all| {
            all.retain(|e| e.reader.step != step);
            !all.is_empty()
        });
    }

    /// The parts of an entry, once it is complete.
    fn complete_entry(&self, input: &EntryInput) -> Option<Vec<PartRef>> {
        let version = self.data.version(input.data, input.version);
        let parts = version.parts_of_entry(input.data, input.version, &input.name);
        let maker = input.maker.filter(|_| !version.crossed);
        let made = maker.is_some_and(|maker| parts.iter().any(|p| p.origin == maker));
        (version.sealed || made).then_some(parts)
    }

    /// An instance looks whether the entries that it reads are complete. If all are, it can begin.
    pub(crate) fn look_for_entries(&mut self, id: InstanceId) {
        let waits = |i: &&StepInstance| !i.inputs_known && i.progress == InstanceProgress::Pending;
        let Some(instance) = self.steps.instance(id).filter(waits) else {
            return;
        };
        let mut found = Vec::with_capacity(instance.entries.len());
        for input in &instance.entries {
            match self.complete_entry(input) {
                Some(parts) => found.push((input, parts)),
                None => return,
            }
        }
        if let Some((input, _)) = found.iter().find(|(_, parts)| parts.is_empty()) {
            let w = &self.start.workflow;
            let why = BindError::NoEntry {
                step: w.step(id.step).name.clone(),
                dataset: w.dataset(input.data).name.clone(),
                entry: input.name.clone(),
            };
            if let Some(i) = self.steps.instance_mut(id) {
                i.progress = InstanceProgress::Failed;
            }
            return self.give_up(Subject::Instance(id), why.to_string());
        }
        let found: Vec<_> = found
            .into_iter()
            .map(|(i, parts)| (i.used, parts))
            .collect();
        let before = instance.parts();
        if let Some(i) = self.steps.instance_mut(id) {
            for (used, parts) in found {
                i.needs[used] = vec![parts];
            }
        }
        self.inputs_known(id, &before);
    }

    /// All that an instance reads is known: it waits for a place from now on. `before`: the parts that it was counted for as a
    /// reader already.
    pub(crate) fn inputs_known(&mut self, id: InstanceId, before: &BTreeSet<PartRef>) {
        let Some(instance) = self.steps.instance(id) else {
            return;
        };
        let w = &self.start.workflow;
        let identity = identity(w, w.step(id.step), instance, &self.data);
        self.count_reader(&(&instance.parts() - before));
        let now = self.now;
        if let Some(i) = self.steps.instance_mut(id) {
            (i.inputs_known, i.identity, i.since) = (true, identity, now);
        }
        self.steps.enqueue(id);
        self.steps.fresh.insert(id);
    }

    /// These parts have one reader more.
    pub(crate) fn count_reader(&mut self, parts: &BTreeSet<PartRef>) {
        for part in parts {
            if let Some(p) = self.data.part_mut(*part) {
                p.readers += 1;
            }
        }
    }

    /// An instance that has not begun waits again for the entries that it reads.
    fn wait_for_entries(&mut self, id: InstanceId) {
        self.steps.dequeue(id);
        self.steps.fresh.remove(&id);
        let Some(i) = self.steps.instance_mut(id).filter(|i| i.inputs_known) else {
            return;
        };
        let before = i.parts();
        for input in &i.entries {
            i.needs[input.used] = vec![Vec::new()];
        }
        (i.inputs_known, i.identity) = (false, None);
        for part in &before - &i.parts() {
            if let Some(p) = self.data.part_mut(part) {
                sub(&mut p.readers, 1, "readers");
            }
            self.data.to_check.insert(part);
        }
    }

    /// Whether an instance was bound to other parts than its entries have now, or to some that `changed` has made with other content.
    fn is_outdated(&self, id: InstanceId, at: (DataId, u32), changed: Option<u32>) -> bool {
        let Some(instance) = self.steps.instance(id).filter(|i| i.inputs_known) else {
            return false;
        };
        let inputs = instance.entries.iter();
        let mut inputs = inputs.filter(|i| (i.data, i.version) == at);
        inputs.any(|input| {
            let version = self.data.version(input.data, input.version);
            let now = version.parts_of_entry(input.data, input.version, &input.name);
            let bound = instance.needs[input.used].iter().flatten();
            let replaced = bound.clone().any(|p| Some(p.origin) == changed);
            replaced || !bound.eq(&now)
        })
    }

    /// An instance has made its share of a version: those that expect entries of it look whether they are complete.
    pub(crate) fn entries_made(&mut self, maker: InstanceId, data: DataId, version: u32) {
        let of = self.data.version(data, version);
        if of.expected.is_empty() {
            return;
        }
        let made = of.parts.range((maker.index, 0)..=(maker.index, u32::MAX));
        let names = made.filter_map(|(_, part)| match &part.info.class {
            PartClass::Entry(name) => Some(name),
            _ => None,
        });
        let expected: Vec<EntryReader> = names
            .filter_map(|name| of.expected.get(name))
            .flatten()
            .copied()
            .collect();
        let other = |e: &EntryReader| e.maker.is_some_and(|m| m != maker.index);
        if expected.iter().any(other) {
            self.data.version_mut(data, version).crossed = true;
        }
        for EntryReader { reader, .. } in expected {
            if self.is_outdated(reader, (data, version), None) {
                self.was_added_to(maker, reader, data);
            }
            self.look_for_entries(reader);
        }
    }

    /// Something was added to an entry after a reader was bound to it. One that has not begun waits for its entry again. One that has
    /// failed for good reads it again only after `tarn resume`.
    fn was_added_to(&mut self, maker: InstanceId, reader: InstanceId, data: DataId) {
        match self.steps.instance(reader).map(|i| &i.progress) {
            Some(InstanceProgress::Pending) => return self.wait_for_entries(reader),
            Some(InstanceProgress::Assigned(_)) => {
                self.outdated.insert(reader, data);
                return;
            }
            Some(InstanceProgress::Failed) => return,
            _ => (),
        }
        let item = |id| self.steps.instance(id).and_then(|i| i.item.as_deref());
        let w = &self.start.workflow;
        let (made_by, read_by) = (&w.step(maker.step).name, &w.step(reader.step).name);
        let message = format!(
            "{made_by}[{}] has added to an entry of {} that {read_by}[{}] had read before, as {made_by} of that element had made it; write \
             `after = [\"{made_by}\"]` in step {read_by}, so that it waits for all of {made_by}",
            item(maker).unwrap_or_default(),
            w.dataset(data).name,
            item(reader).unwrap_or_default(),
        );
        self.fail(Subject::Instance(maker), message);
    }

    /// A version is complete: instances that still wait for an entry of it find it now, or never.
    pub(crate) fn entries_complete(&mut self, data: DataId, version: u32) {
        let expected = self.data.version(data, version).expected.values().flatten();
        for reader in expected.map(|e| e.reader).collect::<Vec<_>>() {
            self.look_for_entries(reader);
        }
    }

    /// An instance has made other content than before. Those that read entries of it and have not begun are bound again; whether
    /// all could be.
    pub(crate) fn entries_changed(
        &mut self,
        maker: InstanceId,
        at: (DataId, u32),
        by: StepId,
    ) -> bool {
        let count = self.steps.all[by.at()]
            .instances
            .as_ref()
            .map_or(0, Vec::len);
        let all = (0..count as u32).map(|index| InstanceId { step: by, index });
        let changed = Some(maker.index);
        let outdated: Vec<_> = all
            .filter(|id| self.is_outdated(*id, at, changed))
            .collect();
        let has_place = |id: &InstanceId| match self.steps.instance(*id).map(|i| &i.progress) {
            Some(InstanceProgress::Pending) => Some(false),
            Some(InstanceProgress::Assigned(_)) => Some(true),
            _ => None,
        };
        let places: Option<Vec<bool>> = outdated.iter().map(has_place).collect();
        let Some(places) = places else {
            return false;
        };
        for (id, has_place) in outdated.into_iter().zip(places) {
            if has_place {
                self.outdated.insert(id, at.0);
                continue;
            }
            self.wait_for_entries(id);
            self.look_for_entries(id);
        }
        true
    }

    /// An instance has no place any more: if its entries are others now, it waits for them again.
    pub(crate) fn renew_entries(&mut self, id: InstanceId) {
        if self.outdated.remove(&id).is_some() {
            self.wait_for_entries(id);
            self.look_for_entries(id);
        }
    }

    /// The run resumes: notes again the entries to which another instance has added.
    pub(crate) fn entries_resumed(&mut self) {
        let all = self
            .steps
            .instances()
            .filter(|(_, i)| !i.entries.is_empty());
        let all: Vec<_> = all.map(|(id, i)| (id, i.entries.clone())).collect();
        for (id, inputs) in all {
            for input in inputs {
                let at = (input.data, input.version);
                if !self.is_outdated(id, at, None) {
                    continue;
                }
                let version = self.data.version(input.data, input.version);
                let parts = version.parts_of_entry(input.data, input.version, &input.name);
                let other = parts.iter().find(|p| Some(p.origin) != input.maker);
                let maker = other.and_then(|p| self.producer(*p));
                if let Some(maker) = maker {
                    self.was_added_to(maker, id, input.data);
                }
            }
            self.look_for_entries(id);
        }
    }

    /// Whether a part is, or may be, read by instances that are not bound to it yet.
    pub(crate) fn is_awaited(&self, name: PartRef) -> bool {
        let version = self.data.version(name.data, name.version);
        if version.unbound > 0 || version.expected.is_empty() {
            return version.unbound > 0;
        }
        let part = version.parts.get(&(name.origin, name.seq));
        let Some(PartClass::Entry(entry)) = part.map(|p| &p.info.class) else {
            return false;
        };
        let mut expected = version.expected.get(entry).into_iter().flatten();
        expected.any(|e| {
            let reader = self.steps.instance(e.reader);
            reader.is_some_and(|i| !i.inputs_known)
        })
    }
}
