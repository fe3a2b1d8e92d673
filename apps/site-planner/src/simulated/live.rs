//! A job between its submission and its end.

use std::collections::BTreeSet;
use tarn_simulator::site::MachineStream;
use tarn_types::site::JobId;
use tarn_types::units::Time;

/// A job that is submitted and not over.
#[derive(Debug)]
pub(super) struct LiveJob {
    pub(super) work: JobId,
    pub(super) has_lines: bool,
    /// Which of its attempts this is: what was due for an earlier one does not happen.
    pub(super) attempt: u32,
    pub(super) phase: LivePhase,
    /// Of its program's present reading or writing.
    pub(super) streams: BTreeSet<MachineStream>,
    pub(super) since: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LivePhase {
    Waits,
    /// Its nodes wait for its data.
    Gate,
    Reads,
    Computes,
    Writes,
    /// Its nodes are free, and its results are published.
    Out,
}
