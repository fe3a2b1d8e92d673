//! When jobs came, finer than by Slurm's seconds: jobs of one second in the order of their numbers.

use tarn_types::units::{Nanos, SECOND, Time};

/// Within which the controller gets to know a job that Slurm has accepted: by its stage, or by a reading of the queue. A job
/// that it knows in time came when it was submitted, so no job that was submitted later has come earlier.
const NOTICE: Nanos = 60 * SECOND;

/// When a job was submitted: of those of one second, the one with the higher number came later.
pub(crate) fn submission(second: u64, number: u32) -> Time {
    let within = Nanos::from(number).min(SECOND - 1);
    second.saturating_mul(SECOND).saturating_add(within)
}

/// When a job with data lines came: its submission, unless the controller got to know it much later.
pub(crate) fn arrival(submitted: Time, noticed: Time) -> Time {
    if noticed > submitted.saturating_add(NOTICE) {
        noticed
    } else {
        submitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_one_second_came_in_the_order_of_their_numbers() {
        assert!(submission(7, 1) < submission(7, 2) && submission(7, u32::MAX) < submission(8, 0));
    }

    #[test]
    fn a_job_came_when_it_was_submitted_unless_it_was_noticed_late() {
        let submitted = submission(100, 4);
        assert_eq!(arrival(submitted, submitted + 3 * SECOND), submitted);
        // The clock of the controller may be behind.
        assert_eq!(arrival(submitted, submitted - 3 * SECOND), submitted);
        assert_eq!(arrival(submitted, 200 * SECOND), 200 * SECOND);
    }
}
