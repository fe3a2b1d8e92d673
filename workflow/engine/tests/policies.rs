//! `data` and its baseline `stage-through` with small workflows: exact bytes, exact runs.

mod common;
use common::*;
use tarn_types::action::{Do, Outcome};
use tarn_types::part::TransferKind;
use tarn_types::policy::Policy;
use tarn_types::reason::Reason;
use tarn_types::units::SECOND;

const PIPELINE: &str = r#"
name = "pipe"
external = "/ext"
[data.raw]
source = "/src"
[data.mid]
[data.out]
dest = "/out"
[[step]]
name = "a"
run = "a"
in = "raw"
out = "mid"
[[step]]
name = "b"
run = "b"
in = "mid"
out = "out"
"#;

fn pipeline(policy: Policy) -> SimulatedRun {
    let s = start(workflow(PIPELINE), cluster(2, 1, &[1000 * MB]), policy);
    let mut e = estimates(20 * MB);
    e.sources.insert(data(0), Ok(source(None, 100 * MB)));
    simulate(&s, e)
}

#[test]
fn data_policy_keeps_the_edge_local() {
    let p = pipeline(policy("data"));
    assert_eq!(p.outcome, Outcome::Done);
    assert_eq!(p.moved(TransferKind::ExternalIn), 100 * MB);
    assert_eq!(p.moved(TransferKind::ExternalOut), 20 * MB);
    assert_eq!(p.moved(TransferKind::Peer), 0);
    assert_eq!(p.runs().len(), 2);
    assert_eq!(
        p.runs()[0].nodes,
        p.runs()[1].nodes,
        "the second step goes to its data"
    );
    assert_eq!(
        (p.sim.used(fast(0)), p.sim.used(fast(1))),
        (0, 0),
        "nothing is left behind"
    );
}

#[test]
fn stage_through_sends_every_edge_out_and_back() {
    let p = pipeline(policy("stage-through"));
    assert_eq!(p.outcome, Outcome::Done);
    assert_eq!(p.moved(TransferKind::ExternalIn), 120 * MB);
    assert_eq!(p.moved(TransferKind::ExternalOut), 40 * MB);
    assert!(p.end() > pipeline(policy("data")).end());
    assert_eq!((p.sim.used(fast(0)), p.sim.used(fast(1))), (0, 0));
}

#[test]
fn foreach_spreads_and_reads_each_entry_once() {
    let text = r#"
name = "fan"
[data.raw]
source = "/src"
[data.proj]
[data.sum]
dest = "/sum"
[[step]]
name = "project"
run = "p"
foreach = "raw/*"
in = "raw/{item}"
out = "proj"
[[step]]
name = "add"
run = "a"
in = "proj"
out = "sum"
"#;
    let s = start(workflow(text), cluster(4, 1, &[1000 * MB]), policy("data"));
    let mut e = estimates(MB);
    e.sources.insert(data(0), Ok(source(Some(16), 10 * MB)));
    let p = simulate(&s, e);
    assert_eq!(p.outcome, Outcome::Done);
    assert_eq!(p.runs_of(0), 16);
    assert_eq!(p.moved(TransferKind::ExternalIn), 160 * MB);
    assert_eq!(p.moved(TransferKind::ExternalOut), MB);
    let nodes: std::collections::BTreeSet<_> = p
        .runs()
        .iter()
        .filter(|r| r.instance.step.0 == 0)
        .map(|r| r.nodes[0].node)
        .collect();
    assert_eq!(nodes.len(), 4, "all nodes work");
    assert!(
        p.moved(TransferKind::Peer) <= 12 * MB,
        "the gather fetches only what lies elsewhere"
    );
}

#[test]
fn a_workflow_without_edges_runs_side_by_side() {
    let steps: String = (0..6)
        .map(|i| format!("[[step]]\nname = \"s{i}\"\nrun = \"x\"\n"))
        .collect();
    let s = start(
        workflow(&format!("name = \"w\"\n{steps}")),
        cluster(3, 1, &[MB]),
        policy("data"),
    );
    let p = simulate(&s, estimates(1));
    assert_eq!(p.outcome, Outcome::Done);
    assert_eq!(
        p.end(),
        2 * tarn_types::units::SECOND,
        "six steps of a second on three cores"
    );
}

