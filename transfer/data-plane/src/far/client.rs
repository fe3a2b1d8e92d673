//! The node that uses it.

use super::result;
use crate::rma::{RmaDirection, WindowClient};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tarn_proto::storage::{MAX_PIECE, Offer, StorageReply, StorageRequest, Verb};
use tarn_ring::{MemorySpan, Storage, StorageRequestError, SubmitOutcome, Ticket};
use tarn_stream::{Wire, keep_alive};

/// Bytes of requests that are made ready to be sent.
const OUT: usize = 1 << 20;
/// Bytes of answers that are received at once.
const IN: usize = 256 << 10;
/// For the node to offer a window.
const OFFERING: Duration = Duration::from_secs(10);
/// The time between two looks whether the stream is there, while no request is on it.
const LOOK: Duration = Duration::from_millis(100);
/// Looks without anything that has ended.
const STILL: u32 = 10;

/// A request to the other node, sent or still to be sent.
#[derive(Debug, Clone, Copy)]
struct RemoteStorageRequest {
    ask: StorageRequest,
    /// The memory that its bytes come from or go to.
    span: Option<MemorySpan>,
    /// The request that ends with this one.
    ends: Option<Ticket>,
}

/// Storage memory of another node, in the hands of one queue pair. Each has a stream of its own, and perhaps a window that it
/// reads and writes by; when one of them is lost, all requests under way and all later ones end with `Lost`.
#[derive(Debug)]
pub struct RemoteStorage {
    window: Option<WindowClient>,
    /// An eventfd, notified when the window has news, and an epoll descriptor that has that, the stream, and the window's
    /// own.
    event: Option<[OwnedFd; 2]>,
    /// The time at which the stream was last seen to be there, the number of requests that had ended by the window, and how
    /// often that was the same.
    looked: Instant,
    seen: (u64, u32),
    wire: Wire,
    size: Arc<AtomicU64>,
    persistent: bool,
    /// Not made ready yet.
    waiting: VecDeque<RemoteStorageRequest>,
    /// Made ready, or sent: answered in this order.
    unanswered: VecDeque<RemoteStorageRequest>,
    out: Vec<u8>,
    sent: usize,
    buffer: Vec<u8>,
    unread: Range<usize>,
    /// Bytes of the first answer's that are still to come: where in its span.
    filling: Option<Filling>,
    /// Of the pieces of the request that is being answered.
    result: Result<u64, StorageRequestError>,
    lost: bool,
}

/// The bytes of an answer, which come.
#[derive(Debug, Clone, Copy)]
struct Filling {
    rest: MemorySpan,
}

impl RemoteStorage {
    /// On a stream that the other node has given over, to a partition of so many bytes; a caller that learns of a larger
    /// size stores it there.
    ///
    /// # Errors
    /// When the stream cannot be used.
    pub fn new(wire: Wire, size: Arc<AtomicU64>, persistent: bool) -> io::Result<Self> {
        wire.socket().set_nodelay(true)?;
        keep_alive(wire.socket())?;
        wire.socket().set_nonblocking(true)?;
        Ok(Self {
            window: None,
            event: None,
            looked: Instant::now(),
            seen: (0, 0),
            wire,
            size,
            persistent,
            waiting: VecDeque::new(),
            unanswered: VecDeque::new(),
            out: Vec::new(),
            sent: 0,
            buffer: Vec::new(),
            unread: 0..0,
            filling: None,
            result: Ok(0),
            lost: false,
        })
    }

