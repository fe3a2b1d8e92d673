//! The data of the page's chart of a run: boxes over nodes and time, as compact rows, times in microseconds from the
//! first submission.

use super::summary::{SiteRun, job_name};
use crate::html::text::micros;
use serde::Serialize;
use std::collections::BTreeMap;
use tarn_types::site::{Fate, ItemId, JobId, Span, SpanOf, Workload};
use tarn_types::units::Time;

/// The most boxes of jobs with their phases that are drawn, and of the moves beside them: a browser shows as many without
/// effort. If there are more, none of that kind are drawn; for jobs, the curve of used nodes remains.
pub(super) const MAX_BOXES: usize = 20_000;
/// Nodes that are drawn one by one.
pub(super) const MAX_NODES: u32 = 512;
/// Jobs that are named beside an item that they write, or read.
const MAX_USERS: usize = 3;
/// Slices of time of the curve of nodes in use.
const SLICES: usize = 600;

/// The chart of one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chart {
    policy: String,
    end: u64,
    /// Names of jobs and data, as boxes refer to them.
    names: Vec<String>,
    /// `[name, workflow or -1, first node, one past the last, begin, end, whether it shares its nodes, its number]`
    boxes: Vec<[i64; 8]>,
    /// Of a job itself: `[first node, one past the last, begin, end, name, class]`: 0 reads, 1 writes, 2 its program does not run.
    phases: Vec<[i64; 6]>,
    /// Moves beside the jobs, as `phases`, the name that of the data, with the class: 0 from outside, 1 to outside, 2 between nodes.
    moves: Vec<[i64; 6]>,
    /// Nodes that cannot be used, as `phases`: 0 reboots, 1 sleeps, 2 is lost; no name.
    off: Vec<[i64; 6]>,
    /// By slice of time: nodes in use by ordinary jobs and by workflows, in thousandths of all nodes.
    used: Vec<[u32; 2]>,
}

impl Chart {
    /// The chart of a run.
    pub fn of(run: &SiteRun<'_>) -> Self {
        let result = run.result;
        let submitted = result.jobs.iter().filter(|j| j.fate != Fate::Open);
        let start = submitted.map(|j| j.submitted).min().unwrap_or(0);
        let mut chart = Self {
            policy: run.policy.to_owned(),
            end: micros(result.end.saturating_sub(start)),
            names: Vec::new(),
            boxes: Vec::new(),
            phases: Vec::new(),
            moves: Vec::new(),
            off: Vec::new(),
            used: used(run, start),
        };
        if result.spans_left_out > 0 || run.machine.nodes() > MAX_NODES {
            return chart;
        }
        let count = |jobs: bool| {
            let of_kind = result.spans.iter().filter(|s| is_of_job(s) == jobs);
            let of_kind = of_kind.filter(|s| !matches!(s.what, SpanOf::Run(_)));
            of_kind.map(|s| s.nodes.len()).sum::<usize>()
        };
        let drawn = [false, true].map(|jobs| count(jobs) <= MAX_BOXES);
        let mut names = ChartNames {
            known: BTreeMap::new(),
            users: users(run.workload),
        };
        for span in &result.spans {
            if drawn[usize::from(is_of_job(span))] {
                chart.draw(run, span, start, &mut names);
            }
        }
        chart
    }

    /// The name of the policy.
    pub(super) fn policy(&self) -> &str {
        &self.policy
    }

    /// When all has ended, in microseconds.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// How many boxes of jobs are drawn: none where only the use of nodes is.
    pub(super) fn boxes(&self) -> usize {
        self.boxes.len()
    }

    /// Whether jobs are drawn, not only the use of nodes.
    pub(super) fn has_boxes(&self) -> bool {
        !self.boxes.is_empty()
    }

    fn draw(&mut self, run: &SiteRun<'_>, span: &Span, start: Time, names: &mut ChartNames) {
        let known = &mut self.names;
        let mut name = |of: ChartSubject| names.of(of, run.workload, known);
        let job = |id: JobId| run.workload.jobs.get(id.at());
        let time = |t: Time| i64::try_from(micros(t.saturating_sub(start))).unwrap_or(i64::MAX);
        let (begin, end) = (time(span.begin), time(span.end));
        for (first, last) in &span.nodes {
            let (first, last) = (i64::from(*first), i64::from(*last));
            let row = |name: i64, class: i64| [first, last, begin, end, name, class];
            match span.what {
                SpanOf::Held(id) => {
                    let flow = job(id)
                        .and_then(|j| j.job.flow)
                        .map_or(-1, |f| i64::from(f.0));
                    let shares = i64::from(job(id).is_some_and(|j| j.job.cores > 0));
                    let number = i64::from(id.0);
                    let named = name(ChartSubject::Job(id));
                    self.boxes
                        .push([named, flow, first, last, begin, end, shares, number]);
                }
                SpanOf::StageIn(id) => self.phases.push(row(name(ChartSubject::Job(id)), 0)),
                SpanOf::StageOut(id) => self.phases.push(row(name(ChartSubject::Job(id)), 1)),
                SpanOf::Idle(id) => self.phases.push(row(name(ChartSubject::Job(id)), 2)),
                SpanOf::Run(_) => {}
                SpanOf::Moving { item, way, .. } => {
                    self.moves
                        .push(row(name(ChartSubject::Item(item)), way as i64));
                }
                SpanOf::Reboot => self.off.push(row(-1, 0)),
                SpanOf::Asleep => self.off.push(row(-1, 1)),
                SpanOf::Lost => self.off.push(row(-1, 2)),
            }
        }
    }
}

