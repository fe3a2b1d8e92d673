//! L2: which task runs when. Queues, fair shares between users, dataspaces with capacity and quotas, jobs, outcomes.
//!
//! One sans-I/O core: [`Core::step`] takes an event and returns the actions that follow. No clock, thread, random
//! number or hash order inside. Reading order: the lists below, `task.rs`, [`Core`] (`core.rs`), `dispatch.rs` (the
//! next task), `slots.rs` and `space.rs` (limits), `fair.rs` (the turns of users), `record.rs` and `recover.rs`
//! (recovery from records), `audit.rs` (checks of debug builds after each event).
//!
//! Among users: start-time fair queueing over bytes (Goyal, Vin, Cheng 1996). Of one user's tasks: priority, then the
//! earliest deadline, then submission.

mod audit;
mod check;
mod core;
mod counts;
mod dispatch;
mod fair;
mod job;
mod jobs;
mod kept;
mod pause;
mod record;
mod recover;
mod retry;
mod slots;
mod space;
mod spaces;
mod task;

pub use crate::check::{
    ExternalLocation, HIDDEN, below as check_path, name as check_name, outside,
    space as check_space,
};
pub use crate::core::Core;
pub use job::{Added, Process};
pub use record::TaskLogRecord;
pub use recover::Recovered;
pub use task::Task;

use std::collections::BTreeMap;
use tarn_proto::local::{
    CancelResult, Checksum, JobChange, JobId, PauseResult, RequestError, Scope, SpaceChange,
    TaskId, TaskOutcome, TaskSpec, UserId,
};
use tarn_types::units::{Nanos, SECOND, Time};

/// Tasks that have not ended, of all users: some 400 bytes each.
pub const MAX_TASKS: usize = 65_536;
/// Tasks of one user that have not ended: one alone cannot fill the queues.
pub const MAX_USER_TASKS: usize = 16_384;
/// Outcomes kept until their users request them, of all users: some 150 bytes each.
pub const MAX_KEPT: usize = 65_536;
/// Outcomes of one user: as many as tasks may be queued, so that a user who submits all can request all afterwards.
pub const MAX_USER_KEPT: usize = MAX_USER_TASKS;
/// How long an outcome is kept.
pub const KEPT_FOR: Nanos = 3600 * SECOND;
/// Tasks of one user that are looked at beyond those that cannot start.
pub const PASSED: usize = 64;
/// A task that was passed over for so long keeps all its places from those behind it, not only the missing ones.
pub const AGED: Nanos = 30 * SECOND;
/// How long a cancelled task may take to stop before its caller is notified that it is over.
pub const STOPPING: Nanos = 2 * SECOND;
/// How long a durable task without a deadline is tried again that needs a node which does not answer.
pub const RETRIED_FOR: Nanos = 3600 * SECOND;
/// The first and the longest pause between these tries; each is twice the one before.
pub const RETRY_PAUSE: (Nanos, Nanos) = (SECOND / 2, 30 * SECOND);
/// Dataspaces.
pub const MAX_SPACES: usize = 1024;
/// Jobs that are registered.
pub const MAX_JOBS: usize = 4096;
/// Processes of one job.
pub const MAX_PROCESSES: usize = 4096;
/// Tasks that other nodes do for this one, at a time: each keeps a thread that polls it, and others must be left for
/// this node's own tasks.
pub const MAX_HANDED: u32 = 32;
/// The least cost of a task in the shares, bytes: a task costs something even when it moves nothing.
pub const LEAST_COST: u64 = 64 << 10;

/// Settings that do not change while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The user that tarnd runs as: manages spaces and jobs, as root does.
    pub owner: UserId,
    /// Tasks at a time that read or write a space that sets no other limit.
    pub space_slots: u32,
    /// Tasks at a time that read or write outside.
    pub external_slots: u32,
    /// Nodes that can be reached, and tasks at a time over the link to each: so many that take from there, and so many
    /// that are handed over to there.
    pub nodes: BTreeMap<String, u32>,
    /// Users whose share is not 1.
    pub weights: BTreeMap<UserId, u32>,
    /// Whether only registered jobs may submit.
    pub jobs_only: bool,
    /// Whether spaces bind the owner like anybody else, and nobody manages anything: it serves one step of a run.
    pub bound: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            owner: 0,
            space_slots: 4,
            external_slots: 4,
            nodes: BTreeMap::new(),
            weights: BTreeMap::new(),
            jobs_only: false,
            bound: false,
        }
    }
}

