//! Partitions that are kept for the workflow: which step runs on their nodes, and when they go.

use super::Decide;
use crate::partitions::KeptPartition;
use tarn_types::action::Do;
use tarn_types::id::{InstanceId, NodeId, PartitionId, StepId};
use tarn_types::reason::Reason;

impl Decide<'_> {
    /// Removes those that no step uses any more, and those that are lost with a node before anybody has committed to
    /// them: they are made again.
    pub(super) fn discard(&mut self) {
        let kept = self.state.partitions.kept.iter();
        let over = kept.filter_map(|(id, placement)| {
            let what = Do::Discard {
                partition: *id,
                key: placement.key.clone()?,
                at: placement.tier_refs.clone(),
            };
            Some((what, self.why_it_goes(*id, placement)?))
        });
        for (what, why) in over.collect::<Vec<_>>() {
            self.emit(what, why);
        }
    }

    fn why_it_goes(&self, id: PartitionId, placement: &KeptPartition) -> Option<Reason> {
        let steps = &self.state.steps;
        let mut users = self.state.start.workflow.partition(id).steps.iter();
        if users.all(|s| steps.all[s.at()].complete()) {
            return Some(Reason::Used);
        }
        let node = self.lost_of(placement)?;
        let may = !self.state.partitions.is_used(id) && !self.is_filled(id);
        may.then_some(Reason::NodeLost { node })
    }

    fn lost_of(&self, placement: &KeptPartition) -> Option<NodeId> {
        let mut nodes = placement.tier_refs.iter().map(|s| s.node);
        nodes.find(|n| self.state.ledger.nodes.is_lost(*n))
    }

    /// Whether an instance that has used it has committed.
    pub(super) fn is_filled(&self, id: PartitionId) -> bool {
        let steps = &self.state.steps;
        let mut users = self.state.start.workflow.partition(id).steps.iter();
        users.any(|s| {
            let instances = steps.all[s.at()].instances.as_deref();
            instances.unwrap_or_default().iter().any(|i| i.finished())
        })
    }

    /// Why it runs on these nodes, if its partitions decide that.
    pub(super) fn partition_there(&self, id: InstanceId) -> Option<Reason> {
        let (partition, nodes) = self.state.partitions.home(id.step)?;
        let node = *nodes.first()?;
        Some(Reason::PartitionThere { node, partition })
    }

    /// The message that a partition of a step is lost, with the data that steps have written to it.
    pub(super) fn partition_lost(&self, step: StepId) -> Option<String> {
        let w = &self.state.start.workflow;
        let mut own = self.state.partitions.of(step).iter();
        own.find_map(|id| {
            let placement = self.state.partitions.kept.get(id)?;
            let node = self.lost_of(placement)?;
            Some(format!(
                "step {} uses partition {}, which was on node {}, and that is lost; `tarn resume` continues when it is back with it, `tarn run` starts from the beginning",
                w.step(step).name,
                w.partition(*id).name,
                self.state.start.cluster.node(node).name,
            ))
        })
    }
}
