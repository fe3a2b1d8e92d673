//! One session for many threads, one at a time.

use crate::Session;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, TryLockError};
use tarn_checkpoint_core::{Code, Fault};

/// Where a session is, if there is one. Whoever comes while another thread is in a call is refused: calls are not queued.
#[derive(Debug)]
pub struct Slot {
    session: Mutex<Option<Session>>,
    /// Whose threads are, or were, in a call; 0 before the first. A child that was forked in the middle of one has the lock as it was then,
    /// and nobody who gives it back.
    process: AtomicU32,
}

impl Slot {
    /// With a session, or none yet.
    pub const fn new(session: Option<Session>) -> Self {
        Self {
            session: Mutex::new(session),
            process: AtomicU32::new(0),
        }
    }

    /// The session, for one call.
    ///
    /// # Errors
    /// When another thread is in a call, or the session is another process's: a child that was forked has no helper thread, and would
    /// write what its parent writes.
    pub fn take(&self) -> Result<MutexGuard<'_, Option<Session>>, Fault> {
        let own = std::process::id();
        // Before the lock, so that none is held without its process being known.
        let whose = match self.process.compare_exchange(0, own, Relaxed, Relaxed) {
            Ok(_) => own,
            Err(whose) => whose,
        };
        match self.session.try_lock() {
            Ok(session) if session.as_ref().is_some_and(|s| s.process != own) => Err(forked()),
            Ok(session) => {
                self.process.store(own, Relaxed);
                Ok(session)
            }
            Err(_) if whose != own => Err(forked()),
            // What a call that panicked has left is not used.
            Err(TryLockError::Poisoned(broken)) => {
                let mut session = broken.into_inner();
                *session = None;
                self.session.clear_poison();
                Ok(session)
            }
            Err(TryLockError::WouldBlock) => {
                let text = "another thread is in a call of this library: let one thread do it, or one after the other";
                Err(Fault::new(Code::Busy, text))
            }
        }
    }
}

fn forked() -> Fault {
    let text = "these are the checkpoints of the process that this one was forked from: only that one can use them";
    Fault::new(Code::Unsupported, text)
}
