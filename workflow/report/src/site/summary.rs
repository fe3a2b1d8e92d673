//! The figures of one policy: computed from the record of the simulated world. Serialized, they are a run of
//! `tarn sim --json`.

use serde::Serialize;
use std::collections::BTreeMap;
use tarn_types::site::{Fate, JobId, JobResult, Machine, SiteResult, Skipped, Workload};
use tarn_types::units::{Nanos, SECOND, Time};

/// Refused jobs that are named; of more, the first.
pub const MAX_REFUSED: usize = 100;

/// A simulation that has ended, and the values it is compared with.
#[derive(Debug, Clone, Copy)]
pub struct SiteRun<'a> {
    /// The policy.
    pub policy: &'a str,
    /// The machine.
    pub machine: &'a Machine,
    /// The workload.
    pub workload: &'a Workload,
    /// The result of the simulation.
    pub result: &'a SiteResult,
    /// A makespan that no policy can beat.
    pub lower_bound: Nanos,
    /// The same for each workflow.
    pub flow_bounds: &'a [Nanos],
    /// Seconds that the simulation took.
    pub wall_s: f64,
}

/// A run of `tarn sim --json`. Times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SiteSummary {
    /// The policy.
    pub policy: String,
    /// From the first submission until the last job has released its nodes and the last kept item is delivered.
    pub makespan_s: f64,
    /// A makespan that no policy can beat.
    pub lower_bound_s: f64,
    /// By name.
    pub workflows: BTreeMap<String, FlowSummary>,
    /// Over all jobs that are done.
    pub mean_wait_s: f64,
    /// Over all jobs that are done.
    pub mean_bounded_slowdown: f64,
    /// By the way they took.
    pub bytes: SiteByteTotals,
    /// The energy of all nodes.
    pub energy_j: f64,
    /// Events that the planner received.
    pub events: u64,
    /// Seconds that the simulation took.
    pub wall_s: f64,
    /// Jobs that belong to no workflow.
    pub ordinary_jobs: JobsSummary,
    /// Jobs that are steps of workflows.
    pub workflow_jobs: JobsSummary,
    /// Node-time that jobs held, as a share of all nodes until the last release.
    pub utilisation: f64,
    /// Reading and writing as a share of the time for which jobs held their nodes.
    pub io_share: f64,
    /// The most bytes that the tiers of one node held at once.
    pub tier_peak_node: u64,
    /// The most bytes that all tiers together held at once.
    pub tier_peak_all: u64,
    /// Reboots into another memory mode.
    pub mode_changes: u64,
    /// Jobs that were taken out.
    pub refused: u64,
    /// The first of them, at most [`MAX_REFUSED`].
    pub refused_jobs: Vec<RefusedJob>,
    /// Lines and records of the input that were left out.
    pub skipped: Vec<SkippedLines>,
}

/// A workflow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FlowSummary {
    /// Time to solution: from its first submission until all its jobs have released their nodes and all its kept items
    /// are in the external store.
    pub time_s: f64,
    /// A time that no policy can beat.
    pub lower_bound_s: f64,
    /// From its first submission until its jobs have released their nodes.
    pub released_s: f64,
    /// Jobs that are done.
    pub jobs: u64,
    /// Jobs that were taken out, or did not end.
    pub not_done: u64,
    /// Sum of waits: T_queue of Weiland's equations 1 and 4.
    pub queue_s: f64,
    /// Sum of run times: T_run of the same.
    pub run_s: f64,
    /// Sum of T_I/O (equation 5).
    pub io_s: f64,
    /// Sum of T_compute (equation 5).
    pub compute_s: f64,
    /// R_all of equations 2 and 3, in node-seconds.
    pub node_s: f64,
}

/// Bytes by the way they took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SiteByteTotals {
    /// From the external store.
    pub external_in: u64,
    /// To it.
    pub external_out: u64,
    /// Between nodes.
    pub peer: u64,
    /// Read locally.
    pub retained: u64,
}

/// Jobs of one kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct JobsSummary {
    /// Those that are done. All other figures are of these.
    pub done: u64,
    /// Those that were taken out, or did not end.
    pub not_done: u64,
    /// Attempts that failed.
    pub retries: u64,
    /// From when a job could have begun until it did.
    pub wait_s: SiteDistribution,
    /// (wait + run) / max(run, 10 s).
    pub bounded_slowdown: SiteDistribution,
}

