//! `tarnd --site`: the node's half of a site. It runs as root, and opens no file of a user: it takes the controller's orders, has
//! workers with users' rights carry them out, and decides which data jobs may see. docs/internals/site.md.

mod admit;
mod audit;
mod inventory;
mod keys;
mod memory;
mod pool;
mod project;
mod session;
mod site_registry;
mod store;
mod stores;
mod talk;
mod worker;

pub(crate) use keys::Secrets;
pub(crate) use worker::run as work;

use crate::{TarndError, options};
use admit::JobAdmission;
use anyhow::{Context, bail};
use audit::Audit;
use clap::Parser;
use memory::JobMemory;
use pool::{WorkerPool, WorkerQueues};
use rustix::fs::{Mode, Uid as Owner};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stores::{NodeStores, StoreSpec, folder_of_root};
use talk::WorkerConfig;
use tarn_data_plane::Transport;
use tarn_journal::LockError;
use tarn_munge::{Munge, accept};
use tarn_node::machine::host_name;
use tarn_proto::site::Epoch;
use tarn_stream::{PendingConnection, PendingConnections};
use tarn_types::codes::Exit;

/// Below `--run-dir`: a lock for each user, which the user's worker has as long as it runs.
const WORKERS: &str = "workers";
/// Pending connections, which have not proven who they are: at a time, and of one address.
pub(crate) const MAX_PENDING: usize = 1024;
pub(crate) const MAX_PENDING_OF_ONE: usize = 256;

/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(200);

/// Serves a site's controller on a node, as root: keeps users' data, with their rights; docs/admin/site.md.
#[derive(Debug, Parser)]
#[command(name = "tarnd --site", version)]
pub(crate) struct Options {
    #[arg(long, hide = true)]
    site: bool,
    /// The store for users' data, on a file system of this node, and its capacity for tarn. Several, fast to slow, each with a name: data
    /// moves between them; add `,volatile` behind the size of a store that is lost with power
    #[arg(long, value_name = "[NAME=]PATH:SIZE", value_parser = stores::wanted, required = true)]
    store: Vec<StoreSpec>,
    /// The data of the one store is lost with power, as on tmpfs
    #[arg(long)]
    volatile: bool,
    /// The address at which the controller reaches it
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:7412")]
    listen: SocketAddr,
    /// The folder for the state of jobs, in `jobs` below it, for the SPANK plug-in
    #[arg(long, value_name = "DIR", default_value = "/run/tarn")]
    run_dir: PathBuf,
    /// How workers read each other's data: tcp; or sealed: TCP encrypted by AES-256-GCM, also where the other node has not asked for it
    #[arg(long, value_name = "TRANSPORT", value_parser = transport, default_value_t = Transport::Tcp)]
    transport: Transport,
    /// The rate at which the worker of each user may read and write outside, such as `2 GB/s`
    #[arg(long, value_name = "RATE", value_parser = options::rate)]
    external_rate: Option<u64>,
    /// The rate at which the worker of each user may read from other nodes
    #[arg(long, value_name = "RATE", value_parser = options::rate)]
    peer_rate: Option<u64>,
    /// The rate at which the worker of each user may read when it moves parts from one store of this node to another
    #[arg(long, value_name = "RATE", value_parser = options::rate)]
    move_rate: Option<u64>,
    /// The object store (S3) of users whose `~/.aws/config` names none [default: Amazon's]
    #[arg(long, value_name = "URL", value_parser = endpoint)]
    object_endpoint: Option<String>,
    /// Data is overwritten before it is removed from the store; a store that was marked so (`.tarn-erase` in it) stays so without this
    #[arg(long)]
    erase: bool,
    /// The lowest number of a user who may have data
    #[arg(long, value_name = "UID", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    min_uid: u32,
    /// A log of each order and its result, a JSON object a line; made, mode 0600
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// This node's name [default: Slurm's, or the host's]
    #[arg(long, value_name = "NAME", env = "SLURMD_NODENAME")]
    node_name: Option<String>,
    /// The socket of this host's munged, if not munge's own
    #[arg(long, value_name = "PATH")]
    munge_socket: Option<PathBuf>,
    /// The level of the log on standard error: error, warn, info, debug
    #[arg(long, default_value = "info")]
    pub(crate) log_level: tracing::Level,
    /// How
    #[arg(long, value_enum, default_value_t = options::DaemonLogFormat::Text)]
    pub(crate) log_format: options::DaemonLogFormat,
}

