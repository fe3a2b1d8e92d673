//! The checkpoints of steps: a folder on each of a job's nodes, which stays until a job of the step ends well, or its lease is over.

use crate::model::checkpoints::{CheckpointKey, CheckpointUse, JobRestart};
use crate::model::job::{NodeJobTask, SiteJob, SiteJobPhase};
use crate::model::space::{SpaceAvailability, SpaceRequest};
use crate::state::Site;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    CheckpointFolder, JobSubmission, Mount, Owner, SlurmJobId, StoreContent, Uid, Work, is_name,
};
use tarn_types::units::Elapsed;
use tarn_types::workflow::{CheckpointMethod, Restart};

/// How a job's step continues.
pub(crate) fn restart_of(
    job: SlurmJobId,
    submitted: &JobSubmission,
    workflow: &str,
) -> Result<Option<JobRestart>, RequestError> {
    let Some((step, restart)) = submitted.workflow.steps.iter().find_map(|step| {
        let restart = step.restart?;
        Some((step, restart))
    }) else {
        return Ok(None);
    };
    if restart.from == CheckpointMethod::Image {
        let (what, instead) = Restart::NO_IMAGES;
        let text = format!("{what}: {instead}");
        return Err(RequestError::new(Code::Unsupported, text));
    }
    let step_name = match &step.foreach {
        None => step.name.clone(),
        // Each task of an array has its own.
        Some(_) => format!("{}.{job}", step.name),
    };
    if !is_name(&step_name) {
        let text = format!(
            "`{}` cannot be the name of a step that has checkpoints: up to 64 letters, digits, `_`, `-`, `.`, not `.` first",
            step_name.escape_debug()
        );
        return Err(RequestError::new(Code::Invalid, text));
    }
    Ok(Some(JobRestart {
        folder: CheckpointFolder {
            workflow: workflow.to_owned(),
            step: step_name,
        },
        from: restart.from,
        space: restart.space,
        tier: step.tier.clone(),
    }))
}

impl Site {
    /// Has the folders of a job's checkpoints made on its nodes. Whether all are there.
    pub(crate) fn prepare_checkpoints(
        &mut self,
        id: SlurmJobId,
        job: &SiteJob,
    ) -> Result<bool, RequestError> {
        let (Some(key), Some(restart)) = (job.checkpoint_key(), &job.restart) else {
            return Ok(true);
        };
        if !self.take_checkpoints(id, &key)? {
            return Ok(false);
        }
        let mut is_whole = true;
        for node in &job.nodes {
            if job.is_done(node, &NodeJobTask::Checkpoints) {
                continue;
            }
            is_whole = false;
            let Some(store) = self.checkpoint_store(id, node, &key, restart)? else {
                continue;
            };
            let folder = restart.folder.clone();
            let work = Work::Checkpoints { folder, store };
            self.once(id, job, node, NodeJobTask::Checkpoints, job.order(work));
        }
        if is_whole {
            self.leave_others(&key, &job.nodes);
        }
        Ok(is_whole)
    }

