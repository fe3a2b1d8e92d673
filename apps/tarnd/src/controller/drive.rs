//! Mode `drive`: the planner's thread makes the calls by which Slurm follows the plan, and writes each with its reason
//! into the log of plans. docs/internals/driving-slurm.md, "One cycle of drive".

use super::ControllerInput;
use super::mode::SlurmCall;
use super::plan_log::PlanLog;
use super::reader::{SlurmReader, SlurmReading};
use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tarn_site_planner::{CallError, DelayWish, MAX_AGE, MarkOrder, Marks, ReservationWish};
use tarn_slurm::{SlurmAction, SlurmSnapshot, is_as_read, perform_all};
use tarn_types::units::{Nanos, Time};

/// Calls of Slurm that are made within [`SPAN`] at most.
const MAX_CALLS: usize = 10;
const SPAN: Duration = Duration::from_secs(1);

/// The calls of one step.
struct MarkRun<'r, 'm, 'l> {
    reading: &'r SlurmReading,
    /// When the reading began.
    begun: Time,
    /// Whether the mode in which they were decided lasts.
    may_call: &'r dyn Fn() -> Option<SlurmCall<'m>>,
    log: &'l mut PlanLog,
    /// For the log.
    now: Time,
}

/// The marks that the planner wishes for.
#[derive(Debug, Default)]
pub(super) struct DriveWishes {
    pub(super) reservations: Vec<ReservationWish>,
    pub(super) delays: Vec<DelayWish>,
}

/// Makes marks in Slurm, and removes them.
pub(super) struct SlurmDriver {
    marks: Marks,
    reader: SlurmReader,
    inputs: Sender<ControllerInput>,
    /// The beginning of its clock, which does not jump.
    began: Instant,
    calls: VecDeque<Instant>,
    /// The notes of the last step: each is written once while it holds.
    noted: Vec<String>,
}

impl SlurmDriver {
    /// One without marks, of the controller of this epoch.
    pub(super) fn new(epoch: u64, reader: SlurmReader, inputs: Sender<ControllerInput>) -> Self {
        Self {
            marks: Marks::new(epoch),
            reader,
            inputs,
            began: Instant::now(),
            calls: VecDeque::new(),
            noted: Vec::new(),
        }
    }

    /// Whether there are marks of this controller.
    pub(super) fn has_marks(&self) -> bool {
        self.marks.has_any()
    }

