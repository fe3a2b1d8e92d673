//! The planner's view of a host that decides by itself: the host compares it with its own state, and
//! plans ahead with a copy of the planner.

use super::Planner;
use super::policy;
use super::state::PlannerJobStage;
use tarn_types::id::NodeId;
use tarn_types::site::{ItemId, JobId, JobNodes, NodeShare, Spread};
use tarn_types::units::Time;

/// A copy with the same state: what is decided there changes nothing here.
impl Clone for Planner {
    fn clone(&self) -> Self {
        Self {
            state: self.state.clone(),
            rule: policy::rule(&self.state.policy),
        }
    }
}

impl Planner {
    /// A job's place in the queue: less goes first.
    pub fn place(&self, job: JobId) -> Option<(u64, u64)> {
        self.state.job(job).map(|state| state.key)
    }

    /// The nodes of a job that has some.
    pub fn nodes_of(&self, job: JobId) -> Option<&JobNodes> {
        let has_nodes = [
            PlannerJobStage::Staging,
            PlannerJobStage::Running,
            PlannerJobStage::Draining,
            PlannerJobStage::Handed,
        ];
        let state = self.state.job(job)?;
        has_nodes.contains(&state.stage).then_some(&state.nodes)
    }

    /// The resources of a node that no job has.
    pub fn free(&self, node: NodeId) -> Option<NodeShare> {
        let free = self.state.nodes.all.get(node.at())?.free;
        Some(NodeShare {
            cores: free.cores,
            memory: free.memory,
            gpus: free.gpus,
        })
    }

    /// Whether an item is known still: the planner forgets those that nobody can need.
    pub fn has_item(&self, item: ItemId) -> bool {
        self.state.item(item).is_some()
    }

    /// The layouts of an item that are there: the nodes, how it is spread over them, and bytes on each.
    pub fn layouts(&self, item: ItemId) -> impl Iterator<Item = (&JobNodes, Spread, u64)> {
        let layouts = self.state.item(item).into_iter().flat_map(|i| &i.layouts);
        let present = layouts.filter(|layout| layout.present());
        present.map(|layout| (&layout.nodes, layout.spread, layout.each))
    }

    /// The job that is to continue on nodes of this one, which are kept for it, and how many of them it takes.
    pub fn next_step(&self, job: JobId) -> Option<(JobId, u32)> {
        let is_whole = self
            .state
            .job(job)
            .is_some_and(|state| state.job.cores == 0);
        let is_kept = is_whole && self.state.keeps_nodes(job);
        let next = self.state.main_successor(job).filter(|_| is_kept);
        next.map(|(next, nodes, _)| (next, nodes))
    }

    /// The ordinary job that has a promise, and the begin that it can rely on.
    pub fn promise(&self) -> Option<(JobId, Time)> {
        let promise = self.state.promises.promise()?;
        Some((promise.job, promise.begin))
    }
}
