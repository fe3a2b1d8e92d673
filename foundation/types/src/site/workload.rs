//! Submissions to a simulated site, with facts that the planner does not know.

use super::job::{Item, Job, JobId};
use super::result::SiteResult;
use crate::units::{Nanos, Time};
use std::sync::Arc;

/// Jobs, items and workflows; ids are positions.
#[derive(Debug, Clone, Default)]
pub struct Workload {
    /// Jobs. Those that are submitted at the same moment come in this order.
    pub jobs: Vec<WorkJob>,
    /// Items.
    pub items: Vec<WorkItem>,
    /// Workflows.
    pub flows: Vec<Flow>,
    /// Entries that were left out of the files that were read, and why.
    pub skipped: Vec<Skipped>,
}

/// A job, and its true properties.
#[derive(Debug, Clone)]
pub struct WorkJob {
    /// The job as the planner gets it. All jobs of one workflow that share `submit` are submitted in one event.
    pub job: Arc<Job>,
    /// Its name; empty for a batch job of a trace, which is called by its number.
    pub name: Box<str>,
    /// When it is submitted.
    pub submit: Submit,
    /// How long its program really runs when no data has to be moved.
    pub compute: Nanos,
}

/// When a job is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submit {
    /// At this time.
    At(Time),
    /// When this job has ended and released its nodes: the last line of its script submits it (Weiland, Figure 4).
    After(JobId),
}

/// An item, and its true properties.
#[derive(Debug, Clone)]
pub struct WorkItem {
    /// The item as the planner gets it.
    pub item: Item,
    /// Its name; empty if it has none.
    pub name: Box<str>,
    /// Its true size.
    pub bytes: u64,
}

/// A workflow.
#[derive(Debug, Clone)]
pub struct Flow {
    /// Its name, unique in the workload.
    pub name: String,
    /// When it comes.
    pub arrives: Time,
}

/// Lines or records that were not used: counted, with the first of them as an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The file.
    pub file: String,
    /// Why, such as `run time is negative`.
    pub why: String,
    /// How many.
    pub count: u64,
    /// The line of the first.
    pub first_line: u64,
}

/// A workload that has run on a site, and what happened to it. Users, jobs, data and workflows are numbers.
#[derive(Debug, Clone, Default)]
pub struct RecordedWorkload {
    /// The submissions, with true run times and sizes.
    pub workload: Workload,
    /// By [`JobId`]: its user, numbered in the order of the first submissions.
    pub users: Vec<u32>,
    /// The outcome: times of jobs, bytes, energy.
    pub result: SiteResult,
}
