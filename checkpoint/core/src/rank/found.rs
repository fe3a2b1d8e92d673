//! The remains of earlier starts of the program: which versions there are, on which nodes, and which of them are whole. Versions
//! that were staged are completed first, so that all that follows reads arenas alone.

mod mend;

use super::exchange::{ExchangeKind, agree};
use super::files::{ARENA, PARITY, arena, on_tier};
use super::outside::{self, ExternalVersions};
use super::parity;
use super::source::{RemoteMedium, VersionIdentity, VersionSource};
use super::{Options, Restorable, left};
use crate::arena::{Arena, PersistenceLevel, ProgramStart, Version, VersionId};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tarn_ports::{Medium, MediumError, Ranks, ReadableMedium, Vault};

/// An arena that was found. All ranks know of the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SurvivingArena {
    /// A rank on its node.
    pub(super) host: u32,
    pub(super) name: String,
    pub(super) size: u64,
    identity: u128,
    /// The start that made it.
    made: ProgramStart,
    /// The newest start that has continued with it.
    started: ProgramStart,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    versions: Vec<ArenaVersion>,
    /// If it is a parity: the ranks of the set, if that can be read.
    set: Vec<u32>,
}

/// A version in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ArenaVersion {
    version: VersionIdentity,
    bytes: u64,
    /// Nothing of it is staged.
    whole: bool,
}

/// Memory that survived: a staging file, or a buddy's copy of one.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SurvivingMemory {
    name: String,
    size: u64,
    identity: u128,
}

/// The inventory of one node.
#[derive(Debug, Default, Serialize, Deserialize)]
struct NodeInventory {
    arenas: Vec<SurvivingArena>,
    memories: Vec<SurvivingMemory>,
}

/// All that was found.
#[derive(Debug, Clone)]
pub(super) struct RestartInventory {
    pub(super) arenas: Vec<SurvivingArena>,
    /// This start of the program: later than all that anything was found of.
    pub(super) start: ProgramStart,
    pub(super) outside: ExternalVersions,
    /// Files that were kept for others on this node, and are too damaged to open: the first rank of the node knows them.
    pub(super) damaged: Vec<String>,
}

/// Arenas that were opened for writing, by name.
pub(super) type OpenArenas<A> = BTreeMap<String, A>;

/// Looks at all nodes. All ranks call it.
pub(super) fn find<T: Vault, M: Vault>(
    options: &Options,
    tier: &T,
    memory: &M,
    ranks: &dyn Ranks,
) -> Result<(RestartInventory, OpenArenas<T::Medium>), CheckpointError> {
    let me = ranks.rank();
    // One rank of each node looks.
    let looker = (0..me).find(|rank| is_near(ranks, *rank)).unwrap_or(me);
    let (node, damaged) = if looker == me {
        look(options, tier, memory, me)?
    } else {
        Default::default()
    };
    let (identity, nodes) = exchange_inventories(options, ranks, node)?;
    let (mut mine, mut open) = (Vec::new(), OpenArenas::new());
    let there = nodes.iter().flat_map(|n| &n.arenas);
    for found in there.filter(|f| is_near(ranks, f.host)) {
        let owner_is_near = found.ranks == ranks.ranks() && is_near(ranks, found.rank);
        let successor = if owner_is_near { found.rank } else { looker };
        if successor == me {
            mine.push(complete(
                found,
                &nodes,
                tier,
                memory,
                ranks,
                options.timeout,
                &mut open,
            )?);
        }
    }
    let all: Vec<Vec<SurvivingArena>> =
        agree(ranks, ExchangeKind::Complete, &mine, options.timeout)?;
    let arenas: Vec<SurvivingArena> = all.into_iter().flatten().collect();
    let outside = outside::find(options, ranks)?;
    let newest = arenas.iter().map(|f| f.started.generation).max();
    let start = ProgramStart {
        // Saturates: the number comes from files.
        generation: newest
            .max(outside.generation)
            .unwrap_or(0)
            .saturating_add(1),
        identity,
    };
    let mut world = RestartInventory {
        arenas,
        start,
        outside,
        damaged,
    };
    world.mend_newest(options, tier, ranks)?;
    Ok((world, open))
}

/// Whether a rank, if there is such a one, is on this rank's node.
fn is_near(ranks: &dyn Ranks, rank: u32) -> bool {
    rank < ranks.ranks() && ranks.node(rank) == ranks.node(ranks.rank())
}

