//! `tarn ckpt ls`.

use super::version_catalog::{CatalogVersion, PrintableName, RunCheckpoints, TierVersionCatalog};
use super::{CheckpointLocation, named, numbers, power_fail, word};
use crate::error::{CliError, CliResult};
use crate::globals::Globals;
use crate::print::{self, message, out};
use serde::Serialize;
use std::ffi::OsStr;
use std::path::Path;
use tarn_checkpoint_core::{PersistenceLevel, VersionId};
use tarn_ports::PowerFail;
use tarn_types::codes::Exit;
use tarn_types::units::Bytes;

/// A line of `--json`.
#[derive(Serialize)]
struct CheckpointRow<'a> {
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

pub(super) fn ls(
    globals: &Globals,
    place: &CheckpointLocation,
    run: Option<&OsStr>,
    external: Option<&Path>,
) -> CliResult {
    let mut version_catalog = TierVersionCatalog::open(place)?;
    if let Some(external) = external {
        version_catalog.extend(&external.join("phx"))?;
    }
    let runs = match run {
        Some(name) => vec![version_catalog.run(name)?],
        None => version_catalog.runs(),
    };
    let mut volatile = false;
    let mut any = false;
    for run in runs {
        let mut is_readable = true;
        let mut versions = run.versions(&mut |why| {
            is_readable = false;
            message!("warning: {}", super::printable(why.to_string().as_bytes()));
        });
        if let Some(external) = external {
            run.add_flushed(external, &mut versions)
                .map_err(|why| CliError::new(Exit::NotFound, why))?;
        }
        if versions.is_empty() {
            message!("{}", super::none_here(&run, is_readable));
        }
        for ((id, _), row) in &versions {
            if !globals.json && !any {
                head()?;
            }
            any = true;
            volatile |= row.power_fail == PowerFail::Lost;
            print(globals, place, &run, *id, row)?;
        }
    }
    if volatile && !globals.json {
        message!(
            "versions that are `lost` without power are on a tier in memory: only another node's copy or the external store outlives its loss, whatever the level"
        );
    }
    if !any && run.is_none() {
        message!("no checkpoints are in {}", place.tier.display());
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

fn print(
    globals: &Globals,
    place: &CheckpointLocation,
    run: &RunCheckpoints<'_>,
    id: VersionId,
    row: &CatalogVersion,
) -> CliResult<()> {
    let why_not = why_not(place, row);
    if globals.json {
        return print::json(&CheckpointRow {
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

/// Why not all ranks can be restored from the versions here, or outside.
fn why_not(place: &CheckpointLocation, found: &CatalogVersion) -> Option<String> {
    if found.level == PersistenceLevel::Flushed {
        return None;
    }
    if let Some(missing) = numbers::missing(&found.here, found.ranks) {
        return Some(format!("{missing} not here"));
    }
    let gone = || {
        let (ranks, is_not) = (numbers::list(&found.gone), place.is_not_in_memory());
        format!("the staged data of {ranks} {is_not}")
    };
    (!found.gone.is_empty()).then(gone)
}
