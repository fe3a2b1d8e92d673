//! The items of a site and where they are stored: the one account of the space and the pins of their layouts.

use super::nodes::{PlannerNodes, TIERS};
use std::collections::BTreeSet;
use std::sync::Arc;
use tarn_types::account::{add, sub};
use tarn_types::id::NodeId;
use tarn_types::site::{Item, ItemId, JobId, JobNodes, MoveId, Spread};
use tarn_types::units::Time;

/// Bytes on each node.
pub(crate) fn each(bytes: u64, nodes: usize, spread: Spread) -> u64 {
    match spread {
        Spread::Share => bytes.div_ceil(nodes.max(1) as u64),
        Spread::Whole => bytes,
    }
}

/// On one node there is only one spread.
pub(crate) fn one_way(nodes: &[NodeId], spread: Spread) -> Spread {
    match nodes {
        [_] => Spread::Share,
        _ => spread,
    }
}

/// A hold on a layout: given back once, and nothing where the layout is gone.
#[derive(Debug, Clone)]
pub(crate) struct Pin {
    pub(crate) item: ItemId,
    pub(crate) layout: u64,
}

/// The nodes that hold an item, and how it is spread over them.
#[derive(Debug, Clone)]
pub(crate) struct ItemLayout {
    /// No other layout has or had it.
    pub(crate) number: u64,
    /// Bytes that it takes of each of its nodes.
    pub(crate) each: u64,
    pub(crate) nodes: JobNodes,
    /// Positions in `nodes` by node; `None` where these ascend.
    pub(crate) positions: Option<Arc<[(NodeId, usize)]>>,
    pub(crate) spread: Spread,
    /// The move that brings it; `None` once it is there.
    pub(crate) coming: Option<MoveId>,
    /// When it was expected to be there, when it was ordered.
    pub(crate) eta: Time,
    /// Jobs and moves that read it.
    pub(crate) pins: u32,
    /// When it was last used.
    pub(crate) used: Time,
}

/// An item.
#[derive(Debug, Clone)]
pub(crate) struct ItemState {
    pub(crate) item: Item,
    pub(crate) producer: Option<JobId>,
    /// Its producer has ended (or nobody makes it), and it is somewhere.
    pub(crate) made: bool,
    /// A copy is outside.
    pub(crate) outside: bool,
    /// The move that brings it outside.
    pub(crate) leaving: Option<MoveId>,
    /// Jobs that read it and have not ended.
    pub(crate) readers: BTreeSet<JobId>,
    pub(crate) layouts: Vec<ItemLayout>,
}

impl ItemLayout {
    /// Whether each of these nodes finds its share here.
    pub(crate) fn serves(&self, nodes: &[NodeId], spread: Spread) -> bool {
        match (nodes, spread) {
            ([one], _) => self.has_whole(*one),
            (_, Spread::Share) => self.spread == Spread::Share && *self.nodes == *nodes,
            (_, Spread::Whole) => nodes.iter().all(|n| self.has_whole(*n)),
        }
    }

