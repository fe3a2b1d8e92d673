//! `tarn bench dsa`: queue pairs to storage memory, beside the same copies without any queue. After dsa_bench (Schürmann et al. 2014,
//! section 5).

mod disk;

use super::scratch::Scratch;
use super::{Figure, median};
use anyhow::ensure;
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::Instant;
use tarn_base::random::Random;
use tarn_base::units::Bytes;
use tarn_media::{Mapped, Part, kernel};
use tarn_partitions::{Level, Memory, Op, OpenOptions, Options, Partition, Queue, Sqe};
use tarn_ports::Medium;

const MIB: u64 = 1 << 20;
/// Bytes of a thread's own memory: more than the first two caches hold.
const LOCAL: u64 = MIB;

/// Options of `tarn bench dsa`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// What to measure; all when not given
    #[arg(long = "case", value_enum)]
    cases: Vec<Case>,
    /// Measured rounds; two more are for warming up
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// A folder on the tier to measure
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// A folder on a disk: cases of disks are measured in it, by one thread and a sixteenth of the requests, and left out without one
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Threads at the same time, each with its own queue pair and part of the partition; one alone is measured too
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Requests of a doorbell, a power of two
    #[arg(long, default_value_t = 256)]
    batch: u32,
    /// MiB of the partition: more than the last cache holds
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(2..=1 << 20))]
    mib: u64,
    /// Requests of a thread and round
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    requests: u64,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Case {
    /// 4 KiB from anywhere
    #[value(name = "read-4k-random")]
    Read4k,
    /// 32 bytes from anywhere
    #[value(name = "read-32b-random")]
    Read32b,
    /// 4 KiB to anywhere, persistent as far as the medium can
    #[value(name = "write-4k-persist")]
    Write4k,
    /// 32 bytes to anywhere
    #[value(name = "write-32b-random")]
    Write32b,
    /// 4 KiB from anywhere, one after the other
    #[value(name = "latency-4k-read")]
    Latency4k,
    /// 4 KiB from anywhere in the folder of --disk, in units
    #[value(name = "disk-read-4k-random")]
    DiskRead4k,
    /// 4 KiB to anywhere there
    #[value(name = "disk-write-4k-random")]
    DiskWrite4k,
}

