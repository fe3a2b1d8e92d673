//! Durable tasks that need a node which does not answer: they give their slots back, wait, longer each time, and go on from
//! what has come.

use crate::core::{Core, Phase};
use crate::{Action, Finish, RETRIED_FOR, RETRY_PAUSE};
use tarn_proto::local::{Refusal, TaskId};
use tarn_types::units::{Elapsed, Nanos, SECOND, Time};

/// A try that lasted for longer had a node that answered: its failure is a first one.
const ANSWERED: Nanos = 300 * SECOND;

/// How a task stands with the nodes that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Again {
    /// When one first did not answer.
    since: Option<Time>,
    /// The pause before the next try.
    pause: Nanos,
    /// When that is.
    pub(crate) at: Option<Time>,
}

impl Core {
    /// A node has not answered that a task needs: a durable one is tried again, until its deadline, or for [`RETRIED_FOR`]
    /// where it has none; for others that is the end.
    pub(crate) fn unreachable(
        &mut self,
        now: Time,
        id: TaskId,
        mut why: Refusal,
        actions: &mut Vec<Action>,
    ) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        if !matches!(task.phase, Phase::Measuring | Phase::Running) {
            return;
        }
        if task
            .started
            .is_some_and(|at| now.saturating_sub(at) > ANSWERED)
        {
            task.again = Again::default();
        }
        let since = *task.again.since.get_or_insert(now);
        let until = task.deadline.unwrap_or(since.saturating_add(RETRIED_FOR));
        if !task.spec.durable || task.cancelled || now >= until {
            if task.spec.durable {
                actions.push(Action::Discard(Box::new(task.clone())));
                let tried = Elapsed(now.saturating_sub(since));
                why.text = format!("{}; it was tried for {tried}", why.text);
            }
            return match task.phase {
                Phase::Measuring => self.measured(now, id, Err(why), actions),
                _ => {
                    let result = Err(why);
                    let nothing = Finish::nothing();
                    self.finished(now, id, Finish { result, ..nothing }, actions);
                }
            };
        }
        let pause = task.again.pause.saturating_mul(2);
        task.again.pause = pause.clamp(RETRY_PAUSE.0, RETRY_PAUSE.1);
        let at = now.saturating_add(task.again.pause).min(until);
        self.halt(id);
        if let Some(task) = self.tasks.get_mut(&id) {
            task.phase = Phase::Waiting;
            task.again.at = Some(at);
            self.again.insert((at, id));
        }
    }

    /// What has waited long enough gets its place in the queues.
    pub(crate) fn try_again(&mut self, now: Time) {
        while let Some((at, id)) = self.again.first().copied().filter(|(at, _)| *at <= now) {
            self.again.remove(&(at, id));
            if let Some(task) = self.tasks.get_mut(&id) {
                task.again.at = None;
            }
            self.make_ready(id);
        }
    }
}
