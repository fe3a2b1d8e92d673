//! `tarn data`: datasets on the nodes, between runs. While a run of the workflow is live, its data is its own.

mod copy;
mod delivered;
pub(crate) mod held;
pub(crate) mod missing;
mod objects;
mod put;
pub(crate) mod removal;
mod site;
mod verify;

use crate::clock::wall;
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::options::{DataCommand, DataGetArgs, DataRmArgs, DataVerifyArgs};
use crate::print::{self, message, out};
use crate::state::{self, open_catalogue};
use held::LockedVersion;
use removal::is_here;
use std::path::Path;
use tarn_journal::{Catalogue, ChangeKind, DatasetRow, StoredAt};
use tarn_types::codes::Exit;
use tarn_types::object::is_object;
use tarn_types::units::Bytes;

pub(crate) fn data(globals: &Globals, command: &DataCommand) -> CliResult {
    match command {
        DataCommand::Ls { orphans: true, .. } => site::orphans(globals, false),
        DataCommand::Ls { site, of, .. } if *site || of.is_some() || is_at_site_only(globals) => {
            site::ls(globals, of.as_deref())
        }
        DataCommand::Ls { .. } => ls(globals),
        DataCommand::Show { dataset } => site::show(globals, dataset),
        DataCommand::Grant { dataset, who } => site::grant(dataset, who, true),
        DataCommand::Revoke { dataset, who } => site::grant(dataset, who, false),
        DataCommand::Keep { dataset, time } => site::keep(dataset, time),
        DataCommand::Where { dataset } => where_is(globals, dataset),
        DataCommand::Verify(args) => verify_dataset(globals, args),
        DataCommand::Put(args) if args.object.object => objects::put(globals, args),
        DataCommand::Put(args) => put::put(globals, args),
        DataCommand::Get(args) => get(globals, args),
        DataCommand::Copy { from, to, replace } => copy::copy(from, to, *replace),
        DataCommand::Objects { store } => objects::list(globals, store.as_deref()),
        DataCommand::Versions { key, store } => objects::versions(globals, store.as_deref(), key),
        DataCommand::Rm(args) => remove(globals, args),
        DataCommand::Pin { dataset } if is_sites(globals, dataset)? => {
            site::keep(&site::named(dataset)?, "forever")
        }
        DataCommand::Pin { dataset } => pin(globals, dataset),
        DataCommand::Release { dataset } if is_sites(globals, dataset)? => {
            site::release(&site::named(dataset)?)
        }
        DataCommand::Release { dataset } => {
            let mut held = LockedVersion::find(globals, dataset)?.with_older();
            held.record(ChangeKind::KeptUntil(Some(wall())))?;
            held.remove()
        }
        DataCommand::Drain { dataset, dest, run } => drain(globals, dataset, dest, run.as_deref()),
    }
}

/// Whether a site has its controller here, and there is no state folder of runs.
fn is_at_site_only(globals: &Globals) -> bool {
    site::is_here() && state::here(globals).is_err()
}

fn verify_dataset(globals: &Globals, args: &DataVerifyArgs) -> CliResult {
    let DataVerifyArgs {
        dataset,
        run,
        number,
        site,
    } = args;
    if !*site && !is_sites(globals, dataset)? {
        return match number {
            None => verify::verify(globals, dataset, run.as_deref()),
            Some(_) => Err(CliError::new(
                Exit::Usage,
                "`--number` is of a site's datasets (`--site`)",
            )),
        };
    }
    if run.is_some() {
        return Err(CliError::new(
            Exit::Usage,
            "`--run` is of the runs here, not of a site's datasets",
        ));
    }
    site::verify(globals, &site::named(dataset)?, *number)
}

fn get(globals: &Globals, args: &DataGetArgs) -> CliResult {
    let is_object_wanted = args.object.object;
    match &args.dest {
        Some(dest) if !is_object_wanted => {
            let held = LockedVersion::find_to_read(globals, &args.dataset)?;
            let copied = held.copy_to(dest, args.run.as_deref(), false)?;
            let Some(lack) = copied.lacks else {
                return Ok(Exit::Success);
            };
            let text = lack.after_copy();
            Err(CliError::new(Exit::WorkflowFailed, text))
        }
        Some(dest) if is_object(dest) => Err(objects::outside(dest)),
        dest => {
            let which = objects::ObjectSelector {
                key: &args.dataset,
                number: args.number,
                from: args.from.as_deref(),
            };
            let store = args.object.store.as_deref();
            objects::get(globals, store, &which, dest.as_deref())
        }
    }
}

fn remove(globals: &Globals, args: &DataRmArgs) -> CliResult {
    let DataRmArgs {
        dataset,
        object,
        number,
        site,
        ..
    } = args;
    match dataset {
        Some(_) if object.object && *number == Some(0) => Err(CliError::new(
            Exit::Usage,
            "versions of objects are numbered from 1 on",
        )),
        Some(key) if object.object => objects::remove(object.store.as_deref(), key, *number),
        Some(dataset) if *site || is_sites(globals, dataset)? => {
            site::remove(&site::named(dataset)?, *number)
        }
        Some(_) if number.is_some() => Err(CliError::new(
            Exit::Usage,
            "`--number` is of objects (`--object`), and of a site's datasets (`--site`)",
        )),
        Some(dataset) => LockedVersion::find(globals, dataset)?.with_older().remove(),
        None if *site || is_at_site_only(globals) => site::orphans(globals, true),
        None => crate::run::orphans::remove(globals),
    }
}

