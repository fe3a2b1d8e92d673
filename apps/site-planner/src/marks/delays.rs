//! Begin times of jobs whose data is on nodes that come free soon, or that Slurm would reboot nodes for: without one Slurm would
//! start such a job at once elsewhere, or reboot a node at once.
//! Slurm forgets a begin time by itself, at most a minute later. docs/internals/driving-slurm.md, "Begin times".

use super::{
    CallError, JoinWish, LINGER, MarkOrder, MarkStep, Marks, RENEW, RETRY, ReservationWish,
    WorkflowKey,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use tarn_slurm::{
    DELAY_SECONDS, PendingReason, SlurmAction, SlurmJob, SlurmJobState, SlurmSnapshot,
};
use tarn_types::units::{Nanos, SECOND, Time};

/// Seconds by which a begin time may differ from the one that tarn set: Slurm counts from when the call reaches it.
const TOLERANCE: u64 = 3;

/// For which a call that Slurm did not answer may still take effect.
const UNANSWERED: Nanos = 60 * SECOND;

/// For how long a job waits until it can join its reservation, once it waits for no other job: its nodes are about to be idle.
pub(crate) const JOINS_WITHIN: Nanos = 30 * SECOND;

/// Jobs that wait for another reason than a reservation at a time.
const MAX_WISHES: usize = 64;

/// A job that is to wait for another reason than for reserved nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelayWish {
    /// Its number.
    pub job: u32,
    /// For how long at most, once it waits for no other job.
    pub total: Nanos,
    /// Why, for the log.
    pub reason: String,
}

/// When a job may begin by a call of tarn's: Slurm counts from when the call reaches it. Seconds of Slurm's clock.
#[derive(Debug, Clone, Copy)]
struct SetBegin {
    earliest: u64,
    latest: u64,
    /// It is the end of a delay.
    is_end: bool,
}

/// A job that tarn delays.
#[derive(Debug, Clone)]
struct JobDelay {
    /// Since when it waits for no other job.
    ready: Option<Time>,
    set: Time,
    /// For which it is delayed in all, at most.
    total: Nanos,
    /// Whether it is delayed for more than to join.
    is_long: bool,
    /// `None` while the first call was not answered.
    begin: Option<SetBegin>,
    /// The one before that: a slurmctld that starts again may have it still, as it writes its state every 5 s.
    before: Option<SetBegin>,
    /// That of a call that was not answered, and until when it may come.
    unanswered: Option<(SetBegin, Time)>,
    /// Since when it is not wished for, while it waits for another job.
    unwanted: Option<Time>,
}

/// All of them. At most as many as jobs of reservations.
#[derive(Debug, Clone, Default)]
pub(super) struct Delays {
    jobs: BTreeMap<u32, JobDelay>,
    /// Jobs of the snapshot that are not delayed, until when: for ever if their begin time was changed by somebody else, or the
    /// time is used up.
    left_alone: BTreeMap<u32, Time>,
    /// Delays of jobs of the queue that are over. A slurmctld that starts again may have them still.
    ended: BTreeMap<u32, JobDelay>,
    /// For how long jobs of the queue have waited by delays that are over.
    waited: BTreeMap<u32, Nanos>,
    /// The longest delays of jobs that are to be delayed, and whether they are for more than to join.
    totals: BTreeMap<u32, (Nanos, bool)>,
    /// Jobs that wait for no other one.
    ready: BTreeSet<u32>,
    /// Jobs that are to wait for another reason than for reserved nodes.
    wishes: Vec<DelayWish>,
}

impl Delays {
    pub(super) fn contains(&self, job: u32) -> bool {
        self.jobs.contains_key(&job)
    }

