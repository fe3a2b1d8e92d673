//! Steps that continue from their checkpoints: they are started again where those are, until they commit.

use super::Decide;
use crate::steps::{InstanceProgress, StepInstance};
use std::cmp::Reverse;
use tarn_types::action::{Do, Subject};
use tarn_types::cluster::Node;
use tarn_types::id::{InstanceId, NodeId, TierRef};
use tarn_types::reason::Reason;

impl Decide<'_> {
    /// Removes the checkpoints of instances that have committed.
    pub(super) fn forget(&mut self) {
        let steps = &self.state.steps;
        let over = steps.kept.iter().filter_map(|id| {
            let instance = steps.instance(*id).filter(|i| i.finished())?;
            Some(Do::Forget {
                instance: *id,
                at: instance.kept.tier_refs.iter().copied().collect(),
            })
        });
        for what in over.collect::<Vec<_>>() {
            self.emit(what, Reason::Committed);
        }
    }

    /// Removes the checkpoints of an instance from tiers that it leaves for others of their nodes: it begins again
    /// there, and nobody has counted the space that they take.
    pub(super) fn leave_tiers(&mut self, id: InstanceId, tier_refs: &[TierRef]) {
        let leaves = |old: &&TierRef| {
            let mut new = tier_refs.iter();
            new.any(|s| s.node == old.node && s.tier != old.tier)
        };
        let kept = self.state.steps.instance(id).map(|i| &i.kept.tier_refs);
        let at: Vec<TierRef> = kept.into_iter().flatten().filter(leaves).copied().collect();
        if !at.is_empty() {
            self.emit(Do::Forget { instance: id, at }, Reason::OtherTier);
        }
    }

    /// Gives waiting instances the nodes that they had, before others get the space there.
    pub(super) fn restart(&mut self) {
        let kept = self.state.steps.kept.iter().copied();
        let waiting: Vec<InstanceId> = kept
            .filter(|id| self.has_its_nodes(*id) && self.obtainable(*id))
            .collect();
        for id in waiting {
            let nodes = self.its_nodes(id).unwrap_or_default();
            let Some(node) = nodes.first().copied() else {
                continue;
            };
            let begin = self.data_in(id, &nodes);
            self.assign(id, &nodes, begin, Reason::CheckpointsThere { node });
        }
    }

    /// The nodes that have the checkpoints of an instance that waits for a place, if none of them is lost: those that it ran on, or the
    /// one with its newest image.
    fn its_nodes(&self, id: InstanceId) -> Option<Vec<NodeId>> {
        let waits = |i: &&StepInstance| {
            i.progress == InstanceProgress::Pending && !i.kept.tier_refs.is_empty()
        };
        let instance = self.state.steps.instance(id).filter(waits)?;
        if let Some((at, _)) = instance.kept.images.best(instance.ran_on.first().copied()) {
            return Some(vec![at.node]);
        }
        let lost = |n: &NodeId| self.state.ledger.nodes.is_lost(*n);
        (!instance.ran_on.iter().any(lost)).then(|| instance.ran_on.clone())
    }

    fn has_its_nodes(&self, id: InstanceId) -> bool {
        self.its_nodes(id).is_some()
    }

    /// Has newest images copied to other nodes, one of an instance at a time.
    pub(super) fn copy_images(&mut self) {
        let kept = self.state.steps.kept.iter().copied();
        for id in kept.collect::<Vec<_>>() {
            let instance = self.state.steps.instance(id);
            let running = instance.filter(|i| matches!(i.progress, InstanceProgress::Running(_)));
            let waiting = running.filter(|i| i.kept.images.copying.is_none());
            let Some((i, (image, from, bytes))) =
                waiting.and_then(|i| Some((i, i.kept.images.taken?)))
            else {
                continue;
            };
            let attempt = i.attempts;
            let space = self.state.start.workflow.step(id.step).restart;
            // The newest copy stays until the next is whole.
            let two = bytes.saturating_mul(2);
            let reserve = space.map_or(0, |r| r.space).max(two);
            let Some((to, before)) = self.buddy(id, from, reserve) else {
                let about = Subject::Instance(id);
                self.note(about, Reason::NoBuddy { bytes: reserve });
                continue;
            };
            if !self.is_free(to, reserve.saturating_sub(before)) {
                continue;
            }
            let what = Do::CopyImage {
                instance: id,
                attempt,
                image,
                from,
                to,
                // The files were larger before and are still there.
                reserve: reserve.max(before),
            };
            self.emit(what, Reason::Buddy { node: from.node });
        }
    }

    /// The place for copies of images that are taken at `home`: first where copies already are, then another host, then
    /// where most is free. It is a node that could run the step, where it would see the same paths. Also the bytes that
    /// are set aside there already.
    fn buddy(&self, id: InstanceId, home: TierRef, bytes: u64) -> Option<(TierRef, u64)> {
        let cluster = &self.state.start.cluster;
        let (here, holds) = (cluster.node(home.node), self.holder(id, 0));
        let root = |node: &Node| node.tiers.first().map(|t| t.root.clone());
        let images = self.state.steps.instance(id).map(|i| &i.kept.images)?;
        let own = |at: &TierRef| images.buddies.get(at).copied();
        let free = |at: &TierRef| {
            let free = self.free_but_for_cache(*at);
            free.saturating_add(own(at).unwrap_or(0))
        };
        let suits = |n: &NodeId| {
            *n != home.node
                && !self.state.ledger.nodes.is_lost(*n)
                && root(cluster.node(*n)) == root(here)
                && holds(*n)
        };
        let nodes = self.nodes_of_kind(id.step).into_iter().filter(suits);
        let tier_refs = nodes.filter_map(|n| self.home_on(id, n));
        let to = tier_refs.filter(|at| free(at) >= bytes).min_by_key(|at| {
            let same_host = cluster.node(at.node).host == here.host;
            (own(at).is_none(), same_host, Reverse(free(at)), at.node)
        })?;
        Some((to, own(&to).unwrap_or(0)))
    }

    /// Whether an instance is to wait for space on its nodes rather than to begin again on others.
    pub(super) fn keeps_its_nodes(&self, id: InstanceId) -> bool {
        !self.turn.last_resort && self.has_its_nodes(id)
    }

    /// Of nodes for a position of an instance: first the one with its checkpoints, last those with other positions'.
    pub(super) fn checkpoints_rank(&self, id: InstanceId, position: usize, node: NodeId) -> u8 {
        let instance = self.state.steps.instance(id);
        let kept = instance.filter(|i| !i.kept.tier_refs.is_empty());
        if let Some(images) = kept.map(|i| &i.kept.images.whole).filter(|w| !w.is_empty()) {
            return u8::from(!images.keys().any(|at| at.node == node));
        }
        let had = kept.and_then(|i| i.ran_on.iter().position(|n| *n == node));
        match had {
            Some(at) if at == position => 0,
            None => 1,
            Some(_) => 2,
        }
    }
}
