//! Planned against real begins: the first plan for a job against what Slurm did.

use crate::difference::JobTransition;
use crate::jobs::{JobTable, KnownStage};
use crate::planned::SitePlan;
use crate::topology::ClusterTopology;
use crate::wanted::WantedJob;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tarn_types::units::{Nanos, Time};

/// Begins of which the errors are kept: the newest.
const MAX_ERRORS: usize = 10_000;

/// How well begins were planned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanAccuracy {
    /// Jobs that were planned while they waited, and have begun.
    pub jobs: u64,
    /// Of these, those that began on just the nodes that were planned.
    pub on_planned_nodes: u64,
    /// The median of the time between the planned and the real begin, of the newest 10,000.
    pub median_error: Option<Nanos>,
}

/// The first plans of jobs that wait, and the errors of those that have begun.
#[derive(Debug, Clone, Default)]
pub(crate) struct BeginRecords {
    first: BTreeMap<u32, (Time, BTreeSet<String>)>,
    errors: VecDeque<Nanos>,
    jobs: u64,
    on_planned_nodes: u64,
}

impl BeginRecords {
    pub(crate) fn note_plan(&mut self, plan: &SitePlan) {
        for job in plan.jobs.iter().filter(|job| !job.has_begun) {
            let first = self.first.entry(job.job);
            first.or_insert_with(|| (job.begin, job.nodes.iter().cloned().collect()));
        }
    }

    pub(crate) fn note(
        &mut self,
        change: &JobTransition,
        jobs: &JobTable,
        topology: &ClusterTopology,
    ) {
        if change.ended.is_some() {
            return;
        }
        let Some((planned, nodes)) = self.first.remove(&change.job) else {
            return;
        };
        self.jobs += 1;
        if self.errors.len() == MAX_ERRORS {
            self.errors.pop_front();
        }
        self.errors.push_back(planned.abs_diff(change.began));
        if let Some(KnownStage::Has { nodes: has, .. }) =
            jobs.jobs.get(&change.job).map(|j| &j.stage)
        {
            let has: BTreeSet<&str> = has.iter().map(|n| topology.name(*n)).collect();
            self.on_planned_nodes += u64::from(nodes.iter().map(|n| &n[..]).eq(has));
        }
    }

    /// Forgets jobs that are gone.
    pub(crate) fn keep_only(&mut self, jobs: &BTreeMap<u32, WantedJob<'_>>) {
        self.first.retain(|number, _| jobs.contains_key(number));
    }

    pub(crate) fn accuracy(&self) -> PlanAccuracy {
        let mut errors: Vec<Nanos> = self.errors.iter().copied().collect();
        errors.sort_unstable();
        PlanAccuracy {
            jobs: self.jobs,
            on_planned_nodes: self.on_planned_nodes,
            median_error: errors.get(errors.len() / 2).copied(),
        }
    }
}
