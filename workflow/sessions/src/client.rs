//! The end that asks: `tarn run`.

use crate::frame_queue::{FrameQueue, FrameQueueError};
use crate::frames::{
    Frame, MAX_FRAME, SessionFragmentBuffer, SessionHello, SessionMessageKind, frames,
};
use crate::{
    ControlError, MAX_COMMAND_BYTES_AHEAD, MAX_COMMANDS_AHEAD, MAX_WAITING_NOTIFICATIONS, RunKeys,
    SessionTimeouts, VERSION, lock, start, write_all,
};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tarn_stream::{HandshakeOutcome, StreamEnd, Wait, connect, messages};

/// Between two attempts to open a session.
const AGAIN: Duration = Duration::from_millis(50);

/// A call that has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The node is lost, and why it is held to be.
    #[error("the node is lost: {0}")]
    Lost(String),
    /// It is there, but did not answer in time.
    #[error("the node did not answer within {0:?}")]
    Late(Duration),
}

type PendingSessionReplies = Mutex<BTreeMap<u64, SyncSender<Vec<u8>>>>;

/// Commands that were sent, and those of them that the node has handled.
#[derive(Default)]
struct SessionSendWindow {
    sent: u64,
    handled: u64,
    bytes_sent: u64,
    bytes_handled: u64,
}

impl SessionSendWindow {
    fn has_space(&self, bytes: u64) -> bool {
        assert!(
            self.handled <= self.sent && self.bytes_handled <= self.bytes_sent,
            "more commands were handled than sent"
        );
        let (messages, ahead) = (
            self.sent - self.handled,
            self.bytes_sent - self.bytes_handled,
        );
        messages == 0
            || messages < MAX_COMMANDS_AHEAD as u64 && ahead + bytes <= MAX_COMMAND_BYTES_AHEAD
    }
}

struct ClientSessionState {
    waiting: PendingSessionReplies,
    outgoing: FrameQueue,
    ahead: Mutex<SessionSendWindow>,
    /// Commands were handled, or the session is over.
    acknowledged: Condvar,
    /// Why the session is over, once it is.
    over: OnceLock<String>,
    /// Shut down then.
    socket: Arc<TcpStream>,
}

impl ClientSessionState {
    /// Ends the session: nobody waits for an answer any more.
    fn end(&self, why: String) {
        let _ = self.over.set(why);
        // Threads that read, write, or wait to write, return; the node hears of it by the end of what is sent.
        let _ = self.socket.shutdown(Shutdown::Both);
        self.outgoing.close();
        self.waiting().clear();
        // Locked in between, so that nobody who has just looked begins to wait after this.
        drop(self.ahead());
        self.acknowledged.notify_all();
    }

    fn ahead(&self) -> MutexGuard<'_, SessionSendWindow> {
        lock(&self.ahead)
    }

    /// Takes in how much the node says to have handled; false if that cannot be.
    fn note_received(&self, messages: u64, bytes: u64) -> bool {
        let mut ahead = self.ahead();
        let makes_sense = (ahead.handled..=ahead.sent).contains(&messages)
            && (ahead.bytes_handled..=ahead.bytes_sent).contains(&bytes);
        if makes_sense {
            (ahead.handled, ahead.bytes_handled) = (messages, bytes);
            self.acknowledged.notify_all();
        }
        makes_sense
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, SyncSender<Vec<u8>>>> {
        lock(&self.waiting)
    }

    fn lost(&self) -> CallError {
        let why = self.over.get().cloned();
        CallError::Lost(why.unwrap_or_else(|| "the session is over".into()))
    }
}

/// A session with one node. Calls may come from any thread; each node has its own session, so one that hangs blocks nobody
/// else.
pub struct NodeSession {
    shared: Arc<ClientSessionState>,
    /// Held while a command is queued: commands keep their order.
    commanding: Mutex<()>,
    next: AtomicU64,
    about: Vec<u8>,
}

