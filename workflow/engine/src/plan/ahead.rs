//! Preparations for the first job of the queue while it waits: its reservation covers nodes, its inputs, and space for
//! its inputs and outputs.
//!
//! Which nodes it will get is a guess (jobs end before their limits), so it is a copy and no plan: if others come free
//! sooner, the job weighs waiting for its data against bringing it again.

use super::forecast::class_at;
use super::items::{ItemLayout, each};
use super::nodes::node_of;
use super::outbox::{MovePurpose, MoveRequest};
use super::rates::duration;
use super::reservations::FirstJobReservation;
use super::routes::InputRoute;
use super::state::PlannerState;
use super::view::Shadow;
use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_types::id::NodeId;
use tarn_types::policy::DataMode;
use tarn_types::site::{Input, Job, JobId, Urgency, Where};
use tarn_types::units::{Nanos, SECOND, Time};

impl PlannerState {
    /// A job has found no space on these nodes: the first of the queue in that state keeps the free space.
    pub(crate) fn claim_space(&mut self, job: JobId, nodes: &[NodeId], bytes: u64) {
        let keeps = self.policy.data_mode == DataMode::Keep;
        self.claims.add(job, nodes, bytes, keeps);
    }

    /// Whether a job may read and write outside by itself because space is long in coming: not while one before it
    /// waits for removals, which would be delayed.
    pub(crate) fn may_do_without(&self, id: JobId) -> bool {
        let first = self.claims.first().is_none_or(|c| c.job == id);
        first && self.policy.data_mode == DataMode::Keep
    }

    /// About how long it takes until a node has space for so many bytes of a job: data with another replica leaves at
    /// once, data that nobody reads goes outside, and for the rest a job there has to end first.
    pub(crate) fn time_until_space(&self, node: NodeId, bytes: u64, by: JobId) -> Nanos {
        /// Items that are looked at.
        const LOOKED_AT: usize = 256;
        let needs = bytes.saturating_add(self.claims.kept_from(node, by));
        let mut lack = needs.saturating_sub(self.nodes.free_space(node));
        if lack == 0 {
            return 0;
        }
        let mut leaves = 0u64;
        for id in self.nodes.node(node).held.iter().take(LOOKED_AT) {
            let Some(item) = self.item(*id) else {
                continue;
            };
            let Some(here) = item.layouts.iter().find(|l| l.has(node)) else {
                continue;
            };
            if here.pins > 0 || !here.present() {
                continue;
            }
            let share = each(item.item.bytes, here.nodes.len(), here.spread);
            let other = |l: &ItemLayout| l.present() && !l.has(node);
            match item.outside || item.layouts.iter().any(other) {
                true => lack = lack.saturating_sub(share),
                false => leaves = leaves.saturating_add(share),
            }
        }
        let guests = self.nodes.node(node).guests.iter();
        let ends = guests.map(|g| self.expected_end(g.job).saturating_sub(self.now));
        let first = match lack > leaves {
            true => ends.min().unwrap_or(0),
            false => 0,
        };
        let rates = [self.store.rates.write, self.store.client.write];
        let rate = rates.into_iter().filter(|r| *r > 0).min();
        first.saturating_add(duration(lack, rate.unwrap_or(0)))
    }

    /// About when there is space for the job that has claimed it: data in its way goes outside meanwhile.
    pub(crate) fn claim_in(&self, claim: &FirstJobReservation) -> Nanos {
        let lack = |n: &NodeId| claim.bytes.saturating_sub(self.nodes.free_space(*n));
        let most = claim.nodes.iter().map(lack).max().unwrap_or(0);
        let rates = [self.store.rates.write, self.store.client.write];
        let rate = rates.into_iter().filter(|r| *r > 0).min();
        duration(most, rate.unwrap_or(0))
    }

