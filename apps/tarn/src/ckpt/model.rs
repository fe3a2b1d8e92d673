//! `tarn ckpt model`: the loss, interval and energy models, and their advice. docs/internals/checkpoint-models.md has the formulas.

use crate::argument::{ArgumentError, above_zero};
use crate::error::CliResult;
use crate::globals::Globals;
use crate::print::{self, out};
use clap::Args;
use serde_json::{Value, json};
use std::ops::RangeInclusive;
use tarn_checkpoint_core::Replicate;
use tarn_checkpoint_core::model::energy::{self, EXASCALE, OMNI_PATH};
use tarn_checkpoint_core::model::loss::{FITTED, PUBLISHED};
use tarn_checkpoint_core::model::{
    CheckpointEnergy, CheckpointedRun, Choice, Interconnect, ReplicationAdvice,
};
use tarn_console::simulated::positive;
use tarn_types::codes::Exit;
use tarn_types::units::{Bytes, Elapsed, SECOND, UnitError, parse_rate, parse_size, parse_time};

/// The intervals to compare, as multiples of Daly's optimum.
const FACTORS: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];
/// DRAM to NVRAM.
const RATIOS: [u64; 3] = [2, 4, 8];
/// Parts of a checkpoint between which a curve is drawn.
const CURVE: u32 = 60;

const STAGED_COLUMNS: [&str; 7] = [
    "loss",
    "checkpoint",
    "staged",
    "memory",
    "link",
    "interval",
    "waste",
];
const KEPT_COLUMNS: [&str; 6] = ["loss", "window", "tier", "link", "link share", "back in"];

const LOSS_ASSUMES: [&str; 5] = [
    "nodes fail independently of each other, at any time equally likely; staged data is lost when all nodes that have a copy fail within the exposure of one checkpoint",
    "the paper (Fernando 2016) publishes 0.98960270 for one copy and 0.00000003 for two, with 2880 checkpoints in 48 h, and does not state its other parameters",
    "125,000 nodes, 25 years (of 365 days) between failures of a node and 10 s of exposure give these values, as other triples do: the first is determined by nodes x exposure / MTBF alone, and the second, of one digit, leaves 104,000 to 144,000 nodes",
    "by level: `committed` is lost with the memory of the node, and with replicas of its buddies too, before it is durable; `durable` with the node for good, `replicated` with the nodes of its copies too, or with two nodes of a set, before the next version is there; `flushed` only with the external store",
    "nodes are divided into groups of a part and its copies, as published. In the library copies go round all nodes, so each node is in as many groups as there are copies: a loss is up to so many times as likely. Sets with parity are as they are here",
];
const ADVICE_ASSUMES: [&str; 2] = [
    "cheapest is what takes the fewest bytes of a node, in memory (its staged data, and replicas of others' staged data) and on its tier (the versions that the library has space for, and copies of others); of as many bytes, what takes least of its link",
    "a loss is that of what was staged, or of the newest version that is on other nodes (or, if none is, on the tiers): nodes are gone for good within its window, which is the time to the next such version and that to fetch it",
];
const INTERVAL_ASSUMES: [&str; 2] = [
    "failures of the whole come with the mean time of one node's divided by the nodes; each costs the restart and what was computed since the last checkpoint",
    "Young 1974: sqrt(2 d M); Daly 2006: sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d, and his complete model of the run time, with checkpoint d and MTBF M",
];
const ENERGY_ASSUMES: [&str; 5] = [
    "a model of tarn's own: figure 2 of the paper cannot be rebuilt from its text, which has no axes, no energy of a bit and no power",
    "saved: power times (T(0) - T(s)), T(s) = max((D - s) / P, (D + s) / M, s / L), for s of D bytes staged, tier P, memory M, link L, two copies; spent: s times four accesses of memory and the way to the buddy. The curve has its top where the tier and memory (or the link) end together; behind it the line catches up: the break-even",
    "energies of a bit (20 pJ an access of memory; 80 pJ both adapters and 40 pJ a switch of Omni-Path; 20 and 10 pJ of an expected exascale interconnect) are assumed, neither measured nor from a data sheet",
    "one constant is calibrated: the power that is saved while nothing waits, such that the published point (about 750 MB, 2:1, two copies, one switch, Omni-Path) is met by a checkpoint of 1.5 GB, half of it staged as in the paper's runs, with memory at 20 GB/s. --power replaces it: with a whole node's, more is saved",
    "not counted: the application's slower memory while it is de-staged, and checkpoints' place in memory",
];

