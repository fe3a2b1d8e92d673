//! `tarn doctor`: the abilities of this machine, and tarn's use of them.

use crate::cluster;
use crate::error::{CliResult, ExitWith};
use crate::finding::{self, CheckFinding, finding};
use crate::globals::Globals;
use crate::options::MachineArgs;
use crate::slurm::{ControllerClient, health};
use clap::Args;
use std::path::Path;
use tarn_mover::Trees;
use tarn_ports::Mover;
use tarn_types::cluster::Host;
use tarn_types::codes::Exit;
use tarn_types::layout::StateDir;
use tarn_types::units::Bytes;

#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// This host as one of a site: Slurm, munge, tarnd, the SPANK plug-in, and the controller if it runs here
    #[arg(long)]
    site: bool,
}

pub(crate) fn doctor(globals: &Globals, args: &DoctorArgs) -> CliResult {
    if args.site {
        let mut all = health::of_node();
        if ControllerClient::of_environment().is_here() {
            all.extend(health::of_controller());
        }
        finding::show(globals, &all)?;
        return Ok(Exit::Success);
    }
    let state = globals.state.clone().unwrap_or_else(|| ".tarn".into());
    let state = StateDir(std::path::absolute(state).exit(Exit::State)?);
    let found = cluster::discover(&args.machine, &state)?;
    let mut all = Vec::new();
    all.extend(found.hosts.iter().flat_map(host_findings));
    all.extend(allocation_finding());
    all.extend(power_findings());
    all.push(finding("memory mode", true, crate::mode::summary()));
    let tiers = found.nodes.iter().take(1).flat_map(|n| &n.tiers);
    all.extend(tiers.map(tier_finding));
    all.push(folder_finding("this folder", Path::new(".")));
    all.push(namespaces_finding());
    all.push(shared_namespace_finding());
    all.push(images());
    all.push(flush_finding());
    all.push(file_finding(
        "io_uring",
        "/proc/sys/kernel/io_uring_disabled",
        |v| v.trim() == "0",
    ));
    all.push(file_finding(
        "userfaultfd",
        "/proc/sys/vm/unprivileged_userfaultfd",
        |_| true,
    ));
    let programs = PROGRAMS.iter();
    all.extend(programs.map(|(program, use_of_it)| program_finding(program, use_of_it)));
    all.push(crate::verbs::finding());
    finding::show(globals, &all)?;
    Ok(Exit::Success)
}

/// Programs that tarn uses if they are there, and their purpose.
const PROGRAMS: [(&str, &str); 8] = [
    ("mpirun", "steps that use MPI"),
    ("sinfo", "Slurm: running inside an allocation"),
    ("munge", "authentication between nodes on a site"),
    ("fi_info", "libfabric: transfers by RDMA"),
    ("ipmctl", "persistent memory modules"),
    ("ndctl", "persistent memory namespaces"),
    ("daxctl", "memory as devices, or as memory of the system"),
    ("cxl", "CXL memory"),
];

fn host_findings(host: &Host) -> [CheckFinding; 2] {
    let capacity = format!(
        "{} cores, {} of memory for steps",
        host.cores,
        Bytes(host.memory)
    );
    let sockets = match host.sockets.len() {
        0 => "one, or all memory is one NUMA node: nothing is bound".to_owned(),
        n => format!("{n}: steps and movement are bound to them (`tarn nodes` shows them)"),
    };
    [
        finding("host", true, capacity),
        finding("sockets", !host.sockets.is_empty(), sockets),
    ]
}

/// The allocation of Slurm that this process is in, if it is in one.
fn allocation_finding() -> Option<CheckFinding> {
    match tarn_slurm::SlurmAllocation::here() {
        Ok(None) => None,
        Ok(Some(job)) => {
            let detail = format!(
                "job {} has {}; `tarn run` uses them",
                job.job,
                job.nodes.join(", ")
            );
            Some(finding("allocation", true, detail))
        }
        Err(e) => Some(finding("allocation", false, e.to_string())),
    }
}

