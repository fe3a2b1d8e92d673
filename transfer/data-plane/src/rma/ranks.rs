//! Windows for the ranks of a program: onto what they keep for each other, and onto what they read of each other.
//!
//! Progress is made only when a rank calls for it: a program that computes has no thread here.

use super::shim::RmaOperation;
use super::{AGAIN, AHEAD, BLOCK, Domain, EndpointRole, LOOK, Rma, RmaDirection, WindowReader};
use crate::lock;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_ports::{ExposedExtent, KeepAliveGuard, OneSided};
use tarn_proto::storage::Offer;

/// Buffers of [`BLOCK`] bytes that are kept: as many as four threads have under way.
const SPARE: usize = 16;
/// A thread that makes progress sees within a turn that it is over.
const FAREWELL: Duration = Duration::from_secs(1);

impl Rma {
    /// The window that another rank offers, and the endpoint that goes there.
    fn towards(&self, here: IpAddr, words: &[u8], end: u64) -> io::Result<(Arc<Domain>, Offer)> {
        let offer = Offer::decode(words).map_err(|e| io::Error::other(e.to_string()))?;
        if offer.provider != self.provider {
            let text = format!("it has {}, and this rank {}", offer.provider, self.provider);
            return Err(io::Error::other(text));
        }
        if end > offer.size {
            let text = format!("its window has {} bytes, and not {end}", offer.size);
            return Err(io::Error::other(text));
        }
        Ok((self.at(here, EndpointRole::Accesses)?, offer))
    }

    fn at(&self, here: IpAddr, side: EndpointRole) -> io::Result<Arc<Domain>> {
        self.domain_at(here, side).map_err(io::Error::other)
    }

    /// Ends an endpoint on which an operation was given up: it sends nothing more from here, and a provider that waits for an
    /// answer in vain delays the end of nothing else.
    fn abandon(&self, domain: &Arc<Domain>) {
        lock(&self.domains).retain(|_, other| !Arc::ptr_eq(other, domain));
        domain.endpoint.stop();
    }

    fn moved(&self, domain: &Arc<Domain>, how: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        how().inspect_err(|_| self.abandon(domain))
    }

    fn send(
        &self,
        domain: &Arc<Domain>,
        offer: &Offer,
        at: u64,
        bytes: &[u8],
        waits: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let _user = domain.user()?;
        let window = &offer.window;
        let peer = domain.peer(&window.name)?;
        let mut pieces = (at..).step_by(BLOCK).zip(bytes.chunks(BLOCK)).peekable();
        let mut flights: VecDeque<Arc<RmaOperation>> = VecDeque::new();
        while pieces.peek().is_some() || !flights.is_empty() {
            while let Some((at, piece)) = pieces.peek().filter(|_| flights.len() < AHEAD) {
                // Its own memory: the program's may be gone, or another's, before a write that was given up has ended.
                let mut buffer = self.buffer();
                buffer.clear();
                buffer.extend_from_slice(piece);
                let place = (window.from.wrapping_add(*at), window.key);
                let endpoint = &domain.endpoint;
                match endpoint.begin(RmaDirection::Write, peer, place, buffer, piece.len()) {
                    Ok(flight) => flights.push_back(flight),
                    Err((buffer, e)) if e.kind() == io::ErrorKind::WouldBlock => {
                        self.keep(buffer);
                        break;
                    }
                    Err((_, e)) => return Err(e),
                }
                pieces.next();
            }
            match flights.front().map(|first| first.wait(LOOK)) {
                // A connection is being made.
                None => {
                    std::thread::sleep(AGAIN);
                    waits()?;
                }
                Some(None) => waits()?,
                Some(Some((buffer, written))) => {
                    flights.pop_front();
                    written?;
                    self.keep(buffer);
                }
            }
            domain.endpoint.is_open()?;
        }
        Ok(())
    }

    fn buffer(&self) -> Vec<u8> {
        lock(&self.spare).pop().unwrap_or_default()
    }

    fn keep(&self, buffer: Vec<u8>) {
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE && buffer.capacity() > 0 {
            spare.push(buffer);
        }
    }
}

impl OneSided for Rma {
    fn name(&self) -> &str {
        &self.named
    }

    fn open(
        &self,
        here: IpAddr,
        file: BorrowedFd<'_>,
        stretch: Range<u64>,
        writable: bool,
    ) -> io::Result<ExposedExtent> {
        let size = stretch.end.saturating_sub(stretch.start);
        let stretch = (stretch.start, size);
        let (opening, window) =
            self.at(here, EndpointRole::Shows)?
                .window(file, stretch, (writable, None))?;
        let offer = Offer {
            provider: self.provider.clone(),
            size,
            writable,
            window,
        };
        Ok((Box::new(opening), offer.encode().into()))
    }

    fn attend(&self, here: IpAddr) -> io::Result<KeepAliveGuard> {
        Ok(Box::new(self.at(here, EndpointRole::Shows)?.user()?))
    }

    fn write(
        &self,
        here: IpAddr,
        words: &[u8],
        at: u64,
        bytes: &[u8],
        waits: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let end = at.saturating_add(bytes.len() as u64);
        let (domain, offer) = self.towards(here, words, end)?;
        self.moved(&domain, || self.send(&domain, &offer, at, bytes, waits))
    }

    fn read(
        &self,
        here: IpAddr,
        words: &[u8],
        into: &mut [u8],
        waits: &mut dyn FnMut() -> io::Result<()>,
        arrived: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        let size = into.len() as u64;
        let (domain, offer) = self.towards(here, words, size)?;
        self.moved(&domain, || {
            let spare = (0..=AHEAD).map(|_| self.buffer()).collect();
            let mut reading = WindowReader::new(&domain, &offer.window, size, spare)?;
            let mut there = 0;
            while there < into.len() {
                match reading.read(&mut into[there..]) {
                    Ok(more) => {
                        there += more;
                        arrived(&into[..there]);
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => waits()?,
                    Err(e) => return Err(e),
                }
            }
            reading.end().into_iter().for_each(|b| self.keep(b));
            Ok(())
        })
    }

    /// Before the program ends, and libfabric with it.
    fn close(&self) {
        Self::close(self);
        let until = Instant::now() + FAREWELL;
        while self.threads() > 0 && Instant::now() < until {
            std::thread::sleep(AGAIN);
        }
    }
}
