//! Copies of memory that threads are writing to.

#![allow(unsafe_code)]

mod common;

use common::{KINDS, Memory, page, trackers};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, Ordering};
use tarn_dirty_pages::{Tracker, WriteWatch};
use tarn_ports::WatchedMemory;

/// Pages of the memory.
const PAGES: usize = 384;

/// The writes of one thread: offsets in the memory, and bytes.
type Writes = Vec<(usize, u8)>;

fn writes() -> impl Strategy<Value = Writes> {
    // Threads like to stay near where they are.
    let near = |(first, steps): (usize, Vec<(usize, u8)>)| {
        let of = |(step, byte)| ((first + step) % (PAGES * page()), byte);
        steps.into_iter().map(of).collect()
    };
    let steps = prop::collection::vec((0..30 * page(), any::<u8>()), 0..400);
    (0..PAGES * page(), steps).prop_map(near)
}

/// Copies written pages again, and adds them to `reported`.
fn copy_again(
    watch: &mut WriteWatch,
    copy: &mut [u8],
    first: usize,
    reported: &mut BTreeSet<usize>,
) {
    for range in watch.written(true).unwrap() {
        let bytes = range.start as usize..range.end as usize;
        watch.copy(range.start, &mut copy[bytes.clone()]);
        reported.extend((first + bytes.start) / page()..(first + bytes.end).div_ceil(page()));
    }
}

/// Each round, threads write while the memory is copied and written pages are copied again; then they stop, and it is once more.
fn copied_while_written(
    tracker: &Tracker,
    memory: &Memory,
    part: Range<usize>,
    rounds: Vec<Vec<Writes>>,
) {
    let mut watch = memory.part(tracker, part.clone());
    let mut copy = vec![0; part.len()];
    for (round, threads) in rounds.into_iter().enumerate() {
        let mut reported = BTreeSet::new();
        if round == 0 {
            watch.arm().unwrap();
        }
        let begin = &Barrier::new(threads.len() + 1);
        std::thread::scope(|scope| {
            for writes in &threads {
                scope.spawn(move || {
                    begin.wait();
                    for (at, byte) in writes {
                        // SAFETY: inside, and written by atomic bytes only.
                        let byte_there = unsafe { AtomicU8::from_ptr(memory.at(0).add(*at)) };
                        byte_there.store(*byte, Ordering::Relaxed);
                    }
                });
            }
            begin.wait();
            if round == 0 {
                watch.copy(0, &mut copy);
            }
            copy_again(&mut watch, &mut copy, part.start, &mut reported);
        });
        copy_again(&mut watch, &mut copy, part.start, &mut reported);
        let edges = [part.start, part.end].map(|at| (at % page() != 0).then_some(at / page()));
        let all = threads.iter().flatten().map(|(at, _)| at / page());
        let inside = part.start / page()..part.end.div_ceil(page());
        // Whole pages are reported by granules, which begin with the first of them.
        let whole = part.start.div_ceil(page())..part.end / page();
        let each = tracker.granule() / page();
        let granule = |number: usize| {
            if !whole.contains(&number) {
                return number..number + 1;
            }
            let start = whole.start + (number - whole.start) / each * each;
            start..whole.end.min(start + each)
        };
        let written: BTreeSet<usize> = all
            .filter(|page| inside.contains(page))
            .chain(edges.into_iter().flatten())
            .flat_map(granule)
            .collect();
        assert_eq!(reported, written, "round {round}");
        let mut there = vec![0; part.len()];
        watch.copy(0, &mut there);
        assert!(
            copy == there,
            "round {round}: the copy is another than the memory"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]
    #[test]
    fn after_the_last_scan_the_copy_is_the_memory(
        kind in 0..KINDS.len(),
        touched in any::<bool>(),
        (start, end) in (0..3 * page(), 0..3 * page()),
        rounds in prop::collection::vec(prop::collection::vec(writes(), 1..4), 1..4),
    ) {
        for tracker in trackers() {
            let memory = match touched {
                true => Memory::touched(KINDS[kind], PAGES),
                false => Memory::new(KINDS[kind], PAGES),
            };
            copied_while_written(&tracker, &memory, start..PAGES * page() - end, rounds.clone());
        }
    }
}
