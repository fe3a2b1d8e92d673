//! Pages of watched memory: the written ones are reported, and no others.

#![allow(unsafe_code)]

mod common;

use common::{
    HUGE, KINDS, Kind, Memory, faults, kernel, page, pages, refused, reported_ranges, trackers,
    written,
};
use rustix::io::Errno;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use tarn_dirty_pages::Tracker;
use tarn_ports::WatchedMemory;

#[test]
fn a_page_that_was_written_is_told_and_no_other() {
    for (tracker, kind) in all() {
        let memory = Memory::touched(kind, 600);
        let mut watch = memory.watch(&tracker);
        assert_eq!(watch.size(), memory.len as u64);
        watch.arm().unwrap();
        assert_eq!(watch.written(true).unwrap(), [], "{kind:?}");
        for page in [0, 7, 8, 599] {
            memory.write(page, 2);
        }
        let expected = reported_ranges(&tracker, 600, &[0, 7, 8, 599]);
        assert_eq!(watch.written(false).unwrap(), expected, "{kind:?}");
        assert_eq!(watch.written(true).unwrap(), expected, "{kind:?}");
        assert_eq!(watch.written(true).unwrap(), [], "{kind:?}");
        memory.write(8, 3);
        assert_eq!(
            watch.written(true).unwrap(),
            reported_ranges(&tracker, 600, &[8])
        );
        memory.write(9, 3);
        watch.arm().unwrap();
        assert_eq!(watch.written(true).unwrap(), [], "{kind:?}");
    }
}

/// All ways to watch all kinds of memory.
fn all() -> impl Iterator<Item = (Tracker, Kind)> {
    let trackers = trackers().into_iter();
    trackers.flat_map(|tracker| KINDS.map(|kind| (tracker.clone(), kind)))
}

#[test]
fn a_page_that_is_only_read_is_not_told() {
    for (tracker, kind) in all() {
        let memory = Memory::new(kind, 600);
        memory.write(0, 1);
        let mut watch = memory.watch(&tracker);
        watch.arm().unwrap();
        let sum: usize = (0..600).map(|page| usize::from(memory.read(page))).sum();
        assert_eq!((sum, written(&mut watch)), (1, Vec::new()), "{kind:?}");
    }
}

#[test]
fn pages_that_were_never_touched_are_told_once_they_are_written_and_not_before() {
    for (tracker, kind) in all() {
        let memory = Memory::new(kind, 1200);
        let mut watch = memory.watch(&tracker);
        watch.arm().unwrap();
        assert_eq!(watch.written(true).unwrap(), [], "{kind:?}");
        let some = [3, 511, 512, 1199];
        some.iter().for_each(|page| memory.write(*page, 1));
        let expected = reported_ranges(&tracker, 1200, &some);
        assert_eq!(watch.written(true).unwrap(), expected, "{kind:?}");
    }
}

#[test]
fn more_ranges_than_one_call_lists_are_all_told_in_order() {
    for tracker in trackers() {
        let each = tracker.granule() / page();
        let memory = Memory::new(Kind::Anonymous, 2001 * each);
        let mut watch = memory.watch(&tracker);
        watch.arm().unwrap();
        let odd: Vec<usize> = (each..2001 * each).step_by(2 * each).collect();
        odd.iter().for_each(|page| memory.write(*page, 2));
        let seen = watch.written(true).unwrap();
        assert_eq!(seen, reported_ranges(&tracker, 2001 * each, &odd));
        assert_eq!(seen.len(), 1000);
        assert_eq!(watch.written(true).unwrap(), []);
    }
}

#[test]
fn what_the_kernel_writes_for_the_program_is_seen() {
    let Some(tracker) = kernel() else { return };
    for kind in KINDS {
        let memory = Memory::touched(kind, 32);
        let mut watch = memory.watch(&tracker);
        watch.arm().unwrap();
        let (from, mut to) = std::io::pipe().unwrap();
        to.write_all(&vec![9; page() + 1]).unwrap();
        // SAFETY: the bytes are inside.
        let read = unsafe { libc::read(from.as_raw_fd(), memory.at(5).cast(), page() + 1) };
        assert_eq!(read, page() as isize + 1, "{kind:?}");
        assert_eq!(
            (memory.read(5), written(&mut watch)),
            (9, vec![5, 6]),
            "{kind:?}"
        );
    }
}

/// Variables with values that are in the program's file, as of a Fortran program's COMMON blocks: a private mapping of it.
#[repr(align(65536))]
struct Variables([AtomicU8; 4 << 16]);
static VARIABLES: Variables = Variables([const { AtomicU8::new(1) }; 4 << 16]);

#[test]
fn a_programs_own_variables_can_be_watched() {
    for tracker in trackers() {
        let start = NonNull::from(&VARIABLES.0).cast();
        // SAFETY: they stay where they are.
        let mut watch = unsafe { tracker.watch(start, VARIABLES.0.len()) }.unwrap();
        watch.arm().unwrap();
        assert_eq!(watch.written(true).unwrap(), []);
        VARIABLES.0[page() + 5].store(2, Ordering::Relaxed);
        let expected = reported_ranges(&tracker, VARIABLES.0.len() / page(), &[1]);
        assert_eq!(watch.written(true).unwrap(), expected);
    }
}

