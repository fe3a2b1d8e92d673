//! What earlier starts of the program have left: which versions there are, on which nodes, and which of them are whole. What was only
//! staged is completed first, so that all that follows reads arenas alone.

use super::outside::{self, Outside};
use super::{Options, Restorable, destage, whole};
use crate::arena::{Arena, Level, Version, VersionId};
use crate::block::{self, Kind};
use crate::fault::Fault;
use crate::room;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tarn_base::crc::crc;
use tarn_ports::{Medium, MediumError, Ranks, Stored, Vault, Window};

/// Bytes of the head of a staging file: the rest is as in an arena.
pub(super) const HEAD: usize = 4 << 10;
/// What arenas are called.
const ARENA: &str = ".arena";

/// The name of an arena.
pub(super) fn arena(generation: u64, rank: u32) -> String {
    format!("{generation}/{rank}{ARENA}")
}

/// The name of a rank's staging file.
pub(super) fn staging(rank: u32) -> String {
    format!("{rank}.staging")
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
    /// The newest start that has gone on with it.
    generation: u64,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    versions: Vec<Row>,
}

/// A version in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    generation: u64,
    number: u64,
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
#[derive(Debug, Clone, Default)]
pub(super) struct World {
    pub(super) arenas: Vec<Found>,
    pub(super) outside: Outside,
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
    let nodes: Vec<Node> = agree(ranks, &node, options.patience)?;
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
    let all: Vec<Vec<Found>> = agree(ranks, &mine, options.patience)?;
    Ok(World {
        arenas: all.into_iter().flatten().collect(),
        outside: outside::find(options, ranks)?,
    })
}

