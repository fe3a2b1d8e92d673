//! [`Local`]: the world of N nodes on one machine, or of one node of several machines.

mod cache;
mod needs;
mod nodes;
mod open;

pub use nodes::leave_tiers;

use open::open_context;

use crate::attempt::envelope_queue::EnvelopeQueue;
use crate::attempt::follower::{LedAttempts, StepRouter};
use crate::attempt::handle::Handle;
use crate::attempt::node_context::NodeContext;
use crate::attempt::partitions;
use crate::attempt::step;
use crate::attempt::step_view::mount_points;
use crate::attempt::writers::{MemoryWatchdog, Writers};
use crate::helper::image::copy::{ImageCopy, unlist};
use crate::helper::launch::{Leaving, StopUrgency};
use crate::helper::namespaces::Namespaces;
use crate::helper::protocol::StepIsolation;
use crate::remote_tiers::exported::ExportedPartition;
use crate::staging::dests;
use crate::staging::pool::{DataJob, DataPool};
use crate::staging::sources;
use crate::storage::checkpoint_folders::{self, CheckpointFolders};
use crate::storage::data_context::NodeLoopEvent;
use crate::storage::durable;
use crate::storage::keys::Wrapping;
use crate::storage::ledger::vacate;
use crate::storage::run_facts::RunFacts;
use crate::storage::stage;
use crate::storage::store::{is_folder, warn};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle as SignalHandle, Signals};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tarn_ports::{
    ChangedSince, CheckpointFinder, Followers, MakePartition, Meter, Mover, Peers, World,
    WorldError,
};
use tarn_sys::memory::in_memory;
use tarn_types::action::{Action, AttemptSpec, Do, Outcome};
use tarn_types::cluster::Cluster;
use tarn_types::event::{
    AttemptOutcome, Event, PriorData, PriorInstance, RunError, RunErrorKind, Usage,
};
use tarn_types::id::{InstanceId, NodeId, TierRef};
use tarn_types::layout::StateDir;
use tarn_types::nodes::{AttemptId, OwnedNodes, SpaceWaitCause};
use tarn_types::object::is_object;
use tarn_types::part::{PartRef, Place, StoreKey};
use tarn_types::units::Time;
use tarn_types::workflow::{Keep, Workflow};

/// The parts that a local world is made of.
pub struct Config {
    /// The run's name.
    pub run: String,
    /// The workspace: names the folders of this workflow on the tiers.
    pub workspace: String,
    /// The workflow.
    pub workflow: Workflow,
    /// The nodes. Movement to and from the external store is held back where `external.emulated` is set, and by
    /// `external.latency`.
    pub cluster: Cluster,
    /// The instances that earlier runs left, as in [`tarn_types::event::Start::prior`].
    pub prior: Vec<PriorInstance>,
    /// Datasets of other workflows, as in [`tarn_types::event::Start::prior_data`].
    pub prior_data: Vec<PriorData>,
    /// The state folder.
    pub state: StateDir,
    /// Copies, hashes and removes trees.
    pub mover: Arc<dyn Mover>,
    /// The keys that wrap the keys of data; needed where a dataset is encrypted.
    pub keys: Option<Wrapping>,
    /// The tarn binary, started again as the helper of each step.
    pub helper_exe: PathBuf,
    /// Called after an attempt that has failed, of a step that resumes from its checkpoints.
    pub checkpoints: CheckpointFinder,
    /// Makes the partitions of steps.
    pub partitions: MakePartition,
    /// Called before each attempt: a step whose script has changed since the run began does not match the log.
    pub changed_since: ChangedSince,
    /// The time at which this world begins: 0, or for a resumed run the last time in its log.
    pub epoch: Time,
    /// The meter of this machine while steps run on it.
    pub meter: Option<Arc<dyn Meter>>,
    /// The use of namespaces.
    pub namespaces: Namespaces,
    /// Whether SIGINT, SIGTERM and SIGHUP of this process become events.
    pub signals: bool,
    /// Which of the cluster's nodes this world has itself.
    pub own: OwnedNodes,
    /// Replicas on the others.
    pub peers: Option<Arc<dyn Peers>>,
    /// The others, of steps of several nodes.
    pub followers: Option<Arc<dyn Followers>>,
    /// By which names or addresses the nodes reach each other; none where all are this machine.
    pub addresses: BTreeMap<NodeId, String>,
    /// The environment of tarn's caller, as far as steps see it.
    pub caller_env: Vec<(OsString, OsString)>,
}

