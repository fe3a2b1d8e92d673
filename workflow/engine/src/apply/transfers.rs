//! The changes that a transfer makes when it has begun, is done or has failed.

use crate::data::{PartReplica, PartReplicaState};
use crate::given_up::counts;
use crate::state::{EngineState, EngineTransfer};
use std::collections::BTreeMap;
use tarn_types::account::{add, sub};
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, NodeId, TransferId};
use tarn_types::part::{PartMove, PartRef, Place, Transfer, TransferKind};
use tarn_types::reason::Reason;
use tarn_types::units::{Nanos, SECOND};

/// Tries to move a part, in a row and each with every place that it can be read from, after which the run gives up:
/// transient faults of a busy store pass within a few tries, lasting ones do not pass at all.
pub(crate) const MAX_TRANSFER_FAILURES: u32 = 3;

/// Pause after the first failure of a part; each next one is four times as long.
const PAUSE: Nanos = SECOND / 2;

fn node_of(place: &Place) -> Option<NodeId> {
    match place {
        Place::Node(tier_ref) => Some(tier_ref.node),
        _ => None,
    }
}

impl EngineState {
    pub(super) fn transfer_begun(&mut self, t: &Transfer, why: &Reason) {
        self.next_transfer = self.next_transfer.max(t.id.0 + 1);
        let mut bytes = 0;
        let readers = self.orphan_reads();
        for m in &t.parts {
            if let Some(r) = self.data.replica_mut(m.part, &m.from) {
                add(&mut r.pins, 1, "pins of a replica");
            }
            let Some(part) = self.data.part_mut(m.part) else {
                continue;
            };
            bytes += part.info.bytes;
            let stored = part.info.stored;
            // A renewed replica may be read meanwhile, by this transfer too.
            let pins = match part.replicas.get(&t.to) {
                Some(renewed) => renewed.pins,
                None => readers.get(&(m.part, t.to.clone())).copied().unwrap_or(0),
            };
            let replica = PartReplica {
                state: part.coming(&t.to, t.id),
                stored: if matches!(t.to, Place::Node(_)) {
                    stored
                } else {
                    0
                },
                pins,
                staged: true,
                is_others: false,
            };
            part.replicas.insert(t.to.clone(), replica);
            if let Place::Node(tier_ref) = t.to {
                self.ledger.nodes.reserve(tier_ref, stored);
            }
        }
        *self.under_way.entry(t.kind).or_default() += bytes;
        self.links.begun(t, bytes);
        if self.delivers(t) {
            self.undelivered.remove(&t.data);
        }
        let releases = matches!(
            why,
            Reason::DemoteForSpace { .. } | Reason::DrainForSpace { .. } | Reason::StageOut
        );
        let rescue = matches!(why, Reason::Rescue);
        let active = EngineTransfer {
            transfer: t.clone(),
            releases,
            rescue,
            abandoned: false,
            bytes,
        };
        self.transfers.insert(t.id, active);
    }

    /// Whether a transfer brings a dataset to its `dest`.
    pub(crate) fn delivers(&self, t: &Transfer) -> bool {
        let dest = &self.start.workflow.dataset(t.data).dest;
        matches!(&t.to, Place::External(path) if Some(path) == dest.as_ref())
    }

    /// Takes back all that ends with a transfer, however it ends: pins, reservations, the count of bytes under way.
    fn transfer_over(&mut self, id: TransferId) -> Option<EngineTransfer> {
        let active = self.transfers.remove(&id)?;
        let under_way = self.under_way.entry(active.transfer.kind).or_default();
        sub(under_way, active.bytes, "bytes under way");
        self.links.over(&active.transfer, active.bytes);
        self.orphans.remove(&id);
        for m in &active.transfer.parts {
            self.unpin(m.part, &m.from);
            if let (Place::Node(tier_ref), Some(r)) = (
                &active.transfer.to,
                self.data.replica_mut(m.part, &active.transfer.to),
            ) {
                let stored = r.stored;
                self.ledger.nodes.unreserve(*tier_ref, stored);
            }
        }
        Some(active)
    }

