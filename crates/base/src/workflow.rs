//! A workflow as it was asked for, checked and resolved: the output of `flow`, the input of `engine`.

use crate::hash::Hash;
use crate::id::{DataId, StepId};
use crate::named::Named;
use crate::pattern::{EntryPattern, ScatterRule};
use crate::units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A whole workflow: a DAG of steps whose edges are dataset versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workflow {
    /// Its name.
    pub name: String,
    /// Where rescue and `stage-through` put what has no `dest`: a directory of the external store.
    pub external: Option<PathBuf>,
    /// What is removed of it from the nodes is overwritten first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub erase: bool,
    /// The folder of the workflow file: relative paths start here, and it leads the steps' `PATH`.
    pub folder: PathBuf,
    /// The datasets.
    pub data: Vec<Dataset>,
    /// The steps, in the file's order.
    pub steps: Vec<Step>,
}

/// A dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    /// Its name: letters, digits, `_` (it names `$TARN_<name>`).
    pub name: String,
    /// Where it comes from, for a dataset that exists outside: version 0. Absolute.
    pub source: Option<PathBuf>,
    /// Where its last version goes at the end. Absolute.
    pub dest: Option<PathBuf>,
    /// The expected size in bytes of one version.
    pub size: Option<u64>,
    /// How `scatter` divides it.
    pub scatter: Option<ScatterRule>,
    /// How long its versions stay on the nodes.
    pub keep: Keep,
    /// Replicas on different nodes, at least 1.
    pub copies: u32,
    /// What happens to it when the run fails.
    pub on_failure: OnFailure,
    /// The tier it is kept on (by name); otherwise the fastest with room.
    pub tier: Option<String>,
    /// Its replicas on the nodes are sealed; in clear it is only what a running step sees.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypt: bool,
    /// Of jobs on a site: which dataset it is there, if not the workflow's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Named>,
    /// How its versions are divided into parts: derived from its consumers.
    pub partition: Partition,
}

/// How long a version stays on the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keep {
    /// Until the last step that reads it has committed.
    UntilConsumed,
    /// Until the workflow has ended.
    Workflow,
    /// For so long after the workflow has ended.
    For(Nanos),
    /// Until somebody removes it.
    Forever,
}

/// What happens to data on the nodes when the run fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// It stays on the nodes for `tarn resume` and is not copied out.
    Discard,
    /// It is copied to the external store.
    Drain,
}

/// How the tree of a version is divided into parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Partition {
    /// One part for each producer.
    Whole,
    /// One part for each top-level entry, because a step selects entries.
    Entries,
    /// One part for each rank of the scatter rule, one for everything else.
    Ranks,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its name: letters, digits, `_`, `-`, `.`.
    pub name: String,
    /// The shell command (`/bin/sh -c`), started once, on the step's first node.
    pub run: String,
    /// Shell commands that come before `run`, such as `module load`.
    pub prelude: Option<String>,
    /// Environment variables declared in the file; `{item}` is replaced.
    pub env: BTreeMap<String, String>,
    /// Nodes, at least 1.
    pub nodes: u32,
    /// Ranks over all nodes, at least `nodes`; they map to nodes in blocks.
    pub tasks: u32,
    /// Cores on each node, at least 1.
    pub cores: u32,
    /// Bytes of memory on each node; 0 when not stated.
    pub memory: u64,
    /// GPUs on each node.
    pub gpus: u32,
    /// The time limit.
    pub time: Option<Nanos>,
    /// How often a failed step is run again.
    pub retries: u32,
    /// It goes on from its checkpoints when an attempt has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// The tier its outputs are written to (by name).
    pub tier: Option<String>,
    /// Steps that must have ended before, beside those its data comes from.
    pub after: Vec<StepId>,
    /// One instance for each element.
    pub foreach: Option<Foreach>,
    /// What it reads, writes and changes.
    pub uses: Vec<Use>,
    /// Hash of everything in the step that decides its result beside its inputs: command, the bytes of
    /// scripts it names, prelude, environment, nodes, tasks, distributions.
    pub code: Hash,
}

/// How a step goes on from its checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// Whose checkpoints they are.
    pub from: Checkpoints,
    /// Bytes that they take on each of its nodes.
    pub room: u64,
}

/// Whose checkpoints a step goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checkpoints {
    /// Those of libtarn: whether an attempt has come further is seen.
    Phx,
    /// The program's own files, of which nothing is known.
    Files,
}

/// The elements of a `foreach` step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Foreach {
    /// Values written in the file.
    Values(Vec<String>),
    /// The top-level entries of a dataset's version.
    Entries {
        /// The dataset.
        data: DataId,
        /// Its version.
        version: u32,
        /// Which entries.
        pattern: EntryPattern,
        /// The most instances this may give; more is an error of the producing step.
        max: u32,
    },
}

/// One use of a dataset by a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// The dataset.
    pub data: DataId,
    /// Read, written or both.
    pub role: Role,
    /// How it lies over the step's nodes.
    pub distribution: Distribution,
    /// Of an `in`: the one top-level entry that is read; `{item}` is replaced.
    pub entry: Option<String>,
    /// The version that is read (`in`, `inout`).
    pub reads: Option<u32>,
    /// The version that is made (`out`, `inout`).
    pub makes: Option<u32>,
}

/// What a step does with a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Reads it.
    In,
    /// Makes it.
    Out,
    /// Changes it: reads one version and makes the next.
    Inout,
}

/// How a version lies over the nodes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Whole, on the step's first node only (`gather` in the file says the same of an `in`).
    Single,
    /// By the dataset's rule: the entries of a rank on the rank's node, everything else on every node.
    Scatter,
    /// Whole, on every node.
    Broadcast,
    /// One namespace that all nodes see and write. What is read is whole on the first node before; what is written lies
    /// where the file system has put it, each file whole on a node.
    Shared,
}

impl Workflow {
    /// The dataset of an id.
    pub fn dataset(&self, id: DataId) -> &Dataset {
        &self.data[id.at()]
    }

    /// The step of an id.
    pub fn step(&self, id: StepId) -> &Step {
        &self.steps[id.at()]
    }

    /// The highest version of a dataset that any step makes, or 0 for a source that nobody changes.
    pub fn last_version(&self, id: DataId) -> u32 {
        let made = self.steps.iter().flat_map(|s| &s.uses);
        made.filter(|u| u.data == id)
            .filter_map(|u| u.makes)
            .max()
            .unwrap_or(0)
    }

    /// The step that makes a version; `None` for a source.
    pub fn producer(&self, id: DataId, version: u32) -> Option<StepId> {
        let at = self.steps.iter().position(|s| {
            s.uses
                .iter()
                .any(|u| u.data == id && u.makes == Some(version))
        })?;
        Some(StepId(at as u32))
    }
}

impl Step {
    /// The position (0..nodes) of the node that has rank `rank`: ranks map to nodes in blocks.
    pub fn node_of_rank(&self, rank: u32) -> u32 {
        let block = self.tasks.div_ceil(self.nodes).max(1);
        (rank / block).min(self.nodes - 1)
    }
}
