//! A world around the core: executors that take virtual time, and an account of the properties that must hold. Each
//! test program uses some of it.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::*;
use tarn_tasks::{Config, Core, Finish, TaskAction, TaskEvent, TaskLogRecord, TaskReply, TaskSize};

pub(crate) const START: u64 = 1_000_000_000_000;

/// A task's true size, by its id's place in the order of submission.
pub(crate) struct World {
    pub(crate) core: Core,
    pub(crate) now: u64,
    pub(crate) config: Config,
    pub(crate) spaces: Vec<(String, SpaceSpec)>,
    pub(crate) journal: Vec<TaskLogRecord>,
    pub(crate) sizes: BTreeMap<TaskId, u64>,
    /// (when, task): the tasks under way.
    pub(crate) busy: BTreeSet<(u64, TaskId)>,
    pub(crate) measuring: Vec<TaskId>,
    pub(crate) surveys: Vec<String>,
    /// Bytes really in a space, by user.
    pub(crate) content: BTreeMap<String, BTreeMap<UserId, u64>>,
    pub(crate) started: Vec<TaskId>,
    pub(crate) ended: BTreeMap<TaskId, TaskOutcome>,
    pub(crate) answers: Vec<TaskReply>,
    pub(crate) stopped: BTreeSet<TaskId>,
    /// How often a task was stopped to continue later.
    pub(crate) halts: BTreeMap<TaskId, usize>,
    /// The tasks whose half-done work was removed.
    pub(crate) discarded: Vec<TaskId>,
    /// Nanoseconds a byte.
    pub(crate) pace: u64,
}

pub(crate) fn space(capacity: u64, quota: u64, slots: u32) -> SpaceSpec {
    SpaceSpec {
        root: b"/space".into(),
        capacity,
        quota,
        slots,
        everyone: Access {
            read: true,
            write: true,
            manage: false,
        },
        users: Vec::new(),
    }
}

pub(crate) fn copy(to: &str) -> TaskOperation {
    TaskOperation::Copy {
        from: TaskLocation::External(b"/outside".into()),
        to: TaskLocation::Space {
            name: to.into(),
            path: b"x".into(),
        },
    }
}

pub(crate) fn remove(at: &str) -> TaskOperation {
    TaskOperation::Remove {
        at: TaskLocation::Space {
            name: at.into(),
            path: b"x".into(),
        },
    }
}

impl World {
    pub(crate) fn new(config: Config, spaces: Vec<(String, SpaceSpec)>) -> Self {
        let recovered = Core::recover(config.clone(), START, [], spaces.clone());
        let mut world = Self {
            core: recovered.core,
            now: START,
            config,
            spaces,
            journal: Vec::new(),
            sizes: BTreeMap::new(),
            busy: BTreeSet::new(),
            measuring: Vec::new(),
            surveys: Vec::new(),
            content: BTreeMap::new(),
            started: Vec::new(),
            ended: BTreeMap::new(),
            answers: Vec::new(),
            stopped: BTreeSet::new(),
            halts: BTreeMap::new(),
            discarded: Vec::new(),
            pace: 1,
        };
        world.perform(recovered.actions);
        world
    }

    pub(crate) fn step(&mut self, event: TaskEvent) {
        let mut actions = Vec::new();
        self.core.step(self.now, event, &mut actions);
        self.perform(actions);
        self.check();
    }

    fn perform(&mut self, actions: Vec<TaskAction>) {
        for action in actions {
            match action {
                TaskAction::Answer { answer, .. } => self.answers.push(answer),
                TaskAction::Record(record) => self.journal.push(record),
                TaskAction::Measure(id) => self.measuring.push(id),
                TaskAction::Start(id) => {
                    let size = self.size(id);
                    self.started.push(id);
                    self.stopped.remove(&id);
                    assert!(self.busy.iter().all(|(_, other)| *other != id));
                    assert!(self.busy.insert((self.now + 1 + size * self.pace, id)));
                }
                TaskAction::Stop { task, keep } => {
                    self.stopped.insert(task);
                    *self.halts.entry(task).or_default() += usize::from(keep);
                }
                TaskAction::Discard(task) => self.discarded.push(task.id),
                TaskAction::Survey(name) => self.surveys.push(name),
                TaskAction::Ended(outcome) => {
                    let id = outcome.id;
                    assert!(
                        self.ended.insert(id, outcome).is_none(),
                        "task {id} ended twice"
                    );
                }
            }
        }
    }

    pub(crate) fn size(&self, id: TaskId) -> u64 {
        self.sizes.get(&id).copied().unwrap_or(1)
    }

