//! The accounts against a recount of all tasks, in debug builds.

use crate::core::Core;
use crate::slots::Slots;
use std::collections::BTreeMap;
use tarn_proto::local::{JobId, UserId};

/// With more tasks than so many each event would take too long.
const MAX_RECOUNTED: usize = 256;

/// Bytes or tasks by their account.
type Sums<K, V> = BTreeMap<K, V>;

impl Core {
    /// Stops where an account differs from the sum of the tasks: slots, reservations, tasks that free space, tasks of
    /// users and spaces.
    pub(crate) fn recount(&self) {
        if self.tasks.len() > MAX_RECOUNTED {
            return;
        }
        let mut slots = Slots::default();
        let mut running = 0;
        let mut users: Sums<UserId, usize> = Sums::new();
        let mut named: Sums<String, u32> = Sums::new();
        let mut freeing: Sums<(String, UserId), u32> = Sums::new();
        let mut reserved: Sums<(String, UserId), u64> = Sums::new();
        let mut of_jobs: Sums<(JobId, String), u64> = Sums::new();
        for task in self.tasks.values() {
            *users.entry(task.user).or_default() += 1;
            for name in task.named() {
                *named.entry(name).or_default() += 1;
            }
            if task.is_under_way() {
                running += 1;
                slots.take(task.slots());
            }
            if let Some(name) = task.frees().filter(|_| task.is_freeing()) {
                *freeing.entry((name.to_owned(), task.user)).or_default() += 1;
            }
            if let Some((name, bytes)) = task.reserved().filter(|(_, bytes)| *bytes > 0) {
                *reserved.entry((name.to_owned(), task.user)).or_default() += bytes;
                if let Some(job) = task.job {
                    *of_jobs.entry((job, name.to_owned())).or_default() += bytes;
                }
            }
        }
        assert_eq!(self.slots, slots, "slots");
        assert_eq!(self.running, running, "tasks under way");
        assert_eq!(self.counts, users, "tasks of users");
        for (name, space) in &self.spaces {
            assert_eq!(
                space.tasks,
                named.get(name).copied().unwrap_or(0),
                "tasks of `{name}`"
            );
            let mut sum = 0;
            for (user, usage) in &space.users {
                let key = (name.clone(), *user);
                let bytes = reserved.get(&key).copied().unwrap_or(0);
                assert_eq!(
                    usage.reserved, bytes,
                    "reserved in `{name}` for user {user}"
                );
                sum += bytes;
            }
            assert_eq!(space.all.reserved, sum, "reserved in `{name}`");
            let all = freeing.iter().filter(|((at, _), _)| at == name);
            let all: BTreeMap<UserId, u32> =
                all.map(|((_, user), count)| (*user, *count)).collect();
            assert_eq!(space.freeing, all, "what frees space in `{name}`");
        }
        for (id, job) in self.jobs.iter() {
            for (space, usage) in &job.usage {
                let bytes = of_jobs.get(&(id, space.clone())).copied().unwrap_or(0);
                assert_eq!(usage.reserved, bytes, "reserved in `{space}` for job {id}");
            }
        }
    }
}
