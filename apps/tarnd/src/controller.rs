//! `tarnd --controller`: the site's core behind its log, its clients and its nodes. docs/internals/site.md.
//!
//! One thread has the core and the log. It makes the inputs since the last round durable together, then the core decides, then its
//! actions leave: so nothing is done that a controller after this one would not know of.

mod accounts;
mod chain;
mod clients;
mod config;
mod drive;
mod exclusions;
mod exposition;
mod input;
mod keys;
mod log;
mod metrics;
mod mode;
mod mode_file;
mod nodes;
mod plan;
mod plan_log;
mod promise_file;
mod queue;
mod reader;
mod scripts;
mod sleep;
mod slurm;
mod wake;

use crate::{TarndError, options};
use anyhow::Context;
use chain::ChainReleaser;
use clap::Parser;
use config::{configured_mode, metrics_place, number_of, read};
use drive::SlurmDriver;
use exclusions::{SetExclusions, WaitingJob};
pub(crate) use input::{ControllerInput, OpenedNode};
use log::ControllerLog;
use metrics::SiteMetrics;
use mode::{SharedSiteMode, SiteMode};
use nodes::NodeSessions;
use plan::PlanThread;
use queue::SlurmQueue;
use reader::SlurmReader;
use scripts::ScriptReader;
use slurm::SlurmNotifier;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel};
use std::time::{Duration, Instant, SystemTime};
use tarn_journal::RunLock;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    ControllerReply, ControllerRequest, Holding, NODE_PORT, NodeInfo, NodeStoreReport, Owner,
    Report, SlurmJobId, Stage, StoreCapacity, Uid,
};
use tarn_site::{Site, SiteRequest, SiteServiceAction, SiteServiceEvent, Token, WantedAccount};
use tarn_site_planner::{PowerOrder, PowerWish, ReservedFor};
use tarn_slurm::{expected_nodes, job_change, unread_job_change};
use tarn_types::codes::Exit;
use tarn_types::energy::{Draw, Power, Source};
use tarn_types::units::Time;

/// Inputs that are made durable together.
const MAX_BATCH: usize = 1024;
/// How often leases are checked; and while a client waits, which may get the reply that a node does not answer.
const SELDOM: Duration = Duration::from_secs(60);
const OFTEN: Duration = Duration::from_secs(5);
/// Between two states that the planner gets: making one takes time in proportion to the site's jobs.
const OFFERS: Duration = Duration::from_secs(1);
const OFFERS_DRIVEN: Duration = Duration::from_millis(100);

