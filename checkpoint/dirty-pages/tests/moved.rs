//! Memory that is not where it was: an error, never a page that is called clean.

#![allow(unsafe_code)]

mod common;

use common::{
    KINDS, Kind, Memory, faults, kernel, page, refused, reported_ranges, trackers, written,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};
use std::mem::forget;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tarn_ports::WatchedMemory;

// The rest of the memory here is not given back: another thread may have mapped something into its gaps.

/// One test at a time: memory that one maps could come into another's gaps, and be watched there.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_gap_in_the_memory_is_an_error() {
    let _alone = alone();
    let trackers = trackers().into_iter();
    for (tracker, kind) in trackers.flat_map(|t| KINDS.map(|kind| (t.clone(), kind))) {
        for gap in [0..1, 3..5, 63..64, 0..64] {
            let memory = Memory::touched(kind, 64);
            let mut watch = memory.watch(&tracker);
            watch.arm().unwrap();
            let len = gap.len() * page();
            // SAFETY: nothing reads it any more.
            unsafe { munmap(memory.at(gap.start).cast(), len) }.unwrap();
            refused(watch.written(true));
            refused(watch.written(false));
            refused(watch.arm());
            refused(watch.written(true));
            drop(watch);
            forget(memory);
        }
    }
}

#[test]
fn after_an_error_nothing_is_watched_until_it_is_armed_again() {
    let _alone = alone();
    for tracker in trackers() {
        let memory = Memory::touched(Kind::Anonymous, 1001);
        let mut watch = memory.watch(&tracker);
        watch.arm().unwrap();
        // SAFETY: nothing reads it any more.
        unsafe { munmap(memory.at(1000).cast(), page()) }.unwrap();
        refused(watch.written(true));
        let before = faults();
        (0..1000).for_each(|page| memory.write(page, 2));
        assert!(faults() - before < 500);
        drop(watch);
        forget(memory);
    }
}

#[test]
fn other_memory_in_its_place_is_an_error_until_it_is_armed() {
    let _alone = alone();
    let Some(tracker) = kernel() else { return };
    for kind in KINDS {
        let memory = Memory::touched(kind, 64);
        let mut watch = memory.watch(&tracker);
        watch.arm().unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: it takes the place of pages of this test.
        unsafe { mmap_anonymous(memory.at(10).cast(), 2 * page(), access, flags) }.unwrap();
        assert_eq!(refused(watch.written(true)), Errno::PERM, "{kind:?}");
        watch.arm().unwrap();
        memory.write(11, 5);
        memory.write(12, 5);
        assert_eq!(written(&mut watch), [11, 12], "{kind:?}");
    }
}

#[test]
fn memory_that_was_moved_or_made_smaller_is_an_error() {
    let _alone = alone();
    let trackers = trackers().into_iter();
    for (tracker, kind) in trackers.flat_map(|t| KINDS.map(|kind| (t.clone(), kind))) {
        for pages in [32, 128] {
            let memory = Memory::touched(kind, 64);
            let mut watch = memory.watch(&tracker);
            watch.arm().unwrap();
            let elsewhere = Memory::new(Kind::Anonymous, 128);
            let old = memory.start.as_ptr().cast();
            let len = pages * page();
            // SAFETY: it goes to where nothing else is any more, or is cut.
            unsafe {
                if pages > 64 {
                    let to = elsewhere.start.as_ptr().cast();
                    rustix::mm::mremap_fixed(old, 64 * page(), len, MremapFlags::MAYMOVE, to)
                } else {
                    mremap(old, 64 * page(), len, MremapFlags::empty())
                }
            }
            .unwrap();
            refused(watch.written(true));
            refused(watch.arm());
            drop(watch);
            forget(memory);
        }
    }
}

#[test]
fn memory_that_grew_where_it_is_is_watched_as_before() {
    let _alone = alone();
    for tracker in trackers() {
        let memory = Memory::touched(Kind::Anonymous, 64);
        // SAFETY: the second half of this test's own memory.
        unsafe { munmap(memory.at(32).cast(), 32 * page()) }.unwrap();
        let mut watch = memory.part(&tracker, 0..32 * page());
        watch.arm().unwrap();
        memory.write(3, 2);
        let start = memory.start.as_ptr().cast();
        // SAFETY: it grows into a gap, or not at all if another thread has taken it.
        let grown = unsafe { mremap(start, 32 * page(), 64 * page(), MremapFlags::empty()) };
        memory.write(5, 2);
        assert_eq!(
            watch.written(true).unwrap(),
            reported_ranges(&tracker, 32, &[3, 5])
        );
        drop(watch);
        if grown.is_err() {
            forget(memory);
        }
    }
}
