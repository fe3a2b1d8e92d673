//! How a commit makes versions, how versions make instances, and how lost data takes both back.

use crate::data::{PartReplica, PartReplicaState, TrackedPart, makes, reads};
use crate::given_up::GivenUp;
use crate::kept::InstanceCheckpoints;
use crate::ledger::Ledger;
use crate::state::EngineState;
use crate::steps::{EntryInput, InstanceProgress, StepInstance};
use crate::unbound::BindError;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::account::sub;
use tarn_types::action::Subject;
use tarn_types::event::{Output, of_others};
use tarn_types::id::{DataId, InstanceId, StepId};
use tarn_types::part::{PartClass, PartRef, Place};
use tarn_types::pattern::EntryPattern;
use tarn_types::workflow::{DatasetUse, Distribution, Foreach, OnFailure, Role, Step};

impl EngineState {
    /// Binds every step whose inputs are sealed: its instances and the parts each reads become known.
    pub(crate) fn settle(&mut self) {
        while let Some(step) = self.steps.to_bind.pop_first() {
            if self.steps.all[step.at()].instances.is_none()
                && self.steps.after_left[step.at()] == 0
                && self.may_bind(step)
            {
                self.bind(step);
            }
        }
    }

    /// Lets the steps that read a version look whether they can be bound.
    pub(crate) fn wake_readers(&mut self, data: DataId, version: u32) {
        let readers = self.readers.get(&(data, version)).into_iter().flatten();
        self.steps.to_bind.extend(readers);
    }

    /// A version is complete: if it has a `dest` and is not there, it is to go there.
    pub(crate) fn note_sealed(&mut self, data: DataId, version: u32) {
        let w = &self.start.workflow;
        if w.dataset(data).dest.is_some()
            && w.last_version(data) == version
            && !self.data.version(data, version).delivered
        {
            self.undelivered.insert(data);
        }
    }

    /// A replica leaves: if it was the last one of its part, the version is not whole any more, and a rescue prefers an older one.
    pub(crate) fn note_thinned(&mut self, name: PartRef) {
        let left = self.data.part(name).is_some_and(TrackedPart::has_left);
        let version = self.data.version_mut(name.data, name.version);
        let first = version.thinned.is_empty();
        if left && version.thinned.insert((name.origin, name.seq)) && first {
            self.check_versions(name.data, name.version);
        }
    }

    /// Looks again whether a version, and those before it, have to stay for a rescue.
    fn check_versions(&mut self, data: DataId, newest: u32) {
        if self.start.workflow.dataset(data).on_failure == OnFailure::Drain {
            for version in 1..=newest {
                self.check_parts(data, version);
            }
        }
    }

    fn bind(&mut self, id: StepId) {
        let step = self.start.workflow.step(id).clone();
        let items = match self.items(&step) {
            Ok(items) => items,
            // The content of a source is known before anything is started.
            Err(why) => {
                return match &step.foreach {
                    Some(Foreach::Entries { version: 0, .. }) if !self.fits_checked => {
                        self.fail(Subject::Run, why.to_string());
                    }
                    _ => self.cannot_bind(id, &why),
                };
            }
        };
        let mut instances = Vec::with_capacity(items.len());
        for item in items {
            let entries = self.entry_inputs(id, item.as_deref());
            let needs = match self.needs(&step, item.as_deref(), &entries) {
                Ok(needs) => needs,
                Err(why) => return self.cannot_bind(id, &why),
            };
            instances.push(StepInstance {
                item,
                needs,
                entries,
                inputs_known: false,
                progress: InstanceProgress::Pending,
                since: self.now,
                ran_on: Vec::new(),
                kept: InstanceCheckpoints::default(),
                attempts: 0,
                failures: 0,
                losses: 0,
                outgrown: None,
                identity: None,
                forced: false,
            });
        }
        let all = (0..instances.len() as u32).map(|index| InstanceId { step: id, index });
        let state = &mut self.steps.all[id.at()];
        state.left = instances.len() as u32;
        state.instances = Some(instances);
        self.expect_entries(id);
        for id in all {
            let Some(instance) = self.steps.instance(id) else {
                continue;
            };
            if instance.entries.is_empty() {
                self.inputs_known(id, &BTreeSet::new());
            } else {
                self.count_reader(&instance.parts());
                self.look_for_entries(id);
            }
        }
        for (d, v) in reads(&step) {
            let version = self.data.version_mut(d, v);
            sub(&mut version.unbound, 1, "steps not bound");
            self.check_parts(d, v);
        }
        if self.steps.all[id.at()].left == 0 {
            self.step_complete(id);
        }
        self.ranks_age();
    }