    pub(super) fn transfer_done(&mut self, id: TransferId, hashes: &[Hash], stored: &[u64]) {
        let Some(active) = self.transfer_over(id) else {
            return;
        };
        let t = &active.transfer;
        for (i, m) in t.parts.iter().enumerate() {
            let Some(part) = self.data.part_mut(m.part) else {
                continue;
            };
            part.failures = 0;
            part.followed_in_vain.clear();
            part.refused.retain(|(to, _)| *to != node_of(&t.to));
            if let Some(hash) = hashes.get(i) {
                part.info.hash = Some(*hash);
            }
            // The next one reserves as much as this one took, or its reservation would be too small again, for ever.
            if let (Place::Node(_), Some(stored)) = (&t.to, stored.get(i)) {
                part.info.stored = part.info.stored.max(*stored);
            }
            if self.ledger.nodes.holds_lost(&t.to) {
                part.replicas.remove(&t.to);
                self.data.to_check.insert(m.part);
                self.note_unkept(m.part);
                continue;
            }
            if let Some(r) = part.replicas.get_mut(&t.to) {
                r.state = PartReplicaState::Present;
                if let Place::Node(tier_ref) = t.to {
                    r.stored = stored.get(i).copied().unwrap_or(r.stored);
                    self.ledger.nodes.occupy(tier_ref, r.stored);
                }
            }
            if active.releases {
                self.data.to_release.insert((m.part, m.from.clone()), id);
            }
            self.data.to_check.insert(m.part);
        }
        let delivers = self.delivers(t);
        let version = self.data.version_mut(t.data, t.version);
        version.delivered |= delivers;
        version.rescued |= active.rescue && !delivers;
    }

    pub(super) fn transfer_failed(
        &mut self,
        id: TransferId,
        failure: &RunError,
        damaged: Option<PartRef>,
    ) {
        let Some(active) = self.transfer_over(id) else {
            return;
        };
        let t = &active.transfer;
        if self.delivers(t) {
            self.undelivered.insert(t.data);
        }
        self.orphan_followers(t);
        let followed = t.parts.iter().any(|m| self.is_on_its_way(m));
        // A part still on its way to the place where it was read may become whole there.
        let mut named = t.parts.iter().filter(|m| damaged == Some(m.part));
        let damaged_there = !named.any(|m| self.is_on_its_way(m));
        let mut exhausted = false;
        for m in &t.parts {
            let Some(part) = self.data.part_mut(m.part) else {
                continue;
            };
            part.does_not_come(&t.to);
            let is_bad = damaged == Some(m.part);
            if is_bad && m.from != Place::Source && damaged_there {
                part.failures = 0;
                if let Some(r) = part.replicas.get_mut(&m.from) {
                    r.state = r.state.damaged();
                }
                self.dest_damaged(t.data, t.version, &m.from);
            } else if counts(failure.kind) && (is_bad || damaged.is_none()) {
                match &t.to {
                    // A transfer that follows another fails with it: that does not count against the part.
                    Place::Node(to) if followed => drop(part.followed_in_vain.insert(to.node)),
                    _ => exhausted |= self.source_failed(t, m),
                }
            }
            self.data.to_check.insert(m.part);
            self.note_unkept(m.part);
        }
        let lost = failure.kind == RunErrorKind::NodeLost;
        let hopeless = !lost
            && !followed
            && !matches!(
                failure.kind,
                RunErrorKind::Io
                    | RunErrorKind::NoSpace
                    | RunErrorKind::Corrupt
                    | RunErrorKind::Cancelled
            );
        let name = &self.start.workflow.dataset(t.data).name;
        if active.rescue {
            // Another replica may be left to rescue it from.
            let version = self.data.version_mut(t.data, t.version);
            version.rescued |= !lost;
            version.refusal = Some(failure.message.clone());
        } else if hopeless || exhausted {
            let message = format!("moving {name} failed: {}", failure.message);
            self.cannot_move(t, message);
        }
    }

