//! `tarn bench ckpt`: the cost of checkpoints, beside memcpy of the same bytes: one call a thread, as long as there are threads.

mod buddies;
mod copy;
mod proxies;
mod ranks;
mod recovery;
mod tracking;

use crate::cluster::peer::LinkRate;
use crate::figure::BenchFigure;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Measured rounds, at most.
const MAX_ROUNDS: i64 = 100;
/// Processes, or threads, that copy at the same time.
const MAX_THREADS: i64 = 256;
const MIB: u64 = 1 << 20;

/// Options of `tarn bench ckpt`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Cases to measure; all when not given
    #[arg(long = "case", value_enum)]
    cases: Vec<CheckpointCase>,
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
    /// Proxies of simulations, made as in examples/checkpoints/README.md: their folder
    #[arg(long, value_name = "DIR", default_value = "examples/checkpoints")]
    proxies: PathBuf,
    /// Recovery: the link that is limited lets this through (tc tbf; needs rights)
    #[arg(long, value_name = "RATE", default_value = "10gbit")]
    rate: LinkRate,
    /// One rank of a measurement: its work, as JSON
    #[arg(long, hide = true)]
    rank: Option<String>,
    /// MiB that each copies
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    mib: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CheckpointCase {
    /// Bytes copied to a medium with checksums, and made persistent; and back
    Copy,
    /// Checkpoints to a tier that is as fast as memory, and restarts from them
    Commit,
    /// Checkpoints to an emulated NVRAM of 1/4 and 1/8 of memory's bandwidth, half of each staged, or as much as pays
    Split,
    /// Checkpoints of which some is written early in a cycle, and copied ahead
    Precopy,
    /// Tracking of which pages are written, by userfaultfd and by mprotect
    Tracking,
    /// CM1's proxy: how much its computing loses to concurrent work
    SlowdownCm1,
    /// GTC's proxy: cycles with their checkpoints, beside computing and the copies that nobody can avoid
    Whole,
    /// A rank whose node was replaced, or has lost its memory, resumes from the copy of another node
    Recovery,
    /// Copies in the memory of another node, written there and read back, by TCP and by libfabric
    Buddies,
}

/// The role of a process in a measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum RankRole {
    /// It commits, and restarts.
    Commits(ranks::BenchRankSpec),
    /// It is one of those of which one is lost.
    Recovers(recovery::RecoveryRankSpec),
    /// It has copies on another node.
    Keeps(buddies::BuddyRankSpec),
}

impl RankRole {
    /// A process of this program; where it is not to be in this namespace of networks, in that of another process.
    fn command(&self, network: Option<u32>) -> anyhow::Result<Command> {
        let program = std::env::current_exe()?;
        let mut command = match network {
            Some(of) => {
                let mut enter = Command::new("nsenter");
                enter.arg(format!("--net=/proc/{of}/ns/net")).arg(program);
                enter
            }
            None => Command::new(program),
        };
        command
            .args(["ckpt", "--rank", &serde_json::to_string(self)?])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Ok(command)
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When there is no space, or a program that it takes is not there.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    use clap::ValueEnum;
    if let Some(role) = &args.rank {
        match serde_json::from_str(role)? {
            RankRole::Commits(does) => ranks::rank(&does)?,
            RankRole::Recovers(does) => recovery::rank(&does)?,
            RankRole::Keeps(does) => buddies::rank(&does)?,
        }
        return Ok(Vec::new());
    }
    let cases = match &args.cases[..] {
        [] => CheckpointCase::value_variants(),
        some => some,
    };
    // Before anything is measured that takes long.
    if cases.contains(&CheckpointCase::SlowdownCm1) || cases.contains(&CheckpointCase::Whole) {
        proxies::are_there(&args.proxies)?;
    }
    let mut figures = Vec::new();
    for case in cases {
        figures.append(&mut match case {
            CheckpointCase::Copy => copy::copy(args)?,
            CheckpointCase::Commit => ranks::commit(args)?,
            CheckpointCase::Split => ranks::split(args)?,
            CheckpointCase::Precopy => ranks::precopy(args)?,
            CheckpointCase::Tracking => tracking::tracking(args)?,
            CheckpointCase::SlowdownCm1 => proxies::slowdown(args)?,
            CheckpointCase::Whole => proxies::run_whole(args)?,
            CheckpointCase::Recovery => recovery::recovery(args)?,
            CheckpointCase::Buddies => buddies::buddies(args)?,
        });
    }
    Ok(figures)
}
