//! The sums of workflows: Weiland 2018, equations 1 to 4. docs/guide/on-a-site.md, "Usage".
//!
//! A *run* of a workflow is what its user calls the workflow: from its first job to its last. Its jobs' times come from Slurm's
//! accounting; a job is summed up once it has left and the accounting has its end.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tarn_proto::site::{SlurmJobId, Uid, WorkflowUsageInfo};
use tarn_types::site::{Fate, FlowTotals, JobResult};
use tarn_types::units::{Nanos, SECOND, Time};

/// Runs that are known, of one user and of all; of more, the oldest that are over are forgotten.
pub(crate) const MAX_RUNS_OF_USER: usize = 1_000;
pub(crate) const MAX_RUNS: usize = 50_000;
/// Numbers of jobs with data lines that are known; of more, the oldest are forgotten.
pub(crate) const MAX_NUMBERS: usize = 200_000;
/// Jobs of which the accounting is wanted at a time.
pub(crate) const MAX_WANTED: usize = 2_000;
/// A workflow that nobody has ended is over when it has had no job for so long.
pub(crate) const RUN_GAP: Nanos = 3600 * SECOND;
/// How long the accounting is asked for a job that has left.
pub(crate) const ACCOUNTING: Nanos = 3600 * SECOND;
/// Seconds: the upper ends of the classes of T_all, of which the last has none.
pub const TIME_CLASSES: [u64; 10] = [
    60, 300, 900, 3_600, 7_200, 14_400, 43_200, 86_400, 259_200, 604_800,
];

/// The sums of all workflows.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct FlowTable {
    /// By user, and by the order of their first jobs.
    runs: BTreeMap<(Uid, u64), WorkflowRun>,
    next: u64,
    /// The last run of each workflow.
    last: BTreeMap<(Uid, String), u64>,
    /// The jobs that are not summed up, and their run.
    members: BTreeMap<SlurmJobId, (Uid, u64)>,
    /// Of these, the jobs that have left, and when.
    left: BTreeMap<SlurmJobId, Time>,
    /// All jobs with data lines, and when they were taken in.
    numbers: BTreeMap<SlurmJobId, Time>,
    /// The numbers of jobs that were taken in since then are all known: since the first of them, or the oldest that is left.
    pub(crate) known_since: Time,
    pub(crate) sums: FlowSums,
}

/// The sums of runs that are over, since the log began: they only grow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSums {
    /// Runs of which all jobs ended well.
    pub complete: u64,
    /// Runs of which some did not, or are not in the accounting.
    pub incomplete: u64,
    /// T_all of complete runs, in nanoseconds.
    pub time: u128,
    /// T_queue of all.
    pub queue: u128,
    /// T_run of all.
    pub run: u128,
    /// R_all of all: nanoseconds of nodes.
    pub node_time: u128,
    /// Complete runs by T_all: up to each of [`TIME_CLASSES`], and above.
    pub classes: [u64; TIME_CLASSES.len() + 1],
    /// Jobs that ended well.
    pub jobs_done: u64,
    /// Jobs that did not.
    pub jobs_not_done: u64,
    /// Jobs of which the accounting had nothing.
    pub jobs_unaccounted: u64,
}

/// A run of a workflow.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct WorkflowRun {
    workflow: String,
    /// When its first job was taken in.
    begun: Time,
    /// When a job was taken in or left last.
    changed: Time,
    /// When the last of its results was outside.
    delivered: Option<Time>,
    /// Its jobs that are not summed up, and when they were taken in.
    jobs: BTreeMap<SlurmJobId, Time>,
    totals: FlowTotals,
    unaccounted: u64,
    is_over: bool,
}

/// A job of which the accounting is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedAccount {
    /// Its number.
    pub job: SlurmJobId,
    /// Its user.
    pub user: Uid,
    /// When it was taken in: attempts that had ended before are of another job with this number.
    pub since: Time,
}

