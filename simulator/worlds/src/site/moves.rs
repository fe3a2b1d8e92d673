//! Moves: their destinations, their pipes, and their ends.

use super::SimulatedSite;
use super::fluid::{StreamIndex, rate_of};
use super::jobs::SimulatedJobPhase;
use super::plumbing::{self, MoveEnd, NodePipe};
use super::space::ItemDistribution;
use tarn_ports::WorldError;
use tarn_types::id::NodeId;
use tarn_types::site::result::MoveDirection;
use tarn_types::site::{ItemId, JobId, JobNodes, Move, MoveId, SiteEvent, SpanOf, Spread, Where};
use tarn_types::units::Time;

/// A move under way.
#[derive(Debug)]
pub(super) struct ActiveMove {
    pub(super) order: Move,
    began: Time,
    /// Space that is taken where it goes.
    pub(super) to: Option<ItemDistribution>,
    fails: bool,
    /// The job that has its nodes and waits for it.
    pub(super) awaited_by: Option<JobId>,
}

impl ActiveMove {
    pub(super) fn touches(&self, node: NodeId) -> bool {
        let ends = [&self.order.from, &self.order.to];
        ends.iter().any(|w| nodes_of(w).contains(&node))
    }
}

fn nodes_of(place: &Where) -> &[NodeId] {
    match place {
        Where::Outside => &[],
        Where::Nodes(nodes) => nodes,
    }
}

/// Which end of a move is the memory of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MoveMemoryEnd {
    None,
    From,
    To,
}

impl SimulatedSite {
    pub(super) fn begin_move(&mut self, order: &Move) -> Result<(), WorldError> {
        let memory = self.check_move(order)?;
        let mut to = None;
        if let (Where::Nodes(nodes), true) = (&order.to, memory != MoveMemoryEnd::To) {
            let layout = ItemDistribution::new(nodes, order.spread);
            self.space.take(order.item, &layout);
            to = Some(layout);
        }
        let fails = self.faults.of_move(self.now, order.id);
        let carried = fails.map_or(order.bytes, |share| (order.bytes as f64 * share) as u64);
        let from_end = self.end(&order.from, memory == MoveMemoryEnd::From);
        let to_end = self.end(&order.to, memory == MoveMemoryEnd::To);
        let store = self.machine.store;
        let demand = plumbing::demand(
            &store,
            from_end,
            to_end,
            carried,
            order.streams,
            order.urgency,
        );
        for (end, which) in [
            (from_end, NodePipe::TierRead),
            (to_end, NodePipe::TierWrite),
        ] {
            if let Some((node, rate)) = end.and_then(|e| e.own_tier(which)) {
                self.fluid
                    .set_capacity(plumbing::pipe(node, which), rate_of(rate));
            }
        }
        let slot = self.fluid.start(self.now, &demand);
        if self.moving.len() <= slot as usize {
            self.moving.resize_with(slot as usize + 1, || None);
        }
        self.streams.insert(order.id, slot);
        let holds = |j: &JobId| {
            matches!(
                self.phase(*j),
                Some(SimulatedJobPhase::Held | SimulatedJobPhase::Ended { .. })
            )
        };
        let awaited_by = order.job.filter(holds);
        if let Some(job) = awaited_by {
            self.io_begins(job);
        }
        self.moving[slot as usize] = Some(ActiveMove {
            order: order.clone(),
            began: self.now,
            to,
            fails: fails.is_some(),
            awaited_by,
        });
        Ok(())
    }

    /// Whether a move can be, and which of its ends is memory.
    fn check_move(&self, order: &Move) -> Result<MoveMemoryEnd, WorldError> {
        let (id, item) = (order.id.0, order.item);
        if self.streams.contains_key(&order.id) {
            return self.refuse(format!("orders move {id}, which is under way already"));
        }
        if item.at() >= self.work.items.len() {
            return self.refuse(format!("move {id} is of item {item}, which is not there"));
        }
        let ends = [&order.from, &order.to];
        let on_nodes = ends.iter().filter(|w| ***w != Where::Outside);
        let nodes: Vec<&[NodeId]> = on_nodes.map(|w| nodes_of(w)).collect();
        if nodes.is_empty() || !nodes.iter().all(|n| self.are_there(n)) {
            return self.refuse(format!(
                "move {id} of item {item} goes from outside to outside, or names nodes that are not there"
            ));
        }
        if !order.direct {
            return Ok(MoveMemoryEnd::None);
        }
        match order.job.and_then(|j| self.phase(j)) {
            Some(SimulatedJobPhase::Held) => Ok(MoveMemoryEnd::To),
            Some(SimulatedJobPhase::Ended { .. }) => Ok(MoveMemoryEnd::From),
            phase => self.refuse(format!(
                "move {id} of item {item} is direct, and its job does not have its nodes or runs: it is {phase:?}"
            )),
        }
    }

