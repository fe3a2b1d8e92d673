//! The assumptions about a run: the run times of steps, the content of their outputs and of the sources.

use std::collections::BTreeMap;
use tarn_types::event::RunError;
use tarn_types::id::{DataId, InstanceId};
use tarn_types::part::PartInfo;
use tarn_types::units::{Nanos, SECOND};

/// How long an instance runs.
pub type RunTime = Box<dyn Fn(InstanceId) -> Nanos + Send>;
/// The files that an instance writes to one of its outputs: relative paths with their sizes.
pub type Contents = Box<dyn Fn(InstanceId, DataId) -> Vec<SimEntry> + Send>;

/// The assumptions of a simulation.
pub struct Estimates {
    /// How long an instance runs.
    pub run_time: RunTime,
    /// The files that an instance writes. The dataset's partition divides them into parts: by top-level entry, or by the
    /// rank that its scatter rule gives to a path.
    pub output: Contents,
    /// The parts of the sources (version 0), or why they cannot be listed.
    pub sources: BTreeMap<DataId, Result<Vec<PartInfo>, RunError>>,
    /// Allocation unit of the tiers in bytes: a file takes whole ones, a part one more for its folder. 1 makes
    /// a replica take as many bytes as its content has.
    pub block: u64,
}

/// One path of a simulated output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimEntry {
    /// Relative path; its first component is the entry.
    pub path: String,
    /// Bytes below it.
    pub bytes: u64,
    /// Files below it.
    pub files: u64,
}

impl SimEntry {
    /// One file.
    pub fn file(path: impl Into<String>, bytes: u64) -> Self {
        Self {
            path: path.into(),
            bytes,
            files: 1,
        }
    }
}

/// `bytes` in `count` files `0`, `1`, ..., as evenly as they divide.
pub fn even_entries(count: u64, bytes: u64) -> Vec<SimEntry> {
    let share = |n: u64| bytes / count + u64::from(n < bytes % count);
    (0..count)
        .map(|n| SimEntry::file(n.to_string(), share(n)))
        .collect()
}

impl Default for Estimates {
    /// Steps run for a second and write one file of a byte; there are no sources.
    fn default() -> Self {
        Self {
            run_time: Box::new(|_| SECOND),
            output: Box::new(|_, _| vec![SimEntry::file("data", 1)]),
            sources: BTreeMap::new(),
            block: 1,
        }
    }
}

impl Estimates {
    /// Space that a part takes.
    pub(crate) fn stored(&self, bytes: u64, files: u64) -> u64 {
        if self.block <= 1 {
            return bytes;
        }
        // Files of equal size: each takes whole blocks.
        let a_file = bytes
            .div_ceil(files.max(1))
            .div_ceil(self.block)
            .saturating_mul(self.block);
        a_file.saturating_mul(files).saturating_add(self.block)
    }
}
