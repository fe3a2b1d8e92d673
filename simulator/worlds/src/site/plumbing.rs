//! The pipes that a move uses, and its limits: the external store, links and tiers of a machine.

use super::fluid::{PipeId, StreamDemand, UNLIMITED, rate_of};
use tarn_types::id::NodeId;
use tarn_types::site::{Machine, Mode, NodeKind, Rates, Store, Urgency};

/// The external store, read and written.
pub(super) const STORE_READ: PipeId = 0;
pub(super) const STORE_WRITE: PipeId = 1;
const STORE_PIPES: u32 = 2;
/// Pipes of each node, in the order of [`NodePipe`].
const NODE_PIPES: u32 = 6;

/// A pipe of a node.
#[derive(Debug, Clone, Copy)]
pub(super) enum NodePipe {
    /// From the external store.
    ClientIn,
    /// To the external store.
    ClientOut,
    /// From other nodes.
    LinkIn,
    /// To other nodes.
    LinkOut,
    TierRead,
    TierWrite,
}

pub(super) fn pipe(node: NodeId, which: NodePipe) -> PipeId {
    STORE_PIPES + node.0 * NODE_PIPES + which as u32
}

/// The capacities of all pipes in the order of their numbers. Tiers change theirs as they fill.
pub(super) fn capacities(machine: &Machine) -> Vec<u64> {
    let store = machine.store;
    let mut all = vec![rate_of(store.rates.read), rate_of(store.rates.write)];
    for island in &machine.islands {
        let (link, tier) = (
            island.kind.link,
            tier_rates(&island.kind, island.kind.mode, 0),
        );
        let each = [
            store.client.read,
            store.client.write,
            link.read,
            link.write,
            tier.read,
            tier.write,
        ];
        for _ in 0..island.nodes {
            all.extend(each.map(rate_of));
        }
    }
    all
}

/// Bytes that a node's tiers hold in a mode.
pub(super) fn capacity(kind: &NodeKind, mode: Mode) -> u64 {
    let tiers = kind.tiers.iter().filter(|t| there(t.app_direct, mode));
    tiers.fold(0, |sum, t| sum.saturating_add(t.capacity))
}

fn there(app_direct: bool, mode: Mode) -> bool {
    !app_direct || mode == Mode::OneLevel
}

/// The rates of the slowest tier that a fill reaches: fast tiers (listed first) fill first.
pub(super) fn tier_rates(kind: &NodeKind, mode: Mode, fill: u64) -> Rates {
    let slower = |a: u64, b: u64| match (a, b) {
        (0, other) | (other, 0) => other,
        (a, b) => a.min(b),
    };
    let mut rates = Rates::default();
    let mut below = 0u64;
    for tier in kind.tiers.iter().filter(|t| there(t.app_direct, mode)) {
        if below > 0 && fill <= below {
            break;
        }
        rates.read = slower(rates.read, tier.rates.read);
        rates.write = slower(rates.write, tier.rates.write);
        below = below.saturating_add(tier.capacity);
    }
    rates
}

/// One end of a move on nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct MoveEnd<'a> {
    pub(super) nodes: &'a [NodeId],
    pub(super) link: Rates,
    /// Rates of the slowest tier in use there; `None` at the end of a direct move.
    pub(super) tier: Option<Rates>,
}

impl MoveEnd<'_> {
    /// Of one node with its own tier: the node, and the tier's rate in this direction.
    pub(super) fn own_tier(&self, which: NodePipe) -> Option<(NodeId, u64)> {
        let ([node], Some(rates)) = (self.nodes, self.tier) else {
            return None;
        };
        match which {
            NodePipe::TierRead => Some((*node, rates.read)),
            NodePipe::TierWrite => Some((*node, rates.write)),
            _ => None,
        }
    }

    /// Limits in one direction: pipes of one node, that its streams share, or the sum over several nodes.
    fn limit(&self, demand: &mut StreamDemand, pipes: &[(NodePipe, u64)]) {
        if let [node] = self.nodes {
            demand
                .over
                .extend(pipes.iter().map(|(which, _)| pipe(*node, *which)));
            return;
        }
        let count = self.nodes.len() as u64;
        for (_, rate) in pipes {
            demand.cap = demand.cap.min(rate_of(*rate).saturating_mul(count));
        }
    }
}

/// The demand of a move. An end that is `None` is outside.
pub(super) fn demand(
    store: &Store,
    from: Option<MoveEnd<'_>>,
    to: Option<MoveEnd<'_>>,
    bytes: u64,
    streams: u32,
    urgency: Urgency,
) -> StreamDemand {
    let mut demand = StreamDemand {
        bytes,
        cap: UNLIMITED,
        class: urgency as u8,
        over: Vec::new(),
    };
    let saturates = u64::from(store.saturates.max(1));
    let mut outside = |pipe, rate| {
        demand.over.push(pipe);
        let rate = rate_of(rate);
        if rate < UNLIMITED {
            let streams = u64::from(streams).clamp(1, saturates);
            demand.cap = (rate / saturates).max(1).saturating_mul(streams);
        }
    };
    match (&from, &to) {
        (None, _) => outside(STORE_READ, store.rates.read),
        (_, None) => outside(STORE_WRITE, store.rates.write),
        _ => {}
    }
    if let Some(from) = &from {
        let link = match to {
            None => (NodePipe::ClientOut, store.client.write),
            Some(_) => (NodePipe::LinkOut, from.link.write),
        };
        let tier = from.tier.map(|t| (NodePipe::TierRead, t.read));
        from.limit(&mut demand, &both(link, tier));
    }
    if let Some(to) = &to {
        let link = match from {
            None => (NodePipe::ClientIn, store.client.read),
            Some(_) => (NodePipe::LinkIn, to.link.read),
        };
        let tier = to.tier.map(|t| (NodePipe::TierWrite, t.write));
        to.limit(&mut demand, &both(link, tier));
    }
    demand
}

fn both(link: (NodePipe, u64), tier: Option<(NodePipe, u64)>) -> Vec<(NodePipe, u64)> {
    std::iter::once(link).chain(tier).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_types::site::{NodePowerModel, TierKind};

    fn kind() -> NodeKind {
        let tier = |capacity, read, app_direct| TierKind {
            name: "t".into(),
            capacity,
            rates: Rates { read, write: 0 },
            app_direct,
        };
        NodeKind {
            sockets: 1,
            cores: 4,
            memory: 1,
            gpus: 0,
            tiers: vec![tier(100, 50, true), tier(1000, 5, false)],
            link: Rates::default(),
            mode: Mode::OneLevel,
            mode_change: None,
            power: NodePowerModel::default(),
            temperature: 20.0,
        }
    }

    #[test]
    fn fast_tiers_fill_first() {
        let read = |mode, fill| tier_rates(&kind(), mode, fill).read;
        assert_eq!([0, 100, 101].map(|f| read(Mode::OneLevel, f)), [50, 50, 5]);
        assert_eq!(read(Mode::TwoLevel, 0), 5, "the first tier is not there");
        assert_eq!(capacity(&kind(), Mode::OneLevel), 1100);
        assert_eq!(capacity(&kind(), Mode::TwoLevel), 1000);
    }
}
