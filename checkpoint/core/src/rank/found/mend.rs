//! A rank's part of a version that is whole nowhere is made again from the other ranks of its parity set.

use super::{RestartInventory, SurvivingArena};
use crate::arena::{Arena, ArenaHeader, PersistenceLevel, ProgramStart, VersionId};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::manifest::{CHUNK, RankManifest};
use crate::rank::exchange::{ExchangeKind, agree};
use crate::rank::parity::{self, PartImage, ReconstructedImage};
use crate::rank::source::{VersionIdentity, VersionSource};
use crate::rank::{Options, files, publish, replicate};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tarn_ports::{Medium, Ranks, Vault};
use tarn_types::crc::crc;

/// Bytes a second that a part is made again with, at least.
const MEND_RATE: u64 = 20_000_000;

/// A rank whose part can be made again, and its set.
type Mendable = (u32, Vec<u32>);

/// The part and the parity of each rank of a set; of the lost one none.
type SetImages<'a, T> = Vec<
    Option<(
        PartImage<VersionSource<'a, T>>,
        PartImage<VersionSource<'a, T>>,
    )>,
>;

impl RestartInventory {
    /// Has the newest version made whole again that parities suffice for, each part by one rank. All ranks call it.
    pub(super) fn mend_newest<T: Vault>(
        &mut self,
        options: &Options,
        tier: &T,
        ranks: &dyn Ranks,
    ) -> Result<(), CheckpointError> {
        let Some((version, lost)) = self.mendable() else {
            return Ok(());
        };
        let mut made = Vec::new();
        let mine = |(rank, _): &&Mendable| rank % ranks.ranks() == ranks.rank();
        for (rank, set) in lost.iter().filter(mine) {
            match self.mend((version, *rank, set), options, tier, ranks) {
                Ok(found) => made.push(found),
                // The version before is taken.
                Err(fault)
                    if matches!(
                        fault.code,
                        CheckpointErrorCode::Corrupt | CheckpointErrorCode::NoSpace
                    ) => {}
                Err(fault) => return Err(fault),
            }
        }
        // Others wait for as long as it may take.
        let parts = self.arenas.iter().flat_map(|f| &f.versions);
        let largest = parts.map(|row| row.bytes).max().unwrap_or(0);
        let sets = lost.iter().map(|(_, set)| set.len() as u64).max();
        let took = Duration::from_secs(largest.saturating_mul(sets.unwrap_or(0)) / MEND_RATE);
        let timeout = options.timeout.saturating_add(took);
        let made: Vec<Vec<SurvivingArena>> = agree(ranks, ExchangeKind::Mend, &made, timeout)?;
        self.arenas.extend(made.into_iter().flatten());
        Ok(())
    }

    /// The newest version that is whole nowhere and can be made again from parities: the ranks that it lacks, with their sets. None if a
    /// newer one is whole.
    fn mendable(&self) -> Option<(VersionIdentity, Vec<Mendable>)> {
        let mut whole: BTreeSet<(VersionIdentity, u32)> = BTreeSet::new();
        let mut kept: BTreeMap<(VersionIdentity, u32), &SurvivingArena> = BTreeMap::new();
        let mut sets: BTreeMap<(VersionIdentity, u32), &Vec<u32>> = BTreeMap::new();
        for found in &self.arenas {
            for row in found.versions.iter().filter(|v| v.whole) {
                if found.is_part() {
                    whole.insert((row.version, found.rank));
                    continue;
                }
                kept.insert((row.version, found.rank), found);
                let members = found.set.iter();
                sets.extend(members.map(|member| ((row.version, *member), &found.set)));
            }
        }
        let versions: BTreeSet<VersionIdentity> =
            whole.iter().map(|(version, _)| *version).collect();
        for version in versions.into_iter().rev() {
            let lost = (0..version.ranks).filter(|rank| !whole.contains(&(version, *rank)));
            let mend = |lost: u32| {
                let set = *sets.get(&(version, lost))?;
                let mut others = set.iter().filter(|other| **other != lost);
                let all = others.all(|other| {
                    let parity = kept.get(&(version, *other)).copied();
                    let of_it = |p: &SurvivingArena| p.set.is_empty() || p.set == *set;
                    whole.contains(&(version, *other)) && parity.is_some_and(of_it)
                });
                all.then(|| (lost, set.clone()))
            };
            let mended: Option<Vec<_>> = lost.map(mend).collect();
            match mended {
                Some(none) if none.is_empty() => return None,
                Some(mended) => return Some((version, mended)),
                None => {}
            }
        }
        None
    }

