//! What is staged goes to the arena, while the program computes.

use super::{Desk, Shared, Stats, publish, whole};
use crate::arena::Level;
use crate::fault::{Code, Fault};
use crate::layout;
use crate::manifest::{CHUNK, Manifest, Object, Place};
use std::time::Instant;
use tarn_ports::{Medium, Stored, Vault, Window};

impl<A: Medium, S: Medium> Desk<A, S> {
    /// De-stages what is staged, if anything is. Once it has returned, all that this rank has committed lies in its arena.
    ///
    /// # Errors
    /// When the arena cannot be written: what is staged stays as it is. Of what is damaged, and at no buddy, the version is given up.
    pub(super) fn destage<T, M>(&mut self, shared: &Shared<T, M>) -> Result<(), Fault>
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
        let buddies = &mut self.buddies;
        let mut damaged = 0;
        let mut window = whole(medium)?;
        let places = &pending.places;
        let copied = copy(&mut manifest, places, &mut window, |at, chunk, sum| {
            if own.read(at, chunk)? == sum {
                return Ok(Some(sum));
            }
            damaged += 1;
            Ok(buddies.read(shared, at, chunk, sum)?.then_some(sum))
        });
        let id = pending.id;
        match copied {
            Ok(()) => {
                window.persist()?;
                drop(window);
                let new = (id, Level::Durable, manifest);
                publish(arena, medium, Some(new), |_| true)?;
            }
            // This rank has no such version: all others learn it, and keep the one before.
            Err(fault) if fault.code == Code::Corrupt => {
                drop(window);
                publish(arena, medium, None, |v| v.id != id)?;
                shared.tell(|reached| reached.missed |= 1 << (id.number % 64));
                self.hurt = Some(format!("version {id} is lost: {}", fault.text));
            }
            Err(fault) => return Err(fault),
        }
        self.pending = None;
        shared.tell(|reached| reached.durable = id.number);
        let took = began.elapsed();
        let stats: &mut Stats = &mut shared.stats();
        stats.damaged += damaged;
        stats.destage += took;
        stats.last_destage = took;
        Ok(())
    }
}

/// Copies the staged pieces of a version to where its objects have their places; `chunk` fills one from memory, and gives its checksum
/// if it is what it was. The manifest is that of the copy then.
pub(super) fn copy(
    manifest: &mut Manifest,
    places: &[u64],
    window: &mut impl Window,
    mut chunk: impl FnMut(u64, &mut [u8], u64) -> Result<Option<u64>, Fault>,
) -> Result<(), Fault> {
    let mut buffer = vec![0; CHUNK as usize];
    for (object, place) in manifest.objects.iter_mut().zip(places) {
        let mut chunks = Vec::new();
        let mut offset = 0;
        for piece in &object.pieces {
            let mut left = piece.length;
            for (number, &sum) in piece.sums.iter().enumerate() {
                let buffer = &mut buffer[..left.min(CHUNK) as usize];
                left -= buffer.len() as u64;
                let (at, sum) = match piece.place {
                    Place::Arena(at) => (at + number as u64 * CHUNK, sum),
                    Place::Staged(at) => {
                        let sum = chunk(at + number as u64 * CHUNK, buffer, sum)?;
                        let stored = window.write(place + offset, buffer)?;
                        match sum {
                            Some(sum) if stored == sum => (place + offset, sum),
                            _ => return Err(damaged(object)),
                        }
                    }
                };
                chunks.push((Place::Arena(at), sum));
                offset += buffer.len() as u64;
            }
        }
        object.pieces = layout::pieces(offset, chunks);
    }
    Ok(())
}

fn damaged(object: &Object) -> Fault {
    let key = String::from_utf8_lossy(&object.key);
    let text = format!(
        "what was staged of object {key:?} was changed in memory, and no buddy has it; the version before stays. Look at this node's \
         memory"
    );
    Fault::new(Code::Corrupt, text)
}

fn lost(why: &str) -> Fault {
    Fault::new(
        Code::Internal,
        format!("the version that is staged cannot be de-staged: {why}"),
    )
}
