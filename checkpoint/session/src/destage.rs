//! De-stages for programs that died, without a next start of them: `tarnd
//! --checkpoints` and `tarn ckpt destage`. [`tarn_checkpoint_core::rank::left`] does it and proves it, as for a
//! start; this module finds the arenas.
//!
//! Nothing here keeps a program from starting for longer than its arena takes: a rank is held for as long as
//! it takes to lock its arena, and a process that begins as this rank then waits for that lock.

use crate::settings::MEMORY;
use crate::version_catalog::VersionCatalog;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{Metadata, symlink_metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_checkpoint_core::rank::left;
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode, VersionId};
use tarn_media::{Device, Folder, Profile};
use tarn_ports::{RanksError, Vault};
use tarn_ranks::Vacant;

/// A failure is tried again after this.
const AGAIN: Duration = Duration::from_secs(60);

/// The outcome for one arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DestageOutcome {
    /// These versions are whole in it now; so many bytes of each were in memory.
    Brought(Vec<(VersionId, u64)>),
    /// Of these, memory lacks some, or it is damaged: they stay as they are, as the next start may find it on
    /// other nodes.
    Lacking(Vec<VersionId>),
    /// A process has its rank, and looks after it itself.
    Running(String),
    /// Another process is at it.
    Busy,
    /// It cannot be read or written.
    Failed(CheckpointError),
}

impl DestageOutcome {
    /// Whether it is the same as one before.
    fn is_among(&self, before: &[Self]) -> bool {
        before.iter().any(|other| match (self, other) {
            // Its text may have numbers that change.
            (Self::Failed(now), Self::Failed(before)) => now.code == before.code,
            (Self::Lacking(now), Self::Lacking(before)) => now == before,
            _ => false,
        })
    }
}

/// An arena with a version that waits in memory, or whose rank is running, and the outcome.
#[derive(Debug, Clone)]
pub struct DestagedArena {
    /// The arena.
    pub path: PathBuf,
    /// The owning rank.
    pub rank: u32,
    /// The outcome.
    pub what: DestageOutcome,
}

/// De-stages the versions that dead programs of this user have left in memory. It remembers the arenas that it has
/// read, and reads unchanged ones no more, so `tarnd --checkpoints` calls it again and again.
///
/// # Examples
/// ```
/// use tarn_checkpoint::destage::{DestageOutcome, Destager};
/// use tarn_checkpoint::{CheckpointSession, Options, Properties, StagingShare};
///
/// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let [tier, memory] = ["tier", "memory"].map(|name| folder.path().join(name));
/// let options = Options { tier: Some(tier.clone()), memory: Some(memory.clone()), ..Options::default() };
/// let mut session = CheckpointSession::begin(Options {
///     staging: Some(StagingShare::All),
///     helper: false, // nothing is de-staged in the background
///     ..options
/// })?;
/// session.create("field", 8000, 8, Properties::default())?;
/// let id = session.commit()?.id;
/// drop(session); // as if the program was killed
///
/// let mut destager = Destager::new(&tier, &memory);
/// let mut outcomes = Vec::new();
/// for run in destager.runs().unwrap() {
///     destager.run(&run, &mut |arena| outcomes.push(arena.what))?;
/// }
/// assert_eq!(outcomes, [DestageOutcome::Brought(vec![(id, 8000)])]);
/// # Ok::<(), tarn_checkpoint::CheckpointError>(())
/// ```
#[derive(Debug)]
pub struct Destager {
    tier: PathBuf,
    memory: PathBuf,
    /// Of each program the arenas that are done with.
    seen: BTreeMap<OsString, BTreeMap<String, SettledArena>>,
}

/// An arena that is done with for as long as nothing of this changes, or until then.
#[derive(Debug)]
struct SettledArena {
    stamp: u64,
    until: Option<Instant>,
    /// The reported outcomes.
    reported: Vec<DestageOutcome>,
}

/// A program's folders.
struct Places {
    run: OsString,
    tier: Folder,
    folder: PathBuf,
    /// None if memory has nothing of it.
    memory: Option<Folder>,
    meet: PathBuf,
}

impl Destager {
    /// For two folders: `tier` as programs have it on the persistent tier, `memory` as they have it in
    /// memory.
    pub fn new(tier: &Path, memory: &Path) -> Self {
        let user = rustix::process::geteuid().as_raw();
        Self {
            tier: tier.to_owned(),
            memory: memory.join(format!("{MEMORY}{user}")),
            seen: BTreeMap::new(),
        }
    }

    /// The names of all programs that have versions on the tier, those of other users too.
    ///
    /// # Errors
    /// The tier cannot be read.
    pub fn runs(&mut self) -> io::Result<Vec<OsString>> {
        let version_catalog = VersionCatalog::open(&self.tier, &self.memory)?;
        let runs: Vec<OsString> = version_catalog
            .runs()
            .iter()
            .map(|r| r.name.to_owned())
            .collect();
        self.seen.retain(|run, _| runs.contains(run));
        Ok(runs)
    }

