//! The simulation as a world: the results of a small, hand-driven schedule.

use std::collections::BTreeMap;
use tarn_ports::World;
use tarn_simulator::{Estimates, FaultPlan, Keeps, Outage, SimEntry, Simulation, even_entries};
use tarn_types::action::{Action, AttemptSpec, Do, NodeReplica};
use tarn_types::cluster::{Cluster, Host, Link, Node, Tier};
use tarn_types::event::{AttemptOutcome, Event, Options, PriorInstance, RunErrorKind, Start};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, NodeId, StepId, TierId, TierRef, TransferId};
use tarn_types::part::{
    PartClass, PartInfo, PartMove, PartRef, Place, StoreKey, Transfer, TransferKind, Verify,
};
use tarn_types::pattern::ScatterRule;
use tarn_types::policy::{Order, Policy};
use tarn_types::reason::Reason;
use tarn_types::units::SECOND;
use tarn_types::workflow::{
    Dataset, DatasetUse, Distribution, Keep, OnFailure, Role, Step, VersionPartitioning, Workflow,
};

const MB: u64 = 1_000_000;

fn tier_ref(node: u32) -> TierRef {
    TierRef {
        node: NodeId(node),
        tier: TierId(0),
    }
}

fn cluster(nodes: u32, capacity: u64) -> Cluster {
    let link = |rate, latency| Link {
        read: rate,
        write: rate,
        latency,
        streams: 4,
        emulated: false,
    };
    let node = |n| Node {
        name: format!("n{n}"),
        host: 0,
        cores: 1,
        memory: 1 << 30,
        gpus: 0,
        tiers: vec![Tier {
            name: "tmpfs".into(),
            root: "/tmp".into(),
            capacity,
            read: 0,
            write: 0,
            lender: None,
        }],
    };
    Cluster {
        hosts: vec![Host {
            name: "h".into(),
            cores: 2,
            memory: 1 << 34,
            sockets: Vec::new(),
            draw: Default::default(),
        }],
        nodes: (0..nodes).map(node).collect(),
        external: link(100 * MB, 1_000_000),
        peer: link(1000 * MB, 0),
    }
}

fn dataset(name: &str, partition: VersionPartitioning) -> Dataset {
    Dataset {
        name: name.into(),
        source: None,
        dest: None,
        size: None,
        scatter: ScatterRule::new("processor{rank}").ok(),
        keep: Keep::UntilConsumed,
        copies: 1,
        on_failure: OnFailure::Discard,
        encrypt: false,
        of: None,
        tier: None,
        partition,
    }
}

fn usage(data: u32, role: Role, distribution: Distribution) -> DatasetUse {
    DatasetUse {
        data: DataId(data),
        role,
        distribution,
        entry: None,
        reads: (role != Role::Out).then_some(0),
        makes: (role != Role::In).then_some(1),
    }
}

fn step(name: &str, nodes: u32, uses: Vec<DatasetUse>) -> Step {
    Step {
        name: name.into(),
        run: "true".into(),
        prelude: None,
        shell: None,
        shared_tmp: false,
        env: BTreeMap::new(),
        nodes,
        tasks: nodes * 2,
        cores: 1,
        memory: 0,
        gpus: 0,
        time: None,
        retries: 0,
        restart: None,
        tier: None,
        after: vec![],
        foreach: None,
        uses,
        code: Hash(1),
    }
}

/// `d0` is a source of 2 parts of 50 MB; step 0 makes `d1` of it.
fn start(
    partition: VersionPartitioning,
    distribution: Distribution,
    nodes: u32,
    capacity: u64,
) -> Start {
    let uses = vec![
        usage(0, Role::In, Distribution::Broadcast),
        usage(1, Role::Out, distribution),
    ];
    Start {
        run: "w-1".into(),
        workspace: "w".into(),
        wall: 0,
        workflow: Workflow {
            name: "w".into(),
            external: None,
            erase: false,
            partitions: Vec::new(),
            folder: "/".into(),
            data: vec![
                dataset("in", VersionPartitioning::Entries),
                dataset("out", partition),
            ],
            steps: vec![step("make", nodes, uses)],
        },
        cluster: cluster(3, capacity),
        options: Options {
            policy: Policy::new(Order::Data, None),
            verify: Verify::Copy,
            cache: 0,
            fail_fast: false,
        },
        prior: vec![],
        prior_dest: vec![],
        prior_data: vec![],
        allocation: None,
        sealed: false,
        pinned: Vec::new(),
        set_aside: None,
    }
}

