//! The content of the files, put together with numbers that hold for all of it.

use crate::diag::{Finding, FindingCode};
use crate::site::draft::{DraftJob, MAX_TIME, WorkflowDraft};
use std::collections::BTreeSet;
use std::sync::Arc;
use tarn_types::site::{
    Fate, Flow, FlowId, Input, ItemId, Job, JobId, SiteResult, Skipped, Submit, WorkItem, WorkJob,
    Workload,
};
use tarn_types::units::Time;

/// Jobs of a workload: sixteen times as many as the largest traces of the Parallel Workloads Archive hold.
pub const MAX_SITE_JOBS: usize = 16 << 20;
/// Items of a workload: two for each job, as traces with modelled data have.
pub const MAX_SITE_ITEMS: usize = 2 * MAX_SITE_JOBS;
/// Notes about assumptions; more would not be read.
const MAX_NOTES: usize = 32;

/// A workload, and the assumptions for values that the files do not have.
#[derive(Debug, Clone, Default)]
pub struct Loaded {
    /// The workload.
    pub workload: Workload,
    /// Sentences, each beginning with the file's name.
    pub notes: Vec<String>,
    /// Its outcome, where it is one site's history and nothing else.
    pub recorded: Option<SiteResult>,
}

/// Puts a workload together.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    loaded: Loaded,
    recorded: Option<SiteResult>,
    names: BTreeSet<String>,
}

impl Gather {
    /// Other files beside a history: what happened then is not what is simulated. It may say nothing of what happened.
    pub(crate) fn finish(mut self) -> Loaded {
        let jobs = self.loaded.workload.jobs.len();
        let has_run = |r: &SiteResult| r.jobs.iter().any(|job| job.fate == Fate::Done);
        let recorded = self.recorded.filter(has_run);
        self.loaded.recorded = recorded.filter(|r| r.jobs.len() == jobs);
        self.loaded
    }

    /// The outcomes of the jobs of a history.
    pub(crate) fn recorded(&mut self, result: SiteResult) {
        self.recorded = Some(result);
    }

    /// Something that was assumed.
    pub(crate) fn note(&mut self, note: String) {
        if self.loaded.notes.len() < MAX_NOTES && !self.loaded.notes.contains(&note) {
            self.loaded.notes.push(note);
        }
    }

    /// Something that was not used.
    pub(crate) fn skip(&mut self, skipped: Skipped) {
        self.loaded.workload.skipped.push(skipped);
    }

    /// Jobs so far.
    pub(crate) fn jobs(&self) -> usize {
        self.loaded.workload.jobs.len()
    }

    /// Whether so many more jobs and items may be added.
    ///
    /// # Errors
    /// A finding without a place, if not.
    pub(crate) fn check_workload_size(&self, jobs: usize, items: usize) -> Result<(), Finding> {
        let all_jobs = self.jobs().saturating_add(jobs);
        let all_items = self.loaded.workload.items.len().saturating_add(items);
        if all_jobs <= MAX_SITE_JOBS && all_items <= MAX_SITE_ITEMS {
            return Ok(());
        }
        let message =
            format!("the workload comes to {all_jobs} jobs and {all_items} items of data");
        Err(Finding::error(FindingCode::TooLarge, message).help(format!(
            "at most {MAX_SITE_JOBS} jobs and {MAX_SITE_ITEMS} items are simulated; lower `max-jobs` or `count`"
        )))
    }

    /// Adds a job that is no step of a workflow, with its items.
    pub(crate) fn batch(&mut self, job: DraftJob, items: &[WorkItem], submit: Time) {
        let first = self.first();
        self.items(items);
        self.push(&job, None, first, submit);
    }

    /// Begins a workflow; its name is made unique.
    pub(crate) fn begin_flow(&mut self, name: &str, arrives: Time) -> FlowId {
        let mut unique = name.to_owned();
        let mut number = 2;
        while !self.names.insert(unique.clone()) {
            unique = format!("{name}-{number}");
            number += 1;
        }
        let flows = &mut self.loaded.workload.flows;
        flows.push(Flow {
            name: unique,
            arrives,
        });
        FlowId(flows.len() as u32 - 1)
    }

    /// Adds a workflow.
    pub(crate) fn flow(&mut self, draft: &WorkflowDraft, name: &str, arrives: Time) {
        let flow = self.begin_flow(name, arrives);
        let first = self.first();
        self.items(&draft.items);
        for job in &draft.jobs {
            self.push(job, Some(flow), first, arrives);
        }
    }

    /// The numbers that the next job and the next item will have.
    pub(crate) fn first(&self) -> (u32, u32) {
        let workload = &self.loaded.workload;
        (workload.jobs.len() as u32, workload.items.len() as u32)
    }

    /// Adds items.
    pub(crate) fn items(&mut self, items: &[WorkItem]) {
        self.loaded.workload.items.extend_from_slice(items);
    }

    /// Adds a job whose own numbers begin at `first`. Times end at the longest one: beyond it the simulation ends anyway.
    pub(crate) fn push(
        &mut self,
        draft: &DraftJob,
        flow: Option<FlowId>,
        first: (u32, u32),
        arrives: Time,
    ) {
        let job_id = |id: JobId| JobId(id.0 + first.0);
        let item_id = |id: ItemId| ItemId(id.0 + first.1);
        let input = |input: &Input| Input {
            item: item_id(input.item),
            spread: input.spread,
        };
        let job = Job {
            flow,
            after: draft.job.after.iter().copied().map(job_id).collect(),
            continues: draft.job.continues.map(job_id),
            reads: draft.job.reads.iter().map(input).collect(),
            writes: draft.job.writes.iter().copied().map(item_id).collect(),
            limit: draft.job.limit.min(MAX_TIME),
            expect: draft.job.expect.min(MAX_TIME),
            on: draft.job.on.clone(),
            ..draft.job
        };
        self.loaded.workload.jobs.push(WorkJob {
            job: Arc::new(job),
            name: draft.name.clone(),
            submit: draft
                .follows
                .map_or(Submit::At(arrives), |before| Submit::After(job_id(before))),
            compute: draft.compute.min(MAX_TIME),
        });
    }
}