impl Case {
    /// As it is asked for.
    fn name(self) -> String {
        use clap::ValueEnum;
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn op(self) -> Op {
        match self {
            Self::Read4k | Self::Read32b | Self::Latency4k | Self::DiskRead4k => Op::Read,
            Self::Write4k | Self::Write32b | Self::DiskWrite4k => Op::Write,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Read32b | Self::Write32b => 32,
            _ => 4096,
        }
    }

    fn level(self) -> Level {
        match self {
            Self::Write4k => Level::Persistent,
            _ => Level::Visible,
        }
    }

    fn batch(self, args: &Args) -> u32 {
        match self {
            Self::Latency4k => 1,
            _ => args.batch,
        }
    }

    fn is_of_disk(self) -> bool {
        matches!(self, Self::DiskRead4k | Self::DiskWrite4k)
    }

    fn plain(self) -> &'static str {
        match self {
            Self::DiskRead4k | Self::DiskWrite4k => "io_uring alone, O_DIRECT",
            Self::Write4k => "stores past the caches, a fence a batch",
            _ => "a loop of memcpy",
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When there is no room, or a request fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<Figure>> {
    use clap::ValueEnum;
    let cases = match &args.cases[..] {
        [] => Case::value_variants(),
        some => some,
    };
    let scratch = Scratch::new(&args.dir)?;
    let path = scratch.path().join("partition");
    // Mapped, wherever it is.
    Partition::create_units(&path, args.mib * MIB, 0, Vec::new())?;
    let options = OpenOptions {
        populate: true,
        ..OpenOptions::default()
    };
    let partition = Partition::open(&path, options)?;
    let mut plain = Mapped::create(&scratch.path().join("plain"), args.mib * MIB)?;
    let mut figures = Vec::new();
    for case in cases.iter().filter(|case| !case.is_of_disk()) {
        let mut rates = Vec::new();
        let mut threads = vec![1, args.threads];
        threads.dedup();
        for threads in threads {
            let both = compared(args, *case, threads, &partition, &mut plain)?;
            let (ours, beside) = (median(&both[0]), median(&both[1]));
            rates.push((ours, beside));
            figures.push(Figure {
                name: format!(
                    "{}, {threads} threads, {} by {}, {} requests a doorbell, {:?}",
                    case.name(),
                    Bytes(args.mib * MIB),
                    Bytes(case.bytes()),
                    case.batch(args),
                    partition.promises().power_fail,
                ),
                value: ours,
                unit: "M/s",
                against: Some((case.plain().into(), beside)),
            });
        }
        if let [(one, plain_one), (all, plain_all)] = rates[..] {
            figures.push(Figure {
                name: format!("{}, {} threads beside one", case.name(), args.threads),
                value: all / one,
                unit: "fold",
                against: Some((case.plain().into(), plain_all / plain_one)),
            });
        }
    }
    drop(partition);
    let disk = cases.iter().filter(|case| case.is_of_disk());
    match &args.disk {
        Some(folder) => figures.extend(disk::run(args, disk, folder)?),
        None => ensure!(
            args.cases.is_empty() || disk.count() == 0,
            "a case of a disk needs its folder: --disk DIR"
        ),
    }
    Ok(figures)
}

/// Millions of requests a second of each round, of queue pairs and of plain copies, in turns.
fn compared(
    args: &Args,
    case: Case,
    threads: u32,
    partition: &Partition,
    plain: &mut Mapped,
) -> anyhow::Result<[Vec<f64>; 2]> {
    const WARM: u32 = 2;
    let part = args.mib * MIB / u64::from(threads) / 4096 * 4096;
    let parts: Vec<_> = (0..u64::from(threads))
        .map(|n| n * part..(n + 1) * part)
        .collect();
    let barrier = Barrier::new(threads as usize);
    let windows = plain.windows(&parts)?;
    let rates: anyhow::Result<Vec<[Vec<f64>; 2]>> = std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .iter()
            .zip(windows)
            .map(|(range, window)| {
                let barrier = &barrier;
                let of_one = move || -> anyhow::Result<[Vec<f64>; 2]> {
                    let hands = Hands::new(args, case, partition, range.start, part);
                    // Who fails early still comes to all meetings.
                    let (mut hands, mut failed) = match hands {
                        Ok(hands) => (Some(hands), None),
                        Err(why) => (None, Some(why)),
                    };
                    let mut beside = Plain::new(args, case, window, part);
                    let mut rates = [Vec::new(), Vec::new()];
                    for round in 0..args.rounds + WARM {
                        barrier.wait();
                        let begun = Instant::now();
                        beside.round();
                        let took = begun.elapsed();
                        barrier.wait();
                        let begun = Instant::now();
                        if let Some(Err(why)) = hands.as_mut().map(Hands::round) {
                            (hands, failed) = (None, Some(why));
                        }
                        let rate = |took: f64| args.requests as f64 / took / 1e6;
                        if round >= WARM {
                            rates[0].push(rate(begun.elapsed().as_secs_f64()));
                            rates[1].push(rate(took.as_secs_f64()));
                        }
                    }
                    failed.map_or(Ok(rates), Err)
                };
                scope.spawn(of_one)
            })
            .collect();
        let ended = threads.into_iter().map(|thread| {
            let died = |_| Err(anyhow::anyhow!("a thread has died"));
            thread.join().unwrap_or_else(died)
        });
        ended.collect()
    });
    // What all have done together.
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

/// Where the requests of a thread go: places of their size in its part. Both read the same list.
fn places(args: &Args, bytes: u64, part: u64) -> Vec<u64> {
    let mut random = Random::new(7);
    (0..args.requests)
        .map(|_| random.below(part / bytes) * bytes)
        .collect()
}

/// A queue pair with what it takes.
struct Hands {
    queue: Queue,
    cells: &'static [Cell<u8>],
    requests: Vec<u64>,
    template: Sqe,
    batch: usize,
}

impl Hands {
    fn new(
        args: &Args,
        case: Case,
        partition: &Partition,
        start: u64,
        part: u64,
    ) -> anyhow::Result<Self> {
        let options = Options {
            volatile: true,
            ..Options::default()
        };
        let batch = case.batch(args);
        let mut queue = Queue::new(batch, options)?;
        let filled = (0..LOCAL).map(|at| Cell::new(at as u8));
        // As long as the program: some MiB a case.
        let cells: &'static [Cell<u8>] = Box::leak(filled.collect());
        let template = Sqe {
            op: case.op() as u8,
            level: case.level() as u8,
            memory: queue.register_memory(Memory::of(cells))?,
            storage: queue.register(partition, start, part, true)?,
            length: case.bytes(),
            ..Sqe::default()
        };
        Ok(Self {
            queue,
            cells,
            requests: places(args, case.bytes(), part),
            template,
            batch: batch as usize,
        })
    }

    fn round(&mut self) -> anyhow::Result<()> {
        let base = self.cells.as_ptr().addr() as u64;
        let mut failed = 0;
        for places in self.requests.chunks(self.batch) {
            for (number, offset) in (0..).zip(places) {
                let local = number * self.template.length % LOCAL;
                let prepared = self.queue.prepare(Sqe {
                    address: base + local,
                    offset: *offset,
                    user_data: number,
                    ..self.template
                });
                debug_assert!(prepared, "the ring has room for a batch");
            }
            self.queue.submit();
            let mut ended = 0;
            while let Some(completion) = self.queue.reap() {
                failed += u64::from(completion.code != 0);
                ended += 1;
            }
            ensure!(ended == places.len(), "requests were not complete");
        }
        ensure!(failed == 0, "{failed} requests have failed");
        Ok(())
    }
}

/// The same copies without a queue pair.
struct Plain<'a> {
    window: Part<'a>,
    memory: Vec<u8>,
    requests: Vec<u64>,
    case: Case,
    batch: usize,
}

impl<'a> Plain<'a> {
    fn new(args: &Args, case: Case, window: Part<'a>, part: u64) -> Self {
        Self {
            window,
            memory: (0..LOCAL).map(|at| at as u8).collect(),
            requests: places(args, case.bytes(), part),
            case,
            batch: case.batch(args) as usize,
        }
    }

    fn round(&mut self) {
        let length = self.case.bytes() as usize;
        let bytes = self.window.bytes();
        for places in self.requests.chunks(self.batch) {
            for (number, at) in (0..).zip(places) {
                let local: usize = number * length % LOCAL as usize;
                let here = &mut self.memory[local..local + length];
                let there = &mut bytes[*at as usize..*at as usize + length];
                match (self.case.op(), self.case.level()) {
                    (Op::Read, _) => here.copy_from_slice(there),
                    (_, Level::Persistent) => kernel::past_caches(there, here),
                    _ => there.copy_from_slice(here),
                }
            }
            if self.case.level() == Level::Persistent {
                kernel::fence();
            }
        }
        std::hint::black_box(&self.memory);
    }
}
