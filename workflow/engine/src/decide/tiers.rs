//! The tier of a node that a placement uses, the space that it takes there, and whether it is free.

use super::Decide;
use super::space::TierSpaceOutlook;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::id::{InstanceId, NodeId, StepId, TierId, TierRef};
use tarn_types::part::{PartRef, Place};
use tarn_types::units::Nanos;

/// The space that a position of an instance takes on a node.
struct PlacementSpaceDemand {
    /// The tier it writes to.
    tier_ref: TierRef,
    /// Bytes set aside there for its outputs.
    reserve: u64,
    /// How many of these are no guess.
    sure: u64,
    /// Bytes that are brought, by tier.
    brings: BTreeMap<TierRef, u64>,
}

impl Decide<'_> {
    /// The parts that a position of an instance reads.
    fn needs_of(&self, id: InstanceId, position: usize) -> impl Iterator<Item = &PartRef> {
        let uses = self.state.steps.instance(id).map(|i| &i.needs);
        let lists = uses.into_iter().flatten();
        lists.filter_map(move |u| u.get(position)).flatten()
    }

    /// When the data of a position of an instance is on a node, and its bytes that are missing and that are there.
    pub(super) fn data_at(
        &self,
        id: InstanceId,
        position: usize,
        node: NodeId,
    ) -> (Nanos, u64, u64) {
        self.state.data_ready(node, self.needs_of(id, position))
    }

    /// The tier a step writes to, if the file names one: its own, or that of a dataset it makes.
    pub(super) fn tier_of(&self, step: StepId) -> Option<&str> {
        let w = &self.state.start.workflow;
        let s = w.step(step);
        let mut made = s.uses.iter().filter(|u| u.makes.is_some());
        let of_data = || made.find_map(|u| w.dataset(u.data).tier.as_deref());
        s.tier.as_deref().or_else(of_data)
    }

    /// A test whether a node could hold the inputs and outputs of a position of an instance, if nothing else were
    /// there.
    pub(super) fn holder(&self, id: InstanceId, position: usize) -> impl Fn(NodeId) -> bool {
        let stored = |name: &PartRef| self.state.data.part(*name).map_or(0, |p| p.info.stored);
        let inputs = self.needs_of(id, position).map(stored);
        let most = inputs.fold(self.state.output_bytes(id).1, u64::saturating_add);
        let home = self.state.partitions.home(id.step).map(|(_, nodes)| nodes);
        let is_plain = self.state.partitions.of(id.step).is_empty();
        move |node| {
            let may = home.as_ref().is_none_or(|h| h.get(position) == Some(&node));
            let mut tiers = self.state.start.cluster.node(node).tiers.iter();
            // Seldom is it so much that it has to be looked at tier by tier.
            may && (is_plain && tiers.all(|t| most <= t.capacity)
                || self.space_demand_on(id, position, node).is_some())
        }
    }

    /// The space that a position of an instance takes on a node: on the fastest tier that can hold it at all, of those
    /// slower than the tier that an earlier attempt has filled. `None` if no tier can.
    fn space_demand_on(
        &self,
        id: InstanceId,
        position: usize,
        node: NodeId,
    ) -> Option<PlacementSpaceDemand> {
        let wanted = self.tier_of(id.step);
        let outgrown = self.state.steps.instance(id).and_then(|i| i.outgrown);
        let tiers = (0u32..).zip(&self.state.start.cluster.node(node).tiers);
        let mut allowed: Vec<_> = tiers
            .filter(|(_, t)| wanted.is_none_or(|w| w == t.name))
            .map(|(i, _)| TierRef {
                node,
                tier: TierId(i),
            })
            .collect();
        // If none is slower, the slowest: it is most likely the largest.
        allowed.sort_by_key(|s| match outgrown {
            Some(full) if s.tier <= full => (true, u32::MAX - s.tier.0),
            _ => (false, s.tier.0),
        });
        let capacity = |s: &TierRef| self.state.start.cluster.tier(*s).capacity;
        let (soft, hard) = self.state.output_bytes(id);
        allowed.into_iter().find_map(|tier_ref| {
            let mut bytes = self.bytes_by_tier(id, position, tier_ref);
            for (at, takes) in self.wanted_partitions(id, tier_ref)? {
                bytes.entry(at).or_default().0 += takes;
            }
            let (missing, here) = *bytes.entry(tier_ref).or_default();
            let too_much = |(s, (missing, here)): (&TierRef, &(u64, u64))| {
                missing.saturating_add(*here) > capacity(s)
            };
            let beside = capacity(&tier_ref).saturating_sub(missing.saturating_add(here));
            if bytes.iter().any(too_much) || hard > beside {
                return None;
            }
            let reserve = soft.min(beside).max(hard);
            let brings = bytes.into_iter().map(|(at, (missing, _))| (at, missing));
            Some(PlacementSpaceDemand {
                tier_ref,
                reserve,
                sure: hard,
                brings: brings.collect(),
            })
        })
    }

    /// The tier of a node that a step of one node would write to.
    pub(super) fn home_on(&self, id: InstanceId, node: NodeId) -> Option<TierRef> {
        Some(self.space_demand_on(id, 0, node)?.tier_ref)
    }

    /// The space that its partitions take on a node, if it writes to this tier of it.
    fn wanted_partitions(&self, id: InstanceId, home: TierRef) -> Option<Vec<(TierRef, u64)>> {
        let start = &self.state.start;
        let partitions = &self.state.partitions;
        partitions.wanted(&start.workflow, &start.cluster, id.step, home)
    }

    /// A tier of the node with space for the instance's inputs and outputs, and the bytes to set aside there. While
    /// there is none, space is freed.
    pub(super) fn find_tier_space(
        &mut self,
        id: InstanceId,
        position: usize,
        node: NodeId,
    ) -> Option<(TierRef, u64)> {
        let space = self.space_demand_on(id, position, node)?;
        let brought = space.brings.get(&space.tier_ref).copied().unwrap_or(0);
        if self.is_being_emptied(space.tier_ref) {
            return None;
        }
        let free = self
            .free_but_for_cache(space.tier_ref)
            .saturating_sub(brought);
        let reserve = match self.turn.last_resort && self.idle() {
            true => space.reserve.min(free).max(space.sure),
            false => space.reserve,
        };
        for (at, bytes) in space.brings {
            let want = match at == space.tier_ref {
                true => bytes.saturating_add(reserve),
                false => bytes,
            };
            if self.turn.claimed.contains(&at) {
                return None;
            }
            match self.ensure_space(at, want, id) {
                TierSpaceOutlook::Free => {}
                TierSpaceOutlook::Later => {
                    self.turn.claimed.insert(at);
                    return None;
                }
                // Those behind it may give the space back.
                TierSpaceOutlook::Stuck => return None,
            }
        }
        Some((space.tier_ref, reserve))
    }

    /// For each tier that a position of an instance uses: bytes that must be brought, bytes that are there.
    fn bytes_by_tier(
        &self,
        id: InstanceId,
        position: usize,
        tier_ref: TierRef,
    ) -> BTreeMap<TierRef, (u64, u64)> {
        let mut all: BTreeMap<TierRef, (u64, u64)> = BTreeMap::new();
        let names: BTreeSet<_> = self.needs_of(id, position).collect();
        for name in names {
            let Some(part) = self.state.data.part(*name) else {
                continue;
            };
            let target = self.state.target(tier_ref, name.data);
            let entry = all.entry(target).or_default();
            match self.state.usable_on(tier_ref.node, part) {
                // The owner has set its space aside.
                Some(s) if s == target && part.is_others_at(&Place::Node(s)) => {}
                Some(s) if s == target => entry.1 += part.info.stored,
                Some(s) if s.tier < target.tier => {}
                _ if part.incoming(target) => entry.1 += part.info.stored,
                _ => entry.0 += part.info.stored,
            }
        }
        all
    }
}
