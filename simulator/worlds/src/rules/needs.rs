//! The readers of each part, from the workflow alone.

use super::account::RunAccount;
use std::collections::BTreeSet;
use tarn_types::id::{DataId, InstanceId, StepId};
use tarn_types::part::{PartClass, PartInfo, PartRef};
use tarn_types::workflow::{DatasetUse, Distribution, Foreach, Keep, Role, Step};

impl RunAccount {
    pub(super) fn steps(&self) -> impl Iterator<Item = (StepId, &Step)> {
        (0..).map(StepId).zip(&self.workflow.steps)
    }

    /// The versions that a step reads.
    fn reads(step: &Step) -> BTreeSet<(DataId, u32)> {
        let uses = step.uses.iter().filter(|u| u.role != Role::Out);
        let mut all: BTreeSet<_> = uses.filter_map(|u| Some((u.data, u.reads?))).collect();
        if let Some(Foreach::Entries { data, version, .. }) = &step.foreach {
            all.insert((*data, *version));
        }
        all
    }

    /// Whether all parts of a version are known.
    pub(super) fn sealed(&self, data: DataId, version: u32) -> bool {
        match self.workflow.producer(data, version) {
            None => self.listed.contains(&data),
            Some(step) => self
                .all_of(step)
                .is_some_and(|mut all| all.all(|id| self.ever.contains(&id))),
        }
    }

    /// The elements of a step, once they can be known; one without a name for a plain step.
    pub(super) fn items(&self, id: StepId) -> Option<Vec<Option<String>>> {
        let step = self.workflow.step(id);
        let known = |(data, version): (DataId, u32)| {
            let maker = self.maker_by_element(step, data, version);
            self.sealed(data, version) || maker.is_some_and(|maker| self.items(maker).is_some())
        };
        if !Self::reads(step).into_iter().all(known) {
            return None;
        }
        Some(match &step.foreach {
            None => vec![None],
            Some(Foreach::Values(values)) => values.iter().cloned().map(Some).collect(),
            Some(Foreach::Entries {
                data,
                version,
                pattern,
                ..
            }) => {
                let entries = self.parts_of(*data, *version);
                let names = entries.filter_map(|(_, info)| match &info.class {
                    PartClass::Entry(name) if pattern.matches(name) => Some(name.clone()),
                    _ => None,
                });
                let names: BTreeSet<String> = names.collect();
                names.into_iter().map(Some).collect()
            }
        })
    }

    /// All instances of a step, once they can be known.
    pub(super) fn all_of(&self, step: StepId) -> Option<impl Iterator<Item = InstanceId> + use<>> {
        let count = self.items(step)?.len() as u32;
        Some((0..count).map(move |index| InstanceId { step, index }))
    }

    /// Whether everything that an instance waits for has been made once, its data and the steps that it comes after.
    pub(super) fn may_begin(&self, id: InstanceId) -> bool {
        let reads = Self::reads(self.workflow.step(id.step)).into_iter();
        let mut open = reads.filter(|(d, v)| !self.sealed(*d, *v));
        self.is_after_all(id.step) && open.all(|(d, v)| self.has_entries(id, d, v))
    }

    /// Whether the steps that a step comes after have ended.
    fn is_after_all(&self, id: StepId) -> bool {
        let ended = |s: &StepId| {
            self.all_of(*s)
                .is_some_and(|mut all| all.all(|i| self.ever.contains(&i)))
        };
        self.workflow.step(id).after.iter().all(ended)
    }

    /// The step that makes a version, if both have `foreach` and the instances of this one read entries of it that are called after their
    /// elements, and nothing else of it.
    fn maker_by_element(&self, step: &Step, data: DataId, version: u32) -> Option<StepId> {
        let over = match step.foreach.as_ref()? {
            Foreach::Values(_) => None,
            Foreach::Entries { data, version, .. } => Some((*data, *version)),
        };
        let maker = self.workflow.producer(data, version)?;
        let each = self.workflow.step(maker).foreach.is_some();
        let reads =
            |u: &&DatasetUse| u.role != Role::Out && (u.data, u.reads) == (data, Some(version));
        let own = |u: &DatasetUse| u.entry.as_ref().is_some_and(|e| e.contains("{item}"));
        let named = step.uses.iter().filter(reads).all(own);
        let is_one = each && named && over != Some((data, version)) && !step.after.contains(&maker);
        is_one.then_some(maker)
    }

    /// The entries of a version that an instance reads, and which instance is called as it is.
    fn own_entries(
        &self,
        id: InstanceId,
        data: DataId,
        version: u32,
    ) -> Option<(BTreeSet<String>, Option<u32>)> {
        let step = self.workflow.step(id.step);
        let maker = self.maker_by_element(step, data, version)?;
        let item = self.items(id.step)?.get(id.index as usize)?.clone()?;
        let makers = self.items(maker)?;
        let same = makers.iter().position(|i| i.as_ref() == Some(&item));
        let uses = step.uses.iter();
        let uses = uses.filter(|u| (u.data, u.reads) == (data, Some(version)));
        let names = uses.filter_map(|u| Some(u.entry.as_ref()?.replace("{item}", &item)));
        Some((names.collect(), same.map(|at| at as u32)))
    }

