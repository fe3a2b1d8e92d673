//! Jobs that may not begin before a time: until then, each lacks one thing more.

use super::state::PlannerState;
use tarn_types::site::{Job, JobId};

impl PlannerState {
    /// How many things a job lacks because its time has not come: 1 or none.
    pub(crate) fn note_later(&mut self, id: JobId, job: &Job) -> u32 {
        let waits = job.not_before > self.now;
        if waits {
            self.later.insert(id, job);
        }
        u32::from(waits)
    }

    /// Before every decision: jobs whose time has come lack nothing of it any more.
    pub(crate) fn begin_later(&mut self) {
        while let Some((at, id)) = self.later.first() {
            if at > self.now {
                return;
            }
            self.later.take_first();
            self.lacks_less(id);
        }
    }

    /// After every decision: the next of them needs a step.
    pub(crate) fn remind_of_later(&mut self) {
        if let Some((at, _)) = self.later.first() {
            self.remind(at);
        }
    }
}
