//! Space for items on the tiers: the removals when there is none, the items that are dropped, and those that are
//! delivered.

use super::items::{NewLayout, Pin, each};
use super::outbox::{MovePurpose, MoveRequest};
use super::state::PlannerState;
use std::sync::Arc;
use tarn_types::id::NodeId;
use tarn_types::site::{ItemId, Job, JobId, JobNodes, MoveId, SiteAction, Spread, Urgency, Where};

impl PlannerState {
    /// Puts a layout there, with its space.
    pub(crate) fn lay(
        &mut self,
        id: ItemId,
        nodes: &JobNodes,
        spread: Spread,
        coming: Option<MoveId>,
    ) {
        let now = self.now;
        let bytes = self.item(id).map_or(0, |i| i.item.bytes);
        let eta = match coming {
            // A move that was ordered is in the sums of the moves under way.
            Some(_) => now.saturating_add(
                self.inward(0, nodes.len())
                    .max(self.alone(bytes, nodes.len())),
            ),
            None => now,
        };
        let layout = NewLayout {
            nodes,
            spread,
            coming,
            eta,
        };
        self.items.lay(&mut self.nodes, now, id, &layout);
    }

    /// Takes a layout away, with its space.
    pub(crate) fn unlay(&mut self, id: ItemId, nodes: &[NodeId], spread: Spread) {
        self.items.unlay(&mut self.nodes, id, nodes, spread);
    }

    /// Holds a layout, if there is one: it stays until that is given back.
    pub(crate) fn pin(&mut self, id: ItemId, nodes: &[NodeId], spread: Spread) -> Option<Pin> {
        self.items.pin(self.now, id, nodes, spread)
    }

    pub(crate) fn unpin(&mut self, pin: &Pin) {
        self.items.unpin(self.now, pin);
    }

    /// Whether `bytes` more fit on a node. If not, begins to free space.
    pub(crate) fn ensure_space(&mut self, node: NodeId, bytes: u64) -> bool {
        for id in self.expendable_for(node, bytes) {
            if self.has_space(node, bytes) {
                return true;
            }
            self.drop_on(id, node);
        }
        if self.has_space(node, bytes) {
            return true;
        }
        self.send_away(node, self.nodes.node(node).space.lack(bytes));
        false
    }

    fn has_space(&self, node: NodeId, bytes: u64) -> bool {
        self.nodes.node(node).space.holds(bytes)
    }

    fn expendable_for(&self, node: NodeId, bytes: u64) -> Vec<ItemId> {
        match self.has_space(node, bytes) {
            true => Vec::new(),
            false => self.expendable(node),
        }
    }