impl NodeSession {
    /// Opens a session. `notify` is called for what the node says unasked, and once with `None` when the session is over; on a
    /// thread of its own, in order.
    ///
    /// # Errors
    /// When nobody answers, the other end has another key, or refuses.
    pub fn open(
        address: SocketAddr,
        keys: &RunKeys,
        timeouts: SessionTimeouts,
        run: &str,
        node: &str,
        mut notify: impl FnMut(Option<Vec<u8>>) + Send + 'static,
    ) -> Result<Self, ControlError> {
        let hello = SessionHello {
            lowest: VERSION,
            highest: VERSION,
            run: run.into(),
            node: node.into(),
        };
        let opened = open(address, keys, timeouts, &hello).map_err(|failed| {
            let address = address.to_string();
            match failed {
                Failed::Refused(why) => ControlError::Refused { address, why },
                Failed::Unreachable(why) | Failed::Cut(why) => {
                    ControlError::Unreachable { address, why }
                }
            }
        });
        let EstablishedSession {
            incoming,
            outgoing,
            about,
        } = opened?;
        let shared = Arc::new(ClientSessionState {
            waiting: Mutex::default(),
            outgoing: FrameQueue::default(),
            ahead: Mutex::default(),
            acknowledged: Condvar::new(),
            over: OnceLock::new(),
            socket: Arc::clone(incoming.socket()),
        });
        let (notifications, queued) = sync_channel(MAX_WAITING_NOTIFICATIONS);
        start("tarn-news", move || {
            for notification in queued {
                notify(Some(notification));
            }
            notify(None);
        })?;
        let (writer, reader) = (Arc::clone(&shared), Arc::clone(&shared));
        start("tarn-says", move || {
            let next = |timeout| writer.outgoing.take(timeout);
            let written = write_all(outgoing, next, timeouts.heartbeat);
            let is_full =
                |e: &io::Error| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            if written.is_err_and(|e| is_full(&e)) {
                let time = timeouts.full().as_secs_f64();
                writer.end(format!("it took nothing for {time} s: its tarnd hangs"));
            }
            writer.outgoing.close();
            let _ = writer.socket.shutdown(Shutdown::Both);
        })?;
        start("tarn-hears", move || {
            let why = receive(incoming, &reader, &notifications, timeouts);
            reader.end(why);
            // A receiver of the end can ask for its reason.
            drop(notifications);
        })?;
        Ok(Self {
            shared,
            commanding: Mutex::default(),
            next: AtomicU64::new(1),
            about,
        })
    }

    /// The node's description of itself, sent at the start.
    pub fn about(&self) -> &[u8] {
        &self.about
    }

    /// Asks, and waits for the answer: at most the time given, or as long as the node lives. The time that the request waits to be
    /// sent counts.
    ///
    /// # Errors
    /// When the node is lost or late. A late answer is thrown away.
    pub fn call(&self, request: Vec<u8>, timeout: Option<Duration>) -> Result<Vec<u8>, CallError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let answer = self.expect_reply(number)?;
        let request = frames(SessionMessageKind::Request, number, request);
        let got = match (self.shared.outgoing.put(request, deadline), deadline) {
            (Err(FrameQueueError::Late), _) => Err(RecvTimeoutError::Timeout),
            (Err(FrameQueueError::Closed), _) => Err(RecvTimeoutError::Disconnected),
            (Ok(()), None) => answer.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (Ok(()), Some(deadline)) => {
                answer.recv_timeout(deadline.saturating_duration_since(Instant::now()))
            }
        };
        got.map_err(|e| {
            self.shared.waiting().remove(&number);
            match (e, timeout) {
                (RecvTimeoutError::Timeout, Some(timeout)) => CallError::Late(timeout),
                _ => self.shared.lost(),
            }
        })
    }

    /// Where the reply to a request of this number arrives.
    fn expect_reply(&self, number: u64) -> Result<Receiver<Vec<u8>>, CallError> {
        let (sender, answer) = sync_channel(1);
        self.shared.waiting().insert(number, sender);
        // The thread that ends the session clears the list after the end is known: no call waits in it for ever.
        if self.shared.over.get().is_some() {
            self.shared.waiting().remove(&number);
            return Err(self.shared.lost());
        }
        Ok(answer)
    }

    /// Sends a command, which has no reply; commands are handled in the order in which they are sent. Waits only while the node has
    /// not yet handled much of what was sent before.
    ///
    /// # Errors
    /// When the node is lost.
    pub fn send_command(&self, command: Vec<u8>) -> Result<(), CallError> {
        let _in_order = lock(&self.commanding);
        let bytes = command.len() as u64;
        let full = |ahead: &mut SessionSendWindow| self.over().is_none() && !ahead.has_space(bytes);
        let waited = self
            .shared
            .acknowledged
            .wait_while(self.shared.ahead(), full);
        let number = {
            let mut ahead = waited.unwrap_or_else(PoisonError::into_inner);
            ahead.sent += 1;
            ahead.bytes_sent += bytes;
            ahead.sent
        };
        if self.over().is_some() {
            return Err(self.shared.lost());
        }
        let command = frames(SessionMessageKind::Command, number, command);
        let sent = self.shared.outgoing.put(command, None);
        sent.map_err(|_| self.shared.lost())
    }

    /// Ends the session: whoever waits in it gets an error. Does not wait.
    pub fn end(&self) {
        self.shared.end("it was closed by this end".into());
    }

    /// Why the session is over, if it is.
    pub fn over(&self) -> Option<&str> {
        self.shared.over.get().map(String::as_str)
    }
}

