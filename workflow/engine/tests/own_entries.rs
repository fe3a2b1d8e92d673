//! An instance that reads an entry called after its element waits for the instance that makes it, and for no other.

mod common;

use common::{
    Hand, MB, SimulatedRun, cluster, data, estimates, history, instance, policy, resumed, runs_in,
    simulate, simulate_in, start, transfers_in, workflow,
};
use tarn_ports::Record;
use tarn_simulator::{Estimates, FaultPlan, Rules, SimEntry, Simulation};
use tarn_types::action::{Action, AttemptSpec, Do, Outcome, Subject};
use tarn_types::event::{AttemptOutcome, Event, Output, RunErrorKind, Start, Undeclared};
use tarn_types::hash::Hash;
use tarn_types::id::{InstanceId, NodeId, StepId};
use tarn_types::part::{PartClass, PartInfo, PartRef, Place, StoreKey};
use tarn_types::reason::Reason;
use tarn_types::units::SECOND;

const ALIGN: u32 = 0;
const CALL: u32 = 1;

/// Three samples, aligned and called; `more` is text of the later step.
fn text(more: &str) -> String {
    format!(
        "name = \"w\"\n[data.bam]\n[data.vcf]\ndest = \"/vcf\"\n\
         [[step]]\nname = \"align\"\nforeach = [\"a\", \"b\", \"c\"]\nrun = \"x\"\nout = \"bam\"\n\
         [[step]]\nname = \"call\"\nforeach = [\"a\", \"b\", \"c\"]\nrun = \"x\"\nin = \"bam/{{item}}.bam\"\nout = \"vcf\"\n{more}"
    )
}

fn samples(more: &str) -> Start {
    of(&text(more))
}

fn of(text: &str) -> Start {
    start(workflow(text), cluster(2, 3, &[100 * MB]), policy("data"))
}

/// The outputs that an instance writes to one of its datasets.
fn written(run: &AttemptSpec, of: u32, names: &[&str], hash: u128) -> AttemptOutcome {
    let part = |(seq, name): (u32, &&str)| {
        let info = PartInfo {
            seq,
            class: PartClass::Entry((*name).to_owned()),
            bytes: MB,
            stored: MB,
            files: 1,
            hash: Some(Hash(hash)),
            key: StoreKey(format!("{}.{seq}", run.store)),
        };
        (info, vec![run.nodes[0]])
    };
    let parts = (0..).zip(names).map(part).collect();
    AttemptOutcome::Committed {
        outputs: vec![Output {
            data: data(of),
            version: 1,
            parts,
        }],
        undeclared: Undeclared::default(),
    }
}

/// A part of the output of `align`.
fn part_of(origin: u32, seq: u32) -> PartRef {
    PartRef {
        data: data(0),
        version: 1,
        origin,
        seq,
    }
}

fn run_of(actions: &[Action], step: u32, index: u32) -> AttemptSpec {
    let all = runs_in(actions);
    let run = all
        .into_iter()
        .find(|r| r.instance == instance(step, index));
    run.unwrap_or_else(|| panic!("{step}[{index}] does not run: {actions:?}"))
}

fn ids(actions: &[Action]) -> Vec<InstanceId> {
    runs_in(actions).iter().map(|r| r.instance).collect()
}

fn left(actions: &[Action], of: u32) -> usize {
    let gone = |a: &&Action| matches!(&a.what, Do::Evict { part, .. } if part.data == data(of));
    actions.iter().filter(gone).count()
}

fn failure(actions: &[Action]) -> &str {
    let is_failure = |a: &&Action| matches!(a.why, Reason::Failed { .. } | Reason::GaveUp { .. });
    match actions.iter().find(is_failure).map(|a| &a.why) {
        Some(Reason::Failed { message } | Reason::GaveUp { message }) => message,
        _ => panic!("nothing failed: {actions:?}"),
    }
}

