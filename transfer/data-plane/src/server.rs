//! The data server: one thread accepts, each stream has a thread of its own.
//!
//! A connection is a *stranger* until it has proven itself, and takes nothing from those that have: strangers have places of
//! their own, and when all are taken the newest takes that of the oldest, of whichever address has most.

use crate::lock;
use crate::replica_registry::Registry;
use crate::serve::Answering;
use crate::transport::ContentTransport;
use rustix::event::{PollFd, PollFlags, poll};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tarn_stream::accept;
use tarn_stream::hello::Verdict;
use tarn_types::strangers::sent_away;

/// Bytes of a stream thread's stack.
const STACK: usize = 256 << 10;
/// Connections at one time that have not proven who they are.
const STRANGERS: usize = 128;
/// Connections at one time that were told to go and whose threads have not ended yet; more wait to be accepted.
const SENT_AWAY: usize = 64;
/// A pause after accepting has failed, such as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Bounds of a server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Streams at one time.
    pub streams: usize,
    /// Streams from one address.
    pub streams_of_one: usize,
    /// Streams that were given over to storage memory, beside these.
    pub storages: usize,
    /// Streams of runs that are for messages ([`Registry::is_for_messages`]), beside these: bulk transfers hold none of them up.
    pub messages: usize,
    /// A stream without a request for so long is closed.
    pub idle: Duration,
    /// A stream on which nothing moves for so long, in the middle of a request or an answer, is closed.
    pub stall: Duration,
    /// How long a file that is still to arrive is waited for.
    pub arrival: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 64,
            streams_of_one: 16,
            storages: 256,
            messages: 1024,
            idle: Duration::from_secs(60),
            stall: Duration::from_secs(30),
            arrival: Duration::from_secs(600),
        }
    }
}

/// What a server has done since it was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DataServerCounts {
    /// Bytes of content that were sent.
    pub bytes: u64,
    /// Items that were answered with content.
    pub items: u64,
    /// Of them, those that were answered with a window.
    pub windows: u64,
    /// Connections that proved that they know a key.
    pub streams: u64,
    /// Connections that were refused, or sent what is no handshake or request.
    pub refused: u64,
}

#[derive(Default)]
pub(crate) struct DataServerCounters {
    pub(crate) bytes: AtomicU64,
    pub(crate) items: AtomicU64,
    pub(crate) windows: AtomicU64,
    streams: AtomicU64,
    refused: AtomicU64,
}

pub(crate) struct DataServerContext {
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) way: ContentTransport,
    pub(crate) limits: Limits,
    pub(crate) stop: AtomicBool,
    pub(crate) counters: DataServerCounters,
    live: Mutex<ConnectionTable>,
    fewer: Condvar,
}

#[derive(Default)]
struct ConnectionTable {
    next: u64,
    /// By number: the oldest first.
    connections: BTreeMap<u64, Connection>,
}

struct Connection {
    from: IpAddr,
    socket: TcpStream,
    state: ConnectionState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionState {
    Unproven,
    /// It has a place among the streams.
    Proven,
    /// It was given over to storage memory.
    Storage,
    /// It has a place among those for messages.
    Messages,
    /// It ends.
    SentAway,
}

impl ConnectionTable {
    fn count(&self, state: ConnectionState) -> usize {
        let all = self.connections.values();
        all.filter(|c| c.state == state).count()
    }

    /// Gives a stranger a place, unless all are taken: then it is sent away.
    fn place(&mut self, number: u64, place: ConnectionState, full: bool) -> Verdict {
        match self.connections.get_mut(&number) {
            Some(c) if c.state == ConnectionState::Unproven && !full => {
                c.state = place;
                Verdict::Ready
            }
            Some(c) => {
                c.state = ConnectionState::SentAway;
                Verdict::Busy
            }
            None => Verdict::Busy,
        }
    }

