//! A recorded workflow as jobs and items: one job a task; files of one producer that the same tasks read are one item.

use crate::diag::{FindingCode, Findings, quoted};
use crate::site::alone::Alone;
use crate::site::draft::{DraftJob, MAX_TIME, WorkflowDraft, plain_job, usual_limit, way_round};
use crate::site::files::{files, group};
use crate::site::recorded::{Checks, MAX_BYTES, RecordedTask, RecordedWorkflow};
use crate::site::ways::FlowOptions;
use miette::SourceSpan;
use std::collections::HashMap;
use tarn_types::bounds;
use tarn_types::site::JobId;
use tarn_types::units::{Nanos, SECOND};

/// Seconds that a task may take.
const MAX_SECONDS: f64 = (MAX_TIME / SECOND) as f64;
/// Cores of a task.
const MAX_CORES: f64 = 65_536.0;

/// Makes a draft of a recorded workflow and appends its assumptions to `notes`. Problems go to `out`.
pub(crate) fn build(
    out: &mut Findings,
    whole: SourceSpan,
    instance: RecordedWorkflow,
    options: &FlowOptions,
    alone: Alone,
    notes: &mut Vec<String>,
) -> Option<WorkflowDraft> {
    let mut checks = Checks { out, whole };
    if instance.tasks.len() > bounds::MAX_STEPS {
        let help = format!("at most {} are read", bounds::MAX_STEPS);
        let message = format!("{} tasks are too many", instance.tasks.len());
        checks.report(FindingCode::TooLarge, message, "tasks", &help);
        return None;
    }
    let ids = index(&mut checks, &instance.tasks);
    let files = files(&mut checks, &instance, notes);
    let mut draft = WorkflowDraft::default();
    for task in &instance.tasks {
        draft.jobs.push(job(&mut checks, task, options));
    }
    group(&mut draft, files, options.bytes_scale);
    if !controls(&mut checks, &mut draft, &instance.tasks, &ids) || !checks.out.is_empty() {
        return None;
    }
    if let Err(circle) = draft.order() {
        let name = |at: usize| instance.tasks[at].id.as_str();
        let message = format!("tasks wait for each other: {}", way_round(&circle, name));
        let first = circle.first().copied().map_or("", name);
        checks.report(
            FindingCode::Cycle,
            message,
            first,
            "a workflow has no circles: the record is damaged",
        );
        return None;
    }
    for at in 0..draft.jobs.len() {
        let (read, written) = draft.bytes(&draft.jobs[at].job);
        let job = &mut draft.jobs[at];
        job.job.limit = usual_limit(job.compute.saturating_add(alone.time(1, read, written)));
    }
    Some(draft)
}

/// The tasks by their names.
fn index<'i>(checks: &mut Checks<'_>, tasks: &'i [RecordedTask]) -> HashMap<&'i str, usize> {
    let mut ids = HashMap::with_capacity(tasks.len());
    for (at, task) in tasks.iter().enumerate() {
        if ids.insert(task.id.as_str(), at).is_some() {
            let message = format!("two tasks are called {}", quoted(&task.id));
            checks.report(
                FindingCode::DuplicateName,
                message,
                &task.id,
                "tasks are referred to by their names",
            );
        }
    }
    for (at, task) in tasks.iter().enumerate() {
        if let Some(alias) = &task.alias {
            ids.entry(alias).or_insert(at);
        }
    }
    ids
}

/// A task as a job, its limit still missing.
fn job(checks: &mut Checks<'_>, task: &RecordedTask, options: &FlowOptions) -> DraftJob {
    let mut job = plain_job(1);
    let cores = checks.number(
        task.cores.unwrap_or(1.0),
        MAX_CORES,
        "the number of cores",
        &task.id,
    );
    job.cores = (cores.ceil() as u32).max(1);
    job.memory = checks.number(
        task.memory.unwrap_or(0.0),
        MAX_BYTES,
        "the memory",
        &task.id,
    ) as u64;
    if task.runtime.is_none() {
        let message = format!("task {} has no run time", quoted(&task.id));
        checks.report(
            FindingCode::MissingKey,
            message,
            &task.id,
            "give its record `runtimeInSeconds`",
        );
    }
    let seconds = task.runtime.unwrap_or(0.0) * options.time_scale;
    let seconds = checks.number(seconds, MAX_SECONDS, "the run time", &task.id);
    let compute = (seconds * SECOND as f64).round() as Nanos;
    job.expect = compute;
    DraftJob {
        name: task.id.as_str().into(),
        job,
        compute,
        follows: None,
    }
}

/// Parents and children that no file explains become `after`. Whether all are known.
fn controls(
    checks: &mut Checks<'_>,
    draft: &mut WorkflowDraft,
    tasks: &[RecordedTask],
    ids: &HashMap<&str, usize>,
) -> bool {
    let by_data = draft.waits_for();
    let mut all_known = true;
    let mut edges: Vec<(usize, usize)> = Vec::new();
    for (at, task) in tasks.iter().enumerate() {
        let parents = task.parents.iter().map(|p| (p, true));
        for (name, parent) in parents.chain(task.children.iter().map(|c| (c, false))) {
            match ids.get(name.as_str()) {
                Some(other) if parent => edges.push((at, *other)),
                Some(other) => edges.push((*other, at)),
                None => {
                    all_known = false;
                    let message = format!(
                        "task {} names {}, which is no task",
                        quoted(&task.id),
                        quoted(name)
                    );
                    checks.report(
                        FindingCode::UnknownStep,
                        message,
                        name,
                        "name a task of the same file",
                    );
                }
            }
        }
    }
    edges.sort_unstable();
    edges.dedup();
    for (job, before) in edges {
        if by_data[job].binary_search(&before).is_err() {
            draft.jobs[job].job.after.push(JobId(before as u32));
        }
    }
    all_known
}
