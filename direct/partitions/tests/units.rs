//! Partitions that are used in units, on the disk of the tests' own files, with any file system.

use proptest::prelude::*;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tarn_partitions::{
    Code, Cqe, Flags, Level, Op, OpenOptions, Options, Partition, PartitionQueue, ProgramMemory,
    Sqe, StorageRequestError,
};

const MIB: u64 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(60);
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
    queue: PartitionQueue,
    cells: &'static [Cell<u8>],
    memory: u32,
    region: u32,
}

impl Hands {
    fn new(partition: &Partition) -> Self {
        let mut queue = PartitionQueue::new(64, Options::default()).unwrap();
        let cells = Box::leak(vec![Cell::new(0); ALL].into_boxed_slice());
        let size = partition.size().unwrap();
        Self {
            memory: queue.register_memory(ProgramMemory::of(cells)).unwrap(),
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
        self.queue.wait(1, TIMEOUT).expect("it ends");
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
        assert_eq!(
            one.write(size - 1, 0, b"xy").code,
            StorageRequestError::Invalid.code()
        );
        assert_eq!(one.flush(), 0);
        drop((one, two, partition, other));
        assert_eq!(Hands::new(&open(&path)).read(size - 1, 0, 1).unwrap(), b"x");
    }
}

/// How long a piece is, and whether it is written: the byte, its place in memory, and whether that is persistent.
type Piece = (u16, Option<(u8, u8, bool)>);

/// The work of a batch of requests.
#[derive(Debug, Clone)]
enum Step {
    /// Disjoint pieces of a range.
    Write(u64, Vec<Piece>),
    Add(u64, u64),
    Read(u64, usize, usize),
    Flush,
    Again,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![1..64_u16, 500..530_u16, 4000..20_000_u16];
    let written = proptest::option::weighted(0.7, (any::<u8>(), 0..3_u8, any::<bool>()));
    let piece = (length, written);
    let at = prop_oneof![0..400_000_u64, (0..48_u64).prop_map(|unit| unit * 8192)];
    let step = prop_oneof![
        6 => (at.clone(), proptest::collection::vec(piece, 1..12)).prop_map(|(at, all)| Step::Write(at, all)),
        2 => (at.clone(), any::<u64>()).prop_map(|(at, add)| Step::Add(at / 8 * 8, add)),
        3 => (at, 1..200_000_usize, 0..3_usize).prop_map(|(at, length, skip)| Step::Read(at, length, skip)),
        1 => Just(Step::Flush),
        1 => Just(Step::Again),
    ];
    proptest::collection::vec(step, 1..20)
}

/// The place of bytes in memory: aligned as a medium wants it, or not.
fn skipped(at: usize, skip: usize) -> usize {
    at.next_multiple_of(4096) + [0, 1, 512][skip]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]
    #[test]
    fn it_is_as_bytes_in_memory_are(steps in steps(), unit in prop_oneof![Just(512), Just(4096), Just(8192)]) {
        let folder = folder();
        let path = made(folder.path(), MIB, unit);
        let partition = open(&path);
        let mut hands = [Hands::new(&partition), Hands::new(&partition)];
        let mut model = vec![0_u8; MIB as usize];
        for step in steps {
            match step {
                Step::Write(start, pieces) => {
                    let (mut at, mut memory, mut posted) = (start as usize, 0, 0);
                    for (length, written) in pieces {
                        let length = usize::from(length);
                        let from = skipped(memory, written.map_or(0, |(_, skip, _)| skip.into()));
                        if at + length > model.len() || from + length > ALL {
                            break;
                        }
                        if let Some((value, _, persistent)) = written {
                            let bytes: Vec<u8> = (0..length).map(|i| value.wrapping_add(i as u8)).collect();
                            // Both at the same time.
                            let hands = &mut hands[posted % 2];
                            hands.cells[from..].iter().zip(&bytes).for_each(|(cell, byte)| cell.set(*byte));
                            let level = if persistent { Level::Persistent as u8 } else { 0 };
                            let request = hands.request(Op::Write, at as u64, from, length);
                            let prepared = hands.queue.prepare(Sqe { level, ..request });
                            prop_assert!(prepared);
                            hands.queue.submit();
                            model[at..at + length].copy_from_slice(&bytes);
                            posted += 1;
                            memory = from + length;
                        }
                        at += length;
                    }
                    for (number, hands) in hands.iter_mut().enumerate() {
                        let mine = posted.div_ceil(2) - number * (posted % 2);
                        hands.queue.wait(mine as u32, TIMEOUT).unwrap();
                        for _ in 0..mine {
                            prop_assert_eq!(hands.queue.reap().unwrap().code, 0);
                        }
                    }
                }
                Step::Add(at, add) => {
                    let there = &mut model[at as usize..][..8];
                    let before = u64::from_ne_bytes(there.try_into().unwrap());
                    there.copy_from_slice(&before.wrapping_add(add).to_ne_bytes());
                    prop_assert_eq!(hands[0].add(at, add).value, before);
                }
                Step::Read(at, length, skip) => {
                    let read = hands[1].read(at, skipped(0, skip), length).unwrap();
                    prop_assert!(read == model[at as usize..][..length]);
                }
                Step::Flush => prop_assert_eq!(hands[0].flush(), 0),
                Step::Again => hands[0] = Hands::new(&partition),
            }
        }
        drop(hands);
        let read = Hands::new(&open(&path)).read(0, 0, MIB as usize).unwrap();
        prop_assert!(read == model);
    }
}