#[test]
fn after_orders_steps_without_data() {
    let text = "name = \"w\"\n[[step]]\nname = \"second\"\nrun = \"x\"\nafter = [\"first\"]\n[[step]]\nname = \"first\"\nrun = \"x\"\n";
    let s = start(workflow(text), cluster(2, 1, &[MB]), policy("data"));
    let p = simulate(&s, estimates(1));
    let order: Vec<_> = p.runs().iter().map(|r| r.instance.step.0).collect();
    assert_eq!(order, [1, 0]);
    assert_eq!(p.end(), 2 * tarn_types::units::SECOND);
}

#[test]
fn the_hosts_cap_keeps_the_sum_honest() {
    let text =
        "name = \"w\"\n[[step]]\nname = \"s\"\nrun = \"x\"\nforeach = [\"a\",\"b\",\"c\",\"d\"]\n";
    let mut c = cluster(4, 1, &[MB]);
    c.hosts[0].cores = 2;
    let p = simulate(&start(workflow(text), c, policy("data")), estimates(1));
    assert_eq!(
        p.end(),
        2 * tarn_types::units::SECOND,
        "four instances, two real cores"
    );
}

#[test]
fn scatter_sends_each_rank_to_its_node_and_the_rest_everywhere() {
    let text = r#"
name = "foam"
[data.case]
scatter = "processor{rank}"
[data.result]
dest = "/out"
[[step]]
name = "decompose"
run = "d"
out = "case"
[[step]]
name = "solve"
nodes = 2
tasks = 4
run = "s"
inout = "case:scatter"
[[step]]
name = "gather"
run = "g"
in = "case:gather"
out = "result"
"#;
    let s = start(workflow(text), cluster(2, 4, &[1000 * MB]), policy("data"));
    let mut e = estimates(MB);
    e.output = Box::new(|i, d| {
        if d.0 == 1 {
            return vec![tarn_simulator::SimEntry::file("r", MB)];
        }
        let _ = i;
        let mut all: Vec<_> = (0..4)
            .map(|r| tarn_simulator::SimEntry::file(format!("processor{r}"), 10 * MB))
            .collect();
        all.push(tarn_simulator::SimEntry::file("system", MB));
        all
    });
    let p = simulate(&s, e);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    let solve = p
        .runs()
        .into_iter()
        .find(|r| r.instance.step.0 == 1)
        .expect("it ran");
    assert_eq!(solve.nodes.len(), 2);
    assert_eq!(
        solve.views[0].iter().map(Vec::len).collect::<Vec<_>>(),
        [3, 3],
        "two ranks and the rest on each"
    );
    assert!(p.actions().any(|a| matches!(
        (&a.what, &a.why),
        (Do::Transfer(_), Reason::FetchPeer { .. })
    )));
}

#[test]
fn copies_are_made_on_other_nodes() {
    let text = "name = \"w\"\n[data.d]\ncopies = 2\nkeep = \"workflow\"\n[data.e]\ndest = \"/e\"\n[[step]]\nname = \"a\"\nrun = \"x\"\nout = \"d\"\n[[step]]\nname = \"b\"\nrun = \"x\"\nin = \"d\"\nout = \"e\"\n";
    let p = simulate(
        &start(workflow(text), cluster(2, 1, &[100 * MB]), policy("data")),
        estimates(MB),
    );
    assert_eq!(p.outcome, Outcome::Done);
    assert_eq!(p.moved(TransferKind::Peer), MB);
    assert!(
        p.reasons()
            .any(|r| matches!(r, Reason::Copies { wanted: 2 }))
    );
}

#[test]
fn what_can_never_fit_is_refused_before_anything_moves() {
    let s = start(
        workflow(PIPELINE),
        cluster(2, 1, &[50 * MB]),
        policy("data"),
    );
    let mut e = estimates(MB);
    e.sources.insert(data(0), Ok(source(None, 100 * MB)));
    let p = simulate(&s, e);
    assert_eq!(p.outcome, Outcome::Refused);
    assert!(
        p.failure().contains("no tier holds more"),
        "{}",
        p.failure()
    );
    assert_eq!(p.moved(TransferKind::ExternalIn), 0);
    assert!(p.runs().is_empty());
}

#[test]
fn nothing_moves_before_all_sources_are_listed_and_fit() {
    let text = "name = \"w\"\n[data.a]\nsource = \"/a\"\n[data.b]\nsource = \"/b\"\n[[step]]\nname = \"s\"\nrun = \"x\"\nin = [\"a\"]\n[[step]]\nname = \"t\"\nrun = \"x\"\nin = [\"b\"]\n";
    let s = start(workflow(text), cluster(1, 1, &[100 * MB]), policy("data"));
    let (mut hand, _) = Hand::begin(&s);
    assert_eq!(hand.listed(0, source(None, 20 * MB)), []);
    let last = hand.listed(1, source(None, 200 * MB));
    assert!(transfers_in(&last).is_empty());
    assert_eq!(hand.engine.outcome(), Some(Outcome::Refused));
    let (mut hand, _) = Hand::begin(&s);
    hand.listed(0, source(None, 20 * MB));
    assert_eq!(
        transfers_in(&hand.listed(1, source(None, 30 * MB))).len(),
        2
    );
}

