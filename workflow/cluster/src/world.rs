//! [`AllocationWorld`]: the world of N nodes that are reached through links.

use crate::chains::Chains;
use crate::connection::NodeConnection;
use crate::dispatch::{DispatchedTransfer, OutstandingActions, PendingEngineEvent, nodes_of};
use crate::event_queue::{EventQueue, NodeEvent};
use crate::external_queue::ExternalTransferQueue;
use crate::file_check::FileCheck;
use crate::link::{ReachableNode, Relink};
use crate::parts::{Knows, RunPartTable, StoredPartBytes};
use crate::returning::Returned;
use crate::{ABANDONED, ASK_IDLE, GOODBYE, LOOK, LOOK_OFTEN, QUICK};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tarn_ports::{CapabilityError, ChangedSince, NodeWorld, Progress, World, WorldError};
use tarn_proto::node::{Address, NodeCommand, NodeConfig, NodeReply, NodeRequest};
use tarn_types::action::Action;
use tarn_types::event::{Event, RunError, RunErrorKind};
use tarn_types::id::{NodeId, TierId, TransferId};
use tarn_types::nodes::SpaceWaitCause;
use tarn_types::part::{Place, StoreKey, Transfer};
use tarn_types::units::Time;

/// The parts of an allocation's world.
pub struct Config {
    /// A world that owns no node: it lists sources, remembers their hashes, watches signals, sees the drained area.
    pub home: Box<dyn NodeWorld>,
    /// How each node is opened. Which node it is, the time, and where the others serve their files is filled in.
    pub node_config: NodeConfig,
    /// The nodes, in the order of the cluster, their sessions numbered 0.
    pub links: Vec<ReachableNode>,
    /// The queue for the events of these sessions.
    pub event_queue: EventQueue,
    /// Opens a new session with a lost node.
    pub relink: Relink,
    /// A node that takes no message for so long is given up, and a step whose files cannot be looked at for so long is not begun;
    /// [`crate::STUCK`] is usual.
    pub timeout: Duration,
    /// Between two tries to reach a lost node again; [`crate::RETRY`] is usual.
    pub retry: Duration,
    /// Checked before each attempt is handed out, off the loop's thread: a step whose script has changed since the run began does
    /// not match the log.
    pub changed_since: ChangedSince,
}

/// Whether a node can be used, as the engine knows or will know.
pub(crate) enum NodeState {
    Up,
    /// It is lost: the engine gets that before anything else that concerns it.
    Lost {
        /// It is ready to be used again, and what it brings back; reported when all that it was part of has ended.
        back: Option<Returned>,
        /// The capacities of its tiers that its new world reports meanwhile.
        capacities: BTreeMap<TierId, u64>,
    },
}

impl NodeState {
    pub(crate) fn lost() -> Self {
        Self::Lost {
            back: None,
            capacities: BTreeMap::new(),
        }
    }
}

/// A node, as this end sees it.
pub(crate) struct AllocatedNode {
    /// Counts the sessions with it; messages of an earlier one do not count.
    pub(crate) session: u64,
    pub(crate) node_state: NodeState,
    /// The queue to it, while there is a session.
    pub(crate) connection: Option<NodeConnection>,
    pub(crate) address: Address,
    pub(crate) knows: Knows,
    /// Replicas of this run that are stored there, or were when it was lost.
    pub(crate) holds: StoredPartBytes,
}

impl AllocatedNode {
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.node_state, NodeState::Up)
    }
}

/// The nodes; closes their worlds when it is dropped.
pub(crate) struct NodeTable {
    pub(crate) nodes: Vec<AllocatedNode>,
    pub(crate) event_queue: EventQueue,
}

