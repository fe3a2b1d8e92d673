//! The proxies of simulations (examples/checkpoints), as their users run them: the same work with checkpoints and without, by turns. A
//! rank is on one processor, and its helper on another. It is alone: two that share a processor would compute while the other waits for
//! the tier, and hide the cost of checkpoints.

use super::ranks::{self, GTC, LEARN, WARM, emulated_profile, memory_rate};
use super::{Args, MIB};
use crate::figure::{BenchFigure, median};
use crate::scratch::ScratchFolder;
use anyhow::{Context, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::path::Path;
use std::process::{Command, Stdio};
use tarn_checkpoint_core::split::StagingRates;
use tarn_types::units::SECOND;

/// The file of parameters, beside the programs.
const PARAMETERS: &str = "proxies.conf";
/// The tier takes this part of memory's rate.
const PART: u32 = 4;
/// Cycles of a run that are measured.
const CYCLES: u32 = 4;

/// The ways of checkpoints, as proxies name them.
const NONE: &str = "none";
const NAIVE: &str = "nvr";
const STAGED: &str = "phx";
const AHEAD: &str = "phx-ec";
const MPROTECT: &str = "phx-mp";
const WAYS: [&str; 5] = [NONE, NAIVE, STAGED, AHEAD, MPROTECT];

/// Sees whether all are there.
///
/// # Errors
/// When one is not.
pub(super) fn are_there(folder: &Path) -> anyhow::Result<()> {
    for name in ["cm1", "gtc", PARAMETERS] {
        let file = folder.join(name);
        ensure!(
            file.is_file(),
            "{} is not there: make the proxies as examples/checkpoints/README.md describes, and name their folder by --proxies",
            file.display()
        );
    }
    Ok(())
}

/// A proxy, and where it runs.
struct Proxy<'a> {
    args: &'a Args,
    name: &'static str,
    /// The processor of the rank, and that of its helper.
    processors: [usize; 2],
    /// Bytes a second that memory takes.
    memory: f64,
    scale: f64,
    /// Passes of a cycle.
    work: u64,
}

/// Seconds of a cycle.
#[derive(Debug, Clone, Copy, Default)]
struct CycleTimes {
    computing: f64,
    checkpoint: f64,
}

/// By the way of making checkpoints, in the order of [`WAYS`]: cycles of each round.
type ProxyRounds = [Vec<CycleTimes>; WAYS.len()];

impl<'a> Proxy<'a> {
    /// A proxy whose cycles are so long that a naive checkpoint takes the published share of them.
    fn new(args: &'a Args, name: &'static str) -> anyhow::Result<Self> {
        are_there(&args.proxies)?;
        let set = sched_getaffinity(None)?;
        let mut processors = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
        let two = [processors.next(), processors.next()];
        let [Some(ours), Some(helper)] = two else {
            anyhow::bail!("a proxy and its helper need a processor each, and there is one");
        };
        let copied = ranks::BenchRankSpec {
            ranks: 1,
            ..ranks::BenchRankSpec::new(args)
        };
        let mut proxy = Self {
            args,
            name,
            processors: [ours, helper],
            memory: memory_rate(args, &copied)?,
            scale: (args.mib as f64 * MIB as f64 / GTC.0 as f64).min(1.0),
            work: 0,
        };
        let output = proxy.start(NONE, 0, &[("RATE", proxy.rate().to_string())])?;
        proxy.work = value(&output, "work")?;
        Ok(proxy)
    }

    /// Bytes a second that the tier takes.
    fn rate(&self) -> f64 {
        self.memory * 1e9 / f64::from(PART)
    }

    /// A parameter of it.
    fn parameter(&self, key: &str) -> anyhow::Result<f64> {
        let text = std::fs::read_to_string(self.args.proxies.join(PARAMETERS))?;
        value(&text, &format!("{}.{key}", self.name))
    }