#[test]
fn an_input_that_is_on_its_way_to_a_node_is_not_fetched_for_another() {
    let text = "name = \"w\"\n[data.a]\nsource = \"/a\"\n[[step]]\nname = \"s\"\nforeach = [\"1\", \"2\", \"3\", \"4\"]\nrun = \"x\"\nin = [\"a\"]\n";
    let s = start(
        workflow(text),
        cluster(2, 8, &[100_000 * MB]),
        policy("data"),
    );
    let mut e = estimates(0);
    e.sources.insert(data(0), Ok(source(None, 10_000 * MB)));
    let p = simulate(&s, e);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    assert_eq!(p.moved(TransferKind::ExternalIn), 10_000 * MB);
}

#[test]
fn the_estimate_reads_from_where_the_transfer_will() {
    // Half of the second step's input is on the first node; outside, a copy of it comes four times sooner.
    let text = "name = \"w\"\n[data.a]\nsource = \"/a\"\n[[step]]\nname = \"s\"\nrun = \"x\"\nin = [\"a\"]\n[[step]]\nname = \"t\"\ncores = 2\nrun = \"x\"\nin = [\"a\"]\nafter = [\"s\"]\n";
    let mut c = cluster(2, 1, &[1000 * MB]);
    c.nodes[1].cores = 2;
    (c.external.read, c.peer.read) = (400 * MB, 100 * MB);
    let s = start(workflow(text), c, policy("data"));
    let mut e = estimates(0);
    e.sources.insert(data(0), Ok(source(None, 400 * MB)));
    let p = simulate(&s, e);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    let placed: Vec<_> = p
        .reasons()
        .filter_map(|r| match r {
            Reason::EarliestEnd { node, data_in, .. } => Some((node.0, *data_in)),
            _ => None,
        })
        .collect();
    assert_eq!(placed, [(0, SECOND), (1, SECOND)]);
    assert_eq!(p.moved(TransferKind::ExternalIn), 800 * MB);
}

#[test]
fn observed_run_times_of_one_large_step_change_the_order() {
    // By their limits, the first step is the longer one; it turns out to be short.
    let items: Vec<_> = (0..64).map(|i| format!("\"{i}\"")).collect();
    let step = |name: &str, time: &str| {
        format!(
            "[[step]]\nname = \"{name}\"\nforeach = [{}]\ntime = \"{time}\"\nrun = \"{name}\"\n",
            items.join(",")
        )
    };
    let text = format!(
        "name = \"w\"\n{}{}",
        step("short", "20s"),
        step("long", "10s")
    );
    let s = start(workflow(&text), cluster(1, 1, &[MB]), policy("data"));
    let p = simulate(&s, estimates(0));
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    let order: Vec<u32> = p.runs().iter().map(|r| r.instance.step.0).collect();
    let first_long = order.iter().position(|step| *step == 1).expect("it ran");
    assert!(first_long < 16, "{order:?}");
}

#[test]
fn what_a_busy_node_will_need_comes_just_before_it_is_free() {
    // The first keeps the only core for 100 s, half its limit; the input of the second takes 1 s to read.
    let text = "name = \"w\"\n[data.a]\nsource = \"/a\"\n[[step]]\nname = \"long\"\ntime = \"200s\"\nrun = \"x\"\n[[step]]\nname = \"next\"\ntime = \"2s\"\nrun = \"x\"\nin = \"a\"\n";
    // If it takes longer than was thought, that is waited for without going round.
    for long in [100, 160] {
        let s = start(workflow(text), cluster(1, 1, &[1000 * MB]), policy("data"));
        let mut e = estimates(0);
        e.sources.insert(data(0), Ok(source(None, 100 * MB)));
        e.run_time = Box::new(move |id| [long, 1][id.step.at()] * SECOND);
        let p = simulate(&s, e);
        assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
        let orders_it = |r: &&tarn_ports::Record| {
            let mut actions = r.actions.iter();
            actions.any(|a| matches!(a.what, Do::Transfer(_)))
        };
        let ordered = p.records.iter().find(orders_it).expect("it is read");
        assert_eq!(
            ordered.now,
            97 * SECOND,
            "twice that second and one more before"
        );
        assert_eq!(p.end(), (long + 1) * SECOND);
        assert!(p.records.len() < 10, "{}", p.trace());
    }
}

