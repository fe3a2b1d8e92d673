//! Slurm's jobs as the planner knows them. Slurm's numbers reach 67 million; the planner's are positions in a table.

use crate::runtimes::JobKind;
use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_site::PlanningJob;
use tarn_slurm::NodeNames;
use tarn_types::id::NodeId;
use tarn_types::site::{Job, JobId, NodeShare};
use tarn_types::units::Time;

/// A job that the planner was told of.
#[derive(Debug, Clone)]
pub(crate) struct KnownJob {
    /// Its numbers: one, or of a job on nodes of several islands one for each.
    pub(crate) ids: Vec<JobId>,
    pub(crate) spec: Arc<Job>,
    pub(crate) kind: JobKind,
    /// Its data lines.
    pub(crate) data: Option<PlanningJob>,
    /// The names of the nodes that it has.
    pub(crate) names: NodeNames,
    pub(crate) stage: KnownStage,
}

/// How far it is, as the planner knows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum KnownStage {
    Waits,
    /// The planner refused it, and why.
    Refused(String),
    Has {
        nodes: Vec<NodeId>,
        share: NodeShare,
        since: Time,
    },
}

/// All of them, by Slurm's numbers.
#[derive(Debug, Default)]
pub(crate) struct JobTable {
    pub(crate) jobs: BTreeMap<u32, KnownJob>,
    by_id: BTreeMap<JobId, u32>,
    next: u32,
}

impl JobTable {
    /// How many numbers were given away.
    pub(crate) fn numbers(&self) -> u32 {
        self.next
    }

    pub(crate) fn give_id(&mut self, number: u32) -> JobId {
        let id = JobId(self.next);
        self.next += 1;
        self.by_id.insert(id, number);
        id
    }

    /// The job's number in Slurm.
    pub(crate) fn number_of(&self, id: JobId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<KnownJob> {
        let job = self.jobs.remove(&number)?;
        for id in &job.ids {
            self.by_id.remove(id);
        }
        Some(job)
    }
}
