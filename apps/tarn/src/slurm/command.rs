//! Slurm's own commands.

use crate::error::{CliError, CliResult};
use std::process::Command;
use tarn_types::codes::Exit;

/// Runs one of Slurm's commands and returns its output.
pub(super) fn run_command(command: &str, words: &[&str]) -> CliResult<String> {
    let about = format!("`{command} {}`", words.join(" "));
    // Times are seconds since 1970: others depend on the host.
    let output = Command::new(command)
        .args(words)
        .env("SLURM_TIME_FORMAT", "%s")
        .output();
    let output = output.map_err(|e| CliError::new(Exit::State, format!("{about}: {e}")))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(CliError::new(Exit::State, format!("{about}: {why}")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
