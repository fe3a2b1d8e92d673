//! Partitions in folders of this machine's memory and disk, and queue pairs to them.

use std::cell::Cell;
use std::fs::OpenOptions as Open;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use tarn_partitions::{
    Code, Cqe, Grant, Grantee, Op, OpenOptions, Options, Partition, PartitionQueue, PowerFail,
    ProgramMemory, Sqe, StorageRequestError,
};

const MIB: u64 = 1 << 20;
/// Bytes of a program's memory.
const ALL: usize = 3 << 20;
const READ_ONLY: OpenOptions = OpenOptions {
    writable: false,
    populate: false,
    guarded: true,
};

/// A folder in memory.
fn memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a folder in memory")
}

fn open(path: &Path) -> Partition {
    Partition::open(path, OpenOptions::default()).expect("it is there")
}

fn made(folder: &Path, size: u64) -> PathBuf {
    let path = folder.join("field");
    Partition::create(&path, size, Vec::new()).expect("room");
    path
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
        let options = Options {
            volatile: true,
            ..Options::default()
        };
        let mut queue = PartitionQueue::new(64, options).unwrap();
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

    fn request(&self, op: Op, offset: u64, length: usize) -> Sqe {
        Sqe {
            op: op as u8,
            memory: self.memory,
            storage: self.region,
            address: self.cells.as_ptr().addr() as u64,
            offset,
            length: length as u64,
            ..Sqe::default()
        }
    }

    fn done(&mut self, request: Sqe) -> Cqe {
        assert!(self.queue.prepare(request));
        assert_eq!(self.queue.submit(), 1);
        self.queue.reap().expect("it is done at once")
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> i32 {
        self.cells
            .iter()
            .zip(bytes)
            .for_each(|(cell, byte)| cell.set(*byte));
        self.done(self.request(Op::Write, offset, bytes.len())).code
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, i32> {
        let done = self.done(self.request(Op::Read, offset, length));
        match done.code {
            0 => Ok(self.cells[..length].iter().map(Cell::get).collect()),
            code => Err(code),
        }
    }
}

#[test]
fn reads_of_one_doorbell_however_long_find_what_is_there() {
    let folder = memory();
    let partition = open(&made(folder.path(), MIB));
    let mut hands = Hands::new(&partition);
    let all: Vec<u8> = (0..MIB).map(|n| ((n * n) >> 9) as u8).collect();
    assert_eq!(hands.write(0, &all), 0);
    // Words, lines, lengths that are fetched ahead of their turn, and longer ones.
    let lengths = [
        4096, 32, 70_000, 65_536, 5, 100, 64, 513, 512, 4095, 65, 8192,
    ];
    for turn in 0..lengths.len() {
        hands.cells.iter().for_each(|cell| cell.set(0));
        let mut to = 0;
        for number in 0..64 {
            let length = lengths[(turn + number) % lengths.len()];
            let from = (number * 15_485_863 + turn) % (MIB as usize - length);
            let mut request = hands.request(Op::Read, from as u64, length);
            request.address += to as u64;
            request.user_data = (from as u64) << 32 | to as u64;
            to += length;
            assert!(to <= ALL && hands.queue.prepare(request));
        }
        assert_eq!(hands.queue.submit(), 64);
        for _ in 0..64 {
            let end = hands.queue.reap().expect("it is done at once");
            assert_eq!(end.code, 0);
            let (from, to) = (end.user_data >> 32, end.user_data & 0xffff_ffff);
            let (from, to) = (from as usize, to as usize);
            let found = &hands.cells[to..to + end.value as usize];
            let found = found.iter().map(Cell::get);
            assert!(found.eq(all[from..].iter().copied().take(end.value as usize)));
        }
        assert!(hands.cells[to..].iter().all(|cell| cell.get() == 0));
    }
}

#[test]
fn what_is_written_is_there_for_others_and_later() {
    let folder = memory();
    let path = made(folder.path(), 3 * MIB + 1);
    let partition = open(&path);
    assert_eq!(partition.size().unwrap(), 3 * MIB + 4096);
    let mut one = Hands::new(&partition);
    let other = open(&path);
    let mut two = Hands::new(&other);
    assert_eq!(two.read(0, 100).unwrap(), [0; 100]);
    // Lengths on both sides of the size that goes past the caches, and any alignment.
    let mut at = 1;
    for length in [
        1, 7, 8, 16, 31, 32, 64, 100, 4095, 4096, 4097, 10_000, 65_536,
    ] {
        let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + length) as u8).collect();
        assert_eq!(one.write(at, &bytes), 0);
        assert_eq!(
            two.read(at, length).unwrap(),
            bytes,
            "{length} bytes at {at}"
        );
        at += length as u64 + 3;
    }
    let last = 3 * MIB + 4095;
    assert_eq!(one.write(last, b"x"), 0);
    assert_eq!(one.write(last, b"xy"), StorageRequestError::Invalid.code());
    drop((one, two, partition, other));
    assert_eq!(Hands::new(&open(&path)).read(last, 1).unwrap(), b"x");
}

