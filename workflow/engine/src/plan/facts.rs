//! The planner's view of a host that decides by itself: the host compares it with its own state, and
//! plans ahead with a copy of the planner.

use super::Planner;
use super::nodes::PlannerNode;
use super::policy;
use super::queue::Fit;
use super::state::PlannerJobStage;
use super::view::SchedulerView;
use std::collections::BTreeSet;
use tarn_types::compute::Demand;
use tarn_types::id::NodeId;
use tarn_types::site::{ItemId, JobId, JobNodes, Spread};
use tarn_types::units::{Nanos, Time};

/// A job that had better wait for busy nodes with its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataWait {
    /// The job.
    pub job: JobId,
    /// The nodes.
    pub nodes: Vec<NodeId>,
    /// When they are free at the latest: the jobs that have them end by their limits.
    pub free: Time,
    /// How much sooner it computes there than on the nodes that it could have first.
    pub gain: Nanos,
    /// How long it takes to bring its data to those, or until they are free.
    pub bringing: Nanos,
    /// Whether it could begin on those now.
    pub could_begin: bool,
}

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
    pub fn free(&self, node: NodeId) -> Option<Demand> {
        self.state.nodes.all.get(node).map(PlannerNode::free)
    }

    /// Whether a node takes no new jobs, by its host.
    pub fn is_closed(&self, node: NodeId) -> bool {
        let node = self.state.nodes.all.get(node);
        node.is_some_and(|node| node.closed().is_some())
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

    /// How much longer it takes to bring a job's data to nodes that have none of it than to these. `None`: some of it is still to
    /// be made.
    pub fn bringing_elsewhere(&self, job: JobId, nodes: &[NodeId]) -> Option<Nanos> {
        let job = &self.state.job(job)?.job;
        let is_made = |item: ItemId| self.layouts(item).next().is_some();
        if !job.reads.iter().all(|input| is_made(input.item)) {
            return None;
        }
        let holders = job.reads.iter().flat_map(|input| self.layouts(input.item));
        let holders: BTreeSet<NodeId> = holders
            .flat_map(|(nodes, ..)| nodes.iter().copied())
            .collect();
        let others = self.state.nodes.all.ids();
        let others = others.filter(|node| !holders.contains(node));
        let others: Vec<NodeId> = others.take(nodes.len()).collect();
        let elsewhere = self.state.bringing_time(job, &others);
        Some(elsewhere.saturating_sub(self.state.bringing_time(job, nodes)))
    }

    /// The only job of the queue, if it takes whole nodes, those with its data are busy, and it computes there sooner than on
    /// those that it could have first, even if the jobs that have them run to their limits. Nobody else waits for nodes, so
    /// nobody takes the others meanwhile or loses by its wait.
    pub fn data_wait(&mut self) -> Option<DataWait> {
        let state = &mut self.state;
        let anything = Fit::without_time_limit(u32::MAX, u32::MAX);
        let w = state.next(None, &anything).filter(|w| w.cores == 0)?;
        if state.next(Some(&w), &anything).is_some() {
            return None;
        }
        let (job, busy) = (state.job_of(&w)?, state.busy_holders(&w)?);
        let free = state.nodes_earliest(&job, &busy.nodes)?.at;
        let bring_there = busy
            .ready_in
            .saturating_add(state.now)
            .saturating_sub(busy.free);
        let ready_in = free.saturating_sub(state.now).saturating_add(bring_there);
        let (bringing, could_begin) = match state.nodes_for(&w, &[], Time::MAX) {
            Some(nodes) => (state.bringing_time(&job, &nodes), true),
            None => {
                let first = state.earliest(&w)?;
                (first.at.saturating_sub(state.now), false)
            }
        };
        let is_better = ready_in < bringing || !could_begin && ready_in == bringing;
        is_better.then(|| DataWait {
            job: w.job,
            nodes: busy.nodes,
            free,
            gain: bringing - ready_in,
            bringing,
            could_begin,
        })
    }

    /// The ordinary job that has a promise, and the begin that it can rely on.
    pub fn promise(&self) -> Option<(JobId, Time)> {
        let promise = self.state.promises.promise()?;
        Some((promise.job, promise.begin))
    }
}
