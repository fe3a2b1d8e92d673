//! Requests that concern jobs.

use crate::core::Core;
use crate::job::{Added, Process, unknown};
use crate::record::TaskLogRecord;
use crate::{TaskAction, TaskReply};
use tarn_proto::local::{Code, JobChange, JobId, RequestError, UserId};
use tarn_types::units::Time;

fn denied(user: UserId) -> RequestError {
    RequestError::new(
        Code::Denied,
        format!("user {user} may not change jobs: only the user that runs tarnd may"),
    )
}

impl Core {
    /// Whether a user may submit for a job.
    ///
    /// # Errors
    /// Why not.
    pub fn may_submit(&self, user: UserId, job: Option<JobId>) -> Result<(), RequestError> {
        match job {
            None if self.config.jobs_only && !self.manages(user) => Err(RequestError::new(
                Code::Denied,
                "only processes of registered jobs may submit tasks here",
            )),
            None => Ok(()),
            Some(id) => match self.jobs.get(id) {
                Some(job) if job.user == user || self.manages(user) => Ok(()),
                Some(_) => Err(RequestError::new(
                    Code::Denied,
                    format!("job {id} belongs to another user"),
                )),
                None => Err(unknown(id)),
            },
        }
    }

    /// Adds a process, after forgetting those that have ended.
    pub(crate) fn add_process(&mut self, added: Added, actions: &mut Vec<TaskAction>) {
        let Added { ticket, user, .. } = added;
        let done = match self.manages(user) {
            true => self.try_add(added.process, &added.gone, actions),
            false => Err(denied(user)),
        };
        let answer = done.map_or_else(TaskReply::Refused, |()| TaskReply::Done);
        actions.push(TaskAction::Answer { ticket, answer });
    }

    fn try_add(
        &mut self,
        process: Process,
        gone: &[i32],
        actions: &mut Vec<TaskAction>,
    ) -> Result<(), RequestError> {
        let job = process.job;
        for pid in gone {
            let change = JobChange::RemoveProcess { job, pid: *pid };
            if self.apply_job(&change).is_ok() {
                actions.push(TaskAction::Record(TaskLogRecord::Job(change)));
            }
        }
        self.jobs.add_process(process)?;
        actions.push(TaskAction::Record(TaskLogRecord::Process(process)));
        Ok(())
    }

    /// The job that one of these processes was added to.
    ///
    /// Each is (number, stamp).
    pub fn job_of(&self, processes: impl Iterator<Item = (i32, u64)>) -> Option<JobId> {
        self.jobs.job_of(processes)
    }

    /// Processes of a job that has no space for more: some may have ended.
    pub fn crowd(&self, job: JobId) -> Vec<Process> {
        self.jobs.crowd(job)
    }

    /// No job has more in a space than there is in all.
    pub(crate) fn cap_jobs(&mut self, space: &str, most: u64, actions: &mut Vec<TaskAction>) {
        let capped = self.jobs.cap(space, most).into_iter();
        let record = |job| TaskLogRecord::JobUsed {
            job,
            space: space.into(),
            used: most,
        };
        actions.extend(capped.map(|job| TaskAction::Record(record(job))));
    }

    /// Whether there are any jobs: then a process that names one must belong to it.
    pub fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    pub(crate) fn change_job(
        &mut self,
        now: Time,
        user: UserId,
        change: JobChange,
        actions: &mut Vec<TaskAction>,
    ) -> TaskReply {
        if !self.manages(user) {
            return TaskReply::Refused(denied(user));
        }
        match self.apply_job(&change) {
            Err(why) => return TaskReply::Refused(why),
            Ok(()) => actions.push(TaskAction::Record(TaskLogRecord::Job(change.clone()))),
        }
        if let JobChange::Unregister { job } = change {
            let of_job = self.tasks.values().filter(|t| t.job == Some(job));
            let ids: Vec<_> = of_job.map(|t| t.id).collect();
            for id in ids {
                self.cancel(now, id, actions);
            }
        }
        TaskReply::Done
    }

    /// Changes jobs without a check of rights. A job that is registered again while tasks of it are under way, which
    /// its end has cancelled, has their reservations until they stop.
    pub(crate) fn apply_job(&mut self, change: &JobChange) -> Result<(), RequestError> {
        let is_new = |id: &JobId| self.jobs.get(*id).is_none();
        let registered = match change {
            JobChange::Register { job, .. } if is_new(job) => Some(*job),
            _ => None,
        };
        self.jobs.apply(change)?;
        if let Some(id) = registered
            && let Some(job) = self.jobs.get_mut(id)
        {
            let of_job = self.tasks.values().filter(|task| task.job == Some(id));
            for (space, bytes) in of_job.filter_map(|task| task.reserved()) {
                job.reserve(space, bytes);
            }
        }
        Ok(())
    }
}