/// Lengths that the system copies and others, over the edges of pieces, first uses and later ones, by some that have it open:
/// each finds the bytes that were written last, with any mappings.
#[test]
fn all_find_what_was_written_last_whatever_of_it_is_mapped() {
    let folder = memory();
    let path = made(folder.path(), 7 * MIB);
    let partitions: Vec<_> = (0..3).map(|_| open(&path)).collect();
    let everything = OpenOptions {
        populate: true,
        ..OpenOptions::default()
    };
    let mapped = Partition::open(&path, everything).unwrap();
    let mut all: Vec<_> = partitions.iter().map(Hands::new).collect();
    all.push(Hands::new(&partitions[0]));
    all.push(Hands::new(&mapped));
    let mut model = vec![0_u8; 7 << 20];
    let mut random = 88_172_645_463_325_252_u64;
    let mut below = |end: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize % end
    };
    for turn in 0..120_u32 {
        if turn == 80 {
            assert_eq!(partitions[1].grow(9 * MIB).unwrap(), 9 * MIB);
            model.resize(9 << 20, 0);
            for (hands, number) in all.iter_mut().zip([0, 1, 2, 0]) {
                let partition = &partitions[number];
                assert_eq!(partition.size().unwrap(), 9 * MIB);
                hands.region = hands.queue.register(partition, 0, 9 * MIB, true).unwrap();
            }
            all.truncate(4);
        }
        let length = [8, 64, 4095, 4096, 70_000, 300_000, 600_000, ALL][below(8)];
        let at = below(model.len() - length + 1);
        let bytes: Vec<u8> = (0..length).map(|i| (i as u32 ^ turn) as u8).collect();
        let writer = below(all.len());
        assert_eq!(all[writer].write(at as u64, &bytes), 0);
        model[at..at + length].copy_from_slice(&bytes);
        let (reader, from) = (below(all.len()), below(model.len() - length + 1));
        let read = all[reader].read(from as u64, length).unwrap();
        assert!(
            read == model[from..from + length],
            "turn {turn}: {length} bytes from {from}"
        );
    }
    drop((all, partitions, mapped));
    let last = Hands::new(&open(&path)).read(6 * MIB, ALL).unwrap();
    assert!(last == model[6 << 20..]);
}

#[test]
fn threads_that_use_a_piece_first_at_the_same_time_lose_nothing() {
    let folder = memory();
    let path = made(folder.path(), 4 * MIB);
    let partition = open(&path);
    thread::scope(|scope| {
        for number in 0..4_usize {
            let partition = &partition;
            scope.spawn(move || {
                let mut hands = Hands::new(partition);
                for turn in 0..64_usize {
                    // Every fourth block of 16 KiB is this one's; the last are not of whole pages.
                    let at = (turn * 4 + number) * (16 << 10);
                    let bytes = vec![(turn * 4 + number) as u8; (16 << 10) - number % 2];
                    assert_eq!(hands.write(at as u64, &bytes), 0);
                    assert!(hands.read(at as u64, bytes.len()).unwrap() == bytes);
                }
            });
        }
    });
    let all = Hands::new(&open(&path)).read(MIB, ALL).unwrap();
    for (number, block) in (64..).zip(all.chunks(16 << 10)) {
        let written = block.len() - number % 2;
        assert!(block[..written].iter().all(|byte| *byte == number as u8));
    }
}