/// Options of `tarn ckpt model`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    /// Nodes of the run
    #[arg(long, value_name = "N", default_value_t = 125_000, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// Mean time between failures of one node
    #[arg(long, value_name = "TIME", default_value = "9125d", value_parser = some_time)]
    mtbf: f64,
    /// How long the run computes
    #[arg(long, value_name = "TIME", default_value = "48h", value_parser = some_time)]
    length: f64,
    /// A node's checkpoint
    #[arg(long, value_name = "SIZE", default_value = "1.5 GB", value_parser = some_size)]
    bytes: u64,
    /// The most of it that may be staged [default: half of it]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    staging: Option<u64>,
    /// Bandwidth of a node's persistent tier
    #[arg(long, value_name = "RATE", default_value = "10 GB/s", value_parser = some_rate)]
    persistent_rate: u64,
    /// Bandwidth of a node's memory
    #[arg(long, value_name = "RATE", default_value = "20 GB/s", value_parser = some_rate)]
    memory_rate: u64,
    /// Bandwidth of a node's link to other nodes, each way
    #[arg(long, value_name = "RATE", default_value = "12.5 GB/s", value_parser = some_rate)]
    link: u64,
    /// How long a checkpoint is in memory only [default: the time to de-stage it]
    #[arg(long, value_name = "TIME", value_parser = time)]
    exposure: Option<f64>,
    /// The time between checkpoints [default: Daly's optimum]
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    interval: Option<f64>,
    /// Checkpoints of the run [default: one each interval]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    checkpoints: Option<u64>,
    /// From a failure until the run computes again [default: the time to read the checkpoint from the tier]
    #[arg(long, value_name = "TIME", value_parser = time)]
    restart: Option<f64>,
    /// Other nodes keep a copy of every N-th version
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    replicate_every: u32,
    /// How likely a loss may be, for the advice
    #[arg(long, value_name = "P", default_value_t = 0.001, value_parser = share)]
    bound: f64,
    /// Which share of a node's failures takes its persistent tier too
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = share)]
    for_good: f64,
    /// Switches between buddies
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=64))]
    switches: u32,
    /// Watts that a node saves while it does not wait for its checkpoint [default: calibrated]
    #[arg(long, value_name = "WATTS", value_parser = positive)]
    power: Option<f64>,
    /// Picojoules for a bit that memory takes or gives
    #[arg(long, value_name = "PJ", default_value_t = energy::MEMORY, value_parser = positive)]
    memory_energy: f64,
    /// Picojoules for a bit in the adapters of both ends of your link
    #[arg(long, value_name = "PJ", default_value_t = OMNI_PATH.adapters, value_parser = positive)]
    adapter_energy: f64,
    /// Picojoules for a bit in each switch of your network
    #[arg(long, value_name = "PJ", default_value_t = OMNI_PATH.switch, value_parser = positive)]
    switch_energy: f64,
}

pub(super) fn model(globals: &Globals, args: &ModelArgs) -> CliResult {
    let job = args.job();
    let advised = job.advise(args.bound);
    if globals.json {
        print::json(&json!({
            "schema": 1,
            "loss": args.loss_json(&advised.staged),
            "interval": interval_json(&advised.staged, args.length),
            "energy": args.energy_json(),
            "advice": args.advice_json(&job, &advised),
        }))?;
        return Ok(Exit::Success);
    }
    args.print_loss(&advised.staged)?;
    print_interval(&advised.staged, args.length)?;
    args.print_energy()?;
    args.print_advice(&job, &advised)?;
    Ok(Exit::Success)
}

/// A level, how it is lost, and how likely a run of so many checkpoints loses its newest version of it.
struct LevelLoss {
    level: String,
    copies: u32,
    exposure: f64,
    loss: f64,
}

/// A row of the energy table.
struct EnergyRow {
    network: &'static str,
    case: CheckpointEnergy,
}

