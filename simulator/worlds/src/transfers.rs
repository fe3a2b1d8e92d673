//! Movement in the simulated world: listings, transfers, evictions.

use crate::model::{SimulatedTransfer, broken, failure};
use crate::network::{Finished, Leg, Resource, StreamLimit};
use crate::simulation::Simulation;
use std::collections::{BTreeMap, BTreeSet};
use tarn_ports::WorldError;
use tarn_types::account::add;
use tarn_types::event::{Event, RunError, RunErrorKind};
use tarn_types::hash::{Hash, Hasher};
use tarn_types::id::{DataId, TransferId};
use tarn_types::part::{PartMove, PartRef, Place, StoreKey, Transfer, TransferKind, Verify};
use tarn_types::units::Nanos;

impl Simulation {
    pub(crate) fn list(&mut self, data: DataId) {
        let event = match self.estimates.sources.get(&data) {
            Some(Ok(parts)) => Event::SourceListed {
                data,
                parts: parts.clone(),
            },
            Some(Err(failure)) => Event::SourceFailed {
                data,
                failure: failure.clone(),
            },
            None => Event::SourceFailed {
                data,
                failure: failure(
                    RunErrorKind::Io,
                    "the content of this source is not in the simulation's input",
                ),
            },
        };
        self.happen(event);
    }

    pub(crate) fn transfer(&mut self, order: &Transfer) -> Result<(), WorldError> {
        let id = order.id;
        if self.moving.contains_key(&id) {
            return broken(format!("{id} is ordered twice"));
        }
        if self.cannot_move(order) {
            let failure = failure(
                RunErrorKind::NodeLost,
                format!("{id}: a node of it is lost"),
            );
            self.transfer_failed(id, failure, None);
            return Ok(());
        }
        if self.chains && order.parts.iter().any(|m| self.has_no_source(m)) {
            self.chain_broken(id);
            return Ok(());
        }
        let (bytes, space) = self.sizes(order)?;
        if let Place::Node(tier_ref) = order.to
            && !self.store.reserve(tier_ref, space)
        {
            let failure = failure(
                RunErrorKind::NoSpace,
                format!("{id}: the tier is full, {space} bytes wanted"),
            );
            self.transfer_failed(id, failure, None);
            return Ok(());
        }
        let (share, fails) = self.failure_of(order);
        let flows = self.flows(order, share);
        let limits = limits(order);
        self.moving.insert(
            id,
            SimulatedTransfer {
                order: order.clone(),
                bytes,
                space,
                fails,
                moved: None,
            },
        );
        self.network
            .submit(&self.cluster, id, order.priority, limits, flows);
        Ok(())
    }

    /// The bytes that a transfer moves, and the space that it takes where it goes.
    fn sizes(&self, order: &Transfer) -> Result<(u64, u64), WorldError> {
        let id = order.id;
        let (mut bytes, mut space) = (0u64, 0u64);
        for part in &order.parts {
            let Some(info) = self
                .store
                .info(part.part)
                .filter(|_| self.chains || self.store.holds(part.part, &part.from))
            else {
                return broken(format!(
                    "{id} reads {} from {:?}, where it is not",
                    part.part, part.from
                ));
            };
            if matches!(order.to, Place::Node(_)) && self.store.holds(part.part, &order.to) {
                return broken(format!(
                    "{id} moves {} to {:?}, where it is already",
                    part.part, order.to
                ));
            }
            add(&mut bytes, info.bytes, "bytes of a transfer");
            let wanted = self.store.wanted(part.part, &order.to);
            add(&mut space, wanted, "space of a transfer");
        }
        Ok((bytes, space))
    }

    /// Whether a transfer fails: after which share of its bytes, and how.
    fn failure_of(&self, order: &Transfer) -> (Option<f64>, Option<RunErrorKind>) {
        let bad_link = order.parts.iter().find_map(|m| match (&m.from, &order.to) {
            (Place::Node(a), Place::Node(b)) if a.node != b.node => {
                self.faults.link(self.now, a.node, b.node)
            }
            _ => None,
        });
        let share = bad_link.or_else(|| self.faults.transfer(self.now, order.id));
        let kind =
            share.map(
                |_| match bad_link.is_none() && self.faults.damage(self.now, order.id) {
                    true => RunErrorKind::Corrupt,
                    false => RunErrorKind::Io,
                },
            );
        (share, kind)
    }

