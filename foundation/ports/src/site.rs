//! A site, as the loop that drives the planner sees it.

use crate::world::WorldError;
use tarn_types::site::{SiteAction, SiteEvent};
use tarn_types::units::Time;

/// Does what the planner decides and reports what happens.
pub trait SiteWorld {
    /// Begins an action. Returns at once; the outcome comes as an event.
    ///
    /// # Errors
    /// When the planner orders what cannot be: an error of the planner, never of a job.
    fn perform(&mut self, now: Time, action: &SiteAction) -> Result<(), WorldError>;

    /// The next event and its time, or [`SiteEvent::Timer`] once `until` has come. `None` when nothing will happen any
    /// more and nothing is waited for.
    ///
    /// # Errors
    /// When the world itself is broken.
    fn next(&mut self, until: Option<Time>) -> Result<Option<(Time, SiteEvent)>, WorldError>;
}
