//! The paper's dsa_bench: a phase of writes, then one of reads. Options give each one's order, pure or mixed, size, alignment in
//! memory and on the partition, depth, how often it is signalled, and whether the data read is checked.

use super::{Args, BenchFigure, Ground, LOCAL, MIB, PairedLoad, in_turns, median, populated};
use anyhow::{Context, ensure};
use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tarn_media::{MappedPart, kernel};
use tarn_partitions::{
    Flags, Level, Op, Options, Partition, PartitionQueue, ProgramMemory, QueueRegionId, Sqe,
};
use tarn_types::random::{Random, mix};
use tarn_types::units::{Bytes, parse_size};

/// Until posted requests have ended.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a thread's own memory: of its requests under way.
const MAX_MEMORY: u64 = 4 << 30;

/// Options of the case `phases`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Options of --case phases")]
pub(super) struct Phases {
    /// The order of the phase of writes
    #[arg(long, value_enum, default_value_t = AccessOrder::Sequential)]
    write_order: AccessOrder,
    /// The order of the phase of reads
    #[arg(long, value_enum, default_value_t = AccessOrder::Random)]
    read_order: AccessOrder,
    /// Every second request of the phase of writes is a read
    #[arg(long)]
    write_mixed: bool,
    /// Every second request of the phase of reads is a write
    #[arg(long)]
    read_mixed: bool,
    /// Bytes of a request of the phase of writes
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "4KiB")]
    write_size: u64,
    /// Bytes of a request of the phase of reads
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "4KiB")]
    read_size: u64,
    /// Addresses in memory are multiples of this power of two, and below 4 KiB of no higher one
    #[arg(long, value_name = "SIZE", value_parser = alignment, default_value = "4KiB")]
    host_align: u64,
    /// Addresses on the partition are multiples of this power of two, and below 4 KiB of no higher one
    #[arg(long, value_name = "SIZE", value_parser = alignment, default_value = "4KiB")]
    storage_align: u64,
    /// Requests under way before completions are reaped, a power of two [default: those of a doorbell]
    #[arg(long)]
    depth: Option<u32>,
    /// Every so many requests one is signalled
    #[arg(long, value_name = "REQUESTS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    signal: u32,
    /// Writes are persistent when they complete, as far as the medium can
    #[arg(long)]
    persistent: bool,
    /// Compare the data read with the data written, and all of the partition at the end of each round; that is not measured
    #[arg(long)]
    verify: bool,
    /// The content that is written
    #[arg(long, value_enum, default_value_t = Pattern::Random)]
    pattern: Pattern,
    /// Instead of a new partition, the first --mib of this one, whose content is lost; several are used as one, block by block
    #[arg(long = "partition", value_name = "NAME")]
    partitions: Vec<PathBuf>,
    /// With several partitions: the size of a block
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1MiB")]
    block: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum AccessOrder {
    Sequential,
    Random,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Pattern {
    /// Zeros
    Zeros,
    /// Each 8 bytes count on
    Counting,
    /// Content that no medium can make smaller
    Random,
}

impl Pattern {
    /// The byte at a place, in a round.
    fn byte(self, place: u64, round: u64) -> u8 {
        let word = match self {
            Self::Zeros => 0,
            Self::Counting => place / 8 + round,
            Self::Random => mix((place / 8) ^ (round << 48)),
        };
        word.to_le_bytes()[place as usize % 8]
    }
}

fn size(text: &str) -> anyhow::Result<u64> {
    match parse_size(text) {
        Ok(0) => anyhow::bail!("nothing would ever move"),
        Ok(size) => Ok(size),
        Err(why) => Err(why.into()),
    }
}

fn alignment(text: &str) -> anyhow::Result<u64> {
    let size = size(text)?;
    if size.is_power_of_two() && size <= MIB {
        Ok(size)
    } else {
        anyhow::bail!("an alignment is a power of two up to 1 MiB")
    }
}

/// Offsets at which requests of a size may begin, aligned as requested: at `shift` and every `stride` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spacing {
    stride: u64,
    shift: u64,
}

