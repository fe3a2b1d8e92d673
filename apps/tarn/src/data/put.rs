//! `tarn data put`: a folder becomes a dataset of its own on a tier, and stays there for the requested time.

use super::removal::{change_of, is_here, print_freed, remove_replicas};
use crate::clock::wall;
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::mover::trees;
use crate::options::{DataPutArgs, MachineArgs, RunArgs, VerifyArg};
use crate::print::message;
use crate::run::files::RunFiles;
use crate::state::{self, open_catalogue};
use crate::{cluster, workflow};
use anyhow::Context;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use tarn_journal::{Catalogue, ChangeKind, ReplicaRow, RunLock, StoredAt, runs};
use tarn_ports::{Control, Mover, MoverError};
use tarn_spec::Parsed;
use tarn_types::codes::Exit;
use tarn_types::event::RunErrorKind;
use tarn_types::id::DataId;
use tarn_types::layout::StateDir;
use tarn_types::manifest::Manifest;
use tarn_types::merge::merge;
use tarn_types::object::is_object;
use tarn_types::part::StoreKey;
use tarn_types::policy::{Order, Policy};
use tarn_types::units::SECOND;
use tarn_types::workflow::Keep;

/// Stages a folder into a tier as a workflow of one step that does nothing but need it.
pub(super) fn put(globals: &Globals, args: &DataPutArgs) -> CliResult {
    let DataPutArgs {
        path,
        name,
        machine,
        keep,
        ..
    } = args;
    let source = if is_object(path) {
        path.to_path_buf()
    } else {
        path.canonicalize()
            .with_context(|| format!("cannot read {}", path.display()))
            .exit(Exit::NotFound)?
    };
    let folder = std::env::current_dir().exit(Exit::State)?;
    let parsed = as_workflow(&source, name, keep, &folder)?;
    let dir = state::beside(globals, &folder)?;
    if is_there_already(&dir, &parsed, &source, machine)? {
        message!(
            "{} is already stored there as `{name}`, unchanged",
            path.display()
        );
        return Ok(Exit::Success);
    }
    let args = RunArgs {
        workflow: Vec::new(),
        machine: machine.clone(),
        policy: Policy::new(Order::Data, None),
        verify: VerifyArg::Copy,
        cache: 0,
        fail_fast: false,
        report: None,
        margin: crate::options::MARGIN,
    };
    let exit = crate::run::start(globals, &parsed, RunFiles::default(), &dir, &args)?;
    if exit == Exit::Success {
        replace_older(&dir, &parsed.workflow.name)?;
    }
    Ok(exit)
}

fn as_workflow(source: &Path, name: &str, keep: &str, folder: &Path) -> CliResult<Parsed> {
    let quoted = toml_string(source)?;
    // A step that an earlier run has done needs no data, and would bring none: each call has a step of its own.
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let call = now.map_or(0, |since| since.as_nanos());
    let text = format!(
        "name = \"put-{name}\"\n[data.{name}]\nsource = {quoted}\nkeep = \"{keep}\"\n[[step]]\nname = \"put\"\nrun = \"true # {call} {}\"\nin = [\"{name}\"]\n",
        std::process::id()
    );
    let mut parsed =
        tarn_spec::parse("tarn data put", &text, folder).map_err(workflow::rejected)?;
    parsed.finish_codes(&|_| None);
    let keeps = parsed.workflow.data.iter().map(|d| d.keep);
    if keeps
        .into_iter()
        .any(|k| matches!(k, Keep::UntilConsumed | Keep::Workflow))
    {
        let text = format!(
            "--keep {keep} would remove `{name}` as soon as it is there: give a time such as 7d, or `forever`"
        );
        return Err(CliError::new(Exit::Usage, text));
    }
    Ok(parsed)
}

