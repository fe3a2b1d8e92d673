//! Space in the stores of a node, and the moves between them for it: down to make space, up to be read.
//! docs/internals/site.md, "Moves between stores".

use crate::MAX_MOVES;
use crate::model::job::{Reads, SiteJob, SiteJobPhase};
use crate::model::node::{PartMigration, SiteNode, SiteNodeStore};
use crate::model::progress::PreparationState;
use crate::model::space::{SpaceAvailability, SpaceRequest};
use crate::relief::{Relief, ReliefPlanner};
use crate::state::Site;
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Part, SlurmJobId};
use tarn_types::space::TierSpace;

/// A node's stores in the order in which something is best kept: the wished one, then the others, fast to slow.
fn order<'a>(node: &'a SiteNode, tier: Option<&str>) -> Vec<&'a SiteNodeStore> {
    let mut all: Vec<&SiteNodeStore> = node.present().collect();
    all.sort_by_key(|level| tier != Some(&level.name[..]));
    all
}

impl Site {
    /// A store of a node with space for so many bytes: the best one that has it, or where it can be made.
    pub(crate) fn find_space(
        &mut self,
        name: &str,
        bytes: u64,
        whom: SpaceRequest<'_>,
    ) -> SpaceAvailability {
        let Some(node) = self.nodes.get(name) else {
            return SpaceAvailability::In(String::new());
        };
        let stores: Vec<String> = order(node, whom.tier)
            .iter()
            .map(|l| l.name.clone())
            .collect();
        // Data of unknown size goes where some space is free.
        let least = match stores.len() {
            1 => bytes,
            _ => bytes.max(1),
        };
        for store in stores {
            if whom.is_ahead && !self.has_free(name, &store, least) {
                continue;
            }
            match self.free_space((name, &store), least, whom, false) {
                SpaceAvailability::None(_) => {}
                found => return found,
            }
        }
        SpaceAvailability::None(self.stock().no_space(name, bytes))
    }

    /// Whether a store of a node has so many bytes that nothing has, and nothing is coming for.
    fn has_free(&self, name: &str, store: &str, bytes: u64) -> bool {
        let node = self.nodes.get(name);
        let level = node.and_then(|node| Some((node, node.level(store)?)));
        level.is_some_and(|(node, level)| self.stock().free_in(name, node, level) >= bytes)
    }

    /// Whether so many bytes are free in a store of a node; if not, orders the removals: data under way is waited for;
    /// data that is stored elsewhere too is dropped; data that is there alone goes to a slower store; data that can be
    /// read outside again is dropped.
    pub(crate) fn free_space(
        &mut self,
        (name, store): (&str, &str),
        bytes: u64,
        whom: SpaceRequest<'_>,
        is_gentle: bool,
    ) -> SpaceAvailability {
        let none = |site: &Self| SpaceAvailability::None(site.stock().no_space(name, bytes));
        let Some(node) = self.nodes.get(name) else {
            return none(self);
        };
        let stock = self.stock();
        let Some(at) = node
            .levels
            .iter()
            .position(|l| l.name == store && !l.is_away)
        else {
            return none(self);
        };
        let space = |level: &SiteNodeStore| (level.name.clone(), stock.space_in(name, node, level));
        let spaces: BTreeMap<String, TierSpace> = node.present().map(space).collect();
        let lacks = spaces[store].lack(bytes);
        if lacks == 0 {
            return SpaceAvailability::In(store.to_owned());
        }
        if node.levels[at].bytes < bytes {
            return none(self);
        }
        if self.stock().is_being_freed(name, node, store) {
            return SpaceAvailability::Soon;
        }
        let planner = ReliefPlanner::new(stock, (name, node), is_gentle);
        let Some(steps) = planner.plan(at, lacks, spaces) else {
            return none(self);
        };
        self.carry_out(name, steps, (store, whom.job));
        SpaceAvailability::Soon
    }

    /// Orders the steps of a plan; a part whose target still has to free its space goes later.
    fn carry_out(&mut self, name: &str, steps: Vec<Relief>, (store, job): (&str, SlurmJobId)) {
        let mut full = BTreeSet::new();
        let (mut dropped, mut moved) = (0, 0);
        for step in steps {
            match step {
                Relief::Drop(part, at) => {
                    self.drop_copy((name, &at), &part, job);
                    full.insert(at);
                    dropped += 1;
                }
                Relief::Down(part, from, to) => {
                    let moves = self.nodes.get(name).map_or(0, |node| node.moving.len());
                    let is_late = full.contains(&to) || moves >= MAX_MOVES;
                    full.insert(from.clone());
                    if is_late {
                        continue;
                    }
                    let text = format!(
                        "{part} goes from store `{from}` of node {name} to `{to}`: job {job} needs the space"
                    );
                    self.notify_owner(part.owner, text);
                    let keep = false;
                    self.start_move(name, &part, PartMigration { from, to, keep });
                    moved += 1;
                }
            }
        }
        let now = self.now;
        if let Some(job) = self.jobs.get_mut(&job) {
            let of = match store {
                "" => String::new(),
                store => format!(" in store `{store}`"),
            };
            let text = match (dropped, moved) {
                (0, 0) => return,
                (dropped, 0) => {
                    format!(
                        "{dropped} parts that can be fetched again are removed from {name}, for space{of}"
                    )
                }
                (0, moved) => format!("{moved} parts go to slower stores of {name}, for space{of}"),
                (dropped, moved) => format!(
                    "{dropped} parts that can be fetched again are removed from {name}, {moved} go to its slower stores, for space{of}"
                ),
            };
            job.note(now, text);
        }
    }

