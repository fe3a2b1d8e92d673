//! Real against simulated, as figures.

use super::machine::{Bandwidths, CalibratedBandwidth};
use super::recorded::Recorded;
use serde::{Serialize, Serializer};
use std::fmt;
use tarn_types::history::Traffic;
use tarn_types::id::{InstanceId, StepId};
use tarn_types::site::{JobResult, SiteResult};
use tarn_types::units::{Bytes, Elapsed, Nanos, SECOND};

/// A run and its simulations, as `--json` prints them.
#[derive(Debug, Serialize)]
pub(super) struct CalibrationReport {
    schema: u32,
    run: String,
    /// Bytes a second that were simulated.
    bandwidths: Bandwidths,
    #[serde(rename = "lower_bound_s", serialize_with = "seconds")]
    lower_bound: Nanos,
    not_modelled: NotModelled,
    pub(super) policies: Vec<Calibration>,
}

/// The share of the real run that the simulation leaves out.
#[derive(Debug, Serialize)]
struct NotModelled {
    /// Until the last source was listed or the first step or transfer was ordered, whichever was first.
    #[serde(rename = "before_anything_s", serialize_with = "seconds")]
    before_anything: Nanos,
    /// Of all instances, while they held their cores: launching and recording them.
    #[serde(rename = "overhead_s", serialize_with = "seconds")]
    overhead: Nanos,
    /// The same, the mean of an instance.
    #[serde(rename = "overhead_each_s", serialize_with = "seconds")]
    overhead_each: Nanos,
    /// Attempts that failed, were cut short or were made again, and the time that they took.
    attempts_in_vain: usize,
    #[serde(rename = "in_vain_s", serialize_with = "seconds")]
    in_vain: Nanos,
    /// Instances taken from an earlier run: their output counts as stored in the external store.
    reused: usize,
    /// How often the run was resumed.
    resumed: usize,
}

/// A simulation beside the run.
#[derive(Debug, Serialize)]
pub(super) struct Calibration {
    policy: String,
    makespan: CalibrationPair<DurationSeconds>,
    steps: Vec<StepPair>,
    bytes: BytesPair,
}

/// The instances of a step: how long each held its cores, in the mean.
#[derive(Debug, Serialize)]
struct StepPair {
    step: String,
    instances: usize,
    run: CalibrationPair<DurationSeconds>,
}

#[derive(Debug, Serialize)]
struct BytesPair {
    external_in: CalibrationPair<u64>,
    external_out: CalibrationPair<u64>,
    peer: CalibrationPair<u64>,
    retained: CalibrationPair<u64>,
}

/// A length of time; seconds in JSON.
#[derive(Debug, Clone, Copy)]
struct DurationSeconds(Nanos);

/// A real value, and the simulated one.
#[derive(Debug, Serialize)]
struct CalibrationPair<T> {
    real: T,
    simulated: T,
    /// How much more was simulated than was, in percent; `None` where there was nothing.
    difference_percent: Option<f64>,
}

fn seconds<S: Serializer>(time: &Nanos, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(*time as f64 / SECOND as f64)
}

impl Serialize for DurationSeconds {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        seconds(&self.0, to)
    }
}

fn percent(real: u64, simulated: u64) -> Option<f64> {
    let (real, simulated) = (real as f64, simulated as f64);
    (real > 0.0).then(|| (simulated - real) / real * 100.0)
}

fn times(real: Nanos, simulated: Nanos) -> CalibrationPair<DurationSeconds> {
    CalibrationPair {
        real: DurationSeconds(real),
        simulated: DurationSeconds(simulated),
        difference_percent: percent(real, simulated),
    }
}

fn bytes(real: u64, simulated: u64) -> CalibrationPair<u64> {
    CalibrationPair {
        real,
        simulated,
        difference_percent: percent(real, simulated),
    }
}

fn mean(times: impl Iterator<Item = Nanos>) -> Nanos {
    let (sum, count) = times.fold((0u64, 0u64), |(sum, n), t| (sum.saturating_add(t), n + 1));
    sum.checked_div(count).unwrap_or(0)
}

impl CalibrationReport {
    pub(super) fn of(
        run: &str,
        recorded: &Recorded<'_>,
        bandwidths: Bandwidths,
        lower_bound: Nanos,
    ) -> Self {
        let history = recorded.history;
        let assigned = history
            .instances
            .values()
            .filter_map(|i| i.attempts.first());
        let ordered = history.transfers.values().map(|t| t.ordered);
        let first = assigned.map(|a| a.assigned).chain(ordered).min();
        let overhead = recorded.overhead();
        Self {
            schema: 1,
            run: run.to_owned(),
            bandwidths,
            lower_bound,
            not_modelled: NotModelled {
                before_anything: first.unwrap_or(0),
                overhead,
                overhead_each: overhead / recorded.jobs.len().max(1) as u64,
                attempts_in_vain: recorded.in_vain.0,
                in_vain: recorded.in_vain.1,
                reused: recorded.reused,
                resumed: history.resumptions.len(),
            },
            policies: Vec::new(),
        }
    }
}

