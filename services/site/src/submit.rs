//! A job comes: which versions it reads and makes, and whether there may be space for them.

use crate::model::catalog::{VersionKey, VersionRecord, VersionState};
use crate::model::job::{SiteJob, SiteJobPhase};
use crate::model::queue::QueueReading;
use crate::resolve::Resolution;
use crate::state::Site;
use crate::{MAX_ADVISED, MAX_DATASETS, MAX_JOBS};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{ControllerReply, JobSubmission, Owner, PlacementAdvice, SlurmJobId, Uid};
use tarn_types::workflow::Keep;

/// Readings of Slurm's queue in a row that lack a job which Slurm never asked about: then the job is over.
const MAX_ABSENCES: u32 = 2;
/// The same of one that Slurm asked about: if it is cancelled just then, Slurm may kill its teardown too.
const MAX_REPORTED_ABSENCES: u32 = 4;

impl Site {
    /// Slurm asks about a job, and waits for the reply.
    pub(crate) fn arrive(&mut self, job: SlurmJobId, submitted: JobSubmission) {
        self.queue.found(submitted.user, job);
        if let Some(why) = self.refused.remove(&job) {
            self.answer_stage(job, Err(why));
        } else if self.is_registered(job, &submitted) {
            // A user may have changed it since it was found.
            if let Some(known) = self.jobs.get_mut(&job).filter(|known| !known.is_reported) {
                known.excludes.clone_from(&submitted.excludes);
                known.has_wish = submitted.has_wish;
            }
            self.register(job, &submitted);
        } else {
            let now = self.now;
            self.arriving.entry(job).or_insert((now, submitted));
        }
    }

    /// Slurm asks about a job whose script its stage has not read.
    pub(crate) fn answer_reported(&mut self, job: SlurmJobId) {
        if let Some(why) = self.refused.remove(&job) {
            self.answer_stage(job, Err(why));
        } else if let Some(known) = self.jobs.get_mut(&job)
            && known.phase != SiteJobPhase::Ended
            && known.put_back.is_none()
        {
            known.is_reported = true;
            let advice = self.advise(job);
            self.answer_stage(job, Ok(advice));
        } else if !self.arriving.contains_key(&job) {
            self.answer_stage(job, Ok(ControllerReply::Unknown));
        }
    }

    /// Where a job that is set up would best run.
    fn advise(&mut self, job: SlurmJobId) -> ControllerReply {
        if let Some(known) = self.jobs.get_mut(&job).filter(|known| !known.is_bringing) {
            // It is not expected anywhere twice.
            known.ahead.clear();
        }
        let Some(state) = self.jobs.get(&job) else {
            return ControllerReply::Done;
        };
        let advice = self.placement().advice(state);
        let expected = advice.prefer.clone();
        if let Some(state) = self.jobs.get_mut(&job) {
            state.ahead = expected;
        }
        ControllerReply::Advice(advice)
    }

    /// A job was found in Slurm's queue. All jobs that were submitted before it are in the same reading, or over.
    pub(crate) fn find(&mut self, job: SlurmJobId, submitted: JobSubmission) {
        self.queue.found(submitted.user, job);
        if !self.is_registered(job, &submitted) && !self.is_known(job) {
            let began = self.queue.began;
            self.arriving.insert(job, (began, submitted));
        }
    }

    /// Slurm's queue was read.
    pub(crate) fn list(&mut self, queue: QueueReading, gone: &BTreeSet<SlurmJobId>) {
        self.queue = queue;
        let found: Vec<SlurmJobId> = self.queued_jobs().collect();
        for id in found {
            let is_gone = gone.contains(&id);
            if is_gone {
                self.refused.remove(&id);
            }
            let Some(job) = self.jobs.get_mut(&id) else {
                continue;
            };
            job.absences = if is_gone { job.absences + 1 } else { 0 };
            let (most, why) = match job.is_reported {
                true => (
                    MAX_REPORTED_ABSENCES,
                    "cancelled; Slurm never ended its stages",
                ),
                false => (MAX_ABSENCES, "cancelled before Slurm staged it"),
            };
            if job.absences == most {
                job.note(self.now, why);
                self.begin_leaving(id, true);
                self.advance(id);
            }
        }
        self.take_in();
    }

