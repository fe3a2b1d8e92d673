//! Steps that do not need the failed one continue; `fail_fast` starts nothing new.

mod common;

use common::{
    Hand, MB, cluster, data, estimates, history, instance, policy, resumed, runs_in, simulate_in,
    source, start, transfers_in, workflow,
};
use tarn_ports::Record;
use tarn_simulator::{FaultPlan, Simulation};
use tarn_types::action::{Action, AttemptSpec, Do, Outcome, Subject};
use tarn_types::event::{AttemptOutcome, Event, Output, RunErrorKind, Start, Undeclared};
use tarn_types::hash::Hash;
use tarn_types::id::StepId;
use tarn_types::part::{PartClass, PartInfo, StoreKey, TransferKind};
use tarn_types::reason::{NotStarted, Reason};

/// Four samples, one at a time; their sum and its successor; and two steps that need none of them.
const SAMPLES: &str = "name = \"w\"\n[data.mid]\n[data.sum]\n[data.plot]\ndest = \"/plot\"\n[data.side]\n[data.end]\ndest = \"/end\"\n\
    [[step]]\nname = \"each\"\nforeach = [\"1\", \"2\", \"3\", \"4\"]\nrun = \"x\"\nout = \"mid\"\n\
    [[step]]\nname = \"sum\"\nrun = \"x\"\nin = \"mid\"\nout = \"sum\"\n\
    [[step]]\nname = \"plot\"\nrun = \"x\"\nin = \"sum\"\nout = \"plot\"\n\
    [[step]]\nname = \"side\"\nrun = \"x\"\nout = \"side\"\n\
    [[step]]\nname = \"end\"\nrun = \"x\"\nin = \"side\"\nout = \"end\"\n";

fn samples(fail_fast: bool) -> Start {
    let mut s = start(
        workflow(SAMPLES),
        cluster(1, 1, &[100 * MB]),
        policy("data"),
    );
    s.options.fail_fast = fail_fast;
    s
}

/// Runs one after the other; the first sample fails. Returns the instances that ran, in order, and all actions.
fn first_sample_fails(hand: &mut Hand, begun: Vec<Action>) -> (Vec<(u32, u32)>, Vec<Action>) {
    let (mut ran, mut all, mut new) = (Vec::new(), Vec::new(), begun);
    loop {
        all.extend(new.iter().cloned());
        let (runs, moves) = (runs_in(&new), transfers_in(&new));
        if runs.is_empty() && moves.is_empty() {
            return (ran, all);
        }
        new = Vec::new();
        for t in moves {
            new.extend(hand.brought(&t, MB));
        }
        for run in runs {
            let id = (run.instance.step.0, run.instance.index);
            ran.push(id);
            new.extend(match id {
                (0, 0) => hand.fails(&run, RunErrorKind::Exit),
                (step, _) => hand.commits(&run, Some((step, MB)), 1),
            });
        }
    }
}

fn notes(actions: &[Action], about: Subject) -> Vec<&Reason> {
    let of = |a: &&Action| matches!(a.what, Do::Note { about: it } if it == about);
    actions.iter().filter(of).map(|a| &a.why).collect()
}

#[test]
fn what_does_not_need_what_failed_goes_on_and_the_end_names_both() {
    let (mut hand, begun) = Hand::begin(&samples(false));
    let (ran, all) = first_sample_fails(&mut hand, begun);
    let mut sorted = ran.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [(0, 0), (0, 1), (0, 2), (0, 3), (3, 0), (4, 0)]);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
    let failed = Subject::Instance(instance(0, 0));
    assert!(
        matches!(notes(&all, failed)[..], [Reason::GaveUp { message }] if message.contains("step each failed")),
        "{all:?}"
    );
    for step in [1, 2] {
        let not_run = Reason::NotRun {
            needs: failed,
            not_started: None,
        };
        assert_eq!(notes(&all, Subject::Step(StepId(step))), [&not_run]);
    }
    let end = Reason::Incomplete {
        failed: vec![failed],
        failures: 1,
        not_run: vec![StepId(1), StepId(2)],
        steps: 2,
    };
    assert_eq!(notes(&all, Subject::Run), [&end]);
    assert_eq!(all.last().map(|a| &a.why), Some(&end));
    // The outputs that go out went out, after the failure.
    let out = transfers_in(&all);
    let out: Vec<_> = out
        .iter()
        .filter(|t| t.kind == TransferKind::ExternalOut)
        .collect();
    assert_eq!(out.iter().map(|t| t.data).collect::<Vec<_>>(), [data(4)]);
}

