//! Recovery and reruns: a log cut anywhere continues to the same end; an unchanged step is not run again; lost data is
//! made again; faults of every kind end in success or in a stated failure, never in a hang.

mod common;
use common::*;
use std::collections::{BTreeMap, BTreeSet};
use tarn_engine::{drive, replay};
use tarn_ports::Record;
use tarn_simulator::{FaultPlan, Keeps, Outage, Simulation};
use tarn_types::action::{AttemptSpec, Do, Outcome};
use tarn_types::event::{
    AttemptOutcome, Event, Output, PriorDest, PriorInstance, RunErrorKind, Start, Undeclared,
};
use tarn_types::hash::Hash;
use tarn_types::history::History;
use tarn_types::id::{InstanceId, NodeId};
use tarn_types::part::{PartClass, PartInfo, PartRef, Place, StoreKey, TransferKind};
use tarn_types::policy::Policy;
use tarn_types::reason::Reason;

const DIAMOND: &str = r#"
name = "diamond"
external = "/ext"
[data.raw]
source = "/src"
[data.left]
[data.right]
[data.parts]
[data.sum]
dest = "/sum"
[[step]]
name = "l"
run = "l"
in = "raw"
out = "left"
[[step]]
name = "r"
run = "r"
in = "raw"
out = "right"
[[step]]
name = "f"
run = "f"
foreach = ["a", "b", "c"]
in = ["left", "right"]
out = "parts"
[[step]]
name = "change"
run = "c"
inout = "left"
in = "parts"
[[step]]
name = "sum"
run = "s"
in = ["left", "parts"]
out = "sum"
"#;

fn diamond(policy: Policy) -> Start {
    start(
        workflow(DIAMOND),
        cluster(2, 2, &[500 * MB, 2000 * MB]),
        policy,
    )
}

fn diamond_world(s: &Start) -> Simulation {
    let mut e = estimates(10 * MB);
    e.sources.insert(data(0), Ok(source(None, 50 * MB)));
    Simulation::new(s, e)
}

fn committed(records: &[Record]) -> BTreeSet<InstanceId> {
    let done = records.iter().filter_map(|r| match &r.event {
        Event::Ended {
            instance,
            ended: AttemptOutcome::Committed { .. },
            ..
        } => Some(*instance),
        _ => None,
    });
    done.collect()
}

fn history(records: &[Record]) -> History {
    let mut h = History::new();
    records
        .iter()
        .for_each(|r| h.apply(r.now, &r.event, &r.actions));
    h
}

/// Goes on from the first `cut` records in a world that has the replicas which the engine believes in, without
/// those that `lost` names.
fn go_on(s: &Start, records: &[Record], lost: impl Fn(usize) -> bool) -> (Outcome, Vec<Record>) {
    let (mut engine, seq, now) = replay(records);
    let mut sim = diamond_world(s).starting_at(now);
    let h = history(records);
    let mut found = Vec::new();
    for (i, (part, _, place)) in engine.replicas().into_iter().enumerate() {
        let info = h.parts.get(&part).expect("it was made").clone();
        if !lost(i) && sim.put(part, info, place.clone()) {
            found.push((part, place));
        }
    }
    let mut journal = Memory(records.to_vec());
    let outcome = drive(
        &mut engine,
        &mut sim,
        &mut journal,
        Event::Resumed {
            found,
            pinned: Vec::new(),
            set_aside: None,
        },
        seq,
        &mut |_| {},
    );
    (outcome.expect("the loop"), journal.0)
}

#[test]
fn a_log_cut_anywhere_goes_on_and_repeats_no_committed_step() {
    let names = ["data", "stage-through", "easy+cache", "same-nodes", "fcfs"];
    for policy in names.map(policy) {
        let s = diamond(policy);
        let whole = simulate_in(&s, diamond_world(&s));
        assert_eq!(whole.outcome, Outcome::Done, "{}", whole.failure());
        for cut in 1..whole.records.len() {
            let before = &whole.records[..cut];
            let (outcome, all) = go_on(&s, before, |_| false);
            assert_eq!(outcome, Outcome::Done, "{policy:?} cut at {cut}");
            let again: Vec<_> = all[cut..]
                .iter()
                .flat_map(|r| &r.actions)
                .filter_map(|a| match &a.what {
                    Do::Run(run) => Some(run.instance),
                    _ => None,
                })
                .filter(|i| committed(before).contains(i))
                .collect();
            assert!(
                again.is_empty(),
                "{policy:?} cut at {cut}: {again:?} ran again"
            );
        }
    }
}

