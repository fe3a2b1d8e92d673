//! The promise to an ordinary job. Unlike all else that the planner knows it does not follow from Slurm's state: the
//! planner gets it again when it is built again, also by another controller.

use crate::SitePlanner;
use crate::jobs::{JobTable, KnownStage};
use tarn_types::site::SiteEvent;
use tarn_types::units::Time;

/// The begin that an ordinary job can rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SitePromise {
    /// The job's number in Slurm.
    pub job: u32,
    /// When it was submitted: another job may get its number.
    pub submitted: Time,
    /// The begin: nanoseconds since 1970.
    pub begin: Time,
}

impl SitePromise {
    /// The event that has a planner know it, if its job still waits.
    pub(crate) fn event(&self, jobs: &JobTable) -> Option<SiteEvent> {
        let known = jobs.jobs.get(&self.job)?;
        let is_it = known.spec.submitted == Some(self.submitted);
        let waits = known.stage == KnownStage::Waits && known.spec.flow.is_none();
        let job = *known.ids.first().filter(|_| is_it && waits)?;
        let begin = self.begin;
        Some(SiteEvent::Promised { job, begin })
    }
}

impl SitePlanner {
    /// The promise that an earlier planner has given.
    pub fn restore_promise(&mut self, promise: SitePromise) {
        self.promise = Some(promise);
    }

    /// The promise to an ordinary job that waits.
    pub fn promise(&self) -> Option<SitePromise> {
        self.promise
    }

    pub(crate) fn note_promise(&mut self) {
        self.promise = self.planner.promise().and_then(|(id, begin)| {
            let job = self.jobs.number_of(id)?;
            let submitted = self.jobs.jobs.get(&job)?.spec.submitted?;
            // While no nodes fit it, no begin is known.
            let promise = SitePromise {
                job,
                submitted,
                begin,
            };
            (begin < Time::MAX).then_some(promise)
        });
    }
}
