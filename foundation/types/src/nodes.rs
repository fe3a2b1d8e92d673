//! Values of a run over several nodes: data that is kept or cleaned there, work under way.

use crate::hash::Hash;
use crate::id::{DataId, InstanceId, NodeId, TierRef, TransferId};
use crate::part::{Place, StoreKey, TransferKind};
use crate::units::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// An attempt of a step.
pub type AttemptId = (InstanceId, u32);

/// The data that a clean-up must leave.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staying {
    /// Replicas that the run continues with.
    pub keep: BTreeSet<(StoreKey, Place)>,
    /// Parts whose half-copied replicas a transfer may continue with.
    pub resumable: BTreeSet<StoreKey>,
    /// Folders of replicas that somebody requests to keep, with any result of this run.
    pub protected: BTreeSet<PathBuf>,
    /// Parts that the user has pinned: wherever the run has put one, no order of the run's removes its last replica.
    #[serde(default)]
    pub pinned: BTreeSet<StoreKey>,
    /// Whether the run is resumed: it may still take over instances that were offered to it.
    pub resumed: bool,
    /// Whether the capacities are already without the data that was protected when the run began.
    #[serde(default)]
    pub is_without: bool,
}

/// The report of a clean-up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleaned {
    /// Folders of replicas that it removed.
    pub removed: Vec<PathBuf>,
    /// Bytes on this run's tiers of protected replicas that the run does not know of.
    #[serde(with = "pairs")]
    pub aside: BTreeMap<TierRef, u64>,
    /// A sentence for each failed removal.
    pub trouble: Vec<String>,
}

/// The report of a search for data that dead runs have left on tiers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    /// Folders of replicas that it removed.
    pub removed: Vec<PathBuf>,
    /// Folders that it was to leave and that are there.
    pub left: Vec<PathBuf>,
    /// A sentence for each failed removal.
    pub trouble: Vec<String>,
}

/// Which nodes of the cluster a world has itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnedNodes {
    /// All: the world of one machine.
    All,
    /// These; the others are reached through ports.
    Some(BTreeSet<NodeId>),
}

impl OwnedNodes {
    /// Whether a node is among them.
    pub fn has(&self, node: NodeId) -> bool {
        match self {
            Self::All => true,
            Self::Some(nodes) => nodes.contains(&node),
        }
    }
}

/// A file or folder that all nodes of a run are to see, and how it looks to the requester.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedPath {
    /// Its role in the run, such as "the dest of dataset `all`".
    pub title: String,
    /// Its path on all nodes.
    pub path: PathBuf,
    /// Its appearance.
    pub look: PathAppearance,
}

/// The appearance of a file or folder. Times are whole seconds since 1970: not all file systems have finer ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathAppearance {
    /// A folder in which a file of this name has this word, which only this run knows.
    Word {
        /// The file's name.
        name: String,
        /// Its content.
        word: String,
    },
    /// A file.
    File {
        /// Bytes.
        length: u64,
        /// When it was changed.
        modified: i64,
    },
    /// A folder.
    Folder {
        /// When names in it were changed.
        modified: i64,
        /// Hash of the names in it, unless there are very many.
        names: Option<Hash>,
    },
    /// A file or folder that the user may not read.
    Hidden,
    /// Neither file nor folder.
    Other,
}

impl std::fmt::Display for PathAppearance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Word { name, .. } => write!(f, "a folder with {name}"),
            Self::File { length, modified } => {
                write!(f, "a file of {length} bytes, changed at {modified}")
            }
            Self::Folder { modified, names } => {
                let names = names.as_ref().map_or("many".into(), |h| h.short());
                write!(f, "a folder changed at {modified} (its names: {names})")
            }
            Self::Hidden => f.write_str("not readable"),
            Self::Other => f.write_str("neither file nor folder"),
        }
    }
}

/// A node's report about itself beside its tiers' sizes and rates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTierUsage {
    /// Its memory mode, such as `dram`, `1lm` or `2lm`.
    pub mode: String,
    /// Bytes of each requested tier that workflows hold there now.
    pub held: Vec<u64>,
}

/// The holders of the space for which a run only waits, on some of its nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceWaitCause {
    /// Only dead runs hold it, and it was waited for long enough: the remedy.
    pub dead: Option<String>,
    /// It is kept beyond runs, and it was waited for long enough: the remedy.
    pub kept: Option<String>,
    /// Some of it is another run's, which may give it back.
    pub others: bool,
}

impl SpaceWaitCause {
    /// The same of some nodes and others.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            dead: self.dead.or(other.dead),
            kept: self.kept.or(other.kept),
            others: self.others || other.others,
        }
    }

    /// Why it is no use to wait any longer, if so.
    pub fn hopeless(self) -> Option<String> {
        self.dead.or(self.kept.filter(|_| !self.others))
    }
}

/// A transfer that is moving.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovingTransfer {
    /// Its number.
    pub id: TransferId,
    /// The dataset.
    pub data: DataId,
    /// How its bytes are counted.
    pub kind: TransferKind,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Nanoseconds since it began to move.
    pub elapsed: u64,
}

/// The phase of a running step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Views and pre-images are made.
    Preparing,
    /// Its command runs.
    Running,
    /// Its outputs are hashed and published.
    Committing,
}

/// A step that is running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningStep {
    /// The instance.
    pub instance: InstanceId,
    /// Its attempt.
    pub attempt: u32,
    /// Its phase.
    pub phase: Phase,
    /// Nanoseconds since it began.
    pub elapsed: u64,
}

/// The version of [`LiveRunStatus`].
pub const LIVE_FORMAT: u32 = 1;

/// The status of a live run, beside its log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveRunStatus {
    /// [`LIVE_FORMAT`].
    pub format: u32,
    /// The process of the run, which holds its lock.
    pub pid: u32,
    /// Counts up each time that this is written: a reader that sees it stand still does not believe it.
    pub beat: u64,
    /// Nanoseconds since the run's start.
    pub now: Time,
    /// The transfers, at most [`crate::bounds::MAX_LIVE`].
    pub transfers: Vec<MovingTransfer>,
    /// The running steps, at most [`crate::bounds::MAX_LIVE`].
    pub steps: Vec<RunningStep>,
}

/// A map with keys that are no strings, as a list of pairs.
mod pairs {
    use crate::id::TierRef;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    pub(super) fn serialize<S: Serializer>(
        m: &BTreeMap<TierRef, u64>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        m.iter().collect::<Vec<_>>().serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<BTreeMap<TierRef, u64>, D::Error> {
        Ok(Vec::<(TierRef, u64)>::deserialize(d)?.into_iter().collect())
    }
}
