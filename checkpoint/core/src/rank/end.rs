//! The end of a rank: with all that is staged de-staged, or as if its process was killed.

use super::exchange::{ExchangeKind, agree};
use super::files;
use super::{Rank, buddy};
use crate::fault::CheckpointError;
use std::sync::atomic::Ordering;
use tarn_ports::{RankProgress, Vault};

impl<T: Vault, M: Vault> Rank<T, M> {
    /// Ends: de-stages, and gives memory back; does not wait for a flush. All ranks call it.
    ///
    /// # Errors
    /// When it cannot be de-staged: it stays in memory, and the next start tries again.
    pub fn end(mut self) -> Result<(), CheckpointError> {
        self.last();
        self.stop();
        let shared = &self.shared;
        let mut rank_state = shared.rank_state();
        rank_state.destage(shared)?;
        rank_state.staging = None;
        shared.memory.remove(&files::staging(shared.ranks.rank()))?;
        rank_state.buddies.forget();
        // A rank that does not come has its own reason, and loses nothing by this: its memory here stays then.
        let (ranks, timeout) = (&*shared.ranks, shared.options.timeout);
        if agree(ranks, ExchangeKind::End, &(), timeout).is_ok() {
            buddy::give_back(&*shared.memory, &*shared.ranks)?;
            rank_state.reclaim(shared)?;
        }
        Ok(())
    }
}

impl<T: Vault, M: Vault> Rank<T, M> {
    /// Waits until the last version that others are to keep is there.
    fn last(&self) {
        let shared = &self.shared;
        let every = shared.options.replicate_every.max(1);
        let number = shared.number.load(Ordering::Acquire) / every * every;
        if self.keeper.is_some() && number > 0 && shared.take().destage(shared).is_ok() {
            let least = RankProgress {
                replicated: number,
                ..RankProgress::default()
            };
            // A rank that does not come has its own reason.
            let _ = shared.ranks.wait(least, shared.options.timeout);
        }
    }

    pub(super) fn stop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.notify_helper();
        for thread in self.helper.take().into_iter().chain(self.keeper.take()) {
            // The next process that opens the arena completes the work of a thread that panicked.
            let _ = thread.join();
        }
        if let (Some(flusher), Some(thread)) = (&self.shared.flusher, self.flusher.take()) {
            flusher.end(thread);
        }
    }
}

impl<T: Vault, M: Vault> Drop for Rank<T, M> {
    /// As if the process was killed, but for the current work of the helper.
    fn drop(&mut self) {
        self.stop();
    }
}
