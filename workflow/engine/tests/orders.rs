//! Every policy in a run: the same outputs in any order, the order of begins, the transfers, and the reasons.

mod common;
use common::*;
use std::collections::BTreeSet;
use tarn_simulator::Simulation;
use tarn_types::action::{Do, Outcome};
use tarn_types::event::Event;
use tarn_types::history::History;
use tarn_types::id::{InstanceId, NodeId};
use tarn_types::part::{Place, TransferKind};
use tarn_types::reason::Reason;
use tarn_types::units::SECOND;

/// Every order, with each handling of data that it takes, and a setting.
const ALL: [&str; 18] = [
    "fcfs",
    "fcfs+cache",
    "greedy",
    "greedy+cache",
    "greedy:max-wait=1s",
    "easy",
    "easy+cache",
    "easy+keep",
    "conservative",
    "sjf-easy",
    "sjf-easy+cache",
    "heft+cache",
    "same-nodes",
    "same-nodes+cache",
    "stage-through",
    "data",
    "data:bound=1m,lead=1h",
    "energy",
];

/// Elements, a step on two nodes, an `inout`, a gather.
const MIXED: &str = r#"
name = "mixed"
external = "/ext"
[data.raw]
source = "/src"
[data.parts]
[data.wide]
[data.sum]
dest = "/sum"
[[step]]
name = "part"
foreach = ["a", "b", "c", "d", "e"]
run = "p"
in = "raw"
out = "parts"
[[step]]
name = "wide"
nodes = 2
cores = 2
run = "w"
in = "raw:broadcast"
out = "wide:single"
[[step]]
name = "change"
run = "c"
in = "parts"
inout = "wide"
[[step]]
name = "sum"
run = "s"
in = ["wide", "parts"]
out = "sum"
"#;

fn history(p: &SimulatedRun) -> History {
    let mut h = History::new();
    for r in &p.records {
        h.apply(r.now, &r.event, &r.actions);
    }
    h
}

/// Instances with the time they got their nodes, their first node and why, in that order.
fn placed(p: &SimulatedRun) -> Vec<(InstanceId, u64, NodeId, Reason)> {
    let mut all = Vec::new();
    for r in &p.records {
        for a in &r.actions {
            if let Do::Assign {
                instance, nodes, ..
            } = &a.what
            {
                all.push((*instance, r.now, nodes[0].node, a.why.clone()));
            }
        }
    }
    all
}

fn steps_placed(p: &SimulatedRun) -> Vec<u32> {
    placed(p).iter().map(|(id, ..)| id.step.0).collect()
}

/// All reasons, each as its sentence.
fn explanations(p: &SimulatedRun) -> String {
    let h = history(p);
    p.reasons().map(|r| h.explain(r) + "\n").collect()
}

#[test]
fn every_policy_makes_the_same_outputs() {
    let mut expected = None;
    for name in ALL {
        let s = start(
            workflow(MIXED),
            cluster(2, 2, &[500 * MB, 2000 * MB]),
            policy(name),
        );
        let mut e = estimates(10 * MB);
        e.sources.insert(data(0), Ok(source(None, 50 * MB)));
        let p = simulate(&s, e);
        assert_eq!(p.outcome, Outcome::Done, "{name}: {}", p.failure());
        let ran: BTreeSet<_> = p.runs().iter().map(|r| r.instance).collect();
        assert_eq!((ran.len(), p.runs().len()), (8, 8), "{name}");
        let h = history(&p);
        let delivered: BTreeSet<_> = p
            .actions()
            .filter_map(|a| match &a.what {
                Do::Transfer(t) if matches!(t.to, Place::External(_)) => {
                    let parts: Vec<_> = t.parts.iter().map(|m| h.parts.get(&m.part)).collect();
                    Some(format!("{} {:?} {parts:?}", t.data.0, t.to))
                }
                _ => None,
            })
            .collect();
        assert_eq!(delivered.len(), 1, "{name}");
        let made = (ran, delivered);
        assert_eq!(
            expected.get_or_insert_with(|| made.clone()),
            &made,
            "{name}"
        );
        assert_eq!((p.sim.used(fast(0)), p.sim.used(fast(1))), (0, 0), "{name}");
    }
}

const CHAIN: &str = r#"
name = "chain"
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
in = ["mid", "raw"]
out = "out"
"#;

