//! Before a run is resumed: steps that are done, and that could not run again as they ran, as an input or a script has changed.

use crate::error::{CliError, CliResult};
use crate::print::message;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tarn_types::codes::Exit;
use tarn_types::id::{InstanceId, StepId};
use tarn_types::workflow::Workflow;

/// The changes since the run began.
#[derive(Debug, Default)]
pub(super) struct Stale {
    /// By step that is done, the changed files that it read.
    steps: BTreeMap<StepId, String>,
    /// The notes to print when the run resumes.
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
        self.notes.insert(format!(
            "{what} since this run began. The run continues with the results it made from the old one; `tarn run` uses the new one"
        ));
    }

    /// The workflow file: `how` it is another by now.
    pub(super) fn workflow_file(&mut self, path: &Path, how: &str) {
        self.notes.insert(format!(
            "{} {how}. The run continues as it began; `tarn run` uses the new one",
            path.display()
        ));
    }

    /// Whether no step has changed: nothing has to be looked at.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Refuses to continue if one of these steps would have to run again.
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
                "{what} since this run began. Step `{name}` must run again, because its output is needed and gone, and `tarn resume` would \
                 mix old and new input. Nothing was started. Use `tarn run`: it takes the new input and runs only what is affected"
            ),
        ))
    }

    /// Says what has changed, where the run continues all the same.
    pub(super) fn print_notes(&self) {
        for note in &self.notes {
            message!("note: {note}");
        }
    }
}