impl Spacing {
    fn new(bytes: u64, align: u64) -> Self {
        if align < 4096 {
            Self {
                stride: bytes.next_multiple_of(2 * align),
                shift: align,
            }
        } else {
            Self {
                stride: bytes.next_multiple_of(align),
                shift: 0,
            }
        }
    }

    fn at(self, number: u64) -> u64 {
        number * self.stride + self.shift
    }
}

/// One of the two.
#[derive(Debug, Clone, Copy)]
struct DsaPhase {
    op: Op,
    order: AccessOrder,
    mixed: bool,
    bytes: u64,
    level: Level,
    depth: u32,
}

impl DsaPhase {
    /// The operation of the request with this number.
    fn op(self, number: u64) -> Op {
        match (self.mixed && number % 2 == 1, self.op) {
            (false, op) => op,
            (true, Op::Read) => Op::Write,
            (true, _) => Op::Read,
        }
    }
}

/// # Errors
/// When there is no space, a request fails, or the data read is not the data written.
pub(super) fn measure(args: &Args, ground: &Ground<'_>) -> anyhow::Result<Vec<BenchFigure>> {
    let options = &args.phases;
    let given = match &options.partitions[..] {
        [] => None,
        [one] => Some(Partition::open(one, populated())?),
        several => Some(Partition::open_cyclic(several, options.block, populated())?),
    };
    let partition = given.as_ref().unwrap_or(&ground.partition);
    let bytes = partition.size()?.min(args.mib * MIB);
    let part = bytes / u64::from(args.threads) / MIB * MIB;
    ensure!(part > 0, "{bytes} bytes are not 1 MiB a thread");
    let depth = options.depth.unwrap_or(args.batch);
    let level = if options.persistent {
        Level::Persistent
    } else {
        Level::Visible
    };
    let phase = |op, order, mixed, bytes| DsaPhase {
        op,
        order,
        mixed,
        bytes,
        level,
        depth,
    };
    let (write, read) = (options.write_order, options.read_order);
    let phases = [
        phase(Op::Write, write, options.write_mixed, options.write_size),
        phase(Op::Read, read, options.read_mixed, options.read_size),
    ];
    let mut plain = ground.plain.borrow_mut();
    let mut figures = Vec::new();
    for phase in phases {
        let both = in_turns(args, args.threads, part, &mut plain, |start, window| {
            PhaseWorker::new(args, phase, partition, start, part, window)
        })?;
        figures.push(BenchFigure {
            name: format!(
                "phases, {} {:?}{}, {} by {}, memory at multiples of {}, partition of {}, {} deep, {} a doorbell, every {}. signalled, {level:?}, {} threads{}",
                match phase.op {
                    Op::Read => "read",
                    _ => "write",
                },
                phase.order,
                if phase.mixed { " mixed" } else { "" },
                Bytes(part * u64::from(args.threads)),
                Bytes(phase.bytes),
                Bytes(options.host_align),
                Bytes(options.storage_align),
                depth,
                args.batch.min(depth),
                options.signal,
                args.threads,
                if options.verify { ", verified" } else { "" },
            ),
            value: median(&both[0]),
            unit: "M/s",
            against: Some(("the same copies without a queue".into(), median(&both[1]))),
        });
    }
    Ok(figures)
}

/// A thread's share of a phase.
struct PhaseWorker<'a> {
    phase: DsaPhase,
    batch: u64,
    signal: u64,
    pattern: Pattern,
    queue: PartitionQueue,
    memory: QueueRegionId,
    storage: QueueRegionId,
    cells: &'static [Cell<u8>],
    /// Offsets in `cells` at which requests begin.
    here: Spacing,
    places: Vec<u64>,
    /// The expected content of the partition, where that is checked.
    shadow: Option<Vec<u8>>,
    round: u64,
    window: MappedPart<'a>,
    plain: Vec<u8>,
}

