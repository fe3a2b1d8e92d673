//! The items on the tiers, and how full these are.

use tarn_types::account::{add, sub};
use tarn_types::id::NodeId;
use tarn_types::site::{ItemId, JobNodes, Spread};

/// An item over nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ItemDistribution {
    pub(super) nodes: JobNodes,
    pub(super) spread: Spread,
}

impl ItemDistribution {
    /// On one node, an equal share is the whole.
    pub(super) fn new(nodes: &JobNodes, spread: Spread) -> Self {
        let spread = match nodes.len() {
            1 => Spread::Whole,
            _ => spread,
        };
        Self {
            nodes: nodes.clone(),
            spread,
        }
    }

    /// Bytes on each node of an item of this size.
    pub(super) fn each(&self, bytes: u64) -> u64 {
        match self.spread {
            Spread::Whole => bytes,
            Spread::Share => bytes.div_ceil(self.nodes.len().max(1) as u64),
        }
    }
}

/// How full tiers are, and the items there.
#[derive(Debug)]
pub(super) struct TierOccupancy {
    /// Bytes on each node.
    fill: Vec<u64>,
    /// By item: its size as the planner knows it, and where it is there as a whole.
    items: Vec<(u64, Vec<ItemDistribution>)>,
    /// The most that was on each node, and on all together.
    pub(super) peaks: Vec<u64>,
    pub(super) peak_all: u64,
    all: u64,
}

impl TierOccupancy {
    pub(super) fn new(nodes: usize, items: impl Iterator<Item = u64>) -> Self {
        Self {
            fill: vec![0; nodes],
            items: items.map(|bytes| (bytes, Vec::new())).collect(),
            peaks: vec![0; nodes],
            peak_all: 0,
            all: 0,
        }
    }

    pub(super) fn fill(&self, node: NodeId) -> u64 {
        self.fill[node.at()]
    }

    /// The fullest of some nodes has so much.
    pub(super) fn fullest(&self, nodes: &[NodeId]) -> u64 {
        nodes.iter().map(|n| self.fill(*n)).max().unwrap_or(0)
    }

    /// The size of an item, as far as the planner knows it.
    pub(super) fn bytes(&self, item: ItemId) -> u64 {
        self.items[item.at()].0
    }

    /// The true size of an item that takes no space now.
    pub(super) fn set_bytes(&mut self, item: ItemId, bytes: u64) {
        debug_assert!(
            self.items[item.at()].1.is_empty(),
            "item {item} takes space"
        );
        self.items[item.at()].0 = bytes;
    }

    /// Where an item is.
    pub(super) fn layouts(&self, item: ItemId) -> &[ItemDistribution] {
        &self.items[item.at()].1
    }

    /// How often it is there in the same way.
    pub(super) fn copies(&self, item: ItemId, nodes: &JobNodes, spread: Spread) -> usize {
        let same = ItemDistribution::new(nodes, spread);
        self.layouts(item).iter().filter(|l| **l == same).count()
    }

    /// Space for an item is taken; it is not there yet.
    pub(super) fn take(&mut self, item: ItemId, layout: &ItemDistribution) {
        let each = layout.each(self.bytes(item));
        for node in layout.nodes.iter() {
            let fill = &mut self.fill[node.at()];
            add(fill, each, "bytes on a node");
            add(&mut self.all, each, "bytes on all nodes");
            let peak = &mut self.peaks[node.at()];
            *peak = (*peak).max(*fill);
        }
        self.peak_all = self.peak_all.max(self.all);
    }

    /// Space that was taken is given back.
    pub(super) fn give_back(&mut self, item: ItemId, layout: &ItemDistribution) {
        let each = layout.each(self.bytes(item));
        for node in layout.nodes.iter() {
            let fill = &mut self.fill[node.at()];
            sub(fill, each, "bytes on a node");
            sub(&mut self.all, each, "bytes on all nodes");
        }
    }

    /// An item for which space was taken is there.
    pub(super) fn settle(&mut self, item: ItemId, layout: ItemDistribution) {
        self.items[item.at()].1.push(layout);
    }

    /// An item goes from somewhere. Whether it was there.
    pub(super) fn drop(&mut self, item: ItemId, layout: &ItemDistribution) -> bool {
        let layouts = &mut self.items[item.at()].1;
        let Some(at) = layouts.iter().position(|l| l == layout) else {
            return false;
        };
        layouts.swap_remove(at);
        self.give_back(item, layout);
        true
    }

    /// A node loses the data on its tiers: layouts of which a part is missing are gone from their other nodes too.
    pub(super) fn lose(&mut self, node: NodeId) {
        for number in 0..self.items.len() {
            let layouts = &mut self.items[number].1;
            let lost = layouts.extract_if(.., |l| l.nodes.contains(&node));
            for layout in lost.collect::<Vec<_>>() {
                self.give_back(ItemId(number as u32), &layout);
            }
        }
    }

    /// Counts the bytes on each node, beside the space that is taken for data to come, and compares.
    ///
    /// # Panics
    /// When they differ.
    pub(super) fn check<'a>(&self, taken: impl Iterator<Item = (ItemId, &'a ItemDistribution)>) {
        let mut counted = vec![0u64; self.fill.len()];
        let mut count = |item: ItemId, layout: &ItemDistribution| {
            let each = layout.each(self.bytes(item));
            for node in layout.nodes.iter() {
                counted[node.at()] += each;
            }
        };
        for (item, (_, layouts)) in (0..).map(ItemId).zip(&self.items) {
            layouts.iter().for_each(|layout| count(item, layout));
        }
        taken.for_each(|(item, layout)| count(item, layout));
        assert_eq!(self.fill, counted, "bytes on nodes");
        assert_eq!(self.all, counted.iter().sum::<u64>(), "bytes on all nodes");
    }
}