    /// Asks for a window, before anything else, and uses it from then on; false where all goes by the stream, as there is none, the stream
    /// is sealed, its provider is another one, or it cannot be reached.
    ///
    /// # Errors
    /// When the stream cannot be used any more.
    pub fn by_window(&mut self, library: &Path, provider: &str) -> io::Result<bool> {
        if self.wire.is_sealed() {
            return Ok(false);
        }
        self.wire.socket().set_nonblocking(false)?;
        self.wire.socket().set_read_timeout(Some(OFFERING))?;
        let offered = self.offered();
        self.wire.socket().set_read_timeout(None)?;
        self.wire.socket().set_nonblocking(true)?;
        let offer = offered?.filter(|offer| offer.provider == provider && offer.size > 0);
        if let Some(offer) = offer {
            let at = self.wire.socket().local_addr()?.ip();
            self.window = WindowClient::open(library, at, offer).ok();
        }
        Ok(self.window.is_some())
    }

    fn offered(&mut self) -> io::Result<Option<Offer>> {
        let mut answer = [0; StorageReply::BYTES];
        self.wire
            .write_all(&StorageRequest::of(Verb::Window).encode())?;
        self.wire.read_exact(&mut answer)?;
        let Ok(length) = result(StorageReply::decode(answer)) else {
            return Ok(None);
        };
        let invalid = |text: String| io::Error::new(ErrorKind::InvalidData, text);
        if length > Offer::MAX_BYTES as u64 {
            return Err(invalid(format!("an offer of {length} bytes")));
        }
        let mut bytes = vec![0; length as usize];
        self.wire.read_exact(&mut bytes)?;
        let offer = Offer::decode(&bytes);
        offer.map(Some).map_err(|m| invalid(m.to_string()))
    }

    /// Begins to read or write by the window, if that can be; `None` if the request must go by the stream.
    fn begin_by_window(
        &mut self,
        way: RmaDirection,
        at: u64,
        span: MemorySpan,
        ticket: Ticket,
    ) -> Option<SubmitOutcome> {
        let window = self
            .window
            .as_mut()
            .filter(|window| window.takes(way, at, span))?;
        if window.begin(way, at, span, ticket).is_err() {
            // It is reported when completions are taken.
            self.lost = true;
        }
        Some(SubmitOutcome::Pending)
    }

