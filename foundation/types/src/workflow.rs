//! A workflow as it was requested, checked and resolved: the output of `flow`, the input of `engine`.

use crate::hash::Hash;
use crate::id::{DataId, PartitionId, StepId};
use crate::named::NamedDataset;
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
    /// The place to which rescue, overflow and policies such as `stage-through` put data without a `dest`: a directory of the
    /// external store, or a tree of an object store.
    pub external: Option<PathBuf>,
    /// Its data is overwritten before it is removed from the nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub erase: bool,
    /// The folder of the workflow file: relative paths start here, and it leads the steps' `PATH`.
    pub folder: PathBuf,
    /// The datasets.
    pub data: Vec<Dataset>,
    /// The partitions of storage memory that steps get.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<StoragePartition>,
    /// The steps, in the file's order.
    pub steps: Vec<Step>,
}

/// A dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    /// Its name: letters, digits, `_` (it names `$TARN_<name>`).
    pub name: String,
    /// The source of a dataset that exists outside: version 0. Absolute.
    pub source: Option<PathBuf>,
    /// The destination of its last version at the end. Absolute.
    pub dest: Option<PathBuf>,
    /// The expected size in bytes of one version.
    pub size: Option<u64>,
    /// How `scatter` divides it.
    pub scatter: Option<ScatterRule>,
    /// How long its versions stay on the nodes.
    pub keep: Keep,
    /// Replicas on different nodes, at least 1.
    pub copies: u32,
    /// Its treatment when the run fails.
    pub on_failure: OnFailure,
    /// The tier it is kept on (by name); otherwise the fastest with space.
    pub tier: Option<String>,
    /// Its replicas on the nodes are sealed; only a running step sees it in clear.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypt: bool,
    /// Of jobs on a site: which dataset it is there, if not the workflow's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<NamedDataset>,
    /// How its versions are divided into parts: derived from its consumers.
    pub partition: VersionPartitioning,
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

/// The treatment of data on the nodes when the run fails.
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
pub enum VersionPartitioning {
    /// One part for each producer.
    Whole,
    /// One part for each top-level entry, because a step selects entries.
    Entries,
    /// One part for each rank of the scatter rule, one for everything else.
    Ranks,
}

/// A partition of storage memory, made for a step when it starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoragePartition {
    /// Its name: letters, digits, `_` (it names `$TARN_PARTITION_<name>`).
    pub name: String,
    /// Bytes on each node of a step; of one that is spread, on all of them together.
    pub size: u64,
    /// Bytes of a unit that it is written by; `None`: it is mapped.
    pub unit: Option<u32>,
    /// The tier it is stored on (by name); otherwise that of the step's outputs.
    pub tier: Option<String>,
    /// The pieces on the nodes of a step are one partition, block by block in turn: bytes of a block.
    pub spread: Option<u64>,
    /// How long it is there.
    pub keep: KeepPartition,
    /// The steps that use it.
    pub steps: Vec<StepId>,
}

/// How long a [`StoragePartition`] is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeepPartition {
    /// As long as an attempt of a step: each has its own.
    Step,
    /// From the first step that uses it until the last one has committed: they have one.
    Workflow,
}

impl StoragePartition {
    /// Bytes before the data of a partition's file (docs/reference/formats.md).
    pub const HEAD: u64 = 2 << 20;
    /// Pieces of one that is spread: as many as `dsa_open_cyclic` takes (docs/guide/direct-access.md).
    pub const MOST_PIECES: u32 = 1024;
    /// Bytes of the names of all pieces of one that is spread: programs have them in one variable, and Linux takes 128 KiB of one.
    pub const MOST_NAMES: usize = 120_000;
    /// Its data is whole pages, and whole units of at most so many bytes.
    const UNIT: u64 = 16 << 10;

    /// The name of its file.
    pub fn file(&self) -> String {
        format!("{}.partition", self.name)
    }