impl FlowTable {
    /// A job is taken in. `has_ended`: no further job of its workflow was expected before it.
    pub(crate) fn join(
        &mut self,
        (user, workflow): (Uid, &str),
        job: SlurmJobId,
        has_ended: bool,
        now: Time,
    ) {
        self.remember(job, now);
        let name = (user, workflow.to_owned());
        let last = self.last.get(&name).map(|number| (user, *number));
        let current = last.filter(|key| {
            self.runs.get(key).is_some_and(|run| {
                let is_late = now.saturating_sub(run.changed) >= RUN_GAP;
                let is_open = run.jobs.keys().any(|job| !self.left.contains_key(job));
                is_open || !(run.is_over || has_ended || is_late)
            })
        });
        let key = current.unwrap_or_else(|| {
            self.next += 1;
            (user, self.next)
        });
        self.last.insert(name, key.1);
        let run = self.runs.entry(key).or_insert_with(|| WorkflowRun {
            workflow: workflow.to_owned(),
            begun: now,
            changed: now,
            delivered: None,
            jobs: BTreeMap::new(),
            totals: FlowTotals::default(),
            unaccounted: 0,
            is_over: false,
        });
        run.changed = now;
        // One that Slurm has put back into its queue keeps its beginning.
        run.jobs.entry(job).or_insert(now);
        self.left.remove(&job);
        if let Some(before) = self.members.insert(job, key)
            && before != key
            && let Some(run) = self.runs.get_mut(&before)
        {
            run.jobs.remove(&job);
        }
    }

    fn remember(&mut self, job: SlurmJobId, now: Time) {
        if self.numbers.is_empty() {
            self.known_since = now;
        }
        self.numbers.insert(job, now);
        if self.numbers.len() <= MAX_NUMBERS {
            return;
        }
        let mut times: Vec<Time> = self.numbers.values().copied().collect();
        let (_, until, _) = times.select_nth_unstable(MAX_NUMBERS / 10);
        self.known_since = *until;
        let until = *until;
        self.numbers.retain(|_, time| *time >= until);
    }

    /// The numbers of jobs with data lines.
    pub(crate) fn numbers(&self) -> Vec<SlurmJobId> {
        self.numbers.keys().copied().collect()
    }

    /// A job has left: its end is in Slurm's accounting, or will be.
    pub(crate) fn leave(&mut self, job: SlurmJobId, now: Time) {
        if let Some(run) = self.run_of(job) {
            run.changed = now;
            self.left.entry(job).or_insert(now);
        }
    }

    /// A job's results are outside.
    pub(crate) fn deliver(&mut self, job: SlurmJobId, now: Time) {
        if let Some(run) = self.run_of(job) {
            run.delivered = Some(now);
        }
    }

    fn run_of(&mut self, job: SlurmJobId) -> Option<&mut WorkflowRun> {
        self.runs.get_mut(self.members.get(&job)?)
    }

    /// The jobs that have left, of which the accounting is to say how.
    pub(crate) fn wanted(&self) -> Vec<WantedAccount> {
        let left = self.left.keys().filter_map(|job| {
            let key = self.members.get(job)?;
            Some(WantedAccount {
                job: *job,
                user: key.0,
                since: *self.runs.get(key)?.jobs.get(job)?,
            })
        });
        left.take(MAX_WANTED).collect()
    }

    /// How many these are.
    pub(crate) fn wanted_count(&self) -> u64 {
        self.left.len() as u64
    }

    /// Whether a result says how a job ended that is wanted.
    pub(crate) fn is_wanted_end(&self, job: SlurmJobId, result: &JobResult) -> bool {
        self.left.contains_key(&job) && result.fate != Fate::Open
    }

    /// The accounting says how a job ended.
    pub(crate) fn account(&mut self, job: SlurmJobId, result: &JobResult) {
        if !self.is_wanted_end(job, result) {
            return;
        }
        if let Some(run) = self.run_of(job) {
            run.totals.add(result);
            run.jobs.remove(&job);
        }
        self.members.remove(&job);
        self.left.remove(&job);
        match result.fate {
            Fate::Done => self.sums.jobs_done += 1,
            _ => self.sums.jobs_not_done += 1,
        }
    }

    /// Time has passed: jobs without an accounting are given up, and runs without jobs are over. `has_ended`: of a user's workflow,
    /// whether no further job is expected.
    pub(crate) fn expire(&mut self, now: Time, has_ended: impl Fn(Uid, &str) -> bool) {
        let late = self.left.iter();
        let late = late.filter(|(_, left)| now.saturating_sub(**left) >= ACCOUNTING);
        let late: Vec<SlurmJobId> = late.map(|(job, _)| *job).collect();
        for job in late {
            if let Some(run) = self.run_of(job) {
                run.jobs.remove(&job);
                run.unaccounted += 1;
                self.sums.jobs_unaccounted += 1;
            }
            self.members.remove(&job);
            self.left.remove(&job);
        }
        let mut users_over: Vec<Uid> = Vec::new();
        for ((user, _), run) in self.runs.iter_mut().filter(|(_, run)| !run.is_over) {
            let is_idle = now.saturating_sub(run.changed) >= RUN_GAP;
            if run.jobs.is_empty() && (is_idle || has_ended(*user, &run.workflow)) {
                run.is_over = true;
                self.sums.add(run);
                users_over.push(*user);
            }
        }
        users_over.dedup();
        for user in users_over {
            self.forget_of(user);
        }
        self.forget_oldest();
    }

