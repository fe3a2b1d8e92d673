//! A tree fetched from another node, verified, beside bare TCP streams of the same bytes: from memory, and into nothing or
//! into files as new as tarn's; nothing is looked at. The other node is this program started again, in a network namespace of
//! its own. All run in turns; medians are compared, with the CPU time of both ends.

use super::peer::{self, PeerProcess};
use super::{Args, bare, tree};
use crate::figure::{BenchFigure, median};
use crate::scratch::ScratchFolder;
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tarn_data_plane::Transport;
use tarn_mover::Trees;
use tarn_ports::{Control, CopyJob, CopySource, Mover, PeerTree};
use tarn_types::manifest::Manifest;
use tarn_types::part::Verify;

/// Streams of the bare contenders: the best of these counts stands beside tarn.
const BARE_STREAMS: [usize; 3] = [1, 2, 4];
/// Labels of the bare contenders: they receive into nothing, or into files.
const INTO: [&str; 2] = ["bare TCP", "bare TCP into files"];
const GB: f64 = 1e9;

/// A tree that is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TreeShape {
    /// 4 files of 1 GiB.
    Large,
    /// The shape of a decomposed OpenFOAM case: some thousand files, small ones and some of many MiB.
    OpenFoam,
}

/// Seconds of a transfer, and CPU seconds of both ends.
#[derive(Debug, Clone, Copy)]
struct TransferTimes {
    wall: f64,
    cpu: f64,
}

/// Measures one shape.
///
/// # Errors
/// When there is no space, the link cannot be limited, or a transfer fails.
pub(super) fn run(of: TreeShape, args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    TransferBench::new(of, args)?.measure(args.rounds)
}

pub(super) struct TransferBench {
    label: String,
    /// Removed with everything in it.
    dir: ScratchFolder,
    manifest: Manifest,
    bytes: u64,
    peer: PeerProcess,
    is_sealed: bool,
    mover: Trees,
}

/// Times of all rounds.
#[derive(Default)]
struct TransferRounds {
    ours: Vec<TransferTimes>,
    /// In clear, where the client encrypts.
    clear: Vec<TransferTimes>,
    /// Of bare streams: into nothing and into files, by their number.
    bare: [[Vec<TransferTimes>; BARE_STREAMS.len()]; INTO.len()],
}

impl TransferBench {
    pub(super) fn new(of: TreeShape, args: &Args) -> anyhow::Result<Self> {
        let dir = ScratchFolder::new(&args.dir)?;
        let from = dir.path().join("from");
        std::fs::create_dir(&from)?;
        let shape = match of {
            TreeShape::Large => {
                tree::large(&from, args.percent)?;
                "node-to-node (4 x 1 GiB"
            }
            TreeShape::OpenFoam => {
                tree::openfoam(&from, args.percent)?;
                "node-to-node-tree (OpenFOAM"
            }
        };
        let manifest = Trees::new().digest(&from, &Control::default())?;
        // It is enough that the client wants it: so both can be measured in turns.
        let is_sealed = args.transport == Transport::Sealed;
        let transport = if is_sealed {
            &Transport::Tcp
        } else {
            &args.transport
        };
        let peer = PeerProcess::start(&from, args.rate, transport)?;
        let bytes = manifest.bytes();
        let part = match args.percent {
            100 => String::new(),
            percent => format!(", {percent} % of it"),
        };
        let label = format!(
            "{shape}{part}; {} files, {:.2} GB; {}{})",
            manifest.files(),
            bytes as f64 / GB,
            peer.link,
            match &args.transport {
                Transport::Tcp => String::new(),
                other => format!(", {other}"),
            }
        );
        let mover = match args.streams {
            Some(n) => Trees::new().with_threads(n as usize),
            None => Trees::new(),
        };
        Ok(Self {
            label,
            dir,
            manifest,
            bytes,
            peer,
            is_sealed,
            mover,
        })
    }

    fn measure(mut self, rounds: u32) -> anyhow::Result<Vec<BenchFigure>> {
        let rounds = self.run_rounds(rounds)?;
        self.figures(&rounds)
    }

    fn run_rounds(&mut self, rounds: u32) -> anyhow::Result<TransferRounds> {
        let mut all = TransferRounds::default();
        // The first round warms up.
        for round in 0..=rounds {
            let is_measured = round > 0;
            let tarn = self.timed(|b| b.fetch(0, &Control::default()))?;
            if is_measured {
                all.ours.push(tarn);
            }
            if self.is_sealed {
                let took = self.timed(|b| b.fetch_from(b.peer.tree(), 0, &Control::default()))?;
                if is_measured {
                    all.clear.push(took);
                }
            }
            for (into, by_streams) in all.bare.iter_mut().enumerate() {
                for (streams, taken) in BARE_STREAMS.iter().zip(by_streams) {
                    let took = self.timed(|b| b.bare(*streams, into > 0))?;
                    if is_measured {
                        taken.push(took);
                    }
                }
            }
        }
        Ok(all)
    }

