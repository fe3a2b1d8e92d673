//! tarnd on all nodes of an allocation, and a session with each.

use crate::cluster::own_program;
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Logged;
use crate::print::message;
use std::collections::BTreeSet;
use std::fs::File;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tarn_cluster::{EventQueue, NoAnswer, NodeLink, ReachableNode};
use tarn_data_plane::Transport;
use tarn_proto::node::{Borrow, NodeStartInput, NodeStartReport};
use tarn_sessions::{CallError, NodeSession, RunKeys, SessionTimeouts};
use tarn_slurm::SrunLaunch;
use tarn_types::codes::Exit;
use tarn_types::id::NodeId;
use tarn_types::layout::StateDir;
use tarn_types::nodes::Swept;

/// For all nodes to start tarnd: Slurm may have to boot or to wait for some.
const STARTING: Duration = Duration::from_secs(120);
/// Sessions that are opened at once.
const OPENING: usize = 64;
/// The nodes on which tarnd runs, as long as any of this is in use.
pub(super) struct Fleet {
    slurm: Mutex<tarn_slurm::SrunNodes>,
    started: Vec<NodeStartReport>,
    keys: RunKeys,
    /// The run, as tarnd knows it.
    pub(super) label: String,
    pub(super) event_queue: EventQueue,
    /// The file of the nodes' standard error, once there is one.
    log: Arc<OnceLock<PathBuf>>,
}

/// The run's number and key on the data plane.
pub(super) type DataPlane = (u128, [u8; 32]);

impl Fleet {
    /// Starts tarnd on all nodes of an allocation; a session with each, and the run's number and key on the data plane.
    pub(super) fn start(
        allocation: &tarn_slurm::SlurmAllocation,
        transport: &Transport,
        log: Option<Logged>,
        borrow: Option<Borrow>,
    ) -> CliResult<(Self, Vec<ReachableNode>, DataPlane)> {
        let keys = RunKeys::new().exit(Exit::Internal)?;
        let key = random()?;
        let [number, word] = [random()?, random()?].map(|r| {
            let half: [u8; 16] = std::array::from_fn(|i| r[i]);
            u128::from_le_bytes(half)
        });
        let label = format!("tarn-{:08x}", word as u32);
        let timeout = SessionTimeouts::default();
        let millis = |d: Duration| d.as_millis() as u64;
        let start = NodeStartInput {
            keys: serde_json::to_value(&keys).exit(Exit::Internal)?,
            run: label.clone(),
            timeouts: (millis(timeout.heartbeat), millis(timeout.lost)),
            data: (number, key),
            transport: transport.to_string(),
            borrow,
        };
        let mut words = vec!["--node".to_owned()];
        words.extend(log.into_iter().flat_map(Logged::words));
        let launch = SrunLaunch {
            program: &own_program()?.with_file_name("tarnd"),
            words: &words,
            start: &start,
            name: &label,
            timeout: STARTING,
        };
        let (slurm, started) =
            tarn_slurm::SrunNodes::start(allocation, &launch).exit(Exit::State)?;
        let event_queue = EventQueue::new();
        let fleet = Fleet {
            slurm: Mutex::new(slurm),
            started,
            keys,
            label,
            event_queue,
            log: Arc::default(),
        };
        let links = fleet.links()?;
        Ok((fleet, links, (number, key)))
    }

    /// A session with a node; `number` counts those with it.
    pub(super) fn link(&self, node: NodeId, number: u64) -> CliResult<ReachableNode> {
        let started = self.started.get(node.at());
        let started =
            started.ok_or_else(|| CliError::new(Exit::Internal, "there is no such node"))?;
        let name = &started.node;
        let address = address(name, started.control)?;
        let timeout = SessionTimeouts::default();
        let events = self.event_queue.of(node, number);
        let session = NodeSession::open(address, &self.keys, timeout, &self.label, name, events);
        let session = session.map_err(|e| CliError::new(Exit::State, e))?;
        let log = Arc::clone(&self.log);
        Ok(ReachableNode {
            name: name.clone(),
            link: Arc::new(AllocationConnection { session, log }),
            data: (name.clone(), started.data),
        })
    }

    /// Appends what the nodes say on standard error to a file from now on.
    pub(super) fn log_to(&self, path: PathBuf) {
        let file = File::options().create(true).append(true).open(&path);
        // It is for people who look for an error: a run can do without.
        if let (Ok(file), Ok(slurm)) = (file, self.slurm.lock()) {
            slurm.log_to(file);
            let _ = self.log.set(path);
        }
    }

    /// The energy that Slurm has counted on the nodes so far, if it measures that.
    pub(super) fn joules(&self) -> Option<u64> {
        let slurm = self.slurm.lock().unwrap_or_else(PoisonError::into_inner);
        slurm.joules().ok().flatten()
    }