/// 100 MB come in, both steps read them, the first makes 20 MB for the second, which makes 20 MB.
fn chain(name: &str, tier: u64) -> SimulatedRun {
    let s = start(workflow(CHAIN), cluster(2, 1, &[tier]), policy(name));
    let mut e = estimates(20 * MB);
    e.sources.insert(data(0), Ok(source(None, 100 * MB)));
    let p = simulate(&s, e);
    assert_eq!(p.outcome, Outcome::Done, "{name}: {}", p.failure());
    p
}

fn moved(p: &SimulatedRun) -> [u64; 3] {
    use TransferKind::{ExternalIn, ExternalOut, Peer};
    [ExternalIn, ExternalOut, Peer].map(|kind| p.moved(kind) / MB)
}

#[test]
fn cache_writes_all_of_it_outside_and_reads_what_it_finds() {
    for order in ["fcfs", "greedy", "easy", "sjf-easy", "heft", "same-nodes"] {
        let through = chain(&format!("{order}+stage-through"), 1000 * MB);
        assert_eq!(moved(&through), [220, 40, 0], "{order}");
        let cached = chain(&format!("{order}+cache"), 1000 * MB);
        assert_eq!(moved(&cached), [100, 40, 0], "{order}");
        let nodes: Vec<_> = cached.runs().iter().map(|r| r.nodes[0]).collect();
        assert_eq!(nodes, [fast(0); 2], "nodes with its data come first");
        assert!(cached.end() < through.end(), "{order}");
    }
    assert_eq!(moved(&chain("data", 1000 * MB)), [100, 20, 0]);
}

#[test]
fn what_a_step_made_is_outside_before_another_reads_it() {
    for name in ["heft+cache", "stage-through", "data"] {
        let p = chain(name, 1000 * MB);
        let out = p.actions().find_map(|a| match &a.what {
            Do::Transfer(t) if t.to == Place::Drained => Some(t.id),
            _ => None,
        });
        let written = p
            .records
            .iter()
            .position(|r| matches!(&r.event, Event::TransferDone { id, .. } if Some(*id) == out));
        let second = p.records.iter().position(|r| {
            let mut assigned = r.actions.iter().filter_map(|a| match &a.what {
                Do::Assign { instance, .. } => Some(instance.step.0),
                _ => None,
            });
            assigned.any(|step| step == 1)
        });
        match name {
            "data" => assert_eq!(written, None),
            _ => assert!(
                written.is_some() && written <= second,
                "{name}: {written:?} {second:?}"
            ),
        }
    }
    let text = explanations(&chain("heft+cache", 1000 * MB));
    assert!(
        text.contains("keeps it here while there is space"),
        "{text}"
    );
}

#[test]
fn what_cache_keeps_goes_when_space_is_needed() {
    // The second step makes 80 MB where its predecessor's input and output leave 30 MB.
    let text = "name = \"w\"\nexternal = \"/ext\"\n[data.raw]\nsource = \"/src\"\n[data.mid]\nsize = \"20 MB\"\n[data.big]\nsize = \"80 MB\"\ndest = \"/big\"\n[data.end]\ndest = \"/end\"\n\
                [[step]]\nname = \"a\"\nrun = \"x\"\nin = \"raw\"\nout = \"mid\"\n[[step]]\nname = \"b\"\nrun = \"x\"\nout = \"big\"\nafter = [\"a\"]\n\
                [[step]]\nname = \"c\"\nrun = \"x\"\nin = \"mid\"\nafter = [\"b\"]\n[[step]]\nname = \"d\"\nrun = \"x\"\nin = [\"raw\", \"mid\"]\nout = \"end\"\nafter = [\"c\"]\n";
    let s = start(
        workflow(text),
        cluster(1, 1, &[150 * MB]),
        policy("easy+cache"),
    );
    let mut e = estimates(0);
    e.sources.insert(data(0), Ok(source(None, 100 * MB)));
    e.output = Box::new(|_, d| {
        let bytes = [0, 20 * MB, 80 * MB, MB][d.at()];
        vec![tarn_simulator::SimEntry::file("out", bytes)]
    });
    e.run_time = Box::new(|id| [1, 1, 10, 1][id.step.at()] * SECOND);
    let p = simulate(&s, e);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    let for_space = |r: &&Reason| matches!(r, Reason::EvictForSpace { .. });
    assert_eq!(p.reasons().filter(for_space).count(), 1, "{}", p.trace());
    let drained = |r: &Reason| matches!(r, Reason::DrainForSpace { .. });
    assert!(!p.reasons().any(drained), "it was outside already");
    assert_eq!(
        moved(&p),
        [200, 101, 0],
        "what went is read again, what stayed is not"
    );
    assert!(p.sim.peak(fast(0)) <= 150 * MB);
}

