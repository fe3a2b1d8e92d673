//! Signals and threads.

use std::mem::MaybeUninit;

/// Signals about a thread's own errors: to block them would be to hide them.
const OWN: [libc::c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
];

/// While this lives, its thread takes no signals, nor do threads that it begins: those are for others to take.
pub struct Blocked(libc::sigset_t);

impl Blocked {
    /// Blocks them.
    pub fn new() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: the sets are this function's; to fill one makes it whole, and asking for the mask before does the same.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for own in OWN {
                libc::sigdelset(all.as_mut_ptr(), own);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }

    /// For as long as this thread lives.
    pub fn stay(self) {
        std::mem::forget(self);
    }
}

impl Default for Blocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the mask that was there before.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

/// Signals whose handlers are looked at: all but those of real time.
const PLAIN: std::ops::RangeInclusive<libc::c_int> = 1..=31;

/// The signal handlers of this process. Dropping it restores them: a library that is loaded meanwhile leaves no handlers, nor
/// does another thread.
pub struct Handlers(Vec<(libc::c_int, libc::sigaction)>);

fn handler(signal: libc::c_int) -> Option<libc::sigaction> {
    let mut now = MaybeUninit::uninit();
    // SAFETY: nothing is changed, and the handler is written, or an error returned.
    unsafe {
        let rc = libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr());
        (rc == 0).then(|| now.assume_init())
    }
}

impl Handlers {
    /// As they are now.
    pub fn keep() -> Self {
        Self(PLAIN.filter_map(|s| Some((s, handler(s)?))).collect())
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        for (signal, before) in &self.0 {
            let same = |now: libc::sigaction| {
                (now.sa_sigaction, now.sa_flags) == (before.sa_sigaction, before.sa_flags)
            };
            if !handler(*signal).is_some_and(same) {
                // SAFETY: the handler that was there before.
                unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked(signal: libc::c_int) -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: no new mask is given, and the old one is written.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn handlers_are_what_they_were() {
        extern "C" fn other(_: libc::c_int) {}
        let before = handler(libc::SIGURG).unwrap().sa_sigaction;
        let kept = Handlers::keep();
        // SAFETY: a handler that does nothing, of a signal that is ignored otherwise.
        unsafe { libc::signal(libc::SIGURG, other as *const () as usize) };
        assert_ne!(handler(libc::SIGURG).unwrap().sa_sigaction, before);
        drop(kept);
        assert_eq!(handler(libc::SIGURG).unwrap().sa_sigaction, before);
    }

    #[test]
    fn threads_that_begin_meanwhile_take_no_signals() {
        assert!(!blocked(libc::SIGUSR1));
        let while_blocked = Blocked::new();
        let inside =
            std::thread::spawn(|| [libc::SIGUSR1, libc::SIGTERM, libc::SIGSEGV].map(blocked));
        drop(while_blocked);
        assert_eq!(inside.join().unwrap(), [true, true, false]);
        assert!(!blocked(libc::SIGUSR1));
        let stays = std::thread::spawn(|| {
            Blocked::new().stay();
            blocked(libc::SIGUSR1)
        });
        assert!(stays.join().unwrap());
    }
}
