//! Any sequence of snapshots: nothing panics, and a planner that has seen all of it has the facts of one that was built
//! from the last.

use super::data::stored;
use super::*;
use proptest::prelude::*;
use tarn_proto::site::Owner;
use tarn_site::PlanningJob;

const NODES: usize = 5;

/// A job at one moment.
#[derive(Debug, Clone)]
struct RandomJob {
    number: u32,
    state: u8,
    nodes: Vec<usize>,
    cpus: u32,
    limit: Option<u64>,
    is_exclusive: bool,
    priority: u32,
    reads: Option<usize>,
    makes: bool,
}

fn job() -> impl Strategy<Value = RandomJob> {
    (
        1u32..12,
        0u8..8,
        prop::collection::vec(0..NODES, 0..4),
        1u32..20,
        prop::option::of(1u64..5_000),
        any::<bool>(),
        0u32..4,
        prop::option::of(0usize..3),
        any::<bool>(),
    )
        .prop_map(
            |(number, state, nodes, cpus, limit, is_exclusive, priority, reads, makes)| RandomJob {
                number,
                state,
                nodes,
                cpus,
                limit,
                is_exclusive,
                priority,
                reads,
                makes,
            },
        )
}

/// A moment: jobs, nodes that are drained, and where three versions are.
type Moment = (Vec<RandomJob>, Vec<usize>, [Vec<usize>; 3]);

fn moment() -> impl Strategy<Value = Moment> {
    let place = || prop::collection::vec(0..NODES, 0..3);
    (
        prop::collection::vec(job(), 0..10),
        prop::collection::vec(0..NODES, 0..2),
        [place(), place(), place()],
    )
}

fn snapshot(at: u64, (jobs, drained, _): &Moment) -> SlurmSnapshot {
    let mut snapshot = cluster(NODES);
    snapshot.read_at = START + at * 7;
    // Two kinds of nodes.
    for name in ["n3", "n4"] {
        snapshot.nodes.get_mut(name).unwrap().cpus = 4;
    }
    for node in drained {
        let node = snapshot.nodes.get_mut(&format!("n{node}")).unwrap();
        node.state = SlurmNodeState::parse("mixed+drain");
    }
    // Slurm gives no processor to two jobs.
    let mut free: Vec<u32> = vec![8, 8, 8, 4, 4];
    let jobs = jobs.iter().map(|random| {
        let mut on: Vec<usize> = random.nodes.clone();
        on.sort_unstable();
        on.dedup();
        let waits = SlurmJob {
            cpus: random.cpus,
            limit: random.limit,
            is_exclusive: random.is_exclusive,
            priority: random.priority,
            has_burst_buffer: random.reads.is_some(),
            ..waiting(random.number, random.nodes.len().max(1) as u32)
        };
        let share = random.cpus.div_ceil(on.len().max(1) as u32);
        let fits = |n: &usize| match random.is_exclusive {
            true => free[*n] == if *n < 3 { 8 } else { 4 },
            false => free[*n] >= share,
        };
        let state = match random.state {
            0..3 => SlurmJobState::Pending,
            3..6 if !on.is_empty() && on.iter().all(fits) => SlurmJobState::Running,
            6 => SlurmJobState::StageOut,
            _ => SlurmJobState::Requeued,
        };
        if state != SlurmJobState::Running {
            return SlurmJob { state, ..waits };
        }
        for n in &on {
            free[*n] -= if random.is_exclusive { free[*n] } else { share };
        }
        let names: Vec<String> = on.iter().map(|n| format!("n{n}")).collect();
        let names: Vec<&str> = names.iter().map(|n| &n[..]).collect();
        running(waits, &names, START - 10 + u64::from(random.number))
    });
    let jobs = jobs.collect();
    with(snapshot, jobs)
}

fn view(snapshot: &SlurmSnapshot, (jobs, _, places): &Moment) -> PlanningView {
    let mut view = empty_view(snapshot);
    let key = |name: &str, version: u32| {
        (
            Owner::User(1000),
            "foam".to_owned(),
            name.to_owned(),
            version,
        )
    };
    for random in jobs {
        let Some(read) = random.reads else { continue };
        let makes = key("out", 100 + random.number);
        view.jobs.insert(
            random.number,
            PlanningJob {
                workflow: (Owner::User(1000), "foam".to_owned()),
                arrived: START * SECOND,
                reads: vec![(key("in", read as u32), false)],
                makes: random.makes.then(|| makes.clone()).into_iter().collect(),
                is_well: random.state == 6,
                is_called: random.state > 2,
                is_staged: random.state > 2,
            },
        );
        if random.makes {
            let mut version = stored(1 << 20, &[]);
            version.is_made = false;
            view.versions.insert(makes, version);
        }
        let nodes: Vec<String> = places[read].iter().map(|n| format!("n{n}")).collect();
        let nodes: Vec<&str> = nodes.iter().map(|n| &n[..]).collect();
        let mut version = stored(1 << 30, &[&nodes]);
        version.is_outside = true;
        view.versions.insert(key("in", read as u32), version);
    }
    view
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn built_from_the_last_is_as_stepped_through_all(moments in prop::collection::vec(moment(), 1..8)) {
        let mut stepped = planner();
        for (at, moment) in (0u64..).zip(&moments) {
            let snapshot = snapshot(at, moment);
            let view = view(&snapshot, moment);
            let now = snapshot.read_at * SECOND;
            let seen = stepped.see(&snapshot, &view, now);
            prop_assert_eq!(seen.refused, Vec::<String>::new());
            let first = (at == 0).then_some(crate::RebuildReason::First);
            prop_assert_eq!(seen.rebuilt, first, "moment {}", at);
            let mut built = planner();
            // Earlier jobs are in no snapshot.
            built.runs = stepped.runs.clone();
            let seen = built.see(&snapshot, &view, now);
            prop_assert_eq!(seen.refused, Vec::<String>::new());
            prop_assert_eq!(facts(&stepped), facts(&built), "moment {}", at);
            let _ = stepped.plan(3600 * SECOND);
            if at % 2 == 0 {
                let _ = stepped.pass(now + 3 * SECOND);
            }
        }
    }
}