/// A named object in a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ChartSubject {
    Job(JobId),
    Item(ItemId),
}

/// Positions of names in the chart's list.
struct ChartNames {
    known: BTreeMap<ChartSubject, i64>,
    /// Of items, the first jobs that write and that read them.
    users: BTreeMap<ItemId, [Vec<JobId>; 2]>,
}

impl ChartNames {
    fn of(&mut self, of: ChartSubject, workload: &Workload, list: &mut Vec<String>) -> i64 {
        let users = &self.users;
        *self.known.entry(of).or_insert_with(|| {
            list.push(match of {
                ChartSubject::Job(job) => job_name(workload, job),
                ChartSubject::Item(item) => item_name(workload, item, users.get(&item)),
            });
            list.len() as i64 - 1
        })
    }
}

/// Data by their name, and the jobs that they are of.
fn item_name(workload: &Workload, item: ItemId, users: Option<&[Vec<JobId>; 2]>) -> String {
    let name = workload.items.get(item.at()).map(|i| &*i.name);
    let mut text = match name {
        None | Some("") => format!("data {item}"),
        Some(name) => name.to_owned(),
    };
    for (jobs, does) in users.into_iter().flatten().zip(["written", "read"]) {
        if !jobs.is_empty() {
            let names: Vec<String> = jobs.iter().map(|j| job_name(workload, *j)).collect();
            text += &format!(", {does} by {}", names.join(", "));
        }
    }
    text
}

/// The first jobs that write, and that read, each item.
fn users(workload: &Workload) -> BTreeMap<ItemId, [Vec<JobId>; 2]> {
    let mut users: BTreeMap<ItemId, [Vec<JobId>; 2]> = BTreeMap::new();
    for (number, work) in (0..).zip(&workload.jobs) {
        let written = work.job.writes.iter().map(|item| (*item, 0));
        let read = work.job.reads.iter().map(|input| (input.item, 1));
        for (item, does) in written.chain(read) {
            let jobs = &mut users.entry(item).or_default()[does];
            if jobs.len() < MAX_USERS {
                jobs.push(JobId(number));
            }
        }
    }
    users
}

/// Whether a span is a job on its nodes, or one of its phases there.
fn is_of_job(span: &Span) -> bool {
    use SpanOf::{Held, Idle, Run, StageIn, StageOut};
    matches!(
        span.what,
        Held(_) | StageIn(_) | Run(_) | Idle(_) | StageOut(_)
    )
}

/// Nodes in use over time, by slices of equal length: each has the mean.
fn used(run: &SiteRun<'_>, start: Time) -> Vec<[u32; 2]> {
    let end = run.result.end.saturating_sub(start);
    let slice = (end / SLICES as u64 + 1).max(1);
    let all = f64::from(run.machine.nodes().max(1)) * slice as f64;
    let mut sums = vec![[0f64; 2]; SLICES];
    for (work, job) in run.workload.jobs.iter().zip(&run.result.jobs) {
        if job.fate != Fate::Done || job.held == 0 {
            continue;
        }
        let nodes = job.node_time as f64 / job.held as f64;
        let kind = usize::from(work.job.flow.is_some());
        let (from, to) = (
            job.begun.saturating_sub(start),
            job.released.saturating_sub(start),
        );
        let touched = from / slice..=to.saturating_sub(1).max(from) / slice;
        for n in touched {
            let (begin, end) = (n * slice, (n + 1) * slice);
            let within = to.min(end).saturating_sub(from.max(begin));
            if let Some(sum) = sums.get_mut(n as usize) {
                sum[kind] += nodes * within as f64;
            }
        }
    }
    let thousandths = |sum: f64| (sum / all * 1000.0).round() as u32;
    sums.iter().map(|s| s.map(thousandths)).collect()
}
