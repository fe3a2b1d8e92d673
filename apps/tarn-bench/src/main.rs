//! `tarn-bench`: tarn beside the plain tools, and the papers' experiments. `tarn bench` and `tarn reproduce` start it.

mod args;
mod block;
mod ckpt;
mod cluster;
mod crypt;
mod dsa;
mod figure;
mod fio;
mod hdf5;
mod io;
mod mixed;
mod noop;
mod plan;
mod policies;
mod processes;
mod reproduce;
mod scratch;
mod stage;
mod tasks;
mod trial;
mod workflow;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use error::CliResult;
use std::ffi::OsStr;
use std::process::ExitCode;
use tarn_console::{error, print, usage_error};
use tarn_types::codes::Exit;

fn main() -> ExitCode {
    let first = std::env::args_os().nth(1);
    match first.as_deref().and_then(OsStr::to_str) {
        Some(io::ARGUMENT) => return io::main(),
        Some(tasks::ECHO_ARGUMENT) => return tasks::echo_main(),
        Some(cluster::peer::ARGUMENT) => return cluster::peer::main(),
        Some(tarn_manual::ARGUMENT) => {
            return tarn_manual::main(Cli::command(), 1, std::env::args_os().skip(2));
        }
        _ => {}
    }
    match Cli::try_parse() {
        Ok(cli) => print::ended(dispatch(&cli)),
        Err(e) => usage_error::print(&Cli::command(), &e),
    }
}

fn dispatch(cli: &Cli) -> CliResult {
    let (name, figures) = match &cli.command {
        Command::Stage(args) => ("stage", stage::run(args)?),
        Command::Workflow(args) => ("workflow", workflow::run(args)?),
        Command::Plan(args) => ("plan", plan::run(args)?),
        Command::Crypt(args) => ("crypt", crypt::run(args)?),
        Command::Ckpt(args) => ("ckpt", ckpt::run(args)?),
        Command::Block(args) => ("block", block::run(args)?),
        Command::Dsa(args) => ("dsa", dsa::run(args)?),
        Command::Hdf5(args) => ("hdf5", hdf5::run(args)?),
        Command::Cluster(args) => ("cluster", cluster::run(args)?),
        Command::Policies(args) => return policies::run(cli.json, args),
        Command::Mixed(args) => return mixed::run(cli.json, args),
        Command::Reproduce(args) => return reproduce::run(cli.json, args),
    };
    if cli.json {
        print::json(&figure::to_json(name, &figures))?;
    } else {
        print::text(&figure::to_text(&figures))?;
    }
    Ok(Exit::Success)
}
