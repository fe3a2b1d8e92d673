//! Messages to one node: a queue and a thread, so that no node makes the loop wait for it.

use crate::MAX_QUEUED;
use crate::error::{NodeCallError, NodeReplyResult, NodeSessionError};
use crate::event_queue::{EventQueue, NodeEvent};
use crate::file_check::FileCheck;
use crate::link::NodeLink;
use crate::returning::{NodeRequests, Return};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tarn_proto::node::{self, NodeCommand, NodeReply, NodeRequest};
use tarn_types::action::{Action, Do};
use tarn_types::id::NodeId;

/// A message that waits to be sent.
enum OutgoingNodeMessage {
    Command(NodeCommand),
    Call(NodeRequest, Duration, SyncSender<NodeReplyResult>),
    /// Makes a node ready that was lost.
    Return(Box<Return>),
}

/// The queue of one session with a node. Its thread ends when it is dropped.
pub(crate) struct NodeConnection {
    items: Sender<OutgoingNodeMessage>,
    queued: Arc<AtomicUsize>,
    /// Since when the node has been taking the message that is being sent.
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
                    let before = queued.fetch_sub(1, Ordering::Relaxed);
                    assert!(before > 0, "a message was taken that was not counted");
                    node_sender.send_message(item);
                }
            })?;
        Ok(connection)
    }

    fn put(&self, item: OutgoingNodeMessage) -> bool {
        let has_space = self.queued.fetch_add(1, Ordering::Relaxed) < MAX_QUEUED;
        let queued = has_space && self.items.send(item).is_ok();
        if !queued {
            self.queued.fetch_sub(1, Ordering::Relaxed);
        }
        queued
    }

    /// Queues a command. False when far too much waits already.
    pub(crate) fn send_command(&self, command: NodeCommand) -> bool {
        self.put(OutgoingNodeMessage::Command(command))
    }

    /// Queues a request behind all commands before it.
    pub(crate) fn call(&self, call: NodeRequest, timeout: Duration) -> Receiver<NodeReplyResult> {
        let (reply, answer) = sync_channel(1);
        self.put(OutgoingNodeMessage::Call(call, timeout, reply));
        answer
    }

    /// Begins to make a node ready; [`NodeEvent::Returned`] has the result.
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
            OutgoingNodeMessage::Command(NodeCommand::Do(action)) => self.order(action),
            OutgoingNodeMessage::Command(command) => {
                self.send_command(command);
            }
            OutgoingNodeMessage::Call(call, timeout, reply) => {
                // The caller may have given the node up meanwhile.
                let _ = reply.send(self.call(call, timeout));
            }
            OutgoingNodeMessage::Return(with) => {
                let returned = with.carry_out(self);
                let node_event = NodeEvent::Returned(self.node, self.session, returned);
                self.event_queue.put(node_event);
            }
        }
    }

    /// A step whose script has changed is not begun. Checked here, as it may wait for a file system, and in the order of
    /// messages: a stop of this attempt comes after it.
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
}

impl NodeRequests for NodeSender {
    fn send_command(&self, command: NodeCommand) -> bool {
        let note = |since| *self.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
        note(Some(Instant::now()));
        let sent = match node::encode(command) {
            Ok(bytes) => self.link.send_command(bytes),
            Err(_) => false,
        };
        note(None);
        if !sent {
            let why = self.link.over();
            let why = why.map_or(NodeSessionError::Unsendable, NodeSessionError::Over);
            let node_event = NodeEvent::Notification(self.node, self.session, Err(why));
            self.event_queue.put(node_event);
        }
        sent
    }

    fn call(&self, request: NodeRequest, timeout: Duration) -> NodeReplyResult {
        ask(&*self.link, request, timeout)
    }
}

/// Sends a request to a node.
///
/// # Errors
/// When it does not reply, replies with nothing that makes sense, or that it cannot.
pub(crate) fn ask(link: &dyn NodeLink, call: NodeRequest, timeout: Duration) -> NodeReplyResult {
    let request = node::encode(call).map_err(|e| NodeCallError::Request(e.to_string()))?;
    let bytes = link.call(request, Some(timeout))?;
    let answer = node::decode(&bytes).map_err(|e| NodeCallError::Reply(e.to_string()))?;
    match answer {
        NodeReply::Ending => Err(NodeCallError::Ending),
        NodeReply::Failed(why) => Err(NodeCallError::Refused(why)),
        answer => Ok(answer),
    }
}
