//! A session that has begun, at the end that answers.

use crate::frames::{Frame, MAX_FRAME, SessionFragmentBuffer, SessionMessageKind, frames};
use crate::{CALLS_AT_ONCE, TOLD_AHEAD, Talk, lock, start};
use std::net::{Shutdown, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tarn_stream::Wait;

/// What ends a session from elsewhere, and how many calls are being answered.
pub(crate) struct SessionCloser {
    socket: Arc<TcpStream>,
    state: Mutex<SessionCallState>,
    changed: Condvar,
}

#[derive(Default)]
struct SessionCallState {
    calls: usize,
    /// Nothing is read or heard any more; and why, if this end wanted it so.
    over: Option<Option<&'static str>>,
}

impl SessionCloser {
    pub(crate) fn new(socket: Arc<TcpStream>) -> Self {
        Self {
            socket,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Ends it. The client hears why.
    pub(crate) fn end(&self, why: &'static str) {
        self.over(Some(why));
    }

    fn over(&self, why: Option<&'static str>) {
        lock(&self.state).over.get_or_insert(why);
        self.changed.notify_all();
        // The reading thread returns.
        let _ = self.socket.shutdown(Shutdown::Read);
    }

    fn is_over(&self) -> bool {
        lock(&self.state).over.is_some()
    }

    /// Waits until another call may be answered; false if the session is over.
    fn begin_call(&self) -> bool {
        let full =
            |state: &mut SessionCallState| state.over.is_none() && state.calls >= CALLS_AT_ONCE;
        let waited = self.changed.wait_while(lock(&self.state), full);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.calls += 1;
        state.over.is_none()
    }

    fn end_call(&self) {
        let mut state = lock(&self.state);
        assert!(state.calls > 0, "a call ends that has not begun");
        state.calls -= 1;
        self.changed.notify_all();
    }
}

/// Who talks, and a mark of being there.
struct SessionServiceGuard {
    talk: Box<dyn Talk>,
    /// Dropped after `talk`.
    _there: Sender<()>,
}

/// One session.
pub(crate) struct ServedSession {
    present: Arc<SessionServiceGuard>,
    said: SyncSender<Frame>,
    ending: Arc<SessionCloser>,
}

impl ServedSession {
    pub(crate) fn new(
        talk: Box<dyn Talk>,
        there: Sender<()>,
        said: SyncSender<Frame>,
        ending: Arc<SessionCloser>,
    ) -> Self {
        Self {
            present: Arc::new(SessionServiceGuard {
                talk,
                _there: there,
            }),
            said,
            ending,
        }
    }

    fn shared(&self) -> Self {
        Self {
            present: Arc::clone(&self.present),
            said: self.said.clone(),
            ending: Arc::clone(&self.ending),
        }
    }

    /// Hears and answers until the session is over.
    pub(crate) fn run(self, mut incoming: tarn_stream::Receiver, lost: Duration) {
        let (telling, told) = sync_channel(TOLD_AHEAD);
        let hearing = self.shared();
        if start("tarn-told", move || hearing.hear(&told)).is_ok() {
            self.read(&mut incoming, &telling, lost);
        }
        self.ending.over(None);
        let why = lock(&self.ending.state).over.flatten();
        let goodbye = why.map(|why| self.said.try_send(Frame::End(why.into())));
        if !matches!(goodbye, Some(Ok(()))) {
            let _ = incoming.socket().shutdown(Shutdown::Both);
        }
    }

    /// Reads until nothing comes, or what no client says.
    fn read(
        &self,
        incoming: &mut tarn_stream::Receiver,
        telling: &SyncSender<Vec<u8>>,
        lost: Duration,
    ) {
        let (mut requests, mut said) = (
            SessionFragmentBuffer::default(),
            SessionFragmentBuffer::default(),
        );
        while let Ok(bytes) = incoming.receive(MAX_FRAME, Wait::Silence(lost)) {
            match Frame::decode(&bytes) {
                Some(Frame::Heartbeat) => {}
                Some(Frame::Piece(SessionMessageKind::Told, piece)) => match said.take(piece) {
                    Ok(None) => {}
                    Ok(Some(whole)) => {
                        // A client that does not wait to be heard is none.
                        if telling.try_send(whole).is_err() {
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
                    let is_taken = self.ending.begin_call();
                    let call = SessionCallGuard(self.shared());
                    if !is_taken
                        || start("tarn-call", move || call.answer(number, request)).is_err()
                    {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    /// Takes what is told.
    fn hear(self, told: &Receiver<Vec<u8>>) {
        let (mut messages, mut bytes) = (0, 0);
        for said in told {
            // What was told before the end and not heard is not heard any more.
            if self.ending.is_over() {
                return;
            }
            messages += 1;
            bytes += said.len() as u64;
            if catch_unwind(AssertUnwindSafe(|| self.present.talk.handle_command(said))).is_err() {
                return self.ending.end("its tarnd failed at what it was told");
            }
            if self.said.send(Frame::Heard { messages, bytes }).is_err() {
                return;
            }
        }
    }
}

/// A request being answered: one of those at once, until it is dropped.
struct SessionCallGuard(ServedSession);

impl SessionCallGuard {
    fn answer(self, number: u64, request: Vec<u8>) {
        let talk = &self.0.present.talk;
        match catch_unwind(AssertUnwindSafe(|| talk.call(request))) {
            // Nobody need hear it any more.
            Ok(answer) => {
                let _ = frames(SessionMessageKind::Answer, number, answer)
                    .all(|f| self.0.said.send(f).is_ok());
            }
            Err(_) => self.0.ending.end("its tarnd failed at a request"),
        }
    }
}

impl Drop for SessionCallGuard {
    fn drop(&mut self) {
        self.0.ending.end_call();
    }
}
