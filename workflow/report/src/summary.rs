//! The totals of a run: for `--json` and the page. docs/guide/report.md defines every figure.
//! Times are nanoseconds, sizes bytes.

use crate::count::unexpanded_text;
use serde::{Deserialize, Serialize};
use tarn_types::cluster::Link;
use tarn_types::energy::Energy;
use tarn_types::history::{AttemptImages, Traffic};
use tarn_types::units::Nanos;

/// The version of this shape.
pub const SCHEMA: u32 = 1;

/// Points of one tier's fill curve: some for each pixel of a wide screen; points between keep their maximum.
pub const MAX_FILL_POINTS: usize = 1000;

/// Steps of [`Summary::not_run`] that the text names.
pub const MAX_NOT_RUN: usize = 8;

/// How equation 5 of Weiland et al. is estimated; printed wherever it is shown.
pub const EQUATION_5: &str = "estimate of T_run = T_I/O + T_compute (Weiland et al. 2018, equation 5): \
    T_run is preparing, running and committing; T_compute is CPU time in user mode divided by the cores used \
    (all CPU time over wall time, rounded up); T_I/O is the rest, with sleeping and waiting for a processor: an upper bound";

/// The totals of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The run's name.
    pub run: String,
    /// The workflow's name.
    pub workflow: String,
    /// The policy, as its text.
    pub policy: String,
    /// How it ended.
    pub outcome: OutcomeName,
    /// The signal that interrupted it.
    pub signal: Option<i32>,
    /// Wall-clock seconds since 1970 at its start.
    pub started: u64,
    /// From its start to its end, or to the last record.
    pub makespan_ns: Nanos,
    /// How often it was resumed.
    pub resumed: u64,
    /// The emulated external store; absent when it is used as found.
    pub emulated: Option<Emulated>,
    /// Bytes that moved, by kind, and bytes that did not have to.
    pub bytes: Traffic,
    /// The bytes over the external store's link if every instance read its inputs from it and wrote its outputs to it.
    pub stage_through: ExternalStoreBytes,
    /// How many instances ended how.
    pub instances: InstanceEndCounts,
    /// Steps whose number of instances is not known: the data they run over was not made.
    #[serde(default)]
    pub unexpanded_steps: u64,
    /// The first [`MAX_NOT_RUN`] of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unexpanded: Vec<String>,
    /// How many transfers ended how.
    pub transfers: TransferTally,
    /// Every loss of a node, in order.
    #[serde(default)]
    pub lost_nodes: Vec<LostNode>,
    /// Steps that did not run because of a failure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_run: Vec<SkippedStep>,
    /// Datasets with `on_failure = "drain"` that were not copied out completely when the run ended early.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_rescued: Vec<NotRescued>,
    /// The energy of its attempts.
    #[serde(default)]
    pub energy: EnergyTotal,
    /// How [`StepSummary::estimate`] is made.
    pub equation_5: String,
    /// Each step, in the file's order.
    pub steps: Vec<StepSummary>,
    /// Each node.
    pub nodes: Vec<NodeSummary>,
}

/// How a run ended, as a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutcomeName {
    /// Every step is committed, every `dest` written.
    Done,
    /// A step or a transfer failed for good.
    Failed,
    /// The machine can never hold its data: nothing was started.
    Refused,
    /// A signal ended it.
    Interrupted,
    /// The log has no end: it runs, or its process died.
    Unfinished,
}

impl OutcomeName {
    /// The word, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Interrupted => "interrupted",
            Self::Unfinished => "unfinished",
        }
    }
}

/// An emulated external store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emulated {
    /// Bytes a second towards the nodes; 0 for no limit.
    pub read: u64,
    /// Bytes a second from the nodes; 0 for no limit.
    pub write: u64,
    /// Nanoseconds added to every file.
    pub latency_ns: Nanos,
}

impl Emulated {
    /// The emulation on a link to the external store; `None` if there is none.
    pub fn of(link: &Link) -> Option<Self> {
        let imposed = |rate| if link.emulated { rate } else { 0 };
        (link.emulated || link.latency > 0).then_some(Self {
            read: imposed(link.read),
            write: imposed(link.write),
            latency_ns: link.latency,
        })
    }
}

