//! Slurm's accounting: jobs that have ended, and as far as it has them those that have not, attempt by attempt.
//!
//! [`AccountingSource::find`] chooses what the site has: slurmdbd (`sacct`), the text file of `jobcomp/filetxt`, or neither. What
//! slurmctld still knows (`squeue`) is added to the latter two. docs/internals/site.md, "Accounting".

mod jobcomp;
mod queue;
mod read;
mod sacct;

pub use read::{AccountingQuery, AccountingSource, node_processors};

use crate::snapshot::hostlist::NodeLists;
use crate::snapshot::values;
use std::collections::BTreeMap;
use tarn_types::site::{AccountedJob, AccountedState};

/// Attempts of jobs that one reading keeps; of more, the latest.
pub const MAX_ACCOUNTED: usize = 1_000_000;

/// The result of a reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountingAnswer {
    /// The attempts of jobs, in the order in which they were written.
    pub jobs: Vec<AccountedJob>,
    /// Records that are cut, or that tarn cannot read.
    pub unreadable: u64,
}

impl AccountingAnswer {
    /// Reads what `sacct -n -P -X -D -o ...` wrote, with tarn's fields and times as seconds since 1970.
    ///
    /// ```
    /// use tarn_slurm::AccountingAnswer;
    ///
    /// let line = b"7|7001|main|normal|COMPLETED|10|11|12|20|2|1|node1|8|1|cpu=8,mem=200M,node=1|cpu=1|resv|7\n";
    /// let answer = AccountingAnswer::from_sacct(line);
    /// assert_eq!((answer.jobs[0].number, answer.jobs[0].limit), (7, Some(120)));
    /// assert_eq!(answer.unreadable, 0);
    /// ```
    #[must_use]
    pub fn from_sacct(bytes: &[u8]) -> Self {
        sacct::read(bytes)
    }

    /// Reads the lines of `jobcomp/filetxt`, whose times are in the time zone of this machine. A line that was cut at the
    /// beginning or the end is one that cannot be read.
    #[must_use]
    pub fn from_jobcomp(bytes: &[u8]) -> Self {
        jobcomp::read(bytes, &jiff::tz::TimeZone::system())
    }

    /// Adds the jobs that slurmctld knows, where an attempt is not in the accounting.
    fn complete(&mut self, known: Self) {
        let key = |job: &AccountedJob| (job.number, job.start.unwrap_or(0));
        let has: BTreeMap<(u32, u64), ()> = self.jobs.iter().map(|j| (key(j), ())).collect();
        let is_over = |job: &AccountedJob| {
            job.end.is_some()
                && job.nodes.is_empty()
                && has
                    .range((job.number, 0)..=(job.number, u64::MAX))
                    .next()
                    .is_some()
        };
        let known_jobs = known.jobs.into_iter();
        let new = known_jobs.filter(|job| !has.contains_key(&key(job)) && !is_over(job));
        self.jobs.extend(new);
        self.unreadable = self.unreadable.saturating_add(known.unreadable);
    }

    /// Keeps the latest, if there are more than tarn takes.
    fn bound(mut self) -> Self {
        let over = self.jobs.len().saturating_sub(MAX_ACCOUNTED);
        self.jobs.drain(..over);
        self
    }
}

/// How a job stands by Slurm's word. A job that waits again after an attempt was put back into the queue.
fn state_of(text: &str, has_ended: bool) -> Option<AccountedState> {
    // `CANCELLED by 7001`.
    let word = text.split_whitespace().next()?;
    Some(match word {
        "PENDING" if has_ended => AccountedState::Requeued,
        "PENDING" => AccountedState::Waiting,
        "REQUEUED" | "REQUEUE_HOLD" | "SPECIAL_EXIT" => AccountedState::Requeued,
        "RUNNING" | "SUSPENDED" | "COMPLETING" | "CONFIGURING" | "RESIZING" | "STAGE_OUT"
        | "SIGNALING" | "STOPPED" => AccountedState::Running,
        "COMPLETED" => AccountedState::Completed,
        "CANCELLED" | "REVOKED" => AccountedState::Cancelled,
        "FAILED" | "TIMEOUT" | "NODE_FAIL" | "PREEMPTED" | "BOOT_FAIL" | "DEADLINE"
        | "OUT_OF_MEMORY" | "LAUNCH_FAILED" => AccountedState::Failed,
        _ => return None,
    })
}

/// GPUs of a list of trackable resources; types of GPUs beside their sum are no more of them.
fn gpus_of(resources: &str) -> u64 {
    let of = |prefix: &str| {
        let counts = resources.split(',').filter_map(|r| {
            let (name, count) = r.trim().split_once('=')?;
            name.starts_with(prefix)
                .then(|| values::number(count))
                .flatten()
        });
        counts.fold(0u64, u64::saturating_add)
    };
    count_of(resources, "gres/gpu=").unwrap_or_else(|| of("gres/gpu:"))
}

/// The processors of a list of trackable resources.
fn cpus_of(resources: &str) -> Option<u64> {
    count_of(resources, "cpu=")
}

