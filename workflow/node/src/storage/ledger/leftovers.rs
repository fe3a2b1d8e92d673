//! Replicas that earlier runs have left on the tiers and this run has not taken over (yet): the engine does not know of them.
//!
//! A replica that nobody wants to keep makes way as soon as its space is claimed; if the engine takes it over after that, an
//! event reports that it is gone. One that is to be kept and may still be taken over counts from the moment it is in the way of
//! something: not before, or the very step that it spares could find no place. One that is to be kept and cannot be taken over
//! counts from the start.

use super::{Ledgers, TierAccount};
use crate::storage::store::warn;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use tarn_ports::Mover;
use tarn_types::id::TierRef;
use tarn_types::part::StoreKey;
use tarn_types::units::Bytes;

/// A replica of an earlier run.
#[derive(Debug)]
pub(super) struct Leftover {
    path: PathBuf,
    /// It is to be kept.
    kept: bool,
}

impl Ledgers {
    /// A replica that was found, and that this run has not taken over.
    pub(crate) fn leave(&self, tier_ref: TierRef, key: StoreKey, path: PathBuf, kept: bool) {
        if let Ok(mut leftovers) = self.leftovers.lock() {
            leftovers.insert((tier_ref, key), Leftover { path, kept });
        }
    }

    /// The run takes it over: from now on it is the engine's. Whether its space was kept from the engine.
    pub(crate) fn take_over(&self, tier_ref: TierRef, key: &StoreKey) -> bool {
        let leftovers = self.leftovers.lock().ok();
        let found = leftovers.and_then(|mut l| l.remove(&(tier_ref, key.clone())));
        found.is_some_and(|l| l.kept)
    }

    /// Something is on a tier that is not this run's, and is no space for it.
    pub(crate) fn set_aside(&self, tier_ref: TierRef, bytes: u64) {
        if let Ok(mut aside) = self.aside.lock() {
            *aside.entry(tier_ref).or_default() += bytes;
        }
    }

    /// The same where the tier's capacity is without it already: its bytes count as used, so the limit must hold them.
    pub(crate) fn enlarge(&self, tier_ref: TierRef, bytes: u64) {
        // As the capacities that it is made of, which somebody has written down, it may be any number.
        self.on(tier_ref, |budget| {
            budget.limit = budget.limit.saturating_add(bytes);
        });
        if let Some(at) = self.account_of(tier_ref) {
            // As for reservations: the next change writes it.
            let _ = self.accounts[at].update(
                |m| m.claim.limit = m.claim.limit.saturating_add(bytes),
                |_| true,
            );
        }
    }

    /// Bytes that are set aside on a tier.
    pub(super) fn aside(&self, tier_ref: TierRef) -> u64 {
        let aside = self.aside.lock();
        aside.map_or(0, |a| a.get(&tier_ref).copied().unwrap_or(0))
    }

    /// Bytes of a tier that the run cannot have, whatever other runs hold.
    pub(crate) fn not_ours(&self, tier_ref: TierRef) -> u64 {
        self.aside(tier_ref) + self.kept(|s| s == tier_ref)
    }

    /// Bytes at a root that are kept and may still be taken over.
    fn kept_at(&self, account: usize) -> u64 {
        self.kept(|s| self.account_of(s) == Some(account))
    }

    /// The same, as far as the engine knows it.
    pub(super) fn counted_at(&self, account: usize) -> u64 {
        match self.accounts[account].counts_kept.load(Ordering::Relaxed) {
            true => self.kept_at(account),
            false => 0,
        }
    }

    /// The same of one tier there.
    pub(super) fn counted_on(&self, account: usize, tier_ref: TierRef) -> u64 {
        match self.accounts[account].counts_kept.load(Ordering::Relaxed) {
            true => self.kept(|s| s == tier_ref),
            false => 0,
        }
    }

    fn account_of(&self, tier_ref: TierRef) -> Option<usize> {
        self.tier_refs.get(&tier_ref).map(|(at, _)| *at)
    }

