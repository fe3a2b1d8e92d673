//! What a failed attempt of an instance means: whether it counts, and whether there is another.

use crate::state::State;
use crate::steps::{Instance, Placed, Progress};
use tarn_base::action::Subject;
use tarn_base::event::{Failure, FailureKind};
use tarn_base::id::{InstanceId, Spot};

/// Attempts of an instance that may be lost with their nodes and count for nothing. After that it may be what ends nodes, by
/// filling their memory for instance, and must not go round all of them.
const FREE_LOSSES: u32 = 1;

/// Whether a failure counts as a try: not if something else ended it.
pub(crate) fn counts(kind: FailureKind) -> bool {
    !matches!(kind, FailureKind::Cancelled | FailureKind::NodeLost)
}

impl State {
    /// Whether an attempt that ran out of room is to be repeated with room for what it was seen to write: once, where that
    /// would fit onto its tier, and was more than was set aside.
    fn learns_size(&self, id: InstanceId, placed: &Placed, written: u64) -> bool {
        let capacity = |s: &Spot| self.start.cluster.tier(*s).capacity;
        let fits = placed.spots.iter().all(|s| written <= capacity(s));
        let first = |i: &Instance| i.outgrown.is_none();
        fits && written > placed.reserve && self.steps.instance(id).is_some_and(first)
    }

    /// `written`: the bytes that it was seen to write on a node.
    pub(crate) fn attempt_failed(
        &mut self,
        id: InstanceId,
        failure: &Failure,
        placed: &Placed,
        written: u64,
        newer: bool,
    ) {
        let step = self.start.workflow.step(id.step);
        let (name, retries) = (step.name.clone(), step.retries);
        let outgrown = match failure.kind {
            FailureKind::NoSpace => placed.spots.iter().map(|s| s.tier).max(),
            _ => None,
        };
        let learns = outgrown.is_some() && self.learns_size(id, placed, written);
        if learns {
            let known = &mut self.steps.all[id.step.at()].outgrew;
            *known = written.max(*known);
        }
        let factor = &mut self.steps.all[id.step.at()].reserve_factor;
        if outgrown.is_some() && placed.factor == *factor {
            *factor = factor.saturating_mul(2);
        }
        let crowded = outgrown.is_some() && self.cache.was_in_the_way(&placed.spots);
        let lost = failure.kind == FailureKind::NodeLost;
        let hopeless = matches!(failure.kind, FailureKind::Conflict | FailureKind::Escape);
        let Some(i) = self.steps.instance_mut(id) else {
            return;
        };
        i.losses += u32::from(lost);
        let counts = counts(failure.kind) && !learns && !crowded && (hopeless || !newer)
            || lost && !newer && i.losses > FREE_LOSSES;
        i.failures += u32::from(counts);
        i.outgrown = i.outgrown.max(outgrown);
        if counts && (hopeless || i.failures > retries) {
            i.progress = Progress::Failed;
            let mut message = format!("step {name} failed: {}", failure.message);
            if lost {
                message = format!(
                    "{message}; {} attempts of it were lost with their nodes: it may be what ends them, by filling their \
                     memory for instance. `retries` allows more such attempts; `tarn resume` tries again",
                    i.losses
                );
            }
            self.fail(Subject::Instance(id), message);
        } else {
            i.progress = Progress::Pending;
            self.steps.enqueue(id);
        }
    }
}
