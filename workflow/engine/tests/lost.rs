//! Nodes that are lost and come back: an attempt there is no failed try, its data is read elsewhere or made again,
//! returned data is used or removed, and a run that cannot continue names the missing nodes.

mod common;
use common::*;
use std::path::Path;
use tarn_simulator::Rules;
use tarn_types::action::{Action, AttemptSpec, Do, Outcome};
use tarn_types::event::{Event, IntactReplica, RunErrorKind, Start};
use tarn_types::hash::Hash;
use tarn_types::id::{NodeId, TierId};
use tarn_types::part::{PartRef, Place, StoreKey, Transfer};
use tarn_types::reason::Reason;

const HEAD: &str = "name = \"w\"\nexternal = \"/ext\"\n";

fn begin(text: &str, nodes: u32, cores: u32, tiers: &[u64]) -> Start {
    let text = format!("{HEAD}{text}");
    start(
        workflow(&text),
        cluster(nodes, cores, tiers),
        policy("data"),
    )
}

impl Hand {
    fn loses(&mut self, node: u32) -> Vec<Action> {
        self.step(Event::NodeLost {
            node: NodeId(node),
            why: "its tarnd is gone".into(),
        })
    }

    fn has_back(&mut self, node: u32, whole: Vec<IntactReplica>) -> Vec<Action> {
        self.step(Event::NodeBack {
            node: NodeId(node),
            capacities: vec![100 * MB],
            whole,
        })
    }

    fn failure(&self, actions: &[Action]) -> String {
        let failed = actions.iter().find_map(|a| match &a.why {
            Reason::Failed { message } | Reason::GaveUp { message } => Some(message.clone()),
            _ => None,
        });
        failed.unwrap_or_else(|| panic!("nothing failed: {actions:?}"))
    }
}

/// The first part of version 1 of a dataset.
fn made(of: u32) -> PartRef {
    PartRef {
        data: data(of),
        version: 1,
        origin: 0,
        seq: 0,
    }
}

fn whole(of: u32, run: &AttemptSpec, bytes: u64) -> IntactReplica {
    IntactReplica {
        part: made(of),
        key: StoreKey(format!("{}.0", run.store)),
        tier: TierId(0),
        stored: bytes,
    }
}

fn node_of(run: &AttemptSpec) -> u32 {
    run.nodes[0].node.0
}

fn why_run(actions: &[Action]) -> Vec<Reason> {
    let runs = actions.iter().filter(|a| matches!(a.what, Do::Run(_)));
    runs.map(|a| a.why.clone()).collect()
}

fn has_reason(actions: &[Action], why: &Reason) -> bool {
    actions.iter().any(|a| a.why == *why)
}

#[test]
fn what_ran_on_a_lost_node_is_no_failed_try_and_runs_elsewhere() {
    let s = begin("[[step]]\nname = \"a\"\nrun = \"x\"\n", 2, 1, &[100 * MB]);
    let (mut hand, begun) = Hand::begin(&s);
    let first = runs_in(&begun).remove(0);
    assert!(
        hand.loses(node_of(&first)).is_empty(),
        "it has not ended yet"
    );
    let after = hand.fails(&first, RunErrorKind::NodeLost);
    assert_eq!(
        why_run(&after),
        [Reason::Ready],
        "retries = 0, and this is none"
    );
    let second = runs_in(&after).remove(0);
    assert_ne!(node_of(&second), node_of(&first));
    assert_eq!(second.attempt, 2);
    hand.commits(&second, None, 0);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Done));
}

#[test]
fn a_step_that_nodes_die_of_does_not_go_round_all_of_them() {
    for retries in [0, 2] {
        let text = format!("[[step]]\nname = \"a\"\nrun = \"x\"\nretries = {retries}\n");
        let s = begin(&text, 9, 1, &[100 * MB]);
        let (mut hand, begun) = Hand::begin(&s);
        let mut actions = begun;
        let mut lost = 0;
        while let Some(run) = runs_in(&actions).pop() {
            hand.loses(node_of(&run));
            actions = hand.fails(&run, RunErrorKind::NodeLost);
            lost += 1;
        }
        assert_eq!(lost, retries + 2, "one is for nothing");
        let message = hand.failure(&actions);
        let expected = format!("{lost} attempts of it were lost with their nodes");
        assert!(message.contains(&expected), "{message}");
        assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
    }
}

