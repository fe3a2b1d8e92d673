//! A full tier: wait, evict, demote, drain, promote; each in its order, bytes asserted.

mod common;
use common::*;
use tarn_engine::Engine;
use tarn_types::action::{Do, Outcome};
use tarn_types::event::{AttemptOutcome, Event, RunError, RunErrorKind, Usage};
use tarn_types::part::{Place, TransferKind};
use tarn_types::reason::Reason;
use tarn_types::units::SECOND;

/// Datasets a, b, c, ... of 40 MB each are made one after the other and all read at the end.
fn hoarder(count: usize, tiers: &[u64], external: bool) -> SimulatedRun {
    let mut text = String::from("name = \"w\"\n");
    if external {
        text += "external = \"/ext\"\n";
    }
    for i in 0..count {
        text += &format!(
            "[data.d{i}]\nsize = \"40 MB\"\n[data.r{i}]\ndest = \"/r{i}\"\nsize = \"1 MB\"\n"
        );
    }
    for i in 0..count {
        let after = if i > 0 {
            format!("after = [\"make{}\"]\n", i - 1)
        } else {
            String::new()
        };
        text += &format!("[[step]]\nname = \"make{i}\"\nrun = \"x\"\nout = \"d{i}\"\n{after}");
    }
    for i in 0..count {
        let after = if i > 0 {
            format!("use{}", i - 1)
        } else {
            format!("make{}", count - 1)
        };
        text += &format!(
            "[[step]]\nname = \"use{i}\"\nrun = \"x\"\nin = \"d{i}\"\nout = \"r{i}\"\nafter = [\"{after}\"]\n"
        );
    }
    let s = start(workflow(&text), cluster(1, 1, tiers), policy("data"));
    let mut e = estimates(0);
    e.output = Box::new(|_, d| {
        let bytes = if d.0 % 2 == 0 { 40 * MB } else { MB };
        vec![tarn_simulator::SimEntry::file("out", bytes)]
    });
    simulate(&s, e)
}

#[test]
fn demoted_to_the_slower_tier_and_promoted_before_use() {
    let p = hoarder(3, &[100 * MB, 1000 * MB], false);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    // The one that is read last makes space for the third and comes back once the first is gone.
    assert_eq!(p.moved(TransferKind::Demote), 40 * MB);
    assert_eq!(p.moved(TransferKind::Promote), 40 * MB);
    assert_eq!(p.moved(TransferKind::ExternalOut), 3 * MB);
    assert!(p.sim.peak(fast(0)) <= 100 * MB);
}

#[test]
fn drained_when_every_tier_is_full() {
    let p = hoarder(4, &[100 * MB, 50 * MB], true);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    assert_eq!(p.moved(TransferKind::Demote), 40 * MB);
    assert_eq!((p.moved(TransferKind::ExternalOut) - 4 * MB) % (40 * MB), 0);
    let first = |test: fn(&Reason) -> bool| p.position(|a| test(&a.why)).expect("it happened");
    let demoted = first(|r| matches!(r, Reason::DemoteForSpace { .. }));
    let drained = first(|r| matches!(r, Reason::DrainForSpace { .. }));
    assert!(demoted < drained);
    assert!(p.sim.peak(fast(0)) <= 100 * MB);
}

#[test]
fn without_a_way_out_it_says_what_is_missing() {
    let p = hoarder(4, &[100 * MB], false);
    assert_eq!(p.outcome, Outcome::Failed);
    let text = p.failure();
    assert!(
        text.contains("can be freed") && text.contains("external"),
        "{text}"
    );
}

/// A step of a tier of 100 MB whose outputs have no stated size, beside `kept` MB that stay there.
fn guesses(kept: u64, reads: u64) -> SimulatedRun {
    let text = r#"
name = "w"
[data.kept]
keep = "workflow"
[data.src]
source = "/src"
[data.out]
dest = "/out"
[[step]]
name = "make"
run = "x"
out = "kept"
[[step]]
name = "use"
run = "x"
in = "src"
out = "out"
after = ["make"]
"#;
    let s = start(workflow(text), cluster(1, 1, &[100 * MB]), policy("data"));
    let mut e = estimates(0);
    e.sources.insert(data(1), Ok(source(None, reads * MB)));
    e.output = Box::new(move |_, d| {
        let bytes = if d.0 == 0 { kept * MB } else { MB };
        vec![tarn_simulator::SimEntry::file("out", bytes)]
    });
    simulate(&s, e)
}