    /// Whether a snapshot is older than what was set on a job: somebody may have changed it since, so nothing is done.
    pub(super) fn is_unseen(&self, job: u32, begun: Time) -> bool {
        self.jobs.get(&job).is_some_and(|delay| delay.set >= begun)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// A call was made; `clocks` are Slurm's before and after it.
    pub(super) fn done(
        &mut self,
        action: &SlurmAction,
        result: &Result<(), CallError>,
        (clocks, now): ((u64, u64), Time),
    ) {
        let (job, seconds) = match action {
            SlurmAction::DelayUntil { job, seconds } => (*job, u64::from(*seconds)),
            SlurmAction::Undelay { job } | SlurmAction::Join { job, .. } => (*job, 0),
            _ => return,
        };
        let is_delay = seconds > 0;
        let mut set = SetBegin {
            earliest: clocks.0.saturating_add(seconds),
            latest: clocks.1.saturating_add(seconds),
            is_end: !is_delay,
        };
        match result {
            Ok(()) if is_delay => {
                let delay = self.entry(job, now);
                delay.before = delay.begin.replace(set);
                (delay.set, delay.unanswered) = (now, None);
            }
            // Its time does not begin again with another reason to wait.
            Ok(()) => self.end(job, now),
            Err(CallError::Unanswered(_)) => {
                set.latest = set.latest.saturating_add(UNANSWERED / SECOND);
                let until = now.saturating_add(UNANSWERED);
                if is_delay {
                    let delay = self.entry(job, now);
                    (delay.set, delay.unanswered) = (now, Some((set, until)));
                } else if let Some(delay) = self.jobs.get_mut(&job) {
                    delay.unanswered = Some((set, until));
                }
            }
            // It has begun since the snapshot, or was cancelled.
            Err(CallError::Refused(_)) if is_delay => {
                self.left_alone.insert(job, Time::MAX);
            }
            Err(CallError::Refused(_)) => {}
        }
    }

    /// The delay of a job, which may begin now.
    fn entry(&mut self, job: u32, now: Time) -> &mut JobDelay {
        let (total, is_long) = self.totals.get(&job).copied().unwrap_or_default();
        let total = total.saturating_sub(self.waited(job));
        let ready = self.ready.contains(&job).then_some(now);
        self.jobs.entry(job).or_insert(JobDelay {
            ready,
            set: now,
            total,
            is_long,
            begin: None,
            before: None,
            unanswered: None,
            unwanted: None,
        })
    }

    fn end(&mut self, job: u32, now: Time) {
        let Some(delay) = self.jobs.remove(&job) else {
            return;
        };
        if let Some(ready) = delay.ready {
            *self.waited.entry(job).or_default() += now.saturating_sub(ready);
        }
        self.ended.insert(job, JobDelay { set: now, ..delay });
    }

    /// For how long a job has waited by delays that are over.
    fn waited(&self, job: u32) -> Nanos {
        self.waited.get(&job).copied().unwrap_or(0)
    }

    /// Forgets the delays of jobs that do not wait any more, and of those whose begin time somebody else changed, or a slurmctld
    /// that has started again does not know.
    pub(super) fn forget_changed(
        &mut self,
        snapshot: &SlurmSnapshot,
        (begun, now): (Time, Time),
        was_restarted: bool,
        notes: &mut Vec<String>,
    ) {
        let left_alone = &mut self.left_alone;
        left_alone.retain(|job, until| *until > now && snapshot.jobs.contains_key(job));
        let waits = |job: &SlurmJob| job.state == SlurmJobState::Pending;
        let is_waiting = |job: &u32| snapshot.jobs.get(job).is_some_and(waits);
        self.waited.retain(|job, _| is_waiting(job));
        self.ended.retain(|job, _| is_waiting(job));
        let mut ended = Vec::new();
        self.jobs.retain(|number, delay| {
            let job = snapshot.jobs.get(number);
            let Some(job) = job.filter(|job| job.state == SlurmJobState::Pending) else {
                return false;
            };
            if job.dependency.is_empty() {
                delay.ready.get_or_insert(now);
            }
            if delay.set >= begun {
                return true;
            }
            match delay.compare(job, snapshot.read_at, now) {
                BeginSeen::Own => true,
                BeginSeen::Ended => {
                    ended.push(*number);
                    true
                }
                BeginSeen::NotMade => false,
                // slurmctld has lost the call.
                BeginSeen::OfAnother if was_restarted && !is_delayed(job, snapshot.read_at) => {
                    ended.push(*number);
                    true
                }
                BeginSeen::OfAnother => {
                    notes.push(format!(
                        "somebody changed the begin time of job {number}: tarn leaves it alone"
                    ));
                    left_alone.insert(*number, Time::MAX);
                    false
                }
            }
        });
        for job in ended {
            self.end(job, now);
        }
    }

    /// The wishes without jobs that were to be delayed and cannot be: nodes are reserved for none of these.
    pub(super) fn possible(
        &mut self,
        snapshot: &SlurmSnapshot,
        wishes: &[ReservationWish],
        now: Time,
    ) -> Vec<ReservationWish> {
        self.totals.clear();
        let joins = wishes.iter().flat_map(|wish| &wish.jobs);
        let jobs = joins.filter_map(|join| snapshot.jobs.get(&join.job));
        let ready = jobs.filter(|job| job.dependency.is_empty());
        self.ready = ready.map(|job| job.number).collect();
        let mut possible = Vec::new();
        for wish in wishes {
            let mut kept = wish.clone();
            let is_kept = |join: &JoinWish| !join.needs_delay || self.left(snapshot, join, now) > 0;
            kept.jobs.retain(is_kept);
            if kept.jobs.len() < wish.jobs.len() {
                let nodes = kept.jobs.iter().flat_map(|join| &join.nodes);
                kept.nodes = nodes.cloned().collect();
            }
            for join in &kept.jobs {
                let total = join
                    .delay
                    .map(|total| (join.job, (total, join.needs_delay)));
                self.totals.extend(total);
                if let Some(delay) = self.jobs.get_mut(&join.job).filter(|_| !join.needs_delay) {
                    delay.only_to_join(join.delay.unwrap_or(JOINS_WITHIN), now);
                }
            }
            // A reservation that is there stays until nobody wishes for it.
            if !kept.jobs.is_empty() {
                possible.push(kept);
            }
        }
        possible
    }

    /// For how many seconds a job may still be delayed.
    fn left(&self, snapshot: &SlurmSnapshot, join: &JoinWish, now: Time) -> u32 {
        let waits_for_others = snapshot.jobs.get(&join.job);
        let waits_for_others = waits_for_others.is_some_and(|job| !job.dependency.is_empty());
        let left = match self.jobs.get(&join.job) {
            // Its time begins later.
            _ if waits_for_others && join.delay.is_some() => Nanos::MAX,
            Some(delay) => delay.left(now),
            None => join
                .delay
                .unwrap_or(0)
                .saturating_sub(self.waited(join.job)),
        };
        let may = join.is_called && self.may_delay(snapshot, join.job);
        if may {
            u32::try_from(left / SECOND).unwrap_or(u32::MAX)
        } else {
            0
        }
    }

    /// The calls for delays that are wished for, and for those that are not any more. `joins` are jobs that join now.
    pub(super) fn orders(
        &mut self,
        snapshot: &SlurmSnapshot,
        wanted: &BTreeMap<WorkflowKey, &ReservationWish>,
        (begun, now, joins): (Time, Time, &BTreeSet<u32>),
    ) -> Vec<MarkOrder> {
        let mut orders = Vec::new();
        let mut wished: BTreeSet<u32> = joins.clone();
        for (workflow, wish) in wanted {
            for join in wish.jobs.iter().filter(|join| !joins.contains(&join.job)) {
                let delay = self.jobs.get(&join.job);
                let left = self.left(snapshot, join, now);
                // One whose nodes have come free stays delayed until it can join.
                if left == 0 || join.delay.is_none() && delay.is_none() {
                    continue;
                }
                wished.insert(join.job);
                if delay.is_none_or(|delay| now.saturating_sub(delay.set) >= RENEW) {
                    let (job, seconds) = (join.job, left.min(DELAY_SECONDS));
                    orders.push(MarkOrder {
                        action: SlurmAction::DelayUntil { job, seconds },
                        workflow: Some(workflow.clone()),
                        reason: wish.reason.clone(),
                    });
                }
            }
        }
        for wish in std::mem::take(&mut self.wishes) {
            if wished.contains(&wish.job) {
                continue;
            }
            orders.extend(self.order_of(snapshot, &wish, now));
            if self.totals.contains_key(&wish.job) {
                wished.insert(wish.job);
            }
        }
        orders.extend(self.ended_again(snapshot, begun));
        for job in self.unwanted(snapshot, &wished, (begun, now)) {
            let is_used_up = self
                .jobs
                .get(&job)
                .is_some_and(|delay| delay.left(now) < SECOND);
            let until = match is_used_up {
                true => Time::MAX,
                false => now.saturating_add(RETRY),
            };
            self.left_alone.insert(job, until);
            orders.push(MarkOrder {
                action: SlurmAction::Undelay { job },
                workflow: None,
                reason: "it has no reason to wait any more".to_owned(),
            });
        }
        orders
    }

    /// The calls for delays that are over, and that Slurm has still.
    fn ended_again(&self, snapshot: &SlurmSnapshot, begun: Time) -> Vec<MarkOrder> {
        let has = |(number, delay): &(&u32, &JobDelay)| {
            let job = snapshot.jobs.get(*number);
            let is_new = delay.set < begun && !self.contains(**number);
            is_new && job.is_some_and(|job| is_delayed(job, snapshot.read_at) && delay.is_seen(job))
        };
        let end = |(job, _): (&u32, &JobDelay)| MarkOrder {
            action: SlurmAction::Undelay { job: *job },
            workflow: None,
            reason: "slurmctld does not know that its delay is over".to_owned(),
        };
        self.ended.iter().filter(has).map(end).collect()
    }

    /// The jobs whose delays are to end. Slurm may show for a moment that one waits for a job that it does not list any more.
    fn unwanted(
        &mut self,
        snapshot: &SlurmSnapshot,
        wished: &BTreeSet<u32>,
        (begun, now): (Time, Time),
    ) -> Vec<u32> {
        let mut unwanted = Vec::new();
        for (number, delay) in &mut self.jobs {
            if wished.contains(number) {
                delay.unwanted = None;
            } else if delay.set < begun {
                let job = snapshot.jobs.get(number);
                let waits_for_another = job.is_some_and(|job| !job.dependency.is_empty());
                let since = *delay.unwanted.get_or_insert(now);
                if !waits_for_another || now.saturating_sub(since) >= LINGER {
                    unwanted.push(*number);
                }
            }
        }
        unwanted
    }

    /// The call for a wish, if it is due now. The total is noted if the job waits.
    fn order_of(
        &mut self,
        snapshot: &SlurmSnapshot,
        wish: &DelayWish,
        now: Time,
    ) -> Option<MarkOrder> {
        let join = JoinWish {
            job: wish.job,
            nodes: BTreeSet::new(),
            is_called: true,
            is_staged: true,
            delay: Some(wish.total),
            needs_delay: true,
        };
        let left = self.left(snapshot, &join, now);
        let delay = self.jobs.get(&wish.job);
        if left == 0 || delay.is_none() && self.jobs.len() >= MAX_WISHES {
            return None;
        }
        let is_due = delay.is_none_or(|delay| now.saturating_sub(delay.set) >= RENEW);
        let job = snapshot.jobs.get(&wish.job)?;
        if job.dependency.is_empty() {
            self.ready.insert(wish.job);
        }
        self.totals.insert(wish.job, (wish.total, true));
        is_due.then(|| MarkOrder {
            action: SlurmAction::DelayUntil {
                job: wish.job,
                seconds: left.min(DELAY_SECONDS),
            },
            workflow: None,
            reason: wish.reason.clone(),
        })
    }

    /// Whether a job waits for nothing but nodes, and has no begin time of its user's or an administrator's.
    fn may_delay(&self, snapshot: &SlurmSnapshot, number: u32) -> bool {
        let Some(job) = snapshot.jobs.get(&number) else {
            return false;
        };
        let is_ready = matches!(
            job.reason,
            PendingReason::None
                | PendingReason::Priority
                | PendingReason::Resources
                | PendingReason::BurstBufferResources
                | PendingReason::BurstBufferStageIn
                | PendingReason::Dependency
                | PendingReason::RequiredNodeNotAvailable
        );
        let is_own = self.contains(number);
        let has_begin_time = job.eligible.is_some_and(|at| at > snapshot.read_at);
        job.state == SlurmJobState::Pending
            && job.priority > 0
            && job.reservation.is_empty()
            && (is_own || is_ready && !has_begin_time)
            && (is_ready || job.reason == PendingReason::BeginTime)
            && !self.left_alone.contains_key(&number)
    }
}

impl JobDelay {
    /// For how long it may continue.
    fn left(&self, now: Time) -> Nanos {
        let waited = self.ready.map_or(0, |since| now.saturating_sub(since));
        self.total.saturating_sub(waited)
    }