/// Two nodes of machines with these powers and temperatures.
fn drawn(draws: [(u64, i32); 2]) -> tarn_types::cluster::Cluster {
    use tarn_types::energy::{Draw, Power, Sensor, Source, Warmth};
    let mut c = cluster(2, 1, &[100 * MB]);
    c.hosts[0].cores = 1;
    c.hosts.push(c.hosts[0].clone());
    c.nodes[1].host = 1;
    for (host, (watts, celsius)) in c.hosts.iter_mut().zip(draws) {
        host.draw = Draw {
            power: Some(Power {
                milliwatts: watts * 1000,
                source: Source::Rapl,
            }),
            warmth: Some(Warmth {
                millicelsius: celsius * 1000,
                sensor: Sensor::Inlet,
            }),
        };
    }
    c
}

#[test]
fn of_equal_nodes_the_thriftier_goes_first_and_then_the_cooler() {
    let text = "name = \"w\"\n[[step]]\nname = \"s\"\nrun = \"x\"\n";
    let first = |draws, by: &str| {
        let p = simulate(
            &start(workflow(text), drawn(draws), policy(by)),
            estimates(1),
        );
        assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
        let thriftier = p.reasons().any(|r| {
            matches!(
                r,
                Reason::EarliestEnd {
                    thriftier: true,
                    ..
                }
            )
        });
        (p.runs()[0].nodes[0].node.0, thriftier)
    };
    for by in ["data", "energy"] {
        assert_eq!(first([(300, 20), (150, 40)], by), (1, true), "{by}");
        assert_eq!(first([(150, 40), (150, 20)], by), (1, true), "{by}");
        assert_eq!(first([(150, 20), (150, 20)], by), (0, false), "{by}");
    }
    for by in ["easy", "heft+cache", "stage-through"] {
        assert_eq!(first([(300, 20), (150, 40)], by).0, 1, "{by}");
    }
}

#[test]
fn data_decides_before_what_a_node_draws() {
    let text = "name = \"w\"\n[data.d]\n[data.e]\ndest = \"/e\"\n[[step]]\nname = \"a\"\nrun = \"x\"\nout = \"d\"\n[[step]]\nname = \"b\"\nrun = \"x\"\nforeach = [\"1\", \"2\"]\nin = \"d\"\nout = \"e\"\n";
    let c = drawn([(150, 20), (300, 40)]);
    let p = simulate(
        &start(workflow(text), c, policy("data")),
        estimates(50 * MB),
    );
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    let at: Vec<u32> = p.runs().iter().map(|r| r.nodes[0].node.0).collect();
    assert_eq!(at[..2], [0, 0], "where its input lies: {at:?}");
}

/// An ensemble and its analysis: the input of each instance of the second step is on one of the nodes, as much on each.
/// The next free node takes one whose data it has, also if another comes before it.
#[test]
fn of_instances_that_are_alike_a_node_takes_those_whose_data_it_has() {
    let text = r#"
name = "ensemble"
[data.fields]
[data.reduced]
dest = "/out"
[[step]]
name = "simulate"
foreach = ["0", "1", "2", "3", "4", "5", "6", "7"]
run = "s"
out = ["fields"]
[[step]]
name = "reduce"
foreach = "fields/*"
max = 8
run = "r"
in = ["fields/{item}"]
out = ["reduced"]
"#;
    let s = start(workflow(text), cluster(2, 1, &[1000 * MB]), policy("data"));
    let mut e = estimates(MB);
    e.output = Box::new(|id, _| {
        let (name, bytes) = match id.step.0 {
            0 => (format!("f{}", id.index), 50 * MB),
            _ => (format!("r{}", id.index), MB),
        };
        vec![tarn_simulator::SimEntry::file(name, bytes)]
    });
    // The second of two is always faster, so that the nodes come free in another order than the instances wait in.
    e.run_time = Box::new(|id| SECOND - SECOND / 10 * u64::from(id.step.0 * id.index % 2));
    let p = simulate(&s, e);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    assert_eq!(p.runs_of(1), 8);
    assert_eq!(p.moved(TransferKind::Peer), 0, "{}", p.trace());
    // Nobody waited for that: four after another on each node.
    assert!(p.end() < 9 * SECOND, "{}", p.trace());
}