/// The nodes of a list of trackable resources.
fn nodes_wanted(resources: &str) -> Option<u64> {
    count_of(resources, "node=")
}

fn count_of(resources: &str, name: &str) -> Option<u64> {
    let count = resources
        .split(',')
        .find_map(|r| r.trim().strip_prefix(name))?;
    values::number(count)
}

/// The nodes of a list; `None` if it is none.
fn nodes_of(lists: &mut NodeLists, text: &str) -> Option<std::sync::Arc<[String]>> {
    let is_none = matches!(text, "None assigned" | "None" | "Unknown");
    lists.names(if is_none { "" } else { text }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_once() {
        assert_eq!(gpus_of("cpu=2,gres/gpu=4,gres/gpu:a100=4,node=1"), 4);
        assert_eq!(gpus_of("gres/gpu:a=1,gres/gpu:b=2"), 3);
        assert_eq!((gpus_of(""), gpus_of("gres/gpu=x")), (0, 0));
        assert_eq!(
            (cpus_of("mem=4M,cpu=12"), cpus_of("mem=4M")),
            (Some(12), None)
        );
    }

    #[test]
    fn states_are_words_of_slurm() {
        use AccountedState as State;
        let states = [
            ("CANCELLED by 7001", true, Some(State::Cancelled)),
            ("PENDING", true, Some(State::Requeued)),
            ("PENDING", false, Some(State::Waiting)),
            ("OUT_OF_MEMORY", true, Some(State::Failed)),
            ("", true, None),
            ("é", true, None),
        ];
        for (text, has_ended, state) in states {
            assert_eq!(state_of(text, has_ended), state, "{text}");
        }
    }

    /// The records of Slurm 22.05 and 24.11 of the same jobs: by `sacct` of slurmdbd, and by jobcomp/filetxt.
    const RECORDED: [(&[u8], &[u8]); 2] = [
        (
            include_bytes!("../tests/recorded/22.05/sacct"),
            include_bytes!("../tests/recorded/22.05/jobcomp"),
        ),
        (
            include_bytes!("../tests/recorded/24.11/sacct"),
            include_bytes!("../tests/recorded/24.11/jobcomp"),
        ),
    ];

    #[test]
    fn both_sources_have_the_same_jobs() {
        for (sacct, file) in RECORDED {
            let sacct = AccountingAnswer::from_sacct(sacct);
            let file = jobcomp::read(file, &jiff::tz::TimeZone::UTC);
            assert_eq!(sacct.unreadable, 0);
            assert_eq!(file.unreadable, 1, "the job whose name looks like fields");
            let mut both = 0;
            for of_file in file.jobs {
                let mut attempts = sacct.jobs.iter();
                let Some(job) =
                    attempts.find(|j| (j.number, j.start) == (of_file.number, of_file.start))
                else {
                    // slurmdbd has no record of a job that was cancelled while it was held.
                    assert!(
                        of_file.eligible.is_none() || of_file.state == AccountedState::Completed
                    );
                    continue;
                };
                both += 1;
                let times = |j: &AccountedJob| (j.submitted, j.eligible, j.start, j.limit);
                assert_eq!(times(job), times(&of_file), "{of_file:?}");
                // Job 11 had ended when it was requeued: slurmdbd has that time as its end.
                let is_longer = of_file.number == 11 && of_file.state == AccountedState::Requeued;
                assert_eq!(job.end > of_file.end, is_longer, "{of_file:?}");
                assert!(job.end >= of_file.end, "{of_file:?}");
                assert_eq!((&job.nodes, job.user), (&of_file.nodes, of_file.user));
                assert_eq!(
                    (job.state, job.is_array_task),
                    (of_file.state, of_file.is_array_task)
                );
                if !job.nodes.is_empty() {
                    let share = |j: &AccountedJob| (j.cpus, j.memory, j.wanted);
                    assert_eq!(share(job), share(&of_file));
                }
            }
            assert!(both >= 16, "{both}");
        }
    }

    #[test]
    fn a_requeued_job_has_two_attempts_in_both() {
        for (sacct, file) in RECORDED {
            let sacct = AccountingAnswer::from_sacct(sacct);
            let file = jobcomp::read(file, &jiff::tz::TimeZone::UTC);
            for answer in [sacct, file] {
                let states: Vec<_> = answer.jobs.iter().filter(|j| j.number == 6).collect();
                let states: Vec<_> = states.iter().map(|j| j.state).collect();
                assert_eq!(
                    states,
                    [AccountedState::Requeued, AccountedState::Completed]
                );
            }
        }
    }

    #[test]
    fn what_slurmctld_knows_completes_the_file() {
        let (_, file) = RECORDED[0];
        let mut answer = jobcomp::read(file, &jiff::tz::TimeZone::UTC);
        let before = answer.jobs.len();
        let mut known = answer.clone();
        let mut waits = known.jobs[0].clone();
        (waits.number, waits.start, waits.end) = (900, None, None);
        (waits.nodes, waits.state) = ([].into(), AccountedState::Waiting);
        known.jobs.push(waits);
        answer.complete(known);
        assert_eq!(
            answer.jobs.len(),
            before + 1,
            "the others are there already"
        );
    }
}