#[test]
fn threads_that_change_neighbours_in_a_unit_lose_nothing() {
    let folder = folder();
    let path = made(folder.path(), MIB, 8192);
    std::thread::scope(|scope| {
        for number in 0..4_u64 {
            let path = &path;
            scope.spawn(move || {
                let mut hands = Hands::new(&open(path));
                for turn in 1..=40_u64 {
                    let at = 16 + number * 8;
                    assert_eq!(hands.write(at, 0, &turn.to_ne_bytes()).code, 0);
                    assert_eq!(hands.read(at, 0, 8).unwrap(), turn.to_ne_bytes());
                    assert_eq!(hands.add(0, 1).code, 0);
                }
            });
        }
    });
    let mut hands = Hands::new(&open(&path));
    assert_eq!(hands.read(0, 0, 8).unwrap(), 160_u64.to_ne_bytes());
    for number in 0..4 {
        assert_eq!(
            hands.read(16 + number * 8, 0, 8).unwrap(),
            40_u64.to_ne_bytes()
        );
    }
}

#[test]
fn a_cyclic_partition_is_of_units_and_of_memory() {
    let (disk, memory) = (folder(), tempfile::tempdir_in("/dev/shm").unwrap());
    let paths = [
        made(disk.path(), MIB, 4096),
        memory.path().join("field"),
        made(disk.path(), MIB, 8192),
    ];
    Partition::create(&paths[1], MIB, Vec::new()).unwrap();
    let whole = Partition::open_cyclic(&paths, 12288, OpenOptions::default()).unwrap();
    let mut hands = Hands::new(&whole);
    let bytes: Vec<u8> = (0..200_000).map(|i| ((i * 13) >> 4) as u8).collect();
    assert_eq!(hands.write(5000, 3, &bytes).value, 200_000);
    assert!(hands.read(5000, 0, 200_000).unwrap() == bytes);
    assert_eq!(hands.add(24576, 1).code, 0);
    assert_eq!(hands.flush(), StorageRequestError::Volatile.code());
    let size = whole.grow(5 * MIB).unwrap();
    assert!(size >= 5 * MIB);
    let region = hands.queue.register(&whole, size - 100, 100, true).unwrap();
    hands.region = region;
    assert_eq!(hands.write(0, 0, &[7; 100]).code, 0);
}

#[test]
fn one_link_of_a_chain_after_the_other_is_done() {
    let folder = folder();
    let partition = open(&made(folder.path(), MIB, 4096));
    let mut hands = Hands::new(&partition);
    hands.cells[..8].iter().for_each(|cell| cell.set(9));
    let flags = Flags::LINKED;
    let write = hands.request(Op::Write, 4000, 0, 8);
    let read = hands.request(Op::Read, 4000, 100, 8);
    let outside = hands.request(Op::Read, MIB, 0, 8);
    for request in [
        Sqe { flags, ..write },
        Sqe { flags, ..read },
        Sqe { flags, ..outside },
        write,
    ] {
        assert!(hands.queue.prepare(request));
    }
    hands.queue.wait(4, TIMEOUT).unwrap();
    let codes: Vec<i32> = std::iter::from_fn(|| hands.queue.reap())
        .map(|done| done.code)
        .collect();
    assert_eq!(
        codes,
        [
            0,
            0,
            StorageRequestError::Invalid.code(),
            StorageRequestError::Cancelled.code()
        ]
    );
    assert!(hands.cells[100..108].iter().all(|cell| cell.get() == 9));
}

