//! Begin times that tarn sets: a job waits while one is renewed, and no longer than a minute without a controller.

use super::{AFTER_REFUSAL, CallError, MAX_AGE, MarkOrder, MarkStep, RENEW};
use std::collections::{BTreeMap, BTreeSet};
use tarn_slurm::{DELAY_SECONDS, SlurmAction, SlurmJob, SlurmJobState, SlurmSnapshot};
use tarn_types::units::{Nanos, SECOND, Time};

/// Jobs that wait by a begin time of tarn's at a time.
const MAX_DELAYS: usize = 64;
/// For which a job waits so, all together.
const MAX_DELAYED: Nanos = 3600 * SECOND;
/// Seconds by which a begin time differs from tarn's if somebody else has set it.
const DIFFERS: u64 = 5;
/// Calls that one step orders.
const MAX_ORDERS: usize = 20;

/// A job that is to wait, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelayWish {
    /// Its number.
    pub job: u32,
    /// Why, for the log.
    pub reason: String,
}

#[derive(Debug, Clone)]
struct Delay {
    since: Time,
    renewed: Time,
}

/// The begin times that this controller set.
#[derive(Debug, Clone, Default)]
pub struct Delays {
    delayed: BTreeMap<u32, Delay>,
    /// Jobs that are not delayed, until when: Slurm refused it, somebody else set a begin time, or it was enough.
    left_alone: BTreeMap<u32, Time>,
}

impl Delays {
    /// The jobs that wait by a begin time of tarn's.
    #[must_use]
    pub fn jobs(&self) -> BTreeSet<u32> {
        self.delayed.keys().copied().collect()
    }

    /// The calls by which Slurm's begin times are as wished. `begun` is when the reading of the snapshot began; both times are
    /// of one clock that does not jump. No wish means that all jobs may begin.
    ///
    /// The caller makes each call and reports it by [`Delays::done`] before the next step.
    pub fn step(
        &mut self,
        snapshot: &SlurmSnapshot,
        begun: Time,
        wishes: &[DelayWish],
        now: Time,
    ) -> MarkStep {
        let mut step = MarkStep::default();
        if now.saturating_sub(begun) > MAX_AGE {
            return step;
        }
        self.left_alone.retain(|_, until| *until > now);
        self.forget(snapshot, begun, &mut step.notes);
        let wished: BTreeSet<u32> = wishes.iter().map(|wish| wish.job).collect();
        let mut order = |action: SlurmAction, reason: &str| {
            step.orders.push(MarkOrder {
                action,
                workflow: None,
                reason: reason.to_owned(),
            });
        };
        for (job, delay) in &self.delayed {
            let is_over = now.saturating_sub(delay.since) > MAX_DELAYED;
            if is_over || !wished.contains(job) {
                let reason = if is_over {
                    "it has waited for an hour"
                } else {
                    "it may begin"
                };
                order(SlurmAction::EndDelay { job: *job }, reason);
            }
        }
        let mut left = MAX_DELAYS.saturating_sub(self.delayed.len());
        for wish in wishes {
            let action = SlurmAction::Delay { job: wish.job };
            match self.delayed.get(&wish.job) {
                Some(delay) if now.saturating_sub(delay.since) > MAX_DELAYED => {}
                Some(delay) if now.saturating_sub(delay.renewed) < RENEW => {}
                Some(_) => order(action, &wish.reason),
                None => {
                    let job = snapshot.jobs.get(&wish.job);
                    let is_free = job.is_some_and(|job| is_free(job, snapshot.read_at));
                    if is_free && left > 0 && !self.left_alone.contains_key(&wish.job) {
                        left -= 1;
                        order(action, &wish.reason);
                    }
                }
            }
        }
        step.orders.truncate(MAX_ORDERS);
        step
    }

    /// Forgets jobs that wait no more, and those whose begin time somebody else has set since.
    fn forget(&mut self, snapshot: &SlurmSnapshot, begun: Time, notes: &mut Vec<String>) {
        let left_alone = &mut self.left_alone;
        self.delayed.retain(|number, delay| {
            if delay.renewed >= begun {
                return true;
            }
            let job = snapshot.jobs.get(number);
            let Some(job) = job.filter(|job| job.state == SlurmJobState::Pending) else {
                return false;
            };
            let expected = snapshot
                .read_at
                .saturating_sub((begun - delay.renewed) / SECOND)
                .saturating_add(DELAY_SECONDS.into());
            let is_own = job
                .eligible
                .is_some_and(|at| at.abs_diff(expected) <= DIFFERS);
            if !is_own {
                notes.push(format!(
                    "somebody set another begin time of job {number}: it is left alone"
                ));
                left_alone.insert(*number, Time::MAX);
            }
            is_own
        });
        let is_there = |number: &u32| snapshot.jobs.contains_key(number);
        left_alone.retain(|number, until| *until < Time::MAX || is_there(number));
    }

    /// A call was made: the reason of a failure is Slurm's.
    pub fn done(&mut self, order: &MarkOrder, result: Result<(), CallError>, now: Time) {
        match (&order.action, result) {
            (SlurmAction::Delay { job }, Ok(())) => {
                let delay = self.delayed.entry(*job).or_insert(Delay {
                    since: now,
                    renewed: now,
                });
                delay.renewed = now;
            }
            (SlurmAction::Delay { job }, Err(_)) => {
                self.delayed.remove(job);
                self.left_alone
                    .insert(*job, now.saturating_add(AFTER_REFUSAL));
            }
            (SlurmAction::EndDelay { job }, result) => {
                let delay = self.delayed.remove(job);
                let is_over = delay.is_some_and(|d| now.saturating_sub(d.since) > MAX_DELAYED);
                if is_over || result.is_err() {
                    let until =
                        now.saturating_add(if is_over { MAX_DELAYED } else { AFTER_REFUSAL });
                    self.left_alone.insert(*job, until);
                }
            }
            // A job that joins a reservation may begin.
            (SlurmAction::Join { job, .. }, Ok(())) => {
                self.delayed.remove(job);
            }
            _ => {}
        }
    }
}

/// Whether nobody has set a begin time for a job that waits.
fn is_free(job: &SlurmJob, read_at: u64) -> bool {
    job.state == SlurmJobState::Pending
        && job.array.is_none()
        && job.het.is_none()
        && job.eligible.is_some_and(|at| at <= read_at)
}
