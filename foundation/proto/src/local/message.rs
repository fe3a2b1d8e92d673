//! Requests and replies.

use super::{
    JobId, PathBytes, RegionId, RequestError, TaskId, TaskOutcome, TaskSpec, TaskStatus, UserId,
};
use serde::{Deserialize, Serialize};
use tarn_types::grant::Grant;
use tarn_types::stream::StreamKeys;

/// A program's request. The first request of a connection is [`LocalRequest::Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LocalRequest {
    /// Gives the versions that the program speaks. Answered by `Welcome`.
    Hello {
        /// The oldest version.
        oldest: u16,
        /// The newest version.
        newest: u16,
        /// The job it belongs to; checked where jobs are registered.
        job: Option<JobId>,
    },
    /// New tasks, at most [`super::MAX_BATCH`]. Answered by `Submitted`, or `Busy`: then nothing was taken.
    Submit(Vec<TaskSpec>),
    /// Answered by `Outcomes` when all (or any) of the tasks have ended or the time is over, with those that have.
    /// Ids that are not known are left out and counted as ended.
    Wait {
        /// At most [`super::MAX_IDS`].
        ids: Vec<TaskId>,
        /// Whether one is enough.
        any: bool,
        /// Nanoseconds to wait; 0: do not wait.
        timeout: u64,
    },
    /// Answered by `Statuses`.
    Status(Vec<TaskId>),
    /// Answered by `Cancelled`.
    Cancel(Vec<TaskId>),
    /// A memfd travels with this packet. Answered by `Registered`.
    Register {
        /// Bytes of it that tasks may use.
        length: u64,
    },
    /// Answered by `Done`; refused while tasks use it.
    Unregister(RegionId),
    /// Answered by `Spaces`.
    Spaces,
    /// Answered by `Done`.
    Space(SpaceChange),
    /// Answered by `Done`.
    Job(JobChange),
    /// Answered by `Stats`.
    Stats,
    /// Tasks are not started and those under way stop, until they are resumed. Answered by `Paused` for
    /// tasks, otherwise by `Done`.
    Pause(Scope),
    /// They continue. Answered as `Pause`.
    Resume(Scope),
    /// Answered by `Opened`, with the partition's file: it is open for as long as somebody has that. One of another node: by `OpenedThere`.
    Open {
        /// Another node.
        node: Option<String>,
        /// The dataspace.
        space: String,
        /// The file, below its root.
        path: PathBytes,
        /// To be written, too.
        write: bool,
    },
    /// The partitions of a folder that the user may have. Answered by `Partitions`.
    Partitions {
        /// Another node.
        node: Option<String>,
        /// The dataspace.
        space: String,
        /// The folder, below its root.
        path: PathBytes,
        /// Only those whose names come after this one.
        after: String,
    },
}

/// The tasks to pause or resume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Tasks of the requesting user, at most [`super::MAX_IDS`].
    Tasks(Vec<TaskId>),
    /// All tasks of a job, those that are still to come too; for the user that runs tarnd.
    Job(JobId),
    /// Nothing is started any more, tasks under way end; for the user that runs tarnd.
    All,
}

/// A reply of tarnd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The connection is open.
    Welcome {
        /// The version that is spoken from now on.
        version: u16,
        /// The user of the program, as the kernel reports it.
        user: UserId,
        /// This node's name.
        node: String,
    },
    /// Not done, and why.
    Refused(RequestError),
    /// Nothing was taken: a queue is full. Try again after so many nanoseconds.
    Busy(u64),
    /// Item by item: the new task, or why not.
    Submitted(Vec<Result<TaskId, RequestError>>),
    /// Tasks that have ended.
    Outcomes(Vec<TaskOutcome>),
    /// One for each id in the request.
    Statuses(Vec<TaskStatus>),
    /// One for each id in the request.
    Cancelled(Vec<CancelResult>),
    /// The region's number.
    Registered(RegionId),
    /// It is done.
    Done,
    /// The dataspaces that the user may see.
    Spaces(Vec<SpaceInfo>),
    /// Counts.
    Stats(Stats),
    /// One for each id that was to be paused or resumed.
    Paused(Vec<PauseResult>),
    /// The file comes with this packet.
    Opened,
    /// A stream to the other node comes with this packet, given over to the partition (`crate::storage`): it is open there for as long as
    /// the stream is.
    OpenedThere(RemotePartition),
    /// By name, as many as a packet holds; none when there are no more.
    Partitions(Vec<PartitionInfo>),
}

