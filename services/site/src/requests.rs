//! Requests of Slurm and of users. A job's stage, such as the gate, is answered when it is over: the waiting connection
//! is in `Site::waiting`, and `Site::answer_stage` ends the wait.

use crate::MAX_READERS;
use crate::event::SiteRequest;
use crate::model::catalog::{VersionKey, VersionState};
use crate::model::job::{NodeJobTask, SiteJobPhase};
use crate::model::orders::OrderPurpose;
use crate::model::requester::Requester;
use crate::state::Site;
use crate::stock::StockedNode;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    ControllerReply, ControllerRequest, DatasetFilter, JobInfo, NodeInfo, NodeOrder, Owner,
    SlurmJobId, Stage, Staging, Uid,
};
use tarn_types::ledger::HasLedger;

impl Site {
    /// Handles a request that changes something.
    pub(crate) fn handle_request(&mut self, request: SiteRequest) {
        let SiteRequest {
            token,
            user,
            groups,
            trusted,
            ask,
        } = request;
        let requester = Requester {
            user,
            groups: &groups,
            trusted,
        };
        if let ControllerRequest::Stage(staging) = ask {
            if !trusted {
                let text = "only Slurm reports on jobs";
                let why = RequestError::new(Code::Denied, text);
                self.answer_to(token, ControllerReply::Refused(why));
                return;
            }
            // The earlier requester about this job is gone: slurmctld was started again.
            self.waiting.insert(staging.job, token);
            self.report_stage(staging);
            return;
        }
        if ask == ControllerRequest::RemoveOrphans {
            let gone = self.remove_orphans(&requester);
            self.answer_to(token, ControllerReply::Orphans(gone));
            return;
        }
        if let ControllerRequest::Verify {
            owner,
            workflow,
            dataset,
            version,
        } = ask
        {
            let which = (owner, &workflow[..], &dataset[..]);
            if let Err(why) = self.verify(token, &requester, which, version) {
                self.answer_to(token, ControllerReply::Refused(why));
            }
            return;
        }
        let done = self.change(&requester, ask);
        let reply = done.map_or_else(ControllerReply::Refused, |()| ControllerReply::Done);
        self.answer_to(token, reply);
    }

    /// Slurm reports a stage of a job, and waits until it is over.
    fn report_stage(&mut self, Staging { job: id, stage }: Staging) {
        match stage {
            Stage::Setup(submitted) => return self.arrive(id, *submitted),
            Stage::Reported => return self.answer_reported(id),
            _ => {}
        }
        if matches!(stage, Stage::Teardown { .. } | Stage::PutBack) {
            self.arriving.remove(&id);
            self.refused.remove(&id);
        } else if self.arriving.contains_key(&id) {
            // In logs of versions that took jobs in by timers: that the job has another stage shows that it was.
            self.take_in_until(id);
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.is_reported = true;
        }
        if !self.jobs.contains_key(&id) {
            self.answer_unknown(id, &stage);
            return;
        }
        self.record_stage(id, &stage);
        if matches!(stage, Stage::DataIn | Stage::Ahead(_))
            && let Some(job) = self.jobs.get_mut(&id)
        {
            job.was_called = true;
        }
        let is_over = match stage {
            Stage::Setup(_) | Stage::Reported | Stage::DataIn => true,
            Stage::Ahead(nodes) => self.begin_bringing(id, nodes),
            Stage::PreRun(nodes) => self.begin_staging(id, nodes),
            Stage::PostRun { ok } => self.begin_publishing(id, ok),
            Stage::DataOut => self.begin_sending(id),
            Stage::PutBack => {
                self.put_back(id);
                self.begin_leaving(id, false)
            }
            Stage::Teardown { hurry } => {
                self.stays_away(id);
                self.begin_leaving(id, hurry)
            }
        };
        if is_over {
            self.answer_stage(id, Ok(ControllerReply::Done));
        }
        self.advance(id);
    }

    fn answer_unknown(&mut self, id: SlurmJobId, stage: &Stage) {
        let done = if matches!(stage, Stage::Teardown { .. } | Stage::PutBack) {
            // Nothing was done for it, so nothing is left.
            self.never_comes(id);
            Ok(ControllerReply::Done)
        } else {
            let text = format!(
                "job {id} is not known here: it was submitted before this controller's log began; submit it again"
            );
            Err(RequestError::new(Code::NotFound, text))
        };
        self.answer_stage(id, done);
    }