#[test]
fn a_log_with_a_lost_node_cut_anywhere_goes_on() {
    for name in ["data", "stage-through", "easy+cache"] {
        let s = diamond(policy(name));
        let calm = simulate_in(&s, diamond_world(&s)).end();
        for (tenth, keeps) in [(2, Keeps::Nothing), (5, Keeps::All), (8, Keeps::Half(1))] {
            let mut sim = diamond_world(&s);
            let lasts = Some(calm / 4);
            sim.lose_node(calm * tenth / 10, NodeId(0), Outage { lasts, keeps });
            let whole = simulate_in(&s, sim);
            assert_eq!(whole.outcome, Outcome::Done, "{}", whole.failure());
            let lost = |r: &Record| matches!(r.event, Event::NodeLost { .. });
            assert!(whole.records.iter().any(lost));
            for cut in 1..whole.records.len() {
                let (outcome, _) = go_on(&s, &whole.records[..cut], |_| false);
                assert_eq!(outcome, Outcome::Done, "{name}, {keeps:?}, cut at {cut}");
            }
        }
    }
}

#[test]
fn lost_replicas_are_made_again() {
    for name in ["data", "stage-through", "easy+cache", "same-nodes+cache"] {
        let s = diamond(policy(name));
        let whole = simulate_in(&s, diamond_world(&s));
        for cut in 1..whole.records.len() {
            for keep in [0, 2, 3] {
                let lost = |i| keep == 0 || i % keep == 0;
                let (outcome, all) = go_on(&s, &whole.records[..cut], lost);
                assert_eq!(
                    outcome,
                    Outcome::Done,
                    "{name}, cut at {cut}, keeping every {keep}th"
                );
                assert!(all.len() > cut);
            }
        }
    }
}

#[test]
fn a_replayed_state_decides_as_the_original_did() {
    for name in ["data", "easy+cache", "same-nodes", "fcfs"] {
        let s = diamond(policy(name));
        let whole = simulate_in(&s, diamond_world(&s));
        for cut in 1..whole.records.len() {
            let (mut engine, _, _) = replay(&whole.records[..cut]);
            let next = &whole.records[cut];
            let mut actions = Vec::new();
            engine.step(next.now, &next.event, &mut actions);
            assert_eq!(actions, next.actions, "record {cut}");
        }
    }
}

#[test]
fn two_runs_of_one_start_are_the_same() {
    let s = diamond(policy("data"));
    assert_eq!(
        simulate_in(&s, diamond_world(&s)).records,
        simulate_in(&s, diamond_world(&s)).records
    );
}

/// The records of this run that the next one gets.
fn prior_of(records: &[Record]) -> Vec<PriorInstance> {
    let h = history(records);
    let mut all = Vec::new();
    let mut identities = BTreeMap::new();
    for a in records.iter().flat_map(|r| &r.actions) {
        if let Do::Run(run) = &a.what {
            identities.insert(run.instance, run.identity);
        }
    }
    for r in records {
        if let Event::Ended {
            instance,
            ended: AttemptOutcome::Committed { outputs, .. },
            ..
        } = &r.event
        {
            all.push(PriorInstance {
                identity: identities[instance],
                outputs: outputs.clone(),
                held: Vec::new(),
            });
        }
    }
    assert!(h.start.is_some());
    all
}

fn with_hashes(mut s: Start, first: &SimulatedRun) -> (Start, Simulation) {
    s.prior = prior_of(&first.records);
    s.run = "test-2".into();
    let h = history(&first.records);
    let mut parts = source(None, 50 * MB);
    for p in &mut parts {
        let name = tarn_types::part::PartRef {
            data: data(0),
            version: 0,
            origin: 0,
            seq: p.seq,
        };
        p.hash = h.parts[&name].hash;
    }
    let mut e = estimates(10 * MB);
    e.sources.insert(data(0), Ok(parts));
    let sim = Simulation::new(&s, e);
    (s, sim)
}