    fn links(&self) -> CliResult<Vec<ReachableNode>> {
        let all: Vec<NodeId> = (0..self.started.len() as u32).map(NodeId).collect();
        let mut links = Vec::with_capacity(all.len());
        for some in all.chunks(OPENING) {
            let opened: Vec<_> = std::thread::scope(|scope| {
                let threads = some.iter().map(|n| scope.spawn(move || self.link(*n, 0)));
                let threads: Vec<_> = threads.collect();
                let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
                joined.collect()
            });
            for (node, opened) in some.iter().zip(opened) {
                let linked = opened
                    .unwrap_or_else(|_| Err(CliError::new(Exit::Internal, "an error inside tarn")));
                links.push(linked.map_err(|why| self.unreachable(*node, &why))?);
            }
        }
        assert_eq!(
            links.len(),
            self.started.len(),
            "one session with each node"
        );
        Ok(links)
    }

    fn unreachable(&self, node: NodeId, why: &CliError) -> CliError {
        let name = self.started.get(node.at()).map_or("?", |s| &s.node);
        let slurm = self.slurm.lock().unwrap_or_else(PoisonError::into_inner);
        let messages = slurm.stderr_tail();
        let messages = if messages.is_empty() {
            String::new()
        } else {
            format!("; messages of the nodes:\n{messages}")
        };
        CliError::new(
            Exit::State,
            format!(
                "tarnd runs on {name}, but cannot be reached from here ({why}); nodes of an allocation must be able to connect to each \
                 other and to where tarn runs{messages}"
            ),
        )
    }
}

fn address(name: &str, port: u16) -> CliResult<SocketAddr> {
    let failed = |text: String| CliError::new(Exit::State, text);
    let found = (name, port).to_socket_addrs();
    let mut found = found.map_err(|e| failed(format!("{name}: {e}")))?;
    // tarnd listens there.
    let first = found.find(SocketAddr::is_ipv4);
    first.ok_or_else(|| failed(format!("{name} has no IPv4 address")))
}

fn random() -> CliResult<[u8; 32]> {
    let mut bytes = [0; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).exit(Exit::State)?;
    Ok(bytes)
}

/// The nodes of the allocation that this process is in, reached to remove what dead runs have left there.
pub(crate) struct Sweeper {
    // Ends tarnd there when it goes.
    _fleet: Fleet,
    links: Vec<ReachableNode>,
}

impl Sweeper {
    /// Those of the allocation that this process is in, if it is in one.
    pub(crate) fn here() -> CliResult<Option<Self>> {
        let Some(allocation) = tarn_slurm::SlurmAllocation::here().exit(Exit::State)? else {
            return Ok(None);
        };
        print_unusable_nodes(&allocation);
        let (fleet, links, _) = Fleet::start(&allocation, &Transport::Tcp, None, None)?;
        let _fleet = fleet;
        Ok(Some(Self { _fleet, links }))
    }

    /// Removes from each node the data of a workspace that dead runs have left, on the tiers at the roots that `of` gives, except
    /// the `protected` folders. Returns each node's name and result.
    pub(crate) fn sweep(
        &self,
        workspace: &str,
        state: &StateDir,
        of: &dyn Fn(&str) -> BTreeSet<PathBuf>,
        protected: &BTreeSet<PathBuf>,
    ) -> Vec<(String, CliResult<Swept>)> {
        let names = || self.links.iter().map(|l| l.name.clone());
        let roots: Vec<_> = names().map(|name| of(&name)).collect();
        let swept = tarn_cluster::sweep(&self.links, workspace, &state.0, &roots, protected);
        let swept = swept.into_iter();
        let swept = swept.map(|node| node.map_err(|why| CliError::new(Exit::State, why)));
        names().zip(swept).collect()
    }
}

/// A session as the world of the run wants it.
struct AllocationConnection {
    session: NodeSession,
    log: Arc<OnceLock<PathBuf>>,
}

impl AllocationConnection {
    /// Why the node is lost, and where to look.
    fn lost(&self, why: &str) -> String {
        match self.log.get() {
            Some(log) => format!("{why}; its last messages are in {}", log.display()),
            None => why.to_owned(),
        }
    }
}

impl NodeLink for AllocationConnection {
    fn send_command(&self, message: Vec<u8>) -> bool {
        self.session.send_command(message).is_ok()
    }

    fn call(&self, request: Vec<u8>, timeout: Option<Duration>) -> Result<Vec<u8>, NoAnswer> {
        let answer = self.session.call(request, timeout);
        answer.map_err(|e| match e {
            CallError::Lost(why) => NoAnswer::Lost(self.lost(&why)),
            CallError::Late(timeout) => NoAnswer::Late(timeout),
        })
    }

    fn over(&self) -> Option<String> {
        self.session.over().map(|why| self.lost(why))
    }

    fn end(&self) {
        self.session.end();
    }
}

/// Says which nodes the job began with that cannot be used.
pub(super) fn print_unusable_nodes(allocation: &tarn_slurm::SlurmAllocation) {
    for (name, why) in &allocation.gone {
        message!("note: {name} of job {} is left out: {why}", allocation.job);
    }
}