    /// A job has the checkpoints of its step from now on: one job at a time. Whether that is so: one that has ended may not have left
    /// yet.
    fn take_checkpoints(
        &mut self,
        id: SlurmJobId,
        key: &CheckpointKey,
    ) -> Result<bool, RequestError> {
        let known = self.checkpoints.get(key).map(|known| known.job);
        let other = known.filter(|other| *other != id).and_then(|other| {
            let with = self.jobs.get(&other)?;
            let has = (SiteJobPhase::Staging..SiteJobPhase::Ended).contains(&with.phase);
            let is_its = has && with.checkpoint_key().as_ref() == Some(key);
            is_its.then_some((other, with.phase))
        });
        match other {
            Some((other, SiteJobPhase::Staging | SiteJobPhase::Running)) => {
                let text = format!(
                    "job {other} has the checkpoints of step `{}` of workflow `{}`: wait until it has ended, or cancel it; steps that run at once need different names",
                    key.1.step, key.1.workflow
                );
                return Err(RequestError::new(Code::Busy, text));
            }
            Some((other, _)) => {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.waits = Some(format!("job {other} is leaving the checkpoints"));
                }
                return Ok(false);
            }
            None => {}
        }
        let with = CheckpointUse {
            job: id,
            used: self.now,
        };
        self.checkpoints.insert(key.clone(), with);
        Ok(true)
    }

    /// A job has got its nodes: says where the checkpoints are that it may continue from.
    pub(crate) fn note_checkpoints(&mut self, id: SlurmJobId) {
        let Some(key) = self.jobs.get(&id).and_then(SiteJob::checkpoint_key) else {
            return;
        };
        let held: Vec<&str> = self.holders_of(&key).collect();
        if held.is_empty() {
            return;
        }
        let text = format!("checkpoints of its step are on {}", held.join(", "));
        let now = self.now;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.note(now, text);
        }
    }

    /// The nodes that have checkpoints of a step.
    pub(crate) fn holders_of(&self, key: &CheckpointKey) -> impl Iterator<Item = &str> {
        let have = self
            .nodes
            .iter()
            .filter(move |(_, n)| n.checkpoints.contains_key(key));
        have.map(|(name, _)| name.as_str())
    }

    /// The store of a step's checkpoints on a node, with their space, once that is there.
    fn checkpoint_store(
        &mut self,
        id: SlurmJobId,
        name: &str,
        key: &CheckpointKey,
        restart: &JobRestart,
    ) -> Result<Option<String>, RequestError> {
        let known = self.nodes.get(name).and_then(|n| n.checkpoints.get(key));
        if let Some((store, _)) = known {
            return Ok(Some(store.clone()));
        }
        let whom = SpaceRequest {
            job: id,
            tier: restart.tier.as_deref(),
            size: restart.space,
            is_ahead: false,
        };
        let store = match self.find_space(name, restart.space, whom) {
            SpaceAvailability::In(store) => store,
            SpaceAvailability::Soon => return Ok(None),
            SpaceAvailability::None(why) => return Err(why),
        };
        if let Some(node) = self.nodes.get_mut(name) {
            let entry = (store.clone(), restart.space);
            node.checkpoints.insert(key.clone(), entry);
        }
        Ok(Some(store))
    }

    /// A job begins with checkpoints on these nodes: those on others are of no use any more.
    fn leave_others(&mut self, key: &CheckpointKey, nodes: &[String]) {
        let held = self.holders_of(key).map(str::to_owned);
        let others: Vec<String> = held.filter(|name| !nodes.contains(name)).collect();
        for name in others {
            self.drop_checkpoints_on(&name, key);
        }
    }

    fn drop_checkpoints_on(&mut self, name: &str, key: &CheckpointKey) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.checkpoints.remove(key);
        }
        self.doom(name, key.0, StoreContent::Checkpoints(key.1.clone()));
    }

    pub(crate) fn drop_checkpoints(&mut self, key: &CheckpointKey) {
        self.leave_others(key, &[]);
        self.checkpoints.remove(key);
    }

    /// A job with checkpoints leaves its nodes. Whether what its program has left in memory there is on the tier, or gone.
    pub(crate) fn settle_checkpoints(&mut self, id: SlurmJobId, job: &SiteJob, node: &str) -> bool {
        let (Some(key), Some(restart)) = (job.checkpoint_key(), &job.restart) else {
            return true;
        };
        let known = self.nodes.get(node).and_then(|n| n.checkpoints.get(&key));
        let is_phx = restart.from == CheckpointMethod::Phx;
        let Some((store, _)) = known.filter(|_| is_phx && !job.is_well) else {
            return true;
        };
        let work = Work::Destage {
            folder: restart.folder.clone(),
            store: store.clone(),
        };
        self.once(id, job, node, NodeJobTask::Destage, job.order(work))
    }

    /// A job has left: after a good end its checkpoints go, else they stay for the step's next job.
    pub(crate) fn end_checkpoints(&mut self, id: SlurmJobId) {
        let now = self.now;
        let Some((key, is_well)) = self.jobs.get(&id).and_then(|job| {
            let key = job.checkpoint_key()?;
            Some((key, job.is_well))
        }) else {
            return;
        };
        match self.checkpoints.get_mut(&key).filter(|with| with.job == id) {
            None => return,
            Some(_) if is_well => {}
            Some(with) => {
                with.used = now;
                let held: Vec<&str> = self.holders_of(&key).collect();
                let text = format!(
                    "its checkpoints stay on {} for {}, or until `tarn data rm {}/{}`",
                    held.join(", "),
                    Elapsed(self.config.lease),
                    key.1.workflow,
                    key.1.step
                );
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.note(now, text);
                }
                return;
            }
        }
        self.drop_checkpoints(&key);
    }

    /// Whether a job that has not ended is to continue from checkpoints, or has them.
    fn has_checkpoint_user(&self, key: &CheckpointKey) -> Option<SlurmJobId> {
        let live = |job: &SiteJob| {
            job.phase != SiteJobPhase::Ended && job.checkpoint_key().as_ref() == Some(key)
        };
        let mut jobs = self.jobs.iter().filter(|(_, job)| live(job));
        jobs.next().map(|(id, _)| *id)
    }

    /// Leases of checkpoints that no job wants are over.
    pub(crate) fn expire_checkpoints(&mut self) {
        let old = self
            .checkpoints
            .iter()
            .filter(|(_, with)| self.lease_end(with.used) <= self.now);
        let old: Vec<CheckpointKey> = old.map(|(key, _)| key.clone()).collect();
        for key in old {
            if self.has_checkpoint_user(&key).is_some() {
                continue;
            }
            let text = format!(
                "the checkpoints of step `{}` of workflow `{}` are removed: their lease is over",
                key.1.step, key.1.workflow
            );
            self.notify_owner(Owner::User(key.0), text);
            self.drop_checkpoints(&key);
        }
    }

    /// Removes the checkpoints of a step, or of all steps of a workflow. Whether there were any.
    pub(crate) fn remove_checkpoints(
        &mut self,
        owner: Owner,
        workflow: &str,
        step: Option<&str>,
    ) -> Result<bool, RequestError> {
        let Owner::User(user) = owner else {
            return Ok(false);
        };
        let keys = self.checkpoints.keys().filter(|(uid, folder)| {
            *uid == user && folder.workflow == workflow && step.is_none_or(|s| s == folder.step)
        });
        let keys: Vec<CheckpointKey> = keys.cloned().collect();
        for key in &keys {
            if let Some(job) = self.has_checkpoint_user(key) {
                let text = format!(
                    "job {job} continues from the checkpoints of step `{}`: wait until it has ended, or cancel it",
                    key.1.step
                );
                return Err(RequestError::new(Code::Busy, text));
            }
        }
        keys.iter().for_each(|key| self.drop_checkpoints(key));
        Ok(!keys.is_empty())
    }

    /// Checkpoints that a node reports. Whether the log knows them.
    pub(crate) fn knows_checkpoints(
        &self,
        name: &str,
        user: Uid,
        folder: &CheckpointFolder,
    ) -> bool {
        let node = self.nodes.get(name);
        node.is_some_and(|n| n.checkpoints.contains_key(&(user, folder.clone())))
    }

    /// Checkpoints that a node had, and does not report any more: they went with its memory.
    pub(crate) fn lose_checkpoints(
        &mut self,
        name: &str,
        reported: &[CheckpointKey],
        partial: &[Owner],
    ) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.checkpoints
                .retain(|key, _| reported.contains(key) || partial.contains(&Owner::User(key.0)));
        }
    }
}

/// The folder of checkpoints as the tasks of a job see it on a node.
pub(crate) fn mount(job: &SiteJob, store: Option<&String>) -> Option<Mount> {
    let restart = job.restart.as_ref()?;
    Some(Mount {
        store: store.cloned().unwrap_or_default(),
        dataset: restart.folder.run_name(job.user),
        owner: Owner::User(job.user),
        path: restart.folder.path(job.user)?,
        writable: true,
        in_memory: false,
        partition: false,
        spread: None,
        checkpoints: Some(restart.from),
    })
}
