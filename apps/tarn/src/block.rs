//! `tarn block serve`: partitions as a block device, by nbdkit and the plug-in for it. docs/guide/block.md

mod folder;

use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::print::{self, message};
use anyhow::Context;
use clap::{Args, Subcommand};
use folder::NbdkitFolder;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::Permissions;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tarn_console::nbdkit;
use tarn_types::codes::Exit;
use tarn_types::units::parse_size;

/// Until nbdkit listens: it opens the partition before.
const START: Duration = Duration::from_secs(60);
/// Between two looks at whether it does.
const LOOK: Duration = Duration::from_millis(10);
/// How long nbdkit, after the signal to end, waits for clients that stay. All that it has answered is in the partition already.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, Subcommand)]
pub(crate) enum BlockCommand {
    /// Serve a partition by the NBD protocol until SIGTERM or SIGINT; prints the URI for clients
    Serve(BlockServeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BlockServeArgs {
    /// The partition, such as /dev/shm/me/disk; several of one size are one device, block by block in turn
    #[arg(required = true)]
    partitions: Vec<OsString>,
    /// With several partitions: the size of such a block, a multiple of 4 KiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    block: Option<u64>,
    /// Listen at this socket [default: one in a new folder]
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    socket: Option<PathBuf>,
    #[allow(rustdoc::broken_intra_doc_links)] // a help text
    /// Listen at this address instead, such as 10.0.0.5:10809 or [::1]:10809
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Clients need a certificate of the authority in this folder: ca-cert.pem, server-cert.pem, server-key.pem
    #[arg(long, value_name = "DIR", requires = "listen")]
    tls_certificates: Option<PathBuf>,
    /// Clients need a key of this file (psktool)
    #[arg(
        long,
        value_name = "FILE",
        requires = "listen",
        conflicts_with = "tls_certificates"
    )]
    tls_psk: Option<PathBuf>,
    /// Over TCP without encryption: whoever reaches the port reads and writes
    #[arg(long, requires = "listen", conflicts_with_all = ["tls_certificates", "tls_psk"])]
    insecure: bool,
    /// Open the partition to be read only
    #[arg(long)]
    read_only: bool,
    /// Refuse a partition in memory, where flushed data does not survive a loss of power
    #[arg(long)]
    no_volatile: bool,
    /// Requests of a connection at the same time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
}

pub(crate) fn block(globals: &Globals, command: &BlockCommand) -> CliResult {
    let BlockCommand::Serve(args) = command;
    if args.listen.is_some()
        && args.tls_certificates.is_none()
        && args.tls_psk.is_none()
        && !args.insecure
    {
        let text = "over TCP, give --tls-certificates DIR or --tls-psk FILE, or --insecure where everybody who reaches the port may read and write";
        return Err(CliError::new(Exit::Usage, text));
    }
    let plugin = nbdkit::plugin()?;
    // Before nbdkit is there, so that no end of it is missed.
    // Under nohup it outlives the terminal.
    let hangup = (!tarn_sys::process::ignores(SIGHUP)).then_some(SIGHUP);
    let watched = [SIGINT, SIGTERM, SIGCHLD].into_iter().chain(hangup);
    let mut signals = Signals::new(watched).exit(Exit::State)?;
    let mut server = NbdkitServer::start(args, &plugin, &mut signals)?;
    let uri = server.at.uri();
    if globals.json {
        print::json(&json!({"schema": 1, "uri": uri}))?;
    } else {
        print::out!("{uri}")?;
    }
    loop {
        if let Some(status) = server.nbdkit.try_wait().exit(Exit::State)? {
            let text = format!(
                "nbdkit has ended by itself ({status}); its messages are above, and every answered request is in the partition"
            );
            return Err(CliError::new(Exit::State, text));
        }
        if signals.wait().any(|signal| signal != SIGCHLD) {
            return Ok(Exit::Success);
        }
    }
}

/// The address of the server.
enum NbdAddress {
    Socket(PathBuf),
    Tcp {
        address: SocketAddr,
        encrypted: bool,
    },
}

impl NbdAddress {
    /// The URI for clients.
    fn uri(&self) -> String {
        match self {
            Self::Socket(path) => {
                let mut uri = "nbd+unix:///?socket=".to_owned();
                for byte in path.as_os_str().as_bytes() {
                    let _ = match byte {
                        b'/' | b'-' | b'.' | b'_' | b'~' => uri.write_char(char::from(*byte)),
                        byte if byte.is_ascii_alphanumeric() => uri.write_char(char::from(*byte)),
                        byte => write!(uri, "%{byte:02X}"),
                    };
                }
                uri
            }
            Self::Tcp {
                address,
                encrypted: true,
            } => format!("nbds://{address}/"),
            Self::Tcp { address, .. } => format!("nbd://{address}/"),
        }
    }
}

/// nbdkit, which ends with this, and its resources.
struct NbdkitServer {
    nbdkit: Child,
    at: NbdAddress,
    _folder: NbdkitFolder,
}

