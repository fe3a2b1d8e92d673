//! Explanations of a wrong command line, beyond those of clap.

use crate::print::message;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::error::Error;
use std::ffi::OsString;
use std::num::{ParseFloatError, ParseIntError};
use std::process::ExitCode;
use tarn_types::codes::Exit;

/// The environment variable that gave a value which an option does not take.
fn of_environment(command: &clap::Command, e: &clap::Error) -> Option<String> {
    let (option, value) = invalid(e)?;
    let option = option.split_whitespace().next()?;
    // A user who writes `--option` sees the value's source.
    let is_given = |word: OsString| word.to_string_lossy().split('=').next() == Some(option);
    let name = option.strip_prefix("--")?;
    let variable = variable(command, name, value)?;
    (!std::env::args_os().any(is_given)).then_some(variable)
}

/// The variable that gives this value to this option, in any command.
fn variable(command: &clap::Command, option: &str, value: &str) -> Option<String> {
    let variable_of = |arg: &clap::Arg| {
        let variable = arg.get_env().filter(|_| arg.get_long() == Some(option))?;
        let given = std::env::var_os(variable)?;
        (given == value).then(|| variable.to_string_lossy().into_owned())
    };
    let below = || {
        command
            .get_subcommands()
            .find_map(|c| variable(c, option, value))
    };
    command.get_arguments().find_map(variable_of).or_else(below)
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

/// The expected form, with an example, of a value that must be a number and is none, or is out of its range.
fn not_a_number(command: &clap::Command, e: &clap::Error) -> Option<String> {
    let (argument, value) = match e.kind() {
        ErrorKind::ValueValidation => {
            let (argument, value) = invalid(e)?;
            (argument.to_owned(), value.to_owned())
        }
        ErrorKind::UnknownArgument => negative(command, e)?,
        _ => return None,
    };
    let option = argument.split_whitespace().next()?;
    let arg = option.strip_prefix("--").and_then(|n| named(command, n));
    let form = match &arg {
        Some(arg) => form(arg)?,
        None => form_of_error(e.source()?)?,
    };
    let (form, example) = match form {
        Form::Whole(range) => (range.map_or_else(|| WHOLE.into(), in_range), "4"),
        Form::Real => ("a number".into(), "0.5"),
    };
    let number = arg.as_ref().and_then(default);
    let number = number.unwrap_or_else(|| example.into());
    let example = match &arg {
        Some(_) => format!("{option} {number}"),
        None => number,
    };
    Some(format!(
        "error: invalid value '{value}' for '{argument}': write {form}, such as `{example}`\n\nFor more information, try '--help'."
    ))
}

const WHOLE: &str = "a whole number, in digits and without a unit";

/// The form of an option's value.
enum Form {
    /// A whole number, and of which range if it has one (`0..=100`).
    Whole(Option<String>),
    Real,
}

/// The form of an option's value, from its own parser's errors for a word and for a number that no option takes.
fn form(arg: &clap::Arg) -> Option<Form> {
    let error = |value: &str| {
        let alone = clap::Arg::new("v").long("v");
        let alone = alone.value_parser(arg.get_value_parser().clone());
        let words = ["tarn".to_owned(), format!("--v={value}")];
        let parsed = clap::Command::new("tarn").arg(alone);
        parsed.try_get_matches_from(words).err()
    };
    let no_number = error("x")?;
    match form_of_error(no_number.source()?)? {
        Form::Real => Some(Form::Real),
        Form::Whole(_) => {
            let least = error(&i64::MIN.to_string());
            let text = least.and_then(|e| Some(e.source()?.to_string()));
            let range = text.and_then(|t| Some(t.split_once(" is not in ")?.1.to_owned()));
            Some(Form::Whole(range))
        }
    }
}

fn form_of_error(source: &(dyn Error + 'static)) -> Option<Form> {
    match source {
        _ if source.is::<ParseIntError>() => Some(Form::Whole(None)),
        _ if source.is::<ParseFloatError>() => Some(Form::Real),
        _ => None,
    }
}

/// A range as clap writes it, in words.
fn in_range(range: String) -> String {
    match range.split_once("..=") {
        Some((least, most)) if !least.is_empty() => {
            format!("a whole number from {least} to {most}")
        }
        _ => WHOLE.into(),
    }
}

/// A negative number that clap takes for an option, and the option that it is the value of.
fn negative(command: &clap::Command, e: &clap::Error) -> Option<(String, String)> {
    let Some(ContextValue::String(given)) = e.get(ContextKind::InvalidArg) else {
        return None;
    };
    let words: Vec<OsString> = std::env::args_os().collect();
    let mut pairs = words.windows(2);
    let is_number = |word: &OsString| word.to_str().is_some_and(|w| w.parse::<f64>().is_ok());
    let pair = pairs.find(|pair| {
        is_number(&pair[1]) && pair[1].to_string_lossy().starts_with(given.as_str())
    })?;
    let arg = named(command, pair[0].to_str()?.strip_prefix("--")?)?;
    let is_valued = arg.get_action().takes_values();
    let value_name = arg.get_value_names()?.first()?;
    let shown = format!("--{} <{value_name}>", arg.get_long()?);
    is_valued.then(|| (shown, pair[1].to_string_lossy().into_owned()))
}

/// An option of the command that was given.
fn named(root: &clap::Command, option: &str) -> Option<clap::Arg> {
    let mut command = root;
    for word in std::env::args_os().skip(1) {
        command = command.find_subcommand(&word).unwrap_or(command);
    }
    let mut arguments = command.get_arguments().chain(root.get_arguments());
    arguments.find(|a| a.get_long() == Some(option)).cloned()
}

/// The number that an option has by default.
fn default(arg: &clap::Arg) -> Option<String> {
    let value = arg.get_default_values().first()?.to_str()?;
    value.parse::<f64>().is_ok().then(|| value.to_owned())
}

/// Prints the error in a command line, or the help or version that it requests, and returns the exit code.
pub fn print(command: &clap::Command, e: &clap::Error) -> ExitCode {
    match not_a_number(command, e) {
        Some(text) => message!("{text}"),
        None => drop(e.print()),
    }
    if let Some(variable) = of_environment(command, e) {
        message!("note: the value is that of the environment variable {variable}");
    }
    ExitCode::from(if e.use_stderr() { Exit::Usage as u8 } else { 0 })
}
