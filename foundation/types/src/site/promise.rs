//! The promise to ordinary jobs, and the account by which it is judged: the simulator's checker and the auditor of a real
//! Slurm use this one. docs/internals/scheduling.md, "What is promised to whom".
//!
//! The ordinary job that has waited longest is promised the begin that it would have if no waiting job went before it;
//! when others end before their limits, that becomes sooner.
//! A job that came after it and gets nodes first may not put off this begin: a workflow's step no further than the bound
//! beyond the promise, an ordinary job not at all. So it begins in time, if nothing comes between that nobody decides:
//! a node that is not up, a job beyond its limit, one that has failed, data that needs space.

use crate::units::{Nanos, Time};

/// Resources of a node: cores, bytes of memory, GPUs.
pub type NodeResources = [u64; 3];

/// A job that gets nodes, beside the job with the promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakerKind {
    /// It came before that job, or is not compared with it.
    Before,
    /// A step of a workflow that came after it.
    LaterWorkflow,
    /// An ordinary job that came after it.
    LaterOrdinary,
}

/// An account of jobs and nodes, as far as the promise depends on it.
pub trait PromiseAccount {
    /// The identifier of a job.
    type Job: Copy + PartialEq;

    /// The present time.
    fn now(&self) -> Time;
    /// The ordinary job that has waited longest.
    fn first_waiting(&self) -> Option<Self::Job>;
    /// Whether an ordinary job still waits.
    fn is_waiting(&self, job: Self::Job) -> bool;
    /// Whether nothing is in the way of a job that nobody decides.
    fn is_calm(&self, job: Self::Job) -> bool;
    /// Whether its earliest begin is known now: not while nodes are kept for a workflow that came before it.
    fn is_begin_known(&self, job: Self::Job) -> bool;
    /// Whether a job that gets nodes now is judged by what it does to this one.
    fn is_judged(&self, job: Self::Job) -> bool;
    /// How a job that gets nodes stands to the one with the promise.
    fn kind_of(&self, taker: Self::Job, first: Self::Job) -> TakerKind;
    /// When a job could begin if nobody else got nodes before it and everybody kept them until their limits.
    fn earliest(&self, job: Self::Job) -> Option<Time>;
}

/// The job that has waited longest, and its promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartPromise<J> {
    /// The job.
    pub job: J,
    /// The earliest begin that it could rely on so far.
    pub begin: Time,
    /// Nothing has come between yet that nobody decides.
    pub is_calm: bool,
}

/// A job that is about to get nodes beside the one with the promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartCheck<J> {
    first: J,
    begin: Time,
    latest: Time,
}

/// A promise that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromiseViolation<J> {
    /// It waits beyond the promise and the bound, and nothing came between.
    Late {
        /// The job.
        job: J,
        /// The promised begin.
        begin: Time,
        /// The bound added.
        latest: Time,
    },
    /// A job that came later got nodes and puts it off too far.
    PutOff {
        /// The job.
        job: J,
        /// The job that got nodes.
        by: J,
        /// When it could have begun without that.
        begin: Time,
        /// When it can begin now; `None`: never.
        then: Option<Time>,
        /// Until when it may be put off.
        latest: Time,
    },
}

/// Keeps the promise of the first ordinary job, and judges who gets nodes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromiseJudge<J> {
    /// How far workflows may delay an ordinary job against its promise.
    bound: Nanos,
    promise: Option<StartPromise<J>>,
}

impl<J: Copy + PartialEq> PromiseJudge<J> {
    /// One that has seen nothing.
    pub fn new(bound: Nanos) -> Self {
        Self {
            bound,
            promise: None,
        }
    }

    /// The promise that stands.
    pub fn promise(&self) -> Option<&StartPromise<J>> {
        self.promise.as_ref()
    }

    /// A job asks for something else now: its promise does not stand any more.
    pub fn forget(&mut self, job: J) {
        self.promise.take_if(|promise| promise.job == job);
    }

    /// A job that had the promise, and was taken for one that has nodes, waits.
    pub fn give_back(&mut self, promise: StartPromise<J>) {
        self.promise = Some(promise);
    }

