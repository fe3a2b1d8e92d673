//! Partitions that are used in units, on the disk where the tests' own files are, or whatever is there.

use proptest::prelude::*;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tarn_partitions::{
    Code, Cqe, Failure, Flags, Level, Memory, Op, OpenOptions, Options, Partition, Queue, Sqe,
};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const ALL: usize = 1 << 20;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

fn made(folder: &Path, size: u64, unit: u32) -> PathBuf {
    let path = folder.join(format!("field{unit}"));
    Partition::create_units(&path, size, unit, Vec::new()).expect("room");
    path
}

fn open(path: &Path) -> Partition {
    Partition::open(path, OpenOptions::default()).expect("it is there")
}

/// A queue pair, some memory, and the regions of all of both.
struct Hands {
    queue: Queue,
    cells: &'static [Cell<u8>],
    memory: u32,
    region: u32,
}

impl Hands {
    fn new(partition: &Partition) -> Self {
        let mut queue = Queue::new(64, Options::default()).unwrap();
        let cells = Box::leak(vec![Cell::new(0); ALL].into_boxed_slice());
        let size = partition.size().unwrap();
        Self {
            memory: queue.register_memory(Memory::of(cells)).unwrap(),
            region: queue
                .register(partition, 0, size, partition.is_writable())
                .unwrap(),
            queue,
            cells,
        }
    }

    /// Of some bytes of the memory.
    fn request(&self, op: Op, offset: u64, at: usize, length: usize) -> Sqe {
        Sqe {
            op: op as u8,
            memory: self.memory,
            storage: self.region,
            address: self.cells[at..].as_ptr().addr() as u64,
            offset,
            length: length as u64,
            ..Sqe::default()
        }
    }

    fn done(&mut self, request: Sqe) -> Cqe {
        assert!(self.queue.prepare(request));
        self.queue.wait(1, PATIENCE).expect("it ends");
        self.queue.reap().expect("it has ended")
    }

    fn write(&mut self, offset: u64, at: usize, bytes: &[u8]) -> Cqe {
        let cells = self.cells[at..].iter();
        cells.zip(bytes).for_each(|(cell, byte)| cell.set(*byte));
        self.done(self.request(Op::Write, offset, at, bytes.len()))
    }

    fn read(&mut self, offset: u64, at: usize, length: usize) -> Result<Vec<u8>, i32> {
        let done = self.done(self.request(Op::Read, offset, at, length));
        match done.code {
            0 => Ok(self.cells[at..at + length].iter().map(Cell::get).collect()),
            code => Err(code),
        }
    }

    fn add(&mut self, offset: u64, operand: u64) -> Cqe {
        let request = self.request(Op::FetchAdd, offset, 0, 0);
        self.done(Sqe { operand, ..request })
    }

    fn flush(&mut self) -> i32 {
        self.done(self.request(Op::Flush, 0, 0, 0)).code
    }
}

#[test]
fn what_is_written_is_there_for_others_and_later() {
    let folder = folder();
    for unit in [512, 4096, 8192, 16384] {
        let path = made(folder.path(), 3 * MIB + 1, unit);
        let partition = open(&path);
        let unit = partition.info().unwrap().unit;
        let size = 3 * MIB + u64::from(unit.max(4096));
        assert_eq!(partition.size().unwrap(), size);
        let mut one = Hands::new(&partition);
        let other = open(&path);
        let mut two = Hands::new(&other);
        assert_eq!(two.read(0, 1, 100).unwrap(), [0; 100]);
        let mut at = 1;
        for length in [1, 7, 512, 4095, 4096, 4097, 16384, 50_000, 400_000] {
            for skip in [0, 1, 512] {
                let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + length + skip) as u8).collect();
                let done = one.write(at, skip, &bytes);
                assert_eq!((done.code, done.value), (0, length as u64));
                let read = two.read(at, 3 - skip.min(3), length).unwrap();
                assert!(read == bytes, "{length} bytes at {at} from {skip}");
                at += length as u64 + 3;
            }
            at = at.next_multiple_of(4096);
        }
        assert_eq!(one.write(size - 1, 0, b"x").code, 0);
        assert_eq!(one.write(size - 1, 0, b"xy").code, Failure::Invalid.code());
        assert_eq!(one.flush(), 0);
        drop((one, two, partition, other));
        assert_eq!(Hands::new(&open(&path)).read(size - 1, 0, 1).unwrap(), b"x");
    }
}
