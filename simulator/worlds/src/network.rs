//! Data in motion: transfers over shared links, max-min fair (Bertsekas and Gallager, Data Networks, 6.5.2),
//! in integers, so that every machine computes the same times.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tarn_types::account::{add, sub};
use tarn_types::cluster::Cluster;
use tarn_types::id::{NodeId, TierRef, TransferId};
use tarn_types::units::{Nanos, Time};

/// Work is counted in bytes times this: nanoseconds in a second times the resolution of a rate.
const UNIT: u128 = 1_000_000_000 * RATE_UNIT;
/// Rates are counted in millionths of a byte a second, so that sharing them loses nothing that matters.
const RATE_UNIT: u128 = 1_000_000;

/// Something whose bandwidth is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// The external store, read: one for the cluster.
    ExternalIn,
    /// The external store, written: one for the cluster.
    ExternalOut,
    /// The input of a node from other nodes.
    PeerIn(NodeId),
    /// The output of a node to other nodes.
    PeerOut(NodeId),
    /// A tier, read.
    TierRead(TierRef),
    /// A tier, written.
    TierWrite(TierRef),
}

impl Resource {
    /// Its bandwidth in bytes a second; `None` for no limit (written 0 in a cluster).
    pub fn rate(self, cluster: &Cluster) -> Option<u64> {
        let rate = match self {
            Self::ExternalIn => cluster.external.read,
            Self::ExternalOut => cluster.external.write,
            Self::PeerIn(_) => cluster.peer.read,
            Self::PeerOut(_) => cluster.peer.write,
            Self::TierRead(tier_ref) => cluster.tier(tier_ref).read,
            Self::TierWrite(tier_ref) => cluster.tier(tier_ref).write,
        };
        (rate > 0).then_some(rate)
    }
}

/// A limit on the number of streams: a transfer waits until each of its limits has a stream free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamLimit {
    /// Transfers to and from the external store, over the cluster.
    External,
    /// Transfers from other nodes to this one.
    PeerTo(NodeId),
}

impl StreamLimit {
    fn streams(self, cluster: &Cluster) -> u32 {
        match self {
            Self::External => cluster.external.streams.max(1),
            Self::PeerTo(_) => cluster.peer.streams.max(1),
        }
    }
}

/// One phase of the work of one flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leg {
    /// Time that uses no bandwidth.
    Wait(Nanos),
    /// Bytes over resources.
    Bytes(u64, Vec<Resource>),
}

#[derive(Debug)]
struct NetworkFlow {
    legs: VecDeque<Leg>,
    /// Of the first leg: work left in [`UNIT`]s, or nanoseconds when it is a wait.
    left: u128,
    /// In millionths of a byte a second; `None` without limit or while it waits.
    rate: Option<u128>,
}

#[derive(Debug)]
struct ActiveTransfer {
    limits: BTreeSet<StreamLimit>,
    since: Time,
    flows: Vec<NetworkFlow>,
}

#[derive(Debug)]
struct QueuedTransfer {
    limits: BTreeSet<StreamLimit>,
    flows: Vec<Vec<Leg>>,
}

/// A finished transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) id: TransferId,
    pub(crate) took: Nanos,
}

/// The rate of every flow in motion, in bytes a second, with the resources that it uses.
pub type FlowRates = Vec<(TransferId, f64, Vec<Resource>)>;

/// All transfers: those that wait for a stream (highest priority first) and those in motion.
#[derive(Debug, Default)]
pub struct Network {
    now: Time,
    queue: BTreeMap<(std::cmp::Reverse<u64>, TransferId), QueuedTransfer>,
    active: BTreeMap<TransferId, ActiveTransfer>,
    streams: BTreeMap<StreamLimit, u32>,
}

impl Network {
    /// Accepts a transfer: flows that run side by side, each through its legs in order.
    pub fn submit(
        &mut self,
        cluster: &Cluster,
        id: TransferId,
        priority: u64,
        limits: BTreeSet<StreamLimit>,
        flows: Vec<Vec<Leg>>,
    ) {
        let key = (std::cmp::Reverse(priority), id);
        self.queue.insert(key, QueuedTransfer { limits, flows });
        self.start_queued(cluster);
        self.share(cluster);
    }

    /// Forgets a transfer. Whether there was one.
    pub fn abandon(&mut self, cluster: &Cluster, id: TransferId) -> bool {
        let before = self.queue.len();
        self.queue.retain(|(_, queued), _| *queued != id);
        let waited = self.queue.len() < before;
        let moved = self.active.remove(&id);
        if let Some(active) = &moved {
            self.release(&active.limits);
            self.start_queued(cluster);
            self.share(cluster);
        }
        waited || moved.is_some()
    }

