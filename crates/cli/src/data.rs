//! `tarn data`: datasets on the nodes, between runs. While a run of the workflow is live, its data is its own.

use crate::args::{Cli, DataCommand, PolicyArg, RunArgs, VerifyArg};
use crate::error::{CliError, CliResult, ExitWith};
use crate::run::{open_catalogue, wall};
use crate::{state, workflow};
use anyhow::Context;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tarn_base::codes::Exit;
use tarn_base::layout::StateDir;
use tarn_base::manifest::Manifest;
use tarn_base::part::{StoreKey, Verify};
use tarn_base::units::Bytes;
use tarn_journal::{Catalogue, Change, ChangeKind, ReplicaRow, RunLock, StoredAt};
use tarn_movers::Trees;
use tarn_ports::{Control, CopyJob, CopySource, Mover};

pub(crate) fn data(cli: &Cli, command: &DataCommand) -> CliResult {
    match command {
        DataCommand::Ls => ls(cli),
        DataCommand::Where { dataset } => where_is(cli, dataset),
        DataCommand::Put {
            path,
            name,
            machine,
            keep,
        } => put(cli, path, name, machine.clone(), keep),
        DataCommand::Get { dataset, dest } => {
            let held = Held::find(cli, dataset)?;
            held.copy_to(dest, Verify::Copy)?;
            Ok(Exit::Success)
        }
        DataCommand::Rm { dataset } => {
            let mut held = Held::find(cli, dataset)?;
            held.remove()
        }
        DataCommand::Pin { dataset } => {
            let mut held = Held::find(cli, dataset)?;
            held.record(ChangeKind::KeptUntil(None))?;
            eprintln!(
                "{dataset} stays until `tarn data release {dataset}` or `tarn data rm {dataset}`"
            );
            Ok(Exit::Success)
        }
        DataCommand::Release { dataset } => {
            let mut held = Held::find(cli, dataset)?;
            held.record(ChangeKind::KeptUntil(Some(wall())))?;
            held.remove()
        }
        DataCommand::Drain { dataset, dest } => {
            let mut held = Held::find(cli, dataset)?;
            held.copy_to(dest, Verify::Readback)?;
            held.remove()
        }
    }
}

fn place(at: &StoredAt) -> String {
    match at {
        StoredAt::Node { name, tier, .. } => format!("{name}/{tier}"),
        StoredAt::External(path) => path.display().to_string(),
        StoredAt::Drained(external) => format!("drained to {}", external.display()),
    }
}

fn kept(until: Option<u64>) -> String {
    match until {
        None => "forever".into(),
        Some(at) => match at.saturating_sub(wall()) {
            0 => "no longer".into(),
            left => {
                tarn_base::units::Elapsed(left.saturating_mul(tarn_base::units::SECOND)).to_string()
            }
        },
    }
}

fn ls(cli: &Cli) -> CliResult {
    let dir = state::here(cli)?;
    let rows = open_catalogue(&dir)?.datasets().exit(Exit::State)?;
    if cli.json {
        for r in &rows {
            let line = serde_json::json!({
                "schema": 1, "workflow": r.workflow, "dataset": r.dataset, "version": r.version,
                "place": place(&r.at), "parts": r.parts, "bytes": r.bytes, "stored": r.stored,
                "kept_until": r.kept_until,
            });
            println!("{line}");
        }
        return Ok(Exit::Success);
    }
    if rows.is_empty() {
        eprintln!("no data lies on the nodes");
        return Ok(Exit::Success);
    }
    println!(
        "{:<16} {:<16} {:>7} {:>6} {:>12}  {:<10} place",
        "workflow", "dataset", "version", "parts", "size", "kept"
    );
    for r in rows {
        println!(
            "{:<16} {:<16} {:>7} {:>6} {:>12}  {:<10} {}",
            r.workflow,
            r.dataset,
            r.version,
            r.parts,
            Bytes(r.bytes),
            kept(r.kept_until),
            place(&r.at)
        );
    }
    Ok(Exit::Success)
}

