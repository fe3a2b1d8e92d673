//! A plan as people and other programs get it.

use tarn_types::site::AllocationReason;
use tarn_types::units::{Elapsed, Time};

/// The plan, as of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SitePlan {
    /// When it was made: nanoseconds since 1970.
    pub made: Time,
    /// How far it reaches.
    pub until: Time,
    /// The names of all nodes.
    pub nodes: Vec<String>,
    /// The jobs that have nodes, and those that are expected to get some, by their begin.
    pub jobs: Vec<PlannedJob>,
    /// The jobs that wait and have no place in it.
    pub unplanned: Vec<UnplannedJob>,
}

/// A job with its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedJob {
    /// Its number in Slurm.
    pub job: u32,
    /// Its user.
    pub user: u32,
    /// The workflow of its data lines.
    pub workflow: Option<String>,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// Whether it has them.
    pub has_begun: bool,
    /// When it gets them, or got them.
    pub begin: Time,
    /// When it is expected to give them back.
    pub end: Time,
    /// Why there and then; empty of one that has begun.
    pub why: String,
}

/// A job without a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnplannedJob {
    /// Its number in Slurm.
    pub job: u32,
    /// Its user.
    pub user: u32,
    /// Why.
    pub why: String,
}

/// Why a job gets its nodes, for people.
pub(crate) fn reason_text(why: AllocationReason) -> String {
    match why {
        AllocationReason::First => "it is first in the queue and its nodes are free".to_owned(),
        AllocationReason::Fits => "it fits in before those ahead of it".to_owned(),
        AllocationReason::Backfill => "it delays nobody who is ahead of it".to_owned(),
        AllocationReason::EarliestEnd { data_in, free_in } => format!(
            "it begins first there: its data is there in {}, the nodes are free in {}",
            Elapsed(data_in),
            Elapsed(free_in)
        ),
        AllocationReason::WithData => "its data is there".to_owned(),
        AllocationReason::SameNodes => "the job before it had these nodes".to_owned(),
        AllocationReason::Continues => "it continues in an allocation of its script".to_owned(),
    }
}
