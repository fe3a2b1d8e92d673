//! One session for many threads, one at a time.

use crate::CheckpointSession;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Release},
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode};

/// Holds the session of a process with several threads, or none yet. A thread that comes while another is in
/// a call is refused: calls are not queued.
///
/// # Examples
/// ```
/// use tarn_checkpoint::{CheckpointErrorCode, CheckpointSession, Options, SessionSlot};
///
/// static SLOT: SessionSlot = SessionSlot::new(None);
///
/// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let [tier, memory] = ["tier", "memory"].map(|name| Some(folder.path().join(name)));
/// let options = Options { tier, memory, ..Options::default() };
/// *SLOT.take()? = Some(CheckpointSession::begin(options)?);
///
/// let mut call = SLOT.take()?;
/// let other = std::thread::spawn(|| SLOT.take().err().unwrap().code);
/// assert_eq!(other.join().unwrap(), CheckpointErrorCode::Busy);
/// if let Some(session) = call.take() {
///     session.end()?;
/// }
/// # Ok::<(), tarn_checkpoint::CheckpointError>(())
/// ```
#[derive(Debug)]
pub struct SessionSlot {
    session: Mutex<Option<CheckpointSession>>,
    /// The process whose thread is in a call; 0 if none is. A thread sets it before it takes the lock: so the process of
    /// a lock's holder is always known. A child that was forked in the middle of a call has this as it was then, and no
    /// thread that resets it.
    process: AtomicU32,
}

/// The session of a [`SessionSlot`], for one call: it derefs to an `Option` of the session.
#[derive(Debug)]
pub struct SessionGuard<'s> {
    // First, so it is given back first: a caller that finds no process in a call does not wait for the lock.
    session: MutexGuard<'s, Option<CheckpointSession>>,
    _call: SessionCall<'s>,
}

/// Of a thread that is in a call.
#[derive(Debug)]
struct SessionCall<'s>(&'s AtomicU32);

impl SessionSlot {
    /// With a session, or none yet.
    pub const fn new(session: Option<CheckpointSession>) -> Self {
        Self {
            session: Mutex::new(session),
            process: AtomicU32::new(0),
        }
    }

    /// Takes the session for one call. If a call has panicked, the session is gone: its remains are not used.
    ///
    /// # Errors
    /// - [`Busy`](CheckpointErrorCode::Busy): another thread is in a call.
    /// - [`Unsupported`](CheckpointErrorCode::Unsupported): the session is that of the process that this one
    ///   was forked from. A forked child has no helper thread, and would write the same as its parent.
    pub fn take(&self) -> Result<SessionGuard<'_>, CheckpointError> {
        let own = std::process::id();
        if let Err(whose) = self.process.compare_exchange(0, own, Acquire, Acquire) {
            if whose != own {
                return Err(forked());
            }
            let text = "another thread is in a call of this library: let one thread do it, or one after the other";
            return Err(CheckpointError::new(CheckpointErrorCode::Busy, text));
        }
        let is_broken = self.session.is_poisoned();
        // Nobody has it.
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = SessionGuard {
            session,
            _call: SessionCall(&self.process),
        };
        if taken.as_ref().is_some_and(|s| s.process != own) {
            return Err(forked());
        }
        if is_broken {
            // The session of a call that panicked is not used.
            *taken = None;
            self.session.clear_poison();
        }
        Ok(taken)
    }
}

impl Deref for SessionGuard<'_> {
    type Target = Option<CheckpointSession>;

    fn deref(&self) -> &Option<CheckpointSession> {
        &self.session
    }
}

impl DerefMut for SessionGuard<'_> {
    fn deref_mut(&mut self) -> &mut Option<CheckpointSession> {
        &mut self.session
    }
}

impl Drop for SessionCall<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

fn forked() -> CheckpointError {
    let text = "these are the checkpoints of the process that this one was forked from: only that one can use them";
    CheckpointError::new(CheckpointErrorCode::Unsupported, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn of_two_threads_one_is_busy_and_a_call_that_panicked_leaves_nothing() {
        let slot = SessionSlot::new(None);
        let taken = slot.take().unwrap();
        assert_eq!(slot.take().unwrap_err().code, CheckpointErrorCode::Busy);
        drop(taken);
        let panicked = std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                let _taken = slot.take().unwrap();
                std::panic::resume_unwind(Box::new(()));
            });
            call.join()
        });
        assert!(panicked.is_err());
        assert!(slot.take().unwrap().is_none() && slot.take().is_ok());
        assert!(!slot.session.is_poisoned());
    }

    /// As in a child that was forked from a process that had called without a session: its first
    /// thread gets the slot, the others are busy. None of them gets the error about a session of its parent's.
    #[test]
    fn threads_of_a_child_whose_parent_had_no_session_are_busy_and_not_forked() {
        for _ in 0..2000 {
            let slot = SessionSlot::new(None);
            // Its parent has called, and the call has ended.
            assert!(slot.take().unwrap().is_none());
            as_of_the_parent(&slot);
            let start = Barrier::new(2);
            let call = || {
                start.wait();
                slot.take().map(|taken| taken.is_none())
            };
            let both = std::thread::scope(|scope| {
                let other = scope.spawn(call);
                [call(), other.join().unwrap()]
            });
            for outcome in both {
                assert!(
                    outcome.as_ref().is_ok_and(|none| *none)
                        || outcome.is_err_and(|e| e.code == CheckpointErrorCode::Busy)
                );
            }
        }
    }

    /// A child has the state that its parent had then.
    fn as_of_the_parent(slot: &SessionSlot) {
        let own = std::process::id();
        if slot.process.load(Acquire) == own {
            slot.process.store(own + 1, Release);
        }
    }

    #[test]
    fn a_child_that_was_forked_in_a_call_is_told() {
        let slot = SessionSlot::new(None);
        let taken = slot.take().unwrap();
        as_of_the_parent(&slot);
        assert_eq!(
            slot.take().unwrap_err().code,
            CheckpointErrorCode::Unsupported
        );
        drop(taken);
    }
}
