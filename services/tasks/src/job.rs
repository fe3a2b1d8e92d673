//! Jobs: their limits for all of their tasks, and the processes that may submit.

use crate::space::{Settled, SpaceUsage};
use crate::{MAX_JOBS, MAX_PROCESSES};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tarn_proto::local::{Code, JobChange, JobId, Limit, RequestError, UserId};
use tarn_types::units::Bytes;

/// A process that belongs to a job, with its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The job.
    pub job: JobId,
    /// The process's number.
    pub pid: i32,
    /// Distinguishes it from others that had or will have this number.
    pub stamp: u64,
}

/// A process is to be added to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    /// Comes back with the answer.
    pub ticket: u64,
    /// The user who requests it.
    pub user: UserId,
    /// Which process.
    pub process: Process,
    /// Processes of the job that have ended.
    pub gone: Vec<i32>,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegisteredJob {
    pub(crate) user: UserId,
    pub(crate) limits: BTreeMap<String, u64>,
    pub(crate) usage: BTreeMap<String, SpaceUsage>,
    /// Numbers and stamps.
    pub(crate) processes: BTreeMap<i32, u64>,
    /// Its tasks are not to run until it is resumed.
    pub(crate) paused: bool,
}

impl RegisteredJob {
    pub(crate) fn new(user: UserId, limits: &[Limit]) -> Self {
        Self {
            user,
            limits: limits.iter().map(|l| (l.space.clone(), l.quota)).collect(),
            usage: BTreeMap::new(),
            processes: BTreeMap::new(),
            paused: false,
        }
    }

    /// Whether the job may have `bytes` more in a space: `Ok(false)` when it may later.
    pub(crate) fn fits(&self, job: JobId, space: &str, bytes: u64) -> Result<bool, RequestError> {
        let Some(limit) = self.limits.get(space) else {
            return Ok(true);
        };
        let usage = self.usage.get(space).copied().unwrap_or_default();
        if usage.fits(bytes, *limit) {
            return Ok(true);
        }
        if bytes <= *limit && usage.reserved > 0 {
            return Ok(false);
        }
        Err(RequestError::new(
            Code::Quota,
            format!(
                "{} are needed, but job {job} may have {} in dataspace `{space}` and has {}; remove something there, or ask for more",
                Bytes(bytes),
                Bytes(*limit),
                Bytes(usage.used)
            ),
        ))
    }

    pub(crate) fn reserve(&mut self, space: &str, bytes: u64) {
        self.usage.entry(space.into()).or_default().reserve(bytes);
    }

    /// Ends a reservation. Returns the bytes of the job in the space now.
    pub(crate) fn settle(&mut self, space: &str, settled: Settled) -> u64 {
        let usage = self.usage.entry(space.into()).or_default();
        usage.settle(settled);
        usage.used
    }
}

/// The jobs that are registered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct JobRegistry {
    by_id: BTreeMap<JobId, RegisteredJob>,
}

impl JobRegistry {
    pub(crate) fn get(&self, id: JobId) -> Option<&RegisteredJob> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: JobId) -> Option<&mut RegisteredJob> {
        self.by_id.get_mut(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (JobId, &RegisteredJob)> {
        self.by_id.iter().map(|(id, job)| (*id, job))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The job that one of these processes was added to.
    ///
    /// Each is (number, stamp).
    pub(crate) fn job_of(&self, mut processes: impl Iterator<Item = (i32, u64)>) -> Option<JobId> {
        processes.find_map(|(pid, stamp)| {
            let mut jobs = self.by_id.iter();
            let is = |job: &RegisteredJob| job.processes.get(&pid) == Some(&stamp);
            jobs.find_map(|(id, job)| is(job).then_some(*id))
        })
    }

    /// Processes of a job that has no space for more: some may have ended.
    pub(crate) fn crowd(&self, job: JobId) -> Vec<Process> {
        let full = |j: &&RegisteredJob| j.processes.len() >= MAX_PROCESSES;
        let found = self.by_id.get(&job).filter(full).into_iter();
        let all = found.flat_map(|j| &j.processes);
        all.map(|(pid, stamp)| Process {
            job,
            pid: *pid,
            stamp: *stamp,
        })
        .collect()
    }

    /// Adds a process without a check of rights.
    pub(crate) fn add_process(&mut self, process: Process) -> Result<(), RequestError> {
        let Process { job, pid, stamp } = process;
        let known = self.by_id.get_mut(&job).ok_or_else(|| unknown(job))?;
        if known.processes.len() >= MAX_PROCESSES && !known.processes.contains_key(&pid) {
            return Err(too_many("processes of this job", MAX_PROCESSES));
        }
        known.processes.insert(pid, stamp);
        Ok(())
    }

    /// Lowers the counted bytes of jobs in a space to `most`, which is all that is there. Returns the jobs concerned.
    pub(crate) fn cap(&mut self, space: &str, most: u64) -> Vec<JobId> {
        let mut capped = Vec::new();
        for (id, job) in &mut self.by_id {
            let usage = job.usage.get_mut(space);
            if let Some(usage) = usage.filter(|usage| usage.used > most) {
                usage.used = most;
                capped.push(*id);
            }
        }
        capped
    }

    /// Changes jobs without a check of rights.
    pub(crate) fn apply(&mut self, change: &JobChange) -> Result<(), RequestError> {
        match change {
            JobChange::Register { job, user, limits } => {
                if limits.len() > crate::MAX_SPACES {
                    return Err(too_many("limits", crate::MAX_SPACES));
                }
                if let Some(known) = self.by_id.get_mut(job) {
                    let new = RegisteredJob::new(*user, limits);
                    known.user = new.user;
                    known.limits = new.limits;
                } else if self.by_id.len() >= MAX_JOBS {
                    return Err(too_many("jobs", MAX_JOBS));
                } else {
                    self.by_id.insert(*job, RegisteredJob::new(*user, limits));
                }
            }
            JobChange::Unregister { job } => {
                self.by_id.remove(job).ok_or_else(|| unknown(*job))?;
            }
            // A number alone, as journals of earlier releases have it, names no process.
            JobChange::AddProcess { job, pid } => {
                let text = format!("which process {pid} is to belong to job {job} is not known");
                return Err(RequestError::new(Code::NotFound, text));
            }
            JobChange::RemoveProcess { job, pid } => {
                let known = self.by_id.get_mut(job).ok_or_else(|| unknown(*job))?;
                if known.processes.remove(pid).is_none() {
                    return Err(RequestError::new(
                        Code::NotFound,
                        format!("process {pid} does not belong to job {job}"),
                    ));
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn unknown(job: JobId) -> RequestError {
    RequestError::new(
        Code::NotFound,
        format!("job {job} is not registered with this tarnd"),
    )
}

fn too_many(what: &str, most: usize) -> RequestError {
    RequestError::new(Code::Busy, format!("there are {most} {what} already"))
}