#[test]
fn an_instance_begins_as_soon_as_its_entry_is_there_and_where_it_is() {
    let (mut hand, begun) = Hand::begin(&samples(""));
    assert_eq!(ids(&begun).len(), 3);
    let b = run_of(&begun, ALIGN, 1);
    let new = hand.ended(&b, written(&b, 0, &["b.bam", "b.log"], 1));
    // The others are still being aligned.
    let call = run_of(&new, CALL, 1);
    assert_eq!(ids(&new), [call.instance]);
    assert_eq!(call.nodes[0].node, b.nodes[0].node);
    let views: Vec<_> = call.views.iter().flatten().flatten().collect();
    assert_eq!(views.len(), 1, "its own entry alone: {views:?}");
    assert_eq!((views[0].part.origin, views[0].part.seq), (1, 0));
    // The log is read by nobody, and the entry goes with its reader, though the dataset is not complete.
    assert_eq!(left(&new, 0), 1);
    let new = hand.ended(&call, written(&call, 1, &["b.vcf"], 2));
    assert_eq!(left(&new, 0), 1, "{new:?}");
    let a = run_of(&begun, ALIGN, 0);
    let new = hand.ended(&a, written(&a, 0, &["a.bam"], 3));
    assert_eq!(ids(&new), [instance(CALL, 0)]);
}

#[test]
fn after_makes_all_wait_for_all() {
    let (mut hand, begun) = Hand::begin(&samples("after = \"align\"\n"));
    let mut new = Vec::new();
    for (index, name) in [(0, "a.bam"), (1, "b.bam"), (2, "c.bam")] {
        assert!(ids(&new).is_empty(), "{new:?}");
        let run = run_of(&begun, ALIGN, index);
        new = hand.ended(&run, written(&run, 0, &[name], 1));
    }
    assert_eq!(ids(&new).len(), 3, "{new:?}");
}

#[test]
fn one_that_fails_keeps_its_own_element_from_the_later_steps_alone() {
    let more = "[data.sum]\n[data.plot]\n\
        [[step]]\nname = \"plot\"\nforeach = [\"c\", \"b\", \"a\"]\nrun = \"x\"\nin = \"vcf/{item}.vcf\"\nout = \"plot\"\n\
        [[step]]\nname = \"sum\"\nrun = \"x\"\nin = \"vcf\"\nout = \"sum\"\n";
    let text = text("").replace("dest = \"/vcf\"\n", "") + more;
    let (mut hand, begun) = Hand::begin(&of(&text));
    let (mut ran, mut all, mut new) = (Vec::new(), Vec::new(), begun);
    while !runs_in(&new).is_empty() || !transfers_in(&new).is_empty() {
        let (runs, moves) = (runs_in(&new), transfers_in(&new));
        all.append(&mut new);
        for t in moves {
            new.extend(hand.brought(&t, MB));
        }
        for run in runs {
            let (step, index) = (run.instance.step.0, run.instance.index);
            ran.push((step, index));
            let item = run.item.clone().unwrap_or_default();
            new.extend(match (step, index) {
                (ALIGN, 1) => hand.fails(&run, RunErrorKind::Exit),
                (ALIGN, _) => hand.ended(&run, written(&run, 0, &[&format!("{item}.bam")], 1)),
                (CALL, _) => hand.ended(&run, written(&run, 1, &[&format!("{item}.vcf")], 1)),
                _ => hand.ended(&run, written(&run, 3, &["x"], 1)),
            });
        }
    }
    all.extend(new);
    ran.sort_unstable();
    // `plot` goes through them the other way round.
    assert_eq!(
        ran,
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 2)]
    );
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
    let failed = Subject::Instance(instance(ALIGN, 1));
    // Each instance gets the reason for its missing input, through those between them too.
    let not_run = all.iter().filter_map(|a| match (&a.what, &a.why) {
        (
            Do::Note {
                about: Subject::Instance(id),
            },
            Reason::NotRun {
                needs,
                not_started: None,
            },
        ) => Some((*id, *needs)),
        _ => None,
    });
    let not_run: Vec<_> = not_run.collect();
    assert_eq!(
        not_run,
        [(instance(1, 1), failed), (instance(2, 1), failed)]
    );
    let end = Reason::Incomplete {
        failed: vec![failed],
        failures: 1,
        not_run: vec![StepId(1), StepId(2), StepId(3)],
        steps: 3,
    };
    assert_eq!(all.last().map(|a| &a.why), Some(&end), "{all:?}");
}

