//! GlusterFS for a step: a brick and a client on each of its nodes, configured by files. docs/internals/shared-namespace.md.

use super::{NamespacePlan, Provider, ProviderAddress, volfile};
use crate::storage::store::tail;
use rustix::process::{Pid, Signal};
use rustix::thread::CapabilitySet;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tarn_ports::CapabilityError;
use tarn_sys::process::die_with_parent;

/// For a brick to listen, and for the namespace to appear. It takes some ten milliseconds where nothing else is done.
const TIMEOUT: Duration = Duration::from_secs(20);
/// For another node's brick to take a connection.
const REACH: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// How often another port is tried when somebody was quicker to take it.
const PORTS: u32 = 5;
/// Of what it has logged, bytes that an error shows.
const LOG_TAIL: usize = 600;
/// The log message of a brick whose port is its own; and of one whose port is not.
const LISTENS: &str = "listening on port";
const TAKEN: &str = "Address already in use";

/// GlusterFS on one node of a step.
pub(crate) struct Gluster<'a> {
    plan: &'a NamespacePlan,
    brick: Option<Pid>,
    client: Option<Pid>,
}

/// Whether this machine has what it needs; if not, what is missing. `helper` is the tarn binary.
pub(crate) fn able(helper: &Path) -> Result<(), CapabilityError> {
    program("glusterfsd")?;
    program("glusterfs")?;
    library(helper)?;
    fuse()
}

/// Whether this machine has what it takes to use another's brick; if not, what is missing.
pub(crate) fn able_to_mount() -> Result<(), CapabilityError> {
    program("glusterfs")?;
    fuse()
}

/// Administrators' programs are not in everybody's search path.
fn program(name: &str) -> Result<PathBuf, CapabilityError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut all = std::env::split_paths(&path)
        .chain(more)
        .map(|f| f.join(name));
    all.find(|p| p.is_file()).ok_or_else(|| {
        CapabilityError::new(format_args!(
            "there is no {name}; install GlusterFS 10 (Debian: glusterfs-server)"
        ))
    })
}

fn library(helper: &Path) -> Result<PathBuf, CapabilityError> {
    const NAME: &str = "libtarnbrick.so";
    let beside = helper.parent().unwrap_or(Path::new("/"));
    let all = [beside.join(NAME), beside.join("../lib/tarn").join(NAME)];
    all.into_iter().find(|p| p.is_file()).ok_or_else(|| {
        CapabilityError::new(format_args!(
            "there is no {NAME} beside {} or in ../lib/tarn; scripts/install.sh puts it there",
            helper.display()
        ))
    })
}

fn fuse() -> Result<(), CapabilityError> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).write(true).open("/dev/fuse");
    opened.map(drop).map_err(|e| {
        CapabilityError::new(format_args!("/dev/fuse cannot be opened: {e}; FUSE must be allowed to the user (mode 0666, as udev makes it)"))
    })
}

fn private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(text.as_bytes())
}

fn secret() -> io::Result<String> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