    /// Runs it so many cycles; returns its output.
    fn start(
        &self,
        checkpoints: &str,
        cycles: u32,
        more: &[(&str, String)],
    ) -> anyhow::Result<String> {
        let scratch = ScratchFolder::new(&self.args.dir)?;
        let program = std::fs::canonicalize(self.args.proxies.join(self.name))?;
        let [processor, helper] = self.processors;
        let mut command = Command::new(&program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TARN_PHX_") {
                command.env_remove(name);
            }
        }
        command
            .env("TARN_PHX_TIER", scratch.path().join("tier"))
            .env("TARN_PHX_MEMORY", scratch.path().join("memory"))
            .env("TARN_PHX_PROFILE", emulated_profile(self.memory, PART))
            .env("PROXIES", self.args.proxies.join(PARAMETERS))
            .env("SCALE", self.scale.to_string())
            .env("CYCLES", cycles.to_string())
            .env("CHECKPOINTS", checkpoints)
            .env("WORK", self.work.to_string())
            .env("RANK", "0")
            .env("RANKS", "1")
            .env("REPLICAS", "0")
            .env("HELPER", helper.to_string())
            .env_remove("RATE")
            .envs(more.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let child = on(processor, || command.spawn())?;
        let child = child.with_context(|| format!("cannot start {}", program.display()))?;
        let output = child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "{} ended with {}",
            program.display(),
            output.status
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The mean of its cycles, without the first ones.
    fn run(&self, checkpoints: &str) -> anyhow::Result<CycleTimes> {
        let learn = if [AHEAD, MPROTECT].contains(&checkpoints) {
            LEARN
        } else {
            0
        };
        let output = self.start(checkpoints, WARM + learn + CYCLES, &[])?;
        let lines: Vec<&str> = output.lines().filter(|l| l.starts_with("cycle=")).collect();
        let mean = |key| -> anyhow::Result<f64> {
            let last = lines.iter().rev().take(CYCLES as usize);
            let all = last.map(|line| value::<f64>(&line.replace(' ', "\n"), key));
            Ok(all.sum::<anyhow::Result<f64>>()? / f64::from(CYCLES))
        };
        Ok(CycleTimes {
            computing: mean("iteration_s")?,
            checkpoint: mean("checkpoint_s")?,
        })
    }

    /// Runs it in all ways, by turns.
    fn rounds(&self) -> anyhow::Result<ProxyRounds> {
        let mut rounds = ProxyRounds::default();
        for _ in 0..self.args.rounds {
            for (way, all) in WAYS.iter().zip(&mut rounds) {
                all.push(self.run(way)?);
            }
        }
        Ok(rounds)
    }

    fn label(&self) -> String {
        let [processor, helper] = self.processors;
        format!(
            "{}, on processor {processor}, its helper on {helper}, tier of 1/{PART} of memory ({})",
            self.name,
            emulated_profile(self.memory, PART)
        )
    }
}

impl CycleTimes {
    fn whole(&self) -> f64 {
        self.computing + self.checkpoint
    }
}

/// Does something on a processor, with all threads that it starts.
fn on<T>(processor: usize, what: impl FnOnce() -> T) -> anyhow::Result<T> {
    let before = sched_getaffinity(None)?;
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set)?;
    let done = what();
    sched_setaffinity(None, &before)?;
    Ok(done)
}

/// The value of a line `key=value`.
fn value<T: std::str::FromStr>(text: &str, key: &str) -> anyhow::Result<T> {
    let mut values = text.lines().filter_map(|line| line.split_once('='));
    let found = values
        .find(|(name, _)| *name == key)
        .map(|(_, v)| v.parse());
    let parsed = found.and_then(Result::ok);
    parsed.with_context(|| format!("no {key} is among {text:?}"))
}

fn medians(all: &[CycleTimes], of: fn(&CycleTimes) -> f64) -> f64 {
    median(&all.iter().map(of).collect::<Vec<_>>())
}

/// The time that computing of CM1's pattern loses to concurrent work.
pub(super) fn slowdown(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let proxy = Proxy::new(args, "cm1")?;
    let rounds = proxy.rounds()?;
    let alone = medians(&rounds[0], |c| c.computing);
    let figure = |(way, all): (&&str, &Vec<CycleTimes>)| BenchFigure {
        name: format!(
            "slowdown of {}: computing of a cycle, checkpoints {way} ({:.4} s each)",
            proxy.label(),
            medians(all, |c| c.checkpoint)
        ),
        value: medians(all, |c| c.computing),
        unit: "s",
        against: Some(("without checkpoints".into(), alone)),
    };
    Ok(WAYS.iter().zip(&rounds).skip(1).map(figure).collect())
}

/// Cycles of GTC's pattern with their checkpoints, beside computing alone and the inevitable copies: those of late writes.
pub(super) fn run_whole(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let proxy = Proxy::new(args, "gtc")?;
    let arrays = proxy.parameter("arrays_2d")? + proxy.parameter("arrays_3d")?;
    let late = 1.0 - proxy.parameter("early_arrays")? / arrays;
    let late = (proxy.parameter("bytes")? * proxy.scale * late) as u64;
    let staging = (proxy.parameter("staging")? * proxy.scale) as u64;
    let rates = StagingRates {
        persistent: proxy.rate() as u64,
        memory: (proxy.memory * 1e9) as u64,
        copies: 1,
    };
    let split = rates.split(late, staging);
    let copies = rates.time(split) as f64 / SECOND as f64;
    let rounds = proxy.rounds()?;
    let alone = medians(&rounds[0], |c| c.computing);
    let figure = |(way, all): (&&str, &Vec<CycleTimes>)| BenchFigure {
        name: format!(
            "whole of {}: a cycle with its checkpoint, {way} (computing {:.4} s, checkpoint {:.4} s)",
            proxy.label(),
            medians(all, |c| c.computing),
            medians(all, |c| c.checkpoint)
        ),
        value: medians(all, CycleTimes::whole),
        unit: "s",
        against: Some((
            format!("computing alone {alone:.4} s + copies of {late} late bytes {copies:.4} s ="),
            alone + copies,
        )),
    };
    Ok(WAYS.iter().zip(&rounds).skip(1).map(figure).collect())
}
