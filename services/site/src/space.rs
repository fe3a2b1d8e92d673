//! Room in the stores of a node, and what is moved between them for it: down to make room, up to be read. docs/internals/site.md, "Moves
//! between stores".

use crate::MAX_MOVES;
use crate::model::catalog::VersionId;
use crate::model::job::{JobState, Phase, Reads};
use crate::model::node::{Level, Moving, Node};
use crate::model::orders::Why;
use crate::model::progress::Progress;
use crate::model::space::{Space, SpaceRequest};
use crate::state::Site;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{Code, Refusal};
use tarn_proto::site::{Held, Job, Part};
use tarn_types::units::Time;

/// What goes from a store, for others to have room there.
enum Relief {
    /// A copy is removed.
    Drop(Part, String),
    /// A part goes to a slower store.
    Down(Part, String, String),
}

/// How room in a store is made.
struct Plan {
    /// What would be free in each store.
    free: BTreeMap<String, u64>,
    /// The copies that would be gone.
    gone: BTreeSet<(Part, String)>,
    steps: Vec<Relief>,
}

impl Plan {
    /// Copies go from a store until there are so many bytes.
    fn drop(
        &mut self,
        level: &Level,
        candidates: Vec<(Time, u64, Part)>,
        lacks: u64,
        freed: &mut u64,
    ) {
        for (_, bytes, part) in candidates {
            if *freed >= lacks {
                return;
            }
            *freed += bytes;
            self.gone.insert((part.clone(), level.name.clone()));
            self.steps.push(Relief::Drop(part, level.name.clone()));
        }
    }
}

/// What a plan for a node is made of.
struct About<'a> {
    name: &'a str,
    node: &'a Node,
    /// Versions that jobs need which have not ended; of those that wait, the first job.
    used: BTreeMap<VersionId, Job>,
    pinned: BTreeSet<VersionId>,
    /// Nothing moves down that somebody waits for.
    is_gentle: bool,
}

/// A node's stores in the order in which something is best kept: the one that is wished for, then the others, fast to slow.
fn order<'a>(node: &'a Node, tier: Option<&str>) -> Vec<&'a Level> {
    let mut all: Vec<&Level> = node.present().collect();
    all.sort_by_key(|level| tier != Some(&level.name[..]));
    all
}

impl Site {
    /// A store of a node with room for so many bytes: the best one that has it, or where it can be made.
    pub(crate) fn find_space(&mut self, name: &str, bytes: u64, whom: SpaceRequest<'_>) -> Space {
        let Some(node) = self.nodes.get(name) else {
            return Space::In(String::new());
        };
        let stores: Vec<String> = order(node, whom.tier)
            .iter()
            .map(|l| l.name.clone())
            .collect();
        // What takes nobody knows how much goes where there is some.
        let least = match stores.len() {
            1 => bytes,
            _ => bytes.max(1),
        };
        for store in stores {
            match self.free_space((name, &store), least, whom, false) {
                Space::None(_) => {}
                found => return found,
            }
        }
        Space::None(self.no_space(name, bytes))
    }

    fn no_space(&self, name: &str, bytes: u64) -> Refusal {
        let node = self.nodes.get(name).into_iter();
        let stores: Vec<String> = node
            .flat_map(|node| node.present().map(move |level| (node, level)))
            .map(|(node, level)| {
                let free = self.free_in(name, node, level);
                let taken = level.bytes.saturating_sub(free);
                let of = if level.name.is_empty() {
                    String::new()
                } else {
                    format!(" in store `{}`", level.name)
                };
                format!("{taken} of {}{of}", level.bytes)
            })
            .collect();
        let text = format!(
            "node {name} has no space: {bytes} bytes are needed, {} are taken by data that is used or kept (`tarn data ls`)",
            stores.join(", ")
        );
        Refusal::new(Code::NoSpace, text)
    }

    /// Whether so many bytes are free in a store of a node; if not, what makes them so is ordered: what is under way is waited for; what
    /// lies elsewhere too is dropped; what is there alone goes to a slower store; what can be read outside again is dropped.
    pub(crate) fn free_space(
        &mut self,
        (name, store): (&str, &str),
        bytes: u64,
        whom: SpaceRequest<'_>,
        is_gentle: bool,
    ) -> Space {
        let none = |site: &Self| Space::None(site.no_space(name, bytes));
        let Some(node) = self.nodes.get(name) else {
            return none(self);
        };
        let Some(at) = node
            .levels
            .iter()
            .position(|l| l.name == store && !l.is_away)
        else {
            return none(self);
        };
        let free = |level: &Level| (level.name.clone(), self.free_in(name, node, level));
        let free: BTreeMap<String, u64> = node.present().map(free).collect();
        let lacks = bytes.saturating_sub(free[store]);
        if lacks == 0 {
            return Space::In(store.to_owned());
        }
        if node.levels[at].bytes < bytes {
            return none(self);
        }
        if self.is_being_freed(name, node, store) {
            return Space::Soon;
        }
        let about = About {
            name,
            node,
            used: self.used_by(),
            pinned: self.pinned(None),
            is_gentle,
        };
        let mut plan = Plan {
            free,
            gone: BTreeSet::new(),
            steps: Vec::new(),
        };
        if !self.relieve(&about, at, lacks, &mut plan) {
            return none(self);
        }
        self.carry_out(name, plan.steps, (store, whom.job));
        Space::Soon
    }

