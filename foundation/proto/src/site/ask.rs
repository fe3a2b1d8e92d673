//! Requests of Slurm's scripts and of users to the controller, over its unix socket: the kernel identifies them.

use super::{Gid, JobDataRecord, Owner, PlanInfo, PlanStatusInfo, SlurmJobId, Uid};
use crate::local::RequestError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tarn_types::energy::Draw;
use tarn_types::units::{Nanos, Time};
use tarn_types::workflow::Workflow;

/// A job's script as it was read: a workflow of one step, whose other datasets are those of the workflow's other jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSubmission {
    /// Its user.
    pub user: Uid,
    /// Its group.
    pub group: Gid,
    /// All groups that its user is in.
    #[serde(default)]
    pub groups: Vec<Gid>,
    /// The users and groups that its script names: `alice`, `@climate`.
    #[serde(default)]
    pub owners: BTreeMap<String, Owner>,
    /// Its script names no workflow: it is one by itself.
    #[serde(default)]
    pub is_alone: bool,
    /// Its place in a workflow that is given by numbers of jobs: the options of the NEXTGenIO fork.
    #[serde(default)]
    pub chain: Option<Chain>,
    /// Nodes that its user excludes (`sbatch --exclude`); `None`: not known.
    #[serde(default)]
    pub excludes: Option<Vec<String>>,
    /// Its user has said where it is to run, or had best run.
    #[serde(default)]
    pub has_wish: bool,
    /// The workflow that its lines describe.
    pub workflow: Workflow,
}

/// A job's place in a workflow: the options `--workflow-...` of the NEXTGenIO fork of Slurm.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// It continues with the workflow of this job of the same user. Without, it begins one.
    pub prior: Option<SlurmJobId>,
    /// It is the last one.
    pub is_end: bool,
    /// It runs on the nodes of the job before it.
    pub same_nodes: bool,
    /// Of the first job: the jobs that were submitted with it, when its end was named.
    pub others: Vec<SlurmJobId>,
}

/// A stage of a job, as burst_buffer.lua calls them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Slurm asks about a job; it may be known already.
    Reported,
    /// It was submitted.
    Setup(Box<JobSubmission>),
    /// As [`Stage::Ahead`] of a version that did not ask where; nothing is done about it. In logs, and of scripts not updated yet.
    DataIn,
    /// The same, with the nodes that it is expected on: its inputs may be brought there before it has any.
    Ahead(Vec<String>),
    /// It has nodes: in the job's order. The gate.
    PreRun(Vec<String>),
    /// Its script has ended.
    PostRun {
        /// Well.
        ok: bool,
    },
    /// Its results are to go where they belong.
    DataOut,
    /// It has left its nodes, and Slurm has put it back into its queue: its inputs stay.
    PutBack,
    /// It is over.
    Teardown {
        /// `scancel --hurry`: nothing is to be waited for.
        hurry: bool,
    },
}

/// A stage of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staging {
    /// The job.
    pub job: SlurmJobId,
    /// The stage.
    pub stage: Stage,
}

/// Jobs of one [`ControllerRequest::AwaitJobs`].
pub const MAX_AWAITED: usize = 10_000;

