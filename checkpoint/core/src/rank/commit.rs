//! A commit: room, copies, publication. What is published is durable at once if nothing was staged, else once `destage` has run.

use super::ahead::Early;
use super::{
    Committed, Item, Pending, RECENT, RankState, Replicate, Shared, Staging, found, grow, publish,
    whole,
};
use crate::arena::{Arena, ArenaError, Header, Level, VersionId};
use crate::fault::{Code, Fault};
use crate::lanes::{self, Copied, Send, Staged, Work};
use crate::layout::{self, Job};
use crate::manifest::{CHUNK, MAX_OBJECTS, Manifest, Object, Piece, Place, Proof};
use crate::room::{FIRST, LARGE};
use crate::seal::{Origin, Sealing};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tarn_ports::{Medium, RanksError, Reached, Vault};
use tarn_types::block::{self, Kind};

/// How often it is looked whether other ranks have come so far.
const LOOK: Duration = Duration::from_millis(20);
/// A rate is the mean of about so many commits.
const MEAN: u64 = 8;

impl<T: Vault, M: Vault> Shared<T, M> {
    pub(super) fn commit(&self, items: &[Item<'_>]) -> Result<Committed, Fault> {
        let began = Instant::now();
        let mut rank_state = self.take();
        let id = VersionId {
            generation: self.world.start.generation,
            number: self.number.load(Ordering::Acquire) + 1,
        };
        // Only ranks that fail do not wait for others before they are that far ahead.
        if id.number >= self.ranks.told().committed + RECENT {
            let text = format!(
                "this would be commit {} of this rank, and another has made {}: a commit is the next version whether it fails or not, so \
                 all ranks make as many, and none tries again alone",
                id.number,
                self.ranks.told().committed
            );
            return Err(Fault::new(Code::Invalid, text));
        }
        self.number.store(id.number, Ordering::Release);
        let committed = rank_state.commit(self, id, items, began);
        self.tell(|reached| {
            reached.committed = id.number;
            reached.missed &= recent(id.number);
            let bit = 1 << (id.number % 64);
            match &committed {
                Ok(_) => reached.missed &= !bit,
                Err(_) => reached.missed |= bit,
            }
            // One that failed is lacked, and nobody waits for it.
            if rank_state.pending.is_none() {
                reached.durable = id.number;
            }
            if let (Some(flusher), Ok(committed)) = (&self.flusher, &committed) {
                flusher.committed(committed.id, &rank_state.name);
            }
        });
        committed
    }
}

impl<A: Medium, S: Medium> RankState<A, S> {
    fn commit<T, M>(
        &mut self,
        shared: &Shared<T, M>,
        id: VersionId,
        items: &[Item<'_>],
        began: Instant,
    ) -> Result<Committed, Fault>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let mut items: Vec<&Item<'_>> = items.iter().collect();
        items.sort_by_key(|item| item.key);
        if let Some(twice) = items.windows(2).find(|w| w[0].key == w[1].key) {
            let key = String::from_utf8_lossy(twice[0].key).into_owned();
            return Err(Fault::new(
                Code::Exists,
                format!("two objects are called {key:?}"),
            ));
        }
        self.destage(shared)?;
        let sizes: Vec<u64> = items.iter().map(|item| item.bytes.len() as u64).collect();
        self.reserve(shared, &sizes)?;
        self.begin(shared)?;
        self.give_up_old(shared)?;
        let waited = began.elapsed();
        let (offsets, slot) = layout::slot(sizes.iter().copied()).ok_or_else(too_large)?;
        let done = self.ahead.settle(&items, shared.options.audit);
        let at = match done.slot {
            Some(at) => at,
            None => self.place(shared, slot)?,
        };
        let places: Vec<u64> = offsets.iter().map(|o| at + o).collect();
        let ahead = |object: usize, chunk: u64| -> Option<Early> {
            done.copies[object].get(chunk as usize).copied().flatten()
        };
        let (jobs, row) = layout::jobs(&sizes, |object, chunk| ahead(object, chunk).is_some());
        let room = self.room(row);
        let mut replication_failed = None;
        if room > 0 {
            let (arena, _) = self.open()?;
            let head = head(arena);
            let wanted = self.asked.replicas;
            replication_failed = self
                .buddies
                .ready(shared, wanted, FIRST + room, &head)
                .err();
        }
        // Without the copy that was asked for nothing is staged: it would be lost with this node's memory.
        let room = if replication_failed.is_some() {
            0
        } else {
            room
        };
        let copied = self.copy(shared, &items, &places, &jobs, row, room)?;
        if let Some((by, fault)) = copied.replication_failed {
            self.buddies.give_up(by);
            replication_failed = Some(fault);
        }
        let origin = Origin {
            id,
            start: shared.world.start.identity,
            rank: shared.ranks.rank(),
            ranks: shared.ranks.ranks(),
        };
        let seal = shared.options.seal.as_deref().map(|seal| (seal, &origin));
        let manifest = manifest(&items, &places, copied.chunks, ahead, seal)?;
        let durable = manifest.is_durable();
        let level = if durable {
            Level::Durable
        } else {
            Level::Committed
        };
        let (arena, medium) = self.open()?;
        publish(arena, medium, Some((id, level, manifest)), |_| true)?;
        if !durable {
            self.pending = Some(Pending { id, places });
        }
        self.ahead.begin(&items);
        let spent = copied.spent;
        let copied = spent.tier + spent.memory;
        let mut stats = shared.stats();
        let copies = 1 + self.asked.replicas as u64;
        let helpers = shared.options.helpers.max(1) as u64;
        stats.persistent_rate = mean(stats.persistent_rate, spent.tier * helpers, spent.tier_time);
        stats.memory_rate = mean(stats.memory_rate, spent.memory * copies, spent.memory_time);
        stats.commits += 1;
        stats.bytes += sizes.iter().sum::<u64>();
        stats.ahead += sizes.iter().sum::<u64>().saturating_sub(copied);
        stats.twice += done.twice;
        stats.staged += spent.memory;
        stats.last_staged = spent.memory;
        stats.waited += waited;
        stats.last_commit = began.elapsed();
        stats.commit += began.elapsed();
        let bare = || {
            let told = shared.ranks.told();
            let number = told.replicated;
            let why = || {
                let why = super::lock(&shared.why_bare).clone();
                let own = why.filter(|(of, _)| *of == number);
                own.map(|(_, why)| why)
            };
            (shared.good(told) != number).then(|| {
                let why = why().unwrap_or_else(|| "a rank could not keep it".into());
                format!(
                    "version {}.{number} is not on other nodes: {why}",
                    id.generation
                )
            })
        };
        let degraded_by = self.degraded_by.take().or_else(bare);
        stats.degraded += u64::from(replication_failed.is_some() || degraded_by.is_some());
        Ok(Committed {
            id,
            degraded: replication_failed
                .map(|fault| fault.text)
                .or(degraded_by)
                .or_else(|| shared.ranks.detour()),
        })
    }