    /// A copy goes, as its content can be had again.
    fn drop_copy(&mut self, (name, store): (&str, &str), part: &Part, job: SlurmJobId) {
        if !store.is_empty() {
            let text = format!(
                "{part} goes from store `{store}` of node {name}, as it can be fetched again: job {job} needs the space"
            );
            self.notify_owner(part.owner, text);
        }
        self.unplace((name, store), part);
        self.doom_copy((name, store), part);
    }

    /// Brings a job's inputs on a node together in one store, the best one that has space for them: they are moved up
    /// before the gate opens. If no better one has space, they are read where they are stored.
    pub(crate) fn lift(
        &mut self,
        id: SlurmJobId,
        job: &SiteJob,
        name: &str,
        reads: &Reads,
    ) -> PreparationState {
        let parts = self.catalog.parts_of(&reads.version);
        // An input that is copied at the gate, or opened into memory, is read once.
        if reads.is_changed || self.catalog.is_sealed(&reads.version) {
            return PreparationState::Complete;
        }
        let Some(node) = self.nodes.get(name) else {
            return PreparationState::Pending;
        };
        if parts.iter().any(|part| node.moving.contains_key(part)) {
            return PreparationState::Pending;
        }
        let is_together = node.common(&parts).is_some();
        let is_pinned = self.stock().pinned(Some(id)).contains(&reads.version);
        let whom = SpaceRequest {
            job: id,
            tier: reads.tier.as_deref(),
            size: reads.size,
            is_ahead: false,
        };
        let stores: Vec<SiteNodeStore> = order(node, whom.tier).into_iter().cloned().collect();
        for level in stores {
            let Some(node) = self.nodes.get(name) else {
                return PreparationState::Pending;
            };
            let lacks = |part: &&Part| !node.places_of(part).any(|l| l.name == level.name);
            let missing: Vec<Part> = parts.iter().filter(lacks).cloned().collect();
            if missing.is_empty() {
                return PreparationState::Complete;
            }
            if missing
                .iter()
                .any(|part| self.stock().is_stuck(node, part, &level.name))
            {
                continue;
            }
            let bytes = missing
                .iter()
                .map(|part| node.parts.get(part).copied().unwrap_or(0));
            let bytes = bytes.sum();
            // Nobody waits for a part that is brought ahead: it takes free space only.
            let is_ahead = job.phase == SiteJobPhase::Queued;
            if is_ahead && self.stock().free_in(name, node, &level) < bytes {
                continue;
            }
            match self.free_space((name, &level.name), bytes, whom, is_together) {
                SpaceAvailability::In(_) => {
                    for part in missing {
                        self.raise(id, (name, &level), part, is_pinned);
                    }
                    return PreparationState::Pending;
                }
                SpaceAvailability::Soon => return PreparationState::Pending,
                SpaceAvailability::None(_) => {}
            }
        }
        match is_together {
            true => PreparationState::Complete,
            false => PreparationState::Failed(self.scattered(name, reads)),
        }
    }

    fn scattered(&self, name: &str, reads: &Reads) -> RequestError {
        let text = format!(
            "the parts of `{}` are in several stores of node {name}, none of which has space for all of them",
            reads.name
        );
        RequestError::new(Code::NoSpace, text)
    }

    /// A part is brought to a store to be read there.
    fn raise(
        &mut self,
        id: SlurmJobId,
        (name, level): (&str, &SiteNodeStore),
        part: Part,
        is_pinned: bool,
    ) {
        let from = self.nodes.get(name).and_then(|node| {
            let from = node.places_of(&part).next()?;
            Some((from.name.clone(), from.is_replaced_by(level.persistent)))
        });
        let Some((from, is_as_good)) = from else {
            return;
        };
        let to = level.name.clone();
        let now = self.now;
        let text =
            format!("{part} goes from store `{from}` of node {name} to `{to}`, to be read there");
        if let Some(job) = self.jobs.get_mut(&id) {
            job.note(now, text.clone());
        }
        self.notify_owner(part.owner, format!("{text} by job {id}"));
        // Somebody reads it where it is, or it would not outlive a loss of power any more.
        let keep = is_pinned || !is_as_good;
        self.start_move(name, &part, PartMigration { from, to, keep });
    }
}