#[test]
fn a_last_page_that_is_its_own_is_watched() {
    for tracker in trackers() {
        let (memory, page) = (Memory::touched(Kind::Anonymous, 3), page());
        // SAFETY: its bytes, as in all tests.
        let mut watch = unsafe { tracker.watch_mapping(memory.start(), 2 * page + 100) }.unwrap();
        watch.arm().unwrap();
        assert_eq!(watch.written(true).unwrap(), []);
        memory.write(2, 2);
        let seen = watch.written(true).unwrap();
        assert_eq!(seen.last().unwrap().end, 2 * page as u64 + 100);
        assert_eq!(watch.written(true).unwrap(), []);
    }
}

#[test]
fn what_it_has_of_a_first_and_a_last_page_counts_as_written() {
    for tracker in trackers() {
        let page = page();
        let each = tracker.granule() / page;
        // Whole are the pages of 4 granules.
        let end = (1 + 4 * each) * page;
        let memory = Memory::touched(Kind::Anonymous, 2 + 4 * each);
        let mut watch = memory.part(&tracker, 100..end + 10);
        watch.arm().unwrap();
        let at = |number: usize| (number * page - 100) as u64;
        let edges = [0..at(1), at(1 + 4 * each)..at(1 + 4 * each) + 10];
        assert_eq!(watch.written(true).unwrap(), edges);
        memory.write(1, 2);
        memory.write(1 + 2 * each, 2);
        let apart = [
            0..at(1 + each),
            at(1 + 2 * each)..at(1 + 3 * each),
            edges[1].clone(),
        ];
        assert_eq!(watch.written(true).unwrap(), apart);
        drop(watch);
        for part in [10..20, page - 10..page + 10, page..page] {
            let all: Vec<_> = Some(0..part.len() as u64)
                .filter(|r| !r.is_empty())
                .into_iter()
                .collect();
            let mut small = memory.part(&tracker, part);
            small.arm().unwrap();
            assert_eq!(small.written(true).unwrap(), all);
            small.disarm().unwrap();
        }
        // SAFETY: no bytes at all.
        let nothing = unsafe { tracker.watch(NonNull::dangling(), 0) };
        assert_eq!(nothing.unwrap().written(true).unwrap(), []);
    }
}

#[test]
fn a_huge_page_is_told_by_its_small_pages() {
    for tracker in trackers() {
        let each = HUGE / page();
        let memory = Memory::touched(Kind::Huge, 3 * each);
        if !has_huge_pages(&memory) {
            return eprintln!("SKIPPED: no huge pages here");
        }
        let mut watch = memory.watch(&tracker);
        watch.arm().unwrap();
        assert!(has_huge_pages(&memory), "protecting them takes them apart");
        memory.write(each + 5, 2);
        let expected = reported_ranges(&tracker, 3 * each, &[each + 5]);
        assert_eq!(watch.written(true).unwrap(), expected);
    }
}

/// Whether the mapping that begins with this memory has any.
fn has_huge_pages(memory: &Memory) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", memory.start.addr());
    let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
    let line = lines.find(|line| line.starts_with("AnonHugePages:"));
    !line.unwrap().ends_with(" 0 kB")
}

#[test]
fn pages_that_were_given_back_are_zero_and_so_written() {
    let Some(tracker) = kernel() else { return };
    let each = HUGE / page();
    for kind in [Kind::Anonymous, Kind::Huge] {
        let memory = Memory::touched(kind, 4 * each);
        let mut watch = memory.watch(&tracker);
        watch.arm().unwrap();
        memory.give_back(each..2 * each);
        memory.give_back(2 * each + 7..2 * each + 8);
        let zero = [pages(each..2 * each), pages(2 * each + 7..2 * each + 8)];
        assert_eq!(watch.written(false).unwrap(), zero, "{kind:?}");
        assert_eq!(watch.written(true).unwrap(), zero, "{kind:?}");
        assert_eq!(watch.written(true).unwrap(), [], "{kind:?}");
        memory.write(each + 1, 2);
        assert_eq!(written(&mut watch), [each + 1], "{kind:?}");
    }
}

#[test]
fn memory_that_is_not_armed_costs_nothing_and_never_counts_as_clean() {
    let Some(tracker) = kernel() else { return };
    let memory = Memory::touched(Kind::Anonymous, 1000);
    let write_all = || {
        let before = faults();
        (0..1000).for_each(|page| memory.write(page, 2));
        faults() - before
    };
    let mut watch = memory.watch(&tracker);
    assert!(write_all() < 500);
    assert_eq!(watch.written(false).unwrap(), [pages(0..1000)]);
    watch.arm().unwrap();
    assert!(write_all() >= 1000);
    watch.arm().unwrap();
    watch.disarm().unwrap();
    watch.disarm().unwrap();
    assert!(write_all() < 500);
    assert_eq!(refused(watch.written(true)), Errno::PERM);
    watch.arm().unwrap();
    drop(watch);
    assert!(write_all() < 500);
}

#[test]
fn a_copy_has_the_bytes_wherever_it_begins_and_ends() {
    let bytes: Vec<u8> = (0..200).collect();
    for tracker in trackers() {
        // SAFETY: the bytes outlive it.
        let watch = unsafe { tracker.watch(NonNull::from(&bytes[0]), bytes.len()) }.unwrap();
        for at in 0..20 {
            for len in (0..40).chain([200 - at]) {
                let mut copy = vec![0; len];
                watch.copy(at as u64, &mut copy);
                assert_eq!(copy, bytes[at..at + len], "{at} {len}");
            }
        }
    }
}

#[test]
#[should_panic = "of watched memory"]
fn a_copy_of_what_is_not_watched_is_refused() {
    let memory = Memory::touched(Kind::Anonymous, 1);
    let tracker = trackers().remove(0);
    memory.watch(&tracker).copy(page() as u64 - 3, &mut [0; 4]);
}
