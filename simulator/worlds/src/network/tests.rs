//! Against a naive account of the rate of every link at every moment.

use super::*;
use proptest::prelude::*;
use tarn_types::cluster::{Host, Link, Node, Tier};
use tarn_types::id::TierId;

const NODES: u32 = 3;

fn tier_ref(node: u32) -> TierRef {
    TierRef {
        node: NodeId(node),
        tier: TierId(0),
    }
}

fn link(read: u64, write: u64, streams: u32) -> Link {
    Link {
        read,
        write,
        latency: 0,
        streams,
        emulated: false,
    }
}

fn cluster(rates: [u64; 6], streams: u32) -> Cluster {
    let node = |n| Node {
        name: format!("n{n}"),
        host: 0,
        cores: 1,
        memory: 0,
        gpus: 0,
        tiers: vec![Tier {
            name: "tmpfs".into(),
            root: "/".into(),
            capacity: 1 << 40,
            read: rates[0],
            write: rates[1],
            lender: None,
        }],
    };
    Cluster {
        hosts: vec![Host {
            name: "h".into(),
            cores: 4,
            memory: 0,
            sockets: Vec::new(),
            draw: Default::default(),
        }],
        nodes: (0..NODES).map(node).collect(),
        external: link(rates[2], rates[3], streams),
        peer: link(rates[4], rates[5], streams),
    }
}

#[derive(Debug, Clone)]
struct Order {
    at: Time,
    priority: u64,
    bytes: u64,
    wait: Nanos,
    /// `None` is the external store.
    from: Option<u32>,
    to: Option<u32>,
}

impl Order {
    fn over(&self) -> Vec<Resource> {
        let mut over = Vec::new();
        match (self.from, self.to) {
            (None, _) => over.push(Resource::ExternalIn),
            (Some(a), Some(b)) if a != b => {
                over.extend([
                    Resource::TierRead(tier_ref(a)),
                    Resource::PeerOut(NodeId(a)),
                    Resource::PeerIn(NodeId(b)),
                ]);
            }
            (Some(a), _) => over.push(Resource::TierRead(tier_ref(a))),
        }
        over.push(
            self.to
                .map_or(Resource::ExternalOut, |b| Resource::TierWrite(tier_ref(b))),
        );
        over
    }

    fn limits(&self) -> BTreeSet<StreamLimit> {
        match (self.from, self.to) {
            (Some(_), Some(b)) => BTreeSet::from([StreamLimit::PeerTo(NodeId(b))]),
            _ => BTreeSet::from([StreamLimit::External]),
        }
    }
}

fn order() -> impl Strategy<Value = Order> {
    let place = || prop_oneof![Just(None), (0..NODES).prop_map(Some)];
    let size = prop_oneof![Just(0u64), 1..5_000u64, 1_000_000..2_000_000_000u64];
    (
        0..3_000_000_000u64,
        0..3u64,
        size,
        0..500_000_000u64,
        place(),
        place(),
    )
        .prop_map(|(at, priority, bytes, wait, from, to)| Order {
            at,
            priority,
            bytes,
            wait,
            from,
            to,
        })
}