    pub(crate) fn has_whole(&self, node: NodeId) -> bool {
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

    /// The part of the need of `nodes` (as a share of the item's bytes, in millionths) that is on the same nodes here.
    pub(crate) fn overlap(&self, nodes: &[NodeId]) -> u64 {
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

/// See [`ItemLayout::positions`].
fn positions(nodes: &[NodeId]) -> Option<Arc<[(NodeId, usize)]>> {
    if nodes.is_sorted() {
        return None;
    }
    let mut all: Vec<_> = nodes.iter().copied().zip(0..).collect();
    all.sort_unstable();
    Some(all.into())
}

/// A layout that is to be.
#[derive(Debug)]
pub(crate) struct NewLayout<'a> {
    pub(crate) nodes: &'a JobNodes,
    pub(crate) spread: Spread,
    /// The move that brings it; `None` where it is there.
    pub(crate) coming: Option<MoveId>,
    /// When it is expected to be there.
    pub(crate) eta: Time,
}

/// All items that are not forgotten.
#[derive(Debug, Clone, Default)]
pub(crate) struct SiteItems {
    slots: Vec<Option<Box<ItemState>>>,
    /// Layouts that there have been.
    layouts: u64,
}

impl SiteItems {
    pub(crate) fn get(&self, id: ItemId) -> Option<&ItemState> {
        self.slots.get(id.at())?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: ItemId) -> Option<&mut ItemState> {
        self.slots.get_mut(id.at())?.as_deref_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ItemId, &ItemState)> {
        let slots = (0..).map(ItemId).zip(&self.slots);
        slots.filter_map(|(id, slot)| Some((id, slot.as_deref()?)))
    }

    /// How many have ever been submitted.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn insert(&mut self, id: ItemId, item: Item) {
        if self.slots.len() <= id.at() {
            self.slots.resize_with(id.at() + 1, || None);
        }
        self.slots[id.at()] = Some(Box::new(ItemState {
            item,
            producer: None,
            made: item.outside,
            outside: item.outside,
            leaving: None,
            readers: BTreeSet::new(),
            layouts: Vec::new(),
        }));
    }

    /// Forgets an item of which nothing is left: nobody will make it again.
    pub(crate) fn forget(&mut self, id: ItemId) {
        if let Some(slot) = self.slots.get_mut(id.at()) {
            let layouts = slot.as_ref().map_or(0, |i| i.layouts.len());
            debug_assert_eq!(layouts, 0, "layouts of a forgotten item {id}");
            *slot = None;
        }
    }

    /// Puts a layout there, with its space.
    pub(crate) fn lay(&mut self, nodes: &mut PlannerNodes, now: Time, id: ItemId, new: &NewLayout) {
        let NewLayout { coming, eta, .. } = *new;
        let (number, spread) = (self.layouts, one_way(new.nodes, new.spread));
        let Some(item) = self.get_mut(id) else {
            return;
        };
        let bytes = each(item.item.bytes, new.nodes.len(), spread);
        item.layouts.push(ItemLayout {
            number,
            each: bytes,
            nodes: new.nodes.clone(),
            positions: positions(new.nodes),
            spread,
            coming,
            eta,
            pins: 0,
            used: now,
        });
        self.layouts += 1;
        for n in new.nodes.iter() {
            let node = nodes.node_mut(*n);
            node.ledger.occupy(TIERS, bytes);
            node.held.insert(id);
        }
    }

    /// Takes a layout away, with its space.
    pub(crate) fn unlay(
        &mut self,
        nodes: &mut PlannerNodes,
        id: ItemId,
        on: &[NodeId],
        spread: Spread,
    ) {
        let spread = one_way(on, spread);
        let Some(item) = self.get_mut(id) else {
            return;
        };
        let Some(at) = item.layouts.iter().position(|l| l.is(on, spread)) else {
            return;
        };
        let bytes = item.layouts.remove(at).each;
        let left = item.layouts.iter().flat_map(|l| l.nodes.iter().copied());
        let left: Vec<_> = left.collect();
        for n in on {
            let node = nodes.node_mut(*n);
            node.ledger.vacate(TIERS, bytes);
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
        let layouts = &mut self.get_mut(id)?.layouts;
        layouts.iter_mut().find(|l| l.is(nodes, spread))
    }

    /// Holds a layout, if there is one: it stays until that is given back.
    pub(crate) fn pin(
        &mut self,
        now: Time,
        id: ItemId,
        nodes: &[NodeId],
        spread: Spread,
    ) -> Option<Pin> {
        let held = self.layout_mut(id, nodes, spread)?;
        Some(held.pin(id, now))
    }

    /// Pins the layout that a move reads from these nodes.
    pub(crate) fn pin_source(&mut self, now: Time, id: ItemId, from: &[NodeId]) -> Option<Pin> {
        let mut layouts = self.get_mut(id)?.layouts.iter_mut();
        let read = layouts.find(|l| l.present() && *l.nodes == *from)?;
        Some(read.pin(id, now))
    }

    pub(crate) fn unpin(&mut self, now: Time, pin: &Pin) {
        let layouts = self.get_mut(pin.item).map(|i| i.layouts.iter_mut());
        let mut layouts = layouts.into_iter().flatten();
        // It may be gone: its nodes were lost.
        if let Some(l) = layouts.find(|l| l.number == pin.layout) {
            sub(&mut l.pins, 1, "pins of a layout");
            l.used = now;
        }
    }

    /// Whether there is a layout, and the move that brings it.
    pub(crate) fn coming(
        &self,
        id: ItemId,
        nodes: &[NodeId],
        spread: Spread,
    ) -> Option<Option<MoveId>> {
        let spread = one_way(nodes, spread);
        let mut layouts = self.get(id)?.layouts.iter();
        layouts.find(|l| l.is(nodes, spread)).map(|l| l.coming)
    }

    /// A layout takes the bytes that its item has now.
    pub(crate) fn resize(
        &mut self,
        nodes: &mut PlannerNodes,
        id: ItemId,
        on: &[NodeId],
        spread: Spread,
    ) {
        let spread = one_way(on, spread);
        let Some(item) = self.get_mut(id) else {
            return;
        };
        let bytes = each(item.item.bytes, on.len(), spread);
        let Some(layout) = item.layouts.iter_mut().find(|l| l.is(on, spread)) else {
            return;
        };
        let before = std::mem::replace(&mut layout.each, bytes);
        for n in on {
            let ledger = &mut nodes.node_mut(*n).ledger;
            ledger.vacate(TIERS, before);
            ledger.occupy(TIERS, bytes);
        }
    }

    /// A move has brought a layout.
    pub(crate) fn arrived(&mut self, now: Time, id: ItemId, nodes: &[NodeId], spread: Spread) {
        if let Some(l) = self.layout_mut(id, nodes, spread) {
            (l.coming, l.used) = (None, now);
        }
    }
}
