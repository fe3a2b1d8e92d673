//! The world of a run: this machine, or the nodes of an allocation.

use super::allocation::ConnectedAllocation;
use super::files::RunFiles;
use super::margin::Margin;
use super::variables;
use crate::cluster::{self, own_program};
use crate::error::{CliResult, ExitWith};
use crate::options::IsolationArg;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tarn_node::{Config, Local};
use tarn_ports::{Mover, NodeWorld};
use tarn_report::Emulated;
use tarn_types::cluster::Cluster;
use tarn_types::codes::Exit;
use tarn_types::event::Start;
use tarn_types::layout::StateDir;
use tarn_types::nodes::OwnedNodes;
use tarn_types::units::Time;

/// How a world is opened.
pub(super) struct WorldOptions {
    pub(super) files: RunFiles,
    pub(super) mover: Arc<dyn Mover>,
    /// With all of its tiers, whatever others take of them.
    pub(super) cluster: Cluster,
    pub(super) now: Time,
    pub(super) isolation: IsolationArg,
    pub(super) margin: Margin,
}

pub(super) fn open_world(
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
    // The nodes have it from here: `bash` is the same for all.
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
        addresses: BTreeMap::new(),
        caller_env,
    };
    match reached {
        Some(reached) => reached.open(config, world_options.margin),
        None => Ok(Box::new(Local::new(config).exit(Exit::State)?)),
    }
}

fn is_of_step(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(tarn_slurm::is_of_step)
}

/// The emulated properties of the external store, as a sentence.
pub(crate) fn emulation(cluster: &Cluster) -> Option<String> {
    let emulated = Emulated::of(&cluster.external)?;
    Some(format!(
        "{emulated}: tarn's own transfers are held back, not what programs read and write themselves"
    ))
}