#[test]
fn fail_fast_starts_nothing_new() {
    let (mut hand, begun) = Hand::begin(&samples(true));
    let (ran, all) = first_sample_fails(&mut hand, begun);
    assert_eq!(ran.iter().filter(|id| **id == (0, 0)).count(), 1);
    let last = ran.last();
    assert_eq!(
        last,
        Some(&(0, 0)),
        "nothing began after the failure: {ran:?}"
    );
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
    let about = Subject::Instance(instance(0, 0));
    assert_eq!(
        all.last().map(|a| &a.why),
        Some(&Reason::AfterFailure { about })
    );
    for step in [1, 2] {
        let not_run = Reason::NotRun {
            needs: about,
            not_started: None,
        };
        assert_eq!(notes(&all, Subject::Step(StepId(step))), [&not_run]);
    }
}

#[test]
fn a_run_that_went_on_is_resumed_with_what_failed() {
    let s = samples(false);
    let p = simulate_in(
        &s,
        Simulation::new(&s, estimates(MB)).with_faults(only_first_fails()),
    );
    assert_eq!(
        (p.outcome, p.runs().len()),
        (Outcome::Failed, 6),
        "{}",
        p.trace()
    );
    // From the end, and from any instant before.
    for cut in 1..=p.records.len() {
        let ran = resume(&s, &p.records[..cut]);
        assert_eq!(ran, 8 - done_in(&p.records[..cut]), "cut at {cut}");
    }
}

/// Instances that are done.
fn done_in(records: &[Record]) -> usize {
    let history = history(records);
    let all = history.instances.values();
    all.filter(|i| i.state.is_done()).count()
}

/// Resumes from these records; nothing fails any more. How many attempts that takes.
fn resume(s: &Start, records: &[Record]) -> usize {
    let actions = resumed(s, estimates(MB), records);
    let runs = actions.iter().filter(|a| matches!(a.what, Do::Run(_)));
    runs.count()
}

#[test]
fn a_log_of_a_version_that_stopped_at_every_failure_is_resumed() {
    let s = samples(true);
    let (faults, whole) = (only_first_fails(), samples(false));
    let p = simulate_in(&s, Simulation::new(&s, estimates(MB)).with_faults(faults));
    assert_eq!(p.outcome, Outcome::Failed);
    let mut records = p.records;
    records[0].event = Event::Started(Box::new(whole.clone()));
    records.iter_mut().for_each(|r| r.engine = 9);
    for cut in 1..=records.len() {
        let ran = resume(&whole, &records[..cut]);
        assert_eq!(ran, 8 - done_in(&records[..cut]), "cut at {cut}");
    }
}

/// Faults by which the first sample fails, and nothing else.
fn only_first_fails() -> FaultPlan {
    let plan = |seed| FaultPlan {
        seed,
        step_failure_probability: 0.15,
        ..FaultPlan::default()
    };
    let s = samples(false);
    let fits = |seed: &u64| {
        let p = simulate_in(
            &s,
            Simulation::new(&s, estimates(MB)).with_faults(plan(*seed)),
        );
        let gave_up = p.actions().filter_map(|a| match (&a.what, &a.why) {
            (Do::Note { about }, Reason::GaveUp { .. }) => Some(*about),
            _ => None,
        });
        gave_up.collect::<Vec<_>>() == [Subject::Instance(instance(0, 0))]
    };
    plan((0..1000).find(fits).expect("a seed"))
}

