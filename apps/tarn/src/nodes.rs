//! `tarn nodes`: tiers, free capacity and memory mode, of this machine or of the nodes of the allocation that this is in.

use crate::cluster;
use crate::error::{CliResult, ExitWith};
use crate::globals::Globals;
use crate::options::MachineArgs;
use crate::print::{self, out};
use crate::run::allocation::{AllocationRequest, ConnectedAllocation};
use serde::Serialize;
use tarn_types::cluster::{Cluster, Node, Socket, Tier};
use tarn_types::codes::Exit;
use tarn_types::energy::{Draw, Power, Warmth};
use tarn_types::layout::StateDir;
use tarn_types::nodes::NodeTierUsage;
use tarn_types::units::Bytes;

/// A tier of a node, as it is now.
#[derive(Debug, Serialize)]
struct TierRow {
    node: String,
    cores: u32,
    memory: u64,
    mode: String,
    tier: String,
    root: String,
    /// The node that exports it, where it is borrowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    lender: Option<String>,
    capacity: u64,
    free: u64,
    read: u64,
    write: u64,
    /// Thousandths of a watt, as far as that is known, and the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    power: Option<Power>,
    /// How warm the node is.
    #[serde(skip_serializing_if = "Option::is_none")]
    warmth: Option<Warmth>,
}

impl TierRow {
    fn exporter_label(&self) -> String {
        let lender = self.lender.as_ref();
        lender.map_or_else(String::new, |lender| format!(" (borrowed from {lender})"))
    }

    /// Its power draw, its temperature, and the sources of both; a dash for an unknown value.
    fn draw(&self) -> [String; 3] {
        let none = || "-".to_owned();
        let watts = self
            .power
            .map(|p| ((p.milliwatts + 500) / 1000).to_string());
        let warm = self
            .warmth
            .map(|w| format!("{} C", (w.millicelsius + 500).div_euclid(1000)));
        let by = [
            self.power.map(|p| p.source.as_str()),
            self.warmth.map(|w| w.sensor.as_str()),
        ];
        let by: Vec<&str> = by.into_iter().flatten().collect();
        let by = if by.is_empty() { none() } else { by.join(", ") };
        [watts.unwrap_or_else(none), warm.unwrap_or_else(none), by]
    }
}

/// How fast a node reads from another one.
#[derive(Debug, Serialize)]
struct NodeLinkRate {
    to: String,
    from: String,
    /// Bytes a second; none where it could not be measured.
    rate: Option<u64>,
}

/// The nodes, and their current state.
struct NodeSurvey {
    cluster: Cluster,
    usages: Vec<NodeTierUsage>,
    /// The links that were looked at.
    between: Vec<NodeLinkRate>,
    /// Whether the nodes are other machines than this one.
    elsewhere: bool,
}

pub(crate) fn nodes(globals: &Globals, args: &MachineArgs) -> CliResult {
    let state = globals.state.clone().unwrap_or_else(|| ".tarn".into());
    let state = StateDir(std::path::absolute(state).exit(Exit::State)?);
    let NodeSurvey {
        cluster: found,
        usages,
        between,
        elsewhere,
    } = survey_nodes(args, &state)?;
    let nodes = found.nodes.iter().zip(&usages);
    let draw = |n: &Node| {
        let host = found.hosts.get(n.host as usize);
        host.map_or_else(Draw::default, |h| h.draw)
    };
    let rows: Vec<TierRow> = nodes
        .flat_map(|(n, usage)| rows(n, usage, draw(n), &found.nodes))
        .collect();
    if globals.json {
        let value = serde_json::json!({
            "schema": 1, "hosts": found.hosts, "tiers": rows, "peer": found.peer, "links": between,
        });
        print::json(&value)?;
        return Ok(Exit::Success);
    }
    print_tiers(&rows, elsewhere)?;
    for host in &found.hosts {
        for socket in &host.sockets {
            out!("{}: {}", host.name, described(socket))?;
        }
    }
    for NodeLinkRate { to, from, rate } in &between {
        match rate {
            Some(rate) => out!("{to} reads from {from}: {}/s", Bytes(*rate))?,
            None => out!("{to} reads from {from}: not known")?,
        }
    }
    if elsewhere && found.nodes.len() > 1 {
        out!(
            "a copy between nodes is planned with {}/s",
            Bytes(found.peer.read)
        )?;
    }
    Ok(Exit::Success)
}

