//! Expected run times: the median of a user's earlier jobs of the same kind.

use std::collections::{BTreeMap, VecDeque};
use tarn_slurm::SlurmJob;

/// Kinds of jobs that are remembered; of more, those that were seen last.
const MAX_KINDS: usize = 16_384;
/// Runs of one kind that count: the newest.
const MAX_RUNS: usize = 32;
/// Seconds that a job without a limit is expected to run if none of its kind was seen.
const UNLIMITED_RUN: u64 = 12 * 3600;
/// The limit of a job that has none, in seconds: a year.
pub(crate) const NO_LIMIT: u64 = 365 * 24 * 3600;

/// The properties that make jobs of one kind: Slurm's snapshot has no names of jobs, which are texts of users.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobKind {
    user: u32,
    account: String,
    partitions: Vec<String>,
    nodes: u32,
    cpus: u32,
    limit: Option<u64>,
    /// Of a job with data lines: its workflow, and the datasets that it makes.
    data: Vec<String>,
}

impl JobKind {
    pub(crate) fn of(job: &SlurmJob, data: Vec<String>) -> Self {
        Self {
            user: job.user,
            account: job.account.clone(),
            partitions: job.partitions.clone(),
            nodes: job.min_nodes,
            cpus: job.cpus,
            limit: job.limit,
            data,
        }
    }
}

/// The runs that have been seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunTimes {
    /// Seconds, with the number of the run that was seen last.
    kinds: BTreeMap<JobKind, (u64, VecDeque<u64>)>,
    seen: u64,
}

impl RunTimes {
    pub(crate) fn note(&mut self, kind: JobKind, seconds: u64) {
        self.seen += 1;
        if self.kinds.len() >= MAX_KINDS && !self.kinds.contains_key(&kind) {
            self.forget_half();
        }
        let (last, runs) = self.kinds.entry(kind).or_default();
        *last = self.seen;
        if runs.len() == MAX_RUNS {
            runs.pop_front();
        }
        runs.push_back(seconds);
    }

    fn forget_half(&mut self) {
        let mut last: Vec<u64> = self.kinds.values().map(|(last, _)| *last).collect();
        last.sort_unstable();
        let middle = last[last.len() / 2];
        self.kinds.retain(|_, (last, _)| *last > middle);
    }

    /// Seconds that a job of this kind is expected to run: at most its limit; half of that if none was seen.
    pub(crate) fn expected(&self, kind: &JobKind, limit: u64) -> u64 {
        let Some((_, runs)) = self.kinds.get(kind) else {
            let half = if limit < NO_LIMIT {
                limit / 2
            } else {
                UNLIMITED_RUN
            };
            return half.max(1);
        };
        let mut runs: Vec<u64> = runs.iter().copied().collect();
        runs.sort_unstable();
        let median = runs.get(runs.len() / 2).copied().unwrap_or(limit / 2);
        median.clamp(1, limit.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(user: u32) -> JobKind {
        JobKind {
            user,
            account: String::new(),
            partitions: Vec::new(),
            nodes: 1,
            cpus: 1,
            limit: None,
            data: Vec::new(),
        }
    }

    #[test]
    fn the_median_of_the_newest_runs_counts() {
        let mut runs = RunTimes::default();
        assert_eq!(runs.expected(&kind(1), 600), 300);
        for seconds in [10, 500, 20] {
            runs.note(kind(1), seconds);
        }
        assert_eq!(runs.expected(&kind(1), 600), 20);
        assert_eq!(runs.expected(&kind(1), 15), 15, "at most its limit");
        assert_eq!(
            runs.expected(&kind(2), 600),
            300,
            "another user's do not count"
        );
        for _ in 0..MAX_RUNS {
            runs.note(kind(1), 50);
        }
        assert_eq!(runs.expected(&kind(1), 600), 50);
    }

    #[test]
    fn the_kinds_are_bounded() {
        let mut runs = RunTimes::default();
        for user in 0..3 * MAX_KINDS as u32 {
            runs.note(kind(user), 7);
            assert!(runs.kinds.len() <= MAX_KINDS);
        }
        let last = 3 * MAX_KINDS as u32 - 1;
        assert_eq!(runs.expected(&kind(last), 600), 7);
    }
}
