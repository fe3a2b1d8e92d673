//! Jobs as the accounting of a batch system has them, and their results, from which the sums of workflows are made as of a
//! simulated site ([`super::result`]).

use super::result::{Fate, JobResult};
use crate::units::{Nanos, SECOND, Time};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How a job stands, or how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccountedState {
    /// It waits, and has had no nodes in this attempt.
    Waiting,
    /// It has nodes.
    Running,
    /// It ended well.
    Completed,
    /// It failed, or its time or a node was lost.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
    /// It was put back into the queue: another attempt follows.
    Requeued,
}

/// One attempt of a job. All times are seconds since 1970; `None`: it did not come so far, or that is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountedJob {
    /// The job's number.
    pub number: u32,
    /// The number of its user.
    pub user: u32,
    /// Its partition; of a job that waits for several, their list.
    pub partition: String,
    /// Its quality of service.
    pub qos: String,
    /// How it stands.
    pub state: AccountedState,
    /// When it was submitted, or put back into the queue.
    pub submitted: Option<u64>,
    /// When nothing but nodes was missing to it.
    pub eligible: Option<u64>,
    /// When it got nodes.
    pub start: Option<u64>,
    /// When it gave them back.
    pub end: Option<u64>,
    /// Seconds that it may have them; `None`: without end.
    pub limit: Option<u64>,
    /// Its nodes.
    pub nodes: Arc<[String]>,
    /// How many it asks for, at least 1.
    pub wanted: u32,
    /// Processors, on all nodes together.
    pub cpus: u64,
    /// Bytes of memory, on all nodes together; `None`: not known.
    pub memory: Option<u64>,
    /// GPUs, on all nodes together.
    pub gpus: u64,
    /// The reservation that it ran in.
    pub reservation: String,
    /// Whether it is a task of an array, which has the array's time of submission and a later number.
    pub is_array_task: bool,
}

impl AccountedJob {
    /// How many nodes it had, or asks for.
    pub fn node_count(&self) -> u64 {
        match self.nodes.len() as u64 {
            0 => u64::from(self.wanted.max(1)),
            nodes => nodes,
        }
    }
}

/// The result of a job from its attempts, in any order. `cpus_of`: the processors of a node, where they are known; a job's share of
/// a node of which they are not known is the whole node. `None` without attempts.
pub fn result_of(
    attempts: &[AccountedJob],
    cpus_of: impl Fn(&str) -> Option<u32>,
) -> Option<JobResult> {
    let mut attempts: Vec<&AccountedJob> = attempts.iter().collect();
    attempts.sort_by_key(|a| (a.submitted, a.start));
    let (first, last) = (attempts.first()?, attempts.last()?);
    let submitted = nanos(first.submitted.or(first.eligible));
    let mut result = JobResult {
        submitted,
        ready: nanos(first.eligible).max(submitted),
        fate: match last.state {
            AccountedState::Completed => Fate::Done,
            AccountedState::Failed | AccountedState::Cancelled => Fate::TakenOut,
            AccountedState::Waiting | AccountedState::Running | AccountedState::Requeued => {
                Fate::Open
            }
        },
        ..JobResult::default()
    };
    for attempt in attempts {
        let (Some(start), false) = (attempt.start, attempt.nodes.is_empty()) else {
            continue;
        };
        result.attempts = result.attempts.saturating_add(1);
        result.begun = nanos(Some(start));
        let Some(end) = attempt.end else {
            continue;
        };
        result.released = nanos(Some(end));
        let held = result.released.saturating_sub(result.begun);
        result.held = result.held.saturating_add(held);
        let share = node_share(attempt, &cpus_of);
        let time = (held as f64 * share).min(u64::MAX as f64) as Nanos;
        result.node_time = result.node_time.saturating_add(time);
    }
    Some(result)
}

fn nanos(seconds: Option<u64>) -> Time {
    seconds.unwrap_or(0).saturating_mul(SECOND)
}

