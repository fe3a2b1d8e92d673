//! The event log, as the loop that drives the engine sees it.

use serde::{Deserialize, Serialize};
use tarn_types::action::Action;
use tarn_types::event::Event;
use tarn_types::units::Time;

/// One record of the event log: what happened, and what the engine decided about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Counts from 0 without a gap.
    pub seq: u64,
    /// When, in nanoseconds since the run's start; never smaller than in the record before.
    pub now: Time,
    /// Version of the engine that decided.
    pub engine: u32,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
    /// What is to be done about it, in order.
    pub actions: Vec<Action>,
}

/// The log cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot append to the event log {path}: {source}; free space there, then `tarn resume`")]
pub struct JournalError {
    /// The log's path.
    pub path: String,
    /// What the system said.
    pub source: std::io::Error,
}

/// Where records go. When `append` returns, the records survive a crash of the machine.
pub trait Journal {
    /// Appends records, all durable on return.
    ///
    /// # Errors
    /// When they cannot be made durable; the run must stop, and nothing decided in them may be done.
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError>;
}
