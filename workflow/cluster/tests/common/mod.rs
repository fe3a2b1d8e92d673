//! An allocation of scripted nodes: sessions in this process that note commands and requests, and report what a test wants.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tarn_cluster::{AllocationWorld, Config, EventQueue, NoAnswer, NodeLink, ReachableNode};
use tarn_ports::{CapabilityError, NodeWorld, Progress, World, WorldError};
use tarn_proto::node::{self, NodeCommand, NodeConfig, NodeNotification, NodeReply, NodeRequest};
use tarn_types::action::{Action, AttemptSpec, Do, NodeReplica};
use tarn_types::cluster::{self, Cluster, Host, Tier};
use tarn_types::event::{AttemptOutcome, Event, Output, PriorInstance, Undeclared, Usage};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, NodeId, StepId, TierId, TierRef, TransferId};
use tarn_types::nodes::{Cleaned, Staying};
use tarn_types::part::{
    PartClass, PartInfo, PartMove, PartRef, Place, StoreKey, Transfer, TransferKind, Verify,
};
use tarn_types::reason::Reason;
use tarn_types::units::Time;
use tarn_types::workflow::Workflow;

/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The reaction of a scripted node to a command, beside noting it: its notifications, in order.
pub(crate) type Acts = Arc<dyn Fn(NodeId, &NodeCommand) -> Vec<NodeNotification> + Send + Sync>;
/// How it answers; `None`: as one that has nothing.
pub(crate) type Answers = Arc<dyn Fn(NodeId, &NodeRequest) -> Option<NodeReply> + Send + Sync>;

/// The function that gets a session's notifications.
type NotificationHandler = Box<dyn FnMut(Option<Vec<u8>>) + Send>;

/// All sessions that there were, by node and number.
pub(crate) type Sessions = Arc<Mutex<BTreeMap<(NodeId, u64), Arc<Session>>>>;

/// One session with a scripted node.
pub(crate) struct Session {
    node: NodeId,
    pub(crate) commands: Mutex<Vec<NodeCommand>>,
    pub(crate) called: Mutex<Vec<NodeRequest>>,
    over: Mutex<Option<String>>,
    /// Takes nothing.
    stuck: Mutex<bool>,
    changed: Condvar,
    handler: Mutex<NotificationHandler>,
    acts: Acts,
    answers: Answers,
}

impl Session {
    pub(crate) fn sends(&self, notification: NodeNotification) {
        if self.over.lock().unwrap().is_none() {
            (self.handler.lock().unwrap())(Some(node::encode(notification).unwrap()));
        }
    }

    pub(crate) fn happens(&self, event: Event) {
        self.sends(NodeNotification::Event(event));
    }

    /// The node is gone.
    pub(crate) fn dies(&self) {
        if self
            .over
            .lock()
            .unwrap()
            .replace("it died".into())
            .is_none()
        {
            self.changed.notify_all();
            (self.handler.lock().unwrap())(None);
        }
    }

    pub(crate) fn is_stuck(&self, stuck: bool) {
        *self.stuck.lock().unwrap() = stuck;
        self.changed.notify_all();
    }

    /// The orders that it has got, once there are `count`.
    pub(crate) fn orders(&self, count: usize) -> Vec<Do> {
        let orders = || {
            let commands = self.commands.lock().unwrap();
            let orders = commands.iter().filter_map(|t| match t {
                NodeCommand::Do(action) => Some(action.what.clone()),
                _ => None,
            });
            orders.collect::<Vec<_>>()
        };
        until(|| orders().len() >= count, "orders");
        orders()
    }

    pub(crate) fn receives(&self, what: impl Fn(&NodeCommand) -> bool) {
        until(
            || self.commands.lock().unwrap().iter().any(&what),
            "a message",
        );
    }
}

