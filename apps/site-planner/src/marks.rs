//! Drive's marks in Slurm: which reservations there are, and which calls make them as they are wished for.
//!
//! Every mark lapses by itself: Slurm ends a reservation that is not renewed. Nothing of it is durable: the
//! epoch of the controller is in each name, and a controller deletes those of earlier ones. The rules come from trials on
//! a real Slurm: docs/internals/driving-slurm.md, "The actions, and how each lapses".

mod advised;
mod arranged;
mod budget;
mod check;
mod delays;
mod names;
mod pace;
#[cfg(test)]
mod tests;
mod uncalled;

use advised::AdvisedJobs;
pub use advised::ReservedFor;
use budget::IdleBudgets;
use check::{SnapshotCheck, WishError};
pub use delays::DelayWish;
use delays::Delays;
pub(crate) use delays::JOINS_WITHIN;
use names::epoch_of;
pub(crate) use names::is_own_reservation;
pub use names::sleep_reservation;
use pace::RenewalPace;
use std::collections::{BTreeMap, BTreeSet};
use tarn_slurm::{
    MAX_RESERVATION_SECONDS, RENEWED_SECONDS, RESERVATION_SECONDS, SlurmAction, SlurmJobState,
    SlurmSnapshot,
};
use tarn_types::units::{Nanos, SECOND, Time};

/// Nothing is done on a snapshot that is older.
pub const MAX_AGE: Nanos = 10 * SECOND;
/// Reservations at a time, of all users.
pub const MAX_RESERVATIONS: usize = 64;
/// And of one user.
pub const MAX_USER_RESERVATIONS: usize = 4;
/// A clock that moves by more against one that does not jump was set.
const MAX_DRIFT: u128 = 5 * SECOND as u128;
/// Between two renewals; less where Slurm is slow.
const RENEW: Nanos = 20 * SECOND;
/// For which a reservation lasts that is not renewed.
const LASTS: Nanos = RENEWED_SECONDS as Nanos * SECOND;
/// Within which Slurm starts a job that joined: `batch_sched_delay` (3 s) and two passes.
const JOIN_TIMEOUT: Nanos = 10 * SECOND;
/// For which a workflow whose reservation somebody deleted is left alone.
const AFTER_DELETION: Nanos = 600 * SECOND;
/// For which one is that Slurm refused something, or that did not start.
const AFTER_REFUSAL: Nanos = 300 * SECOND;
/// For which a reservation stays that nobody wishes for any more, and after which its workflow may have another: two views
/// of one moment must not have it made and deleted in turn.
const LINGER: Nanos = 3 * SECOND;
const AFTER_CANCEL: Nanos = 5 * SECOND;
/// Between two tries of a call that Slurm refused.
const RETRY: Nanos = 10 * SECOND;
/// Jobs in a reservation that are taken out one by one; with more it is made to end.
const MAX_LEAVES: usize = 5;
/// A workflow: the number of its user, and its name.
pub type WorkflowKey = (u32, String);

/// Nodes that are to be kept for the next jobs of a workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationWish {
    /// The workflow.
    pub workflow: WorkflowKey,
    /// The name of its user.
    pub user: String,
    /// The nodes.
    pub nodes: BTreeSet<String>,
    /// The jobs that are to run there.
    pub jobs: Vec<JoinWish>,
    /// For how many seconds from now they need them, by their limits.
    pub seconds: u32,
    /// Why, for the log.
    pub reason: String,
}

/// A job that is to run on reserved nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinWish {
    /// Its number.
    pub job: u32,
    /// As many of the reserved nodes as it asks for.
    pub nodes: BTreeSet<String>,
    /// Whether Slurm has called for its data: it does once its backfill has looked at the job.
    pub is_called: bool,
    /// Whether its data is there: Slurm has staged it in.
    pub is_staged: bool,
    /// For how long it had better wait for these nodes although Slurm would start it elsewhere, at most, once it waits for no
    /// other job.
    pub delay: Option<Nanos>,
    /// Whether the nodes are kept only while it is delayed.
    pub needs_delay: bool,
}