    /// The arena, once there is one.
    pub(super) fn open(&mut self) -> Result<(&mut Arena, &mut A), Fault> {
        let open = self.arena.as_mut().map(|(arena, medium)| (arena, medium));
        open.ok_or_else(not_open)
    }

    /// Takes the room that versions of objects of these sizes need, and the memory that they are staged in.
    pub(super) fn reserve<T, M>(
        &mut self,
        shared: &Shared<T, M>,
        sizes: &[u64],
    ) -> Result<(), Fault>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        if sizes.len() > MAX_OBJECTS {
            let text = format!("{} objects; a rank may have {MAX_OBJECTS}", sizes.len());
            return Err(Fault::new(Code::Invalid, text));
        }
        let (_, slot) = layout::slot(sizes.iter().copied()).ok_or_else(too_large)?;
        // What is being flushed keeps its slot, and what others fetch.
        let replicates = shared.options.replicate != Replicate::None;
        let kept =
            self.asked.versions + usize::from(shared.flusher.is_some()) + usize::from(replicates);
        let size = arena_size(slot, sizes, kept).ok_or_else(too_large)?;
        match &mut self.arena {
            Some((arena, medium)) if medium.size() < size => {
                medium.grow(size)?;
                arena.grown(size);
            }
            Some(_) => {}
            None => {
                let header = Header {
                    identity: shared.options.identity,
                    run: shared.options.run.clone(),
                    start: shared.world.start,
                    rank: shared.ranks.rank(),
                    ranks: shared.ranks.ranks(),
                };
                let mut made = None;
                let medium = shared.tier.create(&self.name, size, &mut |medium| {
                    made = Some(Arena::format(&mut whole(medium)?, header.clone()));
                    Ok(())
                })?;
                let arena = made.ok_or_else(not_open)??;
                self.arena = Some((arena, medium));
            }
        }
        let total: u64 = sizes.iter().sum();
        let room = match shared.options.staging {
            _ if self.asked.persistence >= Level::Durable => 0,
            Staging::None => 0,
            Staging::Half => total.div_ceil(2),
            // Jobs are multiples of a line.
            Staging::All => total + 64 * sizes.len() as u64,
            Staging::Bytes(bytes) => bytes.min(total + 64 * sizes.len() as u64),
        };
        let room = room.next_multiple_of(64);
        let has = self
            .staging
            .as_ref()
            .map_or(0, |s| s.size().saturating_sub(FIRST));
        if room > has {
            // What it holds is not needed once it is de-staged.
            self.destage(shared)?;
            self.staging = None;
            let (arena, _) = self.open()?;
            let head = head(arena);
            let name = found::staging(shared.ranks.rank());
            // What an earlier start has left there was completed: its memory is not needed twice.
            shared.memory.remove(&name)?;
            let made = shared.memory.create(&name, FIRST + room, &mut |medium| {
                use tarn_ports::Window;
                let mut window = whole(medium)?;
                window.write(0, &head)?;
                window.persist()
            });
            self.staging = Some(made.map_err(|e| no_memory(e.into(), room))?);
        }
        Ok(())
    }