fn source_parts() -> Vec<PartInfo> {
    let part = |seq: u32| PartInfo {
        seq,
        class: PartClass::Entry(format!("e{seq}")),
        bytes: 50 * MB,
        stored: 50 * MB,
        files: 10,
        hash: None,
        key: StoreKey(format!("in.{seq}")),
    };
    (0..2).map(part).collect()
}

fn estimates(entries: Vec<SimEntry>) -> Estimates {
    Estimates {
        run_time: Box::new(|_| 3 * SECOND),
        output: Box::new(move |_, _| entries.clone()),
        sources: BTreeMap::from([(DataId(0), Ok(source_parts()))]),
        block: 1,
    }
}

fn act(what: Do) -> Action {
    Action {
        what,
        why: Reason::Ready,
    }
}

fn source_part(seq: u32) -> PartRef {
    PartRef {
        data: DataId(0),
        version: 0,
        origin: 0,
        seq,
    }
}

fn fetch(id: u64, seqs: &[u32], to: u32) -> Action {
    let parts = seqs.iter().map(|seq| PartMove {
        part: source_part(*seq),
        from: Place::Source,
    });
    act(Do::Transfer(Transfer {
        id: TransferId(id),
        data: DataId(0),
        version: 0,
        parts: parts.collect(),
        to: Place::Node(tier_ref(to)),
        kind: TransferKind::ExternalIn,
        verify: Verify::Copy,
        priority: 0,
    }))
}

fn held(seq: u32, node: u32) -> NodeReplica {
    NodeReplica {
        part: source_part(seq),
        key: StoreKey(format!("in.{seq}")),
        tier_ref: tier_ref(node),
    }
}

fn run(nodes: &[u32], attempt: u32) -> Action {
    let view = nodes.iter().map(|n| vec![held(0, *n)]).collect();
    act(Do::Run(Box::new(AttemptSpec {
        instance: first(),
        attempt,
        item: None,
        nodes: nodes.iter().map(|n| tier_ref(*n)).collect(),
        views: vec![view, vec![]],
        identity: Hash(7),
        store: "w-1.make".into(),
        reserve: 0,
        partitions: Vec::new(),
    })))
}

fn first() -> InstanceId {
    InstanceId {
        step: StepId(0),
        index: 0,
    }
}

#[test]
fn transfers_take_latency_and_bytes_over_a_shared_link() {
    let start = start(VersionPartitioning::Whole, Distribution::Single, 1, 1 << 40);
    let mut sim = Simulation::new(&start, estimates(vec![]));
    sim.perform(&act(Do::List { data: DataId(0) })).unwrap();
    assert!(
        matches!(sim.next(None).unwrap(), (0, Event::SourceListed { parts, .. }) if parts == source_parts())
    );
    sim.perform(&fetch(0, &[0], 0)).unwrap();
    sim.perform(&fetch(1, &[1], 1)).unwrap();
    // Alone, 50 MB at 100 MB/s would take half a second; two share the link. 10 files cost 1 ms each.
    let (now, event) = sim.next(None).unwrap();
    assert_eq!(now, SECOND + 10_000_000);
    let Event::TransferDone {
        id,
        bytes,
        hashes,
        took,
        ..
    } = event
    else {
        panic!("{event:?}")
    };
    assert_eq!(
        (id, bytes, hashes.len(), took),
        (TransferId(0), 50 * MB, 1, now)
    );
    assert!(matches!(
        sim.poll(),
        Some((
            _,
            Event::TransferDone {
                id: TransferId(1),
                ..
            }
        ))
    ));
    assert_eq!(sim.poll(), None);
    assert_eq!((sim.used(tier_ref(0)), sim.peak(tier_ref(2))), (50 * MB, 0));
}

#[test]
fn a_timer_comes_before_what_is_later_and_after_what_is_not() {
    let start = start(VersionPartitioning::Whole, Distribution::Single, 1, 1 << 40);
    let mut sim = Simulation::new(&start, estimates(vec![]));
    sim.perform(&fetch(0, &[0], 0)).unwrap();
    assert_eq!(sim.next(Some(7)).unwrap(), (7, Event::Timer));
    let end = 510_000_000;
    assert!(matches!(sim.next(Some(end)).unwrap(), (at, Event::TransferDone { .. }) if at == end));
    assert_eq!(sim.next(Some(2 * end)).unwrap(), (2 * end, Event::Timer));
    assert!(sim.next(None).is_err(), "nothing is under way");
}

