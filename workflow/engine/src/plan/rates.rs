//! Rates in bytes a second, of which 0 is no limit.

use tarn_types::units::{Nanos, SECOND};

/// Nanoseconds that `bytes` take at `rate` bytes a second; none if there is no limit.
pub(crate) fn duration(bytes: u64, rate: u64) -> Nanos {
    if rate == 0 {
        return 0;
    }
    let nanos = u128::from(bytes) * u128::from(SECOND) / u128::from(rate);
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// The slower of two rates, of which 0 is no limit.
pub(crate) fn slower(a: u64, b: u64) -> u64 {
    match (a, b) {
        (0, other) | (other, 0) => other,
        (a, b) => a.min(b),
    }
}
