//! The state, and its changes.

use crate::fair::Queues;
use crate::job::JobRegistry;
use crate::kept::{OutcomeRecord, Outcomes};
use crate::record::TaskLogRecord;
use crate::slots::Slots;
use crate::space::{Settled, Space};
use crate::task::{ID_BITS, SubmittedTask, Task, TaskPhase};
use crate::{
    Config, Finish, MAX_TASKS, MAX_USER_TASKS, STOPPING, TaskAction, TaskEvent, TaskReply,
    TaskSize, deadline_at,
};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{
    CancelResult, Code, JobId, RequestError, TaskEnd, TaskId, TaskOperation, TaskOutcome, TaskSpec,
    TaskState, TaskStatus, UserId,
};
use tarn_types::units::{Nanos, SECOND, Time};

/// Tasks before one in its queue are counted so far.
const MAX_AHEAD: usize = 1000;
/// The bounds of the wait that a full queue replies.
const RETRY: (Nanos, Nanos) = (SECOND / 1000, SECOND);

/// The core.
#[derive(Debug, Clone)]
pub struct Core {
    pub(crate) config: Config,
    pub(crate) tasks: BTreeMap<TaskId, Task>,
    /// Tasks that wait for a task.
    pub(crate) followers: BTreeMap<TaskId, Vec<TaskId>>,
    pub(crate) counts: BTreeMap<UserId, usize>,
    pub(crate) queues: Queues,
    pub(crate) spaces: BTreeMap<String, Space>,
    pub(crate) jobs: JobRegistry,
    pub(crate) outcomes: Outcomes,
    /// Nothing is started.
    pub(crate) paused: bool,
    pub(crate) slots: Slots,
    /// Cancelled tasks that have not stopped: when their callers are notified.
    pub(crate) stopping: BTreeSet<(Time, TaskId)>,
    /// Tasks that wait for a node to answer: when they are tried again.
    pub(crate) retries: BTreeSet<(Time, TaskId)>,
    pub(crate) generation: u64,
    pub(crate) next: u64,
    pub(crate) running: u64,
    /// Done, failed, bytes.
    pub(crate) totals: (u64, u64, u64),
    /// A mean of the times that tasks took, nanoseconds.
    pub(crate) mean: Nanos,
}

impl Core {
    /// Applies an event at `now`, nanoseconds since 1970, never going back, and appends the actions that follow.
    pub fn step(&mut self, now: Time, event: TaskEvent, actions: &mut Vec<TaskAction>) {
        match event {
            TaskEvent::Submit {
                ticket,
                user,
                job,
                tasks,
            } => {
                let answer = self.submit(now, user, job, tasks, actions);
                actions.push(TaskAction::Answer { ticket, answer });
            }
            TaskEvent::Cancel { ticket, user, ids } => {
                let cancel = |id| self.cancel_for(now, user, id, actions);
                let answer = TaskReply::Cancelled(ids.into_iter().map(cancel).collect());
                actions.push(TaskAction::Answer { ticket, answer });
            }
            TaskEvent::Pause {
                ticket,
                user,
                scope,
                on,
            } => {
                let answer = self.pause(user, scope, on, actions);
                actions.push(TaskAction::Answer { ticket, answer });
            }
            TaskEvent::Space {
                ticket,
                user,
                change,
            } => {
                let answer = self.change_space(user, change, actions);
                actions.push(TaskAction::Answer { ticket, answer });
            }
            TaskEvent::Job {
                ticket,
                user,
                change,
            } => {
                let answer = self.change_job(now, user, change, actions);
                actions.push(TaskAction::Answer { ticket, answer });
            }
            TaskEvent::Process(added) => self.add_process(added, actions),
            TaskEvent::Measured { task, size } => self.measured(now, task, size, actions),
            TaskEvent::Finished { task, finish } => self.finished(now, task, finish, actions),
            TaskEvent::Unreachable { task, why } => self.unreachable(now, task, why, actions),
            TaskEvent::Surveyed { space, used } => self.surveyed(now, &space, used, actions),
            TaskEvent::Tick => {}
        }
        self.report_stuck_tasks(now, actions);
        self.retry_tasks(now);
        self.dispatch(now, actions);
        if cfg!(debug_assertions) {
            self.recount();
        }
    }

