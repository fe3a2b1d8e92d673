//! `tarnd`: serves the programs of a node. Glue: `tarn-tasks` decides when tasks run, bytes are moved by
//! `tarn-mover`.
//!
//! One thread ([`server`]) has the socket, the core and all its state; [`work`] has the threads that touch files;
//! [`journal`] has the one that makes records durable. An idle tarnd has nothing to wake up for. Or it is the half of a run that
//! is done on one of its nodes: [`node`].

mod connection;
mod controller;
mod destage;
mod fingerprint;
mod guest;
mod journal;
mod mover_error;
mod node;
mod options;
mod peer_host;
mod peers;
mod pieces;
mod progress;
mod server;
mod site;
mod waits;
mod work;

use clap::{CommandFactory, Parser};
use options::{DaemonLogFormat, Options};
use std::io::{self, Write};
use std::process::ExitCode;
use tarn_types::codes::Exit;
use tarn_types::line::{plain, plain_json};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Why tarnd ends, and with which exit code.
#[derive(Debug)]
struct TarndError {
    exit: Exit,
    error: anyhow::Error,
}

impl TarndError {
    fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        Self { exit, error }
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words
        .next()
        .is_some_and(|word| word == tarn_manual::ARGUMENT)
    {
        return tarn_manual::main(Options::command(), 8, words);
    }
    // The services of a site have options of their own.
    let ended = match std::env::args_os().nth(1) {
        Some(word) if word == "--controller" => {
            parsed().and_then(|options: controller::Options| {
                start_logs(options.log_level, options.log_format, None);
                log_exit_error(controller::run(&options).map(|()| Exit::Success as u8))
            })
        }
        Some(word) if word == "--site" => parsed().and_then(|options: site::Options| {
            start_logs(options.log_level, options.log_format, None);
            log_exit_error(site::run(&options).map(|()| Exit::Success as u8))
        }),
        Some(word) if word == "--worker" => {
            start_logs(Level::INFO, DaemonLogFormat::Text, None);
            log_exit_error(site::work().map(|()| Exit::Success as u8))
        }
        _ => parsed().and_then(|options: Options| {
            // The messages of a run's nodes come together in one file.
            let node = options.node.then(|| options.node_name.clone()).flatten();
            start_logs(options.log_level, options.log_format, node);
            log_exit_error(run(options))
        }),
    };
    ExitCode::from(ended.unwrap_or_else(|code| code))
}

/// The command line, or the code that tarnd ends with at once.
fn parsed<T: Parser>() -> Result<T, u8> {
    T::try_parse().map_err(|e| {
        let _ = e.print();
        if e.use_stderr() { Exit::Usage as u8 } else { 0 }
    })
}

/// Says why it ends.
fn log_exit_error(ended: Result<u8, TarndError>) -> Result<u8, u8> {
    ended.map_err(|fault| {
        tracing::error!("{:#}", fault.error);
        fault.exit as u8
    })
}

/// Until the end; with which exit code.
fn run(options: Options) -> Result<u8, TarndError> {
    if options.node {
        return node::run(&options).map(|()| Exit::Success as u8);
    }
    if options.step {
        let (options, _home) = guest::of_step(options)?;
        return server::run(&options);
    }
    server::run(&options)
}

fn start_logs(level: Level, format: DaemonLogFormat, node: Option<String>) {
    let logs = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(false)
        .with_writer(move || PrefixedStderr {
            node: node.clone(),
            format,
        });
    // Messages of libraries are for their developers.
    let own = Targets::new()
        .with_target("tarn", level)
        .with_default(level.min(Level::WARN));
    match format {
        DaemonLogFormat::Text => logs.finish().with(own).init(),
        DaemonLogFormat::Json => logs.json().flatten_event(true).finish().with(own).init(),
    }
}

/// Standard error; each line begins with the node's name, if it has one.
struct PrefixedStderr {
    node: Option<String>,
    format: DaemonLogFormat,
}

impl Write for PrefixedStderr {
    /// Gets whole lines. Text of others in them forges none.
    fn write(&mut self, whole: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(whole.strip_suffix(b"\n").unwrap_or(whole));
        let mut line = match self.format {
            DaemonLogFormat::Text => plain(&text).into_owned(),
            DaemonLogFormat::Json => plain_json(&text),
        };
        line.push('\n');
        let line = line.as_bytes();
        let mut all = Vec::with_capacity(line.len() + 64);
        match (&self.node, self.format) {
            (None, _) => all.extend_from_slice(line),
            (Some(node), DaemonLogFormat::Text) => {
                all.extend_from_slice(node.as_bytes());
                all.push(b' ');
                all.extend_from_slice(line);
            }
            (Some(node), DaemonLogFormat::Json) => {
                all.extend_from_slice(br#"{"node":"#);
                serde_json::to_writer(&mut all, node)?;
                all.push(b',');
                all.extend_from_slice(line.strip_prefix(b"{").unwrap_or(line));
            }
        }
        io::stderr().write_all(&all)?;
        Ok(whole.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
