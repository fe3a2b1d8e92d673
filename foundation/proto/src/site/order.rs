//! Between the controller and a node's tarnd.

use super::{Epoch, Gid, Holding, Owner, SlurmJobId, Uid, Work, WorkResult};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tarn_types::energy::Draw;
use tarn_types::workflow::CheckpointMethod;

/// The controller's first word, after the proof of its identity. The site's secret, of which the keys of users' workers are
/// derived, is in the credential, which munge encrypts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// The oldest version that it speaks.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
    /// Its term.
    pub epoch: Epoch,
    /// It takes the node's content in [pieces](HoldingsChunk), behind the node's first word. An older one takes it in that.
    #[serde(default)]
    pub pieces: bool,
}

/// The node's first word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeWelcome {
    /// It takes orders.
    Ready {
        /// The version that both use from now on.
        version: u16,
        /// tarn's own version, for people.
        tarn: String,
        /// The kernel's name for this boot.
        boot: String,
        /// Its store, or the first of them.
        capacity: StoreCapacity,
        /// All its stores, fast to slow; none of a node whose one store has no name.
        #[serde(default)]
        stores: Vec<NodeStoreReport>,
        /// All that it holds, with the user whose worker reported it. None where pieces follow.
        holds: Vec<(Uid, Holding)>,
        /// Owners who may have more there than is reported: content of theirs that is not reported is neither there nor gone.
        #[serde(default)]
        partial: Vec<Owner>,
        /// [Pieces](HoldingsChunk) follow.
        #[serde(default)]
        pieces: bool,
        /// The jobs that it lets in.
        jobs: Vec<SlurmJobId>,
        /// Keys there may be wrapped with an older secret still: some could not be wrapped again, or were not seen.
        #[serde(default)]
        is_behind: bool,
    },
    /// It has had orders of a later term: the sender is no controller any more.
    Stale(Epoch),
    /// They speak no version in common: those that it speaks.
    Version(u16, u16),
}

/// Some of a node's content, as one user may have much.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldingsChunk {
    /// With the user whose worker reported it.
    pub holds: Vec<(Uid, Holding)>,
    /// Nothing more follows.
    pub is_last: bool,
}

/// A node's store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCapacity {
    /// Its folder on the node.
    pub root: PathBuf,
    /// Bytes that tarn may use.
    pub bytes: u64,
    /// Bytes that its file system has free now.
    pub free: u64,
    /// Whether its content outlives a loss of power.
    pub persistent: bool,
}

/// One of several stores of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStoreReport {
    /// Its name on this node.
    pub name: String,
    /// The store.
    pub capacity: StoreCapacity,
    /// It is not there, as its file system is not mounted: its content is neither lost nor available.
    #[serde(default)]
    pub is_away: bool,
}

/// Stores of one node.
pub const MAX_STORES: usize = 8;

/// An order, and the number that its report will have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedOrder {
    /// Of this session.
    pub number: u64,
    /// The order.
    pub order: NodeOrder,
}

/// An order to a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeOrder {
    /// Have the user's worker do this, one begun if there is none.
    Do {
        /// The user whose rights apply; 0 for content of a project: the rights of the user who has written it there.
        user: Uid,
        /// The group that files get, if the user is in it; the user's other groups are the node's to know.
        group: Gid,
        /// The work.
        work: Box<Work>,
    },
    /// Stop what it does for this number, if it has not ended.
    Stop(u64),
    /// Say where the user's worker serves its parts, one begun if there is none.
    Serve {
        /// The user.
        user: Uid,
        /// Its group.
        group: Gid,
    },
    /// Let the tasks of a job see this.
    Admit {
        /// The job.
        job: SlurmJobId,
        /// The job's user.
        user: Uid,
        /// The mounts that the tasks see.
        mounts: Vec<Mount>,
    },
    /// The job is over: its rights to see datasets are forgotten. Its mounts went with its processes.
    Dismiss(SlurmJobId),
    /// Report the free space of the store, and the node's power draw.
    Look,
    /// A sign of life; not answered.
    Beat,
}

/// A dataset, or a partition, in the sight of a job's tasks: `/run/tarn/data/<dataset>`, and `$TARN_<dataset>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Its name there.
    pub dataset: String,
    /// The owner of the folder: its content must belong to them.
    pub owner: Owner,
    /// Relative to the store, or to the job's memory.
    pub path: PathBuf,
    /// Whether it may be written.
    pub writable: bool,
    /// It is in the job's memory, in clear.
    #[serde(default)]
    pub in_memory: bool,
    /// It is a partition, in a folder of its own: `$TARN_PARTITION_<dataset>`.
    #[serde(default)]
    pub partition: bool,
    /// The partition is spread over the job's nodes.
    #[serde(default)]
    pub spread: Option<PartitionSpread>,
    /// It is the folder of the job's checkpoints, of this kind: `$TARN_CHECKPOINTS`. Its name is that of the program for libtarn.
    #[serde(default)]
    pub checkpoints: Option<CheckpointMethod>,
    /// The store that it is in, if the node's stores have names.
    #[serde(default)]
    pub store: String,
}

/// How a partition is spread over the nodes of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionSpread {
    /// Bytes of a block: `$TARN_BLOCK_<partition>`.
    pub block: u64,
    /// The nodes that have a piece of it, in the order of the pieces.
    pub nodes: Vec<String>,
}

/// A report of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The result of a command.
    Worked {
        /// The command's number.
        number: u64,
        /// The result.
        what: WorkResult,
    },
    /// Of [`NodeOrder::Serve`]: the port of the user's worker.
    Serving {
        /// The command's number.
        number: u64,
        /// The port.
        port: u16,
    },
    /// Of [`NodeOrder::Look`].
    Capacity {
        /// The command's number.
        number: u64,
        /// The capacity of its store.
        capacity: StoreCapacity,
        /// The node's power draw and temperature, as far as it knows.
        #[serde(default)]
        draw: Draw,
        /// Its cores; 0 of a node that does not report them.
        #[serde(default)]
        cores: u32,
    },
    /// A sign of life, every [`Report::BEAT`] seconds.
    Alive,
}

impl Report {
    /// Seconds between signs of life; after three times as many the session is over.
    pub const BEAT: u64 = 5;
}