/// Wakes a world.
#[derive(Debug, Clone)]
pub struct Waker(Sender<NodeLoopEvent>);

impl Waker {
    /// Wakes it. Nothing happens when it is gone.
    pub fn now(&self) {
        let _ = self.0.send(NodeLoopEvent::Wake);
    }
}

/// N nodes on one machine. See docs/internals/local-world.md.
pub struct Local {
    shared: Arc<NodeContext>,
    prior: Vec<PriorInstance>,
    deliveries: Receiver<NodeLoopEvent>,
    /// Outcomes that actions still owe.
    owed: u64,
    /// Taken from the channel, not yet handed out.
    ahead: Vec<Event>,
    pool: Option<DataPool>,
    running: LedAttempts,
    router: StepRouter,
    threads: Vec<JoinHandle<()>>,
    signals: Option<(SignalHandle, JoinHandle<()>)>,
    started: Instant,
    epoch: Time,
    looked: Option<Instant>,
    /// Since when there is nothing to do but to wait for space that other runs hold.
    idle: Option<Instant>,
    /// The run is over, and no step will continue.
    done: bool,
    /// Replicas that were to be kept before this run: others never remove them for space.
    protected: BTreeSet<PathBuf>,
    /// Parts that the user has pinned.
    pinned: BTreeSet<StoreKey>,
    /// Replicas of them that the engine takes for cached: each is the last one of its part.
    last_pinned: BTreeSet<(TierRef, StoreKey)>,
    /// Looks after memory; goes last.
    _watchdog: Option<MemoryWatchdog>,
}

fn world_error(what: &str, error: &dyn std::fmt::Display) -> WorldError {
    WorldError(format!("{what}: {error}"))
}

impl Local {
    /// Builds the world: folders, ledgers, threads; finds out what isolation the machine allows.
    ///
    /// # Errors
    /// When a tier or the state folder cannot be used.
    pub fn new(config: Config) -> Result<Self, WorldError> {
        let (signals, epoch) = (config.signals, config.epoch);
        let (sender, deliveries) = channel();
        let (context, prior) = open_context(config, sender)?;
        let shared = Arc::new(context);
        if let (StepIsolation::Namespaces { .. }, Some(stage)) = (shared.isolation, shared.stage())
        {
            stage::make(&stage, &mount_points(&shared)).map_err(|f| WorldError(f.message))?;
        }
        let running = LedAttempts::default();
        let router = StepRouter::new(Arc::clone(&shared), Arc::clone(&running));
        let signals = match signals {
            true => Some(
                watch_signals(&shared, &running)
                    .map_err(|e| world_error("cannot watch signals", &e))?,
            ),
            false => None,
        };
        let no_thread = |e: std::io::Error| world_error("cannot start threads", &e);
        let watchdog = match shared.keys.is_some() || has_memory_tier(&shared) {
            true => Some(Writers::watch(&shared.writers).map_err(no_thread)?),
            false => None,
        };
        let pool = DataPool::new(&shared.data).map_err(no_thread)?;
        Ok(Self {
            shared,
            prior,
            deliveries,
            owed: 0,
            ahead: Vec::new(),
            pool: Some(pool),
            running,
            router,
            threads: Vec::new(),
            signals,
            started: Instant::now(),
            epoch,
            // Others may hold space already: look at the first opportunity.
            looked: None,
            idle: None,
            done: false,
            protected: BTreeSet::new(),
            pinned: BTreeSet::new(),
            last_pinned: BTreeSet::new(),
            _watchdog: watchdog,
        })
    }

