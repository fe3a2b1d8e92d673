//! De-stages to the arena, while the program computes.

use super::{RankContext, RankState, lock, publish, whole};
use crate::arena::PersistenceLevel;
use crate::copy_workers::{FETCHES, at_once};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::layout;
use crate::manifest::{CHUNK, Object, PieceLocation, RankManifest};
use std::sync::Mutex;
use std::time::Instant;
use tarn_ports::{Medium, MediumWindow, ReadableMedium, Vault};

impl<A: Medium, S: Medium> RankState<A, S> {
    /// De-stages, if anything is staged. Once it has returned, all that this rank has committed is stored in its arena.
    ///
    /// # Errors
    /// When the arena cannot be written: the staged bytes stay. A version with damaged bytes that no buddy has is given up.
    pub(super) fn destage<T, M>(
        &mut self,
        shared: &RankContext<T, M>,
    ) -> Result<(), CheckpointError>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let (Some((arena, medium)), Some(staging)) = (&mut self.arena, &mut self.staging) else {
            return Err(lost("its arena or its staging file is not open"));
        };
        let began = Instant::now();
        let version = arena.versions().iter().find(|v| v.id == pending.id);
        let mut manifest = version
            .ok_or_else(|| lost("it is not in the arena"))?
            .manifest
            .clone();
        let own = whole(staging)?;
        let (buddies, ahead) = (&mut self.buddies, &mut self.ahead);
        let mut damaged = 0;
        let mut window = whole(medium)?;
        let places = &pending.places;
        // One by one they stay in the cache.
        let copied = copy(&mut manifest, places, &mut window, 1, |at, chunk, sums| {
            ahead.look();
            if own.read(at, chunk)? == sums[0] {
                return Ok(true);
            }
            damaged += 1;
            buddies.read(shared, at, chunk, sums[0])
        });
        let id = pending.id;
        let missed = match copied {
            Ok(()) => {
                window.persist()?;
                drop(window);
                let new = (id, PersistenceLevel::Durable, manifest);
                publish(arena, medium, Some(new), |_| true)?;
                0
            }
            // This rank has no such version: it reports that to all others, and they keep the one before.
            Err(fault) if fault.code == CheckpointErrorCode::Corrupt => {
                drop(window);
                publish(arena, medium, None, |v| v.id != id)?;
                self.degraded_by = Some(format!("version {id} is lost: {}", fault.text));
                1 << (id.number % 64)
            }
            Err(fault) => return Err(fault),
        };
        self.pending = None;
        let took = began.elapsed();
        let mut stats = shared.stats();
        stats.damaged += damaged;
        stats.destage += took;
        stats.last_destage = took;
        drop(stats);
        // After the figures: a caller that sees the version durable sees them as well.
        shared.update_progress(|reached| {
            reached.missed |= missed;
            reached.durable = id.number;
        });
        Ok(())
    }
}

/// Chunks that are copied at once where they may come from another node.
pub(super) const RUN: usize = 16;

/// Some staged chunks of an object, and where they go.
struct StagedChunkRun {
    object: usize,
    from: u64,
    to: u64,
    length: u64,
    sums: Vec<u64>,
}

/// The staged runs of at most so many chunks, in the order of the manifest.
fn runs(manifest: &RankManifest, places: &[u64], run: usize) -> Vec<StagedChunkRun> {
    let step = run as u64 * CHUNK;
    let mut runs = Vec::new();
    for (number, (object, place)) in manifest.objects.iter().zip(places).enumerate() {
        let mut to = *place;
        for piece in &object.pieces {
            if let PieceLocation::Staged(from) = piece.place {
                let parts = (0..piece.length).step_by(step as usize);
                runs.extend(
                    parts
                        .zip(piece.sums.chunks(run))
                        .map(|(at, sums)| StagedChunkRun {
                            object: number,
                            from: from + at,
                            to: to + at,
                            length: (piece.length - at).min(step),
                            sums: sums.to_vec(),
                        }),
                );
            }
            to += piece.length;
        }
    }
    runs
}

/// All is in the arena: the manifest leads to it.
fn brought(manifest: &mut RankManifest, places: &[u64], runs: Vec<StagedChunkRun>) {
    let mut runs = runs.into_iter().peekable();
    for (object, place) in manifest.objects.iter_mut().zip(places) {
        let mut chunks = Vec::new();
        let mut offset = 0;
        for piece in &object.pieces {
            let at = match piece.place {
                PieceLocation::Arena(at) => at,
                PieceLocation::Staged(_) => place + offset,
            };
            let end = place + offset + piece.length;
            let copies = (at..).step_by(CHUNK as usize).map(PieceLocation::Arena);
            let sums = match piece.place {
                PieceLocation::Arena(_) => piece.sums.clone(),
                PieceLocation::Staged(_) => std::iter::from_fn(|| runs.next_if(|run| run.to < end))
                    .flat_map(|run| run.sums)
                    .collect(),
            };
            chunks.extend(copies.zip(sums));
            offset += piece.length;
        }
        object.pieces = layout::pieces(offset, chunks);
    }
    assert!(
        runs.peek().is_none(),
        "a staged run belongs to no piece of the manifest"
    );
}

impl StagedChunkRun {
    /// Copies it by way of a buffer to the window that begins at `base`.
    fn copy(
        &mut self,
        object: &Object,
        buffer: &mut [u8],
        window: &mut impl MediumWindow,
        base: u64,
        fill: impl FnOnce(u64, &mut [u8], &mut [u64]) -> Result<bool, CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let buffer = &mut buffer[..self.length as usize];
        let mut same = fill(self.from, buffer, &mut self.sums)?;
        let places = (self.to - base..).step_by(CHUNK as usize);
        let chunks = buffer.chunks(CHUNK as usize);
        for ((to, chunk), sum) in places.zip(chunks).zip(&self.sums) {
            same &= window.write(to, chunk)? == *sum;
        }
        match same {
            true => Ok(()),
            false => Err(damaged(object)),
        }
    }
}

