//! Versions, their parts and where the replicas are: summaries only, never file lists.

use std::collections::{BTreeMap, BTreeSet};
use tarn_types::event::version_hash;
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, NodeId, TierId, TierRef, TransferId};
use tarn_types::part::{PartClass, PartInfo, PartRef, Place, StoreKey};
use tarn_types::units::Time;
use tarn_types::workflow::{Role, Workflow};

/// A replica of a part at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartReplica {
    pub(crate) state: PartReplicaState,
    /// Bytes it takes on a tier, 0 elsewhere.
    pub(crate) stored: u64,
    /// Running steps and transfers that read it.
    pub(crate) pins: u32,
    /// It was brought here for a step, not made here.
    pub(crate) staged: bool,
    /// It belongs to another workflow, which accounts for its space: it is only read, and stays. Its pin is never taken away.
    pub(crate) is_others: bool,
}

impl PartReplica {
    /// One of another workflow.
    pub(crate) const OF_OTHERS: Self = Self {
        state: PartReplicaState::Present,
        stored: 0,
        pins: 1,
        staged: false,
        is_others: true,
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartReplicaState {
    Incoming(TransferId),
    /// It is there, outside, and a transfer puts it there again: nobody else begins to read it. If that fails, it has stayed.
    Renewed(TransferId),
    Present,
    Leaving,
    /// No step of this run reads it any more: it stays for a later run while nobody needs its space. This one reads it
    /// to rescue it.
    Cached,
    /// It was found damaged: not to be read any more.
    Bad,
}

impl PartReplicaState {
    /// It is found damaged. A replica on its way there may become whole.
    pub(crate) fn damaged(self) -> Self {
        match self {
            Self::Incoming(id) | Self::Renewed(id) => Self::Incoming(id),
            _ => Self::Bad,
        }
    }
}

/// An instance that expects an entry of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryReader {
    pub(crate) reader: InstanceId,
    pub(crate) maker: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct TrackedPart {
    pub(crate) info: PartInfo,
    pub(crate) replicas: BTreeMap<Place, PartReplica>,
    /// Bound instances that have yet to read it.
    pub(crate) readers: u32,
    /// Tries to move it that failed in a row, each with every place that it could be read from.
    pub(crate) failures: u32,
    /// Places from which it could not be brought to a node (`None`: outside): all others are tried before them.
    pub(crate) refused: BTreeSet<(Option<NodeId>, Place)>,
    /// Until then it is not tried again.
    pub(crate) rests_until: Time,
    /// Nodes to which a transfer has failed that read a replica on its way: until one succeeds, they read replicas that
    /// are there.
    pub(crate) followed_in_vain: BTreeSet<NodeId>,
}

impl TrackedPart {
    pub(crate) fn new(info: PartInfo) -> Self {
        Self {
            info,
            replicas: BTreeMap::new(),
            readers: 0,
            failures: 0,
            refused: BTreeSet::new(),
            rests_until: 0,
            followed_in_vain: BTreeSet::new(),
        }
    }

    /// The state of a replica that a transfer begins to bring.
    pub(crate) fn coming(&self, to: &Place, id: TransferId) -> PartReplicaState {
        match self.replicas.get(to).map(|r| r.state) {
            Some(PartReplicaState::Present) => PartReplicaState::Renewed(id),
            _ => PartReplicaState::Incoming(id),
        }
    }

    /// A transfer to a place has failed: an earlier replica there has stayed.
    pub(crate) fn does_not_come(&mut self, to: &Place) {
        match self.replicas.get_mut(to) {
            Some(r) if matches!(r.state, PartReplicaState::Renewed(_)) => {
                r.state = PartReplicaState::Present;
            }
            _ => drop(self.replicas.remove(to)),
        }
    }

    /// Whether a place has a replica that belongs to another workflow.
    pub(crate) fn is_others_at(&self, at: &Place) -> bool {
        self.replicas.get(at).is_some_and(|r| r.is_others)
    }

    /// Places whose replica can be read.
    pub(crate) fn present(&self) -> impl Iterator<Item = (&Place, &PartReplica)> {
        self.replicas
            .iter()
            .filter(|(_, r)| r.state == PartReplicaState::Present)
    }

    /// Whether no replica is there or on its way, but for those that leave, are damaged, or stay as cache, which can go at any
    /// time.
    pub(crate) fn has_left(&self) -> bool {
        let comes_or_is = |r: &PartReplica| {
            matches!(
                r.state,
                PartReplicaState::Present
                    | PartReplicaState::Incoming(_)
                    | PartReplicaState::Renewed(_)
            )
        };
        !self.replicas.values().any(comes_or_is)
    }

    /// Whether no readable replica is left or on its way.
    pub(crate) fn is_lost(&self) -> bool {
        let mut states = self.replicas.values().map(|r| r.state);
        states.all(|state| state == PartReplicaState::Bad)
    }

    /// Whether it could not be brought from a place to a node (`None`: outside) and others have yet to be tried.
    pub(crate) fn is_refused(&self, to: Option<NodeId>, from: &Place) -> bool {
        // No key is made where nothing has failed, which is nearly always.
        !self.refused.is_empty() && self.refused.contains(&(to, from.clone()))
    }

    /// The replica to read it from when it goes out: on a node if one is there, the fastest tier first.
    pub(crate) fn nearest(&self) -> Option<&Place> {
        let places = || self.present().map(|(place, _)| place);
        places()
            .find(|p| !self.is_refused(None, p))
            .or_else(|| places().next())
    }

    /// The replica to rescue it from: one that this run still needs comes before one that stays as cache.
    pub(crate) fn rescued_from(&self) -> Option<&Place> {
        let is_cached = |(_, r): &(&Place, &PartReplica)| r.state == PartReplicaState::Cached;
        let cached = || self.replicas.iter().find(is_cached);
        self.nearest().or_else(|| cached().map(|(place, _)| place))
    }

    /// The fastest tier of a node that has it.
    pub(crate) fn on_node(&self, node: NodeId) -> Option<TierRef> {
        let (first, last) = (tier_ref(node, 0), tier_ref(node, u32::MAX));
        let mut range = self.replicas.range(Place::Node(first)..=Place::Node(last));
        range.find_map(|(p, r)| match p {
            Place::Node(s) if r.state == PartReplicaState::Present => Some(*s),
            _ => None,
        })
    }

    /// The transfer that brings a replica to a node, if one does.
    pub(crate) fn incoming_to(&self, node: NodeId) -> Option<TransferId> {
        let (first, last) = (tier_ref(node, 0), tier_ref(node, u32::MAX));
        let mut range = self.replicas.range(Place::Node(first)..=Place::Node(last));
        range.find_map(|(_, r)| match r.state {
            PartReplicaState::Incoming(id) => Some(id),
            _ => None,
        })
    }

    /// Whether a replica is on its way to this node, on this tier or a faster one.
    pub(crate) fn incoming(&self, at: TierRef) -> bool {
        let range = self
            .replicas
            .range(Place::Node(tier_ref(at.node, 0))..=Place::Node(at));
        range
            .into_iter()
            .any(|(_, r)| matches!(r.state, PartReplicaState::Incoming(_)))
    }
}

fn tier_ref(node: NodeId, tier: u32) -> TierRef {
    TierRef {
        node,
        tier: TierId(tier),
    }
}

#[derive(Debug, Default)]
pub(crate) struct TrackedVersion {
    pub(crate) parts: BTreeMap<(u32, u32), TrackedPart>,
    /// All parts are known: no instance will add one.
    pub(crate) sealed: bool,
    /// Steps that read it and are not bound yet.
    pub(crate) unbound: u32,
    /// It is whole at its dataset's `dest`.
    pub(crate) delivered: bool,
    /// The rescue copy is made or was refused for good.
    pub(crate) rescued: bool,
    /// Why the rescue copy was refused, as it was reported.
    pub(crate) refusal: Option<String>,
    /// Parts whose last replica has left because nobody needed it: it does not become whole again.
    pub(crate) thinned: BTreeSet<(u32, u32)>,
    /// The parts of each top-level entry, where it is divided by entries.
    pub(crate) by_entry: BTreeMap<String, BTreeSet<(u32, u32)>>,
    /// Entries that instances wait for by themselves.
    pub(crate) expected: BTreeMap<String, Vec<EntryReader>>,
    /// An instance has written to an entry that another one was to make: none is complete before the version is.
    pub(crate) crossed: bool,
}

impl TrackedVersion {
    pub(crate) fn insert(&mut self, key: (u32, u32), part: TrackedPart) {
        if let PartClass::Entry(name) = &part.info.class {
            self.by_entry.entry(name.clone()).or_default().insert(key);
        }
        self.parts.insert(key, part);
    }

    pub(crate) fn remove(&mut self, key: (u32, u32)) -> Option<TrackedPart> {
        let part = self.parts.remove(&key)?;
        if let PartClass::Entry(name) = &part.info.class
            && let Some(keys) = self.by_entry.get_mut(name)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_entry.remove(name);
            }
        }
        Some(part)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.parts.values().map(|p| p.info.bytes).sum()
    }

