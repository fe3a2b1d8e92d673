//! The stores of a node, fast to slow: what lies in which of them, and what is free there. docs/internals/site.md, "Moves between stores".

use crate::state::{Node, Phase, Site, VersionId, Why, room};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tarn_proto::site::{Capacity, Held, Job, Part, Store, StoreInfo, Work};
use tarn_types::units::{Nanos, SECOND};

/// How long what could not be moved is not tried again.
const STUCK: Nanos = 300 * SECOND;

/// A store of a node, as it was said when its session began.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Level {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) persistent: bool,
    /// It is not mounted: nothing goes there, and what lies there is not to be had, but not lost.
    pub(crate) is_away: bool,
    /// Bytes of it that the file system has not got any more: somebody else's files.
    pub(crate) foreign: u64,
}

/// A part on its way from one store of a node to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moving {
    pub(crate) from: String,
    pub(crate) to: String,
    /// It stays where it is, too.
    pub(crate) keep: bool,
}

impl Level {
    fn new(name: String, capacity: &Capacity, is_away: bool) -> Self {
        Self {
            name,
            bytes: capacity.bytes,
            persistent: capacity.persistent,
            is_away,
            foreign: 0,
        }
    }

    /// As a node tells: of one whose store has no name, that one.
    pub(crate) fn all(capacity: &Capacity, stores: &[Store]) -> Vec<Self> {
        if stores.is_empty() {
            return vec![Self::new(String::new(), capacity, false)];
        }
        let level = |s: &Store| Self::new(s.name.clone(), &s.capacity, s.is_away);
        stores.iter().map(level).collect()
    }

    /// Whether a copy in a store that lasts so long may take the place of one that lies here: a loss of power must not take the last one
    /// of what had outlived it.
    pub(crate) fn is_replaced_by(&self, is_persistent: bool) -> bool {
        is_persistent || !self.persistent
    }
}

impl Node {
    pub(crate) fn level(&self, store: &str) -> Option<&Level> {
        self.levels.iter().find(|level| level.name == store)
    }

    /// The stores that are there, fast to slow.
    pub(crate) fn present(&self) -> impl Iterator<Item = &Level> {
        self.levels.iter().filter(|level| !level.is_away)
    }

    /// The stores in which a part is to be had, fast to slow.
    pub(crate) fn places_of(&self, part: &Part) -> impl Iterator<Item = &Level> {
        let places = self.places.get(part);
        self.present()
            .filter(move |level| places.is_some_and(|all| all.contains(&level.name)))
    }

    /// Whether a part is to be had here.
    pub(crate) fn has(&self, part: &Part) -> bool {
        self.places_of(part).next().is_some()
    }

    /// Whether it is to be had, and is not just going somewhere else.
    pub(crate) fn has_still(&self, part: &Part) -> bool {
        self.has(part) && !self.moving.contains_key(part)
    }

    /// The fastest store in which all of these parts are to be had.
    pub(crate) fn common(&self, parts: &[Part]) -> Option<&Level> {
        let has_all = |level: &&Level| {
            let has = |part| self.places.get(part);
            let mut all = parts.iter();
            all.all(|part| has(part).is_some_and(|places| places.contains(&level.name)))
        };
        self.present().find(has_all)
    }

    /// Bytes of all stores that are there.
    pub(crate) fn capacity(&self) -> u64 {
        match &self.capacity {
            Some(capacity) if self.levels.is_empty() => capacity.bytes,
            _ => self.present().map(|level| level.bytes).sum(),
        }
    }

    /// Bytes of a store that parts take, or jobs were promised there.
    pub(crate) fn taken_in(&self, store: &str) -> u64 {
        let parts = self.parts.iter().filter(|(part, _)| {
            let places = self.places.get(part);
            places.is_some_and(|all| all.contains(store))
        });
        let parts: u64 = parts.map(|(_, bytes)| bytes).sum();
        let promised: u64 = match &self.levels[..] {
            [_] => self.promised.values().sum(),
            _ => {
                let here = self.written.values().filter(|(at, _)| at == store);
                here.map(|(_, bytes)| bytes).sum()
            }
        };
        parts.saturating_add(promised)
    }

    /// Bytes that parts take, or jobs were promised.
    pub(crate) fn taken(&self) -> u64 {
        match self.levels.len() {
            0 | 1 => {
                let parts = self.parts.values().sum::<u64>();
                parts.saturating_add(self.promised.values().sum())
            }
            _ => self.present().map(|level| self.taken_in(&level.name)).sum(),
        }
    }

    /// The stores with names, for people.
    pub(crate) fn store_infos(&self) -> Vec<StoreInfo> {
        let named = self.levels.iter().filter(|level| !level.name.is_empty());
        let info = |level: &Level| StoreInfo {
            name: level.name.clone(),
            capacity: level.bytes,
            taken: self.taken_in(&level.name).saturating_add(level.foreign),
            persistent: level.persistent,
            is_away: level.is_away,
        };
        named.map(info).collect()
    }

    /// What others have in the stores' file systems, now that the session begins.
    pub(crate) fn find_foreign(&mut self, free: impl Fn(&str) -> u64) {
        let taken: Vec<u64> = self.levels.iter().map(|l| self.taken_in(&l.name)).collect();
        for (level, taken) in self.levels.iter_mut().zip(taken) {
            let ours = level.bytes.saturating_sub(taken);
            level.foreign = ours.saturating_sub(free(&level.name));
        }
    }
}

impl Site {
    /// Bytes of a node's store that nothing has, and nothing is coming for.
    pub(crate) fn free_in(&self, name: &str, node: &Node, level: &Level) -> u64 {
        let own = |o: &&crate::state::Ordered| o.node == name && o.store == level.name;
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
        let Some(proof) = self.proof_of(part) else {
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
        match self.proof_of(part) {
            Some(proof) => {
                self.place((name, &to), part, room(&proof));
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
        self.jobs_that_wait();
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
        if self.proof_of(part).is_none() {
            self.doom_copy((name, &moving.to), part);
        }
        self.jobs_that_wait();
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