#[test]
fn the_partitions_of_a_shuffle_are_complete_with_the_last_one() {
    let mut s = samples("");
    s.cluster = cluster(1, 3, &[100 * MB]);
    let (mut hand, begun) = Hand::begin(&s);
    let names = ["a.bam", "b.bam", "c.bam"];
    let mut new = Vec::new();
    for index in [2, 0, 1] {
        assert!(ids(&new).is_empty(), "{new:?}");
        let run = run_of(&begun, ALIGN, index);
        new = hand.ended(&run, written(&run, 0, &names, index.into()));
    }
    assert_eq!(ids(&new).len(), 3, "{new:?}");
    for run in runs_in(&new) {
        let views: Vec<_> = run.views.iter().flatten().flatten().collect();
        assert_eq!(views.len(), 3, "of all three: {views:?}");
    }
}

#[test]
fn what_is_added_to_an_entry_that_was_read_fails_the_run_and_every_resume() {
    let s = samples("");
    let (mut hand, begun) = Hand::begin(&s);
    let a = run_of(&begun, ALIGN, 0);
    let new = hand.ended(&a, written(&a, 0, &["a.bam"], 1));
    let call = run_of(&new, CALL, 0);
    let b = run_of(&begun, ALIGN, 1);
    let new = hand.ended(&b, written(&b, 0, &["a.bam", "b.bam"], 2));
    let message = failure(&new);
    assert!(
        message.contains("align[b] has added to an entry of bam that call[a] had read before")
            && message.contains("write `after = [\"align\"]` in step call"),
        "{message}"
    );
    hand.ended(&call, written(&call, 1, &["a.vcf"], 3));
    let new = hand.step(Event::Resumed {
        found: Vec::new(),
        pinned: Vec::new(),
        set_aside: None,
    });
    assert!(failure(&new).contains("had read before"), "{new:?}");
}

/// Carries out orders until there are none; `writes` gives the outputs of `align`. Returns the number of parts that
/// each instance of `call` saw.
fn done_by_hand(
    hand: &mut Hand,
    mut new: Vec<Action>,
    writes: impl Fn(&AttemptSpec) -> AttemptOutcome,
) -> Vec<(u32, usize)> {
    let mut seen = Vec::new();
    loop {
        let failed = |a: &Action| matches!(a.why, Reason::Failed { .. } | Reason::GaveUp { .. });
        assert!(!new.iter().any(failed), "{new:?}");
        let (runs, moves) = (runs_in(&new), transfers_in(&new));
        if runs.is_empty() && moves.is_empty() {
            return seen;
        }
        new.clear();
        for t in moves {
            new.extend(hand.brought(&t, MB));
        }
        for run in runs {
            new.extend(match run.instance.step.0 {
                ALIGN => hand.ended(&run, writes(&run)),
                _ => {
                    let views = run.views.iter().flatten().flatten().count();
                    seen.push((run.instance.index, views));
                    hand.ended(&run, written(&run, 1, &["x"], 2))
                }
            });
        }
    }
}

/// `call` of `a` has a place, and its input is on its way there. Returns the first orders, and that transfer.
fn placed(s: &Start) -> (Hand, Vec<Action>, tarn_types::part::Transfer) {
    let (mut hand, begun) = Hand::begin(s);
    let a = run_of(&begun, ALIGN, 0);
    let mut new = hand.ended(&a, written(&a, 0, &["a.bam"], 1));
    let out = transfers_in(&new).remove(0);
    new = hand.brought(&out, MB);
    let assigned =
        |a: &Action| matches!(&a.what, Do::Assign { instance: i, .. } if *i == instance(CALL, 0));
    assert!(new.iter().any(assigned) && ids(&new).is_empty(), "{new:?}");
    let back = transfers_in(&new).remove(0);
    (hand, begun, back)
}

fn staged() -> Start {
    let mut s = samples("");
    (s.options.policy, s.workflow.external) = (policy("stage-through"), Some("/x".into()));
    s
}