    /// Makes the next, or a blocked, [`World::next`] return [`Event::Timer`], from any thread. [`World::poll`] swallows it.
    pub fn waker(&self) -> Waker {
        Waker(self.shared.deliveries.clone())
    }

    /// Watches space in memory that was exported: steps here use that memory too, and a node that stores more than was exported
    /// may lose it.
    pub fn watch_export(&self, exported: &ExportedPartition) {
        if let Some(writer) = exported.writer() {
            self.shared.writers.add_for_good(writer);
        }
    }

    /// A message of another node of a step about an attempt.
    pub fn follower(&mut self, from: NodeId, step: AttemptId, message: &[u8]) {
        self.router.receive(from, step, message);
    }

    /// The folders on this world's tiers of what is to be kept when the run is over, as far as it is there.
    pub fn to_keep(&self) -> BTreeSet<PathBuf> {
        let shared = &self.shared;
        let known = shared.parts.lock();
        let known = known.map(|parts| {
            parts
                .iter()
                .map(|(p, (_, key))| (*p, key.clone()))
                .collect()
        });
        let known: Vec<(PartRef, StoreKey)> = known.unwrap_or_default();
        let workflow = &shared.workflow;
        let kept = known.into_iter().filter(|(part, _)| {
            let dataset = workflow.data.get(part.data.at());
            dataset.is_some_and(|d| matches!(d.keep, Keep::For(_) | Keep::Forever))
                && workflow.last_version(part.data) == part.version
        });
        let tier_refs: Vec<TierRef> = shared.own_tiers().map(|(tier_ref, ..)| tier_ref).collect();
        let folders = kept.flat_map(|(_, key)| {
            let on = |tier_ref: &TierRef| shared.replica(*tier_ref, &key).ok();
            tier_refs.iter().filter_map(on).collect::<Vec<_>>()
        });
        folders.filter(|f| is_folder(f)).collect()
    }

    /// A node is lost. Attempts that it takes part in end with kind `NodeLost`; attempts that it leads here are ended and taken
    /// back.
    pub fn lose_node(&mut self, node: NodeId) {
        self.router.node_lost(node);
    }

    /// A message about an attempt did not get from this node to that one, or from that one to this, and why not: the attempt fails.
    pub fn undelivered(&mut self, node: NodeId, step: AttemptId, why: &str) {
        self.router.undelivered(node, step, why);
    }

    /// Kills every running step: somebody is impatient.
    pub fn kill_all(&self) {
        if let Ok(running) = self.running.lock() {
            running.values().for_each(|h| h.stop.ask(StopUrgency::Kill));
        }
    }

    fn start(&mut self, run: Box<AttemptSpec>) -> Result<(), WorldError> {
        let nodes: Vec<NodeId> = run.nodes.iter().map(|s| s.node).collect();
        let alone = nodes.iter().all(|n| self.shared.own.has(*n));
        let envelopes = match alone {
            true => Ok(None),
            false => EnvelopeQueue::new(nodes).map(Some),
        };
        let handle = envelopes
            .and_then(Handle::new)
            .map_err(|e| world_error("cannot start a step", &e))?;
        let handle = Arc::new(handle);
        let id = (run.instance, run.attempt);
        if let Ok(mut running) = self.running.lock() {
            running.insert(id, Arc::clone(&handle));
        }
        let (shared, running) = (Arc::clone(&self.shared), Arc::clone(&self.running));
        // A helper dies with the thread that started it: this one sees its step through.
        let thread = std::thread::Builder::new()
            .name(format!("tarn-{}", run.instance))
            .spawn(move || {
                let done = catch_unwind(AssertUnwindSafe(|| step::run(&shared, &run, &handle)));
                let (event, leaving) = done.unwrap_or_else(|_| (broken(&run), Leaving::default()));
                if let Ok(mut running) = running.lock() {
                    running.remove(&id);
                }
                shared.deliver(NodeLoopEvent::Outcome(event));
                drop(leaving);
            });
        self.threads.retain(|t| !t.is_finished());
        self.threads
            .push(thread.map_err(|e| world_error("cannot start a thread", &e))?);
        Ok(())
    }