    fn end<'a>(&self, place: &'a Where, memory: bool) -> Option<MoveEnd<'a>> {
        let nodes = nodes_of(place);
        let link = self.kind(*nodes.first()?).link;
        let tier = (!memory).then(|| self.tier_rates(nodes));
        Some(MoveEnd { nodes, link, tier })
    }

    /// A stream has carried all that it will.
    pub(super) fn move_ends(&mut self, slot: StreamIndex) -> Option<SiteEvent> {
        let moving = self.take_stream(slot)?;
        let id = moving.order.id;
        if moving.fails {
            self.undo(moving);
            return Some(SiteEvent::MoveFailed { id });
        }
        self.arrived(moving);
        Some(SiteEvent::Moved { id })
    }

    /// Takes a stream out of the network.
    pub(super) fn take_stream(&mut self, slot: StreamIndex) -> Option<ActiveMove> {
        let moving = self.moving.get_mut(slot as usize)?.take()?;
        self.fluid.stop(self.now, slot);
        self.streams.remove(&moving.order.id);
        Some(moving)
    }

    fn arrived(&mut self, moving: ActiveMove) {
        let ActiveMove {
            order,
            began,
            to,
            awaited_by,
            ..
        } = moving;
        if let Some(job) = awaited_by {
            self.io_ends(job);
        }
        let way = match (&order.from, &order.to) {
            (Where::Outside, _) => MoveDirection::In,
            (_, Where::Outside) => MoveDirection::Out,
            _ => MoveDirection::Peer,
        };
        let bytes = &mut self.record.result.bytes;
        // Sums stop at 16 EiB instead of beginning again.
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        match way {
            MoveDirection::In => add(&mut bytes.external_in, order.bytes),
            MoveDirection::Out => add(&mut bytes.external_out, order.bytes),
            MoveDirection::Peer => add(&mut bytes.peer, order.bytes),
        }
        let producer = self.producers[order.item.at()];
        if way == MoveDirection::Out && self.work.items[order.item.at()].item.keep {
            let flow = producer.and_then(|j| self.work.jobs[j.at()].job.flow);
            if let Some(flow) = flow {
                self.record.result.delivered[flow.at()] = Some(self.now);
            }
            self.record.ends(self.now);
        }
        if let Some(layout) = to {
            self.space.settle(order.item, layout);
        }
        if !order.direct {
            let place = match way {
                MoveDirection::Out => &order.from,
                MoveDirection::In | MoveDirection::Peer => &order.to,
            };
            let (id, item) = (order.id, order.item);
            let what = SpanOf::Moving { id, item, way };
            self.record.span(what, nodes_of(place), began, self.now);
            return;
        }
        if let Some(job) = order.job {
            // An item that a job wrote out itself does not stay on its nodes.
            if let (true, Where::Nodes(nodes)) = (producer == Some(job), &order.from) {
                self.space
                    .drop(order.item, &ItemDistribution::new(nodes, Spread::Share));
            }
        }
    }

    /// A move came to nothing.
    pub(super) fn undo(&mut self, moving: ActiveMove) {
        if let Some(layout) = &moving.to {
            self.space.give_back(moving.order.item, layout);
        }
        if let Some(job) = moving.awaited_by {
            self.io_ends(job);
        }
    }

    pub(super) fn cancel(&mut self, id: MoveId) -> Result<(), WorldError> {
        let slot = self.streams.get(&id).copied();
        let Some(moving) = slot.and_then(|s| self.take_stream(s)) else {
            return self.refuse(format!("cancels move {}, which is not under way", id.0));
        };
        self.undo(moving);
        self.ready.push_back(SiteEvent::MoveFailed { id });
        Ok(())
    }

    pub(super) fn drop_item(
        &mut self,
        item: ItemId,
        nodes: &JobNodes,
        spread: Spread,
    ) -> Result<(), WorldError> {
        let known = item.at() < self.work.items.len();
        if known && self.space.drop(item, &ItemDistribution::new(nodes, spread)) {
            return Ok(());
        }
        self.refuse(format!(
            "drops item {item} from nodes where it does not lie: {nodes:?}, {spread:?}"
        ))
    }
}