    /// The instances of a step, or their inputs, cannot be known. A mistake about sources alone is known before
    /// anything runs: then nothing does.
    fn cannot_bind(&mut self, id: StepId, why: &BindError) {
        let message = why.to_string();
        let about = Subject::Step(id);
        let inputs = reads(self.start.workflow.step(id));
        let early = inputs.iter().all(|(_, version)| *version == 0);
        match early {
            true => self.fail(about, message),
            false => self.give_up(about, message),
        }
    }

    /// Something that the ranks depend on has become known: once that has happened often enough, they are computed
    /// again.
    pub(crate) fn ranks_age(&mut self) {
        self.steps.stale = self.steps.stale.saturating_add(1);
        if self.steps.stale > self.steps.all.len() / 64 {
            self.refresh_ranks();
        }
    }

    fn check_parts(&mut self, data: DataId, version: u32) {
        let keys: Vec<_> = self
            .data
            .version(data, version)
            .parts
            .keys()
            .copied()
            .collect();
        self.data
            .to_check
            .extend(keys.into_iter().map(|(origin, seq)| PartRef {
                data,
                version,
                origin,
                seq,
            }));
    }

    /// The elements of a step; one without a name for a plain step.
    fn items(&self, step: &Step) -> Result<Vec<Option<String>>, BindError> {
        let (data, version, pattern, max, allow_empty) = match &step.foreach {
            None => return Ok(vec![None]),
            Some(Foreach::Values(values)) => return Ok(values.iter().cloned().map(Some).collect()),
            Some(Foreach::Entries {
                data,
                version,
                pattern,
                max,
                allow_empty,
            }) => (*data, *version, pattern, *max, *allow_empty),
        };
        let entries = self
            .data
            .version(data, version)
            .parts
            .values()
            .filter_map(|p| match &p.info.class {
                PartClass::Entry(name) if pattern.matches(name) => Some(name.clone()),
                _ => None,
            });
        let names: BTreeSet<String> = entries.collect();
        if names.len() > max as usize {
            return Err(BindError::TooMany {
                step: step.name.clone(),
                dataset: self.start.workflow.dataset(data).name.clone(),
                entries: names.len(),
                pattern: pattern.as_str().to_owned(),
                max,
            });
        }
        if names.is_empty() && !allow_empty {
            return Err(self.no_match(step, data, version, pattern));
        }
        Ok(names.into_iter().map(Some).collect())
    }

    /// That no entry of a version matches the pattern of a step.
    fn no_match(
        &self,
        step: &Step,
        data: DataId,
        version: u32,
        pattern: &EntryPattern,
    ) -> BindError {
        let parts = self.data.version(data, version).parts.values();
        let entries = parts.filter_map(|p| match &p.info.class {
            PartClass::Entry(name) => Some(name.clone()),
            _ => None,
        });
        BindError::NoMatch {
            step: step.name.clone(),
            dataset: self.start.workflow.dataset(data).name.clone(),
            pattern: pattern.as_str().to_owned(),
            entries: entries.collect(),
        }
    }

    /// The first step whose pattern matches nothing in a source: no run can change that.
    pub(crate) fn empty_foreach(&self) -> Option<BindError> {
        let steps = self.start.workflow.steps.iter();
        let mut over = steps.filter(|step| match &step.foreach {
            Some(Foreach::Entries { version, .. }) => *version == 0,
            _ => false,
        });
        over.find_map(|step| self.items(step).err())
    }

    /// The parts that each use needs on each node of the step; those of `entries` are not known yet.
    fn needs(
        &self,
        step: &Step,
        item: Option<&str>,
        entries: &[EntryInput],
    ) -> Result<Vec<Vec<Vec<PartRef>>>, BindError> {
        let one = |(at, used): (usize, &DatasetUse)| {
            if used.role == Role::Out {
                return Ok(Vec::new());
            }
            if entries.iter().any(|e| e.used == at) {
                return Ok(vec![Vec::new()]);
            }
            (0..step.nodes)
                .map(|position| self.needed_at(step, used, item, position))
                .collect()
        };
        step.uses.iter().enumerate().map(one).collect()
    }

