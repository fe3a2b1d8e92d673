//! Full and shrinking tiers, full stores: each wait names its cause, data that cannot be had ends the run, nothing goes
//! round in circles.

mod common;
use common::*;
use std::path::Path;
use tarn_types::action::{Action, Do, Outcome};
use tarn_types::event::{Event, RunErrorKind};
use tarn_types::part::{Place, TransferKind};
use tarn_types::reason::Reason;
use tarn_types::units::SECOND;

fn unassigned(actions: &[Action]) -> bool {
    let is = |a: &Action| matches!(a.what, Do::Unassign { .. });
    actions.iter().any(is)
}

#[test]
fn further_copies_do_not_take_the_space_that_somebody_waits_for() {
    let text = r#"
name = "w"
[data.d]
copies = 2
[data.big]
size = "40 MB"
dest = "/big"
[data.end]
dest = "/end"
[[step]]
name = "make"
foreach = ["1", "2", "3", "4", "5"]
run = "x"
out = ["d"]
[[step]]
name = "wide"
after = ["make"]
run = "x"
out = ["big"]
[[step]]
name = "use"
after = ["wide"]
run = "x"
in = ["d"]
out = ["end"]
"#;
    let s = start(workflow(text), cluster(2, 4, &[110 * MB]), policy("data"));
    let mut e = estimates(0);
    e.output = Box::new(|_, d| {
        let bytes = [20 * MB, 20 * MB, MB][d.at()];
        vec![tarn_simulator::SimEntry::file("out", bytes)]
    });
    let mut sim = tarn_simulator::Simulation::new(&s, e);
    // A run that goes round in circles is stopped here, instead of for ever.
    sim.inject(600 * SECOND, Event::Interrupted { signal: 2 });
    let p = simulate_in(&s, sim);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    assert!(
        p.reasons().any(|r| matches!(r, Reason::Copies { .. })),
        "there was room for copies at first"
    );
    assert!(
        p.reasons()
            .any(|r| matches!(r, Reason::EvictForSpace { .. })),
        "and then somebody else needed it"
    );
}

#[test]
fn an_assignment_whose_space_has_gone_is_taken_back_and_made_anew() {
    let text = "name = \"w\"\n[data.i]\nsource = \"/in\"\n[data.o]\ndest = \"/out\"\n[[step]]\nname = \"a\"\nrun = \"x\"\nin = [\"i\"]\nout = [\"o\"]\n";
    let s = start(workflow(text), cluster(1, 1, &[100 * MB]), policy("data"));
    let (mut hand, _) = Hand::begin(&s);
    let first = transfers_in(&hand.listed(0, source(None, 20 * MB)));
    let shrunk = Event::Capacity {
        tier_ref: fast(0),
        bytes: MB,
    };
    hand.step(shrunk);
    let after = hand.failed(first[0].id, RunErrorKind::Cancelled);
    assert!(unassigned(&after), "{after:?}");
    assert!(transfers_in(&after).is_empty());
    assert!(hand.engine.deadline().is_some(), "it looks again");
    let again = hand.step(Event::Timer);
    assert!(!unassigned(&again), "it waits without a place: {again:?}");
    assert!(hand.engine.deadline().is_some());
    let grown = hand.step(Event::Capacity {
        tier_ref: fast(0),
        bytes: 100 * MB,
    });
    let second = transfers_in(&grown);
    let ready = hand.brought(&second[0], 20 * MB);
    assert_eq!(runs_in(&ready).len(), 1);
}

#[test]
fn attempts_that_filled_the_same_reservation_double_it_once() {
    let items: Vec<_> = (0..20).map(|i| format!("\"{i}\"")).collect();
    let text = format!(
        "name = \"w\"\n[data.o]\nkeep = \"forever\"\n[[step]]\nname = \"a\"\nforeach = [{}]\nretries = 1\nrun = \"x\"\nout = [\"o\"]\n",
        items.join(",")
    );
    let s = start(
        workflow(&text),
        cluster(1, 20, &[100_000 * MB]),
        policy("data"),
    );
    let (mut hand, begun) = Hand::begin(&s);
    let runs = runs_in(&begun);
    assert_eq!(runs.len(), 20);
    let mut again = Vec::new();
    for run in &runs {
        again.extend(runs_in(&hand.fails(run, RunErrorKind::NoSpace)));
    }
    assert!(!again.is_empty());
    for (run, before) in again.iter().zip(&runs) {
        assert_eq!(run.reserve, 2 * before.reserve, "{}", run.instance);
    }
}