impl ModelArgs {
    fn job(&self) -> CheckpointedRun {
        CheckpointedRun {
            nodes: f64::from(self.nodes),
            mtbf: self.mtbf,
            for_good: self.for_good,
            length: self.length,
            bytes: self.bytes,
            budget: self.staging.unwrap_or(self.bytes / 2),
            persistent: self.persistent_rate,
            memory: self.memory_rate,
            link: self.link,
            restart: self.restart,
            exposure: self.exposure,
            interval: self.interval,
            checkpoints: self.checkpoints.map(|n| n as f64),
            every: f64::from(self.replicate_every),
        }
    }

    /// Copies that there are nodes for: the staged data, and its replicas.
    fn copies(&self) -> RangeInclusive<u32> {
        1..=self.job().replicas().count() as u32
    }

    fn levels(&self, advised: &Choice) -> Vec<LevelLoss> {
        let job = self.job();
        let replicas = [
            "no replica",
            "one replica",
            "two replicas",
            "three replicas",
        ];
        let committed = job.replicas().zip(replicas).map(|(n, of)| {
            let staged = job.with(n);
            LevelLoss {
                level: format!("committed, {of}"),
                copies: 1 + n,
                exposure: staged.exposure.exposure,
                loss: staged.loss,
            }
        });
        let whole = [
            ("durable", Replicate::None),
            ("replicated", Replicate::Copies(1)),
        ];
        let whole = (1..).zip(whole);
        let whole = whole.filter(|(_, (_, how))| job.ways().any(|way| way == *how));
        let whole = whole.map(|(copies, (level, how))| {
            let kept = job.keep(advised, how);
            LevelLoss {
                level: level.into(),
                copies,
                exposure: kept.window,
                loss: kept.loss,
            }
        });
        committed.chain(whole).collect()
    }

    fn power(&self) -> f64 {
        self.power.unwrap_or(energy::calibrated().power)
    }

    /// The two networks at three ratios and one or two switches away, and the given one.
    fn cases(&self) -> Vec<EnergyRow> {
        let case = |persistent, link, switches| CheckpointEnergy {
            bytes: self.bytes,
            persistent,
            memory: self.memory_rate,
            memory_energy: self.memory_energy,
            link,
            switches,
            power: self.power(),
        };
        let mut rows = Vec::new();
        for (network, link) in [("Omni-Path", OMNI_PATH), ("exascale", EXASCALE)] {
            for ratio in RATIOS {
                for switches in [1, 2] {
                    let persistent = (self.memory_rate / ratio).max(1);
                    let case = case(persistent, link, switches);
                    rows.push(EnergyRow { network, case });
                }
            }
        }
        let given = Interconnect {
            rate: self.link,
            adapters: self.adapter_energy,
            switch: self.switch_energy,
        };
        rows.push(EnergyRow {
            network: "as given",
            case: case(self.persistent_rate, given, self.switches),
        });
        rows
    }

    fn print_loss(&self, advised: &Choice) -> CliResult<()> {
        let of = advised.exposure;
        out!("LOSS of staged data")?;
        out!(
            "{} nodes, {} between failures of one, {} exposed, {:.0} checkpoints",
            self.nodes,
            lasts(of.mtbf),
            lasts(of.exposure),
            of.checkpoints
        )?;
        for copies in self.copies() {
            out!("  copies {copies}: {}", probability(of.loss(copies)))?;
        }
        out!(
            "by level, where {} % of failures take the tier too",
            100.0 * self.for_good
        )?;
        for row in self.levels(advised) {
            out!(
                "  {:<25} copies {}, exposed {:>8}: {}",
                row.level,
                row.copies,
                lasts(row.exposure),
                probability(row.loss)
            )?;
        }
        out!(
            "the published values: {:.8} and {:.8}; this model with fitted parameters: {:.8} and {:.3e}",
            PUBLISHED[0],
            PUBLISHED[1],
            FITTED.loss(1),
            FITTED.loss(2)
        )?;
        assumed(&LOSS_ASSUMES)
    }