    /// The snapshot without the begin times that tarn set, and the jobs that have one.
    pub(super) fn undelayed<'s>(
        &self,
        snapshot: &'s SlurmSnapshot,
    ) -> (Cow<'s, SlurmSnapshot>, BTreeSet<u32>) {
        (self.marks.undelayed(snapshot), self.marks.delayed())
    }

    /// Makes Slurm's marks those that are wished for, as long as the mode in which that is decided lasts. `now` is for the log alone.
    pub(super) fn follow<'m>(
        &mut self,
        reading: &SlurmReading,
        wishes: &DriveWishes,
        may_call: impl Fn() -> Option<SlurmCall<'m>>,
        log: &mut PlanLog,
        now: Time,
    ) {
        let begun = reading.oldest_part().saturating_duration_since(self.began);
        self.marks.wish_delays(wishes.delays.clone());
        let (snapshot, reservations) = (&reading.snapshot, &wishes.reservations);
        let step = self
            .marks
            .step(snapshot, nanos(begun), reservations, self.time());
        for note in step.notes.iter().filter(|note| !self.noted.contains(note)) {
            log.note_mark(now, note);
        }
        self.noted = step.notes;
        let mut run = MarkRun {
            reading,
            begun: nanos(begun),
            may_call: &may_call,
            log,
            now,
        };
        let is_renewal = |order: &&MarkOrder| matches!(order.action, SlurmAction::Renew { .. });
        let renewals = step.orders.iter().take_while(is_renewal).count();
        let (renewals, others) = step.orders.split_at(renewals);
        if self.renew(renewals, &mut run) {
            self.perform(others, &mut run);
        }
        self.reader.set_marked(self.has_marks());
        for reserved in self.marks.newly_reserved(self.time()) {
            // It ends only with the program.
            let _ = self.inputs.send(ControllerInput::Reserved(reserved));
        }
        if !step.orders.is_empty() {
            // The next step relies on what Slurm made of these.
            self.reader.request();
        }
    }

    /// Renews reservations by one process; one by one if Slurm refuses any of them. False if Slurm does not answer.
    fn renew(&mut self, orders: &[MarkOrder], run: &mut MarkRun<'_, '_, '_>) -> bool {
        if orders.len() < 2 {
            return self.perform(orders, run);
        }
        if self.is_too_old(run) {
            return false;
        }
        let Some(call) = (run.may_call)() else {
            return false;
        };
        let actions: Vec<SlurmAction> = orders.iter().map(|order| order.action.clone()).collect();
        let began = Instant::now();
        let result = perform_all(&actions);
        self.marks
            .renewals_took(orders.len(), nanos(began.elapsed()));
        drop(call);
        match result {
            Err(why) if !why.is_unanswered() => self.perform(orders, run),
            result => {
                let result = result.map_err(|e| CallError::Unanswered(e.to_string()));
                for order in orders {
                    run.log.note_mark(run.now, &text(order, &result));
                    self.marks.done(order, result.clone(), self.time());
                }
                result.is_ok()
            }
        }
    }

    /// Makes calls one by one. False if one is not to be made any more, or Slurm does not answer.
    fn perform(&mut self, orders: &[MarkOrder], run: &mut MarkRun<'_, '_, '_>) -> bool {
        for order in orders {
            self.pause();
            if self.is_too_old(run) {
                return false;
            }
            let Some(_call) = (run.may_call)() else {
                return false;
            };
            if is_changed_since(order, run.reading) {
                // The next reading has it as it is.
                continue;
            }
            let began = Instant::now();
            let result = order.action.perform();
            if matches!(order.action, SlurmAction::Renew { .. }) {
                self.marks.renewals_took(1, nanos(began.elapsed()));
            }
            let result = result.map_err(|e| match e.is_unanswered() {
                true => CallError::Unanswered(e.to_string()),
                false => CallError::Refused(e.to_string()),
            });
            let is_answered = !matches!(result, Err(CallError::Unanswered(_)));
            run.log.note_mark(run.now, &text(order, &result));
            self.marks.done(order, result, self.time());
            if !is_answered {
                return false;
            }
        }
        true
    }

    /// The orders were right for the state that was read then.
    fn is_too_old(&self, run: &MarkRun<'_, '_, '_>) -> bool {
        self.time().saturating_sub(run.begun) > MAX_AGE
    }

    fn time(&self) -> Time {
        nanos(self.began.elapsed())
    }

    /// Waits until one more call is within the bound.
    fn pause(&mut self) {
        if self.calls.len() == MAX_CALLS
            && let Some(first) = self.calls.pop_front()
        {
            std::thread::sleep(SPAN.saturating_sub(first.elapsed()));
        }
        self.calls.push_back(Instant::now());
    }
}

/// Whether a job that is to join or to wait is not as it was read: its user has changed it, or Slurm does not say.
fn is_changed_since(order: &MarkOrder, reading: &SlurmReading) -> bool {
    let (SlurmAction::Join { job, .. }
    | SlurmAction::DelayUntil { job, .. }
    | SlurmAction::Undelay { job }) = &order.action
    else {
        return false;
    };
    let listed = reading.snapshot.jobs.get(job);
    listed.is_some_and(|listed| !is_as_read(listed).unwrap_or(false))
}

fn text(order: &MarkOrder, result: &Result<(), CallError>) -> String {
    let workflow = match &order.workflow {
        Some((user, name)) => format!(" for workflow {name} of user {user}"),
        None => String::new(),
    };
    let refused = match result {
        Ok(()) => String::new(),
        Err(why) => format!("; {why}"),
    };
    format!("{}{workflow}: {}{refused}", order.action, order.reason)
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
