//! `tarn ckpt verify`: every byte of every copy that is here is read and compared with its checksum.

use super::version_catalog::{
    PrintableName, ReadableArena, RunCheckpoints, StagedFile, TierVersionCatalog,
};
use super::{CheckpointLocation, named, no_version, numbers, printable};
use crate::error::CliResult;
use crate::globals::Globals;
use crate::print::{self, message, out};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tarn_checkpoint::version_catalog::Unreadable;
use tarn_checkpoint_core::arena::Version;
use tarn_checkpoint_core::manifest::CHUNK;
use tarn_checkpoint_core::{ObjectPiece, PersistenceLevel, PieceLocation, VersionId};
use tarn_media::Reader;
use tarn_ports::ReadableMedium;
use tarn_types::codes::Exit;
use tarn_types::units::Bytes;

/// How often a version is read again that has changed meanwhile: a commit gives one up, de-staging moves its pieces.
const TRIES: usize = 4;
/// Damages of a rank's version that are named; further ones are counted.
const MAX_NAMED: usize = 1000;

/// Neighbouring chunks of a piece that are damaged in one file, or that no file has.
#[derive(Debug)]
struct Damage {
    key: Box<[u8]>,
    /// Of the object, its first and last byte.
    from: u64,
    to: u64,
    /// The file, and the offset in it; none: the staged data is nowhere in memory.
    at: Option<(&'static str, PathBuf, u64)>,
    /// The source that has these bytes undamaged.
    stands_in: Option<&'static str>,
}

impl Damage {
    /// Its staging file is not in memory, and nothing stands in.
    fn is_nowhere(&self) -> bool {
        self.at.is_none() && self.stands_in.is_none()
    }
}

/// The result of verifying one rank's version.
#[derive(Debug, Default)]
struct RankVerification {
    bytes: u64,
    chunks: u64,
    /// Of them, so many are damaged or lacking somewhere.
    damaged: u64,
    /// So many nowhere here as they should be.
    lost: u64,
    damages: Vec<Damage>,
    /// The last damage could not be named any more.
    more: bool,
}

/// The result of verifying a version.
#[derive(Default)]
struct VersionVerification {
    ranks: u32,
    here: BTreeSet<u32>,
    bytes: u64,
    chunks: u64,
    damaged: u64,
    lost: u64,
}

/// A line of `--json` for a damage.
#[derive(Serialize)]
struct DamageLine<'a> {
    schema: u32,
    kind: &'a str,
    run: &'a str,
    generation: u64,
    number: u64,
    rank: u32,
    key: &'a str,
    from: u64,
    to: u64,
    #[serde(rename = "in")]
    what: Option<&'a str>,
    path: Option<String>,
    at: Option<u64>,
    stands_in: Option<&'a str>,
}

/// A line of `--json` for a version.
#[derive(Serialize)]
struct VersionLine<'a> {
    schema: u32,
    kind: &'a str,
    run: &'a str,
    generation: u64,
    number: u64,
    ranks_here: usize,
    ranks: u32,
    bytes: u64,
    chunks: u64,
    damaged_chunks: u64,
    lost_chunks: u64,
    restorable: bool,
}

pub(super) fn verify(
    globals: &Globals,
    place: &CheckpointLocation,
    name: &OsStr,
    wanted: Option<VersionId>,
) -> CliResult {
    let version_catalog = TierVersionCatalog::open(place)?;
    let run = version_catalog.run(name)?;
    let mut sums: BTreeMap<VersionId, VersionVerification> = BTreeMap::new();
    let mut others = BTreeSet::new();
    let (mut whole, mut nowhere) = (true, false);
    for held in run.arenas() {
        let held = match held {
            Ok(held) => held,
            Err(why) => {
                whole = false;
                unreadable(globals, &run, &why.to_string())?;
                continue;
            }
        };
        for version in held.arena.versions() {
            if wanted.is_some_and(|id| id != version.id) {
                others.insert(version.id);
                continue;
            }
            let found = match examine(&run, &held.path, version.id) {
                Ok(Some(found)) => found,
                // It was given up since.
                Ok(None) => continue,
                Err(why) => {
                    whole = false;
                    unreadable(globals, &run, &why.to_string())?;
                    continue;
                }
            };
            whole &= found.damaged == 0;
            let rank = held.arena.header().rank;
            print_damage(globals, place, &run, version, rank, &found)?;
            nowhere |= found.damages.iter().any(Damage::is_nowhere);
            let sum = sums.entry(version.id).or_default();
            sum.ranks = sum.ranks.max(held.arena.header().ranks);
            sum.here.insert(rank);
            sum.bytes += found.bytes;
            sum.chunks += found.chunks;
            sum.damaged += found.damaged;
            sum.lost += found.lost;
        }
    }
    if wanted.is_some() && sums.is_empty() && whole {
        return Err(no_version(&run.printable(), wanted, others.into_iter()));
    }
    if sums.is_empty() {
        message!("{}", super::none_here(&run, whole));
    }
    for (id, sum) in &sums {
        conclude(globals, &run, *id, sum)?;
    }
    if nowhere {
        message!("the staged data of some ranks {}", place.is_not_in_memory());
    }
    Ok(if whole {
        Exit::Success
    } else {
        Exit::WorkflowFailed
    })
}