#[test]
fn outputs_are_divided_and_placed_as_the_workflow_says() {
    let start = start(
        VersionPartitioning::Ranks,
        Distribution::Scatter,
        2,
        1 << 40,
    );
    let files = ["processor0/a", "processor3/b", "system/c", "processor0/d"];
    let entries = files.map(|f| SimEntry::file(f, 10)).to_vec();
    let mut sim = Simulation::new(&start, estimates(entries));
    for node in 0..2 {
        sim.perform(&fetch(u64::from(node), &[0], node)).unwrap();
        sim.next(None).unwrap();
    }
    let began = sim.now();
    sim.perform(&run(&[0, 1], 1)).unwrap();
    let (
        now,
        Event::Ended {
            ended: AttemptOutcome::Committed { outputs, .. },
            usage,
            ..
        },
    ) = sim.next(None).unwrap()
    else {
        panic!("it does not commit")
    };
    assert_eq!(
        (now - began, usage.wall, usage.read, usage.written),
        (3 * SECOND, 3 * SECOND, 100 * MB, 40)
    );
    let got: Vec<_> = outputs[0]
        .parts
        .iter()
        .map(|(i, s)| (i.class.clone(), i.bytes, i.key.0.as_str(), s.clone()))
        .collect();
    let want = [
        (PartClass::Rank(0), 20, "w-1.make.0", vec![tier_ref(0)]),
        (PartClass::Rank(3), 10, "w-1.make.1", vec![tier_ref(1)]),
        (
            PartClass::Common,
            10,
            "w-1.make.2",
            vec![tier_ref(0), tier_ref(1)],
        ),
    ];
    assert_eq!(got, want);
    assert_eq!(
        (sim.used(tier_ref(0)), sim.used(tier_ref(1))),
        (50 * MB + 30, 50 * MB + 20)
    );
}

#[test]
fn what_does_not_fit_fails_whole() {
    let start = start(
        VersionPartitioning::Entries,
        Distribution::Single,
        1,
        60 * MB,
    );
    let mut sim = Simulation::new(&start, estimates(even_entries(4, 12 * MB)));
    sim.perform(&fetch(0, &[0, 1], 0)).unwrap();
    let no_space = |e: &Event| matches!(e, Event::TransferFailed { failure, .. } if failure.kind == RunErrorKind::NoSpace);
    assert!(no_space(&sim.next(None).unwrap().1));
    assert_eq!(sim.used(tier_ref(0)), 0);
    sim.perform(&fetch(1, &[0], 0)).unwrap();
    sim.next(None).unwrap();
    sim.perform(&run(&[0], 1)).unwrap();
    let (_, event) = sim.next(None).unwrap();
    assert!(
        matches!(event, Event::Ended { ended: AttemptOutcome::Failed { failure, .. }, .. } if failure.kind == RunErrorKind::NoSpace)
    );
    assert_eq!(sim.used(tier_ref(0)), 50 * MB);
    let bytes = 100 * MB;
    sim.inject(
        sim.now(),
        Event::Capacity {
            tier_ref: tier_ref(0),
            bytes,
        },
    );
    assert!(matches!(sim.next(None).unwrap().1, Event::Capacity { .. }));
    sim.perform(&run(&[0], 2)).unwrap();
    assert!(matches!(
        sim.next(None).unwrap().1,
        Event::Ended {
            ended: AttemptOutcome::Committed { .. },
            ..
        }
    ));
    assert_eq!(
        (sim.used(tier_ref(0)), sim.peak(tier_ref(0))),
        (62 * MB, 62 * MB)
    );
}