    /// What earlier starts have left and not all ranks have is given up, before anything of this start is published.
    fn begin<T: Vault, M: Vault>(&mut self, shared: &Shared<T, M>) -> Result<(), Fault> {
        if self.begun {
            return Ok(());
        }
        let base = self.goes_on_from(shared);
        let (arena, medium) = self.open()?;
        if arena.versions().iter().any(|v| Some(v.id) > base) {
            arena.publish(&mut whole(medium)?, None, |v| Some(v.id) <= base)?;
        }
        self.begun = true;
        Ok(())
    }

    /// The version of an earlier start that this one goes on from: what is newer is not what it has come from.
    pub(super) fn goes_on_from<T: Vault, M: Vault>(
        &self,
        shared: &Shared<T, M>,
    ) -> Option<VersionId> {
        let newest = || {
            let restorable = shared.world.restorable(shared.ranks.rank());
            restorable.last().map(|(version, _)| version.id)
        };
        self.base.or_else(newest)
    }

    /// Gives up versions until there is a slot for one more. One is given up when the next of this rank is on the persistent tiers of
    /// all ranks, and others keep it if they are to, or when another rank has no such version.
    fn give_up_old<T, M>(&mut self, shared: &Shared<T, M>) -> Result<(), Fault>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let until = Instant::now() + shared.options.timeout;
        while let Some(least) = self.give_up_now(shared)? {
            let left = until.saturating_duration_since(Instant::now());
            match shared.ranks.wait(least, left.min(LOOK)) {
                Err(RanksError::TimedOut { .. }) if left > LOOK => {}
                Err(e @ RanksError::TimedOut { .. }) if least.replicated > 0 => {
                    let id = VersionId {
                        generation: shared.world.start.generation,
                        number: least.replicated,
                    };
                    self.degraded_by = Some(format!("version {id} is not on other nodes: {e}"));
                    self.released = least.replicated;
                }
                Err(e) => return Err(e.into()),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// The same without waiting: if there is none yet, how far all ranks must be before.
    fn give_up_now<T, M>(&mut self, shared: &Shared<T, M>) -> Result<Option<Reached>, Fault>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let (keep, released) = (self.asked.versions, self.released);
        let generation = shared.world.start.generation;
        let (arena, medium) = self.open()?;
        // One more is kept while others fetch it.
        let most = keep + usize::from(shared.options.replicate != Replicate::None);
        loop {
            let pinned = shared.flusher.as_ref().and_then(|f| f.pinned());
            let ids = arena.versions().iter().map(|v| v.id);
            let ids: Vec<VersionId> = ids.filter(|id| Some(*id) != pinned).collect();
            if ids.len() <= most {
                return Ok(None);
            }
            let told = shared.ranks.told();
            let of_now = |id: VersionId| id.generation == generation;
            let newest = shared.number.load(Ordering::Acquire);
            let lacked = |id: &VersionId| newest - id.number < RECENT && told.lacks(id.number);
            let useless = ids.iter().find(|id| of_now(**id) && lacked(id));
            // What others have, and what they fetch, all ranks keep: it can be restored only where all parts are left.
            let (good, fetched) = (shared.good(told), told.replicated.max(released));
            let base = ids.iter().rfind(|id| !of_now(**id));
            let wanted = |id: &VersionId| match of_now(*id) {
                true if id.number == good => true,
                true => shared.is_replicated(id.number) && id.number > fetched,
                false => most > keep && good == 0 && Some(id) == base,
            };
            let free = ids[..ids.len() - 1].iter().position(|id| !wanted(id));
            let mut least = Reached::default();
            let given_up = match (useless, free) {
                (Some(id), _) => *id,
                (None, None) => {
                    least.replicated = ids[1].number;
                    return Ok(Some(least));
                }
                (None, Some(n)) if of_now(ids[n + 1]) && ids[n + 1].number > told.durable => {
                    least.durable = ids[n + 1].number;
                    return Ok(Some(least));
                }
                (None, Some(n)) => ids[n],
            };
            arena.publish(&mut whole(medium)?, None, |v| v.id != given_up)?;
        }
    }

    /// A place for the next version, if there is one already.
    pub(super) fn free_slot<T, M>(&mut self, shared: &Shared<T, M>, slot: u64) -> Option<u64>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        match self.give_up_now(shared) {
            Ok(None) => {
                let (arena, medium) = self.open().ok()?;
                let (at, passed) = arena.slot(&whole(medium).ok()?, slot).ok()?;
                shared.stats().pinned += u64::from(passed);
                Some(at)
            }
            _ => None,
        }
    }