#[test]
fn a_source_that_cannot_be_read_fails_who_needs_it_alone() {
    let text = "name = \"w\"\n[data.good]\nsource = \"/good\"\n[data.bad]\nsource = \"/bad\"\n[data.a]\n[data.b]\n\
        [[step]]\nname = \"reads-bad\"\nrun = \"x\"\nin = \"bad\"\nout = \"a\"\n\
        [[step]]\nname = \"reads-good\"\nrun = \"x\"\nin = \"good\"\nout = \"b\"\n";
    for (fail_fast, kind) in [
        (false, RunErrorKind::Io),
        (false, RunErrorKind::SourceChanged),
        (true, RunErrorKind::Escape),
    ] {
        let mut s = start(workflow(text), cluster(1, 1, &[100 * MB]), policy("data"));
        s.options.fail_fast = fail_fast;
        let (mut hand, _) = Hand::begin(&s);
        hand.listed(0, source(None, MB));
        let mut new = hand.listed(1, source(Some(3), MB));
        let (mut ran, mut all) = (Vec::new(), Vec::new());
        for _ in 0..40 {
            all.extend(new.iter().cloned());
            let (moves, runs) = (transfers_in(&new), runs_in(&new));
            new = hand.step(Event::Timer);
            for t in moves {
                new.extend(match t.data == data(1) {
                    true => hand.failed(t.id, kind),
                    false => hand.brought(&t, MB),
                });
            }
            for run in runs {
                ran.push(run.instance);
                new.extend(hand.commits(&run, Some((run.instance.step.0 + 2, MB)), 1));
            }
        }
        assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
        if !fail_fast {
            assert_eq!(ran, [instance(1, 0)], "{all:?}");
            let reasons = notes(&all, Subject::Instance(instance(0, 0)));
            assert!(
                matches!(reasons[..], [Reason::GaveUp { message }] if message.contains("step reads-bad failed: moving bad failed")),
                "{reasons:?}"
            );
        }
    }
}

#[test]
fn a_dest_that_takes_nothing_holds_up_no_step() {
    let text = "name = \"w\"\n[data.a]\ndest = \"/full\"\n[data.b]\ndest = \"/b\"\n\
        [[step]]\nname = \"one\"\nrun = \"x\"\nout = \"a\"\n\
        [[step]]\nname = \"two\"\nrun = \"x\"\nin = \"a\"\nout = \"b\"\n";
    let s = start(workflow(text), cluster(1, 1, &[100 * MB]), policy("data"));
    let (mut hand, begun) = Hand::begin(&s);
    let one = runs_in(&begun).remove(0);
    let after = hand.commits(&one, Some((0, MB)), 1);
    let two = runs_in(&after).remove(0);
    let out = transfers_in(&after).remove(0);
    hand.failed(out.id, RunErrorKind::Escape);
    assert_eq!(hand.engine.outcome(), None);
    let after = hand.commits(&two, Some((1, MB)), 1);
    let out = transfers_in(&after);
    assert_eq!(out.iter().map(|t| t.data).collect::<Vec<_>>(), [data(1)]);
    let end = hand.brought(&out[0], MB);
    let end = [end, hand.step(Event::Timer)].concat();
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
    let reasons = notes(&end, Subject::Run);
    assert!(
        matches!(reasons[..], [Reason::Incomplete { failed, failures: 1, .. }] if *failed == [Subject::Data(data(0))]),
        "{reasons:?}"
    );
}

