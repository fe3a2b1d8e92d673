//! `tarnd`: serves the programs of a node. Glue: what runs when is decided in `tarn-tasks`, bytes are moved by
//! `tarn-movers`.
//!
//! One thread ([`server`]) has the socket, the core and all its state; [`work`] has the threads that touch files;
//! [`journal`] has the one that makes records durable. An idle tarnd has nothing to wake up for. Or it is the half of a run that
//! is done on one of its nodes: [`node`].

mod connection;
mod guest;
mod journal;
mod node;
mod options;
mod peers;
mod progress;
mod server;
mod waits;
mod work;

use clap::Parser;
use options::{LogFormat, Options};
use std::process::ExitCode;
use tarn_base::codes::Exit;

/// Why tarnd ends, and with which exit code.
#[derive(Debug)]
struct Fault {
    exit: Exit,
    error: anyhow::Error,
}

impl Fault {
    fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        Self { exit, error }
    }
}

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { Exit::Usage as u8 } else { 0 });
        }
    };
    start_logs(&options);
    match run(options) {
        Ok(code) => ExitCode::from(code),
        Err(fault) => {
            tracing::error!("{:#}", fault.error);
            ExitCode::from(fault.exit as u8)
        }
    }
}

/// Until the end; with which exit code.
fn run(options: Options) -> Result<u8, Fault> {
    if options.node {
        return node::run(&options).map(|()| Exit::Success as u8);
    }
    if options.step {
        let (options, _home) = guest::of_step(options)?;
        return server::run(&options);
    }
    server::run(&options)
}

fn start_logs(options: &Options) {
    let logs = tracing_subscriber::fmt()
        .with_max_level(options.log_level)
        .with_target(false)
        .with_ansi(false)
        .with_writer(std::io::stderr);
    match options.log_format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}
