//! Before a run is resumed: steps that are done, and that could not run again as they ran, as an input or a script has changed.

use crate::error::{CliError, CliResult};
use crate::print::say;
use std::collections::{BTreeMap, BTreeSet};
use tarn_base::codes::Exit;
use tarn_base::id::{InstanceId, StepId};
use tarn_base::workflow::Workflow;

/// What has changed since the run began.
#[derive(Debug, Default)]
pub(super) struct Stale {
    /// By step that is done, what it read.
    steps: BTreeMap<StepId, String>,
    /// What is to be said when the run goes on.
    notes: BTreeSet<String>,
}

impl Stale {
    /// A script that a step names.
    pub(super) fn script(&mut self, step: StepId, what: String) {
        self.steps.entry(step).or_insert(what);
    }

    /// A source that a step reads.
    pub(super) fn source(&mut self, step: StepId, what: String) {
        self.steps.entry(step).or_insert_with(|| what.clone());
        self.notes.insert(what);
    }

    /// Whether no step has changed: nothing has to be looked at.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Refuses to go on if one of these steps would have to run again.
    pub(super) fn check(&self, w: &Workflow, again: &BTreeSet<InstanceId>) -> CliResult<()> {
        let steps = again.iter().map(|id| id.step);
        let stale = steps.filter_map(|step| Some((step, self.steps.get(&step)?)));
        let Some((step, what)) = stale.into_iter().next() else {
            return Ok(());
        };
        let name = &w.step(step).name;
        Err(CliError::new(
            Exit::Usage,
            format!(
                "{what} since this run began, and what step `{name}` made is needed and no longer there: the step must run again with it as \
                 it is now. Nothing was started; `tarn run` begins a run that does so, and runs again only what that changes"
            ),
        ))
    }

    /// Says what has changed, where the run goes on all the same.
    pub(super) fn tell(&self) {
        for what in &self.notes {
            say!(
                "note: {what} since this run began, which goes on with what it has made of it; `tarn run` uses the new one"
            );
        }
    }
}
