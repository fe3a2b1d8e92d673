//! What lies where: `<tier>/phx/<run>/<generation>/<rank>.arena`, and in memory `<memory>/tarn-phx-<uid>/<run>/` with the staged parts
//! of these (`.staging`) and of buddies' (`.buddy`). Names only lead there: whose a file is says its header.

use super::{Place, printable};
use crate::error::{CliError, CliResult};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry, File};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tarn_base::codes::Exit;
use tarn_media::Seen;
use tarn_phx::block::{self, Kind};
use tarn_phx::{Arena, ArenaError};
use tarn_ports::Stored;

/// Entries of a folder that are looked at.
const MAX_ENTRIES: usize = 1 << 16;
/// How often an arena is looked at whose superblocks are both written while they are read.
const OPENS: usize = 8;
/// Bytes of a process id that are read.
const MAX_ID: u64 = 32;
/// Bytes of a staging file's first block.
const STAGING_BLOCK: usize = 4 << 10;
/// Where what is staged begins in its file.
pub(super) const STAGING_HEAD: u64 = 64 << 10;

/// The checkpoints of a tier.
pub(super) struct Shelf<'a> {
    place: &'a Place,
    runs: Vec<OsString>,
}

impl<'a> Shelf<'a> {
    pub(super) fn open(place: &'a Place) -> CliResult<Self> {
        let unreadable = |e: io::Error| {
            CliError::new(
                Exit::NotFound,
                format!(
                    "cannot read {}: {e}; --tier is the folder on the persistent tier that the program was told",
                    place.tier.display()
                ),
            )
        };
        let runs = match entries(&place.tier.join("phx")) {
            Ok(all) => all,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // Nobody has kept anything there yet; if it is a folder at all.
                fs::read_dir(&place.tier).map_err(unreadable)?;
                Vec::new()
            }
            Err(e) => return Err(unreadable(e)),
        };
        let mut runs: Vec<OsString> = runs
            .iter()
            .filter(|e| is_folder(e))
            .map(DirEntry::file_name)
            .collect();
        runs.sort();
        Ok(Self { place, runs })
    }

    /// The programs of another folder too.
    pub(super) fn extend(&mut self, folder: &Path) -> CliResult<()> {
        match entries(folder) {
            Ok(all) => {
                let names = all.iter().filter(|e| is_folder(e)).map(DirEntry::file_name);
                self.runs.extend(names);
                self.runs.sort();
                self.runs.dedup();
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => {
                let text = format!("cannot read {}: {e}", folder.display());
                Err(CliError::new(Exit::NotFound, text))
            }
        }
    }

    pub(super) fn runs(&self) -> Vec<Run<'_>> {
        self.runs.iter().map(|name| self.at(name)).collect()
    }

    pub(super) fn run(&self, name: &OsStr) -> CliResult<Run<'_>> {
        if let Some(name) = self.runs.iter().find(|r| *r == name) {
            return Ok(self.at(name));
        }
        let there: Vec<String> = self.runs.iter().map(|r| printable(r.as_bytes())).collect();
        let list = match &there[..] {
            [] => "no program has any there".into(),
            some => format!("there are those of {}", some.join(", ")),
        };
        Err(CliError::new(
            Exit::NotFound,
            format!(
                "{} has no checkpoints of `{}`: {list}",
                self.place.tier.display(),
                printable(name.as_bytes())
            ),
        ))
    }

    fn at<'s>(&'s self, name: &'s OsStr) -> Run<'s> {
        Run {
            name,
            place: self.place,
        }
    }
}

/// A program's checkpoints.
pub(super) struct Run<'a> {
    name: &'a OsStr,
    place: &'a Place,
}

