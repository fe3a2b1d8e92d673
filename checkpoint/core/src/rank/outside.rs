//! Versions that earlier starts have left on the external store: one more place where all ranks find parts.

use super::exchange::{ExchangeKind, agree};
use super::source::VersionIdentity;
use super::{Options, RankContext, RankState, Restorable};
use crate::arena::{self, PersistenceLevel, VersionId};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::flush::{self, Exact, Flushed};
use crate::manifest::RankManifest;
use crate::seal::{Opener, RankSealer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tarn_ports::{External, Ranks, ReadableMedium, Vault};

/// The versions that are complete there. All ranks know of the same.
#[derive(Debug, Clone, Default)]
pub(super) struct ExternalVersions {
    /// And bytes of this rank's part.
    versions: Vec<(VersionIdentity, u64)>,
    /// The greatest generation that anything there is of.
    pub(super) generation: Option<u64>,
}

/// The report of a rank: how many versions are between two that it flushes, if it has a store, and from rank 0 the versions there.
#[derive(Serialize, Deserialize)]
struct ExternalStoreReport {
    every: Option<u64>,
    generation: Option<u64>,
    versions: Vec<VersionIdentity>,
}

/// Looks at the store. All ranks call it.
pub(super) fn find(
    options: &Options,
    ranks: &dyn Ranks,
) -> Result<ExternalVersions, CheckpointError> {
    let external = options.external.as_ref();
    let mut word = ExternalStoreReport {
        every: external.map(|e| e.every),
        generation: None,
        versions: Vec::new(),
    };
    if let Some(external) = external.filter(|_| ranks.rank() == 0) {
        // The start before may have ended with all parts there. Where that cannot be published, the parts show the same.
        let _ = flush::publish(&*external.store);
        let all = flush::list(&*external.store)?;
        word.generation = all.last().map(|v| v.version.id.generation);
        let complete = all.iter().filter(|v| v.is_complete());
        let of = |v: &Flushed| VersionIdentity {
            id: v.version.id,
            start: v.version.start,
            ranks: v.ranks,
        };
        word.versions = complete.map(of).collect();
    }
    let mut words = agree(ranks, ExchangeKind::Outside, &word, options.timeout)?;
    if let Some((rank, other)) = (0..).zip(&words).find(|(_, w)| w.every != word.every) {
        let text = differ(rank, other.every, word.every);
        return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
    }
    let ExternalStoreReport {
        generation,
        versions,
        ..
    } = words.swap_remove(0);
    let bytes = |version: VersionIdentity| {
        let external = external.filter(|_| ranks.rank() < version.ranks)?;
        let (_, manifest) = open(&*external.store, version, ranks.rank()).ok()?;
        Some(manifest.objects.iter().map(|o| o.size()).sum())
    };
    let versions = versions.into_iter();
    Ok(ExternalVersions {
        versions: versions.map(|v| (v, bytes(v).unwrap_or(0))).collect(),
        generation,
    })
}

fn differ(rank: u32, other: Option<u64>, own: Option<u64>) -> String {
    let words = |every| match every {
        None => "has no external store".into(),
        Some(0) => "has an external store and flushes nothing".into(),
        Some(every) => format!("flushes every {every}. version"),
    };
    format!(
        "rank {rank} {}, and this one {}: give all ranks the same settings",
        words(other),
        words(own)
    )
}

impl ExternalVersions {
    /// The restorable versions of the nodes and of this store, oldest first.
    pub(super) fn add(
        &self,
        nodes: impl Iterator<Item = (VersionIdentity, Restorable)>,
    ) -> Vec<(VersionIdentity, Restorable)> {
        let mut all: BTreeMap<VersionIdentity, Restorable> = nodes.collect();
        for (version, bytes) in &self.versions {
            let here = all.entry(*version).or_insert(Restorable {
                id: version.id,
                ranks: version.ranks,
                level: PersistenceLevel::Flushed,
                bytes: *bytes,
            });
            here.level = PersistenceLevel::Flushed;
        }
        all.into_iter().collect()
    }
}

impl<T: Vault, M: Vault> RankContext<T, M> {
    /// The store, if it has a version.
    pub(super) fn external(&self, version: VersionIdentity) -> Option<&dyn External> {
        let mut there = self.world.outside.versions.iter();
        let there = there.any(|(v, _)| *v == version);
        let external = self.options.external.as_ref().filter(|_| there);
        external.map(|e| &*e.store)
    }

    /// Waits until a version, or a newer one, is on the store.
    pub(super) fn wait_flushed(
        &self,
        id: VersionId,
        within: Duration,
    ) -> Result<(), CheckpointError> {
        let before = id.generation < self.world.start.generation;
        match (&self.options.external, &self.flusher) {
            (Some(external), _) if before => match self.was_flushed(&*external.store, id)? {
                true => Ok(()),
                false => Err(CheckpointError::new(
                    CheckpointErrorCode::NotFound,
                    format!("version {id} of an earlier start was not flushed"),
                )),
            },
            (_, Some(flusher)) => {
                let kept = self.take().keeps(id);
                let until = Instant::now() + within;
                flusher.wait(id, kept, within)?;
                flusher.settle(id, until.saturating_duration_since(Instant::now()));
                Ok(())
            }
            _ => {
                let text = "versions are not flushed: it was not asked for, by an external store and how many versions are flushed";
                Err(CheckpointError::new(CheckpointErrorCode::Unsupported, text))
            }
        }
    }

    /// Whether the store has a version of an earlier start, or a newer one of the same start, or one of this one, if that continues from it.
    /// For other starts the same number means nothing, as far as nodes know the start.
    fn was_flushed(&self, store: &dyn External, id: VersionId) -> Result<bool, CheckpointError> {
        let starts = self.world.starts(id);
        let latest = flush::latest(store)?.map(|v| (v.id, v.start));
        let there = self.world.outside.versions.iter();
        let mut there = there.map(|(v, _)| (v.id, v.start)).chain(latest);
        let own = self.world.start.identity;
        let goes_on = Some(id) <= self.take().continues_from(self);
        let same = |start| starts.is_empty() || starts.contains(&start);
        Ok(there.any(|(v, start)| match start == own {
            true => goes_on,
            false => v >= id && same(start),
        }))
    }
}

impl<A, S> RankState<A, S> {
    /// The arena that has a version, if it is kept.
    fn keeps(&self, id: VersionId) -> Option<String> {
        let (arena, _) = self.arena.as_ref()?;
        let kept = arena.versions().iter().any(|v| v.id == id);
        kept.then(|| self.name.clone())
    }
}

/// A part of a version, and its manifest.
pub(super) type ExternalPart = (Box<dyn ReadableMedium + Send + Sync>, RankManifest);

/// A rank's part of a version.
pub(super) fn open(
    store: &dyn External,
    version: VersionIdentity,
    rank: u32,
) -> Result<ExternalPart, CheckpointError> {
    let exact = Exact {
        id: version.id,
        start: version.start,
    };
    // After any error here an older version may be whole.
    let opened = flush::open(store, exact, rank);
    let (stored, kept, _) =
        opened.map_err(|f| CheckpointError::new(CheckpointErrorCode::Corrupt, f.text))?;
    Ok((stored, kept.manifest))
}

/// Fills an object from there: whether it could be.
pub(super) fn read(
    store: &dyn External,
    version: VersionIdentity,
    rank: u32,
    (key, seal): (&[u8], Option<&RankSealer>),
    into: &mut [u8],
) -> bool {
    let Ok((stored, manifest)) = open(store, version, rank) else {
        return false;
    };
    let Ok(opener) = Opener::new(seal, &manifest, &version.origin(rank)) else {
        return false;
    };
    let object = manifest.objects.iter().find(|o| *o.key == *key);
    let object = object.filter(|o| o.size() == into.len() as u64);
    object.is_some_and(|o| {
        let read = arena::read(&stored, o, into).is_ok_and(|bad| bad.is_empty());
        read && opener.open(&manifest, o, into).is_ok()
    })
}
