//! Readers of a program's versions: other programs of its node, which map them where they are stored while the
//! program continues.
//!
//! Mapped bytes do not change: the version is pinned, by a lock that the kernel releases with the reader,
//! and the writer of the arena passes over pinned bytes. For how a reader finds that a version was given up
//! before its pin, see docs/internals/checkpoints.md.

use crate::memory::{Element, ObjectMemory};
use crate::settings::{name_of, tier_of};
use crate::version_catalog::{RunCheckpoints, VersionCatalog};
use once_cell::race::OnceBox;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tarn_checkpoint_core::arena::Version;
use tarn_checkpoint_core::manifest::CHUNK;
use tarn_checkpoint_core::seal::{Opener, SealedOrigin, in_clear};
use tarn_checkpoint_core::{
    Arena, CheckpointError, CheckpointErrorCode, Object, PersistenceLevel, PieceLocation,
    ProgramStart, Shape, VersionId,
};
use tarn_media::{ReadOnlyMapping, Reader as File};
use tarn_types::crc::crc;

/// How often versions are looked for that are given up meanwhile.
const TRIES: usize = 256;

/// Which version is wanted. Where a field is `None`, the environment's value counts, then the default.
///
/// # Examples
/// ```
/// use tarn_checkpoint::{VersionId, VersionSelector};
///
/// // Version 1.20 of the program "heat", not compared with its checksums.
/// let wanted = VersionSelector {
///     run: Some("heat".into()),
///     tier: Some("/nvme/me".into()),
///     version: Some(VersionId { generation: 1, number: 20 }),
///     verify: false,
/// };
/// assert_eq!(wanted.version.unwrap().to_string(), "1.20");
/// assert!(VersionSelector::default().verify);
/// ```
#[derive(Debug, Clone)]
pub struct VersionSelector {
    /// The program's name on this node; else `$TARN_PHX_RUN`, or "phx".
    pub run: Option<String>,
    /// Its folder on the persistent tier; else `$TARN_PHX_TIER`.
    pub tier: Option<PathBuf>,
    /// The version; else the newest that all ranks of this node have durable.
    pub version: Option<VersionId>,
    /// Whether an object is compared with its checksums when it is first mapped.
    pub verify: bool,
}

impl Default for VersionSelector {
    fn default() -> Self {
        Self {
            run: None,
            tier: None,
            version: None,
            verify: true,
        }
    }
}

/// An object of one rank in a version, as [`VersionReader::objects`] lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankObject<'a> {
    /// Its name.
    pub key: &'a [u8],
    /// Its size in bytes.
    pub bytes: u64,
    /// The size of an element in bytes.
    pub unit: u32,
    /// How it is a part of a thing that all ranks have together.
    pub shape: &'a Shape,
}

/// A version of a program that may be running, pinned on all ranks of this node: it stays as it is until this
/// is dropped, while the program commits other versions.
///
/// # Examples
/// An analysis that maps the newest durable version; the simulation would be another process:
/// ```
/// use tarn_checkpoint::{
///     CheckpointSession, Options, PersistenceLevel, Properties, VersionReader, VersionSelector,
/// };
///
/// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let [tier, memory] = ["tier", "memory"].map(|name| folder.path().join(name));
/// let options = Options { tier: Some(tier.clone()), memory: Some(memory.clone()), ..Options::default() };
/// let mut simulation = CheckpointSession::begin(options)?;
/// simulation.create("field", 1000 * 8, 8, Properties::default())?;
/// simulation.values::<f64>("field")?.fill(1.0);
/// let version = simulation.commit()?.id;
/// simulation.wait(version, PersistenceLevel::Durable, None)?;
///
/// let reader = VersionReader::open(VersionSelector {
///     tier: Some(tier),
///     ..VersionSelector::default()
/// })?;
/// simulation.values::<f64>("field")?.fill(2.0);
/// simulation.commit()?; // does not touch what is pinned
///
/// assert_eq!((reader.version(), reader.of()), (version, 1));
/// assert_eq!(reader.ranks().collect::<Vec<_>>(), [0]);
/// let object = reader.objects(0)?.next().unwrap();
/// assert_eq!((object.key, object.bytes, object.unit), (&b"field"[..], 8000, 8));
/// let field = reader.values::<f64>(0, "field")?; // mapped: no copy
/// assert_eq!(field.iter().sum::<f64>(), 1000.0);
/// simulation.end()?;
/// # Ok::<(), tarn_checkpoint::CheckpointError>(())
/// ```
#[derive(Debug)]
pub struct VersionReader {
    name: String,
    id: VersionId,
    verify: bool,
    parts: BTreeMap<u32, RankPart>,
}

