//! All that is known of a node's memory, and the mode that follows from it.

use crate::ipmctl::{Dram, GoalPart, Module, Platform, Resources};
use crate::kernel::{DeviceUse, Numa};
use crate::mode::{CurrentMode, MemoryMode};
use crate::ndctl::{Dax, Memdev, Namespace, Region};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A tool, and the result of the query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// The Debian package that has it.
    pub package: &'static str,
    /// The result.
    #[serde(flatten)]
    pub state: ToolState,
}

/// The result of querying a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum ToolState {
    /// It answered.
    Answered,
    /// It is not installed.
    Missing,
    /// It failed, or is not understood.
    Failed {
        /// Why.
        why: String,
    },
}

/// The memory of a node, as its tools and kernel report it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Inventory {
    /// Persistent memory modules.
    pub modules: Vec<Module>,
    /// DIMMs of DRAM.
    pub dram: Vec<Dram>,
    /// Capacities of all together.
    pub resources: Option<Resources>,
    /// The modes that firmware offers.
    pub platform: Option<Platform>,
    /// The goal that waits for a reboot.
    pub goal: Vec<GoalPart>,
    /// Regions.
    pub regions: Vec<Region>,
    /// Namespaces.
    pub namespaces: Vec<Namespace>,
    /// Device-DAX devices.
    pub dax: Vec<Dax>,
    /// CXL memory devices.
    pub cxl: Vec<Memdev>,
    /// The kernel's NUMA nodes.
    pub numa: Vec<Numa>,
    /// The uses of namespaces' devices and of DAX devices.
    pub uses: Vec<DeviceUse>,
    /// The queried tools.
    pub tools: Vec<Tool>,
}

/// A socket's mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SocketMode {
    /// The socket.
    pub socket: u16,
    /// Its modules.
    pub modules: usize,
    /// Bytes of them that are memory.
    pub memory: u64,
    /// Bytes of them that are a persistent store.
    pub app_direct: u64,
    /// The mode that results.
    pub mode: CurrentMode,
}

impl Inventory {
    /// The result of querying a tool.
    pub fn tool(&self, name: &str) -> Option<&ToolState> {
        self.tools.iter().find(|t| t.name == name).map(|t| &t.state)
    }

    /// The sockets that have modules, each with its mode.
    pub fn sockets(&self) -> Vec<SocketMode> {
        let of = |m: &Module| (m.memory.unwrap_or(0), m.app_direct.unwrap_or(0));
        self.sockets_if(of)
    }

    fn sockets_if(&self, of: impl Fn(&Module) -> (u64, u64)) -> Vec<SocketMode> {
        let mut sockets: BTreeMap<u16, SocketMode> = BTreeMap::new();
        for module in &self.modules {
            let entry = sockets.entry(module.socket).or_insert(SocketMode {
                socket: module.socket,
                modules: 0,
                memory: 0,
                app_direct: 0,
                mode: CurrentMode::Unconfigured,
            });
            let (memory, app_direct) = of(module);
            entry.modules += 1;
            entry.memory = entry.memory.saturating_add(memory);
            entry.app_direct = entry.app_direct.saturating_add(app_direct);
        }
        for socket in sockets.values_mut() {
            socket.mode = whole(socket.memory, socket.app_direct);
        }
        sockets.into_values().collect()
    }

    /// The node's mode: by its modules, or by all together, or as far as the kernel sees it.
    pub fn present(&self) -> CurrentMode {
        let reported = self
            .modules
            .iter()
            .all(|m| m.memory.is_some() && m.app_direct.is_some());
        match (self.modules.is_empty(), reported, &self.resources) {
            (false, true, _) => one(self.sockets().iter().map(|s| s.mode)),
            (_, _, Some(r)) if r.modules > 0 => whole(r.memory, r.app_direct),
            (false, false, _) => CurrentMode::Unconfigured,
            _ => self.seen(),
        }
    }

    /// Whether the mode is from ipmctl's output: without it, the kernel shows it.
    pub fn is_from_ipmctl(&self) -> bool {
        !self.modules.is_empty() || self.resources.is_some_and(|r| r.modules > 0)
    }

    fn seen(&self) -> CurrentMode {
        let cache = self.numa.iter().any(|n| n.cache > 0);
        let store = self.regions.iter().any(Region::on_modules);
        match (cache, store) {
            (true, true) => CurrentMode::SomeMixed,
            (true, false) => CurrentMode::Is(MemoryMode::TwoLevel),
            (false, true) => CurrentMode::Is(MemoryMode::OneLevel),
            (false, false) => CurrentMode::Dram,
        }
    }

    /// The mode after the next reboot, if a goal waits for it.
    pub fn pending(&self) -> Option<CurrentMode> {
        if self.goal.is_empty() {
            return None;
        }
        if self.modules.is_empty() {
            let sum =
                |of: fn(&GoalPart) -> u64| self.goal.iter().map(of).fold(0, u64::saturating_add);
            return Some(whole(sum(|g| g.memory), sum(|g| g.app_direct)));
        }
        let sockets = self.sockets_if(|module| {
            let part = self.goal.iter().find(|g| g.id == module.id);
            match part {
                Some(part) => (part.memory, part.app_direct),
                None => (module.memory.unwrap_or(0), module.app_direct.unwrap_or(0)),
            }
        });
        Some(one(sockets.iter().map(|s| s.mode)))
    }

    /// Bytes of all modules.
    pub fn module_bytes(&self) -> u64 {
        let sum = self.modules.iter().map(|m| m.capacity);
        let reported = self.resources.map_or(0, |r| r.modules);
        sum.fold(0, u64::saturating_add).max(reported)
    }

    /// Bytes of all DRAM, as far as they are known.
    pub fn dram_bytes(&self) -> u64 {
        let sum = self.dram.iter().map(|d| d.capacity);
        let reported = self.resources.map_or(0, |r| r.dram);
        sum.fold(0, u64::saturating_add).max(reported)
    }

    /// Bytes that stay when the power goes: the persistent part of modules, and persistent CXL memory.
    pub fn persistent_bytes(&self) -> u64 {
        let modules = match self.resources {
            Some(r) => r.app_direct,
            None if self.is_from_ipmctl() => {
                let all = self.sockets().into_iter().map(|s| s.app_direct);
                all.fold(0, u64::saturating_add)
            }
            None => {
                let all = self.regions.iter().filter(|r| r.on_modules());
                all.map(|r| r.size).fold(0, u64::saturating_add)
            }
        };
        let cxl = self.cxl.iter().map(|m| m.pmem);
        cxl.fold(modules, u64::saturating_add)
    }

    /// The uses of a device.
    pub fn uses_of<'i>(&'i self, device: &'i str) -> impl Iterator<Item = &'i DeviceUse> {
        self.uses.iter().filter(move |u| u.device == device)
    }

    /// Names of devices whose use matters.
    pub fn devices(&self) -> BTreeSet<String> {
        let namespaces = self.namespaces.iter().filter_map(|n| n.device.clone());
        namespaces
            .chain(self.dax.iter().map(|d| d.name.clone()))
            .collect()
    }
}

fn whole(memory: u64, app_direct: u64) -> CurrentMode {
    MemoryMode::of(memory, app_direct).map_or(CurrentMode::Unconfigured, CurrentMode::Is)
}

/// The common mode of all.
fn one(mut all: impl Iterator<Item = CurrentMode>) -> CurrentMode {
    match all.next() {
        None => CurrentMode::Dram,
        Some(first) if all.all(|other| other == first) => first,
        Some(_) => CurrentMode::Uneven,
    }
}
