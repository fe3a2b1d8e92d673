//! Pages of files that may be made shorter, and of media that may not be readable any more: to touch them is a SIGBUS then, whose handler
//! puts pages of zeros in their place, and notes it.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use tarn_sys::fault::{Fault, Signal};

/// Ranges that a process guards at the same time, at most.
const MAX_RANGES: usize = 1024;
/// Where a range begins that there is not.
const NOWHERE: usize = usize::MAX;

/// A place for a range. It is taken away before the range is unmapped: whoever touches the range has it mapped, and so the place is the
/// range's for as long as a handler deals with that.
#[derive(Debug)]
struct Slot {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    broken: AtomicBool,
}

static SLOTS: [Slot; MAX_RANGES] = [const {
    Slot {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(NOWHERE),
        end: AtomicUsize::new(NOWHERE),
        broken: AtomicBool::new(false),
    }
}; MAX_RANGES];
/// Slots from here on were never taken.
static USED: AtomicUsize = AtomicUsize::new(0);

fn deal(fault: &Fault<'_>) -> bool {
    // The place may be another range's in between.
    let has = |slot: &&Slot| {
        let start = slot.start.load(SeqCst);
        (start..slot.end.load(SeqCst)).contains(&fault.address) && slot.start.load(SeqCst) == start
    };
    let mut slots = SLOTS.iter().take(USED.load(SeqCst));
    let Some(slot) = slots.find(has) else {
        return false;
    };
    slot.broken.store(true, SeqCst);
    let page = rustix::param::page_size();
    // SAFETY: a page of a range that is mapped, and that nobody refers to but by copies, as `Guarded` says.
    let mapped = unsafe {
        libc::mmap(
            (fault.address & !(page - 1)) as *mut _,
            page,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

/// A range that is guarded, until this is dropped.
#[derive(Debug)]
pub(crate) struct Guarded(&'static Slot);

impl Guarded {
    /// Guards a range.
    ///
    /// # Errors
    /// When there are too many, or another handler was installed over this one.
    ///
    /// # Safety
    /// Bytes of the range are only copied, never referred to, and it stays mapped until this was dropped.
    pub(crate) unsafe fn new(range: Range<usize>) -> io::Result<Self> {
        Signal::Bus.install(deal);
        if !Signal::Bus.is_installed() {
            let text = "another handler of SIGBUS was installed over tarn's: install it before the first partition is opened";
            return Err(io::Error::other(text));
        }
        let free = |slot: &&Slot| !slot.taken.swap(true, SeqCst);
        let found = SLOTS.iter().enumerate().find(|(_, slot)| free(slot));
        let text = "1024 ranges are guarded already";
        let (number, slot) = found.ok_or_else(|| io::Error::other(text))?;
        slot.broken.store(false, SeqCst);
        slot.end.store(range.end, SeqCst);
        slot.start.store(range.start, SeqCst);
        USED.fetch_max(number + 1, SeqCst);
        Ok(Self(slot))
    }

    /// Whether some of it was not there when it was touched.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.0.broken.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.start.store(NOWHERE, SeqCst);
        self.0.taken.store(false, SeqCst);
    }
}