    /// Brings the inputs of the first job of the queue to the nodes on which it is expected to begin, once that does
    /// not come too early. One-node jobs that take a part of a node are planned instead, each with its data.
    pub(crate) fn bring_for(&mut self, job: &Arc<Job>, id: JobId, shadow: &Shadow) {
        if self.policy.data_mode != DataMode::Keep || job.nodes == 1 && job.cores > 0 {
            return;
        }
        if self
            .looked_ahead
            .is_some_and(|(j, next)| j == id && self.now < next)
        {
            return;
        }
        let only_outside = |i: &&Input| {
            let item = self.item(i.item);
            item.is_some_and(|i| i.outside && i.layouts.is_empty() && i.item.bytes > 0)
        };
        let inputs: Vec<Input> = job.reads.iter().filter(only_outside).copied().collect();
        if inputs.is_empty() {
            return;
        }
        let Some((nodes, free)) = self.next_nodes(job, shadow) else {
            return;
        };
        let brought = |i: &&Input| !self.outside_is_faster(i.item, &nodes);
        let inputs: Vec<Input> = inputs.iter().filter(brought).copied().collect();
        let share = |i: &Input| {
            let bytes = self.item(i.item).map_or(0, |i| i.item.bytes);
            each(bytes, nodes.len(), i.spread)
        };
        let bytes = inputs.iter().map(share).fold(0, u64::saturating_add);
        let takes = self.inward(bytes.saturating_mul(nodes.len() as u64), nodes.len());
        // Jobs end before their time, so it is looked at again; not for every event, because nodes are many.
        let again = self.now.saturating_add((takes / 2).max(SECOND));
        self.looked_ahead = Some((id, again));
        // Not sooner: until then, other nodes may come free.
        let begin = free.saturating_sub(takes.saturating_mul(2).saturating_add(SECOND));
        if begin > self.now {
            self.looked_ahead = Some((id, begin.min(again)));
            self.remind(begin);
            return;
        }
        let space = bytes.saturating_add(self.written(job));
        let fits = |n: &NodeId| {
            self.nodes.free_space(*n) >= space.saturating_add(self.claims.kept_from(*n, id))
        };
        if !nodes.iter().all(fits) {
            return;
        }
        let nodes: Arc<[NodeId]> = Arc::from(nodes);
        for input in inputs {
            self.bring_copy(id, input, &nodes);
        }
    }

    fn bring_copy(&mut self, id: JobId, input: Input, nodes: &Arc<[NodeId]>) {
        let InputRoute::From(from @ Where::Outside, bytes) =
            self.way(input.item, nodes, input.spread).0
        else {
            return;
        };
        let order = self.order(MoveRequest {
            item: input.item,
            bytes,
            from,
            to: Where::Nodes(nodes.clone()),
            spread: input.spread,
            direct: false,
            job: Some(id),
            urgency: Urgency::Ahead,
            purpose: MovePurpose::Input(Vec::new()),
        });
        self.lay(input.item, nodes, input.spread, Some(order));
    }

    /// The nodes that a job is expected to get, and when the last of them is free by the known run times of the
    /// programs on them.
    fn next_nodes(&self, job: &Job, shadow: &Shadow) -> Option<(Vec<NodeId>, Time)> {
        if !shadow.keeps.is_empty() {
            return Some((shadow.keeps.clone(), shadow.at));
        }
        let want = job.nodes as usize;
        let (island, mode) = class_at(shadow.class);
        let class = self.nodes.class(island, mode);
        let mask = self.nodes.mask_of(job, island);
        let idle = class.idle.iter_in(mask);
        let mut nodes: Vec<NodeId> = idle.take(want).collect();
        let mut free = self.now;
        // A job has several ends if some of its nodes are reserved for its successor.
        let mut taken: BTreeMap<JobId, usize> = BTreeMap::new();
        for (_, who, count) in class.ends.iter() {
            if nodes.len() >= want {
                break;
            }
            let lacks = (want - nodes.len()).min(count as usize);
            match node_of(who) {
                Some(node) if job.may_have(node) => nodes.push(node),
                Some(_) => {}
                None => {
                    let guest = JobId(u32::try_from(who).ok()?);
                    let before = taken.entry(guest).or_default();
                    let own = self.nodes.counted_by(guest, island, mode);
                    let own = own.filter(|n| job.may_have(*n)).skip(*before);
                    let there = nodes.len();
                    nodes.extend(own.take(lacks));
                    *before += lacks;
                    if nodes.len() > there {
                        free = free.max(self.expected_end(guest));
                    }
                }
            }
        }
        (nodes.len() == want).then_some((nodes, free))
    }
}