/// A call that is to be made, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkOrder {
    /// The call.
    pub action: SlurmAction,
    /// The workflow that it is for; `None` for a reservation of an earlier controller.
    pub workflow: Option<WorkflowKey>,
    /// Why.
    pub reason: String,
}

/// A call of Slurm failed; its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Slurm refused it.
    #[error("Slurm refused: {0}")]
    Refused(String),
    /// Slurm did not answer: it may have done it.
    #[error("Slurm did not answer: {0}")]
    Unanswered(String),
}

/// The result of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MarkStep {
    /// The calls, in their order.
    pub orders: Vec<MarkOrder>,
    /// Texts for the log: wishes that are not followed, and marks that are gone.
    pub notes: Vec<String>,
}

/// A reservation of this controller.
#[derive(Debug, Clone)]
struct Mark {
    workflow: WorkflowKey,
    nodes: BTreeSet<String>,
    /// When its nodes last changed: jobs join on a snapshot that was begun later.
    changed: Time,
    /// Slurm counts its time without jobs from then or later: from when it was made, and again with each job that joins.
    counted: Time,
    /// A job has joined since it was renewed: the longest time without jobs is to be shorter again.
    was_joined: bool,
    renewed: Time,
    end: Time,
    /// Jobs that joined, and when.
    joined: BTreeMap<u32, Time>,
    /// Since when its nodes are idle, and Slurm has called for the data of none of its jobs.
    uncalled: Option<Time>,
    /// Since when nobody wishes for it.
    unwanted: Option<Time>,
    /// It is being given up; Slurm refused to delete it if `is_in_use`.
    is_cancelled: bool,
    is_in_use: bool,
}

/// The reservations that this controller made.
#[derive(Debug, Clone)]
pub struct Marks {
    epoch: u64,
    next: u64,
    boot: Option<u64>,
    /// How far Slurm's clock is from the one that does not jump, and when it was set last.
    clock: Option<i128>,
    clock_set: Option<Time>,
    marks: BTreeMap<String, Mark>,
    /// Workflows that are only advised, until when.
    left_alone: BTreeMap<WorkflowKey, Time>,
    budgets: IdleBudgets,
    delays: Delays,
    advised: AdvisedJobs,
    /// When the last job joined.
    last_join: Option<Time>,
    /// When the calls of the last step began, at the earliest.
    stepped: Time,
    /// Calls that Slurm refused, and until when they are not tried again.
    refused: BTreeMap<SlurmAction, Time>,
    is_superseded: bool,
    pace: RenewalPace,
}

impl Marks {
    /// The marks of a controller of this epoch: none.
    #[must_use]
    pub fn new(epoch: u64) -> Self {
        Self {
            epoch,
            next: 1,
            boot: None,
            clock: None,
            clock_set: None,
            marks: BTreeMap::new(),
            left_alone: BTreeMap::new(),
            budgets: IdleBudgets::default(),
            delays: Delays::default(),
            advised: AdvisedJobs::default(),
            last_join: None,
            stepped: 0,
            refused: BTreeMap::new(),
            is_superseded: false,
            pace: RenewalPace::default(),
        }
    }

