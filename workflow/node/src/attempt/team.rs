//! All nodes of a step: they do the same task at a time.

use crate::attempt::member::Member;
use crate::attempt::node_task::{StepNodeTask, StepNodeTaskResult};
use crate::attempt::remote_node::RemoteNodes;
use crate::helper::launch::Leaving;
use crate::storage::data_context::{DataContext, NodeLoopEvent};
use crate::storage::store::failure;
use std::rc::Rc;
use tarn_types::event::{Event, RunError, RunErrorKind};
use tarn_types::part::Place;

fn odd(name: &str) -> RunError {
    failure(
        RunErrorKind::Io,
        format!(
            "node `{name}` answers what it was not asked; does it run the same version of tarn?"
        ),
    )
}

/// All nodes of a step.
pub(crate) struct Team<'a> {
    pub(crate) shared: &'a DataContext,
    pub(crate) members: Vec<Box<dyn Member + 'a>>,
    /// To those that are elsewhere, if any is.
    pub(crate) remote: Option<Rc<RemoteNodes<'a>>>,
}

impl Team<'_> {
    /// Has every node do its task. After a failure nothing more is begun, and what others are at is cancelled.
    pub(crate) fn run_tasks(
        &mut self,
        task: impl Fn(usize) -> StepNodeTask,
    ) -> Result<Vec<StepNodeTaskResult>, RunError> {
        let tasks: Vec<StepNodeTask> = (0..self.members.len()).map(task).collect();
        for (member, task) in self.members.iter_mut().zip(&tasks) {
            member.begin(task);
        }
        let mut all = Vec::with_capacity(tasks.len());
        let mut failed = None;
        for (member, task) in self.members.iter_mut().zip(&tasks) {
            if failed.is_some() {
                member.give_up();
                continue;
            }
            match member.run(task) {
                Ok(done) => all.push(done),
                Err(failure) => {
                    failed = Some(failure);
                    self.remote.iter().for_each(|r| r.cancel());
                }
            }
        }
        // Reported before the step's end: then they are not believed in when it is tried again.
        for (part, tier_ref) in self.members.iter_mut().flat_map(|m| m.evicted()) {
            let at = Place::Node(tier_ref);
            self.shared
                .deliver(NodeLoopEvent::Notification(Event::Evicted { part, at }));
        }
        debug_assert!(failed.is_some() || all.len() == self.members.len());
        failed.map_or(Ok(all), Err)
    }

    pub(crate) fn run_task(
        &mut self,
        task: &StepNodeTask,
    ) -> Result<Vec<StepNodeTaskResult>, RunError> {
        self.run_tasks(|_| task.clone())
    }

    /// Has every node do its task, and takes of each result what `take` knows.
    pub(crate) fn run_and_collect<T>(
        &mut self,
        task: impl Fn(usize) -> StepNodeTask,
        take: impl Fn(StepNodeTaskResult) -> Option<T>,
    ) -> Result<Vec<T>, RunError> {
        let all = self.run_tasks(task)?;
        let answers = all.into_iter().zip(&self.members);
        answers
            .map(|(done, m)| take(done).ok_or_else(|| odd(m.name())))
            .collect()
    }

    /// The attempt is over. Nothing that fails now changes that.
    pub(crate) fn finish(&mut self, committed: bool) {
        let task = StepNodeTask::Over { committed };
        self.members.iter_mut().for_each(|m| m.begin(&task));
        for member in &mut self.members {
            let _ = member.run(&task);
        }
    }

    pub(crate) fn leaving(&mut self) -> Leaving {
        self.members
            .iter_mut()
            .filter_map(|m| m.leaving())
            .collect()
    }

    /// The first node that is lost, or else that cannot be reached.
    pub(crate) fn lost(&self) -> Option<RunError> {
        let mut lost: Vec<RunError> = self.members.iter().filter_map(|m| m.lost()).collect();
        let first = lost.iter().position(|f| f.kind == RunErrorKind::NodeLost);
        let first = first.or((!lost.is_empty()).then_some(0))?;
        Some(lost.swap_remove(first))
    }

    /// A node that cannot be reached, though it is there.
    pub(crate) fn cut_off(&self) -> Option<RunError> {
        self.lost().filter(|f| f.kind != RunErrorKind::NodeLost)
    }
}
