//! The way of a job: in each phase, the required state of its nodes is compared with their state, and the missing parts
//! are ordered. When nothing is missing, the phase is over. `bring_part` chooses the source of a part.

use crate::model::catalog::{VersionKey, VersionRecord, VersionState, stored_size};
use crate::model::job::{NodeJobTask, Reads, SiteJob, SiteJobPhase};
use crate::model::node::SiteNode;
use crate::model::orders::OrderPurpose;
use crate::model::progress::PreparationState;
use crate::model::space::{SpaceAvailability, SpaceRequest};
use crate::state::Site;
use std::path::Path;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    ControllerReply, NodeOrder, Origin, Owner, Part, Proof, SlurmJobId, StoreContent, Work,
    WorkerAddress,
};
use tarn_types::units::{Nanos, SECOND};

/// Transfers at a time from one node to others, for one job.
const MAX_FROM_ONE: usize = 2;
/// The same, as long as it is for one that has no nodes: jobs with nodes have the rest.
const MAX_AHEAD: usize = MAX_FROM_ONE - 1;
/// How long a node is waited for that does not answer.
const TIMEOUT: Nanos = 60 * SECOND;
/// And at least from when a job got it: it may have come back a moment ago, and the controller looks for it then.
const COMES_BACK: Nanos = 15 * SECOND;

impl Site {
    /// Looks at a job again, after something has happened that may concern it.
    pub(crate) fn advance(&mut self, id: SlurmJobId) {
        let Some(job) = self.jobs.get(&id).cloned() else {
            return;
        };
        let look = match job.phase {
            SiteJobPhase::Queued if job.is_bringing => self.bring_ahead(id, &job),
            SiteJobPhase::Queued => {
                // Slurm does not wait for it.
                self.bring_to_reserved(id, &job);
                return;
            }
            SiteJobPhase::Staging => self.stage(id, &job),
            SiteJobPhase::Publishing => self.publish(id, &job),
            SiteJobPhase::Sending => self.send(id, &job),
            SiteJobPhase::Leaving => self.leave(id, &job),
            SiteJobPhase::Running => {
                // Nobody waits for it.
                self.export_partitions(id, &job);
                return;
            }
            _ => return,
        };
        match look {
            PreparationState::Pending => {}
            PreparationState::Complete if job.phase == SiteJobPhase::Queued => {
                self.brought(id, "what it reads is there")
            }
            PreparationState::Complete => self.next(id),
            PreparationState::Failed(why) => self.stage_failed(id, why),
        }
    }

