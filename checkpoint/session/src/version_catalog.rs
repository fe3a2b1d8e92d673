//! The programs' checkpoints in two folders, for programs that only look: nothing is locked, nothing is written,
//! whoever writes meanwhile. Nothing is read through a mapping: a file that is made shorter meanwhile would
//! end this process.
//!
//! The places: `<tier>/phx/<run>/<generation>/<rank>.arena`, and in memory
//! `<memory>/tarn-phx-<uid>/<run>/` with the staged parts of these (`.staging`) and of buddies' (`.buddy`).
//! Names only lead there: a file's header names its owner.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry, File};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tarn_checkpoint_core::arena::{ArenaError, Version};
use tarn_checkpoint_core::{
    Arena, CheckpointError, PersistenceLevel, PieceLocation, VersionId, flush,
};
use tarn_media::{ExternalFolder, ReadOnlyMapping, Reader};
use tarn_ports::{MediumError, PowerFail, Promises, ReadableMedium};
use tarn_types::block::{self, BlockKind};
use tarn_types::checkpoint::{Checkpoint, CheckpointId};

/// Entries of a folder that are looked at.
const MAX_ENTRIES: usize = 1 << 16;
/// How often a rank's lock is looked at again that is held, and after how long.
const TRIES: usize = 4;
const AGAIN: Duration = Duration::from_millis(5);
/// Bytes of a process id that are read.
const MAX_ID: u64 = 32;
/// Bytes of a staging file's first block.
const STAGING_BLOCK: usize = 4 << 10;
/// The begin of the staged bytes in their file.
const STAGING_HEAD: u64 = 64 << 10;

/// Why a folder or file of checkpoints could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// A folder.
    #[error("cannot read {}: {source}", .folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file cannot be looked at.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The thing with the name of an arena is no file.
    #[error("{}: this is no file", .path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
    },
    /// Its bytes cannot be had.
    #[error("{}: {source}", .path.display())]
    Medium {
        /// The file.
        path: PathBuf,
        /// The error of its medium.
        source: MediumError,
    },
    /// They are no arena, or a damaged one.
    #[error("{}: {source}", .path.display())]
    Arena {
        /// The file.
        path: PathBuf,
        /// The error in them.
        source: ArenaError,
    },
}

/// The checkpoints of a tier, and their staged parts in memory. Nothing is locked or written, whatever
/// programs do meanwhile; `tarn ckpt ls` is made of this.
///
/// # Examples
/// ```
/// use std::path::Path;
/// use tarn_checkpoint::version_catalog::VersionCatalog;
/// use tarn_checkpoint::{CheckpointSession, Options, Properties};
///
/// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let [tier, memory] = ["tier", "memory"].map(|name| folder.path().join(name));
/// let options = Options { tier: Some(tier.clone()), memory: Some(memory.clone()), ..Options::default() };
/// let mut session = CheckpointSession::begin(Options { run: Some("heat".into()), ..options })?;
/// session.create("field", 8000, 8, Properties::default())?;
/// session.commit()?;
/// session.end()?;
/// // The program "heat" has committed 8000 bytes.
/// let catalog = VersionCatalog::open(&tier, &memory).unwrap();
/// for run in catalog.runs() {
///     let versions = run.versions(&mut |why| eprintln!("{why}"));
///     for ((id, _), version) in &versions {
///         println!("{} {id}: {} bytes, {:?}", run.name.display(), version.bytes, version.level);
///     }
///     assert_eq!((run.name, versions.len()), ("heat".as_ref(), 1));
/// }
/// assert!(catalog.run("other".as_ref()).is_none());
/// # Ok::<(), tarn_checkpoint::CheckpointError>(())
/// ```
#[derive(Debug)]
pub struct VersionCatalog<'a> {
    tier: &'a Path,
    memory: &'a Path,
    runs: Vec<OsString>,
}

