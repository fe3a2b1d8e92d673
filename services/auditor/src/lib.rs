//! L2: whether jobs with data lines delayed ordinary jobs on a real batch system beyond what was promised.
//!
//! [`audit`] replays an accounting and judges it by the promise of `tarn_types::site::promise`, as the simulator's checker does. It
//! knows nothing of tarn but which jobs had data lines. docs/internals/site.md, "The auditor".
//!
//! An accounting has no priorities. Jobs are compared with those of the same partition and quality of service only, and a job
//! that the batch system itself passed over for a later ordinary one is not judged from then on.

mod account;
mod clock;
mod replay;

pub use clock::BackwardTime;

use std::collections::{BTreeMap, BTreeSet};
use tarn_types::site::AccountedJob;
use tarn_types::site::promise::NodeResources;

/// Delays, and times that run backwards, that a report names; of more it has the number.
pub const MAX_NAMED: usize = 10_000;
/// Seconds by which a later ordinary job may put a waiting one off before the latter counts as passed over: the batch system
/// plans in steps (Slurm: `bf_resolution`, 60 s; limits in minutes; `KillWait`).
pub const PLANNING_STEP: u64 = 300;
/// Seconds for which a job may wait though nodes are free for it, before it counts as waiting for something that the accounting
/// does not show (a licence, a limit of its association, a feature): two rounds of Slurm's schedulers.
pub const SCHEDULING: u64 = 120;
/// The beginning of the names of tarn's own reservations: nodes that such a one keeps are not free for others.
pub const RESERVATION: &str = "tarn_";

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedNode {
    /// Its processors, bytes of memory, GPUs.
    pub resources: NodeResources,
    /// The partitions that it is in.
    pub partitions: BTreeSet<String>,
}

/// The accounting, and what it is judged by.
#[derive(Debug, Clone, Copy)]
pub struct AuditInput<'a> {
    /// The attempts of all jobs, those that have not ended included, as far as they are known.
    pub jobs: &'a [AccountedJob],
    /// The numbers of the jobs with data lines.
    pub data_jobs: &'a BTreeSet<u32>,
    /// The nodes, as the batch system describes them. Of those that are missing, what jobs had on them is taken for all they have.
    pub nodes: &'a BTreeMap<String, AuditedNode>,
    /// Seconds by which a workflow may put an ordinary job off.
    pub bound: u64,
}

/// An ordinary job that was delayed beyond the bound, and a job that got nodes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delay {
    /// The ordinary job.
    pub job: u32,
    /// The job with data lines.
    pub by: u32,
    /// When the latter got nodes. All times are seconds since 1970.
    pub at: u64,
    /// When the ordinary job could have begun without that.
    pub could_begin: u64,
    /// Until when it could be put off.
    pub latest: u64,
    /// When it could begin afterwards by the limits of others; `None`: never.
    pub then: Option<u64>,
    /// When it began; `None`: it had not when the accounting was read, or was cancelled.
    pub began: Option<u64>,
}

/// Ordinary jobs that were not judged, or not to their end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NotCompared {
    /// A job with data lines, of another partition or quality of service, began on nodes of their partition while they waited.
    pub other_queue: u64,
    /// Slurm itself began a later ordinary job that put them off.
    pub passed_over: u64,
    /// They waited though nodes were free for them, so for something else.
    pub waited_for_more: u64,
    /// Their times run backwards, or they waited while the clock was set back.
    pub bad_times: u64,
}

/// The result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Attempts that were replayed.
    pub replayed: u64,
    /// Of these, jobs with data lines.
    pub data_jobs: u64,
    /// Ordinary jobs that had the promise when a later job with data lines began.
    pub judged: u64,
    /// The delays, in the order in which they began; at most [`MAX_NAMED`].
    pub delays: Vec<Delay>,
    /// All of them.
    pub delay_count: u64,
    /// Times that a job with data lines put an ordinary one off too far by the limits, and that did not delay it since others ended early.
    pub without_effect: u64,
    /// Ordinary jobs that waited beyond the promise and the bound, and were put off by no job with data lines.
    pub late: u64,
    /// Ordinary jobs that were not judged.
    pub not_compared: NotCompared,
    /// Times that run backwards; at most [`MAX_NAMED`].
    pub backwards: Vec<BackwardTime>,
    /// All of them.
    pub backward_count: u64,
}

impl AuditReport {
    /// Whether the promise was kept, as far as it could be judged.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.delay_count == 0
    }
}

/// Audits an accounting. Time and memory grow with the attempts, and with jobs with data lines times nodes.
///
/// ```
/// use std::collections::{BTreeMap, BTreeSet};
/// use tarn_auditor::{AuditInput, audit};
///
/// let report = audit(&AuditInput {
///     jobs: &[],
///     data_jobs: &BTreeSet::new(),
///     nodes: &BTreeMap::new(),
///     bound: 600,
/// });
/// assert!(report.is_clean());
/// ```
#[must_use]
pub fn audit(input: &AuditInput<'_>) -> AuditReport {
    let clock = clock::look(input.jobs);
    replay::replay(input, clock)
}
