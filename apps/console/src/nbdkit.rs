//! The plug-in by which nbdkit serves partitions.

use crate::error::{CliError, CliResult, ExitWith};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tarn_types::codes::Exit;

/// Its file.
pub const PLUGIN: &str = "nbdkit-tarn-plugin.so";

/// The plug-in beside this program, or where it is installed; nbdkit loads it, and it is of this version.
pub fn plugin() -> CliResult<PathBuf> {
    let own = std::env::current_exe().exit(Exit::State)?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let places = [folder.to_owned(), folder.join("../lib/tarn")];
    let found = places.iter().map(|place| place.join(PLUGIN));
    let plugin = found.into_iter().find(|plugin| plugin.is_file());
    let plugin = plugin.ok_or_else(|| {
        let text = format!(
            "{PLUGIN} is neither in {} nor in {}: `make build` makes it where nbdkit-plugin-dev is installed",
            places[0].display(),
            places[1].display()
        );
        CliError::new(Exit::NotFound, text)
    })?;
    let dump = Command::new("nbdkit")
        .arg(&plugin)
        .arg("--dump-plugin")
        .stdin(Stdio::null())
        .output();
    let dump = dump.map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            let text = "there is no nbdkit, which speaks the protocol: install it (Debian: apt-get install nbdkit)";
            CliError::new(Exit::NotFound, text)
        }
        _ => CliError::new(Exit::State, format!("cannot start nbdkit: {e}")),
    })?;
    if !dump.status.success() {
        let why = String::from_utf8_lossy(&dump.stderr);
        let text = format!("nbdkit cannot load {}: {}", plugin.display(), why.trim());
        return Err(CliError::new(Exit::State, text));
    }
    let text = String::from_utf8_lossy(&dump.stdout);
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("version="))
        .unwrap_or("unknown");
    let own = env!("CARGO_PKG_VERSION");
    if version != own {
        let text = format!(
            "{} is of tarn {version}, and this is tarn {own}: install both of one version",
            plugin.display()
        );
        return Err(CliError::new(Exit::State, text));
    }
    Ok(plugin)
}
