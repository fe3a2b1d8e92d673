//! Data that no step reads any more stays as cache within its share, and is never in anybody's way.

mod common;
use common::*;
use tarn_engine::Engine;
use tarn_types::action::{Action, Do, Outcome};
use tarn_types::event::{RunErrorKind, Start};
use tarn_types::part::Place;
use tarn_types::reason::Reason;

/// Each step reads the output of the one before; `o` is delivered.
const CHAIN: &str = r#"
name = "w"
[data.a]
size = "20 MB"
[data.b]
size = "20 MB"
[data.o]
size = "50 MB"
dest = "/o"
[[step]]
name = "first"
run = "x"
out = ["a"]
[[step]]
name = "second"
run = "x"
in = ["a"]
out = ["b"]
[[step]]
name = "third"
run = "x"
in = ["b"]
out = ["o"]
"#;

fn chain(tier: u64, cache: u8) -> Start {
    let mut s = start(workflow(CHAIN), cluster(1, 1, &[tier]), policy("data"));
    s.options.cache = cache;
    s
}

fn simulate_chain(s: &Start) -> SimulatedRun {
    let mut e = estimates(0);
    e.output = Box::new(|_, d| {
        let bytes = [20 * MB, 20 * MB, 50 * MB][d.at()];
        vec![tarn_simulator::SimEntry::file("out", bytes)]
    });
    let p = simulate(s, e);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    p
}

/// The datasets of actions of a kind, in their order.
fn of<'a>(
    actions: impl Iterator<Item = &'a Action>,
    which: impl Fn(&'a Action) -> Option<u32>,
) -> Vec<u32> {
    actions.filter_map(which).collect()
}

fn caches(action: &Action) -> Option<u32> {
    match &action.what {
        Do::Cache { part, .. } => Some(part.data.0),
        _ => None,
    }
}

fn evicts(action: &Action) -> Option<u32> {
    match &action.what {
        Do::Evict { part, .. } => Some(part.data.0),
        _ => None,
    }
}

/// The datasets that are on nodes when the run is over.
fn left(p: &SimulatedRun) -> Vec<u32> {
    let mut engine = Engine::new();
    for r in &p.records {
        engine.replay(r.now, &r.event, &r.actions);
    }
    let all = engine.replicas();
    let here = all.iter().filter(|(_, _, at)| matches!(at, Place::Node(_)));
    here.map(|(part, ..)| part.data.0).collect()
}

#[test]
fn what_is_consumed_stays_within_the_share() {
    let p = simulate_chain(&chain(200 * MB, 25));
    assert_eq!(of(p.actions(), caches), [0, 1]);
    assert_eq!(left(&p), [0, 1], "what is delivered lies at its dest");
    // Of two the older one goes.
    let p = simulate_chain(&chain(140 * MB, 25));
    assert_eq!(of(p.actions(), caches), [0, 1]);
    assert_eq!(left(&p), [1]);
    // A part larger than the share does not stay.
    let p = simulate_chain(&chain(78 * MB, 25));
    assert!(of(p.actions(), caches).is_empty());
    assert!(left(&p).is_empty());
    let p = simulate_chain(&chain(200 * MB, 0));
    assert!(of(p.actions(), caches).is_empty());
    assert!(left(&p).is_empty());
}

#[test]
fn it_makes_way_before_anybody_waits() {
    let (without, with) = (
        simulate_chain(&chain(80 * MB, 0)),
        simulate_chain(&chain(80 * MB, 100)),
    );
    assert_eq!(of(with.actions(), caches), [0, 1]);
    // `o` beside `b` takes all that there is but 10 MB.
    let gone = |a: &Action| matches!(a.why, Reason::EvictForSpace { .. }) && evicts(a) == Some(0);
    let third =
        |a: &Action| matches!(&a.what, Do::Assign { instance: i, .. } if *i == instance(2, 0));
    let gone = with.position(gone).expect("`a` makes way");
    assert!(gone < with.position(third).expect("it has a place"));
    let waits = |r: &Reason| matches!(r, Reason::WaitForSpace { .. });
    assert!(!with.reasons().any(waits), "{}", with.trace());
    assert!(with.sim.peak(fast(0)) <= 80 * MB);
    assert_eq!(with.end(), without.end());
}

#[test]
fn a_step_that_runs_out_of_space_beside_it_is_repeated_without_it_and_has_not_failed() {
    let s = chain(200 * MB, 25);
    let (mut hand, begun) = Hand::begin(&s);
    let first = runs_in(&begun).remove(0);
    let second = runs_in(&hand.commits(&first, Some((0, 20 * MB)), 1)).remove(0);
    let actions = hand.commits(&second, Some((1, 20 * MB)), 2);
    assert_eq!(of(actions.iter(), caches), [0]);
    let third = runs_in(&actions).remove(0);
    let actions = hand.fails(&third, RunErrorKind::NoSpace);
    assert_eq!(of(actions.iter(), evicts), [0]);
    let again = runs_in(&actions).remove(0);
    assert_eq!((again.instance, again.attempt), (third.instance, 2));
    // There is nothing else that was in its way.
    let actions = hand.fails(&again, RunErrorKind::NoSpace);
    assert!(runs_in(&actions).is_empty());
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
}

#[test]
fn what_must_not_stay_does_not() {
    let cases: [fn(&mut Start); 5] = [
        |s| s.allocation = Some("1".into()),
        |s| s.workflow.erase = true,
        |s| s.workflow.data.iter_mut().for_each(|d| d.encrypt = true),
        |s| s.options.policy = policy("heft+stage-through"),
        |s| s.options.policy = policy("heft+cache"),
    ];
    for (at, change) in cases.into_iter().enumerate() {
        let mut s = chain(200 * MB, 25);
        s.workflow.external = Some("/external".into());
        change(&mut s);
        let p = simulate_chain(&s);
        assert!(of(p.actions(), caches).is_empty(), "{at}");
        assert!(left(&p).is_empty(), "{at}");
    }
}

#[test]
fn a_second_replica_does_not_stay() {
    let text = CHAIN.replace("[data.a]\n", "[data.a]\ncopies = 2\n");
    let mut s = start(workflow(&text), cluster(2, 1, &[200 * MB]), policy("data"));
    s.options.cache = 25;
    let p = simulate_chain(&s);
    assert!(p.reasons().any(|r| matches!(r, Reason::Copies { .. })));
    assert_eq!(left(&p), [0, 1]);
}
