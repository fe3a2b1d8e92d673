//! The results of a simulated site: facts, as the world records them. Waits, slow-downs, means and percentiles are computed from
//! them (`tarn-report`).

use super::action::MoveId;
use super::job::{FlowId, ItemId, JobId};
use crate::id::NodeId;
use crate::units::{Nanos, SECOND, Time};
use serde::{Deserialize, Serialize};

/// Spans that are kept for charts; of more, the first. A browser draws as many, and they take some megabytes.
pub const MAX_SPANS: usize = 200_000;

/// Jobs shorter than this count as so long in the bounded slow-down (Feitelson and Rudolph 1998).
pub const SLOW_DOWN_THRESHOLD: Nanos = 10 * SECOND;

/// All that was recorded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SiteResult {
    /// By [`JobId`], all of the workload.
    pub jobs: Vec<JobResult>,
    /// By [`FlowId`]: when the last of its kept items was in the external store; `None` where none came there.
    pub delivered: Vec<Option<Time>>,
    /// When the last job had released its nodes and the last kept item was in the external store.
    pub end: Time,
    /// Bytes by the way they took.
    pub bytes: BytesByWay,
    /// By node: the most bytes that its tiers held at once, space for moves under way included.
    pub tier_peaks: Vec<u64>,
    /// The most bytes that all tiers together held at once.
    pub tier_peak_all: u64,
    /// Reboots into another memory mode that were begun.
    pub mode_changes: u64,
    /// Joules that all nodes drew from time 0 to `end`.
    pub energy: f64,
    /// Events that the planner got.
    pub events: u64,
    /// Jobs that were taken out, in the order in which that happened.
    pub refused: Vec<UnrunnableJob>,
    /// For charts, in the order in which they ended; empty unless requested. At most [`MAX_SPANS`].
    pub spans: Vec<Span>,
    /// Spans that were not kept because there were too many.
    pub spans_left_out: u64,
}

/// Bytes by the way they took. Moves that failed or were cancelled count nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BytesByWay {
    /// From the external store.
    pub external_in: u64,
    /// To the external store.
    pub external_out: u64,
    /// Between nodes.
    pub peer: u64,
    /// Inputs that were stored on the job's nodes and were not moved for it.
    pub retained: u64,
}

/// The result of a job. Times are 0 where it did not come so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobResult {
    /// When it was submitted.
    pub submitted: Time,
    /// When all that it waits for had ended: its submission, the end of the jobs it comes after and of the producers of
    /// its inputs.
    pub ready: Time,
    /// When it got its nodes, the last time.
    pub begun: Time,
    /// When it gave them back, the last time.
    pub released: Time,
    /// How long it held them, over all attempts.
    pub held: Nanos,
    /// Of the last time it held its nodes: how long direct moves for it were under way (at least one), and how long its
    /// program read and wrote the tiers.
    pub io: Nanos,
    /// Nodes times the time for which nobody else could have them, over all attempts; of a job that shares its nodes, times its
    /// share of their cores. Node time of a batch script beyond a job that continues it counts for the first job.
    pub node_time: Nanos,
    /// Times it got nodes.
    pub attempts: u32,
    /// Its end.
    pub fate: Fate,
}

/// The end of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// It did not, or was never submitted.
    #[default]
    Open,
    /// It succeeded and released its nodes.
    Done,
    /// It was refused, or failed too often, or waits for one that did.
    TakenOut,
}

/// A job that was taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnrunnableJob {
    /// The job.
    pub job: JobId,
    /// The resource that lacks; `None` of a job that failed as often as it may.
    pub lacks: Option<String>,
}

/// Something that took time, for charts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The activity.
    pub what: SpanOf,
    /// The nodes: ranges of node numbers, first and one past the last, in ascending order; empty for no node.
    pub nodes: Vec<(u32, u32)>,
    /// From.
    pub begin: Time,
    /// Until.
    pub end: Time,
}

/// The activity of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanOf {
    /// A job holds its nodes: from `Allocate` to `Release`, or to the loss of one.
    Held(JobId),
    /// Direct moves towards its nodes, before it runs.
    StageIn(JobId),
    /// Its program runs.
    Run(JobId),
    /// It holds its nodes while its program does not run: it is started, waits for its data there, or is ended by its host.
    Idle(JobId),
    /// Direct moves away from its nodes, after it ran.
    StageOut(JobId),
    /// A move that is not direct: on the nodes it goes to, or leaves from if it goes outside.
    Moving {
        /// The move.
        id: MoveId,
        /// The item.
        item: ItemId,
        /// The direction.
        way: MoveDirection,
    },
    /// A node reboots into another memory mode.
    Reboot,
    /// A node sleeps, or wakes up.
    Asleep,
    /// A node is lost.
    Lost,
}

/// The way of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveDirection {
    /// From the external store to nodes.
    In,
    /// From nodes to the external store.
    Out,
    /// Between nodes.
    Peer,
}

impl JobResult {
    /// The wait of a finished job, from when it could have begun until it did, failed attempts included.
    pub fn wait(&self) -> Nanos {
        self.begun.saturating_sub(self.ready)
    }

    /// How long it held its nodes the last time.
    pub fn run(&self) -> Nanos {
        self.released.saturating_sub(self.begun)
    }

