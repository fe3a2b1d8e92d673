//! Batch scripts of several jobs: the later ones continue in the allocation of the first (Weiland 2018, Figure 3).

use super::state::{PlannerJobStage, PlannerState};
use tarn_types::ledger::NodeAvailability;
use tarn_types::policy::DataMode;
use tarn_types::site::{AllocationReason, JobId, JobNodes, Urgency};

impl PlannerState {
    /// The first job of the script that a job is a part of.
    pub(crate) fn script_of(&self, id: JobId) -> JobId {
        let mut root = id;
        while let Some(before) = self.job(root).and_then(|s| s.job.continues) {
            root = before;
        }
        root
    }

    /// A job of a script continues in the allocation of the first.
    pub(crate) fn inherit(&mut self, id: JobId) {
        let root = self.script_of(id);
        let handed = self
            .job(root)
            .filter(|b| b.stage == PlannerJobStage::Handed);
        let (Some(first), Some(state)) = (handed, self.job(id)) else {
            self.detach(id);
            return self.enqueue(id);
        };
        let job = state.job.clone();
        let nodes: JobNodes = first
            .nodes
            .iter()
            .take(job.nodes as usize)
            .copied()
            .collect();
        if nodes
            .iter()
            .any(|n| self.nodes.node(*n).availability() != NodeAvailability::Up)
        {
            self.detach(id);
            return self.enqueue(id);
        }
        if let Some(first) = self.job_mut(root) {
            first.successor = Some(id);
        }
        if let Some(state) = self.job_mut(id) {
            (state.direct, state.promised) = (true, 0);
        }
        if self.policy.data_mode != DataMode::StageThrough {
            self.cache_space(id, &job, &nodes);
        }
        self.take_nodes(id, &nodes, AllocationReason::Continues);
        self.fetch(id, Urgency::Now);
        self.run_if_there(id);
    }

    /// A job of a script has failed: the rest queues for itself, and its nodes are free.
    pub(crate) fn end_script(&mut self, id: JobId) {
        let root = self.script_of(id);
        let handed = self
            .job(root)
            .is_some_and(|s| s.stage == PlannerJobStage::Handed);
        if handed && root != id {
            self.release(root);
            self.done(root);
        }
    }

    /// A job does not use its script's allocation any more; with the last of them it ends.
    pub(crate) fn detach(&mut self, id: JobId) {
        let root = self.script_of(id);
        if let Some(state) = self.job_mut(id) {
            state.attached = false;
        }
        // A script that has given its nodes back counts nobody any more.
        let Some(first) = self.job_mut(root).filter(|f| f.successors > 0) else {
            return;
        };
        first.successors -= 1;
        if first.successors == 0 && first.stage == PlannerJobStage::Handed {
            self.release(root);
            self.done(root);
        }
    }
}