    fn kept(&self, there: impl Fn(TierRef) -> bool) -> u64 {
        let (Ok(leftovers), Ok(replicas)) = (self.leftovers.lock(), self.replicas.lock()) else {
            return 0;
        };
        let kept = leftovers.iter().filter(|((s, _), l)| l.kept && there(*s));
        kept.filter_map(|(id, _)| replicas.get(id)).sum()
    }

    /// Whether what is kept is in the way of `bytes` more on a tier, and the engine does not know it yet. From now on
    /// it does: by the returned capacities. Only once: after that, the engine's account decides.
    pub(crate) fn kept_in_the_way(
        &self,
        tier_ref: TierRef,
        bytes: u64,
    ) -> Option<Vec<(TierRef, u64)>> {
        let at = self.account_of(tier_ref)?;
        let account = &self.accounts[at];
        let new = self.kept_at(at) > 0
            && account.lacks(bytes)
            && !account.counts_kept.swap(true, Ordering::Relaxed);
        new.then(|| self.report_capacities())
    }

    /// Whether `bytes` more would exceed one node's tier.
    pub(super) fn lacks(&self, tier_ref: TierRef, bytes: u64) -> bool {
        let mut lacks = false;
        self.on(tier_ref, |budget| {
            lacks = budget.space.total().saturating_add(bytes) > budget.limit;
        });
        lacks
    }

    /// Removes replicas that nobody wants to keep until `bytes` more fit onto a tier, as far as that goes.
    pub(crate) fn make_way(&self, tier_ref: TierRef, bytes: u64, mover: &dyn Mover) {
        let Some(at) = self.account_of(tier_ref) else {
            return;
        };
        let spare: BTreeSet<(TierRef, StoreKey)> = match self.leftovers.lock() {
            Ok(leftovers) => {
                let spare = leftovers.iter().filter(|(_, l)| !l.kept);
                let here = |s: &TierRef| self.account_of(*s) == Some(at);
                let ids = spare.map(|(id, _)| id).filter(|(s, _)| here(s));
                ids.cloned().collect()
            }
            Err(_) => return,
        };
        let account = &self.accounts[at];
        // The space of others may have changed since the last look.
        if spare.is_empty() || account.refresh().is_err() {
            return;
        }
        for (at, key) in spare {
            if account.lacks(bytes) || (at == tier_ref && self.lacks(tier_ref, bytes)) {
                self.discard(at, &key, mover);
            }
        }
    }

    /// Removes a replica that nobody has taken over and nobody wants to keep.
    pub(crate) fn discard(&self, tier_ref: TierRef, key: &StoreKey, mover: &dyn Mover) {
        let id = (tier_ref, key.clone());
        // Held all the time: nobody takes over what is half removed.
        let Ok(mut leftovers) = self.leftovers.lock() else {
            return;
        };
        let Some(leftover) = leftovers.get(&id).filter(|l| !l.kept) else {
            return;
        };
        match mover.remove(&leftover.path) {
            Ok(()) => {
                leftovers.remove(&id);
                self.left(tier_ref, key);
            }
            Err(e) => warn(&format!(
                "the leftovers of an earlier run cannot be removed: {e}"
            )),
        }
    }
}

impl TierAccount {
    /// Whether `bytes` more would exceed the tier.
    fn lacks(&self, bytes: u64) -> bool {
        self.state.lock().is_ok_and(|m| {
            let all = m
                .space
                .total()
                .saturating_add(m.others)
                .saturating_add(bytes);
            all > m.limit
        })
    }

    /// Why this run cannot continue beside `kept` bytes.
    pub(super) fn kept_text(&self, kept: u64) -> String {
        format!(
            "{} of the tier at {} hold data that was asked to be kept and that this run does not use: `tarn data ls` \
             names it. Remove it with `tarn data release` or `tarn data rm`, or give a larger tier (--tier \
             NAME=PATH:SIZE)",
            Bytes(kept),
            self.root.display()
        )
    }
}
