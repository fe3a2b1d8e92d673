//! `tarn bench crypt`: the cost of sealing. The mover of `tarn run` on one thread copies a tree plain, seals it, opens it and copies it
//! sealed as it is, in turns on the same medium; beside them the cipher alone, in the cache.

use crate::figure::{BenchFigure, median};
use crate::scratch::ScratchFolder;
use crate::stage::{available_memory, make_file, medium, touch};
use anyhow::{Context, ensure};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tarn_mover::Trees;
use tarn_ports::{Control, CopyJob, CopySource, Mover};
use tarn_seal::CIPHER;
use tarn_seal::file::{FileCipher, PIECE, TRAILER};
use tarn_types::key::{DataKey, KEY_BYTES, KeyId};
use tarn_types::part::Verify;
use zeroize::Zeroizing;

/// Files of the tree, and bytes of each: 1 GiB together.
const FILES: u64 = 4;
const BYTES: u64 = 256 << 20;
/// Bytes that the cipher alone seals in a round.
const ALONE: u64 = 1 << 30;
/// Measured rounds, at most.
const MAX_ROUNDS: u32 = 100;
/// Space beside the tree and its copies.
const BESIDE: u64 = 256 << 20;

/// Options of `tarn bench crypt`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// A folder to measure in; on a disk copies are synced.
    #[arg(long = "dir", value_name = "DIR", default_values = ["/dev/shm", "."])]
    dirs: Vec<PathBuf>,
    /// Measured rounds in each folder.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_ROUNDS)))]
    rounds: u32,
}

/// An operation on the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CryptOperation {
    Plain,
    Seal,
    Open,
    AsItIs,
}

const WAYS: [CryptOperation; 4] = [
    CryptOperation::Plain,
    CryptOperation::Seal,
    CryptOperation::Open,
    CryptOperation::AsItIs,
];

impl CryptOperation {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain copy",
            Self::Seal => "sealed on the way",
            Self::Open => "opened on the way",
            Self::AsItIs => "copied sealed, and opened to be hashed",
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When there is no space, or a copy fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let key = Arc::new(key()?);
    let mut figures = Vec::new();
    for dir in &args.dirs {
        figures.append(&mut CryptBench::new(dir, &key)?.rates(args.rounds)?);
    }
    figures.push(alone(&key, args.rounds)?);
    Ok(figures)
}

fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    ensure!(got == N, "the machine has no random bytes yet; try again");
    Ok(bytes)
}

fn key() -> anyhow::Result<DataKey> {
    let secret = Zeroizing::new(random::<KEY_BYTES>()?);
    Ok(DataKey::new(KeyId(random()?), secret))
}

/// The cipher on one piece, which stays in the cache.
fn alone(key: &DataKey, rounds: u32) -> anyhow::Result<BenchFigure> {
    let cipher = FileCipher::create(key, random()?, ALONE)?;
    let mut buffer = vec![7; PIECE + TRAILER];
    let mut rates = Vec::new();
    for _ in 0..rounds {
        let attempt = random()?;
        let start = Instant::now();
        for piece in 0..ALONE / PIECE as u64 {
            cipher.seal(piece, attempt, &mut buffer)?;
        }
        rates.push(ALONE as f64 / 1e6 / start.elapsed().as_secs_f64());
    }
    std::hint::black_box(&buffer);
    Ok(BenchFigure {
        name: format!(
            "{CIPHER} alone, one thread, pieces of {} KiB in the cache",
            PIECE >> 10
        ),
        value: median(&rates),
        unit: "MB/s",
        against: None,
    })
}

struct CryptBench {
    home: ScratchFolder,
    key: Arc<DataKey>,
    medium: String,
}

