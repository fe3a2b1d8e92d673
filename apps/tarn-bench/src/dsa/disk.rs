//! A partition of a disk, in units, beside an io_uring of the same depth on the same file.

use super::{Args, DsaCase, LOCAL, MIB, places};
use crate::figure::{BenchFigure, median};
use crate::scratch::ScratchFolder;
use anyhow::{Context, ensure};
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};
use tarn_media::UncachedFile;
use tarn_partitions::{Op, OpenOptions, Options, Partition, PartitionQueue, ProgramMemory, Sqe};
use tarn_types::units::Bytes;

/// Requests at the same time.
const DEPTH: u32 = 32;
/// The offset of a partition's data in its file.
const DATA: u64 = 2 * MIB;
const UNIT: u32 = 4096;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Measures a case of a disk.
///
/// # Errors
/// When there is no space, or a request fails.
pub(super) fn measure(args: &Args, case: DsaCase, folder: &Path) -> anyhow::Result<BenchFigure> {
    let scratch = ScratchFolder::new(folder)?;
    let path = scratch.path().join("disk");
    Partition::create_units(&path, args.mib * MIB, UNIT, Vec::new())?;
    let partition = Partition::open(&path, OpenOptions::default())?;
    let mut hands = DiskQueueLoad::new(&partition)?;
    // Blocks that were never written are not read from the disk.
    let whole = (0..args.mib).map(|number| number * MIB);
    hands.run(Op::Write, MIB, whole)?;
    let few = Args {
        requests: (args.requests / 16).max(1),
        ..args.clone()
    };
    let shape = case.shape(args);
    let places = places(&few, shape.bytes, args.mib * MIB);
    let is_write = shape.op == Op::Write;
    let file = path.with_extension("partition");
    let mut bare = UncachedFile::new(&file, DEPTH, shape.bytes as usize, is_write)
        .context("io_uring alone, beside which a disk is measured")?;
    let (mut ours, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        let rate = |begun: Instant| places.len() as f64 / begun.elapsed().as_secs_f64() / 1e6;
        let begun = Instant::now();
        bare.run(places.iter().map(|place| DATA + place))?;
        beside.push(rate(begun));
        let begun = Instant::now();
        hands.run(shape.op, shape.bytes, places.iter().copied())?;
        ours.push(rate(begun));
    }
    Ok(BenchFigure {
        name: format!(
            "{}, {} by {}, {DEPTH} at the same time, {:?}",
            case.name(),
            Bytes(args.mib * MIB),
            Bytes(shape.bytes),
            partition.promises().power_fail,
        ),
        value: median(&ours),
        unit: "M/s",
        against: Some((case.plain().into(), median(&beside))),
    })
}

/// A queue pair that always has as many requests under way.
struct DiskQueueLoad {
    queue: PartitionQueue,
    base: u64,
    memory: u32,
    region: u32,
}

impl DiskQueueLoad {
    fn new(partition: &Partition) -> anyhow::Result<Self> {
        let options = Options {
            volatile: true,
            ..Options::default()
        };
        let mut queue = PartitionQueue::new(DEPTH, options)?;
        let filled = (0..LOCAL + u64::from(UNIT)).map(|at| Cell::new(at as u8));
        // As long as the program.
        let cells: &'static [Cell<u8>] = Box::leak(filled.collect());
        let base = cells.as_ptr().addr() as u64;
        Ok(Self {
            memory: queue.register_memory(ProgramMemory::of(cells))?,
            region: queue.register(partition, 0, partition.size()?, true)?,
            queue,
            base: base.next_multiple_of(UNIT.into()),
        })
    }

    fn run(
        &mut self,
        op: Op,
        length: u64,
        places: impl Iterator<Item = u64>,
    ) -> anyhow::Result<()> {
        let mut places = places.peekable();
        let mut free: Vec<u64> = (0..DEPTH.into()).collect();
        while free.len() < DEPTH as usize || places.peek().is_some() {
            while !free.is_empty()
                && let Some(offset) = places.next()
                && let Some(number) = free.pop()
            {
                self.queue.prepare(Sqe {
                    op: op as u8,
                    memory: self.memory,
                    storage: self.region,
                    address: self.base + number * length % LOCAL,
                    offset,
                    length,
                    user_data: number,
                    ..Sqe::default()
                });
            }
            self.queue.wait(1, TIMEOUT)?;
            while let Some(completion) = self.queue.reap() {
                ensure!(completion.code == 0, "a request has failed");
                free.push(completion.user_data);
            }
        }
        Ok(())
    }
}