    /// Makes room for another stranger.
    fn evict_pending(&mut self) {
        if self.count(ConnectionState::Unproven) < STRANGERS {
            return;
        }
        let strangers = self.connections.iter();
        let strangers = strangers.filter(|(_, c)| c.state == ConnectionState::Unproven);
        let oldest = sent_away(strangers.map(|(number, c)| (*number, c.from)));
        if let Some(c) = oldest.and_then(|number| self.connections.get_mut(&number)) {
            c.state = ConnectionState::SentAway;
            let _ = c.socket.shutdown(Shutdown::Both);
        }
    }
}

impl DataServerContext {
    /// Whether another connection may be accepted; waits a moment when it may not.
    fn can_accept(&self) -> bool {
        let full = |live: &mut ConnectionTable| live.count(ConnectionState::SentAway) >= SENT_AWAY;
        let waited = self.fewer.wait_timeout_while(lock(&self.live), PAUSE, full);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Gives a connection that has proven itself a place among the streams, or among those for messages, if there is one.
    fn admit(&self, number: u64, for_messages: bool) -> Verdict {
        let mut live = lock(&self.live);
        if for_messages {
            let full = live.count(ConnectionState::Messages) >= self.limits.messages;
            return live.place(number, ConnectionState::Messages, full);
        }
        let from = live.connections.get(&number).map(|c| c.from);
        let (mut streams, mut of_one) = (0, 0);
        for c in live.connections.values() {
            if c.state == ConnectionState::Proven {
                streams += 1;
                of_one += usize::from(Some(c.from) == from);
            }
        }
        let full = streams >= self.limits.streams || of_one >= self.limits.streams_of_one;
        live.place(number, ConnectionState::Proven, full)
    }
}

impl DataServerContext {
    /// A stream is given over to storage memory, if there is room: such streams stay open for as long as programs want.
    pub(crate) fn give_over(&self, number: u64) -> bool {
        let mut live = lock(&self.live);
        let room = live.count(ConnectionState::Storage) < self.limits.storages;
        let stream = live.connections.get_mut(&number);
        match stream.filter(|c| room && c.state == ConnectionState::Proven) {
            Some(c) => {
                c.state = ConnectionState::Storage;
                true
            }
            None => false,
        }
    }
}

/// A running server. Dropping it closes all streams and ends its threads.
pub struct DataServer {
    address: SocketAddr,
    shared: Arc<DataServerContext>,
    wake: Option<PipeWriter>,
    acceptor: Option<JoinHandle<()>>,
}

impl DataServer {
    /// Starts a server at an address; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address cannot be had or no thread be started.
    pub fn start(
        at: impl ToSocketAddrs,
        registry: Arc<dyn Registry>,
        limits: Limits,
        way: ContentTransport,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (wakened, wake) = io::pipe()?;
        let shared = Arc::new(DataServerContext {
            registry,
            way,
            limits,
            stop: AtomicBool::new(false),
            counters: DataServerCounters::default(),
            live: Mutex::default(),
            fewer: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let acceptor = std::thread::Builder::new()
            .name("tarn-data".into())
            .stack_size(STACK)
            .spawn(move || accept_all(&listener, &wakened, &theirs))?;
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

    /// What it has done.
    pub fn counts(&self) -> DataServerCounts {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let counters = &self.shared.counters;
        DataServerCounts {
            bytes: of(&counters.bytes),
            items: of(&counters.items),
            windows: of(&counters.windows),
            streams: of(&counters.streams),
            refused: of(&counters.refused),
        }
    }

    /// Connections at this moment.
    pub fn connections(&self) -> usize {
        lock(&self.shared.live).connections.len()
    }
}

impl Drop for DataServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        drop(self.wake.take());
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let mut live = lock(&self.shared.live);
        for connection in live.connections.values() {
            let _ = connection.socket.shutdown(Shutdown::Both);
        }
        while !live.connections.is_empty() {
            live = self
                .shared
                .fewer
                .wait(live)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn accept_all(listener: &TcpListener, wakened: &PipeReader, shared: &Arc<DataServerContext>) {
    while !shared.stop.load(Ordering::Relaxed) {
        let mut waiting = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(wakened, PollFlags::IN),
        ];
        if poll(&mut waiting, None).is_err() {
            std::thread::sleep(PAUSE);
            continue;
        }
        if !shared.can_accept() {
            continue;
        }
        match listener.accept() {
            Ok((socket, from)) => {
                if begin(socket, from.ip(), shared).is_err() {
                    std::thread::sleep(PAUSE);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Gives a connection a thread.
fn begin(socket: TcpStream, from: IpAddr, shared: &Arc<DataServerContext>) -> io::Result<()> {
    let connection = Connection {
        from,
        socket: socket.try_clone()?,
        state: ConnectionState::Unproven,
    };
    let number = {
        let mut live = lock(&shared.live);
        live.evict_pending();
        let number = live.next;
        live.next += 1;
        live.connections.insert(number, connection);
        number
    };
    let theirs = Arc::clone(shared);
    let started = std::thread::Builder::new()
        .name("tarn-stream".into())
        .stack_size(STACK)
        .spawn(move || {
            if stream(&socket, number, &theirs).is_err() {
                theirs.counters.refused.fetch_add(1, Ordering::Relaxed);
            }
            // Both descriptors of the socket are gone before its place is.
            let _ = socket.shutdown(Shutdown::Both);
            drop(socket);
            end(number, &theirs);
        });
    if let Err(e) = started {
        end(number, shared);
        return Err(e);
    }
    Ok(())
}

fn end(number: u64, shared: &DataServerContext) {
    lock(&shared.live).connections.remove(&number);
    shared.fewer.notify_all();
}

/// A connection from its handshake to its end. An error: what came was no handshake or no request.
fn stream(socket: &TcpStream, number: u64, shared: &DataServerContext) -> io::Result<()> {
    // Accepted sockets may inherit it.
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(shared.limits.stall))?;
    let for_messages = Cell::new(false);
    let key_of = |run: &_| {
        for_messages.set(shared.registry.is_for_messages(run));
        shared.registry.key(run)
    };
    let admit = || shared.admit(number, for_messages.get());
    let sealed = shared.way.is_sealed();
    let Some((run, session)) = accept(socket, sealed, key_of, admit)? else {
        shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    };
    shared.counters.streams.fetch_add(1, Ordering::Relaxed);
    match Answering::new((socket, number), (run, session), shared)?.run() {
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(e),
        // A peer that goes away, or is slow, is its own affair.
        _ => Ok(()),
    }
}
