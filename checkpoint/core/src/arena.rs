//! An arena: the versions that one rank keeps. The newest superblock leads to all of them; to publish is to write the other one.

use crate::free_space::{self, PAGE};
use crate::layout;
use crate::manifest::{
    CHUNK, MAX_BYTES, MAX_KEY, MAX_OBJECTS, Object, PieceLocation, RankManifest,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;
use tarn_ports::{MediumError, MediumWindow, ReadableMedium};
use tarn_types::block::{self, BlockKind, Fields, put_short};

/// Bytes of header and superblocks.
const BLOCK: usize = 4 << 10;
/// The places of the superblocks.
const SUPERBLOCKS: [u64; 2] = [4 << 10, 8 << 10];
/// Versions that are kept.
pub const MAX_VERSIONS: usize = 16;
/// How often superblocks are read that change meanwhile.
const LOOKS: usize = 64;
/// Bytes of the smallest arena: nothing is in it.
pub const LEAST: u64 = free_space::FIRST;

/// A start of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProgramStart {
    /// Greater than that of all starts that it knew of.
    pub generation: u64,
    /// Random: of two starts that knew nothing of each other the generation may be the same.
    pub identity: u128,
}

/// The owner of an arena. It never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaHeader {
    /// Random: no two arenas are alike.
    pub identity: u128,
    /// The program's name; 255 bytes at most.
    pub run: Box<[u8]>,
    /// The start of the program that made it.
    pub start: ProgramStart,
    /// The owning rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
}

/// A version: the number of the start that made it, and the number of the commit since that start. Versions are
/// ordered by age.
///
/// # Examples
/// ```
/// use tarn_checkpoint_core::VersionId;
///
/// let seventh = VersionId { generation: 2, number: 7 };
/// assert_eq!(seventh.to_string(), "2.7");
/// assert!(seventh > VersionId { generation: 1, number: 100 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VersionId {
    /// The start.
    pub generation: u64,
    /// Counts from 1 in each generation.
    pub number: u64,
}

impl std::fmt::Display for VersionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.generation, self.number)
    }
}

/// The failures that a version survives, from the fewest to the most.
///
/// # Examples
/// ```
/// use tarn_checkpoint_core::PersistenceLevel;
///
/// assert!(PersistenceLevel::Durable > PersistenceLevel::Committed);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PersistenceLevel {
    /// It is complete; some of it may be in memory. It survives the process.
    Committed,
    /// All of it is in the arena, on the persistent tier. It survives a loss of power.
    Durable,
    /// All of it is on another node too. It survives the loss of the node.
    Replicated,
    /// It is on the external store. It survives the loss of all nodes.
    Flushed,
}

/// A version that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The version.
    pub id: VersionId,
    /// The identity of the start that it is of.
    pub start: u128,
    /// The failures that it survives.
    pub level: PersistenceLevel,
    /// Its objects and their pieces.
    pub manifest: RankManifest,
    /// The place of the manifest.
    at: Range<u64>,
    /// Its checksum: other bytes in its place have another one.
    sum: u64,
}

impl Version {
    /// The bytes of the arena that its data and its manifest take.
    fn occupied(&self) -> impl Iterator<Item = Range<u64>> {
        self.manifest.extents().chain([self.at.clone()])
    }

    /// The smallest range that holds all of its data in the arena.
    pub fn extent(&self) -> Range<u64> {
        let extents = self.manifest.extents().filter(|r| !r.is_empty());
        let both =
            |one: Range<u64>, other: Range<u64>| one.start.min(other.start)..one.end.max(other.end);
        extents.reduce(both).unwrap_or(0..0)
    }
}

