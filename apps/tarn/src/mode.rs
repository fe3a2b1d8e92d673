//! `tarn mode`: memory modes of this node. docs/admin/memory-modes.md.

mod ask;
mod tool;
mod uses;

use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::print::{self, message, out};
use clap::{Args, Subcommand, ValueEnum};
use std::collections::BTreeSet;
use std::fs::File;
use std::time::{Duration, Instant};
use tarn_memory_modes::{
    DestroyPermission, Inventory, ModeChangePlan, ModeChangeRequest, ModeChangeTarget,
    NamespaceMode, Rule, ToolState,
};
use tarn_types::codes::Exit;
use tarn_types::units::Bytes;

/// A process that changes a mode locks this folder, so that no two change it at once, and no file is left behind.
const LOCK: &str = "/run";
/// How long one waits for the other: commands on namespaces take seconds, a page map minutes.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Subcommand)]
pub(crate) enum ModeCommand {
    /// The mode, by socket, with modules, regions, namespaces and devices
    Show(ShowArgs),
    /// Plan a change: its commands, the data that they destroy, its time, and why it is refused
    Plan(ChangeArgs),
    /// Change it; needs root. Devices in use are not touched unless they are named
    Set(ChangeArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ShowArgs {
    /// Only the mode, as a feature of the node in Slurm: mode_1lm, mode_2lm, mode_mixed50
    #[arg(long, conflicts_with = "island")]
    feature: bool,
    /// Only the island of nodes like this one, for the cluster file of `tarn sim`
    #[arg(long)]
    island: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ChangeArgs {
    /// 1lm, 2lm, mixed5 to mixed95 (per cent that become memory), or of one device devdax, system-ram
    target: ModeChangeTarget,
    /// The DAX device, such as dax0.0 [default: the only one]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Namespaces or devices that may be destroyed, by name, in use or not; `idle` is all that nobody uses
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        env = "TARN_MODE_DESTROY"
    )]
    destroy: Vec<String>,
    /// Rules that the population of DIMMs may break
    #[arg(long, value_enum, value_name = "RULE,...", value_delimiter = ',')]
    accept: Vec<Accepted>,
    /// Once the mode is there: make a namespace in each region that has none
    #[arg(long, value_enum, value_name = "KIND", env = "TARN_MODE_NAMESPACES")]
    namespaces: Option<NamespaceModeArg>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Accepted {
    /// DRAM for modules beyond 1:4 to 1:16
    Ratio,
    /// DIMMs where no vendor puts them
    Layout,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum NamespaceModeArg {
    /// For file systems
    Fsdax,
    /// For programs that map a device
    Devdax,
}

impl ChangeArgs {
    fn ask(&self) -> ModeChangeRequest {
        let (idle, named): (BTreeSet<String>, _) =
            self.destroy.iter().cloned().partition(|n| n == "idle");
        let accept = self.accept.iter().map(|a| match a {
            Accepted::Ratio => Rule::Ratio,
            Accepted::Layout => Rule::Layout,
        });
        ModeChangeRequest {
            target: self.target,
            device: self.device.clone(),
            destroy: DestroyPermission {
                idle: !idle.is_empty(),
                named,
            },
            accept: accept.collect(),
            namespaces: self.namespaces.map(|k| match k {
                NamespaceModeArg::Fsdax => NamespaceMode::Fsdax,
                NamespaceModeArg::Devdax => NamespaceMode::Devdax,
            }),
        }
    }
}

pub(crate) fn mode(globals: &Globals, command: &ModeCommand) -> CliResult {
    match command {
        ModeCommand::Show(args) => show(globals, args),
        ModeCommand::Plan(args) => {
            let plan = tarn_memory_modes::plan(&ask::inventory(), &args.ask());
            print_plan(globals, &plan)?;
            Ok(if plan.refusals.is_empty() {
                Exit::Success
            } else {
                Exit::WorkflowFailed
            })
        }
        ModeCommand::Set(args) => set(globals, args),
    }
}

/// The mode in words, for `tarn doctor`.
pub(crate) fn summary() -> String {
    let inventory = ask::inventory();
    let mut text = inventory.present().to_string();
    if let Some(pending) = inventory.pending() {
        text += &format!(", {pending} after a reboot");
    }
    if !inventory.is_from_ipmctl() {
        text += " (as the kernel shows it)";
    }
    let persistent = inventory.persistent_bytes();
    text += &match persistent {
        0 => "; no persistent memory".to_owned(),
        bytes => format!("; {} persistent", Bytes(bytes)),
    };
    for dax in &inventory.dax {
        text += &format!("; {} is {}", dax.name, dax.mode);
    }
    text
}

fn show(globals: &Globals, args: &ShowArgs) -> CliResult {
    let inventory = ask::inventory();
    let present = inventory.present();
    if args.feature {
        // Always a word: Slurm takes a node whose helper says nothing to have all features.
        out!("{}{present}", tarn_memory_modes::FEATURE)?;
        return Ok(Exit::Success);
    }
    if args.island {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let text = tarn_memory_modes::island(&inventory, "node", u32::try_from(cores).unwrap_or(1));
        print::text(&text)?;
        return Ok(Exit::Success);
    }
    if globals.json {
        print::json(&serde_json::json!({
            "schema": 1, "mode": present, "told_by": mode_source(&inventory),
            "pending": inventory.pending(), "persistent": inventory.persistent_bytes(),
            "sockets": inventory.sockets(), "inventory": inventory,
        }))?;
        return Ok(Exit::Success);
    }
    out!(
        "mode        {present} (according to {})",
        mode_source(&inventory)
    )?;
    if let Some(pending) = inventory.pending() {
        out!("pending     {pending}: a reboot makes it so")?;
    }
    out!("persistent  {}", Bytes(inventory.persistent_bytes()))?;
    for socket in inventory.sockets() {
        out!(
            "socket {:<4} {}: {} modules, {} memory, {} persistent",
            socket.socket,
            socket.mode,
            socket.modules,
            Bytes(socket.memory),
            Bytes(socket.app_direct)
        )?;
    }
    for node in &inventory.numa {
        let kind = match (node.processors, node.cache) {
            (_, cache) if cache > 0 => format!(", cached by {} of DRAM", Bytes(cache)),
            (false, _) => ", without processors".to_owned(),
            _ => String::new(),
        };
        out!("NUMA {:<6} {}{kind}", node.number, Bytes(node.total))?;
    }
    print_devices(&inventory)?;
    Ok(Exit::Success)
}

/// Regions, namespaces and devices, their users, and the tools that did not answer.
fn print_devices(inventory: &Inventory) -> CliResult<()> {
    for region in &inventory.regions {
        let (name, size, free) = (&region.name, Bytes(region.size), Bytes(region.available));
        out!("{name:<11} {size}, {free} without a namespace")?;
    }
    for namespace in &inventory.namespaces {
        let device = namespace.device.as_deref().unwrap_or("no device");
        let (name, mode, size) = (&namespace.name, &namespace.mode, Bytes(namespace.size));
        out!("{name:<11} {mode}, {size}, {device}")?;
    }
    for dax in &inventory.dax {
        out!("{:<11} {}, {}", dax.name, dax.mode, Bytes(dax.size))?;
    }
    for device in &inventory.cxl {
        let (ram, pmem) = (Bytes(device.ram), Bytes(device.pmem));
        out!("{:<11} CXL, {ram} volatile, {pmem} persistent", device.name)?;
    }
    for used in &inventory.uses {
        out!("in use      {used}")?;
    }
    for tool in &inventory.tools {
        match &tool.state {
            ToolState::Answered => {}
            ToolState::Missing => {
                message!("note: {} is missing (package {})", tool.name, tool.package)
            }
            ToolState::Failed { why } => message!("note: {}: {why}", tool.name),
        }
    }
    Ok(())
}

fn mode_source(inventory: &Inventory) -> &'static str {
    if inventory.is_from_ipmctl() {
        "ipmctl"
    } else {
        "the kernel"
    }
}

fn print_plan(globals: &Globals, plan: &ModeChangePlan) -> CliResult<()> {
    if globals.json {
        let mut value = serde_json::to_value(plan).exit(Exit::Internal)?;
        if let Some(fields) = value.as_object_mut() {
            fields.insert("schema".into(), 1.into());
        }
        return print::json(&value);
    }
    out!("{} -> {}", plan.from, plan.to)?;
    if plan.done {
        out!("nothing to do")?;
    }
    for why in &plan.refusals {
        out!("refused     {why}")?;
    }
    for lost in &plan.destroys {
        let uses = if lost.uses.is_empty() {
            "nobody uses it".to_owned()
        } else {
            lost.uses.join(", ")
        };
        out!("destroys    {}, {}: {uses}", lost.name, Bytes(lost.bytes))?;
    }
    for change in &plan.commands {
        out!(
            "runs        {} {}  ({})",
            change.program,
            change.args.join(" "),
            change.why
        )?;
    }
    if let Some(after) = plan.after {
        let (memory, persistent) = (Bytes(after.memory), Bytes(after.persistent));
        out!("after       {memory} memory, {persistent} persistent")?;
    }
    if plan.reboot {
        out!("reboot      needed")?;
    }
    if plan.seconds > 0 {
        out!("takes       about {} s (an estimate)", plan.seconds)?;
    }
    for note in &plan.notes {
        out!("note        {note}")?;
    }
    Ok(())
}

fn set(globals: &Globals, args: &ChangeArgs) -> CliResult {
    if !rustix::process::geteuid().is_root() {
        let text = "only root may change a memory mode: run it with sudo; `tarn mode plan` shows what it would do";
        return Err(CliError::new(Exit::Usage, text));
    }
    let _lock = lock()?;
    let ask = args.ask();
    let plan = tarn_memory_modes::plan(&ask::inventory(), &ask);
    print_plan(globals, &plan)?;
    if !plan.refusals.is_empty() {
        let text = format!(
            "{} is refused, and nothing was changed: {}",
            plan.to, plan.refusals[0]
        );
        return Err(CliError::new(Exit::WorkflowFailed, text));
    }
    let who = std::env::var("SUDO_USER")
        .map_or_else(|_| "root".to_owned(), |user| format!("root for {user}"));
    for change in &plan.commands {
        let line = format!("{} {}", change.program, change.args.join(" "));
        message!("audit: {who} changes {} to {}: {line}", plan.from, plan.to);
        let words: Vec<&str> = change.args.iter().map(String::as_str).collect();
        let failed = |why: String| {
            let text = format!(
                "`{line}` failed: {why}; the commands before it stay done: mend the cause and run the same again"
            );
            CliError::new(Exit::WorkflowFailed, text)
        };
        let answer =
            tool::run(change.program, &words, tool::CHANGE).map_err(|e| failed(e.to_string()))?;
        if !answer.success {
            return Err(failed(answer.complaint()));
        }
    }
    if plan.reboot {
        message!("audit: {} waits for a reboot", plan.to);
    }
    Ok(Exit::Success)
}

/// The lock on changes; it goes with the process.
fn lock() -> CliResult<File> {
    let file = File::open(LOCK)
        .map_err(|e| CliError::new(Exit::State, format!("{LOCK} cannot be locked: {e}")))?;
    let until = Instant::now() + TIMEOUT;
    loop {
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let text = "another `tarn mode set` is at work here: wait until it has ended";
                return Err(CliError::new(Exit::Busy, text));
            }
            Err(e) => return Err(CliError::new(Exit::State, format!("{LOCK}: {e}"))),
        }
    }
}
