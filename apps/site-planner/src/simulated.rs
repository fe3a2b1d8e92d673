//! A Slurm cluster in virtual time: a simulated Slurm and simulated node daemons around the site service's own core
//! ([`tarn_site::Site`]) and the site's own planner ([`crate::SitePlanner`], [`crate::Marks`]).
//!
//! Simulated are Slurm (`slurm`, `occupancy`), the daemons (`daemons`), and the times that programs and Slurm take
//! ([`SlurmTimes`]). What tarn decides comes from the code that decides on a real site. The same machine, workload, settings and
//! seed give the same result. docs/internals/digital-twin.md, "A Slurm with tarn".

mod controller;
mod daemons;
mod fault_plan;
mod faults;
mod life;
mod live;
mod occupancy;
mod record;
mod scheduler;
mod scripts;
mod service;
mod slurm;
mod stages;
#[cfg(test)]
mod tests;
mod world;

pub use fault_plan::ClusterFaults;
pub use world::SimulatedCluster;

use tarn_types::site::SiteResult;
use tarn_types::units::{Nanos, SECOND, Time};

const MILLISECOND: Nanos = SECOND / 1000;

/// How far tarn reaches into the simulated Slurm: the modes of a site, and none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServiceMode {
    /// There is no tarn: jobs read and write the external store.
    Without,
    /// The site service hands data over, and changes nothing in Slurm.
    Observe,
    /// It has Slurm prefer nodes with data.
    Advise,
    /// It reserves nodes for workflows too.
    Drive,
}

impl ServiceMode {
    /// All of them, by their names.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("alone", Self::Without),
        ("observe", Self::Observe),
        ("advise", Self::Advise),
        ("drive", Self::Drive),
    ];

    /// The name of the way: `slurm`, `slurm+advise`.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Without => "slurm",
            Self::Observe => "slurm+observe",
            Self::Advise => "slurm+advise",
            Self::Drive => "slurm+drive",
        }
    }
}

/// The times that Slurm and tarn take by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlurmTimes {
    /// Between two turns of slurmctld's own loop, in each of which its main scheduler looks at the queue. At the end of a job it looks
    /// at once.
    pub turn: Nanos,
    /// Between two rounds of backfill.
    pub backfill: Nanos,
    /// From a begin until the first instruction.
    pub launch: Nanos,
    /// From the last instruction until the nodes are free.
    pub release: Nanos,
    /// A call of one of tarn's scripts, beside what it waits for.
    pub call: Nanos,
    /// A reading of Slurm's state.
    pub reading: Nanos,
}

impl Default for SlurmTimes {
    /// As measured on the test cluster with its parameters for short jobs: docs/internals/digital-twin.md, "A Slurm with tarn".
    fn default() -> Self {
        Self {
            turn: 1002 * MILLISECOND,
            backfill: SECOND,
            launch: 120 * MILLISECOND,
            release: 50 * MILLISECOND,
            call: 50 * MILLISECOND,
            reading: 100 * MILLISECOND,
        }
    }
}

/// The settings of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterSettings {
    /// How far tarn reaches.
    pub mode: ServiceMode,
    /// The times of Slurm's.
    pub times: SlurmTimes,
    /// The planner's policy, with the bound of the promise to ordinary jobs.
    pub policy: tarn_types::policy::Policy,
    /// Whether every rule is checked after each event: slower.
    pub is_checked: bool,
}

/// The outcome of a simulation.
#[derive(Debug, Clone, Default)]
pub struct ClusterResult {
    /// Times of jobs and bytes, as of any simulated site.
    pub site: SiteResult,
    /// Calls by which tarn changed something in Slurm, beside those of its scripts.
    pub marks: u64,
    /// Those of them by which a job was to begin later.
    pub begin_times: u64,
    /// Delays beyond the promise's bound, by the auditor.
    pub delays: u64,
    /// Ordinary jobs that the auditor judged.
    pub judged: u64,
    /// Times that the controller was started again.
    pub restarts: u64,
}

/// Why a simulation stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The workload has what this cluster has not.
    #[error("job {job} {what}: a simulated Slurm has no such jobs; {instead}")]
    Unsupported {
        /// The job's name or number.
        job: String,
        /// The property that is refused.
        what: &'static str,
        /// The way out.
        instead: &'static str,
    },
    /// A rule was broken: an error of tarn's.
    #[error("{at} s: {rule}: {what}; this is an error of tarn: report it with the files")]
    Rule {
        /// Seconds of virtual time.
        at: u64,
        /// The rule.
        rule: &'static str,
        /// The violation.
        what: String,
    },
    /// Nothing happens any more, and jobs wait.
    #[error("{at} s: nothing happens any more, and job {job} waits: {why}")]
    Stuck {
        /// Seconds of virtual time.
        at: u64,
        /// A job.
        job: String,
        /// How it stands.
        why: String,
    },
}

/// Something that is due at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A job of the workload is submitted.
    Submit(u32),
    /// The main scheduler looks at the queue.
    Pass,
    /// Something may begin that could not before this time.
    Look,
    /// A round of backfill.
    Backfill,
    /// Slurm calls a job's `setup`; the number of its attempt.
    SetUp(u32, u32),
    /// Slurm calls `data_in`.
    DataIn(u32, u32),
    /// Slurm may start a job whose data is in.
    Staged(u32, u32),
    /// A job's nodes are ready.
    Launched(u32, u32),
    /// Its first instruction.
    Start(u32, u32),
    /// It has computed.
    Computed(u32, u32),
    /// Its nodes are free.
    Released(u32, u32),
    /// Slurm calls `post_run`, `data_out`, `teardown`.
    PostRun(u32, u32),
    DataOut(u32, u32),
    TearDown(u32, u32),
    /// A node's order without streams takes effect; its number.
    OrderDone(String, u64),
    /// A reading of Slurm begins.
    Reading,
    /// It has ended.
    Read,
    /// The planner's turn.
    Plan,
    /// A node is lost, and one is back.
    LoseNode,
    NodeBack(u32),
    /// The controller is started again.
    Restart,
}

impl Due {
    /// Whether it comes again and again although nothing happens.
    fn is_periodic(&self) -> bool {
        matches!(
            self,
            Self::Pass
                | Self::Look
                | Self::Backfill
                | Self::Reading
                | Self::Read
                | Self::Plan
                | Self::Restart
                | Self::LoseNode
        )
    }
}

/// The time of the site service and of the planner: since 1970.
fn site_time(now: Time) -> Time {
    slurm::EPOCH * SECOND + now
}
