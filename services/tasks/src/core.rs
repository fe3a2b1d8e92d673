//! The state, and what happens to it.

use crate::again::Again;
use crate::fair::{Queues, Rank};
use crate::job::Job;
use crate::kept::{Kept, Outcomes};
use crate::recover::Record;
use crate::room::Space;
use crate::{
    Action, Answer, Config, Event, Finish, MAX_TASKS, MAX_USER_TASKS, STOPPING, Size, deadline_at,
};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{
    CancelResult, Code, End, JobId, Kind, Outcome, Place, Refusal, State, Status, TaskId, TaskSpec,
    Uid,
};
use tarn_types::units::{Nanos, SECOND, Time};

/// Ids of one start of tarnd; the bits above count the starts.
pub(crate) const ID_BITS: u32 = 40;
/// Tasks before one in its queue are counted so far.
const MAX_AHEAD: usize = 1000;
/// Between these lies what a full queue is told to wait.
const RETRY: (Nanos, Nanos) = (SECOND / 1000, SECOND);

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
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
    /// Whose it is.
    pub user: Uid,
    /// For which job.
    pub job: Option<JobId>,
    /// What was asked for.
    pub spec: TaskSpec,
    /// Whether an earlier tarnd may have begun it.
    pub resumed: bool,
    /// What it moves, once known.
    pub size: Option<Size>,
    /// When it was started.
    pub started: Option<Time>,
    pub(crate) submitted: Time,
    pub(crate) deadline: Option<Time>,
    pub(crate) phase: Phase,
    /// Tasks that it still waits for.
    pub(crate) waits: u32,
    pub(crate) cancelled: bool,
    /// It is not to run until it is resumed; its job may be paused beside it.
    pub(crate) paused: bool,
    /// It was told to stop because it was paused.
    pub(crate) halting: bool,
    /// It is not under way, but has the room that it needs: what it has half done takes some of that.
    pub(crate) holds: bool,
    /// Whether its end was told while it did not stop.
    pub(crate) told: bool,
    /// Since when it has been passed over.
    pub(crate) blocked: Option<Time>,
    pub(crate) again: Again,
}

impl Task {
    pub(crate) fn rank(&self) -> Rank {
        let deadline = self.deadline.unwrap_or(Time::MAX);
        (u8::MAX - self.spec.priority, deadline, self.id)
    }

    /// The node that does it for this one: where it puts something, or removes it.
    pub fn done_by(&self) -> Option<&str> {
        let place = match &self.spec.kind {
            Kind::Nothing => None,
            Kind::Copy { to, .. } | Kind::Move { to, .. } => Some(to),
            Kind::Remove { at } | Kind::Allocate { at, .. } => Some(at),
        };
        match place {
            Some(Place::Node { node, .. }) => Some(node),
            _ => None,
        }
    }

    /// The space that it puts something into.
    pub(crate) fn fills(&self) -> Option<&str> {
        space_of(self.spec.kind.places().1)
    }

    /// The space that it frees something in.
    pub(crate) fn frees(&self) -> Option<&str> {
        match &self.spec.kind {
            Kind::Move { from, .. } => space_of(Some(from)),
            Kind::Remove { at } => space_of(Some(at)),
            _ => None,
        }
    }
}

pub(crate) fn space_of(place: Option<&Place>) -> Option<&str> {
    match place {
        Some(Place::Space { name, .. }) => Some(name),
        _ => None,
    }
}

/// The core.
#[derive(Debug, Clone)]
pub struct Core {
    pub(crate) config: Config,
    pub(crate) tasks: BTreeMap<TaskId, Task>,
    /// Tasks that wait for a task.
    pub(crate) followers: BTreeMap<TaskId, Vec<TaskId>>,
    pub(crate) counts: BTreeMap<Uid, usize>,
    pub(crate) queues: Queues,
    pub(crate) spaces: BTreeMap<String, Space>,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) outcomes: Outcomes,
    /// Nothing is started.
    pub(crate) paused: bool,
    /// Slots in use, outside and over links.
    pub(crate) external: u32,
    pub(crate) links: BTreeMap<String, u32>,
    /// Tasks that other nodes do for this one, by node and in all.
    pub(crate) handed: BTreeMap<String, u32>,
    pub(crate) handed_all: u32,
    /// Cancelled tasks that have not stopped: when their callers are told.
    pub(crate) stopping: BTreeSet<(Time, TaskId)>,
    /// Tasks that wait for a node to answer: when they are tried again.
    pub(crate) again: BTreeSet<(Time, TaskId)>,
    pub(crate) generation: u64,
    pub(crate) next: u64,
    pub(crate) running: u64,
    /// Done, failed, bytes.
    pub(crate) totals: (u64, u64, u64),
    /// A mean of what tasks took, nanoseconds.
    pub(crate) mean: Nanos,
}

