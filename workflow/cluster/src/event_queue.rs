//! The events for the loop: notifications of nodes, and results of the threads that send to them.

use crate::MAX_UNHEARD;
use crate::error::{NodeCallError, NodeSessionError};
use crate::file_check::FileCheckError;
use crate::link::ReachableNode;
use crate::returning::Returned;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tarn_proto::node::{self, NodeNotification};
use tarn_types::id::NodeId;
use tarn_types::nodes::AttemptId;

/// One of them. Of a session that is over, none counts.
pub(crate) enum NodeEvent {
    /// A notification; an error is why the session is over or must be.
    Notification(NodeId, u64, Result<NodeNotification, NodeSessionError>),
    /// An attempt was not handed out, and why: a file that its command names has changed or cannot be looked at.
    NotBegun(NodeId, u64, AttemptId, FileCheckError),
    /// A lost node can be reached again.
    Linked(NodeId, u64, ReachableNode),
    /// It has been made ready.
    Returned(NodeId, u64, Result<Returned, NodeCallError>),
}

#[derive(Default)]
struct NodeEventBuffer {
    node_events: VecDeque<NodeEvent>,
    /// The number of notifications of each node among them; no entry where there is none.
    unheard: BTreeMap<NodeId, usize>,
    closed: bool,
}

impl NodeEventBuffer {
    fn push(&mut self, node_event: NodeEvent) {
        if let NodeEvent::Notification(node, ..) = &node_event {
            *self.unheard.entry(*node).or_default() += 1;
        }
        self.node_events.push_back(node_event);
    }

    fn pop(&mut self) -> Option<NodeEvent> {
        let node_event = self.node_events.pop_front()?;
        if let NodeEvent::Notification(node, ..) = &node_event {
            let count = self.unheard.entry(*node).or_default();
            assert!(*count > 0, "news of a node that waited were not counted");
            *count -= 1;
            if *count == 0 {
                self.unheard.remove(node);
            }
        }
        debug_assert!(!self.node_events.is_empty() || self.unheard.is_empty());
        Some(node_event)
    }

    fn clear(&mut self) {
        self.node_events.clear();
        self.unheard.clear();
    }
}

#[derive(Default)]
struct NodeEventChannel {
    inner: Mutex<NodeEventBuffer>,
    /// There is an event.
    came: Condvar,
    /// There is space, or the loop is over.
    space: Condvar,
}

/// The events of all sessions of a run. Cheap to clone.
#[derive(Clone, Default)]
pub struct EventQueue(Arc<NodeEventChannel>);

impl EventQueue {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// The function that a session calls with each notification of its node, in order, and once with `None` when it is over.
    /// `session` counts the sessions with the node: 0 for the first, else the number that [`crate::Relink`] got. It blocks while
    /// many notifications of this node wait.
    pub fn of(
        &self,
        node: NodeId,
        session: u64,
    ) -> impl FnMut(Option<Vec<u8>>) + Send + 'static + use<> {
        let event_queue = self.clone();
        move |bytes| {
            let notification = match bytes {
                Some(bytes) => node::decode(&bytes).map_err(NodeSessionError::from),
                None => Err(NodeSessionError::Ended),
            };
            event_queue.put_notification(node, session, notification);
        }
    }

    fn lock(&self) -> MutexGuard<'_, NodeEventBuffer> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_notification(
        &self,
        node: NodeId,
        session: u64,
        notification: Result<NodeNotification, NodeSessionError>,
    ) {
        let full = |i: &mut NodeEventBuffer| {
            !i.closed
                && i.unheard
                    .get(&node)
                    .is_some_and(|count| *count >= MAX_UNHEARD)
        };
        let waited = self.0.space.wait_while(self.lock(), full);
        let mut inner = waited.unwrap_or_else(PoisonError::into_inner);
        if !inner.closed {
            inner.push(NodeEvent::Notification(node, session, notification));
            self.0.came.notify_one();
        }
    }

    /// Adds an event of a thread of this world. Whether anybody will read it.
    pub(crate) fn put(&self, node_event: NodeEvent) -> bool {
        let mut inner = self.lock();
        if inner.closed {
            return false;
        }
        inner.push(node_event);
        self.0.came.notify_one();
        true
    }

    /// The next event, if one comes in time.
    pub(crate) fn take(&self, timeout: Duration) -> Option<NodeEvent> {
        let mut inner = self.lock();
        if inner.node_events.is_empty() && !timeout.is_zero() {
            let none = |i: &mut NodeEventBuffer| i.node_events.is_empty();
            let waited = self.0.came.wait_timeout_while(inner, timeout, none);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let node_event = inner.pop()?;
        if matches!(node_event, NodeEvent::Notification(..)) {
            self.0.space.notify_all();
        }
        Some(node_event)
    }

    /// Nobody reads any more: a session that waits continues.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.clear();
        self.0.space.notify_all();
    }

    /// Waits; whether the loop is over then.
    pub(crate) fn closed_within(&self, timeout: Duration) -> bool {
        let open = |i: &mut NodeEventBuffer| !i.closed;
        let waited = self.0.space.wait_timeout_while(self.lock(), timeout, open);
        waited.unwrap_or_else(PoisonError::into_inner).0.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_chatty_node_waits_and_holds_up_nobody_else() {
        let event_queue = EventQueue::new();
        let progress = || {
            let (transfers, steps) = (Vec::new(), Vec::new());
            Some(node::encode(NodeNotification::Progress { transfers, steps }).unwrap())
        };
        let (chatty, quiet) = (NodeId(0), NodeId(1));
        let mut notify = event_queue.of(chatty, 0);
        let thread = std::thread::spawn(move || {
            for _ in 0..=MAX_UNHEARD {
                notify(progress());
            }
        });
        let full = || event_queue.lock().node_events.len() == MAX_UNHEARD;
        let since = Instant::now();
        while !full() && since.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        event_queue.of(quiet, 0)(progress());
        assert_eq!(event_queue.lock().node_events.len(), MAX_UNHEARD + 1);
        assert!(!thread.is_finished());
        assert!(event_queue.take(Duration::ZERO).is_some());
        thread.join().unwrap();
        assert_eq!(event_queue.lock().node_events.len(), MAX_UNHEARD + 1);
    }

    #[test]
    fn whoever_waits_goes_on_when_nobody_reads_any_more() {
        let event_queue = EventQueue::new();
        let mut notify = event_queue.of(NodeId(0), 0);
        (0..MAX_UNHEARD).for_each(|_| notify(None));
        let thread = std::thread::spawn(move || notify(None));
        event_queue.close();
        thread.join().unwrap();
        assert!(event_queue.closed_within(Duration::from_secs(60)));
        assert!(event_queue.take(Duration::ZERO).is_none());
    }
}
