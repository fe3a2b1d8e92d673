//! What earlier starts of the program have left: which versions there are, on which nodes, and which of them are whole. What was only
//! staged is completed first, so that all that follows reads arenas alone.

use super::words::{Call, agree};
use super::{Options, Restorable, destage, grow, publish, whole};
use crate::arena::{Arena, Level, Start, Version, VersionId};
use crate::block::{self, Kind};
use crate::fault::{Code, Fault};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tarn_base::crc::crc;
use tarn_ports::{Medium, MediumError, Ranks, Stored, Vault, Window};

/// Bytes of the head of a staging file: the rest is as in an arena.
pub(super) const HEAD: usize = 4 << 10;
/// What arenas are called.
const ARENA: &str = ".arena";
/// What staging files are called.
const STAGING: &str = ".staging";

/// The name of an arena.
pub(super) fn arena(generation: u64, rank: u32) -> String {
    format!("{generation}/{rank}{ARENA}")
}

/// The name of a rank's staging file.
pub(super) fn staging(rank: u32) -> String {
    format!("{rank}{STAGING}")
}

/// The rank whose staging file has that name.
pub(super) fn staging_of(name: &str) -> Option<u32> {
    name.strip_suffix(STAGING)?.parse().ok()
}

/// The name of what a buddy keeps of a rank's staging file.
pub(super) fn kept(rank: u32) -> String {
    format!("{rank}.buddy")
}

/// An arena that was found. All ranks know of the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Found {
    /// A rank on its node.
    pub(super) host: u32,
    pub(super) name: String,
    pub(super) size: u64,
    identity: u128,
    /// The start that made it.
    made: Start,
    /// The newest start that has gone on with it.
    started: Start,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    versions: Vec<Row>,
}

/// A version, and the start that it is of. What is of other starts is no part of it, whatever its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Of {
    pub(super) id: VersionId,
    start: u128,
    /// That wrote it.
    pub(super) ranks: u32,
}

/// A version in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    version: Of,
    bytes: u64,
    /// Nothing of it is staged.
    whole: bool,
}

/// Memory that survived: a staging file, or what a buddy kept of one.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Memory {
    name: String,
    size: u64,
    identity: u128,
}

/// What one node has.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Node {
    arenas: Vec<Found>,
    memories: Vec<Memory>,
}

/// All that was found.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) arenas: Vec<Found>,
    /// This start of the program: later than all that anything was found of.
    pub(super) start: Start,
}

/// Looks at all nodes. All ranks call it.
pub(super) fn find<T: Vault, M: Vault>(
    options: &Options,
    tier: &T,
    memory: &M,
    ranks: &dyn Ranks,
) -> Result<World, Fault> {
    let me = ranks.rank();
    let here = ranks.node(me);
    let near = |rank: u32| rank < ranks.ranks() && ranks.node(rank) == here;
    // One rank of each node looks.
    let first = (0..me).find(|rank| near(*rank)).unwrap_or(me);
    let node = match first == me {
        true => look(options, tier, memory, me)?,
        false => Node::default(),
    };
    let word = (options.identity, node);
    let words = agree(ranks, Call::Begin, &word, options.patience)?;
    let identity = words[0].0;
    let nodes: Vec<Node> = words.into_iter().map(|(_, node)| node).collect();
    let mut seen: BTreeMap<u128, &Found> = BTreeMap::new();
    for found in nodes.iter().flat_map(|n| &n.arenas) {
        if let Some(other) = seen.insert(found.identity, found) {
            return Err(twice(ranks, found, other));
        }
    }
    let mut mine = Vec::new();
    let there = nodes.iter().flat_map(|n| &n.arenas);
    for found in there.filter(|f| near(f.host)) {
        let heir = match found.ranks == ranks.ranks() && near(found.rank) {
            true => found.rank,
            false => first,
        };
        if heir == me {
            mine.push(complete(
                found,
                &nodes,
                tier,
                memory,
                ranks,
                options.patience,
            )?);
        }
    }
    let all: Vec<Vec<Found>> = agree(ranks, Call::Complete, &mine, options.patience)?;
    let arenas: Vec<Found> = all.into_iter().flatten().collect();
    let newest = arenas.iter().map(|f| f.started.generation).max();
    let start = Start {
        generation: newest.unwrap_or(0).saturating_add(1),
        identity,
    };
    Ok(World { arenas, start })
}