/// Steps of nothing but cores and time limits, on one node of four cores; each takes its declared resources.
fn cores(name: &str, steps: &[(u32, u64)]) -> SimulatedRun {
    fourths("cores", name, steps)
}

/// Steps that take fourths of a node's cores, memory or GPUs, and so many seconds.
fn fourths(of: &str, name: &str, steps: &[(u32, u64)]) -> SimulatedRun {
    let mut text = String::from("name = \"w\"\n");
    for (i, (n, seconds)) in steps.iter().enumerate() {
        let takes = match of {
            "memory" => format!("memory = \"{} GiB\"", n * 256),
            _ => format!("{of} = {n}"),
        };
        text +=
            &format!("[[step]]\nname = \"s{i}\"\n{takes}\ntime = \"{seconds}s\"\nrun = \"x\"\n");
    }
    let mut machine = cluster(1, 4, &[MB]);
    machine.nodes[0].gpus = 4;
    let s = start(workflow(&text), machine, policy(name));
    let mut e = estimates(0);
    let times: Vec<u64> = steps.iter().map(|(_, seconds)| *seconds).collect();
    e.run_time = Box::new(move |id| times[id.step.at()] * SECOND);
    let p = simulate_in(&s, Simulation::new(&s, e));
    assert_eq!(p.outcome, Outcome::Done, "{name}: {}", p.failure());
    assert_eq!(p.runs().len(), steps.len(), "{name}");
    p
}

/// When a step got its node, in seconds.
fn begin(p: &SimulatedRun, step: u32) -> u64 {
    let all = placed(p);
    let found = all.iter().find(|(id, ..)| id.step.0 == step);
    found.expect("it was placed").1 / SECOND
}

/// A step of three cores and 20 s; one that needs all; one that fits beside the first and is short, one that is long.
const HEAD: [(u32, u64); 4] = [(3, 20), (4, 10), (1, 60), (1, 10)];

#[test]
fn fcfs_never_overtakes() {
    let p = cores("fcfs", &HEAD);
    assert_eq!(steps_placed(&p), [0, 1, 2, 3]);
    assert_eq!([0, 1, 2, 3].map(|s| begin(&p, s)), [0, 20, 30, 30]);
    let text = explanations(&p);
    assert!(
        text.contains("it is the first in the queue and node0 is free"),
        "{text}"
    );
    assert!(
        text.contains("it would fit, but s1 goes before it in the queue"),
        "{text}"
    );
}

#[test]
fn greedy_takes_whatever_fits() {
    let p = cores("greedy", &HEAD);
    assert_eq!(steps_placed(&p), [0, 2, 3, 1]);
    assert_eq!(begin(&p, 1), 60, "overtaken for as long as others fit");
    assert!(explanations(&p).contains("node0 is the first free node"));
}

#[test]
fn greedy_with_a_max_wait_lets_nobody_overtake_for_ever() {
    // One of one core ends every ten seconds; each time another would fit.
    let mut steps = vec![(3, 10), (4, 10)];
    steps.extend([(1, 10); 6]);
    let (greedy, patient) = (cores("greedy", &steps), cores("greedy:max-wait=5s", &steps));
    assert!(begin(&patient, 1) < begin(&greedy, 1));
    assert_eq!(begin(&patient, 1), 10);
}

#[test]
fn easy_backfills_what_does_not_delay_the_first() {
    for of in ["cores", "memory", "gpus"] {
        let p = fourths(of, "easy", &HEAD);
        assert_eq!(steps_placed(&p), [0, 3, 1, 2], "{of}");
    }
    let p = cores("easy", &HEAD);
    assert_eq!(steps_placed(&p), [0, 3, 1, 2]);
    assert_eq!([1, 2, 3].map(|s| begin(&p, s)), [20, 30, 0]);
    let text = explanations(&p);
    assert!(
        text.contains("no earlier entry of the queue is delayed"),
        "{text}"
    );
    let backfilled = |(id, _, _, why): &(InstanceId, u64, NodeId, Reason)| {
        (id.step.0 == 3) == matches!(why, Reason::Backfill { .. })
    };
    assert!(placed(&p).iter().all(backfilled));
}

