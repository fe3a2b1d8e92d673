//! How long the reservations of each user kept nodes idle in the last day.

use super::{Marks, check};
use std::collections::BTreeMap;
use tarn_slurm::SlurmSnapshot;
use tarn_types::units::{Nanos, SECOND, Time};

/// The parts of a day in which idle time is counted.
const PARTS: u64 = 24;
const PART: Nanos = 3600 * SECOND;
/// The share of the machine's day for which one user's reservations may keep nodes idle: 1 of so many.
const SHARE: u64 = 200;
/// And at least so many seconds of a node.
const LEAST: u64 = 3600;
/// Time between two steps that counts as idle at most: a controller that stood still knows nothing of it.
const MAX_STEP: Nanos = 60 * SECOND;

/// Nanoseconds of idle nodes, by hour and user.
#[derive(Debug, Clone, Default)]
pub(super) struct IdleBudgets {
    last: Option<Time>,
    hours: BTreeMap<u64, BTreeMap<u32, u128>>,
}

impl IdleBudgets {
    /// Counts the nodes that have been idle since the last step. There are as many users as reservations, at most.
    pub(super) fn add_idle(&mut self, now: Time, nodes: BTreeMap<u32, u64>) {
        let since = self
            .last
            .map_or(0, |last| now.saturating_sub(last).min(MAX_STEP));
        self.last = Some(now);
        let hour = now / PART;
        self.hours.retain(|then, _| then + PARTS > hour);
        let users = self.hours.entry(hour).or_default();
        for (user, count) in nodes.into_iter().filter(|(_, count)| *count > 0) {
            *users.entry(user).or_default() += u128::from(since) * u128::from(count);
        }
    }

    /// Whether a user may have more, in a cluster of so many nodes.
    pub(super) fn is_within(&self, user: u32, nodes: u64) -> bool {
        let used: u128 = self
            .hours
            .values()
            .filter_map(|users| users.get(&user))
            .sum();
        let day = u128::from(nodes) * u128::from(PARTS * PART) / u128::from(SHARE);
        used <= day.max(u128::from(LEAST * SECOND))
    }
}

impl Marks {
    /// Of each user the reserved nodes that are not full.
    pub(super) fn idle_nodes(&self, snapshot: &SlurmSnapshot) -> BTreeMap<u32, u64> {
        let mut idle = BTreeMap::new();
        for mark in self.marks.values() {
            let of_mark = mark
                .nodes
                .iter()
                .filter(|name| check::is_kept(snapshot, name));
            *idle.entry(mark.workflow.0).or_default() += of_mark.count() as u64;
        }
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_nodes_count_for_a_day_and_only_for_their_user() {
        let mut budgets = IdleBudgets::default();
        let mut now = 0;
        budgets.add_idle(now, BTreeMap::new());
        // 100 nodes for 60 s are 6,000 s; 4 nodes allow max(3,600, 1,728) s.
        now += 60 * SECOND;
        budgets.add_idle(now, BTreeMap::from([(1, 100), (2, 1)]));
        assert!(!budgets.is_within(1, 4) && budgets.is_within(2, 4) && budgets.is_within(3, 4));
        // 1,000 nodes allow 432,000 s.
        assert!(budgets.is_within(1, 1000));
        budgets.add_idle(now + PARTS * PART, BTreeMap::new());
        assert!(budgets.is_within(1, 4));
    }

    #[test]
    fn a_time_in_which_nobody_looked_counts_as_a_minute() {
        let mut budgets = IdleBudgets::default();
        budgets.add_idle(0, BTreeMap::new());
        budgets.add_idle(20 * PART, BTreeMap::from([(1, 1)]));
        assert!(budgets.is_within(1, 4));
    }
}