    /// Takes in, by their numbers, the arriving jobs before which no other one of their users is missing.
    pub(crate) fn take_in(&mut self) {
        let jobs: Vec<SlurmJobId> = self.arriving.keys().copied().collect();
        // Users whose next job has to wait.
        let mut early: BTreeSet<Uid> = BTreeSet::new();
        for job in jobs {
            let Some((since, submitted)) = self.arriving.get(&job) else {
                continue;
            };
            let user = submitted.user;
            // Data of others is read as their jobs with lower numbers make it, too.
            let mut owners = submitted.owners.values();
            let is_next = *since <= self.queue.began
                && !self.queue.lacks_lower(user, job)
                && !owners.any(|owner| self.queue.lacks_lower_of(*owner, job))
                && !early.contains(&user);
            if self.is_leaving_its_nodes(job) {
                // It has been taken in once: it keeps nobody waiting.
                continue;
            }
            if !is_next {
                early.insert(user);
            } else if let Some((_, submitted)) = self.arriving.remove(&job) {
                self.register(job, &submitted);
            }
        }
    }

    /// Takes in a job that Slurm believes to be taken in, and those before it.
    pub(crate) fn take_in_until(&mut self, last: SlurmJobId) {
        let jobs = self.arriving.range(..=last).map(|(job, _)| *job);
        let jobs: Vec<SlurmJobId> = jobs.collect();
        for job in jobs {
            if let Some((_, submitted)) = self.arriving.remove(&job) {
                // The next stage says so if it is not known.
                let _ = self.set_up(job, &submitted);
            }
        }
    }

    /// Sets a job up, and answers Slurm if it waits; else keeps why it is refused until Slurm asks.
    fn register(&mut self, job: SlurmJobId, submitted: &JobSubmission) {
        let is_reported = self.waiting.contains_key(&job);
        let reply = match self.set_up(job, submitted) {
            Ok(()) => {
                if let Some(state) = self.jobs.get_mut(&job) {
                    state.is_reported |= is_reported;
                }
                self.advise(job)
            }
            Err(why) => {
                if !is_reported && self.refused.len() < MAX_JOBS {
                    self.refused.insert(job, why.clone());
                }
                ControllerReply::Refused(why)
            }
        };
        self.answer_stage(job, Ok(reply));
    }

    /// Whether a job is set up already. One that Slurm has put back into its queue is set up again.
    fn is_registered(&self, job: SlurmJobId, submitted: &JobSubmission) -> bool {
        self.jobs.get(&job).is_some_and(|known| {
            let is_set_up = known.put_back.is_none() && known.phase != SiteJobPhase::Ended;
            known.user == submitted.user && is_set_up
        })
    }

    /// Whether a job that Slurm has put back still leaves the nodes that it had.
    fn is_leaving_its_nodes(&self, job: SlurmJobId) -> bool {
        let known = self.jobs.get(&job);
        known.is_some_and(|known| known.put_back.is_some() && known.phase != SiteJobPhase::Ended)
    }

