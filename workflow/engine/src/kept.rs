//! The checkpoints of an instance of a step that continues from them: where they are.

use std::collections::{BTreeMap, BTreeSet};
use tarn_types::checkpoint::CheckpointId;
use tarn_types::id::{NodeId, TierRef};

/// The checkpoints of an instance.
#[derive(Debug, Default)]
pub(crate) struct InstanceCheckpoints {
    /// Wherever it ran since it has committed last.
    pub(crate) tier_refs: BTreeSet<TierRef>,
    /// The newest that could be restored when its last attempt had failed.
    pub(crate) last: Option<CheckpointId>,
    /// The same of all attempts: a checkpoint that was lost or not seen once is no progress when it is there again.
    pub(crate) newest: Option<CheckpointId>,
    /// Attempts that failed after a newer one: they are no failures.
    pub(crate) restarts: u32,
    /// Of images that are copied to other nodes.
    pub(crate) images: InstanceImageCopies,
}

/// The places of an instance's images that are copied to other nodes and whole there.
#[derive(Debug, Default)]
pub(crate) struct InstanceImageCopies {
    /// The newest at each place.
    pub(crate) whole: BTreeMap<TierRef, CheckpointId>,
    /// The newest that was taken and is to be copied: its place, and its bytes.
    pub(crate) taken: Option<(CheckpointId, TierRef, u64)>,
    /// Whither one is being copied.
    pub(crate) copying: Option<TierRef>,
    /// Places that have copies or will get them, with the bytes set aside there. Also places where newer copies have
    /// found no space any more: an older copy there stays until it is forgotten.
    pub(crate) buddies: BTreeMap<TierRef, u64>,
}

impl InstanceImageCopies {
    /// The place of the newest of those on nodes that can be used; of equals the node that took it.
    pub(crate) fn best(&self, taken_at: Option<NodeId>) -> Option<(TierRef, CheckpointId)> {
        let rank =
            |(tier_ref, id): &(TierRef, CheckpointId)| (*id, Some(tier_ref.node) == taken_at);
        self.whole.iter().map(|(s, id)| (*s, *id)).max_by_key(rank)
    }
}
