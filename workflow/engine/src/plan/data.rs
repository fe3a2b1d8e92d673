//! Where items lie, where a job best gets them from, and room for them on the tiers.

use super::moves::{MovePurpose, MoveRequest};
use super::state::{ItemLayout, ItemState, Pin, PlannerState};
use std::sync::Arc;
use tarn_types::account::{add, sub};
use tarn_types::id::NodeId;
use tarn_types::policy::DataMode;
use tarn_types::site::{
    ItemId, JobId, JobNodes, Move, MoveId, Rates, SiteAction, Spread, Urgency, Where,
};
use tarn_types::units::{Nanos, SECOND, Time};

/// Nanoseconds that `bytes` take at `rate` bytes a second; none if there is no limit.
pub(crate) fn duration(bytes: u64, rate: u64) -> Nanos {
    if rate == 0 {
        return 0;
    }
    let nanos = u128::from(bytes) * u128::from(SECOND) / u128::from(rate);
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// The slower of two rates, of which 0 is no limit.
fn slower(a: u64, b: u64) -> u64 {
    match (a, b) {
        (0, other) | (other, 0) => other,
        (a, b) => a.min(b),
    }
}

/// Jobs that follow the same item and are counted: with more, the copies come from each other.
const MOST_FOLLOWERS: usize = 8;

/// Bytes on each node.
pub(crate) fn each(bytes: u64, nodes: usize, spread: Spread) -> u64 {
    match spread {
        Spread::Share => bytes.div_ceil(nodes.max(1) as u64),
        Spread::Whole => bytes,
    }
}

/// On one node there is only one way to lie.
pub(crate) fn one_way(nodes: &[NodeId], spread: Spread) -> Spread {
    match nodes {
        [_] => Spread::Share,
        _ => spread,
    }
}

impl ItemLayout {
    /// Whether each of these nodes finds here what it needs.
    fn serves(&self, nodes: &[NodeId], spread: Spread) -> bool {
        match (nodes, spread) {
            ([one], _) => self.has_whole(*one),
            (_, Spread::Share) => self.spread == Spread::Share && *self.nodes == *nodes,
            (_, Spread::Whole) => nodes.iter().all(|n| self.has_whole(*n)),
        }
    }

    fn has_whole(&self, node: NodeId) -> bool {
        match self.spread {
            Spread::Whole => self.has(node),
            Spread::Share => *self.nodes == [node],
        }
    }

    fn pin(&mut self, item: ItemId, now: Time) -> Pin {
        add(&mut self.pins, 1, "pins of a layout");
        self.used = now;
        Pin {
            item,
            layout: self.number,
        }
    }

    fn is(&self, nodes: &[NodeId], spread: Spread) -> bool {
        self.spread == spread && *self.nodes == *nodes
    }

    pub(crate) fn present(&self) -> bool {
        self.coming.is_none()
    }

    /// Whether a node is among its nodes.
    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.position(node).is_some()
    }

    fn position(&self, node: NodeId) -> Option<usize> {
        match &self.positions {
            None => self.nodes.binary_search(&node).ok(),
            Some(all) => {
                let at = all.binary_search_by_key(&node, |p| p.0).ok()?;
                Some(all[at].1)
            }
        }
    }

    /// The part of what `nodes` need (as a share of the item's bytes, in millionths) that lies on the same nodes here.
    fn overlap(&self, nodes: &[NodeId]) -> u64 {
        const ALL: u64 = 1_000_000;
        if *self.nodes == *nodes {
            return ALL;
        }
        let place = |n: &NodeId| Some(self.position(*n)? as u64);
        if self.spread == Spread::Whole {
            let there = nodes.iter().filter_map(place).count() as u64;
            return ALL * there / nodes.len().max(1) as u64;
        }
        let (m, k) = (self.nodes.len() as u64, nodes.len() as u64);
        let mut sum = 0;
        for (j, node) in (0u64..).zip(nodes) {
            let Some(i) = place(node) else {
                continue;
            };
            // Share i of m is [i/m, (i+1)/m), share j of k likewise.
            let (from, to) = ((i * k).max(j * m), ((i + 1) * k).min((j + 1) * m));
            sum += ALL * to.saturating_sub(from) / (m * k).max(1);
        }
        sum
    }
}