    fn needed_at(
        &self,
        step: &Step,
        used: &DatasetUse,
        item: Option<&str>,
        position: u32,
    ) -> Result<Vec<PartRef>, BindError> {
        let Some(version) = used.reads else {
            return Ok(Vec::new());
        };
        let dataset = self.start.workflow.dataset(used.data);
        let entry = used
            .entry
            .as_ref()
            .map(|e| e.replace("{item}", item.unwrap_or_default()));
        let rank_of = |class: &PartClass| match class {
            PartClass::Rank(r) => Some(*r),
            PartClass::Entry(name) => dataset.scatter.as_ref()?.rank(name.as_bytes()),
            PartClass::Whole | PartClass::Common => None,
        };
        let wanted = |class: &PartClass| match used.distribution {
            Distribution::Single | Distribution::Shared => position == 0,
            Distribution::Broadcast => true,
            Distribution::Scatter => {
                rank_of(class).is_none_or(|r| step.node_of_rank(r) == position)
            }
        };
        let of = self.data.version(used.data, version);
        let Some(entry) = entry else {
            let chosen = of.parts.iter().filter(|(_, p)| wanted(&p.info.class));
            let named = chosen.map(|(&(origin, seq), _)| PartRef {
                data: used.data,
                version,
                origin,
                seq,
            });
            return Ok(named.collect());
        };
        let named = of.parts_of_entry(used.data, version, &entry);
        match named.is_empty() {
            true => Err(BindError::NoEntry {
                step: step.name.clone(),
                dataset: dataset.name.clone(),
                entry,
            }),
            false => Ok(named),
        }
    }

    /// Adds the outputs of an instance. They replace those of an earlier run of it.
    pub(crate) fn publish(&mut self, id: InstanceId, outputs: &[Output], staged: bool) {
        let reads = self.orphan_reads();
        for o in outputs {
            let version = self.data.version_mut(o.data, o.version);
            let keys: Vec<_> = version
                .parts
                .range((id.index, 0)..=(id.index, u32::MAX))
                .map(|(k, _)| *k)
                .collect();
            let mut before = BTreeMap::new();
            for key in keys {
                version.thinned.remove(&key);
                before.extend(version.remove(key).map(|p| (key, p)));
            }
            let again = !before.is_empty();
            let mut same = true;
            for (info, tier_refs) in &o.parts {
                let earlier = before.remove(&(id.index, info.seq));
                same &= earlier
                    .as_ref()
                    .is_some_and(|e| e.info.hash == info.hash && e.info.class == info.class);
                let mut part = TrackedPart::new(info.clone());
                let unchanged = earlier.as_ref().is_some_and(|e| e.info.hash == info.hash);
                if let Some(earlier) = earlier {
                    part.readers = earlier.readers;
                    let kept = earlier.replicas.into_iter();
                    part.replicas.extend(kept.filter(|(at, r)| {
                        let outside = matches!(at, Place::External(_));
                        unchanged && outside && r.state != PartReplicaState::Bad
                    }));
                }
                for s in tier_refs {
                    if self.ledger.nodes.is_lost(s.node) {
                        continue;
                    }
                    let name = PartRef {
                        data: o.data,
                        version: o.version,
                        origin: id.index,
                        seq: info.seq,
                    };
                    let at = (name, Place::Node(*s));
                    let replica = PartReplica {
                        state: PartReplicaState::Present,
                        stored: info.stored,
                        pins: reads.get(&at).copied().unwrap_or(0),
                        staged,
                        is_others: false,
                    };
                    part.replicas.insert(at.1, replica);
                    self.ledger.nodes.occupy(*s, info.stored);
                }
                version.insert((id.index, info.seq), part);
                // An earlier rescue lacks this part.
                version.rescued = false;
            }
            let same = same && before.is_empty();
            version.delivered &= !again || same;
            let sealed = version.sealed;
            if sealed {
                self.note_sealed(o.data, o.version);
            }
            self.check_parts(o.data, o.version);
            if again && !same {
                self.content_changed(id, o.data, o.version);
            }
            self.entries_made(id, o.data, o.version);
        }
    }

