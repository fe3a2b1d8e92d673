//! Requests that wait for tasks.

use crate::connection::ProgramConnectionId;
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::TaskId;
use tarn_types::units::Time;

/// A request that is answered later.
#[derive(Debug)]
pub(crate) struct TaskWait {
    pub(crate) connection: ProgramConnectionId,
    /// The request's number.
    pub(crate) number: u32,
    /// The requested tasks.
    pub(crate) ids: Vec<TaskId>,
    any: bool,
    /// Tasks that have not ended.
    missing: usize,
    until: Time,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct TaskWaitTable {
    all: BTreeMap<u64, TaskWait>,
    by_task: BTreeMap<TaskId, Vec<u64>>,
    by_time: BTreeSet<(Time, u64)>,
    by_connection: BTreeMap<ProgramConnectionId, BTreeSet<u64>>,
    next: u64,
}

impl TaskWaitTable {
    /// Waits for `live`, those of `ids` that have not ended.
    pub(crate) fn add(
        &mut self,
        (connection, number): (ProgramConnectionId, u32),
        ids: Vec<TaskId>,
        live: &[TaskId],
        any: bool,
        until: Time,
    ) {
        let key = self.next;
        self.next += 1;
        debug_assert!(!live.is_empty(), "nothing to wait for");
        for id in live {
            debug_assert!(ids.contains(id), "a task is waited for that was not named");
            let keys = self.by_task.entry(*id).or_default();
            assert!(!keys.contains(&key), "task {id} is waited for twice");
            keys.push(key);
        }
        self.by_time.insert((until, key));
        self.by_connection
            .entry(connection)
            .or_default()
            .insert(key);
        let wait = TaskWait {
            connection,
            number,
            ids,
            any,
            missing: live.len(),
            until,
        };
        self.all.insert(key, wait);
    }

    /// Requests of one connection.
    pub(crate) fn of(&self, connection: ProgramConnectionId) -> usize {
        self.by_connection.get(&connection).map_or(0, BTreeSet::len)
    }

    /// When the next one's time is over.
    pub(crate) fn timer(&self) -> Option<Time> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// A task has ended: those that have waited long enough.
    pub(crate) fn ended(&mut self, id: TaskId) -> Vec<TaskWait> {
        let mut ready = Vec::new();
        for key in self.by_task.remove(&id).unwrap_or_default() {
            let Some(wait) = self.all.get_mut(&key) else {
                continue;
            };
            assert!(
                wait.missing > 0,
                "more tasks have ended than were waited for"
            );
            wait.missing -= 1;
            if wait.any || wait.missing == 0 {
                ready.extend(self.remove(key));
            }
        }
        self.check();
        ready
    }

    /// Counts again, in debug builds: each wait is in the list of each task that it misses.
    fn check(&self) {
        let listed = |key: u64| self.by_task.values().filter(|k| k.contains(&key)).count();
        debug_assert!(
            self.all
                .iter()
                .all(|(key, wait)| wait.missing == listed(*key)),
            "waits do not miss the tasks that they wait for"
        );
    }

    /// Requests whose time is over.
    pub(crate) fn expired(&mut self, now: Time) -> Vec<TaskWait> {
        let mut ready = Vec::new();
        while let Some((at, key)) = self.by_time.first().copied() {
            if at > now {
                break;
            }
            ready.extend(self.remove(key));
        }
        ready
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, connection: ProgramConnectionId) {
        for key in self.by_connection.remove(&connection).unwrap_or_default() {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: u64) -> Option<TaskWait> {
        let wait = self.all.remove(&key)?;
        self.by_time.remove(&(wait.until, key));
        for id in &wait.ids {
            if let Some(keys) = self.by_task.get_mut(id) {
                keys.retain(|k| *k != key);
                if keys.is_empty() {
                    self.by_task.remove(id);
                }
            }
        }
        if let Some(keys) = self.by_connection.get_mut(&wait.connection) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_connection.remove(&wait.connection);
            }
        }
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_all_time_and_closing() {
        let mut waits = TaskWaitTable::default();
        waits.add((1, 10), vec![5, 6, 7], &[5, 6], false, 100);
        waits.add((1, 11), vec![5, 6], &[5, 6], true, 200);
        waits.add((2, 12), vec![6], &[6], false, 50);
        assert_eq!((waits.of(1), waits.timer()), (2, Some(50)));
        let numbers = |w: Vec<TaskWait>| w.iter().map(|w| w.number).collect::<Vec<_>>();
        assert_eq!(numbers(waits.ended(5)), [11]);
        assert_eq!(numbers(waits.expired(60)), [12]);
        assert_eq!(numbers(waits.ended(6)), [10]);
        waits.add((3, 13), vec![8], &[8], false, 70);
        waits.forget(3);
        assert!(waits.ended(8).is_empty());
        let empty = [
            waits.all.len(),
            waits.by_task.len(),
            waits.by_time.len(),
            waits.by_connection.len(),
        ];
        assert_eq!(empty, [0; 4]);
    }
}
