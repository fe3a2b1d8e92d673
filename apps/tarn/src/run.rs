//! `tarn run` and `tarn resume`: everything around the loop.

use crate::clock::wall;
use crate::cluster::{self, own_program};
use crate::data::missing::{Missing, how_kept};
use crate::data::removal;
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::live::StatusFile;
use crate::options::{IsolationArg, ResumeArgs, RunArgs};
use crate::print::{self, out, say};
use crate::progress::Watcher;
use crate::state::{self, history_of, open_catalogue};
use crate::{run_log, workflow};
use allocation::{AllocationRequest, ConnectedAllocation, ResumeLocation};
use anyhow::Context;
use changes::StepChanges;
use check::Check;
use energy::SlurmMeteredWorld;
use files::RunFiles;
use lock::lock;
use margin::Margin;
use opened::FolderWatcher;
use others::PriorDatasets;
use serde::Serialize;
use stale::Stale;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_data_plane::Transport;
use tarn_engine::Engine;
use tarn_fault::{CrashPoint, FaultJournal, FaultWorld};
use tarn_journal::{LogWriter, RunLock, runs};
use tarn_node::{Config, Local, RereadScope};
use tarn_ports::{Mover, NodeWorld};
use tarn_report::{Emulated, PageLinks, Summary};
use tarn_spec::{Abilities, Inability, Parsed};
use tarn_types::action::Outcome;
use tarn_types::cluster::Cluster;
use tarn_types::codes::Exit;
use tarn_types::event::{Event, Options, Start};
use tarn_types::history::{History, TransferEnd};
use tarn_types::id::StepId;
use tarn_types::layout::StateDir;
use tarn_types::nodes::{OwnedNodes, Staying};
use tarn_types::part::{PartRef, Place, StoreKey};
use tarn_types::reason::Reason;
use tarn_types::units::Time;

pub(crate) mod allocation;
mod cached;
pub(crate) mod changes;
pub(crate) mod check;
pub(crate) mod dropped;
mod energy;
pub(crate) mod file_content;
pub(crate) mod files;
mod kept;
pub(crate) mod lock;
pub(crate) mod margin;
mod opened;
pub(crate) mod orphans;
pub(crate) mod others;
pub(crate) mod pinned;
mod places;
pub(crate) mod prior;
mod stale;
pub(crate) mod unkept;
mod variables;

/// Names a point at which the process kills itself: for tests of recovery. See docs/internals/testing.md.
const CRASH_VARIABLE: &str = "TARN_CRASH_AT";

/// One run, ready to be driven.
struct PreparedRun {
    state: StateDir,
    engine: Engine,
    world: Box<dyn NodeWorld>,
    journal: LogWriter,
    first: Event,
    seq: u64,
    start: Start,
    history: History,
    margin: Margin,
    /// What Slurm knows of its energy.
    energy: Option<allocation::SlurmEnergy>,
    /// Of a run that begins.
    seen: Option<ObservedFiles>,
    _lock: RunLock,
    /// Data of other workflows stays as long as this is there.
    _others: PriorDatasets,
}

/// What a run sees of the files that its steps read beside datasets.
struct ObservedFiles {
    files: RunFiles,
    changes: StepChanges,
    watched: Option<FolderWatcher>,
    /// The folder of the run before.
    before: Option<PathBuf>,
}