    /// Whether each entry that an instance reads of an incomplete version is there, made by the instance that is called as it is; and
    /// nobody has written to what another was to make.
    fn has_entries(&self, id: InstanceId, data: DataId, version: u32) -> bool {
        let Some((names, Some(maker))) = self.own_entries(id, data, version) else {
            return false;
        };
        let made: Vec<(&String, u32)> = self
            .parts_of(data, version)
            .filter_map(|(part, info)| match &info.class {
                PartClass::Entry(name) => Some((name, part.origin)),
                _ => None,
            })
            .collect();
        let readers = self.steps().map(|(step, _)| step);
        let readers = readers.filter_map(|step| self.all_of(step)).flatten();
        let expected = readers.filter_map(|reader| self.own_entries(reader, data, version));
        let crossed = expected.into_iter().any(|(names, maker)| {
            let mut made = made.iter().filter(|(name, _)| names.contains(*name));
            maker.is_some_and(|maker| made.any(|(_, origin)| *origin != maker))
        });
        !crossed && names.iter().all(|name| made.contains(&(name, maker)))
    }

    /// Whether a use of a step takes a part to one of its nodes.
    fn takes(
        &self,
        step: &Step,
        used: &DatasetUse,
        item: Option<&str>,
        at: u32,
        class: &PartClass,
    ) -> bool {
        if let Some(entry) = &used.entry {
            let entry = entry.replace("{item}", item.unwrap_or_default());
            return matches!(class, PartClass::Entry(name) if *name == entry);
        }
        let rule = self.workflow.dataset(used.data).scatter.as_ref();
        let rank = match class {
            PartClass::Rank(rank) => Some(*rank),
            PartClass::Entry(name) => rule.and_then(|r| r.rank(name.as_bytes())),
            PartClass::Whole | PartClass::Common => None,
        };
        match (used.distribution, rank) {
            (Distribution::Single | Distribution::Shared, _) => at == 0,
            (Distribution::Scatter, Some(rank)) => step.node_of_rank(rank) == at,
            _ => true,
        }
    }

    /// The parts that a use of an instance reads on one of its nodes.
    pub(super) fn needs(&self, id: InstanceId, used: &DatasetUse, at: u32) -> BTreeSet<PartRef> {
        let step = self.workflow.step(id.step);
        let items = self.items(id.step).unwrap_or_default();
        let item = items.get(id.index as usize).cloned().flatten();
        let Some(version) = used.reads.filter(|_| used.role != Role::Out) else {
            return BTreeSet::new();
        };
        let taken = |(_, info): &(PartRef, &PartInfo)| {
            self.takes(step, used, item.as_deref(), at, &info.class)
        };
        let parts = self.parts_of(used.data, version).filter(taken);
        parts.map(|(part, _)| part).collect()
    }

    /// Whether a step was given up, or one that it waits for.
    pub(super) fn needs_given_up_step(&self, id: StepId) -> bool {
        let step = self.workflow.step(id);
        let makers = Self::reads(step).into_iter();
        let makers = makers.filter_map(|(d, v)| self.workflow.producer(d, v));
        let mut waits_for = makers.chain(step.after.iter().copied()).chain([id]);
        waits_for.any(|s| self.given_up_steps.contains(&s))
    }

    /// Whether something that an instance reads is lost, or is to be made again.
    pub(super) fn lacks_input(&self, id: InstanceId) -> bool {
        let step = self.workflow.step(id.step);
        let uses = step.uses.iter();
        let mut needs = uses.flat_map(|u| (0..step.nodes).flat_map(|at| self.needs(id, u, at)));
        needs.any(|part| {
            let made = |maker: InstanceId| self.done.contains(&maker);
            self.is_lost(part) || !self.producer(part).is_none_or(made)
        })
    }

    /// Whether a step that is not done reads a part.
    fn awaited(&self, part: PartRef) -> bool {
        self.steps().any(|(id, step)| {
            if !Self::reads(step).contains(&(part.data, part.version)) {
                return false;
            }
            let Some(mut all) = self.all_of(id).filter(|_| self.is_after_all(id)) else {
                return true;
            };
            all.any(|instance| {
                let nodes = 0..step.nodes;
                let mut uses = step.uses.iter();
                !self.done.contains(&instance)
                    && uses.any(|u| {
                        u.data == part.data
                            && nodes
                                .clone()
                                .any(|at| self.needs(instance, u, at).contains(&part))
                    })
            })
        })
    }

    /// The reason why a part is still needed, if it is.
    pub(super) fn needed(&self, part: PartRef) -> Option<&'static str> {
        let dataset = self.workflow.dataset(part.data);
        let last = self.workflow.last_version(part.data) == part.version;
        if self.awaited(part) {
            return Some("a step that is not done reads it");
        }
        if last && dataset.dest.is_some() && !self.delivered.contains(&part.data) {
            return Some("it has to go to its dest");
        }
        match dataset.keep {
            Keep::For(_) | Keep::Forever if last => Some("it is to be kept"),
            Keep::For(_) | Keep::Forever | Keep::Workflow if !self.all_done() => {
                Some("it is to be kept until the workflow has ended")
            }
            _ => None,
        }
    }

    /// Whether every step is done.
    pub(super) fn all_done(&self) -> bool {
        self.steps().all(|(id, _)| {
            let all = self.all_of(id);
            all.is_some_and(|mut all| all.all(|i| self.done.contains(&i)))
        })
    }
}