    fn is_being_freed(&self, name: &str, node: &Node, store: &str) -> bool {
        let mut orders = self.orders.values().filter(|o| o.node == name);
        let reclaims = orders.any(|o| match &o.why {
            Why::Reclaim(_, Held::Copy(_, at)) => at == store,
            Why::Reclaim(..) => true,
            _ => false,
        });
        let mut moving = node.moving.values();
        reclaims || moving.any(|m| m.from == store && !m.keep)
    }

    /// The versions that jobs need which have not ended, each with the first of them.
    fn used_by(&self) -> BTreeMap<VersionId, Job> {
        let mut all = BTreeMap::new();
        for (id, job) in &self.jobs {
            for version in job.needs_of(&self.catalog) {
                all.entry(version.clone()).or_insert(*id);
            }
        }
        all
    }

    /// Adds to a plan what gives so many bytes of the store at this position. False if there is not as much.
    fn relieve(&self, about: &About<'_>, at: usize, lacks: u64, plan: &mut Plan) -> bool {
        let level = &about.node.levels[at];
        let mut freed = 0;
        // What has another copy.
        let spare = |part: &Part, _| self.is_spare(about, level, part, plan);
        let spare = self.candidates(about, level, plan, spare);
        plan.drop(level, spare, lacks, &mut freed);
        // What can be kept in a slower store: what nobody needs before what some job does, of that what the last one does.
        let may = |_: &Part, is_used| !(is_used && about.is_gentle);
        let mut down = self.candidates(about, level, plan, may);
        let needed = |part: &Part| about.used.get(&VersionId::of(part)).copied();
        down.sort_by_key(|(time, bytes, part)| (needed(part).map(Reverse), *time, *bytes));
        for (_, bytes, part) in down {
            if freed >= lacks {
                break;
            }
            if let Some(to) = self.lower(about, at, (&part, bytes), plan) {
                freed += bytes;
                plan.gone.insert((part.clone(), level.name.clone()));
                plan.steps.push(Relief::Down(part, level.name.clone(), to));
            }
        }
        // What can be read outside again.
        let again = |part: &Part, is_used: bool| {
            let version = self.catalog.version(&VersionId::of(part));
            !is_used && version.is_some_and(|v| v.source.is_some())
        };
        let again = self.candidates(about, level, plan, again);
        plan.drop(level, again, lacks, &mut freed);
        freed >= lacks
    }

    /// Parts in a store that may go from it, with when they were used last and their bytes, the longest unused first; `may` is told of each
    /// whether a job needs it.
    fn candidates(
        &self,
        about: &About<'_>,
        level: &Level,
        plan: &Plan,
        may: impl Fn(&Part, bool) -> bool,
    ) -> Vec<(Time, u64, Part)> {
        let mut all = Vec::new();
        for (part, places) in &about.node.places {
            let id = VersionId::of(part);
            let key = (part.clone(), level.name.clone());
            let goes = about.node.moving.contains_key(part) || plan.gone.contains(&key);
            if !places.contains(&level.name) || goes || about.pinned.contains(&id) {
                continue;
            }
            if let Some(version) = self.catalog.version(&id)
                && may(part, about.used.contains_key(&id))
            {
                let bytes = about.node.parts.get(part).copied().unwrap_or(0);
                all.push((version.used, bytes, part.clone()));
            }
        }
        all.sort_unstable();
        all
    }

    /// Whether a copy may go as there is another: in a store of this node, or, of what no job needs, on another one.
    fn is_spare(&self, about: &About<'_>, level: &Level, part: &Part, plan: &Plan) -> bool {
        let is_other = |l: &&Level| {
            l.name != level.name && !plan.gone.contains(&(part.clone(), l.name.clone()))
        };
        let mut here = about.node.places_of(part).filter(is_other);
        if here.any(|other| level.is_replaced_by(other.persistent)) {
            return true;
        }
        let mut others = self
            .nodes
            .iter()
            .filter(|(n, node)| *n != about.name && node.is_up);
        !about.used.contains_key(&VersionId::of(part))
            && others.any(|(_, node)| {
                let mut places = node.places_of(part);
                places.any(|other| level.is_replaced_by(other.persistent))
            })
    }

