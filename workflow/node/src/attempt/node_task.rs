//! Tasks of the nodes of a step, and their results. Nodes of other worlds get and send them in messages.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tarn_types::checkpoint::Checkpoint;
use tarn_types::event::Undeclared;
use tarn_types::id::DataId;
use tarn_types::manifest::Manifest;
use tarn_types::part::StoreKey;

/// Names of undeclared files that a report shows.
pub(crate) const MAX_UNDECLARED_NAMES: usize = 8;

/// A task of a step's node. All nodes do the same task at a time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum StepNodeTask {
    /// Start the helper, so that it comes up meanwhile.
    Start,
    /// Claim the space for what will be written.
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
    #[serde(rename = "Room")]
    CheckSpace,
    /// Look which checkpoints are there.
    Checkpoints,
    /// Remove the image that the step was to resume from.
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

/// The result of a [`StepNodeTask`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum StepNodeTaskResult {
    /// It was done; or there was nothing to do.
    Nothing,
    /// Of [`StepNodeTask::End`]: whether the helper has gone.
    Ended(bool),
    /// Of [`StepNodeTask::Compare`]: the first input that was changed, by its position in what the step needs, and the path in it.
    Changed(Option<(usize, String)>),
    /// Of [`StepNodeTask::CheckSpace`].
    Lacks(Option<ResourceShortage>),
    /// Of [`StepNodeTask::Checkpoints`].
    Checkpoints(Vec<Checkpoint>),
    /// Of [`StepNodeTask::Undeclared`].
    Undeclared(Undeclared),
    /// Of [`StepNodeTask::Digest`].
    Tree {
        #[serde(skip)]
        tree: Arc<Manifest>,
    },
    /// Of [`StepNodeTask::Publish`]: bytes that each part takes on the tier.
    Stored(Vec<u64>),
}

/// A resource of which there is too little.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum ResourceShortage {
    /// Space on the tier of this folder.
    Tier(String),
    /// Memory, which the step has filled; the error text.
    Memory(String),
}