/// See [`Layout::positions`].
fn positions(nodes: &[NodeId]) -> Option<Arc<[(NodeId, usize)]>> {
    if nodes.is_sorted() {
        return None;
    }
    let mut all: Vec<_> = nodes.iter().copied().zip(0..).collect();
    all.sort_unstable();
    Some(all.into())
}

/// How a job's input comes to its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InputRoute {
    /// It lies there: this layout.
    There(JobNodes, Spread),
    /// It is on its way there.
    Coming(MoveId, JobNodes, Spread),
    /// To be brought from here; so many bytes travel.
    From(Where, u64),
    /// It is on its way to another node, from where it is best taken then.
    Follow,
    /// It is nowhere.
    Nowhere,
}

impl PlannerState {
    /// Puts a layout there, with its space.
    pub(crate) fn lay(
        &mut self,
        id: ItemId,
        nodes: &JobNodes,
        spread: Spread,
        coming: Option<MoveId>,
    ) {
        let (now, spread) = (self.now, one_way(nodes, spread));
        let bytes = self.item(id).map_or(0, |i| i.item.bytes);
        let eta = match coming {
            // What was ordered is in the sums of what is under way.
            Some(_) => now.saturating_add(
                self.inward(0, nodes.len())
                    .max(self.alone(bytes, nodes.len())),
            ),
            None => now,
        };
        let number = self.layouts;
        let Some(item) = self.item_mut(id) else {
            return;
        };
        let bytes = each(item.item.bytes, nodes.len(), spread);
        item.layouts.push(ItemLayout {
            number,
            each: bytes,
            nodes: nodes.clone(),
            positions: positions(nodes),
            spread,
            coming,
            eta,
            pins: 0,
            used: now,
        });
        self.layouts += 1;
        for n in nodes.iter() {
            let node = self.nodes.node_mut(*n);
            node.space.occupy(bytes);
            node.held.insert(id);
        }
    }

    /// Takes a layout away, with its space.
    pub(crate) fn unlay(&mut self, id: ItemId, nodes: &[NodeId], spread: Spread) {
        let spread = one_way(nodes, spread);
        let Some(item) = self.item_mut(id) else {
            return;
        };
        let Some(at) = item.layouts.iter().position(|l| l.is(nodes, spread)) else {
            return;
        };
        let bytes = item.layouts.remove(at).each;
        let left: Vec<_> = item
            .layouts
            .iter()
            .flat_map(|l| l.nodes.iter().copied())
            .collect();
        for n in nodes {
            let node = self.nodes.node_mut(*n);
            node.space.vacate(bytes);
            if !left.contains(n) {
                node.held.remove(&id);
            }
        }
    }

    fn layout_mut(
        &mut self,
        id: ItemId,
        nodes: &[NodeId],
        spread: Spread,
    ) -> Option<&mut ItemLayout> {
        let spread = one_way(nodes, spread);
        let layouts = &mut self.item_mut(id)?.layouts;
        layouts.iter_mut().find(|l| l.is(nodes, spread))
    }

    /// Holds a layout, if there is one: it stays until that is given back.
    pub(crate) fn pin(&mut self, id: ItemId, nodes: &[NodeId], spread: Spread) -> Option<Pin> {
        let now = self.now;
        let held = self.layout_mut(id, nodes, spread)?;
        Some(held.pin(id, now))
    }

    pub(crate) fn unpin(&mut self, pin: &Pin) {
        let now = self.now;
        let layouts = self.item_mut(pin.item).map(|i| i.layouts.iter_mut());
        let held = layouts
            .into_iter()
            .flatten()
            .find(|l| l.number == pin.layout);
        // It may be gone: its nodes were lost.
        if let Some(l) = held {
            sub(&mut l.pins, 1, "pins of a layout");
            l.used = now;
        }
    }

    /// Holds what a move reads.
    pub(crate) fn pin_source(&mut self, m: &Move) -> Option<Pin> {
        let Where::Nodes(from) = &m.from else {
            return None;
        };
        let now = self.now;
        let mut layouts = self.item_mut(m.item)?.layouts.iter_mut();
        let read = layouts.find(|l| l.present() && *l.nodes == **from)?;
        Some(read.pin(m.item, now))
    }

