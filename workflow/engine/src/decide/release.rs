//! Removals without a request: replicas that nobody will read, that have moved, or that are damaged; under
//! `stage-through` everything a step made or was given. Also copies that leave while the replica stays: under `cache`,
//! of everything a step made.

use super::Decide;
use super::rescue::version_to_rescue;
use crate::data::{PartReplica, PartReplicaState, TrackedPart, TrackedVersion};
use crate::state::{EngineState, RunStopReason};
use tarn_types::part::{PartMove, PartRef, Place, TransferKind, Verify};
use tarn_types::policy::DataMode;
use tarn_types::reason::Reason;
use tarn_types::workflow::{Keep, OnFailure};

/// Whether nobody will read a part any more and nothing asks to keep it.
pub(super) fn unneeded(state: &EngineState, name: PartRef, part: &TrackedPart) -> bool {
    let version = state.data.version(name.data, name.version);
    let w = &state.start.workflow;
    let dataset = w.dataset(name.data);
    let undelivered =
        dataset.dest.is_some() && w.last_version(name.data) == name.version && !version.delivered;
    part.readers == 0
        && !state.is_awaited(name)
        && !undelivered
        && dataset.keep == Keep::UntilConsumed
        && !may_be_rescued(state, name)
}

/// Whether a rescue would still send a version out, if all that is being made of it is made ([`version_to_rescue`]).
/// While the step that changes it has not committed, that is its pre-image. A complete version stays only once
/// something has failed; an incomplete one stays before that too, as an instance that fails later would leave nothing
/// of the others.
fn may_be_rescued(state: &EngineState, name: PartRef) -> bool {
    let w = &state.start.workflow;
    let fails = state.stop.is_some() || !state.given_up.all.is_empty();
    let drains = w.dataset(name.data).on_failure == OnFailure::Drain;
    let version = state.data.version(name.data, name.version);
    let is_out = version.rescued || version.delivered;
    if !drains || name.version == 0 || version.sealed && !fails || is_out {
        return false;
    }
    let versions = (1..=w.last_version(name.data)).map(|v| (v, state.data.version(name.data, v)));
    let whole = |number, v: &TrackedVersion| match v.sealed {
        true => v.delivered || v.thinned.is_empty(),
        false => number == name.version,
    };
    let in_part = |v: &TrackedVersion| v.thinned.len() < v.parts.len();
    version_to_rescue(versions, whole, in_part) == Some(name.version)
}

impl Decide<'_> {
    pub(super) fn release(&mut self) {
        while let Some(name) = self.state.data.to_check.pop_first() {
            let Some(part) = self.state.data.part(name) else {
                continue;
            };
            let places: Vec<_> = part.replicas.keys().cloned().collect();
            for at in places {
                self.release_replica(name, &at);
            }
            if self.state.data_mode() != DataMode::Keep {
                self.stage_out(name);
            }
        }
    }

    fn release_replica(&mut self, name: PartRef, at: &Place) {
        let Some(part) = self.state.data.part(name) else {
            return;
        };
        let Some(replica) = part.replicas.get(at).copied() else {
            return;
        };
        let removable = matches!(
            replica.state,
            PartReplicaState::Present | PartReplicaState::Bad | PartReplicaState::Cached
        );
        if replica.is_others {
            // A damaged replica is not read any more; its owner removes it.
            if replica.state == PartReplicaState::Bad && replica.pins == 1 {
                self.evict(name, at, Reason::Damaged);
            }
            return;
        }
        if replica.pins > 0 || !removable || matches!(at, Place::Source | Place::External(_)) {
            return;
        }
        if replica.state == PartReplicaState::Cached {
            // It may leave at any time: a part that is to be read is made, or comes, again.
            if super::cache::is_wanted_again(self.state, name, part) {
                self.evict(name, at, Reason::OutputLost { data: name.data });
            }
            return;
        }
        match self.leaves(name, part, at, replica) {
            Some(Reason::NotNeeded) => self.evict_or_cache(name, at, Reason::NotNeeded),
            Some(why) => self.evict(name, at, why),
            None => {}
        }
    }

    fn leaves(
        &self,
        name: PartRef,
        part: &TrackedPart,
        at: &Place,
        replica: PartReplica,
    ) -> Option<Reason> {
        if replica.state == PartReplicaState::Bad {
            return Some(Reason::Damaged);
        }
        // After a failure everything stays for `tarn resume`, but parts on their way out.
        if unneeded(self.state, name, part) && self.state.stop.is_none() {
            return Some(Reason::NotNeeded);
        }
        let Place::Node(tier_ref) = at else {
            return None;
        };
        let stage_through = self.state.data_mode() == DataMode::StageThrough;
        let why = match self.state.data.to_release.get(&(name, at.clone())) {
            Some(&transfer) => Reason::MovedAway { transfer },
            None if stage_through && self.state.external_source(part).is_some() => {
                Reason::StagedOut
            }
            None => return None,
        };
        let used = replica.staged || !stage_through;
        (!used || !self.needed_on(tier_ref.node).contains(&name)).then_some(why)
    }

    /// `stage-through` and `cache`: a part that a step made goes out, unless its `dest` takes it at once.
    fn stage_out(&mut self, name: PartRef) {
        let Some(part) = self.state.data.part(name) else {
            return;
        };
        let w = &self.state.start.workflow;
        if w.dataset(name.data).of.is_some() {
            return;
        }
        let to_dest =
            w.dataset(name.data).dest.is_some() && w.last_version(name.data) == name.version;
        let is_outside = |(at, r): (&Place, &PartReplica)| match at {
            Place::Node(_) => false,
            Place::External(_) => r.state != PartReplicaState::Bad,
            _ => true,
        };
        let outside = part.replicas.iter().any(is_outside);
        let stopping = match self.state.stop {
            Some(RunStopReason::Interrupted(_)) => true,
            // As for a `dest`: one attempt is made, and the rest is for `tarn resume`.
            Some(RunStopReason::Failed { .. } | RunStopReason::Incomplete) => part.failures > 0,
            None => false,
        };
        let goes = unneeded(self.state, name, part) || self.is_remade(name);
        if to_dest || outside || stopping || goes {
            return;
        }
        let Some(from) = part.present().map(|(p, _)| p.clone()).next() else {
            return;
        };
        let parts = vec![PartMove { part: name, from }];
        // The node's replica goes once this is done, or when space is needed, so it is read back; `--verify none`
        // emulates today's practice of writing to the external store and trusting it.
        let verify = match self.state.start.options.verify {
            Verify::None => Verify::None,
            _ => Verify::Readback,
        };
        let why = match self.state.data_mode() {
            DataMode::Cache => Reason::WriteThrough,
            _ => Reason::StageOut,
        };
        self.transfer(
            parts,
            Place::Drained,
            TransferKind::ExternalOut,
            verify,
            0,
            why,
        );
    }
}