fn pin(globals: &Globals, dataset: &str) -> CliResult {
    let mut held = LockedVersion::find(globals, dataset)?;
    if held.rows.iter().any(|r| r.is_cached(wall())) {
        let text = format!(
            "`{dataset}` is only cached: no run is to keep it, and the next one may remove it; put `keep = \"forever\"` on it in \
             the workflow file, and `tarn run` keeps it without making it again"
        );
        return Err(CliError::new(Exit::Usage, text));
    }
    // First: once it is recorded as kept, nobody may take it.
    held.uncache()?;
    held.sync()?;
    held.record(ChangeKind::KeptUntil(None))?;
    message!("{dataset} stays until `tarn data release {dataset}` or `tarn data rm {dataset}`");
    Ok(Exit::Success)
}

fn drain(globals: &Globals, dataset: &str, dest: &Path, run: Option<&str>) -> CliResult {
    let mut held = LockedVersion::find(globals, dataset)?;
    let copied = held.copy_to(dest, run, true)?;
    // Replicas that belong to no complete version were not copied: they stay.
    held.rows.retain(|r| copied.parts.contains_key(&r.key));
    // Nor does an older version stay, which would be taken for the dataset from now on.
    held.with_older().remove()
}

/// Whether a site's dataset is meant: `WORKFLOW/DATASET` is one of the runs here, if they have one of that name.
fn is_sites(globals: &Globals, name: &str) -> CliResult<bool> {
    Ok(site::is_named(name)
        && !LockedVersion::is_of_runs_here(globals, name)?
        && (state::here(globals).is_err() || site::is_known()))
}

fn place(at: &StoredAt) -> String {
    match at {
        StoredAt::Node { name, tier, .. } => format!("{name}/{tier}"),
        StoredAt::External(path) => path.display().to_string(),
        StoredAt::Drained(external) => format!("drained to {}", external.display()),
    }
}

fn kept(is_kept: bool, until: Option<u64>) -> String {
    match until {
        // Data of a run that did not end well: the next run uses or removes it.
        None if !is_kept => "next run".into(),
        Some(at) if !is_kept => format!("cache {}", left(at)),
        None => "forever".into(),
        Some(at) => left(at),
    }
}

fn left(until: u64) -> String {
    match until.saturating_sub(wall()) {
        0 => "no longer".into(),
        left => {
            tarn_types::units::Elapsed(left.saturating_mul(tarn_types::units::SECOND)).to_string()
        }
    }
}

fn ls(globals: &Globals) -> CliResult {
    let dir = state::here(globals)?;
    let catalogue = open_catalogue(&dir)?;
    let mut rows = catalogue.datasets().exit(Exit::State)?;
    leave_out_gone(&catalogue, &mut rows)?;
    if globals.json {
        for r in &rows {
            let line = serde_json::json!({
                "schema": 1, "workflow": r.workflow, "dataset": r.dataset, "version": r.version,
                "place": place(&r.at), "parts": r.parts, "bytes": r.bytes, "stored": r.stored,
                "kept": r.kept, "kept_until": r.kept_until, "cached": r.is_cached(),
            });
            print::json(&line)?;
        }
        return Ok(Exit::Success);
    }
    if rows.is_empty() {
        message!("no data is stored on the nodes");
        return Ok(Exit::Success);
    }
    out!(
        "{:<16} {:<16} {:>7} {:>6} {:>12}  {:<10} place",
        "workflow",
        "dataset",
        "version",
        "parts",
        "size",
        "kept"
    )?;
    for r in rows {
        out!(
            "{:<16} {:<16} {:>7} {:>6} {:>12}  {:<10} {}",
            r.workflow,
            r.dataset,
            r.version,
            r.parts,
            Bytes(r.bytes),
            kept(r.kept, r.kept_until),
            place(&r.at)
        )?;
    }
    Ok(Exit::Success)
}

/// Leaves out cached data that has made way since, also for a run of another workflow, and also data of a run that did not end
/// well.
fn leave_out_gone(catalogue: &Catalogue, rows: &mut Vec<DatasetRow>) -> CliResult<()> {
    let may_be_gone =
        |r: &&mut DatasetRow| !r.kept && matches!(r.at, StoredAt::Node { .. }) && is_here(&r.at);
    for row in rows.iter_mut().filter(may_be_gone) {
        let replicas = catalogue.replicas(&row.workflow, Some(&row.dataset));
        let mut gone = replicas.exit(Exit::State)?;
        gone.retain(|r| {
            r.version == row.version && r.at == row.at && !r.kept && !r.path().exists()
        });
        // Only shown, and another process may have changed the catalogue between the two queries.
        row.parts = row.parts.saturating_sub(gone.len() as u64);
        row.bytes = row.bytes.saturating_sub(gone.iter().map(|r| r.bytes).sum());
        row.stored = row
            .stored
            .saturating_sub(gone.iter().map(|r| r.stored).sum());
    }
    rows.retain(|r| r.parts > 0);
    Ok(())
}

fn where_is(globals: &Globals, dataset: &str) -> CliResult {
    let held = LockedVersion::find_to_read(globals, dataset)?;
    for r in held.of_all_versions() {
        if globals.json {
            let line = serde_json::json!({
                "schema": 1, "dataset": r.dataset, "version": r.version, "place": place(&r.at),
                "bytes": r.bytes, "path": r.path(), "key": r.key, "run": r.run,
            });
            print::json(&line)?;
        } else {
            out!(
                "{:<12} {:>12}  {:<12} {}{}",
                place(&r.at),
                Bytes(r.bytes),
                r.run,
                r.path().display(),
                held.which_version(r)
            )?;
        }
    }
    Ok(Exit::Success)
}