#[test]
fn steps_that_no_node_can_run_hold_up_no_other() {
    let text = "name = \"w\"\n[data.a]\n[data.b]\n\
        [[step]]\nname = \"large\"\ncores = 64\nrun = \"x\"\nout = \"a\"\n\
        [[step]]\nname = \"small\"\nrun = \"x\"\nout = \"b\"\n";
    let s = start(workflow(text), cluster(1, 1, &[100 * MB]), policy("fcfs"));
    let p = simulate_in(&s, Simulation::new(&s, estimates(MB)));
    assert_eq!(p.outcome, Outcome::Failed);
    assert_eq!((p.runs_of(0), p.runs_of(1)), (0, 1), "{}", p.trace());
    assert!(
        p.failure().contains("asks for 1 node(s) with 64 core(s)"),
        "{}",
        p.failure()
    );
}

/// `a` is changed in place; the failed step has nothing to do with it.
const CHANGED: &str = "name = \"w\"\n[data.a]\nsize = \"20 MB\"\ndest = \"/a\"\non_failure = \"drain\"\n\
    [data.seen]\n[data.b]\nsize = \"50 MB\"\n\
    [[step]]\nname = \"bad\"\nrun = \"x\"\n\
    [[step]]\nname = \"mka\"\nrun = \"x\"\nout = \"a\"\n\
    [[step]]\nname = \"chg\"\nrun = \"x\"\ninout = \"a\"\n\
    [[step]]\nname = \"wait\"\nrun = \"x\"\nin = \"a\"\nout = \"seen\"\n\
    [[step]]\nname = \"mkb\"\nrun = \"x\"\nafter = \"wait\"\nout = \"b\"\n";

#[test]
fn after_a_failure_an_old_version_is_in_nobody_s_way() {
    let s = start(workflow(CHANGED), cluster(1, 2, &[64 * MB]), policy("data"));
    let (mut hand, begun) = Hand::begin(&s);
    let (mut ran, mut gone, mut new) = (Vec::new(), Vec::new(), begun);
    let mut all = Vec::new();
    loop {
        all.extend(new.iter().cloned());
        gone.extend(new.iter().filter_map(|a| match &a.what {
            Do::Evict { part, .. } if part.data == data(0) => Some((part.version, ran.len())),
            _ => None,
        }));
        let (runs, moves) = (runs_in(&new), transfers_in(&new));
        if runs.is_empty() && moves.is_empty() {
            break;
        }
        new = Vec::new();
        for t in moves {
            new.extend(hand.brought(&t, 20 * MB));
        }
        for run in runs {
            let step = run.instance.step.0;
            ran.push(step);
            new.extend(match step {
                0 => hand.fails(&run, RunErrorKind::Exit),
                1 => hand.commits(&run, Some((0, 20 * MB)), 1),
                2 => hand.commits_version(&run, Some((0, 2, 20 * MB)), 2),
                3 => hand.commits(&run, Some((1, MB)), 1),
                _ => hand.commits(&run, Some((2, 50 * MB)), 1),
            });
        }
    }
    assert_eq!(ran.last(), Some(&4), "{all:?}");
    // The pre-image stays until the step that changes it has committed.
    let chg = ran.iter().position(|step| *step == 2).expect("it runs");
    assert_eq!(gone.first(), Some(&(1, chg + 1)), "{gone:?}");
}

/// A run commits four entries.
fn four_entries(run: &AttemptSpec) -> AttemptOutcome {
    let entry = |info: PartInfo| {
        let key = StoreKey(format!("{}.{}", run.store, info.seq));
        let hash = Some(Hash(u128::from(info.seq)));
        (PartInfo { hash, key, ..info }, vec![run.nodes[0]])
    };
    let parts = source(Some(4), MB).into_iter().map(entry).collect();
    AttemptOutcome::Committed {
        outputs: vec![Output {
            data: data(0),
            version: 1,
            parts,
        }],
        undeclared: Undeclared::default(),
    }
}