    /// A second run of an instance has made other content than the first: a reader that has not yet used the first is
    /// bound again; if one has, the run cannot be consistent any more.
    fn content_changed(&mut self, id: InstanceId, data: DataId, version: u32) {
        let readers = self.readers.get(&(data, version)).cloned();
        for reader in readers.unwrap_or_default() {
            let Some(instances) = self.steps.all[reader.at()].instances.as_ref() else {
                continue;
            };
            let by_entry = self.by_element[reader.at()].contains(&(data, version));
            let begun = match by_entry {
                true => !self.entries_changed(id, (data, version), reader),
                false => instances
                    .iter()
                    .any(|i| !matches!(i.progress, InstanceProgress::Pending)),
            };
            if begun {
                let name = &self.start.workflow.step(id.step).name;
                let message = format!(
                    "step {name} is not reproducible: its lost output was made again and differs from what \
                     {} has already used; `tarn run` again uses the new one throughout",
                    self.start.workflow.step(reader).name
                );
                return self.fail(Subject::Instance(id), message);
            }
            if !by_entry {
                self.unbind(id, reader);
            }
        }
    }

    /// Forgets the instances of a step, all of them pending, because `cause` has changed its input.
    fn unbind(&mut self, cause: InstanceId, step: StepId) {
        let state = &mut self.steps.all[step.at()];
        // It had no instances at all then.
        let was_complete = state.complete();
        let instances = state.instances.take().unwrap_or_default();
        for (i, instance) in instances.iter().enumerate() {
            let id = InstanceId {
                step,
                index: i as u32,
            };
            self.steps.dequeue(id);
            self.steps.remade.remove(&id);
            for part in instance.parts() {
                if let Some(p) = self.data.part_mut(part) {
                    sub(&mut p.readers, 1, "readers");
                }
            }
        }
        for (d, v) in reads(&self.start.workflow.steps[step.at()]) {
            self.stop_expecting(step, d, v);
            self.data.version_mut(d, v).unbound += 1;
            self.check_parts(d, v);
        }
        self.steps.to_bind.insert(step);
        if was_complete {
            self.steps.incomplete += 1;
            let made: Vec<_> = makes(self.start.workflow.step(step)).collect();
            for (data, version) in made {
                let v = self.data.version_mut(data, version);
                (v.sealed, v.delivered) = (false, false);
                self.content_changed(cause, data, version);
            }
        }
    }

    /// An instance is finished: its inputs have one reader less.
    pub(crate) fn complete(&mut self, id: InstanceId, progress: InstanceProgress) {
        self.steps.dequeue(id);
        self.steps.remade.remove(&id);
        let Some(instance) = self.steps.instance_mut(id) else {
            return;
        };
        instance.progress = progress;
        instance.forced = false;
        for part in instance.parts() {
            if let Some(p) = self.data.part_mut(part) {
                sub(&mut p.readers, 1, "readers");
            }
            self.data.to_check.insert(part);
        }
        let state = &mut self.steps.all[id.step.at()];
        sub(&mut state.left, 1, "instances left");
        if state.left == 0 {
            self.step_complete(id.step);
        }
    }

    fn step_complete(&mut self, id: StepId) {
        sub(&mut self.steps.incomplete, 1, "steps not complete");
        if self.note_barren(id) {
            return;
        }
        let announced = &mut self.steps.all[id.at()].announced;
        let first = !std::mem::replace(announced, true);
        let made: Vec<_> = makes(self.start.workflow.step(id)).collect();
        for (data, version) in made {
            self.data.version_mut(data, version).sealed = true;
            if first {
                self.compare_with_dest(data, version);
            }
            self.note_sealed(data, version);
            self.check_parts(data, version);
            self.check_versions(data, version);
            self.entries_complete(data, version);
            self.wake_readers(data, version);
        }
        if first {
            for follower in self.steps.followers.get(&id).cloned().unwrap_or_default() {
                self.steps.after_left[follower.at()] -= 1;
                self.steps.to_bind.insert(follower);
            }
        }
    }

    /// Some instances of a `foreach` may yield nothing; that all of them do is a mistake, and nobody reads the step's
    /// output. Returns whether it is so.
    fn note_barren(&mut self, id: StepId) -> bool {
        let state = &self.steps.all[id.at()];
        let instances = state.instances.as_ref().map_or(0, Vec::len);
        if !state.complete() || instances == 0 {
            return false;
        }
        let w = &self.start.workflow;
        let is_barren =
            |(data, version): &(DataId, u32)| self.data.version(*data, *version).parts.is_empty();
        let barren = makes(w.step(id)).find(is_barren);
        let Some((data, _)) = barren else {
            return false;
        };
        let (step, name) = (&w.step(id).name, &w.dataset(data).name);
        let message = format!(
            "step {step}: none of its {instances} instances wrote anything to its output `{name}` ($TARN_{name}); correct its \
             command, then `tarn run`"
        );
        self.give_up(Subject::Step(id), message);
        true
    }

