//! Outcomes kept until their users request them.

use crate::{KEPT_FOR, MAX_KEPT, MAX_USER_KEPT};
use std::collections::{BTreeMap, VecDeque};
use tarn_proto::local::{TaskId, TaskOutcome, UserId};
use tarn_types::units::Time;

/// An outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutcomeRecord {
    pub(crate) user: UserId,
    pub(crate) at: Time,
    pub(crate) durable: bool,
    pub(crate) outcome: TaskOutcome,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Outcomes {
    by_id: BTreeMap<TaskId, OutcomeRecord>,
    /// Each user's, oldest first.
    order: BTreeMap<UserId, VecDeque<TaskId>>,
}

impl Outcomes {
    pub(crate) fn get(&self, id: TaskId) -> Option<&OutcomeRecord> {
        self.by_id.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &OutcomeRecord> {
        self.by_id.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn add(&mut self, kept: OutcomeRecord) {
        let (user, now) = (kept.user, kept.at);
        self.order
            .entry(user)
            .or_default()
            .push_back(kept.outcome.id);
        self.by_id.insert(kept.outcome.id, kept);
        while self
            .order
            .get(&user)
            .is_some_and(|o| o.len() > MAX_USER_KEPT)
            || self.is_old(user, now)
        {
            self.drop_oldest(user);
        }
        while self.by_id.len() > MAX_KEPT {
            let longest = self.order.iter().max_by_key(|(_, o)| o.len());
            let Some(user) = longest.map(|(user, _)| *user) else {
                return;
            };
            self.drop_oldest(user);
        }
    }

    fn is_old(&self, user: UserId, now: Time) -> bool {
        let first = self.order.get(&user).and_then(|o| o.front());
        let kept = first.and_then(|id| self.by_id.get(id));
        kept.is_some_and(|k| now.saturating_sub(k.at) > KEPT_FOR)
    }

    fn drop_oldest(&mut self, user: UserId) {
        if let Some(order) = self.order.get_mut(&user) {
            if let Some(id) = order.pop_front() {
                self.by_id.remove(&id);
            }
            if order.is_empty() {
                self.order.remove(&user);
            }
        }
    }
}