    /// Registers a job. Slurm repeats the request when slurmctld was started again, and when a job is put back into its
    /// queue.
    fn set_up(&mut self, job: SlurmJobId, submitted: &JobSubmission) -> Result<(), RequestError> {
        if self.is_registered(job, submitted) {
            return Ok(());
        }
        if self.jobs.len() >= MAX_JOBS {
            self.forget_jobs();
        }
        if self.jobs.len() >= MAX_JOBS {
            let text = format!(
                "{MAX_JOBS} jobs with data are known already: try again when some have ended"
            );
            return Err(RequestError::new(Code::Busy, text));
        }
        let mut state = Resolution {
            catalog: &self.catalog,
            jobs: &self.jobs,
            job,
            submitted,
            now: self.now,
        }
        .resolve()?;
        self.check_partitions(&state)?;
        self.check_quota(&state)?;
        self.placement().check_size(&state)?;
        self.placement().check_tiers(&state)?;
        self.claim(job, &state, submitted);
        let known = self.jobs.get(&job).filter(|known| known.user == state.user);
        if known.is_some_and(|known| known.put_back == Some(true)) {
            // No more jobs come for that.
            let key = (state.owner, state.workflow.clone());
            if let Some(workflow) = self.catalog.workflows.get_mut(&key) {
                workflow.has_ended = true;
            }
        }
        if let Some(known) = self.jobs.remove(&job)
            && known.user == state.user
        {
            state.history = known.history;
            state.has_wish = known.has_wish;
            state.is_again = true;
        }
        state.note(self.now, "taken in");
        self.jobs.insert(job, state);
        Ok(())
    }

    /// Jobs that wait for this one's output, and their best nodes now that it is there.
    pub(crate) fn advise_readers(&self, id: SlurmJobId) -> ControllerReply {
        let made = self.jobs.get(&id).into_iter().flat_map(|j| &j.makes);
        let made: Vec<&VersionKey> = made.map(|m| &m.version).collect();
        let waits = |job: &SiteJob| {
            let reads = job.reads.iter().any(|r| made.contains(&&r.version));
            job.phase == SiteJobPhase::Queued && (reads || job.beside == Some(id))
        };
        let readers = self.jobs.iter().filter(|(_, job)| waits(job));
        let advices = readers.map(|(id, job)| (*id, self.placement().advice(job)));
        let with_nodes = advices.filter(|(_, a)| !a.prefer.is_empty() || !a.require.is_empty());
        let advices: Vec<(SlurmJobId, PlacementAdvice)> = with_nodes.take(MAX_ADVISED).collect();
        match advices.is_empty() {
            true => ControllerReply::Done,
            false => ControllerReply::Advices(advices),
        }
    }

    /// A job that was submitted, and never taken in, is over.
    pub(crate) fn never_comes(&mut self, job: SlurmJobId) {
        if self.catalog.stop_awaiting(job) {
            self.settle();
        }
    }

    /// Adds its outputs as promises: they exist from now on.
    fn claim(&mut self, job: SlurmJobId, state: &SiteJob, submitted: &JobSubmission) {
        let keep_of = |name: &str| {
            let mut data = submitted.workflow.data.iter();
            let found = data.find(|d| d.name == name);
            (
                found.map_or(Keep::UntilConsumed, |d| d.keep),
                found.and_then(|d| d.source.clone()),
                found.is_some_and(|d| d.encrypt),
                found.and_then(|d| d.scatter.clone()),
            )
        };
        let now = self.now;
        for makes in &state.makes {
            // Its remains from an earlier start of the job are of no use.
            self.drop_version(&makes.version);
        }
        let key = (state.owner, state.workflow.clone());
        let own = self.catalog.workflows.entry(key.clone()).or_default();
        let whose = (state.user, &state.workflow[..]);
        self.flows.join(whose, job, own.has_ended, now);
        match &submitted.chain {
            None => own.has_ended = submitted.is_alone,
            Some(chain) => {
                own.awaits.extend(&chain.others);
                let was_awaited = own.awaits.remove(&job) || !chain.others.is_empty();
                let is_last = own.awaits.is_empty() && (was_awaited || chain.is_end);
                own.has_ended |= is_last;
            }
        }
        let reads = state.reads.iter();
        let reads = reads.map(|r| (&r.name, &r.version, None::<SlurmJobId>));
        let makes = state.makes.iter();
        let makes = makes.map(|m| (&m.version.dataset, &m.version, Some(job)));
        for (name, id, maker) in reads.chain(makes) {
            let (keep, source, encrypt, rule) = keep_of(name);
            let is_sealed = encrypt || self.catalog.was_sealed(id);
            let whose = (id.owner, id.workflow.clone());
            let workflow = self.catalog.workflows.entry(whose).or_default();
            let dataset = workflow.datasets.entry(id.dataset.clone()).or_default();
            // A reader of somebody else's data divides it for itself.
            if id.owner == state.owner {
                dataset.rule = rule.or(dataset.rule.take());
            }
            let version = dataset.versions.entry(id.version);
            let version = version.or_insert_with(|| VersionRecord {
                state: match maker {
                    Some(_) => VersionState::Promised,
                    None => VersionState::There,
                },
                maker,
                // A version that a job makes cannot be read from the source again.
                source: source.filter(|_| maker.is_none()),
                content: 0,
                is_sealed,
                parts: BTreeMap::new(),
                ranks: BTreeMap::new(),
                keep,
                used: now,
                is_warned: false,
            });
            version.used = now;
        }
        // A script by itself may have to do with others' data alone.
        let is_empty = self
            .catalog
            .workflows
            .get(&key)
            .is_some_and(|w| w.datasets.is_empty());
        if is_empty && submitted.chain.is_none() {
            self.catalog.workflows.remove(&key);
        }
    }

