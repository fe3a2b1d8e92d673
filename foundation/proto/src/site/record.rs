//! Records of the data of jobs that have ended: for a site's history.

use super::{Owner, SlurmJobId, Uid};
use serde::{Deserialize, Serialize};
use tarn_types::units::{Nanos, Time};

/// Records in one reply: a record has at most some 20 KiB, a message 32 MiB.
pub const MAX_RECORDS_SENT: usize = 500;
/// Datasets of a job in its record; of more, the first.
pub const MAX_RECORD_USES: usize = 64;

/// The data of a job. A time of 0: it did not come so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDataRecord {
    /// The job.
    pub job: SlurmJobId,
    /// Its user.
    pub user: Uid,
    /// The owner of its workflow.
    pub owner: Owner,
    /// The workflow's name.
    pub workflow: String,
    /// When it was taken in, and its data was brought ahead as far as that was possible: Slurm may begin it then.
    pub taken_in: Time,
    /// When it got its nodes, the last time.
    pub began: Time,
    /// When the last of its inputs came while it had them.
    pub fetched: Time,
    /// When its script had ended.
    pub ended: Time,
    /// When its outputs were outside, where they belong.
    pub delivered: Time,
    /// Its inputs.
    pub reads: Vec<RecordedUse>,
    /// Its outputs.
    pub writes: Vec<RecordedUse>,
    /// Bytes that were read outside for it, and the time.
    pub read_outside: MovedBytes,
    /// Bytes that were written outside for it, and the time.
    pub written_outside: MovedBytes,
    /// Bytes that came for it from other nodes, and the time.
    pub between_nodes: MovedBytes,
}

/// A version of a dataset as a job used it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedUse {
    /// The owner.
    pub owner: Owner,
    /// The workflow.
    pub workflow: String,
    /// The dataset.
    pub dataset: String,
    /// The version.
    pub version: u32,
    /// Its bytes.
    pub bytes: u64,
    /// Each node of the job has all of it.
    pub is_whole: bool,
    /// It belongs outside at the end.
    pub keep: bool,
}

/// Bytes, and how long their transfers took, one after the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedBytes {
    /// The bytes.
    pub bytes: u64,
    /// The sum of the transfers' times.
    pub time: Nanos,
}

impl MovedBytes {
    /// Counts a transfer.
    pub fn add(&mut self, bytes: u64, time: Nanos) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.time = self.time.saturating_add(time);
    }
}
