//! `tarn ckpt destage`: what programs that died have left in memory goes to their arenas on the tier, once. `tarnd --checkpoints` does
//! it again and again.

use super::version_catalog::TierVersionCatalog;
use super::{CheckpointLocation, named, printable};
use crate::error::{CliError, CliResult};
use crate::globals::Globals;
use crate::print::{self, out, say};
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use tarn_checkpoint::destage::{DestageOutcome, DestagedArena, Destager};
use tarn_checkpoint_core::{CheckpointErrorCode, VersionId};
use tarn_types::codes::Exit;
use tarn_types::units::Bytes;

#[derive(Debug, Args)]
pub(crate) struct DestageArgs {
    /// The program's name [default: all of this user's]
    run: Option<OsString>,
    #[command(flatten)]
    place: CheckpointLocation,
}

/// What was found, for the exit code.
#[derive(Default)]
struct DestageTally {
    brought: usize,
    lacking: Option<String>,
    running: Option<String>,
    failed: Option<CliError>,
}

pub(super) fn destage(globals: &Globals, args: &DestageArgs) -> CliResult {
    let place = &args.place;
    let version_catalog = TierVersionCatalog::open(place)?;
    let mut destager = Destager::new(&place.tier, &place.memory);
    let runs: Vec<OsString> = match &args.run {
        Some(name) => vec![version_catalog.run(name)?.name.to_owned()],
        None => version_catalog
            .runs()
            .iter()
            .map(|r| r.name.to_owned())
            .collect(),
    };
    let mut found = DestageTally::default();
    for run in runs {
        let mut all = Vec::new();
        let done = destager.run(&run, &mut |left| all.push(left));
        for left in &all {
            found.add(globals, place, &run, left)?;
        }
        match done {
            Err(fault) if args.run.is_some() => return Err(CliError::new(Exit::State, fault.text)),
            Err(fault) => say!("left alone: {}", printable(fault.text.as_bytes())),
            Ok(()) => {}
        }
    }
    match found {
        DestageTally {
            failed: Some(e), ..
        } => Err(e),
        DestageTally {
            lacking: Some(text),
            ..
        } => Err(CliError::new(Exit::WorkflowFailed, text)),
        DestageTally {
            running: Some(text),
            ..
        } if args.run.is_some() => Err(CliError::new(Exit::Busy, text)),
        DestageTally {
            brought, running, ..
        } => {
            if brought == 0 && running.is_none() && !globals.json {
                say!("nothing waits in memory");
            }
            Ok(Exit::Success)
        }
    }
}

impl DestageTally {
    /// Says what became of an arena.
    fn add(
        &mut self,
        globals: &Globals,
        place: &CheckpointLocation,
        run: &OsStr,
        left: &DestagedArena,
    ) -> CliResult<()> {
        let name = printable(run.as_bytes());
        let path = printable(left.path.as_os_str().as_bytes());
        let rank = left.rank;
        let row = |done: &str, id: Option<VersionId>, bytes: u64, why: Option<&str>| {
            print::json(&serde_json::json!({
                "schema": 1,
                "run": run.to_string_lossy(),
                "rank": rank,
                "path": left.path.to_string_lossy(),
                "done": done,
                "generation": id.map(|id| id.generation),
                "number": id.map(|id| id.number),
                "bytes": bytes,
                "why": why,
            }))
        };
        let tell = |done: &str, ids: &[VersionId], why: &str| -> CliResult<()> {
            if !globals.json {
                say!("left alone: {why}");
                return Ok(());
            }
            let ids = ids.iter().copied().map(Some);
            let none = ids.len() == 0;
            for id in ids.chain(none.then_some(None)) {
                row(done, id, 0, Some(why))?;
            }
            Ok(())
        };
        match &left.what {
            DestageOutcome::Brought(versions) => {
                self.brought += 1;
                for (id, bytes) in versions {
                    match globals.json {
                        true => row("brought", Some(*id), *bytes, None)?,
                        false => out!(
                            "version {} of {name}, rank {rank}: {} brought to {path}",
                            named(*id),
                            Bytes(*bytes)
                        )?,
                    }
                }
            }
            DestageOutcome::Lacking(ids) => {
                let names: Vec<String> = ids.iter().copied().map(named).collect();
                let why = format!(
                    "version {} of {name}, rank {rank}: its staged data is damaged, or {}; a start of the program looks on its other \
                     nodes too, or takes the version before",
                    names.join(", "),
                    place.is_not_in_memory()
                );
                tell("lacking", ids, &why)?;
                self.lacking = Some(why);
            }
            DestageOutcome::Running(who) => {
                let who = printable(who.as_bytes());
                let why = format!("{name} is running: {who}, and de-stages by itself");
                tell("running", &[], &why)?;
                self.running = Some(why);
            }
            DestageOutcome::Busy => {
                let why = format!("{path} is being written by another process, which de-stages it");
                tell("busy", &[], &why)?;
                self.running = Some(why);
            }
            DestageOutcome::Failed(fault) => {
                let why = format!("{name}, rank {rank}: {}", printable(fault.text.as_bytes()));
                tell("failed", &[], &why)?;
                let exit = match fault.code {
                    CheckpointErrorCode::Corrupt => Exit::WorkflowFailed,
                    _ => Exit::State,
                };
                self.failed = Some(CliError::new(exit, why));
            }
        }
        Ok(())
    }
}