    /// Makes a rank's part of a version again, from the others of its set.
    fn mend<T: Vault>(
        &self,
        (version, rank, set): (VersionIdentity, u32, &[u32]),
        options: &Options,
        tier: &T,
        ranks: &dyn Ranks,
    ) -> Result<SurvivingArena, CheckpointError> {
        let (others, manifest) =
            self.open_set((version, rank, set), options.timeout, tier, ranks)?;
        let place = set.iter().position(|r| *r == rank).unwrap_or(0);
        let mut lost = ReconstructedImage::new(place, others);
        let mut manifest = parity::imaged(manifest);
        let sizes: Vec<u64> = manifest.objects.iter().map(|o| o.size()).collect();
        let header = ArenaHeader {
            identity: options.identity ^ u128::from(rank + 1) << 64,
            run: options.run.clone(),
            // The manifest is that start's.
            start: ProgramStart {
                generation: version.id.generation,
                identity: version.start,
            },
            rank,
            ranks: version.ranks,
        };
        let name = files::made(self.start.generation, rank);
        let (mut arena, mut medium) = replicate::made(tier, &name, &sizes, header)?;
        let filled = replicate::fill(
            &mut arena,
            &mut medium,
            &sizes,
            &mut manifest,
            |at, bytes, sums| {
                let chunks = (at..).step_by(CHUNK as usize);
                let mut chunks = chunks.zip(bytes.chunks_mut(CHUNK as usize)).zip(sums);
                chunks.try_fold(true, |all, ((at, chunk), sum)| {
                    lost.read(at, chunk)?;
                    Ok(all && crc(chunk) == *sum)
                })
            },
        );
        if let Err(fault) = filled {
            tier.remove(&name)?;
            return Err(fault);
        }
        let new = (version.id, PersistenceLevel::Durable, manifest);
        publish(&mut arena, &mut medium, Some(new), |_| true)?;
        Ok(SurvivingArena::new(
            ranks.rank(),
            name,
            medium.size(),
            &arena,
        ))
    }

    /// The parts of a version of the other ranks of a set, and the parities that they keep, each at its place; and the manifest of
    /// the lost rank's part.
    fn open_set<'a, T: Vault>(
        &'a self,
        (version, rank, set): (VersionIdentity, u32, &[u32]),
        timeout: Duration,
        tier: &T,
        ranks: &'a dyn Ranks,
    ) -> Result<(SetImages<'a, T>, RankManifest), CheckpointError> {
        let open = |of: u32, what: &dyn Fn(&SurvivingArena) -> bool| {
            let mut found = self.arenas.iter().filter(|f| f.rank == of);
            let found = found.find(|f| what(f)).ok_or_else(|| gone(version.id))?;
            let version_source = found.version_source(tier, ranks, timeout)?;
            let arena = Arena::open(&version_source)?;
            let kept = arena.versions().iter().find(|v| v.id == version.id);
            let manifest = kept.map(|v| v.manifest.clone());
            let manifest = manifest.ok_or_else(|| gone(version.id))?;
            Ok::<_, CheckpointError>((version_source, manifest))
        };
        let mut manifest = None;
        let mut others = Vec::new();
        for &other in set {
            if other == rank {
                others.push(None);
                continue;
            }
            let (version_source, part) = open(other, &|f| f.has(version))?;
            let part = PartImage::new(version_source, part);
            let is_kept = |f: &SurvivingArena| f.versions.iter().any(|v| v.version == version);
            let (version_source, kept) = open(other, &|f| !f.is_part() && is_kept(f))?;
            if manifest.is_none() {
                // If that is damaged, the next one has the same.
                let members = parity::members(&version_source, &kept).unwrap_or_default();
                let lost = members.into_iter().find(|(r, _)| *r == rank);
                manifest = lost.map(|(_, m)| m);
            }
            others.push(Some((part, parity::kept(version_source, &kept))));
        }
        Ok((others, manifest.ok_or_else(|| gone(version.id))?))
    }
}

fn gone(id: VersionId) -> CheckpointError {
    CheckpointError::new(
        CheckpointErrorCode::Corrupt,
        format!("what was left of version {id} is gone"),
    )
}
