//! Every bound on something that grows, with its unit and its reason.

/// Steps in one workflow file. The planner keeps all of them in memory; WfInstances' largest have some thousands.
pub const MAX_STEPS: usize = 100_000;
/// Datasets in one workflow file.
pub const MAX_DATASETS: usize = 100_000;
/// Partitions in one workflow file: each is a mount of each step that uses it.
pub const MAX_PARTITIONS: usize = 1024;
/// Instances of one `foreach` step.
pub const MAX_INSTANCES: u32 = 1_000_000;
/// Parts of one dataset version. The engine keeps a summary of some 200 bytes for each.
pub const MAX_PARTS: usize = 1_000_000;
/// Nodes of one cluster (DESIGN's largest simulated machine is 10,000).
pub const MAX_NODES: usize = 100_000;
/// Tiers of one node.
pub const MAX_TIERS: usize = 16;
/// Bytes of a workflow file: a hand-written one has kilobytes, a generated one of 100,000 steps some megabytes.
pub const MAX_WORKFLOW_BYTES: usize = 64 << 20;
/// Bytes of one record of the event log (the first record holds the whole workflow).
pub const MAX_RECORD_BYTES: usize = 256 << 20;
/// Bytes of a name of a step, dataset, node or tier: it becomes part of file names and environment variables.
pub const MAX_NAME_BYTES: usize = 64;
/// Bytes of a path inside a dataset (Linux PATH_MAX).
pub const MAX_PATH_BYTES: usize = 4096;
/// Retries of a step.
pub const MAX_RETRIES: u32 = 1000;
/// Attempts of a step that failed after a newer checkpoint and therefore used up no retry: one that dies every hour continues
/// for six weeks, one that commits and dies at once is noticed.
pub const MAX_RESTARTS: u32 = 1000;
/// Seconds that cached data stays after the run that used it last: a week.
pub const CACHE_LEASE: u64 = 7 * 24 * 3600;
/// Instances placed on a node whose inputs are being staged while its cores are still busy, beyond those
/// that run: two hide the staging of the next behind the run of the current one without tying up the tier.
pub const STAGE_AHEAD: usize = 2;
/// Last bytes of a step's log that a failure message quotes.
pub const LOG_TAIL_BYTES: usize = 4096;
/// Bytes of one attempt's log. More is no text that anybody reads: a step that prints in a loop would fill the disk.
pub const MAX_STEP_LOG_BYTES: u64 = 64 << 20;
/// Entries of one tree: a manifest takes some 250 bytes an entry in memory.
pub const MAX_ENTRIES: usize = 16 << 20;
/// Bytes of one extended attribute, name and value (Linux: 255 and 64 KiB).
pub const MAX_XATTR_BYTES: usize = 255 + (64 << 10);
/// Extents of one sparse file that are recorded; bytes behind the last are treated as data.
pub const MAX_EXTENTS: usize = 65_536;
/// Transfers, and steps, whose progress a running tarn reports: some 150 bytes each, written once a second to a folder
/// that all nodes share.
pub const MAX_LIVE: usize = 4096;
