//! A peer: connections to it that have proven who both are, and calls on them.

use crate::transport::ContentTransport;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tarn_ports::{MoverError, Watch};
use tarn_proto::data::{
    DataCall, MAX_REPLY, MAX_TEXT, Malformed, PROOF_BYTES, ReadReplyHeader, ReadStatus,
};
use tarn_stream::{HandshakeOutcome, Key, MessageKind, Session, Wire, connect};
use tarn_types::event::RunErrorKind;
use tarn_types::stream::{RunId, StreamKeys};

/// The times that a client waits.
#[derive(Debug, Clone, Copy)]
pub struct DataClientTimeouts {
    /// For a connection.
    pub connect: Duration,
    /// For the next byte, while some are due.
    pub stall: Duration,
    /// For a stream, while the server has its bound of them.
    pub busy: Duration,
    /// For a handshake that does not end in a word: strangers may have crowded it out.
    pub crowded: Duration,
    /// For a file that is still to arrive at the peer.
    pub arrival: Duration,
}

impl Default for DataClientTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            stall: Duration::from_secs(30),
            busy: Duration::from_secs(120),
            crowded: Duration::from_secs(20),
            arrival: Duration::from_secs(600),
        }
    }
}

/// Addresses of a node that are tried beside the first.
pub const MAX_ADDRESSES: usize = 7;
/// Bytes of an answer that are received at once.
const REPLY_STEP: usize = 1 << 20;
/// Between two looks at whether to stop.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// A peer's data server, as this node sees it.
#[derive(Debug, Clone)]
pub struct DataClient {
    /// The node's name, for messages.
    pub node: String,
    /// The address at which its server listens.
    pub address: SocketAddr,
    /// Other addresses at which it may listen, [`MAX_ADDRESSES`] at most: the client tries them in turn if it reaches nobody
    /// there.
    pub others: Vec<SocketAddr>,
    /// The run whose trees are requested.
    pub run: RunId,
    /// The run's key.
    pub key: Key,
    /// How long to wait.
    pub timeout: DataClientTimeouts,
    /// The way in which content is requested.
    pub way: ContentTransport,
}

impl DataClient {
    /// Asks something, and waits for the answer as long as the peer shows signs of life.
    ///
    /// # Errors
    /// `Io` when the peer cannot be reached, is silent, or refuses; `Cancelled` when `watch` stops it.
    pub fn call(&self, body: &[u8], watch: &dyn Watch) -> Result<Vec<u8>, MoverError> {
        self.call_on(&mut self.line(watch)?, body, watch)
    }

    /// A stream for calls, one after the other. It holds one of the peer's streams until it is dropped; one that is not used for
    /// a minute is closed there.
    ///
    /// # Errors
    /// `Io` when the peer cannot be reached, or is not who it should be; `Cancelled` when `watch` stops it.
    pub fn line(&self, watch: &dyn Watch) -> Result<CallStream, MoverError> {
        let (wire, session) = self.connect(watch)?;
        Ok(CallStream {
            wire,
            session,
            calls: 0,
        })
    }

    /// Asks something on a stream that this client has made. After a failure it is of no use.
    ///
    /// # Errors
    /// As of [`Self::call`].
    pub fn call_on(
        &self,
        line: &mut CallStream,
        body: &[u8],
        watch: &dyn Watch,
    ) -> Result<Vec<u8>, MoverError> {
        let (wire, secret, number) = (&mut line.wire, &line.session.secret, line.calls);
        line.calls = number.wrapping_add(1);
        let proof = secret.sign(MessageKind::Call, number, body);
        let proof = proof.map_err(|e| self.failed(&e.to_string()))?;
        let call = DataCall {
            number,
            proof,
            body,
        };
        let wrong = |m: Malformed| self.failed(m.0);
        let bytes = call.encode().map_err(wrong)?;
        let timeout = Some(self.timeout.stall);
        let lost = |e: io::Error| self.failed(&format!("the connection was lost: {e}"));
        wire.socket().set_write_timeout(timeout).map_err(lost)?;
        wire.write_all(&bytes).map_err(lost)?;
        wire.flush().map_err(lost)?;
        let answer = loop {
            let mut head = [0; ReadReplyHeader::BYTES];
            self.receive(wire, &mut head, watch)?;
            let answer = ReadReplyHeader::decode(&head).map_err(wrong)?;
            if (answer.request, answer.item) != (number, 0) {
                return Err(self.failed("it answered what was not asked"));
            }
            if answer.status != ReadStatus::Wait {
                break answer;
            }
        };
        if answer.status != ReadStatus::Content {
            // `Answer::decode` has checked the bound.
            let mut text = vec![0; (answer.len as usize).min(MAX_TEXT)];
            self.receive(wire, &mut text, watch)?;
            let text = String::from_utf8_lossy(&text);
            return Err(self.failed(&format!("it refused: {}", text.escape_debug())));
        }
        if answer.len > MAX_REPLY as u64 {
            return Err(self.failed("its answer is longer than allowed"));
        }
        let mut proof = [0; PROOF_BYTES];
        self.receive(wire, &mut proof, watch)?;
        let mut reply = Vec::new();
        while reply.len() < answer.len as usize {
            // Memory is taken as bytes come, not as they are promised.
            let more = (answer.len as usize - reply.len()).min(REPLY_STEP);
            let have = reply.len();
            reply.resize(have + more, 0);
            self.receive(wire, &mut reply[have..], watch)?;
        }
        let proven = secret.check(MessageKind::Reply, number, &reply, &proof);
        proven.map_err(|e| self.failed(&e.to_string()))?;
        Ok(reply)
    }

