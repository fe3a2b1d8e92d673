//! A commit, stage by stage. `CheckpointSession::commit` lists the objects, [`super::Rank::commit`] waits for the level that they
//! require, and in between is this file:
//!
//! 1. [`RankContext::commit_version`] numbers the version and reports the outcome to the other ranks.
//! 2. [`RankState::make_version`] makes it: de-stages the version before (`destage`), reserves space and gives up old versions
//!    (`space`), lays the new one out (`lay_out`), copies the objects (`copy`) and publishes the manifest (`publish_version`).
//!
//! **A version becomes durable when a manifest without staged chunks is published** ([`crate::Arena::publish`], by
//! [`super::publish`]): at once in `publish_version` if nothing was staged, else at the end of `destage`. A crash before that leaves
//! the version before; all writes of a commit go to space that no published manifest leads to.

use super::copy::{Chunks, NewVersion, manifest};
use super::space::{head, too_large};
use super::{CommitObject, Committed, PendingDestage, RECENT, RankContext, RankState, publish};
use crate::arena::{PersistenceLevel, VersionId};
use crate::copy_workers::Spent;
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::free_space::FIRST;
use crate::layout;
use crate::seal::SealedOrigin;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tarn_ports::{Medium, Vault};

/// A rate is the mean of about so many commits.
const MEAN: u64 = 8;

impl<T: Vault, M: Vault> RankContext<T, M> {
    /// Makes the next version, and reports to the other ranks that this rank has or lacks it.
    pub(super) fn commit_version(
        &self,
        items: &[CommitObject<'_>],
    ) -> Result<Committed, CheckpointError> {
        let began = Instant::now();
        let mut rank_state = self.take();
        let id = VersionId {
            generation: self.world.start.generation,
            number: self.number.load(Ordering::Acquire) + 1,
        };
        // Only ranks that fail do not wait for others before they are that far ahead.
        // Saturates: other processes report it.
        if id.number
            >= self
                .ranks
                .common_progress()
                .committed
                .saturating_add(RECENT)
        {
            let text = format!(
                "this would be commit {} of this rank, and another has made {}: a commit is the next version whether it fails or not, so \
                 all ranks make as many, and none tries again alone",
                id.number,
                self.ranks.common_progress().committed
            );
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        }
        self.number.store(id.number, Ordering::Release);
        let committed = rank_state.make_version(self, id, items, began);
        self.update_progress(|reached| {
            reached.committed = id.number;
            reached.missed &= recent(id.number);
            let bit = 1 << (id.number % 64);
            match &committed {
                Ok(_) => reached.missed &= !bit,
                Err(_) => reached.missed |= bit,
            }
            // A version that failed is lacked, and nobody waits for it.
            if rank_state.pending.is_none() {
                reached.durable = id.number;
            }
            if let (Some(flusher), Ok(committed)) = (&self.flusher, &committed) {
                flusher.committed(committed.id, &rank_state.name);
            }
        });
        committed
    }
    /// Why the newest version that should be on other nodes is not, if it is not.
    fn unreplicated(&self, id: VersionId) -> Option<String> {
        let progress = self.ranks.common_progress();
        let number = progress.replicated;
        if self.good(progress) == number {
            return None;
        }
        let own = super::lock(&self.why_bare)
            .clone()
            .filter(|(of, _)| *of == number);
        let why = own.map_or_else(|| "a rank could not keep it".into(), |(_, why)| why);
        Some(format!(
            "version {}.{number} is not on other nodes: {why}",
            id.generation
        ))
    }
}

/// The figures of a commit.
struct CommitFigures {
    bytes: u64,
    /// Bytes that were copied ahead and written again.
    twice: u64,
    spent: Spent,
    waited: Duration,
    took: Duration,
    degraded: bool,
}

impl<A: Medium, S: Medium> RankState<A, S> {
    /// Makes a version of the objects: all that is done to this rank's arena and memory in a commit.
    fn make_version<T, M>(
        &mut self,
        shared: &RankContext<T, M>,
        id: VersionId,
        items: &[CommitObject<'_>],
        began: Instant,
    ) -> Result<Committed, CheckpointError>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let items = sorted(items)?;
        self.destage(shared)?;
        let sizes: Vec<u64> = items.iter().map(|item| item.bytes.len() as u64).collect();
        self.reserve_space(shared, &sizes)?;
        self.give_up_earlier(shared)?;
        self.give_up_old(shared)?;
        let waited = began.elapsed();
        let new = self.lay_out(shared, id, items, sizes)?;
        let (staged, mut replication_failed) = self.ready_buddies(shared, new.row)?;
        let mut copied = self.copy_objects(shared, &new, staged)?;
        if let Some((by, fault)) = copied.replication_failed.take() {
            self.buddies.give_up(by);
            replication_failed = Some(fault);
        }
        let spent = copied.spent;
        let (bytes, twice) = (new.sizes.iter().sum(), new.done.twice);
        self.publish_version(shared, new, copied)?;
        let degraded_by = self.degraded_by.take().or_else(|| shared.unreplicated(id));
        let done = CommitFigures {
            bytes,
            twice,
            spent,
            waited,
            took: began.elapsed(),
            degraded: replication_failed.is_some() || degraded_by.is_some(),
        };
        self.count(shared, &done);
        Ok(Committed {
            id,
            degraded: replication_failed
                .map(|fault| fault.text)
                .or(degraded_by)
                .or_else(|| shared.ranks.detour()),
        })
    }

