//! The event log, as the loop that drives the engine sees it.

use serde::{Deserialize, Serialize};
use tarn_types::action::Action;
use tarn_types::event::Event;
use tarn_types::units::Time;

/// One record of the event log: an event, and the engine's decisions about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Counts from 0 without a gap.
    pub seq: u64,
    /// When, in nanoseconds since the run's start; never smaller than in the record before.
    pub now: Time,
    /// Version of the engine that decided.
    pub engine: u32,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
    /// The actions that follow from it, in order.
    pub actions: Vec<Action>,
}

/// The log cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot append to the event log {path}: {source}; free space there, then `tarn resume`")]
pub struct JournalError {
    /// The log's path.
    pub path: String,
    /// The system's error.
    pub source: std::io::Error,
}

/// The destination of records. When `append` returns, the records survive a crash of the machine.
pub trait Journal {
    /// Appends records, all durable on return.
    ///
    /// # Errors
    /// When they cannot be made durable; the run must stop, and nothing decided in them may be done.
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError>;
}
