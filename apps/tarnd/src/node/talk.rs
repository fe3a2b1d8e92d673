//! Sessions of the run, and the state that outlasts them.

use super::drive::{Driver, send_notification};
use super::remote_tiers::{RemoteTiers, is_gone};
use super::replicas::{Replicas, WorldReplicas};
use super::step_sender::StepSender;
use super::{Notice, measure};
use anyhow::{anyhow, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tarn_journal::{Holder, LockError, RunLock};
use tarn_mover::Trees;
use tarn_node::exported::{self, Terms};
use tarn_node::keys::Wrapping;
use tarn_node::{Config, Local, Namespaces};
use tarn_ports::{Followers, Meter, NodeWorld, Peers};
use tarn_proto::node::{
    self as proto, NodeCommand, NodeConfig, NodeReply, NodeRequest, NodeStartReport, VERSION,
};
use tarn_seal::ring::KeyRing;
use tarn_sessions::{NotificationSender, SessionHandler, SessionOpenError, Talk};
use tarn_types::cluster::Link;
use tarn_types::layout::StateDir;
use tarn_types::nodes::{OwnedNodes, SharedPath, Staying};

/// How long steps and transfers are given to end after the command to end. They are killed: it is the kernel that may take long.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Why nothing about a run can be done.
const NOT_OPENED: &str = "the run has not been opened on this node";
/// The program's version, for messages to people.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The node's half of the run.
pub(super) struct NodeRun {
    about: NodeStartReport,
    run: String,
    /// The program that steps are started through.
    helper: PathBuf,
    /// Measures this node.
    meter: Arc<tarn_power::MachineMeter>,
    replicas: Arc<Replicas>,
    remote_tiers: Arc<RemoteTiers>,
    notify: Sender<Notice>,
    state: Mutex<NodeRunState>,
}

#[derive(Default)]
struct NodeRunState {
    /// Sessions that have begun and not ended; numbered.
    sessions: BTreeMap<u64, NotificationSender>,
    next: u64,
    /// The world, and the session that it is of.
    world: Option<(u64, Arc<Driver>)>,
    /// How the world was made last.
    node_config: Option<NodeConfig>,
    /// Replicas that a session asks to keep.
    protected: BTreeSet<PathBuf>,
    /// This node's folders of a workspace are this process's.
    lock: Option<(PathBuf, RunLock)>,
    /// The run is over.
    closed: bool,
    /// Nobody may come any more.
    ends: bool,
}

impl NodeRun {
    pub(super) fn new(
        about: NodeStartReport,
        run: String,
        helper: PathBuf,
        replicas: Arc<Replicas>,
        remote_tiers: RemoteTiers,
        notify: Sender<Notice>,
    ) -> Self {
        Self {
            about,
            run,
            helper,
            meter: Arc::new(tarn_power::MachineMeter::new(&tarn_power::sysfs())),
            replicas,
            remote_tiers: Arc::new(remote_tiers),
            notify,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, NodeRunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The world of any session.
    fn world(&self) -> Option<Arc<Driver>> {
        self.state().world.as_ref().map(|(_, w)| Arc::clone(w))
    }

    /// Notifies all sessions that tarnd ends after a signal. False if there is none.
    pub(super) fn notify_ending(&self) -> bool {
        let sessions: Vec<NotificationSender> = self.state().sessions.values().cloned().collect();
        let somebody = !sessions.is_empty();
        // A client that is slow to receive it holds nobody up.
        let notify = move || {
            sessions.iter().all(|notifications| {
                send_notification(notifications, proto::NodeNotification::Ending)
            })
        };
        let thread = std::thread::Builder::new().name("tarn-farewell".into());
        somebody && thread.spawn(notify).is_ok()
    }

    /// Ends the world. False if it does not end in time.
    pub(super) fn stop(&self) -> bool {
        let world = {
            let mut state = self.state();
            state.ends = true;
            state.world.take()
        };
        world.is_none_or(|(_, world)| world.end(TIMEOUT))
    }

    /// Detaches tiers of other nodes, and ends the exports of its own.
    pub(super) fn end_remote_tiers(&self) {
        self.remote_tiers.end();
    }

    /// Nobody has come for too long: the run's data here is removed, but for data that somebody asks to keep. False if somebody has come
    /// after all.
    pub(super) fn give_up(&self) -> bool {
        let (node_config, protected) = {
            let mut state = self.state();
            if !state.sessions.is_empty() {
                return false;
            }
            state.ends = true;
            (
                state.node_config.take(),
                std::mem::take(&mut state.protected),
            )
        };
        if let Some(node_config) = node_config {
            for problem in self.clear(node_config, protected) {
                tracing::warn!("{problem}");
            }
        }
        true
    }

    fn clear(&self, node_config: NodeConfig, protected: BTreeSet<PathBuf>) -> Vec<String> {
        let config = self.config(node_config, None, None);
        let world = config.and_then(|config| Ok(Local::new(config)?));
        let mut world = match world {
            Ok(world) => Box::new(world),
            Err(e) => return vec![format!("the run's data here cannot be removed: {e}")],
        };
        let staying = Staying {
            protected,
            ..Staying::default()
        };
        let mut left = match world.clean(&staying) {
            Ok(cleaned) => cleaned.trouble,
            Err(e) => vec![e.to_string()],
        };
        left.extend(world.leave());
        left
    }

    fn config(
        &self,
        node_config: NodeConfig,
        peers: Option<Arc<dyn Peers>>,
        followers: Option<Arc<dyn Followers>>,
    ) -> anyhow::Result<Config> {
        let os = std::ffi::OsString::from_vec;
        let environment = node_config.environment.into_iter();
        let keys = node_config
            .keys
            .map(|keys| KeyRing::parse(&keys.0))
            .transpose();
        let keys = keys.map_err(|e| anyhow!("the keys of the run's data cannot be used: {e}"))?;
        let caller_env: Vec<_> = environment.map(|(k, v)| (os(k), os(v))).collect();
        // The caller of tarn has given the object store, and its keys.
        let theirs = caller_env.clone();
        let store = tarn_s3::S3Client::new(move |name| {
            let found = theirs.iter().find(|(k, _)| k == name);
            found.map(|(_, value)| value.clone())
        });
        Ok(Config {
            run: node_config.run,
            workspace: node_config.workspace,
            workflow: node_config.workflow,
            cluster: node_config.cluster,
            prior: node_config.prior,
            // Runs inside an allocation read no data of other workflows.
            prior_data: Vec::new(),
            state: StateDir(node_config.state),
            mover: Arc::new(Trees::new().with_store(store.shared())),
            keys: keys.map(Wrapping::of_run),
            helper_exe: self.helper.clone(),
            checkpoints: Arc::new(tarn_checkpoint::version_catalog::checkpoints),
            partitions: Arc::new(tarn_partitions::for_step),
            // tarn checks that itself, before it has a step run.
            changed_since: Arc::new(|_| None),
            epoch: node_config.epoch,
            meter: Some(self.meter.clone()),
            namespaces: match node_config.namespaces {
                true => Namespaces::Auto,
                false => Namespaces::Off,
            },
            signals: false,
            own: OwnedNodes::Some([node_config.node].into()),
            peers,
            followers,
            addresses: node_config
                .peers
                .into_iter()
                .map(|(n, (host, _))| (n, host))
                .collect(),
            caller_env,
        })
    }

    /// Whether it is of the same release as the caller, and can start steps.
    fn check_release(&self, version: u32, tarn: &str) -> anyhow::Result<()> {
        ensure!(
            version == VERSION,
            "its tarnd {RELEASE} speaks version {VERSION} of the messages about a run, tarn {tarn} version {version}; use the same release of tarn on all nodes"
        );
        ensure!(
            self.helper.is_file(),
            "it has no {}: steps are started through the `tarn` beside `tarnd`; install both in one folder",
            self.helper.display()
        );
        Ok(())
    }

    /// Makes the world of a session.
    fn open(
        &self,
        session: u64,
        notifications: &NotificationSender,
        node_config: NodeConfig,
    ) -> anyhow::Result<NodeReply> {
        ensure!(self.world().is_none(), "the run was opened already");
        if let Some(why) = self.remote_tiers.gone() {
            bail!(why);
        }
        self.take_folders(&node_config.workspace, &node_config.state)?;
        self.replicas.open(&node_config)?;
        self.state().node_config = Some(node_config.clone());
        let step_sender = StepSender::new(Arc::clone(&self.replicas), node_config.node);
        let step_sender = Arc::new(step_sender?);
        let begun = {
            let notifications = notifications.clone();
            move |id| {
                // A client that does not receive it any more waits for nothing.
                send_notification(&notifications, proto::NodeNotification::Begun(id));
            }
        };
        let peers = WorldReplicas {
            replicas: Arc::clone(&self.replicas),
            begun: Box::new(begun),
        };
        let followers = Arc::clone(&step_sender);
        let config = self.config(node_config, Some(Arc::new(peers)), Some(followers))?;
        let (replicas, tiers) = (Arc::clone(&self.replicas), Arc::clone(&self.remote_tiers));
        let (world, able) =
            Driver::start(config, notifications.clone(), replicas, step_sender, tiers)?;
        let mut state = self.state();
        if state.ends {
            drop(state);
            world.end(TIMEOUT);
            bail!("tarnd ends");
        }
        state.world = Some((session, Arc::new(world)));
        Ok(able)
    }

    /// Makes sure that no other tarnd works in this node's folders of the workspace, such as one that was cut off from the run
    /// that now continues: that one makes way.
    fn take_folders(&self, workspace: &str, state: &Path) -> anyhow::Result<()> {
        let folder = measure::remembered(state, &self.about.node)?.0;
        let path = folder.join(format!("{workspace}.lock"));
        let held = |state: &NodeRunState| state.lock.as_ref().is_some_and(|(p, _)| *p == path);
        if held(&self.state()) {
            return Ok(());
        }
        let since = Instant::now();
        loop {
            match RunLock::take(&path) {
                Ok(lock) => {
                    self.state().lock = Some((path, lock));
                    return Ok(());
                }
                Err(LockError::Busy { holder, .. }) if since.elapsed() < TIMEOUT => {
                    make_way(holder.as_ref());
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(LockError::Busy { holder, .. }) => {
                    let who = holder.map_or_else(String::new, |h| format!(" ({h})"));
                    bail!(
                        "another tarnd{who} has the folders of {workspace} on node {}, and does not end; stop it",
                        self.about.node
                    );
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Attaches a tier of another node. When that goes, so does the world of this node.
    fn attach_tier(
        self: &Arc<Self>,
        (tier, provider): (String, String),
        brick: proto::Brick,
        bytes: u64,
        state: &Path,
    ) -> anyhow::Result<NodeReply> {
        let host = Arc::downgrade(self);
        let gone = {
            let (tier, provider) = (tier.clone(), provider.clone());
            move |why: String| {
                let world = host.upgrade().and_then(|host| host.world());
                if let Some(world) = world {
                    world.break_off(is_gone(&tier, &provider, &why));
                }
            }
        };
        let names = (&*self.about.node, &*tier, &*provider);
        self.remote_tiers
            .attach_tier(names, brick, (bytes, state), gone)
    }

    /// The resources of this node, for a tarn of this release, if this node sees the paths that it must.
    fn measure(
        &self,
        (version, tarn): (u32, &str),
        (tiers, external): (&[String], Link),
        state: &Path,
        sights: &[SharedPath],
    ) -> anyhow::Result<NodeReply> {
        self.check_release(version, tarn)?;
        for sight in sights {
            tarn_node::sight::check(sight).map_err(anyhow::Error::msg)?;
        }
        let draw = self.meter.draw();
        let cluster = measure::measure(&self.about.node, tiers, external, state, draw)?;
        Ok(NodeReply::Cluster(cluster))
    }

    /// Passes a request on to the node's world.
    fn ask_world(&self, request: NodeRequest) -> anyhow::Result<NodeReply> {
        match &request {
            NodeRequest::Offer { protected, .. } => self.protect(protected),
            NodeRequest::Clean(staying) => self.protect(&staying.protected),
            _ => {}
        }
        match self.world() {
            Some(world) => Ok(world.call(request)),
            None => bail!(NOT_OPENED),
        }
    }

    fn answer(
        self: &Arc<Self>,
        session: u64,
        notifications: &NotificationSender,
        call: NodeRequest,
    ) -> anyhow::Result<NodeReply> {
        match call {
            NodeRequest::Measure {
                version,
                tarn,
                tiers,
                external,
                state,
                sights,
            } => self.measure((version, &tarn), (&tiers, external), &state, &sights),
            NodeRequest::Link { from, at, state } => {
                measure::link(&self.about.node, &from, &at, &state, &self.replicas)
                    .map(NodeReply::Rate)
            }
            NodeRequest::Open(node_config) => self.open(session, notifications, *node_config),
            NodeRequest::Borrowers { roots, workspace } => {
                let all = roots.iter().map(|r| exported::borrowers(r, &workspace));
                Ok(NodeReply::Borrowers(all.collect()))
            }
            NodeRequest::Export {
                tier,
                root,
                borrower,
                workspace,
                bytes,
            } => self.remote_tiers.export_tier(Terms {
                helper: self.helper.clone(),
                root,
                tier,
                workspace,
                lender: self.about.node.clone(),
                borrower,
                bytes,
            }),
            NodeRequest::Borrow {
                tier,
                lender,
                brick,
                bytes,
                state,
            } => self.attach_tier((tier, lender), brick, bytes, &state),
            NodeRequest::TierUsage(roots) => {
                Ok(NodeReply::TierUsage(tarn_node::machine::held_space(&roots)))
            }
            NodeRequest::Sweep {
                workspace,
                state,
                roots,
                protected,
            } => {
                self.take_folders(&workspace, &state)?;
                let swept = tarn_node::sweep(&workspace, &roots, &protected, &Trees::new());
                Ok(NodeReply::Swept(swept))
            }
            NodeRequest::Close => {
                self.state().closed = true;
                Ok(NodeReply::Done)
            }
            request => self.ask_world(request),
        }
    }

    fn protect(&self, folders: &BTreeSet<PathBuf>) {
        self.state().protected.clone_from(folders);
    }
}

/// Asks a tarnd of this user to end.
fn make_way(holder: Option<&Holder>) {
    let name = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let holder = holder.filter(|h| h.is_here() && h.pid != std::process::id());
    let tarnd = holder.filter(|h| name(h.pid).is_ok_and(|n| n.trim_end() == "tarnd"));
    if let Some(holder) = tarnd {
        // It may have ended meanwhile.
        let _ = holder.terminate();
    }
}

/// Takes sessions.
pub(super) struct Sessions(pub(super) Arc<NodeRun>);

impl SessionHandler for Sessions {
    fn opened(
        &self,
        run: &str,
        _: &str,
        notifications: NotificationSender,
    ) -> Result<(Vec<u8>, Box<dyn Talk>), SessionOpenError> {
        let host = &self.0;
        if run != host.run {
            return Err(SessionOpenError(format!(
                "this tarnd was started for {}, not for {run}",
                host.run
            )));
        }
        let about = serde_json::to_vec(&host.about);
        let about = about.map_err(|e| SessionOpenError(e.to_string()))?;
        let mut state = host.state();
        if state.ends {
            return Err(SessionOpenError("tarnd ends".into()));
        }
        state.next += 1;
        let number = state.next;
        state.sessions.insert(number, notifications.clone());
        // Sent under the lock, like the notice that it outdates.
        let _ = host.notify.send(Notice::Session);
        drop(state);
        let talking = NodeRunSession {
            host: Arc::clone(host),
            number,
            notifications,
        };
        Ok((about, Box::new(talking)))
    }
}

/// One session.
struct NodeRunSession {
    host: Arc<NodeRun>,
    number: u64,
    notifications: NotificationSender,
}

impl Talk for NodeRunSession {
    fn call(&self, request: Vec<u8>) -> Vec<u8> {
        let call = proto::decode(&request).map_err(anyhow::Error::from);
        let answer = call.and_then(|call| self.host.answer(self.number, &self.notifications, call));
        let answer = answer.unwrap_or_else(|why| NodeReply::Failed(why.to_string()));
        let answer = match answer {
            // That is why.
            NodeReply::Failed(_) if self.host.state().ends => NodeReply::Ending,
            answer => answer,
        };
        proto::encode(answer).unwrap_or_else(|e| {
            tracing::error!("an answer is not given: {e}");
            Vec::new()
        })
    }

    fn handle_command(&self, bytes: Vec<u8>) {
        let world = self.host.world();
        match (proto::decode::<NodeCommand>(&bytes), world) {
            (Ok(command), Some(world)) => world.enqueue_command(command),
            (Err(why), _) => self.report_broken(why.to_string()),
            (Ok(_), None) => self.report_broken(NOT_OPENED.to_owned()),
        }
    }
}

impl NodeRunSession {
    /// A command cannot be done: nobody may wait for it.
    fn report_broken(&self, why: String) {
        if let Ok(bytes) = proto::encode(proto::NodeNotification::Broken(why)) {
            self.notifications.send(bytes);
        }
    }
}

impl Drop for NodeRunSession {
    fn drop(&mut self) {
        let host = &self.host;
        let mut state = host.state();
        let own = state.world.take_if(|(session, _)| *session == self.number);
        drop(state);
        let mut kept = BTreeSet::new();
        if let Some((_, world)) = own {
            if !world.end(TIMEOUT) {
                tracing::error!("the run's work here does not end");
            }
            kept = world.kept();
        }
        let mut state = host.state();
        // Data that this run has made since it stated what it keeps.
        state.protected.extend(kept);
        state.sessions.remove(&self.number);
        if state.sessions.is_empty() {
            let closed = state.closed;
            let _ = host.notify.send(Notice::Alone { closed });
        }
    }
}
