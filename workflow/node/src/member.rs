//! One node of a step, as the thread that leads the step sees it: an own node, or one that another world owns.

use crate::far::RemoteNodes;
use crate::launch::{HelperProcess, Launcher, Leaving};
use crate::shared::{NodeContext, NodeLoopEvent};
use crate::store::failure;
use serde::{Deserialize, Serialize};
use std::rc::Rc;
use std::sync::Arc;
use tarn_types::checkpoint::Checkpoint;
use tarn_types::event::{Event, Failure, FailureKind, Undeclared};
use tarn_types::id::{DataId, NodeId, TierRef};
use tarn_types::manifest::Manifest;
use tarn_types::part::{PartRef, Place, StoreKey};

/// What a node of a step is to do, one after the other. All nodes do the same at a time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum StepNodeTask {
    /// Start the helper, so that it comes up meanwhile.
    Start,
    /// Claim the room for what will be written.
    Reserve,
    /// Make the views and the working folder.
    Prepare {
        /// The text of the host file.
        hosts: String,
    },
    /// End the helper, and with it what is left of the step.
    End,
    /// Compare the inputs with their manifests; remove the damaged ones.
    Compare,
    /// Look whether the tier is full, or memory is.
    Room,
    /// Look which checkpoints are there.
    Checkpoints,
    /// Remove the image that the step was to go on from.
    Discard { why: String },
    /// Count what was left undeclared.
    Undeclared,
    /// Hash an output.
    Digest(DataId),
    /// Look whether the hashed outputs fit onto the tier beside the inputs.
    Fits,
    /// Publish this node's parts of a hashed output. Their manifests are written.
    Publish {
        data: DataId,
        parts: Vec<PublishedPart>,
    },
    /// The attempt is over: take back what was published unless all of it is `committed`, and remove the working folder.
    Over { committed: bool },
}

/// A part that a node publishes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PublishedPart {
    pub(crate) key: StoreKey,
    #[serde(skip)]
    pub(crate) manifest: Arc<Manifest>,
}

/// What came of a [`Task`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum StepNodeTaskResult {
    /// It was done; or there was nothing to do.
    Nothing,
    /// Of [`Task::End`]: whether the helper has gone.
    Ended(bool),
    /// Of [`Task::Compare`]: the first input that was changed, by its position in what the step needs, and the path in it.
    Changed(Option<(usize, String)>),
    /// Of [`Task::Room`].
    Lacks(Option<ResourceShortage>),
    /// Of [`Task::Checkpoints`].
    Checkpoints(Vec<Checkpoint>),
    /// Of [`Task::Undeclared`].
    Undeclared(Undeclared),
    /// Of [`Task::Digest`].
    Tree {
        #[serde(skip)]
        tree: Arc<Manifest>,
    },
    /// Of [`Task::Publish`]: bytes that each part takes on the tier.
    Stored(Vec<u64>),
}

/// What there is too little of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum ResourceShortage {
    /// Room on the tier of this folder.
    Tier(String),
    /// Memory, which the step has filled; what is to be said of that.
    Memory(String),
}

/// One node of a step.
pub(crate) trait Member {
    /// The node's name.
    fn name(&self) -> &str;

    /// The node, and the tier of its outputs.
    fn spot(&self) -> TierRef;

    /// A task is to be done soon: who is elsewhere may begin.
    fn begin(&mut self, task: &StepNodeTask);

    /// Does it, or waits until it is done. Once for each [`Member::begin`].
    fn done(&mut self, task: &StepNodeTask) -> Result<StepNodeTaskResult, Failure>;

    /// Instead of [`Member::done`]: what comes of it interests nobody any more.
    fn give_up_instance(&mut self);

    /// Replicas that it has removed because they were damaged, or missed.
    fn evicted(&mut self) -> Vec<(PartRef, TierRef)>;

    /// Its helper, once that was started.
    fn helper(&mut self) -> Option<&mut dyn Launcher>;

    /// The process of a helper that has left, if it is this one's to wait for.
    fn leaving(&mut self) -> Option<HelperProcess>;

    /// That the node is lost, or cannot be reached, if it is so.
    fn lost(&self) -> Option<Failure>;
}

