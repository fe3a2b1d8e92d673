//! A task that has not ended.

use crate::TaskSize;
use crate::fair::TaskQueueRank;
use tarn_proto::local::{JobId, TaskId, TaskLocation, TaskOperation, TaskSpec, UserId};
use tarn_types::units::{Nanos, Time};

/// Ids of one start of tarnd; the bits above count the starts.
pub(crate) const ID_BITS: u32 = 40;

/// How a task stands with the nodes that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Retry {
    /// When one first did not answer.
    pub(crate) since: Option<Time>,
    /// The pause before the next try.
    pub(crate) pause: Nanos,
    /// When that is.
    pub(crate) at: Option<Time>,
}

/// A task as a program or the journal gives it.
#[derive(Debug, Clone)]
pub(crate) struct SubmittedTask {
    pub(crate) id: TaskId,
    pub(crate) user: UserId,
    pub(crate) job: Option<JobId>,
    pub(crate) at: Time,
    pub(crate) deadline: Option<Time>,
    pub(crate) spec: TaskSpec,
}

/// The phase of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskPhase {
    /// For others.
    Waiting,
    /// In its user's queue.
    Ready,
    /// It has its slots, and its size is being found out.
    Measuring,
    /// Under way.
    Running,
    /// It waits to be resumed.
    Paused,
}

/// A task that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// The owner.
    pub user: UserId,
    /// For which job.
    pub job: Option<JobId>,
    /// The task as it was submitted.
    pub spec: TaskSpec,
    /// Whether an earlier tarnd may have begun it.
    pub resumed: bool,
    /// The data that it moves, once known.
    pub size: Option<TaskSize>,
    /// When it was started.
    pub started: Option<Time>,
    pub(crate) submitted: Time,
    pub(crate) deadline: Option<Time>,
    pub(crate) phase: TaskPhase,
    /// Tasks that it still waits for.
    pub(crate) waits: u32,
    pub(crate) cancelled: bool,
    /// It is not to run until it is resumed; its job may be paused beside it.
    pub(crate) paused: bool,
    /// It was ordered to stop because it was paused.
    pub(crate) halting: bool,
    /// It is not under way, but has the space that it needs: its half-done work takes some of that.
    pub(crate) holds: bool,
    /// Whether its end was reported while it did not stop.
    pub(crate) is_reported: bool,
    /// Since when it has been passed over.
    pub(crate) blocked: Option<Time>,
    pub(crate) retry: Retry,
}

impl Task {
    /// A task as it was submitted; `resumed`: an earlier tarnd took it.
    pub(crate) fn new(submitted: SubmittedTask, resumed: bool) -> Self {
        let SubmittedTask {
            id,
            user,
            job,
            at,
            deadline,
            spec,
        } = submitted;
        Self {
            id,
            user,
            job,
            spec,
            resumed,
            size: None,
            started: None,
            submitted: at,
            deadline,
            phase: TaskPhase::Waiting,
            waits: 0,
            cancelled: false,
            paused: false,
            halting: false,
            holds: false,
            is_reported: false,
            blocked: None,
            retry: Retry::default(),
        }
    }

    pub(crate) fn rank(&self) -> TaskQueueRank {
        let deadline = self.deadline.unwrap_or(Time::MAX);
        (u8::MAX - self.spec.priority, deadline, self.id)
    }

    /// The node that does it for this one: where it puts something, or removes it.
    pub fn done_by(&self) -> Option<&str> {
        let place = match &self.spec.kind {
            TaskOperation::Nothing => None,
            TaskOperation::Copy { to, .. } | TaskOperation::Move { to, .. } => Some(to),
            TaskOperation::Remove { at } | TaskOperation::Allocate { at, .. } => Some(at),
        };
        match place {
            Some(TaskLocation::Node { node, .. }) => Some(node),
            _ => None,
        }
    }

    /// Whether it has slots.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self.phase, TaskPhase::Measuring | TaskPhase::Running)
    }

    /// Bytes that are reserved for it in the space that it fills: while it runs, and while it is halted with a part done.
    pub(crate) fn reserved(&self) -> Option<(&str, u64)> {
        let has = self.phase == TaskPhase::Running || self.holds;
        let space = self.fills().filter(|_| has)?;
        Some((space, self.size.map_or(0, |size| size.space)))
    }

    /// Whether it counts among the tasks that will free space: a removal in its queue or under way, a move under way.
    pub(crate) fn is_freeing(&self) -> bool {
        match self.spec.kind {
            TaskOperation::Remove { .. } => {
                matches!(self.phase, TaskPhase::Ready | TaskPhase::Running)
            }
            TaskOperation::Move { .. } => self.phase == TaskPhase::Running,
            _ => false,
        }
    }

    /// The space that it puts something into.
    pub(crate) fn fills(&self) -> Option<&str> {
        space_of(self.spec.kind.places().1)
    }

    /// The space that it frees something in.
    pub(crate) fn frees(&self) -> Option<&str> {
        match &self.spec.kind {
            TaskOperation::Move { from, .. } => space_of(Some(from)),
            TaskOperation::Remove { at } => space_of(Some(at)),
            _ => None,
        }
    }

    /// Names of the spaces that it uses, each once.
    pub(crate) fn named(&self) -> Vec<String> {
        let (from, to) = self.spec.kind.places();
        let mut names: Vec<_> = [space_of(from), space_of(to)]
            .into_iter()
            .flatten()
            .map(str::to_owned)
            .collect();
        names.dedup();
        names
    }
}

pub(crate) fn space_of(place: Option<&TaskLocation>) -> Option<&str> {
    match place {
        Some(TaskLocation::Space { name, .. }) => Some(name),
        _ => None,
    }
}
