//! Tasks: their operation, their progress, their end.

use super::{Code, JobId, PathBytes, RegionId, TaskId};
use serde::{Deserialize, Serialize};
use std::fmt;
use tarn_types::grant::Grant;

/// The place of data: a source or a destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskLocation {
    /// A file or folder of a dataspace.
    Space {
        /// The space.
        name: String,
        /// Below its root, components joined by `/`.
        path: PathBytes,
    },
    /// Memory that this connection has registered.
    Memory {
        /// The region.
        region: RegionId,
        /// The offset in it, bytes.
        offset: u64,
        /// The length, bytes.
        length: u64,
    },
    /// A file or folder of a dataspace of another node.
    Node {
        /// The node.
        node: String,
        /// The space there.
        space: String,
        /// Below its root.
        path: PathBytes,
    },
    /// An absolute path, a `file://` URL of one, or a place of an object store: `s3://BUCKET/KEY`, `s3://BUCKET/PREFIX/`.
    External(PathBytes),
}

impl fmt::Display for TaskLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Space { name, path } => write!(f, "{name}:{}", path.show()),
            Self::Memory {
                region,
                offset,
                length,
            } => write!(f, "memory {region} [{offset}, +{length}]"),
            Self::Node { node, space, path } => write!(f, "{node}/{space}:{}", path.show()),
            Self::External(path) => f.write_str(&path.show()),
        }
    }
}

/// The operation of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskOperation {
    /// Nothing: for measuring, and to wait for several tasks as one.
    Nothing,
    /// Copies a file, a tree or memory.
    Copy {
        /// From here.
        from: TaskLocation,
        /// To here.
        to: TaskLocation,
    },
    /// Copies, reads the copy again, then removes the source.
    Move {
        /// From here.
        from: TaskLocation,
        /// To here.
        to: TaskLocation,
    },
    /// Removes a file or tree; a partition only while nobody has it open.
    Remove {
        /// This one.
        at: TaskLocation,
    },
    /// Makes a partition of a dataspace, or gives it another size.
    Allocate {
        /// Its file.
        at: TaskLocation,
        /// Bytes of data that it is to have.
        bytes: u64,
        /// The operation.
        how: Allocation,
    },
}

/// Bytes that a partition can be made with.
pub const MAX_FIRST: usize = 4096;

/// The operation on a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Allocation {
    /// It is made.
    Make {
        /// The other users who may have it, kept with it: at most [`tarn_types::grant::MAX_GRANTS`].
        grants: Vec<Grant>,
        /// Bytes that it is to be written by, at least; 0: it is to be mapped. None: as its medium is.
        unit: Option<u32>,
    },
    /// It gets another size, while nobody has it open.
    Resize,
    /// It gets no smaller, also while others have it open.
    Grow,
    /// It is made for its user alone, as its medium is, and begins with these bytes, zeros behind them, once it has its name.
    MakeWith {
        /// At most [`MAX_FIRST`].
        first: Vec<u8>,
    },
}

impl TaskOperation {
    /// Source and destination, as far as there are.
    pub fn places(&self) -> (Option<&TaskLocation>, Option<&TaskLocation>) {
        match self {
            Self::Nothing => (None, None),
            Self::Copy { from, to } | Self::Move { from, to } => (Some(from), Some(to)),
            Self::Remove { at } => (Some(at), None),
            Self::Allocate { at, .. } => (None, Some(at)),
        }
    }

    /// All places.
    pub fn places_mut(&mut self) -> impl Iterator<Item = &mut TaskLocation> {
        let (one, other) = match self {
            Self::Nothing => (None, None),
            Self::Copy { from, to } | Self::Move { from, to } => (Some(from), Some(to)),
            Self::Remove { at } => (Some(at), None),
            Self::Allocate { at, .. } => (None, Some(at)),
        };
        one.into_iter().chain(other)
    }
}

/// The verification of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyVerification {
    /// Nothing.
    None,
    /// The bytes that were read were hashed, and the same bytes were written.
    #[default]
    Copy,
    /// The destination was read again.
    Readback,
}

/// A task as a program requests it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// The operation.
    pub kind: TaskOperation,
    /// Of one user's tasks, those of the highest priority run first.
    pub priority: u8,
    /// Nanoseconds from its submission; of equal priority, the earliest runs first.
    pub deadline: Option<u64>,
    /// The verification of a copy (a move is always read back).
    pub verify: CopyVerification,
    /// Bytes a second at most; 0 for no limit of its own.
    pub rate: u64,
    /// It continues after tarnd was started again.
    pub durable: bool,
    /// A destination that exists is replaced.
    pub replace: bool,
    /// It starts when these have ended well.
    pub after: Vec<TaskId>,
}

impl TaskSpec {
    /// The middle of the priorities.
    pub const PRIORITY: u8 = 100;

    /// A task with all defaults.
    pub fn new(kind: TaskOperation) -> Self {
        Self {
            kind,
            priority: Self::PRIORITY,
            deadline: None,
            verify: CopyVerification::default(),
            rate: 0,
            durable: false,
            replace: false,
            after: Vec::new(),
        }
    }
}

/// Why something was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestError {
    /// The kind of reason.
    pub code: Code,
    /// The failure, its reason, and what to do.
    pub text: String,
}

impl RequestError {
    /// A reason with its text.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        let mut text = text.into();
        let end = text.floor_char_boundary(super::MAX_TEXT);
        text.truncate(end);
        Self { code, text }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for RequestError {}

/// The end of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskEnd {
    /// It was done.
    Done,
    /// It failed whole: the destination is as it was.
    Failed(RequestError),
}

/// XXH3 (128 bits) of content: its 16 bytes as they are written, most significant first.
pub type Checksum = [u8; 16];

/// The end of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskOutcome {
    /// The task.
    pub id: TaskId,
    /// Its end.
    pub end: TaskEnd,
    /// Bytes of content moved or removed.
    pub bytes: u64,
    /// Nanoseconds from its start to its end.
    pub nanos: u64,
    /// Whether it ended after its deadline.
    pub late: bool,
    /// Of a single file or memory that was hashed.
    pub checksum: Option<Checksum>,
}

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskState {
    /// Not known: never given, of another user, or ended long ago.
    Unknown,
    /// It waits for tasks that it follows.
    Waiting,
    /// It waits for its turn.
    Queued,
    /// Under way.
    Running,
    /// Done.
    Done,
    /// It has failed or was cancelled.
    Failed,
    /// It is not started until it is resumed.
    Paused,
}

/// The progress of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// The task.
    pub id: TaskId,
    /// Its state.
    pub state: TaskState,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all, once known.
    pub all: Option<u64>,
    /// Nanoseconds until it ends, by the rate of the last seconds; `None` when nothing is known yet.
    pub left: Option<u64>,
    /// Tasks of the same user that run before it, when it is queued.
    pub ahead: u32,
    /// The job it was submitted for.
    pub job: Option<JobId>,
}