    /// De-stages the rest of a program, rank by rank, but for ranks that are running. `report` gets the
    /// outcome of each arena; an arena that fails as before is not reported again.
    ///
    /// # Errors
    /// The program's folder cannot be used: it is another user's, or cannot be read. Errors of a single
    /// arena are a [`DestageOutcome`].
    pub fn run(
        &mut self,
        run: &OsStr,
        report: &mut dyn FnMut(DestagedArena),
    ) -> Result<(), CheckpointError> {
        let plain = Arc::new(Device::new(Profile::none()));
        let (folder, memory) = (self.tier.join("phx").join(run), self.memory.join(run));
        // A user that may write above it could put another folder into its place.
        let there = Folder::there(&self.memory, Arc::clone(&plain));
        let there = there.and_then(|_| Folder::there(&memory, Arc::clone(&plain)));
        let places = Places {
            run: run.to_owned(),
            tier: Folder::there(&folder, plain)?,
            folder,
            memory: there.ok(),
            meet: memory.join("meet"),
        };
        let staged = stamp_of_memory(&memory, places.memory.as_ref())?;
        let mut before = self.seen.remove(run).unwrap_or_default();
        let mut now = BTreeMap::new();
        for name in places.tier.list()? {
            let Some(rank) = left::rank_of(&name) else {
                continue;
            };
            let path = places.folder.join(&name);
            let stamp = places.stamp(&path, rank, staged);
            let same = |seen: &SettledArena| {
                seen.stamp == stamp && seen.until.is_none_or(|until| Instant::now() < until)
            };
            let seen = before.remove(&name);
            let reported = match seen {
                Some(seen) if same(&seen) => {
                    now.insert(name, seen);
                    continue;
                }
                seen => seen.map_or_else(Vec::new, |seen| seen.reported),
            };
            let all = places.arena(&name, rank);
            let all = all.unwrap_or_else(|fault| match fault.code {
                CheckpointErrorCode::Busy => vec![DestageOutcome::Busy],
                // A start has made another of it.
                CheckpointErrorCode::NotFound => Vec::new(),
                _ => vec![DestageOutcome::Failed(fault)],
            });
            let again = |what: &DestageOutcome| {
                matches!(what, DestageOutcome::Running(_) | DestageOutcome::Busy)
            };
            let failed = |what: &DestageOutcome| matches!(what, DestageOutcome::Failed(_));
            for what in all.iter().filter(|what| !what.is_among(&reported)) {
                let (path, what) = (path.clone(), what.clone());
                report(DestagedArena { path, rank, what });
            }
            if !all.iter().any(again) {
                let until = all.iter().any(failed).then(|| Instant::now() + AGAIN);
                let reported = all;
                now.insert(
                    name,
                    SettledArena {
                        stamp,
                        until,
                        reported,
                    },
                );
            }
        }
        self.seen.insert(run.to_owned(), now);
        Ok(())
    }
}

impl Places {
    /// Changes when a process has been this rank, or when there is something else to be done with its arena.
    fn stamp(&self, arena: &Path, rank: u32, staged: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        let file = |path: &Path| symlink_metadata(path).ok();
        // Not the time of its last write: for writes through a mapping this is not known everywhere.
        file(arena).map(|m| (m.ino(), m.len())).hash(&mut hasher);
        let lock = self.meet.join(format!("{rank}.lock"));
        file(&lock).map(|m| of(&m)).hash(&mut hasher);
        staged.hash(&mut hasher);
        hasher.finish()
    }

    /// De-stages the waiting versions of an arena, and gives the memory back that nobody needs then.
    fn arena(&self, name: &str, rank: u32) -> Result<Vec<DestageOutcome>, CheckpointError> {
        let lacking = |ids: Vec<VersionId>| match &ids[..] {
            [] => Vec::new(),
            _ => vec![DestageOutcome::Lacking(ids)],
        };
        let running = |e| match e {
            RanksError::Taken { who } => Ok(vec![DestageOutcome::Running(who)]),
            other => Err(CheckpointError::from(other)),
        };
        if self.memory.is_some()
            && let Err(e) = self.vacant(rank)
        {
            return running(e);
        }
        let (_, arena) = left::look(&self.tier, name)?;
        let header = arena.header();
        if *header.run != *self.run.as_bytes() || header.rank != rank {
            return Ok(Vec::new());
        }
        let waiting: Vec<VersionId> = left::waiting(&arena).map(|v| v.id).collect();
        let Some(memory) = &self.memory else {
            return Ok(lacking(waiting));
        };
        let mut done = Vec::new();
        if !waiting.is_empty() {
            let vacant = match self.vacant(rank) {
                Ok(vacant) => vacant,
                Err(e) => return running(e),
            };
            // It is held no longer than it takes to lock the arena, however large that is.
            let mut medium = self.tier.open(name)?;
            // A process that begins as this rank from now on waits for the arena.
            drop(vacant);
            let destaged = left::destage(&mut medium, memory)?;
            drop(medium);
            if !destaged.brought.is_empty() {
                done.push(DestageOutcome::Brought(destaged.brought));
            }
            if !destaged.lacking.is_empty() {
                done.extend(lacking(destaged.lacking));
                return Ok(done);
            }
        }
        // A process that has begun meanwhile does it.
        if let Ok(vacant) = self.vacant(rank) {
            let own = left::give_back(&self.tier, name, memory)?;
            drop(vacant);
            drop(own);
        }
        Ok(done)
    }

    fn vacant(&self, rank: u32) -> Result<Vacant, RanksError> {
        Vacant::take(&self.meet, rank)
    }
}

/// Changes with the files of a program in memory.
fn stamp_of_memory(path: &Path, memory: Option<&Folder>) -> Result<u64, CheckpointError> {
    let mut hasher = DefaultHasher::new();
    let names = memory.map_or_else(|| Ok(Vec::new()), Vault::list)?;
    // The files by which ranks meet are in a folder of their own.
    for name in names.iter().filter(|name| !name.contains('/')) {
        name.hash(&mut hasher);
        let meta = symlink_metadata(path.join(name)).ok();
        meta.map(|m| of(&m)).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn of(meta: &Metadata) -> (u64, u64, i64, i64) {
    (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec())
}
