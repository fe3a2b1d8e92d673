//! The other node: this program started again, with a data server and a bare sender, behind a link of its own where that
//! is allowed: a network namespace and a veth pair, which go away with the process.

use super::bare;
use anyhow::{Context, bail, ensure};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tarn_data_plane::{
    BareWindow, Called, ContentTransport, DataClient, DataClientTimeouts, DataServer, Key, Limits,
    RawWindowClient, Registry, RegistryError, RemoteStorage, ReplicaRegistry, RunId, Served,
    Transport, Tree, Wire, library,
};
use tarn_partitions::{PartitionFolder, Serving};
use tarn_ports::{Control, PeerTree};
use tarn_proto::storage::Offer;

/// The run, and a key that guards nothing: the served bytes are random.
const RUN: RunId = *b"tarn-bench-peer!";
const KEY: Key = Key([0x2a; 32]);
/// Bytes that a limited link lets through at once: some milliseconds at 1 Gbit/s.
const BURST: &str = "256kb";
/// How long a packet may wait for a limited link.
const LATENCY: &str = "20ms";

/// A rate as tc(8) writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkRate(u64, &'static str);

impl std::str::FromStr for LinkRate {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = ["gbit", "mbit"]
            .into_iter()
            .find(|u| *u == &text[digits.len()..]);
        match (digits.parse(), unit) {
            (Ok(n @ 1..=1_000_000), Some(unit)) => Ok(Self(n, unit)),
            _ => anyhow::bail!("write a number and its unit, such as 1gbit or 800mbit"),
        }
    }
}

impl std::fmt::Display for LinkRate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.0, self.1)
    }
}

/// CPU seconds of this process so far, its own and the kernel's for it.
pub(super) fn cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// The peer's process, and the way to it.
pub(crate) struct PeerProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    client: Arc<DataClient>,
    /// The address of its bare sender.
    pub(crate) bare: SocketAddr,
    /// The link between, for people.
    pub(crate) link: String,
}

impl PeerProcess {
    /// Starts a peer that serves `folder`.
    pub(super) fn start(
        folder: &Path,
        rate: Option<LinkRate>,
        transport: &Transport,
    ) -> anyhow::Result<Self> {
        match Self::with(folder, rate, transport, true) {
            Err(e) if rate.is_none() => {
                crate::print::message!("no separate link ({e:#}); loopback is used instead");
                Self::with(folder, None, transport, false)
            }
            other => other,
        }
    }

    /// Starts one behind a link of its own, or none.
    pub(crate) fn linked(folder: &Path, rate: Option<LinkRate>) -> anyhow::Result<Self> {
        Self::with(folder, rate, &Transport::Tcp, true)
    }

    /// Starts one that uses a provider of libfabric.
    pub(crate) fn with_provider(folder: &Path, provider: &str) -> anyhow::Result<Self> {
        Self::start(folder, None, &Transport::Libfabric(provider.into()))
    }

    /// A partition that it has in its folder, in the hands of one thread, by windows.
    pub(crate) fn partition(&self, name: &str, provider: &str) -> anyhow::Result<RemoteStorage> {
        let control = Control::default();
        let mut line = self.client.line(&control)?;
        let size = self.client.call_on(&mut line, name.as_bytes(), &control)?;
        let size = u64::from_le_bytes(size[..].try_into().context("no size")?);
        let (stream, keys) = line.into_stream()?;
        let wire = Wire::new(stream, keys.as_ref())?;
        let mut far = RemoteStorage::new(wire, Arc::new(size.into()), false)?;
        let by_window = far.by_window(&library()?, provider)?;
        ensure!(by_window, "the peer offers no window that can be used");
        Ok(far)
    }

    /// A window of so many bytes with nothing around it, from this host's address on the way to it.
    pub(crate) fn bare_window(
        &mut self,
        provider: &str,
        size: u64,
    ) -> anyhow::Result<RawWindowClient> {
        let offer = self.ask(&format!("window {} {provider} {size}", self.bare.ip()))?;
        let byte = |pair: &[u8]| {
            u8::from_str_radix(str::from_utf8(pair)?, 16).map_err(anyhow::Error::from)
        };
        let offer: anyhow::Result<Vec<u8>> = offer.as_bytes().chunks(2).map(byte).collect();
        let offer = Offer::decode(&offer?).map_err(|m| anyhow::anyhow!("{m}"))?;
        let to = TcpStream::connect(self.bare)?;
        let bare = RawWindowClient::open(&library()?, to.local_addr()?.ip(), &offer);
        bare.map_err(anyhow::Error::msg)
    }

    /// It does only the work of its bare window, or rests.
    pub(crate) fn work(&mut self, on: bool) -> anyhow::Result<()> {
        let done = self.ask(if on { "work" } else { "rest" })?;
        ensure!(done == "done", "the peer has no window");
        Ok(())
    }

