//! Another rank: the connections to it that are kept, and one request with its answer on such a connection.

use crate::folder::{AGAIN, PrivateFolder};
use crate::greet::{self, ConnectionRole, GreetingReply, RankGreeting};
use crate::line::malformed;
use crate::socket::RankSocket;
use crate::state::{MeetingContext, rank};
use crate::wire::{FrameFields, MAX_TEXT, RankRequest};
use std::cell::Cell;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tarn_ports::RanksError;

/// Connections to a rank that are kept while nobody uses them.
const MAX_KEPT: usize = 4;

/// A window at a rank: the generation that it is for, and the words that name it.
pub(crate) type WindowName = (u64, Arc<[u8]>);

/// A rank as others reach it.
pub(crate) struct RankPeer {
    pub(crate) node: String,
    /// Over its node.
    pub(crate) switches: String,
    /// HOST:PORT, where ranks are on several nodes.
    pub(crate) address: Option<String>,
    kept: Mutex<Vec<RankSocket>>,
    /// Its window onto the memory that it keeps for this rank, of a generation.
    pub(crate) window: Mutex<Option<WindowName>>,
    /// Nothing can be read by windows of its.
    pub(crate) plain: AtomicBool,
}

impl RankPeer {
    pub(crate) fn new(node: String, switches: String, address: Option<String>) -> Self {
        Self {
            node,
            switches,
            address,
            kept: Mutex::default(),
            window: Mutex::default(),
            plain: AtomicBool::new(false),
        }
    }
}

/// Connects, with tries until the time is over if it must, and sends the greeting.
pub(crate) fn open<T>(
    shared: (&greet::ProgramKey, &RankGreeting),
    until: Instant,
    mut connect: impl FnMut() -> io::Result<(RankSocket, T)>,
    mut again: impl FnMut(&io::Error) -> bool,
) -> io::Result<(RankSocket, T, GreetingReply)> {
    let (key, who) = shared;
    loop {
        let mut attempt = || {
            let (socket, at) = connect()?;
            greet::prove(&socket, key, until)?;
            let answer = who.send(&socket, until)?;
            Ok((socket, at, answer))
        };
        match attempt() {
            Err(e) if again(&e) && Instant::now() < until => std::thread::sleep(AGAIN),
            done => return done,
        }
    }
}

/// One call: which rank it goes to, by when.
pub(crate) struct RankCall<'a> {
    pub(crate) shared: &'a MeetingContext,
    pub(crate) peer: &'a RankPeer,
    pub(crate) to: u32,
    /// The folder of its socket, if it is on this node.
    pub(crate) folder: Option<&'a PrivateFolder>,
    pub(crate) within: Duration,
    /// The end of that, which is put off while bytes come.
    pub(crate) until: Cell<Instant>,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum RankCallError {
    /// The rank refuses, or the means that moves the bytes fails: the text for people.
    Refused(String),
    /// The connection fails.
    Connection(io::Error),
}

impl From<io::Error> for RankCallError {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

/// An answer.
pub(crate) type RankReply<T> = Result<T, RankCallError>;

impl RankCall<'_> {
    /// Has one request made, on a connection that is kept for the next one if the request succeeds.
    pub(crate) fn run<T>(
        &self,
        request: impl FnOnce(&RankSocket, Instant) -> RankReply<T>,
    ) -> Result<T, RanksError> {
        let until = self.until.get();
        if let Some(gone) = self.shared.gone(self.to) {
            return Err(gone);
        }
        let kept = || {
            self.peer
                .kept
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let idle = kept().pop();
        let socket = match idle {
            Some(socket) => socket,
            None => self.connect(until)?,
        };
        match request(&socket, until) {
            Ok(answer) => {
                let mut kept = kept();
                if kept.len() < MAX_KEPT {
                    kept.push(socket);
                }
                Ok(answer)
            }
            // Another answer may be on its way: the connection ends here.
            Err(RankCallError::Refused(why)) => Err(RanksError::Refused {
                who: rank(self.to),
                why,
            }),
            Err(RankCallError::Connection(e)) => Err(self.failed(&e)),
        }
    }

    fn failed(&self, e: &io::Error) -> RanksError {
        let who = rank(self.to);
        match e.kind() {
            io::ErrorKind::TimedOut => RanksError::TimedOut {
                who,
                doing: "answer",
                seconds: self.within.as_secs(),
            },
            // The hub knows it better, if it knows it already.
            _ => self.shared.gone(self.to).unwrap_or(RanksError::Lost {
                who,
                why: e.to_string(),
            }),
        }
    }

    fn connect(&self, until: Instant) -> Result<RankSocket, RanksError> {
        let who = RankGreeting {
            role: ConnectionRole::Caller,
            identity: self.shared.identity,
            rank: self.shared.rank,
            ranks: self.shared.ranks,
            process: std::process::id(),
        };
        let connect = || {
            let here = self.folder.map(|f| f.connect(self.to));
            match (here, &self.peer.address) {
                (Some(Ok(socket)), _) => Ok((socket, ())),
                (Some(Err(e)), None) => Err(e),
                (_, Some(address)) => Ok((RankSocket::tcp(address, until)?.0, ())),
                (None, None) => Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    "it is on another node, and no address of rank 0 was given",
                )),
            }
        };
        // It has more connections than it can accept at once, or a stranger has taken this one's place.
        let again = |e: &io::Error| {
            let crowded = [io::ErrorKind::WouldBlock, io::ErrorKind::UnexpectedEof];
            crowded.contains(&e.kind())
        };
        let opened = open((&self.shared.key, &who), until, connect, again);
        let (socket, (), answer) = opened.map_err(|e| self.failed(&e))?;
        answer.of(&rank(self.to))?;
        Ok(socket)
    }
}

pub(crate) fn send(
    socket: &RankSocket,
    request: &RankRequest<'_>,
    until: Instant,
) -> io::Result<()> {
    socket.send_all(&request.head(), request.payload(), until)
}

/// The length of an answer.
pub(crate) fn answer(socket: &RankSocket, until: Instant) -> RankReply<usize> {
    let mut head = [0; 5];
    socket.receive_all(&mut head, until)?;
    let [a, b, c, d, status] = head;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    match (status, len.checked_sub(1)) {
        (0, Some(len)) => Ok(len),
        (1, Some(len)) if len <= MAX_TEXT => {
            let mut text = vec![0; len];
            socket.receive_all(&mut text, until)?;
            Err(RankCallError::Refused(FrameFields(&text).text()))
        }
        _ => Err(malformed().into()),
    }
}

/// An answer of at most so many bytes.
pub(crate) fn receive(socket: &RankSocket, most: usize, until: Instant) -> RankReply<Vec<u8>> {
    let len = answer(socket, until)?;
    if len > most {
        return Err(malformed().into());
    }
    let mut bytes = vec![0; len];
    socket.receive_all(&mut bytes, until)?;
    Ok(bytes)
}
