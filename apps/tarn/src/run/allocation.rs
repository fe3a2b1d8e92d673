//! A run over the nodes of an allocation of Slurm: a tarnd on each of them, a session with each, one cluster of all.

use super::energy::{self, SlurmPowerMonitor};
use super::files::RunFiles;
use super::fleet::{DataPlane, Fleet, print_unusable_nodes};
use super::margin::Margin;
use crate::cluster;
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Logged;
use crate::options::{
    BindArg, IsolationArg, MachineArgs, ResumeArgs, RunArgs, VerifyArg, WithoutTier,
};
use crate::print::message;
use anyhow::Context;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_cluster::{
    AllocationWorld, NodeLinkMeasurement, RETRY, ReachableNode, RemoteTierAttachment, STUCK,
};
use tarn_data_plane::Transport;
use tarn_node::sight::Sights;
use tarn_node::{Config, Local, Namespaces, machine};
use tarn_ports::NodeWorld;
use tarn_proto::node::{Borrow, NodeConfig, WorkspaceKeys};
use tarn_types::cluster::Cluster;
use tarn_types::codes::Exit;
use tarn_types::event::{Start, Verify};
use tarn_types::id::NodeId;
use tarn_types::layout::StateDir;
use tarn_types::nodes::NodeTierUsage;
use tarn_types::units::Bytes;
use tarn_types::workflow::Workflow;

/// Between two questions to Slurm about the end of the allocation: it may have been moved.
const ASK: Duration = Duration::from_secs(300);
/// Between two looks at what there is to bring to safety.
const LOOK: Duration = Duration::from_secs(1);
/// An unknown end is taken to be so far off, until Slurm is queried again.
const UNKNOWN: Duration = Duration::from_secs(365 * 24 * 3600);

/// An allocation whose nodes can be used.
pub(crate) struct ConnectedAllocation {
    allocation: tarn_slurm::SlurmAllocation,
    fleet: Arc<Fleet>,
    links: Vec<ReachableNode>,
    cluster: Cluster,
    /// The measured links between the nodes.
    between: Vec<NodeLinkMeasurement>,
    data: DataPlane,
    /// Whether Slurm measures what nodes draw that do not measure it themselves.
    measured: bool,
    /// When the allocation ends, if it does.
    end: Option<Instant>,
}

/// Slurm's energy data of a run.
pub(crate) struct SlurmEnergy {
    /// Until a world takes it.
    pub(crate) monitor: Option<SlurmPowerMonitor>,
    fleet: Arc<Fleet>,
}

impl SlurmEnergy {
    /// Says what Slurm has counted for all that ran on the nodes; it counts as long as they are there.
    pub(crate) fn print_energy_sum(&self) {
        if let Some(joules) = self.fleet.joules() {
            message!(
                "Slurm has counted {joules} J for this run on its nodes (sstat, ConsumedEnergyRaw)"
            );
        }
    }
}

/// For what the nodes are wanted.
pub(crate) struct AllocationRequest<'a> {
    /// The state folder.
    pub(crate) state: &'a StateDir,
    /// The workflow to run, if any: the nodes must see its places as tarn does.
    pub(crate) workflow: Option<&'a Workflow>,
    /// Seconds that are to be left before the allocation ends.
    pub(crate) margin: u64,
    /// The settings of tarnd's log, if the user gave any.
    pub(crate) log: Option<Logged>,
}

