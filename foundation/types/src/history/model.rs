//! The memory of [`super::History`]: instances, transfers, replicas and decisions.

use crate::action::{Outcome, PartitionAssignment};
use crate::checkpoint::CheckpointId;
use crate::event::{Imaged, Output, RunError, Undeclared, Usage};
use crate::hash::Hash;
use crate::id::{InstanceId, PartitionId, TierRef, TransferId};
use crate::part::{PartRef, Place, StoreKey, Transfer};
use crate::reason::Reason;
use crate::units::{Bytes, Elapsed, Nanos, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::PathBuf;

/// Deeds remembered of one subject; the oldest go first. Something that waits for hours is noted again and
/// again, and nobody reads more than this.
pub const MAX_DEEDS: usize = 1000;

/// The progress of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum InstanceState {
    /// Known, not placed.
    #[default]
    Waiting,
    /// Placed; its inputs are being moved there.
    Assigned,
    /// Its process runs.
    Running,
    /// Committed in this run.
    Committed,
    /// An earlier run's outputs were taken.
    Reused,
    /// Its last attempt failed.
    Failed,
}

impl InstanceState {
    /// Whether its outputs are made.
    pub fn is_done(self) -> bool {
        matches!(self, Self::Committed | Self::Reused)
    }
}

/// The history of an instance.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InstanceHistory {
    /// Its progress.
    pub state: InstanceState,
    /// The element, once it has run.
    pub item: Option<String>,
    /// Its identity, once it has run or was reused.
    pub identity: Option<Hash>,
    /// Its present nodes, or those of its last attempt.
    pub nodes: Vec<TierRef>,
    /// When it was placed last.
    pub assigned: Option<Time>,
    /// Its attempts, in order.
    pub attempts: Vec<Attempt>,
    /// Its outputs: of the last commit, or those taken from an earlier run.
    pub outputs: Vec<Output>,
}

/// One attempt of an instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Its number, from 1.
    pub attempt: u32,
    /// Its nodes.
    pub nodes: Vec<TierRef>,
    /// Its partitions.
    pub partitions: Vec<PartitionAssignment>,
    /// When it was placed.
    pub assigned: Time,
    /// When it was started.
    pub started: Time,
    /// When it ended, and how; `None` while it runs.
    pub ended: Option<(Time, AttemptEnd)>,
    /// The resources that it used; zero until it has ended.
    pub usage: Usage,
    /// Of a step that continues from images of its processes.
    pub images: AttemptImages,
}

/// The images of an attempt's processes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AttemptImages {
    /// The one that it began with.
    pub restored: Option<CheckpointId>,
    /// How many were taken.
    pub taken: u64,
    /// The newest.
    pub newest: Option<CheckpointId>,
    /// Bytes that the newest takes.
    pub bytes: u64,
    /// How long the processes stood still, in all.
    pub stopped: Nanos,
    /// How many could not be taken.
    pub missed: u64,
    /// Why the last of these could not.
    pub why: Option<String>,
    /// How many were copied to another node.
    #[serde(default, skip_serializing_if = "is_none_of_it")]
    pub copied: u64,
    /// The newest of these, and where it is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buddy: Option<(CheckpointId, TierRef)>,
    /// How many could not be copied.
    #[serde(default, skip_serializing_if = "is_none_of_it")]
    pub uncopied: u64,
    /// Why the last of these could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_uncopied: Option<String>,
}

fn is_none_of_it(count: &u64) -> bool {
    *count == 0
}

impl AttemptImages {
    /// Adds a later event.
    pub fn add(&mut self, what: &Imaged) {
        match what {
            Imaged::Taken {
                id, bytes, stopped, ..
            } => {
                self.taken += 1;
                (self.newest, self.bytes) = (Some(*id), *bytes);
                self.stopped = self.stopped.saturating_add(*stopped);
            }
            Imaged::NotTaken { why } => {
                self.missed += 1;
                self.why = Some(why.clone());
            }
            Imaged::Restored { id } => self.restored = Some(*id),
            Imaged::NotRestored { .. } => {}
            Imaged::Copied { id, at, .. } => {
                self.copied += 1;
                self.buddy = Some((*id, *at));
            }
            Imaged::NotCopied { why, .. } => {
                self.uncopied += 1;
                self.why_uncopied = Some(why.clone());
            }
        }
    }

    /// With those of a later attempt.
    pub fn and(&mut self, later: &Self) {
        if later.newest.is_some() {
            (self.newest, self.bytes) = (later.newest, later.bytes);
        }
        self.restored = later.restored.or(self.restored);
        self.taken += later.taken;
        self.stopped = self.stopped.saturating_add(later.stopped);
        self.missed += later.missed;
        self.copied += later.copied;
        self.buddy = later.buddy.or(self.buddy);
        self.uncopied += later.uncopied;
        if later.why_uncopied.is_some() {
            self.why_uncopied.clone_from(&later.why_uncopied);
        }
        if later.why.is_some() {
            self.why.clone_from(&later.why);
        }
    }

    /// Whether there is anything to report.
    pub fn any(&self) -> bool {
        self.taken > 0 || self.missed > 0 || self.restored.is_some()
    }
}

