//! Jobs that their host withdraws or changes.

use super::state::{PlannerJob, PlannerJobStage, PlannerState};
use std::sync::Arc;
use tarn_types::account::sub;
use tarn_types::site::{Job, JobId, SiteAction, SiteEventError};

impl PlannerState {
    /// A job is no more. What waits for it continues to wait.
    pub(crate) fn withdrawn(&mut self, id: JobId) -> Result<(), SiteEventError> {
        let state = self.job(id).ok_or(SiteEventError::UnknownJob(id))?;
        let job = state.job.clone();
        if state.stage == PlannerJobStage::Handed {
            self.break_script(id);
        } else if self.has_nodes(id) {
            self.abort(id);
        }
        self.withdraw(id);
        self.leave_predecessors(id, &job);
        let items = job
            .reads
            .iter()
            .map(|i| i.item)
            .chain(job.writes.iter().copied());
        for item in items.clone() {
            if let Some(item) = self.item_mut(item) {
                item.readers.remove(&id);
                item.producer.take_if(|p| *p == id);
            }
        }
        let gone = self.jobs.get_mut(id.at()).and_then(Option::take);
        if let Some(gone) = gone {
            self.leave_flow(id, &gone);
            let waits = |f: &JobId| {
                let open = |s: &PlannerJob| s.stage == PlannerJobStage::Blocked;
                self.job(*f).is_some_and(open) && self.waits_for(*f, id)
            };
            let followers: Vec<JobId> = gone.followers.into_iter().filter(waits).collect();
            if !followers.is_empty() {
                self.orphans.insert(id, followers);
            }
        }
        for item in items {
            self.forget_unused(item);
        }
        Ok(())
    }

    /// The first job of a script, whose allocation others use, is no more: they queue for themselves.
    fn break_script(&mut self, id: JobId) {
        let successor = self.job(id).and_then(|s| s.successor);
        let successor = successor.filter(|s| self.has_nodes(*s));
        if let Some(successor) = successor {
            self.abort(successor);
        }
        let handed = |s: &PlannerJob| s.stage == PlannerJobStage::Handed;
        if self.job(id).is_some_and(handed) {
            self.release(id);
            self.done(id);
        }
        if let Some(successor) = successor {
            self.queue_again(successor);
        }
    }

    /// A workflow has one job less.
    fn leave_flow(&mut self, id: JobId, gone: &PlannerJob) {
        let Some(number) = gone.job.flow else {
            return;
        };
        let Some(flow) = self.flows.get_mut(&number) else {
            return;
        };
        flow.jobs.retain(|j| *j != id);
        let left = u32::from(gone.stage != PlannerJobStage::Done);
        sub(&mut flow.left, left, "jobs of a workflow");
        match flow.jobs.first().copied() {
            Some(other) => self.settle(other),
            None => {
                self.flows.remove(&number);
            }
        }
    }

    /// A job has other properties.
    pub(crate) fn changed(&mut self, id: JobId, spec: &Arc<Job>) -> Result<(), SiteEventError> {
        let state = self.job(id).ok_or(SiteEventError::UnknownJob(id))?;
        if spec.nodes == 0 {
            return Err(SiteEventError::EmptyRequest(id));
        }
        if !same_needs(&state.job, spec) {
            return Err(SiteEventError::OtherNeeds(id));
        }
        let resources = same_resources(&state.job, spec);
        match state.stage {
            PlannerJobStage::Handed | PlannerJobStage::Done => {
                return Err(SiteEventError::HasEnded(id));
            }
            _ if self.has_nodes(id) && !resources => {
                return Err(SiteEventError::OtherResources(id));
            }
            _ if self.has_nodes(id) => self.change_running(id, spec),
            _ => self.change_waiting(id, spec, resources),
        }
        if let Some(flow) = spec.flow {
            self.rank(flow);
        }
        Ok(())
    }

    /// A job that has nodes gives them back at another time.
    fn change_running(&mut self, id: JobId, spec: &Arc<Job>) {
        let Some(state) = self.job_mut(id) else {
            return;
        };
        state.job = spec.clone();
        let (nodes, since, attached) = (state.nodes.clone(), state.began, state.attached);
        // The nodes of a script are its first job's.
        if !attached {
            let whole = self.nodes.is_whole(id);
            let ends = self.ends(id, since, nodes.len() as u32, whole);
            self.nodes.set_ends(id, &nodes, ends);
        }
    }

    fn change_waiting(&mut self, id: JobId, spec: &Arc<Job>, resources: bool) {
        match self.job(id).map(|s| s.stage) {
            Some(PlannerJobStage::Queued) => self.dequeue(id),
            Some(PlannerJobStage::Planned) => self.unplan(id),
            _ => {}
        }
        let Some(before) = self.job(id).map(|s| s.job.clone()) else {
            return;
        };
        let was_later = self.later.remove(id, &before);
        let later = self.note_later(id, spec);
        if !resources || before.on != spec.on || later > 0 {
            self.promises.fulfil(id);
        }
        let now = self.now;
        let Some(state) = self.job_mut(id) else {
            return;
        };
        sub(&mut state.lacks, u32::from(was_later), "what a job lacks");
        state.lacks += later;
        state.stage = PlannerJobStage::Blocked;
        state.job = spec.clone();
        state.submitted = spec.submitted.map_or(state.submitted, |at| at.min(now));
        let (lacks, ready) = (state.lacks, state.ready);
        if let Some(lacks) = self.nodes.lacks(spec) {
            self.emit(SiteAction::Refuse { job: id, lacks });
            return self.take_out(id);
        }
        if lacks == 0 {
            self.ready(id);
        }
        if let Some(state) = self.job_mut(id) {
            state.ready = ready;
        }
    }
}

/// Whether a job waits for the same things as before.
fn same_needs(a: &Job, b: &Job) -> bool {
    let script = a.flow == b.flow && a.continues == b.continues;
    script && a.after == b.after && a.reads == b.reads && a.writes == b.writes
}

/// Whether it asks for the same of each node, and for as many.
fn same_resources(a: &Job, b: &Job) -> bool {
    let amounts = |j: &Job| (j.nodes, j.cores, j.memory, j.gpus, j.mode);
    amounts(a) == amounts(b)
}