impl Drop for NodeTable {
    fn drop(&mut self) {
        let connections = self.nodes.iter().filter_map(|n| n.connection.as_ref());
        let waiting: Vec<_> = connections
            .map(|l| l.call(NodeRequest::Close, GOODBYE))
            .collect();
        // A session that waits because nobody reads its notifications must not wait for that.
        self.event_queue.close();
        let until = Instant::now() + GOODBYE;
        for answer in waiting {
            // A node that does not reply finds its session closed.
            let _ = answer.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
    }
}

/// The world of a run over the nodes of an allocation.
pub struct AllocationWorld {
    pub(crate) home: Box<dyn NodeWorld>,
    pub(crate) home_knows: Knows,
    pub(crate) node_table: NodeTable,
    pub(crate) node_config: NodeConfig,
    pub(crate) relink: Relink,
    pub(crate) retry: Duration,
    timeout: Duration,
    file_check: FileCheck,
    pub(crate) multi_node: Result<(), CapabilityError>,
    pub(crate) one_namespace: Result<(), CapabilityError>,
    pub(crate) images: Result<(), CapabilityError>,
    pub(crate) parts: RunPartTable,
    /// Replicas of earlier runs that were offered to this one, if any were.
    pub(crate) offered: Option<BTreeSet<(StoreKey, Place)>>,
    /// Folders to keep.
    pub(crate) protected: BTreeSet<PathBuf>,
    /// Parts that the user has pinned.
    pub(crate) pinned: BTreeSet<StoreKey>,
    pub(crate) under_way: OutstandingActions,
    pub(crate) store: ExternalTransferQueue,
    pub(crate) chains: Chains,
    pub(crate) ready: VecDeque<PendingEngineEvent>,
    /// Marks so far ([`NodeCommand::Mark`]).
    pub(crate) marks: u64,
    pub(crate) progress: Progress,
    /// The run was interrupted once already.
    pub(crate) interrupted: bool,
    looked: Instant,
    /// Since when nothing has been under way, while the engine waits for something; and the last request to the nodes about it.
    idle: Option<(Instant, Instant)>,
}

impl AllocationWorld {
    /// Opens all nodes. One that does not answer is lost, as if that had happened later.
    ///
    /// # Errors
    /// When a node refuses, or threads cannot be started.
    pub fn open(mut config: Config) -> Result<Self, WorldError> {
        if config.node_config.cluster.nodes.len() != config.links.len() {
            let (nodes, links) = (config.node_config.cluster.nodes.len(), config.links.len());
            let what = format!("a cluster of {nodes} nodes was to be opened over {links} sessions");
            return Err(WorldError(what));
        }
        let links = std::mem::take(&mut config.links);
        let mut this = Self::unconnected(config, &links);
        for (n, linked) in (0..).map(NodeId).zip(links) {
            let connection = this.connection(n, 0, linked)?;
            if let Some(node) = this.node_mut(n) {
                node.connection = Some(connection);
            }
        }
        this.open_nodes()?;
        Ok(this)
    }

    /// The world before any message to its nodes.
    fn unconnected(config: Config, links: &[ReachableNode]) -> Self {
        let mut node_config = config.node_config;
        let ids = (0..).map(NodeId);
        let addresses = links.iter().map(|l| l.data.clone());
        node_config.peers = ids.zip(addresses).collect();
        let node = |linked: &ReachableNode| AllocatedNode {
            session: 0,
            node_state: NodeState::Up,
            connection: None,
            address: linked.data.clone(),
            knows: Knows::new(),
            holds: StoredPartBytes::new(),
        };
        let nodes = links.iter().map(node).collect();
        let event_queue = config.event_queue;
        Self {
            progress: config.home.progress(),
            home: config.home,
            home_knows: Knows::new(),
            node_table: NodeTable { nodes, event_queue },
            node_config,
            relink: config.relink,
            retry: config.retry,
            timeout: config.timeout,
            file_check: FileCheck::new(config.changed_since, config.timeout),
            multi_node: Ok(()),
            one_namespace: Ok(()),
            images: Ok(()),
            parts: RunPartTable::default(),
            offered: None,
            protected: BTreeSet::new(),
            pinned: BTreeSet::new(),
            under_way: OutstandingActions::default(),
            store: ExternalTransferQueue::default(),
            chains: Chains::default(),
            ready: VecDeque::new(),
            marks: 0,
            interrupted: false,
            looked: Instant::now(),
            idle: None,
        }
    }

    /// Opens each node's part of the run, and takes in which steps cannot run on which of them.
    fn open_nodes(&mut self) -> Result<(), WorldError> {
        let open = |n| NodeRequest::Open(Box::new(self.opening_of(n)));
        let calls = self.up().map(|n| (n, open(n))).collect();
        for (n, answer) in self.call_nodes(calls, QUICK)? {
            let NodeReply::Opened {
                several,
                shared,
                images,
            } = answer
            else {
                self.lose_for_invalid_message(n);
                continue;
            };
            let name = self.name(n);
            let note = |all: &mut Result<(), CapabilityError>, why: Option<String>| {
                if let (Ok(()), Some(why)) = (&*all, why) {
                    *all = Err(CapabilityError::new(format_args!("{name}: {why}")));
                }
            };
            note(&mut self.multi_node, several);
            note(&mut self.one_namespace, shared);
            note(&mut self.images, images);
        }
        Ok(())
    }

    pub(crate) fn connection(
        &self,
        n: NodeId,
        session: u64,
        linked: ReachableNode,
    ) -> Result<NodeConnection, WorldError> {
        let (event_queue, file_check) =
            (self.node_table.event_queue.clone(), self.file_check.clone());
        let name = linked.name;
        NodeConnection::start(n, session, linked.link, event_queue, file_check)
            .map_err(|e| WorldError(format!("cannot start a thread to speak to {name}: {e}")))
    }

