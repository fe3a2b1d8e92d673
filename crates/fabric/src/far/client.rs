//! The node that uses it.

use super::{keep_alive, result};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_proto::storage::{Answer, Ask, MAX_PIECE, Verb};
use tarn_ring::{Failure, Span, Started, Storage, Ticket};

/// Bytes of requests that are made ready to be sent.
const OUT: usize = 1 << 20;
/// Bytes of answers that are received at once.
const IN: usize = 256 << 10;

/// What is asked of the other node, or is to be.
#[derive(Debug, Clone, Copy)]
struct Piece {
    ask: Ask,
    /// Where its bytes are, or are to go.
    span: Option<Span>,
    /// The request that ends with this one.
    ends: Option<Ticket>,
}

/// Storage memory of another node, in the hands of one queue pair. Each has a stream of its own; when it is lost, all that was under way
/// ends with `Lost`, and whatever is asked for later.
#[derive(Debug)]
pub struct Far {
    socket: TcpStream,
    size: Arc<AtomicU64>,
    persistent: bool,
    /// Not made ready yet.
    waiting: VecDeque<Piece>,
    /// Made ready, or sent: answered in this order.
    asked: VecDeque<Piece>,
    out: Vec<u8>,
    sent: usize,
    buffer: Vec<u8>,
    unread: Range<usize>,
    /// Bytes of the first answer's that are still to come: where in its span.
    filling: Option<Filling>,
    /// Of the pieces of the request that is being answered.
    result: Result<u64, Failure>,
    lost: bool,
}

/// The bytes of an answer, which come.
#[derive(Debug, Clone, Copy)]
struct Filling {
    rest: Span,
}

impl Far {
    /// On a stream that the other node has given over, to a partition of so many bytes; whoever learns that there are more says so there.
    ///
    /// # Errors
    /// When the stream cannot be used.
    pub fn new(socket: TcpStream, size: Arc<AtomicU64>, persistent: bool) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        keep_alive(&socket)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            size,
            persistent,
            waiting: VecDeque::new(),
            asked: VecDeque::new(),
            out: Vec::new(),
            sent: 0,
            buffer: Vec::new(),
            unread: 0..0,
            filling: None,
            result: Ok(0),
            lost: false,
        })
    }

    /// What becomes readable when something has ended.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks for something in pieces.
    fn ask(&mut self, ask: Ask, span: Option<Span>, ticket: Ticket) -> Started {
        if self.lost {
            return Started::Done(Err(Failure::Lost));
        }
        let Some(span) = span else {
            self.waiting.push_back(Piece {
                ask,
                span: None,
                ends: Some(ticket),
            });
            return Started::Pending;
        };
        let (mut at, mut rest) = (ask.at, span);
        loop {
            let (piece, more) = rest.split(MAX_PIECE);
            let ask = Ask {
                at,
                length: piece.len() as u32,
                ..ask
            };
            self.waiting.push_back(Piece {
                ask,
                span: Some(piece),
                ends: (more.len() == 0).then_some(ticket),
            });
            if more.len() == 0 {
                return Started::Pending;
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
                self.asked.push_back(piece);
            }
            if self.out.is_empty() {
                return Ok(());
            }
            match self.socket.write(&self.out[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Takes what has come.
    fn pull(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, Failure>)) -> io::Result<()> {
        while !self.asked.is_empty() {
            self.take(ended)?;
            if self.asked.is_empty() {
                return Ok(());
            }
            // What is left is the beginning of an answer.
            self.buffer.resize(IN, 0);
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            match self.socket.read(&mut self.buffer[self.unread.end..]) {
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
    fn take(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, Failure>)) -> io::Result<()> {
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
            let Some((head, _)) = unread.split_first_chunk::<{ Answer::BYTES }>() else {
                return Ok(());
            };
            let Some(piece) = self.asked.front() else {
                return Ok(());
            };
            let answer = Answer::decode(*head);
            self.unread.start += Answer::BYTES;
            let result = result(answer);
            let reads = piece.ask.verb == Verb::Read && result.is_ok();
            if reads && answer.value != u64::from(piece.ask.length) {
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
    fn end(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, Failure>)) {
        if let Some(Piece {
            ends: Some(ticket), ..
        }) = self.asked.pop_front()
        {
            ended(ticket, std::mem::replace(&mut self.result, Ok(0)));
        }
    }

    /// The stream is gone, and all that was under way with it.
    fn lose(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, Failure>)) {
        self.lost = true;
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let all = self.asked.drain(..).chain(self.waiting.drain(..));
        for ticket in all.filter_map(|piece| piece.ends) {
            ended(ticket, Err(Failure::Lost));
        }
    }
}

fn ask(verb: Verb, at: u64, operand: u64, expected: u64) -> Ask {
    Ask {
        at,
        operand,
        expected,
        ..Ask::of(verb)
    }
}

impl Storage for Far {
    fn size(&mut self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn is_persistent(&self) -> bool {
        self.persistent
    }

    fn read(&mut self, at: u64, to: Span, ticket: Ticket) -> Started {
        self.ask(ask(Verb::Read, at, 0, 0), Some(to), ticket)
    }

    fn write(&mut self, at: u64, from: Span, persistent: bool, ticket: Ticket) -> Started {
        let verb = match persistent {
            true => Verb::WritePersistent,
            false => Verb::Write,
        };
        self.ask(ask(verb, at, 0, 0), Some(from), ticket)
    }

    fn fetch_add(&mut self, at: u64, add: u64, ticket: Ticket) -> Started {
        self.ask(ask(Verb::FetchAdd, at, add, 0), None, ticket)
    }

    fn compare_swap(&mut self, at: u64, expected: u64, new: u64, ticket: Ticket) -> Started {
        self.ask(ask(Verb::CompareSwap, at, new, expected), None, ticket)
    }

    fn flush(&mut self, ticket: Ticket) -> Started {
        self.ask(ask(Verb::Flush, 0, 0, 0), None, ticket)
    }

    /// What cannot be sent is found when ends are taken.
    fn settle(&mut self) -> Result<(), Failure> {
        if !self.lost {
            self.lost = self.push().is_err();
        }
        Ok(())
    }

    fn reap(&mut self, ended: &mut dyn FnMut(Ticket, Result<u64, Failure>)) {
        let went = match self.lost {
            true => Err(ErrorKind::ConnectionAborted.into()),
            false => self.push().and_then(|()| self.pull(ended)),
        };
        if went.is_err() {
            self.lose(ended);
        }
    }
}
