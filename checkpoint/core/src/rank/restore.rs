//! A restart: objects are filled from a version, for any number of ranks that wrote it.

use super::exchange::{ExchangeKind, agree};
use super::files;
use super::found::SurvivingArena;
use super::source::{VersionIdentity, VersionSource};
use super::{Empty, RECENT, RankContext, RankState, Replicate, lock, outside};
use crate::arena::{self, Arena, VersionId};
use crate::copy_workers::{FETCHES, at_once};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::manifest::{Object, RankManifest, Shape};
use crate::seal::{Opener, RankSealer};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tarn_ports::{External, Medium, Vault};

impl<T: Vault, M: Vault> RankContext<T, M> {
    pub(super) fn restart(
        &self,
        which: Option<VersionId>,
        objects: &mut [Empty<'_>],
    ) -> Result<Option<VersionId>, CheckpointError> {
        let began = Instant::now();
        if self.number.load(Ordering::Acquire) > 0 {
            let text = "a restart comes before the first commit: what it would need may be given up by now";
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        }
        let (versions, rows) = self.agree_on_versions(which, objects)?;
        let mut damaged = None;
        for version in versions.iter().rev() {
            let filled = self.fill(*version, &rows, objects);
            let word = match &filled {
                Ok(()) => None,
                Err(fault) => Some((fault.code as u8, fault.text.clone())),
            };
            let timeout = self.options.timeout;
            let words = agree(&*self.ranks, ExchangeKind::Restarted, &word, timeout)?;
            let mut failed = (0u32..)
                .zip(&words)
                .filter_map(|(n, w)| Some((n, w.as_ref()?)));
            // Any rank's other trouble is not mended by an older version.
            let hopeless = words
                .iter()
                .flatten()
                .any(|(code, _)| *code != CheckpointErrorCode::Corrupt as u8);
            let fault = match (filled, failed.next()) {
                (Ok(()), None) => {
                    self.rank_state().base = Some(version.id);
                    let mut stats = self.stats();
                    stats.restored += objects.iter().map(|o| o.bytes.len() as u64).sum::<u64>();
                    stats.restore += began.elapsed();
                    return Ok(Some(version.id));
                }
                (Err(fault), _) => fault,
                (Ok(()), Some((rank, (code, text)))) => rank_error(rank, *code, text),
            };
            if hopeless {
                return Err(fault);
            }
            self.stats().damaged += 1;
            damaged = Some(fault);
        }
        match (damaged, self.world.lost()) {
            (Some(fault), _) => Err(fault),
            (None, Some((id, who))) => Err(incomplete(id, &who)),
            (None, None) => Ok(None),
        }
    }

    /// The versions that are tried, oldest first, and how many bytes of rows each rank has now: all ranks request the same version.
    fn agree_on_versions(
        &self,
        which: Option<VersionId>,
        objects: &[Empty<'_>],
    ) -> Result<(Vec<VersionIdentity>, Vec<Vec<u64>>), CheckpointError> {
        let restorable = self.world.restorable(self.ranks.rank());
        let mut versions: Vec<VersionIdentity> =
            restorable.into_iter().map(|(version, _)| version).collect();
        // Rows are dealt out by how many bytes of them each rank has now.
        let rows = objects
            .iter()
            .filter(|o| matches!(o.shape, Shape::Irregular(_)));
        let rows: Vec<u64> = rows.map(|o| o.bytes.len() as u64).collect();
        let (ranks, timeout) = (&*self.ranks, self.options.timeout);
        let words = agree(ranks, ExchangeKind::Restart, &(which, rows), timeout)?;
        if let Some((rank, (other, _))) = (0u32..).zip(&words).find(|(_, (w, _))| *w != which) {
            let name = |id: Option<VersionId>| {
                id.map_or_else(|| "the newest version".into(), |id| format!("version {id}"))
            };
            let text = format!(
                "rank {rank} restarts from {}, and this one from {}: all ranks ask for the same",
                name(*other),
                name(which)
            );
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        }
        if let Some(id) = which {
            versions.retain(|v| v.id == id);
            if versions.is_empty() {
                let text = format!(
                    "version {id} cannot be restored: not all of it is left, or it never was"
                );
                return Err(CheckpointError::new(CheckpointErrorCode::NotFound, text));
            }
        }
        let rows: Vec<Vec<u64>> = words.into_iter().map(|(_, rows)| rows).collect();
        Ok((versions, rows))
    }

    /// Fills all objects from one version.
    fn fill(
        &self,
        version: VersionIdentity,
        rows: &[Vec<u64>],
        objects: &mut [Empty<'_>],
    ) -> Result<(), CheckpointError> {
        let ranks = version.ranks;
        if ranks == self.ranks.ranks() {
            let old = self.old(version, self.ranks.rank())?;
            if !self.options.leaves_out {
                check_all_requested(std::slice::from_ref(&old), objects)?;
            }
            return old.read_all(objects, self.options.helpers, &*self.options.enter);
        }
        let olds: Vec<Old<'_, T>> = (0..ranks)
            .map(|rank| self.old(version, rank))
            .collect::<Result<_, _>>()?;
        if !self.options.leaves_out {
            check_all_requested(&olds, objects)?;
        }
        let mut irregular = 0;
        for object in objects {
            let first = &olds[self.ranks.rank() as usize % olds.len()];
            match &object.shape {
                Shape::Own => return Err(undivided(object.key, ranks, self.ranks.ranks())),
                Shape::Replicated => {
                    let stored = first.first_whole(object.key, Some(object.bytes.len()))?;
                    first.read(stored, object.bytes)?;
                }
                Shape::Block(new) => block(&olds, object.key, new, object.bytes)?,
                Shape::Irregular(row) => {
                    let of = |rows: &Vec<u64>| rows.get(irregular).copied();
                    let sizes: Option<Vec<u64>> = rows.iter().map(of).collect();
                    let sizes =
                        sizes.ok_or_else(|| undivided(object.key, ranks, self.ranks.ranks()))?;
                    irregular += 1;
                    rows_of(
                        &olds,
                        object.key,
                        *row,
                        &sizes,
                        self.ranks.rank(),
                        object.bytes,
                    )?;
                }
            }
        }
        Ok(())
    }

    /// A rank's part of a version, wherever it is; on this node, if it is there.
    fn old(&self, version: VersionIdentity, rank: u32) -> Result<Old<'_, T>, CheckpointError> {
        let here = self.ranks.node(self.ranks.rank());
        let arenas = self.world.arenas.iter();
        let mut found: Vec<&SurvivingArena> = arenas
            .filter(|f| f.rank == rank && f.has(version))
            .collect();
        found.sort_by_key(|f| self.ranks.node(f.host) != here);
        let mut why = None;
        let mut places = Vec::new();
        for found in found {
            match self.open_old(found, version) {
                Ok(place) => places.push(place),
                Err(fault) => why = Some(fault),
            }
        }
        let external = self.external(version);
        if let (Some(store), true) = (external, places.is_empty()) {
            let (stored, manifest) = outside::open(store, version, rank)?;
            let opener = self.opener(&manifest, version, rank)?;
            places.push((VersionSource::Outside(stored), manifest, opener));
        }
        let lost = || damaged(&format!("rank {rank}'s part of version {}", version.id));
        match places.is_empty() {
            true => Err(why.unwrap_or_else(lost)),
            false => Ok(Old {
                places,
                version,
                rank,
                external,
                seal: self.options.seal.as_deref(),
            }),
        }
    }

    fn open_old<'a>(
        &'a self,
        found: &'a SurvivingArena,
        version: VersionIdentity,
    ) -> Result<PartSource<'a, T>, CheckpointError> {
        // That it is gone is damage: `NotFound` is for a start from nothing.
        let stored = found
            .version_source(&*self.tier, &*self.ranks, self.options.timeout)
            .map_err(|e| damaged(&e.to_string()))?;
        let arena = Arena::open(&stored)?;
        let kept = arena.versions().iter().find(|v| v.id == version.id);
        let manifest = kept
            .ok_or_else(|| damaged(&format!("version {} in {}", version.id, found.name)))?
            .manifest
            .clone();
        let opener = self.opener(&manifest, version, found.rank)?;
        Ok((stored, manifest, opener))
    }

