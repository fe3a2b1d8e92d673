//! Messages about steps to the other nodes of the run: for each node a queue, and a thread while there is something in it. They go
//! by calls of the data plane, one after the other, on streams that have places of their own there.

use super::replicas::Replicas;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tarn_data_plane::{CallStream, DataClient, DataClientTimeouts};
use tarn_ports::{Control, Followers, MoverError, Watch};
use tarn_proto::local::{
    Code, MAX_STEP_PIECE, PeerTarndReply, PeerTarndRequest, StepMessage, pack, unpack,
};
use tarn_sys::private::random;
use tarn_types::id::NodeId;
use tarn_types::nodes::AttemptId;

/// How long a message is tried to be given to its node. Longer than it takes tarn to find out that a node is lost: then that is why.
const TRY_FOR: Duration = Duration::from_secs(30);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// A stream, and its thread, end when nothing was sent for so long: the other node has a thread for each.
const IDLE: Duration = Duration::from_millis(200);
/// Bytes that wait for one node; a sender of more waits.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Messages that wait for one node; a sender of more waits. More than commands of `tarn exec` may have under way.
const MAX_WAITING: usize = 1 << 16;
/// The timeouts of one try. A node that is alive gives a sign every 2 s.
const TIMEOUTS: DataClientTimeouts = DataClientTimeouts {
    connect: Duration::from_secs(5),
    stall: Duration::from_secs(10),
    busy: Duration::from_secs(5),
    crowded: Duration::from_secs(5),
    arrival: Duration::ZERO,
};

/// Hears of each attempt of which a message was not delivered: the node it was for, and why.
type OnUndelivered = Box<dyn Fn(NodeId, AttemptId, String) + Send + Sync>;

/// Sends messages for the world of this node. [`Self::end`] drops all that wait.
pub(super) struct StepSender(Arc<StepSenderState>);

struct StepSenderState {
    replicas: Arc<Replicas>,
    node: NodeId,
    /// See [`StepMessage::epoch`].
    epoch: u64,
    /// Of each attempt that is led here, the mark that its messages are for.
    marks: Mutex<BTreeMap<AttemptId, u64>>,
    queues: Mutex<BTreeMap<NodeId, Arc<StepMessageQueue>>>,
    control: Control,
    undelivered: OnceLock<OnUndelivered>,
}

#[derive(Default)]
struct StepMessageQueue {
    waiting: Mutex<QueuedStepMessages>,
    changed: Condvar,
    /// Pieces so far.
    number: AtomicU64,
}

#[derive(Default)]
struct QueuedStepMessages {
    messages: VecDeque<Message>,
    bytes: usize,
    has_thread: bool,
}

impl QueuedStepMessages {
    fn has_space(&self) -> bool {
        self.bytes < MAX_WAITING_BYTES && self.messages.len() < MAX_WAITING
    }

    fn push(&mut self, message: Message) {
        self.bytes += message.bytes.len();
        self.messages.push_back(message);
    }

    fn pop(&mut self) -> Option<Message> {
        let message = self.messages.pop_front()?;
        let bytes = message.bytes.len();
        assert!(
            bytes <= self.bytes,
            "bytes of a message that waited were not counted"
        );
        self.bytes -= bytes;
        debug_assert!(!self.messages.is_empty() || self.bytes == 0);
        Some(message)
    }

    fn take_all(&mut self) -> VecDeque<Message> {
        self.bytes = 0;
        std::mem::take(&mut self.messages)
    }
}

struct Message {
    step: AttemptId,
    after: u64,
    bytes: Vec<u8>,
}

/// Why a message was not delivered.
enum NotDelivered {
    /// Its node is lost, or this world ends: nobody needs to know of it.
    Gone,
    /// Why it cannot be.
    Failed(String),
}

/// Why one try came to nothing.
enum TryError {
    /// Another one may not.
    Again(String),
    /// It will not be taken.
    Refused(String),
}

impl From<MoverError> for TryError {
    fn from(e: MoverError) -> Self {
        Self::Again(e.to_string())
    }
}