/// An arena that is there twice: which is the newer one nobody knows, and to remove one might remove both.
fn twice(ranks: &dyn Ranks, one: &Found, other: &Found) -> Fault {
    let (at, and) = (ranks.node(one.host), ranks.node(other.host));
    let text = format!(
        "{} on {at} is the same arena as {} on {and}: the folder of the tier must be each node's own, and no arena may be copied. \
         Give each node a folder of its own, or remove the copy",
        one.name, other.name
    );
    Fault::new(Code::Invalid, text)
}

/// What this node has. What is another program's is left alone.
fn look<T: Vault, M: Vault>(
    options: &Options,
    tier: &T,
    memory: &M,
    host: u32,
) -> Result<Node, Fault> {
    let mut node = Node::default();
    for name in tier.list()?.into_iter().filter(|n| n.ends_with(ARENA)) {
        // One that cannot be opened may be what is wanted: who began from nothing beside it would lose it.
        let of = |fault: Fault| Fault::new(fault.code, format!("{name}: {fault}"));
        let stored = tier.see(&name).map_err(|e| of(e.into()))?;
        let arena = Arena::open(&stored).map_err(|e| of(e.into()))?;
        if arena.header().run == options.run {
            node.arenas
                .push(Found::new(host, name, stored.size(), &arena));
        }
    }
    for name in memory.list()? {
        let Ok(stored) = memory.see(&name) else {
            continue;
        };
        let mut head = vec![0; HEAD];
        if stored.read(0, &mut head).is_err() {
            continue;
        }
        if let Some((identity, _)) = block::unseal(Kind::Staging, 0, &head) {
            let size = stored.size();
            node.memories.push(Memory {
                name,
                size,
                identity,
            });
        }
    }
    Ok(node)
}