/// A rank's part.
#[derive(Debug)]
struct RankPart {
    path: PathBuf,
    rank: u32,
    /// Ranks that wrote the version.
    ranks: u32,
    version: Version,
    /// The objects that were compared with their checksums.
    proven: Box<[AtomicBool]>,
    /// If it is encrypted. Filled without a wait: a child that was forked while another thread fills it would
    /// wait for ever.
    opener: OnceBox<Opener>,
    /// The content of encrypted objects.
    opened: Box<[OnceBox<ObjectMemory>]>,
    /// Unmapped before the pin is gone.
    seen: ReadOnlyMapping,
    _pin: File,
}

/// An arena that a rank has written itself.
struct RankArena {
    path: PathBuf,
    file: File,
    arena: Arena,
}

impl VersionReader {
    /// Pins a version: that of `which`, or the newest that is durable on all ranks of this node. The program
    /// need not run.
    ///
    /// # Errors
    /// - [`Invalid`](CheckpointErrorCode::Invalid): no tier is named, or the run's name is malformed.
    /// - [`NotFound`](CheckpointErrorCode::NotFound): there is no such program or version here, or none is
    ///   durable yet.
    /// - [`Unsupported`](CheckpointErrorCode::Unsupported): some of the version that was named is still
    ///   staged.
    /// - [`TimedOut`](CheckpointErrorCode::TimedOut): versions are given up faster than they can be pinned.
    /// - [`Corrupt`](CheckpointErrorCode::Corrupt), [`Io`](CheckpointErrorCode::Io): an arena is damaged, or
    ///   cannot be read.
    ///
    /// # Examples
    /// ```
    /// use tarn_checkpoint::{CheckpointErrorCode, VersionReader, VersionSelector};
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let tier = Some(folder.path().to_owned()); // nobody has committed there
    /// let why = VersionReader::open(VersionSelector { tier, ..VersionSelector::default() }).unwrap_err();
    /// assert_eq!(why.code, CheckpointErrorCode::NotFound);
    /// ```
    pub fn open(which: VersionSelector) -> Result<Self, CheckpointError> {
        let (name, tier) = (name_of(which.run)?, tier_of(which.tier)?);
        let text = format!(
            "versions of {name} were given up {TRIES} times before they could be pinned: have the program keep more of them (`versions`), \
             or commit less often"
        );
        let mut before = None;
        for _ in 0..TRIES {
            let found = look(&tier, &name)?;
            let (id, start) = match choose(&found, which.version, &name) {
                // Arenas are read one after the other: they may have one in common that was not there yet, unless all are as they were.
                Err(fault) if which.version.is_none() => {
                    let now: Vec<Arena> = found.into_iter().map(|f| f.arena).collect();
                    if before.as_ref() == Some(&now) {
                        return Err(fault);
                    }
                    before = Some(now);
                    continue;
                }
                chosen => chosen?,
            };
            if let Some(parts) = pin(found, id, start)? {
                let clear = parts.values().any(|p| p.version.manifest.seal.is_none());
                if clear
                    && crate::keys::read_switch("TARN_PHX_ENCRYPT")?
                    && !crate::keys::takes_clear()?
                {
                    return Err(in_clear(id));
                }
                let verify = which.verify;
                return Ok(Self {
                    name,
                    id,
                    verify,
                    parts,
                });
            }
        }
        Err(CheckpointError::new(CheckpointErrorCode::TimedOut, text))
    }

    /// The version that is pinned.
    pub fn version(&self) -> VersionId {
        self.id
    }

    /// The number of ranks that wrote it, on all nodes.
    pub fn of(&self) -> u32 {
        self.parts.values().map(|p| p.ranks).max().unwrap_or(0)
    }

    /// The ranks that have a part of it on this node, in ascending order.
    pub fn ranks(&self) -> impl Iterator<Item = u32> {
        self.parts.keys().copied()
    }

    /// The failures that it survives: the least level of the ranks that are on this node.
    pub fn level(&self) -> PersistenceLevel {
        let levels = self.parts.values().map(|p| p.version.level);
        levels.min().unwrap_or(PersistenceLevel::Durable)
    }

