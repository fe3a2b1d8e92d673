//! The journal's records.

use crate::job::Process;
use serde::{Deserialize, Serialize};
use tarn_proto::local::{
    JobChange, JobId, Scope, SpaceChange, TaskId, TaskOutcome, TaskSpec, UserId,
};
use tarn_types::units::Time;

/// A record of the journal: state that must survive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskLogRecord {
    /// tarnd was started again.
    Began {
        /// Counts the starts.
        generation: u64,
    },
    /// A durable task was taken.
    Submitted {
        /// Its id.
        id: TaskId,
        /// The owner.
        user: UserId,
        /// For which job.
        job: Option<JobId>,
        /// When, nanoseconds since 1970.
        at: Time,
        /// When it must have ended.
        deadline: Option<Time>,
        /// The task as it was submitted.
        spec: TaskSpec,
    },
    /// A durable task has ended.
    Ended {
        /// The owner.
        user: UserId,
        /// When, nanoseconds since 1970.
        at: Time,
        /// How.
        outcome: TaskOutcome,
    },
    /// Dataspaces have changed.
    Space(SpaceChange),
    /// Jobs have changed.
    Job(JobChange),
    /// A process was added to a job.
    Process(Process),
    /// The bytes that a job's tasks have put into a space.
    JobUsed {
        /// The job.
        job: JobId,
        /// The space.
        space: String,
        /// Bytes.
        used: u64,
    },
    /// Tasks were paused or resumed.
    Paused {
        /// Which; of tasks those that are durable.
        scope: Scope,
        /// Paused, or resumed.
        on: bool,
    },
}
