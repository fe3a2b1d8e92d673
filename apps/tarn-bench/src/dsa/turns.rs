//! Threads that do a thing in two ways, in turns, all at the same time.

use super::Args;
use std::sync::Barrier;
use std::time::Duration;
use tarn_media::{MappedFile, MappedPart};
use tarn_ports::Medium;

/// The work of one thread.
pub(super) trait PairedLoad {
    /// A round by a queue pair, and how long it took.
    fn ours(&mut self) -> anyhow::Result<Duration>;
    /// A round without.
    fn plain(&mut self) -> Duration;
}

/// Millions of requests a second of each round, by queue pairs and without, of all threads together. Each thread has so many bytes of
/// its own, from the offset that `make` gets, and as much plain memory.
pub(super) fn in_turns<'m, P: PairedLoad>(
    args: &Args,
    threads: u32,
    part: u64,
    plain: &'m mut MappedFile,
    make: impl Fn(u64, MappedPart<'m>) -> anyhow::Result<P> + Sync,
) -> anyhow::Result<[Vec<f64>; 2]> {
    let parts: Vec<_> = (0..u64::from(threads))
        .map(|n| n * part..(n + 1) * part)
        .collect();
    let barrier = Barrier::new(threads as usize);
    let windows = plain.windows(&parts)?;
    let of_one = |start: u64, window: MappedPart<'m>| -> anyhow::Result<[Vec<f64>; 2]> {
        // A thread that fails early still comes to all barriers.
        let (mut pair, mut failed) = match make(start, window) {
            Ok(pair) => (Some(pair), None),
            Err(why) => (None, Some(why)),
        };
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..args.warm + args.rounds {
            barrier.wait();
            let beside = pair.as_mut().map_or(Duration::ZERO, PairedLoad::plain);
            barrier.wait();
            let ours = match pair.as_mut().map(PairedLoad::ours) {
                Some(Ok(took)) => took,
                Some(Err(why)) => {
                    (pair, failed) = (None, Some(why));
                    Duration::ZERO
                }
                None => Duration::ZERO,
            };
            if round >= args.warm {
                for (rates, took) in rates.iter_mut().zip([ours, beside]) {
                    rates.push(args.requests as f64 / took.as_secs_f64() / 1e6);
                }
            }
        }
        failed.map_or(Ok(rates), Err)
    };
    let of_one = &of_one;
    let rates: anyhow::Result<Vec<[Vec<f64>; 2]>> = std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .iter()
            .zip(windows)
            .map(|(range, window)| scope.spawn(move || of_one(range.start, window)))
            .collect();
        let ended = threads.into_iter().map(|thread| {
            let died = |_| Err(anyhow::anyhow!("a thread has died"));
            thread.join().unwrap_or_else(died)
        });
        ended.collect()
    });
    // The rates of all threads together.
    let mut sums = [0, 1].map(|_| vec![0.0; args.rounds as usize]);
    for one in rates? {
        for (sums, rates) in sums.iter_mut().zip(one) {
            sums.iter_mut()
                .zip(rates)
                .for_each(|(sum, rate)| *sum += rate);
        }
    }
    Ok(sums)
}