#[test]
fn a_guess_ends_no_run() {
    // It is guessed to write as much as it reads: 30 MB of the 15 MB that are left.
    let p = guesses(55, 30);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    // Its input does not fit beside the data that stays, however little it writes.
    let p = guesses(75, 30);
    assert_eq!(p.outcome, Outcome::Failed);
    assert!(p.failure().contains("can be freed"), "{}", p.failure());
}

#[test]
fn who_finds_no_space_does_not_keep_others_from_giving_it_back() {
    // `large` has the longer way to the end and goes first, but only `small` can free the space that it lacks.
    let text = r#"
name = "w"
[data.src]
source = "/src"
[data.x]
[data.go]
[data.a]
[data.b]
dest = "/b"
[data.c]
dest = "/c"
[[step]]
name = "make"
run = "x"
out = ["x", "go"]
[[step]]
name = "large"
run = "x"
in = ["src", "go"]
out = "a"
[[step]]
name = "after"
run = "x"
in = "a"
out = "c"
[[step]]
name = "small"
run = "x"
in = "x"
out = "b"
"#;
    for name in ["data", "heft+cache", "greedy+cache"] {
        let s = start(workflow(text), cluster(1, 1, &[100 * MB]), policy(name));
        let mut e = estimates(0);
        e.sources.insert(data(0), Ok(source(None, 60 * MB)));
        e.output = Box::new(|_, d| {
            let bytes = if d.0 == 1 { 55 * MB } else { MB };
            vec![tarn_simulator::SimEntry::file("out", bytes)]
        });
        let p = simulate(&s, e);
        assert_eq!(p.outcome, Outcome::Done, "{name}: {}", p.failure());
        assert!(p.sim.peak(fast(0)) <= 100 * MB, "{name}");
    }
}

/// One node, one fast tier of 100 MB, a slow one of 60 MB: fills it and sees wait, evict, demote, drain and
/// promote happen in this order.
#[test]
fn each_remedy_in_its_order() {
    let text = r#"
name = "w"
external = "/ext"
[data.src]
source = "/src"
[data.a]
size = "40 MB"
[data.b]
size = "40 MB"
[data.c]
size = "40 MB"
[data.d]
size = "40 MB"
[data.last]
dest = "/last"
size = "1 MB"
[[step]]
name = "first"
run = "x"
in = "src"
out = "a"
[[step]]
name = "second"
run = "x"
out = "b"
after = ["first"]
[[step]]
name = "third"
run = "x"
out = "c"
after = ["second"]
[[step]]
name = "fourth"
run = "x"
out = "d"
after = ["third"]
[[step]]
name = "last"
run = "x"
in = ["src", "a"]
out = "last"
after = ["fourth"]
[[step]]
name = "rest"
run = "x"
in = ["b", "c"]
after = ["last"]
[[step]]
name = "end"
run = "x"
in = "d"
after = ["rest"]
"#;
    let s = start(
        workflow(text),
        cluster(1, 1, &[100 * MB, 60 * MB]),
        policy("data"),
    );
    let mut e = estimates(0);
    e.sources.insert(data(0), Ok(source(None, 30 * MB)));
    e.output = Box::new(|_, d| {
        let bytes = if d.0 == 5 { MB } else { 40 * MB };
        vec![tarn_simulator::SimEntry::file("out", bytes)]
    });
    let p = simulate(&s, e);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    let at = |test: fn(&Reason) -> bool| p.position(|a| test(&a.why)).expect("it happened");
    let evicted = at(|r| matches!(r, Reason::EvictForSpace { .. }));
    let demoted = at(|r| matches!(r, Reason::DemoteForSpace { .. }));
    let drained = at(|r| matches!(r, Reason::DrainForSpace { .. }));
    let promoted = at(|r| matches!(r, Reason::PromoteForUse { .. }));
    assert!(evicted < demoted && demoted < drained && drained < promoted);
    let gone = p.actions().nth(evicted).expect("there");
    assert!(
        matches!(&gone.what, Do::Evict { part, .. } if part.data == data(0)),
        "the source can be read again"
    );
    assert_eq!(
        p.moved(TransferKind::ExternalIn),
        60 * MB + p.moved(TransferKind::ExternalOut) - MB
    );
    assert!(p.sim.peak(fast(0)) <= 100 * MB);
}

