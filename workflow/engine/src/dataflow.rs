//! Which step makes and which steps read each version, as the workflow declares.

use crate::data::{makes, reads};
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::id::{DataId, StepId};
use tarn_types::workflow::{DatasetUse, Foreach, Role, Step, Workflow};

/// The placeholder of the element in the name of an entry.
pub(crate) const ITEM: &str = "{item}";

/// For each version that is made, the step that makes it.
pub(crate) fn producers(w: &Workflow) -> BTreeMap<(DataId, u32), StepId> {
    let steps = (0u32..).map(StepId).zip(&w.steps);
    let made = steps.flat_map(|(id, step)| makes(step).map(move |version| (version, id)));
    made.collect()
}

/// For each version, the steps that read it.
pub(crate) fn readers(w: &Workflow) -> BTreeMap<(DataId, u32), Vec<StepId>> {
    let mut readers: BTreeMap<_, Vec<StepId>> = BTreeMap::new();
    for (i, step) in (0u32..).zip(&w.steps) {
        for version in reads(step) {
            readers.entry(version).or_default().push(StepId(i));
        }
    }
    readers
}

/// The versions of which each instance of a step reads entries of its own element alone, made by another `foreach` step.
pub(crate) fn read_by_element(
    w: &Workflow,
    step: &Step,
    producers: &BTreeMap<(DataId, u32), StepId>,
) -> BTreeSet<(DataId, u32)> {
    let over = match &step.foreach {
        None => return BTreeSet::new(),
        Some(Foreach::Values(_)) => None,
        Some(Foreach::Entries { data, version, .. }) => Some((*data, *version)),
    };
    let own_entry = |entry: &Option<String>| entry.as_ref().is_some_and(|e| e.contains(ITEM));
    let is_one = |at: &(DataId, u32)| {
        let maker = producers.get(at);
        let each = maker.is_some_and(|m| w.step(*m).foreach.is_some() && !step.after.contains(m));
        let reads =
            |u: &&DatasetUse| u.role != Role::Out && (u.data, u.reads) == (at.0, Some(at.1));
        let mut uses = step.uses.iter().filter(reads);
        each && over != Some(*at) && uses.all(|u| own_entry(&u.entry))
    };
    reads(step).into_iter().filter(is_one).collect()
}