/// Where a run can continue.
pub(crate) enum ResumeLocation {
    /// On the nodes that it began on: this machine, or those of an allocation.
    Same(Option<Box<ConnectedAllocation>>),
    /// Not there, and why.
    Other(String),
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
        let tiers = if args.tiers.is_empty() {
            Vec::new()
        } else {
            cluster::tiers(args)?
        };
        let began = Instant::now();
        refuse_sealed_borrowing(args)?;
        let specs: Vec<String> = tiers.iter().map(tier_option).collect();
        let folder = &purpose.state.0;
        let borrow = (args.without_tier == WithoutTier::Borrow).then(|| Borrow {
            tiers: specs.clone(),
            state: folder.clone(),
        });
        let (fleet, links, data) = Fleet::start(&allocation, &args.transport, purpose.log, borrow)?;
        let mut cluster = measure(&links, &specs, args, purpose)?;
        debug_assert_eq!(
            cluster.nodes.len(),
            links.len(),
            "one node for each session"
        );
        let between = tarn_cluster::measure_links(&links, &mut cluster, folder);
        let attached = match args.without_tier {
            WithoutTier::StandIn => Vec::new(),
            WithoutTier::Borrow => {
                let name = purpose
                    .workflow
                    .map(|w| crate::state::workspace(&w.name, purpose.state));
                // Without a workflow the name is one that no run has.
                let name = name.unwrap_or_else(|| fleet.label.clone());
                tarn_cluster::attach_remote_tiers(&links, &mut cluster, &name, folder)
            }
        };
        let measured = energy::fill(&mut cluster);
        apply_options(&mut cluster, args);
        let reached = Self {
            allocation,
            fleet: Arc::new(fleet),
            links,
            cluster,
            between,
            data,
            measured,
            end,
        };
        reached.print_ready(began.elapsed(), &attached);
        Ok(reached)
    }

    /// Prints the nodes that are there, the time that it took, and the tiers that they lack.
    fn print_ready(&self, took: Duration, attached: &[RemoteTierAttachment]) {
        message!(
            "job {}: {}, ready after {:.1} s ({})",
            self.allocation.job,
            match self.cluster.nodes.len() {
                1 => "1 node".to_owned(),
                n => format!("{n} nodes"),
            },
            took.as_secs_f64(),
            name_first(&self.allocation.nodes)
        );
        print_remote_tiers(&self.cluster, attached);
        let unknown = || self.between.iter().filter(|b| b.rate.is_err());
        if let Some(NodeLinkMeasurement {
            to,
            from,
            rate: Err(why),
        }) = unknown().next()
        {
            message!(
                "note: how fast {to} reads from {from} is not known: {why}{}",
                match unknown().count() {
                    1 => String::new(),
                    n => format!("; nor is it of {} other links", n - 1),
                }
            );
        }
    }

    /// Its nodes.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The links between them, as far as they were measured.
    pub(crate) fn between(&self) -> &[NodeLinkMeasurement] {
        &self.between
    }

    /// The space in use on its tiers, node by node.
    pub(crate) fn tier_usage(&self) -> CliResult<Vec<NodeTierUsage>> {
        let roots = self.cluster.nodes.iter();
        let roots: Vec<Vec<_>> = roots
            .map(|n| n.tiers.iter().map(|t| t.root.clone()).collect())
            .collect();
        tarn_cluster::tier_usage(&self.links, &roots).exit(Exit::State)
    }

    /// Slurm's figures: the power draw of its nodes from now on, and at the end the energy; if Slurm measures them.
    pub(crate) fn energy(&self) -> Option<SlurmEnergy> {
        let monitor = self
            .measured
            .then(|| SlurmPowerMonitor::begin(&self.cluster));
        let fleet = Arc::clone(&self.fleet);
        Some(SlurmEnergy {
            // Without the thread that queries Slurm, steps are without figures.
            monitor: monitor?.ok(),
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
        let log = config.state.run(&config.run).join("nodes.log");
        self.fleet.log_to(log);
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
            relink: Arc::new(move |node, number| fleet.link(node, number).ok()),
            timeout: STUCK,
            retry: RETRY,
            changed_since,
        };
        Ok(Box::new(AllocationWorld::open(config).exit(Exit::State)?))
    }
}

fn refuse_sealed_borrowing(args: &MachineArgs) -> CliResult<()> {
    if args.without_tier != WithoutTier::Borrow || args.transport != Transport::Sealed {
        return Ok(());
    }
    Err(CliError::new(
        Exit::Usage,
        "a borrowed tier's content crosses the network in clear, and --transport sealed asks for the opposite; leave \
         --without-tier borrow out: memory of the node itself then replaces the tier",
    ))
}

