//! The DIMMs, and their places, that each mode needs. Each rule has a source: docs/internals/memory-modes.md lists the documents.

use crate::inventory::Inventory;
use crate::ipmctl::Module;
use crate::mode::MemoryMode;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tarn_types::units::Bytes;

/// Bytes of modules for one of DRAM: the least and the most that vendors support in Memory Mode, and the ratio that they
/// recommend.
const RATIOS: (u64, u64, u64) = (4, 16, 8);
/// A module of 128 GB holds 126.4 GiB: ratios of usable bytes are off by less than so many per cent from those of the labels.
const TOLERANCE: u64 = 10;
/// DIMMs of a controller's channels, most first, that vendors list for Memory Mode: three channels in the 100 series, two in the 200.
const LAYOUTS: &[&[u8]] = &[
    &[2, 2, 2],
    &[2, 2, 1],
    &[2, 1, 1],
    &[1, 1, 1],
    &[2, 2],
    &[2, 1],
    &[1, 1],
];

/// A rule of populations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// All modules work and may be managed.
    Health,
    /// None is locked: firmware does not apply goals to those.
    Locked,
    /// All are of one kind.
    Same,
    /// Firmware offers the mode.
    Platform,
    /// Each memory controller has DRAM, and a module.
    Controllers,
    /// DRAM is neither too little nor too much to be a cache.
    Ratio,
    /// The DIMMs are where vendors put them.
    Layout,
}

impl Rule {
    /// Whether it is a limit of vendors' support: the machine may work beyond it.
    pub fn acceptable(self) -> bool {
        matches!(self, Self::Ratio | Self::Layout)
    }

    /// The document with the rule.
    pub fn source(self) -> &'static str {
        match self {
            Self::Health | Self::Locked | Self::Same | Self::Platform => "ipmctl-create-goal(1)",
            Self::Controllers => "Fujitsu PRIMERGY RX4770 M5 manual, p. 253; ipmctl-create-goal(1)",
            Self::Ratio => "Intel, Configuring Optane DC persistent memory for best performance",
            Self::Layout => "Lenovo ThinkSystem SR630, Mixed Memory Mode, table 1",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Health => "health",
            Self::Locked => "locked",
            Self::Same => "same",
            Self::Platform => "platform",
            Self::Controllers => "controllers",
            Self::Ratio => "ratio",
            Self::Layout => "layout",
        })
    }
}

/// A finding of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PopulationFinding {
    /// The rule.
    pub rule: Rule,
    /// Whether the mode is refused for it: the others cost performance, or could not be checked.
    pub refuses: bool,
    /// The finding, in words.
    pub text: String,
}

/// All that speaks against a mode on this population.
pub fn check(inventory: &Inventory, mode: MemoryMode) -> Vec<PopulationFinding> {
    let mut found = Vec::new();
    let mut add = |rule, refuses, text| {
        found.push(PopulationFinding {
            rule,
            refuses,
            text,
        });
    };
    for module in &inventory.modules {
        let (id, health) = (&module.id, &module.health);
        if !health.is_empty() && health != "Healthy" {
            add(Rule::Health, true, format!("module {id} is `{health}`"));
        }
        if let Some(why) = &module.violation {
            add(Rule::Health, true, format!("module {id}: {why}"));
        }
        if module.locked {
            add(
                Rule::Locked,
                true,
                format!("module {id} is locked: unlock it, or firmware will not apply a goal"),
            );
        }
    }
    let kinds: BTreeSet<(u64, &str)> = inventory
        .modules
        .iter()
        .map(|m| (m.capacity, m.part.as_str()))
        .collect();
    if kinds.len() > 1 {
        let all: Vec<String> = kinds
            .iter()
            .map(|(bytes, part)| format!("{} {part}", Bytes(*bytes)).trim().to_owned())
            .collect();
        add(
            Rule::Same,
            true,
            format!("modules differ: {}", all.join(", ")),
        );
    }
    if let Some(Err(message)) = inventory.platform.as_ref().map(|p| p.allows(mode)) {
        add(
            Rule::Platform,
            true,
            format!(
                "firmware does not offer {mode}: {message}; change it in the firmware's set-up"
            ),
        );
    }
    ratio(inventory, mode, &mut add);
    places(inventory, mode, &mut add);
    found
}