/// Whether the newest call has put just this there, and all of it is there still, on tiers that this call would use. Then it is kept
/// from now on as this call says. Both are read: that a file looks as it did says little of a folder that people write to.
fn is_there_already(
    state: &StateDir,
    parsed: &Parsed,
    source: &Path,
    machine: &MachineArgs,
) -> CliResult<bool> {
    let is_elsewhere = !machine.local
        && tarn_slurm::SlurmAllocation::here()
            .exit(Exit::State)?
            .is_some();
    let name = &parsed.workflow.name;
    if is_elsewhere || is_object(source) || !state.0.is_dir() {
        return Ok(false);
    }
    // If the lock is taken, a run is active: the new run reports that itself.
    let Ok(_lock) = RunLock::take(&state.lock(name)) else {
        return Ok(false);
    };
    let mut catalogue = open_catalogue(state)?;
    let rows = catalogue.replicas(name, None).exit(Exit::State)?;
    if rows.is_empty() {
        return Ok(false);
    }
    let cluster = cluster::discover(machine, state)?;
    let tiers = cluster.nodes.iter().flat_map(|n| &n.tiers);
    let roots: BTreeSet<&PathBuf> = tiers.map(|t| &t.root).collect();
    let is_of_use = |r: &&ReplicaRow| {
        let is_at = matches!(&r.at, StoredAt::Node { root, .. } if roots.contains(root));
        is_at && is_here(&r.at) && r.is_kept(wall())
    };
    let useful: Vec<&ReplicaRow> = rows.iter().filter(is_of_use).collect();
    let Some(there) = newest_put(state, name, &useful)? else {
        return Ok(false);
    };
    if !holds_the_same(state, source, &there) {
        return Ok(false);
    }
    let keep = parsed.workflow.data.first().map(|d| d.keep);
    let until = match keep {
        Some(Keep::For(nanos)) => Some(wall().saturating_add(nanos.div_ceil(SECOND))),
        _ => None,
    };
    let changes: Vec<_> = there
        .iter()
        .map(|r| change_of(r, ChangeKind::KeptUntil(until)))
        .collect();
    catalogue.record(&changes).exit(Exit::State)?;
    let keys: BTreeSet<StoreKey> = there.iter().map(|r| r.key.clone()).collect();
    remove_others(&mut catalogue, name, &keys)?;
    Ok(true)
}

/// The replicas that the newest run has put, one of each part; none if any part lacks one.
fn newest_put<'a>(
    state: &StateDir,
    workflow: &str,
    useful: &[&'a ReplicaRow],
) -> CliResult<Option<Vec<&'a ReplicaRow>>> {
    let Some(newest) = runs::newest(state, Some(workflow)).exit(Exit::State)? else {
        return Ok(None);
    };
    let history = runs::history(state, &newest.name).exit(Exit::State)?;
    if !history.is_sealed(DataId(0), 0) {
        return Ok(None);
    }
    let parts = history.parts_of(DataId(0), 0);
    let keys: BTreeSet<&StoreKey> = parts.map(|(_, info)| &info.key).collect();
    let found = keys
        .iter()
        .map(|key| useful.iter().find(|r| r.key == **key).copied());
    let all: Option<Vec<_>> = found.collect();
    Ok(all.filter(|all| !all.is_empty()))
}

/// Whether replicas are whole, and together equal the source now. An unreadable one does not.
fn holds_the_same(state: &StateDir, source: &Path, rows: &[&ReplicaRow]) -> bool {
    let (mover, control) = (trees(), Control::default());
    let read = || -> Result<bool, MoverError> {
        let mut manifests = Vec::new();
        for row in rows {
            let manifest = std::fs::read(state.manifest(&row.workspace, &row.key)).ok();
            let Some(manifest) = manifest.and_then(|b| Manifest::decode(&b).ok()) else {
                return Ok(false);
            };
            mover.verify(&row.path(), &manifest, &control)?;
            manifests.push(manifest);
        }
        let merged = merge(&manifests.iter().collect::<Vec<_>>())
            .map_err(|c| MoverError::new(RunErrorKind::Conflict, c.to_string()))?;
        Ok(mover.digest(source, &control)?.hash() == merged.hash())
    };
    read().unwrap_or(false)
}

/// A new `put` replaces the data that an earlier one put under its name.
fn replace_older(state: &StateDir, workflow: &str) -> CliResult<()> {
    // Another `put` that has the lock does the same.
    let Ok(_lock) = RunLock::take(&state.lock(workflow)) else {
        return Ok(());
    };
    let Some(newest) = runs::newest(state, Some(workflow)).exit(Exit::State)? else {
        return Ok(());
    };
    let history = runs::history(state, &newest.name).exit(Exit::State)?;
    let parts = history.parts.values();
    let now: BTreeSet<StoreKey> = parts.map(|info| info.key.clone()).collect();
    // A run that brought nothing takes the place of nothing.
    if !now.is_empty() {
        remove_others(&mut open_catalogue(state)?, workflow, &now)?;
    }
    Ok(())
}

/// Removes what was put under a name, but for these parts.
fn remove_others(
    catalogue: &mut Catalogue,
    workflow: &str,
    now: &BTreeSet<StoreKey>,
) -> CliResult<()> {
    let mut older = catalogue.replicas(workflow, None).exit(Exit::State)?;
    older.retain(|r| !now.contains(&r.key));
    if !older.is_empty() {
        let bytes = remove_replicas(catalogue, &older, &trees())?;
        print_freed(bytes, "put there before under this name");
    }
    Ok(())
}

fn toml_string(path: &Path) -> CliResult<String> {
    let text = path.to_str().ok_or_else(|| {
        CliError::new(
            Exit::Usage,
            format!(
                "{} is not UTF-8 and cannot stand in a workflow",
                path.display()
            ),
        )
    })?;
    serde_json::to_string(text).exit(Exit::Usage)
}