/// A partition as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionInfo {
    /// Its name.
    pub name: String,
    /// Bytes of data.
    pub bytes: u64,
    /// Bytes that it is written by; 0: it is mapped.
    pub unit: u32,
    /// The user that it belongs to.
    pub owner: UserId,
    /// The other users who may have it.
    pub grants: Vec<Grant>,
    /// Why it cannot be used, if it cannot.
    pub damaged: Option<String>,
}

/// A partition of another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemotePartition {
    /// Its properties.
    pub info: PartitionInfo,
    /// Random, its own.
    pub identity: u128,
    /// Whether flushed bytes there outlive a loss of power.
    pub persistent: bool,
    /// How windows onto it are used, if they are: set by this node's tarnd.
    pub windows: Option<WindowUse>,
    /// The keys that seal the stream to it, if it is sealed: set by this node's tarnd.
    pub seal: Option<StreamKeys>,
}

/// A program's needs for the use of windows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowUse {
    /// Of libfabric.
    pub provider: String,
    /// The library that speaks to it.
    pub library: PathBytes,
}

/// The result of a request to pause or resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PauseResult {
    /// It is so (unless it ends in this very moment).
    Done,
    /// It had ended already.
    Over,
    /// No such task of this user.
    Unknown,
}

/// The result of a request to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CancelResult {
    /// It ends as cancelled (unless it is done in this very moment).
    Cancelled,
    /// It had ended already.
    Over,
    /// No such task of this user.
    Unknown,
}

/// The rights of a user in a dataspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Access {
    /// Be a source.
    pub read: bool,
    /// Be a destination, be removed from.
    pub write: bool,
    /// Change or remove the space itself.
    pub manage: bool,
}

/// A dataspace as it is requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceSpec {
    /// Its folder, absolute; must exist.
    pub root: PathBytes,
    /// Bytes that it may hold; at least 1.
    pub capacity: u64,
    /// Bytes that one user may have in it; 0 for no bound but the capacity.
    pub quota: u64,
    /// Tasks that read or write it at a time; 0 for the default.
    pub slots: u32,
    /// The rights of everybody.
    pub everyone: Access,
    /// The rights of these users instead.
    pub users: Vec<(UserId, Access)>,
}

/// A change of dataspaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpaceChange {
    /// A new one.
    Make {
        /// Its name.
        name: String,
        /// Its properties.
        spec: SpaceSpec,
    },
    /// All but the root of one.
    Change {
        /// Its name.
        name: String,
        /// Its new properties.
        spec: SpaceSpec,
    },
    /// Forgets one; its files stay. Refused while tasks use it.
    Remove {
        /// Its name.
        name: String,
    },
}

/// A dataspace as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceInfo {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub root: PathBytes,
    /// Bytes that it may hold.
    pub capacity: u64,
    /// Bytes that one user may have in it; 0 for no bound but the capacity.
    pub quota: u64,
    /// Bytes in it.
    pub used: u64,
    /// Bytes that running tasks have reserved.
    pub reserved: u64,
    /// Bytes in it that belong to the requesting user.
    pub own: u64,
    /// The rights of the requesting user.
    pub access: Access,
}

/// The limit of a job in a dataspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The dataspace.
    pub space: String,
    /// Bytes that the job's tasks may put there.
    pub quota: u64,
}

/// A change of jobs, for the user that runs tarnd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobChange {
    /// A new job, or other limits of one.
    Register {
        /// The job.
        job: JobId,
        /// Its user.
        user: UserId,
        /// In spaces that are not named it has the rights of its user.
        limits: Vec<Limit>,
    },
    /// The job is over: its tasks are cancelled.
    Unregister {
        /// The job.
        job: JobId,
    },
    /// A process (and its later children) belongs to the job.
    AddProcess {
        /// The job.
        job: JobId,
        /// The process.
        pid: i32,
    },
    /// It does no longer.
    RemoveProcess {
        /// The job.
        job: JobId,
        /// The process.
        pid: i32,
    },
}

/// Counts of tarnd.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Tasks that wait for others, or are paused.
    pub waiting: u64,
    /// Tasks that wait for their turn.
    pub queued: u64,
    /// Tasks under way.
    pub running: u64,
    /// Tasks that have ended well since tarnd was started.
    pub done: u64,
    /// Tasks that have failed or were cancelled since then.
    pub failed: u64,
    /// Bytes moved since then.
    pub bytes: u64,
    /// Nanoseconds until all running tasks have ended, where that is known.
    pub left: Option<u64>,
    /// Connections now.
    pub connections: u32,
}