    /// A job has got its nodes. Whether its stage is over, as it runs already.
    fn begin_staging(&mut self, id: SlurmJobId, nodes: Vec<String>) -> bool {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else {
            return true;
        };
        if !matches!(job.phase, SiteJobPhase::Queued | SiteJobPhase::Staging) {
            return true;
        }
        let mut left = Vec::new();
        if job.nodes != nodes {
            job.done.clear();
            job.tries.clear();
            job.exported.clear();
            left = std::mem::take(&mut job.nodes);
            left.retain(|node| !nodes.contains(node));
        }
        job.note(now, format!("its nodes: {}", nodes.join(", ")));
        job.nodes = nodes;
        (job.ahead, job.is_bringing) = (Vec::new(), false);
        job.phase = SiteJobPhase::Staging;
        job.began = Some(now);
        self.note_checkpoints(id);
        self.end_ahead(id);
        // It runs elsewhere now: its data in clear there goes at once.
        left.retain(|node| self.is_up(node));
        for node in &left {
            self.order(node, OrderPurpose::Forget(id), NodeOrder::Dismiss(id));
            self.remove_partitions(id, node);
        }
        false
    }

    /// A job's script has ended. Returns whether its stage is over, as its outputs are published already.
    fn begin_publishing(&mut self, id: SlurmJobId, is_well: bool) -> bool {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else {
            return true;
        };
        if job.phase == SiteJobPhase::Running {
            job.is_well = is_well;
            job.phase = SiteJobPhase::Publishing;
            let how = if is_well { "well" } else { "with a failure" };
            job.note(now, format!("its script ended {how}"));
            self.count_nodes(id);
            return false;
        }
        job.phase != SiteJobPhase::Publishing
    }

    /// Sends a job's outputs where they belong. Returns whether its stage is over, as they are there already.
    fn begin_sending(&mut self, id: SlurmJobId) -> bool {
        let Some(job) = self.jobs.get_mut(&id) else {
            return true;
        };
        // A version that could not be published fails the job's stage again.
        if job.phase == SiteJobPhase::Published {
            job.phase = SiteJobPhase::Sending;
        }
        !matches!(job.phase, SiteJobPhase::Publishing | SiteJobPhase::Sending)
    }