/// Why an arena cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// Its first block is none.
    #[error(
        "this is no arena of checkpoints, or one of another version of tarn: its first block is not what tarn writes"
    )]
    NoArena,
    /// Neither superblock is one.
    #[error(
        "both superblocks are damaged: what the arena holds cannot be found; use the buddy's copy or what was flushed"
    )]
    Damaged,
    /// The arena changes as often as it is read.
    #[error("the arena is published to faster than it can be read: try again")]
    Unsettled,
    /// There is no space.
    #[error(
        "the arena has no {wanted} bytes for it: {free} are free{}; let it be larger, or keep fewer versions",
        pinned_by_readers(*pinned)
    )]
    Full {
        /// Bytes that are wanted.
        wanted: u64,
        /// Bytes that are free, in pieces perhaps.
        free: u64,
        /// Ranges that readers have pinned.
        pinned: usize,
    },
    /// More than a format can hold.
    #[error("{what}: {is}, and there may be {most}")]
    TooMany {
        /// The things that are too many.
        what: &'static str,
        /// Their number.
        is: usize,
        /// The largest number.
        most: usize,
    },
    /// The manifest could not be read back.
    #[error("{what} cannot be found again: this is an error in the program that publishes it")]
    Malformed {
        /// The malformed thing.
        what: &'static str,
    },
    /// The last superblock may be there or not.
    #[error(
        "writing to the arena has failed before, and what it holds is not known: open it again"
    )]
    Unknown,
    /// The medium refused something.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

/// The content of an arena: the state that the newest superblock leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arena {
    header: ArenaHeader,
    size: u64,
    epoch: u64,
    /// The newest start of the program that has continued with it.
    started: ProgramStart,
    /// Which superblock is the newest.
    newest: usize,
    versions: Vec<Version>,
    /// The slot that is being written; nothing leads to it yet.
    slot: Range<u64>,
    /// A superblock could not be written for sure: which is the newest is only known when the arena is opened again.
    unknown: bool,
}

impl Arena {
    /// Makes an empty arena of a medium that nobody knows yet: it gets its name afterwards.
    ///
    /// # Errors
    /// When the medium is too small, or fails.
    pub fn format(window: &mut impl MediumWindow, header: ArenaHeader) -> Result<Self, ArenaError> {
        check("bytes of the run's name", header.run.len(), MAX_KEY)?;
        let mut arena = Self {
            size: window.size(),
            started: header.start,
            header,
            epoch: 0,
            newest: 1,
            versions: Vec::new(),
            slot: 0..0,
            unknown: false,
        };
        if arena.header.rank >= arena.header.ranks {
            let what = "an arena of a rank that there is not";
            return Err(ArenaError::Malformed { what });
        }
        if arena.size < LEAST {
            return Err(ArenaError::Full {
                wanted: LEAST,
                free: arena.size,
                pinned: 0,
            });
        }
        let payload = arena.header.encode();
        let block = block::seal(BlockKind::Header, arena.header.identity, 0, &payload, BLOCK);
        window.write(0, &block)?;
        arena.flip(window)?;
        Ok(arena)
    }

    /// Finds the content of an arena: of the whole superblocks the one of the higher epoch, and of its versions those with
    /// whole manifests: its state at one instant of the call, whoever writes to it. Writes nothing.
    ///
    /// # Errors
    /// When it is none, or nothing leads to its content.
    pub fn open(stored: &impl ReadableMedium) -> Result<Self, ArenaError> {
        let size = stored.size();
        if size < LEAST {
            return Err(ArenaError::NoArena);
        }
        let mut block = vec![0; BLOCK];
        stored.read(0, &mut block)?;
        let header = block::unseal(BlockKind::Header, 0, &block);
        let header = header.and_then(|(identity, payload)| ArenaHeader::decode(identity, payload));
        let header = header.ok_or(ArenaError::NoArena)?;
        let mut found: Option<(Superblock, usize)> = None;
        let blocks = superblocks(stored)?;
        for (newest, at) in SUPERBLOCKS.into_iter().enumerate() {
            let superblock = block::unseal(BlockKind::Superblock, at, &blocks[newest]);
            let own = superblock.filter(|(identity, _)| *identity == header.identity);
            if let Some(superblock) = own.and_then(|(_, payload)| Superblock::decode(payload))
                && found
                    .as_ref()
                    .is_none_or(|(other, _)| superblock.epoch > other.epoch)
            {
                found = Some((superblock, newest));
            }
        }
        let (superblock, newest) = found.ok_or(ArenaError::Damaged)?;
        let Superblock {
            epoch,
            started,
            rows,
        } = superblock;
        let mut versions = Vec::with_capacity(rows.len());
        for row in rows {
            if let Some(manifest) = row.manifest(stored, header.identity)? {
                versions.push(Version {
                    id: row.id,
                    start: row.start,
                    level: row.level,
                    manifest,
                    at: row.at,
                    sum: row.sum,
                });
            }
        }
        Ok(Self {
            header,
            size,
            epoch,
            started,
            newest,
            versions,
            slot: 0..0,
            unknown: false,
        })
    }

