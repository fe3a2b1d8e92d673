use super::*;
use proptest::prelude::*;

const KB: u64 = 1000;
const SECOND: Time = 1_000_000_000;

fn fluid(capacities: &[u64]) -> Fluid {
    Fluid::new(capacities.iter().map(|c| rate_of(*c)))
}

fn demand(bytes: u64, class: u8, over: &[PipeId]) -> StreamDemand {
    StreamDemand {
        bytes,
        cap: UNLIMITED,
        class,
        over: over.to_vec(),
    }
}

/// Ends of all streams in order, if nothing else comes.
fn run(fluid: &mut Fluid, mut now: Time) -> Vec<(Time, StreamIndex)> {
    let mut ends = Vec::new();
    while let Some((at, slot)) = fluid.next(now) {
        now = at;
        fluid.stop(now, slot);
        ends.push((at, slot));
    }
    ends
}

#[test]
fn streams_share_a_pipe_and_take_over_what_others_leave() {
    let mut f = fluid(&[10 * KB]);
    f.start(0, &demand(10 * KB, 0, &[0]));
    f.start(0, &demand(20 * KB, 0, &[0]));
    assert_eq!(run(&mut f, 0), [(2 * SECOND, 0), (3 * SECOND, 1)]);
}

#[test]
fn the_more_urgent_go_first() {
    let mut f = fluid(&[10 * KB]);
    f.start(0, &demand(10 * KB, 0, &[0]));
    f.start(0, &demand(10 * KB, 3, &[0]));
    assert_eq!(run(&mut f, 0), [(SECOND, 1), (2 * SECOND, 0)]);
}

#[test]
fn a_cap_leaves_the_rest_to_others() {
    let mut f = fluid(&[10 * KB]);
    let mut capped = demand(4 * KB, 0, &[0]);
    capped.cap = rate_of(2 * KB);
    f.start(0, &capped);
    f.start(0, &demand(16 * KB, 0, &[0]));
    assert_eq!(run(&mut f, 0), [(2 * SECOND, 0), (2 * SECOND, 1)]);
}

#[test]
fn nothing_and_no_limit_take_no_time() {
    let mut f = fluid(&[0, 10]);
    f.start(5, &demand(u64::MAX, 0, &[0]));
    f.start(5, &demand(0, 0, &[1]));
    assert_eq!(run(&mut f, 5), [(5, 0), (5, 1)]);
}

#[test]
fn a_pipe_that_narrows_slows_its_streams() {
    let mut f = fluid(&[10 * KB, 0]);
    f.start(0, &demand(10 * KB, 0, &[0, 1]));
    assert_eq!(f.next(0), Some((SECOND, 0)));
    f.set_capacity(0, rate_of(5 * KB));
    assert_eq!(f.next(SECOND / 2), Some((SECOND * 3 / 2, 0)));
    f.set_capacity(1, rate_of(KB));
    assert_eq!(f.next(SECOND), Some((SECOND + SECOND * 5 / 2, 0)));
    f.set_capacity(1, UNLIMITED);
    assert_eq!(f.next(SECOND), Some((SECOND * 3 / 2, 0)));
}

/// Max-min rates by filling all streams of a class a little at a time, in rationals.
fn by_filling(capacities: &[u64], streams: &[StreamDemand]) -> Vec<f64> {
    let mut free: Vec<f64> = capacities.iter().map(|c| rate_of(*c) as f64).collect();
    let mut rates = vec![0.0; streams.len()];
    for class in (0..CLASSES).rev() {
        let mut open: Vec<usize> = (0..streams.len())
            .filter(|s| streams[*s].class == class)
            .collect();
        while !open.is_empty() {
            let users = |p: usize| {
                open.iter()
                    .filter(|s| streams[**s].over.contains(&(p as u32)))
                    .count()
            };
            let pipes = (0..free.len()).filter(|p| users(*p) > 0);
            let space = pipes.map(|p| free[p] / users(p) as f64);
            let to_cap = open.iter().map(|s| streams[*s].cap as f64 - rates[*s]);
            let step = space.chain(to_cap).fold(f64::MAX, f64::min).max(0.0);
            for s in &open {
                rates[*s] += step;
                for p in &streams[*s].over {
                    free[*p as usize] -= step;
                }
            }
            let full: Vec<bool> = free.iter().map(|f| *f < 1e-6).collect();
            open.retain(|s| {
                let demand = &streams[*s];
                rates[*s] < demand.cap as f64 - 1e-6
                    && !demand.over.iter().any(|p| full[*p as usize])
            });
        }
    }
    rates
}

proptest! {
    /// However streams come, go and pipes change: rates are those of filling everything again.
    #[test]
    fn rates_are_max_min_fair_within_their_class(
        capacities in prop::collection::vec(1u64..1000, 6),
        changes in prop::collection::vec((0u8..4, 0u8..4, 1u64..1500, prop::collection::btree_set(0u32..6, 1..4), 0usize..64), 1..40),
    ) {
        let mut capacities: Vec<u64> = capacities.iter().map(|c| c * KB).collect();
        let mut f = fluid(&capacities);
        let mut live: Vec<(StreamIndex, StreamDemand)> = Vec::new();
        for (what, class, cap, over, which) in changes {
            let over: Vec<PipeId> = over.into_iter().collect();
            match what {
                0 if !live.is_empty() => {
                    let (slot, _) = live.swap_remove(which % live.len());
                    f.stop(0, slot);
                }
                1 => {
                    capacities[which % 6] = cap * KB;
                    f.set_capacity((which % 6) as u32, rate_of(cap * KB));
                }
                _ => {
                    let demand = StreamDemand { bytes: KB, cap: rate_of(cap * KB), class, over };
                    live.push((f.start(0, &demand), demand));
                }
            }
            f.next(0);
            let streams: Vec<_> = live.iter().map(|(_, s)| s.clone()).collect();
            for ((slot, _), expected) in live.iter().zip(by_filling(&capacities, &streams)) {
                let rate = f.streams[*slot as usize].rate as f64;
                prop_assert!((rate - expected).abs() < RATE_UNIT as f64, "{rate} instead of {expected}");
            }
        }
    }
}