impl Drop for NodeSession {
    fn drop(&mut self) {
        self.end();
    }
}

enum Failed {
    /// It will not be otherwise the next time.
    Unreachable(String),
    /// The connection ended before a word was said; strangers may have crowded it out.
    Cut(String),
    Refused(String),
}

/// A session that has begun.
struct EstablishedSession {
    incoming: tarn_stream::Receiver,
    outgoing: tarn_stream::Sender,
    about: Vec<u8>,
}

/// Tries to connect until somebody answers.
fn open(
    address: SocketAddr,
    keys: &RunKeys,
    timeouts: SessionTimeouts,
    hello: &SessionHello,
) -> Result<EstablishedSession, Failed> {
    let until = Instant::now() + timeouts.connect;
    loop {
        let why = match try_open(address, keys, timeouts, hello) {
            Err(Failed::Cut(why)) => why,
            other => return other,
        };
        if Instant::now() + AGAIN >= until {
            let tried = timeouts.connect;
            return Err(Failed::Cut(format!("{why}; it was tried for {tried:?}")));
        }
        std::thread::sleep(AGAIN);
    }
}

/// The meaning of an error in opening a connection.
fn not_opened(error: &io::Error) -> Failed {
    match error.kind() {
        ErrorKind::ConnectionRefused => Failed::Unreachable(
            "nobody listens there: its tarnd has ended (connection refused)".into(),
        ),
        ErrorKind::InvalidData => Failed::Unreachable(format!("it is not of this run: {error}")),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            Failed::Cut("no connection comes about".into())
        }
        _ => Failed::Cut(format!("it closes the connection ({error})")),
    }
}

fn try_open(
    address: SocketAddr,
    keys: &RunKeys,
    timeouts: SessionTimeouts,
    hello: &SessionHello,
) -> Result<EstablishedSession, Failed> {
    let socket = TcpStream::connect_timeout(&address, timeouts.connect);
    let socket = socket.map_err(|e| not_opened(&e))?;
    let failed = |e: io::Error| not_opened(&e);
    socket.set_nodelay(true).map_err(failed)?;
    let write = socket.set_write_timeout(Some(timeouts.full()));
    write.map_err(failed)?;
    let begun = connect(&socket, true, keys.run(), &keys.key()).map_err(failed)?;
    let session = match begun {
        HandshakeOutcome::Ready(session) => session,
        HandshakeOutcome::Busy => return Err(Failed::Cut("it has too many sessions".into())),
        HandshakeOutcome::NoVersion => {
            let why = "it is of another release of tarn: use the same one on all nodes";
            return Err(Failed::Unreachable(why.into()));
        }
    };
    let Some(keys) = session.keys else {
        return Err(Failed::Unreachable("it does not seal its stream".into()));
    };
    let (mut incoming, mut outgoing) =
        messages(socket, &keys, StreamEnd::Client).map_err(failed)?;
    let sent = outgoing.send(&[&Frame::Hello(hello.clone()).encode()]);
    sent.map_err(failed)?;
    loop {
        let first = incoming.receive(MAX_FRAME, Wait::Silence(timeouts.connect));
        match Frame::decode(&first.map_err(failed)?) {
            Some(Frame::Heartbeat) => {}
            Some(Frame::Welcome(_, about)) => {
                return Ok(EstablishedSession {
                    incoming,
                    outgoing,
                    about,
                });
            }
            Some(Frame::Refused(why)) => return Err(Failed::Refused(why)),
            // It ends in this moment.
            Some(Frame::Piece(SessionMessageKind::Notification, _)) => {
                return Err(Failed::Cut("its tarnd ends".into()));
            }
            _ => {
                let why = "it sent another message than its name";
                return Err(Failed::Unreachable(why.into()));
            }
        }
    }
}

