//! The view of a run: a policy sees the run and acts on it through this view. A run is one workflow: all that waits is
//! a step of it, and nobody has a promise. Its nodes are distinguished by name, so all are of one class, and
//! reservations are by name.

use super::Decide;
use crate::plan::queue::{Fit, QueuedJob};
use crate::plan::view::{Candidate, HeldNodes, NodeHold, SchedulerView, Shadow};
use std::collections::BTreeMap;
use std::ops::Bound;
use tarn_types::id::{InstanceId, NodeId, StepId};
use tarn_types::placement::NodeRank;
use tarn_types::policy::{DataMode, Order};
use tarn_types::reason::Reason;
use tarn_types::site::{AllocationReason, JobId};
use tarn_types::units::{Nanos, SECOND, Time};

/// All nodes of a run are of this class.
const CLASS: usize = 0;
/// Instances behind one that are checked for data on a node that it could take: a bound on work.
const NATIVES: usize = 256;
/// The least time until a reminder: an overdue attempt is always expected to end a little later.
const REMIND_AFTER: Nanos = SECOND;

/// An instance as a policy sees it. Its key says which it is.
pub(super) fn waiting(turn: (u64, InstanceId), nodes: u32, cores: u32, limit: Nanos) -> QueuedJob {
    let (first, id) = turn;
    QueuedJob {
        key: (first, u64::from(id.step.0) << 32 | u64::from(id.index)),
        job: JobId(0),
        nodes,
        // 0 would mean whole nodes.
        cores: cores.max(1),
        limit,
    }
}

pub(super) fn instance_of(w: &QueuedJob) -> InstanceId {
    InstanceId {
        step: StepId((w.key.1 >> 32) as u32),
        index: w.key.1 as u32,
    }
}

impl Decide<'_> {
    fn shadow(&self, free_in: Nanos, keeps: Vec<NodeId>) -> Shadow {
        Shadow {
            at: self.state.now.saturating_add(free_in.max(1)),
            class: CLASS,
            extra: u32::MAX,
            keeps,
        }
    }

    /// The nodes that have its partitions; with `same-nodes`, those of the instance that made most of its input, as
    /// many as it needs.
    fn own_nodes(&self, id: InstanceId) -> Option<Vec<NodeId>> {
        if let Some((_, nodes)) = self.state.partitions.home(id.step) {
            return Some(nodes);
        }
        if self.state.start.options.policy.order != Order::SameNodes {
            return None;
        }
        let mut nodes = self.predecessor(id)?.to_vec();
        nodes.truncate(self.count(id));
        let kind = self.nodes_of_kind(id.step);
        let suits =
            |(position, n): (usize, &NodeId)| kind.contains(n) && self.holder(id, position)(*n);
        let enough = self.most_at_once(&nodes, self.demand(id.step)) == self.count(id) as u64;
        (enough && nodes.iter().enumerate().all(suits)).then_some(nodes)
    }

    /// Nodes for an instance of those that are free, position by position: those with its checkpoints first, then those with its data, then the one with the
    /// fewest free cores, so that whole nodes stay free, then the one that draws less or is cooler.
    fn pick(&self, id: InstanceId, mut free: Vec<NodeId>) -> Option<Vec<NodeId>> {
        let (count, demand) = (self.count(id), self.demand(id.step));
        let mut chosen: Vec<NodeId> = Vec::with_capacity(count);
        for position in 0..count {
            let holds = self.holder(id, position);
            let could = |n: &NodeId| {
                let with: Vec<_> = chosen.iter().copied().chain([*n]).collect();
                self.free_for(&with, demand) && holds(*n)
            };
            let rank = |n: &NodeId| {
                let (data_in, missing) = match self.state.data_mode() {
                    DataMode::StageThrough => (0, 0),
                    _ => {
                        let (data_in, missing, _) = self.data_at(id, position, *n);
                        (data_in, missing)
                    }
                };
                NodeRank {
                    restart: self.checkpoints_rank(id, position, *n),
                    computes: data_in,
                    missing,
                    // Of nodes that are alike, the one with fewer free cores.
                    load: self.turn.free.free_cores(*n) as usize,
                    draw: self.draw(*n),
                    node: *n,
                }
            };
            let best = free.iter().copied().filter(could).min_by_key(rank)?;
            free.retain(|n| *n != best);
            chosen.push(best);
        }
        Some(chosen)
    }

    /// When the data of an instance would be on these nodes.
    pub(super) fn data_in(&self, id: InstanceId, nodes: &[NodeId]) -> Nanos {
        let positions = nodes.iter().enumerate();
        let times = positions.map(|(position, n)| self.data_at(id, position, *n).0);
        times.max().unwrap_or(0)
    }

    /// The nodes of the instance that made most bytes of this one's input.
    fn predecessor(&self, id: InstanceId) -> Option<&[NodeId]> {
        let w = &self.state.start.workflow;
        let mut made: BTreeMap<InstanceId, u64> = BTreeMap::new();
        for name in self.state.steps.instance(id)?.parts() {
            let bytes = self.state.data.part(name).map_or(0, |p| p.info.bytes);
            if let Some(step) = w.producer(name.data, name.version) {
                let index = name.origin;
                *made.entry(InstanceId { step, index }).or_default() += bytes;
            }
        }
        let (most, _) = made.into_iter().max_by_key(|(who, bytes)| (*bytes, *who))?;
        Some(&self.state.steps.instance(most)?.ran_on)
    }

    /// For each position of an instance the node on which its data is soonest, busy or not.
    fn nodes_with_data(&self, id: InstanceId) -> Option<Vec<NodeId>> {
        let mut kind = self.nodes_of_kind(id.step);
        let mut chosen = Vec::new();
        for position in 0..self.count(id) {
            let holds = self.holder(id, position);
            let rank = |n: &NodeId| {
                let (computes, missing, _) = self.data_at(id, position, *n);
                NodeRank {
                    computes,
                    missing,
                    ..NodeRank::of(*n)
                }
            };
            let best = kind
                .iter()
                .copied()
                .filter(|n| holds(*n))
                .min_by_key(rank)?;
            kind.retain(|n| *n != best);
            chosen.push(best);
        }
        Some(chosen)
    }

    pub(super) fn count(&self, id: InstanceId) -> usize {
        self.state.start.workflow.step(id.step).nodes as usize
    }

    fn reason(&self, id: InstanceId, nodes: &[NodeId], why: AllocationReason) -> Option<Reason> {
        let node = *nodes.first()?;
        if let Some(why) = self.partition_there(id) {
            return Some(why);
        }
        Some(match (self.state.start.options.policy.order, why) {
            (Order::Data | Order::Energy, _) => self.earliest_end(id, nodes)?,
            (Order::SameNodes, _) if self.own_nodes(id).is_some() => Reason::SameNodes { node },
            (_, AllocationReason::First) => Reason::FirstInQueue { node },
            (_, AllocationReason::Backfill) => Reason::Backfill { node },
            _ => Reason::FirstFree { node },
        })
    }
}

