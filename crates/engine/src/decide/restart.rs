//! Steps that go on from their checkpoints: they are started again where those are, until they commit.

use super::Decide;
use crate::steps::Progress;
use tarn_base::action::Do;
use tarn_base::id::{InstanceId, NodeId, Spot};
use tarn_base::reason::Reason;

impl Decide<'_> {
    /// Removes the checkpoints of what has committed.
    pub(super) fn forget(&mut self) {
        let steps = &self.state.steps;
        let over = steps.kept.iter().filter_map(|id| {
            let instance = steps.instance(*id).filter(|i| i.finished())?;
            Some(Do::Forget {
                instance: *id,
                at: instance.kept.spots.iter().copied().collect(),
            })
        });
        for what in over.collect::<Vec<_>>() {
            self.emit(what, Reason::Committed);
        }
    }

    /// Removes the checkpoints of an instance from tiers that it leaves for others of their nodes: it begins anew there, and nobody has
    /// counted the room that they take.
    pub(super) fn leave_tiers(&mut self, id: InstanceId, spots: &[Spot]) {
        let leaves = |old: &&Spot| {
            let mut new = spots.iter();
            new.any(|s| s.node == old.node && s.tier != old.tier)
        };
        let kept = self.state.steps.instance(id).map(|i| &i.kept.spots);
        let at: Vec<Spot> = kept.into_iter().flatten().filter(leaves).copied().collect();
        if !at.is_empty() {
            self.emit(Do::Forget { instance: id, at }, Reason::OtherTier);
        }
    }

    /// Gives those that wait the nodes that they had, before anybody else gets the room there.
    pub(super) fn restart(&mut self) {
        let kept = self.state.steps.kept.iter().copied();
        let waiting: Vec<InstanceId> = kept
            .filter(|id| self.has_its_nodes(*id) && self.obtainable(*id))
            .collect();
        for id in waiting {
            let ran_on = self.state.steps.instance(id).map(|i| i.ran_on.clone());
            let nodes = ran_on.unwrap_or_default();
            let Some(node) = nodes.first().copied() else {
                continue;
            };
            let begin = self.data_in(id, &nodes);
            self.assign(id, &nodes, begin, Reason::CheckpointsThere { node });
        }
    }

    /// Whether an instance waits for a place and none of the nodes is lost that have its checkpoints.
    fn has_its_nodes(&self, id: InstanceId) -> bool {
        let lost = |n: &NodeId| self.state.ledger.is_lost(*n);
        let waits = |i: &&crate::steps::Instance| {
            i.progress == Progress::Pending
                && !i.kept.spots.is_empty()
                && !i.ran_on.iter().any(lost)
        };
        self.state.steps.instance(id).filter(waits).is_some()
    }

    /// Whether an instance is to wait for room on its nodes rather than to begin anew on others.
    pub(super) fn keeps_its_nodes(&self, id: InstanceId) -> bool {
        !self.turn.last_resort && self.has_its_nodes(id)
    }

    /// Of nodes for a position of an instance: first the one with its checkpoints, last those with other positions'.
    pub(super) fn checkpoints_rank(&self, id: InstanceId, position: usize, node: NodeId) -> u8 {
        let instance = self.state.steps.instance(id);
        let kept = instance.filter(|i| !i.kept.spots.is_empty());
        let had = kept.and_then(|i| i.ran_on.iter().position(|n| *n == node));
        match had {
            Some(at) if at == position => 0,
            None => 1,
            Some(_) => 2,
        }
    }
}
