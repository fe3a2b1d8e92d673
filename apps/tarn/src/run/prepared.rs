//! A run that is ready, and the loop that drives it to its end.

use super::allocation::SlurmEnergy;
use super::changes::StepChanges;
use super::energy::SlurmMeteredWorld;
use super::files::RunFiles;
use super::finish::finish;
use super::margin::Margin;
use super::opened::FolderWatcher;
use super::others::PriorDatasets;
use super::world::emulation;
use crate::error::{CliResult, ExitWith};
use crate::globals::Globals;
use crate::live::StatusFile;
use crate::print::message;
use crate::progress::Watcher;
use crate::run_log;
use anyhow::Context;
use std::path::{Path, PathBuf};
use tarn_engine::Engine;
use tarn_fault::{CrashPoint, FaultJournal, FaultWorld};
use tarn_journal::{LogWriter, RunLock};
use tarn_ports::NodeWorld;
use tarn_types::codes::Exit;
use tarn_types::event::{Event, Start};
use tarn_types::history::History;
use tarn_types::id::StepId;
use tarn_types::layout::StateDir;

/// Names a point at which the process kills itself: for tests of recovery. See docs/internals/testing.md.
const CRASH_VARIABLE: &str = "TARN_CRASH_AT";

/// One run, ready to be driven.
pub(super) struct PreparedRun {
    pub(super) state: StateDir,
    pub(super) engine: Engine,
    pub(super) world: Box<dyn NodeWorld>,
    pub(super) journal: LogWriter,
    pub(super) first: Event,
    pub(super) seq: u64,
    pub(super) start: Start,
    pub(super) history: History,
    pub(super) margin: Margin,
    /// Slurm's data about its energy.
    pub(super) energy: Option<SlurmEnergy>,
    /// Of a run that begins.
    pub(super) seen: Option<ObservedFiles>,
    pub(super) _lock: RunLock,
    /// Data of other workflows stays as long as this is there.
    pub(super) _others: PriorDatasets,
}

/// A run's view of the files that its steps read beside datasets.
pub(super) struct ObservedFiles {
    pub(super) files: RunFiles,
    pub(super) changes: StepChanges,
    pub(super) watched: Option<FolderWatcher>,
    /// The folder of the run before.
    pub(super) before: Option<PathBuf>,
}

impl ObservedFiles {
    /// Keeps them in the folder of the run that begins: it is resumed with them, and the next run compares its own with them.
    pub(super) fn write(&self, run: &Path) -> CliResult<()> {
        self.files.write(run)?;
        self.changes.write(run);
        Ok(())
    }

    /// After the run: the files that its steps opened, and the named files that they changed.
    fn end(self, start: &Start, history: &History, run: &Path) {
        let w = &start.workflow;
        for (id, step) in (0u32..).map(StepId).zip(&w.steps) {
            let ran = history
                .instances_of(id)
                .any(|(_, i)| !i.attempts.is_empty());
            let changed = self.files.changed_by(w, step);
            for path in changed.iter().filter(|_| ran) {
                message!(
                    "note: {}, which step `{}` names, has changed since the run began: if the step writes it, the step runs again in \
                     every run; write it to an output, or by `>`",
                    path.display(),
                    step.name
                );
            }
        }
        if let Some(watched) = self.watched {
            watched.end(w, &self.files, run, self.before.as_deref());
        }
    }
}

impl PreparedRun {
    pub(super) fn drive(self, globals: &Globals, report: Option<&Path>) -> CliResult {
        let Self {
            state,
            mut engine,
            world,
            journal,
            first,
            seq,
            start,
            history,
            margin,
            mut energy,
            mut seen,
            _lock,
            _others,
        } = self;
        debug_assert!(
            matches!(first, Event::Started(_) | Event::Resumed { .. }),
            "a run begins, or is resumed"
        );
        if let Some(banner) = emulation(&start.cluster) {
            message!("{banner}");
        }
        if start.cluster.peer.emulated {
            let rate = start.cluster.peer.write as f64 / 1e6;
            message!("each node takes from other nodes at most {rate} MB/s (--peer-rate)");
        }
        run_log::start(globals, &state, &start.run)?;
        let status_file = StatusFile::new(&state, &start.run, world.progress(), world.now());
        let changes = seen.as_ref().map(|s| s.changes.clone());
        let mut watcher = Watcher::new(globals.json, &start, history, world.progress());
        watcher.report_changes(changes.unwrap_or_default(), &start.workflow);
        let crash = crash_point()?;
        let monitor = energy.as_mut().and_then(|e| e.monitor.take());
        let world = SlurmMeteredWorld::new(world, monitor, &start.workflow);
        let mut world = FaultWorld::new(world, crash.clone());
        let mut journal = FaultJournal::new(journal, crash);
        let driven = tarn_engine::drive(
            &mut engine,
            &mut world,
            &mut journal,
            first,
            seq,
            &mut |r| {
                if let Some(watched) = seen.as_mut().and_then(|s| s.watched.as_mut()) {
                    watched.see(&start.workflow, r);
                }
                watcher.see(r);
                margin.look(watcher.history());
            },
        );
        watcher.end();
        if let Some(seen) = seen {
            seen.end(&start, watcher.history(), &state.run(&start.run));
        }
        drop((journal, status_file));
        if let Some(energy) = energy {
            energy.print_energy_sum();
        }
        let outcome = driven.exit(Exit::State)?;
        finish(
            globals,
            &state,
            &start,
            outcome,
            report,
            world.into_inner().into_inner(),
        )
    }
}

fn crash_point() -> CliResult<CrashPoint> {
    let text = std::env::var(CRASH_VARIABLE).unwrap_or_default();
    let kill = || {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    };
    CrashPoint::parse(&text, kill)
        .with_context(|| format!("{CRASH_VARIABLE}={text}"))
        .exit(Exit::Usage)
}