impl NodeLink for Session {
    fn send_command(&self, message: Vec<u8>) -> bool {
        let mut stuck = self.stuck.lock().unwrap();
        while *stuck && self.over().is_none() {
            stuck = self
                .changed
                .wait_timeout(stuck, Duration::from_millis(20))
                .unwrap()
                .0;
        }
        drop(stuck);
        // It dies before it takes this, or after.
        let over = self.over.lock().unwrap();
        if over.is_some() {
            return false;
        }
        let command: NodeCommand = node::decode(&message).unwrap();
        let notifications = (self.acts)(self.node, &command);
        drop(over);
        self.commands.lock().unwrap().push(command);
        notifications.into_iter().for_each(|n| self.sends(n));
        true
    }

    fn call(&self, request: Vec<u8>, _: Option<Duration>) -> Result<Vec<u8>, NoAnswer> {
        let call: NodeRequest = node::decode(&request).unwrap();
        let over = self.over.lock().unwrap();
        if let Some(why) = &*over {
            return Err(NoAnswer::Lost(why.clone()));
        }
        let answer = (self.answers)(self.node, &call);
        drop(over);
        let answer = answer.unwrap_or_else(|| match &call {
            NodeRequest::Open(_) => NodeReply::Opened {
                several: None,
                shared: None,
                images: None,
            },
            NodeRequest::Inventory(wanted) => {
                NodeReply::Found(wanted.iter().map(|(p, _, at)| (*p, at.clone())).collect())
            }
            NodeRequest::Clean(_) => NodeReply::Cleaned(Cleaned::default()),
            NodeRequest::Exist(folders) => NodeReply::There(vec![true; folders.len()]),
            NodeRequest::Remove(_) | NodeRequest::Leave => NodeReply::Left(Vec::new()),
            _ => NodeReply::Done,
        });
        self.called.lock().unwrap().push(call);
        Ok(node::encode(answer).unwrap())
    }

    fn over(&self) -> Option<String> {
        self.over.lock().unwrap().clone()
    }

    fn end(&self) {
        self.over
            .lock()
            .unwrap()
            .get_or_insert("it was ended".into());
        self.changed.notify_all();
    }
}

