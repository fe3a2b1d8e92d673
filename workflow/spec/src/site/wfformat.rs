//! Recorded workflows in WfFormat (WfCommons), versions 1.4 to 1.6: one JSON document each. Version 1.4 lists files in
//! its tasks; since 1.5 a specification and an execution are kept apart, and 1.6 adds fields that are not needed here.

use crate::diag::{Finding, FindingCode, Findings, SpecError, quoted};
use crate::parsed::refuse;
use crate::section::shorten;
use crate::site::alone::Alone;
use crate::site::draft::WorkflowDraft;
use crate::site::instance;
use crate::site::recorded::{RecordedTask, RecordedWorkflow};
use crate::site::ways::FlowOptions;
use crate::text::SourceFiles;
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::Arc;

/// The versions that are known.
const VERSIONS: [&str; 3] = ["1.4", "1.5", "1.6"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WfFormatDocument {
    schema_version: Option<String>,
    workflow: WfFormatBody,
}

#[derive(Deserialize)]
struct WfFormatBody {
    specification: Option<Specification>,
    execution: Option<Execution>,
    tasks: Option<Vec<OldTask>>,
}

#[derive(Deserialize)]
struct Specification {
    #[serde(default)]
    tasks: Vec<SpecTask>,
    #[serde(default)]
    files: Vec<SpecFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecTask {
    id: String,
    #[serde(default)]
    parents: Vec<String>,
    #[serde(default)]
    children: Vec<String>,
    #[serde(default)]
    input_files: Vec<String>,
    #[serde(default)]
    output_files: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecFile {
    id: String,
    size_in_bytes: f64,
}

#[derive(Deserialize)]
struct Execution {
    #[serde(default)]
    tasks: Vec<ExecutedTask>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecutedTask {
    id: String,
    runtime_in_seconds: Option<f64>,
    core_count: Option<f64>,
    memory_in_bytes: Option<f64>,
}

/// A task of version 1.4.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OldTask {
    name: String,
    id: Option<String>,
    #[serde(default)]
    parents: Vec<String>,
    #[serde(default)]
    children: Vec<String>,
    #[serde(default)]
    files: Vec<OldFile>,
    runtime_in_seconds: Option<f64>,
    cores: Option<f64>,
    memory_in_bytes: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OldFile {
    name: String,
    size_in_bytes: f64,
    link: WfFormatLink,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum WfFormatLink {
    Input,
    Output,
}

/// Reads a recorded workflow and appends its assumptions to `notes`.
///
/// # Errors
/// All that is wrong with it.
pub(crate) fn read_instance(
    name: &str,
    text: &str,
    options: &FlowOptions,
    alone: Alone,
    notes: &mut Vec<String>,
) -> Result<WorkflowDraft, SpecError> {
    let mut out = Findings::new(Arc::new(SourceFiles::new(name, text)));
    let draft = match serde_json::from_str::<WfFormatDocument>(text) {
        Ok(document) => {
            check_version(&mut out, text, document.schema_version.as_deref());
            instance(&mut out, text, document.workflow).and_then(|instance| {
                instance::build(
                    &mut out,
                    (0, text.len()).into(),
                    instance,
                    options,
                    alone,
                    notes,
                )
            })
        }
        Err(error) => {
            out.add(no_instance(text, &error));
            None
        }
    };
    match draft {
        Some(draft) if out.is_empty() => Ok(draft),
        _ => refuse(out, name),
    }
}

fn no_instance(text: &str, error: &serde_json::Error) -> Finding {
    let line_start: usize = text
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1))
        .map(str::len)
        .sum();
    let at = line_start + error.column().saturating_sub(1);
    let message = error.to_string();
    let why = message.split(" at line ").next().unwrap_or_default();
    let what = match error.is_data() {
        true => "the file is not a workflow in WfFormat",
        false => "the file is not JSON",
    };
    Finding::error(FindingCode::Syntax, format!("{what}: {}", shorten(&why)))
        .at((at.min(text.len()), 1).into(), "here")
        .help("see https://wfcommons.org/format; versions 1.4 to 1.6 are read")
}

fn check_version(out: &mut Findings, text: &str, version: Option<&str>) {
    let Some(version) = version.filter(|v| !VERSIONS.contains(v)) else {
        return;
    };
    let span = out.find((0, text.len()).into(), "\"schemaVersion\"");
    out.add(
        Finding::error(
            FindingCode::BadValue,
            format!("WfFormat {} is not known", quoted(version)),
        )
        .at(span, "the file's version")
        .help(format!(
            "versions {} are read; WfCommons has a tool that migrates a file",
            VERSIONS.join(", ")
        )),
    );
}

/// The same of either version.
fn instance(out: &mut Findings, text: &str, body: WfFormatBody) -> Option<RecordedWorkflow> {
    let whole = (0, text.len()).into();
    let instance = match (body.specification, body.execution, body.tasks) {
        (Some(specification), Some(execution), _) => joined(out, whole, specification, execution),
        (None, _, Some(tasks)) => old(tasks),
        (Some(_), None, _) => {
            let span = out.find(whole, "\"specification\"");
            out.add(
                Finding::error(FindingCode::MissingKey, "the workflow has no `execution`")
                    .at(span, "only a specification")
                    .help("give a recorded instance: without run times nothing can be simulated"),
            );
            return None;
        }
        (None, _, None) => RecordedWorkflow::default(),
    };
    if instance.tasks.is_empty() {
        let span = out.find(whole, "\"workflow\"");
        out.add(
            Finding::error(FindingCode::MissingKey, "the workflow has no tasks")
                .at(span, "here")
                .help("see https://wfcommons.org/format; versions 1.4 to 1.6 are read"),
        );
        return None;
    }
    Some(instance)
}

fn joined(
    out: &mut Findings,
    whole: miette::SourceSpan,
    specification: Specification,
    execution: Execution,
) -> RecordedWorkflow {
    let mut executed: HashMap<String, ExecutedTask> = HashMap::with_capacity(execution.tasks.len());
    for task in execution.tasks {
        if let Some(twice) = executed.insert(task.id.clone(), task) {
            let span = out.find(whole, &format!("\"{}\"", twice.id));
            out.add(
                Finding::error(
                    FindingCode::DuplicateName,
                    format!("task {} was executed twice", quoted(&twice.id)),
                )
                .at(span, "first named here")
                .help("a task has one record in `execution.tasks`"),
            );
        }
    }
    let tasks = specification.tasks.into_iter().map(|task| {
        let record = executed.get(&task.id);
        RecordedTask {
            runtime: record.and_then(|r| r.runtime_in_seconds),
            cores: record.and_then(|r| r.core_count),
            memory: record.and_then(|r| r.memory_in_bytes),
            id: task.id,
            alias: None,
            parents: task.parents,
            children: task.children,
            inputs: task.input_files,
            outputs: task.output_files,
        }
    });
    RecordedWorkflow {
        tasks: tasks.collect(),
        files: specification
            .files
            .into_iter()
            .map(|f| (f.id, f.size_in_bytes))
            .collect(),
        sizes_may_differ: false,
    }
}

fn old(tasks: Vec<OldTask>) -> RecordedWorkflow {
    let mut instance = RecordedWorkflow {
        sizes_may_differ: true,
        ..RecordedWorkflow::default()
    };
    for task in tasks {
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for file in task.files {
            instance.files.push((file.name.clone(), file.size_in_bytes));
            match file.link {
                WfFormatLink::Input => inputs.push(file.name),
                WfFormatLink::Output => outputs.push(file.name),
            }
        }
        instance.tasks.push(RecordedTask {
            id: task.name,
            alias: task.id,
            runtime: task.runtime_in_seconds,
            cores: task.cores,
            memory: task.memory_in_bytes,
            parents: task.parents,
            children: task.children,
            inputs,
            outputs,
        });
    }
    instance
}
