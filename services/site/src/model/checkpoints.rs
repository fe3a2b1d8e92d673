//! Checkpoints of steps that continue from them: they outlive their jobs.

use serde::{Deserialize, Serialize};
use tarn_proto::site::{CheckpointFolder, SlurmJobId, Uid};
use tarn_types::units::Time;
use tarn_types::workflow::CheckpointMethod;

/// The user and the step that checkpoints are of.
pub(crate) type CheckpointKey = (Uid, CheckpointFolder);

/// How a job continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobRestart {
    pub(crate) folder: CheckpointFolder,
    pub(crate) from: CheckpointMethod,
    /// Bytes that they take on each node.
    pub(crate) space: u64,
    /// The store that they are wished to be in.
    pub(crate) tier: Option<String>,
}

/// Checkpoints on nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckpointUse {
    /// The job that has them, or had them last.
    pub(crate) job: SlurmJobId,
    /// When.
    pub(crate) used: Time,
}
