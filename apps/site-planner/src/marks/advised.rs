//! The nodes that are reserved for each waiting job, for the site service: it brings the job's data there.

use super::{Marks, ReservationWish, WorkflowKey};
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::units::{Nanos, SECOND, Time};

/// Between two changes of the nodes of one job: what was begun for the former ones is lost.
const SETTLES: Nanos = 2 * SECOND;
/// Changes in one step.
const MAX_CHANGES: usize = 64;

/// A waiting job has these nodes reserved from now on; none: it has none any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedFor {
    /// Its number.
    pub job: u32,
    /// As many as it asks for.
    pub nodes: Vec<String>,
}

/// The reservations, as the site service knows them.
#[derive(Debug, Clone, Default)]
pub(super) struct AdvisedJobs {
    /// The jobs of each workflow that is wished for, with the nodes that they are to have.
    wished: BTreeMap<WorkflowKey, BTreeMap<u32, BTreeSet<String>>>,
    /// Those that were passed on, and when.
    known: BTreeMap<u32, (BTreeSet<String>, Time)>,
}

impl Marks {
    /// Notes for which jobs the reservations of a step are.
    pub(super) fn note_wished(&mut self, wanted: &BTreeMap<WorkflowKey, &ReservationWish>) {
        for (workflow, wish) in wanted {
            let jobs = wish.jobs.iter();
            let jobs = jobs.map(|join| (join.job, join.nodes.clone())).collect();
            self.advised.wished.insert(workflow.clone(), jobs);
        }
        let (marks, wished) = (&self.marks, &mut self.advised.wished);
        let has_mark = |key: &WorkflowKey| marks.values().any(|mark| mark.workflow == *key);
        wished.retain(|key, _| wanted.contains_key(key) || has_mark(key));
    }

    /// The jobs whose reserved nodes have changed since the last call. To be called after the calls of each step.
    pub fn newly_reserved(&mut self, now: Time) -> Vec<ReservedFor> {
        let mut reserved: BTreeMap<u32, &BTreeSet<String>> = BTreeMap::new();
        let mut changing = BTreeSet::new();
        for mark in self.marks.values().filter(|mark| !mark.is_cancelled) {
            let wished = self.advised.wished.get(&mark.workflow);
            for (job, nodes) in wished.into_iter().flatten() {
                if mark.unwanted.is_none() && nodes.is_subset(&mark.nodes) {
                    reserved.insert(*job, nodes);
                } else {
                    // Until Slurm has changed the reservation, or it is given up, the former ones hold.
                    changing.insert(*job);
                }
            }
        }
        let known = &mut self.advised.known;
        let has_ended = |job: &&u32| !reserved.contains_key(job) && !changing.contains(job);
        let ended = known.keys().filter(has_ended);
        let mut changes: BTreeMap<u32, BTreeSet<String>> =
            ended.map(|job| (*job, BTreeSet::new())).collect();
        for (job, nodes) in reserved {
            let is_due = known
                .get(&job)
                .is_none_or(|(before, at)| before != nodes && now.saturating_sub(*at) >= SETTLES);
            if is_due {
                changes.insert(job, nodes.clone());
            }
        }
        let mut all = Vec::new();
        for (job, nodes) in changes.into_iter().take(MAX_CHANGES) {
            let names = nodes.iter().cloned().collect();
            match nodes.is_empty() {
                true => known.remove(&job),
                false => known.insert(job, (nodes, now)),
            };
            all.push(ReservedFor { job, nodes: names });
        }
        all
    }
}
