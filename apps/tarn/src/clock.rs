//! The time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tarn_types::units::Time;

/// Seconds since 1970.
pub(crate) fn wall() -> u64 {
    since_1970().as_secs()
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> Time {
    u64::try_from(since_1970().as_nanos()).unwrap_or(u64::MAX)
}

/// Nothing where the clock is before 1970.
fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
