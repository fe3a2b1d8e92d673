//! Jobs that may not begin before a time: until then, each lacks one thing more.

use super::state::PlannerState;
use std::collections::BTreeSet;
use tarn_types::site::{Job, JobId};
use tarn_types::units::Time;

/// Those whose time has not come, in its order.
#[derive(Debug, Clone, Default)]
pub(crate) struct LaterJobs(BTreeSet<(Time, JobId)>);

impl LaterJobs {
    /// Whether a job, as it was submitted, is among them.
    pub(crate) fn has(&self, id: JobId, job: &Job) -> bool {
        self.0.contains(&(job.not_before, id))
    }

    /// Takes a job out. Returns whether it was there.
    pub(crate) fn remove(&mut self, id: JobId, job: &Job) -> bool {
        self.0.remove(&(job.not_before, id))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl PlannerState {
    /// What a job lacks because its time has not come: 1 or nothing.
    pub(crate) fn note_later(&mut self, id: JobId, job: &Job) -> u32 {
        let waits = job.not_before > self.now;
        if waits {
            self.later.0.insert((job.not_before, id));
        }
        u32::from(waits)
    }

    /// Before every decision: jobs whose time has come lack nothing of it any more.
    pub(crate) fn begin_later(&mut self) {
        while let Some((at, id)) = self.later.0.first().copied() {
            if at > self.now {
                return;
            }
            self.later.0.pop_first();
            self.lacks_less(id);
        }
    }

    /// After every decision: the next of them needs a step.
    pub(crate) fn remind_of_later(&mut self) {
        if let Some((at, _)) = self.later.0.first().copied() {
            self.remind(at);
        }
    }
}