    /// Items of a node that may go at once, least recently used first: nobody reads them here now, and they are
    /// elsewhere too.
    fn expendable(&self, node: NodeId) -> Vec<ItemId> {
        let held = self.nodes.node(node).held.iter();
        let mut found: Vec<_> = held
            .filter_map(|id| {
                let item = self.item(*id)?;
                let here = item.layouts.iter().find(|l| l.has(node))?;
                let elsewhere =
                    item.outside || item.layouts.iter().any(|l| l.present() && !l.has(node));
                let free = here.pins == 0 && here.present() && elsewhere;
                free.then_some((here.used, *id))
            })
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// Drops the layout of an item on a node, if it is free to go.
    fn drop_on(&mut self, id: ItemId, node: NodeId) {
        let found = self.item(id).and_then(|i| {
            let mut free = i.layouts.iter().filter(|l| l.present() && l.pins == 0);
            free.find(|l| l.has(node)).cloned()
        });
        if let Some(l) = found {
            self.drop_layout(id, &l.nodes, l.spread);
        }
    }

    pub(crate) fn drop_layout(&mut self, id: ItemId, nodes: &JobNodes, spread: Spread) {
        self.unlay(id, nodes, spread);
        self.emit(SiteAction::Drop {
            item: id,
            nodes: nodes.clone(),
            spread,
        });
    }

    /// Nothing may simply go: the least recently used items that nobody reads now are brought to the emptiest node, or
    /// outside, until `lack` bytes are on their way.
    fn send_away(&mut self, node: NodeId, lack: u64) {
        let mut lack = lack;
        let held: Vec<ItemId> = self.nodes.node(node).held.iter().copied().collect();
        let mut found = Vec::new();
        for id in held {
            let Some(item) = self.item(id) else {
                continue;
            };
            let Some(here) = item.layouts.iter().find(|l| l.has(node)) else {
                continue;
            };
            let bytes = each(item.item.bytes, here.nodes.len(), here.spread);
            if item.leaving.is_some() {
                lack = lack.saturating_sub(bytes);
            } else if here.present() && here.pins == 0 {
                found.push((here.used, id, bytes, here.nodes.clone(), here.spread));
            }
        }
        found.sort_unstable_by_key(|f| (f.0, f.1));
        for (_, id, bytes, nodes, spread) in found {
            if lack == 0 {
                return;
            }
            lack = lack.saturating_sub(bytes);
            self.rebalance(id, &nodes, spread, node);
        }
    }

    /// Brings an item to a node that has at least twice the space left that this one has (uneven tiers; TaskVine saw
    /// 350 against 100 tasks a worker), or outside.
    pub(crate) fn rebalance(&mut self, id: ItemId, from: &JobNodes, spread: Spread, node: NodeId) {
        let Some(bytes) = self.item(id).map(|i| i.item.bytes) else {
            return;
        };
        let free = self.nodes.free_space(node);
        let alone = from.len() == 1;
        let emptiest = self.emptiest(node).filter(|(_, space)| {
            alone && *space >= bytes.saturating_mul(2) && *space >= free.saturating_mul(2)
        });
        let (to, urgency) = match emptiest {
            Some((other, _)) => (Where::Nodes(Arc::from([other])), Urgency::Ahead),
            None => (Where::Outside, Urgency::Ahead),
        };
        let outside = to == Where::Outside;
        let draft = MoveRequest {
            item: id,
            bytes,
            from: Where::Nodes(from.clone()),
            to: to.clone(),
            spread: if outside { spread } else { Spread::Share },
            direct: false,
            job: None,
            urgency,
            purpose: MovePurpose::Space,
        };
        let order = self.order(draft);
        match to {
            Where::Nodes(nodes) => self.lay(id, &nodes, Spread::Share, Some(order)),
            Where::Outside => {
                if let Some(item) = self.item_mut(id) {
                    item.leaving = Some(order);
                }
            }
        }
    }

    /// Of up to this many other nodes of the island, the one with most space: a bound on work.
    fn emptiest(&self, node: NodeId) -> Option<(NodeId, u64)> {
        const LOOKED_AT: usize = 64;
        let island = self.nodes.node(node).island;
        let count = self.nodes.all.len();
        let others = (1..=LOOKED_AT.min(count.saturating_sub(1)))
            .map(|d| NodeId(((node.at() + d) % count) as u32));
        others
            .filter(|n| {
                let other = self.nodes.node(*n);
                other.island == island && other.is_usable()
            })
            .map(|n| (n, self.nodes.free_space(n)))
            .max_by_key(|(n, space)| (*space, std::cmp::Reverse(*n)))
    }

    /// An item may have become superfluous: drops its layouts that nobody needs.
    pub(crate) fn tidy(&mut self, id: ItemId) {
        let Some(item) = self.item(id) else {
            return;
        };
        let needed = !item.readers.is_empty() || (item.item.keep && !item.outside) || !item.made;
        if needed {
            return;
        }
        let free: Vec<_> = item
            .layouts
            .iter()
            .filter(|l| l.pins == 0 && l.present())
            .map(|l| (l.nodes.clone(), l.spread))
            .collect();
        for (nodes, spread) in free {
            self.drop_layout(id, &nodes, spread);
        }
    }

    /// Brings an item outside that has to be there in the end.
    pub(crate) fn deliver(&mut self, id: ItemId) {
        let Some(item) = self.item(id) else {
            return;
        };
        if !item.item.keep || item.outside || item.leaving.is_some() || !item.made {
            return;
        }
        let Some(from) = item.layouts.iter().find(|l| l.present()) else {
            return;
        };
        let (nodes, spread) = (from.nodes.clone(), from.spread);
        self.bring_outside(id, nodes, spread);
    }

    /// Brings an item outside from where it is.
    fn bring_outside(&mut self, id: ItemId, from: JobNodes, spread: Spread) {
        let order = self.order(MoveRequest {
            item: id,
            bytes: self.item(id).map_or(0, |i| i.item.bytes),
            from: Where::Nodes(from),
            to: Where::Outside,
            spread,
            direct: false,
            job: None,
            urgency: Urgency::Out,
            purpose: MovePurpose::Deliver,
        });
        if let Some(item) = self.item_mut(id) {
            item.leaving = Some(order);
        }
    }

    /// Outputs that a job is about to write again, and that are on the same nodes and nowhere else, go outside first: the
    /// new run may fail, and others are to read them. Whether there are any.
    pub(crate) fn saves_outputs(&mut self, job: &Job, nodes: &[NodeId]) -> bool {
        let mut waits = false;
        for id in &job.writes {
            let Some(item) = self.item(*id).filter(|i| !i.outside) else {
                continue;
            };
            let is_needed = item.item.keep || !item.readers.is_empty();
            let mut there = item.layouts.iter().filter(|l| l.present());
            let Some(only) = there.next().filter(|l| is_needed && *l.nodes == *nodes) else {
                continue;
            };
            if there.next().is_some() {
                continue;
            }
            let (from, spread) = (only.nodes.clone(), only.spread);
            waits = true;
            if item.leaving.is_none() {
                self.bring_outside(*id, from, spread);
            }
        }
        waits
    }

    /// Makes a job one reader of an item less.
    pub(crate) fn read_by(&mut self, id: ItemId, job: JobId) {
        if let Some(item) = self.item_mut(id) {
            item.readers.remove(&job);
        }
        self.tidy(id);
    }
}