fn where_is(cli: &Cli, dataset: &str) -> CliResult {
    let held = Held::find(cli, dataset)?;
    for r in &held.rows {
        if cli.json {
            let line = serde_json::json!({
                "schema": 1, "dataset": r.dataset, "version": r.version, "place": place(&r.at),
                "bytes": r.bytes, "path": r.path(), "key": r.key, "run": r.run,
            });
            println!("{line}");
        } else {
            println!(
                "{:<12} {:>12}  {}",
                place(&r.at),
                Bytes(r.bytes),
                r.path().display()
            );
        }
    }
    Ok(Exit::Success)
}

/// Stages a folder into a tier as a workflow of one step that does nothing but need it.
fn put(
    cli: &Cli,
    path: &Path,
    name: &str,
    machine: crate::args::MachineArgs,
    keep: &str,
) -> CliResult {
    let source = path
        .canonicalize()
        .with_context(|| format!("cannot read {}", path.display()))
        .exit(Exit::NotFound)?;
    let quoted = toml_string(&source)?;
    let text = format!(
        "name = \"put-{name}\"\n[data.{name}]\nsource = {quoted}\nkeep = \"{keep}\"\n[[step]]\nname = \"put\"\nrun = \"true\"\nin = [\"{name}\"]\n"
    );
    let folder = std::env::current_dir().exit(Exit::State)?;
    let mut parsed =
        tarn_flow::parse("tarn data put", &text, &folder).map_err(workflow::rejected)?;
    parsed.finish_codes(&|_| None);
    let dir = state::beside(cli, &folder.join("put"))?;
    let args = RunArgs {
        workflow: PathBuf::new(),
        machine,
        policy: PolicyArg::Data,
        verify: VerifyArg::Copy,
        report: None,
    };
    crate::run::start(cli, &parsed, &dir, &args)
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

/// The newest version of a dataset on the nodes, locked against runs of its workflow.
struct Held {
    state: StateDir,
    catalogue: Catalogue,
    rows: Vec<ReplicaRow>,
    _lock: RunLock,
}

impl Held {
    fn find(cli: &Cli, dataset: &str) -> CliResult<Self> {
        let state = state::here(cli)?;
        let catalogue = open_catalogue(&state)?;
        let known = catalogue.datasets().exit(Exit::State)?;
        let mut named = known.iter().filter(|r| r.dataset == dataset);
        let Some(first) = named.next() else {
            let mut names: Vec<_> = known.iter().map(|r| r.dataset.as_str()).collect();
            names.dedup();
            let there = if names.is_empty() {
                "nothing".into()
            } else {
                names.join(", ")
            };
            return Err(CliError::new(
                Exit::NotFound,
                format!("no replica of `{dataset}` lies on the nodes; there: {there}"),
            ));
        };
        if let Some(other) = named.find(|r| r.workflow != first.workflow) {
            return Err(CliError::new(
                Exit::Usage,
                format!(
                    "both {} and {} have a dataset `{dataset}`; use separate state folders",
                    first.workflow, other.workflow
                ),
            ));
        }
        let lock = RunLock::take(&state.lock(&first.workflow)).exit(Exit::Busy)?;
        let all = catalogue
            .replicas(&first.workflow, Some(dataset))
            .exit(Exit::State)?;
        let newest = all.iter().map(|r| r.version).max().unwrap_or(0);
        let rows = all.into_iter().filter(|r| r.version == newest).collect();
        Ok(Self {
            state,
            catalogue,
            rows,
            _lock: lock,
        })
    }

    /// One replica of each part, with its manifest.
    fn parts(&self) -> CliResult<Vec<(PathBuf, Manifest)>> {
        let one: BTreeMap<&StoreKey, &ReplicaRow> = self.rows.iter().map(|r| (&r.key, r)).collect();
        let read = |r: &&ReplicaRow| {
            let path = self.state.manifest(&r.key);
            let bytes = std::fs::read(&path)
                .with_context(|| format!("cannot read the manifest {}", path.display()))
                .exit(Exit::State)?;
            Ok((r.path(), Manifest::decode(&bytes).exit(Exit::State)?))
        };
        one.values().map(read).collect()
    }

    fn copy_to(&self, dest: &Path, verify: Verify) -> CliResult<()> {
        let dest = std::path::absolute(dest).exit(Exit::Usage)?;
        if dest.exists() {
            return Err(CliError::new(
                Exit::Usage,
                format!("{} exists already; choose another place", dest.display()),
            ));
        }
        let source = |(root, manifest): (PathBuf, Manifest)| CopySource {
            root,
            as_entry: None,
            manifest: Some(manifest),
            only: None,
        };
        let mut staging = dest.clone().into_os_string();
        staging.push(".tarn-incoming");
        let job = CopyJob {
            sources: self.parts()?.into_iter().map(source).collect(),
            dest: dest.clone(),
            staging: staging.into(),
            replace: false,
            verify,
            sync: true,
            rate: 0,
            latency: 0,
        };
        let report = Trees::new()
            .copy(&job, &Control::default())
            .exit(Exit::WorkflowFailed)?;
        for lost in &report.lost {
            eprintln!("warning: {lost}");
        }
        eprintln!("{} copied to {}", Bytes(report.bytes), dest.display());
        Ok(())
    }

    fn record(&mut self, change: ChangeKind) -> CliResult<()> {
        let changes: Vec<_> = self.rows.iter().map(|r| changed(r, change)).collect();
        self.catalogue.record(&changes).exit(Exit::State)
    }

    fn remove(&mut self) -> CliResult {
        let bytes = remove(&mut self.catalogue, &self.rows, &Trees::new())?;
        eprintln!("{} freed", Bytes(bytes));
        Ok(Exit::Success)
    }
}

fn changed(row: &ReplicaRow, change: ChangeKind) -> Change {
    Change {
        wall: wall(),
        key: row.key.clone(),
        at: row.at.clone(),
        change,
    }
}

/// Removes replicas: first the record, then the bytes, so that nothing half removed is ever taken for data.
fn remove(catalogue: &mut Catalogue, rows: &[ReplicaRow], mover: &dyn Mover) -> CliResult<u64> {
    let ours: Vec<_> = rows
        .iter()
        .filter(|r| !matches!(r.at, StoredAt::External(_)))
        .collect();
    let changes: Vec<_> = ours
        .iter()
        .map(|r| changed(r, ChangeKind::Removed))
        .collect();
    catalogue.record(&changes).exit(Exit::State)?;
    let mut freed: BTreeMap<(&Path, &str), u64> = BTreeMap::new();
    for r in &ours {
        let path = r.path();
        mover.remove(&path).exit(Exit::State)?;
        match &r.at {
            StoredAt::Node { root, .. } => {
                *freed.entry((root, &r.workspace)).or_default() += r.stored
            }
            // The drained area goes with its last part; it stays while there are others.
            _ => drop(path.parent().map(std::fs::remove_dir)),
        }
    }
    for ((root, workspace), bytes) in freed {
        tarn_local::vacate(root, workspace, bytes)
            .with_context(|| format!("cannot update the ledger of the tier at {}", root.display()))
            .exit(Exit::State)?;
    }
    Ok(ours.iter().map(|r| r.stored).sum())
}

/// Removes what nobody asks to keep any more of a workflow whose lock the caller holds.
pub(crate) fn expire(
    catalogue: &mut Catalogue,
    workflow: &str,
    mover: &dyn Mover,
) -> CliResult<()> {
    let mut rows = catalogue.expired(wall()).exit(Exit::State)?;
    rows.retain(|r| r.workflow == workflow);
    if rows.is_empty() {
        return Ok(());
    }
    let bytes = remove(catalogue, &rows, mover)?;
    eprintln!("{} freed: kept no longer", Bytes(bytes));
    Ok(())
}