    fn loss_json(&self, advised: &Choice) -> Value {
        let of = advised.exposure;
        let levels: Vec<Value> = self
            .levels(advised)
            .iter()
            .map(|l| json!({"level": l.level, "copies": l.copies, "exposure_s": l.exposure, "loss": l.loss}))
            .collect();
        let by_copies = self.copies();
        let by_copies = by_copies.map(|n| json!({"copies": n, "loss": of.loss(n)}));
        let by_copies: Vec<Value> = by_copies.collect();
        json!({
            "nodes": self.nodes, "mtbf_s": of.mtbf, "exposure_s": of.exposure, "checkpoints": of.checkpoints,
            "for_good": self.for_good, "levels": levels,
            "by_copies": by_copies,
            "published": PUBLISHED,
            "fitted": {
                "nodes": FITTED.nodes, "mtbf_s": FITTED.mtbf, "exposure_s": FITTED.exposure,
                "checkpoints": FITTED.checkpoints, "loss": [FITTED.loss(1), FITTED.loss(2)],
            },
            "assumptions": LOSS_ASSUMES,
        })
    }

    fn print_energy(&self) -> CliResult<()> {
        let calibrated = energy::calibrated();
        out!("")?;
        out!(
            "ENERGY of a node's checkpoint of {}, beside all of it to the tier at once",
            Bytes(self.bytes)
        )?;
        out!(
            "{:<10} {:>7} {:>8} {:>9} {:>12} {:>10} {:>10} {:>12}",
            "network",
            "ratio",
            "switches",
            "J/GB",
            "best staged",
            "s saved",
            "J saved",
            "break-even"
        )?;
        for EnergyRow { network, case } in self.cases() {
            let best = case.split().staged as f64;
            out!(
                "{network:<10} {:>7} {:>8} {:>9.3} {:>12} {:>10.4} {:>10.4} {:>12}",
                format!("{:.3}:1", case.memory as f64 / case.persistent as f64).replace(".000", ""),
                case.switches,
                case.overhead(1e9),
                megabytes(best),
                case.time(0.0) - case.time(best),
                case.net(best),
                match case.break_even() {
                    all if all >= case.bytes as f64 => "all of it".into(),
                    part => megabytes(part),
                }
            )?;
        }
        out!(
            "power saved: {:.1} W{}; the published point: {} MB, met by {:.1} W",
            self.power(),
            if self.power.is_none() {
                ", calibrated"
            } else {
                ""
            },
            energy::PUBLISHED / 1e6,
            calibrated.power
        )?;
        assumed(&ENERGY_ASSUMES)
    }

    fn energy_json(&self) -> Value {
        let rows: Vec<Value> = self
            .cases()
            .iter()
            .map(|EnergyRow { network, case }| {
                let best = case.split().staged;
                json!({
                    "network": network, "persistent_rate": case.persistent, "memory_rate": case.memory,
                    "link_rate": case.link.rate, "adapters_pj_per_bit": case.link.adapters,
                    "switch_pj_per_bit": case.link.switch, "memory_pj_per_bit": case.memory_energy,
                    "switches": case.switches, "overhead_j_per_byte": case.overhead(1.0),
                    "best_staged_bytes": best, "saved_s": case.time(0.0) - case.time(best as f64),
                    "saved_j": case.net(best as f64), "break_even_bytes": case.break_even(),
                    "curve": curve(case),
                })
            })
            .collect();
        json!({
            "bytes": self.bytes, "power_w": self.power(), "calibrated_power_w": energy::calibrated().power,
            "published_break_even_bytes": energy::PUBLISHED, "cases": rows, "assumptions": ENERGY_ASSUMES,
        })
    }

