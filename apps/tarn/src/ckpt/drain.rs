//! `tarn ckpt drain`: a version of a program that has ended goes to an external store, from this node's parts of it. Arenas and
//! staged data stay as they are. Nodes may do it one after the other: the store itself says which parts are there.

use super::version_catalog::{PrintableName, ReadableArena, RunCheckpoints, TierVersionCatalog};
use super::{CheckpointLocation, named, no_version, numbers, printable, version};
use crate::error::{CliError, CliResult};
use crate::globals::Globals;
use crate::print::{self, message, out};
use clap::Args;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tarn_checkpoint_core::arena::Version;
use tarn_checkpoint_core::flush::{self, Exact, Flushed};
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode, PieceLocation, VersionId};
use tarn_media::ExternalFolder;
use tarn_ports::ReadableMedium;
use tarn_types::codes::Exit;
use tarn_types::units::{Bytes, parse_rate};

/// How long whoever else publishes on the store is waited for, and how often it is tried.
const TIMEOUT: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// The program's name
    run: OsString,
    /// The version, such as 2.7 [default: the newest that this node completes there, or that all its ranks have]
    #[arg(value_parser = version)]
    version: Option<VersionId>,
    #[command(flatten)]
    place: CheckpointLocation,
    /// The program's folder on the external store
    #[arg(long, value_name = "DIR", env = "TARN_PHX_EXTERNAL")]
    to: PathBuf,
    /// Bytes a second that are written and read back, such as 200MiB/s [default: as many as the store takes]
    #[arg(long, value_parser = parse_rate)]
    rate: Option<u64>,
}

/// A version as this node has it: its ranks' arenas.
struct LocalVersion<'a> {
    ranks: u32,
    parts: BTreeMap<u32, (&'a ReadableArena, &'a Version)>,
}

pub(super) fn drain(globals: &Globals, args: &DrainArgs) -> CliResult {
    let version_catalog = TierVersionCatalog::open(&args.place)?;
    let run = version_catalog.run(&args.run)?;
    let arenas = arenas_of_ended(&run)?;
    let there = ExternalFolder::there(&args.to, Path::new(run.name));
    let before = flush::list(&there).map_err(failed)?;
    let latest = flush::latest(&there).map_err(failed)?;
    let mut here = local_versions(&arenas);
    let is_wanted = |exact: &Exact| args.version.is_none_or(|id| exact.id == id);
    let all: BTreeMap<Exact, usize> = here.iter().map(|(v, h)| (*v, h.parts.len())).collect();
    here.retain(|exact, _| is_wanted(exact));
    let is_there = |id| move |v: &&Flushed| v.is_complete() && v.version.id == id;
    let there_already = args
        .version
        .and_then(|id| before.iter().rev().find(is_there(id)));
    if here.is_empty() && there_already.is_none() {
        let all = all.keys().map(|v| v.id);
        return Err(no_version(&run.printable(), args.version, all));
    }
    here.retain(|exact, _| Some(*exact) > latest);
    let Some((exact, chosen)) = choose(&here, &before) else {
        let of_latest = || before.iter().find(|v| Some(v.version) == latest);
        return report_nothing_to_drain(
            globals,
            args,
            &run,
            there_already.or_else(of_latest),
            latest,
            &all,
        );
    };
    let store = ExternalFolder::new(&args.to, Path::new(run.name));
    let store = store.map_err(|e| failed(e.into()))?;
    let done = before.iter().find(|v| v.version == exact);
    let mut parts = done.map_or_else(BTreeSet::new, |v| v.parts.clone());
    let mut bytes = 0;
    for (rank, (held, version)) in &chosen.parts {
        if parts.insert(*rank) {
            bytes += write(&store, args, &run, held, version).map_err(failed)?;
        }
    }
    let latest = publish(&store)?;
    let there = Flushed {
        version: exact,
        ranks: chosen.ranks,
        parts,
    };
    if globals.json {
        print::json(&version_json(
            &run,
            &there,
            chosen.parts.len(),
            bytes,
            latest,
        ))?;
        return Ok(Exit::Success);
    }
    print_drained(args, &run, &there, bytes)?;
    Ok(Exit::Success)
}

/// The arenas that this node has of a program that has ended. Prints a warning for each arena that cannot be read.
fn arenas_of_ended(run: &RunCheckpoints<'_>) -> CliResult<Vec<ReadableArena>> {
    let mut arenas = Vec::new();
    for held in run.arenas() {
        match held {
            Ok(held) => arenas.push(held),
            Err(why) => message!("warning: {}", printable(why.to_string().as_bytes())),
        }
    }
    let owners: BTreeSet<u32> = arenas.iter().map(|held| held.owner).collect();
    if let Some(process) = owners.into_iter().find_map(|owner| run.process(owner)) {
        let text = format!(
            "`{}` is running (process {}): it flushes its versions itself if it is configured to; drain it when it has ended",
            run.printable(),
            printable(process.as_bytes())
        );
        return Err(CliError::new(Exit::Busy, text));
    }
    Ok(arenas)
}

/// Says how much of a version is on the store now, of which `bytes` were written.
fn print_drained(
    args: &DrainArgs,
    run: &RunCheckpoints<'_>,
    there: &Flushed,
    bytes: u64,
) -> CliResult<()> {
    out!(
        "version {} of {}: {} of {} ranks, {} written to {}; {}",
        named(there.version.id),
        run.printable(),
        there.parts.len(),
        there.ranks,
        Bytes(bytes),
        args.to.display(),
        match numbers::missing(&there.parts, there.ranks) {
            None => "all of it is there, and `latest` names it".into(),
            Some(missing) => format!("{missing} not there yet: drain it on their nodes too"),
        }
    )
}