    /// The calls that turn Slurm's marks into the wished ones. `begun` is when the reading of the snapshot began; both
    /// times are of one clock that does not jump. No wish means that all marks go.
    ///
    /// The caller makes each call and reports it by [`Marks::done`] before the next step. Renewals come first, the most urgent
    /// first: they may be one batch ([`Marks::renewals_took`]).
    pub fn step(
        &mut self,
        snapshot: &SlurmSnapshot,
        begun: Time,
        wishes: &[ReservationWish],
        now: Time,
    ) -> MarkStep {
        let mut step = MarkStep::default();
        if now.saturating_sub(begun) > MAX_AGE || self.is_superseded {
            return step;
        }
        if let Some(newer) = self.newer_epoch(snapshot) {
            self.is_superseded = true;
            // They are the newer one's to end, and Slurm is read for them no more.
            self.marks.clear();
            self.delays = Delays::default();
            let note =
                format!("the controller of epoch {newer} drives now; this one no longer does");
            step.notes.push(note);
            return step;
        }
        self.pace.step(now);
        self.stepped = now;
        self.left_alone.retain(|_, until| *until > now);
        self.refused.retain(|_, until| *until > now);
        self.note_clock(snapshot.read_at, begun, now);
        let was_restarted = self.boot.is_some() && self.boot != snapshot.settings.boot_time;
        self.boot = snapshot.settings.boot_time;
        self.forget_missing(snapshot, (begun, now), was_restarted, &mut step.notes);
        self.delays
            .forget_changed(snapshot, (begun, now), was_restarted, &mut step.notes);
        self.budgets.add_idle(now, self.idle_nodes(snapshot));
        let wishes = self.delays.possible(snapshot, wishes, now);
        let wishes = &self.suitable(snapshot, &wishes, &mut step.notes);
        self.give_up_uncalled(snapshot, wishes, now, &mut step.notes);
        let wanted = self.followed(snapshot, wishes, &mut step.notes);
        self.note_wished(&wanted);
        self.cancel_unwanted(snapshot, &wanted, now, &mut step.orders);
        self.leave(snapshot, (begun, now), &mut step);
        // The most urgent wish first, as they come.
        for wish in wishes {
            if wanted
                .get(&wish.workflow)
                .is_some_and(|of| std::ptr::eq(*of, wish))
            {
                self.follow(snapshot, wish, (begun, now), &mut step.orders);
            }
        }
        self.order_delays(snapshot, &wanted, (begun, now), &mut step);
        step.orders
            .retain(|order| !self.refused.contains_key(&order.action));
        step.orders = self.arranged(step.orders);
        step
    }

    /// So many renewals took so long together: where Slurm is slow there are fewer reservations.
    pub fn renewals_took(&mut self, count: usize, took: Nanos) {
        self.pace.note(count, took);
    }

    /// A call was made: the reason of a failure is Slurm's.
    pub fn done(&mut self, order: &MarkOrder, result: Result<(), CallError>, now: Time) {
        let is_renewal = matches!(order.action, SlurmAction::Renew { .. });
        let is_unanswered = matches!(result, Err(CallError::Unanswered(_)));
        // A renewal that may have been made is no refused one: the next step tries again.
        if result.is_err() && !(is_renewal && is_unanswered) {
            let until = now.saturating_add(RETRY);
            self.refused.insert(order.action.clone(), until);
        }
        let clocks = (self.slurm_clock(self.stepped), self.slurm_clock(now));
        self.delays.done(&order.action, &result, (clocks, now));
        match (&order.action, &result) {
            (SlurmAction::Renew { .. } | SlurmAction::Resize { .. }, Err(_)) if is_unanswered => {}
            // The next reading has the outcome: a reservation without a mark is to go.
            (SlurmAction::Reserve { .. }, Err(_)) if is_unanswered => {
                if let Some(workflow) = order.workflow.clone() {
                    self.left_alone.insert(workflow, now.saturating_add(RETRY));
                }
            }
            (
                SlurmAction::Reserve {
                    reservation,
                    nodes,
                    seconds,
                    ..
                },
                Ok(()),
            ) => {
                if let Some(workflow) = order.workflow.clone() {
                    let mark = Mark {
                        workflow,
                        nodes: nodes.iter().cloned().collect(),
                        changed: now,
                        counted: now,
                        was_joined: false,
                        renewed: now,
                        end: after(now, *seconds),
                        joined: BTreeMap::new(),
                        uncalled: None,
                        unwanted: None,
                        is_cancelled: false,
                        is_in_use: false,
                    };
                    let other = self.marks.insert(reservation.clone(), mark);
                    assert!(other.is_none(), "{reservation} was made twice");
                }
            }
            (SlurmAction::Resize { reservation, nodes }, Ok(())) => {
                if let Some(mark) = self.marks.get_mut(reservation) {
                    mark.nodes = nodes.iter().cloned().collect();
                    mark.changed = now;
                }
            }
            (
                SlurmAction::Renew {
                    reservation,
                    seconds,
                    ..
                },
                Ok(()),
            ) => {
                if let Some(mark) = self.marks.get_mut(reservation) {
                    (mark.renewed, mark.end) = (now, after(now, *seconds));
                    mark.was_joined = false;
                }
            }
            (
                SlurmAction::Join {
                    job, reservation, ..
                },
                Ok(()) | Err(CallError::Unanswered(_)),
            ) => {
                self.last_join = Some(now);
                if let Some(mark) = self.marks.get_mut(reservation) {
                    mark.joined.insert(*job, now);
                    if !is_unanswered {
                        (mark.counted, mark.was_joined) = (self.stepped, true);
                    }
                }
            }
            (SlurmAction::Delete { reservation } | SlurmAction::Expire { reservation }, Ok(())) => {
                if let Some(mark) = self.marks.remove(reservation) {
                    let until = self.left_alone.entry(mark.workflow).or_default();
                    *until = now.saturating_add(AFTER_CANCEL).max(*until);
                }
            }
            (SlurmAction::Delete { reservation }, Err(CallError::Refused(_))) => {
                if let Some(mark) = self.marks.get_mut(reservation) {
                    mark.is_in_use = true;
                }
            }
            (SlurmAction::Leave { job }, Ok(())) => {
                for mark in self.marks.values_mut() {
                    mark.joined.remove(job);
                }
            }
            (
                SlurmAction::Leave { .. }
                | SlurmAction::NameFeature { .. }
                | SlurmAction::DelayUntil { .. }
                | SlurmAction::Undelay { .. },
                _,
            )
            | (SlurmAction::Delete { .. } | SlurmAction::Expire { .. }, Err(_)) => {}
            // It has begun since the snapshot, or was cancelled.
            (SlurmAction::Join { .. }, Err(_)) => {
                if let Some(workflow) = order.workflow.clone() {
                    self.left_alone.insert(workflow, now.saturating_add(RETRY));
                }
            }
            // One that lapsed, as Slurm was slow, can be made again.
            (SlurmAction::Renew { reservation, .. }, Err(_))
                if self.has_lapsed(reservation, now) =>
            {
                if let Some(workflow) = order.workflow.clone() {
                    self.left_alone.insert(workflow, now.saturating_add(RETRY));
                }
            }
            // A refused renewal is not tried again: an administrator's reservation may be in its way.
            (_, Err(_)) => {
                if let Some(workflow) = order.workflow.clone() {
                    self.left_alone
                        .insert(workflow, now.saturating_add(AFTER_REFUSAL));
                }
            }
        }
    }