/// DRAM beside the modules that it is to cache, a socket.
fn ratio(inventory: &Inventory, mode: MemoryMode, add: &mut impl FnMut(Rule, bool, String)) {
    let share = u64::from(mode.memory_share());
    if share == 0 {
        return;
    }
    let placed = !inventory.dram.is_empty() && inventory.dram.iter().all(|d| d.place.is_some());
    let mut parts: BTreeMap<Option<u16>, (u64, u64)> = BTreeMap::new();
    if placed {
        for module in &inventory.modules {
            let part = parts.entry(Some(module.socket)).or_default();
            part.1 = part.1.saturating_add(module.capacity);
        }
        for dimm in &inventory.dram {
            let socket = dimm.place.map(|(socket, _, _)| socket);
            // A socket without modules has nothing to cache.
            if let Some(part) = parts.get_mut(&socket) {
                part.0 = part.0.saturating_add(dimm.capacity);
            }
        }
    } else {
        parts.insert(None, (inventory.dram_bytes(), inventory.module_bytes()));
    }
    let (least, most, usual) = RATIOS;
    for (socket, (dram, modules)) in parts {
        let memory = (u128::from(modules) * u128::from(share) / 100) as u64;
        let place = socket.map_or("the node".to_owned(), |s| format!("socket {s}"));
        if dram == 0 {
            if !placed {
                let why =
                    "the ratio of DRAM to modules is not checked: ipmctl does not report DRAM";
                add(Rule::Ratio, false, why.into());
            }
            continue;
        }
        let tenths = (u128::from(memory) * 10 / u128::from(dram)).min(u128::from(u64::MAX)) as u64;
        let text = format!(
            "{place} has {} of DRAM for {} of memory on modules, 1:{}.{}",
            Bytes(dram),
            Bytes(memory),
            tenths / 10,
            tenths % 10
        );
        let low = least * 10 * (100 - TOLERANCE) / 100;
        let high = most * 10 * (100 + TOLERANCE) / 100;
        if !(low..=high).contains(&tenths) {
            add(
                Rule::Ratio,
                true,
                format!("{text}: 1:{least} to 1:{most} are supported"),
            );
        } else if tenths > usual * 10 * (100 + TOLERANCE) / 100 {
            add(
                Rule::Ratio,
                false,
                format!("{text}: a cache of 1:{usual} is recommended"),
            );
        }
    }
}

/// Each controller's DIMMs of DRAM and modules, by channel.
type Controllers = BTreeMap<(u16, u16), BTreeMap<u16, (u8, u8)>>;

fn places(inventory: &Inventory, mode: MemoryMode, add: &mut impl FnMut(Rule, bool, String)) {
    let cached = mode.memory_share() > 0;
    let unknown = inventory.dram.is_empty() || inventory.dram.iter().any(|d| d.place.is_none());
    if unknown {
        let why = "the layout of DIMMs is not checked: ipmctl does not report where DRAM is";
        if cached && !inventory.modules.is_empty() {
            add(Rule::Layout, false, why.into());
        }
        return;
    }
    let mut controllers: Controllers = BTreeMap::new();
    let sockets: BTreeSet<u16> = inventory.modules.iter().map(|m| m.socket).collect();
    for module in &inventory.modules {
        let Module {
            socket, controller, ..
        } = module;
        let channels = controllers.entry((*socket, *controller)).or_default();
        let counts = channels.entry(module.channel).or_default();
        counts.1 = counts.1.saturating_add(1);
    }
    for (socket, controller, channel) in inventory.dram.iter().filter_map(|d| d.place) {
        if sockets.contains(&socket) {
            let channels = controllers.entry((socket, controller)).or_default();
            let counts = channels.entry(channel).or_default();
            counts.0 = counts.0.saturating_add(1);
        }
    }
    let sum = |channels: &BTreeMap<u16, (u8, u8)>| {
        channels.values().fold((0u32, 0u32), |(d, m), c| {
            (d + u32::from(c.0), m + u32::from(c.1))
        })
    };
    for ((socket, controller), channels) in &controllers {
        let what = format!("memory controller {controller} of socket {socket}");
        let (dram, modules) = sum(channels);
        if dram == 0 {
            add(Rule::Controllers, cached, format!("{what} has no DRAM"));
        }
        if modules == 0 && cached {
            let text = format!("{what} has no module: what others hold stays unused");
            add(Rule::Controllers, true, text);
        }
        if channels.values().any(|(_, modules)| *modules > 1) {
            let text = format!("{what} has a channel with two modules");
            add(Rule::Layout, true, text);
        }
        let mut layout: Vec<u8> = channels
            .values()
            .map(|(d, m)| d.saturating_add(*m))
            .collect();
        layout.sort_unstable_by(|a, b| b.cmp(a));
        if cached && !LAYOUTS.contains(&layout.as_slice()) {
            let counts: Vec<String> = layout.iter().map(u8::to_string).collect();
            let text = format!(
                "{what} has {} DIMMs on its channels, which no vendor lists",
                counts.join("-")
            );
            add(Rule::Layout, true, text);
        }
    }
    let each: BTreeSet<(u32, u32)> = controllers.values().map(sum).collect();
    if each.len() > 1 {
        let text = "memory controllers have different numbers of DIMMs";
        add(Rule::Layout, cached, text.into());
    }
}
