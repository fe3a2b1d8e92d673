//! `tarn slurm export`.

use super::AS_IT_WAS;
use super::gather::twin_since;
use crate::error::{CliResult, ExitWith};
use crate::globals::Globals;
use crate::print::{self, out};
use anyhow::Context;
use clap::Args;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tarn_spec::site::{machine_text, write_history};
use tarn_types::codes::Exit;

#[derive(Debug, Clone, Args)]
pub(crate) struct ExportArgs {
    /// The folder for `cluster.toml` and `history`; neither may be there yet
    folder: PathBuf,
    /// Jobs that ended since then: a date such as 2026-11-01, or a time back from now such as 7d
    #[arg(long, value_name = "WHEN", default_value = "7d")]
    since: String,
}

pub(in crate::slurm) fn export(globals: &Globals, args: &ExportArgs) -> CliResult {
    let twin = twin_since(&args.since)?;
    let folder = &args.folder;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))
        .exit(Exit::State)?;
    let (cluster, history) = (folder.join("cluster.toml"), folder.join("history"));
    let text = machine_text(&twin.machine);
    create(&cluster, |file| file.write_all(text.as_bytes()))?;
    create(&history, |file| {
        let mut file = BufWriter::new(file);
        write_history(&twin.recorded, &mut file)?;
        file.flush()
    })?;
    let work = &twin.recorded.workload;
    let users = twin.recorded.users.iter().max().map_or(0, |most| most + 1);
    let with_data = work.jobs.iter().filter(|job| job.job.flow.is_some());
    let with_data = with_data.count();
    if globals.json {
        print::json(&serde_json::json!({
            "schema": 1, "cluster": cluster, "history": history, "jobs": work.jobs.len(),
            "jobs_with_data": with_data, "workflows": work.flows.len(), "users": users,
            "nodes": twin.machine.nodes(), "items": work.items.len(),
            "reaction_s": twin.reaction as f64 / 1e9, "notes": twin.notes,
        }))?;
        return Ok(Exit::Success);
    }
    out!("{}: {} nodes", cluster.display(), twin.machine.nodes())?;
    out!(
        "{}: {} jobs of {users} users, {with_data} of them with data, in {} workflows",
        history.display(),
        work.jobs.len(),
        work.flows.len()
    )?;
    out!(
        "replay: tarn sim --cluster {} --workload {} --policy {AS_IT_WAS},data",
        cluster.display(),
        history.display()
    )?;
    Ok(Exit::Success)
}

/// Makes a file that is not there yet: an earlier export stays.
fn create(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> CliResult<()> {
    let failed = || {
        let path = path.display();
        format!("cannot write {path}; name a folder where it is not there yet")
    };
    crate::whole::create(path, fill)
        .with_context(failed)
        .exit(Exit::State)
}
