//! `tarn bench cluster`: a tree fetched from another node, verified, beside bare TCP streams of the same bytes: memory to
//! memory, no file, nothing looked at. The other node is this program started again, in a network namespace of its own.
//! Both run in turns; medians are compared, with the CPU time of both ends.

mod bare;
pub(crate) mod peer;
mod tree;

use super::{Figure, median};
use anyhow::{Context, ensure};
use peer::{Peer, Rate};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tarn_base::manifest::Manifest;
use tarn_base::part::Verify;
use tarn_movers::Trees;
use tarn_ports::{Control, CopyJob, CopySource, Mover};

/// Measured rounds, at most.
const MAX_ROUNDS: u32 = 100;
/// Streams of the bare contender: the best of these counts stands beside tarn.
const BARE_STREAMS: [usize; 3] = [1, 2, 4];
const GB: f64 = 1e9;

/// Options of `tarn bench cluster`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// A folder on a tmpfs to measure in
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// What to measure; all when not given
    #[arg(long = "case", value_enum)]
    cases: Vec<Case>,
    /// Limit the link to this, such as 1gbit (tc tbf; needs rights)
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Threads and streams of a transfer [default: as `tarn run` has them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    streams: Option<u32>,
    /// Measured rounds of each case
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_ROUNDS)))]
    rounds: u32,
    /// Bytes of the trees, in percent: a quick look at a smaller case
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100))]
    percent: u32,
}

/// A tree that is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Case {
    /// 4 files of 1 GiB.
    NodeToNode,
    /// The shape of a decomposed OpenFOAM case: some thousand files, small ones and some of many MiB.
    NodeToNodeTree,
}

/// Seconds of a transfer, and CPU seconds of both ends.
#[derive(Debug, Clone, Copy)]
struct Took {
    wall: f64,
    cpu: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// When there is no room, the link cannot be limited, or a transfer fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<Figure>> {
    let cases: &[Case] = if args.cases.is_empty() {
        &[Case::NodeToNode, Case::NodeToNodeTree]
    } else {
        &args.cases
    };
    let mut figures = Vec::new();
    for case in cases {
        figures.append(&mut Bench::new(*case, args)?.measure(args.rounds)?);
    }
    Ok(figures)
}

struct Bench {
    label: String,
    /// Removed with everything in it.
    dir: Scratch,
    manifest: Manifest,
    bytes: u64,
    peer: Peer,
    mover: Trees,
}

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = Trees::new().remove(&self.0) {
            crate::print::say!("warning: {e}");
        }
    }
}

impl Bench {
    fn new(case: Case, args: &Args) -> anyhow::Result<Self> {
        let shown = args.dir.display();
        let name = format!("tarn-bench-cluster-{}", std::process::id());
        let dir = Scratch(args.dir.join(name));
        let from = dir.0.join("from");
        std::fs::create_dir_all(&from).with_context(|| format!("cannot write to `{shown}`"))?;
        let shape = match case {
            Case::NodeToNode => {
                tree::large(&from, args.percent)?;
                "node-to-node (4 x 1 GiB"
            }
            Case::NodeToNodeTree => {
                tree::openfoam(&from, args.percent)?;
                "node-to-node-tree (OpenFOAM"
            }
        };
        let manifest = Trees::new().digest(&from, &Control::default())?;
        let peer = Peer::start(&from, args.rate)?;
        let bytes = manifest.bytes();
        let part = match args.percent {
            100 => String::new(),
            percent => format!(", {percent} % of it"),
        };
        let label = format!("{shape}{part}; {} files, {:.2} GB; {})", manifest.files(), bytes as f64 / GB, peer.link);
        let mover = match args.streams {
            Some(n) => Trees::new().with_threads(n as usize),
            None => Trees::new(),
        };
        Ok(Self { label, dir, manifest, bytes, peer, mover })
    }

    fn measure(mut self, rounds: u32) -> anyhow::Result<Vec<Figure>> {
        let mut ours = Vec::new();
        let mut bare: [Vec<Took>; BARE_STREAMS.len()] = Default::default();
        // The first round warms up.
        for round in 0..=rounds {
            let tarn = self.timed(Self::fetch)?;
            let mut theirs = Vec::new();
            for streams in BARE_STREAMS {
                theirs.push(self.timed(|b| bare::receive(b.peer.bare, b.bytes, streams))?);
            }
            if round > 0 {
                ours.push(tarn);
                bare.iter_mut().zip(theirs).for_each(|(all, one)| all.push(one));
            }
        }
        let speed = |all: &[Took]| {
            let walls: Vec<f64> = all.iter().map(|t| t.wall).collect();
            self.bytes as f64 / 1e6 / median(&walls)
        };
        let cpu = |all: &[Took]| {
            let seconds: Vec<f64> = all.iter().map(|t| t.cpu).collect();
            median(&seconds) / (self.bytes as f64 / GB)
        };
        let mut figures = Vec::new();
        let best = (0..bare.len()).max_by(|a, b| speed(&bare[*a]).total_cmp(&speed(&bare[*b])));
        let best = best.context("nothing was measured")?;
        let name = format!("bare TCP, {} stream(s)", BARE_STREAMS[best]);
        figures.push(Figure {
            name: self.label.clone(),
            value: speed(&ours),
            unit: "MB/s",
            against: Some((name.clone(), speed(&bare[best]))),
        });
        figures.push(Figure {
            name: format!("{}, CPU a GB, both ends", self.label),
            value: cpu(&ours),
            unit: "s",
            against: Some((name, cpu(&bare[best]))),
        });
        for (streams, all) in BARE_STREAMS.iter().zip(&bare) {
            figures.push(Figure {
                name: format!("{}: bare TCP, {streams} stream(s)", self.label),
                value: speed(all),
                unit: "MB/s",
                against: None,
            });
        }
        Ok(figures)
    }

    fn timed(&mut self, what: impl FnOnce(&Self) -> anyhow::Result<()>) -> anyhow::Result<Took> {
        let before = peer::cpu_seconds() + self.peer.cpu()?;
        let start = Instant::now();
        what(self)?;
        let wall = start.elapsed().as_secs_f64();
        let cpu = peer::cpu_seconds() + self.peer.cpu()? - before;
        Trees::new().remove(&self.dest())?;
        Ok(Took { wall, cpu })
    }

    fn dest(&self) -> PathBuf {
        self.dir.0.join("to")
    }

    fn fetch(&self) -> anyhow::Result<()> {
        let dest = self.dest();
        let job = CopyJob {
            sources: vec![CopySource {
                root: PathBuf::new(),
                peer: Some(self.peer.tree()),
                as_entry: None,
                manifest: Some(self.manifest.clone()),
                only: None,
            }],
            staging: staging(&dest),
            dest,
            replace: false,
            verify: Verify::Copy,
            sync: false,
            rate: 0,
            latency: 0,
        };
        let report = self.mover.copy(&job, &Control::default())?;
        ensure!(report.bytes == self.bytes, "{} bytes came", report.bytes);
        Ok(())
    }
}

fn staging(dest: &Path) -> PathBuf {
    dest.with_extension("staging")
}
