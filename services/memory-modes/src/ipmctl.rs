//! The output of `ipmctl show` about modules, all DIMMs, capacities, the platform, and a goal that waits for a reboot.

use crate::Garbled;
use crate::mode::MemoryMode;
use crate::records::{IpmctlRecord, number, records};
use serde::Serialize;

/// Capacities of the whole node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Resources {
    /// Bytes of modules that are memory.
    pub memory: u64,
    /// Bytes of modules that are a persistent store.
    pub app_direct: u64,
    /// Bytes of DRAM that cache modules.
    pub cache: u64,
    /// Bytes of DRAM; 0 where ipmctl does not report them.
    pub dram: u64,
    /// Bytes of modules.
    pub modules: u64,
}

/// A persistent memory module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Module {
    /// Its handle, `0x1121`: socket, controller, channel, slot.
    pub id: String,
    /// Its socket.
    pub socket: u16,
    /// Its memory controller in the socket.
    pub controller: u16,
    /// Its channel at the controller.
    pub channel: u16,
    /// Its bytes.
    pub capacity: u64,
    /// Those that are memory; nothing where ipmctl did not report it.
    pub memory: Option<u64>,
    /// Those that are a persistent store.
    pub app_direct: Option<u64>,
    /// In a word, `Healthy` at best.
    pub health: String,
    /// Its part number.
    pub part: String,
    /// Its position, in the maker's words, such as `CPU1_DIMM_A2`.
    pub locator: String,
    /// Whether firmware may not touch it for now.
    pub locked: bool,
    /// Why firmware leaves it out, if it does.
    pub violation: Option<String>,
}

/// Reads `ipmctl show -a -u B -o nvmxml -dimm`, or fewer fields of it.
///
/// # Errors
/// When it is neither that nor the message that there are none.
pub fn dimms(text: &str) -> Result<Vec<Module>, Garbled> {
    let all = records(text)?;
    Ok(all.iter().filter_map(module).collect())
}

fn module(record: &IpmctlRecord) -> Option<Module> {
    let id = record.get("DimmID")?;
    let capacity = record.bytes("Capacity")?;
    let handle = record.number("DimmHandle").or_else(|| number(id))?;
    let place = |name, shift: u16| {
        let of_handle = (handle >> shift) & 0xf;
        record.number(name).unwrap_or(of_handle)
    };
    let locked = record
        .get("LockState")
        .is_some_and(|s| !s.contains("Disabled") && s.contains("Locked"));
    let violation = ["PopulationViolationState", "PopulationViolation"]
        .into_iter()
        .find_map(|n| record.get(n))
        .filter(|v| {
            let v = v.to_ascii_lowercase();
            !matches!(v.as_str(), "no" | "none" | "0") && !v.contains("in supported configuration")
        });
    let unmanageable = record
        .get("ManageabilityState")
        .filter(|s| *s != "Manageable");
    Some(Module {
        id: id.to_owned(),
        socket: place("SocketID", 12),
        controller: place("MemControllerID", 8),
        channel: place("ChannelID", 4),
        capacity,
        memory: record.bytes("MemoryCapacity"),
        app_direct: record.bytes("AppDirectCapacity"),
        health: record.text("HealthState"),
        part: record.text("PartNumber"),
        locator: record.text("DeviceLocator"),
        locked,
        violation: violation.or(unmanageable).map(Into::into),
    })
}

/// A DIMM of DRAM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Dram {
    /// Its bytes.
    pub capacity: u64,
    /// Its position, in the maker's words.
    pub locator: String,
    /// Socket, controller and channel, where they are known.
    pub place: Option<(u16, u16, u16)>,
}

/// Reads `ipmctl show -a -u B -o nvmxml -topology`, or the table: the DIMMs of DRAM. Firmware with an old PMTT table does
/// not report where they are; then they are beside the modules whose names differ in the last digit only, as in
/// `CPU1_DIMM_A1` and `CPU1_DIMM_A2`.
///
/// # Errors
/// When it is none.
pub fn topology(text: &str, modules: &[Module]) -> Result<Vec<Dram>, Garbled> {
    let all = records(text)?;
    let mut beside: Vec<(String, Option<u16>)> = Vec::new();
    for record in &all {
        if let (Some(locator), Some(id)) = (record.get("DeviceLocator"), record.get("DimmID")) {
            beside.push((channel_name(locator).to_owned(), number(id)));
        }
    }
    let of_module = |channel: &str| {
        let named = modules
            .iter()
            .find(|m| !m.locator.is_empty() && channel_name(&m.locator) == channel);
        let place = named.map(|m| (m.socket, m.controller, m.channel));
        place.or_else(|| {
            let (_, id) = beside.iter().find(|(n, _)| n == channel)?;
            let id = (*id)?;
            Some((id >> 12, (id >> 8) & 0xf, (id >> 4) & 0xf))
        })
    };
    let drams = all.iter().filter_map(|record| {
        let kind = record.get("MemoryType")?;
        if !kind.starts_with("DDR") && kind != "DRAM" {
            return None;
        }
        let locator = record.text("DeviceLocator");
        let place = ["SocketID", "MemControllerID", "ChannelID"].map(|n| record.number(n));
        let reported = match place {
            [Some(socket), Some(controller), Some(channel)] => Some((socket, controller, channel)),
            _ => None,
        };
        Some(Dram {
            capacity: record.bytes("Capacity")?,
            place: reported.or_else(|| of_module(channel_name(&locator))),
            locator,
        })
    });
    Ok(drams.collect())
}

