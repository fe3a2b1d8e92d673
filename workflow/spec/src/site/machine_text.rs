//! The text of a cluster file, from a machine.

use crate::site::machine::MODES;
use std::fmt::{self, Write};
use tarn_types::site::{Island, Machine, Rates};

/// The text of a cluster file that [`parse_machine`](super::parse_machine) reads as this machine, whose names must
/// follow that file's rules.
///
/// # Examples
/// ```
/// use tarn_spec::site::{machine_text, parse_machine};
///
/// let machine = parse_machine("cluster.toml", "[[island]]\nnodes = 8\ncores = 4\n")?;
/// assert_eq!(parse_machine("cluster.toml", &machine_text(&machine))?, machine);
/// # Ok::<(), tarn_spec::SpecError>(())
/// ```
pub fn machine_text(machine: &Machine) -> String {
    let mut text = String::new();
    // A string takes all that is written to it.
    let _ = write_machine(&mut text, machine);
    text
}

fn write_machine(out: &mut String, machine: &Machine) -> fmt::Result {
    writeln!(out, "name = \"{}\"\n\n[external]", machine.name)?;
    let store = &machine.store;
    rates(out, "", store.rates)?;
    rates(out, "client-", store.client)?;
    writeln!(out, "saturates = {}", store.saturates)?;
    for island in &machine.islands {
        write_island(out, island)?;
    }
    Ok(())
}

/// The lines of rates that have a limit.
fn rates(out: &mut String, prefix: &str, rates: Rates) -> fmt::Result {
    for (key, rate) in [("read", rates.read), ("write", rates.write)] {
        if rate > 0 {
            writeln!(out, "{prefix}{key} = \"{rate} B/s\"")?;
        }
    }
    Ok(())
}

fn write_island(out: &mut String, island: &Island) -> fmt::Result {
    let kind = &island.kind;
    writeln!(out, "\n[[island]]\nname = \"{}\"", island.name)?;
    writeln!(out, "nodes = {}\nsockets = {}", island.nodes, kind.sockets)?;
    writeln!(out, "cores = {}\ngpus = {}", kind.cores, kind.gpus)?;
    writeln!(out, "memory = \"{} B\"", kind.memory)?;
    if let Some((word, _)) = MODES.iter().find(|(_, mode)| *mode == kind.mode) {
        writeln!(out, "mode = \"{word}\"")?;
    }
    if let Some(change) = kind.mode_change {
        writeln!(
            out,
            "mode-change = {{ time = \"{} ns\", memory = \"{} B\" }}",
            change.time, change.memory
        )?;
    }
    let link = kind.link;
    if link != Rates::default() {
        let keys = [("read", link.read), ("write", link.write)];
        let given = keys.iter().filter(|(_, rate)| *rate > 0);
        let given: Vec<String> = given.map(|(k, r)| format!("{k} = \"{r} B/s\"")).collect();
        writeln!(out, "link = {{ {} }}", given.join(", "))?;
    }
    let power = &kind.power;
    let wake = match power.wake {
        0 => String::new(),
        wake => format!(", wake = \"{wake} ns\""),
    };
    writeln!(
        out,
        "power = {{ idle = \"{} W\", busy = \"{} W\", asleep = \"{} W\", boot = \"{} W\"{wake} }}",
        power.idle, power.busy, power.asleep, power.boot
    )?;
    writeln!(out, "temperature = \"{} C\"", kind.temperature)?;
    for tier in &kind.tiers {
        writeln!(out, "\n[[island.tier]]\nname = \"{}\"", tier.name)?;
        writeln!(out, "capacity = \"{} B\"", tier.capacity)?;
        rates(out, "", tier.rates)?;
        writeln!(out, "app-direct = {}", tier.app_direct)?;
    }
    Ok(())
}