#[test]
fn several_are_one_block_by_block() {
    let folder = memory();
    let paths: Vec<_> = ["a", "b", "c"].map(|name| folder.path().join(name)).into();
    for (path, blocks) in paths.iter().zip([4, 3, 5]) {
        Partition::create(path, blocks * 8192, Vec::new()).expect("room");
    }
    let options = OpenOptions::default();
    let whole = Partition::open_cyclic(&paths, 8192, options).unwrap();
    // Whole rows of the smallest.
    assert_eq!(whole.size().unwrap(), 3 * 3 * 8192);
    assert_eq!(whole.info().unwrap().size, 3 * 3 * 8192);
    assert_eq!(whole.promises().power_fail, PowerFail::Lost);
    let bytes: Vec<u8> = (0..40_000_u32).map(|i| (i * 7 / 3) as u8).collect();
    assert_eq!(Hands::new(&whole).write(5000, &bytes), 0);
    // Every byte where the layout says, and nothing else.
    for (part, path) in paths.iter().enumerate() {
        let one = Hands::new(&open(path)).read(0, 3 * 8192).unwrap();
        for (there, byte) in one.iter().enumerate() {
            let at = (there / 8192 * 3 + part) * 8192 + there % 8192;
            let written = at.checked_sub(5000).and_then(|at| bytes.get(at));
            assert_eq!(byte, written.unwrap_or(&0), "byte {there} of part {part}");
        }
    }
    // It grows, and words of it are changed in one place whoever does it.
    assert_eq!(whole.grow(14 * 8192 + 1).unwrap(), 15 * 8192);
    let mut one = Hands::new(&whole);
    let add = Sqe {
        operand: 5,
        ..one.request(Op::FetchAdd, 13 * 8192 + 8, 0)
    };
    assert_eq!(one.done(add).value, 0);
    let second = Sqe {
        operand: 1,
        ..Hands::new(&open(&paths[1])).request(Op::FetchAdd, 4 * 8192 + 8, 0)
    };
    assert_eq!(Hands::new(&open(&paths[1])).done(second).value, 5);
    let full = whole.grow(1 << 60).unwrap_err();
    assert_eq!(full.code, Code::Invalid, "{full}");
    assert_eq!(whole.size().unwrap(), 15 * 8192);
    // Each of them is open.
    assert_eq!(Partition::delete(&paths[2]).unwrap_err().code, Code::Busy);
    drop((one, whole));
    Partition::delete(&paths[2]).unwrap();

    let refused = |paths: &[PathBuf], block| {
        let refused = Partition::open_cyclic(paths, block, options).unwrap_err();
        (refused.code, refused.text)
    };
    assert_eq!(refused(&paths, 8192).0, Code::NotFound);
    let (code, text) = refused(&[paths[0].clone(), paths[0].clone()], 8192);
    assert!(code == Code::Invalid && text.contains("twice"), "{text}");
    assert_eq!(refused(&paths, 1000).0, Code::Invalid);
    assert_eq!(refused(&[], 4096).0, Code::Invalid);
    let reader = Partition::open_cyclic(&paths[..2], 4096, READ_ONLY).unwrap();
    assert_eq!(reader.grow(1 << 30).unwrap_err().code, Code::Denied);
}

#[test]
fn words_are_changed_by_one_at_a_time() {
    let folder = memory();
    let path = made(folder.path(), MIB);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let partition = open(&path);
                let mut hands = Hands::new(&partition);
                for _ in 0..2000 {
                    let add = Sqe {
                        operand: 3,
                        ..hands.request(Op::FetchAdd, 64, 8)
                    };
                    assert_eq!(hands.done(add).code, 0);
                    // A lock: a process that finds 0 there has it.
                    let take = Sqe {
                        operand: 1,
                        ..hands.request(Op::CompareSwap, 128, 8)
                    };
                    while hands.done(take).value != 0 {
                        thread::yield_now();
                    }
                    let held = u64::from_le_bytes(hands.read(192, 8).unwrap().try_into().unwrap());
                    assert_eq!(hands.write(192, &(held + 1).to_le_bytes()), 0);
                    let free = Sqe {
                        expected: 1,
                        ..hands.request(Op::CompareSwap, 128, 8)
                    };
                    assert_eq!(hands.done(free).value, 1);
                }
            });
        }
    });
    let mut hands = Hands::new(&open(&path));
    assert_eq!(hands.read(64, 8).unwrap(), 24_000_u64.to_le_bytes());
    assert_eq!(hands.read(192, 8).unwrap(), 8_000_u64.to_le_bytes());
}

