//! The end that answers: tarnd. One thread accepts, each connection has one.

use crate::frames::{Frame, MAX_FRAME, SessionHello, SessionMessageKind, frames};
use crate::talking::{ServedSession, SessionCloser};
use crate::{ControlError, QUEUE, RunKeys, SessionTimeouts, VERSION, lock, start, write_all};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tarn_stream::hello::Verdict;
use tarn_stream::{PendingConnection, PendingConnections, StreamEnd, Wait, accept, messages};

/// Sessions at once: the run's, and one that takes its place.
const SESSIONS: usize = 8;
/// Connections at one time that have not proven who they are, of all addresses and of one.
const PENDING: usize = 64;
/// A pause after accepting has failed, such as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A session is refused, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SessionOpenError(pub String);

/// The owner of a server's sessions.
pub trait SessionHandler: Send + Sync + 'static {
    /// A client of this run has come and calls this node `node`: what it is told of the node at once, and who talks with it.
    /// `notifications` reaches it until it goes. A session that it takes the place of is over only after this, and before anything is
    /// said to the new one.
    ///
    /// # Errors
    /// Why it is refused; a session that there is already goes on.
    fn opened(
        &self,
        run: &str,
        node: &str,
        notifications: NotificationSender,
    ) -> Result<(Vec<u8>, Box<dyn Talk>), SessionOpenError>;
}

/// One session. Dropped when it is over: the client has gone, has not been heard of for too long, or another session has taken its
/// place; and no call is being answered any more. One that panics ends its session.
pub trait Talk: Send + Sync + 'static {
    /// Answers a request. May block; up to 256 are answered at once, and more wait their turn.
    fn call(&self, request: Vec<u8>) -> Vec<u8>;

    /// Handles commands of the client, one after the other, in order. May block: that holds up only those who send commands.
    fn handle_command(&self, command: Vec<u8>);
}

/// Sends notifications: what happened, without having been asked.
#[derive(Clone)]
pub struct NotificationSender {
    outgoing: SyncSender<Frame>,
    /// The number of the next: pieces of two that are sent at once are kept apart by it.
    next: Arc<AtomicU64>,
}

impl NotificationSender {
    /// Sends; blocks while the client is slower than what happens. False if it has gone.
    pub fn send(&self, content: Vec<u8>) -> bool {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        frames(SessionMessageKind::Notification, number, content)
            .all(|f| self.outgoing.send(f).is_ok())
    }
}

/// A server of sessions; ends when it is dropped.
pub struct SessionServer {
    address: SocketAddr,
    shared: Arc<SessionServerContext>,
    wake: Option<PipeWriter>,
    acceptor: Option<JoinHandle<()>>,
}

