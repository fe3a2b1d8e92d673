//! L3: the power draw and temperature of this machine, as its kernel shows them below `/sys`: RAPL, hwmon, the counters of a Cray.
//! docs/admin/energy.md explains the coverage of each, the right to read it and its division among steps.

mod account;
mod files;
mod meter;
mod sensors;

pub use account::EnergyAccount;
pub use meter::{MachineMeter, SAMPLE};
pub use sensors::{Reading, Sensors};

use std::path::PathBuf;

/// Names another folder than `/sys`.
pub const SYSFS_VARIABLE: &str = "TARN_SYSFS";

/// The folder in which the kernel shows its devices.
pub fn sysfs() -> PathBuf {
    let other = std::env::var_os(SYSFS_VARIABLE).filter(|v| !v.is_empty());
    other.map_or_else(|| "/sys".into(), PathBuf::from)
}
