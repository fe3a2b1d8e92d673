//! The socket of `tarn exec` and `tarn enter` on a node, until a request has arrived whole. No client is waited for: one that sends
//! nothing, or half, costs the others nothing.

mod pending;

use crate::fds::readable;
use crate::helper::exec_budget::Budget;
use crate::helper::protocol::{Channel, ExecReply, ExecRequest};
use pending::{ExecRequestProgress, PendingExecClient};
use rustix::fs::{Mode, OFlags, fcntl_getfl, openat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tarn_sys::fdpass;

/// How long a client may take to send its request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection keeps what it holds while others wait for that.
const KEEPS_PLACE: Duration = Duration::from_secs(1);
/// How long nothing is accepted after the system has refused to: no descriptors or no memory were left.
const BACK_OFF: Duration = Duration::from_millis(100);
/// So often requests of new clients are read before others than this listener have their turn.
const ROUNDS: usize = 8;
/// Bytes of the reason of a refusal. It fits into the buffer of a socket: sending it never blocks.
const MAX_REASON: usize = 4096;

/// A path for a socket in `folder` that fits into a socket address (108 bytes) however deep the folder is;
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
    /// In the queues of the budget.
    id: u64,
    budget: Budget,
    /// Oldest first.
    pending: Vec<PendingExecClient>,
    paused_until: Option<Instant>,
}

/// A request that has arrived whole, of a process of this user. Its socket does not block.
pub(crate) struct Arrived {
    pub(crate) client: Channel,
    pub(crate) request: ExecRequest,
    /// At least one.
    pub(crate) fds: Vec<OwnedFd>,
}

impl ExecListener {
    /// Listens at `name` in a folder.
    pub(crate) fn bind(folder: &File, name: &str) -> io::Result<Self> {
        Self::bind_within(Budget::of_process(), folder, name)
    }

    fn bind_within(budget: Budget, folder: &File, name: &str) -> io::Result<Self> {
        static LISTENERS: AtomicU64 = AtomicU64::new(0);
        let listener = UnixListener::bind(socket_path(folder, name))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            id: LISTENERS.fetch_add(1, Ordering::Relaxed),
            budget,
            pending: Vec::new(),
            paused_until: None,
        })
    }

    /// The descriptors to poll for.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let accepts = !self.is_paused() && self.budget.places.is_free_for(self.id, 1);
        let listener = accepts.then(|| self.listener.as_fd());
        let pending = self.pending.iter();
        let pending = pending.filter(|p| p.may_be_read(self.id, &self.budget));
        listener
            .into_iter()
            .chain(pending.map(|p| p.client.socket.as_fd()))
    }

    /// Until when [`take`](Self::take) is to be called though nothing can be read: a client that waits is dropped or accepted then.
    pub(crate) fn due(&self) -> Option<Duration> {
        let is_waiting = !self.pending.is_empty()
            || self.paused_until.is_some()
            || !self.budget.places.is_free_for(self.id, 1);
        is_waiting.then_some(BACK_OFF)
    }

    /// Accepts clients, and starts each request as soon as it has arrived: no descriptors are held meanwhile.
    pub(crate) fn take(&mut self, mut start: impl FnMut(Arrived)) {
        self.advance(&mut start);
        for _ in 0..ROUNDS {
            self.close_crowding();
            if !self.accept() {
                break;
            }
            self.advance(&mut start);
        }
        self.close_crowding();
    }

    fn is_paused(&self) -> bool {
        self.paused_until
            .is_some_and(|until| Instant::now() < until)
    }

    /// Whether there are new clients.
    fn accept(&mut self) -> bool {
        if self.is_paused() {
            return false;
        }
        self.paused_until = None;
        let mut is_any = false;
        while readable(&self.listener).unwrap_or(false) {
            let Some(place) = self.budget.places.reserve(self.id, 1) else {
                break;
            };
            match self.listener.accept() {
                Ok((socket, _)) => {
                    let client = admit(socket).map(|client| PendingExecClient::new(client, place));
                    is_any |= client.is_some();
                    self.pending.extend(client);
                }
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    // Those that are there continue.
                    _ => {
                        self.paused_until = Some(Instant::now() + BACK_OFF);
                        break;
                    }
                },
            }
        }
        is_any
    }

    /// Reads what has come.
    fn advance(&mut self, start: &mut impl FnMut(Arrived)) {
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.read(self.id, &self.budget) {
                Ok(ExecRequestProgress::Whole(request)) => {
                    // Its leases count until the request is the caller's.
                    let (client, fds, _held) = pending.into_parts();
                    start(Arrived {
                        client,
                        request,
                        fds,
                    });
                }
                Ok(ExecRequestProgress::Partly) => self.pending.push(pending),
                Err(e) => refuse(&mut pending.client, &e.to_string()),
            }
        }
    }

    /// A client that cannot be served for want of something does not wait for who holds that.
    fn close_crowding(&mut self) {
        let Budget { places, fds, bytes } = &self.budget;
        for pool in [places, fds, bytes] {
            let is_old = |p: &PendingExecClient| p.holds(pool) && p.stands_still() >= KEEPS_PLACE;
            if pool.is_wanted()
                && let Some(at) = self.pending.iter().position(is_old)
            {
                let mut oldest = self.pending.remove(at);
                refuse(&mut oldest.client, CROWDED);
            }
        }
    }
}

const CROWDED: &str = "the request was incomplete for 1 s while other commands waited; try again";

/// A client of this user, whose socket does not block.
fn admit(socket: UnixStream) -> Option<Channel> {
    let is_own = is_own_user(&socket);
    let unblocked = socket.set_nonblocking(true);
    let mut client = Channel::new(socket);
    if unblocked.is_err() {
        return None;
    }
    if !is_own {
        let own = geteuid().as_raw();
        let why = format!("this step is user {own}'s, and runs commands for nobody else");
        refuse(&mut client, &why);
        return None;
    }
    Some(client)
}

/// An open folder leads to what is outside of the step's view, as a mount point on which nothing is mounted there.
pub(crate) fn keeps_to_the_view(number: i32, fd: &OwnedFd) -> io::Result<()> {
    // Not by its mode: a FUSE mount of the step refuses that to who is outside of its namespace.
    let below = openat(fd, c".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let is_folder = match below {
        Err(Errno::NOTDIR) => false,
        Err(e @ (Errno::MFILE | Errno::NFILE)) => return Err(e.into()),
        _ => true,
    };
    if !is_folder && !fcntl_getfl(fd)?.contains(OFlags::PATH) {
        return Ok(());
    }
    let (what, remedy) = match number {
        0 => ("standard input", "Redirect it: `</dev/null`".to_owned()),
        1 => ("standard output", "Redirect it: `>/dev/null`".to_owned()),
        2 => ("standard error", "Redirect it: `2>/dev/null`".to_owned()),
        _ => ("", format!("Close it: `tarn enter COMMAND {number}<&-`")),
    };
    let what = match what {
        "" => format!("descriptor {number}"),
        stream => stream.to_owned(),
    };
    Err(io::Error::other(format!(
        "{what} is an open folder. Through it the command could reach files outside the step's view. {remedy}"
    )))
}

/// Sends a client the reason why nothing runs. It may be gone; nobody else can get it.
pub(crate) fn refuse(client: &mut Channel, why: &str) {
    let end = why.floor_char_boundary(MAX_REASON);
    let _ = client.send(&ExecReply::Refused(why[..end].to_owned()));
}