#[test]
fn what_is_added_to_an_entry_that_is_on_its_way_to_its_reader_is_read_too() {
    let (mut hand, begun, back) = placed(&staged());
    let b = run_of(&begun, ALIGN, 1);
    let mut new = hand.ended(&b, written(&b, 0, &["a.bam", "b.bam"], 2));
    let unplaced = |a: &Action| {
        matches!(&a.what, Do::Unassign { instance: i } if *i == instance(CALL, 0))
            && a.why == Reason::EntryChanged { data: data(0) }
    };
    assert!(new.iter().any(unplaced), "{new:?}");
    new.extend(hand.brought(&back, MB));
    assert!(ids(&new).is_empty(), "it waits for all of it: {new:?}");
    let c = run_of(&begun, ALIGN, 2);
    new.extend(hand.ended(&c, written(&c, 0, &["c.bam"], 3)));
    let mut seen = done_by_hand(&mut hand, new, |run| panic!("{run:?}"));
    seen.sort_unstable();
    assert_eq!(seen, [(0, 2), (1, 1), (2, 1)]);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Done));
}

#[test]
fn what_the_last_one_adds_to_an_entry_that_is_on_its_way_is_read_too() {
    let (mut hand, begun, back) = placed(&staged());
    let b = run_of(&begun, ALIGN, 1);
    let mut new = hand.ended(&b, written(&b, 0, &["b.bam"], 2));
    let c = run_of(&begun, ALIGN, 2);
    new.extend(hand.ended(&c, written(&c, 0, &["a.bam", "c.bam"], 3)));
    new.extend(hand.brought(&back, MB));
    let mut seen = done_by_hand(&mut hand, new, |run| panic!("{run:?}"));
    seen.sort_unstable();
    assert_eq!(seen, [(0, 2), (1, 1), (2, 1)]);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Done));
}

#[test]
fn what_is_added_to_an_entry_whose_reader_has_failed_stops_nobody() {
    let (mut hand, begun) = Hand::begin(&samples(""));
    let a = run_of(&begun, ALIGN, 0);
    let new = hand.ended(&a, written(&a, 0, &["a.bam"], 1));
    let call = run_of(&new, CALL, 0);
    hand.fails(&call, RunErrorKind::Exit);
    let b = run_of(&begun, ALIGN, 1);
    let mut new = hand.ended(&b, written(&b, 0, &["a.bam", "b.bam"], 2));
    let failed = |a: &Action| matches!(a.why, Reason::Failed { .. });
    assert!(!new.iter().any(failed), "{new:?}");
    let c = run_of(&begun, ALIGN, 2);
    new.extend(hand.ended(&c, written(&c, 0, &["c.bam"], 3)));
    assert_eq!(ids(&new), [instance(CALL, 1), instance(CALL, 2)]);
    for run in runs_in(&new) {
        hand.ended(&run, written(&run, 1, &["x"], 4));
    }
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
    // It reads all of its entry when it runs again.
    let again = hand.step(Event::Resumed {
        found: vec![
            (part_of(0, 0), Place::Node(a.nodes[0])),
            (part_of(1, 0), Place::Node(b.nodes[0])),
        ],
        pinned: Vec::new(),
        set_aside: None,
    });
    assert!(!again.iter().any(failed), "{again:?}");
    let moved: Vec<_> = transfers_in(&again);
    let mut again = again;
    for t in moved {
        again.extend(hand.brought(&t, MB));
    }
    let call = run_of(&again, CALL, 0);
    assert_eq!(call.views.iter().flatten().flatten().count(), 2);
}

