//! Messages about steps from the other nodes of the run. Each is taken once, in the order in which its sender has sent them, and
//! not before its mark: a message on the data plane may overtake tarn's commands about the parts that it names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tarn_ports::Watch;
use tarn_proto::local::{Code, MAX_STEP_PIECE, RequestError, StepMessage};
use tarn_types::id::NodeId;
use tarn_types::nodes::AttemptId;

/// Between two looks at whether the sender is still there, while its message waits.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of a message; a manifest of ten million files fits.
const MAX_MESSAGE: usize = 1 << 30;

/// Gives a whole message to the world of this node, and waits while much waits there. False when there is no world any more.
type Deliver = dyn Fn(NodeId, AttemptId, Vec<u8>) -> bool + Send + Sync;

/// Receives calls with such messages, whether there is a world for them or not.
#[derive(Default)]
pub(super) struct StepInbox {
    state: Mutex<StepInboxState>,
    changed: Condvar,
}

impl fmt::Debug for StepInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StepInbox")
    }
}

#[derive(Default)]
struct StepInboxState {
    /// Counts the worlds that there have been.
    world: u64,
    deliver: Option<Arc<Deliver>>,
    /// The newest mark that this world has had.
    mark: u64,
    senders: BTreeMap<NodeId, SenderState>,
}

/// The messages that have come from one node.
#[derive(Default)]
struct SenderState {
    epoch: u64,
    /// The epoch before: late messages of it are not taken.
    former: Option<u64>,
    /// The last piece that was taken.
    number: u64,
    /// The message that has begun and not ended.
    partial: Option<Vec<u8>>,
    /// A message is being delivered; the next call waits.
    is_busy: bool,
}

impl SenderState {
    fn begin_epoch(&mut self, epoch: u64) {
        let former = (self.number > 0).then_some(self.epoch);
        *self = Self {
            epoch,
            former: former.or(self.former),
            ..Self::default()
        };
    }

    /// Takes a piece in; the message, if this was its last one.
    fn take(&mut self, message: StepMessage) -> Result<Option<Vec<u8>>, RequestError> {
        let invalid = |text| Err(RequestError::new(Code::Invalid, text));
        let mut bytes = match (message.first, self.partial.take()) {
            (true, _) => Vec::new(),
            (false, Some(bytes)) if message.number == self.number + 1 => bytes,
            (false, _) => return invalid("the beginning of this message has not come here"),
        };
        let long = bytes.len().saturating_add(message.piece.len()) > MAX_MESSAGE;
        if long || message.piece.len() > MAX_STEP_PIECE {
            return invalid("a message about a step is longer than allowed");
        }
        match bytes.is_empty() {
            true => bytes = message.piece,
            false => bytes.extend_from_slice(&message.piece),
        }
        if message.last {
            return Ok(Some(bytes));
        }
        self.number = message.number;
        self.partial = Some(bytes);
        Ok(None)
    }
}

impl StepInbox {
    fn state(&self) -> MutexGuard<'_, StepInboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a world from now on, until the returned value is dropped.
    pub(super) fn open(
        self: &Arc<Self>,
        deliver: impl Fn(NodeId, AttemptId, Vec<u8>) -> bool + Send + Sync + 'static,
    ) -> OpenInbox {
        let mut state = self.state();
        let world = state.world + 1;
        *state = StepInboxState {
            world,
            deliver: Some(Arc::new(deliver)),
            ..StepInboxState::default()
        };
        OpenInbox {
            inbox: Arc::clone(self),
            world,
        }
    }

    /// A node is lost: a message that it had begun to send does not end.
    pub(super) fn lost(&self, node: NodeId) {
        if let Some(sender) = self.state().senders.get_mut(&node) {
            sender.partial = None;
        }
        self.changed.notify_all();
    }

