//! Nodes: their stores, fast to slow, their content, and the space reserved for jobs there. docs/internals/site.md,
//! "Moves between stores".

use crate::model::checkpoints::CheckpointKey;
use crate::model::job::Makes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::site::{
    NodeStoreReport, Owner, Part, SlurmJobId, StoreCapacity, StoreContent, StoreInfo, Uid,
};
use tarn_types::account::sub;
use tarn_types::compute::Demand;
use tarn_types::ledger::{NodeAvailability, NodeLedger};
use tarn_types::space::TierSpace;
use tarn_types::units::Time;

/// A node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SiteNode {
    /// Its store, or the first of them, as the node reported it last.
    pub(crate) capacity: Option<StoreCapacity>,
    /// Its stores, fast to slow; one has no name.
    #[serde(default)]
    pub(crate) levels: Vec<SiteNodeStore>,
    /// Whether it takes orders.
    pub(crate) is_up: bool,
    /// Since when that is so, or is not.
    pub(crate) since: Time,
    /// The parts that it has, of versions that are known.
    pub(crate) parts: BTreeMap<Part, u64>,
    /// In which of its stores each of them is.
    #[serde(default)]
    pub(crate) places: BTreeMap<Part, BTreeSet<String>>,
    /// Those that are on their way from one store to another: also while the node does not answer.
    #[serde(default)]
    pub(crate) moving: BTreeMap<Part, PartMigration>,
    /// The parts that could not be brought to a store, and when that was tried last.
    #[serde(default)]
    pub(crate) stuck: BTreeMap<(Part, String), Time>,
    /// The parts that were brought for jobs before they had nodes, as long as no job with this node reads them.
    #[serde(default)]
    pub(crate) unused: BTreeSet<Part>,
    /// The content that it is to remove.
    pub(crate) doomed: BTreeSet<(Uid, StoreContent)>,
    /// The content that is there, and nobody knows.
    pub(crate) orphans: BTreeMap<(Uid, StoreContent), (u64, Time)>,
    /// The ports of its users' workers.
    pub(crate) ports: BTreeMap<Uid, u16>,
    /// Bytes reserved for jobs' outputs, by their future owners.
    pub(crate) promised: BTreeMap<(SlurmJobId, Owner), u64>,
    /// In which store a job writes a dataset, or has a partition, and bytes that it was promised there.
    #[serde(default)]
    pub(crate) written: BTreeMap<(SlurmJobId, String), (String, u64)>,
    /// In which store checkpoints are, and bytes that were promised them there.
    #[serde(default)]
    pub(crate) checkpoints: BTreeMap<CheckpointKey, (String, u64)>,
    /// In which store a dataset of several parts was merged for a job.
    #[serde(default)]
    pub(crate) merged: BTreeMap<(SlurmJobId, String), String>,
}

/// A store of a node, as the node reported it when its session began.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SiteNodeStore {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) persistent: bool,
    /// It is not mounted: nothing goes there, and its data is not available, but not lost.
    pub(crate) is_away: bool,
    /// Bytes of it that the file system has not got any more: somebody else's files.
    pub(crate) foreign: u64,
}

/// A part on its way from one store of a node to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartMigration {
    pub(crate) from: String,
    pub(crate) to: String,
    /// It stays where it is, too.
    pub(crate) keep: bool,
}

impl SiteNodeStore {
    fn new(name: String, capacity: &StoreCapacity, is_away: bool) -> Self {
        Self {
            name,
            bytes: capacity.bytes,
            persistent: capacity.persistent,
            is_away,
            foreign: 0,
        }
    }

    /// The stores that a node reports: without names, the one store.
    pub(crate) fn all(capacity: &StoreCapacity, stores: &[NodeStoreReport]) -> Vec<Self> {
        if stores.is_empty() {
            return vec![Self::new(String::new(), capacity, false)];
        }
        let level = |s: &NodeStoreReport| Self::new(s.name.clone(), &s.capacity, s.is_away);
        stores.iter().map(level).collect()
    }

