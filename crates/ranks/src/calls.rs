//! What a rank asks of another: a request, an answer, on a connection that is kept for the next.

use crate::folder::{AGAIN, Folder};
use crate::greet::{self, Answer, Greeting, Role};
use crate::line::malformed;
use crate::socket::{Socket, deadline};
use crate::state::{Shared, rank};
use crate::wire::{Fields, MAX_TEXT, PIECE, Request};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tarn_base::crc::joined;
use tarn_ports::RanksError;

/// Bytes that are looked at while they are in the second-level cache.
const PART: usize = 256 << 10;
/// Connections to a rank that are kept while nobody uses them.
const MAX_KEPT: usize = 4;

/// A rank as others reach it.
pub(crate) struct Peer {
    pub(crate) node: String,
    /// Over its node.
    pub(crate) switches: String,
    /// HOST:PORT, where ranks are on several nodes.
    pub(crate) address: Option<String>,
    kept: Mutex<Vec<Socket>>,
}

impl Peer {
    pub(crate) fn new(node: String, switches: String, address: Option<String>) -> Self {
        Self {
            node,
            switches,
            address,
            kept: Mutex::default(),
        }
    }
}

/// Connects, if it must until the time is over, and says who this is.
pub(crate) fn open<T>(
    shared: (&greet::Key, &Greeting),
    until: Instant,
    mut connect: impl FnMut() -> io::Result<(Socket, T)>,
    mut again: impl FnMut(&io::Error) -> bool,
) -> io::Result<(Socket, T, Answer)> {
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

/// One call: who is asked, by when.
pub(crate) struct Call<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) peer: &'a Peer,
    pub(crate) to: u32,
    /// Where it can be had without the network.
    pub(crate) folder: Option<&'a Folder>,
    pub(crate) within: Duration,
}

/// An answer: the error of a rank that refuses, or of a connection.
type Answered<T> = io::Result<Result<T, String>>;

impl Call<'_> {
    pub(crate) fn grant(self, generation: u64, bytes: u64) -> Result<String, RanksError> {
        self.run(|socket, until| {
            send(socket, &Request::Grant(generation, bytes), until)?;
            let name = receive(socket, MAX_TEXT, until)?;
            name.map(String::from_utf8)
                .map_or_else(|why| Ok(Err(why)), |n| n.map(Ok).map_err(|_| malformed()))
        })
    }

    pub(crate) fn put(self, generation: u64, at: u64, bytes: &[u8]) -> Result<u64, RanksError> {
        within_range(at, bytes.len())?;
        self.run(|socket, until| {
            let mut checksum = 0;
            let mut take = |len: usize| -> Answered<()> {
                let piece = match receive(socket, 8, until)? {
                    Ok(piece) => piece,
                    Err(why) => return Ok(Err(why)),
                };
                let piece = Fields(&piece).u64().ok_or_else(malformed)?;
                checksum = joined(checksum, piece, len as u64);
                Ok(Ok(()))
            };
            // While one is being kept the next is on its way. Of nothing there is one piece.
            let mut under_way = None;
            let mut sent = 0;
            while sent < bytes.len() || under_way.is_none() {
                let piece = &bytes[sent..(sent + PIECE).min(bytes.len())];
                let request = Request::Put(generation, at + sent as u64, piece);
                send(socket, &request, until)?;
                sent += piece.len();
                if let Some(len) = under_way.replace(piece.len())
                    && let Err(why) = take(len)?
                {
                    return Ok(Err(why));
                }
            }
            if let Err(why) = take(under_way.unwrap_or(0))? {
                return Ok(Err(why));
            }
            Ok(Ok(checksum))
        })
    }

    pub(crate) fn fetch(
        self,
        medium: &str,
        at: u64,
        into: &mut [u8],
        arrived: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RanksError> {
        within_range(at, into.len())?;
        if medium.len() > MAX_TEXT {
            let what = format!("a medium's name has at most {MAX_TEXT} bytes");
            return Err(RanksError::Invalid(what));
        }
        let within = self.within;
        self.run(|socket, mut until| {
            let mut asked = 0;
            let size = into.len();
            let mut ask = |socket: &Socket, until| {
                let len = PIECE.min(size - asked);
                let at = at + asked as u64;
                asked += len;
                match len {
                    0 => Ok(()),
                    len => send(socket, &Request::Fetch(at, len, medium), until),
                }
            };
            // While one is on its way the next is being read.
            ask(socket, until)?;
            let mut there = 0;
            while there < size {
                ask(socket, until)?;
                let end = (there + PIECE).min(size);
                match answer(socket, until)? {
                    Ok(len) if there + len == end => {}
                    Ok(_) => return Err(malformed()),
                    Err(why) => return Ok(Err(why)),
                }
                while there < end {
                    let part = there..(there + PART).min(end);
                    socket.receive_all(&mut into[part.clone()], until)?;
                    there = part.end;
                    arrived(&into[..there]);
                }
                // However slow the link is: only one that stands still is given up.
                until = deadline(within);
            }
            Ok(Ok(()))
        })
    }

    fn run<T>(self, ask: impl FnOnce(&Socket, Instant) -> Answered<T>) -> Result<T, RanksError> {
        let until = deadline(self.within);
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
        match ask(&socket, until).map_err(|e| self.failed(&e))? {
            Ok(answer) => {
                let mut kept = kept();
                if kept.len() < MAX_KEPT {
                    kept.push(socket);
                }
                Ok(answer)
            }
            // Another answer may be on its way: the connection ends here.
            Err(why) => Err(RanksError::Refused {
                who: rank(self.to),
                why,
            }),
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

    fn connect(&self, until: Instant) -> Result<Socket, RanksError> {
        let who = Greeting {
            role: Role::Caller,
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
                (_, Some(address)) => Ok((Socket::tcp(address, until)?.0, ())),
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

fn within_range(at: u64, len: usize) -> Result<(), RanksError> {
    let end = at.checked_add(len as u64);
    end.map(drop)
        .ok_or_else(|| RanksError::Invalid(format!("{len} bytes at {at} end nowhere")))
}

fn send(socket: &Socket, request: &Request<'_>, until: Instant) -> io::Result<()> {
    socket.send_all(&request.head(), request.payload(), until)
}

/// The length of an answer, or the text of a refusal.
fn answer(socket: &Socket, until: Instant) -> Answered<usize> {
    let mut head = [0; 5];
    socket.receive_all(&mut head, until)?;
    let [a, b, c, d, status] = head;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    match (status, len.checked_sub(1)) {
        (0, Some(len)) => Ok(Ok(len)),
        (1, Some(len)) if len <= MAX_TEXT => {
            let mut text = vec![0; len];
            socket.receive_all(&mut text, until)?;
            Ok(Err(Fields(&text).text()))
        }
        _ => Err(malformed()),
    }
}

/// An answer of at most so many bytes.
fn receive(socket: &Socket, most: usize, until: Instant) -> Answered<Vec<u8>> {
    Ok(match answer(socket, until)? {
        Ok(len) if len > most => return Err(malformed()),
        Ok(len) => {
            let mut bytes = vec![0; len];
            socket.receive_all(&mut bytes, until)?;
            Ok(bytes)
        }
        Err(why) => Err(why),
    })
}
