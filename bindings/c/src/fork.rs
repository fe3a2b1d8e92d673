//! A fork takes the thread that calls it alone into the child. The tables of what C was given are locked meanwhile, so that no other thread
//! is in the middle of one: the child could neither end that nor wait for it.

use crate::{dsa, phx};
use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::Once;

type Held = (dsa::Held, phx::Held);

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
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
    let held = (dsa::hold(), phx::hold());
    // A thread that is ending forks no more; if it does, nothing is held.
    let _ = HELD.try_with(|to| *to.borrow_mut() = Some(held));
}

extern "C" fn release() {
    let _ = HELD.try_with(|held| held.borrow_mut().take());
}

/// From now on it is so. Where the system has no room for that, a fork in the middle of another thread's call is the program's to avoid.
pub(crate) fn heed() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions are there for as long as the library is, and panic on nothing.
        let _ = unsafe { pthread_atfork(hold, release, release) };
    });
}