    /// Whether a copy in a store that lasts so long may take the place of one that is here: a loss of power must not
    /// take the last persistent copy.
    pub(crate) fn is_replaced_by(&self, is_persistent: bool) -> bool {
        is_persistent || !self.persistent
    }
}

impl SiteNode {
    pub(crate) fn level(&self, store: &str) -> Option<&SiteNodeStore> {
        self.levels.iter().find(|level| level.name == store)
    }

    /// The stores that are there, fast to slow.
    pub(crate) fn present(&self) -> impl Iterator<Item = &SiteNodeStore> {
        self.levels.iter().filter(|level| !level.is_away)
    }

    /// The stores in which a part is to be had, fast to slow.
    pub(crate) fn places_of(&self, part: &Part) -> impl Iterator<Item = &SiteNodeStore> {
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
    pub(crate) fn common(&self, parts: &[Part]) -> Option<&SiteNodeStore> {
        let has_all = |level: &&SiteNodeStore| {
            let has = |part| self.places.get(part);
            let mut all = parts.iter();
            all.all(|part| has(part).is_some_and(|places| places.contains(&level.name)))
        };
        self.present().find(has_all)
    }

    /// The account of a store: other people's files and parts take bytes; jobs and checkpoints have others reserved.
    pub(crate) fn space_in(&self, level: &SiteNodeStore) -> TierSpace {
        let mut space = TierSpace::new(level.bytes);
        space.occupy(level.foreign);
        for (part, bytes) in &self.parts {
            let places = self.places.get(part);
            if places.is_some_and(|all| all.contains(&level.name)) {
                space.occupy(*bytes);
            }
        }
        match &self.levels[..] {
            // A state of a version that did not note stores has only the sums.
            [_] => self.promised.values().for_each(|b| space.reserve(*b)),
            _ => {
                let here = self.written.values().filter(|(at, _)| *at == level.name);
                here.for_each(|(_, bytes)| space.reserve(*bytes));
            }
        }
        let kept = self.checkpoints.values();
        let kept = kept.filter(|(at, _)| *at == level.name);
        kept.for_each(|(_, bytes)| space.reserve(*bytes));
        space
    }

    /// The bytes of a part in the stores that are there.
    pub(crate) fn present_bytes(&self, part: &Part, bytes: u64) -> u64 {
        if self.levels.len() <= 1 {
            return bytes;
        }
        let places = self.places.get(part);
        let has = |level: &&SiteNodeStore| places.is_some_and(|all| all.contains(&level.name));
        bytes * self.present().filter(has).count() as u64
    }

    /// Bytes of all stores that are there.
    pub(crate) fn capacity(&self) -> u64 {
        match (&self.levels[..], &self.capacity) {
            // Wherever a version wrote that did not note stores.
            ([], Some(capacity)) => capacity.bytes,
            _ => {
                let bytes = self.present().map(|level| level.bytes);
                bytes.fold(0, u64::saturating_add)
            }
        }
    }

    /// Its ledger: the stores that are there, and no cores, which are Slurm's. It is derived from the tables above each
    /// time, so it cannot differ from them.
    pub(crate) fn ledger(&self) -> NodeLedger {
        let tiers = match self.levels.len() {
            0 | 1 => vec![self.only_space()],
            _ => self.present().map(|level| self.space_in(level)).collect(),
        };
        let mut ledger = NodeLedger::new(Demand::default(), tiers);
        if !self.is_up {
            ledger.set_availability(NodeAvailability::Away);
        }
        ledger
    }

    /// The account of the one store of a node, wherever a version wrote that did not note stores.
    fn only_space(&self) -> TierSpace {
        let mut space = TierSpace::new(self.capacity());
        self.present().for_each(|l| space.occupy(l.foreign));
        self.parts.values().for_each(|b| space.occupy(*b));
        self.promised.values().for_each(|b| space.reserve(*b));
        let kept = self.checkpoints.values();
        kept.for_each(|(_, bytes)| space.reserve(*bytes));
        space
    }

    /// The stores with names, for people.
    pub(crate) fn store_infos(&self) -> Vec<StoreInfo> {
        let named = self.levels.iter().filter(|level| !level.name.is_empty());
        let info = |level: &SiteNodeStore| StoreInfo {
            name: level.name.clone(),
            capacity: level.bytes,
            taken: self.space_in(level).taken(),
            persistent: level.persistent,
            is_away: level.is_away,
        };
        named.map(info).collect()
    }

    /// Measures the space that others take in the stores' file systems, now that the session begins.
    pub(crate) fn find_foreign(&mut self, free: impl Fn(&str) -> u64) {
        self.levels.iter_mut().for_each(|level| level.foreign = 0);
        let ours = self.levels.iter().map(|level| self.space_in(level).free());
        let ours: Vec<u64> = ours.collect();
        for (level, ours) in self.levels.iter_mut().zip(ours) {
            level.foreign = ours.saturating_sub(free(&level.name));
        }
    }

    /// Whether a store is not mounted there, or the node has it no more.
    pub(crate) fn is_away(&self, store: &str) -> bool {
        match self.level(store) {
            Some(level) => level.is_away,
            None => !store.is_empty(),
        }
    }

    /// The replicas that the node must report to have still: of all owners that it has all parts of, in stores that are there.
    pub(crate) fn replicas_to_confirm(&self, partial: &[Owner]) -> BTreeSet<(Part, String)> {
        let is_away = |store: &String| self.level(store).is_some_and(|level| level.is_away);
        let mut all = BTreeSet::new();
        for part in self
            .parts
            .keys()
            .filter(|part| !partial.contains(&part.owner))
        {
            let places = self.places.get(part).cloned();
            let places = places.unwrap_or_else(|| BTreeSet::from([String::new()]));
            let there = places.into_iter().filter(|store| !is_away(store));
            all.extend(there.map(|store| (part.clone(), store)));
        }
        all
    }

    /// A job may write so much of a dataset, or have a partition of that size, in a store.
    pub(crate) fn promise(
        &mut self,
        job: SlurmJobId,
        (owner, name): (Owner, &str),
        store: String,
        bytes: u64,
    ) {
        let promised = self.promised.entry((job, owner)).or_default();
        // The sum of jobs' declared sizes is bounded only by their users' scripts.
        *promised = promised.saturating_add(bytes);
        let before = self.written.insert((job, name.to_owned()), (store, bytes));
        debug_assert!(
            before.is_none(),
            "job {job} was promised space for `{name}` twice"
        );
    }

    /// A dataset that a job has written is a part now, and its promise has ended, once. Returns the store that it is
    /// in.
    pub(crate) fn end_promise(&mut self, job: SlurmJobId, makes: &Makes) -> String {
        let owner = makes.version.owner;
        let key = (job, makes.version.dataset.clone());
        let (store, ended) = match self.written.get_mut(&key) {
            Some((store, bytes)) => (store.clone(), std::mem::take(bytes)),
            // A state of a version that did not note where a job writes.
            None => (String::new(), makes.size),
        };
        if let Some(promised) = self.promised.get_mut(&(job, owner)) {
            sub(promised, ended, "bytes promised to a job");
        }
        store
    }

    /// The data that a job was promised space for takes so many bytes: fewer than it might have, or more, if nobody knew how many.
    pub(crate) fn settle_promise(&mut self, key: (SlurmJobId, String), owner: Owner, bytes: u64) {
        let of_job = (key.0, owner);
        let Some((_, promised)) = self.written.get_mut(&key) else {
            return;
        };
        let before = std::mem::replace(promised, bytes);
        let all = self.promised.entry(of_job).or_default();
        sub(all, before, "bytes promised to a job");
        *all = all.saturating_add(bytes);
    }

    /// A job has left.
    pub(crate) fn end_job(&mut self, id: SlurmJobId) {
        self.promised.retain(|(job, _), _| *job != id);
        self.written.retain(|(job, _), _| *job != id);
        self.merged.retain(|(job, _), _| *job != id);
    }

    /// In which store a job writes a dataset, or has a partition.
    pub(crate) fn written_in(&self, id: SlurmJobId, name: &str) -> Option<&String> {
        let written = self.written.get(&(id, name.to_owned()));
        written.map(|(store, _)| store)
    }
}