    /// Its nodes have come free: the reason for which it waited so far is over.
    fn only_to_join(&mut self, within: Nanos, now: Time) {
        if std::mem::replace(&mut self.is_long, false) {
            let waited = self.ready.map_or(0, |since| now.saturating_sub(since));
            self.total = self.total.min(waited.saturating_add(within));
        }
    }

    /// Whether a job has a begin time that was set.
    fn is_seen(&self, job: &SlurmJob) -> bool {
        let unanswered = self.unanswered.map(|(set, _)| set);
        let unanswered = unanswered.filter(|set| !set.is_end);
        let set = self.begin.into_iter().chain(self.before);
        let mut known = set.chain(unanswered);
        known.any(|set| set.is_of(job))
    }

    /// The begin time of a job in a snapshot that is later than the last call.
    fn compare(&mut self, job: &SlurmJob, read_at: u64, now: Time) -> BeginSeen {
        let mut set = self.begin.into_iter().chain(self.before);
        if set.any(|set| set.is_of(job)) {
            return BeginSeen::Own;
        }
        let is_delayed = is_delayed(job, read_at);
        let unanswered = self.unanswered.filter(|(_, until)| *until > now);
        match unanswered {
            // Of an end, a time that is ahead is somebody else's.
            Some((set, _)) if set.is_of(job) && is_delayed && !set.is_end => {
                (self.begin, self.unanswered) = (Some(set), None);
                BeginSeen::Own
            }
            Some((set, _)) if set.is_of(job) && !is_delayed => BeginSeen::Ended,
            _ if is_delayed || self.begin.is_some() => BeginSeen::OfAnother,
            Some(_) => BeginSeen::Own,
            None => BeginSeen::NotMade,
        }
    }
}

/// Whether a job has a begin time that is ahead.
fn is_delayed(job: &SlurmJob, read_at: u64) -> bool {
    job.eligible.is_some_and(|at| at > read_at)
}

/// The begin time that a delayed job has in a snapshot.
enum BeginSeen {
    /// The one that tarn set, or none while a call may still come.
    Own,
    /// The end of the delay, by a call that was not answered.
    Ended,
    /// None, as the call that was not answered was never made.
    NotMade,
    OfAnother,
}

impl SetBegin {
    fn is_of(&self, job: &SlurmJob) -> bool {
        let range = self.earliest.saturating_sub(TOLERANCE)..=self.latest.saturating_add(TOLERANCE);
        job.eligible.is_some_and(|at| range.contains(&at))
    }
}

impl Marks {
    /// The snapshot without tarn's own begin times: the planner plans as if these jobs could begin at any time.
    #[must_use]
    pub fn undelayed<'s>(&self, snapshot: &'s SlurmSnapshot) -> Cow<'s, SlurmSnapshot> {
        let mut undelayed = Cow::Borrowed(snapshot);
        for (number, delay) in &self.delays.jobs {
            let job = snapshot.jobs.get(number);
            if job.is_some_and(|job| delay.is_seen(job))
                && let Some(job) = undelayed.to_mut().jobs.get_mut(number)
            {
                job.eligible = job.submitted.filter(|_| job.dependency.is_empty());
                if job.reason == PendingReason::BeginTime {
                    job.reason = PendingReason::Priority;
                }
            }
        }
        undelayed
    }

    /// The jobs that are to wait for another reason than for reserved nodes, at the next step.
    pub fn wish_delays(&mut self, wishes: Vec<DelayWish>) {
        self.delays.wishes = wishes;
    }

    /// The jobs that are delayed now.
    #[must_use]
    pub fn delayed(&self) -> BTreeSet<u32> {
        self.delays.jobs.keys().copied().collect()
    }

    /// Slurm's clock, in seconds.
    pub(super) fn slurm_clock(&self, now: Time) -> u64 {
        let nanos = self.clock.unwrap_or(0).saturating_add(i128::from(now));
        u64::try_from(nanos / i128::from(SECOND)).unwrap_or(0)
    }

    /// Whether there is any mark of this controller.
    #[must_use]
    pub fn has_any(&self) -> bool {
        !self.marks.is_empty() || !self.delays.is_empty()
    }

    pub(super) fn order_delays(
        &mut self,
        snapshot: &SlurmSnapshot,
        wanted: &BTreeMap<WorkflowKey, &ReservationWish>,
        (begun, now): (Time, Time),
        step: &mut MarkStep,
    ) {
        let joins = step.orders.iter().filter_map(|order| match &order.action {
            SlurmAction::Join { job, .. } => Some(*job),
            _ => None,
        });
        let joins: BTreeSet<u32> = joins.collect();
        let orders = self.delays.orders(snapshot, wanted, (begun, now, &joins));
        step.orders.extend(orders);
    }
}