    /// Bytes of the names of the pieces on these nodes, of one that is called so and spread over them: `NODE:@step/NAME` each, and a comma.
    pub fn names<'n>(name: &str, nodes: impl IntoIterator<Item = &'n str>) -> usize {
        let nodes = nodes.into_iter();
        nodes
            .map(|node| node.len() + ":@step/,".len() + name.len())
            .sum()
    }

    /// Bytes of data on each of so many nodes.
    pub fn on_each(&self, nodes: usize) -> u64 {
        Self::piece(self.size, self.spread, nodes)
    }

    /// Bytes that it takes on the tier of each of so many nodes, at most.
    pub fn takes(&self, nodes: usize) -> u64 {
        Self::max_file_size(self.on_each(nodes))
    }

    /// Bytes of data on each of so many nodes, of so many that are spread in blocks of so many, or not.
    pub fn piece(size: u64, spread: Option<u64>, nodes: usize) -> u64 {
        match spread {
            None => size,
            Some(block) => {
                let blocks = size.div_ceil(block.max(1));
                blocks.div_ceil(nodes.max(1) as u64).saturating_mul(block)
            }
        }
    }

    /// Bytes that a file of so many bytes of data takes, at most.
    pub fn max_file_size(data: u64) -> u64 {
        let data = data.checked_next_multiple_of(Self::UNIT);
        data.unwrap_or(u64::MAX).saturating_add(Self::HEAD)
    }
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its name: letters, digits, `_`, `-`, `.`.
    pub name: String,
    /// The command, started once, on the step's first node.
    pub run: String,
    /// Shell commands that come before `run`, such as `module load`.
    pub prelude: Option<String>,
    /// The program that runs the command, if the file names one, and its options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
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
    /// It continues from its checkpoints when an attempt has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// The tier its outputs are written to (by name).
    pub tier: Option<String>,
    /// It uses `/tmp` and its like as all programs of a node do; else it has its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared_tmp: bool,
    /// Steps that must have ended before, beside those its data comes from.
    pub after: Vec<StepId>,
    /// One instance for each element.
    pub foreach: Option<Foreach>,
    /// The datasets that it reads, writes and changes.
    pub uses: Vec<DatasetUse>,
    /// Hash of everything in the step that decides its result beside its inputs: command, the bytes of
    /// scripts it names, prelude, environment, nodes, tasks, distributions.
    pub code: Hash,
}

/// How a step continues from its checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// The kind of the checkpoints.
    pub from: CheckpointMethod,
    /// Bytes that they take on each of its nodes.
    #[serde(rename = "room")]
    pub space: u64,
    /// Of images: how long after one the next is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Nanos>,
    /// Of images: the step has a network, shared memory and terminals of its own, and they hold its connections.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// Of images: a copy of each is stored on another node of the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub buddy: bool,
}

impl Distribution {
    /// Why several nodes of a job of a site cannot have a dataset as one folder, and what can be done instead.
    pub const NO_SHARED: (&str, &str) = (
        "several nodes of a job have no folder together: root would have to show its tasks a file system that a user's process serves, and could hang with it",
        "use `scatter`, `broadcast` or `single`, or run the step by `tarn run` inside one allocation",
    );
}

impl Restart {
    /// Why a job of a site cannot continue from images, and what can be done instead.
    pub const NO_IMAGES: (&str, &str) = (
        "`restart = \"image\"`: an image holds a whole tree of processes, and those of a job are Slurm's children",
        "write `restart = \"phx\"` or `restart = \"files\"`, or run the step by `tarn run` inside one allocation",
    );
}

/// The kind of the checkpoints from which a step continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointMethod {
    /// Those of libtarn: whether an attempt has come further is seen.
    Phx,
    /// The program's own files, of which nothing is known.
    Files,
    /// Images of its processes, which know nothing of it.
    Image,
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
        /// The pattern of the entries.
        pattern: EntryPattern,
        /// The most instances this may give; more is an error of the producing step.
        max: u32,
        /// No instance at all is no error.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        allow_empty: bool,
    },
}

/// One use of a dataset by a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetUse {
    /// The dataset.
    pub data: DataId,
    /// Read, written or both.
    pub role: Role,
    /// How it is spread over the step's nodes.
    pub distribution: Distribution,
    /// Of an `in`: the one top-level entry that is read; `{item}` is replaced.
    pub entry: Option<String>,
    /// The version that is read (`in`, `inout`).
    pub reads: Option<u32>,
    /// The version that is made (`out`, `inout`).
    pub makes: Option<u32>,
}

/// The use of a dataset by a step.
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

/// How a version is spread over the nodes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Whole, on the step's first node only (`gather` in the file means the same for an `in`).
    Single,
    /// By the dataset's rule: the entries of a rank on the rank's node, everything else on every node.
    Scatter,
    /// Whole, on every node.
    Broadcast,
    /// One namespace that all nodes see and write. An input is whole on the first node before; an output is where the file system
    /// has put it, each file whole on a node.
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

    /// The partition of an id.
    pub fn partition(&self, id: PartitionId) -> &StoragePartition {
        &self.partitions[id.at()]
    }

    /// The partitions that a step uses.
    pub fn partitions_of(
        &self,
        step: StepId,
    ) -> impl Iterator<Item = (PartitionId, &StoragePartition)> {
        let all = (0..).map(PartitionId).zip(&self.partitions);
        all.filter(move |(_, p)| p.steps.contains(&step))
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
