//! Queue pairs over a storage whose requests end at once, later, in another order, or badly.

mod emulated;

use emulated::{EmulatedStorage, Happened};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tarn_queue::{NoRegion, Options, Queue};
use tarn_ring::{Cqe, Flags, Level, Op, ProgramMemory, Sqe, StorageRequestError};

const SIZE: usize = 4096;

/// A queue pair, its storage, its memory, and the regions of both.
struct Bench {
    queue: Queue<EmulatedStorage>,
    storage: EmulatedStorage,
    cells: &'static [Cell<u8>],
    memory: u32,
    region: u32,
}

fn bench(entries: u32) -> Bench {
    let cells = Box::leak(vec![Cell::new(0); SIZE].into_boxed_slice());
    let mut queue = Queue::new(entries, Options::default()).unwrap();
    let storage = EmulatedStorage::new(SIZE);
    let memory = queue.register_memory(ProgramMemory::of(cells)).unwrap();
    let region = queue.register_new(storage.clone(), 0, SIZE as u64, true);
    Bench {
        region: region.unwrap().0,
        queue,
        storage,
        cells,
        memory,
    }
}

impl Bench {
    /// A write of a byte, numbered by where it goes.
    fn write(&self, number: u64, flags: u8) -> Sqe {
        Sqe {
            op: Op::Write as u8,
            flags,
            memory: self.memory,
            storage: self.region,
            address: self.cells.as_ptr().addr() as u64,
            offset: number,
            length: 1,
            user_data: number,
            ..Sqe::default()
        }
    }

    fn post(&mut self, requests: &[Sqe]) {
        for request in requests {
            assert!(self.queue.rings().prepare(*request));
        }
        self.queue.submit();
    }

    fn reap(&mut self) -> Vec<(u64, i32)> {
        let completions = std::iter::from_fn(|| self.queue.rings().reap());
        completions.map(|c: Cqe| (c.user_data, c.code)).collect()
    }

    fn late(&self, numbers: &[u64]) {
        self.storage.0.borrow_mut().late.extend(numbers);
    }

    fn fails(&self, number: u64) {
        let mut play = self.storage.0.borrow_mut();
        play.failing.insert(number, StorageRequestError::Io);
    }