/// The `--json` line of a version that is on the store now.
fn version_json(
    run: &RunCheckpoints<'_>,
    there: &Flushed,
    here: usize,
    bytes: u64,
    latest: Option<Exact>,
) -> Value {
    serde_json::json!({
        "schema": 1,
        "run": run.text(),
        "generation": there.version.id.generation,
        "number": there.version.id.number,
        "ranks_here": here,
        "ranks_there": there.parts.len(),
        "ranks": there.ranks,
        "bytes": bytes,
        "latest": latest == Some(there.version),
    })
}

/// The store has the requested version, or a newer one.
fn report_nothing_to_drain(
    globals: &Globals,
    args: &DrainArgs,
    run: &RunCheckpoints<'_>,
    there: Option<&Flushed>,
    latest: Option<Exact>,
    here: &BTreeMap<Exact, usize>,
) -> CliResult {
    if let (true, Some(there)) = (globals.json, there) {
        let here = here.get(&there.version).copied().unwrap_or(0);
        print::json(&version_json(run, there, here, 0, latest))?;
        return Ok(Exit::Success);
    }
    message!(
        "nothing to drain: {} has version {} already, and `latest` never goes back",
        args.to.display(),
        there.map_or(String::new(), |v| named(v.version.id))
    );
    Ok(Exit::Success)
}

/// The versions that are here, oldest first.
fn local_versions(arenas: &[ReadableArena]) -> BTreeMap<Exact, LocalVersion<'_>> {
    let mut all: BTreeMap<Exact, LocalVersion<'_>> = BTreeMap::new();
    for held in arenas {
        let header = held.arena.header();
        for version in held.arena.versions() {
            let exact = Exact {
                id: version.id,
                start: version.start,
            };
            let here = all.entry(exact).or_insert_with(|| LocalVersion {
                ranks: header.ranks,
                parts: BTreeMap::new(),
            });
            // A rank's own arena precedes copies of its versions.
            here.parts.entry(header.rank).or_insert((held, version));
        }
    }
    // A version counts only if every rank of this node has it.
    let mut ranks: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    let own = arenas.iter().filter(|held| held.is_own());
    for header in own.map(|held| held.arena.header()) {
        ranks.entry(header.ranks).or_default().insert(header.rank);
    }
    let own = |of: u32| ranks.get(&of).into_iter().flatten();
    all.retain(|_, here| own(here.ranks).all(|rank| here.parts.contains_key(rank)));
    all
}

/// The newest version that is complete there with the parts here, so that nodes which have ended with other versions come to one
/// that all have; else the newest.
fn choose<'a, 'h>(
    here: &'a BTreeMap<Exact, LocalVersion<'h>>,
    there: &[Flushed],
) -> Option<(Exact, &'a LocalVersion<'h>)> {
    let completes = |exact: &Exact, here: &LocalVersion<'_>| {
        let done = there.iter().find(|v| v.version == *exact);
        let has = |rank: u32| {
            here.parts.contains_key(&rank) || done.is_some_and(|v| v.parts.contains(&rank))
        };
        (0..here.ranks).all(has)
    };
    let mut newest = here.iter().rev();
    let best = newest.clone().find(|(exact, here)| completes(exact, here));
    let chosen = best.or_else(|| newest.next());
    chosen.map(|(exact, here)| (*exact, here))
}

/// Writes a rank's part. Staged data is read from any file in memory that has all of it.
fn write(
    store: &ExternalFolder,
    args: &DrainArgs,
    run: &RunCheckpoints<'_>,
    held: &ReadableArena,
    version: &Version,
) -> Result<u64, CheckpointError> {
    let staged = run.staged(held);
    if staged.is_empty() && !version.manifest.is_durable() {
        let text = format!(
            "the staged data of rank {}'s part of version {} {}",
            held.arena.header().rank,
            version.id,
            args.place.is_not_in_memory()
        );
        return Err(CheckpointError::new(CheckpointErrorCode::Corrupt, text));
    }
    let rate = args.rate.unwrap_or(0);
    let mut read = |place, into: &mut [u8], sum| {
        let mut has = |seen: &dyn ReadableMedium, at| seen.read(at, into).is_ok_and(|is| is == sum);
        Ok(match place {
            PieceLocation::Arena(at) => has(&held.seen, at),
            PieceLocation::Staged(at) => staged.iter().any(|s| has(&s.seen, at)),
        })
    };
    let (begun, mut moved) = (Instant::now(), 0);
    let mut meter = |bytes| {
        moved += bytes;
        let due = flush::lasts(moved, rate);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        Ok(())
    };
    flush::write(store, held.arena.header(), version, &mut read, &mut meter)
}

/// Has `latest` name the newest version that is complete.
fn publish(store: &ExternalFolder) -> CliResult<Option<Exact>> {
    let until = Instant::now() + TIMEOUT;
    loop {
        match flush::publish(store) {
            Err(fault) if fault.code == CheckpointErrorCode::Busy && Instant::now() < until => {
                std::thread::sleep(AGAIN);
            }
            published => return published.map_err(failed),
        }
    }
}

fn failed(fault: CheckpointError) -> CliError {
    let exit = match fault.code {
        CheckpointErrorCode::Corrupt => Exit::WorkflowFailed,
        CheckpointErrorCode::NotFound => Exit::NotFound,
        CheckpointErrorCode::Busy => Exit::Busy,
        _ => Exit::State,
    };
    CliError::new(exit, fault.text)
}
