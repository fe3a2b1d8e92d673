//! The world, as the loop that drives the engine sees it: local, a Slurm allocation, a simulation.

use tarn_types::action::Action;
use tarn_types::event::Event;
use tarn_types::units::Time;

/// The world itself is broken (not a step or transfer in it: those are events).
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WorldError(pub String);

/// Does what the engine decides and reports what happens. Of a lost node it reports in this order: the loss
/// ([`Event::NodeLost`]), the end of all that was under way with it, and that it is back, if it ever is ([`Event::NodeBack`]).
pub trait World {
    /// Nanoseconds since the run's start, never going back.
    fn now(&self) -> Time;

    /// Begins an action. Returns at once; the outcome comes as an event.
    ///
    /// # Errors
    /// When the world is broken as a whole. An error of one step or transfer is an event.
    fn perform(&mut self, action: &Action) -> Result<(), WorldError>;

    /// The next event, or [`Event::Timer`] once `until` has come.
    ///
    /// # Errors
    /// As for [`World::perform`]; also when nothing is under way and `until` is `None`.
    fn next(&mut self, until: Option<Time>) -> Result<(Time, Event), WorldError>;

    /// An event that has happened already, if there is one: never blocks. Lets the loop put several events
    /// into one durable append.
    fn poll(&mut self) -> Option<(Time, Event)>;
}

impl<W: World + ?Sized> World for Box<W> {
    fn now(&self) -> Time {
        (**self).now()
    }

    fn perform(&mut self, action: &Action) -> Result<(), WorldError> {
        (**self).perform(action)
    }

    fn next(&mut self, until: Option<Time>) -> Result<(Time, Event), WorldError> {
        (**self).next(until)
    }

    fn poll(&mut self) -> Option<(Time, Event)> {
        (**self).poll()
    }
}
