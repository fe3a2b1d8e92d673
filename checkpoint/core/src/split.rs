//! How a checkpoint is divided between the persistent tier and memory, so that both are done at the same time
//! (Fernando 2016, section II).

use tarn_types::units::{Nanos, SECOND};

/// The measured rates of the devices, in bytes a second (Fernando 2016, section II).
///
/// # Examples
/// A tier of 1 GB/s beside a memory of 10 GB/s takes a tenth of a checkpoint of 1 GB, in 100 ms:
/// ```
/// use tarn_checkpoint_core::split::{Split, StagingRates};
///
/// let rates = StagingRates { persistent: 1_000_000_000, memory: 10_000_000_000, copies: 1 };
/// let split = rates.split(1_000_000_000, u64::MAX);
/// assert_eq!(split, Split { persistent: 100_000_000, staged: 900_000_000 });
/// assert_eq!(rates.time(split), 100_000_000); // ns
///
/// let half = rates.split(1_000_000_000, 500_000_000); // at most half may be staged
/// assert_eq!(half.staged, 500_000_000);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagingRates {
    /// Bytes a second that the persistent tier takes.
    pub persistent: u64,
    /// Bytes a second that memory takes, of all that is written to it and to the tier.
    pub memory: u64,
    /// Copies of staged bytes in memory: with a buddy on this machine two.
    pub copies: u32,
}

/// A checkpoint in two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Bytes that go to the persistent tier at once.
    pub persistent: u64,
    /// Bytes that go to memory first.
    pub staged: u64,
}

impl StagingRates {
    /// The nanoseconds that a checkpoint takes that is divided so: the tier takes its part while memory takes
    /// all of it.
    pub fn time(&self, split: Split) -> Nanos {
        let moved =
            u128::from(split.persistent) + u128::from(split.staged) * u128::from(self.copies);
        let lasts = |bytes: u128, rate: u64| bytes * u128::from(SECOND) / u128::from(rate.max(1));
        let tier = lasts(split.persistent.into(), self.persistent);
        let memory = lasts(moved, self.memory);
        Nanos::try_from(tier.max(memory)).unwrap_or(Nanos::MAX)
    }

    /// The division of `total` bytes that takes least time, with at most `budget` of them staged.
    ///
    /// With p bytes for the tier, rates P and M and c copies, T is least where p = T P and p + c (D - p) = T
    /// M at once: then p = D c P / (M + (c - 1) P).
    pub fn split(&self, total: u64, budget: u64) -> Split {
        let copies = u128::from(self.copies.max(1));
        let rate = u128::from(self.persistent);
        let both = u128::from(self.memory) + (copies - 1) * rate;
        let balanced = (u128::from(total) * copies * rate).checked_div(both);
        let least = total.saturating_sub(budget);
        let persistent = balanced.map_or(total, |p| u64::try_from(p).unwrap_or(u64::MAX));
        let persistent = persistent.clamp(least, total);
        Split {
            persistent,
            staged: total - persistent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GB: u64 = 1_000_000_000;

    #[test]
    fn a_tier_of_half_the_bandwidth_takes_half_of_what_has_one_copy() {
        let rates = StagingRates {
            persistent: 5 * GB,
            memory: 20 * GB,
            copies: 1,
        };
        let split = rates.split(20 * GB, u64::MAX);
        assert_eq!((split.persistent, rates.time(split)), (5 * GB, SECOND));
        // Naive takes four times as long; with half of it staged, half of that.
        let naive = Split {
            persistent: 20 * GB,
            staged: 0,
        };
        assert_eq!(rates.time(naive), 4 * SECOND);
        assert_eq!(rates.time(rates.split(20 * GB, 10 * GB)), 2 * SECOND);
        assert_eq!(rates.split(20 * GB, 0), naive);
        // A tier as fast as memory needs none.
        let fast = StagingRates {
            persistent: 20 * GB,
            ..rates
        };
        assert_eq!(fast.split(20 * GB, u64::MAX), naive);
    }

    #[test]
    fn rates_of_nothing_divide_nothing() {
        let rates = StagingRates {
            persistent: 0,
            memory: 0,
            copies: 0,
        };
        assert_eq!(rates.split(100, 50).persistent, 100);
        assert_eq!(
            rates.split(0, 50),
            Split {
                persistent: 0,
                staged: 0
            }
        );
    }

    proptest! {
        /// No other division within the budget takes less, but for the rounding of a byte.
        #[test]
        fn none_takes_less(
            total in 1..100 * GB, part in 0.0..=1.0, budget in 0..100 * GB,
            persistent in 1..30 * GB, memory in 1..30 * GB, copies in 1u32..4,
        ) {
            let rates = StagingRates { persistent, memory, copies };
            let best = rates.split(total, budget);
            prop_assert_eq!(best.persistent + best.staged, total);
            prop_assert!(best.staged <= budget);
            let staged = ((total.min(budget)) as f64 * part) as u64;
            let other = Split { persistent: total - staged, staged };
            let byte = SECOND / persistent.min(memory) * u64::from(copies) + 2;
            prop_assert!(rates.time(best) <= rates.time(other) + byte, "{best:?} {other:?}");
        }
    }
}