    /// Finds a slot for the version, the one of the copies that were made ahead if there are such, and the ranges to copy.
    fn lay_out<'a, T, M>(
        &mut self,
        shared: &RankContext<T, M>,
        id: VersionId,
        items: Vec<&'a CommitObject<'a>>,
        sizes: Vec<u64>,
    ) -> Result<NewVersion<'a>, CheckpointError>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let (offsets, slot) = layout::slot(sizes.iter().copied()).ok_or_else(too_large)?;
        let done = self.ahead.settle(&items, shared.options.audit);
        let at = match done.slot {
            Some(at) => at,
            None => self.place_slot(shared, slot)?,
        };
        let places = offsets.iter().map(|offset| at + offset).collect();
        let ahead = |object: usize, chunk: u64| {
            let copy = done.copies[object].get(chunk as usize);
            copy.is_some_and(Option::is_some)
        };
        let (jobs, row) = layout::jobs(&sizes, ahead);
        Ok(NewVersion {
            id,
            items,
            sizes,
            places,
            jobs,
            row,
            done,
        })
    }

    /// Prepares the buddies for the staged part of a version; its bytes, and why a buddy is not ready. Without the requested copy
    /// nothing is staged: it would be lost with this node's memory.
    fn ready_buddies<T, M>(
        &mut self,
        shared: &RankContext<T, M>,
        row: u64,
    ) -> Result<(u64, Option<CheckpointError>), CheckpointError>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let staged = self.stageable(row);
        if staged == 0 {
            return Ok((0, None));
        }
        let (arena, _) = self.open()?;
        let head = head(arena);
        let wanted = self.requirements.replicas;
        let ready = self.buddies.ready(shared, wanted, FIRST + staged, &head);
        Ok(match ready.err() {
            None => (staged, None),
            Some(fault) => (0, Some(fault)),
        })
    }

    /// Publishes the manifest of a version whose bytes are copied. From here on a crash does not lose it; it is durable unless some of
    /// it is staged, which `destage` then completes.
    fn publish_version<T, M>(
        &mut self,
        shared: &RankContext<T, M>,
        new: NewVersion<'_>,
        copied: Chunks,
    ) -> Result<(), CheckpointError>
    where
        T: Vault<Medium = A>,
        M: Vault<Medium = S>,
    {
        let origin = SealedOrigin {
            id: new.id,
            start: shared.world.start.identity,
            rank: shared.ranks.rank(),
            ranks: shared.ranks.ranks(),
        };
        let seal = shared.options.seal.as_deref().map(|seal| (seal, &origin));
        let manifest = manifest(&new, copied.chunks, seal)?;
        let durable = manifest.is_durable();
        let level = if durable {
            PersistenceLevel::Durable
        } else {
            PersistenceLevel::Committed
        };
        assert!(
            self.pending.is_none(),
            "the staging file was written before the version in it was de-staged"
        );
        let (arena, medium) = self.open()?;
        publish(arena, medium, Some((new.id, level, manifest)), |_| true)?;
        if !durable {
            self.pending = Some(PendingDestage {
                id: new.id,
                places: new.places,
            });
        }
        self.ahead.begin(&new.items);
        Ok(())
    }

    fn count<T: Vault, M: Vault>(&self, shared: &RankContext<T, M>, done: &CommitFigures) {
        let spent = &done.spent;
        let copies = 1 + self.requirements.replicas as u64;
        let helpers = shared.options.helpers.max(1) as u64;
        let mut stats = shared.stats();
        stats.persistent_rate = mean(stats.persistent_rate, spent.tier * helpers, spent.tier_time);
        stats.memory_rate = mean(stats.memory_rate, spent.memory * copies, spent.memory_time);
        stats.commits += 1;
        stats.bytes += done.bytes;
        let copied = spent.tier + spent.memory;
        assert!(
            copied <= done.bytes,
            "a commit of {} bytes copied {copied}",
            done.bytes
        );
        stats.ahead += done.bytes - copied;
        stats.twice += done.twice;
        stats.staged += spent.memory;
        stats.last_staged = spent.memory;
        stats.waited += done.waited;
        stats.last_commit = done.took;
        stats.commit += done.took;
        stats.degraded += u64::from(done.degraded);
    }
}

/// The objects by key.
fn sorted<'a>(items: &'a [CommitObject<'a>]) -> Result<Vec<&'a CommitObject<'a>>, CheckpointError> {
    let mut items: Vec<&CommitObject<'_>> = items.iter().collect();
    items.sort_by_key(|item| item.key);
    match items.windows(2).find(|w| w[0].key == w[1].key) {
        None => Ok(items),
        Some(twice) => {
            let key = String::from_utf8_lossy(twice[0].key).into_owned();
            Err(CheckpointError::new(
                CheckpointErrorCode::Exists,
                format!("two objects are called {key:?}"),
            ))
        }
    }
}

/// The bits of a version and of those before it that are known. The others are those of versions to come, which faster ranks may have already: no
/// rank is ahead of another by more versions than are kept and one.
fn recent(number: u64) -> u64 {
    (0..RECENT).fold(0, |bits, n| bits | 1 << (number.wrapping_sub(n) % 64))
}

/// The mean of a rate and the rate that was measured now.
fn mean(before: u64, bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    let now = u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX);
    match (before, bytes) {
        (_, 0) => before,
        (0, _) => now,
        _ => before - before / MEAN + now / MEAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that had no version 5 may have version 69, which others may have before it.
    #[test]
    fn what_was_missed_long_ago_is_not_what_is_to_come() {
        let mut missed = 1u64 << 5;
        for number in 6..=68 {
            missed &= recent(number);
            let to_come = number + 1..number + 2 + super::super::MAX_KEPT as u64;
            assert!(to_come.into_iter().all(|n| missed & 1 << (n % 64) == 0));
        }
        assert_eq!(recent(3).count_ones(), 32);
        assert!(recent(40) & 1 << 9 != 0 && recent(40) & 1 << 41 == 0);
    }
}
