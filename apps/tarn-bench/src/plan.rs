//! How fast the planner of a site is, under the policy `data`: single steps with many jobs waiting, and whole
//! simulations, and steps beside a host that decides by itself. The workload is generated (`generate`, docs/internals/simulator.md).

mod generate;
mod hosted;

use crate::figure::BenchFigure;
use anyhow::Context;
use generate::{GeneratorSettings, machine, workload};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tarn_engine::plan::{Planner, drive_site};
use tarn_ports::SiteWorld;
use tarn_simulator::site::SimulatedSite;
use tarn_spec::site::{ReadOptions, read_workload};
use tarn_types::policy::{Order, Policy};
use tarn_types::site::{Fate, Machine, SiteEvent, Workload};

/// Steps with something to do that are timed.
const TIMED_STEPS: usize = 50_000;
/// Jobs that are submitted at once for every hundred that are to wait for nodes: some begin, some wait for others, and
/// some end while steps are timed.
const SUBMITTED_PERCENT: u64 = 130;
/// Jobs that run at once on a node, where each takes some of its cores.
const SHARE_A_NODE: u64 = 8;
/// Simulations go up to the requested number of jobs by this factor.
const GROWTH: u64 = 10;
/// How many times smaller the smallest of them is.
const SMALLEST: u64 = GROWTH * GROWTH;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Nodes of the machine.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    nodes: u32,
    /// Jobs that wait while steps are timed.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    waiting: u64,
    /// Jobs of the longest simulation; the others have a tenth and a hundredth.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    jobs: u64,
    /// Simulate this trace as well (SWF, plain or compressed).
    #[arg(long, value_name = "FILE")]
    swf: Option<PathBuf>,
    /// Nodes of the machine for the trace.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    swf_nodes: u32,
    /// The same seed gives the same workload.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// All figures.
///
/// # Errors
/// When the trace cannot be read, or the simulation refuses an action of the planner.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let mut figures = Vec::new();
    for shared in [false, true] {
        figures.extend(steps(args, shared)?);
        figures.extend(hosted(args, shared)?);
        figures.extend(simulations(args, shared)?);
    }
    if let Some(path) = &args.swf {
        let machine = machine(args.swf_nodes);
        let started = Instant::now();
        let read = |path: &std::path::Path| std::fs::read(path);
        let loaded = read_workload(path, &machine, &ReadOptions::default(), &read);
        let loaded = loaded.with_context(|| format!("{} is no trace", path.display()))?;
        let jobs = loaded.workload.jobs.len();
        simulate(&machine, loaded.workload)?;
        let name = format!(
            "sim-swf-s: {jobs} jobs, {} nodes, reading included",
            args.swf_nodes
        );
        figures.push(figure(name, started.elapsed().as_secs_f64(), "s"));
    }
    Ok(figures)
}

fn figure(name: String, value: f64, unit: &'static str) -> BenchFigure {
    BenchFigure {
        name,
        value,
        unit,
        against: None,
    }
}

fn policy() -> Policy {
    Policy::new(Order::Data, None)
}

/// A whole simulation, in seconds.
fn simulate(machine: &Machine, workload: Workload) -> anyhow::Result<f64> {
    let started = Instant::now();
    let mut site = SimulatedSite::new(machine, Arc::new(workload))?;
    let mut planner = Planner::new(machine, policy());
    drive_site(&mut planner, &mut site, &mut |_, _, _| ())?;
    let seconds = started.elapsed().as_secs_f64();
    let jobs = site.into_result().jobs;
    let left = jobs.iter().filter(|j| j.fate != Fate::Done).count();
    anyhow::ensure!(left == 0, "{left} of {} jobs were never done", jobs.len());
    Ok(seconds)
}

/// The name of a figure: jobs that take a part of a node have their own.
fn named(name: String, shared: bool) -> String {
    if shared {
        format!("shared-{name}")
    } else {
        name
    }
}