    /// Slurm has put a job back into its queue: what it reads stays until it is there again.
    fn put_back(&mut self, id: SlurmJobId) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let key = (job.owner, job.workflow.clone());
        let workflow = self.catalog.workflows.get(&key);
        let has_ended = workflow.is_some_and(|w| w.has_ended);
        let now = self.now;
        if let Some(job) = self.jobs.get_mut(&id).filter(|job| job.put_back.is_none()) {
            job.put_back = Some(has_ended);
            job.note(now, "Slurm has put it back into its queue");
        }
    }

    /// A job that was put back is over without another start.
    fn stays_away(&mut self, id: SlurmJobId) {
        let job = self.jobs.get_mut(&id);
        if job.is_some_and(|job| job.put_back.take().is_some()) {
            self.settle();
        }
    }

    /// A job is over. Returns whether its stage is: if Slurm is in a hurry, rescues and removals continue beside it.
    pub(crate) fn begin_leaving(&mut self, id: SlurmJobId, is_hurried: bool) -> bool {
        let job = self.jobs.get(&id);
        let has_ended = job.is_none_or(|job| job.phase == SiteJobPhase::Ended);
        if !has_ended {
            self.teardown(id);
        }
        is_hurried || has_ended
    }

    /// Stops all work for a job; outputs that it has not published will never be.
    fn teardown(&mut self, id: SlurmJobId) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.is_leaving {
            return;
        }
        job.is_leaving = true;
        self.reserved.remove(&id);
        // One that Slurm has put back into its queue is a part of its run still.
        if job.put_back.is_none() {
            self.flows.leave(id, now);
        }
        job.done.clear();
        job.tries.clear();
        let has_run = (SiteJobPhase::Running..SiteJobPhase::Published).contains(&job.phase);
        let is_rescued = has_run && job.makes.iter().any(|m| m.rescue.is_some());
        if has_run {
            job.is_well = false;
        }
        let published = job.phase >= SiteJobPhase::Published;
        job.phase = match is_rescued {
            true => SiteJobPhase::Publishing,
            false => SiteJobPhase::Leaving,
        };
        let makes: Vec<VersionKey> = job.makes.iter().map(|m| m.version.clone()).collect();
        self.count_nodes(id);
        if !published {
            for version in makes {
                if let Some(version) = self.catalog.version_mut(&version)
                    && version.state == VersionState::Promised
                {
                    let text = format!("job {id} ended before it was published");
                    version.state = VersionState::Failed(text);
                    version.used = now;
                }
            }
        }
        let own = self.orders.iter().filter_map(|(number, o)| match &o.why {
            // A part that is on its way is of use to others.
            OrderPurpose::Job(job, step, _)
                if *job == id && !matches!(step, NodeJobTask::Fetch(_)) =>
            {
                Some((*number, o.node.clone()))
            }
            _ => None,
        });
        let own: Vec<(u64, String)> = own.collect();
        for (number, node) in own {
            self.orders.remove(&number);
            self.order(&node, OrderPurpose::Forget(id), NodeOrder::Stop(number));
        }
    }

    fn change(
        &mut self,
        requester: &Requester<'_>,
        ask: ControllerRequest,
    ) -> Result<(), RequestError> {
        match ask {
            ControllerRequest::End { user, workflow } => {
                if requester.user != user && !requester.trusted {
                    requester.may_change(Owner::User(user))?;
                }
                self.end_workflow(Owner::User(user), workflow)
            }
            ControllerRequest::Remove {
                owner,
                workflow,
                dataset,
                version,
            } => {
                requester.may_change(owner)?;
                self.remove(owner, &workflow, dataset.as_deref(), version)
            }
            ControllerRequest::Grant {
                owner,
                workflow,
                dataset,
                to,
                may,
            } => {
                requester.may_change(owner)?;
                let dataset = (owner, &workflow[..], &dataset[..]);
                if may {
                    self.grant(dataset, to)
                } else {
                    self.revoke(dataset, to)
                }
            }
            ControllerRequest::Release {
                owner,
                workflow,
                dataset,
            } => {
                requester.may_change(owner)?;
                self.release(owner, &workflow, &dataset)
            }
            ControllerRequest::Keep {
                owner,
                workflow,
                dataset,
                until,
            } => {
                requester.may_change(owner)?;
                self.catalog.dataset_mut(owner, &workflow, &dataset)?.kept = Some(until);
                Ok(())
            }
            _ => Err(RequestError::new(
                Code::Invalid,
                "this question changes nothing",
            )),
        }
    }

    /// No further job of a workflow will come.
    fn end_workflow(&mut self, owner: Owner, workflow: String) -> Result<(), RequestError> {
        let key = (owner, workflow);
        let Some(found) = self.catalog.workflows.get_mut(&key) else {
            // It may have no data of its own, only a project's or others'.
            let mut jobs = self.jobs.values();
            if jobs.any(|j| j.owner == key.0 && j.workflow == key.1) {
                return Ok(());
            }
            let text = format!("you have no workflow `{}`", key.1);
            return Err(RequestError::new(Code::NotFound, text));
        };
        found.has_ended = true;
        self.settle();
        Ok(())
    }

    fn grant(
        &mut self,
        (owner, workflow, dataset): (Owner, &str, &str),
        to: Owner,
    ) -> Result<(), RequestError> {
        let found = self.catalog.dataset_mut(owner, workflow, dataset)?;
        if found.readers.len() >= MAX_READERS && !found.readers.contains(&to) {
            let text =
                format!("`{dataset}` has {MAX_READERS} readers already; make a group of them");
            return Err(RequestError::new(Code::Busy, text));
        }
        found.readers.insert(to);
        self.settle();
        Ok(())
    }

    fn revoke(
        &mut self,
        (owner, workflow, dataset): (Owner, &str, &str),
        from: Owner,
    ) -> Result<(), RequestError> {
        let found = self.catalog.dataset_mut(owner, workflow, dataset)?;
        found.readers.remove(&from);
        // Versions that only jobs waited for which may not read them any more may go.
        self.settle();
        Ok(())
    }

    fn remove(
        &mut self,
        owner: Owner,
        workflow: &str,
        dataset: Option<&str>,
        version: Option<u32>,
    ) -> Result<(), RequestError> {
        let found = self.catalog.workflows.get(&(owner, workflow.to_owned()));
        let datasets = found.into_iter().flat_map(|w| &w.datasets);
        let fits = datasets.filter(|(name, _)| dataset.is_none_or(|d| d == **name));
        let ids: Vec<VersionKey> = fits
            .flat_map(|(name, d)| d.versions.keys().map(move |v| (name.clone(), *v)))
            .filter(|(_, number)| version.is_none_or(|v| v == *number))
            .map(|(dataset, version)| VersionKey {
                owner,
                workflow: workflow.to_owned(),
                dataset,
                version,
            })
            .collect();
        if (ids.is_empty() || dataset.is_none())
            && version.is_none()
            && self.remove_checkpoints(owner, workflow, dataset)?
            && ids.is_empty()
        {
            return Ok(());
        }
        if ids.is_empty() {
            let text = format!("nothing of workflow `{workflow}` is called so (`tarn data ls`)");
            return Err(RequestError::new(Code::NotFound, text));
        }
        let used = self.stock().used();
        if let Some(busy) = ids.iter().find(|id| used.contains(id)) {
            let users = self
                .jobs
                .iter()
                .filter(|(_, j)| j.needs(&self.catalog, busy));
            let users: Vec<String> = users.map(|(id, _)| id.to_string()).collect();
            let text = format!(
                "version {} of `{}` is used by job {}: wait until that has ended, or cancel it; others' jobs that have not begun do not count once their grant is revoked",
                busy.version,
                busy.dataset,
                users.join(", ")
            );
            return Err(RequestError::new(Code::Busy, text));
        }
        for id in ids {
            self.drop_version(&id);
        }
        Ok(())
    }

    /// Replies to a request that changes nothing; `None` for one that does.
    pub fn answer(
        &self,
        user: Uid,
        groups: &[u32],
        trusted: bool,
        ask: &ControllerRequest,
    ) -> Option<ControllerReply> {
        let requester = Requester {
            user,
            groups,
            trusted,
        };
        Some(match ask {
            ControllerRequest::Datasets => self.datasets(&requester, &DatasetFilter::default()),
            ControllerRequest::Find(which) => self.datasets(&requester, which),
            ControllerRequest::Orphans => ControllerReply::Orphans(self.orphans(&requester)),
            ControllerRequest::Job(id) => self.job(&requester, *id),
            ControllerRequest::Nodes => ControllerReply::Nodes(self.node_infos()),
            ControllerRequest::Records { since, from } => {
                let sees_all = user == 0 || trusted;
                self.job_records((*since, *from), (!sees_all).then_some(user))
            }
            ControllerRequest::Usage(since) => {
                let may_see = |owner| requester.is(owner) || requester.user == 0;
                ControllerReply::Usage(self.report_usage(*since, may_see))
            }
            ControllerRequest::WorkflowUsage(since) => {
                let may_see = |user| requester.user == user || requester.user == 0;
                ControllerReply::WorkflowUsage(self.flows.infos(*since, may_see))
            }
            ControllerRequest::DataJobs => self.data_jobs(&requester),
            _ => return None,
        })
    }

    fn job(&self, requester: &Requester<'_>, id: SlurmJobId) -> ControllerReply {
        let Some(job) = self.jobs.get(&id) else {
            let text = format!(
                "job {id} is not known: it has no `#TARN` lines, or ended more than a day ago"
            );
            return ControllerReply::Refused(RequestError::new(Code::NotFound, text));
        };
        if requester.user != job.user && requester.user != 0 && !requester.trusted {
            let text = format!("job {id} is somebody else's");
            return ControllerReply::Refused(RequestError::new(Code::Denied, text));
        }
        let phase = match job.phase {
            SiteJobPhase::Queued => "waiting",
            SiteJobPhase::Staging => "staging",
            SiteJobPhase::Running => "running",
            SiteJobPhase::Publishing | SiteJobPhase::Published => "publishing",
            SiteJobPhase::Sending | SiteJobPhase::Sent => "sending",
            SiteJobPhase::Leaving => "leaving",
            SiteJobPhase::Ended => "ended",
        };
        ControllerReply::Job(Box::new(JobInfo {
            user: job.user,
            phase: phase.into(),
            history: job.history.clone(),
            waits: job.waits.clone(),
            ending: self.ending(job),
            planned: None,
        }))
    }

    /// The state of each node.
    pub fn node_infos(&self) -> Vec<NodeInfo> {
        let info = |of: &StockedNode| {
            let (node, space) = (of.node, of.ledger().space());
            NodeInfo {
                name: of.name.to_owned(),
                up: of.ledger().is_usable(),
                capacity: space.capacity(),
                taken: space.taken(),
                persistent: node.capacity.as_ref().is_some_and(|c| c.persistent),
                orphans: node.orphans.len() as u64,
                draw: self.draws.get(of.name).copied().unwrap_or_default().0,
                stores: node.store_infos(),
            }
        };
        let ledgers = self.stock().ledgers();
        ledgers.iter().map(|(_, node)| info(node)).collect()
    }
}
