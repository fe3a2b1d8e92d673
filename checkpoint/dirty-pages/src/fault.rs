//! Writes to protected memory, as faults.

use crate::table;
use libc::c_int;
use std::sync::atomic::AtomicU32;
use tarn_sys::fault::{MemoryFault, Signal};

/// `SEGV_ACCERR`: something is mapped there, and does not allow it.
const NOT_ALLOWED: c_int = 2;

/// Installs the handler, once.
pub(crate) fn install() {
    // Whether it is there is looked at each time before pages are protected.
    let _ = Signal::Segv.install(deal);
}

/// Whether it is still there: if not, a thread that writes to protected memory dies.
pub(crate) fn is_installed() -> bool {
    Signal::Segv.is_installed()
}

/// Whether this thread has the signal blocked: then it dies as well.
pub(crate) fn is_blocked() -> bool {
    Signal::Segv.is_blocked()
}

fn deal(fault: &MemoryFault<'_>) -> bool {
    let address = fault.address;
    fault.code == NOT_ALLOWED
        && fault.is_write()
        && (table::opened(address) || may_be_written(address))
}

/// Whether memory may be written, as the kernel finds when it adds no bits to a word of it. In a handler, that lets a thread continue that
/// wrote to memory that was watched then, and is not any more; and it touches memory that never was.
pub(crate) fn may_be_written(address: usize) -> bool {
    /// `FUTEX_WAKE_OP` with `FUTEX_PRIVATE_FLAG`.
    const WAKE_OP: c_int = 5 | 128;
    /// `FUTEX_OP_OR` of the word and 0.
    const OR_NOTHING: c_int = 2 << 28;
    static NOBODY_WAITS: AtomicU32 = AtomicU32::new(0);
    // SAFETY: the kernel checks itself whether it may write to the word, which stays as it is. A thread that sleeps until it
    // changes may wake for nothing, which it must expect of a futex.
    let woken = unsafe {
        let sleepers = NOBODY_WAITS.as_ptr();
        libc::syscall(
            libc::SYS_futex,
            sleepers,
            WAKE_OP,
            0,
            0_usize,
            address & !3,
            OR_NOTHING,
        )
    };
    woken >= 0
}