/// No link carries more than it can, and every flow is held back by a link that is full and gives nobody more.
fn check_shares(network: &Network, cluster: &Cluster) -> Result<(), TestCaseError> {
    let rates = network.rates();
    let mut carried: BTreeMap<Resource, (f64, f64)> = BTreeMap::new();
    for (_, rate, over) in &rates {
        for r in over {
            let sum = carried.entry(*r).or_default();
            *sum = (sum.0 + rate, sum.1.max(*rate));
        }
    }
    let slack = 1e-3;
    for (r, (sum, _)) in &carried {
        let limit = r.rate(cluster).map_or(f64::INFINITY, |r| r as f64);
        prop_assert!(*sum <= limit + slack, "{r:?} carries {sum} of {limit}");
    }
    for (id, rate, over) in &rates {
        let held_back = over
            .iter()
            .filter_map(|r| Some((r.rate(cluster)? as f64, carried[r])));
        let mut full =
            held_back.filter(|(limit, (sum, most))| sum + slack >= *limit && rate + slack >= *most);
        prop_assert!(full.next().is_some(), "{id} gets {rate} for no reason");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn bytes_are_conserved_and_links_respected(
        orders in prop::collection::vec(order(), 1..24),
        rates in prop::array::uniform6(1_000_000..5_000_000_000u64),
        streams in 1..5u32,
    ) {
        let cluster = cluster(rates, streams);
        let mut network = Network::default();
        let mut pending: Vec<(usize, &Order)> = orders.iter().enumerate().collect();
        pending.sort_by_key(|(n, o)| (o.at, *n));
        let mut pending: VecDeque<_> = pending.into();
        let mut delivered = vec![0f64; orders.len()];
        let mut finished = vec![false; orders.len()];
        let mut now = 0;
        loop {
            let coming = pending.front().map(|(_, o)| o.at);
            let Some(at) = coming.into_iter().chain(network.next_change()).min() else { break };
            let at = at.max(now);
            for (id, rate, _) in network.rates() {
                delivered[id.0 as usize] += rate * (at - now) as f64 / 1e9;
            }
            now = at;
            for done in network.advance(&cluster, at) {
                let n = done.id.0 as usize;
                prop_assert!(!std::mem::replace(&mut finished[n], true), "{} finishes twice", done.id);
                // It may end up to a nanosecond after its last byte.
                let most = orders[n].bytes as f64 + 5.0 + orders[n].bytes as f64 * 1e-9;
                prop_assert!(delivered[n] + 1.0 >= orders[n].bytes as f64 && delivered[n] <= most);
                prop_assert!(done.took >= orders[n].wait);
            }
            while let Some((n, o)) = pending.front().copied().filter(|(_, o)| o.at <= now) {
                pending.pop_front();
                let legs = vec![Leg::Wait(o.wait), Leg::Bytes(o.bytes, o.over())];
                network.submit(&cluster, TransferId(n as u64), o.priority, o.limits(), vec![legs]);
            }
            check_shares(&network, &cluster)?;
        }
        prop_assert!(finished.iter().all(|f| *f) && network.is_idle());
    }
}

#[test]
fn a_link_is_shared_and_priority_decides_who_waits() {
    let cluster = cluster([0, 0, 100, 0, 0, 0], 2);
    let mut network = Network::default();
    let over = || vec![Resource::ExternalIn, Resource::TierWrite(tier_ref(0))];
    let limits = || BTreeSet::from([StreamLimit::External]);
    for (id, priority, bytes) in [(0, 0, 100), (1, 0, 200), (2, 1, 50), (3, 9, 50)] {
        let flow = vec![Leg::Bytes(bytes, over())];
        network.submit(&cluster, TransferId(id), priority, limits(), vec![flow]);
    }
    let mut ends = Vec::new();
    while let Some(at) = network.next_change() {
        ends.extend(
            network
                .advance(&cluster, at)
                .iter()
                .map(|f| (f.id.0, at, f.took)),
        );
    }
    // 0 and 1 share 100 B/s; at 2 s 0 is done and 3 goes before 2; everybody gets 50 B/s until 2 ends.
    let s = 1_000_000_000;
    assert_eq!(
        ends,
        [
            (0, 2 * s, 2 * s),
            (3, 3 * s, s),
            (1, 4 * s, 4 * s),
            (2, 4 * s, s)
        ]
    );
}

#[test]
fn abandoning_frees_the_stream() {
    let cluster = cluster([0, 0, 100, 0, 0, 0], 1);
    let mut network = Network::default();
    for id in 0..2 {
        let flow = vec![Leg::Bytes(100, vec![Resource::ExternalIn])];
        network.submit(
            &cluster,
            TransferId(id),
            0,
            BTreeSet::from([StreamLimit::External]),
            vec![flow],
        );
    }
    assert!(network.abandon(&cluster, TransferId(0)));
    assert!(!network.abandon(&cluster, TransferId(0)));
    assert_eq!(network.next_change(), Some(1_000_000_000));
}
