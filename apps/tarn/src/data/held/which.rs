//! The choice of the dataset that is meant, and the error if there is none.

use super::super::missing::had_again;
use crate::error::CliError;
use crate::state::started;
use std::collections::BTreeMap;
use std::path::Path;
use tarn_journal::{DatasetRow, StoredAt, runs};
use tarn_types::codes::Exit;
use tarn_types::event::Start;
use tarn_types::layout::StateDir;
use tarn_types::text::some_of;

/// How many names a message lists at most.
const NAMES: usize = 20;

/// Which dataset is meant.
pub(crate) struct DatasetSelector<'a> {
    /// The workflow that it belongs to; by none it is the only one of its name.
    pub(crate) workflow: Option<&'a str>,
    /// Not one of this workflow.
    pub(crate) but: Option<&'a str>,
    pub(crate) dataset: &'a str,
}

impl<'a> DatasetSelector<'a> {
    /// `DATASET`, or `WORKFLOW/DATASET`.
    pub(super) fn named(name: &'a str) -> Self {
        let (workflow, dataset) = match name.split_once('/') {
            Some((workflow, dataset)) => (Some(workflow), dataset),
            None => (None, name),
        };
        Self {
            workflow,
            but: None,
            dataset,
        }
    }

    pub(super) fn is(&self, row: &DatasetRow) -> bool {
        self.dataset == row.dataset
            && self.workflow.is_none_or(|w| w == row.workflow)
            && self.but.is_none_or(|b| b != row.workflow)
    }

    /// The error if there is none: it names the datasets that are there, the closest names, and how to make a missing one again.
    pub(super) fn not_there(&self, known: &[DatasetRow], state: &StateDir) -> CliError {
        let mut names: BTreeMap<(&str, &str), Option<&Path>> = BTreeMap::new();
        for row in known
            .iter()
            .filter(|r| self.but.is_none_or(|b| b != r.workflow))
        {
            let outside = match &row.at {
                StoredAt::External(path) => Some(path.as_path()),
                _ => None,
            };
            let name = (row.workflow.as_str(), row.dataset.as_str());
            let known = names.entry(name).or_insert(outside);
            *known = known.take().filter(|_| outside.is_some());
        }
        let mut dests = Dests::new(state);
        let all = names.len() as u64;
        let shown = names.into_iter().take(NAMES);
        let shown = shown.map(|((workflow, dataset), outside)| match outside {
            Some(path) if dests.is_dest(workflow, dataset, path) => {
                format!("{workflow}/{dataset} (in its `dest` {})", path.display())
            }
            Some(path) => format!("{workflow}/{dataset} (only outside, in {})", path.display()),
            None => format!("{workflow}/{dataset}"),
        });
        let there = match all {
            0 => "There are no datasets here".into(),
            all => format!("Datasets here: {}", some_of(shown, all)),
        };
        let datasets = known.iter().map(|r| r.dataset.as_str());
        let close = tarn_spec::did_you_mean(self.dataset, datasets);
        let meant = close.map_or_else(|| ".".into(), |hint| format!("; {hint}"));
        let whose = self
            .workflow
            .map_or(String::new(), |w| format!(" of workflow {w}"));
        let again = had_again(state, self.workflow, self.dataset).filter(|_| self.but.is_none());
        let again = again.map_or(String::new(), |again| format!(" {again}."));
        let text = format!(
            "`{}`{whose} is not stored anywhere that tarn knows{meant} {there}.{again}",
            self.dataset
        );
        let text = text.trim_end_matches('.');
        CliError::new(Exit::NotFound, text)
    }
}

/// The destinations of the newest runs.
struct Dests<'a> {
    state: &'a StateDir,
    /// By workflow, the newest run that can be read.
    newest: BTreeMap<String, Option<Start>>,
}

impl<'a> Dests<'a> {
    fn new(state: &'a StateDir) -> Self {
        Self {
            state,
            newest: BTreeMap::new(),
        }
    }

    /// Whether this is where a dataset is delivered to; else it is a rescued copy.
    fn is_dest(&mut self, workflow: &str, dataset: &str, path: &Path) -> bool {
        let start = self.newest.entry(workflow.to_owned()).or_insert_with(|| {
            let newest = runs::newest(self.state, Some(workflow)).ok()??;
            started(self.state, &newest.name).ok()
        });
        let mut data = start.iter().flat_map(|s| &s.workflow.data);
        data.any(|d| d.name == dataset && d.dest.as_deref() == Some(path))
    }
}
