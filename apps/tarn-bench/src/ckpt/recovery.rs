//! A rank gets data lost with its node from another one: two ranks, each on a node of its own, with a link between them. The other
//! node is a network namespace; data from there is held to the link's rate.

use super::ranks::{self, StagedShare, TIMEOUT, fill, items, restored};
use super::{Args, MIB, RankRole};
use crate::cluster::bare;
use crate::cluster::peer::PeerProcess;
use crate::figure::{BenchFigure, median};
use crate::processes;
use crate::scratch::ScratchFolder;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;
use std::time::Instant;
use tarn_checkpoint_core::PersistenceLevel;
use tarn_media::MappedFile;
use tarn_mover::Trees;
use tarn_ports::{Mover, Ranks};
use tarn_types::units::Bytes;

/// MiB of a rank, at most: two nodes with their arenas and copies are in one memory.
pub(super) const MOST: u64 = 512;
/// Rank 0's port: nobody else listens there in its namespace.
pub(super) const PORT: u16 = 7111;
/// The rank whose node loses something: on this end of the link.
pub(super) const LOST: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// All that it has: another takes its place.
    Node,
    /// The staged data.
    Memory,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RecoveryRankSpec {
    rank: ranks::BenchRankSpec,
    /// It restarts, or commits the restored data.
    restarts: bool,
}

/// Seconds.
#[derive(Debug, Serialize, Deserialize)]
struct RecoveryTimes {
    /// Until the versions are known, and the staged data is in the arena.
    begin: f64,
    restart: f64,
}

/// One rank, in a process of its own.
///
/// # Errors
/// When anything fails.
pub(super) fn rank(does: &RecoveryRankSpec) -> anyhow::Result<()> {
    let RecoveryRankSpec { rank, restarts } = does;
    let mut wanted = vec![0; usize::try_from(rank.bytes)?];
    fill(&mut wanted, rank.rank, 0);
    // Touched before, as the program's is that restarts in its place.
    let mut memory = vec![0xff; wanted.len()];
    let meeting = rank.meeting()?;
    meeting.exchange(b"", TIMEOUT)?;
    let began = Instant::now();
    let mut program = rank.begin(&meeting)?;
    let begin = began.elapsed().as_secs_f64();
    if !restarts {
        let committed = program.commit(&items(&wanted))?;
        ensure!(committed.degraded.is_none(), "{:?}", committed.degraded);
        if rank.copies > 0 {
            program.wait(committed.id, PersistenceLevel::Replicated, TIMEOUT)?;
        }
        // All are so far. Then it ends as if it was killed.
        meeting.exchange(b"", TIMEOUT)?;
        return Ok(());
    }
    let began = Instant::now();
    restored(&mut program, &mut memory)?;
    let restart = began.elapsed().as_secs_f64();
    ensure!(memory == wanted, "what came back is not what was committed");
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &RecoveryTimes { begin, restart })?;
    Ok(out.flush()?)
}

/// A rank whose node was replaced, or has lost its memory, over a link that is not limited and one that is.
pub(super) fn recovery(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let mut figures = Vec::new();
    for rate in [None, Some(args.rate)] {
        let scratch = ScratchFolder::new(&args.dir)?;
        let peer = match PeerProcess::linked(scratch.path(), rate) {
            Ok(peer) => peer,
            Err(e) => {
                let link = rate.map_or_else(|| "a link".into(), |r| format!("a link of {r}"));
                crate::print::message!(
                    "recovery over {link} is skipped: the link is not available ({e:#})"
                );
                continue;
            }
        };
        let bench = RecoveryBench {
            args,
            dir: scratch.path(),
            peer: &peer,
            bytes: args.mib.min(MOST) * MIB,
        };
        for loss in [Loss::Node, Loss::Memory] {
            figures.append(&mut bench.measure(loss)?);
        }
    }
    Ok(figures)
}

struct RecoveryBench<'a> {
    args: &'a Args,
    dir: &'a Path,
    peer: &'a PeerProcess,
    bytes: u64,
}