    /// The objects of a rank, by key.
    ///
    /// # Errors
    /// [`NotFound`](CheckpointErrorCode::NotFound): this rank has no part of the version on this node.
    pub fn objects(
        &self,
        rank: u32,
    ) -> Result<impl Iterator<Item = RankObject<'_>>, CheckpointError> {
        let objects = self.part(rank)?.version.manifest.objects.iter();
        Ok(objects.map(|o| RankObject {
            key: &o.key,
            bytes: o.size(),
            unit: o.unit,
            shape: &o.shape,
        }))
    }

    /// The bytes of a rank's object, mapped from its arena: nothing is copied. An encrypted object is
    /// decrypted into memory of this program. With [`VersionSelector::verify`] the first call reads all of
    /// it, to compare it with its checksums.
    ///
    /// # Errors
    /// - [`NotFound`](CheckpointErrorCode::NotFound): no such rank or object is here.
    /// - [`Corrupt`](CheckpointErrorCode::Corrupt): it is damaged; the message names the bytes.
    /// - [`Invalid`](CheckpointErrorCode::Invalid): it is encrypted with a key that this user does not have.
    /// - [`Unsupported`](CheckpointErrorCode::Unsupported): it is stored in several pieces.
    /// - [`NoMem`](CheckpointErrorCode::NoMem): there is no memory to decrypt it.
    pub fn map(&self, rank: u32, key: &[u8]) -> Result<&[u8], CheckpointError> {
        let (part, at) = self.find(rank, key)?;
        let object = &part.version.manifest.objects[at];
        let bytes = part.bytes(object)?;
        if part.version.manifest.seal.is_some() {
            return self.opened(part, at, bytes);
        }
        if self.verify && !part.proven[at].load(Ordering::Acquire) {
            part.prove(object, bytes, rank)?;
            part.proven[at].store(true, Ordering::Release);
        }
        Ok(bytes)
    }

    /// The content of an encrypted object.
    fn opened<'a>(
        &self,
        part: &'a RankPart,
        at: usize,
        bytes: &[u8],
    ) -> Result<&'a [u8], CheckpointError> {
        let manifest = &part.version.manifest;
        let opened = &part.opened[at];
        if opened.get().is_none() {
            let opener = self.opener(part)?;
            let mut memory = ObjectMemory::new(bytes.len())?;
            // SAFETY: it was made here, and nobody else knows of it yet.
            let content = unsafe { memory.bytes_mut() };
            content.copy_from_slice(bytes);
            opener.open(manifest, &manifest.objects[at], content)?;
            // Another thread may have been first: then that is it.
            let _ = opened.set(Box::new(memory));
        }
        let memory = opened.get().ok_or_else(|| {
            CheckpointError::new(
                CheckpointErrorCode::Internal,
                "what was opened is not there",
            )
        })?;
        // SAFETY: nobody writes to it any more.
        Ok(unsafe { memory.bytes() })
    }

    /// The opener of an encrypted part.
    fn opener<'a>(&self, part: &'a RankPart) -> Result<&'a Opener, CheckpointError> {
        if let Some(opener) = part.opener.get() {
            return Ok(opener);
        }
        let unwrap = crate::keys::opening(&self.name)?;
        let origin = SealedOrigin {
            id: self.id,
            start: part.version.start,
            rank: part.rank,
            ranks: part.ranks,
        };
        let opener = Opener::unwrapped(&*unwrap, &part.version.manifest, &origin)?;
        Ok(part.opener.get_or_init(|| Box::new(opener)))
    }

    /// The same as a slice of elements: `bytes / size_of::<T>()` of them.
    ///
    /// # Errors
    /// As [`VersionReader::map`], and [`Invalid`](CheckpointErrorCode::Invalid) where its size is no multiple
    /// of `size_of::<T>()`.
    pub fn values<T: Element>(&self, rank: u32, key: &str) -> Result<&[T], CheckpointError> {
        let bytes = self.map(rank, key.as_bytes())?;
        let aligned = bytes.as_ptr().cast::<T>().is_aligned();
        if bytes.is_empty() {
            return Ok(&[]);
        }
        if !aligned || !bytes.len().is_multiple_of(size_of::<T>()) {
            let text = format!(
                "object {key:?} has {} bytes, which is no slice of elements of {} bytes",
                bytes.len(),
                size_of::<T>()
            );
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        }
        // SAFETY: aligned, as many as there are, and any bytes are an `Element`.
        Ok(unsafe {
            std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>())
        })
    }

    fn part(&self, rank: u32) -> Result<&RankPart, CheckpointError> {
        self.parts.get(&rank).ok_or_else(|| {
            let here: Vec<String> = self.ranks().map(|r| r.to_string()).collect();
            let text = format!(
                "rank {rank} has no part of version {} on this node; these ranks have: {}",
                self.id,
                here.join(", ")
            );
            CheckpointError::new(CheckpointErrorCode::NotFound, text)
        })
    }

    fn find(&self, rank: u32, key: &[u8]) -> Result<(&RankPart, usize), CheckpointError> {
        let part = self.part(rank)?;
        let objects = &part.version.manifest.objects;
        let at = objects
            .binary_search_by(|o| (*o.key).cmp(key))
            .map_err(|_| {
                let text = format!(
                    "rank {rank} has no object {:?} in version {}",
                    String::from_utf8_lossy(key),
                    self.id
                );
                CheckpointError::new(CheckpointErrorCode::NotFound, text)
            })?;
        Ok((part, at))
    }
}