impl CryptBench {
    fn new(dir: &Path, key: &Arc<DataKey>) -> anyhow::Result<Self> {
        let medium = medium(dir)?;
        let need = 3 * FILES * BYTES + BESIDE;
        let stat = rustix::fs::statvfs(dir)?;
        let mut free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if medium == "tmpfs" {
            free = free.min(available_memory()?);
        }
        ensure!(
            free >= need,
            "it needs {} MiB in `{}`, {} MiB are free; choose another --dir",
            need >> 20,
            dir.display(),
            free >> 20
        );
        let home = ScratchFolder::new(dir)?;
        if medium == "tmpfs" {
            touch(need)?;
        }
        let bench = Self {
            home,
            key: Arc::clone(key),
            medium,
        };
        let source = bench.at("source");
        std::fs::create_dir(&source)?;
        let (mut block, mut seed) = (vec![0; 1 << 20], 1);
        for file in 0..FILES {
            make_file(
                &source.join(format!("file{file}")),
                BYTES,
                &mut block,
                &mut seed,
            )?;
        }
        rustix::fs::syncfs(File::open(&source)?)?;
        bench.copy(CryptOperation::Seal, &bench.at("sealed"))?;
        Ok(bench)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn copy(&self, way: CryptOperation, dest: &Path) -> anyhow::Result<()> {
        let (sealed, seal) = (
            matches!(way, CryptOperation::Open | CryptOperation::AsItIs),
            matches!(way, CryptOperation::Seal | CryptOperation::AsItIs),
        );
        let source = CopySource {
            sealed: sealed.then(|| Arc::clone(&self.key)),
            ..CopySource::of(self.at(if sealed { "sealed" } else { "source" }))
        };
        let job = CopyJob {
            sources: vec![source],
            dest: dest.to_path_buf(),
            staging: self.at("staging"),
            replace: false,
            verify: Verify::Copy,
            sync: self.medium != "tmpfs",
            rate: 0,
            latency: 0,
            arrivals: None,
            seal: seal.then(|| Arc::clone(&self.key)),
        };
        let mover = Trees::new().with_threads(1);
        let report = mover.copy(&job, &Control::default())?;
        ensure!(
            report.bytes == FILES * BYTES,
            "{} bytes were copied",
            report.bytes
        );
        Ok(())
    }

    /// MB of content in a second; the copy is removed, which is not counted.
    fn once(&self, way: CryptOperation) -> anyhow::Result<f64> {
        let dest = self.at("dest");
        let start = Instant::now();
        self.copy(way, &dest)?;
        let seconds = start.elapsed().as_secs_f64();
        Trees::new().remove(&dest)?;
        if self.medium != "tmpfs" {
            rustix::fs::syncfs(File::open(self.at("source"))?)?;
        }
        Ok((FILES * BYTES) as f64 / 1e6 / seconds)
    }

    fn rates(&self, rounds: u32) -> anyhow::Result<Vec<BenchFigure>> {
        let mut rates: [Vec<f64>; WAYS.len()] = Default::default();
        // One round before those that count.
        for round in 0..=rounds {
            for turn in 0..WAYS.len() {
                // Each goes first as often as the others.
                let at = (turn + round as usize) % WAYS.len();
                let rate = self.once(WAYS[at])?;
                if round > 0 {
                    rates[at].push(rate);
                }
            }
            if round > 0 {
                let shown = WAYS.iter().zip(&rates);
                let shown: Vec<_> = shown
                    .filter_map(|(w, r)| Some(format!("{} {:.0}", w.name(), r.last()?)))
                    .collect();
                crate::print::message!(
                    "{}  {round}/{rounds}, MB/s: {}",
                    self.medium,
                    shown.join(", ")
                );
            }
        }
        let plain = median(rates.first().context("nothing was measured")?);
        let figure = |(way, rates): (&CryptOperation, &Vec<f64>)| BenchFigure {
            name: format!(
                "{} x {} MiB {}, {CIPHER}, {}, one thread",
                FILES,
                BYTES >> 20,
                way.name(),
                self.medium
            ),
            value: median(rates),
            unit: "MB/s",
            against: Some((CryptOperation::Plain.name().to_owned(), plain)),
        };
        Ok(WAYS.iter().zip(&rates).skip(1).map(figure).collect())
    }
}
