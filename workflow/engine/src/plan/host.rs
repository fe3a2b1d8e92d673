//! Jobs that the host runs: it gave them their nodes, as the planner had planned or otherwise.

use super::nodes::NodeTaking;
use super::state::{PlannerJobStage, PlannerState};
use std::sync::Arc;
use tarn_types::account::sub;
use tarn_types::compute::Demand;
use tarn_types::id::NodeId;
use tarn_types::ledger::NodeAvailability;
use tarn_types::policy::DataMode;
use tarn_types::site::{ItemId, JobId, JobNodes, NodeShare, SiteEventError, Spread};
use tarn_types::units::Time;

impl PlannerState {
    /// The host gave a job nodes.
    pub(crate) fn began(
        &mut self,
        id: JobId,
        nodes: &JobNodes,
        share: NodeShare,
        since: Time,
    ) -> Result<(), SiteEventError> {
        let stage = self.can_begin(id, nodes)?;
        let since = since.min(self.now);
        let as_planned = self.job(id).is_some_and(|s| *s.nodes == **nodes);
        nodes.iter().for_each(|n| self.runs(*n));
        self.promises.fulfil(id);
        match stage {
            PlannerJobStage::Staging | PlannerJobStage::Running if as_planned => {
                self.confirm(id, nodes, share, since);
                self.make_way(nodes);
                return Ok(());
            }
            PlannerJobStage::Planned if as_planned => self.forget_plan(id, nodes),
            _ => {
                self.stop_waiting(id);
                self.space_on_host(id, nodes);
            }
        }
        self.hold(id, nodes, since);
        self.take_given(id, nodes, share, since);
        self.claims.remove(id);
        self.overtaken(nodes, id);
        self.make_way(nodes);
        // Its data is urgent now.
        self.refetch(id);
        Ok(())
    }

    fn can_begin(&self, id: JobId, nodes: &[NodeId]) -> Result<PlannerJobStage, SiteEventError> {
        let state = self.job(id).ok_or(SiteEventError::UnknownJob(id))?;
        if nodes.is_empty() {
            return Err(SiteEventError::NoNodes(id));
        }
        self.may_be_on(nodes)?;
        match state.stage {
            PlannerJobStage::Handed | PlannerJobStage::Done => Err(SiteEventError::HasEnded(id)),
            PlannerJobStage::Draining => Err(SiteEventError::HasBegun(id)),
            _ if state.by_host => Err(SiteEventError::HasBegun(id)),
            _ if state.attached => Err(SiteEventError::Continues(id)),
            stage => Ok(stage),
        }
    }

    /// A node on which the host runs a job is up.
    fn runs(&mut self, node: NodeId) {
        match self.nodes.node(node).availability() {
            NodeAvailability::Up | NodeAvailability::Lost => return,
            NodeAvailability::Asleep | NodeAvailability::Away => {}
            NodeAvailability::Waking | NodeAvailability::Booting(_) => {
                sub(&mut self.under_way, 1, "things under way");
            }
        }
        self.nodes.set_availability(node, NodeAvailability::Up);
    }

    /// A job neither queues any more, nor has it the nodes that the planner wished for it.
    fn stop_waiting(&mut self, id: JobId) {
        match self.job(id).map(|s| s.stage) {
            Some(PlannerJobStage::Queued) => self.dequeue(id),
            Some(PlannerJobStage::Planned) => self.unplan(id),
            Some(PlannerJobStage::Staging | PlannerJobStage::Running) => self.take_back(id),
            _ => {}
        }
        // The host began it although it lacks something.
        if let Some(job) = self.job(id).map(|s| s.job.clone()) {
            self.later.remove(id, &job);
            self.leave_predecessors(id, &job);
        }
        if let Some(state) = self.job_mut(id) {
            state.lacks = 0;
        }
    }

    /// Decides whether the data of a job goes through the tiers of the nodes that the host gave it.
    fn space_on_host(&mut self, id: JobId, nodes: &[NodeId]) {
        let Some(job) = self.job(id).map(|s| s.job.clone()) else {
            return;
        };
        match self.policy.data_mode {
            DataMode::Keep | DataMode::Cache => self.cache_space(id, &job, nodes),
            DataMode::StageThrough => {
                if let Some(state) = self.job_mut(id) {
                    (state.direct, state.promised) = (true, 0);
                }
            }
        }
    }

    fn take_given(&mut self, id: JobId, nodes: &JobNodes, share: NodeShare, since: Time) {
        let share = Demand::of_share(share);
        let ends = self.ends(id, since, nodes.len() as u32, share.is_none());
        self.nodes.take(NodeTaking {
            job: id,
            nodes,
            share,
            ends,
            given: true,
        });
        if let Some(state) = self.job_mut(id) {
            state.by_host = true;
        }
    }

    /// The host gave a job the nodes that the planner had allocated.
    fn confirm(&mut self, id: JobId, nodes: &JobNodes, share: NodeShare, since: Time) {
        self.nodes.give(self.now, id, nodes);
        self.take_given(id, nodes, share, since);
        if let Some(state) = self.job_mut(id) {
            state.began = since;
        }
    }