    /// A `dest` that already holds this content need not be written again, and can be read. Compared once: later
    /// the state is newer than an earlier run's record.
    fn compare_with_dest(&mut self, data: DataId, version: u32) {
        let Some(prior) = self.start.prior_dest.iter().find(|p| p.data == data) else {
            return;
        };
        let w = &self.start.workflow;
        let Some(dest) = w.dataset(data).dest.clone() else {
            return;
        };
        if w.last_version(data) != version
            || self.data.version(data, version).hash() != Some(prior.hash)
        {
            return;
        }
        let v = self.data.version_mut(data, version);
        v.delivered = true;
        for part in v.parts.values_mut() {
            let replica = PartReplica {
                state: PartReplicaState::Present,
                stored: 0,
                pins: 0,
                staged: false,
                is_others: false,
            };
            part.replicas.insert(Place::External(dest.clone()), replica);
        }
    }

    /// Takes the outputs that an earlier run has committed.
    pub(crate) fn reused(&mut self, id: InstanceId, prior: u32) {
        let Some(prior) = self.start.prior.get(prior as usize).cloned() else {
            return;
        };
        let step = self.start.workflow.step(id.step);
        let made: Vec<_> = makes(step).collect();
        let mut outputs = prior.outputs;
        for (o, (data, version)) in outputs.iter_mut().zip(&made) {
            (o.data, o.version) = (*data, *version);
            o.parts
                .iter_mut()
                .for_each(|(_, tier_refs)| tier_refs.clear());
        }
        self.publish(id, &outputs, false);
        for (output, part, place) in &prior.held {
            let Some(o) = outputs.get(*output as usize) else {
                continue;
            };
            let Some((info, _)) = o.parts.get(*part as usize) else {
                continue;
            };
            let name = PartRef {
                data: o.data,
                version: o.version,
                origin: id.index,
                seq: info.seq,
            };
            self.found(name, place);
        }
        self.complete(id, InstanceProgress::Reused);
    }

    /// A replica that is there, whole.
    fn found(&mut self, name: PartRef, place: &Place) {
        if self.ledger.nodes.holds_lost(place) {
            return;
        }
        let Some(part) = self.data.part_mut(name) else {
            return;
        };
        let mut replica = PartReplica {
            state: PartReplicaState::Present,
            stored: 0,
            pins: 0,
            staged: false,
            is_others: false,
        };
        if let Place::Node(tier_ref) = place {
            replica.stored = part.info.stored;
            self.ledger.nodes.occupy(*tier_ref, replica.stored);
        }
        if let Some(part) = self.data.part_mut(name) {
            part.replicas.insert(place.clone(), replica);
        }
        self.data.to_check.insert(name);
    }

    /// A finished instance has to run again: its output is lost and needed.
    pub(crate) fn revive(&mut self, id: InstanceId) {
        let Some(instance) = self.steps.instance_mut(id) else {
            return;
        };
        if !instance.finished() {
            return;
        }
        instance.progress = InstanceProgress::Pending;
        instance.forced = true;
        self.steps.remade.insert(id);
        let Some(instance) = self.steps.instance(id) else {
            return;
        };
        for part in instance.parts() {
            if let Some(p) = self.data.part_mut(part) {
                p.readers += 1;
            }
            // A part that was given up is wanted again.
            self.data.to_check.insert(part);
        }
        let state = &mut self.steps.all[id.step.at()];
        if state.left == 0 {
            self.steps.incomplete += 1;
        }
        state.left += 1;
        self.steps.enqueue(id);
    }

