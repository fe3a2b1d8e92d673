//! One session for many threads, one at a time.

use crate::Session;
use std::sync::{Mutex, MutexGuard, TryLockError};
use tarn_phx::{Code, Fault};

/// Where a session is, if there is one. Whoever comes while another thread is in a call is refused: calls are not queued.
#[derive(Debug)]
pub struct Slot(Mutex<Option<Session>>);

impl Slot {
    /// With a session, or none yet.
    pub const fn new(session: Option<Session>) -> Self {
        Self(Mutex::new(session))
    }

    /// The session, for one call.
    ///
    /// # Errors
    /// When another thread is in a call, or the session is another process's: a child that was forked has no helper thread, and would
    /// write what its parent writes.
    pub fn take(&self) -> Result<MutexGuard<'_, Option<Session>>, Fault> {
        match self.0.try_lock() {
            Ok(session)
                if session
                    .as_ref()
                    .is_some_and(|s| s.process != std::process::id()) =>
            {
                let text = "these are the checkpoints of the process that this one was forked from: only that one can use them";
                Err(Fault::new(Code::Unsupported, text))
            }
            Ok(session) => Ok(session),
            // What a call that panicked has left is not used.
            Err(TryLockError::Poisoned(broken)) => {
                let mut session = broken.into_inner();
                *session = None;
                self.0.clear_poison();
                Ok(session)
            }
            Err(TryLockError::WouldBlock) => {
                let text = "another thread is in a call of this library: let one thread do it, or one after the other";
                Err(Fault::new(Code::Busy, text))
            }
        }
    }
}
