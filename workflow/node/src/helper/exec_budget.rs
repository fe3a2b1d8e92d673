//! The limits of what all sockets of `tarn exec` in this process hold together for requests that have not arrived: a step has one for each node
//! that another process owns, and a process may lead many steps.

use crate::helper::protocol::MAX_MESSAGE;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tarn_sys::fdpass::MAX_FDS;

/// Connections whose request has not arrived; more wait in the queues of their sockets.
const MAX_PENDING: usize = 128;
/// Requests at a time that are larger than most are.
const MAX_LARGE: usize = 4;
/// How long a listener keeps its turn without a new request. It requests each 100 ms.
const TURN: Duration = Duration::from_millis(500);

/// The resources that listeners share.
#[derive(Clone)]
pub(crate) struct Budget {
    /// Connections.
    pub(crate) places: Arc<ExecBudgetPool>,
    /// Descriptors that requests have brought. The process needs others to run the commands.
    pub(crate) fds: Arc<ExecBudgetPool>,
    /// Bytes of requests, beyond what each connection may have.
    pub(crate) bytes: Arc<ExecBudgetPool>,
}

impl Budget {
    /// The one of this process.
    pub(crate) fn of_process() -> Self {
        static BUDGET: LazyLock<Budget> = LazyLock::new(|| {
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            let quarter = usize::try_from(limit / 4).unwrap_or(usize::MAX);
            Budget::new(MAX_PENDING, quarter)
        });
        BUDGET.clone()
    }

    pub(crate) fn new(places: usize, fds: usize) -> Self {
        Self {
            places: ExecBudgetPool::new(places),
            fds: ExecBudgetPool::new(fds.max(MAX_FDS)),
            bytes: ExecBudgetPool::new(MAX_LARGE * MAX_MESSAGE),
        }
    }
}

/// Something of which there is a limited amount. Listeners that find too little left have it in the order of their requests.
pub(crate) struct ExecBudgetPool {
    limit: usize,
    state: Mutex<ExecBudgetState>,
}

#[derive(Default)]
struct ExecBudgetState {
    used: usize,
    queue: VecDeque<ExecBudgetRequest>,
}

struct ExecBudgetRequest {
    listener: u64,
    amount: usize,
    last_request: Instant,
}

impl ExecBudgetPool {
    fn new(limit: usize) -> Arc<Self> {
        let state = Mutex::default();
        Arc::new(Self { limit, state })
    }

    fn state(&self) -> MutexGuard<'_, ExecBudgetState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A listener that is gone, or wants nothing any more, requests no more.
        state.queue.retain(|w| w.last_request.elapsed() < TURN);
        state
    }

    /// Takes an amount for a listener, or puts the listener into the queue.
    pub(crate) fn reserve(self: &Arc<Self>, listener: u64, amount: usize) -> Option<Lease> {
        let mut state = self.state();
        if self.may_take(&state, listener, amount) {
            state.queue.retain(|w| w.listener != listener);
            // `has` has checked the sum.
            state.used += amount;
            self.check(&state);
            return Some(Lease {
                pool: self.clone(),
                amount,
            });
        }
        let now = Instant::now();
        match state.queue.iter_mut().find(|w| w.listener == listener) {
            Some(waiting) => waiting.last_request = now,
            None => state.queue.push_back(ExecBudgetRequest {
                listener,
                amount,
                last_request: now,
            }),
        }
        None
    }

    /// Whether [`reserve`](Self::reserve) would succeed.
    pub(crate) fn is_free_for(&self, listener: u64, amount: usize) -> bool {
        self.may_take(&self.state(), listener, amount)
    }

    fn may_take(&self, state: &ExecBudgetState, listener: u64, amount: usize) -> bool {
        let is_next = state.queue.front().is_none_or(|w| w.listener == listener);
        is_next && self.has(state, amount)
    }

    fn has(&self, state: &ExecBudgetState, amount: usize) -> bool {
        let used = state.used.checked_add(amount);
        used.is_some_and(|used| used <= self.limit)
    }

    /// Takes back what a lease has had.
    fn release(&self, amount: usize) {
        let mut state = self.state();
        assert!(state.used >= amount, "more is given back than is in use");
        state.used -= amount;
        self.check(&state);
    }

    fn check(&self, state: &ExecBudgetState) {
        debug_assert!(state.used <= self.limit, "more is in use than there is");
    }

    /// Whether a listener waits until something is given back.
    pub(crate) fn is_wanted(&self) -> bool {
        let state = self.state();
        let next = state.queue.front();
        next.is_some_and(|next| !self.has(&state, next.amount))
    }
}

/// An amount that was taken of a pool. It goes back when this is dropped.
pub(crate) struct Lease {
    pool: Arc<ExecBudgetPool>,
    amount: usize,
}

impl Lease {
    pub(crate) fn is_of(&self, pool: &Arc<ExecBudgetPool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// Gives back what is beyond an amount.
    pub(crate) fn shrink(&mut self, amount: usize) {
        let Some(rest) = self.amount.checked_sub(amount) else {
            // It has less than that.
            return;
        };
        self.pool.release(rest);
        self.amount -= rest;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.release(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_have_it_in_the_order_in_which_they_asked() {
        let pool = ExecBudgetPool::new(10);
        let mut first = pool.reserve(1, 8).unwrap();
        assert!(!pool.is_wanted());
        assert!(pool.reserve(2, 4).is_none() && pool.is_wanted());
        // There is enough for this one, but another has requested before.
        assert!(pool.reserve(3, 1).is_none() && !pool.is_free_for(3, 1));
        first.shrink(6);
        assert!(!pool.is_wanted() && pool.is_free_for(2, 4) && !pool.is_free_for(3, 1));
        let second = pool.reserve(2, 4);
        assert!(second.is_some() && pool.reserve(3, 1).is_none());
        drop(first);
        let third = pool.reserve(3, 6);
        assert!(third.is_some() && pool.reserve(1, 1).is_none());
        // One that requests no more loses its turn.
        std::thread::sleep(TURN);
        drop((second, third));
        assert!(pool.reserve(4, 10).is_some() && pool.is_free_for(5, 10));
    }
}