impl<'a> VersionCatalog<'a> {
    /// Looks into two folders: `tier` as programs have it on the persistent tier ([`crate::Options::tier`]),
    /// `memory` as they have it in memory ([`crate::Options::memory`]), which may be missing.
    ///
    /// # Errors
    /// `tier` cannot be read. A tier on which nobody has committed is empty, not an error.
    pub fn open(tier: &'a Path, memory: &'a Path) -> io::Result<Self> {
        let runs = match entries(&tier.join("phx")) {
            Ok(all) => all,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // Nobody has kept anything there yet; if it is a folder at all.
                fs::read_dir(tier)?;
                Vec::new()
            }
            Err(e) => return Err(e),
        };
        let mut runs: Vec<OsString> = runs
            .iter()
            .filter(|e| is_folder(e))
            .map(DirEntry::file_name)
            .collect();
        runs.sort();
        Ok(Self { tier, memory, runs })
    }

    /// Adds the names of the programs in another folder, such as `phx` of an external store, if it exists.
    ///
    /// # Errors
    /// The folder exists and cannot be read.
    pub fn extend(&mut self, folder: &Path) -> io::Result<()> {
        let all = match entries(folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            all => all?,
        };
        let names = all.iter().filter(|e| is_folder(e)).map(DirEntry::file_name);
        self.runs.extend(names);
        self.runs.sort();
        self.runs.dedup();
        Ok(())
    }

    /// All programs, by name.
    pub fn runs(&self) -> Vec<RunCheckpoints<'_>> {
        self.runs.iter().map(|name| self.at(name)).collect()
    }

    /// The program of this name.
    pub fn run(&self, name: &OsStr) -> Option<RunCheckpoints<'_>> {
        let name = self.runs.iter().find(|r| *r == name)?;
        Some(self.at(name))
    }

    fn at<'s>(&'s self, name: &'s OsStr) -> RunCheckpoints<'s> {
        RunCheckpoints {
            name,
            tier: self.tier,
            memory: self.memory,
        }
    }
}

/// The versions of all programs in these folders, for a restart of the programs. Unreadable ones are left
/// out.
///
/// # Examples
/// ```
/// use tarn_checkpoint::version_catalog::checkpoints;
///
/// assert!(checkpoints("/no/such/tier".as_ref(), "/dev/shm".as_ref()).is_empty());
/// ```
pub fn checkpoints(tier: &Path, memory: &Path) -> Vec<Checkpoint> {
    let Ok(version_catalog) = VersionCatalog::open(tier, memory) else {
        return Vec::new();
    };
    let of_run = |run: &RunCheckpoints<'_>| {
        let program = run.name.to_string_lossy().into_owned();
        let versions = run.versions(&mut |_| {});
        let versions = versions
            .into_iter()
            .map(move |((id, start), found)| Checkpoint {
                program: program.clone(),
                id: CheckpointId {
                    generation: id.generation,
                    number: id.number,
                },
                start,
                ranks: found.ranks,
                here: found.here.difference(&found.gone).copied().collect(),
            });
        versions.collect::<Vec<_>>()
    };
    version_catalog.runs().iter().flat_map(of_run).collect()
}

/// A program's checkpoints.
#[derive(Debug)]
pub struct RunCheckpoints<'a> {
    /// Its name.
    pub name: &'a OsStr,
    tier: &'a Path,
    memory: &'a Path,
}

/// The parts of a version in these folders. Sizes are bytes of all ranks that are here.
#[derive(Debug)]
pub struct CatalogVersion {
    /// The least level of its ranks.
    pub level: PersistenceLevel,
    /// Ranks of the program that wrote it.
    pub ranks: u32,
    /// The ranks that have it here.
    pub here: BTreeSet<u32>,
    /// Bytes of all its objects.
    pub bytes: u64,
    /// The share of them that is not on the tier.
    pub staged_bytes: u64,
    /// The ranks here whose staged part is not in memory.
    pub gone: BTreeSet<u32>,
    /// The promise of the weakest medium about a loss of power.
    pub power_fail: PowerFail,
}

/// The versions here, oldest first, by version and start: two starts that knew nothing of each other have the same
/// numbers.
pub type Versions = BTreeMap<(VersionId, u128), CatalogVersion>;

