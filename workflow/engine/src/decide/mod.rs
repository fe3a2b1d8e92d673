//! The choices. Each file looks at the state and emits actions; an action changes the state at once, so that
//! the next choice sees it. The rounds repeat until nothing more is to be done.

mod begin;
mod cache;
mod deliver;
mod end;
mod free;
mod lost;
mod partitions;
mod place;
mod release;
mod remake;
mod rescue;
mod restart;
mod space;
mod stage;
mod start;
mod tiers;
mod view;

use crate::state::{EngineState, RunStopReason};
use place::PlacementRound;
use std::collections::BTreeSet;
use tarn_types::action::{Action, Do, Subject};
use tarn_types::id::{InstanceId, NodeId};
use tarn_types::part::{PartMove, PartRef, Place, Transfer, TransferKind, Verify};
use tarn_types::reason::Reason;
use tarn_types::units::Time;

/// Chooses the actions of this moment.
pub(crate) fn decide(state: &mut EngineState, actions: &mut Vec<Action>) {
    state.deadline = None;
    let mut d = Decide {
        state,
        actions,
        short_of_space: false,
        taken_back: false,
        turn: PlacementRound::default(),
    };
    loop {
        let before = d.actions.len();
        d.short_of_space = false;
        if d.state.finished.is_some() {
            return;
        }
        d.begin();
        d.leave_lost_nodes();
        d.leave_broken_chains();
        d.forget();
        d.discard();
        let interrupted = matches!(d.state.stop, Some(RunStopReason::Interrupted(_)));
        // Removals first: they free space for arrivals.
        if !interrupted {
            d.sort_returned();
            d.release();
            if d.state.stop.is_none() {
                d.empty_closed_caches();
            }
        }
        // Nothing moves or runs before it is known that all of it fits.
        if d.state.stop.is_none() && d.state.fits_checked {
            d.reuse();
            d.clear_remade();
            d.place();
            d.stage();
            d.start();
            d.copy_images();
            d.restore_kept();
        }
        if !interrupted && d.state.fits_checked && !d.refused() {
            d.deliver();
            d.copies();
        }
        let nothing_new = d.actions.len() == before;
        d.end(nothing_new);
        if d.actions.len() == before {
            let rests = d.state.rests_until;
            if rests > d.state.now && d.state.stop.is_none() {
                d.look_again(rests);
            }
            return;
        }
    }
}

struct Decide<'a> {
    state: &'a mut EngineState,
    actions: &'a mut Vec<Action>,
    /// In this round, an instance was found waiting for space.
    short_of_space: bool,
    /// Every assignment was taken back once.
    taken_back: bool,
    /// The state of the placement in this round.
    turn: PlacementRound,
}

impl Decide<'_> {
    /// Decides something: it is applied and will be done.
    fn emit(&mut self, what: Do, why: Reason) {
        let action = Action { what, why };
        self.state.apply_action(&action);
        self.actions.push(action);
    }

    /// Requests a step at this time, if nothing happens before.
    fn look_again(&mut self, at: Time) {
        self.state.deadline = Some(self.state.deadline.map_or(at, |d| d.min(at)));
    }

    /// Gives a reason once: the same kind of reason for the same subject is not repeated.
    fn note(&mut self, about: Subject, why: Reason) {
        let same = self
            .state
            .notes
            .get(&about)
            .is_some_and(|n| std::mem::discriminant(n) == std::mem::discriminant(&why));
        if !same {
            self.emit(Do::Note { about }, why);
        }
    }

    fn transfer(
        &mut self,
        parts: Vec<PartMove>,
        to: Place,
        kind: TransferKind,
        verify: Verify,
        urgency: u64,
        why: Reason,
    ) {
        let Some(first) = parts.first().map(|m| m.part) else {
            return;
        };
        let transfer = Transfer {
            id: tarn_types::id::TransferId(self.state.next_transfer),
            data: first.data,
            version: first.version,
            parts,
            to,
            kind,
            verify: verify.max(self.state.start.options.verify),
            priority: urgency,
        };
        self.emit(Do::Transfer(transfer), why);
    }

    /// Parts that instances placed on this node read: they must stay.
    fn needed_on(&self, node: NodeId) -> BTreeSet<PartRef> {
        let placed = self.state.steps.on_node[node.at()].iter();
        placed
            .filter_map(|id| self.needs_on(*id, node))
            .flatten()
            .collect()
    }

    fn needs_on(&self, id: InstanceId, node: NodeId) -> Option<Vec<PartRef>> {
        let instance = self.state.steps.instance(id)?;
        let tier_refs = &instance.placed()?.tier_refs;
        let positions = tier_refs
            .iter()
            .enumerate()
            .filter(|(_, s)| s.node == node)
            .map(|(i, _)| i);
        let lists = positions.flat_map(|i| instance.needs.iter().filter_map(move |u| u.get(i)));
        Some(lists.flatten().copied().collect())
    }
}
