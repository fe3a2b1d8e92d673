//! `tarn data`: datasets on the nodes, between runs. While a run of the workflow is live, its data is its own.

mod copy;
mod delivered;
pub(crate) mod held;
pub(crate) mod missing;
mod objects;
mod put;
mod site;
mod verify;

use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::options::DataCommand;
use crate::print::{self, out, say};
use crate::run::{open_catalogue, wall};
use crate::state;
use anyhow::Context;
use held::LockedVersion;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tarn_journal::{Catalogue, ChangeKind, DatasetRow, ReplicaChange, ReplicaRow, StoredAt};
use tarn_ports::Mover;
use tarn_types::codes::Exit;
use tarn_types::object::is_object;
use tarn_types::units::Bytes;

pub(crate) fn data(globals: &Globals, command: &DataCommand) -> CliResult {
    match command {
        DataCommand::Ls { orphans: true, .. } => site::orphans(globals, false),
        DataCommand::Ls { site, of, .. } => {
            let is_sites =
                *site || of.is_some() || site::is_here() && state::here(globals).is_err();
            match is_sites {
                true => site::ls(globals, of.as_deref()),
                false => ls(globals),
            }
        }
        DataCommand::Show { dataset } => site::show(globals, dataset),
        DataCommand::Grant { dataset, who } => site::grant(dataset, who, true),
        DataCommand::Revoke { dataset, who } => site::grant(dataset, who, false),
        DataCommand::Keep { dataset, time } => site::keep(dataset, time),
        DataCommand::Where { dataset } => where_is(globals, dataset),
        DataCommand::Verify {
            dataset,
            run,
            number,
            site,
        } => match *site || is_sites(globals, dataset)? {
            true if run.is_some() => Err(CliError::new(
                Exit::Usage,
                "`--run` is of the runs here, not of a site's datasets",
            )),
            true => site::verify(globals, &site::named(dataset)?, *number),
            false if number.is_some() => Err(CliError::new(
                Exit::Usage,
                "`--number` is of a site's datasets (`--site`)",
            )),
            false => verify::verify(globals, dataset, run.as_deref()),
        },
        DataCommand::Put {
            path,
            name,
            object,
            about,
            encrypt,
            machine,
            keep,
        } => match object.object {
            true if is_object(path) => Err(objects::outside(path)),
            true => objects::put(
                globals,
                object.store.as_deref(),
                path,
                name,
                (about, *encrypt),
            ),
            false => put::put(globals, path, name, machine.clone(), keep),
        },
        DataCommand::Get {
            dataset,
            dest,
            run,
            object,
            number,
            from,
        } => match dest {
            Some(dest) if !object.object => {
                let copied = LockedVersion::find_to_read(globals, dataset)?.copy_to(
                    dest,
                    run.as_deref(),
                    false,
                )?;
                let Some(lack) = copied.lacks else {
                    return Ok(Exit::Success);
                };
                let text = lack.after_copy();
                Err(CliError::new(Exit::WorkflowFailed, text))
            }
            Some(dest) if is_object(dest) => Err(objects::outside(dest)),
            dest => {
                let which = objects::ObjectSelector {
                    key: dataset,
                    number: *number,
                    from: from.as_deref(),
                };
                objects::get(globals, object.store.as_deref(), &which, dest.as_deref())
            }
        },
        DataCommand::Copy { from, to, replace } => copy::copy(from, to, *replace),
        DataCommand::Objects { store } => objects::list(globals, store.as_deref()),
        DataCommand::Versions { key, store } => objects::versions(globals, store.as_deref(), key),
        DataCommand::Rm {
            dataset,
            object,
            number,
            site,
            ..
        } => match dataset {
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
            None if *site || site::is_here() && state::here(globals).is_err() => {
                site::orphans(globals, true)
            }
            None => crate::run::orphans::remove(globals),
        },
        DataCommand::Pin { dataset } if is_sites(globals, dataset)? => {
            site::keep(&site::named(dataset)?, "forever")
        }
        DataCommand::Release { dataset } if is_sites(globals, dataset)? => {
            site::release(&site::named(dataset)?)
        }
        DataCommand::Pin { dataset } => {
            let mut held = LockedVersion::find(globals, dataset)?;
            if held.rows.iter().any(|r| r.is_cached(wall())) {
                let text = format!(
                    "`{dataset}` is only cached: no run is to keep it, and the next one may remove it; put `keep = \"forever\"` on it in \
                     the workflow file, and `tarn run` keeps it without making it again"
                );
                return Err(CliError::new(Exit::Usage, text));
            }
            // First: once it is said to be kept, nobody may take it.
            held.uncache()?;
            held.sync()?;
            held.record(ChangeKind::KeptUntil(None))?;
            say!("{dataset} stays until `tarn data release {dataset}` or `tarn data rm {dataset}`");
            Ok(Exit::Success)
        }
        DataCommand::Release { dataset } => {
            let mut held = LockedVersion::find(globals, dataset)?.with_older();
            held.record(ChangeKind::KeptUntil(Some(wall())))?;
            held.remove()
        }
        DataCommand::Drain { dataset, dest, run } => {
            let mut held = LockedVersion::find(globals, dataset)?;
            let copied = held.copy_to(dest, run.as_deref(), true)?;
            // What belongs to no complete version has not been copied: it stays.
            held.rows.retain(|r| copied.parts.contains_key(&r.key));
            // Nor does an older version stay, which would be taken for the dataset from now on.
            held.with_older().remove()
        }
    }
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

fn kept(asked: bool, until: Option<u64>) -> String {
    match until {
        // What a run left that did not end well: the next one uses or removes it.
        None if !asked => "next run".into(),
        Some(at) if !asked => format!("cache {}", left(at)),
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
        say!("no data is stored on the nodes");
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

/// What was cached may have made way since, for a run of another workflow too: also what a run cached that did not end well.
fn leave_out_gone(catalogue: &Catalogue, rows: &mut Vec<DatasetRow>) -> CliResult<()> {
    let may_be_gone =
        |r: &&mut DatasetRow| !r.kept && matches!(r.at, StoredAt::Node { .. }) && is_here(&r.at);
    for row in rows.iter_mut().filter(may_be_gone) {
        let replicas = catalogue.replicas(&row.workflow, Some(&row.dataset));
        let mut gone = replicas.exit(Exit::State)?;
        gone.retain(|r| {
            r.version == row.version && r.at == row.at && !r.kept && !r.path().exists()
        });
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

fn changed(row: &ReplicaRow, change: ChangeKind) -> ReplicaChange {
    ReplicaChange {
        wall: wall(),
        key: row.key.clone(),
        at: row.at.clone(),
        change,
    }
}

/// Removes replicas: first the record, then the bytes, so that nothing half removed is ever taken for data. What lies on nodes
/// that are not seen from here is only let go: the next run that has them removes it.
pub(crate) fn remove(
    catalogue: &mut Catalogue,
    rows: &[ReplicaRow],
    mover: &dyn Mover,
) -> CliResult<u64> {
    let ours = rows
        .iter()
        .filter(|r| !matches!(r.at, StoredAt::External(_)));
    let (ours, far): (Vec<_>, Vec<_>) = ours.partition(|r| is_here(&r.at));
    let let_go = far
        .iter()
        .map(|r| changed(r, ChangeKind::KeptUntil(Some(wall()))));
    let removed = ours.iter().map(|r| changed(r, ChangeKind::Removed));
    let changes: Vec<_> = removed.chain(let_go).collect();
    if !far.is_empty() {
        say!(
            "{} are stored on {}, which only a run in an allocation that has them reaches: the next `tarn run` there, or `tarn data rm --orphans`, removes them",
            Bytes(far.iter().map(|r| r.stored).sum()),
            elsewhere(far.iter().copied())
        );
    }
    catalogue.record(&changes).exit(Exit::State)?;
    erase(catalogue, &ours, mover).map_err(|e| {
        let text = format!(
            "{e}. tarn does not use the data any more; the next `tarn run`, or `tarn data rm --orphans`, removes what is left of it"
        );
        CliError::new(e.exit, text)
    })
}

/// Removes the bytes of replicas that are not recorded any more; how many these were.
fn erase(catalogue: &Catalogue, ours: &[&ReplicaRow], mover: &dyn Mover) -> CliResult<u64> {
    let mut freed: BTreeMap<(&Path, &str), u64> = BTreeMap::new();
    let mut sum = 0;
    for r in ours {
        let path = r.path();
        // What is gone already is in no ledger any more.
        let stored = match is_there(r, mover)? {
            true => r.stored,
            false => 0,
        };
        sum += stored;
        match &r.at {
            StoredAt::Node { root, .. } => {
                mover.remove(&path).exit(Exit::State)?;
                *freed.entry((root, &r.workspace)).or_default() += stored;
            }
            _ => tarn_node::remove_drained(&path, &r.workspace, mover)
                .map_err(|failure| CliError::new(Exit::State, failure.message))?,
        }
        forget_key(catalogue, r, mover)?;
    }
    for ((root, workspace), bytes) in freed {
        tarn_node::vacate(root, workspace, bytes)
            .with_context(|| format!("cannot update the ledger of the tier at {}", root.display()))
            .exit(Exit::State)?;
    }
    Ok(sum)
}

/// Whether a replica that this machine sees is there.
fn is_there(row: &ReplicaRow, mover: &dyn Mover) -> CliResult<bool> {
    tarn_node::is_there(&row.path(), &row.workspace, mover)
        .map_err(|failure| CliError::new(Exit::State, failure.message))
}

/// The key of a part that was encrypted is forgotten with its last replica.
fn forget_key(catalogue: &Catalogue, row: &ReplicaRow, mover: &dyn Mover) -> CliResult<()> {
    let all = catalogue
        .replicas(&row.workflow, Some(&row.dataset))
        .exit(Exit::State)?;
    let sealed = |r: &&ReplicaRow| !matches!(r.at, StoredAt::External(_));
    for same in all.iter().filter(sealed).filter(|r| r.key == row.key) {
        if !is_here(&same.at) || is_there(same, mover)? {
            return Ok(());
        }
    }
    let forgotten =
        tarn_node::keys::forget_key(catalogue.state(), &row.workspace, &row.dataset, &row.key);
    forgotten.map_err(|failure| CliError::new(Exit::State, failure.message))
}

/// Whether this machine sees what lies there: what is on nodes of an allocation is seen on those only.
fn is_here(at: &StoredAt) -> bool {
    match at {
        StoredAt::Node { name, machine, .. } => {
            !machine || *name == tarn_node::machine::host_name()
        }
        StoredAt::External(_) | StoredAt::Drained(_) => true,
    }
}

/// The names of the nodes that have such rows.
fn elsewhere<'a>(rows: impl Iterator<Item = &'a ReplicaRow>) -> String {
    let names = rows.filter_map(|r| match &r.at {
        StoredAt::Node { name, .. } if !is_here(&r.at) => Some(name.as_str()),
        _ => None,
    });
    names
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect::<Vec<_>>()
        .join(", ")
}

/// Removes what nobody asks to keep any more of a workflow whose lock the caller holds.
pub(crate) fn expire(
    catalogue: &mut Catalogue,
    workflow: &str,
    mover: &dyn Mover,
) -> CliResult<()> {
    let mut rows = catalogue.expired(wall()).exit(Exit::State)?;
    rows.retain(|r| r.workflow == workflow && is_here(&r.at));
    if rows.is_empty() {
        return Ok(());
    }
    let bytes = remove(catalogue, &rows, mover)?;
    print_freed(bytes, "kept no longer");
    Ok(())
}

/// Says what the removal of replicas has freed, if that is anything: those of empty parts take no room.
fn print_freed(bytes: u64, what: &str) {
    if bytes > 0 {
        say!("{} freed: {what}", Bytes(bytes));
    }
}