impl Options {
    /// The configuration of each worker.
    fn worker_config(&self) -> WorkerConfig {
        WorkerConfig {
            sealed: self.transport == Transport::Sealed,
            external_rate: self.external_rate,
            object_endpoint: self.object_endpoint.clone(),
            peer_rate: self.peer_rate,
            move_rate: self.move_rate,
        }
    }
}

fn transport(text: &str) -> anyhow::Result<Transport> {
    match text.parse().map_err(anyhow::Error::msg)? {
        Transport::Libfabric(_) => bail!("workers have no windows: give tcp or sealed"),
        transport => Ok(transport),
    }
}

fn endpoint(text: &str) -> anyhow::Result<String> {
    let host = ["https://", "http://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    match host.is_some_and(|host| !host.is_empty() && !host.contains(['@', ' '])) {
        true => Ok(text.to_owned()),
        false => bail!("give https://HOST or https://HOST:PORT"),
    }
}

/// The state that all sessions share.
struct SiteNodeService {
    node: String,
    stores: Arc<NodeStores>,
    boot: String,
    pool: Arc<WorkerPool>,
    memory: JobMemory,
    admission: JobAdmission,
    audit: Arc<Audit>,
    munge: Munge,
    meter: Arc<tarn_power::MachineMeter>,
    term: Mutex<Term>,
}

/// The controller that gives orders.
#[derive(Default)]
struct Term {
    epoch: Epoch,
    /// Ends the session that there is.
    current: Option<Arc<TcpStream>>,
}

/// Runs until it is killed: the next workers find half-done work.
pub(crate) fn run(options: &Options) -> Result<(), TarndError> {
    let state = |e: anyhow::Error| TarndError::new(Exit::State, e);
    if !rustix::process::geteuid().is_root() {
        let text = "`tarnd --site` is run by root: it starts workers that have the rights of users";
        return Err(TarndError::new(Exit::Usage, anyhow::anyhow!(text)));
    }
    crate::server::raise_descriptors();
    let wanted = stores::check(options.store.clone(), options.volatile);
    let wanted = wanted.map_err(|e| TarndError::new(Exit::Usage, e))?;
    let stores = NodeStores::open(wanted, options.erase).map_err(|e| {
        let is_busy = e.downcast_ref::<LockError>().is_some();
        TarndError::new(if is_busy { Exit::Busy } else { Exit::State }, e)
    })?;
    let site = SiteNodeService::new(options, Arc::new(stores)).map_err(state)?;
    let listener = TcpListener::bind(options.listen)
        .with_context(|| format!("cannot listen at {}", options.listen))
        .map_err(state)?;
    tracing::info!(
        node = site.node,
        at = %options.listen,
        stores = ?site.stores.places(),
        "tarnd {} serves the site",
        env!("CARGO_PKG_VERSION")
    );
    accept_sessions(&listener, &Arc::new(site))
}