    /// Capacity and quotas hold at every moment.
    fn check(&self) {
        for (name, spec) in &self.spaces {
            for info in self
                .core
                .spaces_for(self.config.owner)
                .iter()
                .filter(|i| i.name == *name)
            {
                assert!(info.used + info.reserved <= spec.capacity, "{info:?}");
            }
            let content = self.content.get(name);
            for (user, bytes) in content.into_iter().flatten() {
                assert!(
                    spec.quota == 0 || *bytes <= spec.quota,
                    "user {user} has {bytes}"
                );
            }
            let sum: u64 = content.map_or(0, |c| c.values().sum());
            assert!(sum <= spec.capacity, "{name}: {sum}");
        }
    }

    pub(crate) fn submit(
        &mut self,
        user: UserId,
        job: Option<JobId>,
        spec: TaskSpec,
        size: u64,
    ) -> Result<TaskId, Option<RequestError>> {
        // The size must be known when the task is looked at, which may be at once.
        self.step(TaskEvent::Submit {
            ticket: 0,
            user,
            job,
            tasks: vec![spec],
        });
        match self.answers.pop() {
            Some(TaskReply::Submitted(mut all)) => {
                let id = all.pop().unwrap().map_err(Some)?;
                self.sizes.insert(id, size);
                Ok(id)
            }
            Some(TaskReply::Refused(why)) => Err(Some(why)),
            _ => Err(None),
        }
    }

    /// Does one thing that is under way; false when there is nothing.
    pub(crate) fn turn(&mut self) -> bool {
        if let Some(name) = self.surveys.pop() {
            let used = self.content.get(&name).cloned().unwrap_or_default();
            self.step(TaskEvent::Surveyed {
                space: name,
                used: Ok(used),
            });
        } else if !self.measuring.is_empty() {
            let id = self.measuring.remove(0);
            let bytes = self.size(id);
            self.step(TaskEvent::Measured {
                task: id,
                size: Ok(TaskSize {
                    bytes,
                    space: bytes,
                }),
            });
        } else if let Some((at, id)) = self.busy.pop_first() {
            self.now = self.now.max(at);
            let finish = self.finish(id);
            self.step(TaskEvent::Finished { task: id, finish });
        } else if let Some(at) = self.core.timer() {
            self.now = self.now.max(at);
            self.step(TaskEvent::Tick);
        } else {
            return false;
        }
        true
    }

    /// The first task that is under way finds a node gone; which one.
    pub(crate) fn unreachable(&mut self) -> Option<TaskId> {
        let id = match self.measuring.is_empty() {
            true => self.busy.pop_first()?.1,
            false => self.measuring.remove(0),
        };
        *self.halts.entry(id).or_default() += 1;
        let why = RequestError::new(Code::Io, "node b cannot be reached");
        self.step(TaskEvent::Unreachable { task: id, why });
        Some(id)
    }

    fn finish(&mut self, id: TaskId) -> Finish {
        let task = self
            .core
            .task(id)
            .expect("a task that was started is known")
            .clone();
        let bytes = self.size(id);
        let mut finish = Finish {
            result: Ok(()),
            bytes,
            stored: 0,
            replaced: 0,
            freed: 0,
            checksum: None,
        };
        if self.stopped.contains(&id) {
            finish.result = Err(RequestError::new(Code::Cancelled, "stopped"));
            finish.bytes = 0;
            return finish;
        }
        let (from, to) = task.spec.kind.places();
        if let Some(TaskLocation::Space { name, .. }) = to {
            let of_space = self.content.entry(name.clone()).or_default();
            let has = of_space.entry(task.user).or_default();
            finish.stored = bytes;
            if task.spec.replace {
                finish.replaced = bytes.min(*has);
            }
            *has += bytes - finish.replaced;
        }
        if let (
            TaskOperation::Remove { .. } | TaskOperation::Move { .. },
            Some(TaskLocation::Space { name, .. }),
        ) = (&task.spec.kind, from)
        {
            let has = self
                .content
                .entry(name.clone())
                .or_default()
                .entry(task.user)
                .or_default();
            finish.freed = bytes.min(*has);
            *has -= finish.freed;
        }
        finish
    }

    pub(crate) fn run(&mut self) {
        while self.turn() {}
    }

    /// Forgets all but the journal, as `kill -9` does.
    pub(crate) fn crash(&mut self) {
        let recovered = Core::recover(
            self.config.clone(),
            self.now,
            self.journal.clone(),
            self.spaces.clone(),
        );
        self.core = recovered.core;
        self.busy.clear();
        self.measuring.clear();
        self.surveys.clear();
        self.perform(recovered.actions);
    }
}