/// The nodes of a job, each as far as its processors are the job's.
fn node_share(job: &AccountedJob, cpus_of: impl Fn(&str) -> Option<u32>) -> f64 {
    let nodes = job.nodes.len() as f64;
    let known: Option<u64> = job
        .nodes
        .iter()
        .map(|node| cpus_of(node).map(u64::from))
        .sum();
    match known {
        Some(all) if all > 0 && job.cpus > 0 => nodes * (job.cpus as f64 / all as f64).min(1.0),
        _ => nodes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::result::FlowTotals;

    fn job(times: [u64; 4], state: AccountedState, nodes: u32) -> AccountedJob {
        let [submitted, eligible, start, end] = times;
        AccountedJob {
            number: 1,
            user: 7,
            partition: "main".into(),
            qos: "normal".into(),
            state,
            submitted: Some(submitted),
            eligible: Some(eligible),
            start: Some(start),
            end: Some(end),
            limit: Some(600),
            nodes: (0..nodes).map(|n| format!("n{n}")).collect(),
            wanted: nodes,
            cpus: 8 * u64::from(nodes),
            memory: None,
            gpus: 0,
            reservation: String::new(),
            is_array_task: false,
        }
    }

    const DONE: AccountedState = AccountedState::Completed;

    fn totals(jobs: &[AccountedJob]) -> FlowTotals {
        let mut totals = FlowTotals::default();
        for job in jobs {
            let result = result_of(std::slice::from_ref(job), |_| Some(8));
            totals.add(&result.unwrap());
        }
        totals
    }

    /// Weiland 2018, Table 4: jobs 1, 7 and 9 of four nodes each. Figure 8: T_run 90, 330 and 50 s, job 9 waits 20 s, T_all 490 s.
    #[test]
    fn the_workflow_of_table_4_takes_490_s() {
        let at = 1_000_000;
        let jobs = [
            job([at, at, at, at + 90], DONE, 4),
            job([at, at + 90, at + 90, at + 420], DONE, 4),
            job([at, at + 420, at + 440, at + 490], DONE, 4),
        ];
        let totals = totals(&jobs);
        assert_eq!(totals.queue, 20 * SECOND);
        assert_eq!(totals.run, 470 * SECOND);
        assert_eq!(totals.time_to_solution(None), 490 * SECOND);
        assert_eq!(
            totals.time_to_solution(None),
            totals.queue + totals.run,
            "eq. 4"
        );
        assert_eq!(
            totals.node_time,
            4 * 470 * SECOND,
            "eq. 3: nodes times their time"
        );
    }

    /// Figure 9 and equation 6: 60, 180 and 40 s on the same nodes, without a wait.
    #[test]
    fn with_its_data_in_place_it_takes_280_s() {
        let jobs = [
            job([5, 5, 5, 65], DONE, 4),
            job([5, 65, 65, 245], DONE, 4),
            job([5, 245, 245, 285], DONE, 4),
        ];
        let totals = totals(&jobs);
        assert_eq!((totals.queue, totals.run), (0, 280 * SECOND));
        assert_eq!(totals.time_to_solution(None), 280 * SECOND);
        assert_eq!(totals.node_time, 1120 * SECOND);
        let delivered = Some(300 * SECOND);
        assert_eq!(totals.time_to_solution(delivered), 295 * SECOND);
    }

    #[test]
    fn a_job_that_shares_its_nodes_has_its_share_of_their_time() {
        let mut half = job([0, 0, 10, 20], DONE, 2);
        half.cpus = 8;
        let time = |cpus: Option<u32>| {
            let result = result_of(std::slice::from_ref(&half), |_| cpus);
            result.unwrap().node_time
        };
        assert_eq!(time(Some(8)), 10 * SECOND);
        assert_eq!(time(None), 20 * SECOND, "not known: whole nodes");
    }

    #[test]
    fn a_requeued_job_has_held_nodes_twice_and_waited_from_its_first_submission() {
        let attempts = [
            job([30, 40, 50, 55], DONE, 1),
            job([0, 10, 20, 30], AccountedState::Requeued, 1),
        ];
        let result = result_of(&attempts, |_| Some(8)).unwrap();
        assert_eq!((result.attempts, result.fate), (2, Fate::Done));
        assert_eq!((result.submitted, result.ready), (0, 10 * SECOND));
        assert_eq!((result.wait(), result.held), (40 * SECOND, 15 * SECOND));
    }

    #[test]
    fn a_job_that_was_cancelled_in_the_queue_has_no_time_of_its_own() {
        let mut cancelled = job([7, 7, 0, 90], AccountedState::Cancelled, 0);
        (cancelled.start, cancelled.wanted) = (None, 5);
        assert_eq!(cancelled.node_count(), 5);
        let totals = totals(&[cancelled, job([7, 7, 8, 9], DONE, 1)]);
        assert_eq!((totals.done, totals.not_done), (1, 1));
        assert_eq!(totals.time_to_solution(None), 2 * SECOND);
        assert_eq!(result_of(&[], |_| None), None);
    }

    #[test]
    fn times_that_run_backwards_count_nothing() {
        let odd = job([90, 80, 70, 60], DONE, 1);
        let result = result_of(&[odd], |_| None).unwrap();
        assert_eq!((result.wait(), result.run(), result.node_time), (0, 0, 0));
        let far = job([0, 0, 0, u64::MAX], DONE, 3);
        assert_eq!(result_of(&[far], |_| None).unwrap().node_time, u64::MAX);
    }
}
