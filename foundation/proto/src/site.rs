//! Messages of a site: between the controller and the nodes, between a node's tarnd and the workers of its users, and between the
//! controller and its clients. docs/internals/site.md.
//!
//! Each message is a [frame](encode). The transport proves the sender: munge between hosts, the kernel on one host.

mod ask;
mod frame;
mod order;
mod plan;
mod record;
mod work;

pub use ask::{
    Chain, ControllerReply, ControllerRequest, DatasetFilter, DatasetInfo, Excluded, JobInfo,
    JobSubmission, MAX_AWAITED, MAX_EXCLUDED, NodeInfo, OrphanInfo, PlacementAdvice, ReplicaInfo,
    ReplicaState, SlurmInfo, SlurmJobConditions, SlurmUpdate, Stage, Staging, StoreInfo, UsageInfo,
    WorkflowUsageInfo,
};
pub use frame::{FrameError, MAX_FRAME, decode, encode};
pub use order::{
    Greeting, HoldingsChunk, MAX_STORES, Mount, NodeOrder, NodeStoreReport, NodeWelcome,
    NumberedOrder, PartitionSpread, Report, StoreCapacity,
};
pub use plan::{MAX_PLAN_JOBS, MAX_PLAN_NODES, PlanInfo, PlanStatusInfo, PlannedJobInfo};
pub use record::{JobDataRecord, MAX_RECORD_USES, MAX_RECORDS_SENT, MovedBytes, RecordedUse};
pub use work::{
    CheckpointFolder, Holding, Origin, Owner, Part, Proof, Slice, StoreContent, Work, WorkResult,
    WorkerAddress, is_name,
};

/// A user, as the kernel numbers them.
pub type Uid = u32;
/// A group.
pub type Gid = u32;
/// A job, as Slurm numbers them; the tasks of an array have numbers of their own.
pub type SlurmJobId = u32;
/// A term of the controller: the one with the higher term is the controller.
pub type Epoch = u64;

/// The controller's name for clients on other hosts. No node has this name: theirs are host names.
pub const CONTROLLER: &str = "the controller";
/// The controller's default port for them.
pub const CONTROLLER_PORT: u16 = 7411;
/// The default port on which nodes listen for the controller.
pub const NODE_PORT: u16 = 7412;

/// The oldest version of the messages that is understood.
pub const OLDEST: u16 = 1;
/// The version of the messages described here.
pub const VERSION: u16 = 1;

#[cfg(test)]
mod tests;
