//! The mechanisms of the kernel to track writes, and whether they work.

use crate::fault;
use crate::guard::Guard;
use crate::huge::in_huge_pages;
use crate::kernel::{Kernel, Registered};
use crate::shared::is_plain;
use crate::table::GRANULE;
use crate::uapi;
use crate::watch::WriteWatch;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, munmap, userfaultfd};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use tarn_ports::{TrackError, WatchedMemory};

/// `UFFD_USER_MODE_ONLY`: allowed to a process without privileges. It is about messages, of which there are none: writes by the
/// kernel are seen all the same.
const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
/// Pages that are tried.
const TRIED: usize = 4;
/// A large page.
const LARGE: usize = 2 << 20;

/// Finds out which pages of this process's memory are written. It works: it has been tried.
#[derive(Debug, Clone)]
pub struct Tracker {
    by: TrackingMechanism,
    /// The process that owns the memory: the kernel's descriptors stay with the memory of the process that opened them.
    process: u32,
}

#[derive(Debug, Clone)]
enum TrackingMechanism {
    Kernel(Arc<Kernel>),
    Signals,
}

/// Why a mechanism is of no use here.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("userfaultfd is refused ({0})")]
    Refused(Errno),
    #[error("userfaultfd has no asynchronous write protection, as Linux has from 6.7 on ({0})")]
    Synchronous(io::Error),
    #[error("/proc/self/pagemap cannot be read ({0})")]
    Pagemap(Errno),
    #[error("this thread has SIGSEGV blocked, which tarn needs to see writes to protected memory")]
    Blocked,
    #[error("there is no memory to try it on ({0})")]
    NoMemory(Errno),
    #[error("tried on {TRIED} pages, {0}")]
    Fails(#[from] TrackError),
    #[error("a write to the third of {TRIED} pages was seen as {0:?}")]
    Untrue(Vec<Range<u64>>),
}