    /// One flow for each place that is read; each waits for its files' latency, then moves its bytes, then reads
    /// them back if the order requires it.
    fn flows(&self, order: &Transfer, fails: Option<f64>) -> Vec<Vec<Leg>> {
        let mut sums: BTreeMap<&Place, (u64, u64)> = BTreeMap::new();
        for part in &order.parts {
            let sum = sums.entry(&part.from).or_default();
            let info = self.store.info(part.part);
            sum.0 += info.map_or(0, |i| i.bytes);
            sum.1 += info.map_or(0, |i| i.files);
        }
        let cut = |n: u64| fails.map_or(n, |share| (n as f64 * share) as u64);
        let flow = |(from, (bytes, files)): (&Place, (u64, u64))| {
            let latency = self.latency(from, &order.to);
            let mut legs = vec![
                Leg::Wait(cut(latency.saturating_mul(files))),
                Leg::Bytes(cut(bytes), path(from, &order.to)),
            ];
            if order.verify == Verify::Readback && fails.is_none() {
                legs.push(Leg::Bytes(bytes, vec![reading(&order.to)]));
            }
            legs
        };
        sums.into_iter().map(flow).collect()
    }

    fn latency(&self, from: &Place, to: &Place) -> Nanos {
        match (from, to) {
            (Place::Node(a), Place::Node(b)) if a.node == b.node => 0,
            (Place::Node(_), Place::Node(_)) => self.cluster.peer.latency,
            _ => self.cluster.external.latency,
        }
    }

    /// Whether a part is not where it is read from, and not on its way there.
    pub(crate) fn has_no_source(&self, part: &PartMove) -> bool {
        !self.store.holds(part.part, &part.from) && !self.arrives(part.part, &part.from)
    }

    fn arrives(&self, part: PartRef, at: &Place) -> bool {
        let node = matches!(at, Place::Node(_));
        let brings = |o: &Transfer| o.to == *at && o.parts.iter().any(|m| m.part == part);
        node && self.moving.values().any(|m| brings(&m.order))
    }

    fn chain_broken(&mut self, id: TransferId) {
        let failure = failure(
            RunErrorKind::Io,
            format!("{id}: the copy that it reads from has failed"),
        );
        self.transfer_failed(id, failure, None);
    }

    pub(crate) fn transfer_failed(
        &mut self,
        id: TransferId,
        failure: RunError,
        damaged: Option<PartRef>,
    ) {
        self.happen(Event::TransferFailed {
            id,
            failure,
            damaged,
        });
    }

    /// A transfer is over: what has read from its copy all but the end is over too, or fails with it.
    pub(crate) fn look_at_followers(&mut self) {
        if !self.chains {
            return;
        }
        let broken = |m: &&SimulatedTransfer| m.order.parts.iter().any(|m| self.has_no_source(m));
        let next = self.moving.values().find(broken).map(|m| m.order.id);
        if let Some(id) = next {
            self.network.abandon(&self.cluster, id);
            if let Some(moving) = self.moving.remove(&id) {
                self.give_space_back(&moving);
            }
            self.chain_broken(id);
            return self.look_at_followers();
        }
        let holds = |o: &Transfer| o.parts.iter().all(|m| self.store.holds(m.part, &m.from));
        let over = self
            .moving
            .values_mut()
            .find(|m| m.moved.is_some() && holds(&m.order));
        if let Some(done) = over.and_then(|m| m.moved.take()) {
            self.finished(done);
        }
    }

    pub(crate) fn finished(&mut self, done: Finished) {
        let Some(moving) = self.moving.get_mut(&done.id) else {
            return;
        };
        let mut parts = moving.order.parts.iter();
        let waits = self.chains && parts.any(|m| !self.store.holds(m.part, &m.from));
        if waits && moving.fails.is_none() {
            moving.moved = Some(done);
            return;
        }
        let Some(moving) = self.moving.remove(&done.id) else {
            return;
        };
        self.over(moving, &done);
        self.look_at_followers();
    }