    /// A part could not be read at a place, which is tried last from now on. A try is used up when no other place is
    /// left, and when something goes out; the next one comes after a pause. Returns whether it was the last.
    fn source_failed(&mut self, t: &Transfer, m: &PartMove) -> bool {
        let to = node_of(&t.to);
        let Some(part) = self.data.part_mut(m.part) else {
            return false;
        };
        part.refused.insert((to, m.from.clone()));
        let chosen = matches!(
            t.kind,
            TransferKind::Peer | TransferKind::ExternalIn | TransferKind::Promote
        );
        let part = self.data.part(m.part);
        let next = part.and_then(|part| match &t.to {
            Place::Node(tier_ref) if chosen => Some(self.source_for(*tier_ref, part)?.0),
            Place::Node(_) => None,
            _ => part.nearest().cloned(),
        });
        let now = self.now;
        let Some(part) = self.data.part_mut(m.part) else {
            return false;
        };
        let untried = next.is_some_and(|next| !part.is_refused(to, &next));
        if untried && chosen {
            return false;
        }
        if !untried {
            part.refused.retain(|(node, _)| *node != to);
        }
        part.failures += 1;
        if part.failures >= MAX_TRANSFER_FAILURES {
            return true;
        }
        let factor = 4u64.saturating_pow(part.failures - 1);
        part.rests_until = now.saturating_add(PAUSE.saturating_mul(factor));
        self.rests_until = self.rests_until.max(part.rests_until);
        false
    }

    /// Orphans the transfers that read a replica which this transfer was to bring, and their followers in turn.
    fn orphan_followers(&mut self, t: &Transfer) {
        let mut broken = vec![t.clone()];
        while let Some(t) = broken.pop() {
            let pinned = |m: &PartMove| {
                let replica = self.data.part(m.part).and_then(|p| p.replicas.get(&t.to));
                replica.is_some_and(|r| r.pins > 0)
            };
            if !matches!(t.to, Place::Node(_)) || !t.parts.iter().any(pinned) {
                continue;
            }
            let follows = |o: &Transfer| {
                let mut read = o.parts.iter().filter(|m| m.from == t.to);
                read.any(|m| t.parts.iter().any(|own| own.part == m.part))
            };
            for active in self.transfers.values() {
                let order = &active.transfer;
                if follows(order) && self.orphans.insert(order.id) {
                    broken.push(order.clone());
                }
            }
        }
    }

    /// How often orphans read which part at which place. They also read a part that comes there next, until they have
    /// ended.
    pub(crate) fn orphan_reads(&self) -> BTreeMap<(PartRef, Place), u32> {
        let mut reads = BTreeMap::new();
        let orphans = self.orphans.iter().filter_map(|id| self.transfers.get(id));
        for m in orphans.flat_map(|a| &a.transfer.parts) {
            *reads.entry((m.part, m.from.clone())).or_default() += 1;
        }
        reads
    }

    /// Whether the replica that a transfer reads is on its way itself, or was and is not any more.
    fn is_on_its_way(&self, m: &PartMove) -> bool {
        let Place::Node(_) = m.from else { return false };
        let replica = self.data.part(m.part).and_then(|p| p.replicas.get(&m.from));
        replica.is_none_or(|r| matches!(r.state, PartReplicaState::Incoming(_)))
    }

    /// A damaged replica was found: a `dest` that has one is to be written again.
    fn dest_damaged(&mut self, data: DataId, version: u32, at: &Place) {
        let dest = self.start.workflow.dataset(data).dest.clone();
        let last = self.start.workflow.last_version(data) == version;
        if last && dest.is_some_and(|dest| *at == Place::External(dest)) {
            self.data.version_mut(data, version).delivered = false;
            self.note_sealed(data, version);
        }
    }
}