    /// The space that it takes on a tier: less than its bytes where files have holes.
    pub(crate) fn stored(&self) -> u64 {
        self.parts.values().map(|p| p.info.stored).sum()
    }

    /// The content hash, if every part has been read.
    pub(crate) fn hash(&self) -> Option<Hash> {
        let hashes: Option<Vec<_>> = self
            .parts
            .values()
            .map(|p| p.info.hash.map(|h| (&p.info.class, h)))
            .collect();
        hashes.map(version_hash)
    }

    /// The parts of an entry.
    pub(crate) fn parts_of_entry(&self, data: DataId, version: u32, name: &str) -> Vec<PartRef> {
        let keys = self.by_entry.get(name).into_iter().flatten();
        keys.map(|(origin, seq)| PartRef {
            data,
            version,
            origin: *origin,
            seq: *seq,
        })
        .collect()
    }

    /// Whether an instance has written to an entry that another one was to make.
    pub(crate) fn is_crossed(&self) -> bool {
        self.expected.iter().any(|(name, all)| {
            let origins = || self.by_entry.get(name).into_iter().flatten();
            all.iter()
                .filter_map(|e| e.maker)
                .any(|maker| origins().any(|(origin, _)| *origin != maker))
        })
    }
}

#[derive(Debug)]
pub(crate) struct TrackedData {
    versions: Vec<Vec<TrackedVersion>>,
    /// Parts whose replicas may have become superfluous.
    pub(crate) to_check: BTreeSet<PartRef>,
    /// Source replicas that a finished transfer has made superfluous.
    pub(crate) to_release: BTreeMap<(PartRef, Place), TransferId>,
}

