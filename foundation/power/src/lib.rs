//! L3: what this machine draws and how warm it is, as its kernel says below `/sys`: RAPL, hwmon, the counters of a Cray.
//! docs/admin/energy.md tells what each covers, who may read it and how it is divided among steps.

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
