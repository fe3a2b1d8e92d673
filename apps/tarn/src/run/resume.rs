//! `tarn resume`: a run continues from its log, on its nodes or as a new run elsewhere.

use super::allocation::{self, ConnectedAllocation, ResumeLocation};
use super::files::RunFiles;
use super::lock::lock;
use super::margin::Margin;
use super::others::{self, PriorDatasets};
use super::prepared::PreparedRun;
use super::stale::Stale;
use super::world::{WorldOptions, open_world};
use super::{begin, changes, kept, pinned, places};
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::options::ResumeArgs;
use crate::print::message;
use crate::state::{history_of, open_catalogue};
use crate::{state, workflow};
use std::collections::BTreeSet;
use std::sync::Arc;
use tarn_engine::Engine;
use tarn_journal::{Catalogue, LogWriter, OpenedLog, RunLock, runs};
use tarn_ports::{Mover, NodeWorld};
use tarn_types::action::Outcome;
use tarn_types::codes::Exit;
use tarn_types::event::{Event, PriorData, Start};
use tarn_types::history::History;
use tarn_types::id::{DataId, InstanceId};
use tarn_types::layout::StateDir;
use tarn_types::nodes::{Cleaned, Staying};
use tarn_types::part::{PartRef, Place, StoreKey};
use tarn_types::units::Time;

pub(crate) fn resume(globals: &Globals, args: &ResumeArgs) -> CliResult {
    let state = state::here(globals)?;
    let name = state::which(&state, args.which.name())?;
    let Some(run) = ReopenedRun::open(state, &name)? else {
        message!("{name} is complete; there is nothing to resume");
        return Ok(Exit::Success);
    };
    match ConnectedAllocation::again(&run.begun, &run.state, args, globals.logged())? {
        ResumeLocation::Same(reached) => run.resume(globals, args, reached.map(|r| *r)),
        ResumeLocation::Other(why) => {
            message!(
                "{why}: a new run does the rest; it takes over the results of {name} that can still be reached"
            );
            run.begin_another(globals, args)
        }
    }
}

/// A run that has not ended well, locked, with its log.
struct ReopenedRun {
    state: StateDir,
    begun: Start,
    files: RunFiles,
    log: OpenedLog,
    engine: Engine,
    seq: u64,
    now: Time,
    lock: RunLock,
}

impl ReopenedRun {
    /// Nothing if the run is complete.
    ///
    /// # Errors
    /// When a newer run of its workflow has taken over its data.
    fn open(state: StateDir, name: &str) -> CliResult<Option<Self>> {
        let begun = state::started(&state, name)?;
        let lock = lock(&state, &begun.workflow.name)?;
        // A wish that it stop was for the process that is gone.
        tarn_journal::live::remove(&state.cancel(name));
        let log = LogWriter::open_append(&state.log(name)).exit(Exit::State)?;
        let (engine, seq, now) = tarn_engine::replay(&log.records);
        if engine.outcome() == Some(Outcome::Done) {
            kept::leave_tiers(&begun);
            return Ok(None);
        }
        let newest = runs::newest(&state, Some(&begun.workflow.name)).exit(Exit::State)?;
        if let Some(newer) = newest.filter(|n| n.name != name) {
            return Err(CliError::new(
                Exit::Usage,
                format!(
                    "{} is newer than {name} and has taken over its data; resume that one, or `tarn run` again",
                    newer.name
                ),
            ));
        }
        Ok(Some(Self {
            files: RunFiles::read(&state.run(name)),
            state,
            begun,
            log,
            engine,
            seq,
            now,
            lock,
        }))
    }

    /// Runs the workflow again where the run cannot be resumed.
    fn begin_another(self, globals: &Globals, args: &ResumeArgs) -> CliResult {
        let Self {
            state,
            begun,
            files,
            log,
            engine,
            lock,
            ..
        } = self;
        // The new run takes the lock itself.
        drop((lock, log, engine));
        let args = allocation::as_begun(&begun, &files, args)?;
        let folder = Some(begun.workflow.folder.as_path());
        let (parsed, files) = workflow::load_with_files(&args.workflow, folder)?;
        begin::start(globals, &parsed, files, &state, &args)
    }