    fn figures(
        &self,
        TransferRounds { ours, clear, bare }: &TransferRounds,
    ) -> anyhow::Result<Vec<BenchFigure>> {
        let speed = |all: &[TransferTimes]| {
            let walls: Vec<f64> = all.iter().map(|t| t.wall).collect();
            self.bytes as f64 / 1e6 / median(&walls)
        };
        let cpu = |all: &[TransferTimes]| {
            let seconds: Vec<f64> = all.iter().map(|t| t.cpu).collect();
            median(&seconds) / (self.bytes as f64 / GB)
        };
        let mut figures = Vec::new();
        if self.is_sealed {
            let both = [
                ("", "MB/s", speed(ours), speed(clear)),
                (", CPU a GB, both ends", "s", cpu(ours), cpu(clear)),
            ];
            figures.extend(both.map(|(what, unit, value, clear)| BenchFigure {
                name: format!("{}{what}", self.label),
                value,
                unit,
                against: Some(("in clear".into(), clear)),
            }));
        }
        for (into, all) in INTO.iter().zip(bare) {
            let counted = BARE_STREAMS.iter().zip(all);
            let best = counted.max_by(|a, b| speed(a.1).total_cmp(&speed(b.1)));
            let (streams, best) = best.context("nothing was measured")?;
            let name = format!("{into}, {streams} stream(s)");
            figures.push(BenchFigure {
                name: self.label.clone(),
                value: speed(ours),
                unit: "MB/s",
                against: Some((name.clone(), speed(best))),
            });
            figures.push(BenchFigure {
                name: format!("{}, CPU a GB, both ends", self.label),
                value: cpu(ours),
                unit: "s",
                against: Some((name, cpu(best))),
            });
        }
        for (into, all) in INTO.iter().zip(bare) {
            for (streams, all) in BARE_STREAMS.iter().zip(all) {
                figures.push(BenchFigure {
                    name: format!("{}: {into}, {streams} stream(s)", self.label),
                    value: speed(all),
                    unit: "MB/s",
                    against: None,
                });
            }
        }
        Ok(figures)
    }

    fn bare(&self, streams: usize, into_files: bool) -> anyhow::Result<()> {
        let dest = self.dest();
        bare::receive(
            self.peer.bare,
            self.bytes,
            streams,
            into_files.then_some(&dest),
        )
    }

    fn timed(
        &mut self,
        what: impl FnOnce(&Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<TransferTimes> {
        let before = peer::cpu_seconds() + self.peer.cpu()?;
        let start = Instant::now();
        what(self)?;
        let wall = start.elapsed().as_secs_f64();
        let cpu = peer::cpu_seconds() + self.peer.cpu()? - before;
        self.remove()?;
        Ok(TransferTimes { wall, cpu })
    }

    fn dest(&self) -> PathBuf {
        self.dir.path().join("to")
    }

    /// Removes the fetched tree, also the files that a cancelled fetch has left.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        let dest = self.dest();
        Trees::new().remove(&staging(&dest))?;
        Ok(Trees::new().remove(&dest)?)
    }

    /// Fetches the tree, at most `rate` bytes a second (0: no limit).
    pub(super) fn fetch(&self, rate: u64, control: &Control) -> anyhow::Result<()> {
        let tree = if self.is_sealed {
            self.peer.sealed_tree()
        } else {
            self.peer.tree()
        };
        self.fetch_from(tree, rate, control)
    }

    fn fetch_from(
        &self,
        tree: Arc<dyn PeerTree>,
        rate: u64,
        control: &Control,
    ) -> anyhow::Result<()> {
        let dest = self.dest();
        let job = CopyJob {
            sources: vec![CopySource {
                peer: Some(tree),
                manifest: Some(self.manifest.clone()),
                ..CopySource::of(PathBuf::new())
            }],
            staging: staging(&dest),
            dest,
            replace: false,
            verify: Verify::Copy,
            sync: false,
            rate,
            latency: 0,
            arrivals: None,
            seal: None,
        };
        let report = self.mover.copy(&job, control)?;
        ensure!(report.bytes == self.bytes, "{} bytes came", report.bytes);
        Ok(())
    }
}

fn staging(dest: &Path) -> PathBuf {
    dest.with_extension("staging")
}
