//! Stream sockets of either family: never blocking, closed in programs that are started, and never the cause of a signal.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, connect, listen, recv, sendmsg, socket_with,
    socketpair, sockopt,
};
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

/// Connections that may wait to be accepted: all ranks come at once.
const BACKLOG: i32 = 4096;
/// Keep-alive of TCP: the silence before the first probe, the time between probes, and their number.
const ALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(5), 3);
/// Milliseconds for which a TCP peer may leave sent bytes unconfirmed.
const UNCONFIRMED: u32 = 20_000;
/// Longer than anybody waits: a sum with it must not overflow.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

/// The end of a time that begins now.
pub(crate) fn deadline(within: Duration) -> Instant {
    Instant::now() + within.min(LONG)
}

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Waits until something of `flags` is so.
pub(crate) fn wait(fd: BorrowedFd<'_>, flags: PollFlags, until: Option<Instant>) -> io::Result<()> {
    loop {
        let left = until.map(|t| t.saturating_duration_since(Instant::now()));
        let time = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], time.as_ref()) {
            Ok(0) if left.is_some_and(|left| left.is_zero()) => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct RankSocket(OwnedFd);

impl AsFd for RankSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl RankSocket {
    /// Two that are connected with each other.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
        Ok((Self(a), Self(b)))
    }

    /// To a socket of this node.
    pub(crate) fn unix(path: &Path) -> io::Result<Self> {
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
        connect(&fd, &SocketAddrUnix::new(path)?)?;
        Ok(Self(fd))
    }

    /// To a port of any node, and the address of this end.
    pub(crate) fn tcp(to: &str, until: Instant) -> io::Result<(Self, IpAddr)> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in to.to_socket_addrs()? {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    stream.set_nonblocking(true)?;
                    let here = stream.local_addr()?.ip();
                    let socket = Self(stream.into());
                    socket.keep_alive()?;
                    return Ok((socket, here));
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// The address of this host by which both ends reach each other; none on one host.
    pub(crate) fn here(&self) -> Option<IpAddr> {
        let own = rustix::net::getsockname(&self.0).ok()?;
        SocketAddr::try_from(own).ok().map(|a| a.ip())
    }

    /// Whether nothing has come that nobody requested, such as its end.
    pub(crate) fn is_quiet(&self) -> bool {
        wait(self.as_fd(), PollFlags::IN, Some(Instant::now())).is_err()
    }

    fn keep_alive(&self) -> io::Result<()> {
        let (idle, between, count) = ALIVE;
        sockopt::set_tcp_nodelay(&self.0, true)?;
        sockopt::set_tcp_keepidle(&self.0, idle)?;
        sockopt::set_tcp_keepintvl(&self.0, between)?;
        sockopt::set_tcp_keepcnt(&self.0, count)?;
        sockopt::set_tcp_user_timeout(&self.0, UNCONFIRMED)?;
        Ok(sockopt::set_socket_keepalive(&self.0, true)?)
    }

    /// Takes the bytes that are there, as far as they fit: at least one.
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing, `UnexpectedEof` when there will be none.
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match recv(&self.0, into, RecvFlags::empty()) {
            Ok((_, 0)) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "its connection has closed",
            )),
            Ok((_, n)) => Ok(n),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends as much as there is space for.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        Ok(sendmsg(&self.0, parts, &mut nothing, SendFlags::NOSIGNAL)?)
    }

    /// Fills all of `into`.
    pub(crate) fn receive_all(&self, into: &mut [u8], until: Instant) -> io::Result<()> {
        let mut have = 0;
        while have < into.len() {
            match self.receive(&mut into[have..]) {
                Ok(n) => have += n,
                Err(e) => self.retry(e, PollFlags::IN, until)?,
            }
        }
        Ok(())
    }

    /// Sends all of both.
    pub(crate) fn send_all(&self, head: &[u8], body: &[u8], until: Instant) -> io::Result<()> {
        let mut sent = 0;
        while sent < head.len() + body.len() {
            let rest = IoSlice::new(&head[sent.min(head.len())..]);
            let body = IoSlice::new(&body[sent.saturating_sub(head.len())..]);
            match self.send(&[rest, body]) {
                Ok(n) => sent += n,
                Err(e) => self.retry(e, PollFlags::OUT, until)?,
            }
        }
        Ok(())
    }

    /// Sends bytes of a file, which are not copied on the way. The thread must take no SIGPIPE.
    pub(crate) fn send_file(
        &self,
        file: &OwnedFd,
        mut at: u64,
        mut left: usize,
        until: Instant,
    ) -> io::Result<()> {
        while left > 0 {
            match sendfile(&self.0, file, Some(&mut at), left) {
                // It has become shorter.
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => left -= n,
                Err(e) => self.retry(e.into(), PollFlags::OUT, until)?,
            }
        }
        Ok(())
    }

    fn retry(&self, e: io::Error, flags: PollFlags, until: Instant) -> io::Result<()> {
        match e.kind() {
            io::ErrorKind::WouldBlock => wait(self.as_fd(), flags, Some(until)),
            io::ErrorKind::Interrupted => Ok(()),
            _ => Err(e),
        }
    }

    /// Ends it for both ends, and for all that wait for it.
    pub(crate) fn close(&self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }
}

/// Accepts connections.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    tcp: bool,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Listener {
    /// For this node. There must be nothing at the path.
    pub(crate) fn unix(path: &Path) -> io::Result<Self> {
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
        bind(&fd, &SocketAddrUnix::new(path)?)?;
        listen(&fd, BACKLOG)?;
        Ok(Self { fd, tcp: false })
    }

    /// For other nodes, and its port. A host that is no number is this node under any address: its name may
    /// resolve to another one here than for others.
    pub(crate) fn tcp(host: &str, port: u16) -> io::Result<(Self, u16)> {
        let listener = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(ip) => TcpListener::bind((ip, port)),
            Err(_) => TcpListener::bind(("::", port))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))),
        }?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let fd = OwnedFd::from(listener);
        listen(&fd, BACKLOG)?;
        Ok((Self { fd, tcp: true }, port))
    }

    /// The next connection, and from where it comes.
    pub(crate) fn accept(&self) -> io::Result<(RankSocket, IpAddr)> {
        let socket = RankSocket(accept_with(&self.fd, FLAGS)?);
        let none = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let from = || -> io::Result<IpAddr> {
            socket.keep_alive()?;
            let peer = rustix::net::getpeername(&socket)?;
            let peer = peer.and_then(|a| SocketAddr::try_from(a).ok());
            Ok(peer.map_or(none, |a| a.ip()))
        };
        let from = match self.tcp {
            // It may be gone already: then it is the next one's turn.
            true => from().map_err(|_| io::ErrorKind::Interrupted)?,
            false => none,
        };
        Ok((socket, from))
    }
}
