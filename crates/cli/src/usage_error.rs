//! What a wrong command line is about, beyond what clap says.

use crate::args::Cli;
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::error::Error;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

/// The option of `tarn run` that was given to `tarn resume`.
pub(crate) fn only_for_run(e: &clap::Error) -> Option<String> {
    let (Some(ContextValue::String(given)), Some(ContextValue::StyledStr(usage))) =
        (e.get(ContextKind::InvalidArg), e.get(ContextKind::Usage))
    else {
        return None;
    };
    let unknown = e.kind() == ErrorKind::UnknownArgument;
    let resumes = usage.to_string().contains("tarn resume");
    let name = given.strip_prefix("--")?;
    let command = Cli::command();
    let run = command.find_subcommand("run")?;
    let is_of_run = run.get_arguments().any(|a| a.get_long() == Some(name));
    (unknown && resumes && is_of_run).then(|| given.clone())
}

/// The environment variable that has said a value which an option does not take.
pub(crate) fn of_environment(e: &clap::Error) -> Option<String> {
    let (option, value) = invalid(e)?;
    let option = option.split_whitespace().next()?;
    // Who writes `--option` sees where the value is from.
    let is_given = |word: OsString| word.to_string_lossy().split('=').next() == Some(option);
    let name = option.strip_prefix("--")?;
    let variable = variable(&Cli::command(), name, value)?;
    (!std::env::args_os().any(is_given)).then_some(variable)
}

/// The variable that says this value of this option, of whichever command.
fn variable(command: &clap::Command, option: &str, value: &str) -> Option<String> {
    let says = |arg: &clap::Arg| {
        let variable = arg.get_env().filter(|_| arg.get_long() == Some(option))?;
        let said = std::env::var_os(variable)?;
        (said == value).then(|| variable.to_string_lossy().into_owned())
    };
    let below = || {
        command
            .get_subcommands()
            .find_map(|c| variable(c, option, value))
    };
    command.get_arguments().find_map(says).or_else(below)
}

/// The argument of which a value is not taken, and the value.
fn invalid(e: &clap::Error) -> Option<(&str, &str)> {
    let text = |kind| match e.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    Some((
        text(ContextKind::InvalidArg)?,
        text(ContextKind::InvalidValue)?,
    ))
}

/// What is said of a value that must be a number and is none: the form that is expected, with an example.
pub(crate) fn not_a_number(e: &clap::Error) -> Option<String> {
    if e.kind() != ErrorKind::ValueValidation {
        return None;
    }
    let source = e.source()?;
    let is_whole = match source.downcast_ref::<ParseIntError>() {
        Some(error) => {
            let is_none = matches!(
                error.kind(),
                IntErrorKind::InvalidDigit | IntErrorKind::Empty
            );
            is_none.then_some(true)?
        }
        None => source.is::<ParseFloatError>().then_some(false)?,
    };
    let (argument, value) = invalid(e)?;
    let option = argument.split_whitespace().next()?;
    let long = option.strip_prefix("--");
    let default = long.and_then(|name| default(&Cli::command(), name));
    let (form, number) = match is_whole {
        true => ("a whole number, in digits and without a unit", "4"),
        false => ("a number", "0.5"),
    };
    let number = default.unwrap_or_else(|| number.into());
    let example = match long {
        Some(_) => format!("{option} {number}"),
        None => number,
    };
    Some(format!(
        "error: invalid value '{value}' for '{argument}': write {form}, such as `{example}`\n\nFor more information, try '--help'."
    ))
}

/// The number that an option of the command that was given has where nobody says another.
fn default(root: &clap::Command, option: &str) -> Option<String> {
    let mut command = root;
    for word in std::env::args_os().skip(1) {
        command = command.find_subcommand(&word).unwrap_or(command);
    }
    let arguments = command.get_arguments().chain(root.get_arguments());
    let mut own = arguments.filter(|a| a.get_long() == Some(option));
    let value = own.next()?.get_default_values().first()?.to_str()?;
    value.parse::<f64>().is_ok().then(|| value.to_owned())
}