    /// The process that is there.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    fn with(
        folder: &Path,
        rate: Option<LinkRate>,
        transport: &Transport,
        own_link: bool,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe()?;
        let mut command = if own_link {
            let mut unshare = Command::new("unshare");
            unshare.arg("--net").arg(program);
            unshare
        } else {
            Command::new(program)
        };
        command.arg(ARGUMENT).arg(folder);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the peer")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut peer = Self {
            child,
            input,
            output: BufReader::new(output.context("no pipe to the peer")?),
            client: Arc::new(client(
                SocketAddr::from(([127, 0, 0, 1], 0)),
                ContentTransport::Clear,
            )),
            bare: SocketAddr::from(([127, 0, 0, 1], 0)),
            link: "loopback".into(),
        };
        ensure!(peer.read_reply()? == "ready", "the peer did not start");
        let mut address = Ipv4Addr::LOCALHOST;
        if own_link {
            address = peer.wire(rate)?;
            peer.link = match rate {
                Some(rate) => format!("veth, {rate}"),
                None => "veth".into(),
            };
        }
        let ports = peer.ask(&format!("serve {address} {transport}"))?;
        let mut ports = ports.split(' ').map(str::parse::<u16>);
        let mut next = || {
            anyhow::Ok(SocketAddr::from((
                address,
                ports.next().context("no port")??,
            )))
        };
        let (data, bare) = (next()?, next()?);
        (peer.client, peer.bare) = (Arc::new(client(data, way(transport)?)), bare);
        Ok(peer)
    }

    /// Lays a veth pair between this namespace and the peer's. Returns the peer's address.
    fn wire(&mut self, rate: Option<LinkRate>) -> anyhow::Result<Ipv4Addr> {
        let pid = self.child.id();
        // `unshare` becomes the peer: the same process. Link-local addresses, a pair for each process id.
        let net = [169, 254, 1 + (pid / 64 % 254) as u8, (pid % 64 * 4) as u8];
        let at = |host: u8| Ipv4Addr::new(net[0], net[1], net[2], net[3] + host);
        let here = format!("tarn{}", pid % 1_000_000);
        let pid = pid.to_string();
        tool(
            "ip",
            &[
                "link", "add", &here, "type", "veth", "peer", "name", "tarn", "netns", &pid,
            ],
        )?;
        tool(
            "ip",
            &["addr", "add", &format!("{}/30", at(1)), "dev", &here],
        )?;
        tool("ip", &["link", "set", &here, "up"])?;
        let rate = rate.map_or("none".into(), |r| r.to_string());
        ensure!(
            self.ask(&format!("wire {} {rate}", at(2)))? == "wired",
            "the peer has no link"
        );
        Ok(at(2))
    }

    fn read_reply(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(
            line.ends_with('\n'),
            "the peer has ended; its output is above"
        );
        Ok(line.trim_end().to_owned())
    }

    fn ask(&mut self, what: &str) -> anyhow::Result<String> {
        writeln!(self.input.as_mut().context("the peer has ended")?, "{what}")?;
        self.read_reply()
    }

    /// CPU seconds of the peer so far.
    pub(super) fn cpu(&mut self) -> anyhow::Result<f64> {
        Ok(self.ask("cpu")?.parse()?)
    }

    /// The tree that it serves.
    pub(super) fn tree(&self) -> Arc<dyn PeerTree> {
        Arc::new(self.client.tree(served()))
    }

    /// The same over sealed streams.
    pub(super) fn sealed_tree(&self) -> Arc<dyn PeerTree> {
        let client = DataClient {
            way: ContentTransport::Sealed,
            ..DataClient::clone(&self.client)
        };
        Arc::new(Arc::new(client).tree(served()))
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // The end of its input is the end of the peer.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

fn served() -> Tree {
    Tree::Replica(b"bench".as_slice().into())
}

fn way(transport: &Transport) -> anyhow::Result<ContentTransport> {
    transport.way().map_err(anyhow::Error::msg)
}

fn client(address: SocketAddr, way: ContentTransport) -> DataClient {
    DataClient {
        node: "peer".into(),
        address,
        others: Vec::new(),
        run: RUN,
        key: KEY,
        timeout: DataClientTimeouts::default(),
        way,
    }
}

/// A folder that a peer serves, and the partitions in it.
struct ServedFolder {
    replica_registry: ReplicaRegistry,
    folder: PathBuf,
}

impl Registry for ServedFolder {
    fn key(&self, run: &RunId) -> Option<Key> {
        self.replica_registry.key(run)
    }

    fn tree(&self, run: &RunId, tree: &Tree) -> Result<Served, RegistryError> {
        self.replica_registry.tree(run, tree)
    }

    fn call(&self, _: &RunId, name: &[u8], _: &Control) -> Result<Called, RegistryError> {
        let failed = |why: tarn_partitions::RequestError| RegistryError(why.text);
        let name = String::from_utf8_lossy(name);
        let folder = PartitionFolder::open(&self.folder).map_err(failed)?;
        let (file, info) = folder.export_file(&name, true).map_err(failed)?;
        let serving = Serving::new(file, &self.folder.join(&*name), true).map_err(failed)?;
        let make = |_: &TcpStream| serving.target(()).map_err(std::io::Error::other);
        Ok(Called::Storage(
            info.size.to_le_bytes().into(),
            Box::new(make),
        ))
    }
}

/// A bare window, and the thread for it.
struct BareWindowWorker {
    window: Arc<BareWindow>,
    rests: Arc<AtomicBool>,
    worker: Option<JoinHandle<std::io::Result<()>>>,
}

impl BareWindowWorker {
    fn open(address: &str, provider: &str, size: u64) -> anyhow::Result<Self> {
        let file = memfd_create("tarn-bench-window", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, size)?;
        let at = address.parse()?;
        let window = BareWindow::open(&library()?, provider, at, (file.as_fd(), size));
        Ok(Self {
            window: Arc::new(window.map_err(anyhow::Error::msg)?),
            rests: Arc::default(),
            worker: None,
        })
    }

    fn work(&mut self) {
        let (window, rests) = (Arc::clone(&self.window), Arc::clone(&self.rests));
        rests.store(false, Ordering::Relaxed);
        self.worker = Some(std::thread::spawn(move || window.work(&rests)));
    }

    fn rest(&mut self) -> anyhow::Result<()> {
        self.rests.store(true, Ordering::Relaxed);
        let ended = self.worker.take().map(JoinHandle::join);
        let ended = ended.unwrap_or(Ok(Ok(())));
        Ok(ended.map_err(|_| anyhow::anyhow!("a thread has died"))??)
    }
}

fn tool(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let done = Command::new(program).args(args).output();
    let done = done.with_context(|| format!("cannot start `{program}`"))?;
    if !done.status.success() {
        let stderr = String::from_utf8_lossy(&done.stderr);
        bail!("`{program} {}` failed: {}", args.join(" "), stderr.trim());
    }
    Ok(())
}

/// The first argument that makes a process a peer.
pub(crate) const ARGUMENT: &str = "__peer";
/// The process `tarn-bench __peer`.
pub(crate) fn main() -> ExitCode {
    match serve(std::env::args_os().nth(2).map(PathBuf::from)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            crate::print::message!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(folder: Option<PathBuf>) -> anyhow::Result<()> {
    let folder = folder.context("a folder is needed")?;
    let replica_registry = ReplicaRegistry::new();
    replica_registry.admit(RUN, KEY);
    replica_registry.offer(&RUN, served(), &folder)?;
    let shown = Arc::new(ServedFolder {
        replica_registry,
        folder,
    });
    let (mut server, mut worked) = (None, None);
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["wire", address, rate] => {
                tool(
                    "ip",
                    &["addr", "add", &format!("{address}/30"), "dev", "tarn"],
                )?;
                tool("ip", &["link", "set", "tarn", "up"])?;
                if rate != "none" {
                    let limit = ["qdisc", "add", "dev", "tarn", "root", "tbf", "rate", rate];
                    tool(
                        "tc",
                        &[&limit[..], &["burst", BURST, "latency", LATENCY]].concat(),
                    )?;
                }
                writeln!(out, "wired")?;
            }
            ["serve", address, transport] => {
                let way = way(&transport.parse().map_err(anyhow::Error::msg)?)?;
                let started =
                    DataServer::start((address, 0), shown.clone(), Limits::default(), way)?;
                let listener = TcpListener::bind((address, 0))?;
                let bare = listener.local_addr()?.port();
                std::thread::spawn(move || bare::send_all(&listener));
                writeln!(out, "{} {bare}", started.address().port())?;
                server = Some(started);
            }
            ["window", address, provider, size] => {
                let window = BareWindowWorker::open(address, provider, size.parse()?)?;
                let offer = window.window.offer().encode();
                let digits: String = offer.iter().map(|byte| format!("{byte:02x}")).collect();
                writeln!(out, "{digits}")?;
                worked = Some(window);
            }
            ["work" | "rest"] => {
                let worked = worked.as_mut().context("there is no window")?;
                match words[..] {
                    ["work"] => worked.work(),
                    _ => worked.rest()?,
                }
                writeln!(out, "done")?;
            }
            ["cpu"] => writeln!(out, "{}", cpu_seconds())?,
            _ => bail!("`{line}` is not understood"),
        }
    }
    if let Some(worked) = &mut worked {
        worked.rest()?;
    }
    drop(server);
    Ok(())
}