    /// A transfer is over: the engine gets the event. Transfers that wait to follow it end with it, unless it is done.
    pub(crate) fn end_transfer(&mut self, order: &Transfer, event: Event) {
        self.store.ended(order);
        let done = matches!(event, Event::TransferDone { .. });
        let followers = self.chains.ended(order, done);
        self.queue_engine_event(event, nodes_of(order).collect());
        for id in followers {
            if let Some(moving) = self.under_way.moving.remove(&id) {
                self.fail_without_source(&moving.order);
            }
        }
    }

    /// Fails a transfer whose source does not come.
    pub(crate) fn fail_without_source(&mut self, t: &Transfer) {
        let failure = RunError {
            kind: RunErrorKind::Cancelled,
            message: "its source replica has failed".into(),
        };
        self.transfer_failed(t, failure);
    }

    /// Ends a transfer for whose end nobody is waited.
    pub(crate) fn give_up(&mut self, id: TransferId, message: String) {
        if let Some(moving) = self.under_way.moving.remove(&id) {
            let kind = RunErrorKind::Cancelled;
            let failure = RunError { kind, message };
            self.transfer_failed(&moving.order, failure);
        }
    }

    /// Ends a transfer that no replica is to blame for.
    fn transfer_failed(&mut self, t: &Transfer, failure: RunError) {
        let failed = Event::TransferFailed {
            id: t.id,
            failure,
            damaged: None,
        };
        self.end_transfer(t, failed);
    }

    /// How a node is opened now.
    pub(crate) fn opening_of(&self, node: NodeId) -> NodeConfig {
        NodeConfig {
            node,
            epoch: self.now(),
            ..self.node_config.clone()
        }
    }

    pub(crate) fn node(&self, n: NodeId) -> Option<&AllocatedNode> {
        self.node_table.nodes.get(n.at())
    }

    pub(crate) fn node_mut(&mut self, n: NodeId) -> Option<&mut AllocatedNode> {
        self.node_table.nodes.get_mut(n.at())
    }

    pub(crate) fn is_up(&self, n: NodeId) -> bool {
        self.node(n).is_some_and(AllocatedNode::is_up)
    }

    /// The nodes that can be used.
    pub(crate) fn up(&self) -> impl Iterator<Item = NodeId> {
        let nodes = (0..).map(NodeId).zip(&self.node_table.nodes);
        nodes.filter(|(_, node)| node.is_up()).map(|(n, _)| n)
    }

    pub(crate) fn name(&self, n: NodeId) -> String {
        let node = self.node_config.cluster.nodes.get(n.at());
        node.map_or_else(|| n.to_string(), |node| node.name.clone())
    }

    /// Sends a command to a node that can be used or is being made ready for that.
    pub(crate) fn send_command(&mut self, n: NodeId, command: NodeCommand) {
        let connection = self.node(n).and_then(|node| node.connection.as_ref());
        if connection.is_some_and(|connection| !connection.send_command(command)) {
            self.lose(n, "too many messages to it are not yet sent".into());
        }
    }

    pub(crate) fn send_command_to_others(&mut self, but: Option<NodeId>, command: &NodeCommand) {
        for n in (0..self.node_table.nodes.len() as u32).map(NodeId) {
            if Some(n) != but {
                self.send_command(n, command.clone());
            }
        }
    }

    fn read(&mut self, node_event: NodeEvent) {
        let (NodeEvent::Notification(n, session, _)
        | NodeEvent::NotBegun(n, session, ..)
        | NodeEvent::Linked(n, session, _)
        | NodeEvent::Returned(n, session, _)) = &node_event;
        let (n, session) = (*n, *session);
        if self.node(n).is_none_or(|node| node.session != session) {
            if let NodeEvent::Linked(_, _, linked) = node_event {
                linked.link.end();
            }
            return;
        }
        match node_event {
            NodeEvent::Notification(_, _, Ok(notification)) => {
                self.handle_notification(n, notification)
            }
            NodeEvent::Notification(_, _, Err(why)) => {
                let connection = self.node(n).and_then(|node| node.connection.as_ref());
                let known = connection.and_then(NodeConnection::over);
                self.lose(n, known.unwrap_or_else(|| why.to_string()));
            }
            NodeEvent::NotBegun(_, _, attempt, why) => {
                self.fail_attempt(n, attempt, why.to_string())
            }
            NodeEvent::Linked(_, _, linked) => self.make_ready(n, linked),
            NodeEvent::Returned(_, _, Ok(returned)) => self.record_return(n, returned),
            NodeEvent::Returned(_, _, Err(why)) => self.lose(n, why.to_string()),
        }
    }

