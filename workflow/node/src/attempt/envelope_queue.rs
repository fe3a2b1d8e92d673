//! Messages from the nodes of other worlds that wait for the threads of an attempt.

use crate::attempt::message::{Envelope, Exec};
use crate::helper::launch::StepStopper;
use crate::storage::store::failure;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::id::NodeId;

/// Messages of one node that wait for an attempt's thread: each is a reply, or reports the one end of a helper.
const MAX_WAITING: usize = 64;
/// Messages about commands of `tarn exec` that wait: some thousand streams with a full window.
const MAX_WAITING_EXEC: usize = 1 << 16;

#[derive(Default)]
struct PendingEnvelopes {
    waiting: BTreeMap<usize, VecDeque<Envelope>>,
    /// Nodes from which nothing will come any more.
    lost: BTreeSet<usize>,
    /// Nodes that are there, with which no messages can be exchanged, and the failure that it is.
    unreachable: BTreeMap<usize, RunError>,
    all_lost: bool,
}

/// The messages for one attempt, by the position of the follower that they are from (or for).
pub(crate) struct EnvelopeQueue {
    /// The nodes of the step in order, for who leads it.
    nodes: Vec<NodeId>,
    pending: Mutex<PendingEnvelopes>,
    pub(crate) exec: ExecMessageQueue,
}

impl EnvelopeQueue {
    pub(crate) fn new(nodes: Vec<NodeId>) -> io::Result<Self> {
        Ok(Self {
            nodes,
            pending: Mutex::default(),
            exec: ExecMessageQueue::new()?,
        })
    }

    fn pending(&self) -> MutexGuard<'_, PendingEnvelopes> {
        // Nothing is left half done when a thread panics.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the follower at a position is this node.
    pub(crate) fn is_from(&self, at: usize, node: NodeId) -> bool {
        self.nodes.get(at) == Some(&node)
    }

    /// Takes a message. A node that sends more than is allowed counts as lost.
    pub(crate) fn put(&self, envelope: Envelope, stop: &StepStopper) {
        let at = envelope.at;
        let fits = match envelope.exec() {
            Ok((session, about, bytes)) => self.exec.put(ExecMessage {
                at,
                session,
                about,
                bytes,
            }),
            Err(envelope) => {
                let mut pending = self.pending();
                let waiting = pending.waiting.entry(at).or_default();
                waiting.push_back(envelope);
                waiting.len() <= MAX_WAITING
            }
        };
        if !fits {
            self.pending().lost.insert(at);
        }
        stop.wake();
    }

    /// The next message of a node.
    pub(crate) fn take(&self, at: usize) -> Option<Envelope> {
        self.pending().waiting.get_mut(&at)?.pop_front()
    }

    /// The positions of a node among those of the step.
    fn positions(&self, node: NodeId) -> impl Iterator<Item = usize> {
        let all = self.nodes.iter().enumerate();
        all.filter(move |(_, n)| **n == node).map(|(at, _)| at)
    }

    /// A node is lost.
    pub(crate) fn lose(&self, node: NodeId, stop: &StepStopper) {
        self.pending().lost.extend(self.positions(node));
        stop.wake();
    }

    /// No messages can be exchanged with a node, though it is not known as lost.
    pub(crate) fn cut_off(&self, node: NodeId, failure: &RunError, stop: &StepStopper) {
        let failures = self.positions(node).map(|at| (at, failure.clone()));
        self.pending().unreachable.extend(failures);
        stop.wake();
    }

    /// All are: this world ends.
    pub(crate) fn lose_all(&self, stop: &StepStopper) {
        self.pending().all_lost = true;
        stop.wake();
    }

    pub(crate) fn lost(&self, at: usize) -> bool {
        let pending = self.pending();
        pending.all_lost || pending.lost.contains(&at) || pending.unreachable.contains_key(&at)
    }

    /// The failure of the attempt when the follower at a position, named `name`, does not respond.
    pub(crate) fn failure(&self, at: usize, name: &str) -> RunError {
        let pending = self.pending();
        // Of a lost node everything else follows.
        let is_lost = pending.all_lost || pending.lost.contains(&at);
        let cut_off = pending.unreachable.get(&at).filter(|_| !is_lost);
        cut_off.cloned().unwrap_or_else(|| lost_failure(name))
    }
}

/// The failure of a node that does not answer any more.
fn lost_failure(name: &str) -> RunError {
    failure(
        RunErrorKind::NodeLost,
        format!("node `{name}` was lost while the step was on it; nothing of this attempt is kept"),
    )
}

/// Something about a command of `tarn exec`.
pub(crate) struct ExecMessage {
    pub(crate) at: usize,
    pub(crate) session: u32,
    pub(crate) about: Exec,
    pub(crate) bytes: Vec<u8>,
}

/// See [`ExecMessageQueue::closing`].
pub(crate) struct Closing<'a>(&'a ExecMessageQueue);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::SeqCst);
        self.0.wake();
    }
}

/// Messages that wait for the thread that relays `tarn exec`.
pub(crate) struct ExecMessageQueue {
    waiting: Mutex<VecDeque<ExecMessage>>,
    closed: AtomicBool,
    wake: OwnedFd,
}

impl ExecMessageQueue {
    fn new() -> io::Result<Self> {
        Ok(Self {
            waiting: Mutex::default(),
            closed: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    fn put(&self, message: ExecMessage) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = waiting.len() < MAX_WAITING_EXEC;
        if fits {
            waiting.push_back(message);
        }
        drop(waiting);
        self.wake();
        fits
    }

    fn wake(&self) {
        // It fails only when the counter is full, and then the reader is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// All messages that have come; a later one wakes again.
    pub(crate) fn take(&self) -> VecDeque<ExecMessage> {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *waiting)
    }

    /// Ends the thread that relays once this is dropped.
    pub(crate) fn closing(&self) -> Closing<'_> {
        Closing(self)
    }

    pub(crate) fn closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// The descriptor to poll for.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
