//! `tarn bench ckpt`: what checkpoints cost, beside memcpy of the same bytes: one call a thread, as long as there are threads.

mod copy;
mod ranks;

use super::Figure;
use std::path::PathBuf;

/// Measured rounds, at most.
const MAX_ROUNDS: i64 = 100;
/// Processes, or threads, that copy at the same time.
const MAX_THREADS: i64 = 256;
const MIB: u64 = 1 << 20;

/// Options of `tarn bench ckpt`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// What to measure; all when not given
    #[arg(long = "case", value_enum)]
    cases: Vec<Case>,
    /// Measured rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=MAX_ROUNDS))]
    rounds: u32,
    /// A folder on the tier to measure
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// Copies at the same time
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    threads: u32,
    /// Helper threads of each rank
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=MAX_THREADS))]
    helpers: u32,
    /// One rank of a measurement: what it does, as JSON
    #[arg(long, hide = true)]
    rank: Option<String>,
    /// MiB that each copies
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    mib: u64,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Case {
    /// Bytes copied to a medium with checksums, and made persistent; and back
    Copy,
    /// Checkpoints to a tier that is as fast as memory, and restarts from them
    Commit,
    /// Checkpoints to a played NVRAM of 1/4 and 1/8 of memory's bandwidth, half of each staged, or as much as pays
    Split,
    /// Checkpoints of which some is written early in a cycle, and copied ahead
    Precopy,
}

/// Runs the benchmark.
///
/// # Errors
/// When there is no room.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<Figure>> {
    use clap::ValueEnum;
    if let Some(does) = &args.rank {
        ranks::rank(does)?;
        return Ok(Vec::new());
    }
    let cases = match &args.cases[..] {
        [] => Case::value_variants(),
        some => some,
    };
    let mut figures = Vec::new();
    for case in cases {
        figures.append(&mut match case {
            Case::Copy => copy::copy(args)?,
            Case::Commit => ranks::commit(args)?,
            Case::Split => ranks::split(args)?,
            Case::Precopy => ranks::precopy(args)?,
        });
    }
    Ok(figures)
}
