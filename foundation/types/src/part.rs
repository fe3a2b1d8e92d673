//! Parts: the units in which versions are placed, moved, kept and evicted.

use crate::hash::Hash;
use crate::id::{DataId, TierRef, TransferId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// A part of a version. `origin` is the index of the producing instance (0 for a source), `seq` counts the
/// parts of one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartRef {
    /// The dataset.
    pub data: DataId,
    /// The version.
    pub version: u32,
    /// The producing instance's index.
    pub origin: u32,
    /// Counts within the origin.
    pub seq: u32,
}

impl fmt::Display for PartRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.v{}.{}.{}",
            self.data, self.version, self.origin, self.seq
        )
    }
}

/// The name under which the replicas and the manifest of a part are stored: unique for every commit ever
/// made in a workspace, so that nothing stale can be taken for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoreKey(pub String);

/// The paths of the version's tree that a part holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartClass {
    /// All that its origin made.
    Whole,
    /// One top-level entry.
    Entry(String),
    /// The share that the scatter rule gives to a rank.
    Rank(u32),
    /// The share that the scatter rule gives to every node.
    Common,
}

/// The engine's knowledge of a part: never its file list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartInfo {
    /// Counts within the origin.
    pub seq: u32,
    /// The paths that it holds.
    pub class: PartClass,
    /// Bytes of file content.
    pub bytes: u64,
    /// Bytes that a replica takes on a tier (blocks, directories included).
    pub stored: u64,
    /// Regular files.
    pub files: u64,
    /// Content hash of its manifest; `None` for a source that has been listed but not yet read.
    pub hash: Option<Hash>,
    /// The key under which its replicas and manifest are stored.
    pub key: StoreKey,
}

/// A place that data can be in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A tier of a node.
    Node(TierRef),
    /// The dataset's `source`.
    Source,
    /// A directory of the external store that holds a whole version: a `dest`, or a rescue.
    External(PathBuf),
    /// The workflow's own area in the external store, part by part (drained or staged through).
    Drained,
}

/// One part of a transfer, and where it is read from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartMove {
    /// The part.
    pub part: PartRef,
    /// The replica that is read.
    pub from: Place,
}

/// The kind of a transfer: how its bytes are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferKind {
    /// From the external store to a node.
    ExternalIn,
    /// From a node to the external store.
    ExternalOut,
    /// From one node to another.
    Peer,
    /// Between two tiers of a node, towards the faster one.
    Promote,
    /// Between two tiers of a node, towards the slower one.
    Demote,
}

/// The verification of a transfer's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// Not at all.
    None,
    /// The bytes that were read were hashed, and compared with the manifest where there is one.
    Copy,
    /// The destination was synced, dropped from the cache and read again.
    Readback,
}

/// A transfer, as the engine orders it: parts of one version to one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Its number.
    pub id: TransferId,
    /// The dataset.
    pub data: DataId,
    /// The version.
    pub version: u32,
    /// The parts, each with its source. All go to `to`.
    pub parts: Vec<PartMove>,
    /// The destination.
    pub to: Place,
    /// How its bytes are counted.
    pub kind: TransferKind,
    /// How it is verified.
    pub verify: Verify,
    /// Higher goes first.
    pub priority: u64,
}