/// A locator without the number of its slot.
fn channel_name(locator: &str) -> &str {
    locator.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// Reads `ipmctl show -u B -memoryresources` of version 2 or 3 (a table, or the same in XML) or of version 1 (a list).
///
/// # Errors
/// When it is none.
pub fn resources(text: &str) -> Result<Option<Resources>, Garbled> {
    let all = records(text)?;
    let row = |kind: &str| all.iter().find(|r| r.get("MemoryType") == Some(kind));
    if let (Some(volatile), Some(app_direct)) = (row("Volatile"), row("AppDirect")) {
        let of_modules = |r: &IpmctlRecord| {
            let bytes = ["PMemModule", "DCPMM"].into_iter().find_map(|n| r.bytes(n));
            bytes.unwrap_or(0)
        };
        let physical = row("Physical");
        return Ok(Some(Resources {
            memory: of_modules(volatile),
            app_direct: of_modules(app_direct),
            cache: row("Cache").and_then(|r| r.bytes("DDR")).unwrap_or(0),
            dram: physical.and_then(|r| r.bytes("DDR")).unwrap_or(0),
            modules: physical.map_or(0, of_modules),
        }));
    }
    let old = all.iter().find(|r| r.get("AppDirectCapacity").is_some());
    Ok(old.map(|r| Resources {
        memory: r.bytes("MemoryCapacity").unwrap_or(0),
        app_direct: r.bytes("AppDirectCapacity").unwrap_or(0),
        cache: 0,
        dram: 0,
        modules: r.bytes("Capacity").unwrap_or(0),
    }))
}

/// Why firmware does not offer a mode, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotOffered {
    /// Modules may not be memory.
    #[error("AllowedVolatileMode is `{0}`")]
    Memory(String),
    /// They may not be a persistent store.
    #[error("AllowedAppDirectMode is `{0}`")]
    Store(String),
}

/// The modes that firmware offers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Platform {
    /// The allowed use of modules as memory: `1LM` (none), or `Memory Mode`.
    pub allowed_volatile: String,
    /// The current one.
    pub current_volatile: String,
    /// The allowed use of modules as persistent store: `App Direct`, or `Disabled`.
    pub allowed_app_direct: String,
}

impl Platform {
    /// Whether firmware allows a mode, or its own words instead.
    ///
    /// # Errors
    /// With firmware's own words.
    pub fn allows(&self, mode: MemoryMode) -> Result<(), NotOffered> {
        let memory = &self.allowed_volatile;
        if mode != MemoryMode::OneLevel && memory.contains("1LM") && !memory.contains("Memory Mode")
        {
            return Err(NotOffered::Memory(memory.clone()));
        }
        let store = &self.allowed_app_direct;
        if mode.persistent() && !store.is_empty() && !store.contains("App Direct") {
            return Err(NotOffered::Store(store.clone()));
        }
        Ok(())
    }
}

/// Reads `ipmctl show -a -system -capabilities`.
///
/// # Errors
/// When it is none.
pub fn platform(text: &str) -> Result<Option<Platform>, Garbled> {
    let all = records(text)?;
    let reported = all
        .iter()
        .find(|r| r.get("AllowedVolatileMode").is_some() || r.get("CurrentVolatileMode").is_some());
    Ok(reported.map(|r| Platform {
        allowed_volatile: r.text("AllowedVolatileMode"),
        current_volatile: r.text("CurrentVolatileMode"),
        allowed_app_direct: r.text("AllowedAppDirectMode"),
    }))
}

/// The state of a module after the next reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GoalPart {
    /// The module.
    pub id: String,
    /// Its socket.
    pub socket: Option<u16>,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of persistent store.
    pub app_direct: u64,
}

/// Reads `ipmctl show -u B -o nvmxml -goal`: nothing where no goal waits.
///
/// # Errors
/// When it is none.
pub fn goal(text: &str) -> Result<Vec<GoalPart>, Garbled> {
    let all = records(text)?;
    let parts = all.iter().filter_map(|r| {
        let first = r.bytes("AppDirect1Size").unwrap_or(0);
        let second = r.bytes("AppDirect2Size").unwrap_or(0);
        Some(GoalPart {
            id: r.get("DimmID")?.to_owned(),
            socket: r.number("SocketID"),
            memory: r.bytes("MemorySize")?,
            app_direct: first.saturating_add(second),
        })
    });
    Ok(parts.collect())
}
