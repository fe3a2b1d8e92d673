//! De-stages for a process that died: at the next start of the program by its ranks, or before that by the process that looks
//! after the node ([`destage`]). Both do it by the same code. The process that has the arena open for writing does it: others
//! wait, or leave it.

use super::destage::{self as staged, RUN};
use super::files;
use super::source::VersionSource;
use super::{places, publish, whole};
use crate::arena::{Arena, ArenaHeader, PersistenceLevel, Version, VersionId};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::manifest::{CHUNK, ObjectPiece, PieceLocation};
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use tarn_ports::{Medium, MediumError, MediumWindow, ReadableMedium, Vault};
use tarn_types::block::{self, BlockKind};

/// Reads of an arena whose content changes, at most.
const OPENS: usize = 8;
/// Between two tries to open an arena that another process has.
const AGAIN: Duration = Duration::from_millis(5);

/// The content of an arena of another process: as it was before, or after a change that somebody publishes meanwhile.
///
/// # Errors
/// When it cannot be read, or is none.
pub fn look<T: Vault>(tier: &T, name: &str) -> Result<(T::Seen, Arena), CheckpointError> {
    let open = || -> Result<(T::Seen, Arena), CheckpointError> {
        let stored = tier.see(name)?;
        let arena = Arena::open(&stored)?;
        Ok((stored, arena))
    };
    let mut before = open();
    for _ in 1..OPENS {
        let now = open();
        // One look alone may have the newer superblock of a file that was shorter as it was opened.
        if let (Ok((_, one)), Ok((_, other))) = (&before, &now)
            && one == other
        {
            break;
        }
        before = now;
    }
    before
}

/// Opens an arena for writing. A process that de-stages for a dead owner has it for as long as that takes.
pub(super) fn open<T: Vault>(
    tier: &T,
    name: &str,
    timeout: Duration,
) -> Result<T::Medium, CheckpointError> {
    let until = Instant::now() + timeout;
    loop {
        match tier.open(name) {
            Err(MediumError::Io { source, .. }) if source.kind() == ErrorKind::WouldBlock => {
                if Instant::now() >= until {
                    let text = format!(
                        "{name} is being written by another process, for {} s already: a tarnd or `tarn ckpt destage` that brings to \
                         the tier what was staged in memory, or else an older process of this program. Start again when it is done, or end it",
                        timeout.as_secs()
                    );
                    return Err(CheckpointError::new(CheckpointErrorCode::Busy, text));
                }
                std::thread::sleep(AGAIN);
            }
            medium => return Ok(medium?),
        }
    }
}

/// The result of de-staging for an arena's dead process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destaged {
    /// The owner of the arena.
    pub header: ArenaHeader,
    /// The versions that are whole in it now and were not, and their staged bytes.
    pub brought: Vec<(VersionId, u64)>,
    /// Versions of which this node's memory lacks some.
    pub lacking: Vec<VersionId>,
}

/// De-stages an arena whose process is dead, from this node's memory: the staging file, or a buddy's copy of it. The caller
/// has made sure that no process is that rank, after it had opened the medium.
///
/// # Errors
/// When the arena cannot be read or written: the staged bytes stay.
pub fn destage<M: Vault>(
    medium: &mut impl Medium,
    memory: &M,
) -> Result<Destaged, CheckpointError> {
    let arena = Arena::open(&whole(medium)?)?;
    let identity = arena.header().identity;
    let mut sources: Vec<VersionSource<'_, M>> = Vec::new();
    for name in memory.list()? {
        // A file that cannot be read counts as missing.
        let seen = memory.see(&name).ok();
        let seen = seen.filter(|seen| staged_of(seen) == Some(identity));
        sources.extend(seen.map(VersionSource::Near));
    }
    let (arena, brought) = complete(medium, &sources)?;
    Ok(Destaged {
        header: arena.header().clone(),
        brought,
        lacking: waiting(&arena).map(|v| v.id).collect(),
    })
}

/// The rank whose arena has this name on the tier, if it is one that its rank writes itself.
pub fn rank_of(name: &str) -> Option<u32> {
    let (generation, file) = name.split_once('/')?;
    let rank = file.strip_suffix(files::ARENA)?.parse().ok()?;
    (files::arena(generation.parse().ok()?, rank) == name).then_some(rank)
}

/// The identity of the arena that a file in memory is staged for.
pub fn staged_of(stored: &impl ReadableMedium) -> Option<u128> {
    let mut head = vec![0; files::HEAD];
    stored.read(0, &mut head).ok()?;
    block::unseal(BlockKind::Staging, 0, &head).map(|(identity, _)| identity)
}

