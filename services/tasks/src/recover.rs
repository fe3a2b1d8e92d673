//! The core that is rebuilt from the journal's records.

use crate::core::Core;
use crate::fair::Queues;
use crate::job::{JobRegistry, Process, RegisteredJob};
use crate::kept::{OutcomeRecord, Outcomes};
use crate::record::TaskLogRecord;
use crate::slots::Slots;
use crate::task::{ID_BITS, SubmittedTask, Task, space_of};
use crate::{Config, KEPT_FOR, TaskAction, TaskEvent};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{JobChange, JobId, Limit, Scope, SpaceChange, SpaceSpec, TaskId};
use tarn_types::units::Time;

/// A core that resumes, and its first actions.
#[derive(Debug)]
pub struct Recovered {
    /// The core.
    pub core: Core,
    /// Its first actions: `Began`, the surveys, the tasks that continue.
    pub actions: Vec<TaskAction>,
}

impl Core {
    /// Builds the core that these records lead to. `spaces` are those of the command line: they come before the
    /// journal's.
    pub fn recover(
        config: Config,
        now: Time,
        records: impl IntoIterator<Item = TaskLogRecord>,
        spaces: Vec<(String, SpaceSpec)>,
    ) -> Recovered {
        let mut core = Self {
            config,
            tasks: BTreeMap::new(),
            followers: BTreeMap::new(),
            counts: BTreeMap::new(),
            queues: Queues::default(),
            spaces: BTreeMap::new(),
            jobs: JobRegistry::default(),
            outcomes: Outcomes::default(),
            paused: false,
            slots: Slots::default(),
            stopping: BTreeSet::new(),
            retries: BTreeSet::new(),
            generation: 0,
            next: 0,
            running: 0,
            totals: (0, 0, 0),
            mean: 0,
        };
        let mut live: BTreeMap<TaskId, Task> = BTreeMap::new();
        for record in records {
            core.replay(now, record, &mut live);
        }
        for (name, spec) in spaces {
            core.apply_space(&SpaceChange::Make { name, spec }, true);
        }
        core.generation += 1;
        let generation = core.generation;
        let mut actions = vec![TaskAction::Record(TaskLogRecord::Began { generation })];
        for (id, task) in live {
            core.admit(now, task, &mut actions);
            // A space that it named may be gone: it fails now, not when its turn comes.
            let gone = core.tasks.get(&id).and_then(|t| {
                let (from, to) = t.spec.kind.places();
                let named = [space_of(from), space_of(to)].into_iter().flatten();
                let mut missing = named.filter(|n| !core.spaces.contains_key(*n));
                missing.next().map(str::to_owned)
            });
            if let Some(name) = gone {
                let why = tarn_proto::local::RequestError::new(
                    tarn_proto::local::Code::NotFound,
                    format!(
                        "there is no dataspace `{name}` any more since tarnd was started again; make it, then submit the task again"
                    ),
                );
                core.end(now, id, Err(why), crate::Finish::nothing(), &mut actions);
            }
        }
        for (name, space) in &mut core.spaces {
            space.survey_begins();
            actions.push(TaskAction::Survey(name.clone()));
        }
        core.step(now, TaskEvent::Tick, &mut actions);
        Recovered { core, actions }
    }