    fn print_advice(&self, job: &CheckpointedRun, advised: &ReplicationAdvice) -> CliResult<()> {
        out!("")?;
        out!("ADVICE for a loss of at most {}", self.bound)?;
        row("what is staged", &STAGED_COLUMNS.map(String::from))?;
        for replicas in job.replicas() {
            let choice = job.with(replicas);
            let cells = [
                probability(choice.loss),
                lasts(choice.times.checkpoint),
                Bytes(choice.split.staged).to_string(),
                Bytes(choice.memory as u64).to_string(),
                lasts(choice.link),
                lasts(choice.interval),
                percent(choice.times.waste(choice.interval)),
            ];
            row(&format!("replicas = {replicas}"), &cells)?;
        }
        row("all of a version", &KEPT_COLUMNS.map(String::from))?;
        for how in job.ways() {
            let both = job.both(advised.staged, how);
            let kept = both.kept;
            let cells = [
                probability(kept.loss),
                lasts(kept.window),
                Bytes(kept.tier.round() as u64).to_string(),
                lasts(kept.link),
                percent(both.link_share),
                match how {
                    Replicate::None => "never".into(),
                    _ => lasts(kept.back),
                },
            ];
            row(&way(how), &cells)?;
        }
        let ReplicationAdvice { staged, kept, .. } = advised;
        out!(
            "take replicas = {}, {}, stage {} while {} go to the tier, make a checkpoint every {}",
            staged.replicas,
            way(kept.how),
            Bytes(staged.split.staged),
            Bytes(staged.split.persistent),
            lasts(staged.interval)
        )?;
        if advised.loss() > self.bound {
            out!(
                "its loss is more likely than {}: stage less, so that it is exposed for a shorter time, or wait until versions are durable, or flushed to an external store (an object's `persistence`)",
                self.bound
            )?;
        }
        assumed(&ADVICE_ASSUMES)
    }

    fn advice_json(&self, job: &CheckpointedRun, advised: &ReplicationAdvice) -> Value {
        let ReplicationAdvice { staged, kept, .. } = advised;
        let replicas: Vec<Value> = job
            .replicas()
            .map(|replicas| {
                let of = job.with(replicas);
                json!({
                    "replicas": replicas, "loss": of.loss, "checkpoint_s": of.times.checkpoint,
                    "staged_bytes": of.split.staged, "memory_bytes": of.memory as u64, "link_s": of.link,
                    "interval_s": of.interval, "waste": of.times.waste(of.interval),
                })
            })
            .collect();
        let ways: Vec<Value> = job
            .ways()
            .map(|how| {
                let both = job.both(*staged, how);
                let kept = both.kept;
                let (copies, parity) = numbers(how);
                json!({
                    "copies": copies, "parity": parity, "loss": kept.loss, "window_s": kept.window,
                    "tier_bytes": kept.tier.round() as u64, "link_s": kept.link, "link_share": both.link_share,
                    "back_s": kept.back,
                })
            })
            .collect();
        let (copies, parity) = numbers(kept.how);
        json!({
            "bound": self.bound, "within_bound": advised.loss() <= self.bound, "replicas": staged.replicas,
            "loss": staged.loss, "staged_bytes": staged.split.staged,
            "persistent_bytes": staged.split.persistent, "interval_s": staged.interval,
            "checkpoint_s": staged.times.checkpoint, "waste": staged.times.waste(staged.interval),
            "copies": copies, "parity": parity, "replicate_every": self.replicate_every,
            "kept_loss": kept.loss, "total_loss": advised.loss(), "window_s": kept.window,
            "memory_bytes": staged.memory as u64, "tier_bytes": kept.tier.round() as u64, "link_share": advised.link_share,
            "by_replicas": replicas, "by_way": ways, "assumptions": ADVICE_ASSUMES,
        })
    }
}

