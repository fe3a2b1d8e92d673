//! `tarn verbs`: programs of RDMA verbs, with tarn's device (plugins/verbs), and the storage peer that they reach partitions by. docs/guide/verbs.md

use crate::error::{CliError, CliResult, ExitWith};
use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use rustix::process::{getpid, getuid};
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tarn_console::plugin::Plugin;
use tarn_types::codes::Exit;

const PLUGIN: Plugin = Plugin {
    name: "libtarnverbs.so",
    mark: "tarn-verbs-plugin-version=",
    folder: "verbs",
    variable: "TARN_VERBS_PLUGIN",
    without: "",
    made: "`make build` makes it where libibverbs-dev is installed",
};
/// The storage peer, in the same folder.
const SERVE: &str = "verbs-serve";
/// The kernel's limit on access to the memory of another process, which peers need.
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

#[derive(Debug, Subcommand)]
pub(crate) enum VerbsCommand {
    /// Run a program of RDMA verbs, which finds the device tarn0 (docs/guide/verbs.md)
    Exec(VerbsExecArgs),
    /// Serve partitions to such programs until SIGTERM or SIGINT
    Serve(VerbsServeArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct VerbsExecArgs {
    /// Serve this partition while the program runs; $TARN_VERBS_PEER is the socket of the exchange then
    #[arg(long = "partition", value_name = "PARTITION")]
    partitions: Vec<OsString>,
    #[command(flatten)]
    how: VerbsPeerOptions,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct VerbsServeArgs {
    /// The socket of the exchange
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    #[command(flatten)]
    how: VerbsPeerOptions,
    /// The partitions, such as /dev/shm/me/field, fast/field, n2:fast/field
    #[arg(required = true)]
    partitions: Vec<OsString>,
}

#[derive(Debug, Clone, Args)]
struct VerbsPeerOptions {
    /// When a write to a partition is complete
    #[arg(long, value_enum, default_value_t)]
    level: VerbsWriteLevel,
    /// Persistent data may be in memory, which outlives programs only
    #[arg(long)]
    volatile: bool,
    /// Partitions are read, and not written
    #[arg(long)]
    read_only: bool,
}

/// As in dsa.h, `enum dsa_level`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum VerbsWriteLevel {
    /// Every later read sees it
    #[default]
    Visible = 2,
    /// It survives a loss of power
    Persistent = 3,
}

pub(crate) fn verbs(command: &VerbsCommand) -> CliResult {
    match command {
        VerbsCommand::Exec(args) if args.partitions.is_empty() => {
            let (program, arguments) = args.command.split_first().context("no program")?;
            let mut command = Command::new(program);
            become_it(command.args(arguments), program, &folder()?)
        }
        VerbsCommand::Exec(args) => {
            let name = format!(
                "/dev/shm/tarn-verbs-{}-{}.socket",
                getuid().as_raw(),
                getpid().as_raw_nonzero()
            );
            serve(Path::new(&name), &args.how, &args.partitions, &args.command)
        }
        VerbsCommand::Serve(args) => serve(&args.socket, &args.how, &args.partitions, &[]),
    }
}

/// The finding for `tarn doctor`.
pub(crate) fn finding() -> crate::finding::CheckFinding {
    let found = folder().map(|folder| {
        format!(
            "{}: `tarn verbs exec` shows programs the device tarn0",
            folder.display()
        )
    });
    crate::finding::found("RDMA verbs", found)
}

/// The plug-in's folder, where its device works.
fn folder() -> CliResult<PathBuf> {
    let scope = std::fs::read_to_string(SCOPE).unwrap_or_default();
    let scope = scope.trim().parse().unwrap_or(0);
    if scope > 2 || (scope == 2 && !getuid().is_root()) {
        let text = format!(
            "{SCOPE} is {scope}: no process may reach another's memory here, which is what peers of the device do. 0 or 1 is enough"
        );
        return Err(CliError::new(Exit::State, text));
    }
    PLUGIN.folder()
}

/// Becomes the storage peer, which runs the program, if there is one.
fn serve(
    socket: &Path,
    how: &VerbsPeerOptions,
    partitions: &[OsString],
    program: &[OsString],
) -> CliResult {
    let folder = folder()?;
    let path = folder.join(SERVE);
    let flag = |set: bool| if set { "1" } else { "0" };
    let mut command = Command::new(&path);
    command
        .arg(std::path::absolute(socket).exit(Exit::Usage)?)
        .arg((how.level as u32).to_string())
        .args([flag(how.volatile), flag(how.read_only)])
        .arg(partitions.len().to_string())
        .args(partitions)
        .args(program);
    become_it(&mut command, path.as_os_str(), &folder)
}

/// Becomes a program that has the device.
fn become_it(command: &mut Command, program: &OsStr, folder: &Path) -> CliResult {
    let library = folder.join(PLUGIN.name);
    if library
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|byte| b" :$".contains(byte))
    {
        let text = format!(
            "{} has a space, a colon or a dollar sign in its path, which LD_PRELOAD cannot hold",
            library.display()
        );
        return Err(CliError::new(Exit::Usage, text));
    }
    let mut libraries = library.into_os_string();
    // Others stay, and come first: a sanitizer must.
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        let mut all = others;
        all.push(":");
        all.push(&libraries);
        libraries = all;
    }
    let failed = command.env("LD_PRELOAD", libraries).exec();
    Err(failed)
        .with_context(|| format!("cannot run {}", program.display()))
        .exit(Exit::NotFound)
}
