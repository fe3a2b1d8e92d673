//! The events and activities in the simulated world of a run.

use crate::network::Finished;
use tarn_ports::WorldError;
use tarn_types::action::AttemptSpec;
use tarn_types::event::{Event, IntactReplica, RunError, RunErrorKind};
use tarn_types::id::{DataId, InstanceId, NodeId};
use tarn_types::part::{PartRef, Transfer};
use tarn_types::units::{Nanos, Time};

/// An event at a known time.
pub(crate) enum ScheduledEvent {
    Event(Event),
    End(InstanceId, u32),
    Lose(NodeId, Outage),
    Back(NodeId, Keeps),
    Slower(u64),
    Faster(u64),
}

/// The replicas that a node keeps when it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// It was cut off.
    All,
    /// It was switched off.
    Nothing,
    /// About half of the replicas, drawn with this seed.
    Half(u64),
}

/// How a node is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// For how long; `None` for ever.
    pub lasts: Option<Nanos>,
    /// The replicas that it keeps.
    pub keeps: Keeps,
}

/// The replicas on a lost node.
#[derive(Debug)]
pub(crate) struct LostNodeReplicas(pub(crate) Vec<IntactReplica>);

/// An attempt that runs.
pub(crate) struct SimulatedAttempt {
    pub(crate) run: AttemptSpec,
    /// A node of it is lost: it ends soon.
    pub(crate) lost: bool,
    pub(crate) since: Time,
    pub(crate) run_time: Nanos,
    /// As what it fails.
    pub(crate) fails: Option<RunErrorKind>,
}

/// A transfer that waits or moves.
pub(crate) struct SimulatedTransfer {
    pub(crate) order: Transfer,
    pub(crate) bytes: u64,
    /// Space that it took where it goes: given back as a whole where it fails.
    pub(crate) space: u64,
    pub(crate) fails: Option<RunErrorKind>,
    /// Its bytes have moved, but for the last of what it follows, which are still on their way.
    pub(crate) moved: Option<Finished>,
}

/// The error for an order that no correct engine gives.
pub(crate) fn broken<T>(what: String) -> Result<T, WorldError> {
    Err(WorldError(format!(
        "simulation: {what}; this is an error of the engine that ordered it"
    )))
}

pub(crate) fn part_ref(data: DataId, version: u32, origin: u32, seq: u32) -> PartRef {
    PartRef {
        data,
        version,
        origin,
        seq,
    }
}

pub(crate) fn failure(kind: RunErrorKind, message: impl Into<String>) -> RunError {
    RunError {
        kind,
        message: message.into(),
    }
}
