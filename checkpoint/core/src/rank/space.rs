//! The space of versions: the arena and the staging file are made as large as they must be, and old versions are given up for new ones.

use super::{RECENT, RankContext, RankState, Replicate, StagingShare, files, grow, whole};
use crate::arena::{Arena, ArenaError, ArenaHeader, PersistenceLevel, VersionId};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::free_space::{FIRST, LARGE};
use crate::layout;
use crate::manifest::{CHUNK, MAX_OBJECTS};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tarn_ports::{Medium, MediumWindow, RankProgress, RanksError, Vault};
use tarn_types::block::{self, BlockKind};

/// The progress of other ranks is polled this often.
const LOOK: Duration = Duration::from_millis(20);
/// Jobs are multiples of a line of so many bytes.
const LINE: u64 = 64;

impl<A: Medium, S: Medium> RankState<A, S> {
    /// The arena, once there is one.
    pub(super) fn open(&mut self) -> Result<(&mut Arena, &mut A), CheckpointError> {
        let open = self.arena.as_mut().map(|(arena, medium)| (arena, medium));
        open.ok_or_else(not_open)
    }

    /// Reserves the space that versions of objects of these sizes need: the arena, and the memory that they are staged in.
    pub(super) fn reserve_space<T, M>(
        &mut self,
        shared: &RankContext<T, M>,
        sizes: &[u64],
    ) -> Result<(), CheckpointError>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        if sizes.len() > MAX_OBJECTS {
            let text = format!("{} objects; a rank may have {MAX_OBJECTS}", sizes.len());
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        }
        self.reserve_arena(shared, sizes)?;
        self.reserve_staging(shared, sizes)
    }

    /// Makes the arena, or grows it, until it holds all versions that are kept and the next.
    fn reserve_arena<T, M>(
        &mut self,
        shared: &RankContext<T, M>,
        sizes: &[u64],
    ) -> Result<(), CheckpointError>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let (_, slot) = layout::slot(sizes.iter().copied()).ok_or_else(too_large)?;
        // A version keeps its slot while it is flushed, and while others fetch it.
        let replicates = shared.options.replicate != Replicate::None;
        let kept = self.requirements.versions
            + usize::from(shared.flusher.is_some())
            + usize::from(replicates);
        let size = arena_size(slot, sizes, kept).ok_or_else(too_large)?;
        match &mut self.arena {
            Some((arena, medium)) if medium.size() < size => {
                medium.grow(size)?;
                arena.grown(size);
            }
            Some(_) => {}
            None => {
                let header = ArenaHeader {
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
        Ok(())
    }

    /// Makes the staging file as large as the staged part of a version.
    fn reserve_staging<T, M>(
        &mut self,
        shared: &RankContext<T, M>,
        sizes: &[u64],
    ) -> Result<(), CheckpointError>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let wanted = self.staging_size(shared.options.staging, sizes);
        if wanted <= self.staging_capacity() {
            return Ok(());
        }
        // The version that it holds does not need it once it is de-staged.
        self.destage(shared)?;
        self.staging = None;
        let (arena, _) = self.open()?;
        let head = head(arena);
        let name = files::staging(shared.ranks.rank());
        // The file of an earlier start was completed: its memory is not needed twice.
        shared.memory.remove(&name)?;
        let made = shared.memory.create(&name, FIRST + wanted, &mut |medium| {
            let mut window = whole(medium)?;
            window.write(0, &head)?;
            window.persist()
        });
        self.staging = Some(made.map_err(|e| no_memory(e.into(), wanted))?);
        Ok(())
    }

    /// Bytes of objects of these sizes that are staged.
    fn staging_size(&self, staging: StagingShare, sizes: &[u64]) -> u64 {
        let total: u64 = sizes.iter().sum();
        let all = total + LINE * sizes.len() as u64;
        let size = match staging {
            _ if self.requirements.persistence >= PersistenceLevel::Durable => 0,
            StagingShare::None => 0,
            StagingShare::Half => total.div_ceil(2),
            StagingShare::All => all,
            StagingShare::Bytes(bytes) => bytes.min(all),
        };
        size.next_multiple_of(LINE)
    }

    /// Bytes that the staging file holds after its head.
    fn staging_capacity(&self) -> u64 {
        self.staging.as_ref().map_or(0, |staging| {
            let size = staging.size();
            assert!(size >= FIRST, "a staging file of {size} bytes has no head");
            size - FIRST
        })
    }

    /// Bytes of jobs of so many bytes that may be staged now.
    pub(super) fn stageable(&self, bytes: u64) -> u64 {
        if self.requirements.persistence >= PersistenceLevel::Durable {
            return 0;
        }
        self.staging_capacity().min(bytes) / LINE * LINE
    }

    /// Gives up the versions of earlier starts that not all ranks have, before this start publishes its first.
    pub(super) fn give_up_earlier<T: Vault, M: Vault>(
        &mut self,
        shared: &RankContext<T, M>,
    ) -> Result<(), CheckpointError> {
        if self.begun {
            return Ok(());
        }
        let base = self.continues_from(shared);
        let (arena, medium) = self.open()?;
        if arena.versions().iter().any(|v| Some(v.id) > base) {
            arena.publish(&mut whole(medium)?, None, |v| Some(v.id) <= base)?;
        }
        self.begun = true;
        Ok(())
    }

    /// The version of an earlier start that this one continues from: a newer one is not its origin.
    pub(super) fn continues_from<T: Vault, M: Vault>(
        &self,
        shared: &RankContext<T, M>,
    ) -> Option<VersionId> {
        let newest = || {
            let restorable = shared.world.restorable(shared.ranks.rank());
            restorable.last().map(|(version, _)| version.id)
        };
        self.base.or_else(newest)
    }

    /// Gives up versions until there is a slot for one more. One is given up when the next of this rank is on the persistent tiers of
    /// all ranks, and others keep it if they are to, or when another rank has no such version.
    pub(super) fn give_up_old<T, M>(
        &mut self,
        shared: &RankContext<T, M>,
    ) -> Result<(), CheckpointError>
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
    fn give_up_now<T, M>(
        &mut self,
        shared: &RankContext<T, M>,
    ) -> Result<Option<RankProgress>, CheckpointError>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let (keep, released) = (self.requirements.versions, self.released);
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
            let progress = shared.ranks.common_progress();
            let of_now = |id: VersionId| id.generation == generation;
            let newest = shared.number.load(Ordering::Acquire);
            // Of this start.
            let lacked = |id: &VersionId| {
                // An arena can say anything: a version that was not begun is not lacked.
                let age = newest.checked_sub(id.number);
                age.is_some_and(|age| age < RECENT) && progress.lacks(id.number)
            };
            let useless = ids.iter().find(|id| of_now(**id) && lacked(id));
            // All ranks keep the versions that others have or fetch: such a version can be restored only where all parts are left.
            let (good, fetched) = (shared.good(progress), progress.replicated.max(released));
            let base = ids.iter().rfind(|id| !of_now(**id));
            let wanted = |id: &VersionId| match of_now(*id) {
                true if id.number == good => true,
                true => shared.is_replicated(id.number) && id.number > fetched,
                false => most > keep && good == 0 && Some(id) == base,
            };
            let free = ids[..ids.len() - 1].iter().position(|id| !wanted(id));
            let mut least = RankProgress::default();
            let given_up = match (useless, free) {
                (Some(id), _) => *id,
                (None, None) => {
                    least.replicated = ids[1].number;
                    return Ok(Some(least));
                }
                (None, Some(n)) if of_now(ids[n + 1]) && ids[n + 1].number > progress.durable => {
                    least.durable = ids[n + 1].number;
                    return Ok(Some(least));
                }
                (None, Some(n)) => ids[n],
            };
            arena.publish(&mut whole(medium)?, None, |v| v.id != given_up)?;
        }
    }

    /// A place for the next version, if there is one already.
    pub(super) fn free_slot<T, M>(&mut self, shared: &RankContext<T, M>, slot: u64) -> Option<u64>
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

    /// A place for a slot, in an arena that grows if it has none.
    pub(super) fn place_slot<T, M>(
        &mut self,
        shared: &RankContext<T, M>,
        slot: u64,
    ) -> Result<u64, CheckpointError>
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
}

/// The head of a staging file: it names the arena.
pub(super) fn head(arena: &Arena) -> Vec<u8> {
    let header = arena.header();
    block::seal(
        BlockKind::Staging,
        header.identity,
        0,
        &header.encode(),
        files::HEAD,
    )
}

/// Bytes of an arena for so many versions and the next, with their manifests: as many and another, as that of a version is written again
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

fn no_memory(fault: CheckpointError, wanted: u64) -> CheckpointError {
    let text = format!(
        "no memory for {wanted} bytes that are to be staged: {}; stage less",
        fault.text
    );
    match fault.code {
        CheckpointErrorCode::NoSpace | CheckpointErrorCode::NoMem => {
            CheckpointError::new(CheckpointErrorCode::NoMem, text)
        }
        _ => fault,
    }
}

pub(super) fn not_open() -> CheckpointError {
    CheckpointError::new(CheckpointErrorCode::Internal, "the arena is not open")
}

pub(super) fn too_large() -> CheckpointError {
    CheckpointError::new(
        CheckpointErrorCode::Invalid,
        "the objects are larger than any memory",
    )
}