impl Calibration {
    /// Jobs are numbered in the order of the instances.
    pub(super) fn of(
        policy: String,
        recorded: &Recorded<'_>,
        real: &Traffic,
        result: &SiteResult,
    ) -> Self {
        let jobs: Vec<(InstanceId, Nanos, Nanos)> = recorded
            .jobs
            .iter()
            .zip(&result.jobs)
            .map(|((id, ran), job)| (*id, ran.held, JobResult::run(job)))
            .collect();
        let names = (0u32..).map(StepId).zip(&recorded.start.workflow.steps);
        let steps = names.filter_map(|(id, step)| {
            let of_step = || jobs.iter().filter(move |(job, ..)| job.step == id);
            let instances = of_step().count();
            (instances > 0).then(|| StepPair {
                step: step.name.clone(),
                instances,
                run: times(mean(of_step().map(|j| j.1)), mean(of_step().map(|j| j.2))),
            })
        });
        let simulated = result.bytes;
        Self {
            policy,
            makespan: times(recorded.end, result.end),
            steps: steps.collect(),
            bytes: BytesPair {
                external_in: bytes(real.external_in, simulated.external_in),
                external_out: bytes(real.external_out, simulated.external_out),
                peer: bytes(real.peer, simulated.peer),
                retained: bytes(real.retained, simulated.retained),
            },
        }
    }
}

impl fmt::Display for CalibratedBandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rate, self.observed) {
            (0, _) => write!(f, "without a limit"),
            (rate, true) => write!(f, "{}/s", Bytes(rate)),
            (rate, false) => write!(f, "{}/s (not observed: of the cluster record)", Bytes(rate)),
        }
    }
}

impl fmt::Display for CalibrationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "run            {}", self.run)?;
        writeln!(f, "external in    {}", self.bandwidths.external_in)?;
        writeln!(f, "external out   {}", self.bandwidths.external_out)?;
        writeln!(f, "between nodes  {}", self.bandwidths.peer)?;
        writeln!(f, "lower bound    {}", Elapsed(self.lower_bound))?;
        for policy in &self.policies {
            writeln!(f)?;
            policy.fmt(f)?;
        }
        writeln!(f, "\nnot modelled")?;
        self.not_modelled.fmt(f)
    }
}

impl fmt::Display for NotModelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  before anything was ordered  {}",
            Elapsed(self.before_anything)
        )?;
        writeln!(
            f,
            "  launching and recording      {}, {} an instance",
            Elapsed(self.overhead),
            Elapsed(self.overhead_each)
        )?;
        if self.attempts_in_vain > 0 {
            let (count, time) = (self.attempts_in_vain, Elapsed(self.in_vain));
            writeln!(f, "  wasted attempts              {count}, {time}")?;
        }
        if self.resumed > 0 {
            writeln!(f, "  resumed                      {} times", self.resumed)?;
        }
        if self.reused > 0 {
            writeln!(
                f,
                "  from an earlier run          {} instances; their output is read from the external store",
                self.reused
            )?;
        }
        Ok(())
    }
}

fn row(
    f: &mut fmt::Formatter<'_>,
    label: &str,
    real: impl fmt::Display,
    simulated: impl fmt::Display,
    difference: Option<f64>,
) -> fmt::Result {
    let difference = difference.map_or_else(|| "-".to_owned(), |d| format!("{d:+.1} %"));
    writeln!(
        f,
        "  {label:<24} {real:>12} {simulated:>12} {difference:>10}"
    )
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = &self.policy;
        writeln!(
            f,
            "{label:<26} {:>12} {:>12} {:>10}",
            "real", "simulated", "difference"
        )?;
        let time =
            |f: &mut fmt::Formatter<'_>, label: &str, p: &CalibrationPair<DurationSeconds>| {
                row(
                    f,
                    label,
                    Elapsed(p.real.0),
                    Elapsed(p.simulated.0),
                    p.difference_percent,
                )
            };
        time(f, "makespan", &self.makespan)?;
        for step in &self.steps {
            time(f, &format!("{} ({})", step.step, step.instances), &step.run)?;
        }
        let b = &self.bytes;
        for (label, p) in [
            ("from the external store", &b.external_in),
            ("to the external store", &b.external_out),
            ("between nodes", &b.peer),
            ("read locally", &b.retained),
        ] {
            row(
                f,
                label,
                Bytes(p.real),
                Bytes(p.simulated),
                p.difference_percent,
            )?;
        }
        Ok(())
    }
}