    fn over(&mut self, moving: SimulatedTransfer, done: &Finished) {
        if let Some(kind) = moving.fails {
            self.give_space_back(&moving);
            let failure = failure(
                kind,
                format!("{}: failed as the fault plan wants it", done.id),
            );
            let parts = &moving.order.parts;
            // Any of them will do, but always the same.
            let one = parts.get(done.id.0 as usize % parts.len().max(1));
            let damaged = one.filter(|_| kind == RunErrorKind::Corrupt);
            return self.transfer_failed(done.id, failure, damaged.map(|m| m.part));
        }
        let (mut hashes, mut stored) = (Vec::new(), Vec::new());
        for part in &moving.order.parts {
            let hash = self.content_of(part.part);
            if let Some(info) = self.store.info_mut(part.part) {
                info.hash = Some(hash);
                stored.push(info.stored);
            }
            hashes.push(hash);
            self.store.publish(part.part, moving.order.to.clone());
        }
        self.happen(Event::TransferDone {
            id: done.id,
            bytes: moving.bytes,
            hashes,
            stored,
            took: done.took,
        });
    }

    /// The hash of a part; of a source that was never read, one made of its name and size.
    fn content_of(&self, part: PartRef) -> Hash {
        let info = self.store.info(part);
        if let Some(hash) = info.and_then(|i| i.hash) {
            return hash;
        }
        let name = self
            .workflow
            .data
            .get(part.data.at())
            .map_or("", |d| d.name.as_str());
        let mut h = Hasher::new();
        h.field(name.as_bytes()).number(u64::from(part.seq));
        h.number(info.map_or(0, |i| i.bytes)).finish()
    }

    /// Gives the space back that a transfer took and does not fill.
    pub(crate) fn give_space_back(&mut self, moving: &SimulatedTransfer) {
        if let Place::Node(tier_ref) = moving.order.to {
            self.store.release(tier_ref, moving.space);
        }
    }

    pub(crate) fn abandon(&mut self, id: TransferId) {
        self.network.abandon(&self.cluster, id);
        let Some(moving) = self.moving.remove(&id) else {
            return;
        };
        self.give_space_back(&moving);
        let failure = failure(RunErrorKind::Cancelled, format!("{id} was abandoned"));
        self.transfer_failed(id, failure, None);
        self.look_at_followers();
    }

    pub(crate) fn evict(
        &mut self,
        part: PartRef,
        key: &StoreKey,
        at: &Place,
    ) -> Result<(), WorldError> {
        let evicted = Event::Evicted {
            part,
            at: at.clone(),
        };
        if self.store.info(part).is_some_and(|i| i.key != *key) {
            if let Place::Node(tier_ref) = at {
                self.store.remove_returned(part, key, *tier_ref);
            }
            self.happen(evicted);
            return Ok(());
        }
        if matches!(at, Place::Node(tier_ref) if self.lost.contains_key(&tier_ref.node)) {
            return Ok(());
        }
        let read_by_run = self.running.values().find(|r| {
            let mut held = r.run.views.iter().flatten().flatten();
            held.any(|h| h.part == part && Place::Node(h.tier_ref) == *at)
        });
        if let Some(running) = read_by_run {
            return broken(format!(
                "{part} is evicted while {} reads it",
                running.run.instance
            ));
        }
        let mut moving = self.moving.values();
        if let Some(m) = moving.find(|m| {
            m.order
                .parts
                .iter()
                .any(|p| p.part == part && p.from == *at)
        }) {
            return broken(format!("{part} is evicted while {} reads it", m.order.id));
        }
        self.store.remove(part, at);
        self.happen(evicted);
        Ok(())
    }
}

/// The links and tiers that bytes pass between two places.
fn path(from: &Place, to: &Place) -> Vec<Resource> {
    let mut over = vec![reading(from)];
    if let (Place::Node(a), Place::Node(b)) = (from, to)
        && a.node != b.node
    {
        over.extend([Resource::PeerOut(a.node), Resource::PeerIn(b.node)]);
    }
    over.push(match to {
        Place::Node(tier_ref) => Resource::TierWrite(*tier_ref),
        _ => Resource::ExternalOut,
    });
    over
}

fn reading(place: &Place) -> Resource {
    match place {
        Place::Node(tier_ref) => Resource::TierRead(*tier_ref),
        _ => Resource::ExternalIn,
    }
}

fn limits(order: &Transfer) -> BTreeSet<StreamLimit> {
    match (order.kind, &order.to) {
        (TransferKind::ExternalIn | TransferKind::ExternalOut, _) => {
            BTreeSet::from([StreamLimit::External])
        }
        (TransferKind::Peer, Place::Node(tier_ref)) => {
            BTreeSet::from([StreamLimit::PeerTo(tier_ref.node)])
        }
        _ => BTreeSet::new(),
    }
}