impl<'a> PhaseWorker<'a> {
    fn new(
        args: &Args,
        phase: DsaPhase,
        partition: &Partition,
        start: u64,
        part: u64,
        window: MappedPart<'a>,
    ) -> anyhow::Result<Self> {
        let options = &args.phases;
        let there = Spacing::new(phase.bytes, options.storage_align);
        let fit = part.checked_sub(there.shift + phase.bytes);
        let fit = fit.context("a request is larger than a thread's part of the partition")?;
        let slots = fit / there.stride + 1;
        let mut random = Random::new(7);
        let places = (0..args.requests).map(|number| match phase.order {
            AccessOrder::Sequential => there.at(number % slots),
            AccessOrder::Random => there.at(random.below(slots)),
        });
        let places = places.collect();

        let mut here = Spacing::new(phase.bytes, options.host_align);
        let slack = 2 * options.host_align.max(4096);
        let taken = here.at(phase.depth.into()) + slack;
        ensure!(taken <= MAX_MEMORY, "a thread would take {}", Bytes(taken));
        let filled = (0..taken.max(LOCAL)).map(|at| Cell::new(options.pattern.byte(at, 0)));
        // As long as the program: some MiB a phase.
        let cells: &'static [Cell<u8>] = Box::leak(filled.collect());
        let base = cells.as_ptr().addr() as u64;
        here.shift += base.next_multiple_of(slack) - base;
        let mut queue = PartitionQueue::new(
            phase.depth,
            Options {
                volatile: true,
                ..Options::default()
            },
        )?;
        let memory = queue.register_memory(ProgramMemory::of(cells))?;
        let storage = queue.register(partition, start, part, true)?;
        let mut worker = Self {
            phase,
            batch: args.batch.into(),
            signal: options.signal.into(),
            pattern: options.pattern,
            queue,
            memory,
            storage,
            cells,
            here,
            places,
            shadow: None,
            round: 0,
            window,
            plain: vec![1; taken as usize],
        };
        if options.verify {
            worker.shadow = Some(worker.all(part)?);
        }
        Ok(worker)
    }

    /// Takes completions: how many there were.
    fn reap(&mut self) -> anyhow::Result<u64> {
        let mut ended = 0;
        while let Some(completion) = self.queue.reap() {
            ensure!(
                completion.code == 0,
                "a request has failed with code {}",
                completion.code
            );
            ended += 1;
        }
        Ok(ended)
    }

    /// Takes so many completions.
    fn take(&mut self, mut wanted: u64) -> anyhow::Result<()> {
        loop {
            // There may be more of them than are wanted.
            wanted = wanted.saturating_sub(self.reap()?);
            if wanted == 0 {
                return Ok(());
            }
            self.queue.wait(1, TIMEOUT)?;
        }
    }

    /// All that the partition holds.
    fn all(&mut self, part: u64) -> anyhow::Result<Vec<u8>> {
        let mut all = Vec::with_capacity(part as usize);
        while let left @ 1.. = part - all.len() as u64 {
            let length = left.min(self.cells.len() as u64);
            self.queue.prepare(Sqe {
                op: Op::Read as u8,
                memory: self.memory,
                storage: self.storage,
                address: self.cells.as_ptr().addr() as u64,
                offset: all.len() as u64,
                length,
                ..Sqe::default()
            });
            self.queue.submit();
            self.take(1)?;
            all.extend(self.cells[..length as usize].iter().map(Cell::get));
        }
        Ok(all)
    }

