//! The arguments of `tarn sim`.

use crate::argument::{ArgumentError, above_zero};
use clap::Args;
use clap::builder::ArgPredicate;
use std::path::PathBuf;
use tarn_console::simulated::{Policies, io_share, policies, positive, scale, share};
use tarn_site_planner::simulated::ServiceMode;
use tarn_spec::site::{DataModel, FlowOptions, ReadOptions, SubmitWay, TraceOptions};
use tarn_types::units::parse_rate;

/// The policies to compare by default: that of sites, the same with opportunistic caching, and tarn's.
const DEFAULT_POLICIES: &str = "easy,easy+cache,data";
/// With a recorded run: as tarn runs workflows.
const CALIBRATED_POLICY: &str = "data";
/// Arguments that name a recorded run.
const RECORDED: [&str; 2] = ["replay", "calibrate"];
/// Arguments that only a cluster and a workload from files have.
const OF_FILES: [&str; 14] = [
    "cluster",
    "workload",
    "site",
    "report",
    "advice",
    "external_rate",
    "bytes_scale",
    "time_scale",
    "submit",
    "io_share",
    "io_jobs",
    "seed",
    "procs_per_node",
    "max_jobs",
];

#[derive(Debug, Clone, Args)]
pub(crate) struct SimArgs {
    /// The machine (docs/reference/cluster-file.md)
    #[arg(long, value_name = "FILE", required_unless_present_any = RECORDED)]
    pub(super) cluster: Option<PathBuf>,
    /// The workload: a workload file, a trace (SWF), a recorded workflow (WfFormat), a site's history or a workflow
    /// file; may be given several times
    #[arg(long, value_name = "FILE", required_unless_present_any = RECORDED, num_args = 1..)]
    pub(super) workload: Vec<PathBuf>,
    /// Instead of a cluster and a workload: replay the events of a recorded run (its name, or the path of its event log) in a fresh
    /// engine, which has to decide the recorded actions
    #[arg(long, value_name = "RUN", conflicts_with_all = ["calibrate", "check", "policy"],
          conflicts_with_all = OF_FILES)]
    pub(super) replay: Option<String>,
    /// Instead of a cluster and a workload: simulate what a recorded run did, on the machine it had, and report how far the simulation is
    /// off
    #[arg(long, value_name = "RUN", conflicts_with_all = OF_FILES)]
    pub(super) calibrate: Option<String>,
    /// Policies to compare, such as easy,heft+cache,data:bound=10m (docs/internals/scheduling.md); with --calibrate the default is data
    #[arg(long, value_name = "A,B,...", default_value = DEFAULT_POLICIES, value_parser = policies,
          default_value_if("calibrate", ArgPredicate::IsPresent, CALIBRATED_POLICY))]
    pub(super) policy: Policies,
    /// Simulate a Slurm with tarn's site service as well, with the service's own decisions: alone (Slurm without tarn), observe, advise
    /// or drive (docs/internals/digital-twin.md)
    #[arg(long, value_name = "A,B,...", value_delimiter = ',', value_parser = service_mode)]
    pub(super) site: Vec<ServiceMode>,
    /// Write a page with charts here
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Report as well how much tier the workload is worth; uses are counted under the last policy
    #[arg(long)]
    pub(super) advice: bool,
    /// With --advice: the price of a gigabyte of tier, in any currency
    #[arg(long, value_name = "PRICE", value_parser = positive, requires_all = ["advice", "external_price"])]
    pub(super) tier_price: Option<f64>,
    /// With --advice: the price of a gigabyte a second of the external store, in the same currency
    #[arg(long, value_name = "PRICE", value_parser = positive, requires_all = ["advice", "tier_price"])]
    pub(super) external_price: Option<f64>,
    /// With --advice, for energy: watts that keeping a gigabyte on a tier draws
    #[arg(long, value_name = "WATTS", value_parser = positive, requires_all = ["advice", "external_joules"])]
    pub(super) tier_watts: Option<f64>,
    /// With --advice, for energy: joules that reading a gigabyte from the external store takes, on all of its way
    #[arg(long, value_name = "JOULES", value_parser = positive, requires_all = ["advice", "tier_watts"])]
    pub(super) external_joules: Option<f64>,
    /// Bandwidth of the external store in both directions, instead of the machine's
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(super) external_rate: Option<u64>,
    /// All bytes of workflows times this
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = scale)]
    bytes_scale: f64,
    /// All run times of workflows times this
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = scale)]
    time_scale: f64,
    /// How a workflow is submitted: dependencies, chain or script
    #[arg(long, value_name = "WAY", default_value = "dependencies", value_parser = submit_way)]
    submit: SubmitWay,
    /// Give the jobs of a trace data, so that reading and writing are this share of their run time
    #[arg(long, value_name = "SHARE", value_parser = io_share)]
    io_share: Option<f64>,
    /// With --io-share: how many of the jobs have data
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share, requires = "io_share")]
    io_jobs: f64,
    /// With --io-share: which data; the same seed gives the same
    #[arg(long, value_name = "N", default_value_t = 1, requires = "io_share")]
    seed: u64,
    /// Processors of a trace that make a node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    procs_per_node: u32,
    /// Use only so many jobs of a trace, the first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_jobs: Option<u64>,
    /// Hold the planner to every rule while it works: slower
    #[arg(long)]
    pub(super) check: bool,
}

/// A mode of a site, by its name.
fn service_mode(text: &str) -> Result<ServiceMode, ArgumentError> {
    let mut names = ServiceMode::NAMES.into_iter();
    let found = names.find(|(name, _)| *name == text);
    found
        .map(|(_, mode)| mode)
        .ok_or_else(|| ArgumentError::new("it is alone, observe, advise or drive"))
}

impl SimArgs {
    /// The given arguments that concern workflows only.
    pub(super) fn of_flows(&self) -> Vec<&'static str> {
        let given = [
            ("--bytes-scale", self.bytes_scale != 1.0),
            ("--time-scale", self.time_scale != 1.0),
            ("--submit", self.submit != SubmitWay::default()),
        ];
        let given = given.into_iter().filter(|(_, is)| *is);
        given.map(|(name, _)| name).collect()
    }

    /// How the files are read.
    pub(super) fn reading(&self) -> ReadOptions {
        let default = TraceOptions::default();
        let data = self.io_share.map(|io| DataModel {
            seed: self.seed,
            jobs: self.io_jobs,
            io,
        });
        ReadOptions {
            trace: TraceOptions {
                procs_per_node: self.procs_per_node,
                max_jobs: self.max_jobs.unwrap_or(default.max_jobs),
                data,
                ..default
            },
            flow: FlowOptions {
                submit: self.submit,
                bytes_scale: self.bytes_scale,
                time_scale: self.time_scale,
            },
            arrives: 0,
        }
    }
}

fn submit_way(text: &str) -> Result<SubmitWay, ArgumentError> {
    let found = SubmitWay::NAMES.iter().find(|(name, _)| *name == text);
    let found = found.map(|(_, way)| *way);
    found.ok_or_else(|| ArgumentError::new("there are dependencies, chain and script"))
}

fn rate(text: &str) -> Result<u64, ArgumentError> {
    above_zero(parse_rate(text)?, "a rate above zero is expected")
}