#[test]
fn who_may_only_read_cannot_write() {
    let folder = memory();
    let path = made(folder.path(), MIB);
    let partition = Partition::open(&path, READ_ONLY).unwrap();
    let mut hands = Hands::new(&partition);
    assert_eq!(hands.read(0, 8).unwrap(), [0; 8]);
    assert_eq!(hands.write(0, b"x"), StorageRequestError::Invalid.code());
    let to_write = hands.queue.register(&partition, 0, 8, true);
    assert_eq!(to_write.unwrap_err().code, Code::Denied);
}

#[test]
fn it_grows_while_others_have_it_and_they_find_that_when_they_ask() {
    let folder = memory();
    let path = made(folder.path(), MIB);
    let (partition, other) = (open(&path), open(&path));
    let mut two = Hands::new(&other);
    let mut one = Hands::new(&partition);
    assert_eq!(one.write(0, b"kept"), 0);
    assert_eq!(partition.grow(5 * MIB).unwrap(), 5 * MIB);
    assert_eq!(partition.grow(2 * MIB).unwrap(), 5 * MIB);
    let region = one.queue.register(&partition, 4 * MIB, MIB, true).unwrap();
    one.region = region;
    assert_eq!(one.write(MIB - 3, b"end"), 0);
    // Old regions stay valid, and new ones have the added bytes.
    assert_eq!(two.read(0, 4).unwrap(), b"kept");
    assert_eq!(other.size().unwrap(), 5 * MIB);
    two.region = two.queue.register(&other, 0, 5 * MIB, false).unwrap();
    assert_eq!(two.read(5 * MIB - 3, 3).unwrap(), b"end");
}

#[test]
fn what_is_open_is_neither_deleted_nor_made_smaller() {
    let folder = memory();
    let path = made(folder.path(), 4 * MIB);
    let partition = open(&path);
    let mut hands = Hands::new(&partition);
    drop(partition);
    // A region holds it as well.
    assert_eq!(Partition::delete(&path).unwrap_err().code, Code::Busy);
    assert_eq!(Partition::resize(&path, MIB).unwrap_err().code, Code::Busy);
    assert_eq!(hands.write(4 * MIB - 1, b"x"), 0);
    let region = hands.region;
    hands.queue.unregister(region).unwrap();
    Partition::resize(&path, MIB).unwrap();
    let file = path.with_extension("partition");
    assert_eq!(file.metadata().unwrap().len(), 3 * MIB);
    assert_eq!(open(&path).size().unwrap(), MIB);
    Partition::resize(&path, 2 * MIB).unwrap();
    assert_eq!(
        Hands::new(&open(&path)).read(2 * MIB - 4, 4).unwrap(),
        [0; 4]
    );
    Partition::delete(&path).unwrap();
    assert_eq!(Partition::delete(&path).unwrap_err().code, Code::NotFound);
    let gone = Partition::open(&path, OpenOptions::default()).unwrap_err();
    assert_eq!(gone.code, Code::NotFound);
}

