//! `tarn bench` and `tarn reproduce`: the program `tarn-bench`, which is installed beside this one.

use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use tarn_console::programs;
use tarn_types::codes::Exit;

/// Becomes `tarn-bench FIRST WORDS`.
///
/// # Errors
/// When there is no such program.
pub(crate) fn start(globals: &Globals, first: &[&str], words: &[OsString]) -> CliResult {
    let program = programs::find("tarn-bench").exit(Exit::NotFound)?;
    let mut command = Command::new(&program);
    command.args(globals.json.then_some("--json")).args(first);
    let why = command.args(words).exec();
    let text = format!("cannot start {}: {why}", program.display());
    Err(CliError::new(Exit::State, text))
}
