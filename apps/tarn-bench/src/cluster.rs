//! `tarn bench cluster`: the needs of many nodes, case by case.

pub(super) mod bare;
mod interference;
pub(crate) mod peer;
mod transfer;
mod tree;

use crate::figure::BenchFigure;
use crate::tasks;
use std::path::PathBuf;
use tarn_data_plane::Transport;

/// Measured rounds, at most.
const MAX_ROUNDS: i64 = 100;

/// Options of `tarn bench cluster`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Cases to measure; all when not given
    #[arg(long = "case", value_enum)]
    cases: Vec<ClusterCase>,
    /// Measured rounds of each case
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=MAX_ROUNDS))]
    rounds: u32,
    /// Transfers: a folder on a tmpfs to measure in
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// Transfers: limit the link to this, such as 1gbit (tc tbf; needs rights)
    #[arg(long, value_name = "RATE")]
    rate: Option<peer::LinkRate>,
    /// Transfers: threads and streams of each [default: as `tarn run` has them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    streams: Option<u32>,
    /// Transfers: how the files are read, as for `tarn run`
    #[arg(long, value_name = "TRANSPORT", default_value_t = Transport::Tcp)]
    transport: Transport,
    /// Transfers: bytes of the trees, in percent: a quick look at a smaller case
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100))]
    percent: u32,
    /// Tasks: the tarnd to measure [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    tarnd: Option<PathBuf>,
    /// Tasks: a folder for tarnd's journal, on the file system to measure
    #[arg(long, value_name = "DIR", default_value = ".")]
    state: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ClusterCase {
    /// 4 files of 1 GiB, fetched from another node
    NodeToNode,
    /// A decomposed OpenFOAM case, fetched from another node
    NodeToNodeTree,
    /// Programs that use all cores, with transfers in the background
    Interference,
    /// Batches of tasks from one client
    TasksBatch,
    /// One task at a time from each of four clients
    TasksSingle,
    /// Durable tasks, both ways
    TasksDurable,
}

/// Runs the benchmark.
///
/// # Errors
/// When there is no space, the link cannot be limited, tarnd cannot be started, or a transfer or a task fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    use clap::ValueEnum;
    let cases = match &args.cases[..] {
        [] => ClusterCase::value_variants(),
        some => some,
    };
    let of_tarnd = |case| {
        let setup = tasks::Setup {
            tarnd: args.tarnd.clone(),
            state: args.state.clone(),
            rounds: args.rounds,
        };
        tasks::run(case, &setup)
    };
    let mut figures = Vec::new();
    for case in cases {
        figures.append(&mut match case {
            ClusterCase::NodeToNode => transfer::run(transfer::TreeShape::Large, args)?,
            ClusterCase::NodeToNodeTree => transfer::run(transfer::TreeShape::OpenFoam, args)?,
            ClusterCase::Interference => interference::run(args)?,
            ClusterCase::TasksBatch => of_tarnd(tasks::TaskCase::Batch)?,
            ClusterCase::TasksSingle => of_tarnd(tasks::TaskCase::Single)?,
            ClusterCase::TasksDurable => of_tarnd(tasks::TaskCase::Durable)?,
        });
    }
    Ok(figures)
}