/// Whether a try is to stop.
struct SendCancellation<'a>(&'a StepSenderState, NodeId);

impl Watch for SendCancellation<'_> {
    fn stopped(&self) -> bool {
        self.0.is_gone(self.1)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StepMessageQueue {
    /// The next message; none when none has come for a while, and then the calling thread has no place any more.
    fn next(&self) -> Option<Message> {
        let none = |w: &mut QueuedStepMessages| w.messages.is_empty();
        let waited = self
            .changed
            .wait_timeout_while(lock(&self.waiting), IDLE, none);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        let Some(message) = waiting.pop() else {
            waiting.has_thread = false;
            return None;
        };
        drop(waiting);
        self.changed.notify_all();
        Some(message)
    }

    /// Forgets all that waits; which attempts it was about.
    fn clear(&self) -> BTreeSet<AttemptId> {
        let mut waiting = lock(&self.waiting);
        let all = waiting.take_all();
        drop(waiting);
        self.changed.notify_all();
        all.into_iter().map(|m| m.step).collect()
    }
}

impl StepSender {
    /// Of this node's world.
    ///
    /// # Errors
    /// When there is no randomness.
    pub(super) fn new(replicas: Arc<Replicas>, node: NodeId) -> io::Result<Self> {
        Ok(Self(Arc::new(StepSenderState {
            replicas,
            node,
            epoch: u64::from_le_bytes(random()?),
            marks: Mutex::default(),
            queues: Mutex::default(),
            control: Control::default(),
            undelivered: OnceLock::new(),
        })))
    }

    /// Sets the receiver of failed deliveries; once, before anything is sent.
    pub(super) fn watched_by(&self, undelivered: OnUndelivered) {
        let _ = self.0.undelivered.set(undelivered);
    }

    /// An attempt is led here: its messages are for those who have had this mark.
    pub(super) fn lead(&self, step: AttemptId, mark: u64) {
        let mut marks = lock(&self.0.marks);
        // One that never began has had no end.
        marks.retain(|(instance, _), _| *instance != step.0);
        marks.insert(step, mark);
    }

    /// An attempt that was led here is over.
    pub(super) fn ended(&self, step: AttemptId) {
        lock(&self.0.marks).remove(&step);
    }

    /// The world ends: nothing is sent any more, and a waiting sender returns.
    pub(super) fn end(&self) {
        let control = &self.0.control;
        control.cancel.store(true, Ordering::Relaxed);
        for queue in lock(&self.0.queues).values() {
            queue.clear();
        }
    }
}

impl Drop for StepSender {
    fn drop(&mut self) {
        self.end();
    }
}

impl Followers for StepSender {
    fn send(&self, to: NodeId, step: AttemptId, message: Vec<u8>) -> bool {
        let inner = &self.0;
        let queue = Arc::clone(lock(&inner.queues).entry(to).or_default());
        let after = lock(&inner.marks).get(&step).copied().unwrap_or_default();
        let mut waiting = lock(&queue.waiting);
        loop {
            if inner.is_gone(to) {
                return false;
            }
            if waiting.has_space() {
                break;
            }
            let waited = queue.changed.wait_timeout(waiting, PAUSE);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        waiting.push(Message {
            step,
            after,
            bytes: message,
        });
        let has_thread = std::mem::replace(&mut waiting.has_thread, true);
        drop(waiting);
        queue.changed.notify_all();
        if has_thread {
            return true;
        }
        let thread = std::thread::Builder::new().name(format!("tarn-step-{to}"));
        let (theirs, its_queue) = (Arc::clone(inner), Arc::clone(&queue));
        if let Err(e) = thread.spawn(move || theirs.send_all(to, &its_queue)) {
            lock(&queue.waiting).has_thread = false;
            let why = format!("no thread can be started: {e}");
            inner.give_up(to, None, &queue, &why);
        }
        true
    }
}

impl StepSenderState {
    fn is_gone(&self, to: NodeId) -> bool {
        self.control.cancelled() || self.replicas.is_lost(to)
    }

    /// Sends what is in a queue until nothing more comes.
    fn send_all(&self, to: NodeId, queue: &StepMessageQueue) {
        let mut stream = None;
        while let Some(message) = queue.next() {
            let step = message.step;
            match self.deliver(to, message, queue, &mut stream) {
                Ok(()) => {}
                Err(NotDelivered::Gone) => drop(queue.clear()),
                Err(NotDelivered::Failed(why)) => self.give_up(to, Some(step), queue, &why),
            }
        }
    }

    /// Nothing in the queue is sent any more. Messages behind one that is known to have failed would wait as long in vain.
    fn give_up(&self, to: NodeId, step: Option<AttemptId>, queue: &StepMessageQueue, why: &str) {
        let mut steps = queue.clear();
        steps.extend(step);
        let (own, name) = (self.replicas.name(self.node), self.replicas.name(to));
        let why = format!("node {own} could not give node {name} a message about it: {why}");
        tracing::warn!("{why}");
        if let Some(undelivered) = self.undelivered.get() {
            for step in steps {
                undelivered(to, step, why.clone());
            }
        }
    }

    fn deliver(
        &self,
        to: NodeId,
        message: Message,
        queue: &StepMessageQueue,
        stream: &mut Option<(Arc<DataClient>, CallStream)>,
    ) -> Result<(), NotDelivered> {
        let Message { step, after, bytes } = message;
        let count = bytes.len().div_ceil(MAX_STEP_PIECE).max(1);
        for at in 0..count {
            let begin = at * MAX_STEP_PIECE;
            let end = bytes.len().min(begin + MAX_STEP_PIECE);
            let piece = StepMessage {
                from: self.node,
                epoch: self.epoch,
                number: queue.number.fetch_add(1, Ordering::Relaxed) + 1,
                after,
                step,
                first: at == 0,
                last: at + 1 == count,
                piece: bytes.get(begin..end).unwrap_or_default().to_vec(),
            };
            let call = pack(&PeerTarndRequest::Step(piece))
                .map_err(|e| NotDelivered::Failed(e.to_string()))?;
            self.deliver_piece(to, &call, stream)?;
        }
        Ok(())
    }

    /// Tries again, on new streams, until the piece is taken. A piece whose answer is lost is not taken twice.
    fn deliver_piece(
        &self,
        to: NodeId,
        call: &[u8],
        stream: &mut Option<(Arc<DataClient>, CallStream)>,
    ) -> Result<(), NotDelivered> {
        let began = Instant::now();
        loop {
            if self.is_gone(to) {
                return Err(NotDelivered::Gone);
            }
            let failed = match self.try_once(to, call, stream) {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            };
            *stream = None;
            match failed {
                TryError::Again(_) if self.is_gone(to) => return Err(NotDelivered::Gone),
                TryError::Again(_) if began.elapsed() < TRY_FOR => std::thread::sleep(PAUSE),
                TryError::Again(why) => {
                    let text = format!("{why} (tried for {} s)", TRY_FOR.as_secs());
                    return Err(NotDelivered::Failed(text));
                }
                TryError::Refused(why) => return Err(NotDelivered::Failed(why)),
            }
        }
    }

    fn try_once(
        &self,
        to: NodeId,
        call: &[u8],
        stream: &mut Option<(Arc<DataClient>, CallStream)>,
    ) -> Result<(), TryError> {
        let stop = SendCancellation(self, to);
        let (client, line) = match stream {
            Some(open) => open,
            None => {
                let client = self.replicas.message_client(to, TIMEOUTS)?;
                let line = client.line(&stop)?;
                stream.insert((client, line))
            }
        };
        let reply = client.call_on(line, call, &stop)?;
        match unpack(&reply).map_err(|e| TryError::Refused(e.to_string()))? {
            PeerTarndReply::Done => Ok(()),
            PeerTarndReply::Refused(why) if matches!(why.code, Code::Busy | Code::Lost) => {
                Err(TryError::Again(why.text))
            }
            PeerTarndReply::Refused(why) => Err(TryError::Refused(why.text)),
            _ => Err(TryError::Refused("it answered what was not asked".into())),
        }
    }
}
