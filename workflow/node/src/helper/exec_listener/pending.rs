//! A client of `tarn exec` whose request has not arrived.

use super::{BACK_OFF, REQUEST_TIMEOUT};
use crate::fds::readable;
use crate::helper::exec_budget::{Budget, ExecBudgetPool, Lease};
use crate::helper::protocol::{Channel, ExecRequest, MAX_MESSAGE};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_sys::fdpass::{self, MAX_FDS};

/// Bytes of a request that each connection may have: most have less.
const SMALL: usize = 256 << 10;
/// One that sends such pieces does not stand still.
const PIECE: usize = 16 << 10;
/// The additional time for each MiB of a large request.
const FOR_A_MIB: Duration = Duration::from_secs(1);
/// A listener looks more often than this, unless its process does not run.
const LOOKS: Duration = Duration::from_millis(3 * BACK_OFF.as_millis() as u64);

/// A client, and the part of its request that has come.
pub(super) struct PendingExecClient {
    pub(super) client: Channel,
    /// The descriptors that came with its first byte.
    fds: Option<Vec<OwnedFd>>,
    held: ExecClientLeases,
    /// How long it could have sent its request.
    waited: Duration,
    /// So many pieces had come then.
    pieces: usize,
    advanced: Duration,
    seen: Instant,
    /// Its data is not read until the budget allows it.
    is_unread: bool,
}

/// Its shares of the budget, while it has them.
pub(super) struct ExecClientLeases {
    place: Lease,
    fds: Option<Lease>,
    bytes: Option<Lease>,
}

/// How much of a request has come.
pub(super) enum ExecRequestProgress {
    Whole(ExecRequest),
    Partly,
}

impl PendingExecClient {
    pub(super) fn new(client: Channel, place: Lease) -> Self {
        Self {
            client: client.limited(SMALL),
            fds: None,
            held: ExecClientLeases {
                place,
                fds: None,
                bytes: None,
            },
            waited: Duration::ZERO,
            pieces: 0,
            advanced: Duration::ZERO,
            seen: Instant::now(),
            is_unread: false,
        }
    }

    pub(super) fn into_parts(self) -> (Channel, Vec<OwnedFd>, ExecClientLeases) {
        (self.client, self.fds.unwrap_or_default(), self.held)
    }

    /// Whether it has a share of this.
    pub(super) fn holds(&self, pool: &Arc<ExecBudgetPool>) -> bool {
        let ExecClientLeases { place, fds, bytes } = &self.held;
        let mut leases = fds.iter().chain(bytes).chain([place]);
        leases.any(|lease| lease.is_of(pool))
    }

    /// How long nothing worth mentioning has come. Time in which nothing was read does not count.
    pub(super) fn stands_still(&self) -> Duration {
        self.waited.saturating_sub(self.advanced)
    }

    /// Whether the budget allows to read more.
    pub(super) fn may_be_read(&self, listener: u64, budget: &Budget) -> bool {
        match (&self.fds, self.is_unread) {
            (None, _) => budget.fds.is_free_for(listener, MAX_FDS),
            (Some(_), true) => budget.bytes.is_free_for(listener, MAX_MESSAGE),
            (Some(_), false) => true,
        }
    }

    /// Reads what has come, as far as the budget allows.
    pub(super) fn read(
        &mut self,
        listener: u64,
        budget: &Budget,
    ) -> io::Result<ExecRequestProgress> {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.seen).min(LOOKS);
        self.seen = now;
        let was_unread = std::mem::take(&mut self.is_unread);
        let request = match self.read_on(listener, budget) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
            other => other?,
        };
        if let Some(request) = request {
            return Ok(ExecRequestProgress::Whole(request));
        }
        if !self.is_unread && !was_unread {
            self.waited += passed;
        }
        let came = self.client.pending_bytes();
        if came / PIECE > self.pieces {
            (self.pieces, self.advanced) = (came / PIECE, self.waited);
        }
        let limit = REQUEST_TIMEOUT + FOR_A_MIB * (came >> 20) as u32;
        if self.waited < limit {
            return Ok(ExecRequestProgress::Partly);
        }
        let why = format!("the request did not arrive within {} s", limit.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    }

    fn read_on(&mut self, listener: u64, budget: &Budget) -> io::Result<Option<ExecRequest>> {
        if self.fds.is_none() {
            // One that is silent needs nothing of the budget.
            if !readable(&self.client.socket)? {
                return Ok(None);
            }
            let Some(mut lease) = budget.fds.reserve(listener, MAX_FDS) else {
                self.is_unread = true;
                return Ok(None);
            };
            let fds = fdpass::receive(&self.client.socket)?;
            lease.shrink(fds.len());
            (self.fds, self.held.fds) = (Some(fds), Some(lease));
        }
        match self.read_request() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.client.is_at_limit() => {}
            other => return other,
        }
        // Of those that are larger than most only a few are read at a time, each to its end.
        let Some(lease) = budget.bytes.reserve(listener, MAX_MESSAGE) else {
            self.is_unread = true;
            return Ok(None);
        };
        self.held.bytes = Some(lease);
        self.client.raise_limit();
        self.read_request()
    }

    fn read_request(&mut self) -> io::Result<Option<ExecRequest>> {
        match self.client.receive() {
            Ok(None) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            other => other,
        }
    }
}
