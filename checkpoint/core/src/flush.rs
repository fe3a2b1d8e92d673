//! Versions on the external store. A rank's part of one is an arena that has this version alone, under a name that it gets when it was
//! read back and is whole: so the names show the durable versions, and nobody has to be notified. `latest` names the newest
//! version of which all parts are there.

use crate::arena::{Arena, ArenaHeader, PersistenceLevel, ProgramStart, Version, VersionId};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::free_space::{FIRST, LARGE, PAGE};
use crate::layout;
use crate::manifest::{CHUNK, PieceLocation, RankManifest};
use std::collections::BTreeSet;
use std::time::Duration;
use tarn_ports::{External, MediumError, MediumWindow, ReadableMedium};
use tarn_types::block::{self, BlockKind, Fields};

/// The newest complete versions that stay: one that is damaged in the store has another to stand in.
pub const KEPT: usize = 2;
/// Bytes of one write.
const WRITE: usize = 4 << 20;
/// The file that names the newest version.
const LATEST: &str = "latest";
/// Its bytes.
const BLOCK: usize = 4 << 10;
/// The suffix of parts' names, behind their rank.
const ARENA: &str = ".arena";

/// A version, and the start of the program that it is of: the number alone means nothing for another start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exact {
    /// The version.
    pub id: VersionId,
    /// The identity of the start.
    pub start: u128,
}

/// The parts of a version that the store has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flushed {
    /// The version.
    pub version: Exact,
    /// Ranks that wrote it; 0 if no part can be read.
    pub ranks: u32,
    /// The ranks whose parts are there.
    pub parts: BTreeSet<u32>,
}

impl Flushed {
    /// Whether all parts are there.
    pub fn is_complete(&self) -> bool {
        self.ranks > 0 && self.parts.len() == self.ranks as usize
    }
}

/// Reads a chunk at the place in its manifest; true if it has this checksum.
pub type ReadChunk<'a> =
    dyn FnMut(PieceLocation, &mut [u8], u64) -> Result<bool, CheckpointError> + 'a;
/// Gets how many bytes were written to the store, or read back: it may take its time, or end it by an error.
pub type FlushProgress<'a> = dyn FnMut(u64) -> Result<(), CheckpointError> + 'a;

/// How long so many bytes take at a rate, in bytes a second; 0: no time.
pub fn lasts(bytes: u64, rate: u64) -> Duration {
    let nanos = (u128::from(bytes) * 1_000_000_000).checked_div(rate.into());
    Duration::from_nanos(nanos.map_or(0, |n| u64::try_from(n).unwrap_or(u64::MAX)))
}

impl Exact {
    /// The folder of its parts.
    fn folder(self) -> String {
        format!("{}.{:032x}", self.id, self.start)
    }

    /// The version that has this folder.
    fn of(folder: &str) -> Option<Self> {
        let mut fields = folder.splitn(3, '.');
        let mut number = || fields.next()?.parse().ok();
        let id = VersionId {
            generation: number()?,
            number: number()?,
        };
        let start = u128::from_str_radix(fields.next()?, 16).ok()?;
        let version = Self { id, start };
        (version.folder() == folder).then_some(version)
    }

    /// The name of a rank's part.
    pub fn part(self, rank: u32) -> String {
        format!("{}/{rank}{ARENA}", self.folder())
    }
}

/// Writes a rank's part of a version, reads it back, and gives it its name. Returns the bytes of its objects.
///
/// # Errors
/// When a chunk is damaged where it is read from, the store cannot be written or gives back something else, or `meter` ends it: then
/// there is no such part.
pub fn write(
    store: &dyn External,
    header: &ArenaHeader,
    version: &Version,
    read: &mut ReadChunk<'_>,
    meter: &mut FlushProgress<'_>,
) -> Result<u64, CheckpointError> {
    let (id, rank) = (version.id, header.rank);
    let exact = Exact {
        id,
        start: version.start,
    };
    let (mut buffer, flushed) = front(header, exact, &version.manifest)?;
    let mut draft = store.create(&exact.part(rank))?;
    let mut bytes = 0;
    for (from, to) in version.manifest.objects.iter().zip(&flushed.objects) {
        for (from, to) in from.pieces.iter().zip(&to.pieces) {
            if let PieceLocation::Arena(begin) = to.place {
                // Objects begin where they can be mapped.
                let gap = begin - draft.size() - buffer.len() as u64;
                buffer.resize(buffer.len() + gap as usize, 0);
            }
            for (number, sum) in (0..).zip(&from.sums) {
                let done = number * CHUNK;
                let length = CHUNK.min(from.length - done);
                let begin = buffer.len();
                buffer.resize(begin + length as usize, 0);
                if !read(from.place.plus(done), &mut buffer[begin..], *sum)? {
                    return Err(damaged(id, rank, "where it is flushed from"));
                }
                bytes += length;
                if buffer.len() >= WRITE {
                    draft.append(&buffer)?;
                    meter(buffer.len() as u64)?;
                    buffer.clear();
                }
            }
        }
    }
    draft.append(&buffer)?;
    meter(buffer.len() as u64)?;
    draft.sync()?;
    prove(&draft, id, rank, &flushed, meter)?;
    draft.publish()?;
    Ok(bytes)
}

