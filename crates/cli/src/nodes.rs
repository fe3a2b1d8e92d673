//! `tarn nodes`: tiers, free capacity and memory mode, of this machine or of the nodes of the allocation that this is in.

use crate::args::{Cli, MachineArgs};
use crate::cluster;
use crate::error::{CliResult, ExitWith};
use crate::print::{self, out};
use crate::run::allocation::Reached;
use serde::Serialize;
use tarn_base::codes::Exit;
use tarn_base::layout::StateDir;
use tarn_base::units::Bytes;

/// A tier of a node, as it is now.
#[derive(Debug, Serialize)]
struct Row {
    node: String,
    cores: u32,
    memory: u64,
    /// Of another machine it is not known.
    mode: Option<String>,
    tier: String,
    root: String,
    capacity: u64,
    /// Of another machine nobody knows here what others hold.
    free: Option<u64>,
    read: u64,
    write: u64,
}

pub(crate) fn nodes(cli: &Cli, args: &MachineArgs) -> CliResult {
    let state = cli.state.clone().unwrap_or_else(|| ".tarn".into());
    let state = StateDir(std::path::absolute(state).exit(Exit::State)?);
    let reached = reach(args, &state)?;
    let found = match &reached {
        Some(reached) => reached.cluster().clone(),
        None => cluster::discover(args, &state)?,
    };
    let mode = reached.is_none().then(memory_mode);
    let rows: Vec<Row> = found
        .nodes
        .iter()
        .flat_map(|n| n.tiers.iter().map(|t| row(n, t, mode.as_deref())))
        .collect();
    if cli.json {
        let value = serde_json::json!({"schema": 1, "hosts": found.hosts, "tiers": rows});
        print::json(&value)?;
        return Ok(Exit::Success);
    }
    out!(
        "{:<10} {:>5} {:>11} {:<12} {:<10} {:>11} {:>11} {:>13} {:>13}{}",
        "node",
        "cores",
        "memory",
        "mode",
        "tier",
        "capacity",
        "free",
        "read/s",
        "write/s",
        if reached.is_some() { "  at" } else { "" }
    )?;
    let unknown = || "-".to_owned();
    for r in &rows {
        out!(
            "{:<10} {:>5} {:>11} {:<12} {:<10} {:>11} {:>11} {:>13} {:>13}{}",
            r.node,
            r.cores,
            Bytes(r.memory),
            r.mode.clone().unwrap_or_else(unknown),
            r.tier,
            Bytes(r.capacity),
            r.free.map_or_else(unknown, |free| Bytes(free).to_string()),
            Bytes(r.read),
            Bytes(r.write),
            match reached.is_some() {
                true => format!("  {}", r.root),
                false => String::new(),
            }
        )?;
    }
    Ok(Exit::Success)
}

/// The nodes of the allocation, if this is in one: they are measured as for a run.
fn reach(args: &MachineArgs, state: &StateDir) -> CliResult<Option<Reached>> {
    let made = !args.local && !state.0.is_dir() && std::env::var_os("SLURM_JOB_ID").is_some();
    if made {
        // What all nodes must see is looked at there.
        std::fs::create_dir(&state.0).exit(Exit::State)?;
    }
    Reached::here(args, state)
}

fn row(
    node: &tarn_base::cluster::Node,
    tier: &tarn_base::cluster::Tier,
    mode: Option<&str>,
) -> Row {
    let others = || tarn_local::held_by_others(&tier.root, "");
    Row {
        node: node.name.clone(),
        cores: node.cores,
        memory: node.memory,
        mode: mode.map(str::to_owned),
        tier: tier.name.clone(),
        root: tier.root.display().to_string(),
        capacity: tier.capacity,
        free: mode.map(|_| tier.capacity.saturating_sub(others())),
        read: tier.read,
        write: tier.write,
    }
}

/// The memory mode of this machine: where its memory beyond DRAM is, if it has any (Jackson 2019, section 2.2;
/// Weiland 2018, sections 1.2 and 1.3).
pub(crate) fn memory_mode() -> String {
    let entries = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count);
    let namespaces = entries("/sys/bus/nd/devices");
    let dax = entries("/sys/bus/dax/devices");
    let as_memory = entries("/sys/bus/dax/drivers/kmem") > 3;
    match (namespaces, dax, as_memory) {
        (0, 0, _) => "dram".into(),
        (_, _, true) => "system-ram".into(),
        _ => "app-direct".into(),
    }
}