/// Bytes over the external store's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExternalStoreBytes {
    /// Towards the nodes.
    pub external_in: u64,
    /// Away from them.
    pub external_out: u64,
}

/// A step that did not run, or not all of it, because of a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedStep {
    /// The step.
    pub step: String,
    /// Why: the failure among all that it needs.
    pub why: String,
}

impl std::fmt::Display for SkippedStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.step, self.why)
    }
}

/// A dataset that was to be copied out when the run ended early, and was not, or not all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRescued {
    /// The dataset.
    pub dataset: String,
    /// Why.
    pub why: String,
    /// Some parts of it were copied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_part: bool,
}

impl NotRescued {
    /// The result of the rescue, in words.
    pub(crate) fn what(&self) -> &'static str {
        if self.in_part {
            "was rescued only in part"
        } else {
            "was not rescued"
        }
    }
}

impl std::fmt::Display for NotRescued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` {}: {}", self.dataset, self.what(), self.why)
    }
}

/// Instances by how they ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InstanceEndCounts {
    /// Committed in this run.
    pub run: u64,
    /// Taken from an earlier run.
    pub reused: u64,
    /// Failed at the last attempt.
    pub failed: u64,
    /// Neither yet; of a run that has ended: not run. Of steps whose number of instances is known.
    pub open: u64,
    /// Attempts that were started.
    pub attempts: u64,
}

/// Transfers by how they ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TransferTally {
    /// Complete.
    pub done: u64,
    /// Failed whole.
    pub failed: u64,
    /// Cut off by the run's own death.
    pub interrupted: u64,
    /// In flight.
    pub open: u64,
}

/// A loss of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostNode {
    /// The node.
    pub node: String,
    /// When it was noticed, since the run's start.
    pub at_ns: Nanos,
    /// How it was noticed.
    pub why: String,
    /// Replicas that were on it.
    pub replicas: u64,
    /// Bytes that they took.
    pub bytes: u64,
    /// Attempts that it ended, here and on other nodes.
    pub attempts: u64,
    /// When it could be used again.
    pub back_ns: Option<Nanos>,
}

impl std::fmt::Display for LostNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use tarn_types::units::{Bytes, Elapsed};
        write!(
            f,
            "{} at {} with {} replica(s), {}, and {} running attempt(s): {}",
            self.node,
            Elapsed(self.at_ns),
            self.replicas,
            Bytes(self.bytes),
            self.attempts,
            self.why
        )?;
        match self.back_ns {
            Some(at) => write!(f, "; back at {}", Elapsed(at)),
            None => Ok(()),
        }
    }
}

/// A step: sums over all attempts of its instances that have ended, unless noted otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepSummary {
    /// Its name.
    pub name: String,
    /// Its instances.
    pub instances: InstanceEndCounts,
    /// From assignment until the inputs were there.
    pub staging_ns: Nanos,
    /// From then until it was started.
    pub waiting_ns: Nanos,
    /// Preparing views and pre-images.
    pub prepare_ns: Nanos,
    /// Its command.
    pub run_ns: Nanos,
    /// Hashing and committing.
    pub commit_ns: Nanos,
    /// The longest of its commands.
    pub longest_ns: Nanos,
    /// CPU time in user mode.
    pub user_ns: Nanos,
    /// CPU time in the kernel.
    pub system_ns: Nanos,
    /// Bytes read by its system calls.
    pub read: u64,
    /// Bytes written by its system calls.
    pub written: u64,
    /// The largest resident set of one of its processes.
    pub memory: u64,
    /// Bytes in the views of committed instances.
    pub input: u64,
    /// Of these, bytes that were stored where they were needed.
    pub retained: u64,
    /// Bytes that committed instances made.
    pub output: u64,
    /// The energy of its attempts.
    #[serde(default)]
    pub energy: EnergyTotal,
    /// The results of taking images of their processes.
    #[serde(default)]
    pub images: AttemptImages,
    /// Equation 5, as an estimate.
    pub estimate: Estimate,
}

/// The energy of attempts that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EnergyTotal {
    /// Of those of which it is known, together; none if that is none of them.
    pub measured: Option<Energy>,
    /// How many these are.
    pub attempts: u64,
    /// Of how many it is not known.
    pub unknown: u64,
}

impl EnergyTotal {
    /// With one attempt more.
    pub(crate) fn add(&mut self, energy: Option<Energy>) {
        match energy {
            Some(energy) => {
                self.measured = Some(self.measured.map_or(energy, |sum| sum.and(energy)));
                self.attempts += 1;
            }
            None => self.unknown += 1,
        }
    }

    /// With others.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.measured = match (self.measured, other.measured) {
            (Some(a), Some(b)) => Some(a.and(b)),
            (one, other) => one.or(other),
        };
        self.attempts += other.attempts;
        self.unknown += other.unknown;
        self
    }
}

impl std::fmt::Display for EnergyTotal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.measured {
            Some(energy) => write!(f, "{energy} for {} attempt(s)", self.attempts)?,
            None => return f.write_str("not known"),
        }
        match self.unknown {
            0 => Ok(()),
            n => write!(f, "; not known of {n} more"),
        }
    }
}

/// Weiland's equation 5, estimated as in [`EQUATION_5`]. `io_ns + compute_ns` is the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Estimate {
    /// T_I/O.
    pub io_ns: Nanos,
    /// T_compute.
    pub compute_ns: Nanos,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeSummary {
    /// Its name.
    pub name: String,
    /// Cores it offers.
    pub cores: u32,
    /// Time during which at least one step ran on it.
    pub busy_ns: Nanos,
    /// Time of the steps on it, each times its cores.
    pub core_busy_ns: Nanos,
    /// Its tiers, fast to slow.
    pub tiers: Vec<TierSummary>,
}

/// A tier of a node, over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierSummary {
    /// Its name.
    pub name: String,
    /// The capacity that the run could use: (time, bytes from then on).
    pub capacity: Vec<(Nanos, u64)>,
    /// The most it held.
    pub peak: u64,
    /// The bytes that it held: (time, bytes from then on), thinned to [`MAX_FILL_POINTS`].
    pub fill: Vec<(Nanos, u64)>,
}

impl std::fmt::Display for Summary {
    /// Some lines for a terminal, at the end of a run.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use tarn_types::units::{Bytes, Elapsed};
        let (b, s, i) = (&self.bytes, &self.stage_through, &self.instances);
        writeln!(
            f,
            "{:<9} {} in {} ({})",
            self.run,
            self.outcome.as_str(),
            Elapsed(self.makespan_ns),
            self.policy
        )?;
        if let Some(emulated) = &self.emulated {
            writeln!(f, "{emulated}")?;
        }
        write!(f, "steps     {} run", i.run)?;
        for (count, word) in [
            (i.reused, "unchanged"),
            (i.failed, "failed"),
            (i.open, "not run"),
        ] {
            if count > 0 {
                write!(f, ", {count} {word}")?;
            }
        }
        let may_come = self.outcome == OutcomeName::Unfinished;
        f.write_str(&unexpanded_text(
            self.unexpanded_steps,
            &self.unexpanded,
            may_come,
        ))?;
        writeln!(f)?;
        for step in self.not_run.iter().take(MAX_NOT_RUN) {
            writeln!(f, "not run   {step}")?;
        }
        if let Some(more @ 1..) = self.not_run.len().checked_sub(MAX_NOT_RUN) {
            writeln!(f, "not run   and {more} more step(s)")?;
        }
        for data in &self.not_rescued {
            writeln!(f, "data      {data}")?;
        }
        for lost in &self.lost_nodes {
            writeln!(f, "lost      {lost}")?;
        }
        for step in self.steps.iter().filter(|s| s.images.any()) {
            writeln!(f, "images    {}: {}", step.name, step.images)?;
        }
        if self.energy.measured.is_some() {
            writeln!(f, "energy    {}", self.energy)?;
        }
        write!(
            f,
            "bytes     read locally {} · between nodes {}",
            Bytes(b.retained),
            Bytes(b.peer)
        )?;
        let between_tiers = b.promote + b.demote;
        if between_tiers > 0 {
            write!(f, " · between tiers {}", Bytes(between_tiers))?;
        }
        writeln!(
            f,
            " · shared file system {} in, {} out (without tarn {} in, {} out)",
            Bytes(b.external_in),
            Bytes(b.external_out),
            Bytes(s.external_in),
            Bytes(s.external_out)
        )
    }
}