    pub(crate) fn check_quota(&self, state: &SiteJob) -> Result<(), RequestError> {
        let makes = state.makes.iter().map(|m| m.version.owner);
        let owners: BTreeSet<Owner> = makes.chain([state.owner]).collect();
        owners
            .into_iter()
            .try_for_each(|owner| self.check_quota_of(owner, state))
    }

    fn check_quota_of(&self, owner: Owner, state: &SiteJob) -> Result<(), RequestError> {
        let has = match owner {
            Owner::User(_) => "you have".to_owned(),
            Owner::Project(gid) => format!("your project, group {gid}, has"),
        };
        if self.catalog.count_datasets(owner) >= MAX_DATASETS {
            let text = format!("{has} {MAX_DATASETS} datasets: remove some (`tarn data rm`)");
            return Err(RequestError::new(Code::Quota, text));
        }
        let makes = state.makes.iter().filter(|m| m.version.owner == owner);
        let makes: u64 = makes.map(|m| m.size).sum();
        let own = match owner {
            Owner::User(uid) if uid == state.user => state.own_bytes(),
            _ => 0,
        };
        let own = own.saturating_mul(u64::from(state.wants.max(1)));
        // Its checkpoints are counted where they are already.
        let kept = state.checkpoint_key().map_or(0, |key| {
            let here = self.nodes.values().filter_map(|n| n.checkpoints.get(&key));
            here.map(|(_, bytes)| bytes).sum()
        });
        let own = own.saturating_sub(kept);
        self.check_space_of(owner, makes.saturating_add(own))
    }

    /// Whether an owner may have so many bytes more.
    fn check_space_of(&self, owner: Owner, wants: u64) -> Result<(), RequestError> {
        let quota = self.quota_of(owner);
        if quota == 0 {
            return Ok(());
        }
        let held = self.held_by(owner);
        let held = held.saturating_sub(self.stock().unused_of(owner));
        if held.saturating_add(wants) <= quota {
            return Ok(());
        }
        let has = match owner {
            Owner::User(_) => "you have".to_owned(),
            Owner::Project(gid) => format!("your project, group {gid}, has"),
        };
        let text = format!(
            "{has} {held} bytes on the nodes, and this job would write {wants} more: the quota is {quota}; remove some (`tarn data rm`)"
        );
        Err(RequestError::new(Code::Quota, text))
    }

    pub(crate) fn quota_of(&self, owner: Owner) -> u64 {
        let usual = match owner {
            Owner::User(_) => self.config.quota,
            Owner::Project(_) => self.config.project_quota,
        };
        self.config.quotas.get(&owner).copied().unwrap_or(usual)
    }
}
