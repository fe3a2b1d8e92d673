//! The external store as a bound sees it.

use tarn_types::site::{Machine, Rates};
use tarn_types::units::{Nanos, SECOND};

/// Towards the nodes, or away from them.
#[derive(Debug, Clone, Copy)]
pub(super) enum Direction {
    In,
    Out,
}

/// Bandwidths in bytes a second; `None` for no limit.
pub(super) struct StoreRates {
    store: [Option<u128>; 2],
    client: [Option<u128>; 2],
    nodes: u128,
}

/// Bytes as work for [`super::packing`], whose time is in nanoseconds.
pub(super) fn work(bytes: u128) -> u128 {
    bytes.saturating_mul(u128::from(SECOND))
}

/// Rounded down: a bound may be too low, never too high.
fn time(bytes: u128, rate: Option<u128>) -> Nanos {
    let time = rate.map_or(0, |rate| work(bytes) / rate.max(1));
    Nanos::try_from(time).unwrap_or(Nanos::MAX)
}

impl StoreRates {
    pub(super) fn new(machine: &Machine) -> Self {
        let limits = |r: Rates| [r.read, r.write].map(|r| (r > 0).then_some(u128::from(r)));
        Self {
            store: limits(machine.store.rates),
            client: limits(machine.store.client),
            nodes: u128::from(machine.nodes().max(1)),
        }
    }

    /// The bandwidth of all nodes together.
    pub(super) fn all(&self, way: Direction) -> Option<u128> {
        let clients = self.client[way as usize].map(|c| c * self.nodes);
        [self.store[way as usize], clients]
            .into_iter()
            .flatten()
            .min()
    }

    /// The least time for bytes, from any number of nodes.
    pub(super) fn together(&self, way: Direction, bytes: u128) -> Nanos {
        time(bytes, self.all(way))
    }

    /// The least time for bytes through so many nodes.
    pub(super) fn through_nodes(&self, way: Direction, bytes: u128, nodes: u32) -> Nanos {
        let limit = self.client[way as usize].map(|c| c * u128::from(nodes.max(1)));
        time(bytes, limit)
    }

    /// The least time for one item that comes to, or leaves, at most so many nodes. It may use as many streams as saturate
    /// the store.
    pub(super) fn transfer(&self, way: Direction, bytes: u128, nodes: u32) -> Nanos {
        self.together(way, bytes)
            .max(self.through_nodes(way, bytes, nodes))
    }
}