    /// When [`TaskEvent::Tick`] is due next.
    pub fn timer(&self) -> Option<Time> {
        let next = [self.stopping.first(), self.retries.first()];
        next.into_iter().flatten().map(|(at, _)| *at).min()
    }

    /// A task that has not ended.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id)
    }

    /// The root of a space.
    pub fn space_root(&self, name: &str) -> Option<&[u8]> {
        self.spaces.get(name).map(|s| &s.spec.root.0[..])
    }

    /// Whether a user may change spaces and jobs.
    pub fn manages(&self, user: UserId) -> bool {
        !self.config.bound && (user == 0 || user == self.config.owner)
    }

    /// Whether a task, or one whose outcome is kept, is in the journal.
    pub fn is_durable(&self, id: TaskId) -> bool {
        let live = self.tasks.get(&id).map(|t| t.spec.durable);
        live.or_else(|| self.outcomes.get(id).map(|k| k.durable))
            .unwrap_or(false)
    }

    fn submit(
        &mut self,
        now: Time,
        user: UserId,
        job: Option<JobId>,
        tasks: Vec<TaskSpec>,
        actions: &mut Vec<TaskAction>,
    ) -> TaskReply {
        if let Err(why) = self.may_submit(user, job) {
            return TaskReply::Refused(why);
        }
        let own = self.counts.get(&user).copied().unwrap_or(0);
        if self.tasks.len() + tasks.len() > MAX_TASKS || own + tasks.len() > MAX_USER_TASKS {
            // By then about as many tasks have ended as were to be added.
            let wait = self.mean.saturating_mul(tasks.len() as u64) / (self.running.max(1));
            return TaskReply::Busy(wait.clamp(RETRY.0, RETRY.1));
        }
        let submit = |spec| self.submit_one(now, user, job, spec, actions);
        TaskReply::Submitted(tasks.into_iter().map(submit).collect())
    }

    fn submit_one(
        &mut self,
        now: Time,
        user: UserId,
        job: Option<JobId>,
        spec: TaskSpec,
        actions: &mut Vec<TaskAction>,
    ) -> Result<TaskId, RequestError> {
        self.check(user, &spec)?;
        for id in &spec.after {
            let live = self.tasks.get(id).is_some_and(|t| t.user == user);
            if !live && self.outcomes.get(*id).is_none_or(|k| k.user != user) {
                return Err(RequestError::new(
                    Code::NotFound,
                    format!("task {id}, which is to be followed, is not known (any more)"),
                ));
            }
        }
        let id = (self.generation << ID_BITS) | self.next;
        self.next += 1;
        let deadline = deadline_at(now, spec.deadline);
        if spec.durable {
            actions.push(TaskAction::Record(TaskLogRecord::Submitted {
                id,
                user,
                job,
                at: now,
                deadline,
                spec: spec.clone(),
            }));
        }
        let submitted = SubmittedTask {
            id,
            user,
            job,
            at: now,
            deadline,
            spec,
        };
        self.admit(now, Task::new(submitted, false), actions);
        Ok(id)
    }

    /// Takes a task in: it waits, is ready, or fails with a task that it follows.
    pub(crate) fn admit(&mut self, now: Time, mut task: Task, actions: &mut Vec<TaskAction>) {
        let id = task.id;
        let mut failed = None;
        let mut after = task.spec.after.clone();
        after.sort_unstable();
        after.dedup();
        for before in after {
            let ended = self.outcomes.get(before).map(|k| &k.outcome.end);
            match self.tasks.get(&before) {
                Some(live) if !live.is_reported => {
                    task.waits += 1;
                    self.followers.entry(before).or_default().push(id);
                }
                // Its end was reported, though it may still hang.
                Some(_) => failed = Some(before),
                // One that is forgotten has ended well: otherwise this task would have ended with it.
                None if ended.is_some_and(|end| *end != TaskEnd::Done) => failed = Some(before),
                None => {}
            }
        }
        *self.counts.entry(task.user).or_default() += 1;
        for name in task.named() {
            if let Some(space) = self.spaces.get_mut(&name) {
                space.tasks += 1;
            }
        }
        let ready = task.waits == 0;
        self.tasks.insert(id, task);
        if let Some(before) = failed {
            self.end(now, id, Err(follows(before)), Finish::nothing(), actions);
        } else if ready {
            self.make_ready(id);
        }
    }

    pub(crate) fn make_ready(&mut self, id: TaskId) {
        let paused = self.is_paused(id);
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        if paused {
            task.phase = TaskPhase::Paused;
            return;
        }
        task.phase = TaskPhase::Ready;
        let (user, rank) = (task.user, task.rank());
        let weight = self.config.weights.get(&user).copied().unwrap_or(1);
        self.queues.push(user, weight, rank);
        if matches!(self.tasks[&id].spec.kind, TaskOperation::Remove { .. }) {
            self.count_freeing(id, true);
        }
    }

    /// Counts the tasks that will free space and for which others wait: removals that are ready, moves under way (one
    /// that is not might itself wait for space).
    pub(crate) fn count_freeing(&mut self, id: TaskId, more: bool) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        let Some(space) = task.frees().and_then(|name| self.spaces.get_mut(name)) else {
            return;
        };
        let count = space.freeing.entry(task.user).or_default();
        if more {
            *count += 1;
            return;
        }
        assert!(*count > 0, "task {id} frees nothing and was counted off");
        *count -= 1;
        if *count == 0 {
            space.freeing.remove(&task.user);
        }
    }

    fn cancel_for(
        &mut self,
        now: Time,
        user: UserId,
        id: TaskId,
        actions: &mut Vec<TaskAction>,
    ) -> CancelResult {
        let may = |owner: UserId| owner == user || self.manages(user);
        if self
            .tasks
            .get(&id)
            .is_some_and(|t| may(t.user) && !t.is_reported)
        {
            self.cancel(now, id, actions);
            return CancelResult::Cancelled;
        }
        match self.outcomes.get(id) {
            Some(kept) if may(kept.user) => CancelResult::Over,
            _ => CancelResult::Unknown,
        }
    }

    pub(crate) fn cancel(&mut self, now: Time, id: TaskId, actions: &mut Vec<TaskAction>) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        match task.phase {
            TaskPhase::Waiting | TaskPhase::Ready | TaskPhase::Paused => {
                self.end(now, id, Err(cancelled()), Finish::nothing(), actions);
            }
            TaskPhase::Measuring | TaskPhase::Running if !task.cancelled => {
                task.cancelled = true;
                self.stopping.insert((now.saturating_add(STOPPING), id));
                let keep = false;
                actions.push(TaskAction::Stop { task: id, keep });
            }
            TaskPhase::Measuring | TaskPhase::Running => {}
        }
    }

    /// Callers of tasks that do not stop (a store that hangs) are notified that it is over. The slots stay taken.
    fn report_stuck_tasks(&mut self, now: Time, actions: &mut Vec<TaskAction>) {
        while let Some((at, id)) = self.stopping.first().copied() {
            if at > now {
                return;
            }
            self.stopping.remove(&(at, id));
            let text = "cancelled, but the place does not answer: what was under way there may still appear";
            let why = RequestError::new(Code::Cancelled, text);
            self.report_end(now, id, Err(why), &Finish::nothing(), actions);
            if let Some(task) = self.tasks.get_mut(&id) {
                task.is_reported = true;
            }
            for follower in self.followers.remove(&id).unwrap_or_default() {
                self.end(now, follower, Err(follows(id)), Finish::nothing(), actions);
            }
        }
    }

    pub(crate) fn measured(
        &mut self,
        now: Time,
        id: TaskId,
        size: Result<TaskSize, RequestError>,
        actions: &mut Vec<TaskAction>,
    ) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        if task.phase != TaskPhase::Measuring {
            return;
        }
        let (cancelled, halting) = (task.cancelled, task.halting);
        if halting && !cancelled && size.as_ref().err().is_none_or(is_cancelled) {
            task.size = size.ok();
            self.halted(id);
            return;
        }
        match size {
            Ok(size) if !cancelled => {
                task.size = Some(size);
                let cost = size.bytes.saturating_sub(crate::LEAST_COST);
                let user = task.user;
                self.queues.charge(user, cost);
                self.start_measured(now, id, actions);
            }
            other => {
                let why = other.err().unwrap_or_else(self::cancelled);
                self.release_slots(id);
                self.end(now, id, Err(why), Finish::nothing(), actions);
            }
        }
    }

    pub(crate) fn finished(
        &mut self,
        now: Time,
        id: TaskId,
        finish: Finish,
        actions: &mut Vec<TaskAction>,
    ) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        if task.phase != TaskPhase::Running {
            return;
        }
        if task.halting && !task.cancelled && finish.result.as_ref().err().is_some_and(is_cancelled)
        {
            self.halted(id);
            return;
        }
        let (user, job) = (task.user, task.job);
        let into = task.reserved().map(|(name, bytes)| {
            let settled = Settled {
                reserved: bytes,
                added: finish.stored,
                gone: finish.replaced,
            };
            (name.to_owned(), settled)
        });
        let out_of = task.frees().map(|name| {
            let gone = finish.freed;
            (
                name.to_owned(),
                Settled {
                    gone,
                    ..Settled::default()
                },
            )
        });
        for (name, settled) in into.into_iter().chain(out_of) {
            self.settle(&name, user, job, settled, actions);
        }
        self.release_slots(id);
        let result = finish.result.clone();
        self.end(now, id, result, finish, actions);
    }

    /// Ends a reservation of a task, in its space and in its job.
    pub(crate) fn settle(
        &mut self,
        name: &str,
        user: UserId,
        job: Option<JobId>,
        settled: Settled,
        actions: &mut Vec<TaskAction>,
    ) {
        if let Some(space) = self.spaces.get_mut(name) {
            space.settle(user, settled);
        }
        let Some(id) = job else {
            return;
        };
        if let Some(job) = self.jobs.get_mut(id) {
            let used = job.settle(name, settled);
            if settled.added > 0 || settled.gone > 0 {
                actions.push(TaskAction::Record(TaskLogRecord::JobUsed {
                    job: id,
                    space: name.into(),
                    used,
                }));
            }
        }
    }

    /// A task ends: it is reported, forgotten, and its followers continue.
    pub(crate) fn end(
        &mut self,
        now: Time,
        id: TaskId,
        result: Result<(), RequestError>,
        finish: Finish,
        actions: &mut Vec<TaskAction>,
    ) {
        // A chain of any length ends without recursion.
        let mut ending = vec![(id, result, finish)];
        while let Some((id, result, finish)) = ending.pop() {
            let Some(task) = self.tasks.get(&id) else {
                continue;
            };
            if task.phase == TaskPhase::Ready {
                let (user, rank) = (task.user, task.rank());
                self.queues.remove(user, &rank);
            }
            let task = &self.tasks[&id];
            let counted = task.is_freeing();
            let is_reported = task.is_reported;
            let ok = result.is_ok();
            if !is_reported {
                self.report_end(now, id, result, &finish, actions);
            }
            if counted {
                self.count_freeing(id, false);
            }
            self.leave(id, actions);
            if let Some(task) = self.tasks.remove(&id) {
                self.forget(&task);
            }
            for follower in self.followers.remove(&id).unwrap_or_default() {
                let Some(task) = self.tasks.get_mut(&follower) else {
                    continue;
                };
                assert!(task.waits > 0, "task {follower} waits for nothing");
                task.waits -= 1;
                if !ok {
                    ending.push((follower, Err(follows(id)), Finish::nothing()));
                } else if task.waits == 0 && task.phase == TaskPhase::Waiting {
                    self.make_ready(follower);
                }
            }
        }
    }

    fn forget(&mut self, task: &Task) {
        if let Some(count) = self.counts.get_mut(&task.user) {
            assert!(*count > 0, "user {} has no tasks", task.user);
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&task.user);
            }
        }
        for name in task.named() {
            if let Some(space) = self.spaces.get_mut(&name) {
                assert!(space.tasks > 0, "dataspace `{name}` has no tasks");
                space.tasks -= 1;
            }
        }
        if let Some(at) = task.retry.at {
            self.retries.remove(&(at, task.id));
        }
        if task.cancelled {
            self.stopping.retain(|(_, id)| *id != task.id);
        }
    }

    /// Tells a task's end, and keeps it.
    fn report_end(
        &mut self,
        now: Time,
        id: TaskId,
        result: Result<(), RequestError>,
        finish: &Finish,
        actions: &mut Vec<TaskAction>,
    ) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        let nanos = task.started.map_or(0, |at| now.saturating_sub(at));
        let outcome = TaskOutcome {
            id,
            bytes: finish.bytes,
            nanos,
            late: task.deadline.is_some_and(|d| now > d),
            checksum: finish.checksum,
            end: result.map_or_else(TaskEnd::Failed, |()| TaskEnd::Done),
        };
        match outcome.end {
            TaskEnd::Done => self.totals.0 += 1,
            TaskEnd::Failed(_) => self.totals.1 += 1,
        }
        self.totals.2 = self.totals.2.saturating_add(finish.bytes);
        self.mean = (self.mean / 16)
            .saturating_mul(15)
            .saturating_add(nanos / 16);
        let (user, durable) = (task.user, task.spec.durable);
        if durable {
            actions.push(TaskAction::Record(TaskLogRecord::Ended {
                user,
                at: now,
                outcome: outcome.clone(),
            }));
        }
        self.outcomes.add(OutcomeRecord {
            user,
            at: now,
            durable,
            outcome: outcome.clone(),
        });
        actions.push(TaskAction::Ended(outcome));
    }

    /// How a task stands that has ended, for its user.
    pub fn outcome(&self, user: UserId, id: TaskId) -> Option<&TaskOutcome> {
        let kept = self.outcomes.get(id);
        kept.filter(|k| k.user == user || self.manages(user))
            .map(|k| &k.outcome)
    }

    /// Whether a task of this user has not ended.
    pub fn is_live(&self, user: UserId, id: TaskId) -> bool {
        let task = self.tasks.get(&id);
        task.is_some_and(|t| !t.is_reported && (t.user == user || self.manages(user)))
    }

    /// How far a task is; bytes done and time left are for the caller to fill in where it runs.
    pub fn status(&self, user: UserId, id: TaskId) -> TaskStatus {
        let mut status = TaskStatus {
            id,
            state: TaskState::Unknown,
            done: 0,
            all: None,
            left: None,
            ahead: 0,
            job: None,
        };
        if let Some(outcome) = self.outcome(user, id) {
            status.done = outcome.bytes;
            status.all = Some(outcome.bytes);
            status.left = Some(0);
            status.state = match outcome.end {
                TaskEnd::Done => TaskState::Done,
                TaskEnd::Failed(_) => TaskState::Failed,
            };
        } else if let Some(task) = self.tasks.get(&id).filter(|_| self.is_live(user, id)) {
            status.all = task.size.map(|s| s.bytes);
            status.job = task.job;
            status.state = match task.phase {
                TaskPhase::Waiting => TaskState::Waiting,
                TaskPhase::Ready => TaskState::Queued,
                TaskPhase::Measuring | TaskPhase::Running => TaskState::Running,
                TaskPhase::Paused => TaskState::Paused,
            };
            if task.phase == TaskPhase::Ready {
                let ahead = self.queues.ahead(task.user, &task.rank(), MAX_AHEAD);
                status.ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
            }
        }
        status
    }
}

fn follows(before: TaskId) -> RequestError {
    RequestError::new(
        Code::Dependency,
        format!("task {before}, which this one follows, has not ended well"),
    )
}

/// Whether that is how a task ends which was stopped.
fn is_cancelled(why: &RequestError) -> bool {
    why.code == Code::Cancelled
}

fn cancelled() -> RequestError {
    RequestError::new(Code::Cancelled, "cancelled")
}