#[test]
fn a_step_of_several_nodes_waits_for_its_lost_ones_while_others_go_on() {
    let text = "[[step]]\nname = \"wide\"\nrun = \"x\"\nnodes = 2\n[[step]]\nname = \"other\"\nrun = \"x\"\n";
    for back in [true, false] {
        let s = begin(text, 2, 2, &[100 * MB]);
        let (mut hand, begun) = Hand::begin(&s);
        let runs = runs_in(&begun);
        let (wide, other) = (&runs[0], &runs[1]);
        let gone = 1 - node_of(other);
        hand.loses(gone);
        let after = hand.fails(wide, RunErrorKind::NodeLost);
        assert!(
            has_reason(&after, &Reason::WaitForLost { nodes: 1 }),
            "{after:?}"
        );
        if back {
            let again = runs_in(&hand.has_back(gone, vec![]));
            assert_eq!(again[0].nodes.len(), 2);
            continue;
        }
        let end = hand.commits(other, None, 0);
        let message = hand.failure(&end);
        let expected = format!("of 2 node(s) 1 are left, lost are node{gone}");
        assert!(
            message.contains("step wide asks for 2 node(s)"),
            "{message}"
        );
        assert!(message.contains(&expected), "{message}");
        assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
    }
}

#[test]
fn a_run_whose_nodes_are_all_lost_fails_and_says_so() {
    let s = begin("[[step]]\nname = \"a\"\nrun = \"x\"\n", 2, 1, &[100 * MB]);
    let (mut hand, begun) = Hand::begin(&s);
    let run = runs_in(&begun).remove(0);
    hand.loses(0);
    hand.loses(1);
    let end = hand.fails(&run, RunErrorKind::NodeLost);
    let message = hand.failure(&end);
    assert!(
        message.contains("all nodes of the run are lost (node0, node1)"),
        "{message}"
    );
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
}

/// `a` makes `o`, which goes to its `dest`; `b` reads it after `c`.
const CHAIN: &str = r#"
[data.o]
dest = "/o"
[[step]]
name = "a"
run = "x"
out = "o"
[[step]]
name = "c"
run = "x"
[[step]]
name = "b"
run = "x"
in = "o"
after = ["c"]
"#;

/// Runs `a` to its commit. The runs of `a` and `c`, and the delivery.
fn chain(hand: &mut Hand, begun: &[Action]) -> (AttemptSpec, AttemptSpec, Transfer) {
    let mut runs = runs_in(begun);
    let (c, a) = (runs.remove(1), runs.remove(0));
    assert_ne!(node_of(&a), node_of(&c));
    let delivery = transfers_in(&hand.commits(&a, Some((0, MB)), 7)).remove(0);
    (a, c, delivery)
}

#[test]
fn what_is_delivered_stays_so_and_is_read_from_there() {
    let s = begin(CHAIN, 2, 1, &[100 * MB]);
    let (mut hand, begun) = Hand::begin(&s);
    let (a, c, delivery) = chain(&mut hand, &begun);
    hand.brought(&delivery, MB);
    hand.loses(node_of(&a));
    let fetch = transfers_in(&hand.commits(&c, None, 0));
    assert_eq!(
        fetch[0].parts[0].from,
        Place::External(Path::new("/o").into())
    );
    let b = runs_in(&hand.brought(&fetch[0], MB)).remove(0);
    hand.commits(&b, None, 0);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Done));
}

