//! Sockets of one real processor each: the processors of steps and threads.

use crate::Test;
use crate::bench::{Bench, Machine, committed, data, step, tier_ref, tree, used};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tarn_node::Namespaces;
use tarn_types::cluster::Socket;
use tarn_types::layout::TierDir;
use tarn_types::part::Place;
use tarn_types::units::SECOND;
use tarn_types::workflow::{Dataset, Distribution, Role};

pub(crate) const TESTS: &[Test] = &[
    (
        "sockets::a_step_runs_where_its_tier_is",
        a_step_runs_where_its_tier_is,
    ),
    (
        "sockets::movement_runs_near_its_tier",
        movement_runs_near_its_tier,
    ),
];

/// The processors on which a process or thread may run, as the kernel writes them.
fn allowed(process: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let list = status
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}

/// Two processors of this process, or the test is skipped.
fn two() -> Option<[u32; 2]> {
    let list = allowed("self").expect("a status");
    let range = |r: &str| {
        let (first, last) = r.split_once('-').unwrap_or((r, r));
        let number = |n: &str| n.parse::<u32>().expect("a number");
        number(first)..=number(last)
    };
    let cpus: Vec<u32> = list.split(',').flat_map(range).collect();
    if cpus.len() < 2 {
        eprintln!("skipped: it takes two processors, and there is {list}");
    }
    Some([*cpus.first()?, *cpus.get(1)?])
}

/// The tier is on the second of two sockets.
fn world(bench: &Bench, cpus: [u32; 2]) -> Machine {
    let mut config = bench.config("ws");
    let socket = |at: usize| Socket {
        number: at as u32,
        cpus: vec![cpus[at]],
        numa: vec![at as u32],
        memory: 0,
        tiers: (at == 1).then(|| "t".to_owned()).into_iter().collect(),
    };
    config.cluster.hosts[0].sockets = vec![socket(0), socket(1)];
    Machine::new(config)
}

fn a_step_runs_where_its_tier_is() {
    let Some(cpus) = two() else { return };
    let print = "grep Cpus_allowed_list /proc/self/status > $TARN_out/cpus";
    for namespaces in [Namespaces::Auto, Namespaces::Off] {
        let uses = vec![used(0, Role::Out, Distribution::Single)];
        let mut bench = Bench::new(vec![data("out")], vec![step(print, uses)]);
        bench.namespaces = namespaces;
        let ran_on = |world: &mut Machine| {
            let outputs = committed(world.run(vec![Vec::new()]));
            let key = &outputs[0].parts[0].0.key;
            let part = TierDir::new(&bench.path("tier"), "ws", "n0").part(key);
            let text = tree(&part)["cpus"].clone();
            text.split_whitespace().last().expect("a list").to_owned()
        };
        assert_eq!(ran_on(&mut world(&bench, cpus)), cpus[1].to_string());
        let free = bench.world();
        assert_eq!(ran_on(&mut { free }), allowed("self").expect("a status"));
    }
}

fn movement_runs_near_its_tier() {
    let Some(cpus) = two() else { return };
    let raw = |bench: &Bench| Some(bench.path("raw"));
    let mut bench = Bench::new(vec![data("raw")], Vec::new());
    bench.write("raw/file", "content");
    bench.workflow.data[0] = Dataset {
        source: raw(&bench),
        ..data("raw")
    };
    bench.external_latency = SECOND / 2;
    let movers = || -> BTreeSet<String> {
        let tasks = std::fs::read_dir("/proc/self/task")
            .expect("threads")
            .flatten();
        let names = tasks.filter_map(|t| t.file_name().into_string().ok());
        let moves = |t: &String| {
            let name = std::fs::read_to_string(format!("/proc/self/task/{t}/comm"));
            name.is_ok_and(|n| n.starts_with("tarn-move"))
        };
        names
            .filter(moves)
            .filter_map(|t| allowed(&format!("self/task/{t}")))
            .collect()
    };
    let mut world = world(&bench, cpus);
    let infos = world.list(0).expect("a source");
    let everywhere = BTreeSet::from([allowed("self").expect("a status")]);
    assert_eq!(movers(), everywhere);
    world.order(0, 0, &infos, &Place::Source, &Place::Node(tier_ref(0)));
    let begun = Instant::now();
    while !movers().contains(&cpus[1].to_string()) {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", movers());
        std::thread::sleep(Duration::from_millis(5));
    }
    let moved = world.next();
    assert!(
        format!("{moved:?}").starts_with("TransferDone"),
        "{moved:?}"
    );
    assert_eq!(movers(), everywhere, "and back");
}