    /// The same for a process that continues writing. A killed process may have written the state that is found and not persisted
    /// it: it is persisted now, before anything is built on it.
    ///
    /// # Errors
    /// As for [`Arena::open`], and when the medium fails.
    pub fn resume(window: &mut impl MediumWindow) -> Result<Self, ArenaError> {
        let arena = Self::open(window)?;
        let at = SUPERBLOCKS[arena.newest];
        let mut block = vec![0; BLOCK];
        window.read(at, &mut block)?;
        // The same bytes: nothing can be torn.
        window.write(at, &block)?;
        window.persist()?;
        Ok(arena)
    }

    /// The owner.
    pub fn header(&self) -> &ArenaHeader {
        &self.header
    }

    /// The newest start of the program that has continued with it.
    pub fn started(&self) -> ProgramStart {
        self.started
    }

    /// Records that a start of the program continues with it, whatever comes of that. The versions that are new from
    /// then on are its.
    ///
    /// # Errors
    /// As for [`Arena::publish`].
    pub fn start(
        &mut self,
        window: &mut impl MediumWindow,
        start: ProgramStart,
    ) -> Result<(), ArenaError> {
        self.started = self.started.max(start);
        self.publish(window, None, |_| true)
    }

    /// The versions that it holds, oldest first.
    pub fn versions(&self) -> &[Version] {
        &self.versions
    }

