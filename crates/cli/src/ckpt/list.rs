//! `tarn ckpt ls`.

use super::shelf::{Run, Shelf};
use super::{Place, named, numbers, power_fail, word};
use crate::args::Cli;
use crate::error::CliResult;
use crate::print::{self, out, say};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use tarn_base::codes::Exit;
use tarn_base::units::Bytes;
use tarn_phx::arena::Version;
use tarn_phx::{Level, Place as Lies, VersionId};
use tarn_ports::PowerFail;

/// What this node has of a version.
pub(super) struct Row {
    pub(super) level: Level,
    /// Of the program that wrote it.
    pub(super) ranks: u32,
    /// Those that have it here.
    pub(super) here: BTreeSet<u32>,
    bytes: u64,
    staged_bytes: u64,
    /// Of those here, the ranks whose staged part is not in memory.
    gone: BTreeSet<u32>,
    /// What the weakest medium keeps without power.
    power_fail: PowerFail,
}

/// A line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    run: &'a str,
    generation: u64,
    number: u64,
    level: &'a str,
    ranks_here: usize,
    ranks: u32,
    bytes: u64,
    staged_bytes: u64,
    power_fail: &'a str,
    restorable: bool,
    why_not: Option<String>,
}

pub(super) fn ls(cli: &Cli, place: &Place, run: Option<&OsStr>) -> CliResult {
    let shelf = Shelf::open(place)?;
    let runs = match run {
        Some(name) => vec![shelf.run(name)?],
        None => shelf.runs(),
    };
    let mut volatile = false;
    let mut any = false;
    for run in runs {
        let versions = versions(&run);
        if versions.is_empty() {
            say!("`{}` has no version here that can be read", run.printable());
        }
        for ((id, _), row) in &versions {
            if !cli.json && !any {
                head()?;
            }
            any = true;
            volatile |= row.power_fail == PowerFail::Lost;
            print(cli, &run, *id, row)?;
        }
    }
    if volatile && !cli.json {
        say!(
            "the tier of what is `lost` without power is memory: only another node's copy or the external store outlives its loss, whatever the level"
        );
    }
    if !any && run.is_none() {
        say!("no checkpoints are in {}", place.tier.display());
    }
    Ok(Exit::Success)
}

fn head() -> CliResult<()> {
    out!(
        "{:<16} {:>9} {:<10} {:>11} {:>12}  {:<9}  restorable here",
        "run",
        "version",
        "level",
        "ranks here",
        "size",
        "unpowered"
    )
}

fn print(cli: &Cli, run: &Run<'_>, id: VersionId, row: &Row) -> CliResult<()> {
    let why_not = row.why_not();
    if cli.json {
        return print::json(&Line {
            schema: 1,
            run: &run.text(),
            generation: id.generation,
            number: id.number,
            level: word(row.level),
            ranks_here: row.here.len(),
            ranks: row.ranks,
            bytes: row.bytes,
            staged_bytes: row.staged_bytes,
            power_fail: power_fail(row.power_fail),
            restorable: why_not.is_none(),
            why_not,
        });
    }
    out!(
        "{:<16} {:>9} {:<10} {:>11} {:>12}  {:<9}  {}",
        run.printable(),
        named(id),
        word(row.level),
        format!("{} of {}", row.here.len(), row.ranks),
        Bytes(row.bytes),
        match (row.power_fail, row.staged_bytes) {
            (PowerFail::Lost, _) => "lost",
            (_, 0) => "kept",
            _ => "in part",
        },
        why_not.map_or("yes".into(), |why| format!("no: {why}"))
    )
}

/// What a run has here, oldest first, by version and start: two that knew nothing of each other have the same numbers. What could not be
/// read is said.
fn versions(run: &Run<'_>) -> BTreeMap<(VersionId, u128), Row> {
    let mut versions: BTreeMap<(VersionId, u128), Row> = BTreeMap::new();
    for held in run.arenas() {
        let held = match held {
            Ok(held) => held,
            Err(why) => {
                say!("warning: {}", super::printable(why.as_bytes()));
                continue;
            }
        };
        let staged = run.staged(&held);
        let header = held.arena.header();
        let fails = held.seen.promises().power_fail;
        for version in held.arena.versions() {
            let row = versions
                .entry((version.id, version.start))
                .or_insert_with(|| Row {
                    level: version.level,
                    ranks: header.ranks,
                    here: BTreeSet::new(),
                    bytes: 0,
                    staged_bytes: 0,
                    gone: BTreeSet::new(),
                    power_fail: fails,
                });
            // Whoever has copied an arena has it twice.
            if !row.here.insert(header.rank) {
                continue;
            }
            row.level = row.level.min(version.level);
            row.ranks = row.ranks.max(header.ranks);
            if fails == PowerFail::Lost {
                row.power_fail = fails;
            }
            row.bytes += version
                .manifest
                .objects
                .iter()
                .map(|o| o.size())
                .sum::<u64>();
            for range in waiting(version) {
                row.staged_bytes += range.end - range.start;
                if !staged.iter().any(|s| s.has(&range)) {
                    row.gone.insert(header.rank);
                }
            }
        }
    }
    versions
}

/// Where a version's staged pieces lie.
fn waiting(version: &Version) -> impl Iterator<Item = std::ops::Range<u64>> {
    let pieces = version.manifest.objects.iter().flat_map(|o| &o.pieces);
    pieces.filter_map(|p| match p.place {
        // A manifest that could be read has no piece that ends beyond all numbers.
        Lies::Staged(at) => Some(at..at.saturating_add(p.length)),
        Lies::Arena(_) => None,
    })
}

impl Row {
    /// Why not all ranks can be restored from what is here.
    fn why_not(&self) -> Option<String> {
        if let Some(missing) = numbers::missing(&self.here, self.ranks) {
            return Some(format!("{missing} not here"));
        }
        let gone = || format!("what is staged of {} is gone", numbers::list(&self.gone));
        (!self.gone.is_empty()).then(gone)
    }
}