impl RankPart {
    /// The bytes of an object, all of it behind each other.
    fn bytes(&self, object: &Object) -> Result<&[u8], CheckpointError> {
        let size = object.size() as usize;
        let mut next = None;
        for piece in object.pieces.iter().filter(|p| p.length > 0) {
            match (piece.place, next) {
                (PieceLocation::Arena(at), None) => next = Some((at, at + piece.length)),
                (PieceLocation::Arena(at), Some((first, end))) if at == end => {
                    next = Some((first, end + piece.length));
                }
                _ => {
                    let text = "this object is stored in several pieces: there was no contiguous space for it when its version was completed";
                    return Err(CheckpointError::new(CheckpointErrorCode::Unsupported, text));
                }
            }
        }
        let at = next.map_or(0, |(first, _)| first as usize);
        // SAFETY: nobody writes to pinned bytes, as writers of arenas look for pins. People must not make the file shorter.
        let all = unsafe { self.seen.bytes() };
        all.get(at..at + size).ok_or_else(|| {
            let text = format!("{} is shorter than it was", self.path.display());
            CheckpointError::new(CheckpointErrorCode::Corrupt, text)
        })
    }

    /// Compares an object with its checksums.
    fn prove(&self, object: &Object, mut bytes: &[u8], rank: u32) -> Result<(), CheckpointError> {
        let mut from = 0;
        for piece in &object.pieces {
            let (own, rest) = bytes.split_at(piece.length as usize);
            bytes = rest;
            for (chunk, sum) in own.chunks(CHUNK as usize).zip(&piece.sums) {
                let to = from + chunk.len();
                if crc(chunk) != *sum {
                    let text = format!(
                        "bytes {from} to {to} of object {:?} of rank {rank} in version {} are damaged in {}; `tarn ckpt verify` shows whether there is a copy",
                        String::from_utf8_lossy(&object.key),
                        self.version.id,
                        self.path.display()
                    );
                    return Err(CheckpointError::new(CheckpointErrorCode::Corrupt, text));
                }
                from = to;
            }
        }
        Ok(())
    }
}

/// The arenas that ranks of the program have written on this node.
fn look(tier: &Path, name: &str) -> Result<Vec<RankArena>, CheckpointError> {
    let none = || {
        let text = format!("there is no program {name} on {}", tier.display());
        CheckpointError::new(CheckpointErrorCode::NotFound, text)
    };
    let version_catalog = VersionCatalog::open(tier, Path::new("")).map_err(|e| {
        let code = match e.kind() {
            io::ErrorKind::NotFound => CheckpointErrorCode::NotFound,
            _ => CheckpointErrorCode::Io,
        };
        CheckpointError::new(code, format!("cannot read {}: {e}", tier.display()))
    })?;
    let run: RunCheckpoints<'_> = version_catalog.run(OsStr::new(name)).ok_or_else(none)?;
    let (files, unreadable) = run.files();
    if let Some(why) = unreadable.into_iter().next() {
        return Err(CheckpointError::new(
            CheckpointErrorCode::Io,
            why.to_string(),
        ));
    }
    let own = files
        .into_iter()
        .filter(|path| path.extension() == Some(OsStr::new("arena")));
    let mut found = Vec::new();
    for path in own {
        let opened = File::open(&path).map_err(CheckpointError::from);
        let opened = opened.and_then(|file| Ok((Arena::open(&file)?, file)));
        match opened {
            Ok((arena, file)) => found.push(RankArena { path, file, arena }),
            // A later start has taken it away.
            Err(fault) if fault.code == CheckpointErrorCode::NotFound => {}
            Err(fault) => {
                let text = format!("{}: {}", path.display(), fault.text);
                return Err(CheckpointError::new(fault.code, text));
            }
        }
    }
    Ok(found)
}