    /// The medium has become larger.
    pub fn grown(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Places for data of these lengths, which nothing that is kept or that readers have pinned is stored in. Until they are published they are
    /// free: a caller that takes places twice gets the same, if no reader has come or gone.
    ///
    /// # Errors
    /// [`ArenaError::Full`], and when the medium fails.
    pub fn places(
        &self,
        window: &impl MediumWindow,
        lengths: &[u64],
    ) -> Result<Vec<u64>, ArenaError> {
        Ok(self.take(window, lengths, &[])?.0)
    }

    /// The places of a version's objects, or their future ones once none of them is staged: in the slot that it was committed to.
    /// The rest of the slot is free if its committer is dead. None if nothing of it is stored there, or something else is.
    ///
    /// # Errors
    /// When the medium fails.
    pub fn own_places(
        &self,
        window: &impl MediumWindow,
        version: &Version,
    ) -> Result<Option<Vec<u64>>, ArenaError> {
        let objects = &version.manifest.objects;
        let Some((offsets, length)) = layout::slot(objects.iter().map(Object::size)) else {
            return Ok(None);
        };
        // The begin of the slot by each piece: all must agree, or staged bytes could be stored over another piece.
        let begins = objects.iter().zip(&offsets).flat_map(|(object, offset)| {
            let mut at = *offset;
            object.pieces.iter().filter_map(move |piece| {
                let before = at;
                at += piece.length;
                match piece.place {
                    PieceLocation::Arena(place) if piece.length > 0 => {
                        Some(place.checked_sub(before))
                    }
                    _ => None,
                }
            })
        });
        let begins: BTreeSet<Option<u64>> = begins.collect();
        let begins = match begins.len() {
            1 => begins.first().copied().flatten(),
            _ => None,
        };
        let Some(slot) = begins.and_then(|at| Some(at..at.checked_add(length)?)) else {
            return Ok(None);
        };
        let others = self.versions.iter().filter(|v| v.id != version.id);
        let mut taken: Vec<Range<u64>> = others.flat_map(|v| v.manifest.extents()).collect();
        taken.extend(self.versions.iter().map(|v| v.at.clone()));
        taken.extend(window.pinned()?);
        let free = free_space::free_ranges(self.size, taken);
        let is_free = free
            .iter()
            .any(|r| r.start <= slot.start && slot.end <= r.end);
        Ok(is_free.then(|| offsets.iter().map(|offset| slot.start + offset).collect()))
    }

    /// A place for the next version, which nothing else is put into until another one is requested: not even its own manifest, while some
    /// of it is still staged. And whether another was passed over that readers have pinned.
    ///
    /// # Errors
    /// As for [`Arena::places`].
    pub fn slot(
        &mut self,
        window: &impl MediumWindow,
        length: u64,
    ) -> Result<(u64, bool), ArenaError> {
        self.slot = 0..0;
        let (places, passed) = self.take(window, &[length], &[])?;
        self.slot = places[0]..places[0] + length;
        debug_assert!(
            free_space::are_apart(
                [self.slot.clone()],
                self.versions.iter().flat_map(Version::occupied)
            ),
            "a slot is where a version is stored that is kept"
        );
        Ok((places[0], passed))
    }

    /// Whether the data of a version is stored where no other version is.
    pub(crate) fn is_stored_apart(&self, id: VersionId, manifest: &RankManifest) -> bool {
        let others = self.versions.iter().filter(|v| v.id != id);
        free_space::are_apart(manifest.extents(), others.flat_map(Version::occupied))
    }

    /// Publishes: the kept versions for which `keeps` is true stay, and `new` is added, or takes the place of the one of
    /// the same name. Its data are persistent already. One instant decides: before it the arena has its old content, after it this.
    ///
    /// # Errors
    /// When it does not fit or could not be read back: nothing has changed. When the medium fails: whether it is published is known
    /// when the arena is opened again, and until then all is refused.
    pub fn publish(
        &mut self,
        window: &mut impl MediumWindow,
        new: Option<(VersionId, PersistenceLevel, RankManifest)>,
        keeps: impl Fn(&Version) -> bool,
    ) -> Result<(), ArenaError> {
        if self.unknown {
            return Err(ArenaError::Unknown);
        }
        let mut versions: Vec<Version> =
            self.versions.iter().filter(|v| keeps(v)).cloned().collect();
        if let Some((id, level, manifest)) = new {
            let before = self.versions.iter().find(|v| v.id == id);
            let start = before.map_or(self.started.identity, |v| v.start);
            check("objects", manifest.objects.len(), MAX_OBJECTS)?;
            let longest = manifest.objects.iter().map(|o| o.key.len()).max();
            check("bytes of a key", longest.unwrap_or(0), MAX_KEY)?;
            versions.retain(|v| v.id != id);
            check("versions", versions.len() + 1, MAX_VERSIONS)?;
            let payload = manifest.encode();
            check("bytes of a manifest", payload.len(), MAX_BYTES as usize)?;
            if RankManifest::decode(&payload, self.size).as_ref() != Some(&manifest) {
                let what = "a version with keys out of order, pieces outside the arena, or not a checksum for each chunk";
                return Err(ArenaError::Malformed { what });
            }
            let length = block::size(payload.len(), PAGE as usize);
            let taken: Vec<Range<u64>> = manifest.extents().collect();
            let at = self.take(window, &[length as u64], &taken)?.0[0];
            let block = block::seal(
                BlockKind::Manifest,
                self.header.identity,
                at,
                &payload,
                length,
            );
            window.write(at, &block)?;
            window.persist()?;
            versions.push(Version {
                id,
                start,
                level,
                manifest,
                at: at..at + length as u64,
                sum: block::sum(&block),
            });
            versions.sort_by_key(|v| v.id);
        }
        self.versions = versions;
        self.unknown = true;
        self.flip(window)?;
        self.unknown = false;
        Ok(())
    }

    /// Extents beside those of kept versions and `more`, and of readers' pins; whether there would be others without the pins.
    fn take(
        &self,
        window: &impl MediumWindow,
        lengths: &[u64],
        more: &[Range<u64>],
    ) -> Result<(Vec<u64>, bool), ArenaError> {
        if self.unknown {
            return Err(ArenaError::Unknown);
        }
        let kept = self.versions.iter().flat_map(Version::occupied);
        let mut taken: Vec<Range<u64>> = kept.chain(more.iter().cloned()).collect();
        taken.push(self.slot.clone());
        let first = free_space::take_extents(
            &mut free_space::free_ranges(self.size, taken.iter().cloned()),
            lengths,
        );
        // After the loss of given-up versions is published, and before anything is written there (docs/internals/checkpoints.md).
        let pinned = window.pinned()?;
        let count = pinned.len();
        taken.extend(pinned);
        let mut free = free_space::free_ranges(self.size, taken);
        let places =
            free_space::take_extents(&mut free, lengths).ok_or_else(|| ArenaError::Full {
                wanted: lengths.iter().sum(),
                free: free.iter().map(|r| r.end - r.start).sum(),
                pinned: count,
            })?;
        let passed = first.as_ref() != Some(&places);
        Ok((places, passed))
    }

    /// Writes the older superblock: from now on it is the newest. This publishes: when `persist` returns, the arena's content is
    /// the one that the superblock leads to, and versions in the arena alone are durable.
    fn flip(&mut self, window: &mut impl MediumWindow) -> Result<(), ArenaError> {
        let (epoch, newest) = (self.epoch + 1, 1 - self.newest);
        let at = SUPERBLOCKS[newest];
        let payload = encode_rows(epoch, self.started, &self.versions);
        let block = block::seal(
            BlockKind::Superblock,
            self.header.identity,
            at,
            &payload,
            BLOCK,
        );
        window.write(at, &block)?;
        window.persist()?;
        (self.epoch, self.newest) = (epoch, newest);
        Ok(())
    }
}

/// Copies an object out of an arena. The pieces that are damaged or are stored elsewhere are not copied: their numbers.
///
/// # Errors
/// When the arena cannot be read.
///
/// # Panics
/// When `into` is of another size.
pub fn read(
    stored: &impl ReadableMedium,
    object: &Object,
    into: &mut [u8],
) -> Result<Vec<usize>, MediumError> {
    assert_eq!(into.len() as u64, object.size());
    let mut bad = Vec::new();
    let mut left = into;
    for (number, piece) in object.pieces.iter().enumerate() {
        let (bytes, rest) = left.split_at_mut(piece.length as usize);
        left = rest;
        let PieceLocation::Arena(at) = piece.place else {
            bad.push(number);
            continue;
        };
        let sums = stored.read_chunks(at, bytes, CHUNK as usize)?;
        if sums != piece.sums {
            bad.push(number);
        }
    }
    Ok(bad)
}

/// Both superblocks, as they were at one instant: the first did not change while the second was read. The writer completes one
/// before it touches the other, so the newer whole one of these is the newest, or the one that was being written then.
fn superblocks(stored: &impl ReadableMedium) -> Result<[Vec<u8>; 2], ArenaError> {
    let [mut first, mut second, mut again] = [(); 3].map(|()| vec![0; BLOCK]);
    stored.read(SUPERBLOCKS[0], &mut first)?;
    for _ in 0..LOOKS {
        stored.read(SUPERBLOCKS[1], &mut second)?;
        stored.read(SUPERBLOCKS[0], &mut again)?;
        if first == again {
            return Ok([first, second]);
        }
        std::mem::swap(&mut first, &mut again);
    }
    Err(ArenaError::Unsettled)
}

/// The text about readers where there is no space.
pub(crate) fn pinned_by_readers(pinned: usize) -> String {
    match pinned {
        0 => String::new(),
        1 => ", and a reader in another program has a version pinned: end it".into(),
        _ => format!(", and readers in other programs have {pinned} versions pinned: end them"),
    }
}

fn check(what: &'static str, is: usize, most: usize) -> Result<(), ArenaError> {
    match is > most {
        true => Err(ArenaError::TooMany { what, is, most }),
        false => Ok(()),
    }
}

impl ArenaHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_short(&mut out, &self.run);
        self.start.encode(&mut out);
        out.extend(self.rank.to_le_bytes());
        out.extend(self.ranks.to_le_bytes());
        out
    }

    fn decode(identity: u128, payload: &[u8]) -> Option<Self> {
        let mut fields = Fields(payload);
        let header = Self {
            identity,
            run: fields.short()?.into(),
            start: ProgramStart::decode(&mut fields)?,
            rank: fields.u32()?,
            ranks: fields.u32()?,
        };
        (fields.0.is_empty() && header.rank < header.ranks).then_some(header)
    }
}