    /// Checks that the stream is there, however long no request is on it; if nothing ends by the window, sends the node a
    /// request whether its window is good.
    fn look(&mut self, ended: u64) -> io::Result<()> {
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        self.seen = match self.seen {
            (before, looks) if before == ended => (ended, looks + 1),
            _ => (ended, 0),
        };
        if self.seen.1 >= STILL {
            self.seen.1 = 0;
            self.waiting.push_back(RemoteStorageRequest {
                ask: StorageRequest::of(Verb::Window),
                span: None,
                ends: None,
            });
        }
        match self.wire.socket().peek(&mut [0]) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(e) => Err(e),
            Ok(_) => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Asks for something in pieces.
    fn ask(
        &mut self,
        ask: StorageRequest,
        span: Option<MemorySpan>,
        ticket: Ticket,
    ) -> SubmitOutcome {
        if self.lost {
            return SubmitOutcome::Done(Err(StorageRequestError::Lost));
        }
        let Some(span) = span else {
            self.waiting.push_back(RemoteStorageRequest {
                ask,
                span: None,
                ends: Some(ticket),
            });
            return SubmitOutcome::Pending;
        };
        let (mut at, mut rest) = (ask.at, span);
        loop {
            let (piece, more) = rest.split(MAX_PIECE);
            let ask = StorageRequest {
                at,
                length: piece.len() as u32,
                ..ask
            };
            self.waiting.push_back(RemoteStorageRequest {
                ask,
                span: Some(piece),
                ends: (more.len() == 0).then_some(ticket),
            });
            if more.len() == 0 {
                return SubmitOutcome::Pending;
            }
            (at, rest) = (at + piece.len() as u64, more);
        }
    }

    /// Makes requests ready, and sends what the stream takes.
    fn push(&mut self) -> io::Result<()> {
        loop {
            if self.sent == self.out.len() {
                self.out.clear();
                self.sent = 0;
            }
            while self.out.len() < OUT
                && let Some(piece) = self.waiting.pop_front()
            {
                self.out.extend_from_slice(&piece.ask.encode());
                if let (Verb::Write | Verb::WritePersistent, Some(span)) =
                    (piece.ask.verb, piece.span)
                {
                    let from = self.out.len();
                    self.out.resize(from + span.len(), 0);
                    span.copy_to(&mut self.out[from..]);
                }
                self.unanswered.push_back(piece);
            }
            let went = match &self.out[self.sent..] {
                [] => self.wire.flush().map(|()| None),
                unsent => self.wire.write(unsent).map(Some),
            };
            match went {
                Ok(None) => return Ok(()),
                Ok(Some(0)) => return Err(ErrorKind::WriteZero.into()),
                Ok(Some(n)) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Goes on with all that is under way.
    fn take_ends(
        &mut self,
        ended: &mut dyn FnMut(Ticket, Result<u64, StorageRequestError>),
    ) -> io::Result<()> {
        if let Some(window) = &mut self.window {
            window.reap(&mut |ticket, bytes| ended(ticket, Ok(bytes)))?;
            if self.unanswered.is_empty() && self.waiting.is_empty() && !window.is_idle() {
                let ended = window.ended();
                return self.look(ended);
            }
        }
        self.push().and_then(|()| self.pull(ended))
    }

    /// Takes what has come.
    fn pull(
        &mut self,
        ended: &mut dyn FnMut(Ticket, Result<u64, StorageRequestError>),
    ) -> io::Result<()> {
        while !self.unanswered.is_empty() {
            self.take(ended)?;
            if self.unanswered.is_empty() {
                return Ok(());
            }
            // The rest is the beginning of an answer.
            self.buffer.resize(IN, 0);
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            match self.wire.read(&mut self.buffer[self.unread.end..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.unread.end += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Takes the answers that are in the buffer.
    fn take(
        &mut self,
        ended: &mut dyn FnMut(Ticket, Result<u64, StorageRequestError>),
    ) -> io::Result<()> {
        loop {
            let unread = &self.buffer[self.unread.clone()];
            if let Some(Filling { rest }) = self.filling {
                let (now, later) = rest.split(unread.len());
                now.fill(unread);
                self.unread.start += now.len();
                self.filling = (later.len() > 0).then_some(Filling { rest: later });
                if self.filling.is_some() {
                    return Ok(());
                }
                self.end(ended);
                continue;
            }
            let Some((head, _)) = unread.split_first_chunk::<{ StorageReply::BYTES }>() else {
                return Ok(());
            };
            let Some(piece) = self.unanswered.front() else {
                return Ok(());
            };
            let answer = StorageReply::decode(*head);
            self.unread.start += StorageReply::BYTES;
            let result = result(answer);
            let reads = piece.ask.verb == Verb::Read && result.is_ok();
            let fits = match (piece.ask.verb, result) {
                (Verb::Read | Verb::Write | Verb::WritePersistent, Ok(bytes)) => {
                    bytes == u64::from(piece.ask.length)
                }
                // If the answer is not good, the requests that wait for it never end.
                (Verb::Window, result) => result == Ok(0),
                _ => true,
            };
            if !fits {
                return Err(ErrorKind::InvalidData.into());
            }
            self.filling = piece
                .span
                .filter(|span| reads && span.len() > 0)
                .map(|rest| Filling { rest });
            self.result = match (self.result, result) {
                (Ok(before), Ok(now)) => Ok(before + now),
                (Err(why), _) | (_, Err(why)) => Err(why),
            };
            if self.filling.is_none() {
                self.end(ended);
            }
        }
    }

    /// The first piece has ended.
    fn end(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, StorageRequestError>)) {
        if let Some(RemoteStorageRequest {
            ends: Some(ticket), ..
        }) = self.unanswered.pop_front()
        {
            ended(ticket, std::mem::replace(&mut self.result, Ok(0)));
        }
    }

    /// The stream is gone, and all that was under way with it.
    fn lose(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, StorageRequestError>)) {
        self.lost = true;
        let _ = self.wire.socket().shutdown(std::net::Shutdown::Both);
        if let Some([_, poll]) = self.event.take() {
            // It would be readable for ever.
            let _ = epoll::delete(poll, self.wire.socket());
        }
        let all = self.unanswered.drain(..).chain(self.waiting.drain(..));
        let all = all.filter_map(|piece| piece.ends);
        let window = self.window.take().map_or_else(Vec::new, WindowClient::lose);
        for ticket in all.chain(window) {
            ended(ticket, Err(StorageRequestError::Lost));
        }
    }
}

fn ask(verb: Verb, at: u64, operand: u64, expected: u64) -> StorageRequest {
    StorageRequest {
        at,
        operand,
        expected,
        ..StorageRequest::of(verb)
    }
}

impl Storage for RemoteStorage {
    fn size(&mut self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn is_persistent(&self) -> bool {
        self.persistent
    }

    fn read(&mut self, at: u64, to: MemorySpan, ticket: Ticket) -> SubmitOutcome {
        let begun = self.begin_by_window(RmaDirection::Read, at, to, ticket);
        begun.unwrap_or_else(|| self.ask(ask(Verb::Read, at, 0, 0), Some(to), ticket))
    }

    fn write(
        &mut self,
        at: u64,
        from: MemorySpan,
        persistent: bool,
        ticket: Ticket,
    ) -> SubmitOutcome {
        let verb = match persistent {
            true => Verb::WritePersistent,
            false => Verb::Write,
        };
        // If the memory does not outlive a loss of power, persistence needs nothing more.
        let begun = match persistent && self.persistent {
            true => None,
            false => self.begin_by_window(RmaDirection::Write, at, from, ticket),
        };
        begun.unwrap_or_else(|| self.ask(ask(verb, at, 0, 0), Some(from), ticket))
    }

    fn fetch_add(&mut self, at: u64, add: u64, ticket: Ticket) -> SubmitOutcome {
        self.ask(ask(Verb::FetchAdd, at, add, 0), None, ticket)
    }

    fn compare_swap(&mut self, at: u64, expected: u64, new: u64, ticket: Ticket) -> SubmitOutcome {
        self.ask(ask(Verb::CompareSwap, at, new, expected), None, ticket)
    }

    fn flush(&mut self, ticket: Ticket) -> SubmitOutcome {
        self.ask(ask(Verb::Flush, 0, 0, 0), None, ticket)
    }

    /// A failed send is found when completions are taken.
    fn settle(&mut self) -> Result<(), StorageRequestError> {
        if !self.lost {
            self.lost = self.push().is_err();
        }
        // A loss found here is reported when completions are taken.
        if let Some([event, _]) = &self.event
            && (self.lost
                || self
                    .window
                    .as_ref()
                    .is_some_and(|window| !window.may_sleep()))
        {
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
        Ok(())
    }

    fn reap(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, StorageRequestError>)) {
        let went = match self.lost {
            true => Err(ErrorKind::ConnectionAborted.into()),
            false => self.take_ends(ended),
        };
        if went.is_err() {
            self.lose(ended);
        }
    }

    fn notify(&mut self, event: BorrowedFd<'_>, poll: BorrowedFd<'_>) -> bool {
        let add = |fd: BorrowedFd<'_>| {
            match epoll::add(poll, fd, EventData::new_u64(0), EventFlags::IN) {
                // It is registered again with every new storage.
                Err(Errno::EXIST) => Ok(()),
                added => added,
            }
        };
        if add(self.wire.socket().as_fd()).is_err() {
            return false;
        }
        if let Some(window) = &self.window
            && window.descriptor().is_none_or(|fd| add(fd).is_err())
        {
            return false;
        }
        let owned = event
            .try_clone_to_owned()
            .and_then(|event| Ok([event, poll.try_clone_to_owned()?]));
        self.event = owned.ok();
        self.event.is_some()
    }
}
