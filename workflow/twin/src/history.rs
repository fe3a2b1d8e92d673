//! A site's past, as far as it is known. Times are nanoseconds of one clock.

use tarn_types::site::{BytesByWay, NodePowerModel};
use tarn_types::units::{Nanos, Time};

/// A site's past: its nodes, the jobs that had nodes, and what was measured.
#[derive(Debug, Clone, Default)]
pub struct SiteHistory {
    /// The nodes; jobs name them by their positions.
    pub nodes: Vec<NodeHistory>,
    /// The jobs that have ended, each attempt as a job of its own.
    pub jobs: Vec<PastJob>,
    /// Bytes a second of transfers of one node, each measured: from the external store, to it, and between nodes.
    pub rates_in: Vec<u64>,
    /// To the external store.
    pub rates_out: Vec<u64>,
    /// Between nodes.
    pub rates_peer: Vec<u64>,
    /// Joules of all nodes in that time, as far as they were measured.
    pub joules: u64,
}

/// A node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeHistory {
    /// Its processors.
    pub cores: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Its GPUs.
    pub gpus: u32,
    /// Its partitions, as numbers in ascending order.
    pub partitions: Vec<u32>,
    /// Its stores, fast to slow.
    pub stores: Vec<StoreHistory>,
    /// The power that it draws, as far as it was measured.
    pub power: NodePowerModel,
}

/// A store of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreHistory {
    /// Bytes that tarn may use.
    pub capacity: u64,
    /// Whether it outlives a loss of power.
    pub is_persistent: bool,
}

/// A job that had nodes and has ended.
#[derive(Debug, Clone, Default)]
pub struct PastJob {
    /// Its number: of two jobs, the one that was submitted first has the lower one.
    pub number: u64,
    /// Its user.
    pub user: u32,
    /// When it was submitted.
    pub submitted: Time,
    /// When it could have begun, but for nodes: its begin time had come, it was not held, the jobs that it waited for had
    /// ended.
    pub eligible: Time,
    /// When it got its nodes.
    pub begun: Time,
    /// When it gave them back.
    pub ended: Time,
    /// How long it might have kept them.
    pub limit: Nanos,
    /// Its nodes.
    pub nodes: Vec<u32>,
    /// Its cores on each node; 0 for whole nodes.
    pub cores: u32,
    /// Bytes of memory on each node.
    pub memory: u64,
    /// GPUs on each node.
    pub gpus: u32,
    /// Its partition; `None` where all nodes are meant.
    pub partition: Option<u32>,
    /// Its data, if tarn moved any for it.
    pub data: Option<JobDataHistory>,
}

/// The data of a job.
#[derive(Debug, Clone, Default)]
pub struct JobDataHistory {
    /// Its workflow, unique on the site.
    pub workflow: String,
    /// When tarn had taken it in: before, Slurm does not begin it.
    pub taken_in: Time,
    /// How long it held its nodes while its data came.
    pub staged: Nanos,
    /// When its results that belong outside were there.
    pub delivered: Option<Time>,
    /// Its inputs.
    pub reads: Vec<VersionUse>,
    /// Its outputs.
    pub writes: Vec<VersionUse>,
    /// Bytes that were moved for it, or did not have to be.
    pub bytes: BytesByWay,
}

/// A version of a dataset, as a job used it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VersionUse {
    /// Its name, unique on the site.
    pub version: String,
    /// Its bytes.
    pub bytes: u64,
    /// Each node of the job had all of it.
    pub is_whole: bool,
    /// It belongs outside.
    pub keep: bool,
}
