//! Steps that run again though nothing has changed: what they had made was dropped when it had been read, and is needed.

use std::collections::{BTreeMap, BTreeSet};
use tarn_base::action::{Action, Do, Subject};
use tarn_base::id::{DataId, InstanceId, StepId};
use tarn_base::reason::Reason;
use tarn_base::workflow::{Keep, Workflow};

/// What has been seen of them.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    reused: BTreeSet<InstanceId>,
    /// Instances by step, and the datasets that are missing.
    again: BTreeMap<StepId, (u64, BTreeSet<DataId>)>,
}

impl Dropped {
    pub(crate) fn see(&mut self, action: &Action) {
        match (&action.what, &action.why) {
            (Do::Reuse { instance, .. }, _) => drop(self.reused.insert(*instance)),
            (
                Do::Note {
                    about: Subject::Instance(id),
                },
                Reason::OutputLost { data },
            ) if self.reused.remove(id) => {
                let of = self.again.entry(id.step).or_default();
                of.0 += 1;
                of.1.insert(*data);
            }
            _ => {}
        }
    }

    /// What is to be said of those that were seen since the last time.
    pub(crate) fn take(&mut self, w: &Workflow) -> Vec<String> {
        let notes = self.notes(w);
        self.again.clear();
        notes
    }

    /// What is to be said of them: which steps, why, and how it is avoided.
    pub(crate) fn notes(&self, w: &Workflow) -> Vec<String> {
        if self.again.is_empty() {
            return Vec::new();
        }
        let steps: Vec<String> = self
            .again
            .iter()
            .map(|(id, (count, _))| match count {
                1 => format!("`{}`", w.step(*id).name),
                n => format!("{n} of `{}`", w.step(*id).name),
            })
            .collect();
        let data: BTreeSet<&DataId> = self.again.values().flat_map(|(_, data)| data).collect();
        let kept: Vec<_> = data
            .into_iter()
            .map(|id| w.dataset(*id))
            .filter(|d| matches!(d.keep, Keep::UntilConsumed | Keep::Workflow))
            .map(|d| format!("`{}`", d.name))
            .collect();
        let mut note = format!(
            "nothing has changed for {}: they run again only because what they had made is not there any more and is needed",
            steps.join(", ")
        );
        if !kept.is_empty() {
            note += &format!(
                "; `keep = \"7d\"` or `keep = \"forever\"` on {} keeps it on the nodes after a run; on one machine, a larger \
                 `--cache` or tier lets more of it stay without that",
                kept.join(", ")
            );
        }
        vec![note]
    }
}
