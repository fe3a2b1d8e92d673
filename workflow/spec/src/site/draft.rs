//! A workflow before it is submitted: its jobs and items are numbered from 0.

use crate::diag::quoted;
use crate::section::shorten;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tarn_types::site::{Job, JobId, Spread, WorkItem};
use tarn_types::units::{Nanos, SECOND};

/// Users request twice the time that they expect to need; `tarn plan` reads a `time` the same way.
pub(crate) const LIMIT_FACTOR: u64 = 2;
/// The longest time in a workload, some thirty years: sums of times fit into 64 bits.
pub(crate) const MAX_TIME: Nanos = 1_000_000_000 * SECOND;
/// The shortest time limit of a job.
pub(crate) const LEAST_LIMIT: Nanos = SECOND;

/// A workflow.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkflowDraft {
    pub(crate) jobs: Vec<DraftJob>,
    pub(crate) items: Vec<WorkItem>,
}

/// One of its jobs.
#[derive(Debug, Clone)]
pub(crate) struct DraftJob {
    pub(crate) name: Box<str>,
    pub(crate) job: Job,
    /// How long it really runs when no data has to be moved.
    pub(crate) compute: Nanos,
    /// It is submitted at the end of this job instead of when the workflow comes.
    pub(crate) follows: Option<JobId>,
}

/// The limit of a job that is expected to take so long, reading and writing included.
pub(crate) fn usual_limit(takes: Nanos) -> Nanos {
    takes.saturating_mul(LIMIT_FACTOR).max(LEAST_LIMIT)
}

/// One node, whole, nothing else: to be filled in.
pub(crate) fn plain_job(nodes: u32) -> Job {
    Job {
        flow: None,
        nodes,
        cores: 0,
        memory: 0,
        gpus: 0,
        mode: None,
        limit: LEAST_LIMIT,
        expect: 0,
        after: Vec::new(),
        continues: None,
        submitted: None,
        place: None,
        on: None,
        not_before: 0,
        reads: Vec::new(),
        writes: Vec::new(),
    }
}

impl WorkflowDraft {
    /// Bytes that a job reads and writes, all its nodes together.
    pub(crate) fn bytes(&self, job: &Job) -> (u64, u64) {
        let size = |item: usize| self.items.get(item).map_or(0, |i| i.bytes);
        let read = job.reads.iter().map(|r| match r.spread {
            Spread::Share => size(r.item.at()),
            Spread::Whole => size(r.item.at()).saturating_mul(u64::from(job.nodes)),
        });
        let written = job.writes.iter().map(|w| size(w.at()));
        let sum = |total: u64, bytes| total.saturating_add(bytes);
        (read.fold(0, sum), written.fold(0, sum))
    }

    /// The job that writes each item.
    pub(crate) fn writers(&self) -> Vec<Option<usize>> {
        let mut writers = vec![None; self.items.len()];
        for (at, job) in self.jobs.iter().enumerate() {
            for item in &job.job.writes {
                writers[item.at()] = Some(at);
            }
        }
        writers
    }

    /// The jobs for which each job waits: each of those once, in order.
    pub(crate) fn waits_for(&self) -> Vec<Vec<usize>> {
        let writers = self.writers();
        let of = |job: &Job| {
            let data = job.reads.iter().filter_map(|r| writers[r.item.at()]);
            let mut all: Vec<usize> = data.chain(job.after.iter().map(|j| j.at())).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        self.jobs.iter().map(|j| of(&j.job)).collect()
    }

    /// The jobs such that each comes after those for which it waits, else by their positions.
    ///
    /// # Errors
    /// Jobs of which each waits for the next and the last for the first.
    pub(crate) fn order(&self) -> Result<Vec<usize>, Vec<usize>> {
        let waits_for = self.waits_for();
        let mut left: Vec<usize> = waits_for.iter().map(Vec::len).collect();
        let mut next: Vec<Vec<usize>> = vec![Vec::new(); self.jobs.len()];
        for (job, before) in waits_for.iter().enumerate() {
            for other in before {
                next[*other].push(job);
            }
        }
        let ready = (0..left.len()).filter(|job| left[*job] == 0);
        let mut ready: BinaryHeap<Reverse<usize>> = ready.map(Reverse).collect();
        let mut order = Vec::with_capacity(left.len());
        while let Some(Reverse(job)) = ready.pop() {
            order.push(job);
            for other in &next[job] {
                left[*other] -= 1;
                if left[*other] == 0 {
                    ready.push(Reverse(*other));
                }
            }
        }
        match left.iter().position(|n| *n > 0) {
            None => Ok(order),
            Some(start) => Err(circle(&waits_for, &left, start)),
        }
    }
}

/// A circle in words: "`a` waits for `b` waits for `a`".
pub(crate) fn way_round<'n>(circle: &[usize], name: impl Fn(usize) -> &'n str) -> String {
    let names: Vec<String> = circle
        .iter()
        .chain(circle.first())
        .map(|at| quoted(name(*at)))
        .collect();
    shorten(&names.join(" waits for "))
}

/// Follows jobs that still wait until one comes again.
fn circle(waits_for: &[Vec<usize>], left: &[usize], start: usize) -> Vec<usize> {
    let mut way: Vec<usize> = Vec::new();
    let mut seen = vec![None; left.len()];
    let mut at = start;
    while seen[at].is_none() {
        seen[at] = Some(way.len());
        way.push(at);
        match waits_for[at].iter().find(|other| left[**other] > 0) {
            Some(other) => at = *other,
            None => return way,
        }
    }
    way.split_off(seen[at].unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(after: &[&[u32]]) -> WorkflowDraft {
        let job = |after: &&[u32]| DraftJob {
            name: "".into(),
            job: Job {
                after: after.iter().map(|j| JobId(*j)).collect(),
                ..plain_job(1)
            },
            compute: 0,
            follows: None,
        };
        WorkflowDraft {
            jobs: after.iter().map(job).collect(),
            items: Vec::new(),
        }
    }

    #[test]
    fn order_and_circles() {
        assert_eq!(draft(&[&[2], &[], &[1]]).order(), Ok(vec![1, 2, 0]));
        assert_eq!(
            draft(&[&[], &[0, 3], &[1], &[2]]).order(),
            Err(vec![1, 3, 2])
        );
        assert_eq!(draft(&[&[0]]).order(), Err(vec![0]));
    }
}
