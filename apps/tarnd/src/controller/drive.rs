//! Mode `drive`: the planner's thread makes the calls by which Slurm follows the plan, and writes each with its reason
//! into the log of plans. docs/internals/driving-slurm.md, "One cycle of drive".

use super::plan_log::PlanLog;
use super::reader::{SlurmReader, SlurmReading};
use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use tarn_site_planner::{CallRefused, MAX_AGE, MarkOrder, Marks, ReservationWish};
use tarn_slurm::{SlurmError, SlurmSnapshot};
use tarn_types::units::{Nanos, Time};

/// Calls of Slurm that are made within [`SPAN`] at most.
const MAX_CALLS: usize = 10;
const SPAN: Duration = Duration::from_secs(1);

/// Makes marks in Slurm, and removes them.
pub(super) struct SlurmDriver {
    marks: Marks,
    reader: SlurmReader,
    /// The beginning of its clock, which does not jump.
    began: Instant,
    calls: VecDeque<Instant>,
    /// The notes of the last step: each is written once while it holds.
    noted: Vec<String>,
}

impl SlurmDriver {
    /// One without marks, of the controller of this epoch.
    pub(super) fn new(epoch: u64, reader: SlurmReader) -> Self {
        Self {
            marks: Marks::new(epoch),
            reader,
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

    /// Makes Slurm's marks those that are wished for. `now` is for the log alone.
    pub(super) fn follow(
        &mut self,
        reading: &SlurmReading,
        wishes: &[ReservationWish],
        log: &mut PlanLog,
        now: Time,
    ) {
        let begun = reading.oldest_part().saturating_duration_since(self.began);
        let step = self
            .marks
            .step(&reading.snapshot, nanos(begun), wishes, self.time());
        for note in step.notes.iter().filter(|note| !self.noted.contains(note)) {
            log.note_mark(now, note);
        }
        self.noted = step.notes;
        for order in &step.orders {
            self.pause();
            // The order was right for the state that was read then.
            if self.time().saturating_sub(nanos(begun)) > MAX_AGE {
                break;
            }
            let result = order.action.perform();
            let is_late = matches!(result, Err(SlurmError::Late { .. }));
            let result = result.map_err(|e| CallRefused(e.to_string()));
            log.note_mark(now, &text(order, &result));
            self.marks.done(order, result, self.time());
            if is_late {
                break;
            }
        }
        self.reader.set_marked(self.has_marks());
        if !step.orders.is_empty() {
            // The next step relies on what Slurm made of these.
            self.reader.request();
        }
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

fn text(order: &MarkOrder, result: &Result<(), CallRefused>) -> String {
    let workflow = match &order.workflow {
        Some((user, name)) => format!(" for workflow {name} of user {user}"),
        None => String::new(),
    };
    let refused = match result {
        Ok(()) => String::new(),
        Err(why) => format!("; Slurm refused: {why}"),
    };
    format!("{}{workflow}: {}{refused}", order.action, order.reason)
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