    fn opener(
        &self,
        manifest: &RankManifest,
        version: VersionIdentity,
        rank: u32,
    ) -> Result<Opener, CheckpointError> {
        let seal = self.options.seal.as_deref();
        Opener::new(seal, manifest, &version.origin(rank))
    }
}

/// The source of a part of a version, its manifest, and its opener.
type PartSource<'a, T> = (VersionSource<'a, T>, RankManifest, Opener);

/// One old rank's part of a version.
struct Old<'a, T: Vault> {
    /// Its sources, at least one: pieces that are damaged in one are read from the next.
    places: Vec<PartSource<'a, T>>,
    version: VersionIdentity,
    rank: u32,
    /// Stands in for pieces that are damaged in all of them.
    external: Option<&'a dyn External>,
    seal: Option<&'a RankSealer>,
}

impl<T: Vault> Old<'_, T> {
    /// An object of it, of a size, if that is given.
    fn first_whole(&self, key: &[u8], size: Option<usize>) -> Result<&Object, CheckpointError> {
        let name = String::from_utf8_lossy(key);
        let (_, manifest, _) = &self.places[0];
        let object = manifest.objects.iter().find(|o| *o.key == *key);
        let object = object.ok_or_else(|| {
            CheckpointError::new(
                CheckpointErrorCode::Invalid,
                format!(
                    "the version has no object {name:?}: create those that it has before restarting"
                ),
            )
        })?;
        match size {
            Some(size) if object.size() != size as u64 => {
                let text = format!(
                    "object {name:?} has {size} bytes, and had {} in the version: give it that size before restarting",
                    object.size()
                );
                Err(CheckpointError::new(CheckpointErrorCode::Invalid, text))
            }
            _ => Ok(object),
        }
    }

    fn read(&self, object: &Object, into: &mut [u8]) -> Result<(), CheckpointError> {
        let mut why = None;
        for (stored, manifest, opener) in &self.places {
            let same = |o: &&Object| o.key == object.key && o.size() == object.size();
            let Some(object) = manifest.objects.iter().find(same) else {
                continue;
            };
            match arena::read(stored, object, into) {
                Ok(bad) => match bad.first() {
                    None => match opener.open(manifest, object, into) {
                        Ok(()) => return Ok(()),
                        Err(fault) => why = Some(fault),
                    },
                    Some(piece) => {
                        let key = String::from_utf8_lossy(&object.key);
                        let what = format!("piece {piece} of object {key:?} of rank {}", self.rank);
                        why.get_or_insert_with(|| damaged(&what));
                    }
                },
                // A node that cannot be reached now may have it: that is no damage.
                Err(e) => why = Some(e.into()),
            }
        }
        let other = |store| {
            outside::read(
                store,
                self.version,
                self.rank,
                (&object.key, self.seal),
                into,
            )
        };
        match self.external.is_some_and(other) {
            true => Ok(()),
            false => Err(why.unwrap_or_else(|| damaged("an object"))),
        }
    }

    /// Fills all objects, several at a time: those that come from another node wait for that mostly, and those of this node are copied
    /// by the caller and one of the helpers, if there are any.
    fn read_all(
        &self,
        objects: &mut [Empty<'_>],
        helpers: usize,
        enter: &(dyn Fn() + Sync),
    ) -> Result<(), CheckpointError> {
        let workers = match &self.places[0] {
            (VersionSource::Far(..), ..) => FETCHES,
            _ => 1 + helpers.min(1),
        };
        let waiting = Mutex::new(objects.iter_mut());
        let one = |object: &mut Empty<'_>| {
            let stored = self.first_whole(object.key, Some(object.bytes.len()))?;
            self.read(stored, object.bytes)
        };
        let worker = || loop {
            let Some(object) = lock(&waiting).next() else {
                return Ok(());
            };
            if let Err(fault) = one(object) {
                // The others are not needed any more.
                lock(&waiting).by_ref().for_each(drop);
                return Err(fault);
            }
        };
        at_once(workers, "phx-fetch", enter, &worker)
    }

    fn all(&self, object: &Object) -> Result<Vec<u8>, CheckpointError> {
        let mut bytes = vec![0; object.size() as usize];
        self.read(object, &mut bytes)?;
        Ok(bytes)
    }
}