    /// A place for a slot.
    fn place<T, M>(&mut self, shared: &Shared<T, M>, slot: u64) -> Result<u64, Fault>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let (arena, medium) = self.open()?;
        let mut placed = arena.slot(&whole(medium)?, slot);
        if let Err(ArenaError::Full { .. }) = placed {
            grow(arena, medium, slot)?;
            placed = arena.slot(&whole(medium)?, slot);
        }
        let (at, passed) = placed?;
        shared.stats().pinned += u64::from(passed);
        Ok(at)
    }

    /// Bytes of a row of jobs that may be staged.
    fn room(&self, row: u64) -> u64 {
        let may = self.asked.persistence < Level::Durable;
        let staging = self.staging.as_ref().filter(|_| may);
        staging.map_or(0, |s| (s.size() - FIRST).min(row) / 64 * 64)
    }

    /// Copies all jobs; what the buddy could not be given goes to the tier.
    fn copy<T, M>(
        &mut self,
        shared: &Shared<T, M>,
        items: &[&Item<'_>],
        places: &[u64],
        jobs: &[Job],
        row: u64,
        room: u64,
    ) -> Result<Chunks, Fault>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let length = |job: &Job| job.bytes.end - job.bytes.start;
        let in_arena = |job: &Job| places[job.object] + job.bytes.start;
        let in_memory = |job: &Job| Some(FIRST + layout::staged(job, row, room)?);
        let to_arena: Vec<Range<u64>> = jobs
            .iter()
            .map(|j| in_arena(j)..in_arena(j) + length(j))
            .collect();
        let staged: Vec<Range<u64>> = match room {
            0 => Vec::new(),
            _ => jobs
                .iter()
                .filter_map(|j| in_memory(j).map(|at| at..at + length(j)))
                .collect(),
        };
        let first = jobs.len() - staged.len();
        let far = match room {
            0 => Vec::new(),
            _ => self.buddies.far(),
        };
        let (_, arena) = self.arena.as_mut().ok_or_else(not_open)?;
        let mut own = match &mut self.staging {
            Some(staging) => staging.windows(&staged)?.into_iter(),
            None => Vec::new().into_iter(),
        };
        let mut buddies = self.buddies.windows(&staged)?.into_iter();
        let mut works = Vec::with_capacity(jobs.len());
        for (number, (job, tier)) in jobs.iter().zip(arena.windows(&to_arena)?).enumerate() {
            let range = job.bytes.start as usize..job.bytes.end as usize;
            // The last ones have a place in memory, in the same order.
            let place = number.checked_sub(first);
            let staged = place.and_then(|place| {
                Some(Staged {
                    at: staged[place].start,
                    own: own.next()?,
                    buddies: buddies.next()?,
                    done: false,
                })
            });
            works.push(Work {
                number,
                of: (items[job.object].key, job.bytes.start / CHUNK),
                bytes: &items[job.object].bytes[range],
                seal: shared.options.seal.as_deref(),
                tier,
                staged,
                sums: Vec::new(),
                proofs: Vec::new(),
            });
        }
        let until = Instant::now() + shared.options.timeout;
        // The one that failed, if one did.
        let failed = AtomicU32::new(u32::MAX);
        let generation = shared.world.start.generation;
        let send = |at: u64, chunk: &[u8], sum: u64| -> Result<(), Fault> {
            far.iter().try_for_each(|&far| {
                let left = until.saturating_duration_since(Instant::now());
                let kept = shared.ranks.put(far, generation, at, chunk, left);
                let why = match kept {
                    Ok(kept) if kept == sum => return Ok(()),
                    Ok(_) => {
                        let text = format!("what rank {far} keeps is not what it was sent");
                        Fault::new(Code::Corrupt, text)
                    }
                    Err(e) => e.into(),
                };
                failed.store(far, Ordering::Relaxed);
                Err(why)
            })
        };
        let send: Option<&Send<'_>> = match far.is_empty() {
            true => None,
            false => Some(&send),
        };
        let enter = &*shared.options.enter;
        let copied = lanes::copy(works, shared.options.helpers, enter, send)?;
        let failed = failed.load(Ordering::Relaxed);
        Chunks::of(copied, failed, jobs, &to_arena, items.len())
    }
}

