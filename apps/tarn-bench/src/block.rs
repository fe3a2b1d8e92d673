//! `tarn bench block`: a partition as a block device, beside nbdkit's own memory plug-in. The same client, fio's nbd engine, reads
//! and writes both over a unix socket.

use crate::figure::{BenchFigure, median};
use crate::fio;
use crate::scratch::ScratchFolder;
use anyhow::{Context, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tarn_console::nbdkit::plugin;
use tarn_partitions::Partition;
use tarn_types::units::Bytes;

const MIB: u64 = 1 << 20;
/// Until nbdkit listens.
const START: Duration = Duration::from_secs(30);
/// Rounds before those that are measured.
const WARM: u32 = 1;

/// Options of `tarn bench block`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Cases to measure; all when not given
    #[arg(long = "case", value_enum)]
    cases: Vec<BlockCase>,
    /// Measured rounds; one more is for warming up
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// A folder on the tier to measure
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// MiB of the device
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    mib: u64,
    /// Requests of a round, one at a time; eight times as many where 32 are under way, an eighth of 1 MiB
    #[arg(long, default_value_t = 16_384, value_parser = clap::value_parser!(u64).range(8..=1 << 30))]
    requests: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BlockCase {
    /// 4 KiB at random places, one after the other
    Depth1,
    /// 4 KiB at random places, 32 at a time
    Depth32,
    /// 1 MiB in sequence, one after the other
    #[value(name = "seq-1m")]
    Seq1m,
}

impl BlockCase {
    /// Its name on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Depth1 => "depth1",
            Self::Depth32 => "depth32",
            Self::Seq1m => "seq-1m",
        }
    }

    fn shape(self) -> &'static str {
        match self {
            Self::Depth1 | Self::Depth32 => "4 KiB at random places",
            Self::Seq1m => "1 MiB in sequence",
        }
    }

    /// Requests a second of one round, by a server at a socket.
    fn rate(self, args: &Args, reads: bool, socket: &Path) -> anyhow::Result<f64> {
        let (order, bytes, depth, requests) = match self {
            Self::Depth1 => ("rand", 4096, 1, args.requests),
            Self::Depth32 => ("rand", 4096, 32, 8 * args.requests),
            Self::Seq1m => ("", MIB, 1, args.requests / 8),
        };
        let kind = if reads { "read" } else { "write" };
        fio::rate(
            reads,
            &[
                "--ioengine=nbd".to_owned(),
                format!("--uri=nbd+unix:///?socket={}", socket.display()),
                format!("--rw={order}{kind}"),
                format!("--bs={bytes}"),
                format!("--iodepth={depth}"),
                format!("--size={}", args.mib * MIB),
                format!("--io_size={}", requests * bytes),
                "--norandommap=1".to_owned(),
            ],
        )
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When nbdkit, its plug-ins or fio are not there, or there is no space.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    use clap::ValueEnum;
    let cases = match &args.cases[..] {
        [] => BlockCase::value_variants(),
        some => some,
    };
    let plugin = plugin().map_err(|e| e.error)?;
    let scratch = ScratchFolder::new(&args.dir)?;
    let folder = scratch.path();
    let path = folder.join("disk");
    Partition::create(&path, args.mib * MIB, Vec::new())?;
    let mut partition = OsString::from("partition=");
    partition.push(&path);
    let ours = NbdkitProcess::new(folder, "ours", &[plugin.into(), partition])?;
    let size = format!("{}", args.mib * MIB);
    let beside = NbdkitProcess::new(folder, "beside", &["memory".into(), size.into()])?;
    // All memory of both is there.
    let whole = Args {
        requests: 8 * args.mib,
        ..args.clone()
    };
    for server in [&ours, &beside] {
        BlockCase::Seq1m.rate(&whole, false, &server.socket)?;
    }
    let mut figures = Vec::new();
    for case in cases {
        for reads in [true, false] {
            let mut rates = [Vec::new(), Vec::new()];
            for round in 0..args.rounds + WARM {
                for (server, rates) in [&ours, &beside].into_iter().zip(&mut rates) {
                    let rate = case.rate(args, reads, &server.socket)?;
                    if round >= WARM {
                        rates.push(rate / 1e3);
                    }
                }
            }
            figures.push(BenchFigure {
                name: format!(
                    "{}, {}, {} of {}, by fio over a unix socket",
                    case.name(),
                    if reads { "read" } else { "write" },
                    case.shape(),
                    Bytes(args.mib * MIB),
                ),
                value: median(&rates[0]),
                unit: "k/s",
                against: Some(("nbdkit's memory plug-in".into(), median(&rates[1]))),
            });
        }
    }
    Ok(figures)
}

/// An nbdkit, which ends with this.
struct NbdkitProcess {
    nbdkit: Child,
    socket: PathBuf,
}

impl NbdkitProcess {
    fn new(folder: &Path, name: &str, served: &[OsString]) -> anyhow::Result<Self> {
        let listening = folder.join(format!("{name}.pid"));
        let socket = folder.join(format!("{name}.socket"));
        let nbdkit = Command::new("nbdkit")
            .args(["--exit-with-parent", "--pidfile"])
            .arg(&listening)
            .arg("--unix")
            .arg(&socket)
            .args(served)
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start nbdkit")?;
        let mut server = Self { nbdkit, socket };
        let until = Instant::now() + START;
        while !listening.exists() {
            let ended = server.nbdkit.try_wait()?;
            ensure!(
                ended.is_none() && Instant::now() < until,
                "nbdkit does not serve: its messages are above"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

impl Drop for NbdkitProcess {
    fn drop(&mut self) {
        let _ = self.nbdkit.kill();
        let _ = self.nbdkit.wait();
    }
}