/// Serves each client that connects, on a thread of its own.
fn accept_sessions(listener: &TcpListener, site: &Arc<SiteNodeService>) -> ! {
    let pending = PendingConnections::new(MAX_PENDING, MAX_PENDING_OF_ONE);
    loop {
        let accepted = listener.accept().and_then(|(stream, from)| {
            let (place, gone) = pending.admit(&stream, from)?;
            Ok((stream, from, place, gone))
        });
        let (stream, from, place, gone) = match accepted {
            Ok(accepted) => accepted,
            Err(e) => {
                tracing::warn!("nobody can be accepted now: {e}");
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        if let Some(gone) = gone {
            let text =
                "one that had not proven who it is was closed for the next: too many at a time";
            site.audit.turned_away(gone, "session", text);
        }
        let theirs = Arc::clone(site);
        let thread = std::thread::Builder::new().name("session".into());
        if let Err(e) = thread.spawn(move || theirs.meet(stream, from, place)) {
            tracing::warn!("a session cannot be served: {e}");
        }
    }
}

impl SiteNodeService {
    /// Makes the folders that it needs beside its stores.
    fn new(options: &Options, stores: Arc<NodeStores>) -> anyhow::Result<Self> {
        prepare(&options.run_dir)?;
        let node = options.node_name.clone().unwrap_or_else(host_name);
        let audit = Arc::new(Audit::open(options.audit.as_deref())?);
        let epoch = stores.epoch()?;
        let memory = JobMemory::new(&options.run_dir).with_context(|| {
            format!("no place for jobs' memory in {}", options.run_dir.display())
        })?;
        let pool = WorkerPool {
            stores: Arc::clone(&stores),
            memory: memory.all().to_owned(),
            locks: options.run_dir.join(WORKERS),
            node: node.clone(),
            min_uid: options.min_uid,
            worker_config: options.worker_config(),
            audit: Arc::clone(&audit),
            queues: WorkerQueues::default(),
            secrets: Mutex::default(),
        };
        Ok(Self {
            pool: Arc::new(pool),
            memory,
            admission: JobAdmission::new(&options.run_dir, Arc::clone(&stores)),
            boot: boot(),
            node,
            stores,
            audit,
            munge: munge(options.munge_socket.as_deref()),
            meter: Arc::new(tarn_power::MachineMeter::new(&tarn_power::sysfs())),
            term: Mutex::new(Term {
                epoch,
                current: None,
            }),
        })
    }

    /// A client connects, which may be the controller.
    fn meet(&self, stream: TcpStream, from: SocketAddr, place: PendingConnection) {
        let own = rustix::process::geteuid().as_raw();
        let refused = |why: &str| self.audit.turned_away(from.ip(), "session", why);
        match accept(stream, &self.node, own, &self.munge) {
            Ok((reader, writer, secrets)) => {
                drop(place);
                match Secrets::of(secrets) {
                    Some(secrets) => session::serve(self, (reader, writer), &secrets, from),
                    None => refused("a controller without a secret"),
                }
            }
            Err(why) => refused(&why.to_string()),
        }
    }

    fn term(&self) -> MutexGuard<'_, Term> {
        self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// This host's munge daemon.
pub(crate) fn munge(socket: Option<&Path>) -> Munge {
    socket.map_or_else(Munge::default, Munge::at)
}

/// Makes the folders that are root's, beside those of stores.
fn prepare(run: &Path) -> anyhow::Result<()> {
    folder_of_root(run, 0o755)?;
    folder_of_root(&run.join("jobs"), 0o700)?;
    folder_of_root(&run.join(WORKERS), 0o700)?;
    folder_of_root(&run.join("data"), 0o755)
}

/// Makes a user's folder, if there is none.
fn user_folder(root: &Path, user: u32, group: u32) -> std::io::Result<()> {
    let path = root.join(format!("u{user}"));
    match rustix::fs::mkdir(&path, Mode::from_raw_mode(0o700)) {
        Ok(()) => {}
        Err(rustix::io::Errno::EXIST) => return Ok(()),
        Err(e) => return Err(e.into()),
    }
    let group = rustix::fs::Gid::from_raw(group);
    rustix::fs::chown(&path, Some(Owner::from_raw(user)), Some(group))?;
    Ok(())
}

/// The kernel's name for this boot.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}