#[test]
fn who_polls_the_descriptor_is_told_of_what_ends_later() {
    use rustix::event::{PollFd, PollFlags, poll};
    let folder = folder();
    let partition = open(&made(folder.path(), MIB, 4096));
    let mut hands = Hands::new(&partition);
    for op in [Op::Read, Op::Write, Op::Flush] {
        let request = hands.request(op, 1, 1, if op == Op::Flush { 0 } else { 9 });
        assert!(hands.queue.prepare(request));
        assert_eq!(hands.queue.submit(), 1);
        let mut done = None;
        while done.is_none() {
            let event = hands.queue.event().unwrap();
            let ready = poll(
                &mut [PollFd::new(&event, PollFlags::IN)],
                Some(&TIMEOUT.try_into().unwrap()),
            );
            assert_eq!(ready, Ok(1), "{op:?}");
            hands.queue.submit();
            done = hands.queue.reap();
        }
        assert_eq!(done.unwrap().code, 0);
    }
    let nothing = hands.queue.wait(1, Duration::from_millis(1));
    assert_eq!(nothing.unwrap_err().code, Code::Invalid);
}

#[test]
fn it_is_resized_and_opened_by_who_may_only_read() {
    let folder = folder();
    let path = made(folder.path(), MIB, 8192);
    let reader = OpenOptions {
        writable: false,
        ..OpenOptions::default()
    };
    let partition = Partition::open(&path, reader).unwrap();
    let mut hands = Hands::new(&partition);
    assert_eq!(hands.read(MIB - 5, 0, 5).unwrap(), [0; 5]);
    assert_eq!(
        hands.write(0, 0, b"x").code,
        StorageRequestError::Invalid.code()
    );
    assert_eq!(Partition::resize(&path, 5).unwrap_err().code, Code::Busy);
    assert_eq!(Partition::delete(&path).unwrap_err().code, Code::Busy);
    drop((hands, partition));
    Partition::resize(&path, 5).unwrap();
    let partition = open(&path);
    assert_eq!(partition.size().unwrap(), 8192);
    assert_eq!(partition.grow(20_000).unwrap(), 24_576);
    let mut hands = Hands::new(&partition);
    assert_eq!(hands.write(24_575, 0, b"x").code, 0);
    drop((hands, partition));
    Partition::delete(&path).unwrap();
}

#[test]
fn what_the_medium_is_says_how_it_is_used() {
    let (disk, memory) = (folder(), tempfile::tempdir_in("/dev/shm").unwrap());
    let unit = |folder: &Path, requested: Option<u32>| {
        let path = folder.join(format!("{requested:?}"));
        match requested {
            None => Partition::create(&path, MIB, Vec::new()),
            Some(unit) => Partition::create_units(&path, MIB, unit, Vec::new()),
        }
        .unwrap();
        open(&path).info().unwrap().unit
    };
    assert_eq!(unit(memory.path(), None), 0);
    assert_eq!(unit(memory.path(), Some(8192)), 8192);
    assert_eq!(unit(disk.path(), Some(16384)), 16384);
    assert_eq!(unit(disk.path(), Some(0)), 0);
    let is_memory = open(&disk.path().join("Some(0)")).promises().power_fail
        == tarn_partitions::PowerFail::Lost;
    let usual = unit(disk.path(), None);
    assert!(usual >= 4096 || is_memory && usual == 0);
    for bad in [1, 256, 5000, 32768] {
        let refused = Partition::create_units(&disk.path().join("bad"), MIB, bad, Vec::new());
        assert_eq!(refused.unwrap_err().code, Code::Invalid);
    }
}

#[test]
fn a_full_disk_refuses_a_partition_and_lets_one_that_is_there_be_written() {
    // Memory refuses at once what it could never hold; a disk takes all that it has first, which others want.
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let path = made(folder.path(), MIB, 4096);
    let free = rustix::fs::statvfs(folder.path()).unwrap();
    let more = free.f_blocks * free.f_frsize + MIB;
    let refused = Partition::create_units(&folder.path().join("large"), more, 4096, Vec::new());
    assert_eq!(refused.unwrap_err().code, Code::NoSpace);
    let partition = open(&path);
    assert_eq!(partition.grow(more).unwrap_err().code, Code::NoSpace);
    let mut hands = Hands::new(&partition);
    for unit in 0..256 {
        assert_eq!(hands.write(unit * 4096 + 9, 0, b"x").code, 0);
    }
    assert_eq!(partition.size().unwrap(), MIB);
}
