//! `tarn bench` and `tarn reproduce`: the program `tarn-bench`, which is installed beside this one.

use crate::args::Cli;
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use clap::parser::ValueSource;
use clap::{Args, Command as Parsed, CommandFactory};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use tarn_console::programs;
use tarn_types::codes::Exit;

/// Of the options of every command, the one that tarn-bench has too.
const SHARED: &str = "json";

/// Becomes `tarn-bench FIRST WORDS`.
///
/// # Errors
/// When there is no such program, or an option is given that it does not have.
pub(crate) fn start(globals: &Globals, first: &[&str], words: &[OsString]) -> CliResult {
    if let Some(option) = not_for_it(std::env::args_os()) {
        let text = format!(
            "`tarn bench` and `tarn reproduce` have no option --{option}: they neither use a state folder nor log; leave it out"
        );
        return Err(CliError::new(Exit::Usage, text));
    }
    let program = programs::find("tarn-bench").exit(Exit::NotFound)?;
    let mut command = Command::new(&program);
    command.args(globals.json.then_some("--json")).args(first);
    let why = command.args(words).exec();
    let text = format!("cannot start {}: {why}", program.display());
    Err(CliError::new(Exit::State, text))
}

/// The first option on this command line that tarn-bench does not have. Those from the environment are for other commands.
fn not_for_it(words: impl Iterator<Item = OsString>) -> Option<String> {
    let matches = Cli::command().try_get_matches_from(words).ok()?;
    let options = Globals::augment_args(Parsed::new(""));
    let mut options = options.get_arguments().filter(|option| {
        let source = matches.value_source(option.get_id().as_str());
        option.get_id() != SHARED && source == Some(ValueSource::CommandLine)
    });
    options.next()?.get_long().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Option<String> {
        not_for_it(line.split(' ').map(OsString::from))
    }

    #[test]
    fn options_that_would_be_dropped_are_found() {
        for verb in ["bench", "reproduce"] {
            for (option, value) in [
                ("state", "x"),
                ("log", "info"),
                ("log-to", "run"),
                ("log-format", "json"),
            ] {
                let given = Some(option.to_owned());
                assert_eq!(found(&format!("tarn --{option} {value} {verb} a")), given);
                assert_eq!(
                    found(&format!("tarn --json --{option}={value} {verb}")),
                    given
                );
            }
            assert_eq!(found(&format!("tarn --json {verb} a --rounds 1")), None);
        }
    }
}
