//! Copies of staged data in the memory of another node, written there and read back, by TCP and by libfabric, in turns; beside the bare
//! way: a stream, or a loop that posts to libfabric and does nothing else.

use super::ranks::{self, StagedShare, TIMEOUT, fill, items, restored};
use super::recovery::{LOST, MOST, PORT};
use super::{Args, MIB, RankRole};
use crate::cluster::bare;
use crate::cluster::peer::PeerProcess;
use crate::figure::{BenchFigure, median};
use crate::processes;
use crate::scratch::ScratchFolder;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::io::Write;
use std::path::Path;
use std::time::Instant;
use tarn_data_plane::{Rma, library};
use tarn_mover::Trees;
use tarn_partitions::ProgramMemory;
use tarn_ports::{Mover, Ranks};
use tarn_types::units::Bytes;

/// Commits of a process; the first takes memory at the other node.
const COMMITS: usize = 3;
/// Bytes of a write to libfabric, as of a chunk, and of a read; so many at the same time.
const WRITE: u64 = 256 << 10;
const READ: u64 = 512 << 10;
const AHEAD: u64 = 3;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct BuddyRankSpec {
    rank: ranks::BenchRankSpec,
    /// Of libfabric; none: TCP.
    provider: Option<String>,
    /// It restarts, or commits the restored data.
    restarts: bool,
}

/// Seconds.
#[derive(Debug, Default, Serialize, Deserialize)]
struct BuddyTimes {
    /// Without the wait for the version before to be de-staged.
    commits: Vec<f64>,
    /// Until the staged data is in the arena.
    begin: f64,
}

/// One rank, in a process of its own.
///
/// # Errors
/// When anything fails, or its copies went another way.
pub(super) fn rank(does: &BuddyRankSpec) -> anyhow::Result<()> {
    let mut wanted = vec![0; usize::try_from(does.rank.bytes)?];
    fill(&mut wanted, does.rank.rank, 0);
    let meeting = does.rank.meeting()?;
    if let Some(provider) = &does.provider {
        let rma = Rma::load_as_guest(&library()?, provider).map_err(anyhow::Error::msg)?;
        meeting.reach_by(rma);
    }
    meeting.exchange(b"", TIMEOUT)?;
    let began = Instant::now();
    let mut program = does.rank.begin(&meeting)?;
    let mut took = BuddyTimes {
        commits: Vec::new(),
        begin: began.elapsed().as_secs_f64(),
    };
    if does.restarts {
        let mut memory = vec![0; wanted.len()];
        restored(&mut program, &mut memory)?;
        ensure!(memory == wanted, "what came back is not what was committed");
    } else {
        for n in 0..=COMMITS {
            meeting.exchange(b"", TIMEOUT)?;
            let waited = program.stats().waited;
            let committed = program.commit(&items(&wanted))?;
            ensure!(committed.degraded.is_none(), "{:?}", committed.degraded);
            let stats = program.stats();
            let own = stats.last_commit.saturating_sub(stats.waited - waited);
            if n > 0 {
                took.commits.push(own.as_secs_f64());
            }
        }
    }
    let carried = program.stats().carried;
    let (by_rma, by_stream) = if does.restarts {
        (carried.fetched, carried.fetched_by_stream)
    } else {
        (carried.put, carried.put_by_stream)
    };
    let went = match does.provider {
        Some(_) => (by_rma, by_stream),
        None => (by_stream, by_rma),
    };
    if does.rank.rank == LOST {
        // Manifests are small, and are read by the stream.
        ensure!(went.0 >= does.rank.bytes && went.1 < MIB, "{carried:?}");
    }
    meeting.exchange(b"", TIMEOUT)?;
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &took)?;
    Ok(out.flush()?)
}

/// Rates of one way, by round: of commits and of begin, and of the bare way.
#[derive(Default)]
struct BuddyRates {
    commits: Vec<f64>,
    begins: Vec<f64>,
    writes: Vec<f64>,
    reads: Vec<f64>,
}

/// The ways that copies go, by the provider of libfabric; `None` for TCP.
fn providers() -> Vec<Option<&'static str>> {
    let mut ways = vec![None];
    if library().is_ok_and(|library| library.exists()) {
        ways.extend([Some("tcp;ofi_rxm"), Some("shm")])
    } else {
        crate::print::message!(
            "note: libfabric is left out: there is no {}",
            tarn_data_plane::LIBRARY
        )
    }
    ways
}

