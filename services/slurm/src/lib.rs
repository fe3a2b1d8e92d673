//! L3: Slurm as it is now ([`SlurmSnapshot`]), the allocation of Slurm that this process is in, and one tarnd on each of its nodes. Slurm's own commands are all
//! that is used, as its user has them: no plugin, no library, no administrator. docs/internals/cluster.md, "Inside Slurm". For administrators: tarn's
//! lines in Slurm's configuration files ([`conf`]).

mod accounting;
mod act;
mod allocation;
mod command;
mod conditions;
pub mod conf;
mod excluded;
mod nodes;
mod power;
mod preferred;
mod progress;
mod scripts;
mod shown;
mod snapshot;
mod update;

pub use accounting::{
    AccountingAnswer, AccountingQuery, AccountingSource, MAX_ACCOUNTED, node_processors,
};
pub use act::{
    DELAY_SECONDS, MAX_RESERVATION_SECONDS, RENEWED_SECONDS, RESERVATION_SECONDS, SlurmAction,
    perform_all,
};
pub use allocation::{SlurmAllocation, is_of_step};
pub use conditions::is_as_read;
pub use excluded::{exclusion, set_exclusion};
pub use nodes::{SrunLaunch, SrunNodes};
pub use power::{PowerChange, change_power, drawn, energy_plugin};
pub use preferred::{Preference, held_without_nodes, restore_preference};
pub use progress::{JobProgress, completed_job, job_progress};
pub use scripts::{
    JobOrigin, admin_comment, has_wish, job_origins, job_script, release_with_comment,
};
pub use shown::show_on;
pub use snapshot::{
    Answers, ArrayTasks, HetComponent, HostlistError, NodeBase, NodeFlag, NodeNames,
    PartitionState, PendingReason, SlurmJob, SlurmJobState, SlurmLicence, SlurmNode,
    SlurmNodeState, SlurmPartition, SlurmReservation, SlurmSettings, SlurmSnapshot, SlurmSource,
    SnapshotLimits, expand_hostlist,
};
pub use update::{PlacedJobChange, apply_update, expected_nodes, job_change, unread_job_change};

use std::time::Duration;

/// Bytes of another program's text in a message.
const MAX_EXCERPT: usize = 200;

/// The beginning of a text, for a message.
fn excerpt(text: &str) -> String {
    match text.char_indices().nth(MAX_EXCERPT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Texts of Slurm's clients where slurmctld does not answer: it may have done what was asked.
const UNANSWERED: [&str; 5] = [
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Connection refused",
    "Communication connection failure",
];

impl SlurmError {
    /// Whether Slurm did not answer: it has not refused, and may have done it.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        match self {
            Self::Late { .. } => true,
            Self::Failed { output, .. } => UNANSWERED.iter().any(|text| output.contains(text)),
            _ => false,
        }
    }
}

/// Slurm, or a program that it started, failed.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// The environment is not that of an allocation.
    #[error(
        "{what}; tarn takes the allocation from the environment that sbatch and salloc make, `tarn run --local` uses this machine only"
    )]
    Environment {
        /// The error in it.
        what: String,
    },
    /// A command of Slurm cannot be run.
    #[error(
        "{command} cannot be run: {source}; Slurm's commands must be in PATH (`tarn run --local` needs none)"
    )]
    Command {
        /// Which.
        command: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A command of Slurm failed.
    #[error("{command} failed ({status}): {output}")]
    Failed {
        /// The command.
        command: String,
        /// How it ended.
        status: String,
        /// Its output.
        output: String,
    },
    /// A file of Slurm's cannot be read.
    #[error("{} cannot be read: {source}; it is the file of Slurm's job completion plug-in (JobCompLoc), and root's or Slurm's user's to read", path.display())]
    File {
        /// Which.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A command of Slurm did not end.
    #[error(
        "{command} did not end within {timeout:?}: slurmctld or slurmd may be down; try again later"
    )]
    Late {
        /// The command.
        command: String,
        /// How long was waited.
        timeout: Duration,
    },
    /// The output of a command of Slurm is longer than tarn reads.
    #[error("{command} wrote more than {bytes} bytes, the most that tarn reads of it")]
    TooLong {
        /// The command.
        command: String,
        /// The bound on its output.
        bytes: u64,
    },
    /// A list of nodes cannot be expanded.
    #[error(transparent)]
    Hostlist(#[from] HostlistError),
    /// Its answer makes no sense.
    #[error("{command} answered `{answer}`, which makes no sense here")]
    Answer {
        /// The command.
        command: String,
        /// Its output.
        answer: String,
    },
    /// More nodes were requested than there are.
    #[error(
        "more nodes were asked for ({requested}) than job {job} has ({there}); ask Slurm for more, or tarn for fewer (--nodes)"
    )]
    TooMany {
        /// Nodes requested.
        requested: u32,
        /// The job.
        job: String,
        /// Nodes of the job.
        there: usize,
    },
    /// The program is not there.
    #[error("{program} is not there: it must be beside tarn, in a folder that all nodes see")]
    NoProgram {
        /// The path at which tarn looked for it.
        program: String,
    },
    /// Some nodes did not start.
    #[error("tarnd did not start on {missing} ({why}){output}")]
    Missing {
        /// The nodes.
        missing: String,
        /// The reason.
        why: String,
        /// The output of srun and the nodes, if any.
        output: String,
    },
}
