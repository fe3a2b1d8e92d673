//! `tarn ckpt destage`: brings the data that dead programs have left in memory to their arenas on the tier, once. `tarnd --checkpoints` does
//! it again and again.

use super::version_catalog::TierVersionCatalog;
use super::{CheckpointLocation, named, printable};
use crate::error::{CliError, CliResult};
use crate::globals::Globals;
use crate::print::{self, message, out};
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

/// The findings, for the exit code.
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
            let row = ArenaRow {
                is_json: globals.json,
                run: &run,
                left,
            };
            found.add(place, &row)?;
        }
        match done {
            Err(fault) if args.run.is_some() => return Err(CliError::new(Exit::State, fault.text)),
            Err(fault) => message!("left alone: {}", printable(fault.text.as_bytes())),
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
                message!("nothing waits in memory");
            }
            Ok(Exit::Success)
        }
    }
}

/// An arena that was looked at, as messages name it.
struct ArenaRow<'a> {
    is_json: bool,
    run: &'a OsStr,
    left: &'a DestagedArena,
}

impl ArenaRow<'_> {
    fn print_json(
        &self,
        done: &str,
        id: Option<VersionId>,
        bytes: u64,
        why: Option<&str>,
    ) -> CliResult<()> {
        print::json(&serde_json::json!({
            "schema": 1,
            "run": self.run.to_string_lossy(),
            "rank": self.left.rank,
            "path": self.left.path.to_string_lossy(),
            "done": done,
            "generation": id.map(|id| id.generation),
            "number": id.map(|id| id.number),
            "bytes": bytes,
            "why": why,
        }))
    }

    fn print_brought(&self, id: VersionId, bytes: u64) -> CliResult<()> {
        if self.is_json {
            return self.print_json("brought", Some(id), bytes, None);
        }
        out!(
            "version {} of {}, rank {}: {} brought to {}",
            named(id),
            printable(self.run.as_bytes()),
            self.left.rank,
            Bytes(bytes),
            printable(self.left.path.as_os_str().as_bytes())
        )
    }

    /// Says that the arena was left alone, or these versions of it.
    fn print_left(&self, done: &str, ids: &[VersionId], why: &str) -> CliResult<()> {
        if !self.is_json {
            message!("left alone: {why}");
            return Ok(());
        }
        if ids.is_empty() {
            return self.print_json(done, None, 0, Some(why));
        }
        ids.iter()
            .try_for_each(|id| self.print_json(done, Some(*id), 0, Some(why)))
    }
}

impl DestageTally {
    /// Counts what became of an arena, and says it.
    fn add(&mut self, place: &CheckpointLocation, row: &ArenaRow<'_>) -> CliResult<()> {
        let name = printable(row.run.as_bytes());
        let path = printable(row.left.path.as_os_str().as_bytes());
        let rank = row.left.rank;
        match &row.left.what {
            DestageOutcome::Brought(versions) => {
                self.brought += 1;
                for (id, bytes) in versions {
                    row.print_brought(*id, *bytes)?;
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
                row.print_left("lacking", ids, &why)?;
                self.lacking = Some(why);
            }
            DestageOutcome::Running(process) => {
                let process = printable(process.as_bytes());
                let why = format!("{name} is running: {process}, and de-stages by itself");
                row.print_left("running", &[], &why)?;
                self.running = Some(why);
            }
            DestageOutcome::Busy => {
                let why = format!("{path} is being written by another process, which de-stages it");
                row.print_left("busy", &[], &why)?;
                self.running = Some(why);
            }
            DestageOutcome::Failed(fault) => {
                let why = format!("{name}, rank {rank}: {}", printable(fault.text.as_bytes()));
                row.print_left("failed", &[], &why)?;
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