impl Run<'_> {
    /// The folder of its name.
    pub(super) fn name(&self) -> &Path {
        Path::new(self.name)
    }

    /// Its name, as text that may be printed in JSON.
    pub(super) fn text(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    /// Its name in a line of a table.
    pub(super) fn printable(&self) -> String {
        printable(self.name.as_bytes())
    }

    /// Its arenas, in the order of generations and ranks, and why what looks like one could not be read.
    pub(super) fn arenas(&self) -> impl Iterator<Item = Result<Held, String>> {
        let (files, unreadable) = self.files();
        let failed = unreadable.into_iter().map(Err);
        failed.chain(files.into_iter().map(Held::open))
    }

    fn files(&self) -> (Vec<PathBuf>, Vec<String>) {
        let folder = self.place.tier.join("phx").join(self.name);
        let mut unreadable = Vec::new();
        let mut numbered = |folder: &Path, suffix: &str| {
            let all = entries(folder).unwrap_or_else(|e| {
                if e.kind() != io::ErrorKind::NotFound {
                    unreadable.push(format!("cannot read {}: {e}", folder.display()));
                }
                Vec::new()
            });
            let number = |entry: &DirEntry| -> Option<u64> {
                let name = entry.file_name();
                name.to_str()?.strip_suffix(suffix)?.parse().ok()
            };
            let mut numbered: Vec<(u64, PathBuf)> = all
                .iter()
                .filter_map(|e| Some((number(e)?, e.path())))
                .collect();
            numbered.sort();
            numbered
        };
        let generations = numbered(&folder, "");
        let files: Vec<PathBuf> = generations
            .into_iter()
            .flat_map(|(_, folder)| numbered(&folder, ".arena"))
            .map(|(_, path)| path)
            .collect();
        (files, unreadable)
    }

    /// The process that is a rank of the program on this node, if it is running as this user.
    pub(super) fn process(&self, owner: u32) -> Option<String> {
        let user = format!("tarn-phx-{owner}");
        let folder = self.place.memory.join(user).join(self.name).join("meet");
        // What cannot be read is nobody's.
        let all = entries(&folder).unwrap_or_default();
        let locks = all.iter().map(DirEntry::path);
        let mut locks = locks.filter(|path| path.extension() == Some(OsStr::new("lock")));
        locks.find_map(|path| {
            let file = fs::symlink_metadata(&path).ok()?.is_file();
            let mut lock = File::open(&path).ok().filter(|_| file)?;
            // Whoever begins meanwhile tries again.
            match flock(&lock, FlockOperation::NonBlockingLockShared) {
                Err(Errno::WOULDBLOCK) => {
                    let mut id = String::new();
                    lock.by_ref().take(MAX_ID).read_to_string(&mut id).ok();
                    Some(id)
                }
                _ => None,
            }
        })
    }

    /// What memory has of an arena's staged pieces, the rank's own first.
    pub(super) fn staged(&self, held: &Held) -> Vec<Staged> {
        let user = format!("tarn-phx-{}", held.owner);
        let folder = self.place.memory.join(user).join(self.name);
        // What cannot be read is not there.
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
            let seen = Seen::open(&path).ok()?;
            let mut head = vec![0; STAGING_BLOCK];
            seen.read(0, &mut head).ok()?;
            let (identity, _) = block::unseal(Kind::Staging, 0, &head)?;
            let own = identity == held.arena.header().identity;
            own.then_some(Staged { what, path, seen })
        };
        let mut staged: Vec<Staged> = all.iter().filter_map(of_it).collect();
        staged.sort_by(|a, b| (b.what, &a.path).cmp(&(a.what, &b.path)));
        staged
    }
}

/// An arena that could be read.
pub(super) struct Held {
    pub(super) path: PathBuf,
    pub(super) seen: Seen,
    pub(super) arena: Arena,
    pub(super) owner: u32,
}

impl Held {
    pub(super) fn open(path: PathBuf) -> Result<Self, String> {
        let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let file = fs::symlink_metadata(&path).map_err(|e| failed(&e))?;
        // To open anything else may wait for ever.
        if !file.is_file() {
            return Err(failed(&"this is no file"));
        }
        let seen = Seen::open(&path).map_err(|e| failed(&e))?;
        let mut arena = Arena::open(&seen);
        for _ in 1..OPENS {
            if !matches!(arena, Err(ArenaError::Damaged)) {
                break;
            }
            arena = Arena::open(&seen);
        }
        let arena = arena.map_err(|e| failed(&e))?;
        Ok(Self {
            path,
            seen,
            arena,
            owner: file.uid(),
        })
    }
}

/// A file in memory that has the staged pieces of an arena.
pub(super) struct Staged {
    /// `staging` or `buddy`.
    pub(super) what: &'static str,
    pub(super) path: PathBuf,
    pub(super) seen: Seen,
}

impl Staged {
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
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
