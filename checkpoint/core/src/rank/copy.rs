//! The copies of a commit: the caller and the helpers copy all jobs of a version to the arena, or to the staging file and the buddies.

use super::ahead::{Early, PrecopiedChunks};
use super::space::not_open;
use super::{CommitObject, RankContext, RankState};
use crate::arena::VersionId;
use crate::copy_workers::{self, BuddySender, ChunkCopyOutcome, ChunkCopyTask, StagingTarget};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::free_space::FIRST;
use crate::layout::{self, ChunkRun};
use crate::manifest::{CHUNK, ChunkProof, Object, ObjectPiece, PieceLocation, RankManifest};
use crate::seal::{RankSealer, SealedOrigin};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use tarn_ports::{Medium, Vault};

/// A version that is being made: its objects, and where they go.
pub(super) struct NewVersion<'a> {
    pub(super) id: VersionId,
    /// By key.
    pub(super) items: Vec<&'a CommitObject<'a>>,
    /// Bytes of each item.
    pub(super) sizes: Vec<u64>,
    /// The place of each item in the arena.
    pub(super) places: Vec<u64>,
    /// The ranges that are to be copied now.
    pub(super) jobs: Vec<ChunkRun>,
    /// Bytes of all jobs.
    pub(super) row: u64,
    /// The chunks that were copied ahead and are unchanged.
    pub(super) done: PrecopiedChunks,
}

impl NewVersion<'_> {
    fn ahead(&self, object: usize, chunk: u64) -> Option<Early> {
        self.done.copies[object]
            .get(chunk as usize)
            .copied()
            .flatten()
    }
}

impl<A: Medium, S: Medium> RankState<A, S> {
    /// Copies all jobs, the last `staged_bytes` bytes of them to memory; the chunks that a buddy could not take go to the tier.
    pub(super) fn copy_objects<T, M>(
        &mut self,
        shared: &RankContext<T, M>,
        new: &NewVersion<'_>,
        staged_bytes: u64,
    ) -> Result<Chunks, CheckpointError>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let (jobs, row) = (&new.jobs[..], new.row);
        let length = |job: &ChunkRun| job.bytes.end - job.bytes.start;
        let in_arena = |job: &ChunkRun| new.places[job.object] + job.bytes.start;
        let in_memory = |job: &ChunkRun| Some(FIRST + layout::staged(job, row, staged_bytes)?);
        let to_arena: Vec<Range<u64>> = jobs
            .iter()
            .map(|j| in_arena(j)..in_arena(j) + length(j))
            .collect();
        let staged: Vec<Range<u64>> = match staged_bytes {
            0 => Vec::new(),
            _ => jobs
                .iter()
                .filter_map(|j| in_memory(j).map(|at| at..at + length(j)))
                .collect(),
        };
        let first = jobs.len() - staged.len();
        let far = match staged_bytes {
            0 => Vec::new(),
            _ => self.buddies.far(),
        };
        let (_, arena) = self.arena.as_mut().ok_or_else(not_open)?;
        let mut own = match &mut self.staging {
            Some(staging) => staging.windows(&staged)?.into_iter(),
            None => Vec::new().into_iter(),
        };
        let mut buddies = self.buddies.windows(&staged)?.into_iter();
        debug_assert_eq!(own.len(), staged.len(), "a staged job without a window");
        debug_assert_eq!(
            buddies.len(),
            staged.len(),
            "a staged job without windows of buddies"
        );
        let mut works = Vec::with_capacity(jobs.len());
        for (number, (job, tier)) in jobs.iter().zip(arena.windows(&to_arena)?).enumerate() {
            let range = job.bytes.start as usize..job.bytes.end as usize;
            // The last ones have a place in memory, in the same order.
            let place = number.checked_sub(first);
            let staged = place.and_then(|place| {
                Some(StagingTarget {
                    at: staged[place].start,
                    own: own.next()?,
                    buddies: buddies.next()?,
                    done: false,
                })
            });
            works.push(ChunkCopyTask {
                number,
                of: (new.items[job.object].key, job.bytes.start / CHUNK),
                bytes: &new.items[job.object].bytes[range],
                seal: shared.options.seal.as_deref(),
                tier,
                staged,
                sums: Vec::new(),
                proofs: Vec::new(),
            });
        }
        let (copied, failed) = run_copies(shared, works, &far)?;
        Chunks::of(copied, failed, jobs, &to_arena, new.items.len())
    }
}