fn unreadable(globals: &Globals, run: &RunCheckpoints<'_>, why: &str) -> CliResult<()> {
    if globals.json {
        print::json(&serde_json::json!({
            "schema": 1, "kind": "unreadable", "run": run.text(), "why": why,
        }))
    } else {
        out!("unreadable: {}", printable(why.as_bytes()))
    }
}

/// Why a rank's version could not be verified.
#[derive(Debug, thiserror::Error)]
enum Unverified {
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error(
        "{}: version {} changes faster than it is read; verify it when the program has ended",
        .path.display(),
        named(*version)
    )]
    Changing { path: PathBuf, version: VersionId },
}

/// Reads a rank's version, again if it was changed meanwhile; none if it is no longer kept.
fn examine(
    run: &RunCheckpoints<'_>,
    path: &Path,
    id: VersionId,
) -> Result<Option<RankVerification>, Unverified> {
    for _ in 0..TRIES {
        let held = ReadableArena::open(path.to_owned())?;
        let Some(version) = held.arena.versions().iter().find(|v| v.id == id) else {
            return Ok(None);
        };
        let found = RankVerification::of(version, &held, &run.staged(&held));
        if found.damaged == 0 {
            return Ok(Some(found));
        }
        // A version that was overwritten meanwhile has another manifest, or none.
        if ReadableArena::open(path.to_owned())?
            .arena
            .versions()
            .contains(version)
        {
            return Ok(Some(found));
        }
    }
    Err(Unverified::Changing {
        path: path.to_owned(),
        version: id,
    })
}

impl RankVerification {
    fn of(version: &Version, held: &ReadableArena, staged: &[StagedFile]) -> Self {
        let mut found = Self::default();
        let mut chunk = vec![0; CHUNK as usize];
        for object in &version.manifest.objects {
            let mut from = 0;
            for piece in &object.pieces {
                found.piece(&object.key, from, piece, held, staged, &mut chunk);
                from += piece.length;
            }
            found.bytes += from;
        }
        found
    }