    /// The rates of the resources have changed.
    pub(crate) fn rates_changed(&mut self, cluster: &Cluster) {
        self.share(cluster);
    }

    /// When the next leg ends, if nothing else is submitted.
    pub fn next_change(&self) -> Option<Time> {
        let flows = self.active.values().flat_map(|a| {
            let running = a.flows.iter().filter_map(NetworkFlow::ends_in);
            // A transfer without flows ends at once.
            running.min().or(Some(0))
        });
        flows.min().map(|ns| self.now.saturating_add(ns))
    }

    /// Lets time pass to `to`, which is not after [`Network::next_change`]. Returns the finished flows, by id.
    pub(crate) fn advance(&mut self, cluster: &Cluster, to: Time) -> Vec<Finished> {
        let elapsed = to.saturating_sub(self.now);
        self.now = self.now.max(to);
        let mut changed = false;
        for active in self.active.values_mut() {
            for flow in &mut active.flows {
                changed |= flow.pass(elapsed);
            }
            active.flows.retain(|f| !f.legs.is_empty());
        }
        let done: Vec<TransferId> = self
            .active
            .iter()
            .filter(|(_, a)| a.flows.is_empty())
            .map(|(id, _)| *id)
            .collect();
        let mut finished = Vec::with_capacity(done.len());
        for id in done {
            let Some(active) = self.active.remove(&id) else {
                continue;
            };
            self.release(&active.limits);
            let took = self.now - active.since;
            finished.push(Finished { id, took });
        }
        if changed || !finished.is_empty() {
            self.start_queued(cluster);
            self.share(cluster);
        }
        finished
    }

