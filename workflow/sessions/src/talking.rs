//! A session that has begun, at the end that answers.

use crate::frames::{Frame, MAX_FRAME, SessionFragmentBuffer, SessionMessageKind, frames};
use crate::{CALLS_AT_ONCE, MAX_COMMANDS_AHEAD, MAX_MESSAGE, MAX_WAITING_CALLS, Talk, lock, start};
use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tarn_stream::Wait;

/// Ends a session and its calls from another thread.
pub(crate) struct SessionCloser {
    socket: Arc<TcpStream>,
    state: Mutex<SessionCallState>,
}

/// A request, by its number.
type NumberedRequest = (u64, Vec<u8>);

#[derive(Default)]
struct SessionCallState {
    /// Calls that are being answered, each by a thread; at most [`CALLS_AT_ONCE`].
    calls: usize,
    /// Requests that wait for such a thread, in the order in which they came. None waits while one more could be answered.
    waiting: VecDeque<NumberedRequest>,
    waiting_bytes: usize,
    /// Nothing is read or heard any more; and why, if this end wanted it so.
    over: Option<Option<&'static str>>,
}

impl SessionCallState {
    fn check(&self) {
        debug_assert!(
            self.calls <= CALLS_AT_ONCE,
            "too many calls are answered at once"
        );
        debug_assert!(self.waiting.is_empty() || self.calls == CALLS_AT_ONCE);
        debug_assert_eq!(
            self.waiting_bytes,
            self.waiting.iter().map(|(_, r)| r.len()).sum::<usize>(),
            "bytes of requests that wait"
        );
    }
}

/// The handling of a request that has arrived.
#[derive(Debug, PartialEq, Eq)]
enum CallAdmission {
    /// It is answered now, by a thread that begins with it.
    Begins(NumberedRequest),
    /// A thread that answers another one takes it next.
    Waits,
    /// The client asks too much at once.
    TooMany,
    /// Nobody is answered any more.
    Over,
}

impl SessionCloser {
    pub(crate) fn new(socket: Arc<TcpStream>) -> Self {
        Self {
            socket,
            state: Mutex::default(),
        }
    }

    /// Ends it. The client hears why.
    pub(crate) fn end(&self, why: &'static str) {
        self.over(Some(why));
    }

    fn over(&self, why: Option<&'static str>) {
        let mut state = lock(&self.state);
        state.over.get_or_insert(why);
        state.waiting.clear();
        state.waiting_bytes = 0;
        drop(state);
        // The reading thread returns.
        let _ = self.socket.shutdown(Shutdown::Read);
    }

    fn is_over(&self) -> bool {
        lock(&self.state).over.is_some()
    }

    /// Never waits: the thread that reads requests hears heartbeats and commands too.
    fn admit_call(&self, (number, request): NumberedRequest) -> CallAdmission {
        let mut state = lock(&self.state);
        if state.over.is_some() {
            return CallAdmission::Over;
        }
        if state.calls < CALLS_AT_ONCE {
            state.calls += 1;
            state.check();
            return CallAdmission::Begins((number, request));
        }
        let bytes = state.waiting_bytes + request.len();
        if state.waiting.len() >= MAX_WAITING_CALLS || bytes > MAX_MESSAGE {
            return CallAdmission::TooMany;
        }
        state.waiting_bytes = bytes;
        state.waiting.push_back((number, request));
        state.check();
        CallAdmission::Waits
    }

    /// A call has been answered: the next one for its thread, which ends if there is none.
    fn end_call(&self) -> Option<NumberedRequest> {
        let mut state = lock(&self.state);
        assert!(state.calls > 0, "a call ends that has not begun");
        let next = state.waiting.pop_front();
        match &next {
            Some((_, request)) => state.waiting_bytes -= request.len(),
            None => state.calls -= 1,
        }
        state.check();
        next
    }
}

/// The handler of a session, counted while it lives.
struct SessionServiceGuard {
    talk: Box<dyn Talk>,
    /// Dropped after `talk`.
    _there: Sender<()>,
}

/// One session.
pub(crate) struct ServedSession {
    present: Arc<SessionServiceGuard>,
    outgoing: SyncSender<Frame>,
    ending: Arc<SessionCloser>,
}

impl ServedSession {
    pub(crate) fn new(
        talk: Box<dyn Talk>,
        there: Sender<()>,
        outgoing: SyncSender<Frame>,
        ending: Arc<SessionCloser>,
    ) -> Self {
        Self {
            present: Arc::new(SessionServiceGuard {
                talk,
                _there: there,
            }),
            outgoing,
            ending,
        }
    }

    fn shared(&self) -> Self {
        Self {
            present: Arc::clone(&self.present),
            outgoing: self.outgoing.clone(),
            ending: Arc::clone(&self.ending),
        }
    }