/// The inventories of all nodes, and this start's identity. All ranks must have the same settings, and no arena may be on two
/// nodes.
fn exchange_inventories(
    options: &Options,
    ranks: &dyn Ranks,
    node: NodeInventory,
) -> Result<(u128, Vec<NodeInventory>), CheckpointError> {
    let how = (options.replicate, options.replicate_every);
    let word = (options.identity, how, node);
    let words = agree(ranks, ExchangeKind::Begin, &word, options.timeout)?;
    let identity = words[0].0;
    if let Some(other) = words.iter().position(|(_, theirs, _)| *theirs != how) {
        let text = format!(
            "rank {other} keeps versions on other nodes in another way than this one: give all ranks the same settings"
        );
        return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
    }
    let nodes: Vec<NodeInventory> = words.into_iter().map(|(_, _, node)| node).collect();
    let mut seen: BTreeMap<u128, &SurvivingArena> = BTreeMap::new();
    for found in nodes.iter().flat_map(|n| &n.arenas) {
        if let Some(other) = seen.insert(found.identity, found) {
            return Err(twice(ranks, found, other));
        }
    }
    Ok((identity, nodes))
}

/// An arena that is there twice: which is the newer one nobody knows, and to remove one might remove both.
fn twice(ranks: &dyn Ranks, one: &SurvivingArena, other: &SurvivingArena) -> CheckpointError {
    let (at, and) = (ranks.node(one.host), ranks.node(other.host));
    let text = format!(
        "{} on {at} is the same arena as {} on {and}: the folder of the tier must be each node's own, and no arena may be copied. \
         Give each node its own folder, or remove the copy",
        one.name, other.name
    );
    CheckpointError::new(CheckpointErrorCode::Invalid, text)
}

/// The inventory of this node, and the names of files that cannot be opened. Other programs' files are left alone.
fn look<T: Vault, M: Vault>(
    options: &Options,
    tier: &T,
    memory: &M,
    host: u32,
) -> Result<(NodeInventory, Vec<String>), CheckpointError> {
    let mut node = NodeInventory::default();
    let mut damaged = Vec::new();
    for name in tier.list()?.into_iter().filter(|n| on_tier(n)) {
        let see = || -> Result<Option<SurvivingArena>, CheckpointError> {
            let (stored, arena) = left::look(tier, &name)?;
            if arena.header().run != options.run {
                return Ok(None);
            }
            let mut found = SurvivingArena::new(host, name.clone(), stored.size(), &arena);
            if let Some(newest) = arena.versions().last().filter(|_| name.ends_with(PARITY)) {
                // Another of its set has the same list.
                let members = parity::members(&stored, &newest.manifest).unwrap_or_default();
                found.set = members.into_iter().map(|(rank, _)| rank).collect();
            }
            Ok(Some(found))
        };
        match see() {
            Ok(found) => node.arenas.extend(found),
            // An arena that cannot be opened may be the wanted one: a start from nothing beside it would lose it.
            Err(fault) if name.ends_with(ARENA) => {
                return Err(CheckpointError::new(fault.code, format!("{name}: {fault}")));
            }
            // It was a second one.
            Err(fault) if fault.code == CheckpointErrorCode::Corrupt => damaged.push(name),
            Err(_) => {}
        }
    }
    for name in memory.list()? {
        let Ok(stored) = memory.see(&name) else {
            continue;
        };
        if let Some(identity) = left::staged_of(&stored) {
            let size = stored.size();
            node.memories.push(SurvivingMemory {
                name,
                size,
                identity,
            });
        }
    }
    Ok((node, damaged))
}

/// De-stages for an arena's dead owner: from its staging file, or from a buddy's copy.
fn complete<T: Vault, M: Vault>(
    found: &SurvivingArena,
    nodes: &[NodeInventory],
    tier: &T,
    memory: &M,
    ranks: &dyn Ranks,
    timeout: Duration,
    open: &mut OpenArenas<T::Medium>,
) -> Result<SurvivingArena, CheckpointError> {
    if found.versions.iter().all(|v| v.whole) {
        return Ok(found.clone());
    }
    let mut sources: Vec<VersionSource<'_, M>> = Vec::new();
    for (host, node) in (0..).zip(nodes) {
        let own = node.memories.iter();
        for m in own.filter(|m| m.identity == found.identity) {
            if ranks.node(host) == ranks.node(ranks.rank()) {
                sources.extend(memory.see(&m.name).ok().map(VersionSource::Near));
            } else {
                sources.push(VersionSource::Far(RemoteMedium {
                    ranks,
                    from: host,
                    name: m.name.as_str().into(),
                    size: m.size,
                    timeout,
                }));
            }
        }
    }
    let mut medium = left::open(tier, &found.name, timeout)?;
    let (arena, _) = left::complete(&mut medium, &sources)?;
    let size = medium.size();
    open.insert(found.name.clone(), medium);
    Ok(SurvivingArena::new(
        ranks.rank(),
        found.name.clone(),
        size,
        &arena,
    ))
}

impl SurvivingArena {
    fn new(host: u32, name: String, size: u64, arena: &Arena) -> Self {
        let header = arena.header();
        let row = |v: &Version| ArenaVersion {
            version: VersionIdentity {
                id: v.id,
                start: v.start,
                ranks: header.ranks,
            },
            bytes: v.manifest.objects.iter().map(|o| o.size()).sum(),
            whole: v.manifest.is_durable(),
        };
        Self {
            host,
            name,
            size,
            identity: header.identity,
            made: header.start,
            started: arena.started(),
            rank: header.rank,
            ranks: header.ranks,
            versions: arena.versions().iter().map(row).collect(),
            set: Vec::new(),
        }
    }

