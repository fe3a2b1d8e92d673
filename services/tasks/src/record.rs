//! The journal's records.

use crate::job::Process;
use serde::{Deserialize, Serialize};
use tarn_proto::local::{
    JobChange, JobId, Scope, SpaceChange, TaskId, TaskOutcome, TaskSpec, UserId,
};
use tarn_types::units::Time;

/// What the journal holds: what must survive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskLogRecord {
    /// tarnd was started once more.
    Began {
        /// Counts the starts.
        generation: u64,
    },
    /// A durable task was taken.
    Submitted {
        /// Its id.
        id: TaskId,
        /// Whose it is.
        user: UserId,
        /// For which job.
        job: Option<JobId>,
        /// When, nanoseconds since 1970.
        at: Time,
        /// When it must have ended.
        deadline: Option<Time>,
        /// What was asked for.
        spec: TaskSpec,
    },
    /// A durable task has ended.
    Ended {
        /// Whose it was.
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
    /// What a job's tasks have put into a space.
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
