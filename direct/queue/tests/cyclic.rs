//! Several storages as one, whose requests end at once, later, or badly.

mod emulated;

use emulated::EmulatedStorage;
use proptest::prelude::*;
use std::cell::Cell;
use tarn_queue::{Cyclic, CyclicLayout, MAX_PARTS, Options, Queue};
use tarn_ring::{Op, ProgramMemory, Sqe, Storage, StorageRequestError};

const BLOCK: usize = 4096;

#[test]
fn the_first_row_of_blocks_goes_over_all_storages() {
    let layout = CyclicLayout::new(3, 8192).unwrap();
    assert_eq!(layout.place(0), (0, 0, 8192));
    assert_eq!(layout.place(8191), (0, 8191, 1));
    assert_eq!(layout.place(8192), (1, 0, 8192));
    assert_eq!(layout.place(3 * 8192 + 100), (0, 8192 + 100, 8192 - 100));
    assert_eq!((layout.size(8191), layout.size(20_000)), (0, 3 * 16384));
    assert_eq!((layout.part(1), layout.part(3 * 8192 + 1)), (8192, 16384));
    for (parts, block) in [
        (0, 4096),
        (1, 0),
        (2, 100),
        (2, 6000),
        (MAX_PARTS + 1, 4096),
    ] {
        assert_eq!(CyclicLayout::new(parts, block), None, "{parts} {block}");
    }
}

proptest! {
    #[test]
    fn every_byte_has_a_place_of_its_own(parts in 1..9_usize, blocks in 1..5_u64, at in 0..1_000_000_u64) {
        let layout = CyclicLayout::new(parts, blocks * 4096).unwrap();
        let (part, there, length) = layout.place(at);
        prop_assert!(part < parts && length > 0);
        // The bytes of the whole in this storage before it: whole blocks of it, and those before it in its own.
        let block = at / (blocks * 4096);
        let before = (0..block).filter(|b| (b % parts as u64) as usize == part).count() as u64;
        prop_assert_eq!(there, before * blocks * 4096 + at % (blocks * 4096));
        prop_assert!(layout.size(layout.part(at)) >= at);
        prop_assert_eq!(layout.part(layout.size(there)), there / (blocks * 4096) * blocks * 4096);
    }

    /// For all writes and reads, in one piece or in many, however late its pieces are.
    #[test]
    fn what_was_written_is_read(
        parts in 1..5_usize,
        rows in 1..4_usize,
        late in prop::collection::vec((0..4_usize, 0..4 * BLOCK), 0..3),
        writes in prop::collection::vec((0..16 * BLOCK, 0..4 * BLOCK), 1..8),
    ) {
        let storages: Vec<_> = (0..parts).map(|_| EmulatedStorage::new(rows * BLOCK)).collect();
        for storage in &storages {
            // Those that begin at a block of a storage: the later pieces of a request.
            let mut play = storage.0.borrow_mut();
            play.persistent = true;
            play.late.extend((0..rows).map(|row| (row * BLOCK) as u64));
        }
        for (part, at) in &late {
            storages[part % parts].0.borrow_mut().late.insert(*at as u64);
        }
        let size = parts * rows * BLOCK;
        let cells: &'static [Cell<u8>] = Box::leak(vec![Cell::new(0); size].into_boxed_slice());
        let whole = Cyclic::new(storages, CyclicLayout::new(parts, BLOCK as u64).unwrap()).unwrap();
        let mut queue = Queue::new(16, Options::default()).unwrap();
        let memory = queue.register_memory(ProgramMemory::of(cells)).unwrap();
        let region = queue.register_new(whole, 0, size as u64, true).unwrap().0;
        let mut model = vec![0; size];
        let mut carry = |op: Op, at: usize, length: usize| {
            let request = Sqe {
                op: op as u8,
                memory,
                storage: region,
                address: cells.as_ptr().addr() as u64,
                offset: at as u64,
                length: length as u64,
                ..Sqe::default()
            };
            assert!(queue.rings().prepare(request));
            queue.submit();
            while !queue.is_idle() {
                queue.poll();
            }
            queue.rings().reap().unwrap()
        };
        for (number, (at, length)) in (1..).zip(&writes) {
            let at = at % size;
            let length = (*length).min(size - at);
            cells[..length].iter().for_each(|cell| cell.set(number));
            model[at..at + length].fill(number);
            let end = carry(Op::Write, at, length);
            prop_assert_eq!((end.code, end.value), (0, length as u64));
        }
        let end = carry(Op::Read, 0, size);
        prop_assert_eq!((end.code, end.value), (0, size as u64));
        let read: Vec<u8> = cells.iter().map(Cell::get).collect();
        prop_assert!(read == model);
        prop_assert_eq!(carry(Op::Flush, 0, 0).code, 0);
    }
}

#[test]
fn a_request_fails_if_a_piece_of_it_does_and_tells_it_once_all_have_ended() {
    let storages: Vec<_> = (0..3).map(|_| EmulatedStorage::new(2 * BLOCK)).collect();
    for storage in &storages {
        storage.0.borrow_mut().late.insert(0);
    }
    let failing = &storages[1];
    failing
        .0
        .borrow_mut()
        .failing
        .insert(0, StorageRequestError::Lost);
    let kept = storages[2].clone();
    let mut whole = Cyclic::new(storages, CyclicLayout::new(3, BLOCK as u64).unwrap()).unwrap();
    assert_eq!(whole.size(), 6 * BLOCK as u64);
    let cells: &'static [Cell<u8>] = Box::leak(vec![Cell::new(0); 4 * BLOCK].into_boxed_slice());
    let memory = ProgramMemory::of(cells);
    let span = memory.span(cells.as_ptr().addr() as u64, 4 * BLOCK as u64);
    assert_eq!(
        whole.read(0, span.unwrap(), 7),
        tarn_ring::SubmitOutcome::Pending
    );
    let mut completions = Vec::new();
    whole.reap(&mut |ticket, result| completions.push((ticket, result)));
    assert_eq!(completions, [(7, Err(StorageRequestError::Lost))]);
    whole.reap(&mut |ticket, result| completions.push((ticket, result)));
    assert_eq!(completions.len(), 1);
    // If one storage is not settled, the whole is not.
    kept.0.borrow_mut().unsettled = Some(StorageRequestError::Corrupt);
    assert_eq!(whole.settle(), Err(StorageRequestError::Corrupt));
    assert_eq!(whole.settle(), Ok(()));
    assert!(!whole.is_persistent());
    // Nothing at all, and too few.
    assert!(Cyclic::new(vec![kept], CyclicLayout::new(2, 4096).unwrap()).is_none());
}