/// Refuses a restart that would leave out an object of the version, and with it of all later ones. An object that only some of
/// the old ranks had may be another new rank's.
fn check_all_requested<T: Vault>(
    olds: &[Old<'_, T>],
    objects: &[Empty<'_>],
) -> Result<(), CheckpointError> {
    let mut manifests = olds
        .iter()
        .filter_map(|old| old.places.first())
        .map(|(_, manifest, _)| manifest);
    let Some(first) = manifests.next() else {
        return Ok(());
    };
    let others: Vec<&RankManifest> = manifests.collect();
    let left = first.objects.iter().find(|old| {
        let of_all = |manifest: &&RankManifest| manifest.objects.iter().any(|o| o.key == old.key);
        !objects.iter().any(|new| *new.key == *old.key) && others.iter().all(of_all)
    });
    let Some(left) = left else {
        return Ok(());
    };
    let text = format!(
        "the version has object {:?} of {} bytes, which this program has not: create it before restarting (and destroy it then, if later versions are to be without it)",
        String::from_utf8_lossy(&left.key),
        left.size()
    );
    Err(CheckpointError::new(CheckpointErrorCode::Invalid, text))
}

/// Fills a box of an array from all old ones that it overlaps: ghosts come from their owner.
fn block<T: Vault>(
    olds: &[Old<'_, T>],
    key: &[u8],
    new: &[[u64; 4]],
    into: &mut [u8],
) -> Result<(), CheckpointError> {
    let mut filled = 0u64;
    for old in olds {
        let object = old.first_whole(key, None)?;
        let Shape::Block(of) = &object.shape else {
            return Err(reshaped(key));
        };
        let alike = of.len() == new.len() && of.iter().zip(new).all(|(o, n)| o[0] == n[0]);
        let unit = u64::from(object.unit);
        if !alike
            || elements(of).checked_mul(unit) != Some(object.size())
            || elements(new).checked_mul(unit) != Some(into.len() as u64)
        {
            return Err(reshaped(key));
        }
        let both: Vec<Range<u64>> = of
            .iter()
            .zip(new)
            .map(|(o, n)| {
                let (own, wanted) = (owned(o), n[1]..n[1].saturating_add(n[2]));
                own.start.max(wanted.start)..own.end.min(wanted.end)
            })
            .collect();
        if both.iter().any(Range::is_empty) {
            continue;
        }
        let bytes = old.all(object)?;
        filled += both.iter().map(|r| r.end - r.start).product::<u64>();
        copy_box(&bytes, of, into, new, &both, unit as usize);
    }
    match filled == elements(new) {
        true => Ok(()),
        false => Err(reshaped(key)),
    }
}

/// How many elements a box has, its ghosts included.
fn elements(shape: &[[u64; 4]]) -> u64 {
    shape
        .iter()
        .try_fold(1u64, |n, d| n.checked_mul(d[2]))
        .unwrap_or(u64::MAX)
}

/// The elements of a dimension that are a box's own: at the ends of the array there is no neighbour whose elements it could have.
fn owned([all, first, count, ghost]: &[u64; 4]) -> Range<u64> {
    let end = first.saturating_add(*count);
    let low = if *first > 0 {
        first.saturating_add(*ghost)
    } else {
        0
    };
    let high = if end < *all {
        end.saturating_sub(*ghost)
    } else {
        end
    };
    low..high
}

/// Copies the elements of a box that two boxes have, run by run of the last dimension.
fn copy_box(
    from: &[u8],
    of: &[[u64; 4]],
    into: &mut [u8],
    new: &[[u64; 4]],
    both: &[Range<u64>],
    unit: usize,
) {
    let Some(last) = both.last() else {
        into.copy_from_slice(from);
        return;
    };
    let run = (last.end - last.start) as usize * unit;
    let index = |shape: &[[u64; 4]], at: &[u64]| {
        let element = shape
            .iter()
            .zip(at)
            .fold(0, |sum, (d, x)| sum * d[2] + (x - d[1]));
        element as usize * unit
    };
    let mut at: Vec<u64> = both.iter().map(|r| r.start).collect();
    loop {
        let (source, target) = (index(of, &at), index(new, &at));
        into[target..target + run].copy_from_slice(&from[source..source + run]);
        // The next run: like counting, without the last digit.
        let mut digit = both.len() - 1;
        loop {
            if digit == 0 {
                return;
            }
            digit -= 1;
            at[digit] += 1;
            if at[digit] < both[digit].end {
                break;
            }
            at[digit] = both[digit].start;
        }
    }
}

/// Fills a rank's rows: all old ones behind each other are dealt out again.
fn rows_of<T: Vault>(
    olds: &[Old<'_, T>],
    key: &[u8],
    row: u64,
    sizes: &[u64],
    rank: u32,
    into: &mut [u8],
) -> Result<(), CheckpointError> {
    let mut objects = Vec::with_capacity(olds.len());
    for old in olds {
        let object = old.first_whole(key, None)?;
        if object.shape != Shape::Irregular(row) {
            return Err(reshaped(key));
        }
        objects.push(object);
    }
    let before: u64 = sizes[..rank as usize].iter().sum();
    let total: u64 = objects.iter().map(|o| o.size()).sum();
    if total != sizes.iter().sum::<u64>() {
        let (key, now) = (String::from_utf8_lossy(key), sizes.iter().sum::<u64>());
        let text = format!(
            "the rows of object {key:?} have {total} bytes on all ranks together in the version, and {now} now"
        );
        return Err(CheckpointError::new(CheckpointErrorCode::Shape, text));
    }
    let wanted = before..before + into.len() as u64;
    let mut at = 0u64;
    for (old, object) in olds.iter().zip(objects) {
        let of = at..at + object.size();
        at = of.end;
        let both = of.start.max(wanted.start)..of.end.min(wanted.end);
        if both.is_empty() {
            continue;
        }
        let bytes = old.all(object)?;
        let from = &bytes[(both.start - of.start) as usize..(both.end - of.start) as usize];
        into[(both.start - wanted.start) as usize..(both.end - wanted.start) as usize]
            .copy_from_slice(from);
    }
    Ok(())
}

fn rank_error(rank: u32, code: u8, text: &str) -> CheckpointError {
    let code = CheckpointErrorCode::ALL
        .into_iter()
        .find(|c| *c as u8 == code)
        .unwrap_or(CheckpointErrorCode::Internal);
    CheckpointError::new(code, format!("rank {rank}: {text}"))
}

fn incomplete(id: VersionId, who: &[u32]) -> CheckpointError {
    let first: Vec<String> = who.iter().take(8).map(u32::to_string).collect();
    let more = if who.len() > first.len() {
        " and others"
    } else {
        ""
    };
    let text = format!(
        "no version is complete: of version {id} the part of rank {}{more} is not on the nodes of this start, or was lost with their memory. \
         Start on the nodes that have it; or remove the run's folders for a start from nothing",
        first.join(", ")
    );
    CheckpointError::new(CheckpointErrorCode::Corrupt, text)
}

fn damaged(what: &str) -> CheckpointError {
    let text = format!("{what} is damaged, and no other copy is left");
    CheckpointError::new(CheckpointErrorCode::Corrupt, text)
}

fn reshaped(key: &[u8]) -> CheckpointError {
    let key = String::from_utf8_lossy(key);
    let text = format!(
        "object {key:?} is divided otherwise in the version than it is declared now: the whole array, its dimensions and its elements must be the same"
    );
    CheckpointError::new(CheckpointErrorCode::Shape, text)
}

fn undivided(key: &[u8], ranks: u32, now: u32) -> CheckpointError {
    let key = String::from_utf8_lossy(key);
    let text = format!(
        "the version was written by {ranks} ranks, there are {now} now, and object {key:?} does not say how it is divided: give it a shape, or start {ranks} ranks"
    );
    CheckpointError::new(CheckpointErrorCode::Shape, text)
}

impl<A: Medium, S: Medium> RankState<A, S> {
    /// Once all ranks have a version of this start on their tiers, and on others if that is requested, the remains of earlier
    /// ones on this node are not needed any more, except for those that this start continues with. The first rank of each node
    /// removes them.
    pub(super) fn reclaim<T, M>(
        &mut self,
        shared: &RankContext<T, M>,
    ) -> Result<(), CheckpointError>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let ranks = &*shared.ranks;
        let me = ranks.rank();
        let near = |rank: u32| ranks.node(rank) == ranks.node(me);
        // For older versions it is not known who has them.
        let progress = ranks.common_progress();
        let whole = |number: u64| !progress.lacks(number);
        let safe = match shared.options.replicate {
            Replicate::None => (1..=progress.durable)
                .rev()
                .take(RECENT as usize)
                .any(whole),
            _ => shared.good(progress) > 0,
        };
        if self.reclaimed || !safe {
            return Ok(());
        }
        if !(0..me).any(near) {
            let used: Vec<&str> = (0..ranks.ranks())
                .filter(|r| near(*r))
                .filter_map(|r| shared.world.own(ranks, r))
                .collect();
            for found in shared.world.arenas.iter().filter(|f| near(f.host)) {
                if !used.contains(&found.name.as_str()) {
                    shared.tier.remove(&found.name)?;
                }
            }
            // Nobody opens a damaged file again; it is this run's by its folder. This start may have made it again.
            let now = format!("{}/", shared.world.start.generation);
            for name in shared.world.damaged.iter() {
                if !name.starts_with(&now) {
                    shared.tier.remove(name)?;
                }
            }
            // Staged bytes of ranks that are gone, or elsewhere now, were completed.
            for name in shared.memory.list()? {
                let gone = |rank: u32| rank >= ranks.ranks() || !near(rank);
                if files::staging_of(&name).is_some_and(gone) {
                    shared.memory.remove(&name)?;
                }
            }
        }
        self.reclaimed = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An array of 6 x 5 elements, as two ranks had it by columns with a ghost each, goes to three by rows.
    #[test]
    fn a_box_is_filled_from_those_that_own_its_elements() {
        let all: Vec<u8> = (0..30).collect();
        let cut = |shape: &[[u64; 4]]| -> Vec<u8> {
            let mut out = Vec::new();
            for y in shape[0][1]..shape[0][1] + shape[0][2] {
                for x in shape[1][1]..shape[1][1] + shape[1][2] {
                    out.push(all[(y * 5 + x) as usize]);
                }
            }
            out
        };
        let left = [[6, 0, 6, 0], [5, 0, 4, 1]];
        let right = [[6, 0, 6, 0], [5, 2, 3, 1]];
        assert_eq!((owned(&left[1]), owned(&right[1])), (0..3, 3..5));
        let new = [[6, 1, 4, 1], [5, 0, 5, 0]];
        let mut into = vec![0xff; 20];
        for old in [left, right] {
            // Ghosts are never taken: they may be older than their originals.
            let mut bytes = cut(&old);
            for (n, byte) in bytes.iter_mut().enumerate() {
                let x = n as u64 % old[1][2] + old[1][1];
                if !owned(&old[1]).contains(&x) {
                    *byte = 0xee;
                }
            }
            let both: Vec<Range<u64>> = old
                .iter()
                .zip(&new)
                .map(|(o, n)| {
                    let own = owned(o);
                    own.start.max(n[1])..own.end.min(n[1] + n[2])
                })
                .collect();
            copy_box(&bytes, &old, &mut into, &new, &both, 1);
        }
        assert_eq!(into, cut(&new));
    }
}