    /// Why a workflow is not given nodes now.
    #[must_use]
    pub fn is_left_alone(&self, workflow: &WorkflowKey, now: Time) -> bool {
        self.left_alone
            .get(workflow)
            .is_some_and(|until| *until > now)
    }

    /// How many reservations there are.
    #[must_use]
    pub fn reservations(&self) -> usize {
        self.marks.len()
    }

    fn has(&self, workflow: &WorkflowKey) -> bool {
        self.marks.values().any(|mark| mark.workflow == *workflow)
    }

    /// Whether Slurm may have ended a reservation, as it was not renewed for too long.
    fn has_lapsed(&self, reservation: &str, now: Time) -> bool {
        let mark = self.marks.get(reservation);
        mark.is_some_and(|mark| mark.renewed.saturating_add(LASTS) <= now)
    }

    /// Whether a node is in the reservation of another workflow.
    fn is_others(&self, node: &str, workflow: &WorkflowKey) -> bool {
        let mut others = self
            .marks
            .values()
            .filter(|mark| mark.workflow != *workflow);
        others.any(|mark| mark.nodes.contains(node))
    }

    fn newer_epoch(&self, snapshot: &SlurmSnapshot) -> Option<u64> {
        let epochs = snapshot
            .reservations
            .keys()
            .filter_map(|name| epoch_of(name));
        epochs.filter(|epoch| *epoch > self.epoch).max()
    }

    /// Slurm's reservations end by the machine's clock: one that is set ahead ends them.
    fn note_clock(&mut self, read_at: u64, begun: Time, now: Time) {
        let clock = i128::from(read_at) * i128::from(SECOND) - i128::from(begun);
        let is_set = |before: i128| before.abs_diff(clock) > MAX_DRIFT;
        if self.clock.is_some_and(is_set) {
            self.clock_set = Some(now);
        }
        self.clock = Some(clock);
    }

