//! Pages of files that may be made shorter, and of media that may not be readable any more: to touch them is a SIGBUS then, whose handler
//! puts pages of zeros in their place, and notes it.

mod table;

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
pub(crate) use table::AtomicWord;
use table::{GuardedRangeSlot, GuardedRangeTable};
use tarn_sys::fault::{MemoryFault, Signal};

/// Ranges that a process guards at the same time, at most.
const MAX_RANGES: usize = 1024;

static SLOTS: [GuardedRangeSlot<AtomicUsize>; MAX_RANGES] =
    [const { GuardedRangeSlot::free() }; MAX_RANGES];
static USED: AtomicUsize = AtomicUsize::new(0);
static TABLE: GuardedRangeTable<'static, AtomicUsize> = GuardedRangeTable {
    slots: &SLOTS,
    used: &USED,
};

fn deal(fault: &MemoryFault<'_>) -> bool {
    let Some(slot) = TABLE.find(fault.address) else {
        return false;
    };
    slot.mark();
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
pub(crate) struct Guarded(&'static GuardedRangeSlot<AtomicUsize>);

impl Guarded {
    /// Guards a range.
    ///
    /// # Errors
    /// When there are too many, or another handler was installed over this one.
    ///
    /// # Safety
    /// Bytes of the range are only copied, never referred to, and it stays mapped until this was dropped.
    pub(crate) unsafe fn new(range: Range<usize>) -> io::Result<Self> {
        if !Signal::Bus.install(deal) {
            let text = "another handler of SIGBUS was installed over tarn's: install it before the first partition is opened";
            return Err(io::Error::other(text));
        }
        let text = "1024 ranges are guarded already";
        let slot = TABLE.take(range).ok_or_else(|| io::Error::other(text))?;
        Ok(Self(slot))
    }

    /// Whether some of it was not there when it was touched.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.0.is_marked()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.give_back();
    }
}