    /// After something happened: updates the promise, or gives one to the next job.
    ///
    /// # Errors
    /// When the job waits longer than was promised.
    pub fn update(
        &mut self,
        account: &impl PromiseAccount<Job = J>,
    ) -> Result<(), PromiseViolation<J>> {
        let kept = self.promise.filter(|p| account.is_waiting(p.job));
        let next = || {
            account.first_waiting().map(|job| StartPromise {
                job,
                begin: Time::MAX,
                is_calm: true,
            })
        };
        let Some(mut promise) = kept.or_else(next) else {
            self.promise = None;
            return Ok(());
        };
        promise.is_calm &= account.is_calm(promise.job);
        if account.is_begin_known(promise.job) {
            let now = account.earliest(promise.job).unwrap_or(Time::MAX);
            promise.begin = promise.begin.min(now);
        }
        self.promise = Some(promise);
        let latest = promise.begin.saturating_add(self.bound);
        if promise.is_calm && account.now() > latest {
            let (job, begin) = (promise.job, promise.begin);
            return Err(PromiseViolation::Late { job, begin, latest });
        }
        Ok(())
    }

    /// A job is about to get nodes. `None`: it needs no check.
    pub fn before_start(
        &self,
        account: &impl PromiseAccount<Job = J>,
        taker: J,
    ) -> Option<StartCheck<J>> {
        let promise = self.promise.filter(|p| p.job != taker)?;
        let first = promise.job;
        if !account.is_judged(first) {
            return None;
        }
        let latest = match account.kind_of(taker, first) {
            TakerKind::Before => return None,
            TakerKind::LaterWorkflow => promise.begin.saturating_add(self.bound),
            TakerKind::LaterOrdinary => 0,
        };
        let begin = account.earliest(first)?;
        Some(StartCheck {
            first,
            begin,
            latest: begin.max(latest),
        })
    }
}

impl<J: Copy + PartialEq> StartCheck<J> {
    /// It has them.
    ///
    /// # Errors
    /// When it puts the job with the promise off too far.
    pub fn after_start(
        self,
        account: &impl PromiseAccount<Job = J>,
        taker: J,
    ) -> Result<(), PromiseViolation<J>> {
        let then = account.earliest(self.first);
        if then.is_some_and(|then| then <= self.latest) {
            return Ok(());
        }
        Err(PromiseViolation::PutOff {
            job: self.first,
            by: taker,
            begin: self.begin,
            then,
            latest: self.latest,
        })
    }
}

/// When a node has room for a job beside those that keep theirs longer. `guests`: until when each of its jobs keeps how much.
/// `wanted` is at most `all`.
pub fn free_at(
    now: Time,
    all: NodeResources,
    wanted: NodeResources,
    mut guests: Vec<(Time, NodeResources)>,
) -> Time {
    guests.sort_unstable();
    // From the last end back: as long as it fits beside the jobs that end later.
    let mut taken: NodeResources = [0; 3];
    for (end, takes) in guests.iter().rev() {
        for (sum, more) in taken.iter_mut().zip(takes) {
            *sum = sum.saturating_add(*more);
        }
        let fits = |((taken, wanted), all): ((&u64, &u64), &u64)| {
            taken.checked_add(*wanted).is_some_and(|sum| sum <= *all)
        };
        if !taken.iter().zip(&wanted).zip(&all).all(fits) {
            return *end;
        }
    }
    now
}

/// When so many of these nodes are free together; each is free at its time.
pub fn all_free_at(mut free: Vec<Time>, nodes: u32) -> Option<Time> {
    let last = nodes.max(1) as usize - 1;
    if last >= free.len() {
        return None;
    }
    let (_, time, _) = free.select_nth_unstable(last);
    Some(*time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_free_when_enough_of_its_jobs_have_ended() {
        let all = [8, 100, 0];
        let guests = || vec![(30, [4, 10, 0]), (10, [3, 10, 0])];
        assert_eq!(free_at(5, all, [1, 0, 0], guests()), 5);
        assert_eq!(free_at(5, all, [2, 0, 0], guests()), 10);
        assert_eq!(free_at(5, all, [5, 0, 0], guests()), 30);
        assert_eq!(free_at(5, all, [1, 81, 0], guests()), 10);
        let full = vec![(7, [u64::MAX, u64::MAX, 0]); 3];
        assert_eq!(free_at(5, all, [1, 0, 0], full), 7, "sums saturate");
    }

    #[test]
    fn nodes_are_free_together_with_the_last_of_them() {
        assert_eq!(all_free_at(vec![9, 1, 5], 2), Some(5));
        assert_eq!(all_free_at(vec![9, 1, 5], 0), Some(1));
        assert_eq!(all_free_at(vec![9, 1, 5], 4), None);
    }
}
