//! Policies on workflows, one alone on a machine, over the share of the time that reading and writing outside takes
//! under `easy` (docs/internals/scheduling.md, "How policies are compared").

mod page;
mod points;
mod search;

use crate::error::{CliError, CliResult, ExitWith};
use crate::figure;
use crate::print;
use crate::trial::{FileReadCache, on_all_cores};
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use points::ShareOf;
use points::{BandwidthPoint, Medians};
use search::BenchWorkflow;
use std::path::PathBuf;
use tarn_console::simulated::{Policies, policies};
use tarn_console::simulated::{check_folder, machine_of, rejected};
use tarn_spec::site::parse_machine;
use tarn_types::codes::Exit;
use tarn_types::site::Machine;

/// The machine when none is named.
const EIGHT_NODES: &str = include_str!("../../../examples/machines/eight-nodes.toml");
/// Shares that can be requested, in percent: at 0 nothing has to be moved, at 100 nothing is computed.
const SHARES: std::ops::RangeInclusive<f64> = 1.0..=99.0;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Workflows: recorded ones (WfFormat) or workflow files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The machine [default: examples/machines/eight-nodes.toml, built in]
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Shares of I/O under easy, in percent: for each, the bandwidth of the external store is searched that gives it
    #[arg(long, value_name = "P,Q,...", value_delimiter = ',', default_value = "10,30,50,65,80", value_parser = percent)]
    shares: Vec<f64>,
    /// The quantity that they are shares of
    #[arg(long, value_enum, default_value_t = ShareOf::TimeToSolution)]
    share_of: ShareOf,
    /// Policies: the last is compared with each of the others
    #[arg(long, value_name = "A,B,...", default_value = "easy,easy+cache,heft+cache,data", value_parser = policies)]
    policies: Policies,
    /// Write a page with curves here
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Do not hold the planner to every rule of the machine: faster
    #[arg(long)]
    unchecked: bool,
}

fn percent(text: &str) -> anyhow::Result<f64> {
    let number = text.trim().trim_end_matches('%').trim_end().parse().ok();
    let number = number.filter(|n| SHARES.contains(n));
    number.map(|n: f64| n / 100.0).ok_or_else(|| {
        let (least, most) = (SHARES.start(), SHARES.end());
        anyhow::anyhow!("a share in percent is expected, from {least} to {most}")
    })
}

/// All figures, printed.
///
/// # Errors
/// When a file cannot be read or has no workflow that can run on the machine, or a policy breaks a rule of the machine.
pub(crate) fn run(json: bool, args: &Args) -> CliResult {
    if let Some(path) = &args.report {
        check_folder(path)?;
    }
    let machine = machine(args)?;
    let files = FileReadCache::default();
    let mut instances = Vec::new();
    for path in &args.files {
        std::fs::metadata(path)
            .with_context(|| format!("cannot read the workflow {}", path.display()))
            .exit(Exit::NotFound)?;
        instances.push(BenchWorkflow::new(path, &machine, &files)?);
    }
    let points = measure(args, &machine, &instances)?;
    let medians = Medians::of(&points);
    if let Some(path) = &args.report {
        std::fs::write(path, page::page(&machine, args.share_of, &points, &medians))
            .with_context(|| format!("cannot write the report to {}", path.display()))
            .exit(Exit::State)?;
    }
    if json {
        let figures = points::figures(&points, &medians);
        let mut value = figure::to_json("policies", &figures);
        value["share_of"] = serde_json::json!(args.share_of);
        value["points"] = serde_json::json!(points);
        value["families"] = serde_json::json!(medians);
        print::json(&value)?;
    } else {
        print::text(&points::text(&points, &medians))?;
    }
    Ok(Exit::Success)
}

fn machine(args: &Args) -> CliResult<Machine> {
    match &args.cluster {
        Some(path) => machine_of(path),
        None => parse_machine("eight-nodes.toml", EIGHT_NODES).map_err(|r| rejected(r, "cluster")),
    }
}

fn measure(
    args: &Args,
    machine: &Machine,
    instances: &[BenchWorkflow<'_>],
) -> CliResult<Vec<BandwidthPoint>> {
    let policies = &args.policies.0;
    let pairs: Vec<_> = instances
        .iter()
        .flat_map(|instance| args.shares.iter().map(move |share| (instance, *share)))
        .collect();
    let bar = ProgressBar::new(pairs.len() as u64);
    let style = "{wide_bar} {pos}/{len} points, {eta} left";
    bar.set_style(ProgressStyle::with_template(style).unwrap_or(ProgressStyle::default_bar()));
    let points = on_all_cores(&pairs, &|| bar.inc(1), |(instance, share)| {
        instance.point(machine, policies, *share, args.share_of, !args.unchecked)
    });
    bar.finish_and_clear();
    let points = points?;
    if points.is_empty() {
        return Err(CliError::new(Exit::Usage, "no share was asked for"));
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_that_is_built_in_is_one() {
        let machine = parse_machine("eight-nodes.toml", EIGHT_NODES).unwrap();
        assert_eq!(machine.nodes(), 8);
    }

    #[test]
    fn shares_are_percent() {
        assert_eq!(percent("50").unwrap(), 0.5);
        assert_eq!(percent(" 12.5 %").unwrap(), 0.125);
        for wrong in ["0", "100", "NaN", "half", ""] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }
}
