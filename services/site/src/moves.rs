//! The stores of a node, fast to slow: what lies in which of them, and what is free there. docs/internals/site.md, "Moves between stores".

use crate::model::catalog::{VersionId, stored_size};
use crate::model::job::Phase;
use crate::model::node::{Level, Moving, Node};
use crate::model::orders::{Ordered, Why};
use crate::state::Site;
use std::collections::BTreeSet;
use tarn_proto::site::{Held, Job, Part, Work};
use tarn_types::units::{Nanos, SECOND};

/// How long what could not be moved is not tried again.
const STUCK: Nanos = 300 * SECOND;

impl Site {
    /// Bytes of a node's store that nothing has, and nothing is coming for.
    pub(crate) fn free_in(&self, name: &str, node: &Node, level: &Level) -> u64 {
        let own = |o: &&Ordered| o.node == name && o.store == level.name;
        let comes = self.orders.values().filter(own);
        let comes: u64 = comes.map(|order| self.brings(order)).sum();
        let moves = node.moving.iter();
        let moves = moves.filter(|(part, m)| {
            let places = node.places.get(part);
            m.to == level.name && !places.is_some_and(|all| all.contains(&m.to))
        });
        let moves = moves.map(|(part, _)| node.parts.get(part).copied().unwrap_or(0));
        let taken = node.taken_in(&level.name).saturating_add(comes);
        let taken = taken.saturating_add(moves.sum());
        level
            .bytes
            .saturating_sub(level.foreign)
            .saturating_sub(taken)
    }

    /// The versions that jobs work with where they lie, or that are being read for one that is expected: these parts do not go from their
    /// places. Those of `but` alone may.
    pub(crate) fn pinned(&self, but: Option<Job>) -> BTreeSet<VersionId> {
        let mut all = BTreeSet::new();
        for (id, job) in &self.jobs {
            let is_here = (Phase::Staging..Phase::Ended).contains(&job.phase) || job.is_bringing;
            if !is_here || but == Some(*id) {
                continue;
            }
            // What is only the beginning of what it writes is copied at the gate.
            let is_gone = |is_changed| is_changed && job.phase > Phase::Staging;
            let reads = job.reads.iter().filter(|r| !is_gone(r.is_changed));
            all.extend(reads.map(|r| r.version.clone()));
            all.extend(job.makes.iter().map(|m| m.version.clone()));
        }
        all
    }

    /// A part begins to move. It is the user's worker that moves it, or, of a project's, that of whoever has made it there.
    pub(crate) fn start_move(&mut self, name: &str, part: &Part, moving: Moving) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        node.moving.insert(part.clone(), moving);
        self.order_move(name, part);
    }

    /// Orders a move that is known: also once more, in another session.
    pub(crate) fn order_move(&mut self, name: &str, part: &Part) {
        let moving = self.nodes.get(name).and_then(|n| n.moving.get(part));
        let Some(Moving { from, to, keep }) = moving.cloned() else {
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
        self.work_in((name, &to), Why::Move(part.clone()), (user, user), work);
    }

    /// It has moved.
    pub(crate) fn moved(&mut self, name: &str, part: &Part) {
        let moving = self.nodes.get_mut(name).and_then(|n| n.moving.remove(part));
        let Some(Moving { from, to, keep }) = moving else {
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

    /// It could not be moved, and lies where it was.
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
        node.stuck.retain(|_, at| now.saturating_sub(*at) < STUCK);
        node.stuck.insert((part.clone(), moving.to.clone()), now);
        let text = format!(
            "{part} stays in store `{}` of node {name}, and does not go to `{}`: {why}",
            moving.from, moving.to
        );
        self.tell(part.owner, text);
        if is_gone {
            self.unplace((name, &moving.from), part);
        }
        if self.catalog.proof_of(part).is_none() {
            self.doom_copy((name, &moving.to), part);
        }
        self.advance_waiting();
    }

    /// Whether a part could not be brought to this store a moment ago.
    pub(crate) fn is_stuck(&self, node: &Node, part: &Part, to: &str) -> bool {
        let at = node.stuck.get(&(part.clone(), to.to_owned()));
        at.is_some_and(|at| self.now.saturating_sub(*at) < STUCK)
            || node
                .doomed
                .iter()
                .any(|(_, held)| *held == Held::part_in(part, to))
    }
}
