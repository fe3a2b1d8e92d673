//! Updates to the checkpoints of instances, and to the space that is set aside for copies of their images.

use super::Steps;
use crate::kept::InstanceCheckpoints;
use crate::ledger::Ledger;
use tarn_types::action::AttemptSpec;
use tarn_types::bounds::MAX_RESTARTS;
use tarn_types::checkpoint::CheckpointId;
use tarn_types::event::Imaged;
use tarn_types::id::{InstanceId, NodeId, TierRef};

impl Steps {
    /// An attempt of a step that continues from its checkpoints begins: they stay where it runs, however it ends.
    pub(crate) fn keep_checkpoints(&mut self, run: &AttemptSpec) {
        let id = run.instance;
        self.kept.insert(id);
        if let Some(i) = self.instance_mut(id) {
            i.kept.tier_refs.extend(&run.nodes);
        }
    }

    /// Whether an attempt that has failed has left a newer checkpoint than there was before.
    pub(crate) fn note_progress(&mut self, id: InstanceId, newest: Option<CheckpointId>) -> bool {
        let Some(i) = self.instance_mut(id) else {
            return false;
        };
        let newer = newest > i.kept.newest && i.kept.restarts < MAX_RESTARTS;
        i.kept.restarts += u32::from(newer);
        i.kept.last = newest;
        i.kept.newest = newest.max(i.kept.newest);
        newer
    }

    /// Takes in an event of an image of an attempt's processes, of a step whose images are copied.
    pub(crate) fn note_image(
        &mut self,
        ledger: &Ledger,
        id: InstanceId,
        attempt: u32,
        what: &Imaged,
    ) {
        let lost = |tier_ref: &TierRef| ledger.nodes.is_lost(tier_ref.node);
        let Some(i) = self.instance_mut(id).filter(|i| !i.finished()) else {
            return;
        };
        let home = i.placed().filter(|_| i.attempts == attempt);
        let home = home.and_then(|p| p.tier_refs.first().copied());
        let images = &mut i.kept.images;
        match (what, home) {
            (Imaged::Taken { id, bytes, .. }, Some(home)) if !lost(&home) => {
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
                // A checkpoint that was forgotten meanwhile is not there.
                if i.kept.tier_refs.contains(at) && !lost(at) {
                    let newest = images.whole.entry(*at).or_insert(*id);
                    *newest = (*newest).max(*id);
                }
            }
            (Imaged::NotCopied { at, .. }, _) => drop(images.copying.take_if(|to| to == at)),
            _ => {}
        }
    }

    /// An image is copied to another node.
    pub(crate) fn begin_image_copy(
        &mut self,
        ledger: &mut Ledger,
        id: InstanceId,
        to: TierRef,
        reserve: u64,
    ) {
        self.give_image_space_back(ledger, id, |at| at == to);
        if let Some(i) = self.instance_mut(id) {
            i.kept.tier_refs.insert(to);
            i.kept.images.taken = None;
            i.kept.images.copying = Some(to);
            i.kept.images.buddies.insert(to, reserve);
            ledger.nodes.reserve(to, reserve);
        }
    }

    /// Releases the space that is set aside for copies at such places.
    pub(crate) fn give_image_space_back(
        &mut self,
        ledger: &mut Ledger,
        id: InstanceId,
        which: impl Fn(TierRef) -> bool,
    ) {
        if let Some(i) = self.instance_mut(id) {
            let buddies = &mut i.kept.images.buddies;
            for (at, bytes) in buddies.extract_if(.., |at, _| which(*at)) {
                ledger.nodes.unreserve(at, bytes);
            }
        }
    }

    /// Reserves the space for copies again, in a ledger without reservations.
    pub(crate) fn reserve_image_space(&mut self, ledger: &mut Ledger) {
        for id in &self.kept {
            let images = self.instance(*id).map(|i| &i.kept.images);
            for (at, bytes) in images.into_iter().flat_map(|i| &i.buddies) {
                ledger.nodes.reserve(*at, *bytes);
            }
        }
        for id in self.kept.clone() {
            if let Some(i) = self.instance_mut(id) {
                (i.kept.images.taken, i.kept.images.copying) = (None, None);
            }
        }
    }

    /// A node is lost, and the images on it.
    pub(crate) fn lose_images(&mut self, ledger: &mut Ledger, node: NodeId) {
        for id in self.kept.clone() {
            self.give_image_space_back(ledger, id, |at| at.node == node);
            let Some(i) = self.instance_mut(id) else {
                continue;
            };
            let images = &mut i.kept.images;
            images.whole.retain(|at, _| at.node != node);
            images.taken.take_if(|(_, at, _)| at.node == node);
            images.copying.take_if(|to| to.node == node);
        }
    }

    /// Its checkpoints are removed from these places.
    pub(crate) fn forget_checkpoints(
        &mut self,
        ledger: &mut Ledger,
        id: InstanceId,
        at: &[TierRef],
    ) {
        self.give_image_space_back(ledger, id, |tier_ref| at.contains(&tier_ref));
        let Some(i) = self.instance_mut(id) else {
            return;
        };
        i.kept.tier_refs.retain(|s| !at.contains(s));
        i.kept.images.whole.retain(|s, _| !at.contains(s));
        i.kept.images.taken.take_if(|(_, s, _)| at.contains(s));
        if i.finished() {
            i.kept = InstanceCheckpoints::default();
        } else if i.kept.tier_refs.is_empty() {
            // It begins again, and its versions with it.
            (i.kept.last, i.kept.newest) = (None, None);
        }
        if i.kept.tier_refs.is_empty() {
            self.kept.remove(&id);
        }
    }
}