/// A row of a table of advice.
fn row(of: &str, cells: &[String]) -> CliResult<()> {
    let cells: String = cells.iter().map(|cell| format!(" {cell:>11}")).collect();
    out!("  {of:<16}{cells}")
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// A way of keeping versions on other nodes, as an option of the library.
fn way(how: Replicate) -> String {
    match how {
        Replicate::None => "copies = 0".into(),
        Replicate::Copies(copies) => format!("copies = {copies}"),
        Replicate::Parity(size) => format!("parity = {size}"),
    }
}

/// The same as numbers: copies, parity.
fn numbers(how: Replicate) -> (usize, usize) {
    match how {
        Replicate::None => (0, 0),
        Replicate::Copies(copies) => (copies, 0),
        Replicate::Parity(size) => (0, size),
    }
}

/// Intervals around Daly's optimum, and the requested one: the length, the waste, the run time.
fn around(advised: &Choice, length: f64) -> Vec<[f64; 3]> {
    let times = advised.times;
    let mut intervals: Vec<f64> = FACTORS.iter().map(|f| f * times.daly()).collect();
    intervals.extend([times.young(), advised.interval]);
    intervals.sort_by(f64::total_cmp);
    intervals.dedup();
    let row = |interval| {
        [
            interval,
            times.waste(interval),
            times.run_time(length, interval),
        ]
    };
    intervals.into_iter().map(row).collect()
}

fn print_interval(advised: &Choice, length: f64) -> CliResult<()> {
    let times = advised.times;
    out!("")?;
    out!("INTERVAL between checkpoints")?;
    out!(
        "a checkpoint takes {}, a restart {}; the whole fails every {} on average, and computes {}",
        lasts(times.checkpoint),
        lasts(times.restart),
        lasts(times.mtbf),
        lasts(length)
    )?;
    out!(
        "Young: {}; Daly: {}",
        lasts(times.young()),
        lasts(times.daly())
    )?;
    out!("{:>12} {:>9} {:>12}", "interval", "waste", "run time")?;
    for [interval, waste, time] in around(advised, length) {
        out!(
            "{:>12} {:>8.3}% {:>12}",
            lasts(interval),
            100.0 * waste,
            lasts(time)
        )?;
    }
    assumed(&INTERVAL_ASSUMES)
}

fn interval_json(advised: &Choice, length: f64) -> Value {
    let times = advised.times;
    let around: Vec<Value> = around(advised, length)
        .iter()
        .map(|[interval, waste, time]| json!({"interval_s": interval, "waste": waste, "run_time_s": time}))
        .collect();
    json!({
        "checkpoint_s": times.checkpoint, "restart_s": times.restart, "mtbf_s": times.mtbf, "length_s": length,
        "young_s": times.young(), "daly_s": times.daly(), "around": around, "assumptions": INTERVAL_ASSUMES,
    })
}

fn assumed(assumptions: &[&str]) -> CliResult<()> {
    assumptions.iter().try_for_each(|a| out!("  - {a}"))
}

/// Seconds in words.
fn lasts(seconds: f64) -> String {
    let days = seconds / 86_400.0;
    if (2.0..1e9).contains(&days) {
        return format!("{days:.1} d");
    }
    match seconds * SECOND as f64 {
        nanos if nanos < u64::MAX as f64 => Elapsed(nanos as u64).to_string(),
        _ => "without end".into(),
    }
}

/// As many digits as were published, or enough to distinguish it from 0.
fn probability(p: f64) -> String {
    if p > 0.0 && p < 1e-3 {
        format!("{p:.3e}")
    } else {
        format!("{p:.8}")
    }
}

fn megabytes(bytes: f64) -> String {
    format!("{:.0} MB", bytes / 1e6)
}

fn share(text: &str) -> Result<f64, ArgumentError> {
    let number = text.parse().ok().filter(|n| (0.0..=1.0).contains(n));
    number.ok_or_else(|| ArgumentError::new("a number from 0 to 1 is expected"))
}

/// Seconds.
fn time(text: &str) -> Result<f64, UnitError> {
    Ok(parse_time(text)? as f64 / SECOND as f64)
}

const ABOVE_ZERO: &str = "more than 0 is expected";

fn some_time(text: &str) -> Result<f64, ArgumentError> {
    above_zero(time(text)?, ABOVE_ZERO)
}

fn some_size(text: &str) -> Result<u64, ArgumentError> {
    above_zero(parse_size(text)?, ABOVE_ZERO)
}

fn some_rate(text: &str) -> Result<u64, ArgumentError> {
    above_zero(parse_rate(text)?, ABOVE_ZERO)
}

/// The curve of the paper's Figure 2: by the staged share of a checkpoint, the energy that the shorter checkpoint saves, and the
/// energy that copies cost.
fn curve(case: &CheckpointEnergy) -> Vec<Value> {
    let staged = (0..=CURVE).map(|n| case.bytes as f64 * f64::from(n) / f64::from(CURVE));
    staged
        .map(|staged| {
            let spent = case.overhead(staged);
            json!({"staged_bytes": staged, "saved_j": case.net(staged) + spent, "spent_j": spent})
        })
        .collect()
}