impl RunCheckpoints<'_> {
    /// The program's versions in these folders, oldest first. `unreadable` gets each file or folder that
    /// cannot be read.
    pub fn versions(&self, unreadable: &mut dyn FnMut(Unreadable)) -> Versions {
        let mut versions = Versions::new();
        for held in self.arenas() {
            let held = match held {
                Ok(held) => held,
                Err(why) => {
                    unreadable(why);
                    continue;
                }
            };
            let staged = self.staged(&held);
            let header = held.arena.header();
            let fails = held.promises.power_fail;
            for version in held.arena.versions() {
                let found = versions
                    .entry((version.id, version.start))
                    .or_insert_with(|| CatalogVersion {
                        level: version.level,
                        ranks: header.ranks,
                        here: BTreeSet::new(),
                        bytes: 0,
                        staged_bytes: 0,
                        gone: BTreeSet::new(),
                        power_fail: fails,
                    });
                // A copied arena is here twice.
                if !found.here.insert(header.rank) {
                    continue;
                }
                found.level = found.level.min(version.level);
                found.ranks = found.ranks.max(header.ranks);
                if fails == PowerFail::Lost {
                    found.power_fail = fails;
                }
                let objects = version.manifest.objects.iter();
                found.bytes += objects.map(|o| o.size()).sum::<u64>();
                for range in waiting(version) {
                    found.staged_bytes += range.end - range.start;
                    if !staged.iter().any(|s| s.has(&range)) {
                        found.gone.insert(header.rank);
                    }
                }
            }
        }
        versions
    }

    /// Its arenas, in the order of generations and ranks, and why seeming arenas could not be read.
    pub fn arenas(&self) -> impl Iterator<Item = Result<ReadableArena, Unreadable>> {
        let (files, unreadable) = self.files();
        let failed = unreadable.into_iter().map(Err);
        failed.chain(files.into_iter().map(ReadableArena::open))
    }

    /// The files of its arenas, those that ranks have written themselves first; and which folders could not
    /// be read.
    pub(crate) fn files(&self) -> (Vec<PathBuf>, Vec<Unreadable>) {
        let folder = self.tier.join("phx").join(self.name);
        let mut unreadable = Vec::new();
        let mut inside = |folder: &Path| {
            entries(folder).unwrap_or_else(|source| {
                if source.kind() != io::ErrorKind::NotFound {
                    let folder = folder.to_path_buf();
                    unreadable.push(Unreadable::Folder { folder, source });
                }
                Vec::new()
            })
        };
        let numbered = |all: &[DirEntry], suffix: &str| {
            let number = |entry: &DirEntry| -> Option<u64> {
                let name = entry.file_name();
                name.to_str()?.strip_suffix(suffix)?.parse().ok()
            };
            let numbered = all.iter().filter_map(|e| Some((number(e)?, e.path())));
            let mut numbered: Vec<(u64, PathBuf)> = numbered.collect();
            numbered.sort();
            numbered
        };
        let generations = numbered(&inside(&folder), "").into_iter();
        let generations: Vec<Vec<DirEntry>> = generations.map(|(_, f)| inside(&f)).collect();
        let mut files = Vec::new();
        // Arenas that a rank has written itself come before copies of them.
        for end in [".arena", ".copy", ".made"] {
            let all = generations.iter().flat_map(|all| numbered(all, end));
            files.extend(all.map(|(_, path)| path));
        }
        (files, unreadable)
    }

    /// The process that is a rank of the program on this node, if it is running as this user.
    pub fn process(&self, owner: u32) -> Option<String> {
        let user = format!("tarn-phx-{owner}");
        let folder = self.memory.join(user).join(self.name).join("meet");
        // An unreadable folder has no locks.
        let all = entries(&folder).unwrap_or_default();
        let locks = all.iter().map(DirEntry::path);
        let mut locks = locks.filter(|path| path.extension() == Some(OsStr::new("lock")));
        locks.find_map(|path| {
            let file = fs::symlink_metadata(&path).ok()?.is_file();
            let mut lock = File::open(&path).ok().filter(|_| file)?;
            // A process that begins meanwhile tries again; one that de-stages has it for a moment.
            let mut locked = flock(&lock, FlockOperation::NonBlockingLockShared);
            for _ in 0..TRIES {
                if locked.is_ok() {
                    break;
                }
                std::thread::sleep(AGAIN);
                locked = flock(&lock, FlockOperation::NonBlockingLockShared);
            }
            match locked {
                Err(Errno::WOULDBLOCK) => {
                    let mut id = String::new();
                    lock.by_ref().take(MAX_ID).read_to_string(&mut id).ok();
                    Some(id)
                }
                _ => None,
            }
        })
    }

    /// Adds the versions that are complete on an external store to `versions`, and marks those as flushed.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn add_flushed(
        &self,
        external: &Path,
        versions: &mut Versions,
    ) -> Result<(), CheckpointError> {
        let store = ExternalFolder::there(external, Path::new(self.name));
        let all = flush::list(&store)?;
        for found in all.iter().filter(|v| v.is_complete()) {
            let version = found.version;
            let row = versions.entry((version.id, version.start));
            let row = row.or_insert_with(|| {
                let parts = found.parts.iter();
                let parts = parts.filter_map(|rank| flush::open(&store, version, *rank).ok());
                let objects = parts.flat_map(|(_, version, _)| version.manifest.objects);
                CatalogVersion {
                    level: PersistenceLevel::Flushed,
                    ranks: found.ranks,
                    here: BTreeSet::new(),
                    bytes: objects.map(|o| o.size()).sum(),
                    staged_bytes: 0,
                    gone: BTreeSet::new(),
                    power_fail: PowerFail::Synced,
                }
            });
            row.level = PersistenceLevel::Flushed;
        }
        Ok(())
    }

    /// The files in memory with an arena's staged pieces, the rank's own first.
    pub fn staged(&self, held: &ReadableArena) -> Vec<StagedFile> {
        let user = format!("tarn-phx-{}", held.owner);
        let folder = self.memory.join(user).join(self.name);
        // An unreadable folder is empty.
        let all = entries(&folder).unwrap_or_default();
        let of_it = |entry: &DirEntry| {
            let path = entry.path();
            let what = match path.extension()?.to_str()? {
                "staging" => "staging",
                "buddy" => "buddy",
                _ => return None,
            };
            // Anybody can make files in memory: those of others are not believed.
            let file = fs::symlink_metadata(&path).ok()?;
            if !file.is_file() || file.uid() != held.owner || file.len() < STAGING_HEAD {
                return None;
            }
            let seen = Reader::open(&path).ok()?;
            let mut head = vec![0; STAGING_BLOCK];
            seen.read(0, &mut head).ok()?;
            let (identity, _) = block::unseal(BlockKind::Staging, 0, &head)?;
            let own = identity == held.arena.header().identity;
            own.then_some(StagedFile { what, path, seen })
        };
        let mut staged: Vec<StagedFile> = all.iter().filter_map(of_it).collect();
        staged.sort_by(|a, b| (b.what, &a.path).cmp(&(a.what, &b.path)));
        staged
    }
}