    fn forget_of(&mut self, user: Uid) {
        let own = self.runs.range((user, 0)..=(user, u64::MAX));
        let over = own.clone().filter(|(_, run)| run.is_over);
        let excess = own.count().saturating_sub(MAX_RUNS_OF_USER);
        let old: Vec<_> = over.take(excess).map(|(key, _)| *key).collect();
        for key in old {
            self.forget(key);
        }
    }

    fn forget(&mut self, key: (Uid, u64)) {
        if let Some(run) = self.runs.remove(&key) {
            let name = (key.0, run.workflow);
            if self.last.get(&name) == Some(&key.1) {
                self.last.remove(&name);
            }
        }
    }

    fn forget_oldest(&mut self) {
        if self.runs.len() <= MAX_RUNS {
            return;
        }
        let over = self.runs.iter().filter(|(_, run)| run.is_over);
        let mut over: Vec<(u64, Uid)> = over.map(|((user, number), _)| (*number, *user)).collect();
        over.sort_unstable();
        for (number, user) in over.into_iter().take(MAX_RUNS / 10) {
            self.forget((user, number));
        }
    }

    /// The runs that had a job since then, the newest first.
    pub(crate) fn infos(
        &self,
        since: Time,
        may_see: impl Fn(Uid) -> bool,
    ) -> Vec<WorkflowUsageInfo> {
        let seen = self.runs.iter();
        let seen = seen.filter(|((user, _), run)| run.changed >= since && may_see(*user));
        let mut seen: Vec<_> = seen.collect();
        seen.sort_by_key(|((_, number), _)| std::cmp::Reverse(*number));
        seen.truncate(crate::MAX_LISTED);
        let info = |((user, _), run): (&(Uid, u64), &WorkflowRun)| WorkflowUsageInfo {
            user: *user,
            workflow: run.workflow.clone(),
            begun: run.begun,
            is_over: run.is_over,
            done: run.totals.done,
            not_done: run.totals.not_done,
            open: run.jobs.len() as u64,
            unaccounted: run.unaccounted,
            time: run.totals.time_to_solution(run.delivered),
            queue: run.totals.queue,
            run: run.totals.run,
            node_time: run.totals.node_time,
        };
        seen.into_iter().map(info).collect()
    }

    /// Runs that are not over.
    pub(crate) fn open_runs(&self) -> u64 {
        self.runs.values().filter(|run| !run.is_over).count() as u64
    }
}

