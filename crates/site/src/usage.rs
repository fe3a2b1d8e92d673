//! What owners use: what a site would charge by.

use crate::state::Site;
use serde::{Deserialize, Serialize};
use tarn_base::units::{SECOND, Time};
use tarn_proto::site::{Owner, Part, UsageInfo};

/// What one owner has used.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Meter {
    /// Bytes on tiers now.
    stored: u64,
    since: Time,
    /// Bytes times nanoseconds.
    byte_nanos: u128,
    pub(crate) node_seconds: u64,
    pub(crate) read_outside: u64,
    pub(crate) written_outside: u64,
    pub(crate) between_nodes: u64,
}

impl Meter {
    fn advance(&mut self, now: Time) {
        let passed = u128::from(now.saturating_sub(self.since));
        self.byte_nanos += passed * u128::from(self.stored);
        self.since = now;
    }
}

impl Site {
    pub(crate) fn meter(&mut self, owner: Owner) -> &mut Meter {
        let now = self.now;
        let meter = self.meters.entry(owner).or_default();
        meter.advance(now);
        meter
    }

    /// Bytes that an owner has on all nodes, and was promised.
    pub(crate) fn held_by(&self, owner: Owner) -> u64 {
        let stored = self.meters.get(&owner).map_or(0, |m| m.stored);
        let promised = self.nodes.values().flat_map(|n| &n.promised);
        let promised = promised.filter(|(job, _)| {
            let job = self.jobs.get(job);
            job.is_some_and(|j| j.owner == owner)
        });
        promised.fold(stored, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// A node has a part now.
    pub(crate) fn place(&mut self, node: &str, part: &Part, bytes: u64) {
        let Some(there) = self.nodes.get_mut(node) else {
            return;
        };
        let before = there.parts.insert(part.clone(), bytes).unwrap_or(0);
        let meter = self.meter(part.owner);
        meter.stored = (meter.stored - before.min(meter.stored)).saturating_add(bytes);
    }

    /// A node has it no more.
    pub(crate) fn displace(&mut self, node: &str, part: &Part) {
        let Some(bytes) = self.nodes.get_mut(node).and_then(|n| n.parts.remove(part)) else {
            return;
        };
        let meter = self.meter(part.owner);
        meter.stored = meter.stored.saturating_sub(bytes);
    }

    pub(crate) fn usage_of(&self, owner: Owner) -> Option<UsageInfo> {
        let mut meter = self.meters.get(&owner)?.clone();
        meter.advance(self.now);
        Some(UsageInfo {
            owner,
            node_seconds: meter.node_seconds,
            byte_seconds: meter.byte_nanos / u128::from(SECOND),
            read_outside: meter.read_outside,
            written_outside: meter.written_outside,
            between_nodes: meter.between_nodes,
        })
    }
}
