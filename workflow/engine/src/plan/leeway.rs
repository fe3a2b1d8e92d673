//! By how much `energy` may still slow jobs down.

use tarn_types::units::{Nanos, SECOND, Time};

/// Slow-downs are counted in these.
const MILLIONTH: i128 = 1_000_000;
/// Jobs shorter than this count as so long, as in the bounded slow-down (Feitelson and Rudolph 1998).
const SHORT: Nanos = 10 * SECOND;
/// Wakings that can be saved up: old earnings do not slow down today's jobs.
const SAVED: i128 = 16;

/// By how much jobs may still be slowed down. Each job that ends earns the stated share of its run time, each that
/// waited for nodes that slept pays what it waited, both in units of its own run time (as the bounded slow-down is): so
/// all wakings together raise the mean bounded slow-down by no more than the stated share, and one waking.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leeway {
    /// In millionths of a slow-down.
    balance: i128,
    /// The expected cost of one waking: as much as it would cost jobs like the last ones, or as much as it did.
    waking: i128,
    /// Since when somebody has been waiting for nodes that sleep or wake up.
    held_since: Option<Time>,
    /// The cost of that wait so far.
    held_cost: i128,
}

/// The cost of a wait for a job that runs for so long, in millionths of a slow-down.
pub(crate) fn cost(wait: Nanos, run: Nanos) -> i128 {
    i128::from(wait) * MILLIONTH / i128::from(run.max(SHORT))
}

/// By so much the mean slow-down of jobs may rise with each job that ends, if so many hundredths are stated.
pub(crate) fn earned(slow_down: u32) -> i128 {
    i128::from(slow_down) * (MILLIONTH / 100)
}

impl Leeway {
    /// Since when somebody has been waiting for nodes that sleep or wake up.
    pub(crate) fn held_since(&self) -> Option<Time> {
        self.held_since
    }

    /// A job has waited for such nodes.
    pub(crate) fn pay(&mut self, cost: i128) {
        self.balance -= cost;
        self.held_cost += cost;
    }

    /// A job has ended, which one waking would have cost `waking`.
    pub(crate) fn earn(&mut self, amount: i128, waking: i128) {
        self.waking = match self.waking {
            0 => waking,
            before => before + (waking - before) / 8,
        };
        self.balance = (self.balance + amount).min(SAVED * self.waking);
    }

    /// Whether somebody waits for such nodes now.
    pub(crate) fn note_held(&mut self, held: bool, now: Time) {
        if held {
            self.held_since.get_or_insert(now);
        } else if self.held_since.take().is_some() {
            self.waking = self.waking.max(std::mem::take(&mut self.held_cost));
        }
    }

    /// Whether enough is saved for one waking.
    pub(crate) fn allows_sleep(&self) -> bool {
        self.waking > 0 && self.balance >= self.waking
    }
}
