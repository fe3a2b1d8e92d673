//! A partition of another node, read and written by libfabric, beside a bare loop of the same requests over it.

use super::{Args, DsaCase, MIB, places};
use crate::cluster::peer::PeerProcess;
use crate::figure::{BenchFigure, median};
use crate::scratch::ScratchFolder;
use anyhow::{Context, ensure};
use std::cell::Cell;
use std::time::Instant;
use tarn_data_plane::RemoteStorage;
use tarn_partitions::{Op, Partition, ProgramMemory, Sqe};
use tarn_queue::{Options, Queue};
use tarn_types::units::Bytes;

/// Bytes of a request.
const BYTES: u64 = 4096;
/// Requests at the same time.
const DEPTHS: [u32; 2] = [32, 1];
/// Of the requests of other cases, one in so many.
const FEWER: u64 = 16;
/// Bytes of the partition.
const MIB_THERE: u64 = 256;

/// Measures a case: reads and writes, several at the same time and one after the other.
///
/// # Errors
/// When there is no peer, no space, or a request fails.
pub(super) fn measure(args: &Args, case: DsaCase) -> anyhow::Result<Vec<BenchFigure>> {
    let provider = match case {
        DsaCase::RemoteShm => "shm",
        _ => "tcp;ofi_rxm",
    };
    let args = Args {
        mib: args.mib.min(MIB_THERE),
        requests: (args.requests / FEWER).max(1),
        ..args.clone()
    };
    let scratch = ScratchFolder::new(&args.dir)?;
    let size = args.mib * MIB;
    Partition::create_units(&scratch.path().join("remote"), size, 0, Vec::new())?;
    let mut peer = PeerProcess::with_provider(scratch.path(), provider)?;
    let mut bare = peer.bare_window(provider, size)?;
    let places = places(&args, BYTES, size);
    let mut figures = Vec::new();
    for depth in DEPTHS {
        let mut hands = RemoteQueueLoad::new(peer.partition("remote", provider)?, size, depth)?;
        for write in [true, false] {
            let (mut ours, mut beside) = (Vec::new(), Vec::new());
            for round in 0..args.warm.min(1) + args.rounds {
                let rate =
                    |begun: Instant| places.len() as f64 / begun.elapsed().as_secs_f64() / 1e3;
                peer.work(true)?;
                let begun = Instant::now();
                bare.run(write, &places, &hands.spans()?)?;
                let plain = rate(begun);
                peer.work(false)?;
                let begun = Instant::now();
                hands.run(write, &places)?;
                let own = rate(begun);
                if round >= args.warm.min(1) {
                    ours.push(own);
                    beside.push(plain);
                }
            }
            let what = if write { "writes" } else { "reads" };
            figures.push(BenchFigure {
                name: format!(
                    "{}, {what}, {} by {}, {depth} at the same time, {}",
                    case.name(),
                    Bytes(size),
                    Bytes(BYTES),
                    peer.link
                ),
                value: median(&ours),
                unit: "k/s",
                against: Some((case.plain().into(), median(&beside))),
            });
        }
    }
    Ok(figures)
}

/// A queue pair that always has as many requests under way.
struct RemoteQueueLoad {
    queue: Queue<RemoteStorage>,
    cells: &'static [Cell<u8>],
    template: Sqe,
    depth: u32,
}

impl RemoteQueueLoad {
    fn new(far: RemoteStorage, size: u64, depth: u32) -> anyhow::Result<Self> {
        let mut queue = Queue::new(depth, Options::default()).context("no queue pair")?;
        let filled = (0..u64::from(depth) * BYTES).map(|at| Cell::new(at as u8));
        // As long as the program.
        let cells: &'static [Cell<u8>] = Box::leak(filled.collect());
        let none = |_| anyhow::anyhow!("no region");
        let template = Sqe {
            memory: queue
                .register_memory(ProgramMemory::of(cells))
                .map_err(none)?,
            storage: queue.register_new(far, 0, size, true).map_err(none)?.0,
            length: BYTES,
            ..Sqe::default()
        };
        Ok(Self {
            queue,
            cells,
            template,
            depth,
        })
    }

    fn spans(&self) -> anyhow::Result<Vec<tarn_ring::MemorySpan>> {
        let memory = ProgramMemory::of(self.cells);
        let base = self.cells.as_ptr().addr() as u64;
        let spans =
            (0..u64::from(self.depth)).map(|number| memory.span(base + number * BYTES, BYTES));
        spans.collect::<Option<_>>().context("no memory")
    }

    fn run(&mut self, write: bool, places: &[u64]) -> anyhow::Result<()> {
        let op = if write { Op::Write } else { Op::Read };
        let base = self.cells.as_ptr().addr() as u64;
        let mut places = places.iter();
        let mut free: Vec<u64> = (0..self.depth.into()).collect();
        while free.len() < self.depth as usize || places.len() > 0 {
            while !free.is_empty()
                && let Some(offset) = places.next()
                && let Some(number) = free.pop()
            {
                self.queue.rings().prepare(Sqe {
                    op: op as u8,
                    address: base + number * BYTES,
                    offset: *offset,
                    user_data: number,
                    ..self.template
                });
            }
            self.queue.submit();
            self.queue.poll();
            while let Some(completion) = self.queue.rings().reap() {
                ensure!(completion.code == 0, "a request has failed");
                free.push(completion.user_data);
            }
        }
        Ok(())
    }
}