    /// Handles commands and answers requests until the session is over.
    pub(crate) fn run(self, mut incoming: tarn_stream::Receiver, lost: Duration) {
        let (commands, queued) = sync_channel(MAX_COMMANDS_AHEAD);
        let handler = self.shared();
        if start("tarn-told", move || handler.handle_commands(&queued)).is_ok() {
            self.read(&mut incoming, &commands, lost);
        }
        self.ending.over(None);
        let why = lock(&self.ending.state).over.flatten();
        let goodbye = why.map(|why| self.outgoing.try_send(Frame::End(why.into())));
        if !matches!(goodbye, Some(Ok(()))) {
            let _ = incoming.socket().shutdown(Shutdown::Both);
        }
    }

    /// Reads until nothing comes, or what no client says.
    fn read(
        &self,
        incoming: &mut tarn_stream::Receiver,
        commands: &SyncSender<Vec<u8>>,
        lost: Duration,
    ) {
        let (mut requests, mut partial) = (
            SessionFragmentBuffer::default(),
            SessionFragmentBuffer::default(),
        );
        while let Ok(bytes) = incoming.receive(MAX_FRAME, Wait::Silence(lost)) {
            match Frame::decode(&bytes) {
                Some(Frame::Heartbeat) => {}
                Some(Frame::Piece(SessionMessageKind::Command, piece)) => match partial.take(piece)
                {
                    Ok(None) => {}
                    Ok(Some(whole)) => {
                        // A client that does not wait to be heard is none.
                        if commands.try_send(whole).is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                },
                Some(Frame::Piece(SessionMessageKind::Request, piece)) => {
                    let number = piece.number;
                    let request = match requests.take(piece) {
                        Ok(None) => continue,
                        Ok(Some(request)) => request,
                        Err(_) => return,
                    };
                    if !self.take_request((number, request)) {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    /// Has a request answered. False if the session is to end.
    fn take_request(&self, request: NumberedRequest) -> bool {
        match self.ending.admit_call(request) {
            CallAdmission::Begins(request) => {
                let answering = self.shared();
                start("tarn-call", move || answering.answer_calls(request)).is_ok()
            }
            CallAdmission::Waits => true,
            CallAdmission::TooMany => {
                self.ending.end("too many requests wait for an answer");
                false
            }
            CallAdmission::Over => false,
        }
    }

    /// Answers a request, and after it others that wait.
    fn answer_calls(self, request: NumberedRequest) {
        let mut next = Some(request);
        while let Some((number, request)) = next {
            self.answer(number, request);
            next = self.ending.end_call();
        }
    }

    fn answer(&self, number: u64, request: Vec<u8>) {
        let talk = &self.present.talk;
        match catch_unwind(AssertUnwindSafe(|| talk.call(request))) {
            // Nobody need hear it any more.
            Ok(answer) => {
                let _ = frames(SessionMessageKind::Reply, number, answer)
                    .all(|f| self.outgoing.send(f).is_ok());
            }
            Err(_) => self.ending.end("its tarnd failed at a request"),
        }
    }

    /// Handles commands one after the other.
    fn handle_commands(self, queued: &Receiver<Vec<u8>>) {
        let (mut messages, mut bytes) = (0, 0);
        for command in queued {
            // Commands that wait at the end are dropped.
            if self.ending.is_over() {
                return;
            }
            messages += 1;
            bytes += command.len() as u64;
            if catch_unwind(AssertUnwindSafe(|| {
                self.present.talk.handle_command(command)
            }))
            .is_err()
            {
                return self.ending.end("its tarnd failed at what it was told");
            }
            if self
                .outgoing
                .send(Frame::Acknowledged { messages, bytes })
                .is_err()
            {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn closer() -> SessionCloser {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        SessionCloser::new(Arc::new(socket))
    }

    fn request(number: usize) -> NumberedRequest {
        (number as u64, vec![1; 8])
    }

    #[test]
    fn calls_beyond_those_answered_at_once_wait_their_turn_up_to_a_bound() {
        let closer = closer();
        for n in 0..CALLS_AT_ONCE {
            let admitted = closer.admit_call(request(n));
            assert_eq!(admitted, CallAdmission::Begins(request(n)));
        }
        for n in 0..MAX_WAITING_CALLS {
            let admitted = closer.admit_call(request(CALLS_AT_ONCE + n));
            assert_eq!(admitted, CallAdmission::Waits);
        }
        assert_eq!(closer.admit_call(request(0)), CallAdmission::TooMany);
        for n in 0..MAX_WAITING_CALLS {
            assert_eq!(closer.end_call(), Some(request(CALLS_AT_ONCE + n)));
        }
        for _ in 0..CALLS_AT_ONCE {
            assert_eq!(closer.end_call(), None);
        }
        assert_eq!(lock(&closer.state).calls, 0);
    }

    #[test]
    fn requests_that_wait_at_the_end_of_a_session_are_not_answered() {
        let closer = closer();
        for n in 0..=CALLS_AT_ONCE {
            closer.admit_call(request(n));
        }
        closer.end("enough");
        assert_eq!(closer.end_call(), None);
        assert_eq!(closer.admit_call(request(0)), CallAdmission::Over);
    }
}
