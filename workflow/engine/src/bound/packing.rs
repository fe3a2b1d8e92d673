//! Work that one resource has to do between heads and tails.

use tarn_types::units::{Nanos, Time};

/// Heads and tails that are told apart, each: the bound is exact for as many different ones, else slightly lower.
const STEPS: usize = 64;

/// A piece of work.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackingTask {
    /// It cannot begin before.
    pub(super) head: Time,
    /// Its use of the resource: capacity times nanoseconds.
    pub(super) work: u128,
    /// The time that must follow it.
    pub(super) tail: Nanos,
}

/// The least time at which all tasks and their tails can have ended on a resource of this capacity (`None`: no limit):
/// for all sets of tasks with heads of at least r and tails of at least q, r + work / capacity + q. (For one machine
/// with preemption this is the optimum: Carlier 1982.)
pub(super) fn least_end(tasks: &[PackingTask], capacity: Option<u128>) -> Time {
    let Some(capacity) = capacity.filter(|c| *c > 0) else {
        return 0;
    };
    let heads = steps(tasks.iter().map(|t| t.head));
    let tails = steps(tasks.iter().map(|t| t.tail));
    let mut work = vec![vec![0u128; tails.len()]; heads.len()];
    for task in tasks {
        // The least head and tail are steps themselves, so both are found.
        let row = heads.partition_point(|h| *h <= task.head).max(1) - 1;
        let column = tails.partition_point(|t| *t <= task.tail).max(1) - 1;
        work[row][column] = work[row][column].saturating_add(task.work);
    }
    let mut end = 0;
    let mut beneath = vec![0u128; tails.len()];
    for (row, head) in heads.iter().enumerate().rev() {
        let mut later = 0u128;
        for (column, tail) in tails.iter().enumerate().rev() {
            later = later.saturating_add(work[row][column]);
            beneath[column] = beneath[column].saturating_add(later);
            if beneath[column] > 0 {
                let time = u128::from(*head) + beneath[column] / capacity + u128::from(*tail);
                end = end.max(Time::try_from(time).unwrap_or(Time::MAX));
            }
        }
    }
    end
}

/// At most [`STEPS`] of the values, evenly by rank, in ascending order; the least is among them.
fn steps(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut all: Vec<u64> = values.collect();
    all.sort_unstable();
    all.dedup();
    let count = all.len().min(STEPS);
    let at = |n: usize| all[n * all.len() / count];
    (0..count).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn task(head: u64, work: u128, tail: u64) -> PackingTask {
        PackingTask { head, work, tail }
    }

    #[test]
    fn sets_between_heads_and_tails_count() {
        assert_eq!(least_end(&[], Some(4)), 0);
        assert_eq!(least_end(&[task(1, 10, 1)], None), 0);
        assert_eq!(least_end(&[task(3, 10, 5)], Some(2)), 13);
        // The first two alone: 10 + 40 / 4 + 5; all three: 0 + 41 / 4 + 0.
        let tasks = [task(10, 20, 5), task(11, 20, 6), task(0, 1, 0)];
        assert_eq!(least_end(&tasks, Some(4)), 25);
    }

    proptest! {
        /// Steps by rank lose little and never claim more than all sets do.
        #[test]
        fn never_more_than_all_sets(tasks in prop::collection::vec((0u64..500, 1u128..50, 0u64..500), 1..200)) {
            let tasks: Vec<PackingTask> = tasks.into_iter().map(|(h, w, t)| task(h, w, t)).collect();
            let mut exact = 0;
            for (r, q) in tasks.iter().flat_map(|a| tasks.iter().map(|b| (a.head, b.tail))) {
                let set = tasks.iter().filter(|t| t.head >= r && t.tail >= q);
                let work: u128 = set.map(|t| t.work).sum();
                if work > 0 {
                    exact = exact.max(r + u64::try_from(work / 3).expect("small") + q);
                }
            }
            let found = least_end(&tasks, Some(3));
            prop_assert!(found <= exact, "{found} > {exact}");
            prop_assert!(tasks.len() > STEPS || found == exact, "{found} < {exact}");
        }
    }
}