    /// Whether nothing moves or waits.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.active.is_empty()
    }

    /// The present rates; flows without any limit are left out.
    pub fn rates(&self) -> FlowRates {
        let mut rates = Vec::new();
        for (id, active) in &self.active {
            for flow in &active.flows {
                if let (Some(rate), Some(Leg::Bytes(_, over))) = (flow.rate, flow.legs.front()) {
                    rates.push((*id, rate as f64 / RATE_UNIT as f64, over.clone()));
                }
            }
        }
        rates
    }

    /// Counts streams and bandwidth. `moves`: the transfers that are to be here, in order.
    ///
    /// # Panics
    /// When they differ, or a resource carries more than it can.
    pub(crate) fn check(&self, cluster: &Cluster, moves: &[TransferId]) {
        let queued = self.queue.keys().map(|(_, id)| *id);
        let here: BTreeSet<TransferId> = queued.chain(self.active.keys().copied()).collect();
        assert!(here.iter().eq(moves), "transfers on the links");
        let mut streams: BTreeMap<StreamLimit, u32> = BTreeMap::new();
        for limit in self.active.values().flat_map(|a| &a.limits) {
            *streams.entry(*limit).or_default() += 1;
        }
        for (limit, used) in &self.streams {
            let counted = streams.get(limit).copied().unwrap_or(0);
            assert_eq!(*used, counted, "streams of {limit:?}");
            assert!(counted <= limit.streams(cluster), "streams of {limit:?}");
        }
        let mut carried: BTreeMap<Resource, (u128, u128)> = BTreeMap::new();
        for flow in self.active.values().flat_map(|a| &a.flows) {
            if let (Some(rate), Some(Leg::Bytes(_, over))) = (flow.rate, flow.legs.front()) {
                for resource in over {
                    let (sum, flows) = carried.entry(*resource).or_default();
                    (*sum, *flows) = (*sum + rate, *flows + 1);
                }
            }
        }
        for (resource, (sum, flows)) in carried {
            // A flow has a millionth of a byte a second at least.
            let most = resource
                .rate(cluster)
                .map(|r| u128::from(r) * RATE_UNIT + flows);
            assert!(most.is_none_or(|most| sum <= most), "rate of {resource:?}");
        }
    }

    fn release(&mut self, limits: &BTreeSet<StreamLimit>) {
        for limit in limits {
            if let Some(n) = self.streams.get_mut(limit) {
                sub(n, 1, "streams of a link");
            }
        }
    }

    fn start_queued(&mut self, cluster: &Cluster) {
        let mut streams = std::mem::take(&mut self.streams);
        let mut starting = Vec::new();
        for (key, queued) in &self.queue {
            let used = |l: &StreamLimit| streams.get(l).copied().unwrap_or(0);
            if queued.limits.iter().all(|l| used(l) < l.streams(cluster)) {
                for limit in &queued.limits {
                    add(streams.entry(*limit).or_default(), 1, "streams of a link");
                }
                starting.push(*key);
            }
        }
        self.streams = streams;
        for key in starting {
            let Some(queued) = self.queue.remove(&key) else {
                continue;
            };
            let flows = queued
                .flows
                .into_iter()
                .filter_map(NetworkFlow::new)
                .collect();
            let active = ActiveTransfer {
                limits: queued.limits,
                since: self.now,
                flows,
            };
            self.active.insert(key.1, active);
        }
    }

    /// Progressive filling: the resource that gives its flows least is filled first; its flows keep that rate.
    fn share(&mut self, cluster: &Cluster) {
        let mut flows: Vec<&mut NetworkFlow> = self
            .active
            .values_mut()
            .flat_map(|a| &mut a.flows)
            .collect();
        let mut users: BTreeMap<Resource, Vec<usize>> = BTreeMap::new();
        for (at, flow) in flows.iter_mut().enumerate() {
            flow.rate = None;
            let Some(Leg::Bytes(_, over)) = flow.legs.front() else {
                continue;
            };
            for resource in over.iter().filter(|r| r.rate(cluster).is_some()) {
                users.entry(*resource).or_default().push(at);
            }
        }
        let capacity = |r: &Resource| u128::from(r.rate(cluster).unwrap_or(0)) * RATE_UNIT;
        let mut left: BTreeMap<Resource, (u128, usize)> = users
            .iter()
            .map(|(r, u)| (*r, (capacity(r), u.len())))
            .collect();
        // Each turn fixes at least the flows of one resource.
        while let Some((fullest, share)) = left
            .iter()
            .map(|(r, (free, n))| (*r, free / *n as u128))
            .min_by_key(|(r, share)| (*share, *r))
        {
            for at in users.remove(&fullest).unwrap_or_default() {
                let Some(flow) = flows.get_mut(at).filter(|f| f.rate.is_none()) else {
                    continue;
                };
                // Never 0: there are far fewer flows than millionths of a byte a second.
                flow.rate = Some(share.max(1));
                let Some(Leg::Bytes(_, over)) = flow.legs.front() else {
                    continue;
                };
                for resource in over {
                    if let Some((free, n)) = left.get_mut(resource) {
                        // Nobody's share is less: each of its flows gets that much.
                        debug_assert!(*free >= share, "{resource:?} has no {share} left");
                        *free -= share;
                        sub(n, 1, "flows that share a resource");
                    }
                }
            }
            left.retain(|_, (_, n)| *n > 0);
        }
    }
}

impl NetworkFlow {
    /// `None` when there is nothing to do.
    fn new(legs: Vec<Leg>) -> Option<Self> {
        let mut flow = Self {
            legs: legs.into(),
            left: 0,
            rate: None,
        };
        flow.begin_leg();
        (!flow.legs.is_empty()).then_some(flow)
    }

    /// Skips legs without work and takes up the next.
    fn begin_leg(&mut self) {
        self.rate = None;
        while let Some(leg) = self.legs.front() {
            self.left = match leg {
                Leg::Wait(ns) => u128::from(*ns),
                Leg::Bytes(bytes, _) => u128::from(*bytes) * UNIT,
            };
            if self.left > 0 {
                return;
            }
            self.legs.pop_front();
        }
    }

    /// Nanoseconds to the end of the present leg.
    fn ends_in(&self) -> Option<Nanos> {
        let ns = match (self.legs.front()?, self.rate) {
            (Leg::Wait(_), _) => self.left,
            (Leg::Bytes(..), Some(rate)) => self.left.div_ceil(rate),
            (Leg::Bytes(..), None) => 0,
        };
        Some(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Lets time pass; whether a leg ended.
    fn pass(&mut self, elapsed: Nanos) -> bool {
        let done = match (self.legs.front(), self.rate) {
            (Some(Leg::Wait(_)), _) => u128::from(elapsed),
            (Some(Leg::Bytes(..)), Some(rate)) => u128::from(elapsed) * rate,
            (Some(Leg::Bytes(..)), None) => self.left,
            (None, _) => return false,
        };
        self.left = self.left.saturating_sub(done);
        if self.left > 0 {
            return false;
        }
        self.legs.pop_front();
        self.begin_leg();
        true
    }
}

#[cfg(test)]
mod tests;
