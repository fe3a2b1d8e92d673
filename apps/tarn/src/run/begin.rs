//! `tarn run`: the checks before a run, its first event, and its world.

use super::allocation::{AllocationRequest, ConnectedAllocation};
use super::changes::StepChanges;
use super::files::RunFiles;
use super::lock::lock;
use super::margin::{self, Margin};
use super::new_run::{NewRun, check_abilities};
use super::opened::FolderWatcher;
use super::others::{self, PriorDatasets};
use super::prepared::{ObservedFiles, PreparedRun};
use super::world::{WorldOptions, open_world};
use super::{kept, pinned};
use crate::data::removal;
use crate::error::{CliResult, ExitWith};
use crate::globals::Globals;
use crate::options::RunArgs;
use crate::print::message;
use crate::state::open_catalogue;
use crate::{cluster, state, workflow};
use std::sync::Arc;
use tarn_data_plane::Transport;
use tarn_engine::Engine;
use tarn_journal::{LogWriter, runs};
use tarn_node::RereadScope;
use tarn_ports::{Mover, NodeWorld};
use tarn_spec::{Abilities, Inability, Parsed};
use tarn_types::cluster::Cluster;
use tarn_types::codes::Exit;
use tarn_types::event::Event;
use tarn_types::history::History;
use tarn_types::layout::StateDir;
use tarn_types::workflow::Workflow;

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
    let w = &parsed.workflow;
    let workspace = state::workspace(&w.name, state);
    let lock = lock(state, &w.name)?;
    let (reached, cluster) = reach_nodes(globals, args, state, w)?;
    let mover: Arc<dyn Mover> = Arc::new(crate::mover::trees());
    let new = NewRun {
        parsed,
        files: &files,
        args,
        cluster: &cluster,
        elsewhere: reached.is_some(),
        state,
        workspace: &workspace,
        mover: mover.as_ref(),
    };
    new.check()?;
    let others = PriorDatasets::find(state, w, &cluster, new.elsewhere)?;
    let mut catalogue = open_catalogue(state)?;
    if !new.elsewhere {
        removal::remove_expired(&mut catalogue, &w.name, mover.as_ref())?;
    }
    let prior = new.find_prior(&catalogue)?;
    let seen = observe(&new, &others)?;
    let name = runs::allocate(state, &w.name).exit(Exit::State)?;
    let mut start = new.start(name, prior, &others.data);
    start.allocation = reached.as_ref().map(|r| r.job().to_owned());
    start.sealed = args.machine.transport == Transport::Sealed;
    pinned::keep(&catalogue, &mut start)?;
    seen.write(&state.run(&start.run))?;
    let margin = Margin::new(args.margin);
    let world_options = WorldOptions {
        files,
        cluster,
        mover,
        now: 0,
        isolation: args.machine.isolation,
        margin: margin.clone(),
    };
    let energy = reached.as_ref().and_then(ConnectedAllocation::energy);
    let mut world = open_world(state, &start, world_options, reached)?;
    check_world(parsed, &start.cluster, &*world)?;
    start.prior_data = others.whole(state, &start.workspace, &mut *world)?;
    others::set_aside(&mut start.cluster, &mut start.prior_data);
    kept::keep_what_is_there(&mut start, &mut *world, &mut catalogue)?;
    let run = PreparedRun {
        journal: LogWriter::create(&state.log(&start.run)).exit(Exit::State)?,
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
    run.drive(globals, args.report.as_deref())
}

/// The nodes of the allocation that this process is in, or this machine as a cluster.
fn reach_nodes(
    globals: &Globals,
    args: &RunArgs,
    state: &StateDir,
    workflow: &Workflow,
) -> CliResult<(Option<ConnectedAllocation>, Cluster)> {
    let purpose = AllocationRequest {
        state,
        workflow: Some(workflow),
        margin: args.margin,
        log: globals.logged(),
    };
    let reached = ConnectedAllocation::here(&args.machine, &purpose)?;
    let cluster = match &reached {
        Some(reached) => reached.cluster().clone(),
        None => cluster::discover(&args.machine, state)?,
    };
    Ok((reached, cluster))
}

/// The current files of the steps, and their changes since the run before.
fn observe(new: &NewRun<'_>, others: &PriorDatasets) -> CliResult<ObservedFiles> {
    let w = &new.parsed.workflow;
    let before = runs::newest(new.state, Some(&w.name)).exit(Exit::State)?;
    let changes = match before {
        // Nothing has run that could run again.
        None => StepChanges::default(),
        Some(_) => {
            let looks = new.look_at_sources(RereadScope::UntilChanged);
            new.find_changes(&looks, &others.data)
        }
    };
    if new.elsewhere
        && let Some(risk) = margin::at_risk(w)
    {
        message!("note: {risk}");
    }
    Ok(ObservedFiles {
        files: new.files.clone(),
        changes,
        // Steps of other machines open files there.
        watched: if new.elsewhere {
            None
        } else {
            FolderWatcher::new(w, &new.state.0, new.cluster)
        },
        before: before.map(|b| new.state.run(&b.name)),
    })
}

/// Refuses a workflow that needs what this world, once it is open, cannot do.
fn check_world(parsed: &Parsed, cluster: &Cluster, world: &dyn NodeWorld) -> CliResult<()> {
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
        check_abilities(parsed, cluster, &abilities)?;
    }
    Ok(())
}