/// What a node is called.
pub(crate) fn node_name(shared: &NodeContext, node: NodeId) -> String {
    let node_of = shared.cluster.nodes.get(node.at());
    node_of.map_or_else(|| node.to_string(), |n| n.name.clone())
}

/// The failure of a node that does not answer any more.
pub(crate) fn lost_failure(name: &str) -> Failure {
    failure(
        FailureKind::NodeLost,
        format!("node `{name}` was lost while the step was on it; nothing of this attempt is kept"),
    )
}

fn odd(name: &str) -> Failure {
    failure(
        FailureKind::Io,
        format!(
            "node `{name}` answers what it was not asked; does it run the same version of tarn?"
        ),
    )
}

/// All nodes of a step.
pub(crate) struct Team<'a> {
    pub(crate) shared: &'a NodeContext,
    pub(crate) members: Vec<Box<dyn Member + 'a>>,
    /// To those that are elsewhere, if any is.
    pub(crate) post: Option<Rc<RemoteNodes<'a>>>,
}

impl Team<'_> {
    /// Has every node do its task. After a failure nothing more is begun, and what others are at is cancelled.
    pub(crate) fn all(
        &mut self,
        task: impl Fn(usize) -> StepNodeTask,
    ) -> Result<Vec<StepNodeTaskResult>, Failure> {
        let tasks: Vec<StepNodeTask> = (0..self.members.len()).map(task).collect();
        for (member, task) in self.members.iter_mut().zip(&tasks) {
            member.begin(task);
        }
        let mut all = Vec::with_capacity(tasks.len());
        let mut failed = None;
        for (member, task) in self.members.iter_mut().zip(&tasks) {
            if failed.is_some() {
                member.give_up_instance();
                continue;
            }
            match member.done(task) {
                Ok(done) => all.push(done),
                Err(failure) => {
                    failed = Some(failure);
                    self.post.iter().for_each(|p| p.cancel());
                }
            }
        }
        // Told before the step's end: then they are not believed in when it is tried again.
        for (part, spot) in self.members.iter_mut().flat_map(|m| m.evicted()) {
            let at = Place::Node(spot);
            self.shared
                .deliver(NodeLoopEvent::News(Event::Evicted { part, at }));
        }
        failed.map_or(Ok(all), Err)
    }

    pub(crate) fn each(&mut self, task: &StepNodeTask) -> Result<Vec<StepNodeTaskResult>, Failure> {
        self.all(|_| task.clone())
    }

    /// As [`Team::each`], and takes of each answer what `take` knows.
    pub(crate) fn ask<T>(
        &mut self,
        task: impl Fn(usize) -> StepNodeTask,
        take: impl Fn(StepNodeTaskResult) -> Option<T>,
    ) -> Result<Vec<T>, Failure> {
        let all = self.all(task)?;
        let answers = all.into_iter().zip(&self.members);
        answers
            .map(|(done, m)| take(done).ok_or_else(|| odd(m.name())))
            .collect()
    }

    /// The attempt is over. Nothing that fails now changes that.
    pub(crate) fn over(&mut self, committed: bool) {
        let task = StepNodeTask::Over { committed };
        self.members.iter_mut().for_each(|m| m.begin(&task));
        for member in &mut self.members {
            let _ = member.done(&task);
        }
    }

    pub(crate) fn leaving(&mut self) -> Leaving {
        self.members
            .iter_mut()
            .filter_map(|m| m.leaving())
            .collect()
    }

    /// The first node that is lost, or else that cannot be reached.
    pub(crate) fn lost(&self) -> Option<Failure> {
        let mut lost: Vec<Failure> = self.members.iter().filter_map(|m| m.lost()).collect();
        let first = lost.iter().position(|f| f.kind == FailureKind::NodeLost);
        let first = first.or((!lost.is_empty()).then_some(0))?;
        Some(lost.swap_remove(first))
    }

    /// A node that cannot be reached, though it is there.
    pub(crate) fn cut_off(&self) -> Option<Failure> {
        self.lost().filter(|f| f.kind != FailureKind::NodeLost)
    }
}