#[test]
fn sizes_beyond_all_bounds_are_refused() {
    let text = "name = \"w\"\n[data.o]\nsize = \"15000 PiB\"\n[data.p]\nsize = \"15000 PiB\"\n[[step]]\nname = \"a\"\nforeach = [\"1\"]\nrun = \"x\"\nout = [\"o\", \"p\"]\n";
    let s = start(workflow(text), cluster(1, 1, &[100 * MB]), policy("data"));
    let p = simulate(&s, estimates(MB));
    assert_eq!(p.outcome, Outcome::Failed);
    assert!(p.failure().contains("can never fit"), "{}", p.failure());
}

/// One step makes 40 MB that a second reads after a third, which needs more space than they leave.
fn tight() -> tarn_types::event::Start {
    let text = r#"
name = "w"
external = "/ext"
[data.a]
size = "40 MB"
[data.b]
size = "40 MB"
[[step]]
name = "one"
run = "x"
out = ["a"]
[[step]]
name = "two"
run = "x"
out = ["b"]
after = ["one"]
[[step]]
name = "both"
run = "x"
in = ["a"]
after = ["two"]
"#;
    start(workflow(text), cluster(1, 1, &[60 * MB]), policy("data"))
}

#[test]
fn who_waits_for_space_is_told_how_it_is_made() {
    let s = tight();
    let (mut hand, begun) = Hand::begin(&s);
    let after = hand.commits(&runs_in(&begun)[0], Some((0, 40 * MB)), 1);
    let drain = transfers_in(&after);
    assert_eq!(drain[0].kind, TransferKind::ExternalOut);
    let expected = Reason::MakingSpace {
        tier_ref: fast(0),
        want: 40 * MB,
        free: 20 * MB,
        evicting: 0,
        demoting: 0,
        draining: 40 * MB,
    };
    let notes: Vec<_> = after
        .iter()
        .filter(|a| matches!(a.what, Do::Note { .. }))
        .collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(notes[0].why, expected);
    let mut history = tarn_types::history::History::new();
    history.apply(0, &Event::Started(Box::new(s)), &[]);
    let text = history.explain(&expected);
    assert!(
        text.contains("38.15 MiB on their way to the external store") && !text.contains("slower"),
        "{text}"
    );
}

/// Lets every transfer fail until nothing more is ordered; how many were.
fn all_fail(hand: &mut Hand, mut actions: Vec<Action>, kind: RunErrorKind) -> usize {
    let mut count = 0;
    loop {
        let ordered = transfers_in(&actions);
        if ordered.is_empty() {
            return count;
        }
        count += ordered.len();
        assert!(count < 100, "it tries for ever");
        actions = ordered
            .iter()
            .flat_map(|t| hand.failed(t.id, kind))
            .collect();
    }
}

#[test]
fn an_external_store_that_takes_nothing_ends_the_run() {
    let mut s = tight();
    s.options.policy = policy("stage-through");
    for (kind, tries) in [(RunErrorKind::NoSpace, 3), (RunErrorKind::Escape, 1)] {
        let (mut hand, begun) = Hand::begin(&s);
        let one = runs_in(&begun).remove(0);
        let after = hand.commits(&one, Some((0, 40 * MB)), 1);
        assert_eq!(transfers_in(&after)[0].to, Place::Drained);
        let two = runs_in(&after);
        assert!(two.is_empty(), "there is no room yet");
        assert_eq!(all_fail(&mut hand, after, kind), tries);
        assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
    }
}

