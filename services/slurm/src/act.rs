//! Calls by which tarn marks what it plans in Slurm, beyond preferences and exclusions. Each can be made twice, and is
//! recognisable as tarn's. docs/internals/driving-slurm.md, "The actions, and how each lapses".

use crate::SlurmError;
use crate::command::{SOON, answer, answer_to};

/// Seconds for which nodes are reserved at least, and at most: so long they are needed by limits, and Slurm's backfill plans
/// nothing else there meanwhile.
pub const RESERVATION_SECONDS: u32 = 60;
/// The most of it: one that a job has joined lasts so long if the controller dies then, as no ordinary job is delayed by more.
pub const MAX_RESERVATION_SECONDS: u32 = 600;
/// Seconds after which Slurm ends a reservation without jobs that nobody renews, whatever its end is. It looks every 30 s, and
/// counts from when it first saw it without jobs: so it is over at most 95 s after the last renewal.
pub const RENEWED_SECONDS: u32 = 35;

/// Seconds ahead to which a begin time is set at most: so long the job waits if the controller dies.
pub const DELAY_SECONDS: u32 = 60;

/// A change in Slurm that `scontrol` makes with Slurm's own rights.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlurmAction {
    /// Keeps nodes for the jobs of a user; jobs that run there run on.
    Reserve {
        /// The name of the reservation.
        reservation: String,
        /// Its nodes.
        nodes: Vec<String>,
        /// The name of the user.
        user: String,
        /// For how many seconds, if it is renewed until then.
        seconds: u32,
    },
    /// Has a reservation last.
    Renew {
        /// Its name.
        reservation: String,
        /// For how many seconds from now, if it is renewed until then.
        seconds: u32,
        /// How many seconds ago it was made.
        age: u32,
    },
    /// Gives a reservation other nodes: all of them are named.
    Resize {
        /// Its name.
        reservation: String,
        /// Its nodes from now on.
        nodes: Vec<String>,
    },
    /// Has a node have its own name as a feature, which jobs then may prefer.
    NameFeature {
        /// The node.
        node: String,
        /// Its other features.
        features: Vec<String>,
    },
    /// Puts a waiting job into a reservation, in which Slurm starts it at its next pass.
    Join {
        /// The job.
        job: u32,
        /// The name of the reservation.
        reservation: String,
        /// The nodes in it that the job should get.
        nodes: Vec<String>,
    },
    /// Takes a job out of its reservation, whether it waits or runs.
    Leave {
        /// The job.
        job: u32,
    },
    /// Has a waiting job begin later.
    DelayUntil {
        /// The job.
        job: u32,
        /// In how many seconds it may begin, at most [`DELAY_SECONDS`].
        seconds: u32,
    },
    /// Lets it begin now: a begin time that passes by itself is no event to Slurm.
    Undelay {
        /// The job.
        job: u32,
    },
    /// Removes a reservation that no job refers to any more.
    Delete {
        /// Its name.
        reservation: String,
    },
    /// Has a reservation end now, where jobs still refer to it.
    Expire {
        /// Its name.
        reservation: String,
    },
}

impl SlurmAction {
    /// The words of the call of `scontrol`.
    ///
    /// ```
    /// use tarn_slurm::SlurmAction;
    ///
    /// let action = SlurmAction::Join {
    ///     job: 7,
    ///     reservation: "tarn_3_workflow_1".into(),
    ///     nodes: vec!["n1".into(), "n2".into()],
    /// };
    /// assert_eq!(
    ///     action.words().join(" "),
    ///     "update jobid=7 reservationname=tarn_3_workflow_1 prefer=n1|n2 starttime=now"
    /// );
    /// ```
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let word = |text: &str| text.to_owned();
        let end = |seconds: &u32| format!("EndTime=now+{seconds}");
        let update = |reservation: &str, change: String| {
            let name = format!("reservationname={reservation}");
            vec![word("update"), name, change]
        };
        match self {
            // Without FLEX Slurm ends jobs that run when the reservation ends; without NO_HOLD_JOBS_AFTER it holds those that wait.
            Self::Reserve {
                reservation,
                nodes,
                user,
                seconds,
            } => vec![
                word("create"),
                word("reservation"),
                format!("ReservationName={reservation}"),
                word("StartTime=now"),
                end(seconds),
                format!("Nodes={}", nodes.join(",")),
                format!("Users={user}"),
                format!(
                    "Flags=IGNORE_JOBS,FLEX,NO_HOLD_JOBS_AFTER,{}",
                    unused(RENEWED_SECONDS)
                ),
            ],
            Self::Renew {
                reservation,
                seconds,
                age,
            } => {
                let mut words = update(reservation, end(seconds));
                let limit = age.saturating_add(RENEWED_SECONDS);
                words.push(format!("Flags+={}", unused(limit)));
                words
            }
            // 22.05 knows no `Nodes-=`.
            Self::Resize { reservation, nodes } => {
                update(reservation, format!("Nodes={}", nodes.join(",")))
            }
            Self::NameFeature { node, features } => {
                let mut all: Vec<&str> = features.iter().map(String::as_str).collect();
                all.push(node);
                vec![
                    word("update"),
                    format!("nodename={node}"),
                    format!("availablefeatures={}", all.join(",")),
                ]
            }
            Self::Join {
                job,
                reservation,
                nodes,
            } => vec![
                word("update"),
                format!("jobid={job}"),
                format!("reservationname={reservation}"),
                format!("prefer={}", nodes.join("|")),
                word("starttime=now"),
            ],
            Self::Leave { job } => vec![
                word("update"),
                format!("jobid={job}"),
                word("reservationname="),
            ],
            Self::DelayUntil { job, seconds } => vec![
                word("update"),
                format!("jobid={job}"),
                format!("starttime=now+{}", seconds.min(&DELAY_SECONDS)),
            ],
            Self::Undelay { job } => vec![
                word("update"),
                format!("jobid={job}"),
                word("starttime=now"),
            ],
            Self::Delete { reservation } => {
                vec![word("delete"), format!("reservationname={reservation}")]
            }
            Self::Expire { reservation } => update(reservation, word("EndTime=now+1")),
        }
    }

    /// Makes the call.
    ///
    /// # Errors
    /// When `scontrol` cannot be run, or Slurm refuses.
    pub fn perform(&self) -> Result<(), SlurmError> {
        let words = self.words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        answer("scontrol", &words, SOON).map(drop)
    }
}

/// Makes calls one after another by one process, which reads them from its standard input: on a busy host a process takes longer than
/// its call.
///
/// # Errors
/// When `scontrol` cannot be run, or Slurm refuses one of them: which ones were made is not known then.
pub fn perform_all(actions: &[SlurmAction]) -> Result<(), SlurmError> {
    let lines = actions.iter().map(|action| action.words().join(" ") + "\n");
    let mut text: String = lines.collect();
    text.push_str("exit\n");
    answer_to("scontrol", &[], text, SOON).map(drop)
}

/// The flag of a reservation that Slurm ends once it has had no job for so long.
fn unused(seconds: u32) -> String {
    let (minutes, hours, days) = (seconds / 60 % 60, seconds / 3600 % 24, seconds / 86_400);
    let seconds = seconds % 60;
    format!("PURGE_COMP={days}-{hours:02}:{minutes:02}:{seconds:02}")
}

impl std::fmt::Display for SlurmAction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "scontrol {}", self.words().join(" "))
    }
}