    fn reuse(&mut self, instance: InstanceId, prior: u32) {
        let Some(found) = self.prior.get(prior as usize).cloned() else {
            return;
        };
        // An earlier run may have numbered datasets and versions otherwise: outputs go by their position.
        let step = self.shared.workflow.step(instance.step);
        let made: Vec<_> = step
            .uses
            .iter()
            .filter_map(|u| Some((u.data, u.makes?)))
            .collect();
        let named = |(data, version), seq| PartRef {
            data,
            version,
            origin: instance.index,
            seq,
        };
        for (o, made) in found.outputs.iter().zip(&made) {
            for (info, _) in &o.parts {
                let part = named(*made, info.seq);
                self.shared.know(part, info.class.clone(), info.key.clone());
            }
        }
        for (output, part, place) in &found.held {
            let output_made = found.outputs.get(*output as usize);
            let info = output_made.and_then(|o| Some(&o.parts.get(*part as usize)?.0));
            if let (Some(info), Some(made)) = (info, made.get(*output as usize)) {
                self.take_over(named(*made, info.seq), &info.key, place);
            }
        }
    }

    /// A replica of an earlier run becomes one of this run, if it has not made way for something else.
    fn take_over(&mut self, part: PartRef, key: &StoreKey, at: &Place) {
        let path = match at {
            Place::Node(tier_ref) if !self.shared.own.has(tier_ref.node) => return,
            Place::Drained if !self.shared.is_home() => return,
            Place::Node(tier_ref) => {
                if self.shared.ledgers.take_over(*tier_ref, key) {
                    // Space that was kept from the engine is now its own.
                    self.looked = None;
                }
                self.shared.replica(*tier_ref, key)
            }
            Place::Drained => self.shared.drained(key),
            Place::Source | Place::External(_) => return,
        };
        // An object store was looked at, and its parts make way for nothing.
        if !path.is_ok_and(|p| is_object(&p) || is_folder(&p)) {
            let at = at.clone();
            let gone = Event::Evicted { part, at };
            self.shared.deliver(NodeLoopEvent::Notification(gone));
        }
    }

    fn hand_out(&mut self, delivery: NodeLoopEvent) -> (Time, Event) {
        let event = match delivery {
            NodeLoopEvent::Outcome(event) => {
                assert!(self.owed > 0, "an outcome that no action owes");
                self.owed -= 1;
                event
            }
            NodeLoopEvent::Notification(event) => event,
            NodeLoopEvent::Wake => Event::Timer,
        };
        (self.now(), event)
    }

    /// An event that has happened already; [`Event::Timer`] when it was woken.
    fn ready(&mut self) -> Option<(Time, Event)> {
        self.look_at_ledgers();
        if let Some(event) = self.ahead.pop() {
            return Some((self.now(), event));
        }
        let delivery = self.deliveries.try_recv().ok()?;
        Some(self.hand_out(delivery))
    }

    /// Has the pool do something whose outcome the engine waits for.
    fn add_job(&mut self, job: DataJob) {
        if let Some(pool) = &self.pool {
            self.owed += 1;
            pool.add(job);
        }
    }

    fn stop_attempt(&self, id: AttemptId) {
        if let Ok(running) = self.running.lock()
            && let Some(handle) = running.get(&id)
        {
            handle.cancel(StopUrgency::Terminate);
        }
    }

    /// The checkpoints of an instance are of no use any more, on these tiers.
    fn forget_instance(&self, instance: InstanceId, at: &[TierRef]) {
        if let Some(pool) = &self.pool {
            pool.give_up_image(instance);
        }
        let kept = |tier_ref| CheckpointFolders::new(&self.shared, instance, tier_ref);
        for kept in at
            .iter()
            .filter_map(|tier_ref| kept(*tier_ref).ok())
            .take(1)
        {
            unlist(&self.shared, &kept);
        }
        self.forget(at, kept);
    }