/// All that comes before the data of an arena with this version alone, and its manifest there.
fn front(
    header: &ArenaHeader,
    version: Exact,
    manifest: &RankManifest,
) -> Result<(Vec<u8>, RankManifest), CheckpointError> {
    let sizes = manifest.objects.iter().map(|o| o.size());
    let slot = layout::slot(sizes);
    let length = block::size(manifest.encode().len(), PAGE as usize) as u64;
    let begin = if length < LARGE { FIRST } else { LARGE } + length;
    let all = slot.and_then(|(offsets, slot)| Some((offsets, begin.checked_add(slot)?)));
    let (offsets, size) = all.ok_or_else(|| {
        CheckpointError::new(
            CheckpointErrorCode::Invalid,
            "the version is larger than any file: it cannot be flushed",
        )
    })?;
    let mut flushed = manifest.clone();
    for (object, offset) in flushed.objects.iter_mut().zip(offsets) {
        let mut at = begin + offset;
        for piece in &mut object.pieces {
            piece.place = PieceLocation::Arena(at);
            at += piece.length;
        }
    }
    let mut front = Front {
        bytes: vec![0; begin as usize],
        size,
    };
    let header = ArenaHeader {
        start: ProgramStart {
            generation: version.id.generation,
            identity: version.start,
        },
        ..header.clone()
    };
    let mut arena = Arena::format(&mut front, header)?;
    let new = Some((version.id, PersistenceLevel::Flushed, flushed.clone()));
    arena.publish(&mut front, new, |_| true)?;
    Ok((front.bytes, flushed))
}

/// Reads a part as the store has it.
fn prove(
    stored: &impl ReadableMedium,
    id: VersionId,
    rank: u32,
    manifest: &RankManifest,
    meter: &mut FlushProgress<'_>,
) -> Result<(), CheckpointError> {
    let wrong = || {
        damaged(
            id,
            rank,
            "on the external store, right after it was written",
        )
    };
    let found = Arena::open(stored).map_err(|_| wrong())?;
    if !found.versions().iter().any(|v| v.manifest == *manifest) {
        return Err(wrong());
    }
    let mut buffer = vec![0; CHUNK as usize];
    for piece in manifest.objects.iter().flat_map(|o| &o.pieces) {
        for (number, sum) in (0..).zip(&piece.sums) {
            let done = number * CHUNK;
            let chunk = &mut buffer[..CHUNK.min(piece.length - done) as usize];
            let PieceLocation::Arena(at) = piece.place.plus(done) else {
                return Err(wrong());
            };
            if stored.read(at, chunk)? != *sum {
                return Err(wrong());
            }
            meter(chunk.len() as u64)?;
        }
    }
    Ok(())
}

/// A rank's part of a version that is there.
///
/// # Errors
/// When it is not there, or another version than its name.
pub fn open(
    store: &dyn External,
    version: Exact,
    rank: u32,
) -> Result<(Box<dyn ReadableMedium + Send + Sync>, Version, ArenaHeader), CheckpointError> {
    let stored = store.see(&version.part(rank))?;
    let arena = Arena::open(&stored)?;
    let Exact { id, start } = version;
    let mut found = arena.versions().iter();
    let found = found.find(|v| v.id == id && v.start == start && v.manifest.is_durable());
    match found.filter(|_| arena.header().rank == rank) {
        Some(version) => Ok((stored, version.clone(), arena.header().clone())),
        None => Err(damaged(id, rank, "on the external store")),
    }
}