impl ProgramStart {
    fn encode(self, out: &mut Vec<u8>) {
        out.extend(self.generation.to_le_bytes());
        out.extend(self.identity.to_le_bytes());
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self {
            generation: fields.u64()?,
            identity: u128::from_le_bytes(fields.take()?),
        })
    }
}

/// The entry of a version in a superblock.
struct SuperblockEntry {
    id: VersionId,
    start: u128,
    level: PersistenceLevel,
    at: Range<u64>,
    sum: u64,
}

impl SuperblockEntry {
    /// The manifest that it leads to, if that is whole.
    fn manifest(
        &self,
        stored: &impl ReadableMedium,
        identity: u128,
    ) -> Result<Option<RankManifest>, MediumError> {
        let size = stored.size();
        let length = self.at.end - self.at.start;
        if length > MAX_BYTES + PAGE || self.at.end > size {
            return Ok(None);
        }
        let mut bytes = vec![0; length as usize];
        stored.read(self.at.start, &mut bytes)?;
        let payload = block::unseal(BlockKind::Manifest, self.at.start, &bytes);
        let own = payload.filter(|(arena, _)| *arena == identity && block::sum(&bytes) == self.sum);
        Ok(own.and_then(|(_, payload)| RankManifest::decode(payload, size)))
    }
}