    /// Gives up nodes that take no messages.
    fn give_up_stuck_nodes(&mut self) {
        if self.looked.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.looked = Instant::now();
        self.give_up_transfers();
        let timeout = self.timeout;
        let stuck = |n: &AllocatedNode| n.connection.as_ref().is_some_and(|l| l.is_stuck(timeout));
        let nodes = (0..).map(NodeId).zip(&self.node_table.nodes);
        let stuck: Vec<_> = nodes.filter(|(_, n)| stuck(n)).map(|(n, _)| n).collect();
        for n in stuck {
            self.lose(n, format!("it has taken nothing for {timeout:?}"));
        }
    }
}

impl AllocationWorld {
    fn connections(&self) -> impl Iterator<Item = (NodeId, &NodeConnection)> {
        let nodes = (0..).map(NodeId).zip(&self.node_table.nodes);
        nodes.filter_map(|(n, node)| Some((n, node.connection.as_ref()?)))
    }

    /// A run that has nothing to do but to wait for space does so for 10 s at most where nobody alive can give it back: the nodes
    /// know who holds what of theirs.
    fn note_idle(&mut self, waits: bool) -> Result<(), WorldError> {
        if !waits || !self.under_way.nothing() {
            return Ok(());
        }
        let now = Instant::now();
        let (since, last_request) = *self.idle.get_or_insert((now, now));
        if now.duration_since(last_request) < ASK_IDLE {
            return Ok(());
        }
        let idle = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let calls = self
            .up()
            .map(|n| (n, NodeRequest::Idle(Some(idle))))
            .collect();
        let mut all = SpaceWaitCause::default();
        for (n, answer) in self.call_nodes(calls, QUICK)? {
            match answer {
                NodeReply::Waits(waits) => all = all.and(waits),
                _ => self.lose_for_invalid_message(n),
            }
        }
        self.idle = Some((since, Instant::now()));
        all.hopeless().map_or(Ok(()), |why| Err(WorldError(why)))
    }

    /// A run that ends does not wait for a transfer that it has given up and whose file system does not respond. If the
    /// transfer's thread ever resumes, it only notices that.
    fn give_up_transfers(&mut self) {
        if !self.interrupted {
            return;
        }
        let timeout = self.timeout.min(ABANDONED);
        let hangs = |m: &DispatchedTransfer| m.abandoned.is_some_and(|a| a.elapsed() >= timeout);
        let moving = self.under_way.moving.iter();
        let hanging: Vec<_> = moving
            .filter(|(_, m)| hangs(m))
            .map(|(id, _)| *id)
            .collect();
        for id in hanging {
            self.give_up(
                id,
                format!(
                    "it was given up and has not ended within {timeout:?}: its file system does not answer"
                ),
            );
        }
    }
}

impl World for AllocationWorld {
    fn now(&self) -> Time {
        self.home.now()
    }

    fn perform(&mut self, action: &Action) -> Result<(), WorldError> {
        self.order(action)?;
        if self.idle.is_some() && !self.under_way.nothing() {
            self.idle = None;
            for (_, connection) in self.connections() {
                // Nobody waits for the answer.
                drop(connection.call(NodeRequest::Idle(None), QUICK));
            }
        }
        Ok(())
    }

    /// Home has no thread that could wake this one: it is looked at every [`LOOK`] (a signal may wait so long), or
    /// [`LOOK_OFTEN`] while it owes an outcome. Notifications of nodes wake it at once.
    fn next(&mut self, until: Option<Time>) -> Result<(Time, Event), WorldError> {
        loop {
            self.hand_out()?;
            // Here, not in `poll`: all that was decided before the loss was known has been performed by now.
            if let Some(event) = self.take_returned_node() {
                return Ok((self.now(), event));
            }
            if let Some(event) = self.poll() {
                return Ok(event);
            }
            let now = self.now();
            if until.is_some_and(|u| u <= now) {
                return Ok((now, Event::Timer));
            }
            if until.is_none() && self.under_way.nothing() {
                return Err(WorldError(
                    "nothing is under way and there is nothing to wait for".into(),
                ));
            }
            let look = match self.under_way.home_owes() {
                true => LOOK_OFTEN,
                false => LOOK,
            };
            let left = until.map_or(look, |u| Duration::from_nanos(u - now).min(look));
            if let Some(node_event) = self.node_table.event_queue.take(left) {
                self.read(node_event);
            }
            self.give_up_stuck_nodes();
            self.note_idle(until.is_some())?;
        }
    }

    fn poll(&mut self) -> Option<(Time, Event)> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                if let Event::TransferFailed { id, .. } = &ready.event {
                    self.chains.acknowledge_failure(*id);
                }
                return Some((self.now(), ready.event));
            }
            if let Some((_, event)) = self.home.poll() {
                self.handle_home_event(event);
                continue;
            }
            let node_event = self.node_table.event_queue.take(Duration::ZERO)?;
            self.read(node_event);
        }
    }
}