    /// The run is over.
    fn finish(&mut self, outcome: Outcome) -> Result<(), WorldError> {
        sources::flush(&self.shared);
        self.done = outcome == Outcome::Done;
        if !self.done {
            return Ok(());
        }
        if self.shared.is_home() {
            dests::drop_half_rescues(&self.shared);
        }
        let synced = durable::sync_kept(&self.shared);
        synced.map_err(|RunError { message, .. }| WorldError(message))
    }

    /// Removes the checkpoints at these places, where attempts have looked for them.
    fn forget(
        &self,
        at: &[TierRef],
        kept: impl Fn(TierRef) -> Result<CheckpointFolders, RunError>,
    ) {
        let own = at
            .iter()
            .filter(|tier_ref| self.shared.own.has(tier_ref.node));
        let kept = own.filter_map(|tier_ref| Some((*tier_ref, kept(*tier_ref).ok()?)));
        // Later attempts may run there again.
        let aside = kept.filter_map(|(tier_ref, kept)| {
            checkpoint_folders::set_aside(&self.shared, &kept, tier_ref)
        });
        let aside = aside.collect();
        if let Some(pool) = &self.pool {
            pool.add(DataJob::Forget(aside));
        }
    }

    /// Notes whether the engine has nothing under way and only waits for another run's space.
    fn note_idle(&mut self, until: Option<Time>) -> Result<(), WorldError> {
        if self.shared.own != OwnedNodes::All {
            // It has part of the run only: whether there is nothing else to do, others know.
            return Ok(());
        }
        self.idle = match self.owed == 0 && until.is_some() {
            true => self.idle.or_else(|| Some(Instant::now())),
            false => None,
        };
        match self.shared.ledgers.idle(self.idle).hopeless() {
            Some(why) => Err(WorldError(why)),
            None => Ok(()),
        }
    }

    /// For so many nanoseconds nothing has been under way in the whole run, of which this world has a part, and it waits for
    /// space; or that is over. Returns the holders of this world's space.
    pub fn waits(&self, idle: Option<u64>) -> SpaceWaitCause {
        let since = idle.and_then(|n| Instant::now().checked_sub(Duration::from_nanos(n)));
        self.shared.ledgers.idle(since)
    }
}

fn has_memory_tier(facts: &RunFacts) -> bool {
    facts.own_tiers().any(|(_, _, tier)| in_memory(&tier.root))
}

fn broken(run: &AttemptSpec) -> Event {
    Event::Ended {
        instance: run.instance,
        attempt: run.attempt,
        ended: AttemptOutcome::Failed {
            failure: RunError {
                kind: RunErrorKind::Launch,
                message: "an error inside tarn; please report it with the lines above on stderr"
                    .into(),
            },
            log_tail: String::new(),
            newest: None,
        },
        usage: Usage::default(),
    }
}

/// The first signal is an event: the engine stops the steps in good order. Any later one kills them, but for
/// SIGHUP: a terminal that closes may send several.
fn watch_signals(
    shared: &Arc<NodeContext>,
    running: &LedAttempts,
) -> std::io::Result<(SignalHandle, JoinHandle<()>)> {
    let mut watched = vec![SIGINT, SIGTERM];
    // A user who starts tarn with nohup wants it to outlive the terminal.
    if !tarn_sys::process::ignores(SIGHUP) {
        watched.push(SIGHUP);
    }
    let mut signals = Signals::new(watched)?;
    let handle = signals.handle();
    let (shared, running) = (Arc::clone(shared), Arc::clone(running));
    let thread = std::thread::Builder::new()
        .name("tarn-signals".into())
        .spawn(move || {
            let mut before = false;
            for signal in signals.forever() {
                // Delivered first: the events of the ends that it causes must not come before it.
                shared.deliver(NodeLoopEvent::Notification(Event::Interrupted { signal }));
                if before
                    && signal != SIGHUP
                    && let Ok(running) = running.lock()
                {
                    running.values().for_each(|h| h.stop.ask(StopUrgency::Kill));
                }
                before = true;
            }
        })?;
    Ok((handle, thread))
}