fn simulations(args: &Args, shared: bool) -> anyhow::Result<Vec<BenchFigure>> {
    let machine = machine(args.nodes);
    let mut figures = Vec::new();
    let mut before: Option<(u64, f64)> = None;
    let mut jobs = args.jobs / SMALLEST;
    while jobs <= args.jobs {
        let shape = GeneratorSettings {
            at_once: 0,
            shared,
            jobs,
            seed: args.seed,
        };
        let seconds = simulate(&machine, workload(&machine, &shape))?;
        let what = if shared {
            "jobs that share nodes"
        } else {
            "jobs"
        };
        eprintln!("{jobs} {what} on {} nodes: {seconds:.2} s", args.nodes);
        let name = named(format!("sim-{}-s", short(jobs)), shared);
        figures.push(figure(name, seconds, "s"));
        if let Some((fewer, took)) = before {
            let name = format!(
                "growth of the time from {} to {} jobs",
                short(fewer),
                short(jobs)
            );
            let name = named(name, shared);
            let n_log_n = |n: u64| n as f64 * (n as f64).ln();
            figures.push(BenchFigure {
                against: Some(("n log n".into(), n_log_n(jobs) / n_log_n(fewer))),
                ..figure(name, seconds / took, "times")
            });
        }
        before = Some((jobs, seconds));
        jobs *= GROWTH;
    }
    Ok(figures)
}

/// `1m`, `100k`, `2500`.
fn short(number: u64) -> String {
    match number {
        n if n >= 1_000_000 && n.is_multiple_of(1_000_000) => format!("{}m", n / 1_000_000),
        n if n >= 1000 && n.is_multiple_of(1000) => format!("{}k", n / 1000),
        n => n.to_string(),
    }
}

/// Times in milliseconds of steps while at least so many jobs wait.
#[derive(Debug, Default)]
struct Timed {
    /// Of steps that led to actions.
    working: Vec<f64>,
    /// Of all.
    longest: f64,
    /// The fewest and the most that waited.
    waiting: Option<(usize, usize)>,
}

impl Timed {
    fn see(&mut self, milliseconds: f64, worked: bool, waiting: usize) {
        if worked {
            self.working.push(milliseconds);
        }
        self.longest = self.longest.max(milliseconds);
        let (least, most) = self.waiting.unwrap_or((waiting, waiting));
        self.waiting = Some((least.min(waiting), most.max(waiting)));
    }

    fn rank(&self, share: f64) -> f64 {
        let mut sorted = self.working.clone();
        sorted.sort_by(f64::total_cmp);
        let at = (sorted.len() as f64 * share).ceil() as usize;
        sorted.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
    }
}

fn steps(args: &Args, shared: bool) -> anyhow::Result<Vec<BenchFigure>> {
    let machine = machine(args.nodes);
    let shape = settings(args, shared);
    let timed = time_steps(&machine, workload(&machine, &shape), args.waiting as usize)?;
    let Some((least, most)) = timed.waiting else {
        anyhow::bail!(
            "never did {} jobs wait: all of them fit at once",
            args.waiting
        );
    };
    let what = format!(
        "{} steps with actions, {} nodes, {least} to {most} jobs waiting",
        timed.working.len(),
        args.nodes
    );
    eprintln!("{what}");
    Ok(vec![
        figure(
            named(format!("step-p50-ms: {what}"), shared),
            timed.rank(0.5),
            "ms",
        ),
        figure(named("step-p99-ms".into(), shared), timed.rank(0.99), "ms"),
        figure(named("step-max-ms".into(), shared), timed.longest, "ms"),
    ])
}

/// The same beside a host that decides by itself.
fn hosted(args: &Args, shared: bool) -> anyhow::Result<Vec<BenchFigure>> {
    let machine = machine(args.nodes);
    let workload = workload(&machine, &settings(args, shared));
    let waiting = args.waiting as usize;
    let of = (policy(), args.seed);
    let found = hosted::time_hosted(&machine, &workload, of, (waiting, TIMED_STEPS))?;
    let timed = &found.timed;
    let Some((least, most)) = timed.waiting else {
        anyhow::bail!("never did {waiting} jobs wait: all of them fit at once");
    };
    let what = format!(
        "{} steps with facts or actions, {} nodes, {least} to {most} jobs waiting",
        timed.working.len(),
        args.nodes
    );
    eprintln!("hosted: {what}");
    let figures = [
        (format!("hosted-step-p50-ms: {what}"), timed.rank(0.5), "ms"),
        ("hosted-step-p99-ms".into(), timed.rank(0.99), "ms"),
        ("hosted-step-max-ms".into(), timed.longest, "ms"),
        (
            "hosted-memory-mib".into(),
            found.memory as f64 / f64::from(1 << 20),
            "MiB",
        ),
    ];
    let figures = figures.into_iter();
    Ok(figures
        .map(|(name, value, unit)| figure(named(name, shared), value, unit))
        .collect())
}

