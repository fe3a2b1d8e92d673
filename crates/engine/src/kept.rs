//! The checkpoints of steps that go on from them: where they are, and whether an attempt that failed has come further.

use crate::state::State;
use std::collections::BTreeSet;
use tarn_base::action::Run;
use tarn_base::bounds::MAX_RESTARTS;
use tarn_base::checkpoint::CheckpointId;
use tarn_base::id::{InstanceId, Spot};

/// The checkpoints of an instance.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Wherever it ran since it has committed last.
    pub(crate) spots: BTreeSet<Spot>,
    /// The newest that could be restored when its last attempt had failed.
    pub(crate) last: Option<CheckpointId>,
    /// The same of all attempts: what was lost or not seen once is no progress when it is there again.
    pub(crate) newest: Option<CheckpointId>,
    /// Attempts that failed after a newer one: they are no failures.
    pub(crate) restarts: u32,
}

impl State {
    /// An attempt begins. Its checkpoints stay where it runs, however it ends.
    pub(crate) fn keeps(&mut self, run: &Run) {
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

    /// Its checkpoints are removed from these places.
    pub(crate) fn forgotten(&mut self, id: InstanceId, at: &[Spot]) {
        let Some(i) = self.steps.instance_mut(id) else {
            return;
        };
        i.kept.spots.retain(|s| !at.contains(s));
        if i.finished() {
            i.kept = Kept::default();
        } else if i.kept.spots.is_empty() {
            // It begins anew, and its versions with it.
            (i.kept.last, i.kept.newest) = (None, None);
        }
        if i.kept.spots.is_empty() {
            self.steps.kept.remove(&id);
        }
    }
}