/// Waits for something that other threads do.
pub(crate) fn until(is: impl Fn() -> bool, what: &str) {
    let since = Instant::now();
    while !is() {
        assert!(since.elapsed() < LONG, "{what} did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The requests to the scripted home, and the events that it will report.
#[derive(Default)]
pub(crate) struct HomeState {
    pub(crate) performed: Vec<Do>,
    pub(crate) known: Vec<PartRef>,
    pub(crate) learned: Vec<TransferId>,
    pub(crate) gone: Vec<(PartRef, StoreKey)>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) cleaned: Option<Staying>,
    pub(crate) paced: Vec<(u32, u32)>,
}

pub(crate) type HomeActs = Box<dyn FnMut(&Do) -> Option<Event>>;

pub(crate) struct Home {
    pub(crate) state: Arc<Mutex<HomeState>>,
    began: Instant,
    acts: HomeActs,
}

impl World for Home {
    fn now(&self) -> Time {
        self.began.elapsed().as_nanos() as u64
    }
    fn perform(&mut self, action: &Action) -> Result<(), WorldError> {
        let event = (self.acts)(&action.what);
        let mut state = self.state.lock().unwrap();
        state.performed.push(action.what.clone());
        state.events.extend(event);
        Ok(())
    }
    fn next(&mut self, _: Option<Time>) -> Result<(Time, Event), WorldError> {
        Err(WorldError("home is never waited for".into()))
    }
    fn poll(&mut self) -> Option<(Time, Event)> {
        let event = self.state.lock().unwrap().events.pop_front()?;
        Some((self.now(), event))
    }
}

impl NodeWorld for Home {
    fn multi_node(&self) -> Result<(), CapabilityError> {
        Ok(())
    }
    fn images(&self) -> Result<(), CapabilityError> {
        Ok(())
    }

    fn one_namespace(&self) -> Result<(), CapabilityError> {
        Ok(())
    }
    fn progress(&self) -> Progress {
        Progress::default()
    }
    fn pace(&mut self, own: u32, all: u32) {
        self.state.lock().unwrap().paced.push((own, all));
    }
    fn offer(
        &mut self,
        _: Vec<PriorInstance>,
        _: &BTreeSet<(StoreKey, Place)>,
        _: &BTreeSet<PathBuf>,
    ) -> Result<(), WorldError> {
        Ok(())
    }
    fn know(&mut self, parts: Vec<(PartRef, PartInfo)>) -> Result<(), WorldError> {
        let mut state = self.state.lock().unwrap();
        state.known.extend(parts.iter().map(|(p, _)| *p));
        Ok(())
    }
    fn inventory(
        &mut self,
        wanted: &[(PartRef, StoreKey, Place)],
    ) -> Result<Vec<(PartRef, Place)>, WorldError> {
        assert!(wanted.iter().all(|w| !matches!(w.2, Place::Node(_))));
        Ok(wanted.iter().map(|(p, _, at)| (*p, at.clone())).collect())
    }
    fn clean(&mut self, staying: &Staying) -> Result<Cleaned, WorldError> {
        self.state.lock().unwrap().cleaned = Some(staying.clone());
        Ok(Cleaned {
            removed: vec!["/home/stale".into()],
            ..Cleaned::default()
        })
    }
    fn exist(&mut self, folders: &[PathBuf]) -> Result<Vec<Option<bool>>, WorldError> {
        let there = folders.iter().map(|f| Some(f.ends_with("drained")));
        Ok(there.collect())
    }
    fn remove(&mut self, folders: &[PathBuf]) -> Result<Vec<String>, WorldError> {
        Ok(folders
            .iter()
            .map(|f| format!("home: {}", f.display()))
            .collect())
    }
    fn leave(self: Box<Self>) -> Vec<String> {
        vec!["home has left".into()]
    }
    fn gone(&mut self, part: PartRef, key: &StoreKey) {
        let mut state = self.state.lock().unwrap();
        state.gone.push((part, key.clone()));
    }
    fn learned(&mut self, transfer: &Transfer, _: i64) {
        self.state.lock().unwrap().learned.push(transfer.id);
    }
}

pub(crate) fn cluster_of(nodes: u32) -> Cluster {
    let link = cluster::Link {
        read: 100_000_000,
        write: 100_000_000,
        latency: 0,
        streams: 4,
        emulated: false,
    };
    let node = |i: u32| cluster::Node {
        name: format!("node{i}"),
        host: i,
        cores: 2,
        memory: 1 << 40,
        gpus: 0,
        tiers: vec![Tier {
            name: "fast".into(),
            root: "/tier".into(),
            capacity: 1000,
            read: 1 << 30,
            write: 1 << 30,
            lender: None,
        }],
    };
    let host = |i: u32| Host {
        name: format!("host{i}"),
        cores: 2,
        memory: 1 << 40,
        sockets: Vec::new(),
        draw: Default::default(),
    };
    Cluster {
        hosts: (0..nodes).map(host).collect(),
        nodes: (0..nodes).map(node).collect(),
        external: link.clone(),
        peer: link,
    }
}

pub(crate) fn workflow(text: &str) -> Workflow {
    let parsed = tarn_spec::parse("test.toml", text, &PathBuf::from("/w"));
    let mut parsed = parsed.unwrap_or_else(|e| panic!("{:?}", e.problems()));
    parsed.finish_codes(&|_| None);
    parsed.workflow.clone()
}

/// The settings of a test.
pub(crate) struct Script {
    pub(crate) workflow: Workflow,
    pub(crate) cluster: Cluster,
    pub(crate) acts: Acts,
    pub(crate) answers: Answers,
    pub(crate) home: HomeActs,
    /// Milliseconds until a node that takes nothing is given up.
    pub(crate) timeout: u64,
    pub(crate) changed: Arc<dyn Fn(StepId) -> Option<PathBuf> + Send + Sync>,
}

const ONE_STEP: &str = "name = \"w\"\nexternal = \"/ext\"\n[data.d]\n[[step]]\nname = \"s\"\nrun = \"true\"\nout = [\"d\"]\n";

impl Script {
    pub(crate) fn new(nodes: u32) -> Self {
        Self {
            workflow: workflow(ONE_STEP),
            cluster: cluster_of(nodes),
            acts: Arc::new(|_, _| Vec::new()),
            answers: Arc::new(|_, _| None),
            home: Box::new(|_| None),
            timeout: 60_000,
            changed: Arc::new(|_| None),
        }
    }

    pub(crate) fn open(self) -> SimulatedRun {
        let (event_queue, nodes) = (EventQueue::new(), self.cluster.nodes.len() as u32);
        let sessions: Sessions = Arc::default();
        let gone: Arc<Mutex<BTreeSet<NodeId>>> = Arc::default();
        let (all, cut, to) = (
            Arc::clone(&sessions),
            Arc::clone(&gone),
            event_queue.clone(),
        );
        let (acts, answers) = (self.acts, self.answers);
        let relink = Arc::new(move |n: NodeId, number: u64| {
            if cut.lock().unwrap().contains(&n) {
                return None;
            }
            let session = Arc::new(Session {
                node: n,
                commands: Mutex::default(),
                called: Mutex::default(),
                over: Mutex::default(),
                stuck: Mutex::default(),
                changed: Condvar::new(),
                handler: Mutex::new(Box::new(to.of(n, number))),
                acts: Arc::clone(&acts),
                answers: Arc::clone(&answers),
            });
            all.lock()
                .unwrap()
                .insert((n, number), Arc::clone(&session));
            Some(ReachableNode {
                name: format!("node{}", n.0),
                link: session,
                data: (format!("node{}", n.0), 7000 + number as u16),
            })
        });
        let links = (0..nodes).map(|n| relink(NodeId(n), 0).unwrap()).collect();
        let state: Arc<Mutex<HomeState>> = Arc::default();
        let home = Home {
            state: Arc::clone(&state),
            began: Instant::now(),
            acts: self.home,
        };
        let node_config = NodeConfig {
            run: "w-1".into(),
            workspace: "w".into(),
            workflow: self.workflow,
            cluster: self.cluster,
            node: NodeId(0),
            prior: Vec::new(),
            state: "/state".into(),
            epoch: 0,
            namespaces: true,
            environment: Vec::new(),
            peers: BTreeMap::new(),
            data: (1, [0; 32]),
            keys: None,
        };
        let opened = AllocationWorld::open(Config {
            home: Box::new(home),
            node_config,
            links,
            event_queue: event_queue.clone(),
            relink,
            retry: Duration::from_millis(20),
            timeout: Duration::from_millis(self.timeout),
            changed_since: self.changed,
        });
        SimulatedRun {
            world: opened.map(Box::new),
            home: state,
            sessions,
            gone,
        }
    }
}

/// An allocation with its scripted ends.
pub(crate) struct SimulatedRun {
    pub(crate) world: Result<Box<AllocationWorld>, WorldError>,
    pub(crate) home: Arc<Mutex<HomeState>>,
    pub(crate) sessions: Sessions,
    /// Nodes that cannot be reached again.
    pub(crate) gone: Arc<Mutex<BTreeSet<NodeId>>>,
}

impl SimulatedRun {
    pub(crate) fn world(&mut self) -> &mut AllocationWorld {
        self.world.as_mut().unwrap_or_else(|e| panic!("{e}"))
    }

    /// The newest session with a node.
    pub(crate) fn session(&self, n: u32) -> Arc<Session> {
        let sessions = self.sessions.lock().unwrap();
        let newest = sessions
            .range((NodeId(n), 0)..=(NodeId(n), u64::MAX))
            .next_back();
        Arc::clone(newest.expect("a session").1)
    }

    pub(crate) fn perform(&mut self, what: Do) {
        let why = Reason::Needed;
        self.world().perform(&Action { what, why }).unwrap();
    }

    /// The next event; a timer ends the wait.
    pub(crate) fn event(&mut self) -> Event {
        let world = self.world();
        let until = world.now() + LONG.as_nanos() as u64;
        let (_, event) = world.next(Some(until)).unwrap();
        assert_ne!(event, Event::Timer, "nothing came");
        event
    }

    pub(crate) fn quiet(&mut self, what: &str) {
        let world = self.world();
        let until = world.now() + 60_000_000;
        let (_, event) = world.next(Some(until)).unwrap();
        assert_eq!(event, Event::Timer, "{what}");
    }

    /// The node is gone and stays so until it is taken out of `gone`.
    pub(crate) fn loses(&mut self, n: u32) {
        self.gone.lock().unwrap().insert(NodeId(n));
        self.session(n).dies();
    }

    pub(crate) fn gets_back(&mut self, n: u32) {
        self.gone.lock().unwrap().remove(&NodeId(n));
    }
}

pub(crate) fn tier_ref(n: u32) -> TierRef {
    TierRef {
        node: NodeId(n),
        tier: TierId(0),
    }
}

pub(crate) fn at(n: u32) -> Place {
    Place::Node(tier_ref(n))
}

pub(crate) fn part(seq: u32) -> PartRef {
    PartRef {
        data: DataId(0),
        version: 0,
        origin: 0,
        seq,
    }
}

pub(crate) fn info(seq: u32, bytes: u64) -> PartInfo {
    PartInfo {
        seq,
        class: PartClass::Whole,
        bytes,
        stored: bytes,
        files: 1,
        hash: None,
        key: StoreKey(format!("d.{seq}")),
    }
}

pub(crate) fn instance(index: u32) -> InstanceId {
    InstanceId {
        step: StepId(0),
        index,
    }
}

pub(crate) fn transfer(id: u64, from: &[(u32, Place)], to: Place) -> Transfer {
    let parts = from.iter().map(|(seq, from)| PartMove {
        part: part(*seq),
        from: from.clone(),
    });
    Transfer {
        id: TransferId(id),
        data: DataId(0),
        version: 0,
        parts: parts.collect(),
        to,
        kind: TransferKind::Peer,
        verify: Verify::Copy,
        priority: 0,
    }
}

pub(crate) fn run(index: u32, nodes: &[u32], views: &[(u32, u32)]) -> AttemptSpec {
    let held = |n: u32| {
        let held = views.iter().filter(move |(_, on)| *on == n);
        held.map(|(seq, on)| NodeReplica {
            part: part(*seq),
            key: info(*seq, 0).key,
            tier_ref: tier_ref(*on),
        })
        .collect()
    };
    AttemptSpec {
        instance: instance(index),
        attempt: 1,
        item: None,
        nodes: nodes.iter().map(|n| tier_ref(*n)).collect(),
        views: vec![nodes.iter().map(|n| held(*n)).collect()],
        identity: Hash(0),
        store: format!("out.{index}"),
        reserve: 0,
        partitions: Vec::new(),
    }
}

pub(crate) fn done(id: u64, parts: usize) -> Event {
    Event::TransferDone {
        id: TransferId(id),
        bytes: 0,
        hashes: vec![Hash(7); parts],
        stored: vec![10; parts],
        took: 1,
    }
}

pub(crate) fn committed(id: InstanceId, attempt: u32, outputs: Vec<Output>) -> Event {
    Event::Ended {
        instance: id,
        attempt,
        ended: AttemptOutcome::Committed {
            outputs,
            undeclared: Undeclared::default(),
        },
        usage: Usage::default(),
    }
}
