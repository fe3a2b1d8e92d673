//! What is said to one node: a queue and a thread, so that no node makes the loop wait for it.

use crate::event_queue::{EventQueue, NodeEvent};
use crate::link::{NoAnswer, NodeLink};
use crate::lost::Return;
use crate::{MAX_LOOKS, MAX_QUEUED};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tarn_ports::ChangedSince;
use tarn_proto::node::{self, NodeCommand, NodeReply, NodeRequest};
use tarn_types::action::{Action, Do};
use tarn_types::id::{NodeId, StepId};

/// An answer, or why there is none.
pub(crate) type NodeReplyResult = Result<NodeReply, String>;

/// Something to be said.
enum OutgoingNodeMessage {
    Tell(NodeCommand),
    Call(NodeRequest, Duration, SyncSender<NodeReplyResult>),
    /// Makes a node ready that was lost.
    Return(Box<Return>),
}

/// The queue of one session with a node. Its thread ends when it is dropped.
pub(crate) struct NodeConnection {
    items: Sender<OutgoingNodeMessage>,
    queued: Arc<AtomicUsize>,
    /// Since when the node has been taking what it is told now.
    since: Arc<Mutex<Option<Instant>>>,
    link: Arc<dyn NodeLink>,
}

impl NodeConnection {
    pub(crate) fn start(
        node: NodeId,
        session: u64,
        link: Arc<dyn NodeLink>,
        event_queue: EventQueue,
        file_check: FileCheck,
    ) -> std::io::Result<Self> {
        let (items, queue) = channel();
        let connection = Self {
            items,
            queued: Arc::default(),
            since: Arc::default(),
            link: Arc::clone(&link),
        };
        let node_sender = NodeSender {
            node,
            session,
            link,
            event_queue,
            file_check,
            since: Arc::clone(&connection.since),
        };
        let queued = Arc::clone(&connection.queued);
        std::thread::Builder::new()
            .name(format!("tarn-to-{node}"))
            .spawn(move || {
                for item in queue {
                    queued.fetch_sub(1, Ordering::Relaxed);
                    node_sender.send_message(item);
                }
            })?;
        Ok(connection)
    }

    fn put(&self, item: OutgoingNodeMessage) -> bool {
        self.queued.fetch_add(1, Ordering::Relaxed) < MAX_QUEUED && self.items.send(item).is_ok()
    }

    /// Tells. False when far too much waits already.
    pub(crate) fn send_command(&self, told: NodeCommand) -> bool {
        self.put(OutgoingNodeMessage::Tell(told))
    }

    /// Asks, once all that was told before has been said.
    pub(crate) fn call(&self, call: NodeRequest, timeout: Duration) -> Receiver<NodeReplyResult> {
        let (reply, answer) = sync_channel(1);
        self.put(OutgoingNodeMessage::Call(call, timeout, reply));
        answer
    }

    /// Begins to make a node ready; [`NodeEvent::Returned`] tells how it went.
    pub(crate) fn make_ready(&self, with: Box<Return>) -> bool {
        self.put(OutgoingNodeMessage::Return(with))
    }

    /// Why the session is over, if it is.
    pub(crate) fn over(&self) -> Option<String> {
        self.link.over()
    }

    /// Whether the node has been taking one message for so long.
    pub(crate) fn is_stuck(&self, timeout: Duration) -> bool {
        let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| since.elapsed() >= timeout)
    }
}

impl Drop for NodeConnection {
    fn drop(&mut self) {
        self.link.end();
    }
}

/// The thread's end.
pub(crate) struct NodeSender {
    node: NodeId,
    session: u64,
    link: Arc<dyn NodeLink>,
    event_queue: EventQueue,
    file_check: FileCheck,
    since: Arc<Mutex<Option<Instant>>>,
}

impl NodeSender {
    fn send_message(&self, item: OutgoingNodeMessage) {
        match item {
            OutgoingNodeMessage::Tell(NodeCommand::Do(action)) => self.order(action),
            OutgoingNodeMessage::Tell(told) => drop(self.send_command(told)),
            OutgoingNodeMessage::Call(call, timeout, reply) => {
                // Whoever asked may have given the node up meanwhile.
                let _ = reply.send(self.call(call, timeout));
            }
            OutgoingNodeMessage::Return(with) => {
                let returned = with.carry_out(self);
                let node_event = NodeEvent::Returned(self.node, self.session, returned);
                self.event_queue.put(node_event);
            }
        }
    }

