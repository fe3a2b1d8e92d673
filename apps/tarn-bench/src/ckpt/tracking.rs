//! The cost to track which pages are written, in both ways, beside memcpy of the same bytes.

use super::{Args, MIB};
use crate::figure::{BenchFigure, median};
use anyhow::Context;
use std::hint::black_box;
use std::time::Instant;
use tarn_dirty_pages::{Tracker, in_huge_pages};
use tarn_ports::{TrackError, WatchedMemory};
use tarn_types::units::Bytes;

/// A way to track, if there is one here.
type TrackerFactory = fn() -> Result<Tracker, TrackError>;
const WAYS: [(&str, TrackerFactory); 2] = [
    ("userfaultfd", Tracker::probe),
    ("mprotect", Tracker::by_mprotect),
];
/// The measured times, in milliseconds; the second is of a page, in microseconds.
const WHAT: [&str; 6] = [
    "to protect it",
    "a first write to each page, of a page",
    "to look, nothing written",
    "to look and protect again, all written",
    "the same, every fourth page written",
    "to end it",
];
/// Which of them is of a page.
const OF_A_PAGE: usize = 1;

pub(super) fn tracking(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let bytes = usize::try_from(args.mib * MIB).context("too much for this machine")?;
    let mut figures = Vec::new();
    for (kind, huge) in [("small pages", false), ("huge pages", true)] {
        let mut memory = vec![0; bytes];
        if huge && let Err(e) = in_huge_pages(&mut memory) {
            eprintln!("tracking of huge pages is skipped: {e}");
            continue;
        }
        memory.fill(1);
        let mut copy = memory.clone();
        let mut copied = Vec::new();
        let mut took: [Vec<[f64; WHAT.len()]>; WAYS.len()] = Default::default();
        for round in 0..=args.rounds {
            let began = Instant::now();
            copy.copy_from_slice(&memory);
            black_box(&copy);
            let memcpy = milliseconds(began);
            for ((name, probe), all) in WAYS.iter().zip(&mut took) {
                match probe() {
                    Ok(tracker) => {
                        let round = tracker.during(&mut memory, measure)??;
                        all.push(round);
                    }
                    Err(e) if round == 0 => eprintln!("tracking by {name} is skipped: {e}"),
                    Err(_) => {}
                }
            }
            copied.push(memcpy);
        }
        let pages = (bytes / rustix::param::page_size()) as f64;
        // The first round is for warming up.
        let memcpy = median(&copied[1..]);
        for ((name, _), all) in WAYS.iter().zip(&took) {
            for (number, what) in WHAT.iter().enumerate() {
                let Some((_, rounds)) = all.split_first() else {
                    continue;
                };
                let values: Vec<f64> = rounds.iter().map(|round| round[number]).collect();
                let (scale, unit, beside) = match number {
                    OF_A_PAGE => (1e3 / pages, "us", "memcpy of a page"),
                    _ => (1.0, "ms", "memcpy"),
                };
                figures.push(BenchFigure {
                    name: format!(
                        "tracking of {}, {kind}, by {name}: {what}",
                        Bytes(bytes as u64)
                    ),
                    value: median(&values) * scale,
                    unit,
                    against: Some((beside.into(), memcpy * scale)),
                });
            }
        }
    }
    Ok(figures)
}

/// Milliseconds of each step, those of writing without those of the same writes when nobody watches.
fn measure(
    memory: &mut [u8],
    watch: &mut dyn WatchedMemory,
) -> Result<[f64; WHAT.len()], TrackError> {
    let write = |memory: &mut [u8], step: usize| {
        let began = Instant::now();
        let page = rustix::param::page_size();
        memory
            .iter_mut()
            .step_by(step * page)
            .for_each(|byte| *byte ^= 1);
        black_box(memory);
        milliseconds(began)
    };
    let unwatched = write(memory, 1);
    let began = Instant::now();
    watch.arm()?;
    let arm = milliseconds(began);
    let mut look = |again| -> Result<f64, TrackError> {
        let began = Instant::now();
        black_box(watch.written(again)?);
        Ok(milliseconds(began))
    };
    let clean = look(false)?;
    let written = write(memory, 1) - unwatched;
    let all = look(true)?;
    write(memory, 4);
    let fourth = look(true)?;
    let began = Instant::now();
    watch.disarm()?;
    Ok([arm, written, clean, all, fourth, milliseconds(began)])
}

fn milliseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}
