//! The data that the threads of a data server share: its bounds, its counters, and the connections with the place of each.

use crate::lock;
use crate::replica_registry::Registry;
use crate::transport::ContentTransport;
use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tarn_stream::hello::Verdict;
use tarn_types::strangers::sent_away;

/// Connections at one time that have not proven who they are.
const STRANGERS: usize = 128;
/// Connections at one time that were sent away and whose threads have not ended yet; more wait to be accepted.
const SENT_AWAY: usize = 64;
/// A pause after accepting has failed, such as for want of descriptors.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

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

#[derive(Default)]
pub(crate) struct DataServerCounters {
    pub(crate) bytes: AtomicU64,
    pub(crate) items: AtomicU64,
    pub(crate) windows: AtomicU64,
    pub(crate) streams: AtomicU64,
    pub(crate) refused: AtomicU64,
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

    /// Makes space for another stranger.
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
    pub(crate) fn new(registry: Arc<dyn Registry>, way: ContentTransport, limits: Limits) -> Self {
        Self {
            registry,
            way,
            limits,
            stop: AtomicBool::new(false),
            counters: DataServerCounters::default(),
            live: Mutex::default(),
            fewer: Condvar::new(),
        }
    }

    /// Gives a new connection its number, and a place among the strangers.
    pub(crate) fn register(&self, socket: TcpStream, from: IpAddr) -> u64 {
        let mut live = lock(&self.live);
        live.evict_pending();
        let number = live.next;
        live.next += 1;
        let connection = Connection {
            from,
            socket,
            state: ConnectionState::Unproven,
        };
        let before = live.connections.insert(number, connection);
        debug_assert!(before.is_none(), "connection {number} is there twice");
        number
    }

    /// Gives a connection's place back.
    pub(crate) fn end(&self, number: u64) {
        let ended = lock(&self.live).connections.remove(&number);
        debug_assert!(ended.is_some(), "connection {number} has ended twice");
        self.fewer.notify_all();
    }

    /// Connections at this moment.
    pub(crate) fn connections(&self) -> usize {
        lock(&self.live).connections.len()
    }

    /// Closes all connections, and waits until their threads have ended.
    pub(crate) fn close(&self) {
        let mut live = lock(&self.live);
        for connection in live.connections.values() {
            let _ = connection.socket.shutdown(Shutdown::Both);
        }
        while !live.connections.is_empty() {
            let waited = self.fewer.wait(live);
            live = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether another connection may be accepted; waits a moment when it may not.
    pub(crate) fn can_accept(&self) -> bool {
        let full = |live: &mut ConnectionTable| live.count(ConnectionState::SentAway) >= SENT_AWAY;
        let waited = self.fewer.wait_timeout_while(lock(&self.live), PAUSE, full);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Gives a connection that has proven itself a place among the streams, or among those for messages, if there is one.
    pub(crate) fn admit(&self, number: u64, for_messages: bool) -> Verdict {
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

    /// A stream is given over to storage memory, if there is space: such streams stay open for as long as programs want.
    pub(crate) fn give_over(&self, number: u64) -> bool {
        let mut live = lock(&self.live);
        let has_space = live.count(ConnectionState::Storage) < self.limits.storages;
        let stream = live.connections.get_mut(&number);
        match stream.filter(|c| has_space && c.state == ConnectionState::Proven) {
            Some(c) => {
                c.state = ConnectionState::Storage;
                true
            }
            None => false,
        }
    }
}
