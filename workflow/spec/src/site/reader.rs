//! The reader of a workload's files: traces and workflows, also those that another file names.

use crate::diag::{Finding, FindingCode, SpecError};
use crate::site::alone::Alone;
use crate::site::document::rejected;
use crate::site::draft::WorkflowDraft;
use crate::site::gather::Gather;
use crate::site::open::{ReadFile, WorkloadFileContent, WorkloadFormat};
use crate::site::steps;
use crate::site::swf::{TraceMachine, TraceOptions, read_trace};
use crate::site::ways::FlowOptions;
use crate::site::wfformat;
use std::path::Path;
use tarn_types::site::Machine;
use tarn_types::units::Time;
use toml::de::DeTable;

/// How files are read; values of a workload file come first.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ReadOptions {
    /// Traces of batch jobs.
    pub trace: TraceOptions,
    /// Workflows.
    pub flow: FlowOptions,
    /// When a trace begins, or a workflow comes.
    pub arrives: Time,
}

/// A reader, and the collection of its results.
pub(crate) struct WorkloadReader<'s> {
    pub(crate) machine: &'s Machine,
    pub(crate) alone: Alone,
    pub(crate) read: &'s ReadFile<'s>,
    pub(crate) gather: Gather,
}

/// Why a file that another names gives nothing.
pub(crate) enum IncludeError {
    /// Of the place where it is named.
    Here(Finding),
    /// Of the file itself.
    There(SpecError),
}

impl WorkloadReader<'_> {
    /// Adds a trace that another file names.
    pub(crate) fn trace(
        &mut self,
        path: &Path,
        options: &TraceOptions,
        arrives: Time,
    ) -> Result<(), IncludeError> {
        let name = path.display().to_string();
        let opened = WorkloadFileContent::read(self.read, path).map_err(IncludeError::Here)?;
        if opened.kind().map_err(IncludeError::Here)? != WorkloadFormat::Trace {
            let message = format!("`{name}` is no trace");
            return Err(IncludeError::Here(Finding::error(FindingCode::BadValue, message).help(
                "a trace is in the Standard Workload Format: a line a job, 18 numbers in each; workflows go into `[[workflow]]`",
            )));
        }
        self.trace_of(&opened, &name, options, arrives)
            .map_err(IncludeError::Here)
    }

    pub(crate) fn trace_of(
        &mut self,
        opened: &WorkloadFileContent,
        name: &str,
        options: &TraceOptions,
        arrives: Time,
    ) -> Result<(), Finding> {
        let target = TraceMachine {
            nodes: self.machine.nodes(),
            alone: self.alone,
        };
        read_trace(
            &mut self.gather,
            name,
            &mut *opened.lines(),
            target,
            options,
            arrives,
        )
    }

    /// The workflow of a file that another names, with its jobs in an order in which they can run.
    pub(crate) fn draft(
        &mut self,
        path: &Path,
        options: &FlowOptions,
        entries: u32,
    ) -> Result<WorkflowDraft, IncludeError> {
        let opened = WorkloadFileContent::read(self.read, path).map_err(IncludeError::Here)?;
        let no_flow = || {
            let message = format!("`{}` is no workflow", path.display());
            IncludeError::Here(Finding::error(FindingCode::BadValue, message).help(
                "a workflow is a workflow file of tarn or a recorded instance in WfFormat; traces go into `[[trace]]`",
            ))
        };
        let kind = opened.kind().map_err(IncludeError::Here)?;
        if matches!(kind, WorkloadFormat::Trace | WorkloadFormat::History) {
            return Err(no_flow());
        }
        let text = opened.text().map_err(IncludeError::Here)?;
        if !is_flow(&opened, &text) {
            return Err(no_flow());
        }
        self.draft_of(path, &opened, &text, options, entries)
            .map_err(IncludeError::There)
    }

    pub(crate) fn draft_of(
        &mut self,
        path: &Path,
        opened: &WorkloadFileContent,
        text: &str,
        options: &FlowOptions,
        entries: u32,
    ) -> Result<WorkflowDraft, SpecError> {
        let name = path.display().to_string();
        let mut notes = Vec::new();
        let draft = match opened.kind().map_err(|finding| rejected(&name, finding))? {
            WorkloadFormat::Json => {
                wfformat::read_instance(&name, text, options, self.alone, &mut notes)?
            }
            WorkloadFormat::Toml | WorkloadFormat::Trace | WorkloadFormat::History => {
                let folder = path.parent().unwrap_or(Path::new(""));
                let parsed = crate::parse(&name, text, folder)?;
                steps::expand(&parsed.workflow, options, entries, self.alone, &mut notes)
                    .map_err(|finding| rejected(&name, finding))?
            }
        };
        for note in notes {
            self.gather.note(format!("{name}: {note}"));
        }
        Ok(draft)
    }
}

/// Whether a text is a workflow: a recorded one, or a workflow file of tarn, which has steps.
pub(crate) fn is_flow(opened: &WorkloadFileContent, text: &str) -> bool {
    match opened.kind() {
        Ok(WorkloadFormat::Json) => true,
        _ => DeTable::parse_recoverable(text)
            .0
            .get_ref()
            .contains_key("step"),
    }
}

/// The name of a workflow: its file's, without folder and endings.
pub(crate) fn flow_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A name is in one line.
    let name = name.replace(char::is_control, "?");
    let bare = name
        .trim_end_matches(".gz")
        .trim_end_matches(".json")
        .trim_end_matches(".toml");
    if bare.is_empty() {
        "workflow".into()
    } else {
        bare.to_owned()
    }
}
