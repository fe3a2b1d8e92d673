//! What a rank asks of another: a request, an answer, on a connection that is kept for the next.

use crate::folder::{AGAIN, PrivateFolder};
use crate::greet::{self, ConnectionRole, GreetingReply, RankGreeting};
use crate::line::malformed;
use crate::one_sided::WindowName;
use crate::socket::{RankSocket, deadline};
use crate::state::{CarriedCounters, MeetingContext, rank};
use crate::wire::{FrameFields, MAX_TEXT, PIECE, RankRequest};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tarn_ports::RanksError;
use tarn_types::crc::joined;

/// Bytes that are looked at while they are in the second-level cache.
const PART: usize = 256 << 10;
/// Connections to a rank that are kept while nobody uses them.
const MAX_KEPT: usize = 4;

/// A rank as others reach it.
pub(crate) struct RankPeer {
    pub(crate) node: String,
    /// Over its node.
    pub(crate) switches: String,
    /// HOST:PORT, where ranks are on several nodes.
    pub(crate) address: Option<String>,
    kept: Mutex<Vec<RankSocket>>,
    /// Its window onto what it keeps for this rank, of a generation.
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

/// Connects, if it must until the time is over, and says who this is.
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

/// One call: who is asked, by when.
pub(crate) struct RankCall<'a> {
    pub(crate) shared: &'a MeetingContext,
    pub(crate) peer: &'a RankPeer,
    pub(crate) to: u32,
    /// Where it can be had without the network.
    pub(crate) folder: Option<&'a PrivateFolder>,
    pub(crate) within: Duration,
    /// The end of that, which is put off while bytes come.
    pub(crate) until: Cell<Instant>,
}

/// An answer: the error of a rank that refuses, or of a connection.
pub(crate) type RankReply<T> = io::Result<Result<T, String>>;

impl RankCall<'_> {
    pub(crate) fn grant(self, generation: u64, bytes: u64) -> Result<String, RanksError> {
        self.forget_window();
        let granted = self.run(|socket, until| {
            send(socket, &RankRequest::Grant(generation, bytes), until)?;
            let name = receive(socket, MAX_TEXT, until)?;
            name.map(String::from_utf8)
                .map_or_else(|why| Ok(Err(why)), |n| n.map(Ok).map_err(|_| malformed()))
        });
        if granted.is_ok() {
            self.ask_window(generation);
        }
        granted
    }

    pub(crate) fn put(self, generation: u64, at: u64, bytes: &[u8]) -> Result<u64, RanksError> {
        within_range(at, bytes.len())?;
        let carried = &self.shared.carried;
        let why = match self.write(generation, at, bytes) {
            Ok(Some(sum)) => {
                CarriedCounters::add(&carried.put, bytes.len());
                return Ok(sum);
            }
            Ok(None) => None,
            Err(why) => Some(why),
        };
        let sum = self.send(generation, at, bytes)?;
        CarriedCounters::add(&carried.put_by_stream, bytes.len());
        if let Some(why) = why {
            self.note_detour(&why);
        }
        Ok(sum)
    }

    /// By the stream.
    fn send(&self, generation: u64, at: u64, bytes: &[u8]) -> Result<u64, RanksError> {
        self.run(|socket, until| {
            let mut checksum = 0;
            let mut take = |len: usize| -> RankReply<()> {
                let piece = match receive(socket, 8, until)? {
                    Ok(piece) => piece,
                    Err(why) => return Ok(Err(why)),
                };
                let piece = FrameFields(&piece).u64().ok_or_else(malformed)?;
                checksum = joined(checksum, piece, len as u64);
                Ok(Ok(()))
            };
            // While one is being kept the next is on its way. Of nothing there is one piece.
            let mut under_way = None;
            let mut sent = 0;
            while sent < bytes.len() || under_way.is_none() {
                let piece = &bytes[sent..(sent + PIECE).min(bytes.len())];
                let request = RankRequest::Put(generation, at + sent as u64, piece);
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
        let carried = &self.shared.carried;
        let (there, why) = self.read(medium, at, into, arrived);
        CarriedCounters::add(&carried.fetched, there);
        if there == into.len() && there > 0 {
            return Ok(());
        }
        self.receive(medium, at, (there, into), arrived)?;
        CarriedCounters::add(&carried.fetched_by_stream, into.len() - there);
        if let Some(why) = why {
            self.peer.plain.store(true, Ordering::Relaxed);
            self.note_detour(&why);
        }
        Ok(())
    }

    /// By the stream, what is not there yet.
    fn receive(
        &self,
        medium: &str,
        at: u64,
        (mut there, into): (usize, &mut [u8]),
        arrived: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RanksError> {
        let within = self.within;
        self.run(|socket, mut until| {
            let mut asked = there;
            let size = into.len();
            let mut ask = |socket: &RankSocket, until| {
                let len = PIECE.min(size - asked);
                let at = at + asked as u64;
                asked += len;
                match len {
                    0 => Ok(()),
                    len => send(socket, &RankRequest::Fetch(at, len, medium), until),
                }
            };
            // While one is on its way the next is being read.
            ask(socket, until)?;
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

    pub(crate) fn run<T>(
        &self,
        ask: impl FnOnce(&RankSocket, Instant) -> RankReply<T>,
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

fn within_range(at: u64, len: usize) -> Result<(), RanksError> {
    let end = at.checked_add(len as u64);
    end.map(drop)
        .ok_or_else(|| RanksError::Invalid(format!("{len} bytes at {at} end nowhere")))
}

pub(crate) fn send(
    socket: &RankSocket,
    request: &RankRequest<'_>,
    until: Instant,
) -> io::Result<()> {
    socket.send_all(&request.head(), request.payload(), until)
}

/// The length of an answer, or the text of a refusal.
fn answer(socket: &RankSocket, until: Instant) -> RankReply<usize> {
    let mut head = [0; 5];
    socket.receive_all(&mut head, until)?;
    let [a, b, c, d, status] = head;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    match (status, len.checked_sub(1)) {
        (0, Some(len)) => Ok(Ok(len)),
        (1, Some(len)) if len <= MAX_TEXT => {
            let mut text = vec![0; len];
            socket.receive_all(&mut text, until)?;
            Ok(Err(FrameFields(&text).text()))
        }
        _ => Err(malformed()),
    }
}

/// An answer of at most so many bytes.
pub(crate) fn receive(socket: &RankSocket, most: usize, until: Instant) -> RankReply<Vec<u8>> {
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
