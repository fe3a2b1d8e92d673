//! Times that run backwards: of one job, and between jobs, when the clock was set back.

use crate::MAX_NAMED;
use std::collections::BTreeMap;
use tarn_types::site::AccountedJob;

/// Seconds that times may run back between two jobs: they are rounded.
const ROUNDING: u64 = 2;
/// From this distance of their numbers on, jobs may be of two rounds of numbers (Slurm begins again after `MaxJobId`, 67 million).
const WRAPPED: u32 = 1 << 25;

/// Times that run backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackwardTime {
    /// A job has nodes before it is submitted or eligible.
    StartBeforeSubmission {
        /// The job.
        job: u32,
        /// By so many seconds.
        by: u64,
    },
    /// A job ends before it begins.
    EndBeforeStart {
        /// The job.
        job: u32,
        /// By so many seconds.
        by: u64,
    },
    /// A job was submitted before the one with the number before its own: the clock was set back.
    ClockSetBack {
        /// The job with the lower number.
        before: u32,
        /// The job with the higher one.
        after: u32,
        /// From this time, in seconds since 1970.
        from: u64,
        /// To this.
        to: u64,
    },
}

/// Which attempts can be judged.
#[derive(Debug, Default)]
pub(crate) struct ClockFindings {
    pub(crate) backwards: Vec<BackwardTime>,
    pub(crate) count: u64,
    /// By the position of an attempt: whether its own times run backwards.
    pub(crate) is_bad: Vec<bool>,
    /// Times that were passed twice, in ascending order of their begins; the end is the latest of those up to there.
    repeated: Vec<(u64, u64)>,
}

impl ClockFindings {
    fn note(&mut self, found: BackwardTime) {
        self.count += 1;
        if self.backwards.len() < MAX_NAMED {
            self.backwards.push(found);
        }
    }

    /// Whether some of this time was passed twice.
    pub(crate) fn is_repeated(&self, from: u64, to: u64) -> bool {
        // Those that begin before the end; one of them may reach into it.
        let until = self.repeated.partition_point(|(begin, _)| *begin <= to);
        let last = until.checked_sub(1).and_then(|at| self.repeated.get(at));
        last.is_some_and(|(_, end)| *end >= from)
    }
}

pub(crate) fn look(jobs: &[AccountedJob]) -> ClockFindings {
    let mut found = ClockFindings::default();
    for job in jobs {
        let before = found.count;
        let ready = job.submitted.max(job.eligible);
        if let (Some(ready), Some(start)) = (ready, job.start)
            && start + ROUNDING < ready
        {
            let by = ready - start;
            found.note(BackwardTime::StartBeforeSubmission {
                job: job.number,
                by,
            });
        }
        if let (Some(start), Some(end)) = (job.start, job.end)
            && end < start
        {
            let by = start - end;
            found.note(BackwardTime::EndBeforeStart {
                job: job.number,
                by,
            });
        }
        found.is_bad.push(found.count > before);
    }
    look_at_submissions(jobs, &mut found);
    found
}

/// Numbers are given in the order of submission.
fn look_at_submissions(jobs: &[AccountedJob], found: &mut ClockFindings) {
    // The first attempt of each: another is submitted again.
    let mut submitted: BTreeMap<u32, u64> = BTreeMap::new();
    for job in jobs.iter().filter(|job| !job.is_array_task) {
        if let Some(time) = job.submitted {
            let first = submitted.entry(job.number).or_insert(time);
            *first = time.min(*first);
        }
    }
    let ends = submitted.keys().next().zip(submitted.keys().next_back());
    if ends.is_some_and(|(first, last)| last - first >= WRAPPED) {
        return;
    }
    let jumps: Vec<_> = submitted
        .iter()
        .zip(submitted.iter().skip(1))
        .filter(|((_, before), (_, after))| after.saturating_add(ROUNDING) < **before)
        .map(|((before, from), (after, to))| (*before, *from, *after, *to))
        .collect();
    for (before, from, after, to) in jumps {
        found.note(BackwardTime::ClockSetBack {
            before,
            after,
            from,
            to,
        });
        found.repeated.push((to, from));
    }
    found.repeated.sort_unstable();
    let mut latest = 0;
    for (_, end) in &mut found.repeated {
        latest = latest.max(*end);
        *end = latest;
    }
}
