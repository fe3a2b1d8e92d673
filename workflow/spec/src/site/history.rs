//! A site's history as a workload: format `tarn-history 1` (docs/reference/workload-file.md, "Histories").
//!
//! A line is a JSON object. Times and spans are nanoseconds; times count from the beginning of the history. Nothing in it
//! is a name: users, jobs, data, workflows and nodes are numbers, so it can be given away.

mod read;
mod write;

pub(crate) use read::{is_history, read_history};
pub use write::write_history;

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tarn_types::site::{Mode, NodeMask, Spread};
use tarn_types::units::{Nanos, Time};

/// The first line of a history: its format and version.
pub(crate) const FORMAT: &str = "tarn-history 1";
/// The beginning of the first line in any version.
pub(crate) const FORMAT_NAME: &str = "tarn-history ";
/// Bytes of a line: a job that reads and writes [`MAX_USES`] items.
const MAX_LINE: u64 = 1 << 20;
/// Items that a job reads or writes, and jobs that it waits for.
const MAX_USES: usize = 10_000;
/// Sets of nodes that jobs are bound to: a site has some partitions.
const MAX_MASKS: usize = 256;

/// A line. A job, an item and a workflow have the number of lines of their kind before them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum HistoryLine {
    /// Data.
    Item(HistoryItem),
    /// A workflow.
    Workflow(HistoryFlow),
    /// A job. What it names stands above it.
    Job(Box<HistoryJob>),
    /// A workflow's kept data was outside.
    Delivered(HistoryDelivery),
    /// The bytes that the site moved, and its energy, in all.
    Totals(HistoryTotals),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryItem {
    /// Its true size.
    bytes: u64,
    /// The size that was stated at submission, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stated: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    outside: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    keep: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryFlow {
    /// When its first job could begin.
    at: Time,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryJob {
    user: u32,
    /// When it could begin, but for the jobs that it waits for and for free nodes.
    at: Time,
    nodes: u32,
    /// On each node; 0 for whole nodes.
    #[serde(default, skip_serializing_if = "is_default")]
    cores: u32,
    /// Bytes on each node.
    #[serde(default, skip_serializing_if = "is_default")]
    memory: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    gpus: u32,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "mode_word")]
    mode: Option<Mode>,
    /// How long it had its nodes without reading and writing outside.
    compute: Nanos,
    limit: Nanos,
    /// The run time that may be expected of it; at most its limit.
    expect: Nanos,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workflow: Option<u32>,
    /// The only nodes that it might have, as pairs of first and last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    on: Option<Arc<NodeMask>>,
    /// It might not begin before.
    #[serde(default, skip_serializing_if = "is_default")]
    not_before: Time,
    /// Its place among the jobs of no workflow, as a time; without one, by its coming.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    place: Option<u64>,
    /// Jobs that had to end before, beside the makers of what it reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    after: Vec<u32>,
    /// It was submitted at the end of this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    follows: Option<u32>,
    /// It ran in the allocation of this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    continues: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reads: Vec<HistoryRead>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    writes: Vec<u32>,
    /// The outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recorded: Option<HistoryTimes>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryRead {
    item: u32,
    #[serde(default = "share", skip_serializing_if = "is_share")]
    spread: Spread,
}

/// The outcome of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryTimes {
    /// When it came; another time than `at` of a job that followed another one.
    submitted: Time,
    /// When all that it waited for but nodes was there.
    ready: Time,
    begun: Time,
    released: Time,
    /// Of the time between: how long it waited for its data, or wrote outside.
    #[serde(default, skip_serializing_if = "is_default")]
    io: Nanos,
    /// Nodes times their time.
    node_time: Nanos,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryDelivery {
    workflow: u32,
    at: Time,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryTotals {
    /// When the last job had ended and the last kept data was outside.
    end: Time,
    external_in: u64,
    external_out: u64,
    peer: u64,
    retained: u64,
    /// Of all nodes, as far as it was measured.
    joules: u64,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn share() -> Spread {
    Spread::Share
}

fn is_share(spread: &Spread) -> bool {
    *spread == Spread::Share
}

/// A memory mode by the word that cluster and workload files have for it.
mod mode_word {
    use crate::site::machine::MODES;
    use serde::{Deserialize, Deserializer, Serializer, de};
    use tarn_types::site::Mode;

    pub(super) fn serialize<S: Serializer>(mode: &Option<Mode>, to: S) -> Result<S::Ok, S::Error> {
        let word = MODES.iter().find(|(_, known)| Some(*known) == *mode);
        to.serialize_str(word.map_or("", |(word, _)| word))
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Mode>, D::Error> {
        let text = String::deserialize(from)?;
        let known = MODES.iter().find(|(word, _)| *word == text);
        let known = known.ok_or_else(|| de::Error::custom("no such memory mode"))?;
        Ok(Some(known.1))
    }
}
