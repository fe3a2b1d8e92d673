//! How often something that failed is tried, and how soon again.

use crate::units::{Nanos, Time};

/// A rule for trials.
///
/// # Examples
/// ```
/// use tarn_types::retry::RetryRule;
///
/// let rule = RetryRule::with_retries(1);
/// assert!(!rule.gives_up(1) && rule.gives_up(2));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryRule {
    /// Failures after which it is given up.
    tries: u32,
    /// The first pause after a failure, and the longest.
    pauses: (Nanos, Nanos),
}

impl RetryRule {
    /// The rule for what nobody set a number for: what fails three times fails for a reason of its own.
    pub const USUAL: Self = Self::with_retries(2);

    /// So many trials more than one, at once.
    pub const fn with_retries(retries: u32) -> Self {
        Self {
            tries: retries.saturating_add(1),
            pauses: (0, 0),
        }
    }

    /// As many trials as there is time for, with pauses between them.
    pub const fn with_pauses(first: Nanos, longest: Nanos) -> Self {
        Self {
            tries: u32::MAX,
            pauses: (first, longest),
        }
    }

    /// Whether so many failures are the end.
    pub const fn gives_up(self, failures: u32) -> bool {
        failures >= self.tries
    }

    /// The pause after another failure, twice the one before it (0: there was none).
    pub fn next_pause(self, last: Nanos) -> Nanos {
        let (first, longest) = self.pauses;
        last.saturating_mul(2).clamp(first, longest)
    }

    /// Whether the first pause after a failure is not over.
    pub fn is_pausing(self, failed: Time, now: Time) -> bool {
        now.saturating_sub(failed) < self.pauses.0
    }
}

#[cfg(test)]
mod tests {
    use super::RetryRule;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let rule = RetryRule::with_pauses(3, 10);
        let pauses = [0, 3, 6, 10].map(|last| rule.next_pause(last));
        assert_eq!(pauses, [3, 6, 10, 10]);
        assert!(rule.is_pausing(100, 102) && !rule.is_pausing(100, 103));
        assert!(!rule.gives_up(u32::MAX - 1));
    }

    #[test]
    fn the_third_failure_is_the_last() {
        let ends = [0, 1, 2, 3, 4].map(|failures| RetryRule::USUAL.gives_up(failures));
        assert_eq!(ends, [false, false, false, true, true]);
        assert!(!RetryRule::USUAL.is_pausing(5, 5));
        assert!(!RetryRule::with_retries(u32::MAX).gives_up(u32::MAX - 1));
    }
}
