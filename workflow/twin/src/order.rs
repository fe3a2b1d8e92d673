//! Which jobs there are, when each comes, and how quickly the site gave nodes to them.

use crate::MAX_JOBS;
use crate::history::{PastJob, SiteHistory};
use std::collections::HashMap;
use tarn_types::units::{Nanos, SECOND, Time};

/// A site that reacts more slowly was not waiting for its scheduler: it held nodes free.
const SLOWEST: Nanos = 60 * SECOND;

/// A job with its moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrderedJob<'h> {
    pub(crate) job: &'h PastJob,
    /// When it comes: it could begin then, but for nodes and for the makers of what it reads.
    pub(crate) at: Time,
}

/// The jobs in the order in which they come, and how many are left out because there are too many.
pub(crate) fn in_order(history: &SiteHistory) -> (Vec<OrderedJob<'_>>, usize) {
    let usable = |job: &&PastJob| {
        job.ended >= job.begun
            && !job.nodes.is_empty()
            && job
                .nodes
                .iter()
                .all(|n| (*n as usize) < history.nodes.len())
    };
    let mut jobs: Vec<&PastJob> = history.jobs.iter().filter(usable).collect();
    let mut left_out = history.jobs.len() - jobs.len();
    if jobs.len() > MAX_JOBS {
        jobs.sort_by_key(|j| std::cmp::Reverse((j.ended, j.number)));
        left_out += jobs.len() - MAX_JOBS;
        jobs.truncate(MAX_JOBS);
    }
    jobs.sort_by_key(|j| (j.number, j.submitted, j.begun));
    let mut ordered: Vec<OrderedJob<'_>> = Vec::with_capacity(jobs.len());
    // When the maker of each version comes: a reader cannot come before.
    let mut made: HashMap<&str, Time> = HashMap::new();
    for job in jobs {
        let mut at = job.eligible.max(job.submitted);
        if let Some(data) = &job.data {
            let makers = data.reads.iter().filter_map(|r| made.get(&*r.version));
            if let Some(maker) = makers.max().copied() {
                // It became eligible when its makers had ended; that may be at another time in a simulation.
                at = job.submitted.max(maker);
            }
            at = at.max(data.taken_in);
        }
        let at = at.min(job.begun);
        if let Some(data) = &job.data {
            for version in &data.writes {
                made.insert(&version.version, at);
            }
        }
        ordered.push(OrderedJob { job, at });
    }
    ordered.sort_by_key(|o| (o.at, o.job.number));
    (ordered, left_out)
}

/// The time from the last event before a job began (another's end, or its own arrival) until it did: the mean, as
/// accounting has whole seconds. In a simulation it is 0; a real scheduler looks every some seconds, and ends and starts
/// jobs in some time.
pub(crate) fn reaction(jobs: &[OrderedJob<'_>]) -> Nanos {
    let mut ends: Vec<Time> = jobs.iter().map(|o| o.job.ended).collect();
    ends.sort_unstable();
    let late = |o: &OrderedJob<'_>| {
        let before = ends.partition_point(|end| *end <= o.job.begun);
        let end = before.checked_sub(1).and_then(|at| ends.get(at));
        let event = end.copied().unwrap_or(0).max(o.at);
        o.job.begun.saturating_sub(event)
    };
    // A job that waited for nothing says nothing of how soon nodes come free.
    let waited = jobs.iter().filter(|o| o.job.begun > o.at);
    let times = waited.map(late).filter(|time| *time <= SLOWEST);
    let (sum, count) = times.fold((0u64, 0u64), |(sum, count), time| (sum + time, count + 1));
    sum.checked_div(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::NodeHistory;

    fn history(times: &[(Time, Time, Time)]) -> SiteHistory {
        let job = |(number, (eligible, begun, ended)): (u64, &(Time, Time, Time))| PastJob {
            number,
            eligible: *eligible,
            begun: *begun,
            ended: *ended,
            nodes: vec![0],
            ..PastJob::default()
        };
        SiteHistory {
            nodes: vec![NodeHistory {
                cores: 1,
                memory: 1,
                gpus: 0,
                partitions: Vec::new(),
                stores: Vec::new(),
                power: Default::default(),
            }],
            jobs: (0..).zip(times).map(job).collect(),
            ..SiteHistory::default()
        }
    }

    #[test]
    fn a_scheduler_reacts_after_ends_and_arrivals() {
        let reaction = |times: &[_]| reaction(&in_order(&history(times)).0);
        assert_eq!(reaction(&[]), 0);
        assert_eq!(reaction(&[(5, 5, 9)]), 0, "it did not wait");
        assert_eq!(reaction(&[(0, 0, 10), (0, 12, 20), (0, 22, 30)]), 2);
        assert_eq!(reaction(&[(0, 0, 10), (15, 18, 20)]), 3, "after it came");
        let hour = 3600 * SECOND;
        assert_eq!(reaction(&[(0, 0, 10), (0, hour, hour)]), 0);
    }

    #[test]
    fn jobs_that_make_no_sense_are_left_out() {
        let mut odd = history(&[(0, 5, 4), (0, 1, 2), (0, 1, 2)]);
        odd.jobs[2].nodes = vec![1];
        let (jobs, left_out) = in_order(&odd);
        assert_eq!((jobs.len(), left_out), (1, 2));
    }
}
