//! Any events in any order, sensible or not: nothing panics, the accounts stay right (they are counted again after each
//! step), and a refused event changes nothing.

use super::{job, machine, nodes};
use crate::plan::Planner;
use proptest::prelude::*;
use std::sync::Arc;
use tarn_types::id::NodeId;
use tarn_types::policy::Policy;
use tarn_types::site::{
    FlowId, Input, Item, ItemId, Job, JobId, JobNodes, Mode, MoveId, NodeMask, NodeShare,
    SiteAction, SiteEvent, Spread,
};
use tarn_types::units::{SECOND, Time};

const JOBS: u32 = 10;
const ITEMS: u32 = 6;
/// One more than there are.
const NODES: u32 = 7;

fn some_nodes() -> impl Strategy<Value = JobNodes> {
    prop::collection::vec(0..NODES, 0..4).prop_map(|n| nodes(&n))
}

fn share() -> impl Strategy<Value = NodeShare> {
    (0u32..6, 0u64..3, 0u32..3).prop_map(|(cores, memory, gpus)| NodeShare {
        cores,
        memory: memory << 29,
        gpus,
    })
}

fn spread() -> impl Strategy<Value = Spread> {
    prop_oneof![Just(Spread::Share), Just(Spread::Whole)]
}

/// A job: most are sensible.
fn some_job() -> impl Strategy<Value = Job> {
    let mask = prop::option::weighted(0.3, prop::collection::vec(0..NODES, 0..6));
    let data = (
        prop::collection::vec((0..ITEMS, spread()), 0..3),
        prop::collection::vec(0..ITEMS, 0..2),
        prop::collection::vec(0..JOBS, 0..2),
        prop::option::weighted(0.1, 0..JOBS),
    );
    let shape = (
        0u32..4,
        0u32..6,
        0u32..2,
        1u64..200,
        prop::option::of(0u32..2),
    );
    let times = (
        prop::option::weighted(0.3, any::<u64>()),
        prop::option::weighted(0.3, 0u64..1000),
        prop::option::weighted(0.2, 0u64..2000),
    );
    (mask, data, shape, times).prop_map(|(mask, data, shape, times)| {
        let (reads, writes, after, continues) = data;
        let input = |(item, spread)| Input {
            item: ItemId(item),
            spread,
        };
        let mask = mask.map(|on| on.into_iter().map(NodeId).collect::<NodeMask>());
        Job {
            flow: shape.4.map(FlowId),
            gpus: shape.2,
            limit: shape.3 * SECOND,
            expect: shape.3 * SECOND / 2,
            after: after.into_iter().map(JobId).collect(),
            continues: continues.map(JobId),
            reads: reads.into_iter().map(input).collect(),
            writes: writes.into_iter().map(ItemId).collect(),
            place: times.0,
            submitted: times.1.map(|s| s * SECOND),
            not_before: times.2.map_or(0, |s| s * SECOND),
            on: mask.map(Arc::new),
            mode: shape.2.checked_sub(1).map(|_| Mode::TwoLevel),
            ..job(shape.0, shape.1)
        }
    })
}

/// A happening: an event, or another spec of a job that differs only where the host may change it.
#[derive(Debug, Clone)]
enum Happens {
    Event(SiteEvent),
    Changed(JobId, Job),
    /// A move that was ordered, counted from the last, ends.
    Move(usize, bool),
}

fn submitted() -> impl Strategy<Value = SiteEvent> {
    let item = (0..ITEMS, 0u64..1500, any::<bool>(), any::<bool>());
    let items = prop::collection::vec(item, 0..4);
    let jobs = prop::collection::vec((0..JOBS, some_job()), 0..3);
    (jobs, items).prop_map(|(jobs, items)| {
        let jobs = jobs.into_iter().map(|(id, j)| (JobId(id), Arc::new(j)));
        let items = items.into_iter().map(|(id, bytes, outside, keep)| {
            let item = Item {
                bytes,
                outside,
                keep,
            };
            (ItemId(id), item)
        });
        SiteEvent::Submitted {
            jobs: jobs.collect(),
            items: items.collect(),
        }
    })
}