#[test]
fn transfers_that_a_lost_node_has_ended_are_no_failed_tries() {
    let s = begin(CHAIN, 2, 1, &[100 * MB]);
    let (mut hand, begun) = Hand::begin(&s);
    let (a, c, mut delivery) = chain(&mut hand, &begun);
    for _ in 0..5 {
        hand.loses(node_of(&a));
        assert!(
            runs_in(&hand.failed(delivery.id, RunErrorKind::NodeLost)).is_empty(),
            "no node is left for it"
        );
        let back = hand.has_back(node_of(&a), vec![whole(0, &a, MB)]);
        assert!(
            has_reason(&back, &Reason::OutputBack { data: data(0) }),
            "{back:?}"
        );
        assert!(runs_in(&back).is_empty(), "it need not run again");
        delivery = transfers_in(&back).remove(0);
    }
    hand.brought(&delivery, MB);
    let b = runs_in(&hand.commits(&c, None, 0)).remove(0);
    hand.commits(&b, None, 0);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Done));
}

#[test]
fn what_comes_back_while_it_is_made_again_is_removed_and_never_taken_for_the_new() {
    let s = begin(CHAIN, 3, 1, &[100 * MB]);
    let (mut hand, begun) = Hand::begin(&s);
    let (a, c, delivery) = chain(&mut hand, &begun);
    hand.loses(node_of(&a));
    let again = runs_in(&hand.failed(delivery.id, RunErrorKind::NodeLost)).remove(0);
    assert_eq!(again.instance, a.instance);
    let mut back = Vec::new();
    let event = Event::NodeBack {
        node: a.nodes[0].node,
        capacities: vec![100 * MB],
        whole: vec![whole(0, &a, MB)],
    };
    hand.engine.step(u64::MAX / 2, &event, &mut back);
    let evicted = Do::Evict {
        part: made(0),
        key: whole(0, &a, MB).key,
        at: Place::Node(a.nodes[0]),
    };
    let expected = Action {
        what: evicted,
        why: Reason::GivenUp,
    };
    assert_eq!(back, [expected]);
    hand.commits(&again, Some((0, MB)), 7);
    let gone = Event::Evicted {
        part: made(0),
        at: Place::Node(a.nodes[0]),
    };
    hand.step(gone);
    let there = hand.engine.replicas();
    assert!(there.iter().any(|(_, key, at)| {
        (key, at) == (&whole(0, &again, MB).key, &Place::Node(again.nodes[0]))
    }));
    assert!(
        there
            .iter()
            .all(|(_, _, at)| *at != Place::Node(a.nodes[0]))
    );
    assert_eq!(runs_in(&hand.commits(&c, None, 0)).len(), 1);
}

#[test]
fn what_is_to_be_kept_is_made_again_before_the_run_ends() {
    let text = "[data.o]\nkeep = \"forever\"\n[[step]]\nname = \"a\"\nrun = \"x\"\nout = \"o\"\n[[step]]\nname = \"c\"\nrun = \"x\"\n";
    let s = begin(text, 2, 1, &[100 * MB]);
    let (mut hand, begun) = Hand::begin(&s);
    let runs = runs_in(&begun);
    hand.commits(&runs[0], Some((0, MB)), 7);
    hand.loses(node_of(&runs[0]));
    let again = runs_in(&hand.commits(&runs[1], None, 0)).remove(0);
    assert_eq!(again.instance, runs[0].instance);
    hand.commits(&again, Some((0, MB)), 7);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Done));
}

#[test]
fn what_is_to_be_kept_and_is_lost_on_its_way_outside_is_made_again() {
    let text = "[data.o]\nkeep = \"forever\"\n[[step]]\nname = \"a\"\nrun = \"x\"\nout = \"o\"\n";
    let mut s = begin(text, 2, 1, &[100 * MB]);
    s.options.policy = policy("stage-through");
    let (mut hand, begun) = Hand::begin(&s);
    let a = runs_in(&begun).remove(0);
    let out = transfers_in(&hand.commits(&a, Some((0, MB)), 7)).remove(0);
    hand.loses(node_of(&a));
    let again = hand.failed(out.id, RunErrorKind::NodeLost);
    assert_eq!(runs_in(&again).len(), 1, "{again:?}");
    assert_eq!(hand.engine.outcome(), None);
}

