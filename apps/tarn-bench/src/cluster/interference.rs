//! How much transfers in the background slow programs down that use all cores: one that waits for memory, one that computes.
//! Both ends of the transfers are on this machine, so it bears the load of two nodes.

use super::Args;
use super::transfer::{TransferBench, TreeShape};
use crate::figure::{BenchFigure, median};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tarn_ports::Control;

/// How long a program runs each time.
const SPELL: Duration = Duration::from_secs(2);
/// Elements of each of the memory-bound program's three arrays, for each core: 32 MiB, more than a cache holds.
const ELEMENTS: usize = 4 << 20;
/// Elements that are worked on between two looks at the clock.
const STRETCH: usize = 1 << 16;
/// The throttle, as a part of the rate that transfers reach without one.
const THROTTLE: u64 = 4;

#[derive(Debug, Clone, Copy)]
enum InterferenceProgram {
    /// The triad of STREAM (McCalpin 1995): `a[i] = b[i] + q * c[i]`.
    Memory,
    /// Multiplications and additions of numbers that stay in registers.
    Compute,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Background {
    Nothing,
    Transfers,
    Throttled,
}

/// Millions of elements that a program gets through in a second, on all cores.
fn run_program(program: InterferenceProgram) -> f64 {
    let until = Instant::now() + SPELL;
    let one = || {
        let mut a = vec![0.0; ELEMENTS];
        let (b, c) = (vec![1.0; ELEMENTS], vec![2.0; ELEMENTS]);
        let (began, mut elements, mut at) = (Instant::now(), 0u64, 0);
        let mut x = [1.0, 1.1, 1.2, 1.3];
        while Instant::now() < until {
            match program {
                InterferenceProgram::Memory => {
                    let here = at..at + STRETCH;
                    let with = b[here.clone()].iter().zip(&c[here.clone()]);
                    for (a, (b, c)) in a[here].iter_mut().zip(with) {
                        *a = b + 3.0 * c;
                    }
                    at = (at + STRETCH) % ELEMENTS;
                    black_box(&mut a);
                }
                InterferenceProgram::Compute => {
                    for _ in 0..STRETCH / x.len() {
                        x.iter_mut().for_each(|x: &mut f64| *x = *x * 0.999 + 0.001);
                    }
                    black_box(&mut x);
                }
            }
            elements += STRETCH as u64;
        }
        elements as f64 / 1e6 / began.elapsed().as_secs_f64()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..cores).map(|_| scope.spawn(one)).collect();
        all.into_iter().map(|t| t.join().unwrap_or(0.0)).sum()
    })
}

/// Fetches the tree again and again, at most so many bytes a second (0: as many as can be), while something runs. Its result, and
/// the bytes a second that were fetched.
fn beside<T>(
    bench: &TransferBench,
    rate: u64,
    run: impl FnOnce() -> T,
) -> anyhow::Result<(T, u64)> {
    let (control, over) = (Control::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let fetching = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                match bench.fetch(rate, &control) {
                    Err(_) if over.load(Ordering::Relaxed) => break,
                    fetched => fetched?,
                }
                bench.remove()?;
            }
            bench.remove()
        });
        let began = Instant::now();
        let result = run();
        let bytes = control.done.load(Ordering::Relaxed) as f64;
        let rate = (bytes / began.elapsed().as_secs_f64()) as u64;
        over.store(true, Ordering::Relaxed);
        control.cancel.store(true, Ordering::Relaxed);
        fetching
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the transfers have panicked")))?;
        Ok((result, rate))
    })
}

/// Measures.
///
/// # Errors
/// When there is no space, or a transfer fails.
pub(super) fn run(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let bench = TransferBench::new(TreeShape::Large, args)?;
    let (_, free) = beside(&bench, 0, || std::thread::sleep(SPELL))?;
    let throttle = free / THROTTLE;
    let mut figures = Vec::new();
    for (name, program) in [
        (
            "a memory-bound program (STREAM triad)",
            InterferenceProgram::Memory,
        ),
        ("a compute-bound program", InterferenceProgram::Compute),
    ] {
        let states = [
            Background::Nothing,
            Background::Transfers,
            Background::Throttled,
        ];
        let mut all: [(Vec<f64>, Vec<f64>); 3] = Default::default();
        // The first round warms up.
        for round in 0..=args.rounds {
            for (state, (speeds, rates)) in states.iter().zip(&mut all) {
                let work = || run_program(program);
                let (speed, rate) = match state {
                    Background::Nothing => (work(), 0),
                    Background::Transfers => beside(&bench, 0, work)?,
                    Background::Throttled => beside(&bench, throttle, work)?,
                };
                if round > 0 {
                    speeds.push(speed);
                    rates.push(rate as f64 / 1e6);
                }
            }
        }
        let [(alone, _), with @ ..] = &all;
        for (how, (speeds, rates)) in ["without a throttle", "with a throttle"].iter().zip(with) {
            figures.push(BenchFigure {
                name: format!(
                    "interference, {name} on all cores, transfers {how} at {:.0} MB/s (alone {:.0} MB/s)",
                    median(rates),
                    free as f64 / 1e6
                ),
                value: median(speeds),
                unit: "M elements/s",
                against: Some(("without transfers".into(), median(alone))),
            });
        }
    }
    Ok(figures)
}
