//! How fast reservations can be renewed: where Slurm's calls are slow, each is renewed earlier, and there are fewer.

use super::{LASTS, MAX_RESERVATIONS, RENEW};
use std::collections::VecDeque;
use tarn_types::units::{Nanos, SECOND, Time};

/// All reservations can be renewed in this time, one after another.
const ALL: Nanos = 10 * SECOND;
/// Measures that count: one call that takes long is no slow Slurm.
const MEASURES: usize = 3;
/// Renewals for each second between two steps.
const A_SECOND: u64 = 10;

#[derive(Debug, Clone, Default)]
pub(super) struct RenewalPace {
    /// The times of the last renewals, each.
    calls: VecDeque<Nanos>,
    /// The times between the last steps, and when the last one was.
    intervals: VecDeque<Nanos>,
    last: Option<Time>,
}

fn keep(measures: &mut VecDeque<Nanos>, measure: Nanos) {
    measures.push_back(measure);
    if measures.len() > MEASURES {
        measures.pop_front();
    }
}

impl RenewalPace {
    pub(super) fn step(&mut self, now: Time) {
        if let Some(last) = self.last.replace(now) {
            keep(&mut self.intervals, now.saturating_sub(last));
        }
    }

    pub(super) fn note(&mut self, count: usize, took: Nanos) {
        let count = u64::try_from(count).unwrap_or(u64::MAX).max(1);
        keep(&mut self.calls, took / count);
    }

    /// The longest time between two of the last steps.
    fn interval(&self) -> Nanos {
        self.intervals.iter().copied().max().unwrap_or(0)
    }

    /// Whether a reservation is to be renewed: the next step, or the one behind it, may be too late.
    pub(super) fn is_due(&self, renewed: Time, now: Time) -> bool {
        let after = RENEW.min(LASTS.saturating_sub(2 * self.interval().min(LASTS)));
        now.saturating_sub(renewed) >= after
    }

    /// Renewals of one step.
    pub(super) fn most_renewals(&self) -> usize {
        let most = (self.interval().max(SECOND) / SECOND).saturating_mul(A_SECOND);
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Reservations that can be renewed in time.
    pub(super) fn most_reservations(&self) -> usize {
        let mut calls: Vec<Nanos> = self.calls.iter().copied().collect();
        calls.sort_unstable();
        let Some(median) = calls
            .get(calls.len() / 2)
            .filter(|_| calls.len() == MEASURES)
        else {
            return MAX_RESERVATIONS;
        };
        let most = usize::try_from(ALL / (*median).max(1)).unwrap_or(usize::MAX);
        most.clamp(1, MAX_RESERVATIONS)
    }
}