#[test]
fn sjf_easy_takes_the_shortest_limit_first() {
    let p = cores("sjf-easy", &[(4, 30), (4, 10), (4, 20)]);
    assert_eq!(steps_placed(&p), [1, 2, 0]);
}

#[test]
fn heft_takes_the_longest_way_first() {
    let p = cores("heft", &[(4, 10), (4, 30), (4, 20)]);
    assert_eq!(steps_placed(&p), [1, 2, 0]);
}

/// A chain of two whose second step is ready while another has taken the node of the first.
fn same_nodes(name: &str) -> SimulatedRun {
    let text = "name = \"w\"\nexternal = \"/ext\"\n[data.mid]\n[data.out]\ndest = \"/out\"\n[[step]]\nname = \"first\"\ntime = \"5s\"\nrun = \"x\"\nout = \"mid\"\n\
                [[step]]\nname = \"other\"\ntime = \"30s\"\nrun = \"x\"\nafter = [\"first\"]\n[[step]]\nname = \"second\"\ntime = \"5s\"\nrun = \"x\"\nin = \"mid\"\nout = \"out\"\n";
    let s = start(workflow(text), cluster(2, 1, &[100 * MB]), policy(name));
    let mut e = estimates(MB);
    e.run_time = Box::new(|id| [5, 30, 5][id.step.at()] * SECOND);
    let p = simulate(&s, e);
    assert_eq!(p.outcome, Outcome::Done, "{name}: {}", p.failure());
    p
}

#[test]
fn same_nodes_waits_for_the_node_of_its_predecessor() {
    for (name, node) in [("easy", 1), ("same-nodes", 0), ("same-nodes+cache", 0)] {
        let p = same_nodes(name);
        let all = placed(&p);
        let second = all.iter().find(|(id, ..)| id.step.0 == 2).expect("it ran");
        assert_eq!(second.2, NodeId(node), "{name}");
        let text = explanations(&p);
        let waited = "node0 is where most of its input was made";
        assert_eq!(text.contains(waited), node == 0, "{name}: {text}");
        assert_eq!(second.1 >= 35 * SECOND, node == 0, "{name}");
    }
}

#[test]
fn energy_decides_as_data_does() {
    assert_eq!(
        chain("energy", 1000 * MB).actions().collect::<Vec<_>>(),
        chain("data", 1000 * MB).actions().collect::<Vec<_>>()
    );
}

#[test]
fn a_step_on_several_nodes_is_not_starved() {
    // It needs both nodes; of the others, one or the other always fits.
    let items: Vec<_> = (0..40).map(|i| format!("\"{i}\"")).collect();
    let text = format!(
        "name = \"w\"\n[[step]]\nname = \"small\"\nforeach = [{}]\ntime = \"2s\"\nrun = \"x\"\n[[step]]\nname = \"wide\"\nnodes = 2\ncores = 2\ntime = \"90s\"\nrun = \"x\"\n",
        items.join(",")
    );
    for (name, most) in [("data", 5), ("heft", 60)] {
        let s = start(workflow(&text), cluster(2, 2, &[MB]), policy(name));
        let mut e = estimates(0);
        // Uneven, so that the two nodes are never free at once by chance.
        e.run_time = Box::new(|id| SECOND + u64::from(id.index % 3) * SECOND / 2);
        let p = simulate(&s, e);
        assert_eq!(p.outcome, Outcome::Done, "{name}: {}", p.failure());
        assert!(begin(&p, 1) <= most, "{name}: {}", begin(&p, 1));
    }
}

#[test]
fn what_no_node_can_run_is_said_under_every_policy() {
    for name in ALL {
        let text = "name = \"w\"\nexternal = \"/ext\"\n[[step]]\nname = \"one\"\nrun = \"x\"\n[[step]]\nname = \"wide\"\nnodes = 3\nrun = \"x\"\nafter = [\"one\"]\n";
        let s = start(workflow(text), cluster(2, 2, &[MB]), policy(name));
        let p = simulate(&s, estimates(0));
        assert_eq!(p.outcome, Outcome::Failed, "{name}");
        assert!(
            p.failure().contains("has no such nodes"),
            "{name}: {}",
            p.failure()
        );
        // Nodes that share a host of too few cores are not such nodes either.
        let text = text.replace("nodes = 3", "nodes = 2\ncores = 2");
        let mut c = cluster(2, 2, &[MB]);
        c.hosts[0].cores = 3;
        let p = simulate(&start(workflow(&text), c, policy(name)), estimates(0));
        assert!(
            p.failure().contains("has no such nodes"),
            "{name}: {}",
            p.failure()
        );
    }
}