/// The workload of which the steps are timed.
fn settings(args: &Args, shared: bool) -> GeneratorSettings {
    let run = match shared {
        true => u64::from(args.nodes) * SHARE_A_NODE,
        false => u64::from(args.nodes),
    };
    let at_once = args.waiting * SUBMITTED_PERCENT / 100 + run;
    GeneratorSettings {
        at_once,
        shared,
        jobs: at_once + args.waiting,
        seed: args.seed,
    }
}

/// Drives a site, and times the planner once enough jobs have come to wait, until they are too few again or enough steps
/// are timed. A timer that leads to nothing has no work to do.
fn time_steps(machine: &Machine, workload: Workload, waiting: usize) -> anyhow::Result<Timed> {
    let begins = workload.jobs.len();
    let mut site = SimulatedSite::new(machine, Arc::new(workload))?;
    let mut planner = Planner::new(machine, policy());
    let (mut timed, mut actions) = (Timed::default(), Vec::new());
    let (mut full, mut now_before) = (false, 0);
    for _ in 0..begins.saturating_mul(100) {
        let Some((now, event)) = site.next(planner.deadline())? else {
            break;
        };
        // The first moment only fills the queue.
        full |= now > now_before && planner.waiting() >= waiting;
        now_before = now;
        let before = planner.waiting();
        actions.clear();
        let started = Instant::now();
        planner.step(now, &event, &mut actions)?;
        let took = started.elapsed().as_secs_f64() * 1e3;
        let idle = matches!(event, SiteEvent::Timer) && actions.is_empty();
        if full && !idle {
            timed.see(took, !actions.is_empty(), before);
        }
        for action in &actions {
            site.perform(now, action)?;
        }
        if full && (timed.working.len() >= TIMED_STEPS || planner.waiting() < waiting) {
            break;
        }
    }
    Ok(timed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(nodes: u32, waiting: u64, jobs: u64) -> Args {
        Args {
            nodes,
            waiting,
            jobs,
            swf: None,
            swf_nodes: 100,
            seed: 1,
        }
    }

    #[test]
    fn a_small_bench_gives_every_figure() {
        let figures = run(&args(4, 100, 1000)).unwrap();
        let names: Vec<&str> = figures
            .iter()
            .map(|f| f.name.split(':').next().unwrap_or(""))
            .collect();
        assert_eq!(
            names,
            [
                "step-p50-ms",
                "step-p99-ms",
                "step-max-ms",
                "hosted-step-p50-ms",
                "hosted-step-p99-ms",
                "hosted-step-max-ms",
                "hosted-memory-mib",
                "sim-10-s",
                "sim-100-s",
                "growth of the time from 10 to 100 jobs",
                "sim-1k-s",
                "growth of the time from 100 to 1k jobs",
                "shared-step-p50-ms",
                "shared-step-p99-ms",
                "shared-step-max-ms",
                "shared-hosted-step-p50-ms",
                "shared-hosted-step-p99-ms",
                "shared-hosted-step-max-ms",
                "shared-hosted-memory-mib",
                "shared-sim-10-s",
                "shared-sim-100-s",
                "shared-growth of the time from 10 to 100 jobs",
                "shared-sim-1k-s",
                "shared-growth of the time from 100 to 1k jobs",
            ]
        );
        assert!(figures.iter().all(|f| f.value > 0.0), "{figures:?}");
        assert!(figures[1].value <= figures[2].value);
        assert_eq!(figures[9].ratio().map(|r| r > 0.0), Some(true));
    }

    #[test]
    fn ranks_are_of_steps_that_work() {
        let mut timed = Timed::default();
        (1..=100).for_each(|n| timed.see(f64::from(n), n % 2 == 0, 7));
        assert_eq!((timed.working.len(), timed.longest), (50, 100.0));
        assert_eq!((timed.rank(0.5), timed.rank(0.99)), (50.0, 100.0));
        assert_eq!(timed.waiting, Some((7, 7)));
    }
}