/// The bits of a version and of those before it that are known. The others are those of versions to come, which faster ranks may have already: no
/// rank is ahead of another by more versions than are kept and one.
fn recent(number: u64) -> u64 {
    (0..RECENT).fold(0, |bits, n| bits | 1 << (number.wrapping_sub(n) % 64))
}

/// Where a chunk that was copied lies, its checksum there, and the proof of what is sealed.
type Lies = (Place, u64, Option<Proof>);

/// Where the chunks that were copied lie, by object and number.
struct Chunks {
    chunks: Vec<BTreeMap<u64, Lies>>,
    spent: lanes::Spent,
    /// The buddy that does not have what was staged, and why.
    replication_failed: Option<(u32, Fault)>,
}

impl Chunks {
    fn of<W: tarn_ports::Window, S: tarn_ports::Window>(
        copied: Copied<'_, W, S>,
        failed: u32,
        jobs: &[Job],
        to_arena: &[Range<u64>],
        objects: usize,
    ) -> Result<Self, Fault> {
        let mut chunks = vec![BTreeMap::new(); objects];
        for mut work in copied.works {
            if copied.replication_failed.is_some() && work.staged.take().is_some_and(|s| s.done) {
                work.sums.clear();
                work.proofs.clear();
                work.copy(false)?;
            }
            let staged = work.staged.filter(|s| s.done).map(|s| s.at);
            let arena = to_arena[work.number].start;
            let job = &jobs[work.number];
            let mut proofs = work.proofs.into_iter();
            for (number, sum) in (0..).zip(work.sums) {
                let place = match staged {
                    Some(at) => Place::Staged(at + number * CHUNK),
                    None => Place::Arena(arena + number * CHUNK),
                };
                chunks[job.object].insert(
                    job.bytes.start / CHUNK + number,
                    (place, sum, proofs.next()),
                );
            }
        }
        Ok(Self {
            chunks,
            spent: copied.spent,
            replication_failed: copied.replication_failed.map(|fault| (failed, fault)),
        })
    }
}

