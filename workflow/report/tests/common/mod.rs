//! A plausible log, made by a small scheduler of its own: a mosaic of tiles on some nodes, with an emulated
//! external store, a failing attempt, a full tier and a reused step. Times, sizes and outcomes come from a seed.

#![allow(dead_code, reason = "each test uses its part of this")]

pub(crate) mod mosaic;
pub(crate) mod shape;

use tarn_ports::Record;
use tarn_types::action::{Action, Do};
use tarn_types::event::Event;
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, NodeId, StepId, TierId, TierRef};
use tarn_types::part::{PartClass, PartInfo, PartRef, StoreKey};
use tarn_types::random;
use tarn_types::reason::Reason;
use tarn_types::units::Time;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) struct Random(random::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(random::Random::new(seed))
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0.below(n.max(1))
    }
    /// `n` give or take half of it.
    pub(crate) fn about(&mut self, n: u64) -> u64 {
        n / 2 + self.below(n)
    }
}

pub(crate) fn tier_ref(node: u32) -> TierRef {
    tier_at(node, 0)
}

pub(crate) fn tier_at(node: u32, tier: u32) -> TierRef {
    TierRef {
        node: NodeId(node),
        tier: TierId(tier),
    }
}

pub(crate) fn part(data: u32, version: u32, origin: u32, seq: u32) -> PartRef {
    PartRef {
        data: DataId(data),
        version,
        origin,
        seq,
    }
}

pub(crate) fn instance(step: u32, index: u32) -> InstanceId {
    InstanceId {
        step: StepId(step),
        index,
    }
}

pub(crate) fn act(what: Do, why: Reason) -> Action {
    Action { what, why }
}

pub(crate) fn info(key: &str, seq: u32, class: PartClass, bytes: u64) -> PartInfo {
    PartInfo {
        seq,
        class,
        bytes,
        stored: bytes.next_multiple_of(4096) + 4096,
        files: 1,
        hash: Some(Hash::of(key.as_bytes())),
        key: StoreKey(key.into()),
    }
}

/// Events and actions with their times, in any order; [`Log::records`] sorts them.
#[derive(Default)]
pub(crate) struct Log(Vec<(Time, Event, Vec<Action>)>);

impl Log {
    pub(crate) fn add(&mut self, now: Time, event: Event, actions: Vec<Action>) {
        self.0.push((now, event, actions));
    }
    pub(crate) fn act(&mut self, now: Time, what: Do, why: Reason) {
        self.add(now, Event::Timer, vec![act(what, why)]);
    }
    pub(crate) fn records(mut self) -> Vec<Record> {
        self.0.sort_by_key(|e| e.0);
        let numbered = (0..).zip(self.0);
        let record = |(seq, (now, event, actions))| Record {
            seq,
            now,
            engine: 1,
            event,
            actions,
        };
        numbered.map(record).collect()
    }
}
