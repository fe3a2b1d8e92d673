//! Memory to write to, and its watchers.

#![allow(unsafe_code, dead_code, missing_docs, unreachable_pub)]

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ops::Range;
use std::ptr::NonNull;
use tarn_dirty_pages::{Tracker, WriteWatch};
use tarn_ports::{TrackError, WatchedMemory};

/// Bytes of a huge page.
pub const HUGE: usize = 2 << 20;

/// The kernel's tracker, or a line that gives the reason why there is none.
pub fn kernel() -> Option<Tracker> {
    let tracker = Tracker::probe();
    tracker.inspect_err(|e| eprintln!("SKIPPED: {e}")).ok()
}

/// All ways that there are here.
pub fn trackers() -> Vec<Tracker> {
    let signals = Tracker::by_mprotect().unwrap();
    kernel().into_iter().chain([signals]).collect()
}

/// Bytes of a page.
pub fn page() -> usize {
    rustix::param::page_size()
}

/// Kinds of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Anonymous,
    Huge,
    Shared,
    File,
}

pub const KINDS: [Kind; 4] = [Kind::Anonymous, Kind::Huge, Kind::Shared, Kind::File];

/// Some pages, given back at the end.
#[derive(Debug)]
pub struct Memory {
    pub start: NonNull<u8>,
    pub len: usize,
}

// SAFETY: tests write to it by atomic or volatile bytes.
unsafe impl Sync for Memory {}

impl Memory {
    /// Pages that were never touched; of huge pages, it begins with one.
    pub fn new(kind: Kind, pages: usize) -> Self {
        let len = pages * page();
        let null = std::ptr::null_mut();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new ranges that the system chooses, and parts of them given back.
        let start = unsafe {
            match kind {
                Kind::Anonymous => {
                    let start = mmap_anonymous(null, len, access, MapFlags::PRIVATE).unwrap();
                    madvise(start, len, Advice::LinuxNoHugepage).unwrap();
                    start
                }
                Kind::Huge => {
                    let all = mmap_anonymous(null, len + HUGE, access, MapFlags::PRIVATE).unwrap();
                    let before = all.align_offset(HUGE);
                    let start = all.byte_add(before);
                    let _ = munmap(all, before);
                    munmap(start.byte_add(len), HUGE - before).unwrap();
                    madvise(start, len, Advice::LinuxHugepage).unwrap();
                    start
                }
                Kind::Shared | Kind::File => {
                    let file = match kind {
                        Kind::Shared => memfd_create("watched", MemfdFlags::CLOEXEC).unwrap(),
                        _ => tempfile::tempfile().unwrap().into(),
                    };
                    ftruncate(&file, len as u64).unwrap();
                    mmap(null, len, access, MapFlags::SHARED, &file, 0).unwrap()
                }
            }
        };
        let start = NonNull::new(start.cast()).unwrap();
        Self { start, len }
    }

    /// The same, with a byte in each page.
    pub fn touched(kind: Kind, pages: usize) -> Self {
        let memory = Self::new(kind, pages);
        (0..pages).for_each(|page| memory.write(page, 1));
        memory
    }

    pub fn watch(&self, tracker: &Tracker) -> WriteWatch {
        self.part(tracker, 0..self.len)
    }

    pub fn part(&self, tracker: &Tracker, part: Range<usize>) -> WriteWatch {
        assert!(part.end <= self.len);
        // SAFETY: inside; each test drops the watch before the memory, or is about the case that it does not.
        unsafe { tracker.watch(self.start.add(part.start), part.len()) }.unwrap()
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub fn at(&self, page: usize) -> *mut u8 {
        // SAFETY: tests name pages that it has.
        unsafe { self.start.as_ptr().add(page * self::page()) }
    }

    pub fn write(&self, page: usize, byte: u8) {
        // SAFETY: as above.
        unsafe { self.at(page).add(77).write_volatile(byte) };
    }

    pub fn read(&self, page: usize) -> u8 {
        // SAFETY: as above.
        unsafe { self.at(page).add(77).read_volatile() }
    }

    /// Changes the mapping: pages are given back to the system.
    pub fn give_back(&self, pages: Range<usize>) {
        let len = pages.len() * page();
        // SAFETY: as above.
        unsafe { madvise(self.at(pages.start).cast(), len, Advice::LinuxDontNeed) }.unwrap();
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing of it is borrowed.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Pages as bytes.
pub fn pages(pages: Range<usize>) -> Range<u64> {
    (pages.start * page()) as u64..(pages.end * page()) as u64
}

/// The granules that are reported of so many pages when some were written.
pub fn reported_ranges(tracker: &Tracker, of: usize, written: &[usize]) -> Vec<Range<u64>> {
    let each = tracker.granule() / page();
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for number in written {
        let start = number / each * each;
        match ranges.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max((start + each).min(of)),
            _ => ranges.push(start..(start + each).min(of)),
        }
    }
    ranges.into_iter().map(pages).collect()
}

/// The pages that were written, of a memory that is watched whole.
pub fn written(watch: &mut WriteWatch) -> Vec<usize> {
    let ranges = watch.written(true).unwrap();
    let page = page() as u64;
    ranges
        .into_iter()
        .flat_map(|r| (r.start / page) as usize..r.end.div_ceil(page) as usize)
        .collect()
}

/// The system's word for why not.
pub fn refused<T: std::fmt::Debug>(result: Result<T, TrackError>) -> rustix::io::Errno {
    match result.unwrap_err() {
        TrackError::Io { source, .. } => rustix::io::Errno::from_io_error(&source).unwrap(),
        e @ TrackError::Unsupported(_) => panic!("{e}"),
    }
}

/// Page faults of this thread so far.
pub fn faults() -> i64 {
    // SAFETY: all zeroes is a value of it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it lives as long as the call.
    assert_eq!(
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) },
        0
    );
    usage.ru_minflt
}