/// Four parts of a dataset that is to be rescued, two of which have left before something fails.
#[test]
fn what_is_left_of_a_version_is_held_for_a_rescue_and_the_rest_is_told() {
    let text = "name = \"w\"\nexternal = \"/x\"\n[data.a]\non_failure = \"drain\"\n[data.o]\n\
        [[step]]\nname = \"make\"\nrun = \"x\"\nout = \"a\"\n\
        [[step]]\nname = \"use\"\nforeach = \"a/*\"\nmax = 4\nrun = \"x\"\nin = \"a/{item}\"\nout = \"o\"\n";
    let s = start(workflow(text), cluster(1, 1, &[100 * MB]), policy("data"));
    let (mut hand, mut new) = Hand::begin(&s);
    let (mut used, mut gone) = (0, 0);
    while let Some(run) = runs_in(&new).into_iter().next() {
        new = match run.instance.step.0 {
            0 => hand.ended(&run, four_entries(&run)),
            _ => {
                used += 1;
                match used {
                    3 => hand.fails(&run, RunErrorKind::Exit),
                    _ => hand.commits(&run, Some((1, MB)), 1),
                }
            }
        };
        let left = |a: &&Action| matches!(a.what, Do::Evict { part, .. } if part.data == data(0));
        gone += new.iter().filter(left).count();
    }
    assert_eq!((used, gone), (4, 2));
    let rescue = transfers_in(&new);
    let moved = rescue.iter().flat_map(|t| &t.parts).map(|m| m.part.seq);
    assert_eq!(moved.collect::<Vec<_>>(), [2, 3], "{new:?}");
    let end = hand.brought(&rescue[0], MB);
    let message = end.iter().find_map(|a| match &a.why {
        Reason::RescuedInPart { message } => Some(message.as_str()),
        _ => None,
    });
    assert!(
        message.is_some_and(|m| m.starts_with(
            "2 of its 4 parts were copied; no node holds the other 2 any more. tarn may"
        )),
        "{end:?}"
    );
}

/// One sample after the other; the second fails, and the reader of the first alone could have been started.
#[test]
fn after_fail_fast_what_was_not_started_is_told_from_what_lacks_its_input() {
    let text = "name = \"w\"\n[data.a]\n[data.b]\n\
        [[step]]\nname = \"mka\"\nforeach = [\"1\", \"2\"]\nrun = \"x\"\nout = \"a\"\n\
        [[step]]\nname = \"mkb\"\nforeach = [\"1\", \"2\"]\nrun = \"x\"\nin = \"a/{item}\"\nout = \"b\"\n";
    let mut s = start(workflow(text), cluster(1, 1, &[100 * MB]), policy("data"));
    s.options.fail_fast = true;
    let (mut hand, mut new) = Hand::begin(&s);
    let mut all = new.clone();
    while let Some(run) = runs_in(&new).into_iter().next() {
        new = match (run.instance.step.0, run.instance.index) {
            (0, 0) => hand.ended(&run, first_entry(&run)),
            (0, _) => hand.fails(&run, RunErrorKind::Exit),
            other => panic!("{other:?} runs: {all:?}"),
        };
        all.extend(new.iter().cloned());
    }
    let about = Subject::Instance(instance(0, 1));
    let expected = Reason::NotRun {
        needs: about,
        not_started: Some(NotStarted {
            need_it: 1,
            instances: 1,
            after: about,
        }),
    };
    assert_eq!(
        notes(&all, Subject::Step(StepId(1))),
        [&expected],
        "{all:?}"
    );
}

/// A run commits its own entry.
fn first_entry(run: &AttemptSpec) -> AttemptOutcome {
    let info = source(None, MB).remove(0);
    let info = PartInfo {
        class: PartClass::Entry("1".into()),
        hash: Some(Hash(1)),
        key: StoreKey(format!("{}.0", run.store)),
        ..info
    };
    AttemptOutcome::Committed {
        outputs: vec![Output {
            data: data(0),
            version: 1,
            parts: vec![(info, vec![run.nodes[0]])],
        }],
        undeclared: Undeclared::default(),
    }
}