    /// Jobs that the planner has allocated and the host has not begun leave the nodes that the host gave to others.
    fn make_way(&mut self, nodes: &[NodeId]) {
        let mut again = Vec::new();
        for n in nodes {
            let mut wishes: Vec<JobId> = self.nodes.node(*n).guests.iter().map(|g| g.job).collect();
            wishes.retain(|id| self.is_wish(*id));
            while self.nodes.node(*n).guests.iter().any(|g| g.lacks.is_some()) {
                let Some(wish) = wishes.pop() else {
                    break;
                };
                self.take_back(wish);
                again.push(wish);
            }
        }
        for id in again {
            self.wait_again(id);
        }
    }

    /// Whether the planner has allocated nodes to a job, and the host has not begun it.
    fn is_wish(&self, id: JobId) -> bool {
        self.job(id).is_some_and(|s| {
            let allocated = matches!(s.stage, PlannerJobStage::Staging | PlannerJobStage::Running);
            allocated && !s.by_host && !s.attached
        })
    }

    /// Takes back the nodes that the planner had allocated to a job. No attempt is counted, and its script stays whole.
    fn take_back(&mut self, id: JobId) {
        let Some(state) = self.job_mut(id) else {
            return;
        };
        let ran = u32::from(state.stage == PlannerJobStage::Running);
        sub(&mut state.attempt, ran, "attempts of a job");
        let successors = state.successors;
        self.abort(id);
        if let Some(state) = self.job_mut(id) {
            state.successors = successors;
            state.stage = PlannerJobStage::Blocked;
            state.moving = 0;
            state.nodes = Arc::from([]);
            state.in_turn.clear();
        }
    }

    /// A job whose nodes were taken back waits in its place, and with its promise: it has waited all the time, as the host
    /// never began it. One that stands behind it had a promise in its place meanwhile.
    fn wait_again(&mut self, id: JobId) {
        let ready = self.job(id).map(|s| s.ready);
        let promised = self.promises.take_kept(id);
        self.queue_again(id);
        if let Some(begin) = promised {
            self.promise_again(id, begin);
        }
        if let (Some(state), Some(ready)) = (self.job_mut(id), ready) {
            state.ready = ready;
        }
    }

    /// The host did not begin a job to which the planner had allocated nodes.
    pub(crate) fn not_begun(&mut self, id: JobId) -> Result<(), SiteEventError> {
        let state = self.job(id).ok_or(SiteEventError::UnknownJob(id))?;
        if state.by_host && self.has_nodes(id) {
            return Err(SiteEventError::HasBegun(id));
        }
        if state.attached {
            return Err(SiteEventError::Continues(id));
        }
        match state.stage {
            PlannerJobStage::Staging | PlannerJobStage::Running => {}
            PlannerJobStage::Draining | PlannerJobStage::Handed | PlannerJobStage::Done => {
                return Err(SiteEventError::HasEnded(id));
            }
            PlannerJobStage::Blocked | PlannerJobStage::Queued | PlannerJobStage::Planned => {
                return Err(SiteEventError::HasNoNodes(id));
            }
        }
        self.take_back(id);
        self.wait_again(id);
        Ok(())
    }

    /// A program reads nothing more by itself.
    pub(crate) fn stop_own_reads(&mut self, id: JobId) {
        if let Some(state) = self.job_mut(id) {
            state.own_left = 0;
            state.in_turn.clear();
        }
    }

    /// A job that the host ran has ended. Its nodes are free at once: its program has written its outputs. One that failed
    /// waits again, until the host withdraws it.
    pub(crate) fn ended_by_host(&mut self, id: JobId, ok: bool, sizes: &[(ItemId, u64)]) {
        if !self.has_nodes(id) {
            return;
        }
        let Some(state) = self.job(id) else {
            return;
        };
        let (job, nodes, direct) = (state.job.clone(), state.nodes.clone(), state.direct);
        if !ok {
            self.abort(id);
            return self.queue_again(id);
        }
        let promised = state.promised;
        self.cancel_own_moves(id);
        self.unpin_inputs(id);
        self.forget_waits(id);
        self.stop_own_reads(id);
        self.promise_space(&nodes, promised, false);
        if let Some(state) = self.job_mut(id) {
            (state.promised, state.moving, state.stage) = (0, 0, PlannerJobStage::Draining);
        }
        self.learn_sizes(sizes);
        for item in &job.writes {
            let there = self.items.coming(*item, &nodes, Spread::Share).is_some();
            if !direct && !there {
                self.lay(*item, &nodes, Spread::Share, None);
            }
            if let Some(item) = self.item_mut(*item) {
                item.outside |= direct;
            }
        }
        self.finish(id);
        if let Some(flow) = job.flow.filter(|_| !sizes.is_empty()) {
            self.rank(flow);
        }
    }
}

#[cfg(test)]
mod tests;