/// The places of a version's staged pieces.
fn waiting(version: &Version) -> impl Iterator<Item = Range<u64>> {
    let pieces = version.manifest.objects.iter().flat_map(|o| &o.pieces);
    pieces.filter_map(|p| match p.place {
        // A manifest that could be read has no piece that ends beyond all numbers.
        PieceLocation::Staged(at) => Some(at..at.saturating_add(p.length)),
        PieceLocation::Arena(_) => None,
    })
}

/// An arena that could be read.
#[derive(Debug)]
pub struct ReadableArena {
    /// Its file.
    pub path: PathBuf,
    /// Its bytes.
    pub seen: Reader,
    /// The promises of its medium.
    pub promises: Promises,
    /// Its content.
    pub arena: Arena,
    /// The owning user.
    pub owner: u32,
}

impl ReadableArena {
    /// Whether a rank has written it itself: it is no copy.
    pub fn is_own(&self) -> bool {
        self.path.extension() == Some(OsStr::new("arena"))
    }

    /// Opens one.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn open(path: PathBuf) -> Result<Self, Unreadable> {
        let medium = |source| {
            let path = path.clone();
            Unreadable::Medium { path, source }
        };
        let file = fs::symlink_metadata(&path).map_err(|source| {
            let path = path.clone();
            Unreadable::File { path, source }
        })?;
        // To open anything else may wait for ever.
        if !file.is_file() {
            return Err(Unreadable::NoFile { path });
        }
        let mapped = ReadOnlyMapping::open(&path).map_err(medium)?;
        let promises = mapped.promises();
        drop(mapped);
        let seen = Reader::open(&path).map_err(medium)?;
        let arena = Arena::open(&seen).map_err(|source| {
            let path = path.clone();
            Unreadable::Arena { path, source }
        })?;
        Ok(Self {
            path,
            seen,
            promises,
            arena,
            owner: file.uid(),
        })
    }
}

/// A file in memory that has the staged pieces of an arena.
#[derive(Debug)]
pub struct StagedFile {
    /// `staging` or `buddy`.
    pub what: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Its bytes.
    pub seen: Reader,
}

impl StagedFile {
    /// Whether it has these bytes.
    pub fn has(&self, range: &Range<u64>) -> bool {
        range.start >= STAGING_HEAD && range.end <= self.seen.size()
    }
}

fn is_folder(entry: &DirEntry) -> bool {
    entry.file_type().is_ok_and(|t| t.is_dir())
}

fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    let all: Vec<DirEntry> = fs::read_dir(folder)?
        .take(MAX_ENTRIES + 1)
        .collect::<io::Result<_>>()?;
    match all.len() > MAX_ENTRIES {
        true => Err(io::Error::other(format!(
            "it has more than {MAX_ENTRIES} entries"
        ))),
        false => Ok(all),
    }
}