    fn receive(
        &self,
        wire: &mut Wire,
        out: &mut [u8],
        watch: &dyn Watch,
    ) -> Result<(), MoverError> {
        let (mut have, mut since) = (0, Instant::now());
        while have < out.len() {
            match wire.read(&mut out[have..]) {
                Ok(0) => return Err(self.failed("it closed the connection without an answer")),
                Ok(n) => {
                    have += n;
                    since = Instant::now();
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                            | io::ErrorKind::Interrupted
                    ) => {}
                Err(e) => return Err(self.failed(&format!("the connection was lost: {e}"))),
            }
            if watch.stopped() {
                return Err(stopped());
            }
            if since.elapsed() >= self.timeout.stall {
                return Err(self.failed("it did not answer in time"));
            }
        }
        Ok(())
    }

    pub(crate) fn failed(&self, what: &str) -> MoverError {
        let (node, address) = (&self.node, self.address);
        MoverError::new(RunErrorKind::Io, format!("node {node} ({address}): {what}"))
    }

    /// Connects and proves who both are; comes again while the server is busy, or strangers crowd its port.
    pub(crate) fn connect(&self, watch: &dyn Watch) -> Result<(Wire, Session), MoverError> {
        let began = Instant::now();
        let mut pause = Duration::from_millis(20);
        loop {
            let later = match self.try_connect()? {
                Tried::Ready(wire, session) => return Ok((wire, session)),
                Tried::Later(later) => later,
            };
            match later {
                Later::Busy if began.elapsed() >= self.timeout.busy => {
                    return Err(self.failed(&format!(
                        "it was busy for {} s: it has its bound of streams; fewer transfers from it at one time, or a longer timeout",
                        self.timeout.busy.as_secs()
                    )));
                }
                Later::Unheard(why) if began.elapsed() >= self.timeout.crowded => {
                    return Err(self.failed(&format!(
                        "it was tried for {} s: {why}; something else has the port, or other programs hold its connections (`ss -tn` there shows them)",
                        self.timeout.crowded.as_secs()
                    )));
                }
                _ => {}
            }
            if watch.stopped() {
                return Err(stopped());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK * 5);
        }
    }

    fn try_connect(&self) -> Result<Tried, MoverError> {
        let unreachable = |e: io::Error| {
            self.failed(&format!(
                "it cannot be reached: {e}; is tarnd running there, and its port open?"
            ))
        };
        let mut socket = TcpStream::connect_timeout(&self.address, self.timeout.connect);
        for other in &self.others {
            socket = socket.or_else(|_| TcpStream::connect_timeout(other, self.timeout.connect));
        }
        let socket = match socket {
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                let why = "it took no connection in time".to_owned();
                return Ok(Tried::Later(Later::Unheard(why)));
            }
            socket => socket.map_err(unreachable)?,
        };
        socket.set_nodelay(true).map_err(unreachable)?;
        socket
            .set_write_timeout(Some(self.timeout.connect))
            .map_err(unreachable)?;
        let outcome = match connect(&socket, self.way.is_sealed(), self.run, &self.key) {
            Ok(outcome) => outcome,
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                return Err(self.failed(&format!(
                    "{e}: in its file of peers it has another, or a tarnd of another run has the port"
                )));
            }
            Err(e) => {
                let why = match e.kind() {
                    io::ErrorKind::TimedOut => "it did not answer in time".to_owned(),
                    io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::BrokenPipe => "it closed the connection".to_owned(),
                    _ => e.to_string(),
                };
                return Ok(Tried::Later(Later::Unheard(why)));
            }
        };
        socket.set_read_timeout(Some(LOOK)).map_err(unreachable)?;
        socket.set_write_timeout(Some(LOOK)).map_err(unreachable)?;
        match outcome {
            HandshakeOutcome::Ready(session) => {
                let wire = Wire::new(socket, session.keys.as_ref()).map_err(unreachable)?;
                Ok(Tried::Ready(wire, session))
            }
            HandshakeOutcome::Busy => Ok(Tried::Later(Later::Busy)),
            HandshakeOutcome::NoVersion => Err(self.failed(
                "it speaks another version of the data plane, or one of both is older and the other wants its streams sealed; use the same version of tarn on all nodes",
            )),
        }
    }
}

/// A stream that is kept for calls.
#[derive(Debug)]
pub struct CallStream {
    wire: Wire,
    session: Session,
    /// So many calls were made on it.
    calls: u32,
}

impl CallStream {
    /// The stream itself, once the peer has given it over to storage memory, and the keys that seal it.
    ///
    /// # Errors
    /// When the peer has sent more than answers.
    pub fn into_stream(self) -> io::Result<(TcpStream, Option<StreamKeys>)> {
        if !self.wire.is_between() {
            let why = "more came on a stream than was asked for";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let (to_client, to_server) = self.wire.counts();
        let keys = self.session.keys.map(|keys| StreamKeys {
            to_client,
            to_server,
            ..keys
        });
        Ok((self.wire.into_socket(), keys))
    }

    /// Whether the peer has not closed it.
    pub fn is_open(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let seen = recv(self.wire.socket(), &mut [0; 1][..], flags);
        matches!(seen, Err(Errno::AGAIN))
    }
}

enum Tried {
    Ready(Wire, Session),
    Later(Later),
}

/// Why to come again.
enum Later {
    /// The server has its bound of streams.
    Busy,
    /// It sent nothing that proves its identity; the text says what was seen instead.
    Unheard(String),
}

/// The end of a wait that somebody has cancelled.
pub(crate) fn stopped() -> MoverError {
    MoverError::new(RunErrorKind::Cancelled, "the transfer was cancelled")
}
