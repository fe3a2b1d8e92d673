//! The file driver that HDF5 loads.

use crate::error::CliResult;
use crate::plugin::Plugin;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// HDF5 looks at every library of its folder.
const PLUGIN: Plugin = Plugin {
    name: "libh5fdtarn.so",
    mark: "tarn-hdf5-plugin-version=",
    folder: "hdf5",
    variable: "TARN_HDF5_PLUGIN",
    without: ", and HDF5 would crash without it",
    made: "`make build` makes it",
};

/// The folder of a plug-in that is of this version and finds a library of this version.
///
/// # Errors
/// When there is none.
pub fn plugin_folder() -> CliResult<PathBuf> {
    PLUGIN.folder()
}

/// Tells the HDF5 of a program to use the driver, so configured. Other plug-ins stay.
///
/// # Errors
/// When the plug-in's folder has a colon in its path.
pub fn configure_driver(command: &mut Command, plugin: &Path, config: &str) -> anyhow::Result<()> {
    let others = env::var_os("HDF5_PLUGIN_PATH").unwrap_or_default();
    let others = env::split_paths(&others).filter(|folder| !folder.as_os_str().is_empty());
    let paths = env::join_paths(std::iter::once(plugin.to_owned()).chain(others))?;
    command
        .env("HDF5_DRIVER", "tarn")
        .env("HDF5_DRIVER_CONFIG", config)
        .env("HDF5_PLUGIN_PATH", paths);
    Ok(())
}
