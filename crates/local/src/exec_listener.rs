//! The socket of `tarn exec` and `tarn enter` on a node, until a request has arrived whole. No client is waited for: one that sends
//! nothing, or half, costs the others nothing.

use crate::protocol::{Answer, Channel, Request};
use rustix::process::{Resource, geteuid, getrlimit};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tarn_sys::fdpass::{self, MAX_FDS};

/// How long a client may take to send its request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections whose request has not arrived; more wait in the socket's queue.
const MAX_PENDING: usize = 128;
/// How long a connection keeps its place while others wait for one.
const KEEPS_PLACE: Duration = Duration::from_secs(1);
/// How long nothing is accepted after the system has refused to: no descriptors or no memory were left.
const BACK_OFF: Duration = Duration::from_millis(100);
/// Bytes of the reason of a refusal. It fits into the buffer of a socket: sending it never blocks.
const MAX_REASON: usize = 4096;

/// A path for a socket in `folder` that fits into a socket address (108 bytes) however deep the folder lies;
/// valid while the folder is held open.
pub(crate) fn socket_path(folder: &File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))
}

/// Whether the process at the other end of a socket is this user's.
pub(crate) fn is_own_user(socket: impl AsFd) -> bool {
    fdpass::peer(socket).is_ok_and(|peer| peer.uid == geteuid().as_raw())
}

/// The socket and the clients whose request has not arrived.
pub(crate) struct ExecListener {
    listener: UnixListener,
    /// Oldest first.
    pending: Vec<Pending>,
    paused_until: Option<Instant>,
    /// Descriptors that pending requests may hold: others are needed to run what was asked for.
    max_fds: usize,
}

struct Pending {
    client: Channel,
    /// What its first byte brought.
    fds: Option<Vec<OwnedFd>>,
    since: Instant,
}

/// A request that has arrived whole, of a process of this user. Its socket does not block.
pub(crate) struct Arrived {
    pub(crate) client: Channel,
    pub(crate) request: Request,
    /// At least one.
    pub(crate) fds: Vec<OwnedFd>,
}

impl ExecListener {
    /// Listens at `name` in a folder.
    pub(crate) fn bind(folder: &File, name: &str) -> io::Result<Self> {
        let listener = UnixListener::bind(socket_path(folder, name))?;
        listener.set_nonblocking(true)?;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let quarter = usize::try_from(limit / 4).unwrap_or(usize::MAX);
        Ok(Self {
            listener,
            pending: Vec::new(),
            paused_until: None,
            max_fds: quarter.max(MAX_FDS),
        })
    }

    /// What to poll for.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (has_space, now) = (self.has_space(), Instant::now());
        let accepts = !self.is_full(now) && !self.is_paused(now);
        let pending = self
            .pending
            .iter()
            .filter(move |p| has_space || p.fds.is_some());
        let listener = accepts.then(|| self.listener.as_fd());
        listener
            .into_iter()
            .chain(pending.map(|p| p.client.socket.as_fd()))
    }

    /// Until when [`take`](Self::take) is to be called though nothing can be read: a client that waits is dropped or accepted then.
    pub(crate) fn due(&self) -> Option<Duration> {
        let is_waiting = !self.pending.is_empty() || self.paused_until.is_some();
        is_waiting.then_some(BACK_OFF)
    }

    /// Accepts clients, and gives the requests that have arrived since.
    pub(crate) fn take(&mut self) -> Vec<Arrived> {
        let mut arrived = self.advance();
        self.accept();
        arrived.extend(self.advance());
        arrived
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// No place is left, and none can be taken from anybody yet.
    fn is_full(&self, now: Instant) -> bool {
        let keeps = |p: &Pending| now.saturating_duration_since(p.since) < KEEPS_PLACE;
        self.pending.len() >= MAX_PENDING && self.pending.first().is_some_and(keeps)
    }

    /// Whether the descriptors of one more request may be held.
    fn has_space(&self) -> bool {
        let held = self.pending.iter().filter_map(|p| p.fds.as_ref());
        held.map(Vec::len).sum::<usize>() + MAX_FDS <= self.max_fds
    }

    fn accept(&mut self) {
        let now = Instant::now();
        if self.is_paused(now) {
            return;
        }
        self.paused_until = None;
        while !self.is_full(now) {
            match self.listener.accept() {
                Ok((socket, _)) => self.admit(socket, now),
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    // Those that are there go on.
                    _ => return self.paused_until = Some(now + BACK_OFF),
                },
            }
        }
    }

    fn admit(&mut self, socket: UnixStream, now: Instant) {
        let is_own = is_own_user(&socket);
        let unblocked = socket.set_nonblocking(true);
        let mut client = Channel::new(socket);
        if unblocked.is_err() {
            return;
        }
        if !is_own {
            let own = geteuid().as_raw();
            let why = format!("this step is user {own}'s, and runs commands for nobody else");
            return refuse(&mut client, &why);
        }
        if self.pending.len() >= MAX_PENDING {
            let mut oldest = self.pending.remove(0);
            refuse(&mut oldest.client, CROWDED);
        }
        self.pending.push(Pending {
            client,
            fds: None,
            since: now,
        });
    }

    /// Reads what has come.
    fn advance(&mut self) -> Vec<Arrived> {
        let mut arrived = Vec::new();
        let mut has_space = self.has_space();
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.read(has_space) {
                Ok(Some(request)) => arrived.push(Arrived {
                    client: pending.client,
                    request,
                    fds: pending.fds.unwrap_or_default(),
                }),
                Ok(None) => {
                    self.pending.push(pending);
                    has_space = self.has_space();
                }
                Err(e) => refuse(&mut pending.client, &e.to_string()),
            }
        }
        // Whoever cannot be heard for want of descriptors does not wait for who holds them.
        let now = Instant::now();
        let is_old = |p: &Pending| now.saturating_duration_since(p.since) >= KEEPS_PLACE;
        let is_unheard = |p: &Pending| {
            p.fds.is_none() && crate::runner::readable(&p.client.socket).unwrap_or(false)
        };
        if !self.has_space()
            && self.pending.iter().any(is_unheard)
            && let Some(at) = self
                .pending
                .iter()
                .position(|p| p.fds.is_some() && is_old(p))
        {
            let mut oldest = self.pending.remove(at);
            refuse(&mut oldest.client, CROWDED);
        }
        arrived
    }
}

const CROWDED: &str = "the request did not arrive whole, and others waited";

impl Pending {
    /// The request, once it is whole.
    fn read(&mut self, has_space: bool) -> io::Result<Option<Request>> {
        let read = match &self.fds {
            None if !has_space => Ok(None),
            None => self.read_fds(),
            Some(_) => self.read_request(),
        };
        match read {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            other => other,
        }
        .and_then(|request| match request {
            None if self.since.elapsed() >= REQUEST_TIMEOUT => {
                let limit = REQUEST_TIMEOUT.as_secs();
                let why = format!("the request did not arrive within {limit} s");
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
            request => Ok(request),
        })
    }

    fn read_fds(&mut self) -> io::Result<Option<Request>> {
        self.fds = Some(fdpass::receive(&self.client.socket)?);
        self.read_request()
    }

    fn read_request(&mut self) -> io::Result<Option<Request>> {
        match self.client.receive() {
            Ok(None) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            other => other,
        }
    }
}

/// Tells a client why nothing runs. It may be gone; there is nobody else to tell.
pub(crate) fn refuse(client: &mut Channel, why: &str) {
    let end = why.floor_char_boundary(MAX_REASON);
    let _ = client.send(&Answer::Refused(why[..end].to_owned()));
}