/// Copies the staged pieces of a version to the places of its objects. `fill` fills at most `run` chunks from memory, and returns
/// whether they have their checksums; it may change those. The manifest is that of the copy then.
pub(super) fn copy(
    manifest: &mut RankManifest,
    places: &[u64],
    window: &mut impl MediumWindow,
    run: usize,
    mut fill: impl FnMut(u64, &mut [u8], &mut [u64]) -> Result<bool, CheckpointError>,
) -> Result<(), CheckpointError> {
    let mut runs = runs(manifest, places, run);
    let mut buffer = vec![0; run * CHUNK as usize];
    for run in &mut runs {
        let object = &manifest.objects[run.object];
        run.copy(object, &mut buffer, window, 0, &mut fill)?;
    }
    brought(manifest, places, runs);
    Ok(())
}

/// The same of several runs at a time, persistent once it has returned.
pub(super) fn copy_at_once<A: Medium>(
    manifest: &mut RankManifest,
    places: &[u64],
    medium: &mut A,
    fill: impl Fn(u64, &mut [u8], &mut [u64]) -> Result<bool, CheckpointError> + Sync,
) -> Result<(), CheckpointError> {
    let mut runs = runs(manifest, places, RUN);
    let ranges: Vec<_> = runs.iter().map(|run| run.to..run.to + run.length).collect();
    let objects = &manifest.objects;
    let waiting = Mutex::new(runs.iter_mut().zip(medium.windows(&ranges)?));
    let worker = || {
        let mut buffer = vec![0; RUN * CHUNK as usize];
        loop {
            let Some((run, mut window)) = lock(&waiting).next() else {
                return Ok(());
            };
            window.warm();
            let base = run.to;
            let copied = run.copy(&objects[run.object], &mut buffer, &mut window, base, &fill);
            let copied = copied.and_then(|()| Ok(window.persist()?));
            if let Err(fault) = copied {
                // The others are not needed any more.
                lock(&waiting).by_ref().for_each(drop);
                return Err(fault);
            }
        }
    };
    at_once(FETCHES, "phx-fetch", &|| (), &worker)?;
    brought(manifest, places, runs);
    Ok(())
}

fn damaged(object: &Object) -> CheckpointError {
    let key = String::from_utf8_lossy(&object.key);
    let text = format!(
        "what was staged of object {key:?} was changed in memory, and no buddy has it; the version before stays. Look at this node's \
         memory"
    );
    CheckpointError::new(CheckpointErrorCode::Corrupt, text)
}

fn lost(why: &str) -> CheckpointError {
    CheckpointError::new(
        CheckpointErrorCode::Internal,
        format!("the version that is staged cannot be de-staged: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{ObjectPiece, Shape};
    use tarn_media::MappedFile;
    use tarn_types::crc::crc;

    /// For any number of chunks that are copied at once; the last one is shorter.
    #[test]
    fn what_is_staged_is_copied_in_runs_and_what_is_not_stays_where_it_is() {
        const STAGED: u64 = 64;
        let size = CHUNK as usize;
        let bytes: Vec<u8> = (0..20 * size + 100).map(|n| ((n * 7) >> 3) as u8).collect();
        let sums: Vec<u64> = bytes.chunks(size).map(crc).collect();
        let piece = |length, place, sums: &[u64]| ObjectPiece {
            length,
            place,
            sums: sums.to_vec(),
        };
        let length = bytes.len() as u64;
        let place = 2 * CHUNK;
        // And by several threads.
        for run in [1, 3, RUN, 64, 0] {
            let folder = tempfile::tempdir().unwrap();
            let all = 0..32 * CHUNK;
            let mut medium = MappedFile::create(&folder.path().join("arena"), all.end).unwrap();
            let mut windows = medium.windows(std::slice::from_ref(&all)).unwrap();
            let mut manifest = RankManifest {
                seal: None,
                objects: vec![Object {
                    key: b"object".as_slice().into(),
                    unit: 1,
                    shape: Shape::Own,
                    pieces: vec![
                        piece(CHUNK, PieceLocation::Arena(0), &[7]),
                        piece(length, PieceLocation::Staged(STAGED), &sums),
                    ],
                }],
            };
            let fill = |at: u64, into: &mut [u8], sums: &mut [u64]| {
                let from = (at - STAGED) as usize;
                into.copy_from_slice(&bytes[from..from + into.len()]);
                Ok(into.chunks(size).map(crc).eq(sums.iter().copied()))
            };
            match run {
                0 => {
                    drop(windows);
                    copy_at_once(&mut manifest, &[place], &mut medium, fill).unwrap();
                }
                _ => copy(&mut manifest, &[place], &mut windows[0], run, fill).unwrap(),
            }
            let mut back = vec![0; bytes.len()];
            let windows = medium.windows(std::slice::from_ref(&all)).unwrap();
            windows[0].read(place + CHUNK, &mut back).unwrap();
            assert!(back == bytes, "runs of {run}");
            let copied = [
                piece(CHUNK, PieceLocation::Arena(0), &[7]),
                piece(length, PieceLocation::Arena(place + CHUNK), &sums),
            ];
            assert_eq!(manifest.objects[0].pieces, copied);
        }
    }
}
