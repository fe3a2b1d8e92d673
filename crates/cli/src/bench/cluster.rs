//! `tarn bench cluster`: what many nodes need, case by case.

use super::{Figure, tasks};
use std::path::PathBuf;

/// Options of `tarn bench cluster`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// What to measure; all when not given
    #[arg(long = "case", value_enum)]
    cases: Vec<tasks::Case>,
    /// Measured rounds of each case
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The tarnd to measure [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    tarnd: Option<PathBuf>,
    /// A folder for its journal, on the file system to measure
    #[arg(long, value_name = "DIR", default_value = ".")]
    state: PathBuf,
}

/// Runs the benchmark.
///
/// # Errors
/// When tarnd cannot be started or a task fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<Figure>> {
    let setup = tasks::Setup {
        tarnd: args.tarnd.clone(),
        state: args.state.clone(),
        rounds: args.rounds,
    };
    let cases = if args.cases.is_empty() {
        tasks::Case::ALL
    } else {
        &args.cases
    };
    let mut figures = Vec::new();
    for case in cases {
        figures.append(&mut tasks::run(*case, &setup)?);
    }
    Ok(figures)
}