    /// Forgets the marks that Slurm lacks. Where nobody but an administrator can have deleted one, its workflow is left alone.
    fn forget_missing(
        &mut self,
        snapshot: &SlurmSnapshot,
        (begun, now): (Time, Time),
        was_restarted: bool,
        notes: &mut Vec<String>,
    ) {
        let set = self.clock_set;
        let was_set = set.is_some_and(|at| now.saturating_sub(at) <= LASTS);
        let left_alone = &mut self.left_alone;
        self.marks.retain(|name, mark| {
            if snapshot.reservations.contains_key(name) || mark.renewed >= begun {
                return true;
            }
            let lapsed = mark.renewed.saturating_add(LASTS) <= now;
            if !(was_restarted || was_set || lapsed || mark.is_cancelled) {
                notes.push(format!(
                    "somebody deleted reservation {name}: its workflow is left alone for 10 minutes"
                ));
                let until = now.saturating_add(AFTER_DELETION);
                left_alone.insert(mark.workflow.clone(), until);
            }
            false
        });
    }

    /// The wishes without jobs that cannot be in a reservation: each is left out alone.
    fn suitable(
        &self,
        snapshot: &SlurmSnapshot,
        wishes: &[ReservationWish],
        notes: &mut Vec<String>,
    ) -> Vec<ReservationWish> {
        let check = SnapshotCheck::new(snapshot, self.marks.keys());
        let kept = wishes.iter().map(|wish| {
            let (kept, left_out) = check.suitable(wish);
            let text = |why| format!("left out of workflow {}: {why}", wish.workflow.1);
            notes.extend(left_out.into_iter().map(text));
            kept
        });
        kept.collect()
    }