/// How values are distributed (percentiles by nearest rank; 0 of none).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct SiteDistribution {
    /// The mean.
    pub mean: f64,
    /// Half are at most this.
    pub p50: f64,
    /// Nine of ten are at most this.
    pub p90: f64,
    /// All but one in a hundred are at most this.
    pub p99: f64,
    /// The most.
    pub max: f64,
}

/// A job that was taken out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedJob {
    /// Its name.
    pub job: String,
    /// The workflow of which it is a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// The resource that lacks, or another cause.
    pub why: String,
    #[serde(skip)]
    lacks: bool,
}

impl RefusedJob {
    /// Whether it is a step of a workflow and the machine lacks something that it needs: the workflow can never run to its
    /// end.
    pub fn can_never_run(&self) -> bool {
        self.lacks && self.workflow.is_some()
    }
}

/// Lines or records that were not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedLines {
    /// The file.
    pub file: String,
    /// Why.
    pub why: String,
    /// How many.
    pub count: u64,
    /// The line of the first.
    pub first_line: u64,
}

/// The reason for a job that was not refused but failed in all its tries.
const GIVEN_UP: &str = "it failed as often as it may";

pub(super) fn seconds(time: Nanos) -> f64 {
    time as f64 / SECOND as f64
}

/// The name of a job: that of its workflow with its own, or its number.
pub(super) fn job_name(workload: &Workload, job: JobId) -> String {
    let Some(found) = workload.jobs.get(job.at()) else {
        return job.to_string();
    };
    match (&*found.name, found.job.flow) {
        ("", _) => job.to_string(),
        (name, Some(flow)) if workload.flows.len() > 1 => match workload.flows.get(flow.at()) {
            Some(flow) => format!("{}/{name}", flow.name),
            None => name.to_owned(),
        },
        (name, _) => name.to_owned(),
    }
}

fn flow_name(workload: &Workload, job: JobId) -> Option<String> {
    let flow = workload.jobs.get(job.at())?.job.flow?;
    Some(workload.flows.get(flow.at())?.name.to_string())
}

impl SiteSummary {
    /// The figures of a run.
    pub fn of(run: &SiteRun<'_>) -> Self {
        let result = run.result;
        let done = || result.jobs.iter().filter(|j| j.fate == Fate::Done);
        let bytes = &result.bytes;
        let is_step = |n: usize| {
            run.workload
                .jobs
                .get(n)
                .is_some_and(|j| j.job.flow.is_some())
        };
        let held: u128 = done().map(|j| u128::from(j.run())).sum();
        let io: u128 = done().map(|j| u128::from(j.io)).sum();
        Self {
            policy: run.policy.to_owned(),
            makespan_s: seconds(makespan(result)),
            lower_bound_s: seconds(run.lower_bound),
            workflows: workflows(run),
            mean_wait_s: mean(done().map(|j| seconds(j.wait()))),
            mean_bounded_slowdown: mean(done().map(JobResult::bounded_slow_down)),
            bytes: SiteByteTotals {
                external_in: bytes.external_in,
                external_out: bytes.external_out,
                peer: bytes.peer,
                retained: bytes.retained,
            },
            energy_j: result.energy,
            events: result.events,
            wall_s: run.wall_s,
            ordinary_jobs: jobs(result, |n| !is_step(n)),
            workflow_jobs: jobs(result, is_step),
            utilisation: utilisation(run),
            io_share: io as f64 / (held as f64).max(1.0),
            tier_peak_node: result.tier_peaks.iter().copied().max().unwrap_or(0),
            tier_peak_all: result.tier_peak_all,
            mode_changes: result.mode_changes,
            refused: result.refused.len() as u64,
            refused_jobs: refused(run),
            skipped: run.workload.skipped.iter().map(skipped).collect(),
        }
    }
}

fn first_submission(result: &SiteResult) -> Time {
    let submitted = result.jobs.iter().filter(|j| j.fate != Fate::Open);
    submitted.map(|j| j.submitted).min().unwrap_or(0)
}

