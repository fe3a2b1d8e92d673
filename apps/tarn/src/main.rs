//! `tarn`: the command line. It only connects the crates below, which do the work.

mod args;
mod argument;
mod block;
mod ckpt;
mod clock;
mod cluster;
mod data;
mod date;
mod doctor;
mod finding;
mod globals;
mod h5;
mod inspect;
mod key;
mod live;
mod measure;
mod mode;
mod mover;
mod nodes;
mod options;
mod partition;
mod plan;
mod progress;
mod run;
mod run_log;
mod sim;
mod slurm;
mod state;
mod usage;
mod usage_error;
mod verbs;
mod watch;
mod workflow;

use args::{Cli, TarnCommand};
use clap::{CommandFactory, Parser};
use error::{CliError, CliResult};
use print::message;
use std::ffi::OsStr;
use std::process::ExitCode;
use tarn_console::{error, print, whole};
use tarn_types::codes::Exit;

fn main() -> ExitCode {
    // These run inside steps: before anything else, while the process has one thread.
    let first = std::env::args_os().nth(1);
    match first.as_deref().and_then(OsStr::to_str) {
        word if tarn_node::image::able::is_taker(word) => {
            return tarn_node::image::take::main(&tarn_mover::Trees::new());
        }
        Some(tarn_node::HELPER_ARGUMENT) => {
            return tarn_node::runner::main(|| Box::new(tarn_mover::Trees::new()));
        }
        // Options before the command are for the whole command line to understand.
        Some("exec") if std::env::args_os().len() > 2 && !has_options(2) => {
            return tarn_node::exec::main(std::env::args_os().skip(2));
        }
        Some("enter") if std::env::args_os().len() > 2 && !has_options(1) => {
            return tarn_node::exec::enter(std::env::args_os().skip(2));
        }
        Some(tarn_node::RANK_ARGUMENT) => {
            return tarn_node::exec::rank(std::env::args_os().skip(2));
        }
        // The full command line reports arguments that this one does not understand.
        Some("slurm")
            if std::env::args_os()
                .nth(2)
                .is_some_and(|word| word == "check") =>
        {
            if let Ok(args) = slurm::CheckArgs::try_parse_from(std::env::args_os().skip(2)) {
                return print::ended(slurm::check(&args));
            }
        }
        Some(tarn_manual::ARGUMENT) => {
            return tarn_manual::main(Cli::command(), 1, std::env::args_os().skip(2));
        }
        _ => {}
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            if let Some(option) = usage_error::only_for_run(&e) {
                message!(
                    "error: `tarn resume` continues a run as it began and takes no {option}; `tarn run {option}` begins a new run, \
                     which runs again only what is not done"
                );
                return ExitCode::from(Exit::Usage as u8);
            }
            if usage_error::names_run_twice(&e) {
                message!("error: name the run once: `RUN` and `--run RUN` are the same");
                return ExitCode::from(Exit::Usage as u8);
            }
            return tarn_console::usage_error::print(&Cli::command(), &e);
        }
    };
    print::ended(dispatch(&cli))
}

/// Whether one of the first words after the subcommand is an option.
fn has_options(words: usize) -> bool {
    let mut words = std::env::args_os().skip(2).take(words);
    words.any(|word| word != "--" && word.as_encoded_bytes().starts_with(b"-"))
}

fn dispatch(cli: &Cli) -> CliResult {
    let globals = &cli.globals;
    match &cli.command {
        TarnCommand::Run(args) => run::run(globals, args),
        TarnCommand::Plan(args) => plan::plan(globals, args),
        TarnCommand::Sim(args) => sim::sim(globals, args),
        TarnCommand::Resume(args) => run::resume(globals, args),
        TarnCommand::Status(args) => watch::status(globals, args),
        TarnCommand::Why(args) => inspect::why(globals, args),
        TarnCommand::Cancel(which) => inspect::cancel(globals, which),
        TarnCommand::Data(command) => data::data(globals, command),
        TarnCommand::Key(command) => key::key(globals, command),
        TarnCommand::Ckpt(command) => ckpt::ckpt(globals, command),
        TarnCommand::Block(command) => block::block(globals, command),
        TarnCommand::H5(command) => h5::h5(globals, command),
        TarnCommand::Verbs(command) => verbs::verbs(command),
        TarnCommand::Partition(command) => partition::partition(globals, command),
        TarnCommand::Mode(command) => mode::mode(globals, command),
        TarnCommand::Usage(args) => usage::usage(globals, args),
        TarnCommand::Submit(args) => slurm::submit(globals, args),
        TarnCommand::Slurm(command) => slurm::slurm(globals, command),
        TarnCommand::Nodes(machine) => nodes::nodes(globals, machine),
        TarnCommand::Doctor(machine) => doctor::doctor(globals, machine),
        TarnCommand::Bench { words } => measure::start(globals, &[], words),
        TarnCommand::Reproduce { words } => measure::start(globals, &["reproduce"], words),
        TarnCommand::Exec(args) => Err(CliError::new(
            Exit::Usage,
            format!(
                "tarn exec {} works inside a step of several nodes",
                args.node
            ),
        )),
        TarnCommand::Enter(_) => Err(CliError::new(
            Exit::Usage,
            "tarn enter works in processes that a step of several nodes starts",
        )),
    }
}
