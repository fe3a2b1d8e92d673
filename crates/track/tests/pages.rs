//! Pages of memory that is watched: those that were written are told, and no others.

#![allow(unsafe_code)]

mod common;

use common::{HUGE, KINDS, Kind, Memory, faults, page, pages, refused, tracker, written};
use rustix::io::Errno;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use tarn_ports::Watched;

#[test]
fn a_page_that_was_written_is_told_and_no_other() {
    let Some(tracker) = tracker() else { return };
    for kind in KINDS {
        let memory = Memory::touched(kind, 600);
        let mut watch = memory.watch(&tracker);
        assert_eq!(watch.size(), memory.len as u64);
        watch.arm().unwrap();
        assert_eq!(watch.written(true).unwrap(), [], "{kind:?}");
        for page in [0, 7, 8, 599] {
            memory.write(page, 2);
        }
        let expected = [pages(0..1), pages(7..9), pages(599..600)];
        assert_eq!(watch.written(false).unwrap(), expected, "{kind:?}");
        assert_eq!(watch.written(true).unwrap(), expected, "{kind:?}");
        assert_eq!(watch.written(true).unwrap(), [], "{kind:?}");
        memory.write(8, 3);
        assert_eq!(written(&mut watch), [8], "{kind:?}");
        memory.write(9, 3);
        watch.arm().unwrap();
        assert_eq!(watch.written(true).unwrap(), [], "{kind:?}");
    }
}

#[test]
fn a_page_that_is_only_read_is_not_told() {
    let Some(tracker) = tracker() else { return };
    for kind in KINDS {
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
    let Some(tracker) = tracker() else { return };
    for kind in KINDS {
        let memory = Memory::new(kind, 1200);
        let mut watch = memory.watch(&tracker);
        watch.arm().unwrap();
        assert_eq!(watch.written(true).unwrap(), [], "{kind:?}");
        for page in [3, 511, 512, 1199] {
            memory.write(page, 1);
        }
        assert_eq!(written(&mut watch), [3, 511, 512, 1199], "{kind:?}");
    }
}

#[test]
fn more_ranges_than_one_call_lists_are_all_told_in_order() {
    let Some(tracker) = tracker() else { return };
    let memory = Memory::touched(Kind::Anonymous, 4001);
    let mut watch = memory.watch(&tracker);
    watch.arm().unwrap();
    let odd: Vec<usize> = (1..4001).step_by(2).collect();
    odd.iter().for_each(|page| memory.write(*page, 2));
    assert_eq!(written(&mut watch), odd);
    assert_eq!(watch.written(true).unwrap(), []);
}

#[test]
fn what_the_kernel_writes_for_the_program_is_seen() {
    let Some(tracker) = tracker() else { return };
    for kind in KINDS {
        let memory = Memory::touched(kind, 32);
        let mut watch = memory.watch(&tracker);
        watch.arm().unwrap();
        let (from, mut to) = std::io::pipe().unwrap();
        to.write_all(&vec![9; page() + 1]).unwrap();
        // SAFETY: the bytes lie inside.
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
    let Some(tracker) = tracker() else { return };
    let start = NonNull::from(&VARIABLES.0).cast();
    // SAFETY: they stay where they are.
    let mut watch = unsafe { tracker.watch(start, VARIABLES.0.len()) }.unwrap();
    watch.arm().unwrap();
    assert_eq!(watch.written(true).unwrap(), []);
    VARIABLES.0[page() + 5].store(2, Ordering::Relaxed);
    assert_eq!(written(&mut watch), [1]);
}

#[test]
fn a_last_page_that_is_its_own_is_watched() {
    let Some(tracker) = tracker() else { return };
    let (memory, page) = (Memory::touched(Kind::Anonymous, 3), page());
    // SAFETY: its bytes, as in all tests.
    let mut watch = unsafe { tracker.watch_mapping(memory.start(), 2 * page + 100) }.unwrap();
    watch.arm().unwrap();
    assert_eq!(watch.written(true).unwrap(), []);
    memory.write(2, 2);
    let last = 2 * page as u64..2 * page as u64 + 100;
    assert_eq!(watch.written(true).unwrap(), [last]);
    assert_eq!(watch.written(true).unwrap(), []);
}

#[test]
fn what_it_has_of_a_first_and_a_last_page_counts_as_written() {
    let Some(tracker) = tracker() else { return };
    let (memory, page) = (Memory::touched(Kind::Anonymous, 6), page());
    let mut watch = memory.part(&tracker, 100..5 * page + 10);
    watch.arm().unwrap();
    let edges = [
        0..page as u64 - 100,
        5 * page as u64 - 100..5 * page as u64 - 90,
    ];
    assert_eq!(watch.written(true).unwrap(), edges);
    memory.write(1, 2);
    memory.write(3, 2);
    let apart = [
        0..2 * page as u64 - 100,
        3 * page as u64 - 100..4 * page as u64 - 100,
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

#[test]
fn a_huge_page_is_told_by_its_small_pages() {
    let Some(tracker) = tracker() else { return };
    let each = HUGE / page();
    let memory = Memory::touched(Kind::Huge, 3 * each);
    if !has_huge_pages(&memory) {
        return eprintln!("SKIPPED: no huge pages here");
    }
    let mut watch = memory.watch(&tracker);
    watch.arm().unwrap();
    assert!(has_huge_pages(&memory), "protecting them takes them apart");
    memory.write(each + 5, 2);
    assert_eq!(written(&mut watch), [each + 5]);
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
    let Some(tracker) = tracker() else { return };
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
    let Some(tracker) = tracker() else { return };
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
    let Some(tracker) = tracker() else { return };
    let bytes: Vec<u8> = (0..200).collect();
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

#[test]
#[should_panic = "of watched memory"]
fn a_copy_of_what_is_not_watched_is_refused() {
    let Some(tracker) = tracker() else {
        panic!("SKIPPED: of watched memory there is none");
    };
    let memory = Memory::touched(Kind::Anonymous, 1);
    memory.watch(&tracker).copy(page() as u64 - 3, &mut [0; 4]);
}
