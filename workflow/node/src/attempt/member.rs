//! One node of a step, as the thread that leads the step sees it: an own node, or one that another world owns.

use crate::attempt::node_task::{StepNodeTask, StepNodeTaskResult};
use crate::helper::launch::{HelperProcess, Launcher};
use tarn_types::event::RunError;
use tarn_types::id::TierRef;
use tarn_types::part::PartRef;

/// One node of a step.
pub(crate) trait Member {
    /// The node's name.
    fn name(&self) -> &str;

    /// The node, and the tier of its outputs.
    fn tier_ref(&self) -> TierRef;

    /// A task is to be done soon: a remote node may begin.
    fn begin(&mut self, task: &StepNodeTask);

    /// Does it, or waits until it is done. Once for each [`Member::begin`].
    fn run(&mut self, task: &StepNodeTask) -> Result<StepNodeTaskResult, RunError>;

    /// Instead of [`Member::run`]: nobody needs the result any more.
    fn give_up(&mut self);

    /// Replicas that it has removed because they were damaged, or missed.
    fn evicted(&mut self) -> Vec<(PartRef, TierRef)>;

    /// Its helper, once that was started.
    fn helper(&mut self) -> Option<&mut dyn Launcher>;

    /// The process of a helper that has left, if it is this one's to wait for.
    fn leaving(&mut self) -> Option<HelperProcess>;

    /// That the node is lost, or cannot be reached, if it is so.
    fn lost(&self) -> Option<RunError>;
}
