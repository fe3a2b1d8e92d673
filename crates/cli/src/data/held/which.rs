//! Which dataset is meant, and what is said where there is none.

use super::super::missing::had_again;
use crate::error::CliError;
use std::collections::BTreeMap;
use tarn_base::codes::Exit;
use tarn_base::layout::StateDir;
use tarn_journal::{DatasetRow, StoredAt};

/// How many names a message lists at most.
const NAMES: usize = 20;

/// Which dataset is meant.
pub(crate) struct Which<'a> {
    /// The workflow that it belongs to; by none it is the only one of its name.
    pub(crate) workflow: Option<&'a str>,
    /// Not one of this workflow.
    pub(crate) but: Option<&'a str>,
    pub(crate) dataset: &'a str,
}

impl<'a> Which<'a> {
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

    /// What is said where there is none: those that are there, what comes closest, and how one that was there is had again.
    pub(super) fn not_there(&self, known: &[DatasetRow], state: &StateDir) -> CliError {
        let mut names: BTreeMap<String, Option<String>> = BTreeMap::new();
        for row in known
            .iter()
            .filter(|r| self.but.is_none_or(|b| b != r.workflow))
        {
            let name = format!("{}/{}", row.workflow, row.dataset);
            let dest = match &row.at {
                StoredAt::External(path) => Some(path.display().to_string()),
                _ => None,
            };
            let known = names.entry(name).or_insert_with(|| dest.clone());
            *known = known.take().filter(|_| dest.is_some());
        }
        let more = names.len().saturating_sub(NAMES);
        let names: Vec<String> = names
            .into_iter()
            .take(NAMES)
            .map(|(name, dest)| match dest {
                Some(dest) => format!("{name} (only in its `dest`, {dest})"),
                None => name,
            })
            .collect();
        let there = match more {
            0 if names.is_empty() => "nothing".into(),
            0 => names.join(", "),
            more => format!("{} and {more} more", names.join(", ")),
        };
        let datasets = known.iter().map(|r| r.dataset.as_str());
        let close = tarn_flow::did_you_mean(self.dataset, datasets);
        let meant = close.map_or(String::new(), |hint| format!("; {hint}"));
        let whose = self
            .workflow
            .map_or(String::new(), |w| format!(" of workflow {w}"));
        let again = had_again(state, self.workflow, self.dataset).filter(|_| self.but.is_none());
        let again = again.map_or(String::new(), |again| format!("; {again}"));
        let text = format!(
            "no replica of `{}`{whose} is on the nodes; there: {there}{meant}{again}",
            self.dataset
        );
        CliError::new(Exit::NotFound, text)
    }
}
