//! How space is made in a store of a node: parts that have another copy go, others are moved down, and sources can be read again.

use crate::model::catalog::VersionKey;
use crate::model::node::{SiteNode, SiteNodeStore};
use crate::stock::Stock;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::site::{Part, SlurmJobId};
use tarn_types::space::TierSpace;
use tarn_types::units::Time;

/// A step that frees space in a store for others.
pub(crate) enum Relief {
    /// A copy is removed.
    Drop(Part, String),
    /// A part goes to a slower store.
    Down(Part, String, String),
}

/// How space in a store is made.
pub(crate) struct ReliefPlan {
    /// The account of each store after the steps.
    pub(crate) spaces: BTreeMap<String, TierSpace>,
    /// The copies that would be gone.
    pub(crate) gone: BTreeSet<(Part, String)>,
    pub(crate) steps: Vec<Relief>,
}

impl ReliefPlan {
    /// Copies go from a store until there are so many bytes.
    fn drop(
        &mut self,
        level: &SiteNodeStore,
        candidates: Vec<(Time, u64, Part)>,
        lacks: u64,
        freed: &mut u64,
    ) {
        for (_, bytes, part) in candidates {
            if *freed >= lacks {
                return;
            }
            *freed += bytes;
            self.vacate(level, &part, bytes);
            self.steps.push(Relief::Drop(part, level.name.clone()));
        }
    }

    /// A part goes from a store.
    fn vacate(&mut self, level: &SiteNodeStore, part: &Part, bytes: u64) {
        self.gone.insert((part.clone(), level.name.clone()));
        if let Some(space) = self.spaces.get_mut(&level.name) {
            space.vacate(bytes);
        }
    }
}

/// Plans how space is made on a node.
pub(crate) struct ReliefPlanner<'a> {
    stock: Stock<'a>,
    name: &'a str,
    node: &'a SiteNode,
    /// Versions that jobs need which have not ended; of those that wait, the first job.
    used: BTreeMap<VersionKey, SlurmJobId>,
    pinned: BTreeSet<VersionKey>,
    /// Nothing moves down that somebody waits for.
    is_gentle: bool,
}

impl<'a> ReliefPlanner<'a> {
    pub(crate) fn new(
        stock: Stock<'a>,
        (name, node): (&'a str, &'a SiteNode),
        is_gentle: bool,
    ) -> Self {
        Self {
            stock,
            name,
            node,
            used: stock.used_by(),
            pinned: stock.pinned(None),
            is_gentle,
        }
    }

    /// Steps after which a store, the one at this position, has so many bytes more than its account has free now. `None` if it cannot have them.
    pub(crate) fn plan(
        &self,
        at: usize,
        lacks: u64,
        spaces: BTreeMap<String, TierSpace>,
    ) -> Option<Vec<Relief>> {
        let mut plan = ReliefPlan {
            spaces,
            gone: BTreeSet::new(),
            steps: Vec::new(),
        };
        self.relieve(at, lacks, &mut plan).then_some(plan.steps)
    }

    /// Adds to a plan the steps that free so many bytes of the store at this position. False if there is not as much.
    fn relieve(&self, at: usize, lacks: u64, plan: &mut ReliefPlan) -> bool {
        let level = &self.node.levels[at];
        let mut freed = 0;
        // Parts that have another copy.
        let spare = |part: &Part, _| self.is_spare(level, part, plan);
        let spare = self.candidates(level, plan, spare);
        plan.drop(level, spare, lacks, &mut freed);
        // Parts that can be kept in a slower store: unneeded ones before those that some job needs, of these first the
        // last job's.
        let may = |_: &Part, is_used| !(is_used && self.is_gentle);
        let mut down = self.candidates(level, plan, may);
        let needed = |part: &Part| self.used.get(&VersionKey::of(part)).copied();
        down.sort_by_key(|(time, bytes, part)| (needed(part).map(Reverse), *time, *bytes));
        for (_, bytes, part) in down {
            if freed >= lacks {
                break;
            }
            if let Some(to) = self.lower(at, (&part, bytes), plan) {
                freed += bytes;
                plan.vacate(level, &part, bytes);
                plan.steps.push(Relief::Down(part, level.name.clone(), to));
            }
        }
        // Parts that can be read outside again.
        let again = |part: &Part, is_used: bool| {
            let version = self.stock.catalog.version(&VersionKey::of(part));
            !is_used && version.is_some_and(|v| v.source.is_some())
        };
        let again = self.candidates(level, plan, again);
        plan.drop(level, again, lacks, &mut freed);
        freed >= lacks
    }

