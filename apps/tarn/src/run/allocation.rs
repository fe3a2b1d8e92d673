//! A run over the nodes of an allocation of Slurm: a tarnd on each of them, a session with each, one cluster of all.

use crate::cluster;
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Logged;
use crate::options::{
    BindArg, IsolationArg, MachineArgs, ResumeArgs, RunArgs, VerifyArg, WithoutTier,
};
use crate::print::say;
use crate::run::energy::{self, SlurmPowerMonitor};
use crate::run::files::RunFiles;
use crate::run::margin::Margin;
use anyhow::Context;
use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tarn_cluster::{
    AllocationWorld, EventQueue, NoAnswer, NodeLink, NodeLinkMeasurement, RETRY, ReachableNode,
    RemoteTierAttachment, STUCK,
};
use tarn_data_plane::Transport;
use tarn_node::sight::Sights;
use tarn_node::{Config, Local, Namespaces, machine};
use tarn_ports::NodeWorld;
use tarn_proto::node::{
    Borrow, NodeConfig, NodeStartInput as NodeStart, NodeStartReport, WorkspaceKeys,
};
use tarn_sessions::{CallError, NodeSession, RunKeys, SessionTimeouts};
use tarn_slurm::SrunLaunch;
use tarn_types::cluster::Cluster;
use tarn_types::codes::Exit;
use tarn_types::event::{Start, Verify};
use tarn_types::id::NodeId;
use tarn_types::layout::StateDir;
use tarn_types::nodes::{NodeTierUsage, Swept};
use tarn_types::units::Bytes;
use tarn_types::workflow::Workflow;

/// For all nodes to start tarnd: Slurm may have to boot or to wait for some.
const STARTING: Duration = Duration::from_secs(120);
/// Sessions that are opened at once.
const OPENING: usize = 64;
/// Between two questions to Slurm about the end of the allocation: it may have been moved.
const ASK: Duration = Duration::from_secs(300);
/// Between two looks at what there is to bring to safety.
const LOOK: Duration = Duration::from_secs(1);
/// An end that is not known is taken to be so far off, until Slurm is asked again.
const UNKNOWN: Duration = Duration::from_secs(365 * 24 * 3600);

/// The nodes on which tarnd runs, as long as any of this is in use.
struct Fleet {
    slurm: Mutex<tarn_slurm::SrunNodes>,
    started: Vec<NodeStartReport>,
    keys: RunKeys,
    /// The run, as tarnd knows it.
    label: String,
    event_queue: EventQueue,
    /// Where what the nodes say on standard error is kept, once it is.
    log: Arc<OnceLock<PathBuf>>,
}

/// The run's number and key on the data plane.
type DataPlane = (u128, [u8; 32]);

/// An allocation whose nodes can be used.
pub(crate) struct ConnectedAllocation {
    allocation: tarn_slurm::SlurmAllocation,
    fleet: Arc<Fleet>,
    links: Vec<ReachableNode>,
    cluster: Cluster,
    /// What is known of the links between the nodes.
    between: Vec<NodeLinkMeasurement>,
    data: DataPlane,
    /// Whether Slurm measures what nodes draw that do not measure it themselves.
    measured: bool,
    /// When the allocation ends, if it does.
    end: Option<Instant>,
}

/// What Slurm knows of the energy of a run.
pub(crate) struct SlurmEnergy {
    /// Until a world takes it.
    pub(crate) asked: Option<SlurmPowerMonitor>,
    fleet: Arc<Fleet>,
}

impl SlurmEnergy {
    /// Says what Slurm has counted for all that ran on the nodes; it counts as long as they are there.
    pub(crate) fn print_energy_sum(&self) {
        let slurm = self.fleet.slurm.lock();
        let slurm = slurm.unwrap_or_else(PoisonError::into_inner);
        if let Ok(Some(joules)) = slurm.joules() {
            say!(
                "Slurm has counted {joules} J for this run on its nodes (sstat, ConsumedEnergyRaw)"
            );
        }
    }
}

/// For what the nodes are wanted.
pub(crate) struct AllocationRequest<'a> {
    /// The state folder.
    pub(crate) state: &'a StateDir,
    /// What is to be run, if anything: the nodes must see its places as tarn does.
    pub(crate) workflow: Option<&'a Workflow>,
    /// Seconds that are to be left before the allocation ends.
    pub(crate) margin: u64,
    /// What of tarnd's log is wanted, if that was said.
    pub(crate) log: Option<Logged>,
}