/// One cluster of all nodes, as each has measured itself.
fn measure(
    links: &[ReachableNode],
    specs: &[String],
    args: &MachineArgs,
    purpose: &AllocationRequest<'_>,
) -> CliResult<Cluster> {
    let folder = &purpose.state.0;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the state folder {}", folder.display()))
        .exit(Exit::State)?;
    let sights = Sights::new(folder, purpose.workflow)
        .context("the paths that nodes must see cannot be checked from here")
        .exit(Exit::State)?;
    let external = cluster::external(args);
    tarn_cluster::measure(links, specs, &external, folder, sights.all()).exit(Exit::NoSpace)
}

/// Changes the nodes as the arguments say.
fn apply_options(cluster: &mut Cluster, args: &MachineArgs) {
    if args.oversubscribe {
        message!(
            "note: --oversubscribe has no effect in an allocation: its nodes have the cores that Slurm gives"
        );
    }
    if let Some(rate) = args.peer_rate {
        // The rate to plan with, and the rate to impose.
        let peer = &mut cluster.peer;
        (peer.read, peer.write, peer.emulated) = (peer.read.min(rate), rate, true);
    }
    if args.bind == BindArg::None {
        cluster.hosts.iter_mut().for_each(|h| h.sockets.clear());
    }
}

/// Prints the nodes that lack a tier, and their substitute for it.
fn print_remote_tiers(cluster: &Cluster, attached: &[RemoteTierAttachment]) {
    for node in &cluster.nodes {
        for tier in &node.tiers {
            if let Some(lender) = tier.lender.and_then(|l| cluster.nodes.get(l.at())) {
                message!(
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
                let mut of = attached
                    .iter()
                    .filter(|l| l.node == node.name && l.tier == tier.name);
                let why = of.find_map(|l| l.by.as_ref().err());
                message!(
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

/// Names, or the first and how many more there are.
fn name_first(names: &[String]) -> String {
    tarn_types::text::first_of(names, 8)
}

fn tier_option(tier: &machine::TierSpec) -> String {
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
        // The capacity that a node exports is its own.
        let exported = |by: NodeId| {
            let all = nodes.iter().filter_map(|n| n.tiers.get(at));
            let by = all.filter(|t| t.lender == Some(by));
            by.map(|t| t.capacity).sum::<u64>()
        };
        let least = of()
            .map(|(n, t)| t.capacity.saturating_add(exported(n)))
            .min();
        let (_, tier) = of().next()?;
        Some(tier_option(&machine::TierSpec {
            name: tier.name.clone(),
            root: tier.root.clone(),
            // A default tier's size follows free memory, which changes.
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
        without_tier: if nodes
            .iter()
            .flat_map(|n| &n.tiers)
            .any(|t| t.lender.is_some())
        {
            WithoutTier::Borrow
        } else {
            WithoutTier::StandIn
        },
        isolation: IsolationArg::Auto,
        transport: if begun.sealed {
            Transport::Sealed
        } else {
            Transport::Tcp
        },
        bind: if begun.cluster.hosts.iter().any(|h| !h.sockets.is_empty()) {
            BindArg::Socket
        } else {
            BindArg::None
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
            message!(
                "warning: the end of the allocation is not known yet, Slurm is asked again: {e}"
            );
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
        let mut checked = Instant::now();
        loop {
            let wanted = margin.least().saturating_add(margin.saving());
            let left = end.saturating_duration_since(Instant::now());
            let rest = left.saturating_sub(wanted);
            if !rest.is_zero() && checked.elapsed() < ASK {
                std::thread::sleep(rest.min(LOOK));
                continue;
            }
            checked = Instant::now();
            // It may have been moved. If Slurm does not answer, its last answer holds.
            match allocation.time_left() {
                Ok(Some(left)) => end = Instant::now() + left,
                Ok(None) => return,
                Err(_) => {}
            }
            let left = end.saturating_duration_since(Instant::now());
            if left > wanted {
                continue;
            }
            message!(
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