impl<'a> Gluster<'a> {
    pub(crate) fn new(plan: &'a NamespacePlan) -> Self {
        Self {
            plan,
            brick: None,
            client: None,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.plan.folder.join(name)
    }

    /// The error, with the end of the program's log.
    fn failed(&self, what: &str, log: &str) -> io::Error {
        io::Error::other(format!(
            "GlusterFS on node `{}`: {what}; its log ends with: {}",
            self.plan.node,
            tail(&self.at(log), LOG_TAIL).trim_end()
        ))
    }

    fn spawn(&self, name: &str, kind: &str, more: &[(&str, &Path)]) -> io::Result<(Child, Pid)> {
        let program = program(name).map_err(io::Error::other)?;
        let mut command = Command::new(program);
        command
            .arg("--no-daemon")
            .arg("--volfile")
            .arg(self.at(&format!("{kind}.vol")))
            .arg("--log-file")
            .arg(self.at(&format!("{kind}.log")))
            .arg("--pid-file")
            .arg(self.at(&format!("{kind}.pid")));
        command.env_clear().current_dir(&self.plan.folder);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        for (name, value) in more {
            match name.is_empty() {
                true => command.arg(value),
                false => command.env(name, value),
            };
        }
        let child = die_with_parent(&mut command, Signal::KILL).spawn()?;
        let pid = Pid::from_child(&child);
        Ok((child, pid))
    }

    /// A brick on a port of its own, unless somebody has taken that meanwhile.
    fn open(&mut self) -> io::Result<Option<ProviderAddress>> {
        let provider_address = ProviderAddress {
            host: String::new(),
            port: TcpListener::bind(("0.0.0.0", 0))?.local_addr()?.port(),
            user: "tarn".into(),
            password: secret()?,
        };
        let text = volfile::brick(&NamespacePlan::brick(&self.plan.folder), &provider_address);
        private(&self.at("brick.vol"), &text.map_err(io::Error::other)?)?;
        private(&self.at("brick.log"), "")?;
        let exe = std::env::current_exe()?;
        let library = library(&exe).map_err(io::Error::other)?;
        // It gives attributes to files that their modes give nobody; they are its user's all the same.
        let rights = CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER;
        let (mut child, pid) = with(rights, || {
            self.spawn(
                "glusterfsd",
                "brick",
                &[
                    ("LD_PRELOAD", &library),
                    ("TARN_BRICK_LINKS", &self.at("links")),
                ],
            )
        })?;
        self.brick = Some(pid);
        let begun = Instant::now();
        let log = self.at("brick.log");
        // Its own log counts: another process may listen on that port.
        let listens =
            || std::fs::read(&log).is_ok_and(|l| String::from_utf8_lossy(&l).contains(LISTENS));
        while !listens() {
            if child.try_wait()?.is_some() {
                self.brick = None;
                let text = tail(&log, 64 << 10);
                return match text.contains(TAKEN) {
                    true => Ok(None),
                    false => Err(self.failed("its brick does not start", "brick.log")),
                };
            }
            if begun.elapsed() > TIMEOUT {
                return Err(self.failed("its brick does not listen", "brick.log"));
            }
            std::thread::sleep(LOOK);
        }
        while TcpStream::connect_timeout(&([127, 0, 0, 1], provider_address.port).into(), REACH)
            .is_err()
        {
            if begun.elapsed() > TIMEOUT || child.try_wait()?.is_some() {
                return Err(self.failed("its brick takes no connection", "brick.log"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(Some(provider_address))
    }

    /// Checked before the client tries it by itself, for minutes and without a message.
    fn reaches(&self, provider_address: &ProviderAddress) -> io::Result<()> {
        let cannot = |e: &dyn std::fmt::Display| {
            io::Error::other(format!(
                "node `{}` cannot reach the brick at {}:{}: {e}; nodes of a job must reach each other's ports",
                self.plan.node, provider_address.host, provider_address.port
            ))
        };
        let all = (provider_address.host.as_str(), provider_address.port).to_socket_addrs();
        let mut last = None;
        for address in all.map_err(|e| cannot(&e))?.filter(|a| a.is_ipv4()) {
            match TcpStream::connect_timeout(&address, REACH) {
                Ok(_) => return Ok(()),
                Err(e) => last = Some(e),
            }
        }
        Err(last.map_or_else(|| cannot(&"it has no IPv4 address"), |e| cannot(&e)))
    }

    fn appeared(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let at = self.plan.mount();
        let at = at.to_string_lossy();
        // The kernel writes white space otherwise, but no such path gets here.
        mounts.lines().any(|l| l.split(' ').nth(4) == Some(&*at))
    }
}

impl Provider for Gluster<'_> {
    fn start(&mut self) -> io::Result<ProviderAddress> {
        fuse().map_err(io::Error::other)?;
        std::fs::set_permissions(&self.plan.folder, Permissions::from_mode(0o700))?;
        let mut made = DirBuilder::new();
        // A brick that is lent again is there.
        made.recursive(true).mode(0o700);
        let brick = NamespacePlan::brick(&self.plan.folder);
        for folder in [brick, self.at("links"), self.plan.mount()] {
            made.create(folder)?;
        }
        for _ in 0..PORTS {
            if let Some(provider_address) = self.open()? {
                return Ok(provider_address);
            }
        }
        Err(self.failed("others take every port that was free", "brick.log"))
    }

    fn mount(&mut self, provider_addresses: &[ProviderAddress]) -> io::Result<()> {
        provider_addresses
            .iter()
            .try_for_each(|d| self.reaches(d))?;
        let text = volfile::client(provider_addresses).map_err(io::Error::other)?;
        private(&self.at("client.vol"), &text)?;
        private(&self.at("client.log"), "")?;
        let at = self.plan.mount();
        // Names and sizes are looked up each time where other nodes change them; else for so many seconds they are known.
        let options = match self.plan.at {
            None => [
                "--entry-timeout=0",
                "--attribute-timeout=0",
                "--negative-timeout=0",
            ],
            Some(_) => [
                "--entry-timeout=5",
                "--attribute-timeout=5",
                "--negative-timeout=0",
            ],
        };
        let mut more: Vec<(&str, &Path)> = options.iter().map(|o| ("", Path::new(o))).collect();
        more.push(("", &at));
        let spawned = with(CapabilitySet::SYS_ADMIN, || {
            self.spawn("glusterfs", "client", &more)
        });
        let (mut child, pid) = spawned?;
        self.client = Some(pid);
        let begun = Instant::now();
        while !self.appeared() {
            if child.try_wait()?.is_some() || begun.elapsed() > TIMEOUT {
                return Err(self.failed("the namespace cannot be mounted", "client.log"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn health(&self, ended: Pid) -> Option<String> {
        let (what, log) = match Some(ended) {
            of if of == self.brick => ("brick", "brick.log"),
            of if of == self.client => ("client", "client.log"),
            _ => return None,
        };
        let why = format!("its {what} has ended while the step ran");
        Some(self.failed(&why, log).to_string())
    }

    fn processes(&self) -> Vec<Pid> {
        self.brick.into_iter().chain(self.client).collect()
    }

    fn stop(&mut self) {
        for pid in self.client.take().into_iter().chain(self.brick.take()) {
            // It may have ended; until it is reaped the number is no other's.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// Starts a program with these of the rights that the user has in the step's own user namespace: exec takes them unless they are
/// passed on. Programs that start later do not have them.
fn with<T>(rights: CapabilitySet, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if rustix::process::geteuid().is_root() {
        return start();
    }
    let before = rustix::thread::capabilities(None)?;
    let mut sets = before;
    sets.inheritable |= rights;
    rustix::thread::set_capabilities(None, sets)?;
    for right in rights.iter() {
        rustix::thread::configure_capability_in_ambient_set(right, true)?;
    }
    let started = start();
    rustix::thread::clear_ambient_capability_set()?;
    rustix::thread::set_capabilities(None, before)?;
    started
}