#[test]
fn a_node_whose_tiers_are_too_small_is_passed_over() {
    let text = "name = \"w\"\nexternal = \"/ext\"\n[data.big]\nsize = \"80 MB\"\ndest = \"/big\"\n[[step]]\nname = \"a\"\nrun = \"x\"\nout = \"big\"\n";
    for name in ALL {
        let mut c = cluster(2, 1, &[100 * MB]);
        c.nodes[0].tiers[0].capacity = 50 * MB;
        let p = simulate(&start(workflow(text), c, policy(name)), estimates(80 * MB));
        assert_eq!(p.outcome, Outcome::Done, "{name}: {}", p.failure());
        assert_eq!(p.runs()[0].nodes, [fast(1)], "{name}");
    }
}

/// Numbers that look random, the same for a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// The bytes that the step of a random workflow makes, in MB.
fn made_by(step: u64) -> u64 {
    5 + step * 7 % 20
}

/// A workflow of up to ten steps that read the outputs of earlier ones, on one or two nodes.
fn random_workflow(dice: &mut Dice) -> String {
    let mut text =
        String::from("name = \"w\"\nexternal = \"/ext\"\n[data.raw]\nsource = \"/src\"\n");
    let mut steps = String::new();
    let count = 3 + dice.below(8);
    for i in 0..count {
        let keep = ["until-consumed", "workflow"][dice.below(2) as usize];
        text += &format!(
            "[data.d{i}]\nkeep = \"{keep}\"\nsize = \"{} MB\"\n",
            made_by(i)
        );
        let (nodes, cores) = (1 + dice.below(4) / 3, 1 + dice.below(2));
        let spread = if nodes > 1 { ":broadcast" } else { "" };
        let made = if nodes > 1 { ":single" } else { "" };
        let mut reads: Vec<String> = (0..i)
            .filter(|_| dice.below(3) == 0)
            .map(|d| format!("\"d{d}{spread}\""))
            .collect();
        if reads.is_empty() {
            reads.push(format!("\"raw{spread}\""));
        }
        steps += &format!(
            "[[step]]\nname = \"s{i}\"\nnodes = {nodes}\ncores = {cores}\nrun = \"x\"\nin = [{}]\nout = [\"d{i}{made}\"]\n",
            reads.join(", ")
        );
        if dice.below(2) == 0 {
            steps += &format!("time = \"{}s\"\n", 1 + dice.below(20));
        }
    }
    text + &steps
}

#[test]
fn random_workflows_come_to_their_end_in_little_space() {
    let mut done = 0;
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let text = random_workflow(&mut dice);
        let tiers = [60 + dice.below(100), 100 + dice.below(200)].map(|mb| mb * MB);
        for name in ALL {
            let s = start(
                workflow(&text),
                cluster(2, 2, &tiers[..1 + seed as usize % 2]),
                policy(name),
            );
            let mut e = estimates(0);
            e.sources.insert(data(0), Ok(source(None, 20 * MB)));
            e.output = Box::new(|i, _| {
                let bytes = made_by(i.step.0.into()) * MB;
                vec![tarn_simulator::SimEntry::file("out", bytes)]
            });
            e.run_time = Box::new(|i| (1 + u64::from(i.step.0) * 5 % 13) * SECOND);
            let mut sim = Simulation::new(&s, e);
            sim.inject(3600 * SECOND, Event::Interrupted { signal: 2 });
            let p = simulate_in(&s, sim);
            let refused = p.outcome == Outcome::Refused || p.failure().contains("Enlarge the tier");
            assert!(
                p.outcome == Outcome::Done || refused,
                "seed {seed}, {name}: {:?} {}\n{text}",
                p.outcome,
                p.failure()
            );
            done += u32::from(p.outcome == Outcome::Done);
        }
    }
    assert!(done > 60 * 14, "{done} of {}", 60 * ALL.len());
}