impl World for Local {
    fn now(&self) -> Time {
        let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.epoch.saturating_add(elapsed)
    }

    fn perform(&mut self, action: &Action) -> Result<(), WorldError> {
        match &action.what {
            Do::Run(run) => {
                self.owed += 1;
                return self.start(run.clone());
            }
            Do::Finish { outcome } => return self.finish(*outcome),
            Do::Stop { instance, attempt } => self.stop_attempt((*instance, *attempt)),
            Do::List { data } => self.add_job(DataJob::List(*data)),
            Do::Transfer(t) => {
                self.hold_cached(t, &action.why);
                self.add_job(DataJob::Transfer(Box::new(t.clone())));
            }
            Do::Abandon { id } => {
                if let Some(pool) = &self.pool {
                    pool.abandon(*id);
                }
            }
            Do::Evict { part, key, at } => self.evict(*part, key, at, &action.why),
            Do::Cache {
                part,
                key,
                at,
                share,
            } => self.cache(*part, key, *at, *share),
            Do::CopyImage {
                instance,
                attempt,
                image,
                from,
                to,
                ..
            } => self.add_job(DataJob::Image(ImageCopy {
                instance: *instance,
                attempt: *attempt,
                image: *image,
                from: *from,
                to: *to,
            })),
            Do::Forget { instance, at } => self.forget_instance(*instance, at),
            Do::Discard { key, at, .. } => {
                let kept = |tier_ref| {
                    CheckpointFolders::named(&self.shared, partitions::beside(key), tier_ref)
                };
                self.forget(at, kept);
            }
            Do::Reuse { instance, prior } => self.reuse(*instance, *prior),
            Do::Assign { .. } | Do::Unassign { .. } | Do::Note { .. } => {}
        }
        Ok(())
    }

    fn next(&mut self, until: Option<Time>) -> Result<(Time, Event), WorldError> {
        loop {
            self.note_idle(until)?;
            if let Some(event) = self.ready() {
                return Ok(event);
            }
            let now = self.now();
            if until.is_some_and(|u| u <= now) {
                return Ok((now, Event::Timer));
            }
            if until.is_none() && self.owed == 0 {
                return Err(WorldError(
                    "nothing is under way and there is nothing to wait for".into(),
                ));
            }
            let pause = self.shared.ledgers.pause();
            let left = until.map_or(pause, |u| Duration::from_nanos(u - now));
            match self.deliveries.recv_timeout(left.min(pause)) {
                Ok(delivery) => return Ok(self.hand_out(delivery)),
                Err(RecvTimeoutError::Timeout) => self.look_at_ledgers(),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(WorldError("the threads of the local world are gone".into()));
                }
            }
        }
    }

    fn poll(&mut self) -> Option<(Time, Event)> {
        loop {
            match self.ready()? {
                (_, Event::Timer) => {}
                event => return Some(event),
            }
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if let Ok(running) = self.running.lock() {
            for handle in running.values() {
                handle.cancel(StopUrgency::Kill);
            }
        }
        self.router.end();
        drop(self.pool.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        if let Some((handle, thread)) = self.signals.take() {
            handle.close();
            let _ = thread.join();
        }
        sources::flush(&self.shared);
        if let Err(RunError { message, .. }) = self.shared.forget_own_keys() {
            warn(&message);
        }
        if self.done {
            checkpoint_folders::remove_all(&self.shared);
        }
        let roots: BTreeSet<&PathBuf> = self.shared.own_tiers().map(|(_, _, t)| &t.root).collect();
        for root in roots {
            if let Err(e) = vacate(root, &self.shared.workspace, 0) {
                warn(&format!(
                    "cannot update the ledger of {}: {e}",
                    root.display()
                ));
            }
        }
    }
}