impl TrackedData {
    pub(crate) fn new(w: &Workflow) -> Self {
        let of = |i: usize| {
            let last = w.last_version(DataId(i as u32));
            (0..=last).map(|_| TrackedVersion::default()).collect()
        };
        let mut this = Self {
            versions: (0..w.data.len()).map(of).collect(),
            to_check: BTreeSet::new(),
            to_release: BTreeMap::new(),
        };
        for step in &w.steps {
            for (data, version) in reads(step) {
                this.version_mut(data, version).unbound += 1;
            }
        }
        this
    }

    pub(crate) fn version(&self, data: DataId, version: u32) -> &TrackedVersion {
        &self.versions[data.at()][version as usize]
    }

    pub(crate) fn version_mut(&mut self, data: DataId, version: u32) -> &mut TrackedVersion {
        &mut self.versions[data.at()][version as usize]
    }

    /// After a crash: replicas that were to leave and are still there have not left.
    pub(crate) fn resume_thinned(&mut self) {
        for version in self.versions.iter_mut().flatten() {
            let parts = &version.parts;
            let left = |key: &(u32, u32)| parts.get(key).is_some_and(TrackedPart::has_left);
            version.thinned.retain(left);
        }
    }

    /// All versions with their names.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (DataId, u32, &TrackedVersion)> {
        self.versions.iter().enumerate().flat_map(|(d, vs)| {
            let id = DataId(d as u32);
            vs.iter()
                .enumerate()
                .map(move |(v, version)| (id, v as u32, version))
        })
    }

    pub(crate) fn part(&self, p: PartRef) -> Option<&TrackedPart> {
        self.version(p.data, p.version)
            .parts
            .get(&(p.origin, p.seq))
    }

    pub(crate) fn part_mut(&mut self, p: PartRef) -> Option<&mut TrackedPart> {
        self.version_mut(p.data, p.version)
            .parts
            .get_mut(&(p.origin, p.seq))
    }

    /// Somebody has looked at a replica of another workflow: only a whole one is there.
    pub(crate) fn see_others(&mut self, p: PartRef, at: &Place, is_whole: bool) {
        let Some(part) = self.part_mut(p) else {
            return;
        };
        if is_whole {
            part.replicas.insert(at.clone(), PartReplica::OF_OTHERS);
        } else {
            part.replicas.remove(at);
        }
    }

    pub(crate) fn replica_mut(&mut self, p: PartRef, at: &Place) -> Option<&mut PartReplica> {
        self.part_mut(p)?.replicas.get_mut(at)
    }

    /// Every part with its name.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (PartRef, &TrackedPart)> {
        self.versions().flat_map(|(data, version, v)| {
            v.parts.iter().map(move |(&(origin, seq), part)| {
                let name = PartRef {
                    data,
                    version,
                    origin,
                    seq,
                };
                (name, part)
            })
        })
    }

    /// All replicas but sources and those of other workflows. A replica that is damaged outside stays there and does
    /// not count.
    pub(crate) fn replicas(&self) -> Vec<(PartRef, StoreKey, Place)> {
        let mut all = Vec::new();
        for (name, part) in self.parts() {
            for (place, replica) in &part.replicas {
                let is_one = match (place, replica.state) {
                    (Place::Source, _) | (_, PartReplicaState::Incoming(_)) => false,
                    _ if replica.is_others => false,
                    (Place::External(_), state) => state != PartReplicaState::Bad,
                    _ => true,
                };
                if is_one {
                    all.push((name, part.info.key.clone(), place.clone()));
                }
            }
        }
        all
    }
}

/// The distinct versions that a step reads.
pub(crate) fn reads(step: &tarn_types::workflow::Step) -> BTreeSet<(DataId, u32)> {
    let uses = step.uses.iter().filter(|u| u.role != Role::Out);
    let mut all: BTreeSet<_> = uses.filter_map(|u| Some((u.data, u.reads?))).collect();
    if let Some(tarn_types::workflow::Foreach::Entries { data, version, .. }) = &step.foreach {
        all.insert((*data, *version));
    }
    all
}

/// The versions that a step makes.
pub(crate) fn makes(step: &tarn_types::workflow::Step) -> impl Iterator<Item = (DataId, u32)> {
    step.uses.iter().filter_map(|u| Some((u.data, u.makes?)))
}
