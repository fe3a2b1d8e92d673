//! `tarn bench dsa`: queue pairs to storage memory, beside the same copies without any queue, and beside fio. After dsa_bench
//! (Schürmann et al. 2014, section 5), which is the case `phases`.

mod beside;
mod disk;
mod phases;
mod remote;
mod scaling;
mod turns;

use crate::figure::{BenchFigure, median};
use crate::fio;
use crate::print::message;
use crate::scratch::ScratchFolder;
use anyhow::{bail, ensure};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tarn_data_plane::LIBRARY;
use tarn_media::{MappedFile, MappedPart, kernel};
use tarn_partitions::{
    Level, Op, OpenOptions, Options, Partition, PartitionQueue, ProgramMemory, Sqe,
};
use tarn_types::random::Random;
use tarn_types::units::Bytes;
use turns::{PairedLoad, in_turns};

const MIB: u64 = 1 << 20;
/// Bytes of a thread's own memory: more than the first two caches hold.
const LOCAL: u64 = MIB;

/// Options of `tarn bench dsa`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Cases to measure; all when not given
    #[arg(long = "case", value_enum)]
    cases: Vec<DsaCase>,
    /// Measured rounds
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Rounds before these, and passes over all of the memory before the first: where a machine is virtual, fresh memory is slow
    /// at first
    #[arg(long, value_name = "ROUNDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(..=100))]
    warm: u32,
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
    #[command(flatten)]
    phases: phases::Phases,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DsaCase {
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
    /// read-4k-random by one thread, beside fio's libpmem engine
    #[value(name = "read-4k-random-fio")]
    ReadFio,
    /// The same beside its mmap engine
    #[value(name = "read-4k-random-fio-mmap")]
    ReadFioMmap,
    /// The same beside its io_uring engine, 32 requests at a time
    #[value(name = "read-4k-random-fio-io-uring")]
    ReadFioUring,
    /// write-4k-persist by one thread, beside fio's libpmem engine
    #[value(name = "write-4k-persist-fio")]
    WriteFio,
    /// The same beside its mmap engine, which makes nothing persistent
    #[value(name = "write-4k-persist-fio-mmap")]
    WriteFioMmap,
    /// The same beside its io_uring engine, 32 requests at a time, which makes nothing persistent
    #[value(name = "write-4k-persist-fio-io-uring")]
    WriteFioUring,
    /// read-4k-random over 1, 2, 4 and 8 partitions that are used as one, by 1, 2, 4 ... threads
    #[value(name = "scaling")]
    Scaling,
    /// A phase of writes, then one of reads, as the options say
    #[value(name = "phases")]
    Phases,
    /// 4 KiB from anywhere in the folder of --disk, in units
    #[value(name = "disk-read-4k-random")]
    DiskRead4k,
    /// 4 KiB to anywhere there
    #[value(name = "disk-write-4k-random")]
    DiskWrite4k,
    /// Of another process, in a separate network namespace where that is allowed, 4 KiB from and to anywhere by libfabric's tcp
    #[value(name = "remote-tcp")]
    RemoteTcp,
    /// The same by its shared memory
    #[value(name = "remote-shm")]
    RemoteShm,
}

/// The shape of requests.
#[derive(Debug, Clone, Copy)]
struct RequestShape {
    op: Op,
    bytes: u64,
    level: Level,
    /// Requests of a doorbell.
    batch: u32,
}

impl DsaCase {
    /// Its name on the command line.
    fn name(self) -> String {
        use clap::ValueEnum;
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn shape(self, args: &Args) -> RequestShape {
        let (op, bytes, level) = match self {
            Self::Read32b => (Op::Read, 32, Level::Visible),
            Self::Write32b => (Op::Write, 32, Level::Visible),
            Self::Write4k | Self::WriteFio | Self::WriteFioMmap | Self::WriteFioUring => {
                (Op::Write, 4096, Level::Persistent)
            }
            Self::DiskWrite4k => (Op::Write, 4096, Level::Visible),
            _ => (Op::Read, 4096, Level::Visible),
        };
        let batch = match self {
            Self::Latency4k => 1,
            _ => args.batch,
        };
        RequestShape {
            op,
            bytes,
            level,
            batch,
        }
    }

    /// The engine of fio that it stands beside.
    fn engine(self) -> Option<&'static str> {
        match self {
            Self::ReadFio | Self::WriteFio => Some("libpmem"),
            Self::ReadFioMmap | Self::WriteFioMmap => Some("mmap"),
            Self::ReadFioUring | Self::WriteFioUring => Some("io_uring"),
            _ => None,
        }
    }