    fn resume(
        mut self,
        globals: &Globals,
        args: &ResumeArgs,
        reached: Option<ConnectedAllocation>,
    ) -> CliResult {
        let mut catalogue = open_catalogue(&self.state)?;
        let pinned = pinned::datasets(&catalogue, &self.begun)?;
        self.begun.pin(&pinned);
        let mover: Arc<dyn Mover> = Arc::new(crate::mover::trees());
        let history = history_of(&self.log.records);
        let stale = self.find_stale(&history, mover.as_ref())?;
        places::takes(&self.begun.workflow, &self.begun.workspace, mover.as_ref())?;
        let others = PriorDatasets::again(&self.state, &self.begun)?;
        let margin = Margin::new(args.margin);
        let world_options = WorldOptions {
            files: self.files.clone(),
            cluster: others::full_tiers(&self.begun),
            mover,
            now: self.now,
            isolation: args.isolation,
            margin: margin.clone(),
        };
        let energy = reached.as_ref().and_then(ConnectedAllocation::energy);
        let mut world = open_world(&self.state, &self.begun, world_options, reached)?;
        let known = history.parts.iter();
        let known = known.map(|(part, info)| (*part, info.clone()));
        world.know(known.collect()).exit(Exit::State)?;
        let whole = others.whole(&self.state, &self.begun.workspace, &mut *world)?;
        let mut wanted = self.engine.replicas();
        wanted.extend(unreachable_replicas(&history));
        let mut found = world.inventory(&wanted).exit(Exit::State)?;
        if !stale.is_empty() {
            let again = self.run_again(&found, &whole, &pinned);
            stale.check(&self.begun.workflow, &again)?;
        }
        stale.print_notes();
        let cleaned = self.tidy(&mut *world, &mut catalogue, &history, &found)?;
        let set_aside = kept::aside_again(&mut self.begun, &cleaned);
        found.extend(others::replicas(&whole));
        let run = PreparedRun {
            journal: self.log.writer,
            engine: self.engine,
            first: Event::Resumed {
                found,
                pinned,
                set_aside,
            },
            seq: self.seq,
            state: self.state,
            world,
            start: self.begun,
            history,
            margin,
            energy,
            seen: None,
            _lock: self.lock,
            _others: others,
        };
        run.drive(globals, args.report.as_deref())
    }

    /// The changed inputs and scripts of steps that are done.
    fn find_stale(&self, history: &History, mover: &dyn Mover) -> CliResult<Stale> {
        let mut stale = Stale::default();
        let w = &self.begun.workflow;
        self.files.check_for_resume(w, history, &mut stale)?;
        changes::check_sources_for_resume(&self.begun, &self.state, history, mover, &mut stale)?;
        Ok(stale)
    }

    /// The instances that are done and would run again with these replicas.
    fn run_again(
        &self,
        found: &[(PartRef, Place)],
        whole: &[PriorData],
        pinned: &[DataId],
    ) -> BTreeSet<InstanceId> {
        let mut there = found.to_vec();
        there.extend(others::replicas(whole));
        let (as_it_was, ..) = tarn_engine::replay(&self.log.records);
        as_it_was.runs_again(self.now, there, pinned)
    }

    /// Removes what the run does not continue with from its tiers.
    fn tidy(
        &self,
        world: &mut dyn NodeWorld,
        catalogue: &mut Catalogue,
        history: &History,
        found: &[(PartRef, Place)],
    ) -> CliResult<Cleaned> {
        let key = |part: &PartRef| history.parts.get(part).map(|info| info.key.clone());
        let keep = found.iter();
        let keep = keep.filter_map(|(part, place)| Some((key(part)?, place.clone())));
        let unfinished = history.transfers.values().filter(|t| t.ended.is_none());
        let resumable = unfinished
            .flat_map(|t| &t.order.parts)
            .filter_map(|m| key(&m.part));
        let mut left = kept::LeftReplicas::of(catalogue, &self.begun)?;
        let staying = Staying {
            keep: keep.collect(),
            resumable: resumable.collect(),
            protected: left.protected(),
            pinned: left.pinned(),
            resumed: true,
            is_without: self.begun.set_aside.is_none(),
        };
        kept::tidy(world, catalogue, &mut left, &staying)
    }
}

/// The replicas on nodes that the run has lost, unless their part was made again: they may be there.
fn unreachable_replicas(history: &History) -> impl Iterator<Item = (PartRef, StoreKey, Place)> {
    let current = |key: &StoreKey, part| history.parts.get(&part).is_some_and(|i| i.key == *key);
    let all = history.unreachable.iter();
    let useful = all.filter(move |((key, _), lost)| current(key, lost.part));
    useful.map(|((key, place), lost)| (lost.part, key.clone(), place.clone()))
}