#[test]
fn what_goes_to_its_dest_after_a_failure_is_not_rescued_as_well() {
    let text = "name = \"w\"\nexternal = \"/ext\"\n[data.a]\ndest = \"/a\"\non_failure = \"drain\"\n[[step]]\nname = \"make\"\nrun = \"x\"\nout = \"a\"\n[[step]]\nname = \"fail\"\nrun = \"y\"\n";
    let mut s = start(workflow(text), cluster(1, 2, &[100 * MB]), policy("data"));
    // With `fail_fast` a delivery is tried once after a failure; otherwise as if nothing had failed.
    let cases = [true, false].map(|fast| [(fast, false), (fast, true)]);
    for (fail_fast, delivery_fails) in cases.into_iter().flatten() {
        s.options.fail_fast = fail_fast;
        let (mut hand, begun) = Hand::begin(&s);
        let runs = runs_in(&begun);
        hand.fails(&runs[1], RunErrorKind::Exit);
        let out = transfers_in(&hand.commits(&runs[0], Some((0, MB)), 1));
        let places = |ts: &[tarn_types::part::Transfer]| -> Vec<Place> {
            ts.iter().map(|t| t.to.clone()).collect()
        };
        let to = |path: &str| Place::External(Path::new(path).into());
        assert_eq!(places(&out), [to("/a")]);
        let kind = match fail_fast {
            true => RunErrorKind::Io,
            false => RunErrorKind::Escape,
        };
        let next = match delivery_fails {
            true => hand.failed(out[0].id, kind),
            false => hand.brought(&out[0], MB),
        };
        let mut rescue = transfers_in(&next);
        if rescue.is_empty() {
            // The part rests for a while after a failure.
            rescue = transfers_in(&hand.step(Event::Timer));
        }
        match delivery_fails {
            true => {
                assert_eq!(places(&rescue), [to("/ext/rescued-test-1/a")]);
                hand.failed(rescue[0].id, RunErrorKind::Io);
            }
            false => assert_eq!(places(&rescue), []),
        }
        assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
    }
}

#[test]
fn what_asks_for_it_is_brought_out_before_a_run_ends_in_order() {
    let text = "name = \"w\"\nexternal = \"/ext\"\n[data.a]\non_failure = \"drain\"\n[data.b]\n[[step]]\nname = \"make\"\nrun = \"x\"\nout = [\"a\"]\n[[step]]\nname = \"plain\"\nrun = \"x\"\nout = [\"b\"]\n[[step]]\nname = \"long\"\nrun = \"y\"\nin = [\"a\", \"b\"]\n";
    let s = start(workflow(text), cluster(1, 2, &[100 * MB]), policy("data"));
    // SIGTERM; the same twice; SIGINT.
    for (signals, drains) in [(&[15][..], true), (&[15, 15], true), (&[2], false)] {
        let (mut hand, begun) = Hand::begin(&s);
        let runs = runs_in(&begun);
        hand.commits(&runs[0], Some((0, MB)), 1);
        let long = runs_in(&hand.commits(&runs[1], Some((1, MB)), 2)).remove(0);
        let mut actions = hand.step(Event::Interrupted { signal: signals[0] });
        let out = transfers_in(&actions);
        assert_eq!(out.len(), usize::from(drains), "{actions:?}");
        if let Some(out) = out.first() {
            assert_eq!(
                out.to,
                Place::External(Path::new("/ext/rescued-test-1/a").into())
            );
            hand.fails(&long, RunErrorKind::Cancelled);
            assert_eq!(hand.engine.outcome(), None, "it is under way");
            if signals.len() > 1 {
                actions = hand.step(Event::Interrupted { signal: 15 });
                let abandoned = |a: &Action| matches!(a.what, Do::Abandon { id } if id == out.id);
                assert!(actions.iter().any(abandoned), "{actions:?}");
                hand.failed(out.id, RunErrorKind::Cancelled);
            } else {
                hand.brought(out, MB);
            }
        } else {
            hand.fails(&long, RunErrorKind::Cancelled);
        }
        let last = *signals.last().unwrap();
        assert_eq!(hand.engine.outcome(), Some(Outcome::Interrupted(last)));
    }
}