    /// Parts in a store that may go from it, with when they were used last and their bytes, the longest unused first;
    /// `may` gets with each whether a job needs it.
    fn candidates(
        &self,
        level: &SiteNodeStore,
        plan: &ReliefPlan,
        may: impl Fn(&Part, bool) -> bool,
    ) -> Vec<(Time, u64, Part)> {
        let mut all = Vec::new();
        for (part, places) in &self.node.places {
            let id = VersionKey::of(part);
            let key = (part.clone(), level.name.clone());
            let goes = self.node.moving.contains_key(part) || plan.gone.contains(&key);
            let is_pinned = self.pinned.contains(&id) && !self.makes_way(part);
            if !places.contains(&level.name) || goes || is_pinned {
                continue;
            }
            if let Some(version) = self.stock.catalog.version(&id)
                && may(part, self.is_used(part))
            {
                let bytes = self.node.parts.get(part).copied().unwrap_or(0);
                all.push((version.used, bytes, part.clone()));
            }
        }
        all.sort_unstable();
        all
    }

    /// Whether a job that has not ended needs a copy here.
    fn is_used(&self, part: &Part) -> bool {
        self.used.contains_key(&VersionKey::of(part)) && !self.makes_way(part)
    }

    fn makes_way(&self, part: &Part) -> bool {
        self.stock.makes_way(self.node, part)
    }

    /// Whether a copy may go as there is another: in a store of this node, or, if no job needs it, on another one.
    fn is_spare(&self, level: &SiteNodeStore, part: &Part, plan: &ReliefPlan) -> bool {
        let is_other = |l: &&SiteNodeStore| {
            l.name != level.name && !plan.gone.contains(&(part.clone(), l.name.clone()))
        };
        let mut here = self.node.places_of(part).filter(is_other);
        if here.any(|other| level.is_replaced_by(other.persistent)) {
            return true;
        }
        let mut others = self.stock.up().filter(|(n, _)| *n != self.name);
        !self.is_used(part)
            && others.any(|(_, node)| {
                let mut places = node.places_of(part);
                places.any(|other| level.is_replaced_by(other.persistent))
            })
    }

    /// A slower store that has space for a part, or where it can be made.
    fn lower(
        &self,
        at: usize,
        (part, bytes): (&Part, u64),
        plan: &mut ReliefPlan,
    ) -> Option<String> {
        let level = &self.node.levels[at];
        for (below, slower) in self.node.levels.iter().enumerate().skip(at + 1) {
            let may = !slower.is_away && level.is_replaced_by(slower.persistent);
            if !may || self.stock.is_stuck(self.node, part, &slower.name) {
                continue;
            }
            let Some(space) = plan.spaces.get(&slower.name) else {
                continue;
            };
            let lacks = space.lack(bytes);
            let before = (plan.steps.len(), plan.gone.clone(), plan.spaces.clone());
            if lacks > 0 && !self.relieve(below, lacks, plan) {
                plan.steps.truncate(before.0);
                (plan.gone, plan.spaces) = (before.1, before.2);
                continue;
            }
            if let Some(space) = plan.spaces.get_mut(&slower.name) {
                space.occupy(bytes);
            }
            return Some(slower.name.clone());
        }
        None
    }
}
