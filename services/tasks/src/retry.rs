//! Durable tasks that need a node which does not answer: they give their slots back, wait, longer each time, and
//! continue with the files that have come.

use crate::core::Core;
use crate::task::{Retry, TaskPhase};
use crate::{Finish, RETRIED_FOR, RETRY_PAUSE, TaskAction};
use tarn_proto::local::{RequestError, TaskId};
use tarn_types::retry::RetryRule;
use tarn_types::units::{Elapsed, Nanos, SECOND, Time};

/// A try that lasted for longer had a node that answered: its failure is a first one.
const ANSWERED: Nanos = 300 * SECOND;

impl Core {
    /// A node has not answered that a task needs: a durable one is tried again, until its deadline, or for [`RETRIED_FOR`]
    /// where it has none; for others that is the end.
    pub(crate) fn unreachable(
        &mut self,
        now: Time,
        id: TaskId,
        mut why: RequestError,
        actions: &mut Vec<TaskAction>,
    ) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        if !matches!(task.phase, TaskPhase::Measuring | TaskPhase::Running) {
            return;
        }
        if task
            .started
            .is_some_and(|at| now.saturating_sub(at) > ANSWERED)
        {
            task.retry = Retry::default();
        }
        let since = *task.retry.since.get_or_insert(now);
        let until = task.deadline.unwrap_or(since.saturating_add(RETRIED_FOR));
        if !task.spec.durable || task.cancelled || now >= until {
            if task.spec.durable {
                actions.push(TaskAction::Discard(Box::new(task.clone())));
                let tried = Elapsed(now.saturating_sub(since));
                why.text = format!("{}; it was tried for {tried}", why.text);
            }
            return match task.phase {
                TaskPhase::Measuring => self.measured(now, id, Err(why), actions),
                _ => {
                    let result = Err(why);
                    let nothing = Finish::nothing();
                    self.finished(now, id, Finish { result, ..nothing }, actions);
                }
            };
        }
        let rule = RetryRule::with_pauses(RETRY_PAUSE.0, RETRY_PAUSE.1);
        task.retry.pause = rule.next_pause(task.retry.pause);
        let at = now.saturating_add(task.retry.pause).min(until);
        self.halt(id);
        if let Some(task) = self.tasks.get_mut(&id) {
            task.phase = TaskPhase::Waiting;
            task.retry.at = Some(at);
            self.retries.insert((at, id));
        }
    }

    /// Tasks that have waited long enough get their places in the queues.
    pub(crate) fn retry_tasks(&mut self, now: Time) {
        while let Some((at, id)) = self.retries.first().copied().filter(|(at, _)| *at <= now) {
            self.retries.remove(&(at, id));
            if let Some(task) = self.tasks.get_mut(&id) {
                task.retry.at = None;
            }
            self.make_ready(id);
        }
    }
}