#[test]
fn an_unchanged_workflow_runs_nothing() {
    let s = diamond(policy("data"));
    let first = simulate_in(&s, diamond_world(&s));
    let h = history(&first.records);
    let hash = h.version_hash(data(4), 1).expect("it was read");
    let (mut again, _) = with_hashes(s, &first);
    again.prior_dest = vec![PriorDest {
        data: data(4),
        hash,
    }];
    let (again, sim) = with_hashes(again, &first);
    let second = simulate_in(&again, sim);
    assert_eq!(second.outcome, Outcome::Done);
    assert!(second.runs().is_empty(), "{}", second.trace());
    assert_eq!(
        second.moved(TransferKind::ExternalIn) + second.moved(TransferKind::ExternalOut),
        0
    );
}

#[test]
fn a_missing_dest_is_made_again_from_the_start_it_needs() {
    let s = diamond(policy("data"));
    let first = simulate_in(&s, diamond_world(&s));
    let (again, sim) = with_hashes(s, &first);
    let second = simulate_in(&again, sim);
    assert_eq!(second.outcome, Outcome::Done, "{}", second.trace());
    assert!(
        second
            .reasons()
            .any(|r| matches!(r, Reason::OutputLost { .. }))
    );
    assert_eq!(second.moved(TransferKind::ExternalOut), 10 * MB);
}

#[test]
fn random_faults_end_in_success_or_a_stated_failure() {
    let mut done = 0;
    for seed in 0..300 {
        let names = [
            "data",
            "stage-through",
            "easy+cache",
            "same-nodes",
            "fcfs",
            "sjf-easy+cache",
        ];
        let mut s = diamond(policy(names[seed as usize % names.len()]));
        for step in &mut s.workflow.steps {
            step.retries = 3;
        }
        let faults = FaultPlan {
            seed,
            transfer_failure_probability: 0.1,
            step_failure_probability: 0.15,
            ..FaultPlan::default()
        };
        let p = simulate_in(&s, diamond_world(&s).with_faults(faults));
        match p.outcome {
            Outcome::Done => {
                done += 1;
                assert_eq!(
                    p.sim.used(fast(0)) + p.sim.used(fast(1)),
                    0,
                    "seed {seed} leaves data behind"
                );
            }
            _ => assert!(
                !p.failure().is_empty() && !p.failure().contains("error in tarn"),
                "seed {seed}: {}",
                p.failure()
            ),
        }
    }
    assert!(
        done > 200,
        "only {done} of 300 succeeded with three retries"
    );
}

#[test]
fn an_interruption_stops_everything_and_resume_goes_on() {
    let s = diamond(policy("data"));
    let whole = simulate_in(&s, diamond_world(&s)).end();
    for tenth in 1..10 {
        let mut sim = diamond_world(&s);
        sim.inject(whole * tenth / 10, Event::Interrupted { signal: 2 });
        let p = simulate_in(&s, sim);
        assert_eq!(p.outcome, Outcome::Interrupted(2));
        let (outcome, _) = go_on(&s, &p.records, |_| false);
        assert_eq!(outcome, Outcome::Done, "interrupted at {tenth}/10");
    }
}

