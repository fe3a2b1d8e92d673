//! Opens a world before it runs: folders, ledgers and keys, and what steps can have on this machine.

use super::needs::StepCapabilities;
use super::{Config, world_error};
use crate::attempt::jobs::SyntheticJobIds;
use crate::attempt::node_context::NodeContext;
use crate::helper::command::with_shells;
use crate::helper::protocol::StepIsolation;
use crate::sockets::Sockets;
use crate::storage::data_context::{DataContext, NodeLoopEvent};
use crate::storage::keys::DataKeys;
use crate::storage::ledger::Ledgers;
use crate::storage::run_facts::RunFacts;
use crate::storage::store::make_folder;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use tarn_ports::CapabilityError;
use tarn_ports::{Progress, WorldError};
use tarn_types::event::{PriorData, PriorInstance, RunError};
use tarn_types::hash::Hash;
use tarn_types::id::TierRef;
use tarn_types::nodes::OwnedNodes;
use tarn_types::part::StoreKey;
use tarn_types::workflow::Dataset;

/// Makes the folders of a run, opens the ledgers of its tiers, and finds out what steps can have here. Also what earlier runs left.
pub(super) fn open_context(
    config: Config,
    deliveries: Sender<NodeLoopEvent>,
) -> Result<(NodeContext, Vec<PriorInstance>), WorldError> {
    let folder = |f: RunError| WorldError(f.message);
    make_folder(&config.state.manifests(&config.workspace)).map_err(folder)?;
    make_folder(&config.state.run(&config.run)).map_err(folder)?;
    let ledgers = Ledgers::open(&config.cluster, &config.own, &config.workspace).map_err(folder)?;
    let can = StepCapabilities::probe(&config);
    let keys = open_keys(&config, &can.isolation)?;
    let mut facts = RunFacts {
        run: config.run,
        workspace: config.workspace,
        workflow: config.workflow,
        cluster: config.cluster,
        own: config.own,
        state: config.state,
    };
    with_shells(&mut facts.workflow, &config.caller_env);
    let jobs = SyntheticJobIds::new(&facts.workspace, &facts.run);
    let data = DataContext {
        sockets: Sockets::of(&facts.cluster, &facts.own),
        facts,
        peers: config.peers,
        mover: config.mover,
        keys,
        ledgers,
        progress: Progress::default(),
        remembered: Mutex::default(),
        parts: Mutex::default(),
        hashes: Mutex::new(known_hashes(&config.prior)),
        others: Mutex::new(folders_of_others(&config.prior_data)),
        reusable: AtomicBool::new(!config.prior.is_empty()),
        copied: Mutex::default(),
        deliveries,
    };
    let context = NodeContext {
        data: Arc::new(data),
        followers: config.followers,
        helper: config.helper_exe,
        checkpoints: config.checkpoints,
        partitions: config.partitions,
        changed_since: config.changed_since,
        meter: config.meter,
        isolation: can.isolation.clone().unwrap_or(StepIsolation::Group),
        multi_node: can.isolation.map(drop),
        one_namespace: can.one_namespace,
        imaging: can.imaging,
        addresses: config.addresses,
        caller_env: config.caller_env,
        writers: Arc::default(),
        jobs,
    };
    Ok((context, config.prior))
}

/// The keys of the encrypted datasets, if there are any; refused where these would not be kept as such.
fn open_keys(
    config: &Config,
    isolation: &Result<StepIsolation, CapabilityError>,
) -> Result<Option<DataKeys>, WorldError> {
    let Some(dataset) = config.workflow.data.iter().find(|d| d.encrypt) else {
        return Ok(None);
    };
    check_encryption(dataset, &config.own, isolation, config.keys.is_some())?;
    let wrapping = config.keys.clone();
    let keys = wrapping.map(|w| DataKeys::new(&config.state, &config.workspace, w));
    if let (Some(keys), OwnedNodes::Some(_)) = (&keys, &config.own) {
        let handed = keys.hand_over();
        handed.map_err(|e| world_error("keys cannot be made ready for nodes", &e))?;
    }
    Ok(keys)
}

/// Refuses an encrypted dataset where it would not be kept as one. The nodes of an allocation report with their other
/// capabilities whether steps have namespaces.
fn check_encryption(
    dataset: &Dataset,
    own: &OwnedNodes,
    isolation: &Result<StepIsolation, CapabilityError>,
    has_keys: bool,
) -> Result<(), WorldError> {
    let why = match (own, isolation, has_keys) {
        (OwnedNodes::All, Err(why), _) => {
            &format!("a step's unencrypted view of it needs namespaces: {why}")
        }
        (.., false) => "you have no key; `tarn key new` makes one",
        _ => return Ok(()),
    };
    let message = format!("dataset `{}` cannot be encrypted: {why}", dataset.name);
    Err(WorldError(message))
}

/// The folders of other workflows' replicas.
fn folders_of_others(prior: &[PriorData]) -> BTreeMap<(TierRef, StoreKey), PathBuf> {
    let parts = prior.iter().flat_map(|data| &data.parts);
    let folders = parts.flat_map(|part| {
        let folder = |(tier_ref, path): &(TierRef, PathBuf)| {
            ((*tier_ref, part.info.key.clone()), path.clone())
        };
        part.at.iter().map(folder)
    });
    folders.collect()
}

fn known_hashes(prior: &[PriorInstance]) -> BTreeMap<StoreKey, Hash> {
    let outputs = prior.iter().flat_map(|p| &p.outputs);
    let parts = outputs.flat_map(|o| &o.parts);
    parts
        .filter_map(|(info, _)| Some((info.key.clone(), info.hash?)))
        .collect()
}