/// A question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControllerRequest {
    /// Of root and Slurm's user only: do this, and answer when it is done.
    Stage(Staging),
    /// The last job of a workflow was submitted. Its owner's; root and Slurm's user speak for anybody.
    End {
        /// The owner.
        user: Uid,
        /// The workflow.
        workflow: String,
    },
    /// The datasets that the asker may see.
    Datasets,
    /// Those of them that are meant.
    Find(DatasetFilter),
    /// The state of a job.
    Job(SlurmJobId),
    /// The state of all nodes.
    Nodes,
    /// Slurm's state as the controller knows it.
    Slurm,
    /// Answer when all these jobs, at most [`MAX_AWAITED`] of the asker's, are taken in: refused if one of them cannot be.
    AwaitJobs(Vec<SlurmJobId>),
    /// The usage of users and projects since a time; their own, or all if root asks.
    Usage(Time),
    /// The sums of workflows that had a job since a time; one's own, or all if root asks.
    WorkflowUsage(Time),
    /// The records of the data of jobs that have ended: the asker's own, or all if root or Slurm's user asks.
    Records {
        /// Jobs that ended then, or later.
        since: Time,
        /// The number of the first one, by the answer before; 0 to begin with.
        from: u64,
    },
    /// Which jobs had data lines. Root's and Slurm's user's.
    DataJobs,
    /// Remove a dataset, or one version of it. Its owner's, or root's.
    Remove {
        /// The owner.
        owner: Owner,
        /// The workflow.
        workflow: String,
        /// The dataset; `None`: all of the workflow's.
        dataset: Option<String>,
        /// The version; `None`: all.
        version: Option<u32>,
    },
    /// Let others read a dataset, or no longer. Its owner's.
    Grant {
        /// The owner.
        owner: Owner,
        /// The workflow.
        workflow: String,
        /// The dataset.
        dataset: String,
        /// The reader.
        to: Owner,
        /// Whether they may from now on.
        may: bool,
    },
    /// Keep a dataset until then. Its owner's.
    Keep {
        /// The owner.
        owner: Owner,
        /// The workflow.
        workflow: String,
        /// The dataset.
        dataset: String,
        /// Until when.
        until: Time,
    },
    /// Keep a dataset no longer than without [`ControllerRequest::Keep`]. Its owner's.
    Release {
        /// The owner.
        owner: Owner,
        /// The workflow.
        workflow: String,
        /// The dataset.
        dataset: String,
    },
    /// Have all replicas of a dataset, or of one version of it, read again on their nodes. Its owner's, or root's.
    Verify {
        /// The owner.
        owner: Owner,
        /// The workflow.
        workflow: String,
        /// The dataset.
        dataset: String,
        /// The version; `None`: all.
        version: Option<u32>,
    },
    /// Content of nodes that the controller does not know: the asker's, or all if root asks.
    Orphans,
    /// Remove these.
    RemoveOrphans,
    /// Wrap the keys of all encrypted data with a new secret of the site. Root's; answered by the keeper of the secrets.
    RotateKey {
        /// Forget the older ones too, which is refused while a node has keys that they wrap.
        drop: bool,
        /// Forget them even if data is lost by it.
        force: bool,
    },
    /// The plan of the next hours.
    Plan,
    /// The state of the planning.
    PlanStatus,
    /// Act in Slurm in the mode of this name, from now on and after a restart. Root's; answered by the controller.
    SetMode(String),
}

/// Which datasets: a field that is `None` matches all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetFilter {
    /// The owner.
    pub owner: Option<Owner>,
    /// The workflow.
    pub workflow: Option<String>,
    /// The dataset.
    pub dataset: Option<String>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControllerReply {
    /// It is done.
    Done,
    /// It is not, and why.
    Refused(RequestError),
    /// Of a setup that is done.
    Advice(PlacementAdvice),
    /// Of a setup, and of a publication: the changes of waiting jobs in Slurm that follow from [`ControllerReply::Advice`] and
    /// [`ControllerReply::Advices`].
    Updates(Vec<SlurmUpdate>),
    /// Of [`Stage::Reported`]: the job is not known.
    Unknown,
    /// Of a publication: jobs that wait for it, and where they would best run now that it is there.
    Advices(Vec<(SlurmJobId, PlacementAdvice)>),
    /// Of [`ControllerRequest::Datasets`] and [`ControllerRequest::Find`].
    Datasets(Vec<DatasetInfo>),
    /// Of [`ControllerRequest::Job`].
    Job(Box<JobInfo>),
    /// Of [`ControllerRequest::Nodes`].
    Nodes(Vec<NodeInfo>),
    /// Of [`ControllerRequest::Slurm`].
    Slurm(SlurmInfo),
    /// Of [`ControllerRequest::Usage`].
    Usage(Vec<UsageInfo>),
    /// Of [`ControllerRequest::WorkflowUsage`], the newest first.
    WorkflowUsage(Vec<WorkflowUsageInfo>),
    /// Of [`ControllerRequest::DataJobs`].
    DataJobs {
        /// Of jobs that were taken in before, some are forgotten.
        known_since: Time,
        /// The jobs.
        jobs: Vec<SlurmJobId>,
    },
    /// Of [`ControllerRequest::Orphans`], and of [`ControllerRequest::RemoveOrphans`] those that go.
    Orphans(Vec<OrphanInfo>),
    /// Of [`ControllerRequest::Records`], in the order in which the jobs ended.
    Records {
        /// Some of them.
        records: Vec<JobDataRecord>,
        /// The number to ask on with; `None`: that was all.
        next: Option<u64>,
    },
    /// Of [`ControllerRequest::Verify`].
    Replicas(Vec<ReplicaInfo>),
    /// Of [`ControllerRequest::Plan`].
    Plan(Box<PlanInfo>),
    /// Of [`ControllerRequest::PlanStatus`].
    PlanStatus(Box<PlanStatusInfo>),
}