/// The controller of a site: decides where jobs' data goes and how long it stays. Runs beside slurmctld; docs/admin/site.md.
#[derive(Debug, Parser)]
#[command(name = "tarnd --controller", version)]
pub(crate) struct Options {
    #[arg(long, hide = true)]
    controller: bool,
    /// The folder of the log; of a main and a backup host the same, where flock holds between them
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// The unix socket for Slurm's scripts and users
    #[arg(long, default_value = "/run/tarn/controller")]
    socket: PathBuf,
    /// The address for users of other hosts
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:7411")]
    listen: SocketAddr,
    /// The site's configuration: docs/admin/site.md, "Configuration"
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
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

/// The inventory of a node when its session begins.
pub(crate) struct ReadyNode {
    /// Keys there may be wrapped with an older secret.
    is_behind: bool,
    capacity: StoreCapacity,
    stores: Vec<NodeStoreReport>,
    holds: Vec<(Uid, Holding)>,
    partial: Vec<Owner>,
    jobs: Vec<SlurmJobId>,
}

/// Runs until it is killed: nothing is lost then.
pub(crate) fn run(options: &Options) -> Result<(), TarndError> {
    let state = |e: anyhow::Error| TarndError::new(Exit::State, e);
    crate::server::raise_descriptors();
    let (config, file) = read(options).map_err(|e| TarndError::new(Exit::Usage, e))?;
    let policy = file.planning(options);
    let (configured, policy, rates) = policy.map_err(|e| TarndError::new(Exit::Usage, e))?;
    let power = file.power(options);
    let power = power.map_err(|e| TarndError::new(Exit::Usage, e))?;
    std::fs::create_dir_all(&options.state)
        .with_context(|| format!("cannot make {}", options.state.display()))
        .map_err(state)?;
    let lock = options.state.join("controller.lock");
    let lock = match RunLock::take(&lock) {
        Ok(lock) => lock,
        Err(busy) => {
            tracing::info!("this is the backup: {busy}");
            let lock = RunLock::wait(&lock);
            lock.map_err(|e| state(e.into()))?
        }
    };
    let place = metrics_place(&file).map_err(|e| TarndError::new(Exit::Usage, e))?;
    let is_ahead = config.ahead;
    let (log, site) = ControllerLog::open(&options.state, config).map_err(state)?;
    let epoch = log::next_epoch(&options.state, site.epoch()).map_err(state)?;
    let secrets = keys::read(&options.state).map_err(state)?;
    let mode = mode_file::chosen(&options.state, configured).map_err(state)?;
    let mode = SharedSiteMode::new(mode);
    let (sender, inputs) = channel();
    let slurm_user = file.slurm_user.as_deref().unwrap_or("slurm");
    let slurm_user = number_of(slurm_user).unwrap_or(0);
    let port = file.port.unwrap_or(NODE_PORT);
    let munge = crate::site::munge(options.munge_socket.as_deref());
    let listener = clients::ClientListener {
        slurm: slurm_user,
        inputs: sender.clone(),
        munge: munge.clone(),
    };
    let reader = SlurmReader::start(sender.clone(), mode.get() == SiteMode::Drive);
    let queue = SlurmQueue::new(ScriptReader::start(sender.clone()));
    slurm::ask_what_is_drawn(reader.clone(), sender.clone());
    let accountant = accounts::accountant(sender.clone());
    let own_inputs = sender.clone();
    let set_exclusions = SetExclusions::new(site.queued_jobs());
    let exclusions = exclusions::exclusions(&reader, &mode, &set_exclusions, sender.clone());
    let mut nodes = NodeSessions::new(epoch, (secrets, munge), port, sender);
    for name in file
        .nodes
        .iter()
        .flatten()
        .map(String::as_str)
        .chain(site.nodes())
    {
        nodes.know(name);
    }
    let mut controller = Controller {
        state: options.state.clone(),
        site,
        log,
        nodes,
        replies: BTreeMap::new(),
        expected: BTreeMap::new(),
        next: 0,
        clock: ControllerClock::start(),
        spaces: slurm::spaces(file.sinfo.unwrap_or(true), &mode),
        exclusions,
        set_exclusions,
        power: sleep::power_orders(epoch, &reader, &mode, own_inputs.clone()),
        plans: PlanThread::start(
            &options.state,
            mode.clone(),
            (policy, power, rates),
            SlurmDriver::new(epoch, reader.clone(), own_inputs.clone()),
            own_inputs,
        ),
        offered: None,
        mode,
        configured,
        config: options.config.clone(),
        reader: reader.clone(),
        queue,
        chains: ChainReleaser::start(),
        is_ahead,
        has_all_nodes: file.nodes.is_none(),
        drawn: BTreeMap::new(),
        accountant,
        metrics: SiteMetrics::serve(place.as_ref()).map_err(state)?,
    };
    controller
        .happened(vec![SiteServiceEvent::began(epoch)])
        .map_err(state)?;
    clients::serve(&options.socket, options.listen, listener)?;
    wake::serve(&options.socket, slurm_user, reader);
    tracing::info!(
        epoch,
        socket = %options.socket.display(),
        "tarnd {} is the site's controller",
        env!("CARGO_PKG_VERSION")
    );
    let ended = controller.serve(&inputs).map_err(state);
    drop(lock);
    ended
}

/// A client that waits, and the job of the stage that it waits for.
struct AwaitedReply {
    to: SyncSender<ControllerReply>,
    job: Option<SlurmJobId>,
}

struct Controller {
    state: PathBuf,
    site: Site,
    log: ControllerLog,
    nodes: NodeSessions,
    replies: BTreeMap<Token, AwaitedReply>,
    /// The nodes that jobs were to prefer when they were set up, until Slurm asks where they are expected.
    expected: BTreeMap<SlurmJobId, Vec<String>>,
    next: Token,
    clock: ControllerClock,
    spaces: SlurmNotifier<Vec<NodeInfo>>,
    reader: SlurmReader,
    queue: SlurmQueue,
    chains: ChainReleaser,
    /// Data is brought to nodes before jobs have them.
    is_ahead: bool,
    /// All nodes that Slurm knows are the site's.
    has_all_nodes: bool,
    exclusions: SlurmNotifier<Vec<WaitingJob>>,
    power: SyncSender<Vec<PowerOrder>>,
    set_exclusions: SetExclusions,
    plans: PlanThread,
    /// When the planner got the state last.
    offered: Option<Instant>,
    mode: SharedSiteMode,
    /// That of the configuration at the start, and its file.
    configured: SiteMode,
    config: Option<PathBuf>,
    /// The power that nodes draw, as Slurm reported it last.
    drawn: BTreeMap<String, u64>,
    /// Reads Slurm's accounting.
    accountant: SlurmNotifier<Vec<WantedAccount>>,
    metrics: SiteMetrics,
}

impl Controller {
    fn serve(&mut self, inputs: &Receiver<ControllerInput>) -> anyhow::Result<()> {
        let mut looked = Instant::now();
        // Slurm does not have the present state yet.
        let mut is_behind = false;
        self.metrics.update_if_due(|| self.site.figures());
        loop {
            let is_soon = self.site.is_waited_for() || is_behind;
            let pause = if is_soon { OFTEN } else { SELDOM };
            let first = inputs.recv_timeout(pause.saturating_sub(looked.elapsed()));
            let mut events = Vec::new();
            match first {
                Ok(input) => {
                    let more = inputs.try_iter().take(MAX_BATCH - 1);
                    for input in std::iter::once(input).chain(more) {
                        events.extend(self.event(input));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if looked.elapsed() >= pause {
                looked = Instant::now();
                events.push(SiteServiceEvent::Passed);
            }
            if !events.is_empty() {
                let arrives = events.iter().any(is_setup);
                self.happened(events)?;
                // A job that arrived has to wait for a reading that begins after its arrival was written down.
                if arrives && self.site.is_arriving() {
                    self.reader.request();
                }
            }
            self.queue
                .answer(&self.site, self.reader.newest().as_deref());
            let is_waited_for = self.site.is_waited_for() || self.queue.is_waited_for();
            self.reader
                .set_waited_for(is_waited_for || self.site.is_queued());
            is_behind = self.mode.get().acts() && self.notify_slurm();
            if self.site.wants_accounts() {
                self.accountant
                    .notify_if_due(|| self.site.wanted_accounts());
                is_behind = true;
            }
            self.metrics.update_if_due(|| self.site.figures());
        }
    }

    /// Has Slurm know what follows from the present state. True if some of it is to be done later.
    fn notify_slurm(&mut self) -> bool {
        let mut is_behind = !self.spaces.notify_if_due(|| self.site.node_infos());
        is_behind |= !self.exclusions.notify_if_due(|| self.site.excluded());
        is_behind
    }

    /// Has Slurm change the power of nodes as planned. Data may have come to one since.
    fn order_power(&self, mut orders: Vec<PowerOrder>) {
        if !self.mode.get().acts() {
            return;
        }
        let spare: BTreeSet<String> = self.site.spare().into_iter().collect();
        orders.retain(|order| order.wish == PowerWish::Wake || spare.contains(&order.node));
        if !orders.is_empty() && self.power.try_send(orders).is_err() {
            tracing::warn!("Slurm is too slow to change the power of nodes: it is planned again");
        }
    }

    /// The event that the log is to hold of an input. An input that changes nothing is answered at once.
    fn event(&mut self, input: ControllerInput) -> Vec<SiteServiceEvent> {
        let one = match input {
            ControllerInput::Request {
                user,
                groups,
                trusted,
                ask,
                reply,
            } => {
                // An answer that must wait for the log takes the next token.
                let request = SiteRequest {
                    token: self.next + 1,
                    user,
                    groups,
                    trusted,
                    ask,
                };
                self.receive_request(request, reply)
            }
            ControllerInput::Opened(opened) => Some(self.open_node(*opened)),
            ControllerInput::Reported {
                node,
                session,
                number: 0,
                report: Report::Capacity { draw, cores, .. },
            } => {
                if self.nodes.is_current(&node, session) {
                    self.measured(&node, draw, cores);
                }
                None
            }
            ControllerInput::Power(orders) => {
                self.order_power(orders);
                None
            }
            ControllerInput::Spare { reply } => {
                // It may not wait any more.
                let _ = reply.try_send(self.site.spare().into_iter().collect());
                None
            }
            ControllerInput::Reserved(reserved) => self.advised(reserved),
            ControllerInput::Read => {
                self.learn_nodes();
                self.offer_to_planner();
                self.listed(false)
            }
            ControllerInput::Found(found) => {
                let mut events = self.queue.found(found);
                let is_found = !events.is_empty();
                events.extend(self.listed(is_found));
                return events;
            }
            ControllerInput::Excludes { job, nodes } => {
                Some(SiteServiceEvent::Excludes { job, nodes })
            }
            ControllerInput::Drawn(milliwatts) => {
                self.drawn = milliwatts;
                None
            }
            ControllerInput::Accounted(jobs) => {
                let jobs = self.site.new_accounts(jobs);
                (!jobs.is_empty()).then_some(SiteServiceEvent::Accounted { jobs })
            }
            ControllerInput::Closed { node, session } => self
                .nodes
                .closed(&node, session)
                .then_some(SiteServiceEvent::Closed { node }),
            ControllerInput::Reported {
                node,
                session,
                number,
                report,
            } => self
                .nodes
                .is_current(&node, session)
                .then_some(SiteServiceEvent::Reported {
                    order: number,
                    report,
                }),
        };
        one.into_iter().collect()
    }

    /// Nodes are reserved for a job that waits: its data is brought there.
    fn advised(&self, ReservedFor { job, nodes }: ReservedFor) -> Option<SiteServiceEvent> {
        let is_of_use = self.is_ahead && self.site.is_queued_job(job);
        is_of_use.then_some(SiteServiceEvent::Advised { job, nodes })
    }

    /// The newest reading of Slurm's queue, for the core.
    fn listed(&mut self, is_found: bool) -> Option<SiteServiceEvent> {
        if let Some(reading) = self.reader.newest() {
            self.chains.release(&reading);
            let began = self.clock.at(reading.jobs_began);
            return self.queue.read(&reading, began, &self.site, is_found);
        }
        // Without Slurm's queue, jobs are taken in as they have arrived.
        let began = self.reader.failed_since()?;
        let began = self.clock.at(began);
        let (unknown, gone) = Default::default();
        let is_arriving = self.site.is_arriving();
        is_arriving.then_some(SiteServiceEvent::Listed {
            began,
            unknown,
            gone,
        })
    }

    /// Gives the planner the state as it is now, not too often.
    fn offer_to_planner(&mut self) {
        let pause = match self.mode.get() {
            SiteMode::Drive => OFFERS_DRIVEN,
            SiteMode::Observe | SiteMode::Advise => OFFERS,
        };
        let is_early = |at: &Instant| at.elapsed() < pause;
        let reading = self.reader.newest();
        let reading = reading.filter(|_| !self.offered.as_ref().is_some_and(is_early));
        if let Some(reading) = reading {
            self.offered = Some(Instant::now());
            let view = self.site.planning(self.plans.has_sleepers());
            self.plans.offer(reading, view, wall_clock());
        }
    }

    fn receive_request(
        &mut self,
        request: SiteRequest,
        reply: SyncSender<ControllerReply>,
    ) -> Option<SiteServiceEvent> {
        let SiteRequest {
            user,
            ref groups,
            trusted,
            ref ask,
            ..
        } = request;
        if let ControllerRequest::RotateKey { drop, force } = *ask {
            let done = self.rotate_key(user, drop, force);
            let _ = reply
                .try_send(done.map_or_else(ControllerReply::Refused, |()| ControllerReply::Done));
            return None;
        }
        if let ControllerRequest::SetMode(mode) = ask {
            match self.set_mode(user, mode) {
                Ok(()) => confirm_mode(self.mode.clone(), reply),
                Err(why) => drop(reply.try_send(ControllerReply::Refused(why))),
            }
            return None;
        }
        if *ask == ControllerRequest::Slurm {
            let _ = reply.try_send(ControllerReply::Slurm(self.reader.info()));
            return None;
        }
        if let ControllerRequest::AwaitJobs(jobs) = ask {
            self.queue.wait(user, jobs.clone(), reply);
            self.reader.request();
            return None;
        }
        let asker = (user, user == 0 || trusted);
        if let Some(answer) = self.plans.answer(asker, ask) {
            let _ = reply.try_send(answer);
            return None;
        }
        if let Some(answer) = self.site.answer(user, groups, trusted, ask) {
            let _ = reply.try_send(self.plans.completed(asker, ask, answer));
            return None;
        }
        let mut request = request;
        let mut job = None;
        if let ControllerRequest::Stage(staging) = &mut request.ask {
            // A job that arrives waits for a reading, the planner compares begins, and where it drives it follows each stage.
            let is_awaited = matches!(
                staging.stage,
                Stage::Setup(_) | Stage::Reported | Stage::PreRun(_)
            );
            if is_awaited || self.mode.get() == SiteMode::Drive {
                self.reader.request();
            }
            if let Stage::PreRun(nodes) = &staging.stage {
                nodes.iter().for_each(|node| self.nodes.hurry(node));
            }
            job = Some(staging.job);
            if staging.stage == Stage::DataIn {
                staging.stage = Stage::Ahead(self.expected_of(staging.job));
            }
        }
        self.next = request.token;
        let to = reply;
        self.replies.insert(self.next, AwaitedReply { to, job });
        Some(SiteServiceEvent::Requested(request))
    }

    /// Nodes that Slurm has and tarn does not know yet.
    fn learn_nodes(&mut self) {
        let reading = self.reader.newest().filter(|_| self.has_all_nodes);
        for name in reading
            .iter()
            .flat_map(|reading| reading.snapshot.nodes.keys())
        {
            self.nodes.know(name);
        }
    }

    /// The nodes on which Slurm is expected to start a job: those that it was to prefer at its setup, else as Slurm has it.
    fn expected_of(&mut self, job: SlurmJobId) -> Vec<String> {
        if let Some(nodes) = self.expected.remove(&job) {
            return nodes;
        }
        let reading = self.reader.newest();
        let snapshot = reading.as_ref().map(|reading| &reading.snapshot);
        let listed = snapshot.and_then(|snapshot| Some((snapshot, snapshot.jobs.get(&job)?)));
        listed.map_or_else(Vec::new, |(snapshot, job)| expected_nodes(snapshot, job))
    }

    /// Advice as changes of jobs in Slurm. A job that Slurm does not have waiting any more needs none.
    fn updates_of(&mut self, reply: ControllerReply, job: Option<SlurmJobId>) -> ControllerReply {
        let advices = match (reply, job) {
            (ControllerReply::Advice(advice), Some(job)) => vec![(job, advice)],
            (ControllerReply::Advices(advices), _) => advices,
            (reply, _) => return reply,
        };
        let reading = self.reader.newest();
        let mut updates = Vec::new();
        for (job, advice) in advices {
            let reading = reading.as_ref();
            let change = reading.and_then(|r| job_change(&r.snapshot, job, &advice));
            // The exclusions and preferences of one that is not read yet are set later, or it does without.
            let change = change.unwrap_or_else(|| unread_job_change(job, &advice));
            if let Some(excluded) = change.excluded {
                self.set_exclusions.note(job, excluded);
            }
            if !change.expected.is_empty() {
                self.expected.insert(job, change.expected);
            }
            updates.push(change.update);
        }
        ControllerReply::Updates(updates)
    }

    fn open_node(&mut self, opened: OpenedNode) -> SiteServiceEvent {
        let OpenedNode {
            node,
            session,
            changes,
            ready,
            orders,
        } = opened;
        self.nodes
            .opened(&node, (session, changes), ready.is_behind, orders);
        SiteServiceEvent::Opened {
            node,
            capacity: ready.capacity,
            stores: ready.stores,
            holds: ready.holds,
            partial: ready.partial,
            jobs: ready.jobs,
        }
    }

    /// Records the power that a node draws; if the node does not know it, as Slurm reported it.
    fn measured(&mut self, node: &str, mut draw: Draw, cores: u32) {
        let slurm = |milliwatts: &u64| Power {
            milliwatts: *milliwatts,
            source: Source::Slurm,
        };
        draw.power = draw.power.or_else(|| self.drawn.get(node).map(slurm));
        self.site.measured(node, draw, cores);
    }

    /// From now on, and after a restart, tarn acts in Slurm in this mode.
    fn set_mode(&mut self, user: Uid, name: &str) -> Result<(), RequestError> {
        if user != 0 {
            let text = "only root changes what tarn does in Slurm";
            return Err(RequestError::new(Code::Denied, text));
        }
        let mode = SiteMode::of_name(name).ok_or_else(|| {
            let text = format!("there is no mode `{name}`: take observe, advise or drive");
            RequestError::new(Code::Invalid, text)
        })?;
        // The file may have been edited since the start: this command came after that.
        let configured = configured_mode(self.config.as_deref()).unwrap_or(self.configured);
        mode_file::keep(&self.state, mode, configured).map_err(|e| {
            let text = format!(
                "the mode cannot be kept in {}: {e}; it is as it was",
                self.state.display()
            );
            RequestError::new(Code::Io, text)
        })?;
        tracing::info!(
            "mode {}, instead of {}",
            mode.name(),
            self.mode.get().name()
        );
        self.mode.set(mode);
        self.reader.set_driven(mode == SiteMode::Drive);
        self.reader.request();
        Ok(())
    }

    /// The keys of encrypted data get another secret, and the older ones are forgotten on request, if that loses nothing.
    fn rotate_key(&mut self, user: Uid, drop: bool, force: bool) -> Result<(), RequestError> {
        let failed = |e: anyhow::Error| RequestError::new(Code::Io, format!("{e:#}"));
        if user != 0 {
            let text = "only root changes the site's secrets";
            return Err(RequestError::new(Code::Denied, text));
        }
        let secrets = self.nodes.secrets();
        if !drop {
            let secrets = keys::rotate(&self.state, &secrets).map_err(failed)?;
            tracing::info!(
                secrets = secrets.data.len(),
                "another secret of encrypted data"
            );
            self.nodes.rekey(secrets);
            return Ok(());
        }
        let behind = self
            .site
            .holders()
            .filter(|node| !self.nodes.is_rekeyed(node));
        let behind: Vec<&str> = behind.collect();
        if !behind.is_empty() && !force {
            let text = format!(
                "the encrypted data on {} would be lost: no session with it has begun since the last rotation, or its log names the keys that could not be wrapped again. Start it, or wait a moment, and try again; or give it up with `--force`",
                behind.join(", ")
            );
            return Err(RequestError::new(Code::Busy, text));
        }
        let secrets = keys::drop_old(&self.state, &secrets).map_err(failed)?;
        tracing::info!(lost = ?behind, "the older secrets of encrypted data are forgotten");
        self.nodes.rekey(secrets);
        Ok(())
    }

    /// Makes events durable, then performs the core's actions on them.
    fn happened(&mut self, events: Vec<SiteServiceEvent>) -> anyhow::Result<()> {
        let events: Vec<(Time, SiteServiceEvent)> = events
            .into_iter()
            .map(|event| (self.clock.now(), event))
            .collect();
        self.log.append(&events)?;
        let mut actions = Vec::new();
        for (now, event) in events {
            self.site.step(now, event, &mut actions);
        }
        for action in actions {
            match action {
                SiteServiceAction::Order {
                    node,
                    number,
                    order,
                } => self.nodes.order(&node, number, order),
                SiteServiceAction::Notify { owner, text } => tracing::info!(%owner, "{text}"),
                SiteServiceAction::Answer { token, reply } => {
                    if let Some(pending) = self.replies.remove(&token) {
                        let reply = self.updates_of(self.mode.get().permitted(reply), pending.job);
                        let _ = pending.to.try_send(reply);
                    }
                }
            }
        }
        // A client whose job another client asks about now learns so by the end of its channel.
        let awaited = self.site.awaited();
        self.replies.retain(|token, _| awaited.contains(token));
        self.expected.retain(|job, _| self.site.is_queued_job(*job));
        for name in self.site.nodes() {
            self.nodes.know(name);
        }
        self.log.shorten(&self.site)
    }
}

/// Answers once no call is under way that was decided in an earlier mode: by a thread, as a call may take long.
fn confirm_mode(mode: SharedSiteMode, reply: SyncSender<ControllerReply>) {
    let wait = move || {
        let answer = match mode.wait_for_earlier_calls() {
            true => ControllerReply::Done,
            false => {
                let text = "the mode is changed, and a call of scontrol that began before has not ended yet";
                ControllerReply::Refused(RequestError::new(Code::Busy, text))
            }
        };
        let _ = reply.try_send(answer);
    };
    if let Err(e) = std::thread::Builder::new().name("mode".into()).spawn(wait) {
        tracing::error!("a change of the mode is not confirmed: no thread: {e}");
    }
}

/// Whether a job arrives.
fn is_setup(event: &SiteServiceEvent) -> bool {
    let SiteServiceEvent::Requested(request) = event else {
        return false;
    };
    let ControllerRequest::Stage(staging) = &request.ask else {
        return false;
    };
    matches!(staging.stage, Stage::Setup(_))
}

/// Nanoseconds since 1970, as the machine has them now: they jump when somebody sets its clock.
fn wall_clock() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

/// Nanoseconds since 1970 that never go back.
struct ControllerClock {
    began: Instant,
    start: Time,
}

impl ControllerClock {
    fn start() -> Self {
        Self {
            began: Instant::now(),
            start: wall_clock(),
        }
    }

    fn now(&self) -> Time {
        self.at(Instant::now())
    }

    fn at(&self, time: Instant) -> Time {
        let passed = time.saturating_duration_since(self.began).as_nanos();
        self.start
            .saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}