impl FlowSums {
    fn add(&mut self, run: &WorkflowRun) {
        let totals = &run.totals;
        self.queue += u128::from(totals.queue);
        self.run += u128::from(totals.run);
        self.node_time += u128::from(totals.node_time);
        if totals.not_done > 0 || run.unaccounted > 0 {
            self.incomplete += 1;
            return;
        }
        self.complete += 1;
        let time = totals.time_to_solution(run.delivered);
        self.time += u128::from(time);
        let class = TIME_CLASSES.partition_point(|end| end.saturating_mul(SECOND) < time);
        if let Some(count) = self.classes.get_mut(class) {
            *count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Uid = 1000;

    fn result(ready: u64, begun: u64, released: u64, fate: Fate) -> JobResult {
        JobResult {
            submitted: ready * SECOND,
            ready: ready * SECOND,
            begun: begun * SECOND,
            released: released * SECOND,
            node_time: 4 * (released - begun) * SECOND,
            fate,
            ..JobResult::default()
        }
    }

    fn at(seconds: u64) -> Time {
        seconds * SECOND
    }

    fn all(table: &FlowTable) -> Vec<WorkflowUsageInfo> {
        table.infos(0, |_| true)
    }

    #[test]
    fn a_run_is_summed_up_as_its_jobs_end() {
        let mut table = FlowTable::default();
        table.join((USER, "foam"), 1, false, at(0));
        table.join((USER, "foam"), 7, false, at(0));
        table.leave(1, at(90));
        assert!(
            !table.is_wanted_end(7, &result(0, 0, 90, Fate::Done)),
            "it has not left"
        );
        assert_eq!(table.wanted().len(), 1);
        table.account(1, &result(0, 0, 90, Fate::Done));
        table.account(1, &result(0, 0, 90, Fate::Done));
        table.leave(7, at(440));
        table.account(7, &result(90, 110, 440, Fate::Done));
        table.expire(at(441), |_, _| false);
        assert!(!all(&table)[0].is_over, "another job may come");
        table.expire(at(441), |user, name| user == USER && name == "foam");
        let info = &all(&table)[0];
        assert_eq!(
            (info.time, info.queue, info.run),
            (at(440), at(20), at(420))
        );
        assert_eq!(
            (info.node_time, info.done, info.is_over),
            (at(4 * 420), 2, true)
        );
        assert_eq!(
            (table.sums.complete, table.sums.time),
            (1, u128::from(at(440)))
        );
        assert_eq!(table.sums.classes[2], 1, "up to 900 s");
        assert!(table.members.is_empty() && table.left.is_empty());
    }

    #[test]
    fn the_next_run_begins_when_one_is_over() {
        let mut table = FlowTable::default();
        for (job, now, has_ended) in [(1, 0, false), (2, 10, true), (3, 5000, false)] {
            table.join((USER, "foam"), job, has_ended, at(now));
            table.leave(job, at(now + 5));
        }
        table.join((USER, "foam"), 4, false, at(5010));
        table.join((USER, "other"), 5, false, at(5010));
        table.join((USER + 1, "foam"), 6, false, at(5010));
        let runs: Vec<u64> = all(&table).iter().map(|info| info.open).collect();
        assert_eq!(
            runs,
            [1, 1, 2, 1, 1],
            "ended; after an hour; other workflows"
        );
    }

    #[test]
    fn a_job_that_the_accounting_lacks_is_given_up() {
        let mut table = FlowTable::default();
        table.join((USER, "foam"), 1, false, at(0));
        table.leave(1, at(1));
        table.expire(at(2) + ACCOUNTING, |_, _| true);
        assert_eq!((all(&table)[0].unaccounted, table.sums.incomplete), (1, 1));
        assert!(table.wanted().is_empty() && table.members.is_empty());
        table.account(1, &result(0, 1, 2, Fate::Done));
        assert_eq!(table.sums.jobs_done, 0);
    }

    #[test]
    fn a_cancelled_job_leaves_a_run_incomplete() {
        let mut table = FlowTable::default();
        table.join((USER, "foam"), 1, false, at(0));
        table.join((USER, "foam"), 2, false, at(0));
        for job in [1, 2] {
            table.leave(job, at(50));
        }
        table.account(1, &result(0, 10, 50, Fate::Done));
        table.account(2, &result(0, 0, 0, Fate::TakenOut));
        table.deliver(1, at(60));
        table.expire(at(61), |_, _| true);
        let info = &all(&table)[0];
        assert_eq!((info.done, info.not_done, info.time), (1, 1, at(50)));
        assert_eq!((table.sums.complete, table.sums.incomplete), (0, 1));
    }

    #[test]
    fn users_cannot_displace_each_others_runs_and_numbers_are_bounded() {
        let mut table = FlowTable::default();
        table.join((USER + 1, "kept"), 0, true, 0);
        table.leave(0, 0);
        table.account(0, &result(0, 0, 1, Fate::Done));
        for job in 1..=(MAX_RUNS_OF_USER as u32 + 50) {
            table.join((USER, "script"), job, true, at(u64::from(job)));
            table.leave(job, at(u64::from(job)));
            table.account(job, &result(0, 1, 2, Fate::Done));
        }
        table.expire(at(9), |_, _| true);
        assert_eq!(all(&table).len(), MAX_RUNS_OF_USER + 1);
        assert_eq!(table.last.len(), 2);
        assert_eq!(
            table.sums.complete,
            MAX_RUNS_OF_USER as u64 + 51,
            "sums stay"
        );
        for job in 0..=(MAX_NUMBERS as u32) {
            table.remember(job, at(u64::from(job)));
        }
        assert!(table.numbers.len() <= MAX_NUMBERS);
        assert!(table.known_since > 0 && table.numbers().len() > MAX_NUMBERS / 2);
    }
}
