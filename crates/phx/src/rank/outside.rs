//! What earlier starts have left on the external store: one more place where parts of versions are found, by all ranks.

use super::{Desk, Options, Restorable, Shared, found};
use crate::arena::{self, Level, VersionId};
use crate::fault::{Code, Fault};
use crate::flush;
use crate::manifest::Manifest;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tarn_ports::{External, Ranks, Stored, Vault};

/// The versions that are complete there. All ranks know of the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Outside {
    versions: Vec<Restorable>,
    /// The greatest generation that anything there is of.
    pub(super) generation: u64,
}

/// What a rank tells: how many versions lie between two that it flushes, if it has a store, and of rank 0 what is there.
#[derive(Serialize, Deserialize)]
struct Word {
    every: Option<u64>,
    generation: u64,
    /// Generation, number and ranks.
    versions: Vec<(u64, u64, u32)>,
}

/// Looks at the store. All ranks call it.
pub(super) fn find(options: &Options, ranks: &dyn Ranks) -> Result<Outside, Fault> {
    let external = options.external.as_ref();
    let mut word = Word {
        every: external.map(|e| e.every),
        generation: 0,
        versions: Vec::new(),
    };
    if let Some(external) = external.filter(|_| ranks.rank() == 0) {
        // The start before may have ended with all parts there. Where that cannot be published, the parts say the same.
        let _ = flush::publish(&*external.store);
        let all = flush::list(&*external.store)?;
        word.generation = all.last().map_or(0, |v| v.id.generation);
        let complete = all.iter().filter(|v| v.is_complete());
        word.versions = complete
            .map(|v| (v.id.generation, v.id.number, v.ranks))
            .collect();
    }
    let words: Vec<Word> = found::agree(ranks, &word, options.patience)?;
    if let Some((rank, other)) = (0..).zip(&words).find(|(_, w)| w.every != word.every) {
        return Err(Fault::new(
            Code::Invalid,
            differ(rank, other.every, word.every),
        ));
    }
    let bytes = |id, of| match external {
        Some(external) if ranks.rank() < of => {
            let part = flush::open(&*external.store, id, ranks.rank());
            part.map_or(0, |(_, version, _)| size(&version.manifest))
        }
        _ => 0,
    };
    let versions = words[0].versions.iter();
    let versions = versions.map(|(generation, number, ranks)| {
        let id = VersionId {
            generation: *generation,
            number: *number,
        };
        Restorable {
            id,
            ranks: *ranks,
            level: Level::Flushed,
            bytes: bytes(id, *ranks),
        }
    });
    Ok(Outside {
        versions: versions.collect(),
        generation: words[0].generation,
    })
}

fn differ(rank: u32, other: Option<u64>, own: Option<u64>) -> String {
    let words = |every| match every {
        None => "has no external store".into(),
        Some(0) => "has an external store and flushes nothing".into(),
        Some(every) => format!("flushes every {every}. version"),
    };
    format!(
        "rank {rank} {}, and this one {}: tell all ranks the same",
        words(other),
        words(own)
    )
}

fn size(manifest: &Manifest) -> u64 {
    manifest.objects.iter().map(|o| o.size()).sum()
}

impl Outside {
    /// What can be restored, by what the nodes have and by what is here.
    pub(super) fn add(&self, mut nodes: Vec<Restorable>) -> Vec<Restorable> {
        for here in &self.versions {
            match nodes.iter_mut().find(|v| v.id == here.id) {
                Some(there) => there.level = Level::Flushed,
                None => nodes.push(here.clone()),
            }
        }
        nodes.sort_by_key(|v| v.id);
        nodes
    }
}

impl<A, S> Desk<A, S> {
    /// The arena that has a version, if it is kept.
    fn keeps(&self, id: VersionId) -> Option<String> {
        let (arena, _) = self.arena.as_ref()?;
        let kept = arena.versions().iter().any(|v| v.id == id);
        kept.then(|| self.name.clone())
    }
}

/// A part of a version, and what it has.
pub(super) type Part = (Box<dyn Stored + Send + Sync>, Manifest);

impl<T: Vault, M: Vault> Shared<T, M> {
    /// The store, if it has a version.
    pub(super) fn external(&self, id: VersionId) -> Option<&dyn External> {
        let there = self.world.outside.versions.iter().any(|v| v.id == id);
        let external = self.options.external.as_ref().filter(|_| there);
        external.map(|e| &*e.store)
    }

    /// Waits until a version, or a newer one, is on the store.
    pub(super) fn wait_flushed(&self, id: VersionId, within: Duration) -> Result<(), Fault> {
        let text = match (&self.flusher, &self.options.external) {
            (Some(flusher), _) => {
                let kept = self.desk().keeps(id);
                return flusher.wait(id, kept, within);
            }
            (None, Some(e)) if flush::latest(&*e.store)? >= Some(id) => return Ok(()),
            _ => {
                "versions are not flushed: it was not asked for, by an external store and how many versions are flushed"
            }
        };
        Err(Fault::new(Code::Unsupported, text))
    }
}

/// A rank's part of a version.
pub(super) fn open(store: &dyn External, id: VersionId, rank: u32) -> Result<Part, Fault> {
    // Whatever it is, an older version may be whole.
    let opened = flush::open(store, id, rank);
    let (stored, version, _) = opened.map_err(|f| Fault::new(Code::Corrupt, f.text))?;
    Ok((stored, version.manifest))
}

/// Fills an object from there: whether it could be.
pub(super) fn read(
    store: &dyn External,
    id: VersionId,
    rank: u32,
    key: &[u8],
    into: &mut [u8],
) -> bool {
    let Ok((stored, manifest)) = open(store, id, rank) else {
        return false;
    };
    let object = manifest.objects.iter().find(|o| *o.key == *key);
    let object = object.filter(|o| o.size() == into.len() as u64);
    object.is_some_and(|o| arena::read(&stored, o, into).is_ok_and(|bad| bad.is_empty()))
}
