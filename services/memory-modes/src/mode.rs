//! The words: which mode memory is in, and which it is to be in.

use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Steps in which a mixed mode is named. Firmware aligns a requested share by up to a tenth (ipmctl-create-goal(1)), so a finer
/// word could not be found again.
const STEP: u8 = 5;

/// Before a mode, as a feature of a node in Slurm, whose names begin with a letter.
pub const FEATURE: &str = "mode_";

/// A mode of a node's persistent memory modules (Weiland 2018, sections 1.2 and 1.3; Jackson 2019, section 2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryMode {
    /// 1LM, App Direct: DRAM is memory, the modules are a persistent store.
    OneLevel,
    /// 2LM, Memory Mode: DRAM caches the modules, which are the memory. Nothing is persistent.
    TwoLevel,
    /// So many per cent of the modules are memory behind the cache, the rest is a persistent store.
    Mixed(u8),
}

/// A word that is no mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no memory mode: give 1lm, 2lm, mixed5 to mixed95 in steps of 5 (per cent of the modules that become memory), devdax or system-ram"
)]
pub struct BadMode(String);

impl MemoryMode {
    /// The mode of modules with these capacities; nothing where none of a module is used.
    pub fn of(memory: u64, app_direct: u64) -> Option<Self> {
        match (memory, app_direct) {
            (0, 0) => None,
            (0, _) => Some(Self::OneLevel),
            (_, 0) => Some(Self::TwoLevel),
            (m, a) => {
                let share = u128::from(m) * 100 / (u128::from(m) + u128::from(a)).max(1);
                let rounded = (share as u8 + STEP / 2) / STEP * STEP;
                Some(Self::Mixed(rounded.clamp(STEP, 100 - STEP)))
            }
        }
    }

    /// Per cent of the modules that are memory.
    pub fn memory_share(self) -> u8 {
        match self {
            Self::OneLevel => 0,
            Self::TwoLevel => 100,
            Self::Mixed(percent) => percent,
        }
    }

    /// Whether anything stays when the power goes.
    pub fn persistent(self) -> bool {
        self != Self::TwoLevel
    }
}

impl fmt::Display for MemoryMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneLevel => f.write_str("1lm"),
            Self::TwoLevel => f.write_str("2lm"),
            Self::Mixed(percent) => write!(f, "mixed{percent}"),
        }
    }
}

impl FromStr for MemoryMode {
    type Err = BadMode;

    fn from_str(text: &str) -> Result<Self, BadMode> {
        let bad = || BadMode(text.chars().take(40).collect());
        match text {
            "1lm" => Ok(Self::OneLevel),
            "2lm" => Ok(Self::TwoLevel),
            _ => {
                let percent = text.strip_prefix("mixed").ok_or_else(bad)?;
                // "mixed05" and "mixed+5" would be two words for one mode.
                let percent: u8 = percent
                    .parse()
                    .ok()
                    .filter(|p: &u8| p.to_string() == percent)
                    .ok_or_else(bad)?;
                let named = (STEP..=100 - STEP).contains(&percent) && percent.is_multiple_of(STEP);
                named.then_some(Self::Mixed(percent)).ok_or_else(bad)
            }
        }
    }
}

impl Serialize for MemoryMode {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// The use of a device-DAX device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DaxMode {
    /// A device that programs map.
    Devdax,
    /// Memory of the system, as a NUMA node.
    SystemRam,
    /// Something else that daxctl names.
    Other,
}

impl fmt::Display for DaxMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Devdax => "devdax",
            Self::SystemRam => "system-ram",
            Self::Other => "other",
        })
    }
}

/// The target of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeChangeTarget {
    /// The mode of the modules.
    Modules(MemoryMode),
    /// The use of a device.
    Device(DaxMode),
}

impl FromStr for ModeChangeTarget {
    type Err = BadMode;

    fn from_str(text: &str) -> Result<Self, BadMode> {
        match text.strip_prefix(FEATURE).unwrap_or(text) {
            "devdax" => Ok(Self::Device(DaxMode::Devdax)),
            "system-ram" => Ok(Self::Device(DaxMode::SystemRam)),
            word => word.parse().map(Self::Modules),
        }
    }
}

impl fmt::Display for ModeChangeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Modules(mode) => mode.fmt(f),
            Self::Device(mode) => mode.fmt(f),
        }
    }
}

/// The mode of a node, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CurrentMode {
    /// There are no persistent memory modules.
    Dram,
    /// All modules are in this mode.
    Is(MemoryMode),
    /// The kernel sees a cache and a store, but not the shares.
    SomeMixed,
    /// Sockets differ.
    Uneven,
    /// There are modules, and none of them is used.
    Unconfigured,
}

impl fmt::Display for CurrentMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dram => f.write_str("dram"),
            Self::Is(mode) => mode.fmt(f),
            Self::SomeMixed => f.write_str("mixed"),
            Self::Uneven => f.write_str("uneven"),
            Self::Unconfigured => f.write_str("unconfigured"),
        }
    }
}

impl Serialize for CurrentMode {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_has_one_word() {
        for word in ["1lm", "2lm", "mixed5", "mixed50", "mixed95"] {
            assert_eq!(word.parse::<MemoryMode>().unwrap().to_string(), word);
        }
        for word in [
            "", "3lm", "1LM", "mixed", "mixed0", "mixed100", "mixed51", "mixed05", "mixed+5",
            "mixed-5", "mixed300",
        ] {
            assert!(word.parse::<MemoryMode>().is_err(), "{word}");
        }
        assert_eq!(
            "devdax".parse::<ModeChangeTarget>(),
            Ok(ModeChangeTarget::Device(DaxMode::Devdax))
        );
        let two = Ok(ModeChangeTarget::Modules(MemoryMode::TwoLevel));
        assert_eq!(("2lm".parse(), "mode_2lm".parse()), (two.clone(), two));
        assert!("mode_mode_2lm".parse::<ModeChangeTarget>().is_err());
    }

    #[test]
    fn a_mode_that_firmware_has_rounded_is_found_again() {
        let total = 128u64 << 30;
        for percent in (5..=95).step_by(5) {
            // Memory is aligned to 1 GiB.
            let memory = (total * percent / 100) >> 30 << 30;
            let mode = MemoryMode::of(memory, total - memory);
            assert_eq!(mode, Some(MemoryMode::Mixed(percent as u8)));
        }
        assert_eq!(MemoryMode::of(1, u64::MAX), Some(MemoryMode::Mixed(5)));
        assert_eq!(MemoryMode::of(u64::MAX, 1), Some(MemoryMode::Mixed(95)));
        assert_eq!(MemoryMode::of(0, 0), None);
    }
}