fn namespaces_finding() -> CheckFinding {
    match cluster::multi_node() {
        Ok(()) => finding(
            "namespaces",
            true,
            "steps of several nodes run, inputs are mounted read-only",
        ),
        Err(why) => finding(
            "namespaces",
            false,
            format!("{why}; steps of one node only"),
        ),
    }
}

fn shared_namespace_finding() -> CheckFinding {
    let program = cluster::own_program().map_err(tarn_node::CapabilityError::new);
    match program.and_then(|p| tarn_node::probe_shared(&p)) {
        Ok(()) => finding(
            "shared namespace",
            true,
            "GlusterFS: `shared` datasets over several machines",
        ),
        Err(why) => finding(
            "shared namespace",
            false,
            format!("{why}; `shared` only over nodes of one machine"),
        ),
    }
}

/// The power meter of this machine, and meters that are there but cannot be read.
fn power_findings() -> Vec<CheckFinding> {
    let meter = cluster::meter();
    let sensors = meter.sensors();
    let meter = match sensors.source() {
        Some(source) => finding("power", true, format!("measured by {source}")),
        None => finding(
            "power",
            false,
            "no meter that can be read: energy of steps is not known from this machine",
        ),
    };
    let closed = sensors.closed.iter();
    let closed = closed.map(|why| finding("power", false, why.clone()));
    std::iter::once(meter).chain(closed).collect()
}

fn tier_finding(tier: &tarn_types::cluster::Tier) -> CheckFinding {
    let detail = format!(
        "{}: {} at {}, reads {}/s, writes {}/s (measured)",
        tier.name,
        Bytes(tier.capacity),
        tier.root.display(),
        Bytes(tier.read),
        Bytes(tier.write)
    );
    finding("tier", tier.capacity > 0, detail)
}

fn folder_finding(what: &str, folder: &Path) -> CheckFinding {
    match Trees::new().capabilities(folder) {
        Ok(c) => {
            let mark = |name: &str, has: bool| format!("{}{name}", if has { "" } else { "no " });
            let parts = [
                mark("reflinks", c.reflink),
                mark("extended attributes", c.xattrs),
                mark("atomic exchange", c.exchange),
                mark("holes", c.sparse),
            ];
            finding(what, true, parts.join(", "))
        }
        Err(e) => finding(what, false, e.to_string()),
    }
}

/// Images of steps that are alone hold more, and need more of the machine.
fn images() -> CheckFinding {
    const WHAT: &str = "images";
    if let Err(why) = cluster::images(false) {
        return finding(WHAT, false, format!("{why}; no `restart = \"image\"`"));
    }
    let text = "CRIU: steps may have `restart = \"image\"`";
    match cluster::images(true) {
        Ok(()) => finding(
            WHAT,
            true,
            format!("{text}, with or without `alone = true`"),
        ),
        Err(why) => finding(WHAT, true, format!("{text}, not `alone = true`: {why}")),
    }
}

fn flush_finding() -> CheckFinding {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags: Vec<&str> = text
        .lines()
        .find(|l| l.starts_with("flags"))
        .unwrap_or("")
        .split(' ')
        .collect();
    let have: Vec<_> = ["clflush", "clflushopt", "clwb"]
        .into_iter()
        .filter(|f| flags.contains(f))
        .collect();
    finding("flush", !have.is_empty(), have.join(", "))
}

fn file_finding(what: &str, path: &str, there: impl Fn(&str) -> bool) -> CheckFinding {
    match std::fs::read_to_string(path) {
        Ok(value) => finding(what, there(&value), format!("{path} is {}", value.trim())),
        Err(_) => finding(what, false, format!("{path} is not there")),
    }
}

fn program_finding(program: &str, use_of_it: &str) -> CheckFinding {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|p| p.join(program))
        .find(|p| p.is_file());
    match found {
        Some(p) => finding(program, true, format!("{}: {use_of_it}", p.display())),
        None => finding(program, false, format!("not on PATH: {use_of_it}")),
    }
}