/// All ways, in turns.
pub(super) fn buddies(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let scratch = ScratchFolder::new(&args.dir)?;
    let mut peer = match PeerProcess::linked(scratch.path(), None) {
        Ok(peer) => peer,
        Err(e) => {
            crate::print::message!("buddies is skipped: there is no link ({e:#})");
            return Ok(Vec::new());
        }
    };
    let ways = providers();
    let bytes = args.mib.min(MOST) * MIB;
    let mut all: Vec<BuddyRates> = ways.iter().map(|_| BuddyRates::default()).collect();
    // The first round is for warming up.
    for round in 0..=args.rounds {
        for (way, rates) in ways.iter().zip(&mut all) {
            let bench = BuddyBench {
                args,
                dir: scratch.path(),
                bytes,
                provider: *way,
            };
            let measured = bench.round(&mut peer)?;
            if round > 0 {
                rates.commits.extend(measured.commits);
                rates.begins.extend(measured.begins);
                rates.writes.extend(measured.writes);
                rates.reads.extend(measured.reads);
            }
        }
    }
    let mut figures = Vec::new();
    for (way, rates) in ways.iter().zip(&all) {
        let by = way.map_or_else(|| "TCP".into(), |p| format!("libfabric:{p}"));
        let plain = match way {
            None => "bare TCP, 1 stream",
            Some(_) => "libfabric alone",
        };
        for (what, own, bare) in [
            (
                "a commit, all of it staged, with a copy there",
                &rates.commits,
                &rates.writes,
            ),
            (
                "begin after a loss of memory, all of it from there",
                &rates.begins,
                &rates.reads,
            ),
        ] {
            figures.push(BenchFigure {
                name: format!(
                    "another node's memory, {}, {}, by {by}: {what}",
                    Bytes(bytes),
                    peer.link
                ),
                value: median(own),
                unit: "GB/s",
                against: Some((plain.into(), median(bare))),
            });
        }
    }
    Ok(figures)
}

struct BuddyBench<'a> {
    args: &'a Args,
    dir: &'a Path,
    bytes: u64,
    provider: Option<&'a str>,
}

impl BuddyBench<'_> {
    /// Commits, the loss, and the recovery; and the bare way.
    fn round(&self, peer: &mut PeerProcess) -> anyhow::Result<BuddyRates> {
        let does = ranks::BenchRankSpec {
            dir: self.dir.to_owned(),
            ranks: 2,
            meet: Some(format!("{}:{PORT}", peer.bare.ip())),
            staging: StagedShare::All,
            buddy: true,
            // Without helpers nothing of it is de-staged.
            helpers: 0,
            ..ranks::BenchRankSpec::new(self.args)
        };
        let rate = |seconds: f64| self.bytes as f64 / seconds / 1e9;
        let mut rates = BuddyRates::default();
        (rates.writes, rates.reads) = self.bare(peer)?;
        let committed = self.run(&does, peer, false)?;
        rates.commits = committed.commits.into_iter().map(rate).collect();
        let of = |rank| {
            let of = ranks::BenchRankSpec {
                rank,
                ..does.clone()
            };
            of.node()
        };
        Trees::new().remove(&of(LOST).join("memory"))?;
        rates.begins = vec![rate(self.run(&does, peer, true)?.begin)];
        for rank in 0..does.ranks {
            Trees::new().remove(&of(rank))?;
        }
        Ok(rates)
    }

    /// Runs both ranks; returns the times of the one that has lost something.
    fn run(
        &self,
        does: &ranks::BenchRankSpec,
        peer: &PeerProcess,
        restarts: bool,
    ) -> anyhow::Result<BuddyTimes> {
        let command = |rank| {
            let does = ranks::BenchRankSpec {
                rank,
                // The other node's work for its own rank must take no processors from this one.
                bytes: if rank == LOST { self.bytes } else { MIB },
                ..does.clone()
            };
            let role = RankRole::Keeps(BuddyRankSpec {
                rank: does,
                provider: self.provider.map(str::to_owned),
                restarts,
            });
            role.command((rank != LOST).then(|| peer.process()))
        };
        let outputs = processes::outputs((0..does.ranks).map(command))?;
        let output = outputs.get(LOST as usize).context("no such rank")?;
        Ok(serde_json::from_slice(output)?)
    }

    /// GB/s of writes and reads with nothing around them.
    fn bare(&self, peer: &mut PeerProcess) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
        let rate = |began: Instant| vec![self.bytes as f64 / began.elapsed().as_secs_f64() / 1e9];
        let Some(provider) = self.provider else {
            let began = Instant::now();
            bare::receive(peer.bare, self.bytes, 1, None)?;
            let received = rate(began);
            return Ok((received.clone(), received));
        };
        let cells: Vec<Cell<u8>> = (0..AHEAD * READ).map(|at| Cell::new(at as u8)).collect();
        // As long as the program.
        let cells: &'static [Cell<u8>] = Box::leak(cells.into());
        let memory = ProgramMemory::of(cells);
        let base = cells.as_ptr().addr() as u64;
        let mut bare = peer.bare_window(provider, self.bytes)?;
        peer.work(true)?;
        let mut measured = Vec::new();
        // Once before, for memory that is not there yet.
        for (write, size) in [(true, WRITE), (true, WRITE), (false, READ)] {
            let places: Vec<u64> = (0..self.bytes / size).map(|n| n * size).collect();
            let spans = (0..AHEAD).map(|n| memory.span(base + n * size, size));
            let spans: Vec<_> = spans.collect::<Option<_>>().context("no memory")?;
            let began = Instant::now();
            bare.run(write, &places, &spans)?;
            measured.push(rate(began));
        }
        peer.work(false)?;
        let reads = measured.pop().unwrap_or_default();
        Ok((measured.pop().unwrap_or_default(), reads))
    }
}