    /// A move has brought a layout.
    pub(crate) fn arrived(&mut self, m: &Move) {
        let now = self.now;
        let Where::Nodes(nodes) = &m.to else {
            return;
        };
        if let Some(l) = self.layout_mut(m.item, nodes, m.spread) {
            (l.coming, l.used) = (None, now);
        }
    }

    /// How an input comes to these nodes, and about how long that takes from now.
    pub(crate) fn way(&self, id: ItemId, nodes: &[NodeId], spread: Spread) -> (InputRoute, Nanos) {
        let Some(item) = self.item(id) else {
            return (InputRoute::Nowhere, 0);
        };
        let serving = || item.layouts.iter().filter(|l| l.serves(nodes, spread));
        if let Some(l) = serving().find(|l| l.present()) {
            return (InputRoute::There(l.nodes.clone(), l.spread), 0);
        }
        if let Some((l, coming)) = serving().find_map(|l| Some((l, l.coming?))) {
            let wait = l.eta.saturating_sub(self.now);
            return (InputRoute::Coming(coming, l.nodes.clone(), l.spread), wait);
        }
        let times = match spread {
            Spread::Share => 1,
            Spread::Whole => nodes.len() as u64,
        };
        let all = item.item.bytes.saturating_mul(times);
        let outside = item.outside.then(|| self.inward(all, nodes.len()));
        let ours = self.policy.data_mode == DataMode::Keep;
        let peer = ours.then(|| self.best_peer(item, nodes, all)).flatten();
        let follow = ours.then(|| self.may_follow(item, nodes)).flatten();
        match (peer, outside) {
            (Some((from, bytes, wait)), o) if o.is_none_or(|o| wait <= o) => {
                (InputRoute::From(Where::Nodes(from), bytes), wait)
            }
            (_, Some(wait)) => match follow {
                Some(later) if later < wait => (InputRoute::Follow, later),
                _ => (InputRoute::From(Where::Outside, all), wait),
            },
            (_, None) => match follow {
                Some(later) => (InputRoute::Follow, later),
                None => (InputRoute::Nowhere, 0),
            },
        }
    }

    /// About how long it takes until `bytes` are in from outside, behind what is ordered already.
    pub(crate) fn inward(&self, bytes: u64, nodes: usize) -> Nanos {
        let queued = bytes.saturating_add(self.outbox.ahead(self.store.rates.read, bytes));
        self.alone(bytes, nodes)
            .max(duration(queued, self.store.rates.read))
    }

    /// The same on an idle store.
    fn alone(&self, bytes: u64, nodes: usize) -> Nanos {
        let client = self.store.client.read.saturating_mul(nodes as u64);
        duration(bytes, client).max(duration(bytes, self.store.rates.read))
    }

    /// About how long programs on so many nodes read these bytes by themselves, beside those that do so now.
    pub(crate) fn reads_outside(&self, bytes: u64, nodes: usize) -> Nanos {
        let others = self.outbox.own_reads();
        self.by_itself(
            bytes,
            nodes,
            others,
            self.store.rates.read,
            self.store.client.read,
        )
    }

    /// The same for writing.
    pub(crate) fn writes_outside(&self, bytes: u64, nodes: usize) -> Nanos {
        self.by_itself(
            bytes,
            nodes,
            0,
            self.store.rates.write,
            self.store.client.write,
        )
    }

    /// One stream a node.
    fn by_itself(&self, bytes: u64, nodes: usize, others: u32, all: u64, client: u64) -> Nanos {
        let streams = u32::try_from(nodes).unwrap_or(u32::MAX).max(1);
        let sharing = others.saturating_add(streams).max(self.store.saturates);
        let share = u128::from(all) * u128::from(streams) / u128::from(sharing);
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let client = client.saturating_mul(u64::from(streams));
        duration(bytes, share).max(duration(bytes, client))
    }

