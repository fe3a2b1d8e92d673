//! A fork takes the thread that calls it alone into the child. The tables of objects given to C are locked meanwhile, so that no
//! other thread is in the middle of one: the child could neither end that nor wait for it.

use crate::{dsa::tables, phx};
use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

type ForkGuards = (tables::DsaTableGuards, phx::PhxTableGuards);

thread_local! {
    static HELD: RefCell<Option<ForkGuards>> = const { RefCell::new(None) };
}

// SAFETY: as POSIX declares it.
unsafe extern "C" {
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> c_int;
}

extern "C" fn hold() {
    // A thread that is ending forks no more; if it does, nothing is held.
    let _ = HELD.try_with(|to| {
        to.borrow_mut()
            .get_or_insert_with(|| (tables::hold(), phx::hold()));
    });
}

extern "C" fn release() {
    let _ = HELD.try_with(|held| held.borrow_mut().take());
}

/// From now on it is so. If the system has no space for that, the program must avoid a fork in the middle of another
/// thread's call.
pub(crate) fn heed() {
    /// Not a `Once`: a child that was forked while another thread was in it would wait for ever. Threads that come at once may
    /// all do it: the second one to hold or to release finds it done.
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.load(Acquire) {
        // SAFETY: the functions are there for as long as the library is, and panic on nothing.
        let failed = unsafe { pthread_atfork(hold, release, release) };
        DONE.store(failed == 0, Release);
    }
}