impl NbdkitServer {
    fn start(args: &BlockServeArgs, plugin: &Path, signals: &mut Signals) -> CliResult<Self> {
        let beside = args.socket.as_deref().map(parent);
        let folder = NbdkitFolder::new(beside)?;
        let listening = folder.pid_file();
        let mut command = Command::new("nbdkit");
        command
            .args(["--exit-with-parent", "--threads"])
            .arg(args.threads.to_string())
            .arg("--pidfile")
            .arg(&listening);
        let at = match args.listen {
            Some(address) => {
                let (ip, port) = (address.ip().to_string(), address.port().to_string());
                command.args(["--ipaddr", &ip, "--port", &port]);
                let encrypted = !args.insecure;
                NbdAddress::Tcp { address, encrypted }
            }
            None => {
                let path = folder.socket();
                command.arg("--unix").arg(&path);
                NbdAddress::Socket(path)
            }
        };
        if let Some(folder) = &args.tls_certificates {
            command.args(["--tls=require", "--tls-verify-peer"]);
            command.arg(joined("--tls-certificates=", folder.as_os_str()));
        }
        if let Some(file) = &args.tls_psk {
            command.arg("--tls=require");
            command.arg(joined("--tls-psk=", file.as_os_str()));
        }
        command.arg(plugin);
        for partition in &args.partitions {
            command.arg(joined("partition=", partition));
        }
        if let Some(block) = args.block {
            command.arg(format!("block={block}"));
        }
        if args.read_only {
            command.arg("readonly=yes");
        }
        if args.no_volatile {
            command.arg("volatile=no");
        }
        let nbdkit = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let nbdkit = nbdkit.context("cannot start nbdkit").exit(Exit::State)?;
        let mut server = Self {
            nbdkit,
            at,
            _folder: folder,
        };
        server.listens(&listening, signals)?;
        if let NbdAddress::Socket(path) = &mut server.at {
            // nbdkit lets others at it; nobody else comes into the folder.
            let own = Permissions::from_mode(0o600);
            std::fs::set_permissions(&*path, own).exit(Exit::State)?;
            if let Some(wanted) = &args.socket {
                let wanted = std::path::absolute(wanted).exit(Exit::Usage)?;
                free(&wanted)?;
                let context = || format!("cannot make {}", wanted.display());
                std::fs::hard_link(&*path, &wanted)
                    .with_context(context)
                    .exit(Exit::State)?;
                *path = wanted;
            }
        }
        Ok(server)
    }

    /// Waits until it does.
    fn listens(&mut self, listening: &Path, signals: &mut Signals) -> CliResult<()> {
        let until = Instant::now() + START;
        while !listening.exists() {
            let refused = |text: String| Err(CliError::new(Exit::State, text));
            if let Some(status) = self.nbdkit.try_wait().exit(Exit::State)? {
                return refused(format!(
                    "nbdkit does not serve ({status}): its messages are above"
                ));
            }
            if signals.pending().any(|signal| signal != SIGCHLD) {
                return refused("told to end before nbdkit was ready".to_owned());
            }
            if Instant::now() > until {
                return refused(format!("nbdkit does not listen after {START:?}"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for NbdkitServer {
    fn drop(&mut self) {
        let until = Instant::now() + GRACE;
        // A process that has ended is there until it was waited for: no other one has its number.
        if let Ok(None) = self.nbdkit.try_wait()
            && let Some(pid) = Pid::from_raw(self.nbdkit.id() as i32)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
        while let Ok(None) = self.nbdkit.try_wait() {
            if Instant::now() > until {
                let _ = self.nbdkit.kill();
                let _ = self.nbdkit.wait();
                break;
            }
            std::thread::sleep(LOOK);
        }
        if let NbdAddress::Socket(path) = &self.at
            && let Err(e) = std::fs::remove_file(path)
            && e.kind() != ErrorKind::NotFound
        {
            message!("warning: cannot remove {}: {e}", path.display());
        }
    }
}

/// The folder that a file is in.
fn parent(file: &Path) -> &Path {
    let parent = file.parent().filter(|p| !p.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Takes away what a dead server has left at a socket's place.
fn free(path: &Path) -> CliResult<()> {
    let Ok(there) = path.symlink_metadata() else {
        return Ok(());
    };
    let name = path.display();
    if !there.file_type().is_socket() {
        let text = format!("{name} is there, and no socket: give another --socket");
        return Err(CliError::new(Exit::Usage, text));
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            let context = || format!("cannot remove {name}, which a dead server has left");
            std::fs::remove_file(path)
                .with_context(context)
                .exit(Exit::State)
        }
        Err(e) => Err(CliError::new(Exit::State, format!("{name}: {e}"))),
        Ok(_) => {
            let text = format!("a server listens at {name}: end it, or give another --socket");
            Err(CliError::new(Exit::Busy, text))
        }
    }
}

fn joined(key: &str, value: &std::ffi::OsStr) -> OsString {
    let mut text = OsString::from(key);
    text.push(value);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_as_uris() {
        let socket = NbdAddress::Socket("/tmp/a b/ä.sock".into());
        assert_eq!(socket.uri(), "nbd+unix:///?socket=/tmp/a%20b/%C3%A4.sock");
        let address = "[::1]:10809".parse().unwrap();
        let tcp = |encrypted| NbdAddress::Tcp { address, encrypted }.uri();
        assert_eq!(tcp(true), "nbds://[::1]:10809/");
        assert_eq!(tcp(false), "nbd://[::1]:10809/");
    }
}
