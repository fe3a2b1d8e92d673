//! Requests that have begun and not ended, and those that have ended and cannot be reported yet.

use crate::slab::Slab;
use std::collections::VecDeque;
use tarn_ring::{Cqe, Sqe, Ticket};

/// A request as it was posted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Posted {
    pub(crate) request: Sqe,
    /// The number of its group: the unsignalled requests after a signalled one, and the next signalled one.
    pub(crate) group: u64,
}

/// A request under way, and those that wait for it.
#[derive(Debug)]
pub(crate) struct RequestChain {
    pub(crate) head: Posted,
    pub(crate) rest: VecDeque<Posted>,
}

/// The end of a request that is not reported yet.
#[derive(Debug)]
struct Parked {
    group: u64,
    completion: Cqe,
    /// Its result is final.
    settled: bool,
}

/// All that has not ended.
#[derive(Debug, Default)]
pub(crate) struct RequestsInFlight {
    chains: Slab<RequestChain>,
    /// Requests in `chains`.
    requests: u32,
    /// Unsignalled ones of them, by their groups; the first is that of `oldest`, and never 0.
    unsignalled: VecDeque<u32>,
    oldest: u64,
    /// Ends of signalled requests, while unsignalled ones that were posted before have not ended.
    parked: Vec<Parked>,
}

impl RequestsInFlight {
    /// Places in the completion ring that are promised to these requests.
    #[inline]
    pub(crate) fn promised(&self) -> u32 {
        self.requests + self.parked.len() as u32
    }

    /// The number that the next request under way will have.
    #[inline]
    pub(crate) fn ticket(&self) -> Ticket {
        self.chains.next()
    }

    /// A request is under way by the number that was promised.
    pub(crate) fn begin(&mut self, head: Posted, rest: VecDeque<Posted>) -> Ticket {
        self.chains.insert(RequestChain { head, rest })
    }

    /// A request waits for one that is under way.
    pub(crate) fn hold(&mut self, behind: Ticket, posted: Posted) {
        if let Some(chain) = self.chains.get_mut(behind) {
            chain.rest.push_back(posted);
        }
    }

    /// The chain under way by a number; none if there is no such number.
    pub(crate) fn end(&mut self, ticket: Ticket) -> Option<RequestChain> {
        self.chains.remove(ticket)
    }

    /// A request is posted that does not end at once.
    pub(crate) fn count(&mut self, posted: &Posted) {
        self.requests += 1;
        if posted.request.is_signalled() {
            return;
        }
        if self.unsignalled.is_empty() {
            self.oldest = posted.group;
        }
        // Requests are posted in the order of their groups.
        let at = (posted.group - self.oldest) as usize;
        if self.unsignalled.len() <= at {
            self.unsignalled.resize(at + 1, 0);
        }
        self.unsignalled[at] += 1;
    }

    /// A request that was counted has ended.
    pub(crate) fn uncount(&mut self, posted: &Posted) {
        assert!(self.requests > 0, "a request ends that was not counted");
        self.requests -= 1;
        if posted.request.is_signalled() {
            return;
        }
        let at = posted.group.checked_sub(self.oldest);
        let count = at.and_then(|at| self.unsignalled.get_mut(at as usize));
        let count = count.filter(|count| **count > 0);
        *count.expect("an unsignalled request ends that was not counted") -= 1;
        while self.unsignalled.front() == Some(&0) {
            self.unsignalled.pop_front();
            self.oldest += 1;
        }
    }

    /// Compares the counts with the requests themselves.
    #[cfg(debug_assertions)]
    pub(crate) fn recount(&self) {
        let chains = self.chains.iter();
        let all = chains.flat_map(|chain| std::iter::once(&chain.head).chain(&chain.rest));
        let (mut requests, mut unsignalled) = (0, 0);
        for posted in all {
            requests += 1;
            unsignalled += u32::from(!posted.request.is_signalled());
        }
        assert_eq!(self.requests, requests, "requests under way");
        let counted: u32 = self.unsignalled.iter().sum();
        assert_eq!(counted, unsignalled, "unsignalled requests under way");
    }

    /// Reports the parked completions that the unsignalled requests before them no longer hold back.
    pub(crate) fn release(&mut self, complete: &mut dyn FnMut(Cqe)) {
        if self.parked.is_empty() {
            return;
        }
        for parked in std::mem::take(&mut self.parked) {
            match self.waits(parked.group) {
                true => self.parked.push(parked),
                false => complete(parked.completion),
            }
        }
    }

    /// Settles parked completions: each keeps its result, or fails if it was not settled before and `result` is an error.
    #[inline]
    pub(crate) fn settle(&mut self, result: Result<(), i32>) {
        for parked in self.parked.iter_mut().filter(|parked| !parked.settled) {
            parked.settled = true;
            if let Err(code) = result {
                parked.completion.fail(code);
            }
        }
    }

    /// Whether unsignalled requests up to a group have not ended.
    #[inline]
    pub(crate) fn waits(&self, group: u64) -> bool {
        !self.unsignalled.is_empty() && self.oldest <= group
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn park(&mut self, group: u64, completion: Cqe) {
        self.parked.push(Parked {
            group,
            completion,
            settled: false,
        });
    }

    /// Whether a request under way, or one that waits, has a region.
    pub(crate) fn names(&self, region: u32) -> bool {
        let named = |posted: &Posted| {
            let request = posted.request;
            request.memory == region || request.storage == region
        };
        // 0 is none: requests have it where they name none.
        let mut chains = self.chains.iter();
        region != 0 && chains.any(|chain| named(&chain.head) || chain.rest.iter().any(named))
    }
}