    /// The run continues: nothing is under way, and only these replicas are there.
    pub(crate) fn resumed(&mut self, found: &[(PartRef, Place)]) {
        let placed: Vec<_> = self.steps.placed.iter().copied().collect();
        for id in placed {
            self.taken_back(id);
            // Nobody has looked how far it came.
            if let Some(i) = self.steps.instance_mut(id) {
                (i.kept.last, i.kept.newest) = (None, None);
            }
        }
        let were_there = self.forget_replicas();
        let others = of_others(&self.start.prior_data, found);
        for ((name, place), is_whole) in &others {
            self.data.see_others(*name, place, *is_whole);
        }
        let own = |at: &&(PartRef, Place)| !others.contains_key(*at);
        for (name, place) in found.iter().filter(own) {
            match place {
                Place::Node(tier_ref) if self.was_to_run_again(*name) => {
                    self.note_returned(*name, *tier_ref)
                }
                _ => self.found(*name, place),
            }
        }
        self.forget_lost_dests();
        self.data.resume_thinned();
        let unkept = std::mem::take(&mut self.unkept);
        let may = were_there.into_iter().chain(unkept);
        may.for_each(|name| self.note_unkept(name));
        let failed: Vec<_> = self
            .steps
            .instances()
            .filter(|(_, i)| i.progress == InstanceProgress::Failed)
            .map(|(id, _)| id)
            .collect();
        for id in failed {
            if let Some(i) = self.steps.instance_mut(id) {
                (i.progress, i.failures, i.losses) = (InstanceProgress::Pending, 0, 0);
                i.kept.restarts = 0;
            }
            self.steps.enqueue(id);
        }
        (self.stop, self.finished, self.deadline) = (None, None, None);
        self.given_up = GivenUp::default();
        (self.drains, self.rests_until) = (false, 0);
        self.fits_checked = false;
        self.notes.clear();
        self.entries_resumed();
        let unbound = (0u32..)
            .zip(&self.steps.all)
            .filter(|(_, s)| s.instances.is_none())
            .map(|(i, _)| StepId(i));
        self.steps.to_bind = unbound.collect();
        for id in (0..self.steps.all.len() as u32).map(StepId) {
            self.note_barren(id);
        }
    }

    /// Returns the replicas that were there.
    fn forget_replicas(&mut self) -> Vec<PartRef> {
        self.transfers.clear();
        self.under_way.clear();
        self.listing.clear();
        self.leaving = 0;
        self.cache.clear();
        // Nothing runs: what is reserved and stored is counted again below.
        self.ledger = Ledger::new(&self.start.cluster);
        self.partitions
            .resumed(&self.start.workflow, &mut self.ledger);
        self.steps.reserve_image_space(&mut self.ledger);
        self.data.to_release.clear();
        self.returned.clear();
        let names: Vec<_> = self.data.parts().map(|(name, _)| name).collect();
        let mut there = Vec::new();
        for name in names {
            if let Some(part) = self.data.part_mut(name) {
                let before = part.replicas.len();
                part.replicas
                    .retain(|place, r| *place == Place::Source || r.is_others);
                if part.replicas.len() < before {
                    there.push(name);
                }
                for replica in part.replicas.values_mut() {
                    // Those of other workflows too, but for later findings about them.
                    replica.state = PartReplicaState::Present;
                    replica.pins = u32::from(replica.is_others);
                }
                (part.failures, part.rests_until) = (0, 0);
                part.refused.clear();
            }
            self.data.to_check.insert(name);
        }
        there
    }

    fn forget_lost_dests(&mut self) {
        let dests: Vec<_> = (0u32..)
            .zip(&self.start.workflow.data)
            .filter_map(|(i, d)| Some((DataId(i), Place::External(d.dest.clone()?))))
            .collect();
        for (data, place) in dests {
            let last = self.start.workflow.last_version(data);
            let version = self.data.version_mut(data, last);
            version.delivered &= version
                .parts
                .values()
                .all(|p| p.replicas.contains_key(&place));
            self.undelivered.remove(&data);
            if version.sealed {
                self.note_sealed(data, last);
            }
        }
        self.forget_lost_rescues();
    }

    /// Lets a version that was rescued once be rescued again, if it is not there any more.
    fn forget_lost_rescues(&mut self) {
        let rescued = self.data.versions().filter(|(.., v)| v.rescued);
        let lost = rescued.filter(|(data, _, version)| {
            let place = self.rescue_place(*data);
            let mut parts = version.parts.values();
            !parts.all(|p| place.as_ref().is_some_and(|at| p.replicas.contains_key(at)))
        });
        for (data, version) in lost.map(|(d, v, _)| (d, v)).collect::<Vec<_>>() {
            self.data.version_mut(data, version).rescued = false;
        }
    }
}