    /// The memory of the request that is the so-manieth under way.
    fn slot(&self, number: u64) -> &'static [Cell<u8>] {
        let at = self.here.at(number) as usize;
        &self.cells[at..at + self.phase.bytes as usize]
    }

    /// Puts the bytes to write into memory.
    fn fill(&self, group: &[u64]) {
        for (number, place) in (0..).zip(group) {
            if self.phase.op(number) == Op::Write {
                for (place, cell) in (*place..).zip(self.slot(number)) {
                    cell.set(self.pattern.byte(place, self.round));
                }
            }
        }
    }

    /// Checks the bytes read, and records the bytes written. Where both were under way at the same time, either content is right.
    fn check(&mut self, group: &[u64]) -> anyhow::Result<()> {
        let Some(mut shadow) = self.shadow.take() else {
            return Ok(());
        };
        for (number, place) in (0..).zip(group) {
            if self.phase.op(number) == Op::Read {
                for (place, cell) in (*place..).zip(self.slot(number)) {
                    let new = self
                        .phase
                        .mixed
                        .then(|| self.pattern.byte(place, self.round));
                    let found = cell.get();
                    let right = found == shadow[place as usize] || Some(found) == new;
                    ensure!(right, "byte {place} is not what was written");
                }
            }
        }
        for (number, place) in (0..).zip(group) {
            if self.phase.op(number) == Op::Write {
                for (place, cell) in (*place..).zip(self.slot(number)) {
                    shadow[place as usize] = cell.get();
                }
            }
        }
        self.shadow = Some(shadow);
        Ok(())
    }

    fn post(&mut self, group: &[u64]) -> anyhow::Result<()> {
        let base = self.cells.as_ptr().addr() as u64;
        let (mut signalled, last) = (0, group.len() as u64 - 1);
        for (number, place) in (0..).zip(group) {
            let is_signalled = (number + 1) % self.signal == 0 || number == last;
            signalled += u64::from(is_signalled);
            let prepared = self.queue.prepare(Sqe {
                op: self.phase.op(number) as u8,
                flags: if is_signalled { 0 } else { Flags::UNSIGNALLED },
                level: self.phase.level as u8,
                memory: self.memory,
                storage: self.storage,
                address: base + self.here.at(number),
                offset: *place,
                length: self.phase.bytes,
                ..Sqe::default()
            });
            debug_assert!(prepared, "the ring has room for what is under way");
            if (number + 1) % self.batch == 0 {
                self.queue.submit();
            }
        }
        self.queue.submit();
        self.take(signalled)
    }
}

impl PairedLoad for PhaseWorker<'_> {
    fn ours(&mut self) -> anyhow::Result<Duration> {
        self.round += 1;
        let places = std::mem::take(&mut self.places);
        let verifies = self.shadow.is_some();
        let (begun, mut aside) = (Instant::now(), Duration::ZERO);
        for group in places.chunks(self.phase.depth as usize) {
            if verifies {
                let begun = Instant::now();
                self.fill(group);
                aside += begun.elapsed();
            }
            self.post(group)?;
            if verifies {
                let begun = Instant::now();
                self.check(group)?;
                aside += begun.elapsed();
            }
        }
        let took = begun.elapsed() - aside;
        if let Some(shadow) = self.shadow.take() {
            let all = self.all(shadow.len() as u64)?;
            ensure!(all == shadow, "what was written is not all there");
            self.shadow = Some(shadow);
        }
        self.places = places;
        Ok(took)
    }

    fn plain(&mut self) -> Duration {
        let begun = Instant::now();
        let length = self.phase.bytes as usize;
        let shift = self.here.shift as usize;
        let bytes = self.window.bytes();
        for group in self.places.chunks(self.phase.depth as usize) {
            for (number, place) in (0..).zip(group) {
                let at = number as usize * self.here.stride as usize;
                let here = &mut self.plain[at + shift..][..length];
                let there = &mut bytes[*place as usize..][..length];
                match (self.phase.op(number), self.phase.level) {
                    (Op::Read, _) => here.copy_from_slice(there),
                    (_, Level::Persistent) => kernel::past_caches(there, here),
                    _ => there.copy_from_slice(here),
                }
            }
            if self.phase.level == Level::Persistent {
                kernel::fence();
            }
        }
        std::hint::black_box(&self.plain);
        begun.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_aligned_as_asked_for_and_no_more() {
        for bytes in [1, 32, 100, 4096, 1 << 20] {
            for align in [1, 8, 64, 2048, 4096, 8192] {
                let spacing = Spacing::new(bytes, align);
                for number in 0..9 {
                    let at = spacing.at(number);
                    let exact = at % (2 * align) == align;
                    assert!(
                        at.is_multiple_of(align) && (exact || align >= 4096),
                        "{bytes} {align}"
                    );
                    assert!(spacing.at(number + 1) >= at + bytes);
                }
            }
        }
    }
}
