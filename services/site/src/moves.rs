//! The stores of a node, fast to slow: their content and their free space. docs/internals/site.md, "Moves between
//! stores".

use crate::model::catalog::stored_size;
use crate::model::node::PartMigration;
use crate::model::orders::OrderPurpose;
use crate::state::Site;
use crate::stock::MOVES;
use tarn_proto::site::{Part, Work};

impl Site {
    /// A part begins to move. The user's worker moves it, or, for a project, the worker of the user who has made it
    /// there.
    pub(crate) fn start_move(&mut self, name: &str, part: &Part, moving: PartMigration) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        node.moving.insert(part.clone(), moving);
        self.order_move(name, part);
    }

    /// Orders a move that is known: also again, in another session.
    pub(crate) fn order_move(&mut self, name: &str, part: &Part) {
        let moving = self.nodes.get(name).and_then(|n| n.moving.get(part));
        let Some(PartMigration { from, to, keep }) = moving.cloned() else {
            return;
        };
        let Some(proof) = self.catalog.proof_of(part) else {
            return;
        };
        let user = Self::worker_of(part.owner);
        let work = Work::Move {
            part: part.clone(),
            from,
            to: to.clone(),
            proof,
            keep,
        };
        self.work_in(
            (name, &to),
            OrderPurpose::Move(part.clone()),
            (user, user),
            work,
        );
    }

    /// It has moved.
    pub(crate) fn moved(&mut self, name: &str, part: &Part) {
        let moving = self.nodes.get_mut(name).and_then(|n| n.moving.remove(part));
        let Some(PartMigration { from, to, keep }) = moving else {
            return;
        };
        match self.catalog.proof_of(part) {
            Some(proof) => {
                self.place((name, &to), part, stored_size(&proof));
                if !keep {
                    self.unplace((name, &from), part);
                }
            }
            // Meanwhile nobody wants it any more.
            None => {
                for store in [from, to] {
                    self.doom_copy((name, &store), part);
                }
            }
        }
        self.advance_waiting();
    }

    /// It could not be moved, and is where it was.
    pub(crate) fn not_moved(&mut self, name: &str, part: &Part, is_gone: bool, why: &str) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if !node.is_up {
            // It is ordered again when the node is back.
            return;
        }
        let Some(moving) = node.moving.remove(part) else {
            return;
        };
        node.stuck.retain(|_, at| MOVES.is_pausing(*at, now));
        node.stuck.insert((part.clone(), moving.to.clone()), now);
        let text = format!(
            "{part} stays in store `{}` of node {name}, and does not go to `{}`: {why}",
            moving.from, moving.to
        );
        self.notify_owner(part.owner, text);
        if is_gone {
            self.unplace((name, &moving.from), part);
        }
        if self.catalog.proof_of(part).is_none() {
            self.doom_copy((name, &moving.to), part);
        }
        self.advance_waiting();
    }
}
