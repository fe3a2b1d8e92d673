//! The cluster of one machine, from the command line and from what the machine has.

use crate::args::{self, Isolation, MachineArgs};
use crate::error::{CliError, CliResult, ExitWith};
use tarn_base::cluster::{Cluster, Link};
use tarn_base::codes::Exit;
use tarn_base::layout::StateDir;
use tarn_flow::Abilities;
use tarn_local::{Namespaces, TierSpec, machine};

/// The cluster that the arguments describe. `workspace` is whose use of the tiers does not count as others'.
pub(crate) fn discover(args: &MachineArgs, state: &StateDir, workspace: &str) -> CliResult<Cluster> {
    let mut tiers = Vec::with_capacity(args.tiers.len());
    for text in &args.tiers {
        let (name, root, size) = args::tier(text).map_err(|e| CliError::new(Exit::Usage, e))?;
        let root = std::path::absolute(root).exit(Exit::Usage)?;
        tiers.push(TierSpec { name, root, size });
    }
    let mut cluster = machine::cluster(args.nodes, &tiers, state, workspace).exit(Exit::NoRoom)?;
    cluster.external = external(args, &cluster.external);
    Ok(cluster)
}

fn external(args: &MachineArgs, found: &Link) -> Link {
    Link {
        read: args.external_rate.unwrap_or(found.read),
        write: args.external_rate.unwrap_or(found.write),
        latency: args.external_latency.unwrap_or(0),
        streams: args.external_streams,
        emulated: args.external_rate.is_some() || args.external_latency.is_some(),
    }
}

/// What this way of running can do.
pub(crate) fn abilities(isolation: Isolation) -> Abilities {
    let multi_node = match isolation {
        Isolation::Off => Err("--isolation off keeps all steps in one namespace".to_owned()),
        Isolation::Auto => tarn_local::probe_multi_node(),
    };
    Abilities { multi_node }
}

pub(crate) fn namespaces(isolation: Isolation) -> Namespaces {
    match isolation {
        Isolation::Auto => Namespaces::Auto,
        Isolation::Off => Namespaces::Off,
    }
}
