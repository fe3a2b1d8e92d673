//! Jobs: whose tasks are limited together, and whose processes may submit.

use crate::core::Core;
use crate::recover::Record;
use crate::{Action, Answer, MAX_JOBS, MAX_PROCESSES};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tarn_proto::local::{Code, JobChange, JobId, Limit, Refusal, Uid};
use tarn_types::units::{Bytes, Time};

use crate::room::Usage;

/// A process that belongs to a job, with what it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The job.
    pub job: JobId,
    /// The process's number.
    pub pid: i32,
    /// What tells it from others that had or will have this number.
    pub stamp: u64,
}

/// A process is to be added to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    /// Comes back with the answer.
    pub ticket: u64,
    /// Who asks for it.
    pub user: Uid,
    /// Which process.
    pub process: Process,
    /// Processes of the job that have ended.
    pub gone: Vec<i32>,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) user: Uid,
    pub(crate) limits: BTreeMap<String, u64>,
    pub(crate) usage: BTreeMap<String, Usage>,
    /// Numbers and stamps.
    pub(crate) processes: BTreeMap<i32, u64>,
    /// Its tasks are not to run until it is resumed.
    pub(crate) paused: bool,
}

impl Job {
    pub(crate) fn new(user: Uid, limits: &[Limit]) -> Self {
        Self {
            user,
            limits: limits.iter().map(|l| (l.space.clone(), l.quota)).collect(),
            usage: BTreeMap::new(),
            processes: BTreeMap::new(),
            paused: false,
        }
    }

    /// Whether the job may have `room` more in a space: `Ok(false)` when it may later.
    pub(crate) fn fits(&self, job: JobId, space: &str, room: u64) -> Result<bool, Refusal> {
        let Some(limit) = self.limits.get(space) else {
            return Ok(true);
        };
        let usage = self.usage.get(space).copied().unwrap_or_default();
        if usage
            .used
            .saturating_add(usage.reserved)
            .saturating_add(room)
            <= *limit
        {
            return Ok(true);
        }
        if room <= *limit && usage.reserved > 0 {
            return Ok(false);
        }
        Err(Refusal::new(
            Code::Quota,
            format!(
                "{} are needed, but job {job} may have {} in dataspace `{space}` and has {}; remove something there, or ask for more",
                Bytes(room),
                Bytes(*limit),
                Bytes(usage.used)
            ),
        ))
    }

    pub(crate) fn reserve(&mut self, space: &str, room: u64) {
        let usage = self.usage.entry(space.into()).or_default();
        usage.reserved = usage.reserved.saturating_add(room);
    }

    pub(crate) fn settle(&mut self, space: &str, reserved: u64, added: u64, gone: u64) -> u64 {
        let usage = self.usage.entry(space.into()).or_default();
        usage.reserved = usage.reserved.saturating_sub(reserved);
        usage.used = usage.used.saturating_add(added).saturating_sub(gone);
        usage.used
    }
}

pub(crate) fn unknown(job: JobId) -> Refusal {
    Refusal::new(
        Code::NotFound,
        format!("job {job} is not registered with this tarnd"),
    )
}

fn denied(user: Uid) -> Refusal {
    Refusal::new(
        Code::Denied,
        format!("user {user} may not change jobs: only the user that runs tarnd may"),
    )
}

fn too_many(what: &str, most: usize) -> Refusal {
    Refusal::new(Code::Busy, format!("there are {most} {what} already"))
}

impl Core {
    /// Whether a user may submit for a job.
    ///
    /// # Errors
    /// Why not.
    pub fn may_submit(&self, user: Uid, job: Option<JobId>) -> Result<(), Refusal> {
        match job {
            None if self.config.jobs_only && !self.manages(user) => Err(Refusal::new(
                Code::Denied,
                "only processes of registered jobs may submit tasks here",
            )),
            None => Ok(()),
            Some(id) => match self.jobs.get(&id) {
                Some(job) if job.user == user || self.manages(user) => Ok(()),
                Some(_) => Err(Refusal::new(
                    Code::Denied,
                    format!("job {id} belongs to another user"),
                )),
                None => Err(unknown(id)),
            },
        }
    }

    /// The job that one of these processes was added to.
    ///
    /// Each is (number, stamp).
    pub fn job_of(&self, mut processes: impl Iterator<Item = (i32, u64)>) -> Option<JobId> {
        processes.find_map(|(pid, stamp)| {
            let mut jobs = self.jobs.iter();
            let is = |job: &Job| job.processes.get(&pid) == Some(&stamp);
            jobs.find_map(|(id, job)| is(job).then_some(*id))
        })
    }