/// The nodes where a job would best run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementAdvice {
    /// Nodes that have most of its inputs, best first; at most as many as it requests.
    pub prefer: Vec<String>,
    /// The nodes that it is to run on, if it must be these.
    #[serde(default)]
    pub require: Vec<String>,
    /// The jobs that make its inputs and have not ended.
    pub after: Vec<SlurmJobId>,
    /// The nodes that it is not to run on; `None`: no change.
    #[serde(default)]
    pub exclude: Option<Excluded>,
    /// Its preference so far is advice of this kind: it was put back into the queue, and its user prefers nothing.
    #[serde(default)]
    pub is_again: bool,
}

/// A change of a waiting job in Slurm.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlurmUpdate {
    /// The job.
    pub job: SlurmJobId,
    /// The settings of `scontrol update jobid=JOB`: `dependency=afterok:7`. Nothing, if nothing is to change.
    pub words: Vec<String>,
    /// Nodes that need a feature of their own name first.
    pub unnamed: Vec<String>,
    /// The jobs that it is to wait for beside its user's conditions: with them `dependency=` in the words, if it is there at all,
    /// is for clients of an earlier version.
    #[serde(default)]
    pub after: Vec<SlurmJobId>,
    /// Its conditions when this was decided; `None`: not known.
    #[serde(default)]
    pub seen: Option<SlurmJobConditions>,
}

/// The conditions of a job on which a [change](SlurmUpdate) was decided. Where its user has changed one since, that stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlurmJobConditions {
    /// The nodes that it must have.
    pub required: Vec<String>,
    /// The features that it prefers, an expression.
    pub preferred: String,
    /// The nodes that it must not have.
    pub excluded: Vec<String>,
}

/// Nodes that a job is not to run on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excluded {
    /// Those that its user excludes.
    pub own: Vec<String>,
    /// Those where it would find no space, those with least first; at most [`MAX_EXCLUDED`].
    pub full: Vec<String>,
}

/// Nodes that [`Excluded::full`] names at most.
pub const MAX_EXCLUDED: usize = 1_000;

/// A dataset, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetInfo {
    /// The owner.
    pub owner: Owner,
    /// The workflow.
    pub workflow: String,
    /// The dataset.
    pub dataset: String,
    /// The version.
    pub version: u32,
    /// Bytes of content.
    pub bytes: u64,
    /// The nodes that store its parts.
    pub nodes: Vec<String>,
    /// Of nodes whose stores have names: in which of them.
    #[serde(default)]
    pub stores: BTreeMap<String, Vec<String>>,
    /// The job that makes it, unless it is there.
    pub awaits: Option<SlurmJobId>,
    /// When it will be removed, if nobody uses it before.
    pub until: Option<Time>,
    /// Whether that is soon.
    #[serde(default)]
    pub ends_soon: bool,
    /// Why it will never be there, if that is so.
    #[serde(default)]
    pub failed: Option<String>,
    /// The other users who may read it; only for users who may change that.
    pub readers: Vec<Owner>,
    /// The jobs that need it: the asker's own, all if it may be changed.
    #[serde(default)]
    pub jobs: Vec<SlurmJobId>,
}

/// Something that is stored on a node and nobody knows, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanInfo {
    /// The node.
    pub node: String,
    /// The owner.
    pub owner: Owner,
    /// The content: a part or a job.
    pub what: String,
    /// Bytes.
    pub bytes: u64,
    /// Since when it is known to be one.
    pub since: Time,
}

/// The result of reading a replica again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaState {
    /// It has the published content.
    Whole,
    /// It is not.
    Damaged,
    /// Its state is not known: its node did not answer, or could not read.
    Unread,
    /// No node has this part: there is nothing to read.
    Absent,
}