#[test]
fn it_waits_when_what_runs_will_free_enough() {
    let text = r#"
name = "w"
[data.big]
size = "80 MB"
[data.r]
dest = "/r"
size = "1 MB"
[data.other]
size = "60 MB"
dest = "/o"
[[step]]
name = "make"
run = "x"
out = "big"
[[step]]
name = "use"
run = "x"
in = "big"
out = "r"
[[step]]
name = "other"
run = "x"
out = "other"
after = ["make"]
"#;
    let s = start(
        workflow(text),
        cluster(1, 2, &[100 * MB, 1000 * MB]),
        policy("data"),
    );
    let mut e = estimates(0);
    e.output = Box::new(|_, d| {
        vec![tarn_simulator::SimEntry::file(
            "out",
            [80 * MB, MB, 60 * MB][d.at()],
        )]
    });
    let p = simulate(&s, e);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    assert!(
        p.reasons()
            .any(|r| matches!(r, Reason::WaitForSpace { .. }))
    );
    assert_eq!(p.moved(TransferKind::Demote), 0, "waiting was enough");
    assert!(p.sim.peak(fast(0)) <= 100 * MB);
}

#[test]
fn replicas_never_exceed_a_tier_at_any_time() {
    for size in [90, 100, 130, 200, 300] {
        let p = hoarder(5, &[size * MB, 90 * MB, 100 * MB], true);
        assert_eq!(p.outcome, Outcome::Done, "{size}: {}", p.failure());
        assert!(p.sim.peak(fast(0)) <= size * MB);
        let there = |r: &tarn_ports::Record| {
            r.actions
                .iter()
                .any(|a| matches!(&a.what, Do::Transfer(t) if t.to == Place::Source))
        };
        assert!(!p.records.iter().any(there));
    }
}

/// The tiers of each attempt of a single step that writes so much and runs out of space, and the bytes set aside there,
/// until its tries are used up.
fn places_of_attempts(tiers: &[u64], retries: u32, written: u64) -> Vec<(u32, u64)> {
    let text = format!(
        "name = \"w\"\n[data.r]\ndest = \"/r\"\n[[step]]\nname = \"a\"\nrun = \"x\"\nout = \"r\"\nretries = {retries}\n"
    );
    let s = start(workflow(&text), cluster(1, 1, tiers), policy("data"));
    let mut engine = Engine::new();
    let mut event = Event::Started(Box::new(s));
    let mut used = Vec::new();
    loop {
        let mut actions = Vec::new();
        engine.step(0, &event, &mut actions);
        let mut runs = actions.iter().filter_map(|a| match &a.what {
            Do::Run(run) => Some(run),
            _ => None,
        });
        let Some(run) = runs.next_back() else {
            assert_eq!(engine.outcome(), Some(Outcome::Failed));
            return used;
        };
        used.push((run.nodes[0].tier.0, run.reserve));
        event = Event::Ended {
            instance: run.instance,
            attempt: run.attempt,
            ended: AttemptOutcome::Failed {
                failure: RunError {
                    kind: RunErrorKind::NoSpace,
                    message: "full".into(),
                },
                log_tail: String::new(),
                newest: None,
            },
            usage: Usage {
                written,
                ..Usage::default()
            },
        };
    }
}

fn tiers_of_attempts(tiers: &[u64]) -> Vec<u32> {
    let places = places_of_attempts(tiers, 2, 0);
    places.into_iter().map(|(tier, _)| tier).collect()
}