    fn happened(&self) -> Vec<Happened> {
        std::mem::take(&mut self.storage.0.borrow_mut().happened)
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_the_rest_goes_on() {
    let mut b = bench(64);
    let good = b.write(7, 0);
    let end = SIZE as u64;
    let bad = [
        Sqe { op: 99, ..good },
        Sqe { flags: 128, ..good },
        Sqe { level: 9, ..good },
        Sqe {
            reserved: 1,
            ..good
        },
        Sqe {
            reserved2: 1,
            ..good
        },
        Sqe { memory: 0, ..good },
        Sqe {
            memory: b.region,
            ..good
        },
        Sqe {
            storage: b.memory,
            ..good
        },
        Sqe {
            storage: u32::MAX,
            ..good
        },
        Sqe {
            offset: end,
            ..good
        },
        Sqe {
            offset: u64::MAX,
            ..good
        },
        Sqe {
            length: end + 1,
            ..good
        },
        Sqe {
            length: u64::MAX,
            ..good
        },
        Sqe { address: 1, ..good },
        Sqe {
            address: good.address + end,
            ..good
        },
        Sqe {
            address: u64::MAX,
            length: 2,
            ..good
        },
        Sqe {
            op: Op::FetchAdd as u8,
            offset: 4,
            ..good
        },
        Sqe {
            op: Op::CompareSwap as u8,
            offset: end - 7,
            ..good
        },
        Sqe {
            op: Op::Flush as u8,
            storage: b.memory,
            ..good
        },
    ];
    b.post(&bad);
    let invalid = (7, StorageRequestError::Invalid.code());
    assert_eq!(b.reap(), vec![invalid; bad.len()]);
    assert_eq!(b.happened(), [Happened::Settled]);
    let none = Sqe {
        length: 0,
        offset: end,
        ..good
    };
    b.post(&[
        good,
        none,
        Sqe::default(),
        Sqe {
            op: Op::Read as u8,
            ..none
        },
    ]);
    assert_eq!(b.reap(), [(7, 0), (7, 0), (0, 0), (7, 0)]);
}

#[test]
fn what_is_to_be_persistent_is_refused_by_memory_unless_that_is_accepted() {
    let mut b = bench(8);
    let write = Sqe {
        level: Level::Persistent as u8,
        ..b.write(1, 0)
    };
    let flush = Sqe {
        op: Op::Flush as u8,
        ..b.write(0, 0)
    };
    b.post(&[write, flush]);
    let refused = StorageRequestError::Volatile.code();
    assert_eq!(b.reap(), [(1, refused), (0, refused)]);
    b.storage.0.borrow_mut().persistent = true;
    b.post(&[write, flush]);
    assert_eq!(b.reap(), [(1, 0), (0, 0)]);

    let options = Options {
        volatile: true,
        level: Level::Persistent,
    };
    let mut queue = Queue::new(8, options).unwrap();
    let memory = queue.register_memory(ProgramMemory::of(b.cells)).unwrap();
    let storage = queue
        .register_new(EmulatedStorage::new(SIZE), 0, 8, true)
        .unwrap()
        .0;
    let mine = Sqe {
        memory,
        storage,
        level: 0,
        ..write
    };
    assert!(queue.rings().prepare(mine) && queue.rings().prepare(Sqe { storage, ..flush }));
    queue.submit();
    assert_eq!(queue.rings().reap().unwrap().code, 0);
    assert_eq!(queue.rings().reap().unwrap().code, 0);
}

#[test]
fn regions_have_rights_and_ends_and_are_gone_when_they_were_given_back() {
    let mut b = bench(8);
    let read_only = b.queue.register(0, 100, 10, false).unwrap();
    let write = Sqe {
        storage: read_only,
        ..b.write(0, 0)
    };
    let read = Sqe {
        op: Op::Read as u8,
        ..write
    };
    b.post(&[
        write,
        read,
        Sqe { offset: 10, ..read },
        Sqe { offset: 9, ..read },
    ]);
    let invalid = StorageRequestError::Invalid.code();
    assert_eq!(b.reap(), [(0, invalid), (0, 0), (0, invalid), (0, 0)]);
    // The storage sees where in the partition it is.
    assert!(b.happened().contains(&Happened::Began(109)));
    for (start, length) in [(0, SIZE as u64 + 1), (SIZE as u64, 1), (u64::MAX, 2)] {
        let refused = b.queue.register(0, start, length, false);
        assert_eq!(refused, Err(NoRegion::Invalid));
    }
    assert_eq!(b.queue.unregister(read_only), Ok(()));
    assert_eq!(b.queue.unregister(read_only), Err(NoRegion::Invalid));
    b.post(&[read]);
    assert_eq!(b.reap(), [(0, invalid)]);
    // The place is another's now, and the old name is not its.
    let next = b.queue.register(0, 0, 10, false).unwrap();
    assert_ne!(next, read_only);
    b.post(&[read]);
    assert_eq!(b.reap(), [(0, invalid)]);
    // With its last region the queue pair lets go of a storage.
    assert_eq!(Rc::strong_count(&b.storage.0), 2);
    b.queue.unregister(next).unwrap();
    b.queue.unregister(b.region).unwrap();
    assert_eq!(Rc::strong_count(&b.storage.0), 1);
}

#[test]
fn a_region_stays_while_requests_under_way_name_it() {
    let mut b = bench(8);
    b.late(&[3]);
    b.post(&[b.write(3, Flags::LINKED), b.write(4, 0)]);
    assert_eq!(b.queue.unregister(b.region), Err(NoRegion::Busy));
    assert_eq!(b.queue.unregister(b.memory), Err(NoRegion::Busy));
    b.queue.poll();
    assert_eq!(b.reap(), [(3, 0), (4, 0)]);
    assert_eq!(b.queue.unregister(b.region), Ok(()));
    assert_eq!(b.queue.unregister(b.memory), Ok(()));
}

#[test]
fn regions_and_storages_are_bounded() {
    let mut b = bench(8);
    for _ in 2..tarn_queue::MAX_REGIONS {
        b.queue.register(0, 0, 1, false).unwrap();
    }
    assert_eq!(b.queue.register(0, 0, 1, false), Err(NoRegion::Full));
    let mut queue = Queue::new(8, Options::default()).unwrap();
    for _ in 0..tarn_queue::MAX_STORAGES {
        queue
            .register_new(EmulatedStorage::new(8), 0, 8, true)
            .unwrap();
    }
    let full = queue.register_new(EmulatedStorage::new(8), 0, 8, true);
    assert_eq!(full, Err(NoRegion::Full));
}

#[test]
fn a_linked_request_begins_when_the_one_before_has_succeeded_and_is_settled() {
    let mut b = bench(16);
    let linked = Flags::LINKED;
    b.post(&[b.write(1, linked), b.write(2, 0)]);
    assert_eq!(
        b.happened(),
        [
            Happened::Began(1),
            Happened::Ended(1, Ok(1)),
            Happened::Settled,
            Happened::Began(2),
            Happened::Ended(2, Ok(1)),
            Happened::Settled,
        ]
    );
    b.reap();

    // At once, and later.
    for late in [&[][..], &[1], &[2], &[1, 2, 3]] {
        let mut b = bench(16);
        b.late(late);
        b.fails(2);
        b.post(&[
            b.write(1, linked),
            b.write(2, linked),
            b.write(3, linked),
            b.write(4, 0),
            b.write(5, 0),
        ]);
        while !b.storage.0.borrow().pending.is_empty() {
            b.queue.poll();
        }
        let mut completions = b.reap();
        completions.sort_unstable();
        let (io, cancelled) = (
            StorageRequestError::Io.code(),
            StorageRequestError::Cancelled.code(),
        );
        assert_eq!(
            completions,
            [(1, 0), (2, io), (3, cancelled), (4, cancelled), (5, 0)]
        );
        assert!(!b.happened().contains(&Happened::Began(3)), "{late:?}");
    }
}

#[test]
fn unsignalled_requests_are_told_of_by_the_next_signalled_one() {
    let mut b = bench(16);
    let quiet = Flags::UNSIGNALLED;
    b.late(&[1, 3]);
    b.post(&[
        b.write(1, quiet),
        b.write(2, 0),
        b.write(3, quiet),
        b.write(4, 0),
    ]);
    assert_eq!(b.reap(), []);
    // The third ends first, and is not reported, as the first was posted before the fourth too.
    b.queue.poll();
    assert_eq!(b.reap(), []);
    b.queue.poll();
    assert_eq!(b.reap(), [(2, 0), (4, 0)]);
    // An error is always reported.
    b.fails(5);
    b.post(&[b.write(5, quiet), b.write(6, quiet)]);
    assert_eq!(b.reap(), [(5, StorageRequestError::Io.code())]);
}

#[test]
fn what_cannot_be_settled_has_failed_signalled_or_not() {
    let mut b = bench(16);
    let corrupt = StorageRequestError::Corrupt.code();
    let quiet = Flags::UNSIGNALLED;
    b.storage.0.borrow_mut().unsettled = Some(StorageRequestError::Corrupt);
    b.post(&[b.write(1, 0), b.write(2, quiet), b.write(3, 0)]);
    assert_eq!(b.reap(), [(1, corrupt), (3, corrupt), (2, corrupt)]);
    // The request linked to it does not begin.
    b.happened();
    b.storage.0.borrow_mut().unsettled = Some(StorageRequestError::Corrupt);
    b.post(&[b.write(4, Flags::LINKED), b.write(5, 0), b.write(6, quiet)]);
    let cancelled = StorageRequestError::Cancelled.code();
    assert_eq!(b.reap(), [(4, corrupt), (5, cancelled)]);
    assert!(!b.happened().contains(&Happened::Began(5)));
}

#[test]
fn what_waits_to_be_told_has_failed_too_if_it_cannot_be_settled() {
    let mut b = bench(16);
    b.late(&[1]);
    let quiet = Flags::UNSIGNALLED;
    // The third is reported with the first, but not settled with it.
    b.post(&[b.write(1, quiet), b.write(2, 0)]);
    b.storage.0.borrow_mut().unsettled = Some(StorageRequestError::Corrupt);
    b.post(&[b.write(3, quiet), b.write(4, 0)]);
    let corrupt = StorageRequestError::Corrupt.code();
    assert_eq!(b.reap(), [(3, corrupt)]);
    b.queue.poll();
    assert_eq!(b.reap(), [(2, 0), (4, corrupt)]);
}

#[test]
fn what_is_not_reaped_holds_the_next_back_and_nothing_is_lost() {
    let mut b = bench(4);
    b.late(&[0, 1, 2]);
    let mut posted = 0..100_u64;
    let mut completions = Vec::new();
    let mut taken = 0;
    // Nobody reaps: twice as many as there are entries are taken.
    for _ in 0..5 {
        while b.queue.rings().prepared() < 4 {
            let Some(number) = posted.next() else { break };
            let request = b.write(number, 0);
            assert!(b.queue.rings().prepare(request));
        }
        assert!(!b.queue.rings().prepare(Sqe::default()));
        taken += b.queue.submit();
    }
    assert_eq!(taken, 8);
    while completions.len() < 100 {
        b.queue.poll();
        completions.extend(b.reap());
        while b.queue.rings().prepared() < 4 {
            let Some(number) = posted.next() else { break };
            let request = b.write(number, 0);
            assert!(b.queue.rings().prepare(request));
        }
        b.queue.submit();
    }
    completions.sort_unstable();
    assert!(completions.iter().map(|(n, _)| *n).eq(0..100));
}

#[test]
fn a_chain_begins_when_all_of_it_has_space() {
    let mut b = bench(4);
    b.fails(5);
    // Seven of eight places are taken.
    b.post(&[0, 1, 2, 3].map(|n| b.write(n, 0)));
    b.post(&[4, 6, 7].map(|n| b.write(n, 0)));
    let chain = [b.write(5, Flags::LINKED), b.write(8, 0), b.write(9, 0)];
    for request in chain {
        assert!(b.queue.rings().prepare(request));
    }
    assert_eq!(b.queue.submit(), 0);
    assert_eq!(b.reap().len(), 7);
    assert_eq!(b.queue.submit(), 3);
    let (io, cancelled) = (
        StorageRequestError::Io.code(),
        StorageRequestError::Cancelled.code(),
    );
    assert_eq!(b.reap(), [(5, io), (8, cancelled), (9, 0)]);
}

proptest! {
    /// For all posted requests, however they end.
    #[test]
    fn every_end_is_told_once_in_its_order(
        plan in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>(), prop::bool::weighted(0.2)), 1..60),
        batch in 1..8_usize,
        polls in 0..3_usize,
    ) {
        let mut b = bench(8);
        for (number, (late, _, _, fails)) in (0..).zip(&plan) {
            if *late { b.late(&[number]); }
            if *fails { b.fails(number); }
        }
        let (mut completions, mut ended_when_reaped) = (Vec::new(), BTreeMap::new());
        let mut next = 0;
        loop {
            // The last of a doorbell ends its chain.
            let mut chunk = Vec::new();
            while next < plan.len() && chunk.len() < batch {
                let (_, quiet, linked, _) = plan[next];
                let last = next + 1 == plan.len() || chunk.len() + 1 == batch;
                let flags = (u8::from(quiet) * Flags::UNSIGNALLED)
                    | (u8::from(linked && !last) * Flags::LINKED);
                chunk.push(b.write(next as u64, flags));
                next += 1;
            }
            for request in &chunk {
                while !b.queue.rings().prepare(*request) {
                    b.queue.submit();
                    b.queue.poll();
                    completions.extend(b.reap());
                }
            }
            b.queue.submit();
            for _ in 0..polls { b.queue.poll(); }
            let ended: BTreeSet<u64> = b.storage.0.borrow().happened.iter()
                .filter_map(|h| match h { Happened::Ended(n, _) => Some(*n), _ => None }).collect();
            for (number, code) in b.reap() {
                completions.push((number, code));
                ended_when_reaped.insert(number, ended.clone());
            }
            let idle = b.storage.0.borrow().pending.is_empty();
            if next == plan.len() && idle && b.queue.rings().prepared() == 0 { break; }
            b.queue.poll();
            completions.extend(b.reap());
        }
        let codes: BTreeMap<u64, i32> = completions.iter().copied().collect();
        prop_assert_eq!(codes.len(), completions.len(), "told twice");
        for (number, (_, quiet, _, fails)) in (0..).zip(&plan) {
            match codes.get(&number) {
                None => prop_assert!(*quiet && !*fails, "{number} was not told"),
                Some(0) => prop_assert!(!*quiet && !*fails),
                Some(code) => prop_assert!(*fails && *code == StorageRequestError::Io.code() || *code == StorageRequestError::Cancelled.code()),
            }
        }
        // A signalled one is reported after all unsignalled ones that were posted before it and were done.
        for (number, ended) in ended_when_reaped {
            if plan[number as usize].1 { continue; }
            for earlier in 0..number {
                let was_done = codes.get(&earlier) != Some(&StorageRequestError::Cancelled.code());
                if plan[earlier as usize].1 && was_done {
                    prop_assert!(ended.contains(&earlier), "{number} before {earlier}");
                }
            }
        }
    }
}
