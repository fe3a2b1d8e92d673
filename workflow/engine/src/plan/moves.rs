//! Moves are ordered and end: the replicas that they read are pinned meanwhile, and the actions that begin them are
//! emitted.

use super::outbox::{MoveLimits, MovePurpose, MoveRecord, MoveRequest};
use super::state::PlannerState;
use tarn_types::account::{add, sub};
use tarn_types::site::{ItemId, JobId, Move, MoveId, SiteAction, Where};

impl PlannerState {
    fn move_limits(&self) -> MoveLimits {
        MoveLimits {
            store: self.store,
            data_mode: self.policy.data_mode,
        }
    }

    /// Orders a move. It begins at once, or when the store has bandwidth for it.
    pub(crate) fn order(&mut self, draft: MoveRequest) -> MoveId {
        let rank = draft.job.and_then(|j| self.job(j)).map_or(0, |j| j.rank);
        let reads = match &draft.from {
            Where::Nodes(from) => self.items.pin_source(self.now, draft.item, from),
            Where::Outside => None,
        };
        add(&mut self.under_way, 1, "things under way");
        let limits = self.move_limits();
        let (id, begin) = self.outbox.order(limits, draft, rank, reads);
        self.begin_moves(begin);
        id
    }

    fn begin_moves(&mut self, moves: Vec<Move>) {
        moves
            .into_iter()
            .map(SiteAction::Move)
            .for_each(|m| self.emit(m));
    }

    /// A move is over: forgets it and begins the next.
    pub(crate) fn over(&mut self, id: MoveId) -> Option<MoveRecord> {
        let (order, begin) = self.outbox.over(self.move_limits(), id)?;
        sub(&mut self.under_way, 1, "things under way");
        self.begin_moves(begin);
        if let Some(read) = &order.reads {
            self.unpin(read);
        }
        Some(order)
    }

    /// Orders a direct move, behind those of the same job where that has several nodes.
    pub(crate) fn order_in_turn(&mut self, job: JobId, draft: MoveRequest) {
        let Some(state) = self.job_mut(job) else {
            return;
        };
        if state.nodes.len() > 1 {
            state.in_turn.push_back(draft.clone());
            if state.in_turn.len() > 1 {
                return;
            }
        }
        self.order(draft);
    }

    /// A direct move of a job has arrived: the next one's turn, from where it is best taken now. False if it is nowhere.
    pub(crate) fn next_in_turn(&mut self, job: JobId) -> bool {
        let Some(state) = self.job_mut(job) else {
            return true;
        };
        state.in_turn.pop_front();
        let Some(mut next) = state.in_turn.front().cloned() else {
            return true;
        };
        if matches!(next.purpose, MovePurpose::Input(_)) && !self.take_from_best(&mut next) {
            return false;
        }
        self.order(next);
        true
    }

    /// Moves of an item towards nodes that the store has not admitted yet.
    pub(crate) fn waiting_for_store(&self, item: ItemId) -> Vec<MoveId> {
        let layouts = self.item(item).map(|i| i.layouts.iter());
        let coming = layouts.into_iter().flatten().filter_map(|l| l.coming);
        coming.filter(|id| self.outbox.waits_to_come(*id)).collect()
    }
}
