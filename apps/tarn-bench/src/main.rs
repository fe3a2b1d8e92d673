//! `tarn-bench`: tarn beside the plain tools, and the papers' experiments. `tarn bench` and `tarn reproduce` start it.

mod args;
mod audit;
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
mod site_plan;
mod stage;
mod tasks;
mod trial;
mod workflow;

use args::{BenchCli, BenchCommand};
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
            return tarn_manual::main(BenchCli::command(), 1, std::env::args_os().skip(2));
        }
        _ => {}
    }
    match BenchCli::try_parse() {
        Ok(cli) => print::ended(dispatch(&cli)),
        Err(e) => usage_error::print(&BenchCli::command(), &e),
    }
}

fn dispatch(cli: &BenchCli) -> CliResult {
    let (name, figures) = match &cli.command {
        BenchCommand::Stage(args) => ("stage", stage::run(args)?),
        BenchCommand::Workflow(args) => ("workflow", workflow::run(args)?),
        BenchCommand::Plan(args) => ("plan", plan::run(args)?),
        BenchCommand::Audit(args) => ("audit", audit::run(args)?),
        BenchCommand::SitePlan(args) => ("site-plan", site_plan::run(args)?),
        BenchCommand::Crypt(args) => ("crypt", crypt::run(args)?),
        BenchCommand::Ckpt(args) => ("ckpt", ckpt::run(args)?),
        BenchCommand::Block(args) => ("block", block::run(args)?),
        BenchCommand::Dsa(args) => ("dsa", dsa::run(args)?),
        BenchCommand::Hdf5(args) => ("hdf5", hdf5::run(args)?),
        BenchCommand::Cluster(args) => ("cluster", cluster::run(args)?),
        BenchCommand::Policies(args) => return policies::run(cli.json, args),
        BenchCommand::Mixed(args) => return mixed::run(cli.json, args),
        BenchCommand::Reproduce(args) => return reproduce::run(cli.json, args),
    };
    if cli.json {
        print::json(&figure::to_json(name, &figures))?;
    } else {
        print::text(&figure::to_text(&figures))?;
    }
    Ok(Exit::Success)
}
