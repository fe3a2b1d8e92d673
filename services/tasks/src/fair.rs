//! The turns of users: start-time fair queueing.

use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{TaskId, UserId};
use tarn_types::units::Time;

/// The rank of a task among its user's: highest priority, earliest deadline, first submitted.
pub(crate) type TaskQueueRank = (u8, Time, TaskId);

/// Bytes of virtual time are counted in so many parts, so that weights divide them well.
const PARTS: u128 = 1 << 20;

/// A user's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UserTaskQueue {
    weight: u32,
    /// The start tag of its next task, in virtual time.
    tag: u128,
    ready: BTreeSet<TaskQueueRank>,
}

/// The queues of tasks that could start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Queues {
    queues: BTreeMap<UserId, UserTaskQueue>,
    /// Users who have tasks ready, by their tags.
    turns: BTreeSet<(u128, UserId)>,
    /// Virtual time: the start tag of the task that was started last.
    now: u128,
    ready: usize,
}

impl Queues {
    pub(crate) fn len(&self) -> usize {
        self.ready
    }

    pub(crate) fn push(&mut self, user: UserId, weight: u32, rank: TaskQueueRank) {
        let now = self.now;
        let queue = self.queues.entry(user).or_insert_with(|| UserTaskQueue {
            weight: weight.max(1),
            tag: now,
            ready: BTreeSet::new(),
        });
        if queue.ready.is_empty() {
            // An idle user saves nothing up.
            queue.tag = queue.tag.max(now);
            self.turns.insert((queue.tag, user));
        }
        self.ready += usize::from(queue.ready.insert(rank));
    }

    pub(crate) fn remove(&mut self, user: UserId, rank: &TaskQueueRank) {
        let Some(queue) = self.queues.get_mut(&user) else {
            return;
        };
        if queue.ready.remove(rank) {
            assert!(self.ready > 0, "a task was ready, and none is counted");
            self.ready -= 1;
            if queue.ready.is_empty() {
                self.turns.remove(&(queue.tag, user));
                self.forget(user);
            }
        }
    }

    /// A user without tasks whose tag has passed is as good as unknown.
    fn forget(&mut self, user: UserId) {
        let now = self.now;
        if self
            .queues
            .get(&user)
            .is_some_and(|q| q.ready.is_empty() && q.tag <= now)
        {
            self.queues.remove(&user);
        }
    }

    /// Users in the order of their turns.
    pub(crate) fn turns(&self) -> impl Iterator<Item = UserId> {
        self.turns.iter().map(|(_, user)| *user)
    }

    /// Ranks of a user's tasks, in order.
    pub(crate) fn ready(&self, user: UserId) -> impl Iterator<Item = &TaskQueueRank> {
        self.queues.get(&user).into_iter().flat_map(|q| &q.ready)
    }

    /// Tasks before `rank`, counted up to `most`.
    pub(crate) fn ahead(&self, user: UserId, rank: &TaskQueueRank, most: usize) -> usize {
        let queue = self.queues.get(&user);
        queue.map_or(0, |q| q.ready.range(..rank).take(most).count())
    }

    /// A user's task is started: virtual time advances to its tag.
    pub(crate) fn started(&mut self, user: UserId, cost: u64) {
        if let Some(queue) = self.queues.get(&user) {
            self.now = self.now.max(queue.tag);
        }
        self.charge(user, cost);
    }

    /// A user has used so much more.
    pub(crate) fn charge(&mut self, user: UserId, cost: u64) {
        let Some(queue) = self.queues.get_mut(&user) else {
            return;
        };
        let waits = self.turns.remove(&(queue.tag, user));
        queue.tag += u128::from(cost) * PARTS / u128::from(queue.weight);
        if waits {
            self.turns.insert((queue.tag, user));
        }
        // Users who left are forgotten once their tags have passed: looked for at another user's turn.
        if self.queues.len() > 2 * self.turns.len() + 16 {
            let now = self.now;
            self.queues
                .retain(|_, q| !q.ready.is_empty() || q.tag > now);
        }
    }
}
