//! Slurm as it is at one moment, as typed values: nodes, jobs, partitions, reservations, licences, settings.
//!
//! [`SlurmSource::read`] runs Slurm's programs; [`SlurmSnapshot::from_fields`] and [`SlurmSnapshot::from_json`] are
//! functions of their output alone. All times are seconds since 1970 (UTC), all spans seconds, all sizes bytes. Where
//! Slurm has no value a text is empty, a list has no elements, and a number or time is `None` or 0 as its field says.

pub(crate) mod fields;
pub(crate) mod hostlist;
mod json;
pub(crate) mod read;
mod reasons;
mod scontrol;
pub(crate) mod states;
#[cfg(test)]
mod states_tests;
#[cfg(test)]
mod tests;
pub(crate) mod values;

pub use hostlist::{HostlistError, NodeNames, expand_hostlist};
pub use read::{SlurmSource, SnapshotLimits};
pub use reasons::PendingReason;
pub use states::{NodeBase, NodeFlag, SlurmJobState, SlurmNodeState};

use crate::SlurmError;
use hostlist::NodeLists;
use std::collections::{BTreeMap, BTreeSet};

/// The output of Slurm's programs from which a snapshot is made; what a source does not need is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    /// Seconds since 1970 at which the first program was started.
    pub read_at: u64,
    /// Fields: `squeue -O` with tarn's columns. JSON: `squeue --json`.
    pub jobs: Vec<u8>,
    /// Fields: the excluded nodes of the same jobs, by `squeue -o`.
    pub excluded: Vec<u8>,
    /// Fields: jobs with longer columns, where a value was cut.
    pub wide_jobs: Vec<u8>,
    /// Fields: excluded nodes with a longer column.
    pub wide_excluded: Vec<u8>,
    /// Fields: `sinfo -N -O` with tarn's columns. JSON: `sinfo --json` (22.05), `scontrol show nodes --json` (later).
    pub nodes: Vec<u8>,
    /// `scontrol -a -o show partition`.
    pub partitions: Vec<u8>,
    /// `scontrol -a -o show reservation`.
    pub reservations: Vec<u8>,
    /// `scontrol -o show licenses`.
    pub licences: Vec<u8>,
    /// `scontrol show config`.
    pub config: Vec<u8>,
}

/// Slurm at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmSnapshot {
    /// Seconds since 1970 at which reading it began: it is not older than that.
    pub read_at: u64,
    /// The nodes, by name. From fields, only those in a partition.
    pub nodes: BTreeMap<String, SlurmNode>,
    /// The jobs that have not ended, by number. An array's waiting tasks are one job.
    pub jobs: BTreeMap<u32, SlurmJob>,
    /// The partitions, by name.
    pub partitions: BTreeMap<String, SlurmPartition>,
    /// The reservations, by name.
    pub reservations: BTreeMap<String, SlurmReservation>,
    /// The licences, by name.
    pub licences: BTreeMap<String, SlurmLicence>,
    /// The settings that decide how Slurm schedules.
    pub settings: SlurmSettings,
}

impl Answers {
    /// Bytes of all outputs together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let all = [
            &self.jobs,
            &self.excluded,
            &self.wide_jobs,
            &self.wide_excluded,
            &self.nodes,
            &self.partitions,
            &self.reservations,
            &self.licences,
            &self.config,
        ];
        all.iter().map(|output| output.len() as u64).sum()
    }
}

impl SlurmSnapshot {
    /// Makes a snapshot of outputs with columns of fixed width.
    ///
    /// ```
    /// use tarn_slurm::{Answers, SlurmSnapshot};
    ///
    /// let mut answers = Answers::default();
    /// answers.config = b"SLURM_VERSION = 22.05.8\nMinJobAge = 300 sec\n".to_vec();
    /// answers.licences = b"LicenseName=solver Total=4 Used=1 Free=3 Reserved=0 Remote=no\n".to_vec();
    /// let snapshot = SlurmSnapshot::from_fields(&answers)?;
    /// assert_eq!(snapshot.settings.min_job_age, Some(300));
    /// assert_eq!(snapshot.licences["solver"].used, 1);
    /// # Ok::<(), tarn_slurm::SlurmError>(())
    /// ```
    ///
    /// # Errors
    /// When an output is not what Slurm writes, or names more nodes than tarn takes.
    pub fn from_fields(answers: &Answers) -> Result<Self, SlurmError> {
        let mut lists = NodeLists::default();
        let jobs = fields::jobs(answers, &mut lists, &BTreeMap::new())?;
        Self::of(answers, jobs, fields::nodes(answers)?, lists)
    }