/// What a version has: the chunks that were copied now, and those that were copied ahead to the objects' places.
fn manifest(
    items: &[&Item<'_>],
    places: &[u64],
    copied: Vec<BTreeMap<u64, Lies>>,
    ahead: impl Fn(usize, u64) -> Option<Early>,
    seal: Option<(&Sealing, &Origin)>,
) -> Result<Manifest, Fault> {
    let mut proofs = Vec::new();
    let object = |(number, mut copied): (usize, BTreeMap<u64, Lies>)| {
        let (item, place) = (items[number], places[number]);
        let size = item.bytes.len() as u64;
        let chunk = |chunk: u64| {
            let lies = |copy: Early| {
                let place = Place::Arena(place + chunk * CHUNK);
                (place, copy.sum, copy.proof)
            };
            let before = ahead(number, chunk).map(lies);
            copied.remove(&chunk).or(before)
        };
        let chunks: Vec<Lies> = (0..Piece::chunks(size)).filter_map(chunk).collect();
        proofs.push(chunks.iter().filter_map(|(_, _, proof)| *proof).collect());
        let chunks = chunks.into_iter().map(|(place, sum, _)| (place, sum));
        Object {
            key: item.key.into(),
            unit: item.unit,
            shape: item.shape.clone(),
            pieces: layout::pieces(size, chunks),
        }
    };
    let objects: Vec<Object> = copied.into_iter().enumerate().map(object).collect();
    let seal = seal.map(|(seal, of)| seal.seals(of, &objects, proofs));
    Ok(Manifest {
        seal: seal.transpose()?,
        objects,
    })
}

/// The head of a staging file: whose it is.
fn head(arena: &Arena) -> Vec<u8> {
    let header = arena.header();
    block::seal(
        Kind::Staging,
        header.identity,
        0,
        &header.encode(),
        found::HEAD,
    )
}

/// Bytes of an arena for so many versions and the next, with their manifests: as many and another, as that of a version is written anew
/// when it is de-staged.
pub(super) fn arena_size(slot: u64, sizes: &[u64], keep: usize) -> Option<u64> {
    let chunks: u64 = sizes.iter().map(|s| s.div_ceil(CHUNK)).sum();
    // A key, a shape and a frame take less than 1 KiB, a checksum 8 bytes, the proof of a sealed chunk 24; the pieces of one version are few.
    let manifest = (chunks * 32 + sizes.len() as u64 * 1024).checked_next_multiple_of(LARGE)?;
    let slots = keep as u64 + 1;
    let slot = slot.checked_next_multiple_of(LARGE)?;
    let manifests = manifest.checked_mul(slots + 1)?;
    slot.checked_mul(slots)?
        .checked_add(manifests)?
        .checked_add(LARGE)
}

pub(super) fn not_open() -> Fault {
    Fault::new(Code::Internal, "the arena is not open")
}

pub(super) fn too_large() -> Fault {
    Fault::new(Code::Invalid, "the objects are larger than any memory")
}

fn no_memory(fault: Fault, wanted: u64) -> Fault {
    let text = format!(
        "no memory for {wanted} bytes that are to be staged: {}; stage less",
        fault.text
    );
    match fault.code {
        Code::NoSpace | Code::NoMem => Fault::new(Code::NoMem, text),
        _ => fault,
    }
}

/// The mean of a rate and what was measured now.
fn mean(before: u64, bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    let now = u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX);
    match (before, bytes) {
        (_, 0) => before,
        (0, _) => now,
        _ => before - before / MEAN + now / MEAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That a rank had no version 5 says nothing of version 69, which others may have before it.
    #[test]
    fn what_was_missed_long_ago_is_not_what_is_to_come() {
        let mut missed = 1u64 << 5;
        for number in 6..=68 {
            missed &= recent(number);
            let to_come = number + 1..number + 2 + super::super::MAX_KEPT as u64;
            assert!(to_come.into_iter().all(|n| missed & 1 << (n % 64) == 0));
        }
        assert_eq!(recent(3).count_ones(), 32);
        assert!(recent(40) & 1 << 9 != 0 && recent(40) & 1 << 41 == 0);
    }
}