#[test]
fn what_no_engine_may_order_is_an_error() {
    let start = start(VersionPartitioning::Whole, Distribution::Single, 1, 1 << 40);
    let mut sim = Simulation::new(&start, estimates(vec![]));
    let wrong = |sim: &mut Simulation, action: Action, expected: &str| {
        let error = sim.perform(&action).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    wrong(&mut sim, run(&[0], 1), "where it is not");
    sim.perform(&fetch(0, &[0], 0)).unwrap();
    wrong(&mut sim, fetch(0, &[1], 0), "ordered twice");
    sim.next(None).unwrap();
    wrong(&mut sim, fetch(1, &[0], 0), "where it is already");
    sim.perform(&run(&[0], 1)).unwrap();
    wrong(&mut sim, run(&[0], 1), "while it runs");
    let evict = act(Do::Evict {
        part: source_part(0),
        key: StoreKey("in.0".into()),
        at: Place::Node(tier_ref(0)),
    });
    wrong(&mut sim, evict.clone(), "while s0.0 reads it");
    sim.perform(&act(Do::Stop {
        instance: first(),
        attempt: 1,
    }))
    .unwrap();
    let (_, event) = sim.next(None).unwrap();
    assert!(
        matches!(event, Event::Ended { ended: AttemptOutcome::Failed { failure, .. }, .. } if failure.kind == RunErrorKind::Cancelled)
    );
    sim.perform(&evict).unwrap();
    assert!(matches!(sim.next(None).unwrap().1, Event::Evicted { .. }));
    assert_eq!(sim.used(tier_ref(0)), 0);
}

#[test]
fn cores_are_never_overcommitted() {
    let mut start = start(VersionPartitioning::Whole, Distribution::Single, 1, 1 << 40);
    start.workflow.steps[0].cores = 2;
    let mut sim = Simulation::new(&start, estimates(vec![]));
    sim.perform(&fetch(0, &[0], 0)).unwrap();
    sim.next(None).unwrap();
    assert!(
        sim.perform(&run(&[0], 1))
            .unwrap_err()
            .to_string()
            .contains("more than it has")
    );
    start.cluster.nodes[0].cores = 2;
    start.cluster.hosts[0].cores = 1;
    let mut sim = Simulation::new(&start, estimates(vec![]));
    sim.perform(&fetch(0, &[0], 0)).unwrap();
    sim.next(None).unwrap();
    assert!(
        sim.perform(&run(&[0], 1))
            .unwrap_err()
            .to_string()
            .contains("host 0")
    );
}

#[test]
fn reuse_brings_what_is_still_held() {
    let mut start = start(VersionPartitioning::Whole, Distribution::Single, 1, 1 << 40);
    let mut info = source_parts().remove(0);
    info.key = StoreKey("old".into());
    // The earlier run counted datasets otherwise.
    let output = tarn_types::event::Output {
        data: DataId(9),
        version: 4,
        parts: vec![(info, vec![tier_ref(2)])],
    };
    start.prior = vec![PriorInstance {
        identity: Hash(7),
        outputs: vec![output],
        held: vec![(0, 0, Place::Node(tier_ref(1)))],
    }];
    let mut sim = Simulation::new(&start, estimates(vec![]));
    sim.perform(&act(Do::Reuse {
        instance: first(),
        prior: 0,
    }))
    .unwrap();
    let part = PartRef {
        data: DataId(1),
        version: 1,
        origin: 0,
        seq: 0,
    };
    assert!(
        sim.replicas()
            .any(|r| r == (part, &Place::Node(tier_ref(1))))
    );
    assert_eq!(sim.used(tier_ref(1)), 50 * MB);
}

/// Drives a fixed schedule and returns the events.
fn story(seed: u64) -> Vec<String> {
    let start = start(
        VersionPartitioning::Entries,
        Distribution::Single,
        1,
        1 << 40,
    );
    let faults = FaultPlan {
        seed,
        transfer_failure_probability: 0.4,
        step_failure_probability: 0.4,
        ..FaultPlan::default()
    };
    let mut sim = Simulation::new(&start, estimates(even_entries(3, 999))).with_faults(faults);
    let mut events = Vec::new();
    let mut id = 0;
    for node in 0..3 {
        for seq in 0..2 {
            loop {
                sim.perform(&fetch(id, &[seq], node)).unwrap();
                id += 1;
                let (now, event) = sim.next(None).unwrap();
                events.push(format!("{now} {event:?}"));
                if matches!(event, Event::TransferDone { .. }) {
                    break;
                }
            }
        }
    }
    for attempt in 1..10 {
        sim.perform(&run(&[1], attempt)).unwrap();
        let (now, event) = sim.next(None).unwrap();
        events.push(format!("{now} {event:?}"));
    }
    events
}

#[test]
fn a_seed_decides_everything() {
    assert_eq!(story(1), story(1));
    assert_ne!(story(1), story(2));
    let both = story(3);
    let count = |what: &str| both.iter().filter(|e| e.contains(what)).count();
    assert_eq!(count("TransferDone"), 6);
    assert!(
        count("TransferFailed") > 0 && count("Committed") > 0 && count("fault plan wants") > 1,
        "{both:?}"
    );
}

/// The next event, by kind.
fn next_event(sim: &mut Simulation) -> (u64, String) {
    let (now, event) = sim.next(None).unwrap();
    let what = match event {
        Event::TransferFailed { failure, .. } => format!("failed {:?}", failure.kind),
        Event::Ended {
            ended: AttemptOutcome::Failed { failure, .. },
            ..
        } => format!("ended {:?}", failure.kind),
        Event::NodeLost { node, .. } => format!("lost {node}"),
        Event::NodeBack {
            node, ref whole, ..
        } => format!("back {node} with {}", whole.len()),
        event => format!("{event:?}"),
    };
    (now, what)
}

#[test]
fn a_lost_node_ends_what_is_under_way_with_it_and_keeps_what_it_is_told_to() {
    for (keeps, left) in [(Keeps::All, 1), (Keeps::Nothing, 0)] {
        let start = start(
            VersionPartitioning::Whole,
            Distribution::Broadcast,
            2,
            1 << 40,
        );
        let mut sim = Simulation::new(&start, estimates(even_entries(1, 9)));
        for node in 0..2 {
            sim.perform(&fetch(node, &[0], node as u32)).unwrap();
            sim.next(None).unwrap();
        }
        let began = sim.now();
        let lasts = Some(10 * SECOND);
        sim.lose_node(began + SECOND / 10, NodeId(1), Outage { lasts, keeps });
        sim.perform(&run(&[0, 1], 1)).unwrap();
        sim.perform(&fetch(7, &[1], 1)).unwrap();
        let lost = began + SECOND / 10;
        assert_eq!(next_event(&mut sim), (lost, "lost n1".into()));
        assert_eq!(next_event(&mut sim), (lost, "failed NodeLost".into()));
        assert_eq!(sim.used(tier_ref(1)), 0);
        // A transfer that is ordered there fails at once; the attempt on both nodes ends soon after.
        sim.perform(&fetch(8, &[1], 1)).unwrap();
        assert_eq!(next_event(&mut sim), (lost, "failed NodeLost".into()));
        let (now, what) = next_event(&mut sim);
        assert_eq!(what, "ended NodeLost");
        assert!(
            (lost..lost + 3 * SECOND).contains(&now),
            "before the step would have ended"
        );
        sim.perform(&run(&[1], 2)).unwrap();
        assert_eq!(next_event(&mut sim), (now, "ended NodeLost".into()));
        let back = lost + 10 * SECOND;
        assert_eq!(next_event(&mut sim), (back, format!("back n1 with {left}")));
        assert_eq!(sim.used(tier_ref(1)), 50 * MB * left);
        let here = sim
            .replicas()
            .filter(|(_, at)| **at == Place::Node(tier_ref(1)));
        assert_eq!(here.count() as u64, left);
        let none = sim.next(None);
        assert!(none.is_err(), "all is told: {none:?}");
    }
}

#[test]
fn slow_links_slow_what_moves_and_only_as_long_as_they_are() {
    let start = start(VersionPartitioning::Whole, Distribution::Single, 1, 1 << 40);
    let mut sim = Simulation::new(&start, estimates(vec![]));
    // 10 ms of latency, 50 MB at 100 MB/s: half of it at a tenth of the rate.
    sim.slow_links(260_000_000, 260_000_000 + 10 * SECOND, 10);
    sim.perform(&fetch(0, &[0], 0)).unwrap();
    assert_eq!(sim.next(None).unwrap().0, 260_000_000 + 5 * SECOND / 2);
    sim.next(Some(20 * SECOND)).unwrap();
    sim.perform(&fetch(1, &[1], 0)).unwrap();
    assert_eq!(sim.next(None).unwrap().0, 20 * SECOND + 510_000_000);
}

#[test]
fn a_step_that_hangs_ends_with_its_time_and_not_when_faults_are_over() {
    let mut start = start(VersionPartitioning::Whole, Distribution::Single, 1, 1 << 40);
    start.workflow.steps[0].time = Some(20 * SECOND);
    let faults = FaultPlan {
        hang_probability: 1.0,
        until: Some(SECOND),
        ..FaultPlan::default()
    };
    let mut sim = Simulation::new(&start, estimates(even_entries(1, 9))).with_faults(faults);
    sim.perform(&fetch(0, &[0], 0)).unwrap();
    sim.next(None).unwrap();
    let began = sim.now();
    sim.perform(&run(&[0], 1)).unwrap();
    assert_eq!(
        next_event(&mut sim),
        (began + 20 * SECOND, "ended TimedOut".into())
    );
    sim.perform(&run(&[0], 2)).unwrap();
    let (now, what) = next_event(&mut sim);
    assert!(
        now == began + 23 * SECOND && what.contains("Committed"),
        "{now} {what}"
    );
}