    fn replay(&mut self, now: Time, record: TaskLogRecord, live: &mut BTreeMap<TaskId, Task>) {
        match record {
            TaskLogRecord::Began { generation } => {
                self.generation = self.generation.max(generation)
            }
            TaskLogRecord::Submitted {
                id,
                user,
                job,
                at,
                deadline,
                spec,
            } => {
                // A snapshot keeps the ids but not always the start that gave them.
                self.generation = self.generation.max(id >> ID_BITS);
                let submitted = SubmittedTask {
                    id,
                    user,
                    job,
                    at,
                    deadline,
                    spec,
                };
                live.insert(id, Task::new(submitted, true));
            }
            TaskLogRecord::Ended { user, at, outcome } => {
                live.remove(&outcome.id);
                if now.saturating_sub(at) <= KEPT_FOR {
                    let durable = true;
                    self.outcomes.add(OutcomeRecord {
                        user,
                        at,
                        durable,
                        outcome,
                    });
                }
            }
            TaskLogRecord::Space(change) => self.apply_space(&change, false),
            // A change that was recorded was possible; one that is not any more changes nothing.
            TaskLogRecord::Job(change) => drop(self.apply_job(&change)),
            TaskLogRecord::Process(process) => drop(self.jobs.add_process(process)),
            TaskLogRecord::JobUsed { job, space, used } => {
                if let Some(job) = self.jobs.get_mut(job) {
                    job.usage.entry(space).or_default().used = used;
                }
            }
            TaskLogRecord::Paused { scope, on } => self.replay_pause(scope, on, live),
        }
    }

    fn replay_pause(&mut self, scope: Scope, on: bool, live: &mut BTreeMap<TaskId, Task>) {
        match scope {
            Scope::Tasks(ids) => {
                for id in ids {
                    if let Some(task) = live.get_mut(&id) {
                        task.paused = on;
                    }
                }
            }
            Scope::Job(job) => {
                if let Some(job) = self.jobs.get_mut(job) {
                    job.paused = on;
                }
            }
            Scope::All => self.paused = on,
        }
    }

    /// Records that lead to the durable state of this core, and to nothing else: a new journal begins with them.
    pub fn snapshot(&self) -> Vec<TaskLogRecord> {
        let mut records = vec![TaskLogRecord::Began {
            generation: self.generation,
        }];
        for (name, space) in self.spaces.iter().filter(|(_, s)| !s.fixed) {
            let (name, spec) = (name.clone(), space.spec.clone());
            records.push(TaskLogRecord::Space(SpaceChange::Make { name, spec }));
        }
        for (id, job) in self.jobs.iter() {
            records.extend(job_records(id, job));
        }
        let kept = self.outcomes.iter().filter(|k| k.durable);
        records.extend(kept.map(|k| TaskLogRecord::Ended {
            user: k.user,
            at: k.at,
            outcome: k.outcome.clone(),
        }));
        let durable = |t: &&Task| t.spec.durable && !t.is_reported;
        records.extend(
            self.tasks
                .values()
                .filter(durable)
                .map(|t| TaskLogRecord::Submitted {
                    id: t.id,
                    user: t.user,
                    job: t.job,
                    at: t.submitted,
                    deadline: t.deadline,
                    spec: t.spec.clone(),
                }),
        );
        let paused = self.tasks.values().filter(durable).filter(|t| t.paused);
        let ids: Vec<TaskId> = paused.map(|t| t.id).collect();
        let on = true;
        if !ids.is_empty() {
            let scope = Scope::Tasks(ids);
            records.push(TaskLogRecord::Paused { scope, on });
        }
        if self.paused {
            let scope = Scope::All;
            records.push(TaskLogRecord::Paused { scope, on });
        }
        records
    }
}

fn job_records(id: JobId, job: &RegisteredJob) -> Vec<TaskLogRecord> {
    let limit = |(space, quota): (&String, &u64)| Limit {
        space: space.clone(),
        quota: *quota,
    };
    let mut records = vec![TaskLogRecord::Job(JobChange::Register {
        job: id,
        user: job.user,
        limits: job.limits.iter().map(limit).collect(),
    })];
    if job.paused {
        let (scope, on) = (Scope::Job(id), true);
        records.push(TaskLogRecord::Paused { scope, on });
    }
    let add = |(pid, stamp): (&i32, &u64)| {
        TaskLogRecord::Process(Process {
            job: id,
            pid: *pid,
            stamp: *stamp,
        })
    };
    records.extend(job.processes.iter().map(add));
    let used = job.usage.iter().filter(|(_, u)| u.used > 0);
    records.extend(used.map(|(space, usage)| TaskLogRecord::JobUsed {
        job: id,
        space: space.clone(),
        used: usage.used,
    }));
    records
}
