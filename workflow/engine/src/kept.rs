//! The checkpoints of steps that go on from them: where they are, and whether an attempt that failed has come further.

use crate::state::EngineState;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::action::AttemptSpec;
use tarn_types::bounds::MAX_RESTARTS;
use tarn_types::checkpoint::CheckpointId;
use tarn_types::event::Imaged;
use tarn_types::id::{InstanceId, NodeId, TierRef};

/// The checkpoints of an instance.
#[derive(Debug, Default)]
pub(crate) struct InstanceCheckpoints {
    /// Wherever it ran since it has committed last.
    pub(crate) spots: BTreeSet<TierRef>,
    /// The newest that could be restored when its last attempt had failed.
    pub(crate) last: Option<CheckpointId>,
    /// The same of all attempts: what was lost or not seen once is no progress when it is there again.
    pub(crate) newest: Option<CheckpointId>,
    /// Attempts that failed after a newer one: they are no failures.
    pub(crate) restarts: u32,
    /// Of images that are copied to other nodes.
    pub(crate) images: InstanceImageCopies,
}

/// Where the images of an instance are whole that are copied to other nodes.
#[derive(Debug, Default)]
pub(crate) struct InstanceImageCopies {
    /// The newest at each place.
    pub(crate) whole: BTreeMap<TierRef, CheckpointId>,
    /// The newest that was taken and is to be copied: where it lies, and its bytes.
    pub(crate) taken: Option<(CheckpointId, TierRef, u64)>,
    /// Whither one is being copied.
    pub(crate) copying: Option<TierRef>,
    /// Where copies lie or will, and the bytes that are set aside for them there. Also where newer ones have not found room any more: what
    /// lies there stays until it is forgotten.
    pub(crate) buddies: BTreeMap<TierRef, u64>,
}

impl InstanceImageCopies {
    /// Where the newest is of those on nodes that can be used; of equals where it was taken.
    pub(crate) fn best(&self, taken_at: Option<NodeId>) -> Option<(TierRef, CheckpointId)> {
        let rank = |(spot, id): &(TierRef, CheckpointId)| (*id, Some(spot.node) == taken_at);
        self.whole.iter().map(|(s, id)| (*s, *id)).max_by_key(rank)
    }
}

impl EngineState {
    /// An attempt begins. Its checkpoints stay where it runs, however it ends.
    pub(crate) fn keeps(&mut self, run: &AttemptSpec) {
        let id = run.instance;
        if self.start.workflow.step(id.step).restart.is_none() {
            return;
        }
        self.steps.kept.insert(id);
        if let Some(i) = self.steps.instance_mut(id) {
            i.kept.spots.extend(&run.nodes);
        }
    }

    /// Whether an attempt that has failed has left a newer checkpoint than there was before.
    pub(crate) fn came_further(&mut self, id: InstanceId, newest: Option<CheckpointId>) -> bool {
        let Some(i) = self.steps.instance_mut(id) else {
            return false;
        };
        let newer = newest > i.kept.newest && i.kept.restarts < MAX_RESTARTS;
        i.kept.restarts += u32::from(newer);
        i.kept.last = newest;
        i.kept.newest = newest.max(i.kept.newest);
        newer
    }

    /// Something about the images of an attempt's processes.
    pub(crate) fn imaged(&mut self, id: InstanceId, attempt: u32, what: &Imaged) {
        let restart = self.start.workflow.step(id.step).restart;
        let lost = |ledger: &crate::ledger::Ledger, spot: &TierRef| ledger.is_lost(spot.node);
        let Some(i) = self.steps.instance_mut(id).filter(|i| !i.finished()) else {
            return;
        };
        if !restart.is_some_and(|r| r.buddy) {
            return;
        }
        let home = i.placed().filter(|_| i.attempts == attempt);
        let home = home.and_then(|p| p.spots.first().copied());
        let images = &mut i.kept.images;
        match (what, home) {
            (Imaged::Taken { id, bytes, .. }, Some(home)) if !lost(&self.ledger, &home) => {
                images.whole.insert(home, *id);
                images.taken = Some((*id, home, *bytes));
            }
            (Imaged::NotRestored { id, .. }, Some(home)) => {
                images
                    .whole
                    .retain(|at, newest| *at != home || *newest > *id);
            }
            (Imaged::Copied { id, at, .. }, _) => {
                images.copying.take_if(|to| to == at);
                // What was forgotten meanwhile is not there.
                if i.kept.spots.contains(at) && !lost(&self.ledger, at) {
                    let newest = images.whole.entry(*at).or_insert(*id);
                    *newest = (*newest).max(*id);
                }
            }
            (Imaged::NotCopied { at, .. }, _) => drop(images.copying.take_if(|to| to == at)),
            _ => {}
        }
    }

    /// An image is copied to another node.
    pub(crate) fn copy_begun(&mut self, id: InstanceId, to: TierRef, reserve: u64) {
        self.give_buddies_back(id, |at| at == to);
        if let Some(i) = self.steps.instance_mut(id) {
            i.kept.spots.insert(to);
            i.kept.images.taken = None;
            i.kept.images.copying = Some(to);
            i.kept.images.buddies.insert(to, reserve);
            self.ledger.reserve(to, reserve);
        }
    }

    /// Nothing is set aside for copies any more at such places.
    pub(crate) fn give_buddies_back(&mut self, id: InstanceId, which: impl Fn(TierRef) -> bool) {
        if let Some(i) = self.steps.instance_mut(id) {
            let buddies = &mut i.kept.images.buddies;
            for (at, bytes) in buddies.extract_if(.., |at, _| which(*at)) {
                self.ledger.unreserve(at, bytes);
            }
        }
    }

    /// The room for copies is counted anew.
    pub(crate) fn buddies_resumed(&mut self) {
        for id in &self.steps.kept {
            let images = self.steps.instance(*id).map(|i| &i.kept.images);
            for (at, bytes) in images.into_iter().flat_map(|i| &i.buddies) {
                self.ledger.reserve(*at, *bytes);
            }
        }
        for id in self.steps.kept.clone() {
            if let Some(i) = self.steps.instance_mut(id) {
                (i.kept.images.taken, i.kept.images.copying) = (None, None);
            }
        }
    }

    /// A node is lost, and the images on it.
    pub(crate) fn images_lost(&mut self, node: NodeId) {
        for id in self.steps.kept.clone() {
            self.give_buddies_back(id, |at| at.node == node);
            let Some(i) = self.steps.instance_mut(id) else {
                continue;
            };
            let images = &mut i.kept.images;
            images.whole.retain(|at, _| at.node != node);
            images.taken.take_if(|(_, at, _)| at.node == node);
            images.copying.take_if(|to| to.node == node);
        }
    }

    /// Its checkpoints are removed from these places.
    pub(crate) fn forgotten(&mut self, id: InstanceId, at: &[TierRef]) {
        self.give_buddies_back(id, |spot| at.contains(&spot));
        let Some(i) = self.steps.instance_mut(id) else {
            return;
        };
        i.kept.spots.retain(|s| !at.contains(s));
        i.kept.images.whole.retain(|s, _| !at.contains(s));
        i.kept.images.taken.take_if(|(_, s, _)| at.contains(s));
        if i.finished() {
            i.kept = InstanceCheckpoints::default();
        } else if i.kept.spots.is_empty() {
            // It begins anew, and its versions with it.
            (i.kept.last, i.kept.newest) = (None, None);
        }
        if i.kept.spots.is_empty() {
            self.steps.kept.remove(&id);
        }
    }
}