#[test]
fn what_a_reader_has_consumed_stays_for_a_rescue_until_its_step_has_ended() {
    let rescues = "[data.bam]\non_failure = \"drain\"\n";
    let text = text("").replace("[data.bam]\n", rescues);
    let s = of(&format!("external = \"/x\"\n{text}"));
    for is_whole in [true, false] {
        let (mut hand, begun) = Hand::begin(&s);
        let a = run_of(&begun, ALIGN, 0);
        let new = hand.ended(&a, written(&a, 0, &["a.bam"], 1));
        let call = run_of(&new, CALL, 0);
        let mut new = hand.ended(&call, written(&call, 1, &["a.vcf"], 2));
        assert_eq!(left(&new, 0), 0, "{new:?}");
        let b = run_of(&begun, ALIGN, 1);
        new.extend(hand.ended(&b, written(&b, 0, &["b.bam"], 3)));
        let c = run_of(&begun, ALIGN, 2);
        let ended = match is_whole {
            true => hand.ended(&c, written(&c, 0, &["c.bam"], 4)),
            false => hand.fails(&c, RunErrorKind::Exit),
        };
        // Once all is there, consumed data goes.
        assert_eq!(left(&ended, 0), usize::from(is_whole), "{ended:?}");
        new.extend(ended);
        if is_whole {
            continue;
        }
        let call = run_of(&new, CALL, 1);
        let end = hand.ended(&call, written(&call, 1, &["b.vcf"], 5));
        let rescue = transfers_in(&end);
        let origins: Vec<_> = rescue.iter().flat_map(|t| &t.parts).collect();
        let origins: Vec<_> = origins.iter().map(|m| m.part.origin).collect();
        assert_eq!(origins, [0, 1], "{end:?}");
    }
}

#[test]
fn what_is_added_to_an_entry_whose_reader_has_not_begun_is_read_too() {
    // One core, and the first submitted runs first: its readers wait.
    let mut s = samples("");
    (s.cluster, s.options.policy) = (cluster(1, 1, &[100 * MB]), policy("fcfs"));
    s.workflow.external = Some("/x".into());
    let (mut hand, begun) = Hand::begin(&s);
    let a = run_of(&begun, ALIGN, 0);
    let new = hand.ended(&a, written(&a, 0, &["a.bam"], 1));
    let mut seen = done_by_hand(&mut hand, new, |run| {
        written(run, 0, &["a.bam", "b.bam", "c.bam"], 2)
    });
    seen.sort_unstable();
    assert_eq!(seen, [(0, 3), (1, 2), (2, 2)]);
}

#[test]
fn an_instance_without_its_entry_waits_for_all_and_fails_alone() {
    let (mut hand, begun) = Hand::begin(&samples(""));
    let a = run_of(&begun, ALIGN, 0);
    // The entry named after c is made by a; none is named after a.
    let new = hand.ended(&a, written(&a, 0, &["other"], 1));
    assert!(ids(&new).is_empty(), "{new:?}");
    let b = run_of(&begun, ALIGN, 1);
    let new = hand.ended(&b, written(&b, 0, &["b.bam"], 1));
    let call = run_of(&new, CALL, 1);
    hand.ended(&call, written(&call, 1, &["b.vcf"], 1));
    let c = run_of(&begun, ALIGN, 2);
    let new = hand.ended(&c, written(&c, 0, &["c.bam"], 1));
    assert_eq!(ids(&new), [instance(CALL, 2)]);
    let message = "step call: bam has no entry \"a.bam\"; check the names that its producer makes";
    assert_eq!(failure(&new), message);
    let call = run_of(&new, CALL, 2);
    let end = hand.ended(&call, written(&call, 1, &["c.vcf"], 1));
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed), "{end:?}");
    let again = hand.step(Event::Resumed {
        found: Vec::new(),
        pinned: Vec::new(),
        set_aside: None,
    });
    assert_eq!(failure(&again), message);
}