impl Tracker {
    /// Requests the mechanism from the kernel and tries it on a few pages.
    ///
    /// # Errors
    /// [`TrackError::Unsupported`], with the reason, where there is none or its reports are wrong.
    pub fn probe() -> Result<Self, TrackError> {
        let unsupported = |why: Unusable| {
            TrackError::Unsupported(format!(
                "{why}; checkpoints copy everything instead, or ask for PHX_MPROTECT"
            ))
        };
        // SAFETY: it is used for memory only that `watch`'s callers vouch for, and the few pages below.
        let faults = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | USER_MODE_ONLY) };
        let faults = faults.map_err(|e| unsupported(Unusable::Refused(e)))?;
        uapi::negotiate(&faults).map_err(|e| unsupported(Unusable::Synchronous(e)))?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let pagemap = open("/proc/self/pagemap", flags, Mode::empty());
        let pagemap = pagemap.map_err(|e| unsupported(Unusable::Pagemap(e)))?;
        let tracker = Self {
            by: TrackingMechanism::Kernel(Arc::new(Kernel { faults, pagemap })),
            process: std::process::id(),
        };
        tracker.try_out().map_err(unsupported)?;
        Ok(tracker)
    }

    /// Protects memory with `mprotect`, and installs a handler of SIGSEGV for the whole process, for good. Faults that are not those of
    /// watched memory it passes on to the handler that was there before. It is tried on a few pages.
    ///
    /// Not seen, in addition to [`Tracker::watch`], are the kernel's writes for the program: such calls (`read` into watched
    /// memory) fail with EFAULT, and change nothing, or come back short where it begins with unprotected memory. Threads that
    /// have SIGSEGV blocked must not write to watched memory: the kernel ends the process then, as it does once another handler
    /// has replaced this one. (Nothing is watched any more, and that is an error, when that is found.)
    ///
    /// # Errors
    /// [`TrackError::Unsupported`], with the reason, where it does not work.
    pub fn by_mprotect() -> Result<Self, TrackError> {
        let unsupported = |why: Unusable| {
            TrackError::Unsupported(format!(
                "{why}; without PHX_MPROTECT it is done in another way, or everything is copied"
            ))
        };
        if fault::is_blocked() {
            return Err(unsupported(Unusable::Blocked));
        }
        fault::install();
        let tracker = Self {
            by: TrackingMechanism::Signals,
            process: std::process::id(),
        };
        tracker.try_out().map_err(unsupported)?;
        Ok(tracker)
    }

    /// Bytes that are protected, and reported, together, counted from the first whole page of the watched memory.
    pub fn granule(&self) -> usize {
        match self.by {
            TrackingMechanism::Kernel(_) => rustix::param::page_size(),
            TrackingMechanism::Signals => GRANULE,
        }
    }

    /// Memory that is never given back, all zero, on large pages if there are any, and its parts of so many bytes to be watched: whole
    /// pages, but for the last.
    ///
    /// # Errors
    /// As [`Tracker::watch`].
    ///
    /// # Panics
    /// When parts are no whole pages.
    pub fn leak(
        &self,
        len: usize,
        part: usize,
    ) -> Result<(&'static mut [u8], Vec<WriteWatch>), TrackError> {
        assert!(part > 0 && part.is_multiple_of(rustix::param::page_size()));
        // Zeros that nobody has touched take no memory yet.
        let all = vec![0; len + LARGE].leak();
        let before = all.as_ptr().align_offset(LARGE);
        let memory = &mut all[before..before + len];
        // If there are none, it has small ones.
        let _ = in_huge_pages(memory);
        let start = NonNull::from(&mut *memory).cast::<u8>();
        let watches = (0..len).step_by(part).map(|at| {
            // SAFETY: it is never given back, and the memory behind the last part is nobody's.
            unsafe { self.watch_mapping(start.add(at), part.min(len - at)) }
        });
        let watches = watches.collect::<Result<_, _>>()?;
        Ok((memory, watches))
    }

    /// Memory that is watched once it is armed; until then, all of it counts as written, and writes to it cost nothing.
    ///
    /// Seen are writes through this mapping: by all threads of this process, and by the kernel for it. Not seen are those of devices
    /// (see [`crate::pinned()`]); where the memory is shared, those by other processes, by way of another mapping or of the file, and
    /// parts that are cut off or punched out of the file; where it is of `hugetlbfs`, pages that are given back.
    ///
    /// # Safety
    /// The memory is mapped, and stays so as long as the value lives. (If it does not, answers are errors, or about other memory
    /// mapped there then; but [`WatchedMemory::copy`] reads unmapped memory.) No other watched memory overlaps it: a query of the
    /// one makes it clean for the other. By `mprotect`: nobody else changes its protection.
    ///
    /// # Errors
    /// When the kernel cannot track such memory, or another userfaultfd has it. By `mprotect`: when it is not memory to be read and
    /// written, and not executed, or too much is watched already.
    pub unsafe fn watch(&self, start: NonNull<u8>, len: usize) -> Result<WriteWatch, TrackError> {
        // SAFETY: as for the caller.
        unsafe { self.watch_with(start, len, len) }
    }

    /// The same of memory that has its last page alone: all of that is tracked too.
    ///
    /// # Safety
    /// As for [`Tracker::watch`].
    ///
    /// # Errors
    /// As for [`Tracker::watch`].
    pub unsafe fn watch_mapping(
        &self,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<WriteWatch, TrackError> {
        let mapped = len.next_multiple_of(rustix::param::page_size());
        // SAFETY: as for the caller.
        unsafe { self.watch_with(start, len, mapped) }
    }

    /// # Safety
    /// As for [`Tracker::watch`]; the bytes behind the memory, up to so many mapped ones, are nobody's.
    unsafe fn watch_with(
        &self,
        start: NonNull<u8>,
        len: usize,
        mapped: usize,
    ) -> Result<WriteWatch, TrackError> {
        WriteWatch::over((start, len), mapped, self.process, |pages| match &self.by {
            TrackingMechanism::Kernel(kernel) => {
                Ok(Box::new(Registered::new(Arc::clone(kernel), pages)?))
            }
            TrackingMechanism::Signals if !is_plain(&pages) => Err(io::Error::other(
                "it is not memory to be read and written, and not executed",
            )),
            TrackingMechanism::Signals => Ok(Box::new(Guard::new(pages)?)),
        })
    }

    /// Does something with memory while it is watched.
    ///
    /// # Errors
    /// As [`Tracker::watch`].
    pub fn during<R>(
        &self,
        memory: &mut [u8],
        work: impl FnOnce(&mut [u8], &mut dyn WatchedMemory) -> R,
    ) -> Result<R, TrackError> {
        // SAFETY: it is borrowed for longer than it is watched, which nobody can prolong: `work` gets no value of its own.
        let mut watch = unsafe { self.watch(NonNull::from(&mut *memory).cast(), memory.len()) }?;
        Ok(work(memory, &mut watch))
    }

    /// Writes to one page of some; why it does not work.
    fn try_out(&self) -> Result<(), Unusable> {
        let granule = self.granule();
        let scratch = Scratch::new(TRIED * granule).map_err(Unusable::NoMemory)?;
        let write = |at: usize| {
            // SAFETY: a byte of the scratch memory.
            unsafe { scratch.0.as_ptr().add(at * granule).write_volatile(1) }
        };
        write(0);
        // SAFETY: the scratch memory outlives it, and is nobody else's.
        let mut watch = unsafe { self.watch(scratch.0, scratch.1) }?;
        watch.arm()?;
        write(2);
        let seen = watch.written(true)?;
        let written: Range<u64> = 2 * granule as u64..3 * granule as u64;
        match seen == [written] {
            true => Ok(()),
            false => Err(Unusable::Untrue(seen)),
        }
    }
}

/// Memory that is given back.
struct Scratch(NonNull<u8>, usize);

impl Scratch {
    fn new(len: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new range that the system chooses: no other is touched.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) }?;
        Ok(Self(NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: this range was mapped for this value, and nothing of it is left.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), self.1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uapi::ScanTarget::{Empty, Written};

    #[test]
    fn pages_with_neither_memory_nor_protection_are_found_until_they_are_protected() {
        let tracker = match Tracker::probe() {
            Ok(tracker) => tracker.by,
            Err(e) => return eprintln!("SKIPPED: {e}"),
        };
        let TrackingMechanism::Kernel(tracker) = tracker else {
            unreachable!("it is the kernel's")
        };
        // More than one page of page tables leads to, and none of it was ever touched.
        let scratch = Scratch::new(8 << 20).unwrap();
        let pages = scratch.0.addr().get()..scratch.0.addr().get() + scratch.1;
        // SAFETY: the scratch memory is this test's own.
        unsafe { uapi::register(&tracker.faults, &pages) }.unwrap();
        let scan = |which, again| {
            let mut found = Vec::new();
            // SAFETY: as above.
            unsafe { uapi::scan(&tracker.pagemap, &pages, which, again, &mut found) }.unwrap();
            found.into_iter().map(|r| r.len()).sum::<usize>()
        };
        assert_eq!(scan(Empty, false), pages.len());
        assert_eq!(scan(Empty, true), pages.len());
        assert_eq!((scan(Empty, false), scan(Written, false)), (0, 0));
    }
}