impl std::fmt::Display for AttemptImages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} taken", self.taken)?;
        if let Some(newest) = self.newest {
            let (bytes, stopped) = (Bytes(self.bytes), Elapsed(self.stopped));
            write!(
                f,
                ", the newest {newest} of {bytes}; stood still {stopped} in all"
            )?;
        }
        if let Some(restored) = self.restored {
            write!(f, "; resumed from {restored}")?;
        }
        if let Some((newest, _)) = self.buddy {
            write!(
                f,
                "; {} copied to another node, the newest {newest}",
                self.copied
            )?;
        }
        if let Some(why) = &self.why_uncopied {
            write!(f, "; {} not copied: {why}", self.uncopied)?;
        }
        match (&self.why, self.missed) {
            (Some(why), missed) => write!(f, "; {missed} not taken: {why}"),
            _ => Ok(()),
        }
    }
}

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptEnd {
    /// Success.
    Committed {
        /// The files that it left undeclared.
        undeclared: Undeclared,
    },
    /// Failure.
    Failed {
        /// Why.
        failure: RunError,
        /// Last lines of its log.
        log_tail: String,
    },
    /// The run itself died while it ran.
    Interrupted,
}

/// The history of a transfer.
#[derive(Debug, Clone, PartialEq)]
pub struct TransferHistory {
    /// As it was ordered.
    pub order: Transfer,
    /// Why.
    pub why: Reason,
    /// The instance that it serves, where the reason names one.
    pub instance: Option<InstanceId>,
    /// Bytes of its parts, as known when it was ordered.
    pub expected: u64,
    /// When it was ordered.
    pub ordered: Time,
    /// When it ended, and how; `None` while it is in flight.
    pub ended: Option<(Time, TransferEnd)>,
}

impl TransferHistory {
    /// Bytes that it has moved: 0 unless it is done.
    pub fn bytes(&self) -> u64 {
        match self.ended {
            Some((_, TransferEnd::Done { bytes, .. })) => bytes,
            _ => 0,
        }
    }
}

/// The end of a transfer.
#[derive(Debug, Clone, PartialEq)]
pub enum TransferEnd {
    /// Complete and published.
    Done {
        /// Bytes moved.
        bytes: u64,
        /// How long it was moving.
        took: Nanos,
    },
    /// Failed whole.
    Failed(RunError),
    /// The run itself died while it was in flight.
    Interrupted,
}

/// A replica that is there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica {
    /// Space it takes, bytes.
    pub stored: u64,
    /// Since when.
    pub since: Time,
}

/// A replica on a node that was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreachable {
    /// Its part.
    pub part: PartRef,
    /// Bytes of content.
    pub bytes: u64,
    /// As it was when the node was lost.
    pub replica: Replica,
}

/// An eviction that was ordered.
#[derive(Debug, Clone, PartialEq)]
pub struct Eviction {
    /// The part.
    pub part: PartRef,
    /// The key under which it was stored.
    pub key: StoreKey,
    /// From where.
    pub at: Place,
    /// Why.
    pub why: Reason,
    /// When it was ordered.
    pub ordered: Time,
    /// When it was done.
    pub done: Option<Time>,
}

/// A version that was written to its dataset's `dest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The version.
    pub version: u32,
    /// The folder.
    pub path: PathBuf,
    /// The version's content hash; `None` when a part of it has never been read.
    pub hash: Option<Hash>,
    /// When.
    pub at: Time,
}

/// Something the engine did about a subject.
#[derive(Debug, Clone, PartialEq)]
pub struct Deed {
    /// When.
    pub at: Time,
    /// The deed.
    pub what: DeedKind,
    /// Why.
    pub why: Reason,
}

/// The kind of a deed.
#[derive(Debug, Clone, PartialEq)]
pub enum DeedKind {
    /// A source was listed.
    List,
    /// A transfer was ordered.
    Transfer(TransferId),
    /// A transfer was abandoned.
    Abandon(TransferId),
    /// An instance was placed.
    Assign(Vec<TierRef>),
    /// A placement was taken back.
    Unassign,
    /// An attempt was started.
    Run(u32),
    /// The stop of an attempt was ordered.
    Stop(u32),
    /// An image of its processes was to be copied there.
    CopyImage(CheckpointId, TierRef),
    /// Its checkpoints were removed.
    Forget,
    /// A partition was removed.
    Discard(PartitionId),
    /// An earlier run's outputs were taken.
    Reuse,
    /// The removal of a replica was ordered.
    Evict(PartRef, Place),
    /// A replica stayed as cache.
    Cache(PartRef, TierRef),
    /// Nothing: it waits.
    Note,
    /// The run ended.
    Finish(Outcome),
}

/// The last [`MAX_DEEDS`] deeds about one subject.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Deeds {
    /// Oldest first.
    pub kept: VecDeque<Deed>,
    /// How many older ones were forgotten.
    pub forgotten: u64,
}

impl Deeds {
    /// Adds a deed, forgetting the oldest beyond the bound.
    pub fn push(&mut self, deed: Deed) {
        if self.kept.len() == MAX_DEEDS {
            self.kept.pop_front();
            self.forgotten += 1;
        }
        self.kept.push_back(deed);
    }
}

/// Bytes that a run moved, by kind, and those it did not need to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// From the external store to nodes.
    pub external_in: u64,
    /// From nodes to the external store.
    pub external_out: u64,
    /// Between nodes.
    pub peer: u64,
    /// To a faster tier of the same node.
    pub promote: u64,
    /// To a slower tier of the same node.
    pub demote: u64,
    /// Bytes of inputs that were stored where they were needed.
    pub retained: u64,
}
