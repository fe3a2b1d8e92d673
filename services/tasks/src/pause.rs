//! Pausing and resuming: tasks, a job's tasks, all that would be started.
//!
//! A paused task has no place in the queues. One that was under way is stopped: it gives its slots back and keeps the
//! space that was reserved for it, as its half-done work stays; resumed, it continues from there in its turn.

use crate::core::Core;
use crate::record::TaskLogRecord;
use crate::space::Settled;
use crate::task::TaskPhase;
use crate::{TaskAction, TaskReply, job};
use tarn_proto::local::{Code, PauseResult, RequestError, Scope, TaskId, TaskOperation, UserId};

impl Core {
    pub(crate) fn pause(
        &mut self,
        user: UserId,
        scope: Scope,
        on: bool,
        actions: &mut Vec<TaskAction>,
    ) -> TaskReply {
        if !matches!(scope, Scope::Tasks(_)) && !self.manages(user) {
            return TaskReply::Refused(RequestError::new(
                Code::Denied,
                format!(
                    "user {user} may pause and resume their own tasks, but no jobs and not tarnd: only the user that runs tarnd may"
                ),
            ));
        }
        match scope {
            Scope::Tasks(ids) => {
                let one = |id: &TaskId| self.pause_task(user, *id, on, actions);
                let results = ids.iter().map(one).collect();
                let durable = |id: &TaskId| self.tasks.get(id).is_some_and(|t| t.spec.durable);
                let ids: Vec<TaskId> = ids.into_iter().filter(durable).collect();
                if !ids.is_empty() {
                    let scope = Scope::Tasks(ids);
                    actions.push(TaskAction::Record(TaskLogRecord::Paused { scope, on }));
                }
                return TaskReply::Paused(results);
            }
            Scope::Job(id) => {
                let Some(job) = self.jobs.get_mut(id) else {
                    return TaskReply::Refused(job::unknown(id));
                };
                job.paused = on;
                let of_job = self.tasks.values().filter(|t| t.job == Some(id));
                let ids: Vec<TaskId> = of_job.map(|t| t.id).collect();
                for id in ids {
                    self.apply(id, actions);
                }
            }
            Scope::All => self.paused = on,
        }
        actions.push(TaskAction::Record(TaskLogRecord::Paused { scope, on }));
        TaskReply::Done
    }

    fn pause_task(
        &mut self,
        user: UserId,
        id: TaskId,
        on: bool,
        actions: &mut Vec<TaskAction>,
    ) -> PauseResult {
        let may = |owner: UserId| owner == user || self.manages(user);
        match self.tasks.get(&id) {
            Some(task) if may(task.user) && !task.is_reported => {}
            _ => {
                return match self.outcomes.get(id) {
                    Some(kept) if may(kept.user) => PauseResult::Over,
                    _ => PauseResult::Unknown,
                };
            }
        }
        if let Some(task) = self.tasks.get_mut(&id) {
            task.paused = on;
        }
        self.apply(id, actions);
        PauseResult::Done
    }

    /// Whether a task is not to run, by itself or by its job.
    pub(crate) fn is_paused(&self, id: TaskId) -> bool {
        self.tasks.get(&id).is_some_and(|task| {
            let job = task.job.and_then(|job| self.jobs.get(job));
            task.paused || job.is_some_and(|j| j.paused)
        })
    }

    /// Moves a task to its place after a pause or a resume.
    fn apply(&mut self, id: TaskId, actions: &mut Vec<TaskAction>) {
        let paused = self.is_paused(id);
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        match task.phase {
            TaskPhase::Ready if paused => {
                task.phase = TaskPhase::Paused;
                task.blocked = None;
                let (user, rank) = (task.user, task.rank());
                let removes = matches!(task.spec.kind, TaskOperation::Remove { .. });
                self.queues.remove(user, &rank);
                if removes {
                    self.count_freeing(id, false);
                }
            }
            TaskPhase::Measuring | TaskPhase::Running
                if paused && !task.halting && !task.cancelled =>
            {
                task.halting = true;
                let keep = true;
                actions.push(TaskAction::Stop { task: id, keep });
            }
            TaskPhase::Paused if !paused => self.make_ready(id),
            _ => {}
        }
    }

    /// A task that was paused has stopped.
    pub(crate) fn halted(&mut self, id: TaskId) {
        self.halt(id);
        self.make_ready(id);
    }

    /// A task is not under way any more, and will continue.
    pub(crate) fn halt(&mut self, id: TaskId) {
        self.release_slots(id);
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        task.halting = false;
        task.started = None;
        if task.phase == TaskPhase::Running {
            task.resumed = true;
            task.holds = task.fills().is_some();
            if task.frees().is_some() {
                self.count_freeing(id, false);
            }
        }
    }

    /// Frees what a task holds that ends without being under way: its space, and its half-done work.
    pub(crate) fn leave(&mut self, id: TaskId, actions: &mut Vec<TaskAction>) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        if matches!(task.phase, TaskPhase::Measuring | TaskPhase::Running) {
            return;
        }
        let (user, job) = (task.user, task.job);
        let into = task.reserved();
        let into = into.map(|(name, bytes)| (name.to_owned(), bytes));
        if task.resumed {
            actions.push(TaskAction::Discard(Box::new(task.clone())));
        }
        if let Some((name, reserved)) = into {
            let settled = Settled {
                reserved,
                ..Settled::default()
            };
            self.settle(&name, user, job, settled, actions);
        }
    }
}