#[test]
fn what_differs_when_it_is_made_again_concerns_its_own_reader_alone() {
    // Both nodes are busy; `call` of `a` has no core when `align` of `a` is done.
    let mut s = samples("");
    s.cluster = cluster(2, 2, &[100 * MB]);
    s.workflow.steps[1].cores = 2;
    let (mut hand, begun) = Hand::begin(&s);
    let mut runs = runs_in(&begun);
    assert_eq!(runs.len(), 3);
    // One is alone on its node: its reader begins there.
    let alone = |r: &AttemptSpec| runs.iter().filter(|o| o.nodes == r.nodes).count() == 1;
    let at = runs
        .iter()
        .position(alone)
        .expect("one of three on two nodes");
    let first = runs.remove(at);
    let name = |run: &AttemptSpec| format!("{}.bam", run.item.as_deref().unwrap_or_default());
    let new = hand.ended(&first, written(&first, 0, &[&name(&first)], 1));
    let call = run_of(&new, CALL, first.instance.index);
    let second = runs.remove(0);
    let new = hand.ended(&second, written(&second, 0, &[&name(&second)], 1));
    assert!(ids(&new).is_empty(), "{new:?}");
    let node = second.nodes[0].node;
    let lost = hand.step(Event::NodeLost {
        node,
        why: "it is said to".into(),
    });
    let third = runs.remove(0);
    let mut new = [lost, hand.fails(&third, RunErrorKind::NodeLost)].concat();
    new.extend(hand.ended(&call, written(&call, 1, &["x"], 1)));
    let (mut done, mut seen) = (0, Vec::new());
    while let Some(run) = runs_in(&new).into_iter().next() {
        assert_ne!(run.nodes[0].node, node);
        let others: Vec<AttemptSpec> = runs_in(&new).split_off(1);
        new = Vec::new();
        for run in [vec![run], others].concat() {
            done += 1;
            new.extend(match run.instance.step.0 {
                ALIGN => hand.ended(&run, written(&run, 0, &[&name(&run)], 7)),
                _ => {
                    seen.push(run.instance.index);
                    hand.ended(&run, written(&run, 1, &["x"], 1))
                }
            });
            for t in transfers_in(&new) {
                new.extend(hand.brought(&t, MB));
            }
        }
    }
    // Two are aligned again, and called for the first time.
    assert_eq!((done, seen.len()), (4, 2), "{seen:?}");
    assert!(!seen.contains(&first.instance.index));
}

/// Instances write an entry of their own; `align` of `a` takes ten seconds.
fn own(s: &Start) -> Estimates {
    let steps = s.workflow.steps.iter();
    let items: Vec<Vec<String>> = steps
        .map(|step| match &step.foreach {
            Some(tarn_types::workflow::Foreach::Values(all)) => all.clone(),
            _ => Vec::new(),
        })
        .collect();
    Estimates {
        run_time: Box::new(|id| match id {
            id if id == instance(ALIGN, 0) => 10 * SECOND,
            _ => SECOND,
        }),
        output: Box::new(move |id, of| {
            let kind = ["bam", "vcf"][of.at()];
            let item = &items[id.step.at()][id.index as usize];
            vec![SimEntry::file(format!("{item}.{kind}"), MB)]
        }),
        ..estimates(MB)
    }
}

/// All of it, held to the rules.
fn checked(p: SimulatedRun) -> SimulatedRun {
    let mut rules = Rules::new();
    for record in &p.records {
        if let Err(broken) = rules.check(record) {
            panic!("{broken}\n{}", p.trace());
        }
    }
    p
}

#[test]
fn samples_overlap_and_the_run_takes_as_long_as_the_longest() {
    for name in ["data", "fcfs", "easy", "stage-through", "heft+cache"] {
        let mut s = samples("");
        (s.options.policy, s.workflow.external) = (policy(name), Some("/x".into()));
        let p = checked(simulate(&s, own(&s)));
        assert_eq!(p.outcome, Outcome::Done, "{}", p.trace());
        assert_eq!((p.runs_of(ALIGN), p.runs_of(CALL)), (3, 3));
        let history = history(&p.records);
        let begun = |step, index| history.instances[&instance(step, index)].attempts[0].started;
        let ended = |step, index| {
            let attempt = &history.instances[&instance(step, index)].attempts[0];
            attempt.ended.as_ref().expect("it has").0
        };
        for index in [1, 2] {
            assert!(begun(CALL, index) < ended(ALIGN, 0), "{}", p.trace());
        }
    }
}

/// Resumes from these records; nothing fails any more. Returns the instances that run.
fn resume(s: &Start, records: &[Record]) -> Vec<InstanceId> {
    ids(&resumed(s, own(s), records))
}

fn done(records: &[Record]) -> Vec<InstanceId> {
    let history = history(records);
    let all = history.instances.iter();
    let done = all.filter(|(_, i)| i.state.is_done());
    done.map(|(id, _)| *id).collect()
}