    /// Whether it would have a version of that start, had its rank committed one: it is the rank's own, as old, and that start or a
    /// later one continued with it.
    fn knows(&self, start: ProgramStart) -> bool {
        let before = |one: ProgramStart, other: ProgramStart| {
            one == other || one.generation < other.generation
        };
        self.is_own() && before(self.made, start) && before(start, self.started)
    }

    /// Whether its rank has written it itself.
    fn is_own(&self) -> bool {
        self.name.ends_with(ARENA)
    }

    /// Whether it is a rank's part: it is no parity.
    fn is_part(&self) -> bool {
        !self.name.ends_with(PARITY)
    }

    /// Whether all of a version is in it.
    pub(super) fn has(&self, version: VersionIdentity) -> bool {
        let mut versions = self.versions.iter();
        self.is_part() && versions.any(|v| v.whole && v.version == version)
    }

    /// The source of its bytes.
    pub(super) fn version_source<'a, T: Vault>(
        &'a self,
        tier: &T,
        ranks: &'a dyn Ranks,
        timeout: Duration,
    ) -> Result<VersionSource<'a, T>, MediumError> {
        match ranks.node(self.host) == ranks.node(ranks.rank()) {
            true => tier.see(&self.name).map(VersionSource::Near),
            false => Ok(VersionSource::Far(RemoteMedium {
                ranks,
                from: self.host,
                name: self.name.as_str().into(),
                size: self.size,
                timeout,
            })),
        }
    }
}

impl RestartInventory {
    /// The versions that all ranks of their time have whole somewhere, oldest first.
    pub(super) fn restorable(&self, rank: u32) -> Vec<(VersionIdentity, Restorable)> {
        let mut versions: BTreeMap<VersionIdentity, (BTreeSet<u32>, u64)> = BTreeMap::new();
        for found in self.arenas.iter().filter(|f| f.is_part()) {
            for row in found.versions.iter().filter(|v| v.whole) {
                let (of, bytes) = versions.entry(row.version).or_default();
                of.insert(found.rank);
                if found.rank == rank {
                    *bytes = row.bytes;
                }
            }
        }
        let whole = versions
            .into_iter()
            .filter(|(version, (of, _))| of.len() == version.ranks as usize);
        let restorable = |(version, (_, bytes)): (VersionIdentity, _)| {
            let restorable = Restorable {
                id: version.id,
                ranks: version.ranks,
                level: PersistenceLevel::Durable,
                bytes,
            };
            (version, restorable)
        };
        self.outside.add(whole.map(restorable))
    }

    /// The starts that nodes have a version of this name of.
    pub(super) fn starts(&self, id: VersionId) -> BTreeSet<u128> {
        let rows = self.arenas.iter().flat_map(|f| &f.versions);
        let of = rows.map(|row| row.version).filter(|v| v.id == id);
        of.map(|v| v.start).collect()
    }

    /// The lost version, if none can be restored: one that all ranks may have had, and the ranks that lack all or some of
    /// it now. None if there never was one.
    pub(super) fn lost(&self) -> Option<(VersionId, Vec<u32>)> {
        let parts = || self.arenas.iter().filter(|f| f.is_part());
        let rows = parts().flat_map(|f| &f.versions);
        let all: BTreeSet<VersionIdentity> = rows.map(|row| row.version).collect();
        all.into_iter().rev().find_map(|version| {
            let of =
                |rank: u32| parts().filter(move |f| f.rank == rank && f.ranks == version.ranks);
            let start = ProgramStart {
                generation: version.id.generation,
                identity: version.start,
            };
            let had = |f: &SurvivingArena| f.versions.iter().any(|v| v.version == version);
            let may_have_had = |rank: u32| of(rank).any(had) || !of(rank).any(|f| f.knows(start));
            let lacks = |rank: &u32| !of(*rank).any(|f| f.has(version));
            let all_had = (0..version.ranks).all(may_have_had);
            all_had.then(|| (version.id, (0..version.ranks).filter(lacks).collect()))
        })
    }

    /// The name of a rank's arena in this start.
    pub(super) fn arena_of(&self, ranks: &dyn Ranks, rank: u32) -> String {
        let own = self.own(ranks, rank).map(str::to_owned);
        own.unwrap_or_else(|| arena(self.start.generation, rank))
    }

    /// The arena that a rank continues with: its own, if it is on the rank's node.
    pub(super) fn own(&self, ranks: &dyn Ranks, rank: u32) -> Option<&str> {
        let own = self
            .arenas
            .iter()
            .filter(|f| f.is_own() && f.rank == rank && f.ranks == ranks.ranks());
        let near = own.filter(|f| ranks.node(f.host) == ranks.node(rank));
        near.max_by_key(|f| (f.started, f.identity))
            .map(|f| f.name.as_str())
    }
}