/// Removes the staging file of an arena, if nothing waits in it any more. The caller holds the arena's rank: meanwhile nobody
/// stages anything. Its memory is free once the returned value is dropped, which takes time.
///
/// # Errors
/// When it cannot be removed, or the arena cannot be read.
pub fn give_back<T: Vault, M: Vault>(
    tier: &T,
    name: &str,
    memory: &M,
) -> Result<Option<M::Seen>, CheckpointError> {
    let (_, arena) = look(tier, name)?;
    let header = arena.header();
    let staging = files::staging(header.rank);
    let own = memory.see(&staging).ok();
    let own = own.filter(|seen| staged_of(seen) == Some(header.identity));
    if own.is_none() || waiting(&arena).next().is_some() {
        return Ok(None);
    }
    memory.remove(&staging)?;
    Ok(own)
}

/// The versions of which some is staged.
pub fn waiting(arena: &Arena) -> impl Iterator<Item = &Version> {
    let versions = arena.versions().iter();
    versions.filter(|v| !v.manifest.is_durable())
}

/// De-stages for an arena's dead owner; returns the versions, and their staged bytes.
pub(super) fn complete<A: Medium, M: Vault>(
    medium: &mut A,
    sources: &[VersionSource<'_, M>],
) -> Result<(Arena, Vec<(VersionId, u64)>), CheckpointError> {
    let mut arena = Arena::resume(&mut whole(medium)?)?;
    let staged: Vec<Version> = waiting(&arena).cloned().collect();
    let mut brought = Vec::new();
    for version in staged {
        let mut manifest = version.manifest.clone();
        let sizes: Vec<u64> = manifest.objects.iter().map(|o| o.size()).collect();
        let own = arena.own_places(&whole(medium)?, &version)?;
        let places = match own {
            Some(own) => own,
            None => places(&mut arena, medium, &sizes)?,
        };
        let staged = |p: &&ObjectPiece| matches!(p.place, PieceLocation::Staged(_));
        let pieces = manifest.objects.iter().flat_map(|o| &o.pieces);
        let bytes = pieces.filter(staged).map(|p| p.length).sum();
        let far = sources.iter().any(|s| matches!(s, VersionSource::Far(_)));
        let fill = |at: u64, chunks: &mut [u8], sums: &mut [u64]| proven(sources, at, chunks, sums);
        let copied = match far {
            true => staged::copy_at_once(&mut manifest, &places, medium, fill),
            false => whole(medium)
                .map_err(CheckpointError::from)
                .and_then(|mut window| {
                    staged::copy(&mut manifest, &places, &mut window, RUN, fill)?;
                    Ok(window.persist()?)
                }),
        };
        match copied {
            Ok(()) => {
                let new = (version.id, PersistenceLevel::Durable, manifest);
                publish(&mut arena, medium, Some(new), |_| true)?;
                brought.push((version.id, bytes));
            }
            // It is not whole, and stays so: the one before is.
            Err(fault) if fault.code == CheckpointErrorCode::Corrupt => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok((arena, brought))
}

/// Fills chunks from the first source that has all as they were, or else each from the first that has it; false if none has one.
///
/// # Errors
/// As [`proven_chunk`].
fn proven<M: Vault>(
    sources: &[VersionSource<'_, M>],
    at: u64,
    bytes: &mut [u8],
    sums: &[u64],
) -> Result<bool, CheckpointError> {
    let size = CHUNK as usize;
    for source in sources {
        if source
            .read_chunks(at, bytes, size)
            .is_ok_and(|read| read == sums)
        {
            return Ok(true);
        }
    }
    let mut chunks = (at..).step_by(size).zip(bytes.chunks_mut(size)).zip(sums);
    chunks.try_fold(true, |all, ((at, chunk), sum)| {
        Ok(all && proven_chunk(sources, at, chunk, *sum)?)
    })
}

/// Fills a chunk from the first source that has it as it was; false if none has.
///
/// # Errors
/// When none has, and one on another node cannot be reached: it may have it, and a version that is given up now would be lost.
fn proven_chunk<M: Vault>(
    sources: &[VersionSource<'_, M>],
    at: u64,
    chunk: &mut [u8],
    sum: u64,
) -> Result<bool, CheckpointError> {
    let mut unknown = None;
    for source in sources {
        match source.read(at, chunk) {
            Ok(read) if read == sum => return Ok(true),
            Err(e) if matches!(source, VersionSource::Far(_)) => unknown = Some(e),
            _ => {}
        }
    }
    unknown.map_or(Ok(false), |e| Err(e.into()))
}
