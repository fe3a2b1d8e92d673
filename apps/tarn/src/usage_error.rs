//! The subject of a wrong command line, if it is about runs.

use crate::args::Cli;
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

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

/// Whether a run was named twice, by itself and by `--run`.
pub(crate) fn names_run_twice(e: &clap::Error) -> bool {
    let is_run = |text: &str| text.starts_with("--run ") || text == "[RUN]";
    let names = |kind| match e.get(kind) {
        Some(ContextValue::String(one)) => is_run(one),
        Some(ContextValue::Strings(all)) => all.iter().any(|text| is_run(text)),
        _ => false,
    };
    e.kind() == ErrorKind::ArgumentConflict
        && names(ContextKind::InvalidArg)
        && names(ContextKind::PriorArg)
}