    /// The wishes that are followed, by workflow.
    fn followed<'w>(
        &self,
        snapshot: &SlurmSnapshot,
        wishes: &'w [ReservationWish],
        notes: &mut Vec<String>,
    ) -> BTreeMap<WorkflowKey, &'w ReservationWish> {
        let check = SnapshotCheck::new(snapshot, self.marks.keys());
        let mut followed: BTreeMap<WorkflowKey, &ReservationWish> = BTreeMap::new();
        let mut taken: BTreeSet<&str> = BTreeSet::new();
        for wish in wishes {
            let key = &wish.workflow;
            let is_new = !self.has(key);
            // Those that are being given up count until they are gone.
            let marks = self.marks.values().map(|mark| &mark.workflow);
            let new = followed.keys().filter(|key| !self.has(key));
            let users: Vec<u32> = marks.chain(new).map(|(user, _)| *user).collect();
            let of_user = users.iter().filter(|user| **user == key.0).count();
            let checked = if self.left_alone.contains_key(key) {
                Err(WishError::LeftAlone)
            } else if followed.contains_key(key) {
                Err(WishError::Twice)
            } else if followed.len() >= self.pace.most_reservations()
                || is_new && users.len() >= self.pace.most_reservations()
            {
                Err(WishError::TooSlow(self.pace.most_reservations()))
            } else if is_new && users.len() >= MAX_RESERVATIONS {
                Err(WishError::TooMany(MAX_RESERVATIONS))
            } else if is_new && of_user >= MAX_USER_RESERVATIONS {
                Err(WishError::TooManyOfUser(MAX_USER_RESERVATIONS))
            } else if !self.budgets.is_within(key.0, snapshot.nodes.len() as u64) {
                Err(WishError::IdleTooLong)
            } else if let Some(node) = wish
                .nodes
                .iter()
                .find(|n| taken.contains(n.as_str()) || self.is_others(n, key))
            {
                Err(WishError::Reserved(node.clone()))
            } else {
                check.of(wish)
            };
            match checked {
                Ok(()) => {
                    taken.extend(wish.nodes.iter().map(String::as_str));
                    followed.insert(key.clone(), wish);
                }
                Err(why) => notes.push(format!(
                    "no nodes are reserved for workflow {} of {}: {why}",
                    key.1, wish.user
                )),
            }
        }
        followed
    }

    /// Gives up the reservations that nobody wishes for, and those of earlier controllers.
    fn cancel_unwanted(
        &mut self,
        snapshot: &SlurmSnapshot,
        wanted: &BTreeMap<WorkflowKey, &ReservationWish>,
        now: Time,
        orders: &mut Vec<MarkOrder>,
    ) {
        for mark in self.marks.values_mut() {
            mark.unwanted = match wanted.contains_key(&mark.workflow) {
                true => None,
                false => Some(mark.unwanted.unwrap_or(now)),
            };
            let since = mark.unwanted;
            mark.is_cancelled = since.is_some_and(|since| now.saturating_sub(since) >= LINGER);
        }
        for name in snapshot
            .reservations
            .keys()
            .filter(|n| epoch_of(n).is_some() && !names::is_for_sleep(n, self.epoch))
        {
            let mark = self.marks.get(name);
            if mark.is_some_and(|mark| !mark.is_cancelled) {
                continue;
            }
            let workflow = mark.map(|mark| mark.workflow.clone());
            let reason = match mark {
                Some(_) => "no job of its workflow needs these nodes now",
                None => "it is of an earlier controller",
            };
            let mut order = |action| {
                orders.push(MarkOrder {
                    action,
                    workflow: workflow.clone(),
                    reason: reason.to_owned(),
                });
            };
            if snapshot.reservations[name]
                .end
                .is_some_and(|end| end <= snapshot.read_at)
            {
                // It is over; Slurm forgets it by itself.
                continue;
            }
            // Slurm deletes no reservation that a job refers to.
            let inside = snapshot
                .jobs
                .values()
                .filter(|job| job.reservation == *name);
            let inside: Vec<u32> = inside.map(|job| job.number).take(MAX_LEAVES + 1).collect();
            let is_crowded = inside.len() > MAX_LEAVES;
            for job in inside.into_iter().filter(|_| !is_crowded) {
                order(SlurmAction::Leave { job });
            }
            let reservation = name.clone();
            let delete = SlurmAction::Delete {
                reservation: reservation.clone(),
            };
            let is_in_use = mark.is_some_and(|mark| mark.is_in_use) || is_crowded;
            order(match is_in_use || self.refused.contains_key(&delete) {
                true => SlurmAction::Expire { reservation },
                false => delete,
            });
        }
        // After a restart Slurm may know the job's reservation no more, and keeps the job waiting for it.
        let lost = snapshot.jobs.values().filter(|job| {
            is_own_reservation(&job.reservation)
                && job.state == SlurmJobState::Pending
                && !snapshot.reservations.contains_key(&job.reservation)
        });
        orders.extend(lost.map(|job| MarkOrder {
            action: SlurmAction::Leave { job: job.number },
            workflow: None,
            reason: "its reservation is gone".to_owned(),
        }));
    }

    /// Takes out jobs that joined: those that have nodes, so that an administrator may delete the reservation at any time,
    /// and those that Slurm did not start: while one waits there, others may not start. Jobs that their user put in go too:
    /// they would pass the whole queue.
    fn leave(&mut self, snapshot: &SlurmSnapshot, (begun, now): (Time, Time), step: &mut MarkStep) {
        let left_alone = &mut self.left_alone;
        let until = now.saturating_add(AFTER_REFUSAL);
        for (name, mark) in &mut self.marks {
            let is_inside = |job: &u32| {
                let job = snapshot.jobs.get(job);
                job.is_some_and(|job| job.reservation == *name)
            };
            // Slurm lost what was set on it when it was started again, or its user took it out, or it has ended.
            let is_gone = |job: &u32, since: &Time| *since < begun && !is_inside(job);
            let waits = |job: &u32| {
                let job = snapshot.jobs.get(job);
                job.is_some_and(|job| job.state == SlurmJobState::Pending)
            };
            if mark
                .joined
                .iter()
                .any(|(job, since)| is_gone(job, since) && waits(job))
            {
                left_alone.insert(mark.workflow.clone(), until);
            }
            mark.joined.retain(|job, since| !is_gone(job, since));
            let inside = snapshot
                .jobs
                .values()
                .filter(|job| job.reservation == *name);
            let mut leaves: Vec<(u32, &str)> = Vec::new();
            for job in inside {
                let since = mark.joined.get(&job.number);
                if job.state == SlurmJobState::Completing {
                    // It is about to be out of it.
                } else if job.state != SlurmJobState::Pending {
                    leaves.push((job.number, "it has its nodes"));
                } else if since.is_none() {
                    leaves.push((job.number, "its user put it in: that is left to tarn"));
                    left_alone.insert(mark.workflow.clone(), until);
                } else if since.is_some_and(|since| now.saturating_sub(*since) > JOIN_TIMEOUT) {
                    let reason = "Slurm did not start it on the nodes that were free for it";
                    leaves.push((job.number, reason));
                    left_alone.insert(mark.workflow.clone(), until);
                }
            }
            // The workflow is left alone, so its reservation goes; with many inside it is made to end.
            leaves.truncate(MAX_LEAVES);
            step.orders
                .extend(leaves.into_iter().map(|(job, reason)| MarkOrder {
                    action: SlurmAction::Leave { job },
                    workflow: Some(mark.workflow.clone()),
                    reason: reason.to_owned(),
                }));
        }
    }

    /// The calls for one workflow that is wished for.
    fn follow(
        &mut self,
        snapshot: &SlurmSnapshot,
        wish: &ReservationWish,
        (begun, now): (Time, Time),
        orders: &mut Vec<MarkOrder>,
    ) {
        let key = &wish.workflow;
        // One at a time: of two that wait in reservations, 24.11 starts no ordinary job of any partition.
        let joins = |order: &MarkOrder| matches!(order.action, SlurmAction::Join { .. });
        let may_join = !orders.iter().any(joins) && self.last_join.is_none_or(|at| at < begun);
        let mut order = |action, reason: &str| {
            orders.push(MarkOrder {
                action,
                workflow: Some(key.clone()),
                reason: reason.to_owned(),
            });
        };
        let most = check::until_another(snapshot, wish).min(MAX_RESERVATION_SECONDS);
        let seconds = wish
            .seconds
            .clamp(RESERVATION_SECONDS, most.max(RESERVATION_SECONDS));
        let Some((name, mark)) = self.marks.iter().find(|(_, m)| m.workflow == *key) else {
            let reservation = names::workflow_reservation(self.epoch, self.next);
            self.next += 1;
            let nodes = wish.nodes.iter().cloned().collect();
            let user = wish.user.clone();
            let action = SlurmAction::Reserve {
                reservation,
                nodes,
                user,
                seconds,
            };
            return order(action, &wish.reason);
        };
        if self.left_alone.contains_key(key) {
            return;
        }
        let reservation = name.clone();
        let is_short = after(now, seconds) > mark.end.saturating_add(RENEW);
        if is_short || mark.was_joined || self.pace.is_due(mark.renewed, now) {
            let age = now.saturating_sub(mark.counted) / SECOND;
            let action = SlurmAction::Renew {
                reservation: reservation.clone(),
                seconds,
                age: u32::try_from(age).unwrap_or(u32::MAX),
            };
            order(action, "its workflow continues");
        }
        if mark.nodes != wish.nodes {
            let nodes = wish.nodes.iter().cloned().collect();
            let action = SlurmAction::Resize { reservation, nodes };
            return order(action, &wish.reason);
        }
        if mark.changed >= begun || !may_join {
            return;
        }
        for join in &wish.jobs {
            let is_delayed = self.delays.contains(join.job);
            if mark.joined.contains_key(&join.job)
                || self.delays.is_unseen(join.job, begun)
                || !check::can_join(snapshot, name, (join, is_delayed))
            {
                continue;
            }
            for node in &join.nodes {
                if let Some(features) = check::features_without_name(snapshot, node) {
                    let node = node.clone();
                    let action = SlurmAction::NameFeature { node, features };
                    order(action, "jobs prefer it by its name");
                }
            }
            let action = SlurmAction::Join {
                job: join.job,
                reservation: reservation.clone(),
                nodes: join.nodes.iter().cloned().collect(),
            };
            order(action, "its nodes are free, and its data is there");
            return;
        }
    }
}

fn after(now: Time, seconds: u32) -> Time {
    now.saturating_add(Nanos::from(seconds).saturating_mul(SECOND))
}