    /// Makes a snapshot of jobs and nodes in JSON; the rest Slurm 22.05 has as text only.
    ///
    /// # Errors
    /// As [`SlurmSnapshot::from_fields`].
    pub fn from_json(answers: &Answers) -> Result<Self, SlurmError> {
        let mut lists = NodeLists::default();
        let jobs = json::jobs(answers, &mut lists)?;
        Self::of(answers, jobs, json::nodes(answers)?, lists)
    }

    fn of(
        answers: &Answers,
        jobs: BTreeMap<u32, SlurmJob>,
        nodes: BTreeMap<String, SlurmNode>,
        mut lists: NodeLists,
    ) -> Result<Self, SlurmError> {
        Ok(Self {
            read_at: answers.read_at,
            nodes,
            jobs,
            partitions: scontrol::partitions(answers, &mut lists)?,
            reservations: scontrol::reservations(answers, &mut lists)?,
            licences: scontrol::licences(answers),
            settings: scontrol::settings(answers)?,
        })
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmNode {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: SlurmNodeState,
    /// Its processors.
    pub cpus: u32,
    /// Processors that jobs have.
    pub cpus_allocated: u32,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes of memory that jobs have.
    pub memory_allocated: u64,
    /// Its generic resources, as Slurm writes them (`gpu:2`).
    pub gres: String,
    /// The features that it may have.
    pub features: Vec<String>,
    /// The features that it has now.
    pub active_features: Vec<String>,
    /// The partitions that it is in.
    pub partitions: BTreeSet<String>,
    /// Why it is drained, down or failing: an administrator's text, or Slurm's.
    pub reason: String,
    /// The text that `sinfo -O Extra` shows of it.
    pub extra: String,
    /// Whether a text or list of it may be cut.
    pub is_incomplete: bool,
}

/// Of which array a job is, and which tasks of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayTasks {
    /// The array's number.
    pub job: u32,
    /// A task's number, or an expression for those that wait (`1-4,8%2`).
    pub tasks: String,
}

/// Of which heterogeneous job a job is a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HetComponent {
    /// The number of its first component.
    pub leader: u32,
    /// The number of this one, from 0.
    pub offset: u32,
}

/// A job that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmJob {
    /// Its number.
    pub number: u32,
    /// Its array.
    pub array: Option<ArrayTasks>,
    /// Its heterogeneous job.
    pub het: Option<HetComponent>,
    /// The number of its user.
    pub user: u32,
    /// The name of its user.
    pub user_name: String,
    /// The partition that it has, or those that it may get.
    pub partitions: Vec<String>,
    /// Its quality of service.
    pub qos: String,
    /// Its account.
    pub account: String,
    /// Its state.
    pub state: SlurmJobState,
    /// Why it waits.
    pub reason: PendingReason,
    /// The text that Slurm shows in place of a reason's name. It may quote a user.
    pub description: String,
    /// Its priority; 0 when it is held.
    pub priority: u32,
    /// By how much its user, or an administrator, lowers its priority.
    pub nice: i64,
    /// When it was submitted.
    pub submitted: Option<u64>,
    /// When it could begin at the earliest: `None` while another job or a hold keeps it.
    pub eligible: Option<u64>,
    /// When it began, or is to begin.
    pub start: Option<u64>,
    /// When it ended or its limit ends; `None` without a limit.
    pub end: Option<u64>,
    /// Seconds that it may run; `None` without a limit.
    pub limit: Option<u64>,
    /// The nodes that it has, or needs at least.
    pub min_nodes: u32,
    /// The nodes that it takes at most.
    pub max_nodes: u32,
    /// The processors that it has or wants, on all of its nodes together.
    pub cpus: u32,
    /// Bytes of memory that it has or wants, on all of its nodes together.
    pub memory: Option<u64>,
    /// Resources that it wants of each node, as Slurm writes them (`gres:gpu:1`).
    pub tres_per_node: String,
    /// Whether it shares its nodes with no other job.
    pub is_exclusive: bool,
    /// Features that its nodes must have, an expression.
    pub features: String,
    /// Features that its nodes should have, an expression.
    pub preferred: String,
    /// Nodes that it must not get.
    pub excluded: NodeNames,
    /// Nodes that it must get.
    pub required: NodeNames,
    /// The nodes that it has.
    pub nodes: NodeNames,
    /// The nodes on which backfill expects it. JSON has these from 23.02 on.
    pub planned: NodeNames,
    /// Its reservation.
    pub reservation: String,
    /// Its licences, as Slurm writes them (`solver:2`).
    pub licences: String,
    /// The jobs that it still waits for, as Slurm writes them (`afterok:7(unfulfilled)`).
    pub dependency: String,
    /// Whether it has lines for a burst buffer.
    pub has_burst_buffer: bool,
    /// The administrator's comment: tarn's mark, if it set one.
    pub admin_comment: String,
    /// Whether a text or list of it may be cut: then nothing is to be decided on it.
    pub is_incomplete: bool,
    /// Whether the nodes that it must not get were not read yet: a reading of the jobs alone has them of earlier jobs only.
    pub lacks_exclusions: bool,
}

