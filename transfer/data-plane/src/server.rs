//! The data server: one thread accepts, each stream has a thread of its own.
//!
//! A connection is a *stranger* until it has proven itself, and takes nothing from those that have: strangers have places of
//! their own, and when all are taken the newest takes that of the oldest, of whichever address has most.

use crate::context::{DataServerContext, Limits, PAUSE};
use crate::replica_registry::Registry;
use crate::serve::Answering;
use crate::transport::ContentTransport;
use rustix::event::{PollFd, PollFlags, poll};
use std::cell::Cell;
use std::io::{self, PipeReader, PipeWriter};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use tarn_stream::accept;

/// Bytes of a stream thread's stack.
const STACK: usize = 256 << 10;

/// The counts of a server since its start.
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
        let shared = Arc::new(DataServerContext::new(registry, way, limits));
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

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its counts.
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
        self.shared.connections()
    }
}

impl Drop for DataServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        drop(self.wake.take());
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.shared.close();
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
    let number = shared.register(socket.try_clone()?, from);
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
            theirs.end(number);
        });
    if let Err(e) = started {
        shared.end(number);
        return Err(e);
    }
    Ok(())
}

/// A connection from its handshake to its end. An error: the peer sent no handshake or no request.
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