    /// Whether reading an item straight from the store takes less time than reading it from a tier: a program reads with
    /// one stream a node.
    pub(crate) fn outside_is_faster(&self, id: ItemId, nodes: &[NodeId]) -> bool {
        let (Some(item), Some(first)) = (self.item(id), nodes.first()) else {
            return false;
        };
        let tier = self
            .nodes
            .kind(*first)
            .tiers
            .first()
            .map_or(0, |t| t.rates.read);
        if !item.outside || tier == 0 || self.policy.data_mode != DataMode::Keep {
            return false;
        }
        let bytes = each(item.item.bytes, nodes.len(), Spread::Share);
        // What others read by themselves now shares the store with it, and there is more of that while it reads.
        let readers = self.outbox.own_reads().saturating_mul(2) + 1;
        let streams = self.store.saturates.max(1).max(readers);
        let stream = self.store.rates.read / u64::from(streams);
        let outside = duration(bytes, self.store.client.read).max(duration(bytes, stream));
        let free = self.outbox.ahead(self.store.rates.read, u64::MAX) == 0;
        free && outside < duration(bytes, tier)
    }

    /// Bytes a second that a node takes from others, and sends them: its link's, or its tier's if that is slower.
    fn takes_and_sends(&self, node: NodeId) -> (u64, u64) {
        let kind = self.nodes.kind(node);
        let tier = kind.tiers.first().map_or(Rates::default(), |t| t.rates);
        let takes = slower(kind.link.read, tier.write);
        (takes, slower(kind.link.write, tier.read))
    }

    /// The layout from which the least has to travel; of equals the one that fewest read.
    fn best_peer(
        &self,
        item: &ItemState,
        nodes: &[NodeId],
        all: u64,
    ) -> Option<(JobNodes, u64, Nanos)> {
        let present = item.layouts.iter().filter(|l| l.present());
        let best = present.min_by_key(|l| {
            let senders = l.nodes.len().max(1) as u64;
            let part = 1_000_000 - l.overlap(nodes).min(1_000_000);
            (
                part,
                u64::from(l.pins) * 64 / senders,
                l.nodes.first().copied(),
            )
        })?;
        let part = 1_000_000 - best.overlap(nodes).min(1_000_000);
        let travels = u128::from(all) * u128::from(part) / 1_000_000;
        let travels = u64::try_from(travels).unwrap_or(u64::MAX);
        let (_, sends) = self.takes_and_sends(*best.nodes.first()?);
        let (takes, _) = self.takes_and_sends(*nodes.first()?);
        // Others that read it now share its links.
        let readers = u64::from(best.pins) + 1;
        let send = duration(
            travels.saturating_mul(readers),
            sends.saturating_mul(best.nodes.len() as u64),
        );
        let take = duration(travels, takes.saturating_mul(nodes.len() as u64));
        Some((best.nodes.clone(), travels, send.max(take)))
    }

    /// It comes to another node anyway: about when it could be here from there.
    fn may_follow(&self, item: &ItemState, nodes: &[NodeId]) -> Option<Nanos> {
        let coming = item.layouts.iter().filter(|l| !l.present());
        let eta = coming.map(|l| l.eta).min()?;
        let (takes, sends) = self.takes_and_sends(*nodes.first()?);
        let first = eta.saturating_sub(self.now);
        let hop = duration(item.item.bytes, slower(takes, sends));
        // Those that follow already share the sender's link.
        let readers = item.readers.iter();
        let before = readers.filter(|r| self.job(**r).is_some_and(|j| j.follows));
        let hops = hop.saturating_mul(1 + before.take(MOST_FOLLOWERS).count() as u64);
        Some(first.saturating_add(hops))
    }

    /// Whether `bytes` more have room on a node. If not, begins to make room.
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

    /// Items of a node that may go at once, least recently used first: nobody reads them here now, and they lie
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

    /// Drops the layout of an item that lies on a node, if it is free to go.
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
            purpose: MovePurpose::Room,
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
                other.island == island && other.power == super::nodes::NodePowerState::Up
            })
            .map(|n| (n, self.nodes.free_space(n)))
            .max_by_key(|(n, space)| (*space, std::cmp::Reverse(*n)))
    }

    /// An item may have become superfluous: drops what nobody needs.
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
        let (bytes, nodes, spread) = (item.item.bytes, from.nodes.clone(), from.spread);
        let order = self.order(MoveRequest {
            item: id,
            bytes,
            from: Where::Nodes(nodes),
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

    /// Makes a job one reader of an item less.
    pub(crate) fn read_by(&mut self, id: ItemId, job: JobId) {
        if let Some(item) = self.item_mut(id) {
            item.readers.remove(&job);
        }
        self.tidy(id);
    }
}