/// A line for each tier; `elsewhere`, also where it is.
fn print_tiers(rows: &[TierRow], elsewhere: bool) -> CliResult<()> {
    out!(
        "{:<10} {:>5} {:>11} {:<12} {:<10} {:>11} {:>11} {:>13} {:>13} {:>6} {:>5}  {:<18}{}",
        "node",
        "cores",
        "memory",
        "mode",
        "tier",
        "capacity",
        "free",
        "read/s",
        "write/s",
        "watts",
        "warm",
        "by",
        if elsewhere { "  at" } else { "" }
    )?;
    for r in rows {
        let [watts, warm, by] = r.draw();
        out!(
            "{:<10} {:>5} {:>11} {:<12} {:<10} {:>11} {:>11} {:>13} {:>13} {:>6} {:>5}  {:<18}{}",
            r.node,
            r.cores,
            Bytes(r.memory),
            r.mode,
            r.tier,
            Bytes(r.capacity),
            Bytes(r.free),
            Bytes(r.read),
            Bytes(r.write),
            watts,
            warm,
            by,
            if elsewhere {
                format!("  {}{}", r.root, r.exporter_label())
            } else {
                String::new()
            }
        )?;
    }
    Ok(())
}

fn described(socket: &Socket) -> String {
    let mut text = format!(
        "socket {} has processors {}",
        socket.number,
        ranges(&socket.cpus)
    );
    if !socket.numa.is_empty() {
        text.push_str(&format!(", NUMA nodes {}", ranges(&socket.numa)));
    }
    if socket.memory > 0 {
        text.push_str(&format!(", {} of memory", Bytes(socket.memory)));
    }
    if !socket.tiers.is_empty() {
        text.push_str(&format!(", tiers {}", socket.tiers.join(", ")));
    }
    text
}

/// Numbers as the kernel writes them: `0-3,8`.
fn ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|a, b| a + 1 == *b);
    let text = runs.filter_map(|run| match run {
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
        [] => None,
    });
    text.collect::<Vec<_>>().join(",")
}

/// The nodes of the allocation that this process is in, each by its own account; or this machine.
fn survey_nodes(args: &MachineArgs, state: &StateDir) -> CliResult<NodeSurvey> {
    let purpose = AllocationRequest {
        state,
        workflow: None,
        margin: 0,
        log: None,
    };
    if let Some(reached) = ConnectedAllocation::here(args, &purpose)? {
        let usages = reached.tier_usage()?;
        let between = reached.between().iter().cloned();
        let between = between.map(|b| NodeLinkRate {
            to: b.to,
            from: b.from,
            rate: b.rate.ok(),
        });
        return Ok(NodeSurvey {
            cluster: reached.cluster().clone(),
            usages,
            between: between.collect(),
            elsewhere: true,
        });
    }
    let found = cluster::discover(args, state)?;
    let roots = |n: &Node| n.tiers.iter().map(|t| t.root.clone()).collect::<Vec<_>>();
    let usages = found
        .nodes
        .iter()
        .map(|n| tarn_node::machine::held_space(&roots(n)));
    let usages = usages.collect();
    Ok(NodeSurvey {
        cluster: found,
        usages,
        between: Vec::new(),
        elsewhere: false,
    })
}

fn rows(node: &Node, usage: &NodeTierUsage, draw: Draw, all: &[Node]) -> Vec<TierRow> {
    let tiers = node.tiers.iter().zip(&usage.held);
    let row = |(tier, held): (&Tier, &u64)| TierRow {
        node: node.name.clone(),
        cores: node.cores,
        memory: node.memory,
        mode: usage.mode.clone(),
        tier: tier.name.clone(),
        root: tier.root.display().to_string(),
        lender: tier
            .lender
            .and_then(|l| Some(all.get(l.at())?.name.clone())),
        capacity: tier.capacity,
        free: tier.capacity.saturating_sub(*held),
        read: tier.read,
        write: tier.write,
        power: draw.power,
        warmth: draw.warmth,
    };
    tiers.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_kernel_does() {
        assert_eq!(ranges(&[8, 0, 4, 1, 5, 2]), "0-2,4-5,8");
        assert_eq!(ranges(&[3]), "3");
        assert_eq!(ranges(&[]), "");
    }
}
