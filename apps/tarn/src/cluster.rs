//! The cluster of one machine, or the common part of all nodes of an allocation, from the command line and from the machine.

use crate::error::{CliError, CliResult, ExitWith};
use crate::options::{BindArg, IsolationArg, MachineArgs};
use crate::print::message;
use anyhow::Context;
use std::path::PathBuf;
use std::sync::Arc;
use tarn_mover::Trees;
use tarn_node::Namespaces;
use tarn_node::machine::{self, ClusterSpec};
use tarn_ports::Meter;
use tarn_spec::{Abilities, Inability};
use tarn_types::cluster::{Cluster, Link, Socket};
use tarn_types::codes::Exit;
use tarn_types::layout::StateDir;

/// Bytes a second that an external store is taken to have while nothing was measured or emulated: a busy
/// parallel file system, as one node sees it (the papers' Lustre gave some 50 to 100 MB/s).
const ASSUMED_EXTERNAL_RATE: u64 = 100_000_000;

/// The cluster of this machine that the arguments describe.
pub(crate) fn discover(args: &MachineArgs, state: &StateDir) -> CliResult<Cluster> {
    if args.peer_rate.is_some() {
        message!(
            "note: --peer-rate has no effect on one machine: its nodes read the same memory or disk"
        );
    }
    let tiers = tiers(args)?;
    let found = machine::machine().exit(Exit::State)?;
    let spec = ClusterSpec {
        nodes: args.nodes.unwrap_or(1),
        tiers: &tiers,
        external: external(args),
        state,
        sockets: if args.oversubscribe {
            // There are no cores of a step's own.
            Vec::new()
        } else {
            sockets(args.bind)
        },
    };
    let found = machine::cluster(&found, &spec).map_err(|e| match e {
        machine::MachineError::NoSpace { .. } => CliError::new(Exit::NoSpace, e),
        other => CliError::new(Exit::State, other),
    });
    let mut found = found?;
    let draw = meter().draw();
    found.hosts.iter_mut().for_each(|h| h.draw = draw);
    if args.oversubscribe {
        oversubscribe(&mut found);
    }
    Ok(found)
}

/// This program: the programs beside it start steps, and tarnd on nodes.
pub(crate) fn own_program() -> CliResult<PathBuf> {
    std::env::current_exe()
        .context("cannot find tarn's own program, which runs the steps")
        .exit(Exit::Internal)
}

/// Gives each node as many cores as its host has.
fn oversubscribe(cluster: &mut Cluster) {
    let Cluster { hosts, nodes, .. } = cluster;
    for (at, host) in hosts.iter_mut().enumerate() {
        let mut here = 0u32;
        for node in nodes.iter_mut().filter(|n| n.host as usize == at) {
            node.cores = host.cores;
            here += 1;
        }
        host.cores = host.cores.saturating_mul(here.max(1));
    }
}

/// This machine's power meter.
pub(crate) fn meter() -> Arc<tarn_power::MachineMeter> {
    Arc::new(tarn_power::MachineMeter::new(&tarn_power::sysfs()))
}

/// The processor sockets to which steps and movement on this machine are bound.
fn sockets(bind: BindArg) -> Vec<Socket> {
    if bind == BindArg::None {
        return Vec::new();
    }
    machine::sockets().unwrap_or_else(|why| {
        message!("note: nothing is bound to processor sockets: {why}");
        Vec::new()
    })
}

/// The tiers of every node, in folders of their own.
pub(crate) fn tiers(args: &MachineArgs) -> CliResult<Vec<machine::TierSpec>> {
    let tiers: Result<Vec<_>, _> = args.tiers.iter().map(|t| t.parse()).collect();
    let mut tiers: Vec<machine::TierSpec> = tiers.exit(Exit::Usage)?;
    if tiers.is_empty() {
        tiers.push(machine::default_tier());
    }
    for tier in &mut tiers {
        tier.root = std::path::absolute(&tier.root).exit(Exit::Usage)?;
    }
    tarn_node::apart(&tiers).map_err(|why| CliError::new(Exit::Usage, anyhow::anyhow!(why)))?;
    Ok(tiers)
}

/// The external store, as it is taken to be.
pub(crate) fn external(args: &MachineArgs) -> Link {
    let rate = args.external_rate.unwrap_or(ASSUMED_EXTERNAL_RATE);
    Link {
        read: rate,
        write: rate,
        latency: args.external_latency.unwrap_or(0),
        streams: args.external_streams,
        emulated: args.external_rate.is_some(),
    }
}

/// The abilities of this way of running.
pub(crate) fn abilities(isolation: IsolationArg) -> Abilities {
    let multi_node = match isolation {
        IsolationArg::Off => Err(Inability::new(
            "--isolation off keeps all steps in one namespace",
        )),
        IsolationArg::Auto => multi_node(),
    };
    let namespaces = multi_node.clone();
    Abilities {
        // The nodes of one machine show the same folder.
        shared: multi_node.clone(),
        multi_node,
        // Found out when the world of a run that wants it is opened: it takes an image and a restore.
        images: Ok(()),
        encryption: namespaces.and_then(|()| user_has_key()),
    }
}

/// Whether there is what the keys of encrypted data are wrapped with, or why not.
pub(crate) fn user_has_key() -> Result<(), Inability> {
    let keys = tarn_keyring::of_user();
    keys.map(drop).map_err(Inability::new)
}

/// Whether steps of several nodes can run here, or why not.
pub(crate) fn multi_node() -> Result<(), Inability> {
    let helper = std::env::current_exe().map_err(Inability::new)?;
    let probed = tarn_node::probe_multi_node(&helper, &std::env::temp_dir());
    probed.map_err(Inability::new)
}

/// Whether images of a step's processes, which may be alone, can be taken here, or why not.
pub(crate) fn images(alone: bool) -> Result<(), Inability> {
    let helper = std::env::current_exe().map_err(Inability::new)?;
    let env: Vec<_> = std::env::vars_os().collect();
    let folder = std::env::temp_dir();
    let mover = Trees::new();
    let probed = tarn_node::image::able::probe_images(&helper, &folder, &env, &mover, alone);
    probed.map_err(Inability::new)
}

pub(crate) fn namespaces(isolation: IsolationArg) -> Namespaces {
    match isolation {
        IsolationArg::Auto => Namespaces::Auto,
        IsolationArg::Off => Namespaces::Off,
    }
}
