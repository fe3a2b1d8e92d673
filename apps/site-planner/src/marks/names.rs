//! The names of tarn's reservations: each has the epoch of its controller.

/// Their beginning.
const PREFIX: &str = "tarn_";

/// The name of one that keeps nodes for a workflow.
pub(super) fn workflow_reservation(epoch: u64, number: u64) -> String {
    format!("{PREFIX}{epoch}_workflow_{number}")
}

/// The name of one that keeps jobs off nodes that are about to sleep.
#[must_use]
pub fn sleep_reservation(epoch: u64, number: u64) -> String {
    format!("{}{number}", sleep_prefix(epoch))
}

fn sleep_prefix(epoch: u64) -> String {
    format!("{PREFIX}{epoch}_sleep_")
}

/// Whether it is one of this controller's for nodes that are about to sleep: it is deleted by who made it.
pub(super) fn is_for_sleep(name: &str, epoch: u64) -> bool {
    name.starts_with(&sleep_prefix(epoch))
}

/// Whether a reservation is one of tarn's, by its name.
pub(crate) fn is_own_reservation(name: &str) -> bool {
    epoch_of(name).is_some()
}

/// The epoch in the name of a reservation of tarn's.
pub(super) fn epoch_of(name: &str) -> Option<u64> {
    // Users may name several at once; those lists are theirs.
    if name.contains(',') {
        return None;
    }
    name.strip_prefix(PREFIX)?.split('_').next()?.parse().ok()
}