    /// A slower store that has room for a part, or where it can be made.
    fn lower(
        &self,
        about: &About<'_>,
        at: usize,
        (part, bytes): (&Part, u64),
        plan: &mut Plan,
    ) -> Option<String> {
        let level = &about.node.levels[at];
        for (below, slower) in about.node.levels.iter().enumerate().skip(at + 1) {
            let may = !slower.is_away && level.is_replaced_by(slower.persistent);
            if !may || self.is_stuck(about.node, part, &slower.name) {
                continue;
            }
            let free = plan.free.get(&slower.name).copied().unwrap_or(0);
            let lacks = bytes.saturating_sub(free);
            let before = (plan.steps.len(), plan.gone.clone(), plan.free.clone());
            if lacks > 0 && !self.relieve(about, below, lacks, plan) {
                plan.steps.truncate(before.0);
                (plan.gone, plan.free) = (before.1, before.2);
                continue;
            }
            let left = free.max(bytes) - bytes;
            plan.free.insert(slower.name.clone(), left);
            return Some(slower.name.clone());
        }
        None
    }

    /// Orders what a plan says; what is to go where room is only being made goes later.
    fn carry_out(&mut self, name: &str, steps: Vec<Relief>, (store, job): (&str, Job)) {
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
                    self.tell(part.owner, text);
                    let keep = false;
                    self.start_move(name, &part, Moving { from, to, keep });
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

    /// A copy goes, as what it holds can be had again.
    fn drop_copy(&mut self, (name, store): (&str, &str), part: &Part, job: Job) {
        if !store.is_empty() {
            let text = format!(
                "{part} goes from store `{store}` of node {name}, as it can be fetched again: job {job} needs the space"
            );
            self.tell(part.owner, text);
        }
        self.unplace((name, store), part);
        self.doom_copy((name, store), part);
    }

    /// Sees to it that what a job reads on a node lies together in one store, the best one that has room for it: what is read is moved up
    /// before the gate opens. Where no better one has room, it is read where it lies.
    pub(crate) fn lift(&mut self, id: Job, job: &JobState, name: &str, reads: &Reads) -> Progress {
        let parts = self.catalog.parts_of(&reads.version);
        // What is copied at the gate, or opened into memory, is read once.
        if reads.is_changed || self.catalog.is_sealed(&reads.version) {
            return Progress::Complete;
        }
        let Some(node) = self.nodes.get(name) else {
            return Progress::Pending;
        };
        if parts.iter().any(|part| node.moving.contains_key(part)) {
            return Progress::Pending;
        }
        let is_together = node.common(&parts).is_some();
        let is_pinned = self.pinned(Some(id)).contains(&reads.version);
        let whom = SpaceRequest {
            job: id,
            tier: reads.tier.as_deref(),
            size: reads.size,
        };
        let stores: Vec<Level> = order(node, whom.tier).into_iter().cloned().collect();
        for level in stores {
            let Some(node) = self.nodes.get(name) else {
                return Progress::Pending;
            };
            let lacks = |part: &&Part| !node.places_of(part).any(|l| l.name == level.name);
            let missing: Vec<Part> = parts.iter().filter(lacks).cloned().collect();
            if missing.is_empty() {
                return Progress::Complete;
            }
            if missing
                .iter()
                .any(|part| self.is_stuck(node, part, &level.name))
            {
                continue;
            }
            let bytes = missing
                .iter()
                .map(|part| node.parts.get(part).copied().unwrap_or(0));
            let bytes = bytes.sum();
            // Nobody waits for what is brought ahead: it takes what is free.
            let is_ahead = job.phase == Phase::Waiting;
            if is_ahead && self.free_in(name, node, &level) < bytes {
                continue;
            }
            match self.free_space((name, &level.name), bytes, whom, is_together) {
                Space::In(_) => {
                    for part in missing {
                        self.raise(id, (name, &level), part, is_pinned);
                    }
                    return Progress::Pending;
                }
                Space::Soon => return Progress::Pending,
                Space::None(_) => {}
            }
        }
        match is_together {
            true => Progress::Complete,
            false => Progress::Failed(self.scattered(name, reads)),
        }
    }

    fn scattered(&self, name: &str, reads: &Reads) -> Refusal {
        let text = format!(
            "the parts of `{}` are in several stores of node {name}, none of which has space for all of them",
            reads.name
        );
        Refusal::new(Code::NoSpace, text)
    }

    /// A part is brought to a store to be read there.
    fn raise(&mut self, id: Job, (name, level): (&str, &Level), part: Part, is_pinned: bool) {
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
        self.tell(part.owner, format!("{text} by job {id}"));
        // Somebody reads it where it is, or it would not outlive a loss of power any more.
        let keep = is_pinned || !is_as_good;
        self.start_move(name, &part, Moving { from, to, keep });
    }
}