    /// (wait + run) / max(run, 10 s), at least 1 (Feitelson and Rudolph 1998).
    pub fn bounded_slow_down(&self) -> f64 {
        let longest = self.run().max(SLOW_DOWN_THRESHOLD) as f64;
        ((self.wait() as f64 + self.run() as f64) / longest).max(1.0)
    }
}

/// Ascending ranges of node numbers, first and one past the last.
pub fn ranges(nodes: &[NodeId]) -> Vec<(u32, u32)> {
    let mut numbers: Vec<u32> = nodes.iter().map(|n| n.0).collect();
    numbers.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, end)) if *end >= number => *end = number.saturating_add(1),
            _ => ranges.push((number, number.saturating_add(1))),
        }
    }
    ranges
}

/// The results of a workflow's jobs, as its sums: of a simulated site, and of a real one from its accounting
/// ([`super::accounted`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTotals {
    /// Jobs that are done.
    pub done: u64,
    /// Jobs that were taken out or did not end.
    pub not_done: u64,
    /// Submission of its first job; [`Time::MAX`] before any was added.
    pub submitted: Time,
    /// Release of its last job.
    pub released: Time,
    /// Sum of waits: T_queue of Weiland's equations 1 and 4.
    pub queue: Nanos,
    /// Sum of run times: T_run of equations 1 and 4.
    pub run: Nanos,
    /// Node-time: R_all of equations 2 and 3.
    pub node_time: Nanos,
    /// Sum of reading and writing: T_I/O of equation 5. T_compute is `run` less this.
    pub io: Nanos,
}

impl SiteResult {
    /// The sums of each workflow, by [`FlowId`]; `flow_of` returns the one of a job.
    pub fn flow_totals(&self, flow_of: impl Fn(JobId) -> Option<FlowId>) -> Vec<FlowTotals> {
        let mut all = vec![FlowTotals::default(); self.delivered.len()];
        for (number, job) in (0u32..).zip(&self.jobs) {
            let flow = flow_of(JobId(number)).and_then(|f| all.get_mut(f.at()));
            if let Some(totals) = flow {
                totals.add(job);
            }
        }
        for totals in &mut all {
            totals.submitted = totals.submitted.min(totals.released);
        }
        all
    }
}

impl Default for FlowTotals {
    fn default() -> Self {
        Self {
            done: 0,
            not_done: 0,
            submitted: Time::MAX,
            released: 0,
            queue: 0,
            run: 0,
            node_time: 0,
            io: 0,
        }
    }
}

impl FlowTotals {
    /// Adds a job.
    pub fn add(&mut self, job: &JobResult) {
        if job.fate != Fate::Open {
            self.submitted = self.submitted.min(job.submitted);
        }
        self.node_time = self.node_time.saturating_add(job.node_time);
        self.released = self.released.max(job.released);
        if job.fate != Fate::Done {
            self.not_done += 1;
            return;
        }
        self.done += 1;
        self.queue = self.queue.saturating_add(job.wait());
        self.run = self.run.saturating_add(job.run());
        self.io = self.io.saturating_add(job.io);
    }

    /// T_all: from the submission of its first job to the release of its last, or to when its results were delivered.
    pub fn time_to_solution(&self, delivered: Option<Time>) -> Nanos {
        let end = delivered.unwrap_or(0).max(self.released);
        end.saturating_sub(self.submitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(ready: u64, begun: u64, released: u64) -> JobResult {
        JobResult {
            submitted: 0,
            ready: ready * SECOND,
            begun: begun * SECOND,
            released: released * SECOND,
            io: SECOND,
            node_time: 2 * (released - begun) * SECOND,
            fate: Fate::Done,
            ..JobResult::default()
        }
    }

    #[test]
    fn slow_downs_are_bounded() {
        assert_eq!(job(0, 90, 100).bounded_slow_down(), 10.0);
        assert_eq!(job(0, 9, 10).bounded_slow_down(), 1.0);
        assert_eq!(job(5, 25, 45).bounded_slow_down(), 2.0);
        assert_eq!(job(5, 25, 45).wait(), 20 * SECOND);
    }

    #[test]
    fn neighbours_make_one_range() {
        let nodes: Vec<NodeId> = [7, 3, 4, 9, 8, u32::MAX].map(NodeId).to_vec();
        assert_eq!(
            ranges(&nodes),
            [(3, 5), (7, 10), (u32::MAX, u32::MAX)],
            "the end saturates"
        );
    }

    #[test]
    fn a_workflow_is_the_sum_of_its_jobs() {
        let refused = JobResult {
            fate: Fate::TakenOut,
            submitted: SECOND,
            ..JobResult::default()
        };
        let result = SiteResult {
            jobs: vec![job(0, 10, 30), job(30, 31, 41), refused, job(0, 0, 99)],
            delivered: vec![None],
            ..SiteResult::default()
        };
        let totals = result.flow_totals(|j| (j.0 < 3).then_some(FlowId(0)));
        let expected = FlowTotals {
            done: 2,
            not_done: 1,
            submitted: 0,
            released: 41 * SECOND,
            queue: 11 * SECOND,
            run: 30 * SECOND,
            node_time: 60 * SECOND,
            io: 2 * SECOND,
        };
        assert_eq!(totals, [expected]);
    }
}