#[test]
fn partitions_are_listed_with_who_may_have_them() {
    let folder = memory();
    let grants = vec![Grant {
        who: Grantee::Group(7),
        write: true,
    }];
    Partition::create(&folder.path().join("b"), MIB, grants.clone()).unwrap();
    Partition::create(&folder.path().join("a"), 2 * MIB, Vec::new()).unwrap();
    std::fs::write(folder.path().join("c.partition"), "no partition").unwrap();
    std::fs::write(folder.path().join("other"), "").unwrap();
    let found = Partition::list(folder.path()).unwrap();
    let names: Vec<_> = found
        .iter()
        .map(|i| (&i.name[..], i.size, i.damaged.is_some()))
        .collect();
    assert_eq!(
        names,
        [("a", 2 * MIB, false), ("b", MIB, false), ("c", 0, true)]
    );
    assert_eq!(found[1].grants, grants);
    assert_eq!(found[1].owner, rustix::process::geteuid().as_raw());
    assert_eq!(open(&folder.path().join("b")).info().unwrap(), found[1]);
    let mode = folder
        .path()
        .join("a.partition")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn bad_names_sizes_and_places_are_refused() {
    let folder = memory();
    let create = |name: &str, size| {
        Partition::create(&folder.path().join(name), size, Vec::new())
            .unwrap_err()
            .code
    };
    for name in [".hidden", "a\nb", &"x".repeat(201)] {
        assert_eq!(create(name, MIB), Code::Invalid, "{name}");
    }
    assert_eq!(create("x", 0), Code::Invalid);
    assert_eq!(create("x", u64::MAX), Code::Invalid);
    assert_eq!(create("no/folder", MIB), Code::NotFound);
    // More than there is memory: nobody is killed for it.
    assert_eq!(create("x", 1 << 49), Code::NoSpace);
    assert_eq!(
        Partition::create(Path::new("/"), MIB, Vec::new())
            .unwrap_err()
            .code,
        Code::Invalid
    );
    let path = made(folder.path(), MIB);
    assert_eq!(create("field", MIB), Code::Exists);
    let partition = open(&path);
    assert_eq!(partition.grow(1 << 49).unwrap_err().code, Code::NoSpace);
    assert_eq!(partition.size().unwrap(), MIB);
    assert_eq!(Partition::list(folder.path()).unwrap().len(), 1);
}

#[test]
fn a_damaged_header_is_found_and_the_other_copy_used() {
    let folder = memory();
    let path = made(folder.path(), MIB);
    let file = path.with_extension("partition");
    let spoil = |at: u64| {
        use std::os::unix::fs::FileExt;
        let file = Open::new().write(true).open(&file).unwrap();
        file.write_all_at(b"?", at).unwrap();
    };
    // Each copy alone, of one that was never resized and of one that was: both are the same.
    for (size, at) in [(MIB, 50), (2 * MIB, 16384 + 50), (3 * MIB, 50)] {
        open(&path).grow(size).unwrap();
        spoil(at);
        assert_eq!(open(&path).size().unwrap(), size);
        Partition::resize(&path, size).unwrap();
    }
    spoil(50);
    spoil(16384 + 50);
    let refused = Partition::open(&path, OpenOptions::default()).unwrap_err();
    assert_eq!(refused.code, Code::Corrupt, "{refused}");
    Partition::delete(&path).unwrap();
}

#[test]
fn a_file_made_shorter_under_a_mapping_kills_nobody() {
    let folder = memory();
    let path = made(folder.path(), 4 * MIB);
    let whole = folder.path().join("whole");
    Partition::create(&whole, MIB, Vec::new()).unwrap();
    let (partition, other) = (open(&path), open(&whole));
    let mut hands = Hands::new(&partition);
    let others = hands.queue.register(&other, 0, MIB, true).unwrap();
    assert_eq!(hands.write(3 * MIB, b"there"), 0);
    let file = Open::new()
        .write(true)
        .open(path.with_extension("partition"))
        .unwrap();
    file.set_len(3 * MIB).unwrap();
    let corrupt = StorageRequestError::Corrupt.code();
    assert_eq!(hands.read(3 * MIB, 5), Err(corrupt));
    // It is broken for good here, and nothing else of this queue pair is.
    assert_eq!(hands.write(0, b"x"), corrupt);
    let of_other = Sqe {
        storage: others,
        ..hands.request(Op::Write, 0, 1)
    };
    assert_eq!(hands.done(of_other).code, 0);
    assert_eq!(partition.size().unwrap_err().code, Code::Corrupt);
    assert_eq!(partition.grow(5 * MIB).unwrap_err().code, Code::Corrupt);
    let again = Partition::open(&path, OpenOptions::default()).unwrap_err();
    assert_eq!(again.code, Code::Corrupt);
}

/// On a disk the system makes written pages persistent, and would report success.
#[test]
fn nothing_is_told_to_be_persistent_or_read_that_is_not_there_any_more() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let corrupt = StorageRequestError::Corrupt.code();
    let persistent = |request: Sqe| Sqe {
        level: 3,
        ..request
    };
    // A read beside a write, a read beside a flush, a write alone.
    for case in 0..3 {
        let path = folder.path().join(format!("field{case}"));
        Partition::create_units(&path, MIB, 0, Vec::new()).unwrap();
        let partition = open(&path);
        let mut hands = Hands::new(&partition);
        assert_eq!(hands.write(0, &[7; 8192]), 0);
        let file = Open::new()
            .write(true)
            .open(path.with_extension("partition"));
        file.unwrap().set_len(600 << 10).unwrap();
        let gone = MIB - 8192;
        let requests = match case {
            0 => vec![
                hands.request(Op::Read, gone, 4096),
                persistent(hands.request(Op::Write, 0, 4096)),
            ],
            1 => vec![
                hands.request(Op::Read, gone, 4096),
                hands.request(Op::Flush, 0, 0),
            ],
            _ => vec![persistent(hands.request(Op::Write, gone, 4096))],
        };
        let count = requests.len();
        for request in requests {
            assert!(hands.queue.prepare(request));
        }
        assert_eq!(hands.queue.submit() as usize, count);
        for _ in 0..count {
            assert_eq!(hands.queue.reap().unwrap().code, corrupt, "case {case}");
        }
        assert_eq!(hands.done(hands.request(Op::Flush, 0, 0)).code, corrupt);
    }
}