impl SessionServer {
    /// Begins to answer on a listener to those who have the key.
    ///
    /// # Errors
    /// When the listener cannot be used, or no thread be started.
    pub fn start(
        listener: TcpListener,
        keys: &RunKeys,
        timeouts: SessionTimeouts,
        handler: Arc<dyn SessionHandler>,
    ) -> Result<Self, ControlError> {
        let system = |source| ControlError::System {
            what: "cannot listen",
            source,
        };
        listener.set_nonblocking(true).map_err(system)?;
        let address = listener.local_addr().map_err(system)?;
        let (wakened, wake) = io::pipe().map_err(system)?;
        let shared = Arc::new(SessionServerContext {
            handler,
            keys: keys.clone(),
            timeouts,
            stop: AtomicBool::new(false),
            pending: PendingConnections::new(PENDING, PENDING),
            seats: Mutex::default(),
            current: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("tarn-sessions".into());
        let acceptor = thread
            .spawn(move || accept_all(&listener, &wakened, &theirs))
            .map_err(system)?;
        Ok(Self {
            address,
            shared,
            wake: Some(wake),
            acceptor: Some(acceptor),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for SessionServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        drop(self.wake.take());
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        // A handler that blocks does not hold up the end.
        for socket in lock(&self.shared.seats).taken.values() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

struct SessionServerContext {
    handler: Arc<dyn SessionHandler>,
    keys: RunKeys,
    timeouts: SessionTimeouts,
    stop: AtomicBool,
    pending: PendingConnections,
    seats: Mutex<Seats>,
    current: Mutex<Option<Current>>,
}

/// Those that have proven that they are of the run.
#[derive(Default)]
struct Seats {
    next: u64,
    taken: BTreeMap<u64, TcpStream>,
}

/// One of them, given back at the end.
struct SessionPermit<'a>(&'a SessionServerContext, u64);

impl Drop for SessionPermit<'_> {
    fn drop(&mut self) {
        lock(&self.0.seats).taken.remove(&self.1);
    }
}

/// The session that there is.
struct Current {
    ending: Arc<SessionCloser>,
    /// Closed when nothing of it is left.
    gone: Receiver<()>,
}

fn accept_all(listener: &TcpListener, wakened: &PipeReader, shared: &Arc<SessionServerContext>) {
    while !shared.stop.load(Ordering::Relaxed) {
        let mut waiting = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(wakened, PollFlags::IN),
        ];
        let accepted = poll(&mut waiting, None).map_err(io::Error::from);
        let accepted = accepted.and_then(|_| listener.accept());
        let begun = accepted.and_then(|(socket, from)| {
            let (place, _) = shared.pending.admit(&socket, from)?;
            let theirs = Arc::clone(shared);
            start("tarn-session", move || {
                // A client that goes away is its own affair.
                let _ = serve(socket, place, &theirs);
            })
            .map_err(io::Error::other)
        });
        match begun {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            _ => {}
        }
    }
}

/// A connection from its handshake to its end.
fn serve(
    socket: TcpStream,
    place: PendingConnection,
    shared: &SessionServerContext,
) -> io::Result<()> {
    let SessionTimeouts { lost, connect, .. } = shared.timeouts;
    // Accepted sockets may inherit it.
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(shared.timeouts.full()))?;
    let mut seat = None;
    let closer = socket.try_clone()?;
    let admit = || {
        let mut seats = lock(&shared.seats);
        if seats.taken.len() >= SESSIONS || shared.stop.load(Ordering::Relaxed) {
            return Verdict::Busy;
        }
        seats.next += 1;
        let number = seats.next;
        seats.taken.insert(number, closer);
        seat = Some(SessionPermit(shared, number));
        Verdict::Ready
    };
    let key_of = |run: &_| (*run == shared.keys.run()).then(|| shared.keys.key());
    let Some((_, session)) = accept(&socket, true, key_of, admit)? else {
        return Ok(());
    };
    // It has proven who it is.
    drop(place);
    let keys = session.keys.ok_or(io::ErrorKind::InvalidData)?;
    let (mut incoming, outgoing) = messages(socket, &keys, StreamEnd::Server)?;
    let first = incoming.receive(MAX_FRAME, Wait::Whole(connect))?;
    let Some(Frame::Hello(hello)) = Frame::decode(&first) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let (out, queued) = sync_channel(QUEUE);
    let (heartbeat, closer) = (shared.timeouts.heartbeat, Arc::clone(incoming.socket()));
    let writing = start("tarn-says", move || {
        // The reading thread finds the end.
        let _ = write_all(outgoing, |timeout| queued.recv_timeout(timeout), heartbeat);
        let _ = closer.shutdown(Shutdown::Both);
    });
    writing.map_err(io::Error::other)?;
    let notifications = NotificationSender {
        outgoing: out.clone(),
        next: Arc::default(),
    };
    let opened = shared.welcome(&hello, notifications);
    let welcomed = opened.and_then(|(about, talk)| {
        let ending = Arc::new(SessionCloser::new(Arc::clone(incoming.socket())));
        let there = shared.take_place(&ending)?;
        Ok((about, ServedSession::new(talk, there, out.clone(), ending)))
    });
    match welcomed {
        Ok((about, talking)) => {
            if out.send(Frame::Welcome(VERSION, about)).is_ok() {
                talking.run(incoming, lost);
            }
        }
        Err(SessionOpenError(why)) => {
            let _ = out.send(Frame::Refused(why));
            // The client closes once it has read that.
            let _ = incoming.receive(MAX_FRAME, Wait::Whole(connect));
            let _ = incoming.socket().shutdown(Shutdown::Both);
        }
    }
    drop(seat);
    Ok(())
}

impl SessionServerContext {
    fn welcome(
        &self,
        hello: &SessionHello,
        notifications: NotificationSender,
    ) -> Result<(Vec<u8>, Box<dyn Talk>), SessionOpenError> {
        if !(hello.lowest..=hello.highest).contains(&VERSION) {
            return Err(SessionOpenError(format!(
                "it speaks version {VERSION} of the session protocol, the caller {} to {}; use the same release of tarn on all nodes",
                hello.lowest, hello.highest
            )));
        }
        let open = || self.handler.opened(&hello.run, &hello.node, notifications);
        catch_unwind(AssertUnwindSafe(open))
            .unwrap_or_else(|_| Err(SessionOpenError("it failed to open the session".into())))
    }

    /// Ends the session that there is, and becomes it; what tells, by being dropped, that nothing is left of this one.
    fn take_place(
        &self,
        ending: &Arc<SessionCloser>,
    ) -> Result<std::sync::mpsc::Sender<()>, SessionOpenError> {
        let mut current = lock(&self.current);
        if let Some(old) = &*current {
            old.ending
                .end("another session of the run has taken its place");
            // The caller waits for its welcome as long as for a connection.
            let time = self.timeouts.connect / 2;
            if old.gone.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                return Err(SessionOpenError(format!(
                    "the session before this one does not end: what it asked for is still being done after {time:?}; try again"
                )));
            }
        }
        let (there, gone) = channel();
        *current = Some(Current {
            ending: Arc::clone(ending),
            gone,
        });
        Ok(there)
    }
}