#[test]
fn nobody_reads_what_lies_outside_of_an_instance_that_runs_again() {
    let text = r#"
[data.o]
dest = "/o"
[data.p]
[[step]]
name = "a"
run = "x"
out = ["o", "p"]
[[step]]
name = "c"
run = "x"
[[step]]
name = "d"
run = "x"
in = ["p"]
after = ["c"]
[[step]]
name = "b"
run = "x"
in = ["o"]
after = ["c"]
"#;
    let s = begin(text, 3, 1, &[100 * MB]);
    let (mut hand, begun) = Hand::begin(&s);
    let runs = runs_in(&begun);
    let output = |run: &AttemptSpec, of: u32, seq: u32| tarn_types::event::Output {
        data: data(of),
        version: 1,
        parts: vec![(
            tarn_types::part::PartInfo {
                seq,
                hash: Some(Hash(u128::from(of))),
                key: StoreKey(format!("{}.{seq}", run.store)),
                ..source(None, MB).remove(0)
            },
            vec![run.nodes[0]],
        )],
    };
    let committed = |run: &AttemptSpec| tarn_types::event::AttemptOutcome::Committed {
        outputs: vec![output(run, 0, 0), output(run, 1, 1)],
        undeclared: Default::default(),
    };
    let delivery = transfers_in(&hand.ended(&runs[0], committed(&runs[0]))).remove(0);
    hand.brought(&delivery, MB);
    hand.loses(node_of(&runs[0]));
    // A replica that is on its way when the loss of `p` is found comes, and goes: its key changes with the new commit.
    let fetch = transfers_in(&hand.commits(&runs[1], None, 0)).remove(0);
    assert_eq!(fetch.data, data(0));
    let after = hand.brought(&fetch, MB);
    let again = runs_in(&after);
    assert_eq!(again.len(), 1, "{after:?}");
    let a = &again[0];
    assert_eq!(a.instance, runs[0].instance);
    assert!(
        transfers_in(&after).is_empty(),
        "nobody reads it meanwhile: {after:?}"
    );
    let ready = hand.ended(a, committed(a));
    let brought: Vec<_> = transfers_in(&ready).iter().map(|t| t.data).collect();
    assert_eq!(
        runs_in(&ready).len() + brought.len(),
        2,
        "b and d go on: {ready:?}"
    );
}

/// Runs a workflow in the simulated world, held to all rules.
fn simulate_checked(text: &str, nodes: u32, tiers: &[u64], sizes: &'static [u64]) -> SimulatedRun {
    let s = begin(text, nodes, 1, tiers);
    let mut e = estimates(0);
    e.output = Box::new(move |_, d| vec![tarn_simulator::SimEntry::file("out", sizes[d.at()])]);
    let p = simulate(&s, e);
    let mut rules = Rules::new();
    let kept = p.records.iter().try_for_each(|r| rules.check(r));
    assert_eq!(kept, Ok(()), "{}", p.trace());
    p
}

#[test]
fn a_kept_part_that_lies_outside_already_is_not_drained_again() {
    let text = r#"
[data.a]
keep = "forever"
[data.b]
size = "40 MB"
[data.c]
size = "40 MB"
[[step]]
name = "one"
run = "x"
out = "a"
[[step]]
name = "two"
run = "x"
after = ["one"]
out = "b"
[[step]]
name = "three"
run = "x"
after = ["two"]
in = "a"
[[step]]
name = "four"
run = "x"
after = ["three"]
out = "c"
"#;
    let p = simulate_checked(text, 1, &[60 * MB], &[40 * MB, 40 * MB, 40 * MB]);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    let drains = p
        .actions()
        .filter(|a| matches!(&a.what, Do::Transfer(t) if t.to == Place::Drained));
    assert_eq!(drains.count(), 1, "{}", p.trace());
}

