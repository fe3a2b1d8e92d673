//! A window onto storage memory of another node, used by one thread with an endpoint of its own.

use super::shim::{Numbered, RmaDirection, Shim};
use super::{RmaError, on_stack, source};
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use tarn_proto::storage::Offer;
use tarn_ring::{MemorySpan, Ticket};

/// Bytes of one request, at most: the number that providers take at once.
const MAX_BYTES: usize = 1 << 30;
/// Bytes that are moved as one by the node itself, where they are aligned.
const WORD: usize = 8;
/// For the first read, which makes the connection.
const TRIAL: Duration = Duration::from_secs(5);
/// For what is under way when it is given back: until then the memory may be the peer's to write to.
const FAREWELL: Duration = Duration::from_secs(2);

/// A request that could not be begun yet.
#[derive(Clone, Copy)]
struct QueuedRmaRequest {
    way: RmaDirection,
    at: u64,
    span: MemorySpan,
    ticket: Ticket,
}

/// Reads and writes of a window.
pub(crate) struct WindowClient {
    endpoint: Numbered,
    peer: u64,
    offer: Offer,
    waiting: VecDeque<QueuedRmaRequest>,
    under_way: InFlightBytes,
    failed: Vec<Ticket>,
}

/// Bytes of requests under way, by ticket: those are small numbers.
#[derive(Default)]
struct InFlightBytes {
    bytes: Vec<u64>,
    count: usize,
    /// That are not any more.
    ended: u64,
}

impl InFlightBytes {
    fn insert(&mut self, ticket: Ticket, bytes: u64) {
        let at = ticket as usize;
        if at >= self.bytes.len() {
            self.bytes.resize(at + 1, 0);
        }
        debug_assert!(bytes > 0, "request {ticket} moves nothing");
        debug_assert_eq!(self.bytes[at], 0, "request {ticket} is under way already");
        self.bytes[at] = bytes;
        self.count += 1;
    }

    /// Its bytes; none where it is not under way.
    fn remove(&mut self, ticket: Ticket) -> Option<u64> {
        let bytes = std::mem::take(self.bytes.get_mut(ticket as usize)?);
        self.count -= usize::from(bytes > 0);
        self.ended += u64::from(bytes > 0);
        (bytes > 0).then_some(bytes)
    }

    fn tickets(&self) -> impl Iterator<Item = Ticket> {
        let all = (0..).zip(&self.bytes);
        all.filter_map(|(ticket, bytes)| (*bytes > 0).then_some(ticket))
    }
}

impl std::fmt::Debug for WindowClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "WindowClient({}, {} under way)",
            self.offer.provider, self.under_way.count
        )
    }
}

impl WindowClient {
    /// To the window that a node offers which this one, at an address of its own, reaches by a stream.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn open(library: &Path, at: IpAddr, offer: Offer) -> Result<Self, RmaError> {
        let shim = Shim::load(library)?;
        let node = source(&offer.provider, at);
        let mut endpoint = on_stack(|| Numbered::open(&shim, &offer.provider, node))?;
        let failed = |e: io::Error| RmaError::new(format_args!("the window cannot be read: {e}"));
        let peer = endpoint.peer(&offer.window.name).map_err(failed)?;
        let begin = (offer.window.from, offer.window.key);
        endpoint
            .try_peer(peer, begin, offer.size, TRIAL)
            .map_err(failed)?;
        Ok(Self {
            endpoint,
            peer,
            offer,
            waiting: VecDeque::new(),
            under_way: InFlightBytes::default(),
            failed: Vec::new(),
        })
    }

    /// Whether a request can go this way.
    pub(crate) fn takes(&self, way: RmaDirection, at: u64, span: MemorySpan) -> bool {
        let end = at.checked_add(span.len() as u64);
        // A word must be whole for others, with any provider.
        (WORD + 1..=MAX_BYTES).contains(&span.len())
            && end.is_some_and(|end| end <= self.offer.size)
            && (way == RmaDirection::Read || self.offer.writable)
    }

    /// Begins a request, at once or later.
    ///
    /// # Errors
    /// When no request to the peer is possible any more.
    pub(crate) fn begin(
        &mut self,
        way: RmaDirection,
        at: u64,
        span: MemorySpan,
        ticket: Ticket,
    ) -> io::Result<()> {
        let waiting = QueuedRmaRequest {
            way,
            at,
            span,
            ticket,
        };
        self.under_way.insert(ticket, span.len() as u64);
        if !self.waiting.is_empty() || !self.try_begin(waiting)? {
            self.waiting.push_back(waiting);
        }
        Ok(())
    }

    fn try_begin(&self, it: QueuedRmaRequest) -> io::Result<bool> {
        let window = &self.offer.window;
        // Providers may count from anywhere, and wrap around.
        let at = (window.from.wrapping_add(it.at), window.key);
        self.endpoint
            .begin(it.way, self.peer, at, it.span, it.ticket)
    }

    /// Begins what waits, as far as it can be.
    ///
    /// # Errors
    /// As [`WindowClient::begin`].
    pub(crate) fn push(&mut self) -> io::Result<()> {
        while let Some(first) = self.waiting.front() {
            if !self.try_begin(*first)? {
                return Ok(());
            }
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Tells what has ended, with its bytes.
    ///
    /// # Errors
    /// When one has failed, and all the others with it.
    pub(crate) fn reap(&mut self, ended: &mut dyn FnMut(Ticket, u64)) -> io::Result<()> {
        if self.is_idle() {
            return Ok(());
        }
        let mut all = Ok(());
        let under_way = &mut self.under_way;
        self.endpoint
            .ended(|ticket, result| match (under_way.remove(ticket), result) {
                (Some(bytes), Ok(())) => ended(ticket, bytes),
                (Some(_), Err(e)) => {
                    self.failed.push(ticket);
                    all = Err(e);
                }
                (None, _) => {}
            })?;
        all.and_then(|()| self.push())
    }

    /// The descriptor that becomes readable when something may have ended, unless [`WindowClient::may_sleep`] says no; none
    /// if the provider has none.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.descriptor()
    }

    /// Whether a waiter for the descriptor misses nothing, and is not woken by earlier events.
    pub(crate) fn may_sleep(&self) -> bool {
        self.waiting.is_empty() && self.endpoint.may_sleep()
    }

    /// How many have ended so far.
    pub(crate) fn ended(&self) -> u64 {
        self.under_way.ended
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.count == 0
    }

    /// The requests that have failed, and those that have not ended and never will.
    pub(crate) fn lose(mut self) -> Vec<Ticket> {
        let mut all = std::mem::take(&mut self.failed);
        all.extend(self.under_way.tickets());
        all
    }
}

impl Drop for WindowClient {
    fn drop(&mut self) {
        let until = Instant::now() + FAREWELL;
        for it in self.waiting.drain(..) {
            self.under_way.remove(it.ticket);
        }
        while !self.is_idle() && Instant::now() < until {
            let under_way = &mut self.under_way;
            let polled = self.endpoint.ended(|ticket, _| {
                under_way.remove(ticket);
            });
            if polled.is_err() {
                return;
            }
            std::thread::yield_now();
        }
    }
}
