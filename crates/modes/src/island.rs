//! What the planner of a site is told of a node: its island in a cluster file (docs/cluster-file.md).

use crate::inventory::Inventory;
use crate::mode::{Mode, Present};
use crate::plan::{Capacity, REBOOT_SECONDS};
use crate::population::check;
use std::fmt::Write;
use tarn_base::units::Bytes;

/// The `[[island]]` of nodes like this one: in pure 2LM its modules are memory and no tier, in 1LM they are a tier, in a mixed mode some of
/// both. A mode that the population does not allow is not offered.
pub fn island(inventory: &Inventory, name: &str, cores: u32) -> String {
    let exactly = |bytes| format!("\"{} B\"", bytes);
    let present = inventory.present();
    let kernel: u64 = inventory.numa.iter().map(|n| n.total).sum();
    let whole = |mode| Capacity::of(inventory, mode);
    let (memory, store) = match present {
        Present::Is(Mode::OneLevel) => {
            let is = whole(Mode::OneLevel);
            (kernel.max(is.memory), is.persistent)
        }
        // In 2LM the tier is not there, but it would be after a reboot.
        Present::Is(Mode::TwoLevel) => (inventory.dram_bytes(), whole(Mode::OneLevel).persistent),
        _ => (kernel, inventory.persistent_bytes()),
    };
    let mut out = format!(
        "[[island]]\nname = \"{name}\"\nnodes = 1\ncores = {}\n",
        cores.max(1)
    );
    if memory > 0 {
        let _ = writeln!(out, "memory = {}", exactly(memory));
    }
    let modes = [Mode::OneLevel, Mode::TwoLevel];
    let is_whole = modes.iter().any(|m| present == Present::Is(*m));
    if is_whole {
        let _ = writeln!(out, "mode = \"{present}\"");
        let allowed = |mode| !check(inventory, mode).iter().any(|f| f.refuses);
        if modes
            .iter()
            .all(|m| present == Present::Is(*m) || allowed(*m))
        {
            let two = whole(Mode::TwoLevel).memory;
            let _ = writeln!(
                out,
                "mode-change = {{ time = \"{REBOOT_SECONDS}s\", memory = {} }}",
                exactly(two)
            );
        } else if present == Present::Is(Mode::TwoLevel) {
            let two = whole(Mode::TwoLevel).memory;
            let _ = writeln!(
                out,
                "# no other mode is allowed; in this one it has {}",
                Bytes(two)
            );
        }
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