/// Everybody's word, by rank; the empty one of who has a host says so by it.
pub(super) fn agree<W: Serialize + for<'de> Deserialize<'de>>(
    ranks: &dyn Ranks,
    mine: &W,
    patience: Duration,
) -> Result<Vec<W>, Fault> {
    use crate::fault::Code::Internal;
    let bad = |e: postcard::Error| {
        Fault::new(
            Internal,
            format!(
                "ranks do not understand each other: {e}; do all run the same version of tarn?"
            ),
        )
    };
    let word = postcard::to_stdvec(mine).map_err(bad)?;
    let words = ranks.exchange(&word, patience)?;
    words
        .iter()
        .map(|w| postcard::from_bytes(w).map_err(bad))
        .collect()
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
    let mut sources: Vec<Box<dyn Stored + '_>> = Vec::new();
    for (host, node) in (0..).zip(nodes) {
        for m in node
            .memories
            .iter()
            .filter(|m| m.identity == found.identity)
        {
            if ranks.node(host) == ranks.node(ranks.rank()) {
                sources.extend(
                    memory
                        .see(&m.name)
                        .ok()
                        .map(|s| Box::new(s) as Box<dyn Stored>),
                );
            } else {
                let far = Far {
                    ranks,
                    from: host,
                    name: &m.name,
                    size: m.size,
                    patience,
                };
                sources.push(Box::new(far));
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
        let staged: u64 = sizes.iter().sum();
        let places = match arena.places(&sizes) {
            Ok(places) => places,
            Err(crate::ArenaError::Full { .. }) => {
                let size = medium.size() + staged + room::LARGE * (1 + sizes.len() as u64);
                medium.grow(size.next_multiple_of(room::LARGE))?;
                arena.grown(medium.size());
                arena.places(&sizes)?
            }
            Err(e) => return Err(e.into()),
        };
        let mut window = whole(&mut medium)?;
        let copied = destage::copy(&mut manifest, &places, &mut window, |at, chunk, sum| {
            Ok(sources
                .iter()
                .any(|s| s.read(at, chunk).is_ok_and(|read| read == sum)))
        });
        match copied {
            Ok(()) => {
                window.persist()?;
                arena.publish(
                    &mut window,
                    Some((version.id, Level::Durable, manifest)),
                    |_| true,
                )?;
            }
            // It is not whole, and stays so: the one before is.
            Err(fault) if fault.code == crate::Code::Corrupt => {}
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

impl Found {
    fn new(host: u32, name: String, size: u64, arena: &Arena) -> Self {
        let header = arena.header();
        let row = |v: &Version| Row {
            generation: v.id.generation,
            number: v.id.number,
            bytes: v.manifest.objects.iter().map(|o| o.size()).sum(),
            whole: v.manifest.is_durable(),
        };
        Self {
            host,
            name,
            size,
            identity: header.identity,
            generation: arena.started(),
            rank: header.rank,
            ranks: header.ranks,
            versions: arena.versions().iter().map(row).collect(),
        }
    }

    /// Whether all of a version is in it.
    pub(super) fn has(&self, id: VersionId) -> bool {
        self.versions.iter().any(|v| v.whole && v.id() == id)
    }
}

impl Row {
    fn id(&self) -> VersionId {
        VersionId {
            generation: self.generation,
            number: self.number,
        }
    }
}

impl World {
    /// The greatest generation that anything is of; 0 if there is nothing.
    pub(super) fn newest_generation(&self) -> u64 {
        let of = |f: &Found| {
            f.versions
                .iter()
                .map(|v| v.generation)
                .chain([f.generation])
                .max()
        };
        let nodes = self.arenas.iter().filter_map(of).max().unwrap_or(0);
        nodes.max(self.outside.generation)
    }

    /// The versions that all ranks of their time have whole somewhere, oldest first.
    pub(super) fn restorable(&self, rank: u32) -> Vec<Restorable> {
        let mut versions: BTreeMap<VersionId, (u32, BTreeSet<u32>, u64)> = BTreeMap::new();
        for found in &self.arenas {
            for row in found.versions.iter().filter(|v| v.whole) {
                let version = versions.entry(row.id()).or_default();
                version.0 = found.ranks;
                version.1.insert(found.rank);
                if found.rank == rank {
                    version.2 = row.bytes;
                }
            }
        }
        let whole = versions
            .into_iter()
            .filter(|(_, (ranks, of, _))| of.len() == *ranks as usize);
        let nodes = whole.map(|(id, (ranks, _, bytes))| Restorable {
            id,
            ranks,
            level: Level::Durable,
            bytes,
        });
        self.outside.add(nodes.collect())
    }

    /// What there was and cannot be restored, if nothing can: a version that all ranks may have had, and those who lack all or some of
    /// it now. None if there never was one.
    pub(super) fn lost(&self) -> Option<(VersionId, Vec<u32>)> {
        let rows = self
            .arenas
            .iter()
            .flat_map(|f| f.versions.iter().map(move |v| (v.id(), f.ranks)));
        let all: BTreeMap<VersionId, u32> = rows.collect();
        all.into_iter().rev().find_map(|(id, ranks)| {
            let of = |rank: u32| {
                self.arenas
                    .iter()
                    .filter(move |f| f.rank == rank && f.ranks == ranks)
            };
            let had = |f: &Found| f.versions.iter().any(|v| v.id() == id);
            let may_have_had = |rank: u32| of(rank).next().is_none() || of(rank).any(had);
            let lacks = |rank: &u32| !of(*rank).any(|f| f.has(id));
            let all_had = (0..ranks).all(may_have_had);
            all_had.then(|| (id, (0..ranks).filter(lacks).collect()))
        })
    }

    /// The arena that a rank goes on with: its own, if it is on the rank's node.
    pub(super) fn own(&self, ranks: &dyn Ranks, rank: u32) -> Option<&str> {
        let own = self
            .arenas
            .iter()
            .filter(|f| f.rank == rank && f.ranks == ranks.ranks());
        let near = own.filter(|f| ranks.node(f.host) == ranks.node(rank));
        near.max_by_key(|f| (f.generation, f.identity))
            .map(|f| f.name.as_str())
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