    fn piece(
        &mut self,
        key: &[u8],
        first: u64,
        piece: &ObjectPiece,
        held: &ReadableArena,
        staged: &[StagedFile],
        chunk: &mut [u8],
    ) {
        // The first is where the manifest says that it is; none: it is not there.
        let mut copies: Vec<Option<(&'static str, &Path, &Reader)>> = Vec::new();
        let at = match piece.place {
            PieceLocation::Arena(at) => {
                copies.push(Some(("arena", &held.path, &held.seen)));
                at
            }
            PieceLocation::Staged(at) => {
                if staged.first().is_none_or(|s| s.what != "staging") {
                    copies.push(None);
                }
                copies.extend(staged.iter().map(|s| Some((s.what, &*s.path, &s.seen))));
                at
            }
        };
        // The damage of each copy's last chunk: damage that follows it is added to it.
        let mut open: Vec<Option<usize>> = vec![None; copies.len()];
        for (number, sum) in piece.sums.iter().enumerate() {
            let begin = number as u64 * CHUNK;
            let length = (piece.length - begin).min(CHUNK);
            let bytes = &mut chunk[..length as usize];
            let good: Vec<bool> = copies
                .iter()
                .map(|copy| {
                    copy.is_some_and(|(.., seen)| {
                        seen.read(at + begin, bytes).is_ok_and(|is| is == *sum)
                    })
                })
                .collect();
            let stands_in = copies.iter().zip(&good).find(|(_, good)| **good);
            let stands_in = stands_in.and_then(|(copy, _)| copy.map(|(what, ..)| what));
            self.chunks += 1;
            self.damaged += u64::from(good.contains(&false));
            self.lost += u64::from(stands_in.is_none());
            for ((copy, good), last) in copies.iter().zip(good).zip(&mut open) {
                let damage = || Damage {
                    key: key.into(),
                    from: first + begin,
                    to: first + begin + length,
                    at: copy.map(|(what, path, _)| (what, path.to_path_buf(), at + begin)),
                    stands_in,
                };
                *last = if good {
                    None
                } else {
                    self.add(damage(), *last)
                };
            }
        }
    }

    /// Adds a damage to the one before it, or as one of its own.
    fn add(&mut self, damage: Damage, before: Option<usize>) -> Option<usize> {
        if let Some(n) = before
            && self.damages[n].stands_in == damage.stands_in
        {
            self.damages[n].to = damage.to;
            return before;
        }
        if self.damages.len() == MAX_NAMED {
            self.more = true;
            return None;
        }
        self.damages.push(damage);
        Some(self.damages.len() - 1)
    }
}

/// Prints what is damaged.
fn print_damage(
    globals: &Globals,
    place: &CheckpointLocation,
    run: &RunCheckpoints<'_>,
    version: &Version,
    rank: u32,
    found: &RankVerification,
) -> CliResult<()> {
    let id = version.id;
    for damage in &found.damages {
        let key = String::from_utf8_lossy(&damage.key);
        if globals.json {
            print::json(&DamageLine {
                schema: 1,
                kind: "damage",
                run: &run.text(),
                generation: id.generation,
                number: id.number,
                rank,
                key: &key,
                from: damage.from,
                to: damage.to,
                what: damage.at.as_ref().map(|(what, ..)| *what),
                path: damage
                    .at
                    .as_ref()
                    .map(|(_, path, _)| path.to_string_lossy().into()),
                at: damage.at.as_ref().map(|(.., at)| *at),
                stands_in: damage.stands_in,
            })?;
            continue;
        }
        let at = match &damage.at {
            Some((what, path, at)) => format!(
                "damaged in the {what} at byte {at} of {}",
                printable(path.as_os_str().as_encoded_bytes())
            ),
            None => format!(
                "its staging file is not in {}",
                printable(place.memory.as_os_str().as_encoded_bytes())
            ),
        };
        let then = match (damage.stands_in, version.level) {
            (Some(what), _) => format!("the {what} has it undamaged"),
            (None, PersistenceLevel::Replicated | PersistenceLevel::Flushed) => {
                format!(
                    "no copy is here; as it is {}, there is one elsewhere",
                    super::word(version.level)
                )
            }
            (None, _) => "no copy is here".into(),
        };
        out!(
            "version {}, rank {rank}, object `{}`, bytes {} to {}: {at}; {then}",
            named(id),
            printable(&damage.key),
            damage.from,
            damage.to
        )?;
    }
    if found.more {
        message!(
            "version {}, rank {rank}: there are more than {MAX_NAMED} damaged places; only the count of chunks has them all",
            named(id)
        );
    }
    Ok(())
}

/// Prints what was found of a version.
fn conclude(
    globals: &Globals,
    run: &RunCheckpoints<'_>,
    id: VersionId,
    sum: &VersionVerification,
) -> CliResult<()> {
    let missing = numbers::missing(&sum.here, sum.ranks);
    let restorable = missing.is_none() && sum.lost == 0;
    if globals.json {
        return print::json(&VersionLine {
            schema: 1,
            kind: "version",
            run: &run.text(),
            generation: id.generation,
            number: id.number,
            ranks_here: sum.here.len(),
            ranks: sum.ranks,
            bytes: sum.bytes,
            chunks: sum.chunks,
            damaged_chunks: sum.damaged,
            lost_chunks: sum.lost,
            restorable,
        });
    }
    let state = match (sum.damaged, sum.lost) {
        (0, _) => "all of it is whole".into(),
        (damaged, 0) => format!(
            "{damaged} of {} chunks are damaged or lacking, and copies stand in for all",
            sum.chunks
        ),
        (damaged, lost) => format!(
            "{damaged} of {} chunks are damaged or lacking, and for {lost} no copy is here",
            sum.chunks
        ),
    };
    let here = missing.map_or(String::new(), |missing| format!("; {missing} not here"));
    out!(
        "version {}: {} of {} ranks, {} read: {state}{here}",
        named(id),
        sum.here.len(),
        sum.ranks,
        Bytes(sum.bytes)
    )
}