    /// A step whose script has changed is not begun. Asked here, as it may wait for a file system, and in the order of
    /// what is said: a stop of this attempt comes after it.
    fn order(&self, action: Action) {
        if let Do::Run(run) = &action.what
            && let Err(why) = self.file_check.look(run.instance.step)
        {
            let attempt = (run.instance, run.attempt);
            let node_event = NodeEvent::NotBegun(self.node, self.session, attempt, why);
            self.event_queue.put(node_event);
            return;
        }
        self.send_command(NodeCommand::Do(action));
    }

    pub(crate) fn send_command(&self, told: NodeCommand) -> bool {
        let note = |since| *self.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
        note(Some(Instant::now()));
        let sent = match node::encode(told) {
            Ok(bytes) => self.link.send_command(bytes),
            Err(_) => false,
        };
        note(None);
        if !sent {
            let why = self.link.over();
            let why = why.unwrap_or_else(|| "nothing can be sent to it".into());
            let node_event = NodeEvent::News(self.node, self.session, Err(why));
            self.event_queue.put(node_event);
        }
        sent
    }

    pub(crate) fn call(&self, call: NodeRequest, timeout: Duration) -> NodeReplyResult {
        ask(&*self.link, call, timeout)
    }
}

/// Looks whether the files that a step's command names are what they were, on a thread that may be left to a file system which
/// does not answer.
#[derive(Clone)]
pub(crate) struct FileCheck {
    pub(crate) changed_since: ChangedSince,
    pub(crate) timeout: Duration,
    /// Looks that have not come back.
    pub(crate) out: Arc<AtomicUsize>,
}

impl FileCheck {
    /// # Errors
    /// Why the step cannot be begun.
    fn look(&self, step: StepId) -> Result<(), String> {
        let hangs = || {
            Err(format!(
                "whether the files that its command names are what they were when the run began cannot be found out: their file system \
                 has not answered for {:?}; it was not started: look at that file system, then `tarn resume`",
                self.timeout
            ))
        };
        if self.out.fetch_add(1, Ordering::Relaxed) >= MAX_LOOKS {
            self.out.fetch_sub(1, Ordering::Relaxed);
            return hangs();
        }
        let (tell, told) = sync_channel(1);
        let (changed_since, out) = (Arc::clone(&self.changed_since), Arc::clone(&self.out));
        let thread = std::thread::Builder::new().name("tarn-look".into());
        let started = thread.spawn(move || {
            let _ = tell.send(changed_since(step));
            out.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(e) = started {
            self.out.fetch_sub(1, Ordering::Relaxed);
            return Err(format!(
                "cannot start a thread to look at the files that its command names: {e}"
            ));
        }
        match told.recv_timeout(self.timeout) {
            Ok(None) => Ok(()),
            Ok(Some(path)) => Err(format!(
                "{}, which its command names, is not what it was when the run began; it was not started: `tarn run` takes the \
                 file as it is now and runs again only what that changes",
                path.display()
            )),
            Err(_) => hangs(),
        }
    }
}

/// Asks a node.
///
/// # Errors
/// When it does not answer, or with nothing that makes sense.
pub(crate) fn ask(link: &dyn NodeLink, call: NodeRequest, timeout: Duration) -> NodeReplyResult {
    let request = node::encode(call).map_err(|e| e.to_string())?;
    let bytes = link
        .call(request, Some(timeout))
        .map_err(|e: NoAnswer| e.to_string())?;
    let answer = node::decode(&bytes)
        .map_err(|e| format!("{e}; is its tarnd of another version than this tarn ({TARN})?"))?;
    match answer {
        NodeReply::Ending => Err(crate::ENDING.into()),
        answer => Ok(answer),
    }
}

/// This tarn's version.
pub(crate) const TARN: &str = env!("CARGO_PKG_VERSION");
