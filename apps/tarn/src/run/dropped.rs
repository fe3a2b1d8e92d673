//! Steps that run again as an earlier run did the same: their output was dropped after it had been read, or removed, and is
//! needed.

use super::changes::StepChanges;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::action::{Action, Do, Subject};
use tarn_types::id::{DataId, InstanceId, StepId};
use tarn_types::reason::Reason;
use tarn_types::workflow::{Keep, Workflow};

/// The instances that were seen so far.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    reused: BTreeSet<InstanceId>,
    /// Instances by step, and the datasets that are missing.
    again: BTreeMap<StepId, (u64, BTreeSet<DataId>)>,
}

impl Dropped {
    /// The instance that [`Self::take`] reports as run again, if this action decides that.
    pub(crate) fn see(&mut self, action: &Action) -> Option<InstanceId> {
        match (&action.what, &action.why) {
            (Do::Reuse { instance, .. }, _) => {
                self.reused.insert(*instance);
                None
            }
            (
                Do::Note {
                    about: Subject::Instance(id),
                },
                Reason::OutputLost { data },
            ) if self.reused.remove(id) => {
                let of = self.again.entry(id.step).or_default();
                of.0 += 1;
                of.1.insert(*data);
                Some(*id)
            }
            _ => None,
        }
    }

    /// The notes on instances that were seen since the last call.
    pub(crate) fn take(&mut self, w: &Workflow, changes: &StepChanges) -> Vec<String> {
        let notes = self.notes(w, changes);
        self.again.clear();
        notes
    }

    /// The notes on them: which steps, why, and how to avoid it.
    pub(crate) fn notes(&self, w: &Workflow, changes: &StepChanges) -> Vec<String> {
        let is_changed = |id: &StepId| changes.of(&w.step(*id).name).is_some();
        let (changed, same): (Vec<StepId>, Vec<StepId>) =
            self.again.keys().copied().partition(is_changed);
        let same = (!same.is_empty()).then(|| {
            let (runs, they) = match self.instances(&same) {
                1 => ("runs", "it"),
                _ => ("run", "they"),
            };
            format!(
                "{} {runs} again with the same command and inputs: what {they} had made is not there any more and is needed{}",
                self.named(w, &same),
                self.advice(w, &same)
            )
        });
        // Another note names the change; this one adds that an earlier run did the same.
        let changed = (!changed.is_empty()).then(|| {
            format!(
                "an earlier run did the same for {}, but what it made is not there any more{}",
                self.named(w, &changed),
                self.advice(w, &changed)
            )
        });
        same.into_iter().chain(changed).collect()
    }

    fn instances(&self, steps: &[StepId]) -> u64 {
        let all = steps.iter().filter_map(|id| self.again.get(id));
        all.map(|(count, _)| count).sum()
    }

    fn named(&self, w: &Workflow, steps: &[StepId]) -> String {
        let name = |id: &StepId| match self.instances(&[*id]) {
            1 => format!("`{}`", w.step(*id).name),
            n => format!("{n} of `{}`", w.step(*id).name),
        };
        steps.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    /// How what these steps make stays.
    fn advice(&self, w: &Workflow, steps: &[StepId]) -> String {
        let of = steps.iter().filter_map(|id| self.again.get(id));
        let data: BTreeSet<&DataId> = of.flat_map(|(_, data)| data).collect();
        let kept: Vec<_> = data
            .into_iter()
            .map(|id| w.dataset(*id))
            .filter(|d| matches!(d.keep, Keep::UntilConsumed | Keep::Workflow))
            .map(|d| format!("`{}`", d.name))
            .collect();
        if kept.is_empty() {
            return String::new();
        }
        format!(
            "; `keep = \"7d\"` or `keep = \"forever\"` on {} keeps it on the nodes after a run; on one machine, a larger \
             `--cache` or tier lets more of it stay without that",
            kept.join(", ")
        )
    }
}