#[test]
fn a_failed_run_rescues_what_asks_for_it_and_keeps_the_rest() {
    let text = "name = \"w\"\nexternal = \"/ext\"\n[data.a]\non_failure = \"drain\"\n[data.b]\n[[step]]\nname = \"make\"\nrun = \"x\"\nout = \"a\"\n[[step]]\nname = \"other\"\nrun = \"x\"\nout = \"b\"\n[[step]]\nname = \"fail\"\nrun = \"x\"\nin = [\"a\", \"b\"]\n";
    let s = start(workflow(text), cluster(1, 1, &[100 * MB]), policy("data"));
    for seed in 0..50 {
        let faults = FaultPlan {
            seed,
            transfer_failure_probability: 0.0,
            step_failure_probability: 0.4,
            ..FaultPlan::default()
        };
        let p = simulate_in(&s, Simulation::new(&s, estimates(MB)).with_faults(faults));
        let made = committed(&p.records);
        if p.outcome != Outcome::Failed || !made.contains(&instance(0, 0)) {
            continue;
        }
        let rescued = p.actions().any(|a| matches!(&a.what, Do::Transfer(t) if matches!(&t.to, Place::External(to) if to.starts_with("/ext/rescued-test-1"))));
        assert!(rescued, "seed {seed}");
        assert_eq!(p.moved(TransferKind::ExternalOut), MB);
        assert!(p.sim.used(fast(0)) >= MB, "it also stays for `tarn resume`");
        return;
    }
    panic!("no seed failed after the first step");
}

#[test]
fn a_step_that_had_nothing_to_do_is_bound_anew_with_what_it_reads() {
    let text = r#"
name = "w"
[data.d]
[data.e]
[data.f]
[[step]]
name = "p"
run = "x"
out = ["d"]
[[step]]
name = "z"
run = "x"
out = ["e"]
[[step]]
name = "each"
foreach = "d/want*"
max = 10
allow_empty = true
run = "x"
in = ["d/{item}"]
out = ["f"]
[[step]]
name = "x"
run = "x"
in = ["d", "e"]
[[step]]
name = "y"
run = "x"
in = ["f"]
after = ["x"]
"#;
    let s = start(workflow(text), cluster(1, 2, &[100 * MB]), policy("data"));
    let part = |run: &AttemptSpec, seq: u32, name: &str| {
        let info = PartInfo {
            seq,
            class: PartClass::Entry(name.into()),
            hash: Some(Hash(u128::from(seq) + 1)),
            key: StoreKey(format!("{}.{seq}", run.store)),
            ..source(None, MB).remove(0)
        };
        (info, vec![run.nodes[0]])
    };
    let committed = |run: &AttemptSpec, of: u32, names: &[&str]| AttemptOutcome::Committed {
        outputs: vec![Output {
            data: data(of),
            version: 1,
            parts: (0..).zip(names).map(|(i, n)| part(run, i, n)).collect(),
        }],
        undeclared: Undeclared::default(),
    };
    let (mut hand, begun) = Hand::begin(&s);
    let runs = runs_in(&begun);
    hand.ended(&runs[0], committed(&runs[0], 0, &["other"]));
    let lost = PartRef {
        data: data(0),
        version: 1,
        origin: 0,
        seq: 0,
    };
    hand.step(Event::Evicted {
        part: lost,
        at: Place::Node(fast(0)),
    });
    let again = runs_in(&hand.commits(&runs[1], Some((1, MB)), 9));
    assert_eq!(
        steps_of(&again),
        [0],
        "what is lost and needed is made again"
    );
    let all = hand.ended(&again[0], committed(&again[0], 0, &["other", "wanted"]));
    let next = runs_in(&all);
    assert_eq!(steps_of(&next), [2, 3], "there is something to do for each");
    hand.ended(&next[0], committed(&next[0], 2, &["made"]));
    let last = runs_in(&hand.commits(&next[1], None, 0));
    assert_eq!(steps_of(&last), [4]);
    assert_eq!(last[0].views[0][0].len(), 1, "it reads what was made since");
    assert_eq!(hand.engine.outcome(), None);
    hand.commits(&last[0], None, 0);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Done));
}

fn steps_of(runs: &[AttemptSpec]) -> Vec<u32> {
    let mut steps: Vec<_> = runs.iter().map(|r| r.instance.step.0).collect();
    steps.sort_unstable();
    steps
}