fn makespan(result: &SiteResult) -> Nanos {
    result.end.saturating_sub(first_submission(result))
}

fn utilisation(run: &SiteRun<'_>) -> f64 {
    let jobs = &run.result.jobs;
    let last = jobs.iter().map(|j| j.released).max().unwrap_or(0);
    let span = last.saturating_sub(first_submission(run.result));
    let held: u128 = jobs.iter().map(|j| u128::from(j.node_time)).sum();
    held as f64 / (f64::from(run.machine.nodes()) * span as f64).max(1.0)
}

fn workflows(run: &SiteRun<'_>) -> BTreeMap<String, FlowSummary> {
    let flow_of = |job: JobId| run.workload.jobs.get(job.at())?.job.flow;
    let totals = run.result.flow_totals(flow_of);
    let flows = run.workload.flows.iter().enumerate();
    let summary = flows.map(|(n, flow)| {
        let t = totals.get(n).copied().unwrap_or_default();
        let delivered = run.result.delivered.get(n).copied().flatten();
        let bound = run.flow_bounds.get(n).copied().unwrap_or(0);
        let summary = FlowSummary {
            time_s: seconds(t.time_to_solution(delivered)),
            lower_bound_s: seconds(bound),
            released_s: seconds(t.released.saturating_sub(t.submitted)),
            jobs: t.done,
            not_done: t.not_done,
            queue_s: seconds(t.queue),
            run_s: seconds(t.run),
            io_s: seconds(t.io),
            compute_s: seconds(t.run.saturating_sub(t.io)),
            node_s: seconds(t.node_time),
        };
        (flow.name.clone(), summary)
    });
    summary.collect()
}

fn jobs(result: &SiteResult, belongs: impl Fn(usize) -> bool) -> JobsSummary {
    let (mut summary, mut waits, mut slow_downs) = (JobsSummary::default(), vec![], vec![]);
    let of_kind = result.jobs.iter().enumerate();
    for (_, job) in of_kind.filter(|(n, _)| belongs(*n)) {
        if job.fate != Fate::Done {
            summary.not_done += 1;
            continue;
        }
        summary.done += 1;
        summary.retries += u64::from(job.attempts.saturating_sub(1));
        waits.push(seconds(job.wait()));
        slow_downs.push(job.bounded_slow_down());
    }
    summary.wait_s = SiteDistribution::of(waits);
    summary.bounded_slowdown = SiteDistribution::of(slow_downs);
    summary
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u64), |(sum, n), v| (sum + v, n + 1));
    sum / (count as f64).max(1.0)
}

impl SiteDistribution {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let rank = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1);
            values.get(rank - 1).copied().unwrap_or(0.0)
        };
        Self {
            mean: mean(values.iter().copied()),
            p50: rank(50),
            p90: rank(90),
            p99: rank(99),
            max: rank(100),
        }
    }
}

fn refused(run: &SiteRun<'_>) -> Vec<RefusedJob> {
    let first = run.result.refused.iter().take(MAX_REFUSED);
    let named = first.map(|r| RefusedJob {
        job: job_name(run.workload, r.job),
        workflow: flow_name(run.workload, r.job),
        lacks: r.lacks.is_some(),
        why: r.lacks.as_deref().unwrap_or(GIVEN_UP).to_owned(),
    });
    named.collect()
}

fn skipped(s: &Skipped) -> SkippedLines {
    SkippedLines {
        file: s.file.clone(),
        why: s.why.clone(),
        count: s.count,
        first_line: s.first_line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        let of =
            |values: &[u32]| SiteDistribution::of(values.iter().map(|v| f64::from(*v)).collect());
        assert_eq!(of(&[]), SiteDistribution::default());
        let hundred: Vec<u32> = (1..=100).rev().collect();
        let d = of(&hundred);
        assert_eq!(
            (d.mean, d.p50, d.p90, d.p99, d.max),
            (50.5, 50.0, 90.0, 99.0, 100.0)
        );
        assert_eq!(of(&[7]).p99, 7.0);
        assert_eq!((of(&[1, 3]).p50, of(&[1, 3]).p90), (1.0, 3.0));
    }
}