/// Copies with all helpers, and sends staged chunks to the buddies on other nodes. Returns the buddy that failed too, or
/// [`u32::MAX`].
fn run_copies<'a, T: Vault, M: Vault, V: tarn_ports::MediumWindow, W: tarn_ports::MediumWindow>(
    shared: &RankContext<T, M>,
    works: Vec<ChunkCopyTask<'a, V, W>>,
    far: &[u32],
) -> Result<(ChunkCopyOutcome<'a, V, W>, u32), CheckpointError> {
    let until = Instant::now() + shared.options.timeout;
    let failed = AtomicU32::new(u32::MAX);
    let generation = shared.world.start.generation;
    let send = |at: u64, chunk: &[u8], sum: u64| -> Result<(), CheckpointError> {
        far.iter().try_for_each(|&far| {
            let left = until.saturating_duration_since(Instant::now());
            let kept = shared.ranks.put(far, generation, at, chunk, left);
            let why = match kept {
                Ok(kept) if kept == sum => return Ok(()),
                Ok(_) => {
                    let text = format!("what rank {far} keeps is not what it was sent");
                    CheckpointError::new(CheckpointErrorCode::Corrupt, text)
                }
                Err(e) => e.into(),
            };
            failed.store(far, Ordering::Relaxed);
            Err(why)
        })
    };
    let send: Option<&BuddySender<'_>> = match far.is_empty() {
        true => None,
        false => Some(&send),
    };
    let enter = &*shared.options.enter;
    let copied = copy_workers::copy(works, shared.options.helpers, enter, send)?;
    Ok((copied, failed.load(Ordering::Relaxed)))
}

/// The place of a chunk that was copied, its checksum there, and the proof of a sealed one.
pub(super) type CopiedChunk = (PieceLocation, u64, Option<ChunkProof>);

/// The places of the chunks that were copied, by object and number.
pub(super) struct Chunks {
    pub(super) chunks: Vec<BTreeMap<u64, CopiedChunk>>,
    pub(super) spent: copy_workers::Spent,
    /// The buddy that does not have the staged bytes, and why.
    pub(super) replication_failed: Option<(u32, CheckpointError)>,
}

impl Chunks {
    fn of<W: tarn_ports::MediumWindow, S: tarn_ports::MediumWindow>(
        copied: ChunkCopyOutcome<'_, W, S>,
        failed: u32,
        jobs: &[ChunkRun],
        to_arena: &[Range<u64>],
        objects: usize,
    ) -> Result<Self, CheckpointError> {
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
                    Some(at) => PieceLocation::Staged(at + number * CHUNK),
                    None => PieceLocation::Arena(arena + number * CHUNK),
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

/// Lists the chunks of a version: those that were copied now, and those that were copied ahead to the objects' places.
pub(super) fn manifest(
    new: &NewVersion<'_>,
    copied: Vec<BTreeMap<u64, CopiedChunk>>,
    seal: Option<(&RankSealer, &SealedOrigin)>,
) -> Result<RankManifest, CheckpointError> {
    let mut proofs = Vec::new();
    let object = |(number, mut copied): (usize, BTreeMap<u64, CopiedChunk>)| {
        let (item, place) = (new.items[number], new.places[number]);
        let size = item.bytes.len() as u64;
        let chunk = |chunk: u64| {
            let stored = |copy: Early| {
                let place = PieceLocation::Arena(place + chunk * CHUNK);
                (place, copy.sum, copy.proof)
            };
            let before = new.ahead(number, chunk).map(stored);
            copied.remove(&chunk).or(before)
        };
        let chunks: Vec<CopiedChunk> = (0..ObjectPiece::chunks(size)).filter_map(chunk).collect();
        assert_eq!(
            chunks.len() as u64,
            ObjectPiece::chunks(size),
            "a chunk was copied neither ahead nor in the commit"
        );
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
    Ok(RankManifest {
        seal: seal.transpose()?,
        objects,
    })
}