/// Hands out what comes, until nothing comes any more; why that is so.
fn receive(
    mut incoming: tarn_stream::Receiver,
    shared: &ClientSessionState,
    notifications: &SyncSender<Vec<u8>>,
    timeouts: SessionTimeouts,
) -> String {
    let (mut reply_fragments, mut notification_fragments) = (
        SessionFragmentBuffer::default(),
        SessionFragmentBuffer::default(),
    );
    let mut received = Instant::now();
    loop {
        let frame = match incoming.receive(MAX_FRAME, Wait::Silence(timeouts.lost)) {
            Ok(bytes) => Frame::decode(&bytes),
            Err(e) => return cut(&e, received.elapsed(), timeouts.lost),
        };
        received = Instant::now();
        match frame {
            Some(Frame::Heartbeat) => {}
            Some(Frame::Acknowledged { messages, bytes }) => {
                if !shared.note_received(messages, bytes) {
                    return "it acknowledges messages that were never sent".into();
                }
            }
            Some(Frame::End(why)) => return why,
            Some(Frame::Piece(SessionMessageKind::Reply, piece)) => {
                let number = piece.number;
                match reply_fragments.take(piece) {
                    Ok(None) => {}
                    Ok(Some(answer)) => {
                        // Nobody waits for an answer that came too late.
                        if let Some(waiting) = shared.waiting().remove(&number) {
                            let _ = waiting.try_send(answer);
                        }
                    }
                    Err(why) => return why.to_string(),
                }
            }
            Some(Frame::Piece(SessionMessageKind::Notification, piece)) => {
                match notification_fragments.take(piece) {
                    Ok(None) => {}
                    Ok(Some(notification)) => {
                        if notifications.try_send(notification).is_err() {
                            return format!(
                                "{MAX_WAITING_NOTIFICATIONS} messages of it wait to be read"
                            );
                        }
                    }
                    Err(why) => return why.to_string(),
                }
            }
            _ => return "it sent a message that is not valid here".into(),
        }
    }
}

/// The reason of a session's end by an error, after so long without a message. If the two ends cannot reach each other, the other one
/// may have been first to give up and to close.
fn cut(error: &io::Error, silent: Duration, lost: Duration) -> String {
    match error.kind() {
        ErrorKind::InvalidData => format!("it sent what is no message ({error})"),
        ErrorKind::TimedOut => silence(lost),
        _ if silent > lost / 2 => silence(silent),
        _ => "its tarnd has died, or the node has (connection closed)".into(),
    }
}

fn silence(time: Duration) -> String {
    format!(
        "nothing came from it for {:.0} s: the node or its network is down, or its tarnd hangs",
        time.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NotificationSender, SessionHandler, SessionOpenError, SessionServer, Talk};

    struct Nobody;

    impl SessionHandler for Nobody {
        fn opened(
            &self,
            _: &str,
            _: &str,
            _: NotificationSender,
        ) -> Result<(Vec<u8>, Box<dyn Talk>), SessionOpenError> {
            panic!("it was opened")
        }
    }

    #[test]
    fn a_caller_of_another_version_is_refused_with_both_versions() {
        let keys = RunKeys::new().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = SessionServer::start(
            listener,
            &keys,
            SessionTimeouts::default(),
            Arc::new(Nobody),
        );
        let server = server.unwrap();
        let hello = SessionHello {
            lowest: VERSION + 1,
            highest: VERSION + 4,
            run: "r".into(),
            node: "n".into(),
        };
        match try_open(server.address(), &keys, SessionTimeouts::default(), &hello) {
            Err(Failed::Refused(why)) => {
                assert!(why.contains("version 2") && why.contains("3 to 6"), "{why}")
            }
            _ => panic!("it was not refused"),
        }
    }
}
