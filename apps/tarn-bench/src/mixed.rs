//! Policies on a trace of batch jobs with workflows mixed in: the gain of workflows, and its cost to the others
//! (docs/internals/scheduling.md, "How policies are compared").

mod outcome;
mod workload;

use crate::error::{CliResult, ExitWith};
use crate::figure;
use crate::print::{self, message};
use crate::trial::{FileReadCache, SimulationTrial, on_all_cores};
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use outcome::{MixedOutcome, across_seeds};
use std::path::PathBuf;
use std::sync::Arc;
use tarn_console::simulated::{Policies, io_share, policies, scale, share};
use tarn_console::simulated::{machine_of, rejected};
use tarn_spec::site::parse_machine;
use tarn_types::codes::Exit;
use tarn_types::site::{Machine, Workload};

/// The machine when none is named.
const KTH_SP2: &str = include_str!("../../../examples/machines/kth-sp2.toml");
/// Seeds at most: each has a workload in memory.
const MAX_SEEDS: i64 = 100;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// The trace of batch jobs (SWF, plain or compressed)
    #[arg(long, value_name = "FILE")]
    swf: PathBuf,
    /// Workflows that come meanwhile: recorded ones (WfFormat) or workflow files
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    workflow: Vec<PathBuf>,
    /// The machine [default: examples/machines/kth-sp2.toml, built in]
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Policies: each is compared with the first
    #[arg(long, value_name = "A,B,...", default_value = "easy,easy+cache,data", value_parser = policies)]
    policies: Policies,
    /// How often each workflow comes while the trace lasts, at exponential times
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// All bytes of workflows times this
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = scale)]
    bytes_scale: f64,
    /// All run times of workflows times this
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = scale)]
    time_scale: f64,
    /// Data of the batch jobs: the mean share of their run time that reading and writing it takes
    #[arg(long, value_name = "SHARE", default_value_t = 0.3, value_parser = io_share)]
    io_share: f64,
    /// The share of the batch jobs that have data
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    io_jobs: f64,
    /// Use only so many jobs of the trace, the first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_jobs: Option<u32>,
    /// Processors of the trace that make a node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    procs_per_node: u32,
    /// So many seeds: each gives other data and other arrivals
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_SEEDS))]
    seeds: u32,
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    seed: u32,
    /// Hold the planner to every rule of the machine while it works: many times slower
    #[arg(long)]
    check: bool,
}

/// All figures, printed.
///
/// # Errors
/// When a file cannot be read, a job can never run on the machine, or a policy breaks a rule of the machine.
pub(crate) fn run(json: bool, args: &Args) -> CliResult {
    let machine = machine(args)?;
    for path in std::iter::once(&args.swf).chain(&args.workflow) {
        std::fs::metadata(path)
            .with_context(|| format!("cannot read {}", path.display()))
            .exit(Exit::NotFound)?;
    }
    let outcomes = measure(args, &machine)?;
    let medians = across_seeds(&outcomes);
    if json {
        let mut value = figure::to_json("mixed", &outcome::figures(&medians));
        value["seeds"] = serde_json::json!(outcomes);
        value["medians"] = serde_json::json!(medians);
        print::json(&value)?;
    } else {
        print::text(&outcome::text(&outcomes, &medians))?;
    }
    Ok(Exit::Success)
}

fn machine(args: &Args) -> CliResult<Machine> {
    match &args.cluster {
        Some(path) => machine_of(path),
        None => parse_machine("kth-sp2.toml", KTH_SP2).map_err(|r| rejected(r, "cluster")),
    }
}

/// Every policy with every seed.
fn measure(args: &Args, machine: &Machine) -> CliResult<Vec<MixedOutcome>> {
    let files = FileReadCache::default();
    let mut seeded: Vec<(u32, Arc<Workload>)> = Vec::new();
    let span = workload::span(args, machine, &files)?;
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let loaded = workload::mixed(args, machine, &files, seed, span)?;
        if seed == args.seed {
            loaded
                .notes
                .iter()
                .for_each(|note| message!("note: {note}"));
            for s in &loaded.workload.skipped {
                message!(
                    "note: {}: {} record(s) left out: {}",
                    s.file,
                    s.count,
                    s.why
                );
            }
        }
        seeded.push((seed, Arc::new(loaded.workload)));
    }
    let work: Vec<_> = seeded
        .iter()
        .flat_map(|(seed, workload)| args.policies.0.iter().map(move |p| (*seed, workload, p)))
        .collect();
    let bar = ProgressBar::new(work.len() as u64);
    let style = "{wide_bar} {pos}/{len} simulations, {eta} left";
    bar.set_style(ProgressStyle::with_template(style).unwrap_or(ProgressStyle::default_bar()));
    let outcomes = on_all_cores(&work, &|| bar.inc(1), |(seed, workload, policy)| {
        let trial = SimulationTrial {
            machine,
            workload,
            checked: args.check,
            name: "the mixed workload",
        };
        Ok(MixedOutcome::of(*seed, &trial.run(policy)?))
    });
    bar.finish_and_clear();
    outcomes
}