/// The system would make it as long again, and nobody would find that there is a hole.
#[test]
fn a_file_made_shorter_is_found_by_who_has_the_system_write_and_does_not_become_longer() {
    for op in [Op::Write, Op::Read] {
        let folder = memory();
        let path = made(folder.path(), 8 * MIB);
        let partition = open(&path);
        let mut hands = Hands::new(&partition);
        let file = Open::new()
            .write(true)
            .open(path.with_extension("partition"))
            .unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length - 4 * MIB).unwrap();
        let request = hands.request(op, 6 * MIB, MIB as usize);
        assert_eq!(
            hands.done(request).code,
            StorageRequestError::Corrupt.code()
        );
        assert_eq!(hands.write(0, b"x"), StorageRequestError::Corrupt.code());
        assert_eq!(file.metadata().unwrap().len(), length - 4 * MIB);
    }
}

#[test]
fn a_partition_of_a_disk_that_is_mapped_is_synced_when_it_is_flushed() {
    // On the disk where the tests' own files are.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("field");
    Partition::create_units(&path, MIB, 0, Vec::new()).expect("room");
    let partition = open(&path);
    let is_memory = partition.promises().power_fail == PowerFail::Lost;
    let mut hands = Hands::new(&partition);
    let mut queue = PartitionQueue::new(2, Options::default()).unwrap();
    let request = Sqe {
        level: 3,
        memory: queue
            .register_memory(ProgramMemory::of(hands.cells))
            .unwrap(),
        storage: queue.register(&partition, 0, MIB, true).unwrap(),
        ..hands.request(Op::Write, 0, 5000)
    };
    assert!(queue.prepare(request) && queue.submit() == 1);
    let done = queue.reap().unwrap();
    let expected = match is_memory {
        true => (StorageRequestError::Volatile.code(), 0),
        false => (0, 5000),
    };
    assert_eq!((done.code, done.value), expected);
    let flush = hands.request(Op::Flush, 0, 0);
    assert_eq!(hands.done(flush).code, 0);
}

#[test]
fn what_lies_behind_the_end_is_nobodys_and_is_gone_when_it_grows() {
    let folder = memory();
    let path = made(folder.path(), MIB);
    let file = path.with_extension("partition");
    // As a program leaves it that is killed while it makes it smaller.
    let longer = Open::new().append(true).open(&file).unwrap();
    std::io::Write::write_all(&mut &longer, &vec![7; MIB as usize]).unwrap();
    let partition = open(&path);
    let mut hands = Hands::new(&partition);
    assert_eq!(partition.size().unwrap(), MIB);
    let behind = hands.queue.register(&partition, 0, MIB + 1, true);
    assert_eq!(behind.unwrap_err().code, Code::Invalid);
    assert_eq!(partition.grow(2 * MIB).unwrap(), 2 * MIB);
    hands.region = hands.queue.register(&partition, MIB, MIB, false).unwrap();
    assert_eq!(hands.read(0, 8).unwrap(), [0; 8]);
}

#[test]
fn one_begins_with_what_it_is_made_with_and_is_refused_where_that_is_too_much() {
    for folder in [memory(), tempfile::tempdir().expect("a folder")] {
        let path = folder.path().join("field");
        let first: Vec<u8> = (1..=100).collect();
        Partition::create_with(&path, MIB, &first).expect("room");
        let taken = Partition::create_with(&path, MIB, &[7]).unwrap_err();
        assert_eq!(taken.code, Code::Exists);
        let file = std::fs::read(folder.path().join("field.partition")).unwrap();
        let data = &file[tarn_partitions::HEAD as usize..];
        assert_eq!(data.len() as u64, MIB);
        assert_eq!(data[..100], first[..]);
        assert!(data[100..].iter().all(|byte| *byte == 0));
        let more = folder.path().join("more");
        let refused = Partition::create_with(&more, 4096, &[1; 4097]).unwrap_err();
        assert_eq!(refused.code, Code::Invalid);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