    /// Takes a piece, or waits until it may be taken.
    ///
    /// # Errors
    /// `Busy` or `Lost` when it may be sent again, with other codes when it is of no use.
    pub(super) fn receive(
        &self,
        message: StepMessage,
        is_lost: impl Fn() -> bool,
        watch: &dyn Watch,
    ) -> Result<(), RequestError> {
        let refused = |code, text| Err(RequestError::new(code, text));
        let (from, step, number) = (message.from, message.step, message.number);
        let mut state = self.state();
        let (world, deliver) = loop {
            if is_lost() {
                return refused(Code::Lost, "the run has lost the node that sends this");
            }
            if watch.stopped() {
                return refused(Code::Cancelled, "nobody waits for the answer");
            }
            let Some(deliver) = state.deliver.clone() else {
                return refused(Code::Busy, "the run is not open on this node");
            };
            let has_mark = state.mark >= message.after;
            let world = state.world;
            let sender = state.senders.entry(from).or_default();
            if sender.former == Some(message.epoch) {
                return refused(Code::Denied, "this is from before the node was lost");
            }
            if sender.epoch == message.epoch && number <= sender.number {
                return Ok(());
            }
            if has_mark && !sender.is_busy {
                break (world, deliver);
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        let sender = state.senders.entry(from).or_default();
        if sender.epoch != message.epoch {
            sender.begin_epoch(message.epoch);
        }
        let Some(bytes) = sender.take(message)? else {
            return Ok(());
        };
        sender.is_busy = true;
        drop(state);
        let delivered = deliver(from, step, bytes);
        let mut state = self.state();
        if state.world == world
            && let Some(sender) = state.senders.get_mut(&from)
        {
            sender.is_busy = false;
            if delivered {
                sender.number = number;
            }
        }
        drop(state);
        self.changed.notify_all();
        match delivered {
            true => Ok(()),
            false => refused(Code::Busy, "the run is not open on this node any more"),
        }
    }
}

/// The inbox of a world.
pub(super) struct OpenInbox {
    inbox: Arc<StepInbox>,
    world: u64,
}

impl OpenInbox {
    /// The world has had a mark, and all commands before it.
    pub(super) fn mark(&self, mark: u64) {
        let mut state = self.inbox.state();
        if state.world == self.world {
            state.mark = state.mark.max(mark);
        }
        drop(state);
        self.inbox.changed.notify_all();
    }
}

impl Drop for OpenInbox {
    fn drop(&mut self) {
        let mut state = self.inbox.state();
        if state.world == self.world {
            *state = StepInboxState {
                world: self.world,
                ..StepInboxState::default()
            };
        }
        drop(state);
        self.inbox.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Instant;
    use tarn_ports::Control;
    use tarn_types::id::{InstanceId, StepId};

    const SENDER: NodeId = NodeId(3);
    const STEP: AttemptId = (
        InstanceId {
            step: StepId(0),
            index: 0,
        },
        1,
    );

    fn piece(epoch: u64, number: u64, text: &str) -> StepMessage {
        StepMessage {
            from: SENDER,
            epoch,
            number,
            after: 0,
            step: STEP,
            first: true,
            last: true,
            piece: text.into(),
        }
    }

    fn opened() -> (Arc<StepInbox>, OpenInbox, Receiver<String>) {
        let inbox = Arc::new(StepInbox::default());
        let (sender, received) = channel();
        let open = inbox.open(move |from, step, bytes| {
            assert_eq!((from, step), (SENDER, STEP));
            sender.send(String::from_utf8(bytes).unwrap()).is_ok()
        });
        (inbox, open, received)
    }

    fn receive(inbox: &StepInbox, message: StepMessage) -> Result<(), Code> {
        let received = inbox.receive(message, || false, &Control::default());
        received.map_err(|why| why.code)
    }

    fn all(received: &Receiver<String>) -> Vec<String> {
        received.try_iter().collect()
    }

    #[test]
    fn what_is_sent_again_is_taken_once() {
        let (inbox, _open, received) = opened();
        for (number, text) in [(1, "a"), (1, "a"), (2, "b"), (1, "a"), (2, "b"), (5, "c")] {
            assert_eq!(receive(&inbox, piece(7, number, text)), Ok(()));
        }
        assert_eq!(all(&received), ["a", "b", "c"]);
        // The sender has started again; late messages of its former time are not taken.
        assert_eq!(receive(&inbox, piece(8, 1, "d")), Ok(()));
        assert_eq!(receive(&inbox, piece(7, 6, "x")), Err(Code::Denied));
        assert_eq!(receive(&inbox, piece(8, 1, "d")), Ok(()));
        assert_eq!(all(&received), ["d"]);
    }

    #[test]
    fn pieces_are_put_together_unless_one_is_missing() {
        let (inbox, _open, received) = opened();
        let part = |number, text, first, last| StepMessage {
            first,
            last,
            ..piece(7, number, text)
        };
        assert_eq!(receive(&inbox, part(1, "a", true, false)), Ok(()));
        assert_eq!(receive(&inbox, part(1, "a", true, false)), Ok(()));
        assert_eq!(receive(&inbox, part(2, "b", false, false)), Ok(()));
        assert_eq!(receive(&inbox, part(3, "c", false, true)), Ok(()));
        assert_eq!(all(&received), ["abc"]);
        // Given up in the middle; the next one is whole.
        assert_eq!(receive(&inbox, part(4, "d", true, false)), Ok(()));
        assert_eq!(receive(&inbox, part(6, "e", true, true)), Ok(()));
        assert_eq!(all(&received), ["e"]);
        let tail = part(7, "f", false, true);
        assert_eq!(receive(&inbox, tail), Err(Code::Invalid));
        let long = "x".repeat(MAX_STEP_PIECE + 1);
        assert_eq!(receive(&inbox, piece(7, 8, &long)), Err(Code::Invalid));
        assert!(all(&received).is_empty());
    }

    #[test]
    fn a_message_waits_for_its_mark_and_what_comes_after_it_too() {
        let (inbox, open, received) = opened();
        let early = StepMessage {
            after: 2,
            ..piece(7, 1, "early")
        };
        let waits = std::thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || receive(&inbox, early)
        });
        open.mark(1);
        std::thread::sleep(LOOK * 3);
        assert!(!waits.is_finished() && all(&received).is_empty());
        open.mark(2);
        assert_eq!(waits.join().unwrap(), Ok(()));
        // A message that waits for a lower mark waits no more.
        let later = StepMessage {
            after: 1,
            ..piece(7, 2, "later")
        };
        assert_eq!(receive(&inbox, later), Ok(()));
        assert_eq!(all(&received), ["early", "later"]);
    }

    #[test]
    fn who_sends_again_while_the_first_call_waits_is_not_heard_twice() {
        let (inbox, open, received) = opened();
        let message = StepMessage {
            after: 1,
            ..piece(7, 1, "once")
        };
        let calls: Vec<_> = (0..3)
            .map(|_| {
                let (inbox, message) = (Arc::clone(&inbox), message.clone());
                std::thread::spawn(move || receive(&inbox, message))
            })
            .collect();
        open.mark(1);
        for call in calls {
            assert_eq!(call.join().unwrap(), Ok(()));
        }
        assert_eq!(all(&received), ["once"]);
    }

    #[test]
    fn who_is_lost_is_not_heard_and_without_a_world_nobody_is() {
        let (inbox, open, received) = opened();
        let lost = inbox.receive(piece(7, 1, "a"), || true, &Control::default());
        assert_eq!(lost.unwrap_err().code, Code::Lost);
        let gone = Control::default();
        gone.cancel
            .store(true, std::sync::atomic::Ordering::Relaxed);
        let waits = StepMessage {
            after: 9,
            ..piece(7, 1, "b")
        };
        let began = Instant::now();
        let cancelled = inbox.receive(waits.clone(), || false, &gone);
        assert_eq!(cancelled.unwrap_err().code, Code::Cancelled);
        assert!(began.elapsed() < Duration::from_secs(30));
        let waiting = std::thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || receive(&inbox, waits)
        });
        drop(open);
        assert_eq!(waiting.join().unwrap(), Err(Code::Busy));
        assert_eq!(receive(&inbox, piece(7, 1, "c")), Err(Code::Busy));
        assert!(all(&received).is_empty());
        // A world that is gone takes nothing from the next one.
        let first = inbox.open(|_, _, _| true);
        let _second = inbox.open(|_, _, _| true);
        drop(first);
        assert_eq!(receive(&inbox, piece(7, 1, "d")), Ok(()));
    }
}
