//! Numbers of tasks, and their bytes.

use crate::core::Core;
use crate::task::{ID_BITS, Task};
use tarn_proto::local::{Stats, TaskId, UserId};

impl Core {
    /// Counts; connections and time left are for the caller to fill in.
    pub fn stats(&self) -> Stats {
        let (all, queued) = (self.tasks.len() as u64, self.queues.len() as u64);
        let placed = queued + self.running;
        assert!(all >= placed, "{placed} tasks are queued or run, of {all}");
        Stats {
            waiting: all - placed,
            queued,
            running: self.running,
            done: self.totals.0,
            failed: self.totals.1,
            bytes: self.totals.2,
            left: None,
            connections: 0,
        }
    }

    /// All ids that this core gives are at least this; those of earlier starts are less.
    pub fn first_id(&self) -> TaskId {
        self.generation << ID_BITS
    }

    /// Durable tasks that have not ended.
    pub fn durable(&self) -> impl Iterator<Item = TaskId> {
        let all = self.tasks.values();
        all.filter(|t| t.spec.durable).map(|t| t.id)
    }

    /// Tasks under way.
    pub fn running(&self) -> impl Iterator<Item = &Task> {
        let all = self.tasks.values();
        all.filter(|t| t.is_under_way())
    }

    /// Tasks of a user that wait for their turn.
    pub fn queued(&self, user: UserId) -> usize {
        self.queues.ready(user).count()
    }

    /// Tasks that have not ended.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether nothing happens any more without a request: the remaining tasks are paused, or wait for a resume.
    pub fn rests(&self) -> bool {
        self.running == 0 && self.retries.is_empty() && (self.paused || self.queues.len() == 0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Outcomes kept.
    pub fn kept(&self) -> usize {
        self.outcomes.len()
    }
}
