//! Reads and writes of a window with nothing around them: the baseline of benchmarks.

use super::shim::{FileWindow, Numbered, RmaDirection, RmaEndpoint, Shim};
use super::{RmaError, on_stack, source};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tarn_proto::data::Window;
use tarn_proto::storage::Offer;
use tarn_ring::MemorySpan;

/// A window onto a file, and its endpoint, which somebody has to have work.
pub struct BareWindow {
    endpoint: Arc<RmaEndpoint>,
    offer: Offer,
    _opening: FileWindow,
}

impl BareWindow {
    /// Onto the first bytes of a file, at an address of this host.
    ///
    /// # Errors
    /// The resource that is not available.
    pub fn open(
        library: &Path,
        provider: &str,
        at: IpAddr,
        (file, size): (BorrowedFd<'_>, u64),
    ) -> Result<Self, RmaError> {
        let shim = Shim::load(library)?;
        let node = source(provider, at);
        let endpoint = Arc::new(on_stack(|| RmaEndpoint::open(&shim, provider, node))?);
        let failed = |e: io::Error| RmaError::new(format_args!("no window onto the file: {e}"));
        endpoint.guard().map_err(failed)?;
        let opened = endpoint.window(file, (0, size), (true, None), 1);
        let (opening, from, key) = opened.map_err(failed)?;
        let name = endpoint.name().map_err(failed)?;
        Ok(Self {
            endpoint,
            offer: Offer {
                provider: provider.to_owned(),
                size,
                writable: true,
                window: Window { name, from, key },
            },
            _opening: opening,
        })
    }

    /// The offer that its users need.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Has it work without a pause until that is set.
    ///
    /// # Errors
    /// When the endpoint fails.
    pub fn work(&self, until: &AtomicBool) -> io::Result<()> {
        while !until.load(Ordering::Relaxed) {
            self.endpoint.progress(Duration::ZERO)?;
        }
        Ok(())
    }
}

/// Reads and writes of such a window.
pub struct RawWindowClient {
    endpoint: Numbered,
    peer: u64,
    at: (u64, u64),
}

impl RawWindowClient {
    /// To a window, from an address of this host.
    ///
    /// # Errors
    /// The resource that is not available.
    pub fn open(library: &Path, at: IpAddr, offer: &Offer) -> Result<Self, RmaError> {
        let shim = Shim::load(library)?;
        let node = source(&offer.provider, at);
        let endpoint = on_stack(|| Numbered::open(&shim, &offer.provider, node))?;
        let failed = |e: io::Error| RmaError::new(format_args!("the window has no peer: {e}"));
        let peer = endpoint.peer(&offer.window.name).map_err(failed)?;
        Ok(Self {
            peer,
            at: (offer.window.from, offer.window.key),
            endpoint,
        })
    }

    /// Reads, or writes, at each place, as many bytes as each of the spans has, one of which each request that is under way has for itself.
    ///
    /// # Errors
    /// When one fails.
    pub fn run(&mut self, write: bool, places: &[u64], spans: &[MemorySpan]) -> io::Result<()> {
        let way = if write {
            RmaDirection::Write
        } else {
            RmaDirection::Read
        };
        let mut free: Vec<u32> = (0..spans.len() as u32).collect();
        let mut places = places.iter().peekable();
        while places.peek().is_some() || free.len() < spans.len() {
            while let (Some(number), Some(place)) = (free.last(), places.peek()) {
                let at = (self.at.0.wrapping_add(**place), self.at.1);
                let span = spans[*number as usize];
                if !self.endpoint.begin(way, self.peer, at, span, *number)? {
                    break;
                }
                free.pop();
                places.next();
            }
            let mut failed = Ok(());
            self.endpoint.ended(|number, result| {
                free.push(number);
                failed = std::mem::replace(&mut failed, Ok(())).and(result);
            })?;
            failed?;
        }
        Ok(())
    }
}