    /// A phase is over, and the waiting connection gets its reply.
    fn next(&mut self, id: SlurmJobId) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.waits = None;
        job.tries.clear();
        let (phase, what) = match job.phase {
            SiteJobPhase::Staging => (SiteJobPhase::Running, "all that it reads is on its nodes"),
            SiteJobPhase::Publishing => (SiteJobPhase::Published, "what it wrote is published"),
            SiteJobPhase::Sending => (SiteJobPhase::Sent, "what goes out is there"),
            _ => (SiteJobPhase::Ended, "its folders are removed"),
        };
        job.phase = phase;
        job.note(now, what);
        let is_sent = phase == SiteJobPhase::Sent && job.makes.iter().any(|m| m.dest.is_some());
        if is_sent && job.is_well {
            self.flows.deliver(id, now);
        }
        if job.is_leaving && phase != SiteJobPhase::Ended {
            self.continue_leaving(id);
            return;
        }
        let reply = match phase {
            SiteJobPhase::Published => self.advise_readers(id),
            _ => ControllerReply::Done,
        };
        // Where Slurm waits to have it set up again, that has a reply of its own.
        if phase != SiteJobPhase::Ended || !self.arriving.contains_key(&id) {
            self.answer_stage(id, Ok(reply));
        }
        match phase {
            SiteJobPhase::Published => self.advance_waiting(),
            SiteJobPhase::Ended => self.ended(id),
            _ => {}
        }
    }

    /// The rescued outputs of a job that ends before its time go out, then the job leaves.
    pub(crate) fn continue_leaving(&mut self, id: SlurmJobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.phase = match job.phase {
                SiteJobPhase::Published => SiteJobPhase::Sending,
                _ => SiteJobPhase::Leaving,
            };
            job.done.clear();
        }
        self.advance(id);
    }

    /// Looks again at all jobs whose stage has a waiting connection, and at those for which nodes are reserved.
    pub(crate) fn advance_waiting(&mut self) {
        let leaving = self
            .jobs
            .iter()
            .filter(|(_, j)| j.is_leaving && j.phase != SiteJobPhase::Ended);
        let mut jobs: Vec<SlurmJobId> = leaving.map(|(id, _)| *id).collect();
        jobs.extend(self.waiting.keys());
        // Those that are waited for come first.
        jobs.extend(self.reserved.keys());
        for job in jobs {
            self.advance(job);
        }
    }

    /// A stage has failed, and Slurm gets the error; a later one begins where this was.
    pub(crate) fn stage_failed(&mut self, id: SlurmJobId, why: RequestError) {
        let now = self.now;
        let is_ahead = |job: &SiteJob| job.phase == SiteJobPhase::Queued && job.is_bringing;
        if self.jobs.get(&id).is_some_and(is_ahead) {
            // On the nodes that it gets it may be otherwise.
            self.brought(id, &why.text);
            return;
        }
        let is_staging = |job: &SiteJob| job.phase == SiteJobPhase::Staging;
        if self.jobs.get(&id).is_some_and(is_staging) {
            // Slurm takes its nodes back.
            self.count_nodes(id);
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.waits = Some(why.text.clone());
            job.note(now, why.text.clone());
            job.tries.clear();
            match job.phase {
                SiteJobPhase::Staging => {
                    job.phase = SiteJobPhase::Queued;
                    // Meanwhile its data may be moved.
                    job.done.retain(|(_, step)| *step != NodeJobTask::Admit);
                }
                // A failed rescue does not hold the job's nodes.
                phase if job.is_leaving && phase < SiteJobPhase::Leaving => {
                    job.phase = SiteJobPhase::Leaving;
                    job.done.clear();
                    self.advance(id);
                    return;
                }
                _ => {}
            }
        }
        self.answer_stage(id, Err(why));
    }

    /// Orders something once on a node. Whether it is done.
    pub(crate) fn once(
        &mut self,
        id: SlurmJobId,
        job: &SiteJob,
        node: &str,
        step: NodeJobTask,
        order: NodeOrder,
    ) -> bool {
        if job.is_done(node, &step) {
            return true;
        }
        if self.is_up(node) && !self.orders.is_under_way(id, node, &step) {
            self.order(node, OrderPurpose::Job(id, step, None), order);
        }
        false
    }

    pub(crate) fn is_up(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|n| n.is_up)
    }

    /// A node that does not answer is waited for, but not for ever.
    pub(crate) fn wait_for(&mut self, id: SlurmJobId, node: &str) -> Result<(), PreparationState> {
        let known = self.nodes.entry(node.to_owned());
        let since = self.now;
        let known = known.or_insert_with(|| SiteNode {
            since,
            ..SiteNode::default()
        });
        if known.is_up {
            return Ok(());
        }
        let began = self.jobs.get(&id).and_then(|job| job.began);
        let began = began.unwrap_or(0);
        let until = match self.config.wake {
            Some(wake) => known.since.max(began).saturating_add(wake),
            None => {
                let comes_back = match self.rules {
                    0 => 0,
                    _ => began.saturating_add(COMES_BACK),
                };
                known.since.saturating_add(TIMEOUT).max(comes_back)
            }
        };
        let text =
            format!("tarnd of node {node} does not answer: is `tarnd --site` running there?");
        if self.now >= until {
            return Err(PreparationState::Failed(RequestError::new(
                Code::Lost,
                text,
            )));
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.waits = Some(text);
        }
        Err(PreparationState::Pending)
    }

    fn stage(&mut self, id: SlurmJobId, job: &SiteJob) -> PreparationState {
        for node in &job.nodes {
            if let Err(progress) = self.wait_for(id, node) {
                return progress;
            }
        }
        self.open_gate(id, job).into()
    }

    /// Brings a job's inputs, prepares its outputs, makes its partitions, and lets its tasks in. Returns whether all is
    /// done.
    fn open_gate(&mut self, id: SlurmJobId, job: &SiteJob) -> Result<bool, RequestError> {
        // A job does not begin if its result may not be put where it belongs.
        let mut is_whole = self.check_dests(id, job);
        for reads in &job.reads {
            let brought = match self.is_sliced(job, reads) {
                true => self.bring_slices(id, job, reads),
                false => self.bring(id, job, reads),
            };
            is_whole &= brought.into_result()?;
        }
        if !is_whole {
            return Ok(false);
        }
        let merged = job.reads.iter().filter(|r| !r.is_changed);
        for reads in merged {
            is_whole &= self.is_sliced(job, reads) || self.view(id, job, reads);
        }
        if !self.has_promise(id) {
            self.check_quota(job)?;
        }
        is_whole &= self.prepare_outputs(id, job)?;
        if !is_whole
            || !self.create_partitions(id, job).into_result()?
            || !self.export_partitions(id, job).into_result()?
        {
            return Ok(false);
        }
        if !self.prepare_checkpoints(id, job)? {
            return Ok(false);
        }
        for (at, node) in job.nodes.iter().enumerate() {
            let order = NodeOrder::Admit {
                job: id,
                user: job.user,
                mounts: self.mounts(id, job, at),
            };
            is_whole &= self.once(id, job, node, NodeJobTask::Admit, order);
        }
        Ok(is_whole)
    }

    /// Has the folders made that a job writes. Whether all are there.
    fn prepare_outputs(&mut self, id: SlurmJobId, job: &SiteJob) -> Result<bool, RequestError> {
        let mut is_whole = true;
        for makes in &job.makes {
            let parts = makes.from.as_ref().map(|v| self.catalog.parts_of(v));
            let parts = parts.unwrap_or_default();
            let begins_with = |r: &&Reads| r.is_changed && Some(&r.version) == makes.from.as_ref();
            let sliced = job.reads.iter().find(begins_with);
            let sliced = sliced.filter(|reads| self.is_sliced(job, reads));
            for (at, node) in job.writers(makes).iter().enumerate() {
                let dataset = makes.version.dataset.clone();
                let step = NodeJobTask::Prepare(dataset.clone());
                if job.is_done(node, &step) {
                    continue;
                }
                is_whole = false;
                if self.orders.is_under_way(id, node, &step) {
                    continue;
                }
                let what = (makes.version.owner, &*dataset);
                match self.reserve_space(node, what, SpaceRequest::of_output(id, makes)) {
                    SpaceAvailability::In(_) => {}
                    SpaceAvailability::Soon => continue,
                    SpaceAvailability::None(why) => return Err(why),
                }
                let store = self.written_in(id, node, &dataset);
                if let Some(reads) = sliced {
                    if let Some(wanted) = self.slice_order(job, reads, at)? {
                        let work = Work::Slice {
                            job: id,
                            dataset,
                            parts: wanted.parts,
                            slice: wanted.slice,
                            written: true,
                            store,
                        };
                        let why = OrderPurpose::Job(id, step, wanted.peer);
                        self.work(node, why, (job.user, job.group), work);
                    }
                    continue;
                }
                let work = Work::Prepare {
                    store,
                    job: id,
                    dataset,
                    hashes: self.catalog.hashes_of(&parts),
                    parts: parts.clone(),
                    memory: self.memory_for(job, node, &makes.version),
                };
                self.once(id, job, node, step, job.order(work));
            }
        }
        Ok(is_whole)
    }

    /// Reserves space for a job's output, or for a partition of it, on a node, once.
    pub(crate) fn reserve_space(
        &mut self,
        node: &str,
        what: (Owner, &str),
        whom: SpaceRequest<'_>,
    ) -> SpaceAvailability {
        let known = self.nodes.get(node);
        if let Some(store) = known.and_then(|node| node.written_in(whom.job, what.1)) {
            return SpaceAvailability::In(store.clone());
        }
        let space = self.find_space(node, whom.size, whom);
        if let SpaceAvailability::In(store) = &space
            && let Some(node) = self.nodes.get_mut(node)
        {
            node.promise(whom.job, what, store.clone(), whom.size);
        }
        space
    }

    /// The store in which a job writes a dataset, or has a partition.
    pub(crate) fn written_in(&self, id: SlurmJobId, node: &str, name: &str) -> String {
        let node = self.nodes.get(node);
        let store = node.and_then(|node| node.written_in(id, name));
        store.cloned().unwrap_or_default()
    }

    /// Sees to it that a version is on all nodes that read it.
    pub(crate) fn bring(
        &mut self,
        id: SlurmJobId,
        job: &SiteJob,
        reads: &Reads,
    ) -> PreparationState {
        if let Err(why) = job.check_grant(&self.catalog, reads) {
            return PreparationState::Failed(why);
        }
        let version = match self.made_version(reads) {
            Ok(version) => version,
            Err(progress) => return progress,
        };
        if let Some(source) = &version.source
            && !version.parts.is_empty()
            && !self.is_unchanged(id, job, reads, source)
        {
            return PreparationState::Pending;
        }
        let parts = version.parts_for(reads);
        let mut is_whole = true;
        let source = version.source.as_deref();
        let whom = SpaceRequest {
            job: id,
            tier: reads.tier.as_deref(),
            size: reads.size,
            is_ahead: false,
        };
        for node in job.readers(reads) {
            let mut is_here = true;
            for (part, proof) in &parts {
                let about = (part, proof.as_ref(), source);
                match self.bring_part(whom, job, node, about) {
                    PreparationState::Complete => {}
                    PreparationState::Pending => is_here = false,
                    never => return never,
                }
            }
            is_whole &= is_here;
            if is_here {
                match self.lift(id, job, node, reads) {
                    PreparationState::Complete => {}
                    PreparationState::Pending => is_whole = false,
                    never => return never,
                }
            }
        }
        if is_whole {
            PreparationState::Complete
        } else {
            PreparationState::Pending
        }
    }

    /// The version that a job reads, if it is there.
    pub(crate) fn made_version(&self, reads: &Reads) -> Result<VersionRecord, PreparationState> {
        let Some(version) = self.catalog.version(&reads.version).cloned() else {
            let text = format!(
                "version {} of `{}` was removed",
                reads.version.version, reads.version.dataset
            );
            return Err(PreparationState::Failed(RequestError::new(
                Code::NotFound,
                text,
            )));
        };
        match &version.state {
            VersionState::Failed(why) => {
                let text = format!("`{}` was not made: {why}", reads.name);
                Err(PreparationState::Failed(RequestError::new(
                    Code::Dependency,
                    text,
                )))
            }
            VersionState::Promised => {
                let maker = version.maker.and_then(|m| self.jobs.get(&m));
                let publishes = maker.is_some_and(|m| m.phase == SiteJobPhase::Publishing);
                if publishes {
                    return Err(PreparationState::Pending);
                }
                let maker = version.maker.map_or(String::new(), |m| m.to_string());
                let text = format!(
                    "`{}` is not made yet: job {maker} makes it, and this one was not to wait for it; submit it with --dependency=afterok:{maker},afterburstbuffer:{maker}",
                    reads.version.dataset,
                );
                Err(PreparationState::Failed(RequestError::new(
                    Code::Dependency,
                    text,
                )))
            }
            VersionState::There => Ok(version),
        }
    }

    /// Whether a source was found unchanged since this job has nodes. A node that has the part looks.
    pub(crate) fn is_unchanged(
        &mut self,
        id: SlurmJobId,
        job: &SiteJob,
        reads: &Reads,
        source: &Path,
    ) -> bool {
        let step = reads.version.look();
        if job.done.iter().any(|(_, done)| *done == step) {
            return true;
        }
        if self.orders.is_under_way_anywhere(id, &step) {
            return false;
        }
        let known = self.catalog.version(&reads.version);
        let known = known.and_then(|v| v.parts.get_key_value(&v.content));
        let Some((number, proof)) = known.map(|(number, proof)| (*number, proof.clone())) else {
            return true;
        };
        let part = reads.version.part(number);
        let has = self.stock().up().find(|(_, n)| n.has(&part));
        let Some(node) = has.map(|(name, _)| name.clone()) else {
            // Nobody has it any more: it is read again, and compared with the published proof.
            return true;
        };
        let known = &self.nodes[&node];
        if known.moving.contains_key(&part) {
            return false;
        }
        let store = known.places_of(&part).next();
        let work = Work::Fetch {
            store: store.map_or_else(String::new, |level| level.name.clone()),
            part,
            from: Origin::Outside(source.to_owned()),
            sealed: proof.sealed,
            proof: Some(proof),
        };
        let rights = (Self::rights(reads.version.owner, job.user), job.group);
        self.work(&node, OrderPurpose::Job(id, step, None), rights, work);
        false
    }

    /// A source has changed since it was read: its content is another part from now on. The old part goes, unless a job
    /// still has it.
    pub(crate) fn source_changed(
        &mut self,
        id: SlurmJobId,
        looked: &NodeJobTask,
    ) -> Result<(), RequestError> {
        let job = self.jobs.get(&id);
        let reads = job.and_then(|j| j.reads.iter().find(|r| r.version.look() == *looked));
        let Some(version) = reads.map(|r| r.version.clone()) else {
            return Ok(());
        };
        let dataset = &version.dataset;
        let has = |j: &SiteJob| {
            (SiteJobPhase::Staging..SiteJobPhase::Ended).contains(&j.phase)
                && j.reads.iter().any(|r| r.version == version)
        };
        let mut others = self
            .jobs
            .iter()
            .filter(|(other, j)| **other != id && has(j));
        if let Some((other, _)) = others.next() {
            let text = format!(
                "the source of `{dataset}` has changed, and job {other} works with what it was: wait until that has ended"
            );
            return Err(RequestError::new(Code::Changed, text));
        }
        for part in self.catalog.parts_of(&version) {
            self.remove_everywhere(&part);
        }
        if let Some(version) = self.catalog.version_mut(&version) {
            version.parts.clear();
            version.content += 1;
        }
        Ok(())
    }

    pub(crate) fn bring_part(
        &mut self,
        whom: SpaceRequest<'_>,
        job: &SiteJob,
        node: &str,
        (part, proof, source): (&Part, Option<&Proof>, Option<&Path>),
    ) -> PreparationState {
        if self.nodes.get(node).is_some_and(|n| n.has(part)) {
            return PreparationState::Complete;
        }
        let step = NodeJobTask::Fetch(part.clone());
        let is_removed = self.rules >= 2 && self.orders.is_removed(node, part);
        if self.orders.is_fetched(node, part) || is_removed {
            return PreparationState::Pending;
        }
        let id = whom.job;
        let space = self.find_space(node, proof.map_or(whom.size, stored_size), whom);
        let store = match space {
            SpaceAvailability::In(store) => store,
            SpaceAvailability::Soon => return PreparationState::Pending,
            SpaceAvailability::None(why) => return PreparationState::Failed(why),
        };
        let place = (node, &store[..]);
        let user = Self::rights(part.owner, job.user);
        let rights = (user, job.group);
        let have = |n: &SiteNode| n.is_up && n.has_still(part);
        let sources: Vec<String> = self
            .nodes
            .iter()
            .filter(|(_, n)| have(n))
            .map(|(name, _)| name.clone())
            .collect();
        let best = sources
            .iter()
            .min_by_key(|name| self.orders.count_from(name));
        if whom.is_ahead && best.is_some_and(|name| self.orders.count_from(name) >= MAX_AHEAD) {
            return PreparationState::Pending;
        }
        let (from, peer) = match (best.cloned(), source) {
            (Some(peer), _) => match self.peer_at(peer.clone(), rights) {
                Some(at) => (Origin::Peer(at), Some((peer, user))),
                None => return PreparationState::Pending,
            },
            // The node that has it is moving it just now.
            (None, _) if self.is_moving(part) => return PreparationState::Pending,
            // A part that several nodes lack is read outside once.
            (None, Some(_)) if self.orders.is_fetched_anywhere(part) => {
                return PreparationState::Pending;
            }
            (None, Some(path)) => (Origin::Outside(path.to_owned()), None),
            (None, None) => {
                let text = format!(
                    "{part} is on no node that answers; make it again, or wait until the nodes that have it are back: {}",
                    self.last_seen(part)
                );
                return PreparationState::Failed(RequestError::new(Code::Lost, text));
            }
        };
        let work = Work::Fetch {
            part: part.clone(),
            from,
            proof: proof.cloned(),
            sealed: self.catalog.is_sealed(&VersionKey::of(part)),
            store: store.clone(),
        };
        self.work_in(place, OrderPurpose::Job(id, step, peer), rights, work);
        PreparationState::Pending
    }

    /// The address where a node serves parts to another, if it has a transfer free and its worker is known to serve.
    pub(crate) fn peer_at(
        &mut self,
        peer: String,
        (user, group): (u32, u32),
    ) -> Option<WorkerAddress> {
        if self.orders.count_from(&peer) >= MAX_FROM_ONE {
            return None;
        }
        let port = self.nodes.get(&peer).and_then(|n| n.ports.get(&user));
        let Some(port) = port.copied() else {
            self.request_port(&peer, (user, group));
            return None;
        };
        Some(WorkerAddress {
            node: peer.clone(),
            host: peer,
            port,
        })
    }

    /// Whether a node that answers has a part that goes from one store of it to another.
    pub(crate) fn is_moving(&self, part: &Part) -> bool {
        let moves = |n: &SiteNode| n.is_up && n.has(part) && n.moving.contains_key(part);
        self.nodes.values().any(moves)
    }

    pub(crate) fn request_port(&mut self, node: &str, (user, group): (u32, u32)) {
        if !self.orders.is_port_requested(node, user) {
            self.order(
                node,
                OrderPurpose::Port(user),
                NodeOrder::Serve { user, group },
            );
        }
    }

    pub(crate) fn last_seen(&self, part: &Part) -> String {
        let have = self
            .nodes
            .iter()
            .filter(|(_, n)| n.parts.contains_key(part));
        let names: Vec<&str> = have.map(|(name, _)| name.as_str()).collect();
        match names.is_empty() {
            true => "none is known".into(),
            false => names.join(", "),
        }
    }

    /// The job's folders go, and its tasks are let in no more.
    fn leave(&mut self, id: SlurmJobId, job: &SiteJob) -> PreparationState {
        let mut is_whole = true;
        let mut owners: Vec<u32> = vec![job.user];
        owners.extend(
            job.reads
                .iter()
                .map(|r| Self::rights(r.version.owner, job.user)),
        );
        owners.sort_unstable();
        owners.dedup();
        for node in &job.nodes {
            // A node that is gone reports its content when it is back.
            if !self.is_up(node) {
                continue;
            }
            is_whole &= self.once(id, job, node, NodeJobTask::Dismiss, NodeOrder::Dismiss(id));
            is_whole &= self.settle_checkpoints(id, job, node);
            for user in &owners {
                let order = NodeOrder::Do {
                    user: *user,
                    group: job.group,
                    work: Box::new(Work::Remove(vec![StoreContent::Job(id)])),
                };
                is_whole &= self.once(id, job, node, NodeJobTask::Clear(*user), order);
            }
        }
        if is_whole {
            PreparationState::Complete
        } else {
            PreparationState::Pending
        }
    }
}