    fn plain(self) -> &'static str {
        match self {
            Self::DiskRead4k | Self::DiskWrite4k => "io_uring alone, O_DIRECT",
            Self::RemoteTcp | Self::RemoteShm => "libfabric alone",
            Self::Write4k => "stores past the caches, a fence a batch",
            _ => "a loop of memcpy",
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When there is no space, or a request fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    use clap::ValueEnum;
    let cases = match &args.cases[..] {
        [] => DsaCase::value_variants(),
        some => some,
    };
    let scratch = ScratchFolder::new(&args.dir)?;
    let ground = Ground::new(args, scratch.path())?;
    let mut figures = Vec::new();
    for case in cases {
        match (case, case.engine()) {
            (_, Some(_)) if args.cases.is_empty() && !fio::is_here() => {
                message!("note: {} is left out: there is no fio", case.name());
            }
            (_, Some(engine)) => figures.push(beside::measure(args, *case, engine, &ground)?),
            (DsaCase::Scaling, _) => figures.extend(scaling::measure(args, &ground)?),
            (DsaCase::Phases, _) => figures.extend(phases::measure(args, &ground)?),
            (DsaCase::RemoteTcp | DsaCase::RemoteShm, _)
                if args.cases.is_empty() && !has_libfabric() =>
            {
                message!("note: {} is left out: there is no {LIBRARY}", case.name());
            }
            (DsaCase::RemoteTcp | DsaCase::RemoteShm, _) => {
                figures.extend(remote::measure(args, *case)?)
            }
            (DsaCase::DiskRead4k | DsaCase::DiskWrite4k, _) => match &args.disk {
                Some(folder) => figures.push(disk::measure(args, *case, folder)?),
                None if args.cases.is_empty() => {
                    message!(
                        "note: {} is left out: name its folder by --disk",
                        case.name()
                    );
                }
                None => bail!("{} needs a folder of a disk: --disk DIR", case.name()),
            },
            _ => figures.extend(copies(args, *case, &ground)?),
        }
    }
    Ok(figures)
}

fn has_libfabric() -> bool {
    tarn_data_plane::library().is_ok_and(|library| library.exists())
}

/// A partition to measure on, and as much memory of the same tier for plain copies.
struct Ground<'a> {
    folder: &'a Path,
    partition: Partition,
    plain: std::cell::RefCell<MappedFile>,
}

impl<'a> Ground<'a> {
    fn new(args: &Args, folder: &'a Path) -> anyhow::Result<Self> {
        let path = folder.join("partition");
        // Mapped, wherever it is.
        Partition::create_units(&path, args.mib * MIB, 0, Vec::new())?;
        let ground = Self {
            folder,
            partition: Partition::open(&path, populated())?,
            plain: MappedFile::create(&folder.join("plain"), args.mib * MIB)?.into(),
        };
        for _ in 0..args.warm {
            ground.pass(args)?;
        }
        Ok(ground)
    }

    /// Goes over all of both.
    fn pass(&self, args: &Args) -> anyhow::Result<()> {
        let shape = RequestShape {
            op: Op::Write,
            bytes: LOCAL,
            level: Level::Visible,
            batch: 1,
        };
        let all = (0..args.mib).map(|at| at * LOCAL).collect();
        MemoryQueueLoad::new(shape, &self.partition, 0, args.mib * MIB, all)?.round()?;
        self.plain.borrow_mut().bytes().fill(1);
        Ok(())
    }

    /// In turns with plain copies of the same.
    fn compared(
        &self,
        args: &Args,
        shape: RequestShape,
        threads: u32,
        partition: &Partition,
    ) -> anyhow::Result<[Vec<f64>; 2]> {
        let mut plain = self.plain.borrow_mut();
        let part = args.mib * MIB / u64::from(threads) / 4096 * 4096;
        in_turns(args, threads, part, &mut plain, |start, window| {
            let places = places(args, shape.bytes, part);
            Ok(Copies {
                hands: MemoryQueueLoad::new(shape, partition, start, part, places.clone())?,
                plain: PlainCopies::new(shape, window, places),
            })
        })
    }
}

fn populated() -> OpenOptions {
    OpenOptions {
        populate: true,
        ..OpenOptions::default()
    }
}