/// A replica that was to be read again, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaInfo {
    /// The node.
    pub node: String,
    /// The store; empty if the node's has no name.
    pub store: String,
    /// The version that it is a part of.
    pub version: u32,
    /// The part.
    pub part: u32,
    /// Bytes of content.
    pub bytes: u64,
    /// The result.
    pub state: ReplicaState,
    /// Why, unless it is whole.
    pub why: String,
}

/// A job, for people: `tarn why`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// Its user.
    pub user: Uid,
    /// Its phase, in a word: `setup`, `staging`, `running`, `publishing`, `ended`.
    pub phase: String,
    /// The history of its data, oldest first, each event with its time.
    pub history: Vec<(Time, String)>,
    /// Why it does not continue, if it does not.
    pub waits: Option<String>,
    /// The versions of its data that will soon be removed.
    #[serde(default)]
    pub ending: Vec<String>,
    /// Its plan while it waits.
    #[serde(default)]
    pub planned: Option<String>,
}

/// A node, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its name.
    pub name: String,
    /// Whether it answers.
    pub up: bool,
    /// Bytes that tarn may use.
    pub capacity: u64,
    /// Bytes that are taken or promised.
    pub taken: u64,
    /// Whether the content of its store outlives a loss of power.
    pub persistent: bool,
    /// Things in its store that nobody knows.
    pub orphans: u64,
    /// Its power draw and temperature, as last reported.
    #[serde(default)]
    pub draw: Draw,
    /// Its stores, fast to slow, if they have names.
    #[serde(default)]
    pub stores: Vec<StoreInfo>,
}

/// Slurm's state as the controller knows it, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlurmInfo {
    /// Slurm's release; empty if Slurm was never read.
    pub version: String,
    /// The form of Slurm's output that is read.
    pub source: String,
    /// The nodes that Slurm knows.
    pub nodes: u32,
    /// Those of them that it may give to a job.
    pub usable: u32,
    /// The jobs that have not ended.
    pub jobs: u32,
    /// Those of them with data lines.
    pub with_data: u32,
    /// How long ago the last reading of the jobs began.
    pub age: Nanos,
    /// How long the last reading of everything took.
    pub took: Nanos,
    /// Bytes of it.
    pub bytes: u64,
    /// Why the last reading failed, if it did.
    pub failure: Option<String>,
}

/// A store of a node, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreInfo {
    /// Its name.
    pub name: String,
    /// Bytes that tarn may use.
    pub capacity: u64,
    /// Bytes that are taken or promised, or that something else has in its file system.
    pub taken: u64,
    /// Whether its content outlives a loss of power.
    pub persistent: bool,
    /// It is not there.
    pub is_away: bool,
}

/// The sums of one run of a workflow: Weiland 2018, equations 1 to 4. Of the jobs that have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkflowUsageInfo {
    /// Its user.
    pub user: Uid,
    /// Its name.
    pub workflow: String,
    /// When its first job was taken in.
    pub begun: Time,
    /// Whether no more jobs are expected.
    pub is_over: bool,
    /// Jobs that ended well.
    pub done: u64,
    /// Jobs that did not.
    pub not_done: u64,
    /// Jobs that have not ended, or of which Slurm's accounting is awaited.
    pub open: u64,
    /// Jobs of which Slurm's accounting had nothing.
    pub unaccounted: u64,
    /// T_all: from the submission of the first job to the end of the last one, or to when its results were outside.
    pub time: Nanos,
    /// T_queue: the sum of waits of jobs that ended well.
    pub queue: Nanos,
    /// T_run: the sum of their run times.
    pub run: Nanos,
    /// R_all: nodes times nanoseconds.
    pub node_time: Nanos,
}

/// The usage of a user or project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageInfo {
    /// The user or project.
    pub owner: Owner,
    /// Nodes times seconds of jobs.
    pub node_seconds: u64,
    /// MiB on tiers times seconds.
    pub mib_seconds: u64,
    /// Bytes that came from outside.
    pub read_outside: u64,
    /// Bytes that went outside.
    pub written_outside: u64,
    /// Bytes that went from node to node.
    pub between_nodes: u64,
}