/// The data that a task would move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskSize {
    /// Bytes of content.
    pub bytes: u64,
    /// Bytes that it takes at most on a file system.
    pub space: u64,
}

/// How a started task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// Done, or why not.
    pub result: Result<(), RequestError>,
    /// Bytes of content moved or removed.
    pub bytes: u64,
    /// Bytes that the destination takes now on its file system.
    pub stored: u64,
    /// Bytes that the replaced files there had taken.
    pub replaced: u64,
    /// Bytes that were freed at the source (moved away, or removed).
    pub freed: u64,
    /// Of a single file or memory that was hashed.
    pub checksum: Option<Checksum>,
}

impl Finish {
    /// Nothing was done.
    pub fn nothing() -> Self {
        Self {
            result: Ok(()),
            bytes: 0,
            stored: 0,
            replaced: 0,
            freed: 0,
            checksum: None,
        }
    }
}

/// An event for the core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEvent {
    /// A program submits tasks.
    Submit {
        /// Comes back with the answer.
        ticket: u64,
        /// The user.
        user: UserId,
        /// For which job.
        job: Option<JobId>,
        /// The tasks.
        tasks: Vec<TaskSpec>,
    },
    /// A program does not want tasks any more.
    Cancel {
        /// Comes back with the answer.
        ticket: u64,
        /// The user.
        user: UserId,
        /// Which.
        ids: Vec<TaskId>,
    },
    /// Somebody wants tasks not to run for a while, or to continue.
    Pause {
        /// Comes back with the answer.
        ticket: u64,
        /// The user.
        user: UserId,
        /// Which.
        scope: Scope,
        /// Paused, or resumed.
        on: bool,
    },
    /// Somebody changes dataspaces.
    Space {
        /// Comes back with the answer.
        ticket: u64,
        /// The user.
        user: UserId,
        /// How.
        change: SpaceChange,
    },
    /// Somebody adds a process to a job.
    Process(Added),
    /// Somebody changes jobs otherwise.
    Job {
        /// Comes back with the answer.
        ticket: u64,
        /// The user.
        user: UserId,
        /// How.
        change: JobChange,
    },
    /// The answer to [`TaskAction::Measure`].
    Measured {
        /// The task.
        task: TaskId,
        /// The data that it would move.
        size: Result<TaskSize, RequestError>,
    },
    /// A started task has ended.
    Finished {
        /// The task.
        task: TaskId,
        /// How.
        finish: Finish,
    },
    /// Instead of `Measured` or `Finished`: a node that the task needs does not answer. Its half-done work is still
    /// there if the task is durable.
    Unreachable {
        /// The task.
        task: TaskId,
        /// The node, and the error.
        why: RequestError,
    },
    /// The answer to [`TaskAction::Survey`].
    Surveyed {
        /// The space.
        space: String,
        /// Bytes that each user has there.
        used: Result<BTreeMap<UserId, u64>, RequestError>,
    },
    /// Time has passed: [`Core::timer`] has come.
    Tick,
}

/// An action for the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskAction {
    /// Reply to a request. The records before this action must be durable by then.
    Answer {
        /// The request's.
        ticket: u64,
        /// The reply.
        answer: TaskReply,
    },
    /// Write a record into the journal.
    Record(TaskLogRecord),
    /// Measure the data that a task would move.
    Measure(TaskId),
    /// Carry out a task.
    Start(TaskId),
    /// Stop a task; its end is reported as that of any other.
    Stop {
        /// The task.
        task: TaskId,
        /// It will continue: its half-done work stays.
        keep: bool,
    },
    /// Remove the half-done work of a task that does not continue.
    Discard(Box<Task>),
    /// Find the content of a space.
    Survey(String),
    /// Notify those who wait. The records before this action must be durable by then.
    Ended(TaskOutcome),
}

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskReply {
    /// Item by item, the new task or why not.
    Submitted(Vec<Result<TaskId, RequestError>>),
    /// Nothing was taken; nanoseconds after which it may be tried again.
    Busy(Nanos),
    /// Item by item.
    Cancelled(Vec<CancelResult>),
    /// Item by item.
    Paused(Vec<PauseResult>),
    /// It is done.
    Done,
    /// It is not.
    Refused(RequestError),
}

/// When a task must have ended: never before it was submitted, and within the range of times.
fn deadline_at(now: Time, after: Option<Nanos>) -> Option<Time> {
    after.map(|after| now.saturating_add(after))
}