fn encode_rows(epoch: u64, started: ProgramStart, versions: &[Version]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(epoch.to_le_bytes());
    started.encode(&mut out);
    out.push(versions.len() as u8);
    for version in versions {
        out.extend(version.id.generation.to_le_bytes());
        out.extend(version.id.number.to_le_bytes());
        out.extend(version.start.to_le_bytes());
        out.push(version.level as u8);
        out.extend(version.at.start.to_le_bytes());
        out.extend(version.at.end.to_le_bytes());
        out.extend(version.sum.to_le_bytes());
    }
    out
}

/// A superblock, as it is written.
struct Superblock {
    epoch: u64,
    started: ProgramStart,
    rows: Vec<SuperblockEntry>,
}

impl Superblock {
    fn decode(payload: &[u8]) -> Option<Self> {
        let mut fields = Fields(payload);
        let epoch = fields.u64()?;
        let started = ProgramStart::decode(&mut fields)?;
        let count = usize::from(fields.u8()?);
        if count > MAX_VERSIONS {
            return None;
        }
        let mut rows: Vec<SuperblockEntry> = Vec::with_capacity(count);
        for _ in 0..count {
            let id = VersionId {
                generation: fields.u64()?,
                number: fields.u64()?,
            };
            let start = u128::from_le_bytes(fields.take()?);
            if rows.last().is_some_and(|last| last.id >= id) {
                return None;
            }
            let level = match fields.u8()? {
                0 => PersistenceLevel::Committed,
                1 => PersistenceLevel::Durable,
                2 => PersistenceLevel::Replicated,
                3 => PersistenceLevel::Flushed,
                _ => return None,
            };
            let at = fields.u64()?..fields.u64()?;
            if at.start < free_space::FIRST || at.start > at.end {
                return None;
            }
            let sum = fields.u64()?;
            rows.push(SuperblockEntry {
                id,
                start,
                level,
                at,
                sum,
            });
        }
        // The next one must be higher.
        (fields.0.is_empty() && epoch < u64::MAX).then_some(Self {
            epoch,
            started,
            rows,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{ObjectPiece, Shape};
    use tarn_media::MappedFile;
    use tarn_ports::Medium;

    /// While it is de-staged its slot is written to, and its manifest must not change.
    #[test]
    fn the_manifest_of_a_version_that_is_staged_is_not_in_its_slot() {
        let folder = tempfile::tempdir().unwrap();
        let mut medium = MappedFile::create(&folder.path().join("arena"), 1 << 20).unwrap();
        let mut windows = medium.windows(std::slice::from_ref(&(0..1 << 20))).unwrap();
        let window = &mut windows[0];
        let header = ArenaHeader {
            identity: 1,
            run: b"run".as_slice().into(),
            start: ProgramStart {
                generation: 1,
                identity: 1,
            },
            rank: 0,
            ranks: 1,
        };
        let mut arena = Arena::format(window, header).unwrap();
        let (slot, _) = arena.slot(window, CHUNK).unwrap();
        let piece = ObjectPiece {
            length: CHUNK,
            place: PieceLocation::Staged(free_space::FIRST),
            sums: vec![0],
        };
        let object = Object {
            key: b"k".as_slice().into(),
            unit: 1,
            shape: Shape::Own,
            pieces: vec![piece],
        };
        let manifest = RankManifest {
            seal: None,
            objects: vec![object],
        };
        let id = VersionId {
            generation: 1,
            number: 1,
        };
        arena
            .publish(
                window,
                Some((id, PersistenceLevel::Committed, manifest)),
                |_| true,
            )
            .unwrap();
        let at = &arena.versions()[0].at;
        assert!(at.start >= slot + CHUNK || at.end <= slot, "{at:?} {slot}");
        // The next slot may be there again.
        assert_eq!(arena.slot(window, CHUNK).unwrap(), (slot, false));
    }
}