impl RecoveryBench<'_> {
    fn measure(&self, loss: Loss) -> anyhow::Result<Vec<BenchFigure>> {
        let does = self.does(loss);
        let of = |rank| {
            ranks::BenchRankSpec {
                rank,
                ..does.clone()
            }
            .node()
        };
        let lost = match loss {
            Loss::Node => of(LOST),
            Loss::Memory => of(LOST).join("memory"),
        };
        let mut plain = MappedFile::create(&self.dir.join("plain"), self.bytes)?;
        let mut memory = vec![1; usize::try_from(self.bytes)?];
        let (mut link, mut copies, mut took) = (Vec::new(), Vec::new(), Vec::new());
        // The first is for warming up.
        for round in 0..=self.args.rounds {
            // A restart leaves staged data de-staged, and copies as they are.
            if round == 0 || loss == Loss::Memory {
                self.run(&does, false)?;
            }
            Trees::new().remove(&lost)?;
            let began = Instant::now();
            bare::receive(self.peer.bare, self.bytes, 1, None)?;
            let received = began.elapsed().as_secs_f64();
            let began = Instant::now();
            memory.copy_from_slice(plain.bytes());
            let copied = began.elapsed().as_secs_f64();
            let back = self.run(&does, true)?;
            let back = back.context("the rank has printed nothing")?;
            if round > 0 {
                link.push(received);
                copies.push(copied);
                took.push(back);
            }
        }
        for rank in 0..does.ranks {
            Trees::new().remove(&of(rank))?;
        }
        std::fs::remove_file(self.dir.join("plain"))?;
        let rate = |seconds: &[f64]| self.bytes as f64 / median(seconds) / 1e9;
        let against = [
            ("bare TCP, 1 stream".to_owned(), rate(&link)),
            ("memcpy".to_owned(), rate(&copies)),
        ];
        let least = against.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let what = match loss {
            Loss::Node => "a rank of a node that was replaced, from its copy",
            Loss::Memory => "a rank of a node that lost its memory, all of it staged",
        };
        let figure = |part: &str, seconds: &dyn Fn(&RecoveryTimes) -> f64| BenchFigure {
            name: format!(
                "recovery, {what}, {}, {}: {part}",
                Bytes(self.bytes),
                self.peer.link
            ),
            value: rate(&took.iter().map(seconds).collect::<Vec<_>>()),
            unit: "GB/s",
            against: least.cloned(),
        };
        Ok(vec![
            figure("from begin to the end of restart", &|t| t.begin + t.restart),
            figure("begin alone", &|t| t.begin),
            figure("restart alone", &|t| t.restart),
        ])
    }

    fn does(&self, loss: Loss) -> ranks::BenchRankSpec {
        let bare = self.peer.bare.ip();
        let plain = ranks::BenchRankSpec {
            dir: self.dir.to_owned(),
            ranks: 2,
            bytes: self.bytes,
            meet: Some(format!("{bare}:{PORT}")),
            ..ranks::BenchRankSpec::new(self.args)
        };
        match loss {
            Loss::Node => ranks::BenchRankSpec { copies: 1, ..plain },
            // Without helpers nothing of it is de-staged.
            Loss::Memory => ranks::BenchRankSpec {
                staging: StagedShare::All,
                buddy: true,
                helpers: 0,
                ..plain
            },
        }
    }

    /// Runs both ranks; returns the times of the one that has lost something, if it restarts.
    fn run(
        &self,
        does: &ranks::BenchRankSpec,
        restarts: bool,
    ) -> anyhow::Result<Option<RecoveryTimes>> {
        let command = |rank| {
            // The other node's work for its own rank must take no processors from this one.
            let bytes = if rank == LOST { does.bytes } else { MIB };
            let helpers = if restarts {
                self.args.helpers
            } else {
                does.helpers
            };
            let does = ranks::BenchRankSpec {
                rank,
                bytes,
                helpers,
                ..does.clone()
            };
            let role = RankRole::Recovers(RecoveryRankSpec {
                rank: does,
                restarts,
            });
            // The other node's are where its traffic is limited.
            let network = (rank != LOST).then(|| self.peer.process());
            role.command(network)
        };
        let outputs = processes::outputs((0..does.ranks).map(command))?;
        let output = outputs.get(LOST as usize).filter(|_| restarts);
        Ok(output
            .map(|output| serde_json::from_slice(output))
            .transpose()?)
    }
}
