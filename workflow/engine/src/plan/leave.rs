//! A job that leaves its nodes, its plan or the queue.

use super::state::{PlannerJobStage, PlannerState};
use std::sync::Arc;
use tarn_types::account::sub;
use tarn_types::id::NodeId;
use tarn_types::site::{Job, JobId, SiteAction};

impl PlannerState {
    /// A job gives its nodes back; one that continued in the allocation of its script leaves that to the last.
    pub(crate) fn release(&mut self, id: JobId) {
        let Some(state) = self.job(id) else {
            return;
        };
        let (nodes, attached) = (state.nodes.clone(), state.attached);
        sub(&mut self.under_way, 1, "things under way");
        self.emit(SiteAction::Release { job: id });
        if attached {
            return self.detach(id);
        }
        // Without its nodes it hands none over: the rest of its script queues for itself.
        if let Some(state) = self.job_mut(id) {
            state.successors = 0;
        }
        let now = self.now;
        self.nodes.give(now, id, &nodes);
        self.begin_planned_on(&nodes);
    }

    /// Nodes are free: jobs planned there may begin, the most urgent first.
    pub(crate) fn begin_planned_on(&mut self, nodes: &[NodeId]) {
        for n in nodes {
            if self.nodes.node(*n).planned.is_empty() {
                continue;
            }
            let planned = self.nodes.node(*n).planned.iter();
            let mut order: Vec<_> = planned
                .filter_map(|j| Some((self.job(*j)?.key, *j)))
                .collect();
            order.sort_unstable();
            for (_, job) in order {
                self.begin_planned(job);
            }
        }
    }

    /// A job that had nodes goes back to the queue.
    pub(crate) fn queue_again(&mut self, id: JobId) {
        let Some(state) = self.job(id) else {
            return;
        };
        let job = state.job.clone();
        self.promises.fulfil(id);
        let lacks = self.need_inputs(id, &job) + self.note_later(id, &job);
        let Some(state) = self.job_mut(id) else {
            return;
        };
        state.stage = PlannerJobStage::Blocked;
        (state.lacks, state.moving, state.promised) = (lacks, 0, 0);
        state.nodes = Arc::from([]);
        state.in_turn.clear();
        state.by_host = false;
        if lacks == 0 {
            self.ready(id);
        }
    }

    pub(super) fn forget_plan(&mut self, id: JobId, nodes: &[NodeId]) {
        for n in nodes {
            self.nodes.unplan(*n, id);
        }
        if let Some(max_wait) = self.job(id).map(|s| s.max_wait) {
            self.plans.remove(max_wait, id);
        }
    }

    /// Planned jobs whose nodes have let them wait too long choose again.
    pub(crate) fn expire_plans(&mut self) {
        while let Some((at, id)) = self.plans.expired(self.now) {
            self.plans.remove(at, id);
            self.unplan(id);
            self.enqueue(id);
        }
        self.deadline = self.deadline.into_iter().chain(self.plans.next()).min();
    }

    /// Takes a plan back.
    pub(crate) fn unplan(&mut self, id: JobId) {
        let Some(state) = self.job(id).filter(|s| s.stage == PlannerJobStage::Planned) else {
            return;
        };
        let (nodes, promised) = (state.nodes.clone(), state.promised);
        self.unpin_inputs(id);
        self.forget_waits(id);
        self.promise_space(&nodes, promised, false);
        self.forget_plan(id, &nodes);
        self.emit(SiteAction::Unplan { job: id });
        if let Some(state) = self.job_mut(id) {
            (state.promised, state.moving) = (0, 0);
            state.nodes = Arc::from([]);
            state.stage = PlannerJobStage::Blocked;
        }
    }

    /// A job waits for the end of others no more.
    pub(crate) fn leave_predecessors(&mut self, id: JobId, job: &Job) {
        for before in job.after.iter().chain(&job.continues) {
            if let Some(before) = self.job_mut(*before) {
                before.followers.retain(|f| *f != id);
            }
        }
        self.leave_withdrawn(id, job);
    }

    /// A job waits for none that was withdrawn any more.
    pub(crate) fn leave_withdrawn(&mut self, id: JobId, job: &Job) {
        for before in job.after.iter().chain(&job.continues) {
            let Some(waiting) = self.orphans.get_mut(before) else {
                continue;
            };
            waiting.retain(|f| *f != id);
            if waiting.is_empty() {
                self.orphans.remove(before);
            }
        }
    }

    /// Takes a job out of its queue.
    pub(crate) fn withdraw(&mut self, id: JobId) {
        match self.job(id).map(|s| s.stage) {
            Some(PlannerJobStage::Queued) => self.dequeue(id),
            Some(PlannerJobStage::Planned) => self.unplan(id),
            _ => {}
        }
        if let Some(job) = self.job(id).map(|s| s.job.clone()) {
            self.later.remove(id, &job);
        }
        self.claims.remove(id);
        self.promises.fulfil(id);
        if self.job(id).is_some_and(|s| s.attached) {
            self.detach(id);
        }
    }
}
