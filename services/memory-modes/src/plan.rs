//! The plan of a mode change: commands in order, the data that they destroy, how long it lasts, and why it is refused.

use crate::inventory::{Inventory, ToolState};
use crate::kernel::UseKind;
use crate::mode::{CurrentMode, DaxMode, MemoryMode, ModeChangeTarget};
use crate::ndctl::{Dax, Namespace};
use crate::population::{PopulationFinding, Rule, check};
use serde::Serialize;
use std::collections::BTreeSet;
use tarn_types::units::Bytes;

/// Estimates, in seconds. A server with modules tests and maps them when it starts: sites report five to fifteen minutes.
pub(crate) const REBOOT_SECONDS: u64 = 600;
/// Taking a namespace away, or the file system on it.
const NAMESPACE_SECONDS: u64 = 10;
/// Writing a goal to all modules.
const GOAL_SECONDS: u64 = 20;
/// Making the page map of a namespace: 16 GiB for each TiB, written at some 0.5 GiB/s.
const MAP_SECONDS_A_TIB: u64 = 30;
/// Taking memory away from the system: pages are moved at some 1 GiB/s.
const MOVED_A_SECOND: u64 = 1 << 30;

/// The namespaces and devices that the change may destroy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DestroyPermission {
    /// Those that nobody uses.
    pub idle: bool,
    /// These namespaces or devices, in use or not.
    pub named: BTreeSet<String>,
}

/// The kind of namespaces to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamespaceMode {
    /// For file systems.
    Fsdax,
    /// For programs that map a device.
    Devdax,
}

/// The requested change.
#[derive(Debug, Clone)]
pub struct ModeChangeRequest {
    /// The mode.
    pub target: ModeChangeTarget,
    /// The device, where the target is of one.
    pub device: Option<String>,
    /// The namespaces and devices that the change may destroy.
    pub destroy: DestroyPermission,
    /// Rules that may be broken.
    pub accept: BTreeSet<Rule>,
    /// Namespaces to make where regions have none, once the mode is there.
    pub namespaces: Option<NamespaceMode>,
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModeChangeCommand {
    /// The program.
    pub program: &'static str,
    /// Its words.
    pub args: Vec<String>,
    /// Its purpose.
    pub why: String,
}

/// Something that will be gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Destroyed {
    /// The namespace or device.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its uses.
    pub uses: Vec<String>,
}

/// The capacity of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryCapacity {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes that are persistent.
    pub persistent: u64,
}

impl MemoryCapacity {
    /// The capacity by modules and DRAM in a mode, without the loss to firmware's alignment.
    pub fn of(inventory: &Inventory, mode: MemoryMode) -> Self {
        let modules = inventory.module_bytes();
        let share = u128::from(mode.memory_share());
        let on_modules = (u128::from(modules) * share / 100) as u64;
        Self {
            memory: match mode {
                MemoryMode::OneLevel => inventory.dram_bytes(),
                _ => on_modules,
            },
            persistent: modules - on_modules,
        }
    }
}

/// The plan of a change.
#[derive(Debug, Clone, Serialize)]
pub struct ModeChangePlan {
    /// The mode now.
    pub from: String,
    /// The requested mode.
    pub to: String,
    /// Whether there is nothing to do.
    pub done: bool,
    /// The mode that a goal already sets for the next reboot.
    pub pending: Option<String>,
    /// The commands, in order. Any beginning of them may have been run before.
    pub commands: Vec<ModeChangeCommand>,
    /// The namespaces and devices that they destroy.
    pub destroys: Vec<Destroyed>,
    /// Whether only a reboot makes it so.
    pub reboot: bool,
    /// How long that takes, by estimate.
    pub seconds: u64,
    /// The node's capacity after the change; nothing for devices.
    pub after: Option<MemoryCapacity>,
    /// Why it is refused: nothing is run while there is one.
    pub refusals: Vec<String>,
    /// Further notes.
    pub notes: Vec<String>,
}