#[test]
fn cancelled_attempts_are_no_retries() {
    let text = "name = \"w\"\n[[step]]\nname = \"a\"\nrun = \"x\"\nretries = 2\n";
    let s = start(workflow(text), cluster(1, 1, &[MB]), policy("data"));
    let (mut hand, mut actions) = Hand::begin(&s);
    let mut reasons = Vec::new();
    for kind in [
        RunErrorKind::Cancelled,
        RunErrorKind::Exit,
        RunErrorKind::Cancelled,
        RunErrorKind::Exit,
    ] {
        actions = hand.fails(&runs_in(&actions)[0], kind);
        let why = actions.iter().filter(|a| matches!(a.what, Do::Run(_)));
        reasons.extend(why.map(|a| a.why.clone()));
    }
    let retry = |attempt| Reason::Retry { attempt, of: 3 };
    assert_eq!(reasons, [Reason::Ready, retry(2), retry(2), retry(3)]);
}

/// Of several parts that go out together, the damaged one is made again; the others are not blamed.
#[test]
fn one_damaged_part_of_several_is_made_again_before_they_go_out() {
    let text = "name = \"w\"\n[data.o]\ndest = \"/o\"\n[[step]]\nname = \"a\"\nforeach = [\"1\", \"2\", \"3\"]\nrun = \"x\"\nout = \"o\"\n";
    let s = start(workflow(text), cluster(1, 3, &[100 * MB]), policy("data"));
    let (mut hand, begun) = Hand::begin(&s);
    let mut after = Vec::new();
    for (n, run) in (0..).zip(runs_in(&begun)) {
        after = hand.commits(&run, Some((0, MB)), n);
    }
    for at in [1, 2, 0, 1] {
        let delivery = transfers_in(&after).remove(0);
        assert_eq!(delivery.parts.len(), 3);
        let made = hand.finds_damaged(&delivery, at);
        let again = runs_in(&made);
        let [again] = &again[..] else {
            panic!("{made:?}")
        };
        assert_eq!(again.instance.index, delivery.parts[at].part.origin);
        after = hand.commits(again, Some((0, MB)), 9);
    }
    let delivery = transfers_in(&after).remove(0);
    hand.brought(&delivery, 3 * MB);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Done));
}

/// If nobody can find the damaged side, or the copy that was written is damaged, the transfer is tried again.
#[test]
fn what_goes_out_damaged_is_tried_again() {
    let text =
        "name = \"w\"\n[data.o]\ndest = \"/o\"\n[[step]]\nname = \"a\"\nrun = \"x\"\nout = \"o\"\n";
    let s = start(workflow(text), cluster(1, 1, &[100 * MB]), policy("data"));
    let (mut hand, begun) = Hand::begin(&s);
    let run = runs_in(&begun).remove(0);
    let mut after = hand.commits(&run, Some((0, MB)), 7);
    for _ in 0..2 {
        let delivery = transfers_in(&after).remove(0);
        after = hand.failed(delivery.id, RunErrorKind::Corrupt);
        assert!(after.is_empty(), "{after:?}");
        while after.is_empty() {
            after = hand.step(Event::Timer);
        }
    }
    let delivery = transfers_in(&after).remove(0);
    hand.failed(delivery.id, RunErrorKind::Corrupt);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
}

#[test]
fn a_dest_that_is_found_damaged_is_written_again() {
    let text = "name = \"w\"\nexternal = \"/ext\"\n[data.o]\ndest = \"/o\"\n[[step]]\nname = \"a\"\nrun = \"x\"\nout = \"o\"\n[[step]]\nname = \"b\"\nrun = \"x\"\nin = \"o\"\n";
    let s = start(
        workflow(text),
        cluster(1, 1, &[100 * MB]),
        policy("stage-through"),
    );
    let (mut hand, begun) = Hand::begin(&s);
    let mut a = runs_in(&begun).remove(0);
    for damaged in [true, false] {
        let delivery = transfers_in(&hand.commits(&a, Some((0, MB)), 7)).remove(0);
        let to = Place::External("/o".into());
        assert_eq!(delivery.to, to);
        let fetch = transfers_in(&hand.brought(&delivery, MB)).remove(0);
        assert_eq!(fetch.parts[0].from, to);
        let after = match damaged {
            true => hand.finds_damaged(&fetch, 0),
            false => hand.brought(&fetch, MB),
        };
        a = runs_in(&after).remove(0);
        assert_eq!(a.instance.step.0, u32::from(!damaged));
    }
    hand.commits(&a, None, 0);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Done));
}