/// The state of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionState {
    /// It takes jobs and starts them.
    Up,
    /// It takes jobs and starts none.
    Down,
    /// It takes no jobs and starts those that it has.
    Drain,
    /// It takes no jobs and starts none.
    Inactive,
    /// A state that tarn does not know.
    Unknown,
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmPartition {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub nodes: NodeNames,
    /// Seconds that a job may run in it; `None` without a limit.
    pub max_time: Option<u64>,
    /// Jobs of partitions of a higher tier go first.
    pub tier: u32,
    /// Its state.
    pub state: PartitionState,
    /// Whether jobs that name none go here.
    pub is_default: bool,
    /// Whether jobs share its resources, as Slurm writes it (`NO`, `FORCE:4`, `EXCLUSIVE`).
    pub oversubscribe: String,
}

/// A reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmReservation {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub nodes: NodeNames,
    /// When it begins.
    pub start: Option<u64>,
    /// When it ends.
    pub end: Option<u64>,
    /// The users who may use it.
    pub users: Vec<String>,
    /// The accounts that may use it.
    pub accounts: Vec<String>,
    /// Its flags, as Slurm writes them (`MAINT`, `FLEX`).
    pub flags: Vec<String>,
    /// Its licences.
    pub licences: String,
    /// Whether it has begun.
    pub is_active: bool,
}

/// A licence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmLicence {
    /// Its name.
    pub name: String,
    /// How many there are.
    pub total: u32,
    /// How many jobs have.
    pub used: u32,
    /// How many reservations have.
    pub reserved: u32,
}

/// Settings that decide how Slurm schedules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmSettings {
    /// Slurm's release (`22.05.8`).
    pub version: String,
    /// When slurmctld started.
    pub boot_time: Option<u64>,
    /// The scheduler (`sched/backfill`).
    pub scheduler_type: String,
    /// Its parameters (`bf_interval=30`).
    pub scheduler_parameters: Vec<String>,
    /// The plug-in that gives jobs their priority (`priority/multifactor`).
    pub priority_type: String,
    /// Seconds for which slurmctld knows a job that has ended.
    pub min_job_age: Option<u64>,
    /// Seconds that a job may run beyond its reservation; `None` without a bound.
    pub reservation_overrun: Option<u64>,
    /// Where the records of ended jobs go (`jobcomp/filetxt`).
    pub job_completion_type: String,
    /// The plug-in that measures energy, empty for none (`acct_gather_energy/ipmi`).
    pub energy_type: String,
}

/// An output that is not what Slurm writes.
pub(crate) fn unreadable(command: &str, what: &str) -> SlurmError {
    SlurmError::Answer {
        command: command.to_owned(),
        answer: crate::excerpt(what),
    }
}