impl RankArena {
    /// Whether its rank would have a version of that start, had it committed one.
    fn knows(&self, start: ProgramStart) -> bool {
        let before = |one: ProgramStart, other: ProgramStart| {
            one == other || one.generation < other.generation
        };
        before(self.arena.header().start, start) && before(start, self.arena.started())
    }

    /// A version in it.
    fn version(&self, id: VersionId, start: u128) -> Option<&Version> {
        let mut versions = self.arena.versions().iter();
        versions.find(|v| v.id == id && v.start == start)
    }
}

/// A rank that should have a version durable, and has not.
fn lacking_in(found: &[RankArena], (id, start): (VersionId, u128)) -> Option<u32> {
    let of = ProgramStart {
        generation: id.generation,
        identity: start,
    };
    let has = |f: &&RankArena| f.version(id, start).is_some();
    let ranks: BTreeSet<u32> = found
        .iter()
        .filter(has)
        .map(|f| f.arena.header().ranks)
        .collect();
    let durable = |f: &&RankArena| {
        f.version(id, start)
            .is_some_and(|v| v.manifest.is_durable())
    };
    let durable: BTreeSet<u32> = found
        .iter()
        .filter(durable)
        .map(|f| f.arena.header().rank)
        .collect();
    let should = |f: &&RankArena| has(f) || f.knows(of) && ranks.contains(&f.arena.header().ranks);
    let mut should = found.iter().filter(should).map(|f| f.arena.header().rank);
    should.find(|rank| !durable.contains(rank))
}

/// The version that is wanted, or the newest that all ranks that should have it have durable.
fn choose(
    found: &[RankArena],
    wanted: Option<VersionId>,
    name: &str,
) -> Result<(VersionId, u128), CheckpointError> {
    let all = found.iter().flat_map(|f| f.arena.versions());
    let all: BTreeSet<(VersionId, u128)> = all.map(|v| (v.id, v.start)).collect();
    let candidates = all
        .iter()
        .rev()
        .filter(|(id, _)| wanted.is_none_or(|w| w == *id));
    let mut lacking = None;
    for version in candidates {
        match lacking_in(found, *version) {
            None => return Ok(*version),
            Some(rank) => lacking = lacking.or(Some((version.0, rank))),
        }
    }
    let here: BTreeSet<String> = all.iter().map(|(id, _)| id.to_string()).collect();
    let here: Vec<String> = here.into_iter().collect();
    let text = match (wanted, lacking) {
        (Some(id), Some((_, rank))) => {
            let text = format!(
                "version {id} of {name} is not durable on rank {rank} yet, or it has none: wait for that level, or take an earlier one"
            );
            return Err(CheckpointError::new(CheckpointErrorCode::Unsupported, text));
        }
        (Some(id), None) => format!(
            "there is no version {id} of {name} on this node; there are: {}",
            here.join(", ")
        ),
        (None, Some((id, rank))) => format!(
            "no version of {name} is durable on all ranks of this node yet: {id} is not on rank {rank}"
        ),
        (None, None) => format!("there is no version of {name} on this node yet"),
    };
    Err(CheckpointError::new(CheckpointErrorCode::NotFound, text))
}

/// Pins a version in all arenas that have it; none if it was given up before it was pinned in one.
fn pin(
    found: Vec<RankArena>,
    id: VersionId,
    start: u128,
) -> Result<Option<BTreeMap<u32, RankPart>>, CheckpointError> {
    let mut parts = BTreeMap::new();
    for RankArena { path, file, arena } in found {
        let mut versions = arena.versions().iter();
        let own = versions.find(|v| v.id == id && v.start == start);
        let Some(version) = own.filter(|v| v.manifest.is_durable()) else {
            continue;
        };
        file.pin(&version.extent())?;
        // A version that is still kept now was not given up before the writer could see the pin.
        if !Arena::open(&file)?.versions().contains(version) {
            return Ok(None);
        }
        let proven = version
            .manifest
            .objects
            .iter()
            .map(|_| AtomicBool::new(false));
        let part = RankPart {
            path,
            rank: arena.header().rank,
            ranks: arena.header().ranks,
            version: version.clone(),
            proven: proven.collect(),
            opener: OnceBox::new(),
            opened: version
                .manifest
                .objects
                .iter()
                .map(|_| OnceBox::new())
                .collect(),
            seen: file.map()?,
            _pin: file,
        };
        parts.entry(arena.header().rank).or_insert(part);
    }
    Ok(Some(parts))
}
