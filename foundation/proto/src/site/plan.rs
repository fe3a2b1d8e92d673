//! The plan of a site's jobs, for people.

use super::{SlurmJobId, Uid};
use serde::{Deserialize, Serialize};
use tarn_types::units::{Nanos, Time};

/// Jobs in one reply.
pub const MAX_PLAN_JOBS: usize = 20_000;
/// Names of nodes in one reply, those of all its jobs together.
pub const MAX_PLAN_NODES: usize = 400_000;

/// The plan. Users see their own jobs whole, and of others' the numbers, nodes and times.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanInfo {
    /// The state of the planning.
    pub status: PlanStatusInfo,
    /// How far the plan reaches.
    pub until: Time,
    /// All nodes, in the order of the plan.
    pub nodes: Vec<String>,
    /// The jobs that have nodes, and those that are expected to get some, by their begin.
    pub jobs: Vec<PlannedJobInfo>,
    /// The asker's jobs that wait and have no place in the plan, with the reason.
    pub unplanned: Vec<(SlurmJobId, String)>,
    /// How many more jobs wait without a place: others'.
    pub others_unplanned: u32,
    /// Jobs that this reply leaves out, as it would be too long.
    pub left_out: u32,
}

/// A job with its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedJobInfo {
    /// The job.
    pub job: SlurmJobId,
    /// Its user; `None` of another user's.
    pub user: Option<Uid>,
    /// The workflow of its data lines; `None` of another user's.
    pub workflow: Option<String>,
    /// Its nodes: positions in [`PlanInfo::nodes`].
    pub nodes: Vec<u32>,
    /// Whether it has them.
    pub has_begun: bool,
    /// When it gets them, or got them: nanoseconds since 1970.
    pub begin: Time,
    /// When it is expected to give them back.
    pub end: Time,
    /// Why there and then; empty of another user's, and of one that has begun.
    pub why: String,
}

/// The state of the planning.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStatusInfo {
    /// `observe` or `advise`.
    pub mode: String,
    /// The policy.
    pub policy: String,
    /// When the newest plan was made: nanoseconds since 1970; 0 before the first.
    pub made: Time,
    /// How old it is.
    pub age: Nanos,
    /// How long making it took.
    pub took: Nanos,
    /// Jobs in it that wait.
    pub waiting: u32,
    /// Jobs that were planned while they waited, and have begun since the controller started.
    pub begun: u64,
    /// Of these, those that began on just the planned nodes.
    pub on_planned_nodes: u64,
    /// The median time between the first planned and the real begin.
    pub median_error: Option<Nanos>,
}