impl ModeChangePlan {
    fn new(from: String, to: String) -> Self {
        Self {
            from,
            to,
            done: false,
            pending: None,
            commands: Vec::new(),
            destroys: Vec::new(),
            reboot: false,
            seconds: 0,
            after: None,
            refusals: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn run(&mut self, seconds: u64, program: &'static str, args: &[&str], why: impl Into<String>) {
        self.seconds = self.seconds.saturating_add(seconds);
        self.commands.push(ModeChangeCommand {
            program,
            args: args.iter().map(|a| (*a).to_owned()).collect(),
            why: why.into(),
        });
    }

    fn refuse(&mut self, why: impl Into<String>) {
        self.refusals.push(why.into());
    }
}

/// The plan for a requested change.
pub fn plan(inventory: &Inventory, ask: &ModeChangeRequest) -> ModeChangePlan {
    let mut plan = match ask.target {
        ModeChangeTarget::Modules(mode) => modules(inventory, ask, mode),
        ModeChangeTarget::Device(mode) => device(inventory, ask, mode),
    };
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for namespace in &inventory.namespaces {
        known.insert(&namespace.name);
        known.extend(namespace.device.as_deref());
    }
    known.extend(inventory.dax.iter().map(|d| d.name.as_str()));
    for name in &ask.destroy.named {
        // It may have been destroyed by the same change, which was killed then.
        if !known.contains(name.as_str()) {
            plan.notes.push(format!(
                "there is no namespace or device `{name}` (any more)"
            ));
        }
    }
    plan
}

fn modules(inventory: &Inventory, ask: &ModeChangeRequest, mode: MemoryMode) -> ModeChangePlan {
    let present = inventory.present();
    let pending = inventory.pending();
    let mut plan = ModeChangePlan::new(present.to_string(), mode.to_string());
    plan.pending = pending.map(|p| p.to_string());
    plan.after = Some(MemoryCapacity::of(inventory, mode));
    require_tools(inventory, &mut plan);
    if !plan.refusals.is_empty() {
        return plan;
    }
    if inventory.modules.is_empty() {
        plan.refuse("this node has no persistent memory modules: its memory has no other mode");
        return plan;
    }
    let target = CurrentMode::Is(mode);
    if let Some(pending) = pending {
        if pending == target {
            await_reboot(mode, &mut plan);
            return plan;
        }
        plan.run(
            GOAL_SECONDS,
            "ipmctl",
            &["delete", "-goal"],
            format!("a goal that waits for a reboot asks for {pending}"),
        );
    }
    if present == target {
        if mode.persistent() {
            fill_regions(inventory, ask, &mut plan);
        }
        plan.done = plan.commands.is_empty();
        return plan;
    }
    judge(&mut plan, &check(inventory, mode), &ask.accept);
    for namespace in inventory.namespaces.iter().filter(|n| n.on_modules()) {
        remove_namespace(inventory, ask, namespace, &mut plan);
    }
    create_goal(mode, &mut plan);
    note_losses(present, mode, &mut plan);
    plan
}

/// Refuses the change where a tool that knows the modules or their namespaces does not answer.
fn require_tools(inventory: &Inventory, plan: &mut ModeChangePlan) {
    for (tool, use_of_it) in [("ipmctl", "modules"), ("ndctl", "namespaces")] {
        match inventory.tool(tool) {
            Some(ToolState::Answered) => {}
            Some(ToolState::Failed { why }) => plan.refuse(format!("{tool} cannot report {use_of_it}: {why}")),
            Some(ToolState::Missing) | None => plan.refuse(format!(
                "{tool} is missing, and without it nothing is known of {use_of_it}: install the package {tool}"
            )),
        }
    }
}

/// An earlier change has written the goal: only the reboot is missing.
fn await_reboot(mode: MemoryMode, plan: &mut ModeChangePlan) {
    plan.done = true;
    plan.reboot = true;
    plan.seconds = REBOOT_SECONDS;
    plan.notes
        .push(format!("{mode} is asked for already: a reboot makes it so"));
}

/// Adds the command that writes the goal for the next reboot.
fn create_goal(mode: MemoryMode, plan: &mut ModeChangePlan) {
    let memory = format!("MemoryMode={}", mode.memory_share());
    let args: &[&str] = match mode {
        MemoryMode::OneLevel => &["create", "-f", "-goal", "PersistentMemoryType=AppDirect"],
        MemoryMode::TwoLevel => &["create", "-f", "-goal", &memory],
        MemoryMode::Mixed(_) => &[
            "create",
            "-f",
            "-goal",
            &memory,
            "PersistentMemoryType=AppDirect",
        ],
    };
    plan.run(
        GOAL_SECONDS,
        "ipmctl",
        args,
        "what the next reboot shall make",
    );
    plan.reboot = true;
    plan.seconds = plan.seconds.saturating_add(REBOOT_SECONDS);
}

/// Notes the data that the change itself loses, or the new mode will.
fn note_losses(present: CurrentMode, mode: MemoryMode, plan: &mut ModeChangePlan) {
    if mode == MemoryMode::TwoLevel {
        let text =
            "in 2LM nothing on the modules is persistent: what they hold is gone with the power";
        plan.notes.push(text.into());
    }
    if present.persistent_part() {
        plan.notes
            .push("what regions hold beside namespaces is lost too".into());
    }
}

impl CurrentMode {
    /// Whether there may be data on modules.
    fn persistent_part(self) -> bool {
        !matches!(
            self,
            Self::Is(MemoryMode::TwoLevel) | Self::Dram | Self::Unconfigured
        )
    }
}

fn judge(plan: &mut ModeChangePlan, findings: &[PopulationFinding], accepted: &BTreeSet<Rule>) {
    for finding in findings {
        let rule = finding.rule;
        let text = format!("{} ({}; {})", finding.text, rule, rule.source());
        if !finding.refuses || (rule.acceptable() && accepted.contains(&rule)) {
            plan.notes.push(text);
        } else if rule.acceptable() {
            plan.refuse(format!(
                "{text}; to do it all the same, give --accept {rule}"
            ));
        } else {
            plan.refuse(text);
        }
    }
}

/// Namespaces in regions that have none.
fn fill_regions(inventory: &Inventory, ask: &ModeChangeRequest, plan: &mut ModeChangePlan) {
    let Some(kind) = ask.namespaces else {
        return;
    };
    let kind = match kind {
        NamespaceMode::Fsdax => "--mode=fsdax",
        NamespaceMode::Devdax => "--mode=devdax",
    };
    for region in inventory.regions.iter().filter(|r| r.on_modules()) {
        if region.size > 0 && region.available == region.size {
            let seconds = (region.size >> 40).max(1).saturating_mul(MAP_SECONDS_A_TIB);
            let args = ["create-namespace", kind, "--region", &region.name];
            plan.run(seconds, "ndctl", &args, format!("{} is empty", region.name));
        }
    }
}

/// Whether something may be destroyed; if not, that is a refusal. A device in use is live.
fn may_destroy(
    plan: &mut ModeChangePlan,
    ask: &ModeChangeRequest,
    names: &[&str],
    bytes: u64,
    uses: &[String],
) -> bool {
    let name = names[0];
    let named = names.iter().any(|n| ask.destroy.named.contains(*n));
    if !named && !uses.is_empty() {
        plan.refuse(format!(
            "{name} ({}) is in use: {}; end that, or give --destroy {name} and lose it",
            Bytes(bytes),
            uses.join(", ")
        ));
    } else if !named && !ask.destroy.idle {
        plan.refuse(format!(
            "{name} ({}) would be destroyed: give --destroy {name}, or --destroy idle for all that nobody uses",
            Bytes(bytes)
        ));
    }
    plan.destroys.push(Destroyed {
        name: name.to_owned(),
        bytes,
        uses: uses.to_vec(),
    });
    named || (uses.is_empty() && ask.destroy.idle)
}

fn remove_namespace(
    inventory: &Inventory,
    ask: &ModeChangeRequest,
    namespace: &Namespace,
    plan: &mut ModeChangePlan,
) {
    let device = namespace.device.as_deref().unwrap_or_default();
    // ndctl calls it devdax also while it is the system's memory.
    let as_memory = inventory
        .dax
        .iter()
        .find(|d| d.name == device && d.mode == DaxMode::SystemRam);
    let mut uses: Vec<String> = inventory.uses_of(device).map(ToString::to_string).collect();
    if as_memory.is_some() {
        uses.push(format!("{device} is memory of the system"));
    }
    let names: Vec<&str> = [namespace.name.as_str(), device]
        .into_iter()
        .filter(|n| !n.is_empty())
        .collect();
    if !may_destroy(plan, ask, &names, namespace.size, &uses) {
        return;
    }
    for used in inventory.uses_of(device) {
        let seconds = NAMESPACE_SECONDS;
        match &used.kind {
            UseKind::Mounted { at } => plan.run(seconds, "umount", &[at], used.to_string()),
            UseKind::Swap { path } => plan.run(seconds, "swapoff", &[path], used.to_string()),
            UseKind::Held { by } => plan.refuse(format!(
                "{device} is part of {by}: take that apart first, no option does it"
            )),
            UseKind::Dataspace { .. } | UseKind::Open { .. } | UseKind::Busy => {}
        }
    }
    if let Some(dax) = as_memory {
        give_back(inventory, dax, plan);
    }
    plan.run(
        NAMESPACE_SECONDS,
        "ndctl",
        &["destroy-namespace", "--force", &namespace.name],
        format!(
            "regions with namespaces are not changed; {} is lost",
            Bytes(namespace.size)
        ),
    );
}

fn device(inventory: &Inventory, ask: &ModeChangeRequest, mode: DaxMode) -> ModeChangePlan {
    let mut plan = ModeChangePlan::new("unknown".into(), mode.to_string());
    match inventory.tool("daxctl") {
        Some(ToolState::Answered) => {}
        Some(ToolState::Failed { why }) => {
            plan.refuse(format!("daxctl cannot list devices: {why}"));
            return plan;
        }
        Some(ToolState::Missing) | None => {
            plan.refuse("daxctl is missing, and without it nothing is known of DAX devices: install the package daxctl");
            return plan;
        }
    }
    let found = match (&ask.device, inventory.dax.as_slice()) {
        (None, [only]) => Some(only),
        (None, _) => None,
        (Some(name), all) => all.iter().find(|d| d.name == *name),
    };
    let Some(dax) = found else {
        let all: Vec<&str> = inventory.dax.iter().map(|d| d.name.as_str()).collect();
        let there = match all.is_empty() {
            true => "this node has none".to_owned(),
            false => format!("there are {}", all.join(", ")),
        };
        plan.refuse(match &ask.device {
            Some(name) => format!("there is no DAX device `{name}`: {there}"),
            None => format!("name the DAX device with --device: {there}"),
        });
        return plan;
    };
    plan.from = dax.mode.to_string();
    if dax.mode == mode {
        plan.done = true;
        return plan;
    }
    if mode == DaxMode::Devdax {
        give_back(inventory, dax, &mut plan);
        return plan;
    }
    let uses: Vec<String> = inventory
        .uses_of(&dax.name)
        .map(ToString::to_string)
        .collect();
    let namespace = inventory
        .namespaces
        .iter()
        .find(|n| n.device.as_ref() == Some(&dax.name));
    let names: Vec<&str> = std::iter::once(dax.name.as_str())
        .chain(namespace.map(|n| n.name.as_str()))
        .collect();
    if may_destroy(&mut plan, ask, &names, dax.size, &uses) {
        plan.run(
            NAMESPACE_SECONDS,
            "daxctl",
            &["reconfigure-device", "--mode=system-ram", &dax.name],
            format!("{} becomes memory; what it holds is lost", Bytes(dax.size)),
        );
    }
    plan
}

/// Memory of the system becomes a device again: its pages are moved, and nothing is lost.
fn give_back(inventory: &Inventory, dax: &Dax, plan: &mut ModeChangePlan) {
    let name = &dax.name;
    let online = dax.online_blocks != Some(0);
    if online && dax.movable == Some(false) {
        plan.refuse(format!(
            "memory of {name} is in use by the kernel and cannot be moved: only a reboot takes it back"
        ));
    }
    let is_it = |n: &&crate::kernel::Numa| Some(i64::from(n.number)) == dax.numa;
    let used = inventory
        .numa
        .iter()
        .find(is_it)
        .map_or(0, |n| n.total.saturating_sub(n.free));
    let others = inventory.numa.iter().filter(|n| !is_it(n)).map(|n| n.free);
    let free = others.fold(0, u64::saturating_add);
    if online && used > free {
        plan.refuse(format!(
            "{} in use on {name} do not fit into the rest of the memory, where {} are free: end programs first",
            Bytes(used),
            Bytes(free)
        ));
    }
    if online {
        let why = format!("{} in use are moved to other memory", Bytes(used));
        plan.run(
            used / MOVED_A_SECOND,
            "daxctl",
            &["offline-memory", name],
            why,
        );
    }
    plan.run(
        NAMESPACE_SECONDS,
        "daxctl",
        &["reconfigure-device", "--mode=devdax", name],
        format!("{} becomes a device", Bytes(dax.size)),
    );
}