#[test]
fn a_step_of_several_nodes_reserves_what_each_of_them_has() {
    let text = "[data.d]\n[data.e]\n[[step]]\nname = \"a\"\nrun = \"x\"\nout = \"d\"\n[[step]]\nname = \"b\"\nrun = \"x\"\nnodes = 2\nin = \"d:single\"\nout = \"e:single\"\n";
    let p = simulate_checked(text, 2, &[100 * MB], &[80 * MB, MB]);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    let reserved = p.actions().filter_map(|a| match &a.what {
        Do::Assign { nodes, reserve, .. } if nodes.len() == 2 => Some(*reserve),
        _ => None,
    });
    assert_eq!(reserved.collect::<Vec<_>>(), [20 * MB]);
}

#[test]
fn a_step_that_fewer_nodes_than_it_needs_can_hold_is_said_not_to_fit() {
    let text = "[data.d]\n[[step]]\nname = \"a\"\nrun = \"x\"\nout = \"d\"\n[[step]]\nname = \"b\"\nrun = \"x\"\nnodes = 2\ninout = \"d:broadcast\"\n";
    let p = simulate_checked(text, 2, &[60 * MB, 60 * MB], &[40 * MB]);
    assert_eq!(p.outcome, Outcome::Failed);
    assert!(
        p.failure().contains("step b can never fit"),
        "{}",
        p.failure()
    );
}

#[test]
fn a_rescue_that_is_gone_when_a_run_goes_on_is_made_again() {
    let text = "[data.a]\non_failure = \"drain\"\n[[step]]\nname = \"make\"\nrun = \"x\"\nout = \"a\"\n[[step]]\nname = \"fail\"\nrun = \"y\"\nin = \"a\"\n";
    let s = begin(text, 1, 1, &[100 * MB]);
    let (mut hand, begun) = Hand::begin(&s);
    let make = runs_in(&begun).remove(0);
    let fail = runs_in(&hand.commits(&make, Some((0, MB)), 7)).remove(0);
    let rescue = transfers_in(&hand.fails(&fail, RunErrorKind::Exit)).remove(0);
    hand.brought(&rescue, MB);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
    let kept = (made(0), Place::Node(make.nodes[0]));
    for (found, again) in [
        (vec![kept.clone()], 1),
        (vec![kept, (made(0), rescue.to.clone())], 0),
    ] {
        let resumed = hand.step(Event::Resumed {
            found,
            pinned: Vec::new(),
            set_aside: None,
        });
        let fail = runs_in(&resumed).remove(0);
        let rescues = transfers_in(&hand.fails(&fail, RunErrorKind::Exit));
        assert_eq!(rescues.len(), again);
        if let Some(rescue) = rescues.first() {
            hand.brought(rescue, MB);
        }
        assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
    }
}

const THREE: &str = r#"
[data.a]
[data.b]
[[step]]
name = "a"
run = "x"
out = "a"
[[step]]
name = "b"
run = "x"
in = "a"
out = "b"
[[step]]
name = "c"
run = "x"
in = ["a", "b"]
"#;

/// A node was out of reach: data found there when the run resumes need not be made again, though that had begun.
#[test]
fn what_a_lost_node_still_has_is_used_when_the_run_goes_on() {
    for found_all in [true, false] {
        let s = begin(THREE, 2, 1, &[100 * MB]);
        let (mut hand, begun) = Hand::begin(&s);
        let a = runs_in(&begun).remove(0);
        let b = runs_in(&hand.commits(&a, Some((0, MB)), 7)).remove(0);
        let c = runs_in(&hand.commits(&b, Some((1, MB)), 8)).remove(0);
        assert_eq!([node_of(&b), node_of(&c)], [node_of(&a); 2]);
        let mut after = hand.loses(node_of(&a));
        after.extend(hand.fails(&c, RunErrorKind::NodeLost));
        assert_eq!(runs_in(&after)[0].instance, a.instance, "again: {after:?}");
        let mut found = vec![(made(0), Place::Node(a.nodes[0]))];
        if found_all {
            found.push((made(1), Place::Node(b.nodes[0])));
        }
        let resumed = hand.step(Event::Resumed {
            found,
            pinned: Vec::new(),
            set_aside: None,
        });
        let next = runs_in(&resumed).remove(0);
        let expected = if found_all { &c } else { &b };
        assert_eq!(next.instance, expected.instance, "{resumed:?}");
    }
}