impl SchedulerView for Decide<'_> {
    fn now(&self) -> Time {
        self.state.now
    }

    fn next(&self, after: Option<&QueuedJob>, fit: &Fit) -> Option<QueuedJob> {
        if self.state.stop.is_some() || fit.cores == 0 {
            return None;
        }
        let from = match after {
            Some(w) => Bound::Excluded((w.key.0, instance_of(w))),
            None => Bound::Unbounded,
        };
        let mut behind = self.state.steps.pending.range((from, Bound::Unbounded));
        std::iter::repeat_with(|| behind.next())
            .take_while(|_| self.turn.looks())
            .map_while(|turn| turn)
            .map(|turn| {
                let step = self.state.start.workflow.step(turn.1.step);
                let limit = step
                    .time
                    .unwrap_or_else(|| self.state.run_time(turn.1.step));
                waiting(*turn, step.nodes, step.cores, limit)
            })
            .find(|w| {
                let id = instance_of(w);
                fit.takes(w) && self.obtainable(id) && !self.keeps_its_nodes(id)
            })
    }

    fn free(&self) -> Fit {
        let cores = self.all_nodes().map(|n| self.turn.free.free_cores(n));
        Fit::without_time_limit(u32::MAX, cores.max().unwrap_or(0))
    }

    fn one_class(&self) -> bool {
        true
    }

    fn nodes_for(&self, w: &QueuedJob, not: &[NodeId], until: Time) -> Option<Vec<NodeId>> {
        let id = instance_of(w);
        let demand = self.demand(id.step);
        let late = self.state.now.saturating_add(w.limit) > until;
        let may = |n: &NodeId| !(late && not.contains(n)) && self.free_for(&[*n], demand);
        if let Some(own) = self.own_nodes(id) {
            let all = own.iter().all(may) && self.free_for(&own, demand);
            return all.then_some(own);
        }
        let free = self.nodes_of_kind(id.step).into_iter().filter(may);
        self.pick(id, free.collect())
    }

    fn class_for(&self, w: &QueuedJob) -> Option<usize> {
        self.nodes_for(w, &[], Time::MAX).map(|_| CLASS)
    }

    fn class_of(&self, _: NodeId) -> usize {
        CLASS
    }

    fn earliest(&self, w: &QueuedJob) -> Option<Shadow> {
        let id = instance_of(w);
        if let Some(own) = self.own_nodes(id) {
            let demand = self.demand(id.step);
            let free_in = self.free_in(&own, demand).into_iter().max()?;
            return Some(self.shadow(free_in, own));
        }
        let (free_in, nodes) = self.first_free(id)?;
        Some(self.shadow(free_in, nodes))
    }

    /// A run has one workflow: nobody else waits for what a reservation would keep.
    fn beside(&self, _: &QueuedJob, _: &HeldNodes) -> Option<(Time, Vec<NodeId>, Vec<NodeHold>)> {
        None
    }

    fn waited(&self, w: &QueuedJob) -> Nanos {
        let since = self.state.steps.instance(instance_of(w)).map(|i| i.since);
        since.map_or(0, |since| self.state.now.saturating_sub(since))
    }

    fn start(&mut self, w: &QueuedJob, nodes: &[NodeId], why: AllocationReason) -> bool {
        let id = instance_of(w);
        let begin = self.data_in(id, nodes);
        let why = self.reason(id, nodes, why);
        why.is_some_and(|why| self.assign(id, nodes, begin, why))
    }

    fn best(&self, w: &QueuedJob, may: &dyn Fn(&Candidate) -> bool) -> Option<Candidate> {
        let all = self.candidates_of(instance_of(w)).into_iter();
        all.filter(|c| may(c)).min_by_key(Candidate::rank)
    }

    fn plan(&mut self, w: &QueuedJob, on: &Candidate) -> bool {
        let id = instance_of(w);
        let why = (self.partition_there(id)).or_else(|| self.earliest_end(id, &[on.node]));
        why.is_some_and(|why| self.assign(id, &[on.node], on.begin(), why))
    }

    /// Another instance of its step.
    fn native(&self, w: &QueuedJob, node: NodeId) -> Option<QueuedJob> {
        let id = instance_of(w);
        let at_home = |id: InstanceId, node: NodeId| {
            self.holder(id, 0)(node) && self.data_at(id, 0, node).1 == 0
        };
        let mut others = self.nodes_of_kind(id.step).into_iter();
        if !others.any(|n| n != node && at_home(id, n)) {
            return None;
        }
        let behind = (Bound::Excluded((w.key.0, id)), Bound::Unbounded);
        let like = self.state.steps.pending.range(behind);
        let mut like = like
            .take_while(|(_, other)| other.step == id.step)
            .take(NATIVES);
        let (first, native) = like.find(|(_, other)| {
            at_home(*other, node) && self.obtainable(*other) && !self.keeps_its_nodes(*other)
        })?;
        Some(waiting((*first, *native), w.nodes, w.cores, w.limit))
    }

    fn remind(&mut self, at: Time) {
        let at = at.max(self.state.now.saturating_add(REMIND_AFTER));
        self.look_again(at);
    }

    fn worth_waiting(&self, w: &QueuedJob, nodes: &[NodeId]) -> Option<Shadow> {
        let id = instance_of(w);
        let here = self.data_in(id, nodes);
        if here == 0 {
            return None;
        }
        let own = self.nodes_with_data(id).filter(|own| own != nodes)?;
        let demand = self.demand(id.step);
        let free_in = self.free_in(&own, demand).into_iter().max()?;
        let there = free_in.saturating_add(self.data_in(id, &own));
        (free_in > 0 && there < here).then(|| self.shadow(free_in, own))
    }

    /// Nobody behind it takes the tiers on which it waits (`Turn::claimed`); its nodes may run instances that have
    /// space already.
    fn space_shadow(&self, _: &QueuedJob) -> Option<Shadow> {
        None
    }

    /// Steps on one node are placed ahead, with their data; those on several bring it when they have their nodes.
    fn bring_ahead(&mut self, _: &QueuedJob, _: &Shadow) {}

    /// Promises are made to jobs that are no step of a workflow; a run has none.
    fn promised(&mut self) -> Option<QueuedJob> {
        None
    }

    fn breaks_promise(&mut self, _: &QueuedJob, _: &[NodeId], _: Time) -> bool {
        false
    }

    fn shadow_breaks_promise(&mut self, _: &QueuedJob, _: &Shadow) -> bool {
        false
    }

    fn is_due(&self, _: &QueuedJob, _: NodeId) -> bool {
        false
    }
}