    /// Processes of a job that has no room for more: some may have ended.
    pub fn crowd(&self, job: JobId) -> Vec<Process> {
        let full = |j: &&Job| j.processes.len() >= MAX_PROCESSES;
        let found = self.jobs.get(&job).filter(full).into_iter();
        let all = found.flat_map(|j| &j.processes);
        all.map(|(pid, stamp)| Process {
            job,
            pid: *pid,
            stamp: *stamp,
        })
        .collect()
    }

    /// Adds a process, after forgetting those that have ended.
    pub(crate) fn add_process(&mut self, added: Added, actions: &mut Vec<Action>) {
        let Added { ticket, user, .. } = added;
        let done = match self.manages(user) {
            true => self.try_add(added.process, &added.gone, actions),
            false => Err(denied(user)),
        };
        let answer = done.map_or_else(Answer::Refused, |()| Answer::Done);
        actions.push(Action::Answer { ticket, answer });
    }

    fn try_add(
        &mut self,
        process: Process,
        gone: &[i32],
        actions: &mut Vec<Action>,
    ) -> Result<(), Refusal> {
        let job = process.job;
        for pid in gone {
            let change = JobChange::RemoveProcess { job, pid: *pid };
            if self.apply_job(&change).is_ok() {
                actions.push(Action::Record(Record::Job(change)));
            }
        }
        self.apply_process(process)?;
        actions.push(Action::Record(Record::Process(process)));
        Ok(())
    }

    /// Adds a process without asking who does it.
    pub(crate) fn apply_process(&mut self, process: Process) -> Result<(), Refusal> {
        let Process { job, pid, stamp } = process;
        let known = self.jobs.get_mut(&job).ok_or_else(|| unknown(job))?;
        if known.processes.len() >= MAX_PROCESSES && !known.processes.contains_key(&pid) {
            return Err(too_many("processes of this job", MAX_PROCESSES));
        }
        known.processes.insert(pid, stamp);
        Ok(())
    }

    /// No job has more in a space than there is in all.
    pub(crate) fn cap_jobs(&mut self, space: &str, most: u64, actions: &mut Vec<Action>) {
        for (id, job) in &mut self.jobs {
            let usage = job.usage.get_mut(space);
            let Some(usage) = usage.filter(|usage| usage.used > most) else {
                continue;
            };
            usage.used = most;
            actions.push(Action::Record(Record::JobUsed {
                job: *id,
                space: space.into(),
                used: most,
            }));
        }
    }

    /// Whether there are any jobs: then a process that names one must belong to it.
    pub fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    pub(crate) fn change_job(
        &mut self,
        now: Time,
        user: Uid,
        change: JobChange,
        actions: &mut Vec<Action>,
    ) -> Answer {
        if !self.manages(user) {
            return Answer::Refused(denied(user));
        }
        match self.apply_job(&change) {
            Err(why) => return Answer::Refused(why),
            Ok(()) => actions.push(Action::Record(Record::Job(change.clone()))),
        }
        if let JobChange::Unregister { job } = change {
            let of_job = self.tasks.values().filter(|t| t.job == Some(job));
            let ids: Vec<_> = of_job.map(|t| t.id).collect();
            for id in ids {
                self.cancel(now, id, actions);
            }
        }
        Answer::Done
    }

    /// Changes jobs without asking who does it.
    pub(crate) fn apply_job(&mut self, change: &JobChange) -> Result<(), Refusal> {
        match change {
            JobChange::Register { job, user, limits } => {
                if limits.len() > crate::MAX_SPACES {
                    return Err(too_many("limits", crate::MAX_SPACES));
                }
                if let Some(known) = self.jobs.get_mut(job) {
                    let new = Job::new(*user, limits);
                    known.user = new.user;
                    known.limits = new.limits;
                } else if self.jobs.len() >= MAX_JOBS {
                    return Err(too_many("jobs", MAX_JOBS));
                } else {
                    self.jobs.insert(*job, Job::new(*user, limits));
                }
            }
            JobChange::Unregister { job } => {
                self.jobs.remove(job).ok_or_else(|| unknown(*job))?;
            }
            // A number alone, as journals of earlier releases have it, names no process.
            JobChange::AddProcess { job, pid } => {
                let text = format!("which process {pid} is to belong to job {job} is not known");
                return Err(Refusal::new(Code::NotFound, text));
            }
            JobChange::RemoveProcess { job, pid } => {
                let known = self.jobs.get_mut(job).ok_or_else(|| unknown(*job))?;
                if known.processes.remove(pid).is_none() {
                    return Err(Refusal::new(
                        Code::NotFound,
                        format!("process {pid} does not belong to job {job}"),
                    ));
                }
            }
        }
        Ok(())
    }
}