fn fact() -> impl Strategy<Value = SiteEvent> {
    let id = || (0..JOBS).prop_map(JobId);
    let node = || (0..NODES).prop_map(NodeId);
    let item = || (0..ITEMS).prop_map(ItemId);
    let bytes = prop_oneof![9 => 0u64..1500, 1 => any::<u64>()];
    prop_oneof![
        6 => (id(), some_nodes(), share(), 0u64..1000).prop_map(|(job, nodes, share, since)| {
            SiteEvent::Began { job, nodes, share, since: since * SECOND }
        }),
        6 => (id(), any::<bool>(), prop::collection::vec((0..ITEMS, 0u64..1500), 0..2)).prop_map(
            |(job, ok, sizes)| SiteEvent::Ended {
                job,
                ok,
                sizes: sizes.into_iter().map(|(i, b)| (ItemId(i), b)).collect(),
            }
        ),
        3 => id().prop_map(|job| SiteEvent::Withdrawn { job }),
        2 => id().prop_map(|job| SiteEvent::NotBegun { job }),
        1 => (id(), 0u64..1000).prop_map(|(job, s)| SiteEvent::Promised { job, begin: s * SECOND }),
        2 => (node(), prop::option::of(0u64..1000)).prop_map(|(node, until)| SiteEvent::Closed {
            node,
            until: until.map(|s| s * SECOND),
        }),
        2 => node().prop_map(|node| SiteEvent::Opened { node }),
        3 => (item(), some_nodes(), spread(), bytes).prop_map(|(item, nodes, spread, bytes)| {
            SiteEvent::Stored { item, nodes, spread, bytes }
        }),
        2 => (item(), some_nodes(), spread()).prop_map(|(item, nodes, spread)| SiteEvent::Gone {
            item,
            nodes,
            spread,
        }),
        1 => node().prop_map(|node| SiteEvent::NodeLost { node }),
        2 => node().prop_map(|node| SiteEvent::NodeBack { node }),
        1 => node().prop_map(|node| SiteEvent::Awake { node }),
        1 => node().prop_map(|node| SiteEvent::Asleep { node }),
        1 => (node(), any::<bool>()).prop_map(|(node, is_two)| SiteEvent::InMode {
            node,
            mode: if is_two { Mode::TwoLevel } else { Mode::OneLevel },
        }),
        1 => (node(), any::<bool>()).prop_map(|(node, is_needed)| SiteEvent::Needed {
            node,
            is_needed,
        }),
        1 => (node(), any::<bool>()).prop_map(|(node, is_wakeable)| SiteEvent::Wakeable {
            node,
            is_wakeable,
        }),
        1 => (node(), any::<bool>()).prop_map(|(node, ok)| SiteEvent::ModeSet { node, ok }),
        1 => Just(SiteEvent::Timer),
    ]
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        3 => submitted().prop_map(Happens::Event),
        12 => fact().prop_map(Happens::Event),
        2 => ((0..JOBS).prop_map(JobId), some_job()).prop_map(|(id, j)| Happens::Changed(id, j)),
        3 => (0usize..4, any::<bool>()).prop_map(|(back, ok)| Happens::Move(back, ok)),
    ]
}

/// The job as it is, with what a host may change.
fn changed(planner: &Planner, id: JobId, to: &Job) -> Job {
    let Some(known) = planner.state.job(id) else {
        return to.clone();
    };
    Job {
        flow: known.job.flow,
        after: known.job.after.clone(),
        continues: known.job.continues,
        reads: known.job.reads.clone(),
        writes: known.job.writes.clone(),
        ..to.clone()
    }
}

fn event(planner: &Planner, moves: &[MoveId], happens: &Happens) -> SiteEvent {
    match happens {
        Happens::Event(event) => event.clone(),
        Happens::Changed(id, to) => SiteEvent::Changed {
            job: *id,
            spec: Arc::new(changed(planner, *id, to)),
        },
        Happens::Move(back, ok) => {
            let at = moves.len().saturating_sub(1 + back);
            let id = moves.get(at).copied().unwrap_or(MoveId(77));
            match ok {
                true => SiteEvent::Moved { id },
                false => SiteEvent::MoveFailed { id },
            }
        }
    }
}

fn run(policy: &str, all: &[(u64, Happens)]) -> Result<(), TestCaseError> {
    let policy: Policy = policy.parse().expect("a policy");
    let mut planner = Planner::new(&machine(), policy);
    let (mut now, mut moves): (Time, Vec<MoveId>) = (0, Vec::new());
    for (later, happens) in all {
        now += later * SECOND;
        let event = event(&planner, &moves, happens);
        planner.state.now = now;
        planner.state.deadline = None;
        let before = format!("{:?}", planner.state);
        if let Err(why) = planner.state.apply(&event) {
            let after = format!("{:?}", planner.state);
            prop_assert_eq!(before, after, "{:?} was refused: {}", event, why);
        }
        let mut actions = Vec::new();
        planner.decide(&mut actions);
        let orders = actions.iter().filter_map(|a| match a {
            SiteAction::Move(m) => Some(m.id),
            _ => None,
        });
        moves.extend(orders);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_events_under_data(all in prop::collection::vec((0u64..40, happens()), 1..60)) {
        run("data", &all)?;
    }

    #[test]
    fn any_events_under_energy(all in prop::collection::vec((0u64..400, happens()), 1..60)) {
        run("energy", &all)?;
    }

    #[test]
    fn any_events_under_cache(all in prop::collection::vec((0u64..40, happens()), 1..60)) {
        run("easy+cache", &all)?;
    }

    #[test]
    fn any_events_under_stage_through(all in prop::collection::vec((0u64..40, happens()), 1..60)) {
        run("greedy", &all)?;
    }
}