/// One of the cases that stand beside plain copies only: by one thread, by several, and these beside each other.
fn copies(args: &Args, case: DsaCase, ground: &Ground<'_>) -> anyhow::Result<Vec<BenchFigure>> {
    let mut figures = Vec::new();
    let shape = case.shape(args);
    let mut rates = Vec::new();
    let mut threads = vec![1, args.threads];
    threads.dedup();
    for threads in threads {
        let both = ground.compared(args, shape, threads, &ground.partition)?;
        let (ours, beside) = (median(&both[0]), median(&both[1]));
        rates.push((ours, beside));
        figures.push(BenchFigure {
            name: name(args, case, threads, shape, &ground.partition),
            value: ours,
            unit: "M/s",
            against: Some((case.plain().into(), beside)),
        });
    }
    if let [(one, plain_one), (all, plain_all)] = rates[..] {
        figures.push(BenchFigure {
            name: format!("{}, {} threads beside one", case.name(), args.threads),
            value: all / one,
            unit: "fold",
            against: Some((case.plain().into(), plain_all / plain_one)),
        });
    }
    Ok(figures)
}

/// Of a result.
fn name(
    args: &Args,
    case: DsaCase,
    threads: u32,
    shape: RequestShape,
    partition: &Partition,
) -> String {
    format!(
        "{}, {threads} threads, {} by {}, {} requests a doorbell, {:?}",
        case.name(),
        Bytes(args.mib * MIB),
        Bytes(shape.bytes),
        shape.batch,
        partition.promises().power_fail,
    )
}

/// The same by a queue pair and without.
struct Copies<'a> {
    hands: MemoryQueueLoad,
    plain: PlainCopies<'a>,
}

impl PairedLoad for Copies<'_> {
    fn ours(&mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.hands.round()?;
        Ok(begun.elapsed())
    }

    fn plain(&mut self) -> Duration {
        let begun = Instant::now();
        self.plain.round();
        begun.elapsed()
    }
}

/// The places of a thread's requests in its part, in multiples of their size. Both ways read the same list.
fn places(args: &Args, bytes: u64, part: u64) -> Vec<u64> {
    let mut random = Random::new(7);
    (0..args.requests)
        .map(|_| random.below(part / bytes) * bytes)
        .collect()
}

/// A queue pair with its memory and places.
struct MemoryQueueLoad {
    queue: PartitionQueue,
    cells: &'static [Cell<u8>],
    requests: Vec<u64>,
    template: Sqe,
    batch: usize,
}

impl MemoryQueueLoad {
    fn new(
        shape: RequestShape,
        partition: &Partition,
        start: u64,
        part: u64,
        requests: Vec<u64>,
    ) -> anyhow::Result<Self> {
        let options = Options {
            volatile: true,
            ..Options::default()
        };
        let mut queue = PartitionQueue::new(shape.batch, options)?;
        let filled = (0..LOCAL).map(|at| Cell::new(at as u8));
        // As long as the program: some MiB a case.
        let cells: &'static [Cell<u8>] = Box::leak(filled.collect());
        let template = Sqe {
            op: shape.op as u8,
            level: shape.level as u8,
            memory: queue.register_memory(ProgramMemory::of(cells))?,
            storage: queue.register(partition, start, part, true)?,
            length: shape.bytes,
            ..Sqe::default()
        };
        Ok(Self {
            queue,
            cells,
            requests,
            template,
            batch: shape.batch as usize,
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
struct PlainCopies<'a> {
    window: MappedPart<'a>,
    memory: Vec<u8>,
    requests: Vec<u64>,
    shape: RequestShape,
}

impl<'a> PlainCopies<'a> {
    fn new(shape: RequestShape, window: MappedPart<'a>, requests: Vec<u64>) -> Self {
        Self {
            window,
            memory: (0..LOCAL).map(|at| at as u8).collect(),
            requests,
            shape,
        }
    }

    fn round(&mut self) {
        let length = self.shape.bytes as usize;
        let bytes = self.window.bytes();
        for places in self.requests.chunks(self.shape.batch as usize) {
            for (number, at) in (0..).zip(places) {
                let local: usize = number * length % LOCAL as usize;
                let here = &mut self.memory[local..local + length];
                let there = &mut bytes[*at as usize..*at as usize + length];
                match (self.shape.op, self.shape.level) {
                    (Op::Read, _) => here.copy_from_slice(there),
                    (_, Level::Persistent) => kernel::past_caches(there, here),
                    _ => there.copy_from_slice(here),
                }
            }
            if self.shape.level == Level::Persistent {
                kernel::fence();
            }
        }
        std::hint::black_box(&self.memory);
    }
}
