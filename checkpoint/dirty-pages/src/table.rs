//! The data of the handler of faults: a table of a fixed size, of atomic words only.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use std::time::Duration;

/// Ranges that a process watches at the same time, at most.
const MAX_RANGES: usize = 1024;
/// Bytes that lose their protection together, and are reported together: a multiple of the pages of all processors. Checkpoints copy no less,
/// and to write a GiB by 64 KiB costs twice as much in faults, by pages of 4 KiB seventeen times.
pub(crate) const GRANULE: usize = 256 << 10;
/// The begin of a slot's range while it has none.
const NOWHERE: usize = usize::MAX;
/// Looks until a handler, which takes as long as a system call, must have ended, and the time between two.
const LOOKS: u32 = 20_000;
const NAP: Duration = Duration::from_micros(50);

/// A place for a range.
///
/// A handler does what it does to a range as one of `running`. Before a slot gets another range, its owner takes away the old one
/// and sees that no handler is running: a handler that begins later finds it gone, and one that has found it may rely on it.
#[derive(Debug)]
struct TrackedRangeSlot {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    /// A bit for each granule: it is not protected. It belongs to the slot, until the next range has another.
    bits: AtomicPtr<AtomicU64>,
    /// Words of it.
    words: AtomicUsize,
    running: AtomicU32,
}

static SLOTS: [TrackedRangeSlot; MAX_RANGES] = [const {
    TrackedRangeSlot {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(NOWHERE),
        end: AtomicUsize::new(NOWHERE),
        bits: AtomicPtr::new(std::ptr::null_mut()),
        words: AtomicUsize::new(0),
        running: AtomicU32::new(0),
    }
}; MAX_RANGES];
/// Slots from here on were never taken.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Lets a granule of a range be written, if the address is in one. Handlers call it.
pub(crate) fn opened(address: usize) -> bool {
    let mut slots = SLOTS.iter().take(USED.load(SeqCst));
    slots.any(|slot| slot.opened(address))
}

impl TrackedRangeSlot {
    fn pages(&self) -> Range<usize> {
        self.start.load(SeqCst)..self.end.load(SeqCst)
    }

    fn opened(&self, address: usize) -> bool {
        if !self.pages().contains(&address) {
            return false;
        }
        self.running.fetch_add(1, SeqCst);
        let pages = self.pages();
        let opened = pages.contains(&address) && {
            // SAFETY: the range is there, and stays, as this is one of `running`.
            open(&pages, unsafe { self.bits() }, address)
        };
        self.running.fetch_sub(1, SeqCst);
        opened
    }

    /// # Safety
    /// It has a range, which stays as long as the bits are used.
    unsafe fn bits(&self) -> &[AtomicU64] {
        // SAFETY: made by `Place::take`, and freed by it once there is another range.
        unsafe { std::slice::from_raw_parts(self.bits.load(SeqCst), self.words.load(SeqCst)) }
    }

    /// Waits for all handlers that have begun to do something here.
    fn quiet(&self) -> io::Result<()> {
        for _ in 0..LOOKS {
            if self.running.load(SeqCst) == 0 {
                return Ok(());
            }
            std::thread::sleep(NAP);
        }
        Err(io::Error::other("a handler of SIGSEGV does not end"))
    }
}

/// First the protection goes, then it is marked.
fn open(pages: &Range<usize>, bits: &[AtomicU64], address: usize) -> bool {
    let number = (address - pages.start) / GRANULE;
    let start = pages.start + number * GRANULE;
    if protect(start..pages.end.min(start + GRANULE), PageAccess::Write).is_ok() {
        bits[number / 64].fetch_or(1 << (number % 64), SeqCst);
        return true;
    }
    // The kernel allows no more mappings (vm.max_map_count): the range becomes one again.
    let opened = protect(pages.clone(), PageAccess::Write).is_ok();
    bits.iter().for_each(|word| word.store(!0, SeqCst));
    opened
}

/// A range's place in the table, until this is dropped. All of the range counts as written at first.
#[derive(Debug)]
pub(crate) struct TrackedRange(&'static TrackedRangeSlot);

impl TrackedRange {
    pub(crate) fn take(pages: &Range<usize>) -> io::Result<Self> {
        // A handler that is at work on a range that is gone could let this one be written.
        for slot in SLOTS.iter().take(USED.load(SeqCst)) {
            if slot.start.load(SeqCst) == NOWHERE {
                slot.quiet()?;
            }
        }
        let free = |slot: &&TrackedRangeSlot| !slot.taken.swap(true, SeqCst);
        let found = SLOTS.iter().enumerate().find(|(_, slot)| free(slot));
        let (number, slot) = found
            .ok_or_else(|| io::Error::other(format!("{MAX_RANGES} ranges are watched already")))?;
        let place = Self(slot);
        slot.quiet()?;
        let words = pages.len().div_ceil(GRANULE).div_ceil(64);
        let bits: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(!0)).collect();
        let before = slot.bits.swap(Box::into_raw(bits).cast(), SeqCst);
        let words_before = slot.words.swap(words, SeqCst);
        if !before.is_null() {
            let before = std::ptr::slice_from_raw_parts_mut(before, words_before);
            // SAFETY: made here; no handler has it, and none finds it any more.
            drop(unsafe { Box::from_raw(before) });
        }
        slot.end.store(pages.end, SeqCst);
        slot.start.store(pages.start, SeqCst);
        USED.fetch_max(number + 1, SeqCst);
        Ok(place)
    }

    /// A bit for each granule of the range, and some more at the end.
    pub(crate) fn bits(&self) -> &[AtomicU64] {
        // SAFETY: the range goes when this does.
        unsafe { self.0.bits() }
    }

    /// Waits until all writes that were let through before are marked.
    ///
    /// # Errors
    /// When a handler does not end.
    pub(crate) fn quiet(&self) -> io::Result<()> {
        self.0.quiet()
    }
}

impl Drop for TrackedRange {
    fn drop(&mut self) {
        self.0.start.store(NOWHERE, SeqCst);
        self.0.taken.store(false, SeqCst);
    }
}

/// The allowed access to memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PageAccess {
    Read,
    /// And to be read.
    Write,
}

/// Sets the access to pages of a range.
pub(crate) fn protect(pages: Range<usize>, access: PageAccess) -> io::Result<()> {
    let access = match access {
        PageAccess::Read => libc::PROT_READ,
        PageAccess::Write => libc::PROT_READ | libc::PROT_WRITE,
    };
    // SAFETY: the caller that watches this memory has vouched for it. It could be read and written before, and the handler lets a
    // thread through that writes to it in between.
    match unsafe { libc::mprotect(pages.start as *mut _, pages.len(), access) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
