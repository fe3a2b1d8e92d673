//! The description of a node for a site's planner: its island in a cluster file (docs/reference/cluster-file.md).

use crate::inventory::Inventory;
use crate::mode::{CurrentMode, MemoryMode};
use crate::plan::{MemoryCapacity, REBOOT_SECONDS};
use crate::population::check;
use std::fmt::Write;

/// The `[[island]]` of nodes like this one: in pure 2LM its modules are memory and no tier, in 1LM they are a tier, in a mixed mode some of
/// both. A mode that the population does not allow is not offered.
pub fn island(inventory: &Inventory, name: &str, cores: u32) -> String {
    let exactly = |bytes| format!("\"{bytes} B\"");
    let present = inventory.present();
    let kernel: u64 = inventory.numa.iter().map(|n| n.total).sum();
    let one = MemoryCapacity::of(inventory, MemoryMode::OneLevel);
    let two = MemoryCapacity::of(inventory, MemoryMode::TwoLevel);
    let modes = [MemoryMode::OneLevel, MemoryMode::TwoLevel];
    let is_whole = modes.iter().any(|m| present == CurrentMode::Is(*m));
    let allowed = |mode| !check(inventory, mode).iter().any(|f| f.refuses);
    let changes = is_whole
        && modes
            .iter()
            .all(|m| present == CurrentMode::Is(*m) || allowed(*m));
    // With a change, `memory` is that of 1LM and the change has that of 2LM; the tier is that of 1LM.
    let (memory, store) = match (present, changes) {
        (CurrentMode::Is(MemoryMode::OneLevel), _)
        | (CurrentMode::Is(MemoryMode::TwoLevel), true) => (one.memory, one.persistent),
        (CurrentMode::Is(MemoryMode::TwoLevel), false) => (two.memory, 0),
        _ => (kernel, inventory.persistent_bytes()),
    };
    let mut out = format!(
        "[[island]]\nname = \"{name}\"\nnodes = 1\ncores = {}\n",
        cores.max(1)
    );
    if memory > 0 {
        let _ = writeln!(out, "memory = {}", exactly(memory));
    }
    if is_whole {
        let _ = writeln!(out, "mode = \"{present}\"");
    }
    if changes {
        let _ = writeln!(
            out,
            "mode-change = {{ time = \"{REBOOT_SECONDS}s\", memory = {} }}",
            exactly(two.memory)
        );
    }
    if store > 0 {
        let _ = writeln!(
            out,
            "\n[[island.tier]]\nname = \"pmem\"\ncapacity = {}\napp-direct = {is_whole}",
            exactly(store)
        );
    }
    out
}