impl ObservedFiles {
    /// After the run: what its steps opened, and what they changed of what their commands name.
    fn end(self, start: &Start, history: &History, run: &Path) {
        let w = &start.workflow;
        for (id, step) in (0u32..).map(StepId).zip(&w.steps) {
            let ran = history
                .instances_of(id)
                .any(|(_, i)| !i.attempts.is_empty());
            let changed = self.files.changed_by(w, step);
            for path in changed.iter().filter(|_| ran) {
                say!(
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

pub(crate) fn run(globals: &Globals, args: &RunArgs) -> CliResult {
    let (parsed, files) = workflow::load_with_files(&args.workflow, None)?;
    let state = state::beside(globals, &parsed.workflow.folder)?;
    start(globals, &parsed, files, &state, args)
}

/// Runs a workflow that was read already.
pub(crate) fn start(
    globals: &Globals,
    parsed: &Parsed,
    files: RunFiles,
    state: &StateDir,
    args: &RunArgs,
) -> CliResult {
    let workspace = state::workspace(&parsed.workflow.name, state);
    let lock = lock(state, &parsed.workflow.name)?;
    let purpose = AllocationRequest {
        state,
        workflow: Some(&parsed.workflow),
        margin: args.margin,
        log: globals.logged(),
    };
    let reached = ConnectedAllocation::here(&args.machine, &purpose)?;
    let found = match &reached {
        Some(reached) => reached.cluster().clone(),
        None => cluster::discover(&args.machine, state)?,
    };
    let mover: Arc<dyn Mover> = Arc::new(crate::mover::trees());
    Check {
        parsed,
        files: &files,
        cluster: &found,
        elsewhere: reached.is_some(),
        state,
        workspace: &workspace,
        mover: mover.as_ref(),
    }
    .check(args)?;
    let others = PriorDatasets::find(state, &parsed.workflow, &found, reached.is_some())?;
    let mut catalogue = open_catalogue(state)?;
    if reached.is_none() {
        removal::remove_expired(&mut catalogue, &parsed.workflow.name, mover.as_ref())?;
    }
    let prior = catalogue
        .prior(&parsed.workflow, &workspace, &found, reached.is_some())
        .exit(Exit::State)?;
    let prior_dest = prior::prior_dests(&catalogue, &parsed.workflow, state, mover.as_ref())?;
    prior::report_missing_dests(&parsed.workflow, &workspace, state, mover.as_ref());
    let before = runs::newest(state, Some(&parsed.workflow.name)).exit(Exit::State)?;
    let changes = match before {
        // Nothing has run that could run again.
        None => StepChanges::default(),
        Some(_) => {
            let looks = changes::looks(
                &parsed.workflow,
                state,
                &workspace,
                RereadScope::UntilChanged,
                mover.as_ref(),
            );
            StepChanges::since_last(state, parsed, &files, (&looks, &others.data))
        }
    };
    if reached.is_some()
        && let Some(risk) = margin::at_risk(&parsed.workflow)
    {
        say!("note: {risk}");
    }
    let name = runs::allocate(state, &parsed.workflow.name).exit(Exit::State)?;
    let mut start = Start {
        run: name.clone(),
        workspace,
        wall: wall(),
        workflow: parsed.workflow.clone(),
        cluster: found,
        options: Options {
            policy: args.policy,
            verify: args.verify.into(),
            cache: cache(args, reached.is_some()),
            fail_fast: args.fail_fast,
        },
        prior,
        prior_dest,
        prior_data: others.data.clone(),
        allocation: reached.as_ref().map(|r| r.job().to_owned()),
        sealed: args.machine.transport == Transport::Sealed,
        pinned: Vec::new(),
        set_aside: None,
    };
    pinned::keep(&catalogue, &mut start)?;
    files.write(&state.run(&name))?;
    changes.write(&state.run(&name));
    let seen = ObservedFiles {
        files: files.clone(),
        changes,
        // Steps of other machines open files there.
        watched: match reached.is_some() {
            true => None,
            false => FolderWatcher::new(&parsed.workflow, &state.0, &start.cluster),
        },
        before: before.map(|b| state.run(&b.name)),
    };
    let margin = Margin::new(args.margin);
    let world_options = WorldOptions {
        files,
        cluster: start.cluster.clone(),
        mover,
        now: 0,
        isolation: args.machine.isolation,
        margin: margin.clone(),
    };
    let energy = reached.as_ref().and_then(ConnectedAllocation::energy);
    let mut world = open_world(state, &start, world_options, reached)?;
    let multi_node = world.multi_node().map_err(Inability::new);
    let abilities = Abilities {
        encryption: multi_node.clone().map_err(|why| {
            Inability::new(format!(
                "a step's unencrypted view of it needs namespaces: {why}"
            ))
        }),
        multi_node,
        shared: world.one_namespace().map_err(Inability::new),
        images: world.images().map_err(Inability::new),
    };
    if abilities.multi_node.is_err() || abilities.shared.is_err() || abilities.images.is_err() {
        check::able(parsed, &start.cluster, &abilities)?;
    }
    start.prior_data = others.whole(state, &start.workspace, &mut *world)?;
    others::set_aside(&mut start.cluster, &mut start.prior_data);
    kept::keep_what_is_there(&mut start, &mut *world, &mut catalogue)?;
    let session = PreparedRun {
        journal: LogWriter::create(&state.log(&name)).exit(Exit::State)?,
        engine: Engine::new(),
        first: Event::Started(Box::new(start.clone())),
        seq: 0,
        state: state.clone(),
        world,
        start,
        history: History::new(),
        margin,
        energy,
        seen: Some(seen),
        _lock: lock,
        _others: others,
    };
    session.drive(globals, args.report.as_deref())
}

pub(crate) fn resume(globals: &Globals, args: &ResumeArgs) -> CliResult {
    let state = state::here(globals)?;
    let name = state::which(&state, args.which.name())?;
    let mut begun = state::started(&state, &name)?;
    let lock = lock(&state, &begun.workflow.name)?;
    // A wish that it stop was for the process that is gone.
    tarn_journal::live::remove(&state.cancel(&name));
    let opened = LogWriter::open_append(&state.log(&name)).exit(Exit::State)?;
    let (engine, seq, now) = tarn_engine::replay(&opened.records);
    if engine.outcome() == Some(Outcome::Done) {
        kept::leave_tiers(&begun);
        say!("{name} is complete; there is nothing to resume");
        return Ok(Exit::Success);
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
    let files = RunFiles::read(&state.run(&name));
    let reached = match ConnectedAllocation::again(&begun, &state, args, globals.logged())? {
        ResumeLocation::Same(reached) => reached.map(|r| *r),
        ResumeLocation::Other(why) => {
            say!(
                "{why}: a new run does the rest; it takes over the results of {name} that can still be reached"
            );
            drop((lock, opened, engine));
            let args = allocation::as_begun(&begun, &files, args)?;
            let folder = Some(begun.workflow.folder.as_path());
            let (parsed, files) = workflow::load_with_files(&args.workflow, folder)?;
            return start(globals, &parsed, files, &state, &args);
        }
    };
    let mut catalogue = open_catalogue(&state)?;
    let pinned = pinned::datasets(&catalogue, &begun)?;
    begun.pin(&pinned);
    let mover: Arc<dyn Mover> = Arc::new(crate::mover::trees());
    let history = history_of(&opened.records);
    let mut stale = Stale::default();
    files.check_for_resume(&begun.workflow, &history, &mut stale)?;
    changes::check_sources_for_resume(&begun, &state, &history, mover.as_ref(), &mut stale)?;
    places::takes(&begun.workflow, &begun.workspace, mover.as_ref())?;
    let others = PriorDatasets::again(&state, &begun)?;
    let margin = Margin::new(args.margin);
    let world_options = WorldOptions {
        files,
        cluster: others::full_tiers(&begun),
        mover,
        now,
        isolation: args.isolation,
        margin: margin.clone(),
    };
    let energy = reached.as_ref().and_then(ConnectedAllocation::energy);
    let mut world = open_world(&state, &begun, world_options, reached)?;
    let known = history.parts.iter();
    let known = known.map(|(part, info)| (*part, info.clone()));
    world.know(known.collect()).exit(Exit::State)?;
    let whole = others.whole(&state, &begun.workspace, &mut *world)?;
    let mut wanted = engine.replicas();
    wanted.extend(out_of_reach(&history));
    let mut found = world.inventory(&wanted).exit(Exit::State)?;
    if !stale.is_empty() {
        let mut there = found.clone();
        there.extend(others::replicas(&whole));
        let (as_it_was, ..) = tarn_engine::replay(&opened.records);
        let again = as_it_was.runs_again(now, there, &pinned);
        stale.check(&begun.workflow, &again)?;
    }
    stale.print_notes();
    let key = |part: &PartRef| history.parts.get(part).map(|info| info.key.clone());
    let keep = found
        .iter()
        .filter_map(|(part, place)| Some((key(part)?, place.clone())))
        .collect();
    let unfinished = history.transfers.values().filter(|t| t.ended.is_none());
    let resumable = unfinished
        .flat_map(|t| &t.order.parts)
        .filter_map(|m| key(&m.part))
        .collect();
    let mut left = kept::LeftReplicas::of(&catalogue, &begun)?;
    let staying = Staying {
        keep,
        resumable,
        protected: left.protected(),
        pinned: left.pinned(),
        resumed: true,
        is_without: begun.set_aside.is_none(),
    };
    let cleaned = kept::tidy(&mut *world, &mut catalogue, &mut left, &staying)?;
    let set_aside = kept::aside_again(&mut begun, &cleaned);
    found.extend(others::replicas(&whole));
    let session = PreparedRun {
        journal: opened.writer,
        engine,
        first: Event::Resumed {
            found,
            pinned,
            set_aside,
        },
        seq,
        state,
        world,
        start: begun,
        history,
        margin,
        energy,
        seen: None,
        _lock: lock,
        _others: others,
    };
    session.drive(globals, args.report.as_deref())
}

/// What lay on nodes that the run has lost, as far as nobody has made it again: it may be there.
fn out_of_reach(history: &History) -> impl Iterator<Item = (PartRef, StoreKey, Place)> {
    let current = |key: &StoreKey, part| history.parts.get(&part).is_some_and(|i| i.key == *key);
    let all = history.unreachable.iter();
    let useful = all.filter(move |((key, _), lies)| current(key, lies.part));
    useful.map(|((key, place), lies)| (lies.part, key.clone(), place.clone()))
}

impl PreparedRun {
    fn drive(self, globals: &Globals, report: Option<&Path>) -> CliResult {
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
        if let Some(banner) = emulation(&start.cluster) {
            say!("{banner}");
        }
        if start.cluster.peer.emulated {
            let rate = start.cluster.peer.write as f64 / 1e6;
            say!("each node takes from other nodes at most {rate} MB/s (--peer-rate)");
        }
        run_log::start(globals, &state, &start.run)?;
        let status_file = StatusFile::new(&state, &start.run, world.progress(), world.now());
        let changes = seen.as_ref().map(|s| s.changes.clone());
        let mut watcher = Watcher::new(globals.json, &start, history, world.progress());
        watcher.report_changes(changes.unwrap_or_default(), &start.workflow);
        let crash = crash_point()?;
        let asked = energy.as_mut().and_then(|e| e.asked.take());
        let world = SlurmMeteredWorld::new(world, asked, &start.workflow);
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

/// The links of a page at `page` about the run with folder `run`.
fn links(page: &Path, run: &Path) -> PageLinks {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let page = absolute(page);
    PageLinks::new(page.parent().unwrap_or(&page), &absolute(run))
}

fn finish(
    globals: &Globals,
    state: &StateDir,
    start: &Start,
    outcome: Outcome,
    report: Option<&Path>,
    mut world: Box<dyn NodeWorld>,
) -> CliResult {
    let mut catalogue = open_catalogue(state)?;
    catalogue.index(&start.run).exit(Exit::State)?;
    kept::replaced(&mut catalogue, start, &mut *world)?;
    if outcome == Outcome::Done {
        kept::leftovers(&mut catalogue, start, &mut *world)?;
        for problem in world.leave() {
            say!("warning: {problem}");
        }
    } else {
        drop(world);
    }
    let left = match outcome {
        Outcome::Done => cached::line(&catalogue, start)?,
        _ => None,
    };
    let records = state::records(state, &start.run)?;
    let summary = Summary::of(&records).exit(Exit::Internal)?;
    let own = state.report(&start.run);
    for path in std::iter::once(own.as_path()).chain(report) {
        // Each copy has links from where it is.
        let links = links(path, &state.run(&start.run));
        let page = tarn_report::html(&records, &links).exit(Exit::Internal)?;
        write_page(path, &page)?;
    }
    let printed = if globals.json {
        print::json(&PrintedSummary {
            summary: &summary,
            state: state.0.to_string_lossy(),
        })
    } else {
        print::text(&summary.to_string())
            .and_then(|()| out!("report    {}", report.unwrap_or(&own).display()))
            .and_then(|()| match left {
                Some(line) => out!("{line}"),
                None => Ok(()),
            })
    };
    let history = history_of(&records);
    print_rescued(start, &history);
    if outcome == Outcome::Done {
        for note in unkept::notes(state, start, &history) {
            say!("note: {note}");
        }
    }
    Ok(match outcome {
        // What could not be printed is the only thing that went wrong.
        Outcome::Done => return printed.map(|()| Exit::Success),
        Outcome::Failed => {
            say!(
                "error: {} failed; `tarn why` shows why. `tarn resume` continues it; after a change of an input, a script or the workflow \
                 file: `tarn run`",
                start.run
            );
            Exit::WorkflowFailed
        }
        Outcome::Refused => {
            say!("error: {} was refused: nothing was started", start.run);
            Exit::NoRoom
        }
        Outcome::Interrupted(signal) => {
            say!(
                "{} was interrupted; `tarn resume` continues from here",
                start.run
            );
            if signal == 2 {
                Exit::Interrupted
            } else {
                Exit::Terminated
            }
        }
    })
}

/// What `--json` prints at the end.
#[derive(Serialize)]
struct PrintedSummary<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    /// The state folder, absolute: for commands about this run, from any folder.
    state: Cow<'a, str>,
}

/// Says where a run that has not ended well has put what was to be saved since it was last resumed, and whether that is all of it.
fn print_rescued(start: &Start, history: &History) {
    let mut said = BTreeSet::new();
    let since = history.resumptions.last().copied().unwrap_or(0);
    for transfer in history.transfers.values().rev() {
        let (order, Place::External(folder)) = (&transfer.order, &transfer.order.to) else {
            continue;
        };
        let is_rescue = transfer.why == Reason::Rescue;
        let is_done = matches!(transfer.ended, Some((_, TransferEnd::Done { .. })));
        let is_new = transfer.ordered >= since;
        if !is_rescue || !is_done || !is_new || !said.insert(order.data) {
            continue;
        }
        let dataset = start.workflow.dataset(order.data);
        let name = &dataset.name;
        let copied: BTreeSet<_> = order.parts.iter().map(|p| p.part).collect();
        let missing = Missing::of(history, order.data, order.version, |p, _| {
            copied.contains(&p)
        });
        let what = match history.makers(order.data, order.version) {
            (done, Some(1)) if done == 1 && missing.makers == 1 => {
                format!("what is left of `{name}`")
            }
            (done, Some(all)) if done - missing.makers < all => {
                let whole = done - missing.makers;
                format!("the output of {whole} of {all} instances of `{name}`")
            }
            _ => format!("`{name}`"),
        };
        let gone = missing.text;
        let gone = gone.map_or(String::new(), |gone| {
            format!("; {gone}{}", how_kept(dataset))
        });
        say!("copied {what} to {}{gone}", folder.display());
    }
}

fn write_page(path: &Path, page: &str) -> CliResult<()> {
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))
            .exit(Exit::State)?;
    }
    crate::whole::replace(path, page.as_bytes(), None)
        .with_context(|| format!("cannot write the report {}", path.display()))
        .exit(Exit::State)
}

/// How a world is opened.
struct WorldOptions {
    files: RunFiles,
    mover: Arc<dyn Mover>,
    /// With all of its tiers, whatever others take of them.
    cluster: Cluster,
    now: Time,
    isolation: IsolationArg,
    margin: Margin,
}

fn open_world(
    state: &StateDir,
    start: &Start,
    world_options: WorldOptions,
    reached: Option<ConnectedAllocation>,
) -> CliResult<Box<dyn NodeWorld>> {
    let all = std::env::vars_os();
    let caller_env: Vec<_> = match &reached {
        Some(_) => all.filter(|(name, _)| !is_of_step(name)).collect(),
        None => all.collect(),
    };
    let own = match &reached {
        Some(_) => OwnedNodes::Some(BTreeSet::new()),
        None => OwnedNodes::All,
    };
    // The nodes have it from here: what is `bash` for one is so for all.
    let mut workflow = start.workflow.clone();
    tarn_node::with_shells(&mut workflow, &caller_env);
    variables::with_jobs(&mut workflow, &world_options.files, &caller_env);
    let config = Config {
        run: start.run.clone(),
        workspace: start.workspace.clone(),
        workflow,
        cluster: world_options.cluster,
        state: state.clone(),
        mover: world_options.mover,
        keys: crate::key::for_workflow(&start.workflow, &start.workspace)?,
        prior: start.prior.clone(),
        prior_data: start.prior_data.clone(),
        helper_exe: own_program()?,
        checkpoints: Arc::new(tarn_checkpoint::version_catalog::checkpoints),
        partitions: Arc::new(tarn_partitions::for_step),
        changed_since: world_options.files.guard(&start.workflow),
        epoch: world_options.now,
        meter: Some(cluster::meter()),
        namespaces: cluster::namespaces(world_options.isolation),
        signals: true,
        own,
        peers: None,
        followers: None,
        addresses: std::collections::BTreeMap::new(),
        caller_env,
    };
    match reached {
        Some(reached) => reached.open(config, world_options.margin),
        None => Ok(Box::new(Local::new(config).exit(Exit::State)?)),
    }
}

/// How much of a tier may be cached data, in percent: nothing on nodes that a job has only for a time.
pub(crate) fn cache(args: &RunArgs, elsewhere: bool) -> u8 {
    let in_job = elsewhere || std::env::var_os("SLURM_JOB_ID").is_some();
    match in_job {
        true => 0,
        false => args.cache,
    }
}

fn is_of_step(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(tarn_slurm::is_of_step)
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

/// What the external store is made to look like, as a sentence.
pub(crate) fn emulation(cluster: &Cluster) -> Option<String> {
    let emulated = Emulated::of(&cluster.external)?;
    Some(format!(
        "{emulated}: tarn's own transfers are held back, not what programs read and write themselves"
    ))
}