/// De-stages what an arena's owner could not: from its staging file, or from a buddy's.
fn complete<T: Vault, M: Vault>(
    found: &Found,
    nodes: &[Node],
    tier: &T,
    memory: &M,
    ranks: &dyn Ranks,
    patience: Duration,
) -> Result<Found, Fault> {
    if found.versions.iter().all(|v| v.whole) {
        return Ok(found.clone());
    }
    let mut sources: Vec<Shelf<'_, M>> = Vec::new();
    for (host, node) in (0..).zip(nodes) {
        let own = node.memories.iter();
        for m in own.filter(|m| m.identity == found.identity) {
            if ranks.node(host) == ranks.node(ranks.rank()) {
                sources.extend(memory.see(&m.name).ok().map(Shelf::Near));
            } else {
                sources.push(Shelf::Far(Far {
                    ranks,
                    from: host,
                    name: &m.name,
                    size: m.size,
                    patience,
                }));
            }
        }
    }
    let mut medium = tier.open(&found.name)?;
    let mut arena = Arena::resume(&mut whole(&mut medium)?)?;
    let staged: Vec<Version> = arena
        .versions()
        .iter()
        .filter(|v| !v.manifest.is_durable())
        .cloned()
        .collect();
    for version in staged {
        let mut manifest = version.manifest;
        let sizes: Vec<u64> = manifest.objects.iter().map(|o| o.size()).collect();
        let places = match arena.places(&sizes) {
            Err(crate::ArenaError::Full { wanted, .. }) => {
                grow(&mut arena, &mut medium, wanted)?;
                arena.places(&sizes)?
            }
            places => places?,
        };
        let mut window = whole(&mut medium)?;
        let copied = destage::copy(&mut manifest, &places, &mut window, |at, chunk, sum| {
            proven(&sources, at, chunk, sum)
        });
        match copied {
            Ok(()) => {
                window.persist()?;
                drop(window);
                let new = (version.id, Level::Durable, manifest);
                publish(&mut arena, &mut medium, Some(new), |_| true)?;
            }
            // It is not whole, and stays so: the one before is.
            Err(fault) if fault.code == Code::Corrupt => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(Found::new(
        ranks.rank(),
        found.name.clone(),
        medium.size(),
        &arena,
    ))
}

/// Fills a chunk from the first source that has it as it was; false if none has.
///
/// # Errors
/// When none has, and one on another node could not be asked: it may have it, and what is given up now would be lost.
fn proven<M: Vault>(
    sources: &[Shelf<'_, M>],
    at: u64,
    chunk: &mut [u8],
    sum: u64,
) -> Result<bool, Fault> {
    let mut unknown = None;
    for source in sources {
        match source.read(at, chunk) {
            Ok(read) if read == sum => return Ok(true),
            Err(e) if matches!(source, Shelf::Far(_)) => unknown = Some(e),
            _ => {}
        }
    }
    unknown.map_or(Ok(false), |e| Err(e.into()))
}

impl Found {
    fn new(host: u32, name: String, size: u64, arena: &Arena) -> Self {
        let header = arena.header();
        let row = |v: &Version| Row {
            version: Of {
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
        }
    }

    /// Whether it would have a version of that start, had its rank committed one: it is as old, and that start or a later one went on
    /// with it.
    fn knows(&self, start: Start) -> bool {
        let before = |one: Start, other: Start| one == other || one.generation < other.generation;
        before(self.made, start) && before(start, self.started)
    }

    /// Whether all of a version is in it.
    pub(super) fn has(&self, version: Of) -> bool {
        self.versions
            .iter()
            .any(|v| v.whole && v.version == version)
    }
}

impl World {
    /// The versions that all ranks of their time have whole somewhere, oldest first.
    pub(super) fn restorable(&self, rank: u32) -> Vec<(Of, Restorable)> {
        let mut versions: BTreeMap<Of, (BTreeSet<u32>, u64)> = BTreeMap::new();
        for found in &self.arenas {
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
        let restorable = |(version, (_, bytes)): (Of, _)| {
            let restorable = Restorable {
                id: version.id,
                ranks: version.ranks,
                level: Level::Durable,
                bytes,
            };
            (version, restorable)
        };
        whole.map(restorable).collect()
    }

    /// What there was and cannot be restored, if nothing can: a version that all ranks may have had, and those who lack all or some of
    /// it now. None if there never was one.
    pub(super) fn lost(&self) -> Option<(VersionId, Vec<u32>)> {
        let rows = self.arenas.iter().flat_map(|f| &f.versions);
        let all: BTreeSet<Of> = rows.map(|row| row.version).collect();
        all.into_iter().rev().find_map(|version| {
            let of = |rank: u32| {
                self.arenas
                    .iter()
                    .filter(move |f| f.rank == rank && f.ranks == version.ranks)
            };
            let start = Start {
                generation: version.id.generation,
                identity: version.start,
            };
            let had = |f: &Found| f.versions.iter().any(|v| v.version == version);
            let may_have_had = |rank: u32| of(rank).any(had) || !of(rank).any(|f| f.knows(start));
            let lacks = |rank: &u32| !of(*rank).any(|f| f.has(version));
            let all_had = (0..version.ranks).all(may_have_had);
            all_had.then(|| (version.id, (0..version.ranks).filter(lacks).collect()))
        })
    }

    /// The arena that a rank goes on with: its own, if it is on the rank's node.
    pub(super) fn own(&self, ranks: &dyn Ranks, rank: u32) -> Option<&str> {
        let own = self
            .arenas
            .iter()
            .filter(|f| f.rank == rank && f.ranks == ranks.ranks());
        let near = own.filter(|f| ranks.node(f.host) == ranks.node(rank));
        near.max_by_key(|f| (f.started, f.identity))
            .map(|f| f.name.as_str())
    }
}

/// What lies on this node or on another.
pub(super) enum Shelf<'a, V: Vault> {
    Near(V::Seen),
    Far(Far<'a>),
}

impl<V: Vault> Stored for Shelf<'_, V> {
    fn size(&self) -> u64 {
        match self {
            Self::Near(seen) => seen.size(),
            Self::Far(far) => far.size(),
        }
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        match self {
            Self::Near(seen) => seen.read(at, into),
            Self::Far(far) => far.read(at, into),
        }
    }
}

/// A medium of another node.
pub(super) struct Far<'a> {
    pub(super) ranks: &'a dyn Ranks,
    pub(super) from: u32,
    pub(super) name: &'a str,
    pub(super) size: u64,
    pub(super) patience: Duration,
}

impl Stored for Far<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        let fetched = self
            .ranks
            .fetch(self.from, self.name, at, into, self.patience);
        fetched.map_err(|e| MediumError::Io {
            doing: "fetch",
            what: self.name.to_owned(),
            source: std::io::Error::other(e.to_string()),
        })?;
        Ok(crc(into))
    }
}