#[test]
fn what_a_step_wrote_that_ran_out_of_space_is_known_once_and_no_failed_try() {
    const GUESS: u64 = 1 << 20;
    let places = |written| places_of_attempts(&[100 * MB], 0, written);
    assert_eq!(places(60 * MB), [(0, GUESS), (0, 60 * MB)]);
    // Nothing is learnt: more than the tier could ever hold, or no more than was set aside.
    assert_eq!(places(101 * MB), [(0, GUESS)]);
    assert_eq!(places(GUESS), [(0, GUESS)]);
}

#[test]
fn an_attempt_that_filled_its_tier_is_repeated_on_a_slower_one() {
    assert_eq!(
        tiers_of_attempts(&[100 * MB, 1000 * MB, 2000 * MB]),
        [0, 1, 2]
    );
    assert_eq!(tiers_of_attempts(&[100 * MB, 1000 * MB]), [0, 1, 1]);
    assert_eq!(tiers_of_attempts(&[100 * MB]), [0, 0, 0]);
}

#[test]
fn waiting_for_another_run_is_told_apart_from_waiting_for_oneself() {
    let text = "name = \"w\"\n[data.a]\nsize = \"10 MB\"\n[data.b]\nsize = \"60 MB\"\ndest = \"/b\"\n[[step]]\nname = \"one\"\nrun = \"x\"\nout = \"a\"\n[[step]]\nname = \"two\"\nrun = \"x\"\nin = \"a\"\nout = \"b\"\n";
    let s = start(workflow(text), cluster(1, 1, &[100 * MB]), policy("data"));
    let mut e = estimates(0);
    e.output = Box::new(|_, d| {
        vec![tarn_simulator::SimEntry::file(
            "out",
            [10 * MB, 60 * MB][d.at()],
        )]
    });
    let mut sim = tarn_simulator::Simulation::new(&s, e);
    for (at, bytes) in [(SECOND / 2, 40 * MB), (5 * SECOND, 100 * MB)] {
        let tier_ref = fast(0);
        sim.inject(at, Event::Capacity { tier_ref, bytes });
    }
    let p = simulate_in(&s, sim);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    let waited = |r: &&Reason| {
        matches!(
            r,
            Reason::WaitForOthers { .. } | Reason::WaitForSpace { .. }
        )
    };
    let reasons: Vec<_> = p.reasons().filter(waited).cloned().collect();
    let expected = Reason::WaitForOthers {
        tier_ref: fast(0),
        want: 60 * MB,
        free: 30 * MB,
        held: 60 * MB,
    };
    assert_eq!(reasons, std::slice::from_ref(&expected));
    let mut history = tarn_types::history::History::new();
    p.records
        .iter()
        .for_each(|r| history.apply(r.now, &r.event, &r.actions));
    let explanation = history.explain(&expected);
    assert!(
        explanation.contains("other runs") && explanation.contains("hold 57.22 MiB"),
        "{explanation}"
    );
}

#[test]
fn what_takes_more_than_was_listed_is_promised_that_the_next_time() {
    let text = "name = \"w\"\n[data.src]\nsource = \"/src\"\n[data.out]\ndest = \"/out\"\n\
                [[step]]\nname = \"look\"\nrun = \"x\"\nin = \"src\"\nout = \"out\"\n";
    let cluster = cluster(1, 1, &[3 * MB]);
    for data_mode in ["data", "stage-through"] {
        let start = start(workflow(text), cluster.clone(), policy(data_mode));
        let (mut hand, _) = Hand::begin(&start);
        let mut actions = hand.listed(0, source(None, 2 * MB + MB / 2));
        // Each tier has its own idea of blocks: the space for the output is gone when the source has come.
        let mut tries = 0;
        while runs_in(&actions).is_empty() {
            let coming = transfers_in(&actions);
            let order = coming
                .first()
                .unwrap_or_else(|| panic!("{data_mode}: nothing comes: {actions:?}"));
            tries += 1;
            assert!(tries <= 2, "{data_mode}: brought in for ever");
            actions = hand.brought(order, 2 * MB + MB / 2 + 4096);
        }
        let reserve = runs_in(&actions)[0].reserve;
        assert!(reserve <= MB / 2 - 4096, "{data_mode}: {reserve}");
    }
}