impl Core {
    /// Says what is to be done about what happened at `now`, nanoseconds since 1970, never going back.
    pub fn step(&mut self, now: Time, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Submit {
                ticket,
                user,
                job,
                tasks,
            } => {
                let answer = self.submit(now, user, job, tasks, actions);
                actions.push(Action::Answer { ticket, answer });
            }
            Event::Cancel { ticket, user, ids } => {
                let cancel = |id| self.cancel_for(now, user, id, actions);
                let answer = Answer::Cancelled(ids.into_iter().map(cancel).collect());
                actions.push(Action::Answer { ticket, answer });
            }
            Event::Pause {
                ticket,
                user,
                scope,
                on,
            } => {
                let answer = self.pause(user, scope, on, actions);
                actions.push(Action::Answer { ticket, answer });
            }
            Event::Space {
                ticket,
                user,
                change,
            } => {
                let answer = self.change_space(user, change, actions);
                actions.push(Action::Answer { ticket, answer });
            }
            Event::Job {
                ticket,
                user,
                change,
            } => {
                let answer = self.change_job(now, user, change, actions);
                actions.push(Action::Answer { ticket, answer });
            }
            Event::Process(added) => self.add_process(added, actions),
            Event::Measured { task, size } => self.measured(now, task, size, actions),
            Event::Finished { task, finish } => self.finished(now, task, finish, actions),
            Event::Unreachable { task, why } => self.unreachable(now, task, why, actions),
            Event::Surveyed { space, used } => self.surveyed(now, &space, used, actions),
            Event::Tick => {}
        }
        self.tell_stopping(now, actions);
        self.try_again(now);
        self.dispatch(now, actions);
    }

    /// When [`Event::Tick`] is due next.
    pub fn timer(&self) -> Option<Time> {
        let next = [self.stopping.first(), self.again.first()];
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
    pub fn manages(&self, user: Uid) -> bool {
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
        user: Uid,
        job: Option<JobId>,
        tasks: Vec<TaskSpec>,
        actions: &mut Vec<Action>,
    ) -> Answer {
        if let Err(why) = self.may_submit(user, job) {
            return Answer::Refused(why);
        }
        let own = self.counts.get(&user).copied().unwrap_or(0);
        if self.tasks.len() + tasks.len() > MAX_TASKS || own + tasks.len() > MAX_USER_TASKS {
            // By then about as many tasks have ended as were to be added.
            let wait = self.mean.saturating_mul(tasks.len() as u64) / (self.running.max(1));
            return Answer::Busy(wait.clamp(RETRY.0, RETRY.1));
        }
        let submit = |spec| self.submit_one(now, user, job, spec, actions);
        Answer::Submitted(tasks.into_iter().map(submit).collect())
    }

    fn submit_one(
        &mut self,
        now: Time,
        user: Uid,
        job: Option<JobId>,
        spec: TaskSpec,
        actions: &mut Vec<Action>,
    ) -> Result<TaskId, Refusal> {
        self.check(user, &spec)?;
        for id in &spec.after {
            let live = self.tasks.get(id).is_some_and(|t| t.user == user);
            if !live && self.outcomes.get(*id).is_none_or(|k| k.user != user) {
                return Err(Refusal::new(
                    Code::NotFound,
                    format!("task {id}, which is to be followed, is not known (any more)"),
                ));
            }
        }
        let id = (self.generation << ID_BITS) | self.next;
        self.next += 1;
        let deadline = deadline_at(now, spec.deadline);
        if spec.durable {
            actions.push(Action::Record(Record::Submitted {
                id,
                user,
                job,
                at: now,
                deadline,
                spec: spec.clone(),
            }));
        }
        self.admit(
            now,
            Task {
                id,
                user,
                job,
                spec,
                resumed: false,
                size: None,
                started: None,
                submitted: now,
                deadline,
                phase: Phase::Waiting,
                waits: 0,
                cancelled: false,
                paused: false,
                halting: false,
                holds: false,
                told: false,
                blocked: None,
                again: Again::default(),
            },
            actions,
        );
        Ok(id)
    }

    /// Takes a task in: it waits, is ready, or fails with what it follows.
    pub(crate) fn admit(&mut self, now: Time, mut task: Task, actions: &mut Vec<Action>) {
        let id = task.id;
        let mut failed = None;
        let mut after = task.spec.after.clone();
        after.sort_unstable();
        after.dedup();
        for before in after {
            let ended = self.outcomes.get(before).map(|k| &k.outcome.end);
            match self.tasks.get(&before) {
                Some(live) if !live.told => {
                    task.waits += 1;
                    self.followers.entry(before).or_default().push(id);
                }
                // It was told that it is over, whatever still hangs.
                Some(_) => failed = Some(before),
                // One that is forgotten has ended well: otherwise this task would have ended with it.
                None if ended.is_some_and(|end| *end != End::Done) => failed = Some(before),
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
            task.phase = Phase::Paused;
            return;
        }
        task.phase = Phase::Ready;
        let (user, rank) = (task.user, task.rank());
        let weight = self.config.weights.get(&user).copied().unwrap_or(1);
        self.queues.push(user, weight, rank);
        if matches!(self.tasks[&id].spec.kind, Kind::Remove { .. }) {
            self.count_freeing(id, true);
        }
    }

    /// What will free room is waited for: removals that are ready, moves under way (one that is not might itself wait
    /// for room).
    pub(crate) fn count_freeing(&mut self, id: TaskId, more: bool) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        let Some(space) = task.frees().and_then(|name| self.spaces.get_mut(name)) else {
            return;
        };
        let count = space.freeing.entry(task.user).or_default();
        *count = if more {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
        if *count == 0 {
            space.freeing.remove(&task.user);
        }
    }

    fn cancel_for(
        &mut self,
        now: Time,
        user: Uid,
        id: TaskId,
        actions: &mut Vec<Action>,
    ) -> CancelResult {
        let may = |owner: Uid| owner == user || self.manages(user);
        if self.tasks.get(&id).is_some_and(|t| may(t.user) && !t.told) {
            self.cancel(now, id, actions);
            return CancelResult::Cancelled;
        }
        match self.outcomes.get(id) {
            Some(kept) if may(kept.user) => CancelResult::Over,
            _ => CancelResult::Unknown,
        }
    }

    pub(crate) fn cancel(&mut self, now: Time, id: TaskId, actions: &mut Vec<Action>) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        match task.phase {
            Phase::Waiting | Phase::Ready | Phase::Paused => {
                self.end(now, id, Err(cancelled()), Finish::nothing(), actions);
            }
            Phase::Measuring | Phase::Running if !task.cancelled => {
                task.cancelled = true;
                self.stopping.insert((now.saturating_add(STOPPING), id));
                let keep = false;
                actions.push(Action::Stop { task: id, keep });
            }
            Phase::Measuring | Phase::Running => {}
        }
    }

    /// Callers of tasks that do not stop (a store that hangs) are told that it is over. The slots stay taken.
    fn tell_stopping(&mut self, now: Time, actions: &mut Vec<Action>) {
        while let Some((at, id)) = self.stopping.first().copied() {
            if at > now {
                return;
            }
            self.stopping.remove(&(at, id));
            let text = "cancelled, but the place does not answer: what was under way there may still appear";
            let why = Refusal::new(Code::Cancelled, text);
            self.tell(now, id, Err(why), &Finish::nothing(), actions);
            if let Some(task) = self.tasks.get_mut(&id) {
                task.told = true;
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
        size: Result<Size, Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        if task.phase != Phase::Measuring {
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
        actions: &mut Vec<Action>,
    ) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        if task.phase != Phase::Running {
            return;
        }
        if task.halting && !task.cancelled && finish.result.as_ref().err().is_some_and(is_cancelled)
        {
            self.halted(id);
            return;
        }
        let room = task.size.map_or(0, |s| s.room);
        let (user, job) = (task.user, task.job);
        let into = task.fills().map(str::to_owned);
        let out_of = task.frees().map(str::to_owned);
        if let Some(name) = into {
            self.settle(
                &name,
                user,
                job,
                room,
                finish.stored,
                finish.replaced,
                actions,
            );
        }
        if let Some(name) = out_of {
            self.settle(&name, user, job, 0, 0, finish.freed, actions);
        }
        self.release_slots(id);
        let result = finish.result.clone();
        self.end(now, id, result, finish, actions);
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn settle(
        &mut self,
        name: &str,
        user: Uid,
        job: Option<JobId>,
        room: u64,
        added: u64,
        gone: u64,
        actions: &mut Vec<Action>,
    ) {
        if let Some(space) = self.spaces.get_mut(name) {
            space.settle(user, room, added, gone);
        }
        let Some(id) = job else {
            return;
        };
        if let Some(job) = self.jobs.get_mut(&id) {
            let used = job.settle(name, room, added, gone);
            if added > 0 || gone > 0 {
                actions.push(Action::Record(Record::JobUsed {
                    job: id,
                    space: name.into(),
                    used,
                }));
            }
        }
    }

    /// A task ends: it is told, forgotten, and what follows it goes on.
    pub(crate) fn end(
        &mut self,
        now: Time,
        id: TaskId,
        result: Result<(), Refusal>,
        finish: Finish,
        actions: &mut Vec<Action>,
    ) {
        // A chain of any length ends without recursion.
        let mut ending = vec![(id, result, finish)];
        while let Some((id, result, finish)) = ending.pop() {
            let Some(task) = self.tasks.get(&id) else {
                continue;
            };
            if task.phase == Phase::Ready {
                let (user, rank) = (task.user, task.rank());
                self.queues.remove(user, &rank);
            }
            let task = &self.tasks[&id];
            let counted = match task.spec.kind {
                Kind::Remove { .. } => !matches!(task.phase, Phase::Waiting | Phase::Paused),
                _ => task.phase == Phase::Running,
            };
            let told = task.told;
            let ok = result.is_ok();
            if !told {
                self.tell(now, id, result, &finish, actions);
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
                task.waits = task.waits.saturating_sub(1);
                if !ok {
                    ending.push((follower, Err(follows(id)), Finish::nothing()));
                } else if task.waits == 0 && task.phase == Phase::Waiting {
                    self.make_ready(follower);
                }
            }
        }
    }

    fn forget(&mut self, task: &Task) {
        if let Some(count) = self.counts.get_mut(&task.user) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(&task.user);
            }
        }
        for name in task.named() {
            if let Some(space) = self.spaces.get_mut(&name) {
                space.tasks = space.tasks.saturating_sub(1);
            }
        }
        if let Some(at) = task.again.at {
            self.again.remove(&(at, task.id));
        }
        if task.cancelled {
            self.stopping.retain(|(_, id)| *id != task.id);
        }
    }

    /// Tells a task's end, and keeps it.
    fn tell(
        &mut self,
        now: Time,
        id: TaskId,
        result: Result<(), Refusal>,
        finish: &Finish,
        actions: &mut Vec<Action>,
    ) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        let nanos = task.started.map_or(0, |at| now.saturating_sub(at));
        let outcome = Outcome {
            id,
            bytes: finish.bytes,
            nanos,
            late: task.deadline.is_some_and(|d| now > d),
            checksum: finish.checksum,
            end: result.map_or_else(End::Failed, |()| End::Done),
        };
        match outcome.end {
            End::Done => self.totals.0 += 1,
            End::Failed(_) => self.totals.1 += 1,
        }
        self.totals.2 = self.totals.2.saturating_add(finish.bytes);
        self.mean = (self.mean / 16)
            .saturating_mul(15)
            .saturating_add(nanos / 16);
        let (user, durable) = (task.user, task.spec.durable);
        if durable {
            actions.push(Action::Record(Record::Ended {
                user,
                at: now,
                outcome: outcome.clone(),
            }));
        }
        self.outcomes.add(Kept {
            user,
            at: now,
            durable,
            outcome: outcome.clone(),
        });
        actions.push(Action::Ended(outcome));
    }

    /// How a task stands that has ended, for its user.
    pub fn outcome(&self, user: Uid, id: TaskId) -> Option<&Outcome> {
        let kept = self.outcomes.get(id);
        kept.filter(|k| k.user == user || self.manages(user))
            .map(|k| &k.outcome)
    }

    /// Whether a task of this user has not ended.
    pub fn is_live(&self, user: Uid, id: TaskId) -> bool {
        let task = self.tasks.get(&id);
        task.is_some_and(|t| !t.told && (t.user == user || self.manages(user)))
    }

    /// How far a task is; bytes done and time left are for the caller to fill in where it runs.
    pub fn status(&self, user: Uid, id: TaskId) -> Status {
        let mut status = Status {
            id,
            state: State::Unknown,
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
                End::Done => State::Done,
                End::Failed(_) => State::Failed,
            };
        } else if let Some(task) = self.tasks.get(&id).filter(|_| self.is_live(user, id)) {
            status.all = task.size.map(|s| s.bytes);
            status.job = task.job;
            status.state = match task.phase {
                Phase::Waiting => State::Waiting,
                Phase::Ready => State::Queued,
                Phase::Measuring | Phase::Running => State::Running,
                Phase::Paused => State::Paused,
            };
            if task.phase == Phase::Ready {
                let ahead = self.queues.ahead(task.user, &task.rank(), MAX_AHEAD);
                status.ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
            }
        }
        status
    }
}

impl Task {
    /// Names of the spaces that it uses, each once.
    fn named(&self) -> Vec<String> {
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

fn follows(before: TaskId) -> Refusal {
    Refusal::new(
        Code::Dependency,
        format!("task {before}, which this one follows, has not ended well"),
    )
}

/// Whether that is how a task ends which was stopped.
fn is_cancelled(why: &Refusal) -> bool {
    why.code == Code::Cancelled
}

fn cancelled() -> Refusal {
    Refusal::new(Code::Cancelled, "cancelled")
}
