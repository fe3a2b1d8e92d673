//! The resources of this node, for a run that may use all of it.

use super::replicas::Replicas;
use anyhow::anyhow;
use std::path::Path;
use std::time::Duration;
use tarn_data_plane::{DataClientTimeouts, LinkProbe};
use tarn_mover::Trees;
use tarn_node::machine::{self, ClusterSpec, TierSpec};
use tarn_proto::node::Address;
use tarn_types::cluster::{Cluster, Link};
use tarn_types::energy::Draw;
use tarn_types::layout::StateDir;

/// For so long a link is measured: far longer than streams take to come up to speed between neighbours.
const LINK_TIME: Duration = Duration::from_millis(100);
/// Or until so many bytes have come: on a fast link that takes less, and a switch that is shared is spared.
const LINK_BYTES: u64 = 256 << 20;
/// A node that has not answered by then is not measured.
const LINK_TIMEOUT: Duration = Duration::from_secs(5);

/// The node as a cluster of one.
pub(super) fn measure(
    node: &str,
    tiers: &[String],
    external: Link,
    state: &Path,
    draw: Draw,
) -> anyhow::Result<Cluster> {
    let tiers: Result<Vec<TierSpec>, _> = tiers.iter().map(|t| t.parse()).collect();
    let mut tiers = tiers?;
    if tiers.is_empty() {
        tiers.push(machine::default_tier());
    }
    // Tiers that are apart where tarn runs may be one folder here.
    tarn_node::apart(&tiers).map_err(|why| anyhow!("node {node}: {why}"))?;
    let mut found = machine::machine()?;
    found.name = node.to_owned();
    // The job's share of the node: a job step may be bound to fewer.
    let given = std::env::var("SLURM_CPUS_ON_NODE").ok();
    if let Some(cores) = given.and_then(|c| c.parse().ok()).filter(|c| *c > 0) {
        found.cores = cores;
    }
    let remembered = remembered(state, node)?;
    for tier in &tiers {
        // Space of it that is still taken counts.
        tarn_node::exported::settle_idle(&tier.root);
    }
    let requested = tiers.clone();
    for instead in machine::stand_in(&mut tiers, &remembered.0) {
        let (tier, wanted, root) = (&instead.tier, &instead.wanted, &instead.root);
        tracing::warn!(
            "{root} stands in for tier {tier}, which this node does not have at {wanted}: {}",
            instead.why,
            root = root.display(),
            wanted = wanted.display(),
        );
    }
    let mut sockets = machine::sockets().unwrap_or_else(|why| {
        tracing::warn!("nothing is bound to processor sockets: {why}");
        Vec::new()
    });
    let cpus: usize = sockets.iter().map(|s| s.cpus.len()).sum();
    if (found.cores as usize) < cpus {
        // The job has only some of them, and it is unknown which: others may be bound to any.
        sockets.clear();
    }
    let spec = ClusterSpec {
        sockets,
        nodes: 1,
        tiers: &tiers,
        external,
        state: &remembered,
    };
    let mut cluster = machine::cluster(&found, &spec)?;
    cluster.hosts.iter_mut().for_each(|h| h.draw = draw);
    for n in &mut cluster.nodes {
        node.clone_into(&mut n.name);
        let sizes = requested.iter().map(|t| t.size);
        for (tier, size) in n.tiers.iter_mut().zip(sizes) {
            // A size that does not fit is refused of a tier, not of its stand-in.
            tier.capacity = tier.capacity.min(size.unwrap_or(u64::MAX));
        }
    }
    Ok(cluster)
}

/// Bytes a second from the node `from` to this one.
pub(super) fn link(
    node: &str,
    from: &str,
    at: &Address,
    state: &Path,
    replicas: &Replicas,
) -> anyhow::Result<u64> {
    let timeout = DataClientTimeouts {
        connect: LINK_TIMEOUT,
        stall: LINK_TIMEOUT,
        busy: LINK_TIMEOUT,
        crowded: LINK_TIMEOUT,
        arrival: LINK_TIMEOUT,
    };
    let probe = LinkProbe {
        streams: Trees::new().threads(),
        time: LINK_TIME,
        most: LINK_BYTES,
        timeout: LINK_TIMEOUT,
    };
    machine::link(from, &remembered(state, node)?, || {
        let client = replicas.client(from, at, timeout)?;
        let rate = client.rate(&probe);
        rate.map_err(|e| anyhow!(e.failure.message))
    })
}

/// The folder for remembered data of this node; made.
pub(super) fn remembered(state: &Path, node: &str) -> anyhow::Result<StateDir> {
    let folder = state.join("hosts").join(node);
    std::fs::create_dir_all(&folder)
        .map_err(|e| anyhow!("it cannot make {}: {e}", folder.display()))?;
    Ok(StateDir(folder))
}