#[test]
fn a_resume_runs_the_chain_of_what_failed_and_no_other() {
    let s = samples("");
    let plan = |seed| FaultPlan {
        seed,
        step_failure_probability: 0.15,
        ..FaultPlan::default()
    };
    let with = |seed| {
        let sim = Simulation::new(&s, own(&s)).with_faults(plan(seed));
        simulate_in(&s, sim)
    };
    let only_b = |seed: &u64| {
        let p = with(*seed);
        let gave_up = p.actions().filter_map(|a| match (&a.what, &a.why) {
            (Do::Note { about }, Reason::GaveUp { .. }) => Some(*about),
            _ => None,
        });
        gave_up.collect::<Vec<_>>() == [Subject::Instance(instance(ALIGN, 1))]
    };
    let p = checked(with((0..1000).find(only_b).expect("a seed")));
    assert_eq!((p.outcome, p.runs().len()), (Outcome::Failed, 5));
    let mut ran = resume(&s, &p.records);
    ran.sort_unstable();
    assert_eq!(ran, [instance(ALIGN, 1), instance(CALL, 1)]);
    for cut in 1..=p.records.len() {
        let before = &p.records[..cut];
        let ran = resume(&s, before);
        assert_eq!(ran.len(), 6 - done(before).len(), "cut at {cut}");
        let again = done(before).iter().any(|id| ran.contains(id));
        assert!(!again, "cut at {cut}: {ran:?}");
    }
}

#[test]
fn a_log_of_a_version_that_waited_for_all_is_resumed() {
    let (now, before) = (samples(""), samples("after = \"align\"\n"));
    let mut records = simulate(&before, own(&before)).records;
    records[0].event = Event::Started(Box::new(now.clone()));
    records.iter_mut().for_each(|r| r.engine = 10);
    for cut in 1..records.len() {
        let ran = resume(&now, &records[..cut]);
        assert_eq!(ran.len(), 6 - done(&records[..cut]).len(), "cut at {cut}");
    }
}

#[test]
fn what_an_earlier_run_has_made_of_a_sample_is_taken_while_another_is_made() {
    let s = samples("");
    let p = simulate(&s, own(&s));
    let history = history(&p.records);
    let mut next = s.clone();
    next.prior = history
        .instances
        .iter()
        .filter(|(id, _)| id.index != 1)
        .map(|(_, i)| tarn_types::event::PriorInstance {
            identity: i.identity.expect("it ran"),
            outputs: i.outputs.clone(),
            held: Vec::new(),
        })
        .collect();
    // Nothing of them is there any more but at the `dest`, which holds the output of another run.
    let to = Place::External("/vcf".into());
    for prior in &mut next.prior {
        if prior.outputs[0].data == data(1) {
            prior.held.push((0, 0, to.clone()));
        }
    }
    let mut sim = Simulation::new(&next, own(&next));
    for (part, info) in history
        .parts
        .iter()
        .filter(|(part, _)| part.data == data(1))
    {
        assert!(sim.put(*part, info.clone(), to.clone()));
    }
    let p = checked(simulate_in(&next, sim));
    let mut ran: Vec<_> = p.runs().iter().map(|r| r.instance).collect();
    ran.sort_unstable();
    assert_eq!(
        ran,
        [instance(ALIGN, 1), instance(CALL, 1)],
        "{}",
        p.trace()
    );
    assert_eq!(p.outcome, Outcome::Done);
}

#[test]
fn a_lost_entry_is_made_again_for_its_reader() {
    let mut s = samples("");
    s.cluster = cluster(2, 3, &[100 * MB]);
    s.workflow.steps[1].nodes = 1;
    for at in [SECOND / 2, 3 * SECOND / 2, 3 * SECOND, 21 * SECOND / 2] {
        for node in [0, 1] {
            let mut sim = Simulation::new(&s, own(&s));
            let outage = tarn_simulator::Outage {
                lasts: None,
                keeps: tarn_simulator::Keeps::Nothing,
            };
            sim.lose_node(at, NodeId(node), outage);
            let p = checked(simulate_in(&s, sim));
            assert_eq!(p.outcome, Outcome::Done, "{}", p.trace());
        }
    }
}