/// Where a run can go on.
pub(crate) enum ResumeLocation {
    /// On the nodes that it began on: this machine, or those of an allocation.
    Same(Option<Box<ConnectedAllocation>>),
    /// Not there, and why.
    Other(String),
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

impl Fleet {
    /// Starts tarnd on all nodes of an allocation; a session with each, and the run's number and key on the data plane.
    fn start(
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
        let start = NodeStart {
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
            program: &crate::cluster::own_program()?.with_file_name("tarnd"),
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
    fn link(&self, node: NodeId, number: u64) -> CliResult<ReachableNode> {
        let started = self.started.get(node.at());
        let started =
            started.ok_or_else(|| CliError::new(Exit::Internal, "there is no such node"))?;
        let name = &started.node;
        let address = address(name, started.control)?;
        let timeout = SessionTimeouts::default();
        let news = self.event_queue.of(node, number);
        let session = NodeSession::open(address, &self.keys, timeout, &self.label, name, news);
        let session = session.map_err(|e| CliError::new(Exit::State, e))?;
        let log = Arc::clone(&self.log);
        Ok(ReachableNode {
            name: name.clone(),
            link: Arc::new(AllocationConnection { session, log }),
            data: (name.clone(), started.data),
        })
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
        Ok(links)
    }

    fn unreachable(&self, node: NodeId, why: &CliError) -> CliError {
        let name = self.started.get(node.at()).map_or("?", |s| &s.node);
        let slurm = self.slurm.lock().unwrap_or_else(PoisonError::into_inner);
        let said = slurm.stderr_tail();
        let said = match said.is_empty() {
            true => String::new(),
            false => format!("; messages of the nodes:\n{said}"),
        };
        CliError::new(
            Exit::State,
            format!(
                "tarnd runs on {name}, but cannot be reached from here ({why}); nodes of an allocation must be able to connect to each \
                 other and to where tarn runs{said}"
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

impl ConnectedAllocation {
    /// The nodes of the allocation that this process is in, if it is in one.
    pub(crate) fn here(
        args: &MachineArgs,
        purpose: &AllocationRequest<'_>,
    ) -> CliResult<Option<Self>> {
        if args.local {
            return Ok(None);
        }
        let Some(allocation) = tarn_slurm::SlurmAllocation::here().exit(Exit::State)? else {
            return Ok(None);
        };
        print_unusable_nodes(&allocation);
        let allocation = allocation.narrowed(args.nodes).exit(Exit::Usage)?;
        Self::start(allocation, args, purpose).map(Some)
    }

    /// The nodes of a run that has begun.
    pub(crate) fn again(
        begun: &Start,
        state: &StateDir,
        args: &ResumeArgs,
        log: Option<Logged>,
    ) -> CliResult<ResumeLocation> {
        let Some(job) = &begun.allocation else {
            return Ok(ResumeLocation::Same(None));
        };
        let names: Vec<&str> = begun.cluster.nodes.iter().map(|n| &*n.name).collect();
        let Some(mut here) = tarn_slurm::SlurmAllocation::here().exit(Exit::State)? else {
            return Err(CliError::new(
                Exit::Usage,
                format!(
                    "{} ran on {} in Slurm's job {job}; continue inside an allocation (sbatch, salloc), best of the same nodes (--nodelist), or start again on this machine: `tarn run --local`",
                    begun.run,
                    names.join(", ")
                ),
            ));
        };
        let missing = names.iter().filter(|n| !here.nodes.iter().any(|h| h == *n));
        let missing: Vec<&str> = missing.copied().collect();
        print_unusable_nodes(&here);
        if !missing.is_empty() {
            return Ok(ResumeLocation::Other(format!(
                "job {} does not have {}, on which {} began",
                here.job,
                missing.join(", "),
                begun.run
            )));
        }
        here.nodes = names.iter().map(|n| (*n).to_owned()).collect();
        let purpose = AllocationRequest {
            state,
            workflow: Some(&begun.workflow),
            margin: args.margin,
            log,
        };
        let mut machine = machine_args(begun);
        machine.transport = args.transport.clone().unwrap_or(machine.transport);
        let reached = Self::start(here, &machine, &purpose)?;
        Ok(ResumeLocation::Same(Some(Box::new(reached))))
    }

    fn start(
        allocation: tarn_slurm::SlurmAllocation,
        args: &MachineArgs,
        purpose: &AllocationRequest<'_>,
    ) -> CliResult<Self> {
        let margin = Duration::from_secs(purpose.margin);
        let end = end_of(&allocation, margin)?;
        let tiers = match args.tiers.is_empty() {
            true => Vec::new(),
            false => cluster::tiers(args)?,
        };
        let began = Instant::now();
        if args.without_tier == WithoutTier::Borrow && args.transport == Transport::Sealed {
            return Err(CliError::new(
                Exit::Usage,
                "a borrowed tier's content crosses the network in clear, and --transport sealed asks for the opposite; leave \
                 --without-tier borrow out: memory of the node itself then replaces the tier",
            ));
        }
        let specs: Vec<String> = tiers.iter().map(spec).collect();
        let folder = &purpose.state.0;
        let borrow = (args.without_tier == WithoutTier::Borrow).then(|| Borrow {
            tiers: specs.clone(),
            state: folder.clone(),
        });
        let (fleet, links, data) = Fleet::start(&allocation, &args.transport, purpose.log, borrow)?;
        let external = cluster::external(args);
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create the state folder {}", folder.display()))
            .exit(Exit::State)?;
        let sights = Sights::new(folder, purpose.workflow)
            .context("the paths that nodes must see cannot be checked from here")
            .exit(Exit::State)?;
        let mut cluster = tarn_cluster::measure(&links, &specs, &external, folder, sights.all())
            .exit(Exit::NoRoom)?;
        let between = tarn_cluster::measure_links(&links, &mut cluster, folder);
        let lending = match args.without_tier {
            WithoutTier::StandIn => Vec::new(),
            WithoutTier::Borrow => {
                let name = purpose
                    .workflow
                    .map(|w| crate::state::workspace(&w.name, purpose.state));
                // What is only looked at has no name that a run has, too.
                let name = name.unwrap_or_else(|| fleet.label.clone());
                tarn_cluster::borrow(&links, &mut cluster, &name, folder)
            }
        };
        let measured = energy::fill(&mut cluster);
        if args.oversubscribe {
            say!(
                "note: --oversubscribe has no effect in an allocation: its nodes have the cores that Slurm gives"
            );
        }
        if let Some(rate) = args.peer_rate {
            // What is planned with, and what is imposed.
            let peer = &mut cluster.peer;
            (peer.read, peer.write, peer.emulated) = (peer.read.min(rate), rate, true);
        }
        if args.bind == BindArg::None {
            cluster.hosts.iter_mut().for_each(|h| h.sockets.clear());
        }
        say!(
            "job {}: {}, ready after {:.1} s ({})",
            allocation.job,
            match cluster.nodes.len() {
                1 => "1 node".to_owned(),
                n => format!("{n} nodes"),
            },
            began.elapsed().as_secs_f64(),
            some(&allocation.nodes)
        );
        print_remote_tiers(&cluster, &lending);
        let unknown = || between.iter().filter(|b| b.rate.is_err());
        if let Some(NodeLinkMeasurement {
            to,
            from,
            rate: Err(why),
        }) = unknown().next()
        {
            say!(
                "note: how fast {to} reads from {from} is not known: {why}{}",
                match unknown().count() {
                    1 => String::new(),
                    n => format!("; nor is it of {} other links", n - 1),
                }
            );
        }
        Ok(Self {
            allocation,
            fleet: Arc::new(fleet),
            links,
            cluster,
            between,
            data,
            measured,
            end,
        })
    }

    /// Its nodes.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The links between them, as far as they were measured.
    pub(crate) fn between(&self) -> &[NodeLinkMeasurement] {
        &self.between
    }

    /// What of its tiers is taken now, node by node.
    pub(crate) fn rooms(&self) -> CliResult<Vec<NodeTierUsage>> {
        let roots = self.cluster.nodes.iter();
        let roots: Vec<Vec<_>> = roots
            .map(|n| n.tiers.iter().map(|t| t.root.clone()).collect())
            .collect();
        tarn_cluster::rooms(&self.links, &roots).exit(Exit::State)
    }

    /// What Slurm says its nodes draw from now on, and at the end what it has counted; where it measures that.
    pub(crate) fn energy(&self) -> Option<SlurmEnergy> {
        let asked = self
            .measured
            .then(|| SlurmPowerMonitor::begin(&self.cluster));
        let fleet = Arc::clone(&self.fleet);
        Some(SlurmEnergy {
            // Without the thread that asks, steps are without figures.
            asked: asked?.ok(),
            fleet,
        })
    }

    /// The job's number.
    pub(crate) fn job(&self) -> &str {
        &self.allocation.job
    }

    /// The world of a run over the nodes. `config` is of one without any.
    pub(crate) fn open(self, config: Config, margin: Margin) -> CliResult<Box<dyn NodeWorld>> {
        if let Some(end) = self.end {
            watch_end(self.allocation, end, margin)?;
        }
        let path = config.state.run(&config.run).join("nodes.log");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&path);
        // What the nodes say is for people who look for an error: a run can do without.
        if let (Ok(log), Ok(slurm)) = (log, self.fleet.slurm.lock()) {
            slurm.log_to(log);
            let _ = self.fleet.log.set(path);
        }
        let bytes = |s: &std::ffi::OsString| s.clone().into_vec();
        let environment = config.caller_env.iter();
        let keys = config.keys.as_ref().map(|k| k.for_nodes().text());
        let node_config = NodeConfig {
            run: config.run.clone(),
            workspace: config.workspace.clone(),
            workflow: config.workflow.clone(),
            cluster: config.cluster.clone(),
            node: NodeId(0),
            prior: config.prior.clone(),
            state: config.state.0.clone(),
            epoch: config.epoch,
            namespaces: matches!(config.namespaces, Namespaces::Auto),
            environment: environment.map(|(k, v)| (bytes(k), bytes(v))).collect(),
            peers: Default::default(),
            data: self.data,
            keys: keys.map(WorkspaceKeys),
        };
        let fleet = Arc::clone(&self.fleet);
        let changed_since = Arc::clone(&config.changed_since);
        let config = tarn_cluster::Config {
            home: Box::new(Local::new(config).exit(Exit::State)?),
            node_config,
            links: self.links,
            event_queue: self.fleet.event_queue.clone(),
            relink: Arc::new(move |node, number| {
                fleet.link(node, number).map_err(|e| e.to_string())
            }),
            timeout: STUCK,
            retry: RETRY,
            changed_since,
        };
        Ok(Box::new(AllocationWorld::open(config).exit(Exit::State)?))
    }
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

    /// Removes from each node what dead runs have left there of a workspace, on the tiers at the roots that are told `of` it, but
    /// for the `protected` folders. What each has done, with its name.
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

/// Says which nodes do not have a tier, and what they have instead.
fn print_remote_tiers(cluster: &Cluster, lending: &[RemoteTierAttachment]) {
    for node in &cluster.nodes {
        for tier in &node.tiers {
            if let Some(lender) = tier.lender.and_then(|l| cluster.nodes.get(l.at())) {
                say!(
                    "{} borrows tier `{}` from {}: {}, {}/s read, {}/s written",
                    node.name,
                    tier.name,
                    lender.name,
                    Bytes(tier.capacity),
                    Bytes(tier.read),
                    Bytes(tier.write)
                );
            }
            if tier.stands_in() {
                let mut of = lending
                    .iter()
                    .filter(|l| l.node == node.name && l.tier == tier.name);
                let why = of.find_map(|l| l.by.as_ref().err());
                say!(
                    "note: {} does not have tier `{}`; {} of {} stands in for it{}",
                    node.name,
                    tier.name,
                    tier.root.display(),
                    Bytes(tier.capacity),
                    why.map_or_else(String::new, |why| format!(", as nobody lends it: {why}"))
                );
            }
        }
    }
}

/// Says which nodes the job began with that cannot be used.
fn print_unusable_nodes(allocation: &tarn_slurm::SlurmAllocation) {
    for (name, why) in &allocation.gone {
        say!("note: {name} of job {} is left out: {why}", allocation.job);
    }
}

/// Names, or the first and how many more there are.
fn some(names: &[String]) -> String {
    tarn_types::text::first_of(names, 8)
}

fn spec(tier: &machine::TierSpec) -> String {
    let size = tier.size.map_or_else(String::new, |s| format!(":{s}B"));
    format!("{}={}{size}", tier.name, tier.root.display())
}

/// The arguments that give the nodes of a run again: of its tiers what it may use of each, as it was on the node with least.
fn machine_args(begun: &Start) -> MachineArgs {
    let nodes = &begun.cluster.nodes;
    let count = nodes.first().map_or(0, |n| n.tiers.len());
    let default = machine::default_tier().root;
    let text = |at: usize| {
        let ids = (0..).map(NodeId);
        let of = || {
            let all = ids
                .clone()
                .zip(nodes)
                .filter_map(|(n, node)| Some((n, node.tiers.get(at)?)));
            all.filter(|(_, t)| !t.stands_in() && t.lender.is_none())
        };
        // What it has lent is its own.
        let lent = |by: NodeId| {
            let all = nodes.iter().filter_map(|n| n.tiers.get(at));
            let by = all.filter(|t| t.lender == Some(by));
            by.map(|t| t.capacity).sum::<u64>()
        };
        let least = of().map(|(n, t)| t.capacity.saturating_add(lent(n))).min();
        let (_, tier) = of().next()?;
        Some(spec(&machine::TierSpec {
            name: tier.name.clone(),
            root: tier.root.clone(),
            // What is free of memory changes.
            size: least.filter(|_| tier.root != default),
        }))
    };
    let external = &begun.cluster.external;
    MachineArgs {
        nodes: None,
        local: false,
        oversubscribe: false,
        tiers: (0..count).filter_map(text).collect(),
        external_rate: external.emulated.then_some(external.read),
        external_latency: Some(external.latency).filter(|l| *l > 0),
        external_streams: external.streams,
        peer_rate: begun
            .cluster
            .peer
            .emulated
            .then_some(begun.cluster.peer.write),
        without_tier: match nodes
            .iter()
            .flat_map(|n| &n.tiers)
            .any(|t| t.lender.is_some())
        {
            true => WithoutTier::Borrow,
            false => WithoutTier::StandIn,
        },
        isolation: IsolationArg::Auto,
        transport: match begun.sealed {
            true => Transport::Sealed,
            false => Transport::Tcp,
        },
        bind: match begun.cluster.hosts.iter().any(|h| !h.sockets.is_empty()) {
            true => BindArg::Socket,
            false => BindArg::None,
        },
    }
}

/// The arguments of a new run that does what is left of one.
pub(crate) fn as_begun(begun: &Start, files: &RunFiles, args: &ResumeArgs) -> CliResult<RunArgs> {
    let workflow = files.named();
    if workflow.is_empty() {
        return Err(CliError::new(
            Exit::Usage,
            format!(
                "{} was no run of a workflow file; do again what began it",
                begun.run
            ),
        ));
    }
    let mut machine = machine_args(begun);
    machine.isolation = args.isolation;
    machine.transport = args.transport.clone().unwrap_or(machine.transport);
    Ok(RunArgs {
        workflow,
        machine,
        policy: begun.options.policy,
        fail_fast: begun.options.fail_fast,
        verify: match begun.options.verify {
            Verify::None => VerifyArg::None,
            Verify::Copy => VerifyArg::Copy,
            Verify::Readback => VerifyArg::Readback,
        },
        cache: begun.options.cache,
        report: args.report.clone(),
        margin: args.margin,
    })
}

/// When the allocation ends, if it does; as far off as can be where Slurm does not say.
///
/// # Errors
/// When not more than `margin` is left.
fn end_of(
    allocation: &tarn_slurm::SlurmAllocation,
    margin: Duration,
) -> CliResult<Option<Instant>> {
    let left = match allocation.time_left() {
        Ok(Some(left)) => left,
        Ok(None) => return Ok(None),
        Err(e) => {
            say!("warning: the end of the allocation is not known yet, Slurm is asked again: {e}");
            return Ok(Some(Instant::now() + UNKNOWN));
        }
    };
    if left <= margin {
        return Err(CliError::new(
            Exit::Usage,
            format!(
                "job {} ends in {} s, and {} s are to be left (--margin): nothing was started; ask Slurm for more time, or leave less",
                allocation.job,
                left.as_secs(),
                margin.as_secs()
            ),
        ));
    }
    Ok(Some(Instant::now() + left))
}

/// Interrupts this process the margin before the allocation ends, so that the run brings to safety what must not be lost.
fn watch_end(
    allocation: tarn_slurm::SlurmAllocation,
    mut end: Instant,
    margin: Margin,
) -> CliResult<()> {
    let job = allocation.job.clone();
    let watch = move || {
        let mut asked = Instant::now();
        loop {
            let wanted = margin.least().saturating_add(margin.saving());
            let left = end.saturating_duration_since(Instant::now());
            let rest = left.saturating_sub(wanted);
            if !rest.is_zero() && asked.elapsed() < ASK {
                std::thread::sleep(rest.min(LOOK));
                continue;
            }
            asked = Instant::now();
            // It may have been moved. Where Slurm does not answer, what it said last holds.
            match allocation.time_left() {
                Ok(Some(left)) => end = Instant::now() + left,
                Ok(None) => return,
                Err(_) => {}
            }
            let left = end.saturating_duration_since(Instant::now());
            if left > wanted {
                continue;
            }
            say!(
                "job {job} ends in {} s: the run is interrupted now, so that data that must not be lost is copied out (--margin {}, and {} s for data to be drained); `tarn resume` in the next allocation continues",
                left.as_secs(),
                margin.least().as_secs(),
                margin.saving().as_secs()
            );
            let own = rustix::process::getpid();
            let _ = rustix::process::kill_process(own, rustix::process::Signal::TERM);
            return;
        }
    };
    let thread = std::thread::Builder::new().name("tarn-end".into());
    thread.spawn(watch).exit(Exit::State)?;
    Ok(())
}
