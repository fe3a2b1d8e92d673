//! When a job could begin beside reservations of others: node by node, by limits.

use super::forecast::class_index;
use super::queue::QueuedJob;
use super::state::PlannerState;
use super::view::{HeldNodes, NodeHold};
use tarn_types::compute::Demand;
use tarn_types::id::NodeId;
use tarn_types::ledger::NodeAvailability;
use tarn_types::site::{Job, Mode};
use tarn_types::units::{Nanos, SECOND, Time};

/// A reservation begins and ends at multiples of this, and covers the time that it is for: `bf_resolution` of Slurm, which
/// is 60 s unless an administrator sets another (slurm.conf(5)).
const RESOLUTION: Nanos = 60 * SECOND;

/// Resources with signs: a job beyond its limit may have what a reservation counts on.
type Balance = [i128; 3];

fn balance(demand: Demand) -> Balance {
    [
        i128::from(demand.cores),
        i128::from(demand.memory),
        i128::from(demand.gpus),
    ]
}

impl PlannerState {
    /// The earliest begin of a job that takes nothing of what others have reserved, and its nodes then.
    pub(crate) fn earliest_beside(
        &self,
        w: &QueuedJob,
        held: &HeldNodes,
    ) -> Option<(Time, Vec<NodeId>)> {
        let job = self.job_of(w)?;
        let prefer = self.preferred(&job);
        let mut classes = self.classes_of(&job);
        if classes.len() > 1 {
            self.sort_classes(&mut classes, &prefer);
        }
        let mut best: Option<(Time, Vec<NodeId>)> = None;
        for (island, mode) in classes {
            let nodes = self.suitable(&job, island, mode);
            let found = self.class_beside(&job, &nodes, held, &prefer);
            let sooner = |(at, _): &(Time, Vec<NodeId>)| best.as_ref().is_none_or(|b| *at < b.0);
            if let Some(found) = found.filter(sooner) {
                best = Some(found);
            }
        }
        best
    }

    /// The share of a job on its nodes from a time on, as a reservation.
    pub(crate) fn hold_of(&self, w: &QueuedJob, from: Time, nodes: &[NodeId]) -> Vec<NodeHold> {
        let Some(job) = self.job_of(w) else {
            return Vec::new();
        };
        let until = from.saturating_add(w.limit);
        let hold = |node: &NodeId| NodeHold {
            node: *node,
            from: from / RESOLUTION * RESOLUTION,
            until: until.div_ceil(RESOLUTION).saturating_mul(RESOLUTION),
            demand: self.nodes.share(&job, *node),
        };
        nodes.iter().map(hold).collect()
    }

    /// The nodes of a class that a job may have.
    fn suitable(&self, job: &Job, island: usize, mode: Mode) -> Vec<NodeId> {
        let class = class_index(island, mode);
        let all = self.nodes.all.ids();
        let may = |n: &NodeId| {
            self.class_of(*n) == class
                && self.nodes.node(*n).availability() == NodeAvailability::Up
                && self.nodes.node(*n).closed() != Some(Time::MAX)
                && job.on.as_ref().is_none_or(|on| on.contains(*n))
        };
        all.filter(may).collect()
    }

    fn class_beside(
        &self,
        job: &Job,
        nodes: &[NodeId],
        held: &HeldNodes,
        prefer: &[NodeId],
    ) -> Option<(Time, Vec<NodeId>)> {
        let want = job.nodes as usize;
        let mut from = self.now;
        loop {
            let times = nodes.iter().filter_map(|n| {
                let at = self.free_from(*n, job, from, held)?;
                Some((at, *n))
            });
            let mut times: Vec<(Time, NodeId)> = times.collect();
            times.sort_unstable();
            // At that time some that were free before may be reserved: then it begins later.
            let at = times.get(want.checked_sub(1)?)?.0;
            if at == from {
                let free = times.iter().take_while(|(time, _)| *time == at);
                let mut free: Vec<NodeId> = free.map(|(_, n)| *n).collect();
                let rank = |n: &NodeId| {
                    let place = prefer.iter().position(|p| p == n).unwrap_or(prefer.len());
                    let node = self.nodes.node(*n);
                    (place, node.guests.is_empty(), node.free().cores, *n)
                };
                free.sort_by_key(rank);
                free.truncate(want);
                return Some((at, free));
            }
            from = at;
        }
    }

    /// The earliest time from `from` on at which a node has what a job asks for until its limit.
    fn free_from(&self, id: NodeId, job: &Job, from: Time, held: &HeldNodes) -> Option<Time> {
        let node = self.nodes.node(id);
        let from = from.max(node.closed().unwrap_or(0));
        let holds = held.of(id);
        let want = balance(self.nodes.share(job, id));
        let late = |until: Time| until.max(self.now.saturating_add(1));
        let ends = node.guests.iter().map(|g| late(g.until));
        let ends = ends.chain(holds.iter().map(|h| h.until));
        let mut times: Vec<Time> = ends.filter(|end| *end > from).chain([from]).collect();
        times.sort_unstable();
        times.into_iter().find(|at| {
            let until = at.saturating_add(job.limit);
            let mut free = balance(node.free());
            for guest in node.guests.iter().filter(|g| late(g.until) <= *at) {
                let gives = balance(guest.share);
                (0..3).for_each(|i| free[i] += gives[i]);
            }
            for hold in holds.iter().filter(|h| h.from < until && h.until > *at) {
                let takes = balance(hold.demand);
                (0..3).for_each(|i| free[i] -= takes[i]);
            }
            (0..3).all(|i| free[i] >= want[i])
        })
    }
}
