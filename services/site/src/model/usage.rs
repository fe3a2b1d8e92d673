//! The use of owners, by days. docs/guide/on-a-site.md, "Usage".

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tarn_proto::site::Owner;
use tarn_types::account::sub;
use tarn_types::units::{Nanos, SECOND, Time};

/// Days, of UTC, of which each owner's use is known one by one; the use before them is one sum.
const MAX_DAYS: usize = 400;
pub(crate) const DAY: Nanos = 24 * 3600 * SECOND;

/// The use in some time.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct UsageCounts {
    /// Bytes times nanoseconds.
    pub(crate) byte_nanos: u128,
    /// Nodes times nanoseconds.
    pub(crate) node_nanos: u128,
    pub(crate) read_outside: u64,
    pub(crate) written_outside: u64,
    pub(crate) between_nodes: u64,
}

/// The use of one owner.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct OwnerUsage {
    /// Bytes on tiers now.
    pub(crate) stored: u64,
    since: Time,
    days: BTreeMap<u64, UsageCounts>,
    earlier: UsageCounts,
}

impl UsageCounts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.byte_nanos += other.byte_nanos;
        self.node_nanos += other.node_nanos;
        self.read_outside += other.read_outside;
        self.written_outside += other.written_outside;
        self.between_nodes += other.between_nodes;
    }
}

impl OwnerUsage {
    pub(crate) fn day(&mut self, day: u64) -> &mut UsageCounts {
        if self.days.len() >= MAX_DAYS
            && !self.days.contains_key(&day)
            && let Some((_, oldest)) = self.days.pop_first()
        {
            self.earlier.add(&oldest);
        }
        self.days.entry(day).or_default()
    }

    /// So many of something, over some time.
    pub(crate) fn spread(
        &mut self,
        (from, to): (Time, Time),
        times: u64,
        of: fn(&mut UsageCounts) -> &mut u128,
    ) {
        let mut at = from;
        while times > 0 && at < to {
            let end = (at / DAY + 1).saturating_mul(DAY).min(to);
            *of(self.day(at / DAY)) += u128::from(end - at) * u128::from(times);
            at = end;
        }
    }

    pub(crate) fn advance(&mut self, now: Time) {
        self.spread((self.since, now), self.stored, |c| &mut c.byte_nanos);
        self.since = now;
    }

    /// The use since the beginning of the day of this time.
    pub(crate) fn sum(&self, since: Time) -> UsageCounts {
        let mut sum = match since {
            0 => self.earlier.clone(),
            _ => UsageCounts::default(),
        };
        for (_, day) in self.days.range(since / DAY..) {
            sum.add(day);
        }
        sum
    }
}

/// The use of all owners.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct UsageTable {
    by_owner: BTreeMap<Owner, OwnerUsage>,
}

impl UsageTable {
    /// An owner's meter, counted up to now.
    pub(crate) fn meter(&mut self, owner: Owner, now: Time) -> &mut OwnerUsage {
        let meter = self.by_owner.entry(owner).or_default();
        meter.advance(now);
        meter
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Owner, &OwnerUsage)> {
        self.by_owner.iter().map(|(owner, meter)| (*owner, meter))
    }

    /// Bytes that an owner has on all nodes.
    pub(crate) fn stored(&self, owner: Owner) -> u64 {
        self.by_owner.get(&owner).map_or(0, |meter| meter.stored)
    }

    /// A node has `after` bytes of an owner's part, and had `before`.
    pub(crate) fn store(&mut self, owner: Owner, now: Time, (before, after): (u64, u64)) {
        let meter = self.meter(owner, now);
        sub(&mut meter.stored, before, "bytes stored");
        // Nodes report at most the bytes that they have.
        meter.stored = meter.stored.saturating_add(after);
    }
}