/// All versions in the store, with their parts there, oldest first.
///
/// # Errors
/// When it cannot be read.
pub fn list(store: &dyn External) -> Result<Vec<Flushed>, CheckpointError> {
    let mut all = Vec::new();
    for folder in store.list("")? {
        let Some(version) = Exact::of(&folder) else {
            continue;
        };
        let names = store.list(&folder)?;
        let ranks = names.iter().filter_map(|name| {
            let rank: u32 = name.strip_suffix(ARENA)?.parse().ok()?;
            Some(rank)
        });
        let mut parts: BTreeSet<u32> = ranks.collect();
        let of = parts
            .iter()
            .find_map(|rank| open(store, version, *rank).ok());
        let ranks = of.map_or(0, |(.., header)| header.ranks);
        parts.retain(|rank| *rank < ranks);
        all.push(Flushed {
            version,
            ranks,
            parts,
        });
    }
    all.sort_by_key(|v| v.version);
    Ok(all)
}

/// The version that `latest` names. One that is damaged names none: the parts that are there show the same.
///
/// # Errors
/// When it is there and cannot be read.
pub fn latest(store: &dyn External) -> Result<Option<Exact>, CheckpointError> {
    let stored = match store.see(LATEST) {
        Ok(stored) => stored,
        Err(e) => {
            let fault = CheckpointError::from(e);
            return match fault.code {
                CheckpointErrorCode::NotFound => Ok(None),
                _ => Err(fault),
            };
        }
    };
    if stored.size() != BLOCK as u64 {
        return Ok(None);
    }
    let mut block = vec![0; BLOCK];
    stored.read(0, &mut block)?;
    let named = block::unseal(BlockKind::Latest, 0, &block).and_then(|(_, payload)| {
        let mut fields = Fields(payload);
        let id = VersionId {
            generation: fields.u64()?,
            number: fields.u64()?,
        };
        let start = u128::from_le_bytes(fields.take()?);
        Some(Exact { id, start })
    });
    Ok(named)
}

/// Makes `latest` name the newest version of which all parts are there, and returns it. Older versions are removed, except the
/// newest complete ones that stay.
///
/// # Errors
/// When somebody else is at it ([`CheckpointErrorCode::Busy`]), or the store cannot be read or written.
pub fn publish(store: &dyn External) -> Result<Option<Exact>, CheckpointError> {
    let _lock = store.lock()?;
    let all = list(store)?;
    let complete: Vec<&Flushed> = all.iter().filter(|v| v.is_complete()).collect();
    let before = latest(store)?;
    let newest = complete.last().map(|v| v.version);
    let Some(newest) = newest.filter(|v| Some(*v) >= before) else {
        return Ok(before);
    };
    if Some(newest) > before {
        let mut payload = Vec::new();
        payload.extend(newest.id.generation.to_le_bytes());
        payload.extend(newest.id.number.to_le_bytes());
        payload.extend(newest.start.to_le_bytes());
        let mut draft = store.create(LATEST)?;
        draft.append(&block::seal(BlockKind::Latest, 0, 0, &payload, BLOCK))?;
        draft.sync()?;
        draft.publish()?;
    }
    let kept = &complete[complete.len().saturating_sub(KEPT)..];
    let old = all.iter().filter(|v| v.version < newest);
    for old in old.filter(|v| !kept.contains(v)) {
        // A later call removes a folder that cannot be removed now.
        let _ = store.remove(&old.version.folder());
    }
    Ok(Some(newest))
}

/// The beginning of a part, in memory, and how long all of it is.
struct Front {
    bytes: Vec<u8>,
    size: u64,
}

impl Front {
    fn range(&self, at: u64, length: usize) -> Result<std::ops::Range<usize>, MediumError> {
        let end = at.saturating_add(length as u64);
        match end <= self.bytes.len() as u64 {
            true => Ok(at as usize..end as usize),
            false => Err(MediumError::Outside {
                range: at..end,
                size: self.bytes.len() as u64,
            }),
        }
    }
}

impl ReadableMedium for Front {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<u64, MediumError> {
        into.copy_from_slice(&self.bytes[self.range(at, into.len())?]);
        Ok(tarn_types::crc::crc(into))
    }
}

impl MediumWindow for Front {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<u64, MediumError> {
        let range = self.range(at, bytes.len())?;
        self.bytes[range].copy_from_slice(bytes);
        Ok(tarn_types::crc::crc(bytes))
    }

    fn persist(&mut self) -> Result<(), MediumError> {
        Ok(())
    }
}

fn damaged(id: VersionId, rank: u32, place: &str) -> CheckpointError {
    let text = format!("rank {rank}'s part of version {id} is damaged {place}");
    CheckpointError::new(CheckpointErrorCode::Corrupt, text)
}
