//! Steps that continue from their checkpoints: which attempts count, where they run again, when their checkpoints go.

mod common;

use common::*;
use tarn_types::action::{Action, AttemptSpec, Do, Outcome};
use tarn_types::bounds::MAX_RESTARTS;
use tarn_types::checkpoint::CheckpointId;
use tarn_types::event::{AttemptOutcome, Event, Imaged, RunError, RunErrorKind, Start};
use tarn_types::id::{NodeId, TierRef};
use tarn_types::reason::Reason;

fn begin(steps: &str, nodes: u32) -> Start {
    let text = format!("name = \"w\"\n{steps}");
    start(
        workflow(&text),
        cluster(nodes, 1, &[100 * MB]),
        policy("data"),
    )
}

/// An attempt is killed, and its nodes could restore this version.
fn killed(hand: &mut Hand, run: &AttemptSpec, newest: Option<(u64, u64)>) -> Vec<Action> {
    died(hand, run, RunErrorKind::Signal, newest)
}

fn died(
    hand: &mut Hand,
    run: &AttemptSpec,
    kind: RunErrorKind,
    newest: Option<(u64, u64)>,
) -> Vec<Action> {
    let message = "it is said to".into();
    let ended = AttemptOutcome::Failed {
        failure: RunError { kind, message },
        log_tail: String::new(),
        newest: newest.map(|(generation, number)| CheckpointId { generation, number }),
    };
    hand.ended(run, ended)
}

fn why_run(actions: &[Action]) -> Option<Reason> {
    let run = actions.iter().find(|a| matches!(a.what, Do::Run(_)));
    run.map(|a| a.why.clone())
}

const STEP: &str = "[[step]]\nname = \"a\"\nrun = \"x\"\nrestart = \"phx\"\n";

#[test]
fn an_attempt_that_came_further_uses_up_no_retry_and_one_that_did_not_does() {
    let s = begin(&format!("{STEP}retries = 1\n"), 1);
    let (mut hand, begun) = Hand::begin(&s);
    let mut actions = begun;
    // The version after each attempt, and how many retries are used up then.
    let attempts = [
        (Some((1, 3)), 0),
        (Some((2, 1)), 0),
        (Some((2, 1)), 1),
        (Some((4, 9)), 1),
    ];
    for (restart, (newest, failures)) in (1..).zip(attempts) {
        let run = runs_in(&actions).remove(0);
        actions = killed(&mut hand, &run, newest);
        let from = newest.map(|(generation, number)| CheckpointId { generation, number });
        let expected = Reason::Restart {
            from,
            restart,
            failures,
            retries: 1,
        };
        assert_eq!(why_run(&actions), Some(expected));
    }
    let run = runs_in(&actions).remove(0);
    killed(&mut hand, &run, Some((4, 9)));
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
}

#[test]
fn a_step_that_comes_further_for_ever_is_ended_all_the_same() {
    let (mut hand, begun) = Hand::begin(&begin(STEP, 1));
    let mut actions = begun;
    let mut attempts = 0;
    while let Some(run) = runs_in(&actions).pop() {
        attempts += 1;
        actions = killed(&mut hand, &run, Some((attempts, 1)));
    }
    assert_eq!(attempts, u64::from(MAX_RESTARTS) + 1);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
}

#[test]
fn checkpoints_that_were_not_seen_once_are_no_progress_when_they_are_there_again() {
    let s = begin(&format!("{STEP}retries = 1\n"), 1);
    let (mut hand, begun) = Hand::begin(&s);
    let mut actions = begun;
    for (newest, failures) in [(Some((1, 3)), 0), (None, 1)] {
        let run = runs_in(&actions).remove(0);
        actions = killed(&mut hand, &run, newest);
        let from = newest.map(|(generation, number)| CheckpointId { generation, number });
        let why = why_run(&actions).expect("it runs again");
        let Reason::Restart {
            from: f,
            failures: n,
            ..
        } = why
        else {
            panic!("{why:?}");
        };
        assert_eq!((f, n), (from, failures));
    }
    let run = runs_in(&actions).remove(0);
    killed(&mut hand, &run, Some((1, 3)));
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
}

#[test]
fn what_no_further_attempt_can_mend_ends_a_step_that_came_further_too() {
    for kind in [RunErrorKind::Conflict, RunErrorKind::Escape] {
        let (mut hand, begun) = Hand::begin(&begin(&format!("{STEP}retries = 5\n"), 1));
        let run = runs_in(&begun).remove(0);
        died(&mut hand, &run, kind, Some((1, 1)));
        assert_eq!(hand.engine.outcome(), Some(Outcome::Failed), "{kind:?}");
    }
}

#[test]
fn a_step_runs_again_where_its_checkpoints_are_before_others_take_that_space() {
    let text = format!(
        "[data.big]\nsize = \"90 MB\"\n{STEP}checkpoints = \"60 MB\"\n\
         [[step]]\nname = \"b\"\nrun = \"x\"\nout = \"big\"\n[[step]]\nname = \"c\"\nrun = \"x\"\nout = \"more\"\n\
         [data.more]\nsize = \"90 MB\"\n"
    );
    let s = begin(&text, 2);
    let (mut hand, begun) = Hand::begin(&s);
    let mut runs = runs_in(&begun);
    runs.sort_by_key(|r| r.instance);
    let [a, b] = &runs[..] else {
        panic!("{runs:?}");
    };
    assert!(a.reserve >= 60 * MB);
    let again = runs_in(&killed(&mut hand, a, Some((1, 1))));
    assert_eq!(again[0].nodes, a.nodes, "`c` waits for room there too");
    let after = hand.commits(b, Some((0, 90 * MB)), 1);
    assert_eq!(runs_in(&after)[0].nodes, b.nodes);
}

#[test]
fn what_is_left_of_its_nodes_runs_the_same_ranks_again() {
    let text = format!("{STEP}nodes = 3\n");
    let (mut hand, begun) = Hand::begin(&begin(&text, 5));
    let first = runs_in(&begun).remove(0);
    let node = |run: &AttemptSpec, at: usize| run.nodes[at].node;
    let lost = node(&first, 1);
    hand.step(Event::NodeLost {
        node: lost,
        why: "its tarnd is gone".into(),
    });
    let second = runs_in(&died(&mut hand, &first, RunErrorKind::NodeLost, None)).remove(0);
    assert_eq!(node(&second, 0), node(&first, 0));
    assert_eq!(node(&second, 2), node(&first, 2));
    assert_ne!(node(&second, 1), lost);
    // They go from all nodes that had some, once it has committed.
    let after = hand.commits(&second, None, 0);
    let forgotten = after.iter().find_map(|a| match &a.what {
        Do::Forget { at, .. } => Some(at.iter().map(|s| s.node).collect::<Vec<NodeId>>()),
        _ => None,
    });
    let mut all: Vec<NodeId> = first
        .nodes
        .iter()
        .chain(&second.nodes)
        .map(|s| s.node)
        .collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(forgotten, Some(all));
    assert_eq!(hand.engine.outcome(), Some(Outcome::Done));
}

#[test]
fn checkpoints_go_from_the_tier_that_a_step_leaves_for_a_slower_one() {
    let text = format!("name = \"w\"\n{STEP}checkpoints = \"60 MB\"\n");
    let tiers = cluster(1, 1, &[100 * MB, 1000 * MB]);
    let s = start(workflow(&text), tiers, policy("data"));
    let (mut hand, begun) = Hand::begin(&s);
    let first = runs_in(&begun).remove(0);
    let after = died(&mut hand, &first, RunErrorKind::NoSpace, Some((1, 1)));
    let second = runs_in(&after).remove(0);
    assert_ne!(second.nodes, first.nodes);
    let forgets = |a: &Action, tier_refs: &[TierRef]| matches!(&a.what, Do::Forget { at, .. } if at == tier_refs);
    let removed = after.iter().position(|a| forgets(a, &first.nodes));
    let runs = after.iter().position(|a| matches!(a.what, Do::Run(_)));
    assert!(removed.expect("they go") < runs.expect("it runs"));
    let after = hand.commits(&second, None, 0);
    assert!(after.iter().any(|a| forgets(a, &second.nodes)));
}

#[test]
fn a_run_that_goes_on_places_the_step_where_its_checkpoints_are() {
    let other = "[[step]]\nname = \"b\"\nrun = \"x\"\n";
    let (mut hand, begun) = Hand::begin(&begin(&format!("{other}{STEP}"), 2));
    let runs = runs_in(&begun);
    let step = |runs: &[AttemptSpec]| runs.iter().find(|r| r.instance == instance(1, 0)).cloned();
    let first = step(&runs).expect("it runs");
    assert_eq!(first.nodes, [fast(1)]);
    let again = hand.step(Event::Resumed {
        found: Vec::new(),
        pinned: Vec::new(),
        set_aside: None,
    });
    assert_eq!(step(&runs_in(&again)).expect("it runs").nodes, first.nodes);
    let stays = Reason::CheckpointsThere { node: NodeId(1) };
    assert!(again.iter().any(|a| a.why == stays));
}

#[test]
fn a_step_with_checkpoints_that_no_tier_holds_is_refused() {
    let simulated = simulate(
        &begin(&format!("{STEP}checkpoints = \"101 MB\"\n"), 1),
        estimates(0),
    );
    assert_eq!(simulated.outcome, Outcome::Refused);
}

const IMAGED: &str = "[[step]]\nname = \"a\"\nrun = \"x\"\nrestart = \"image\"\nbuddy = true\ncheckpoints = \"60 MB\"\n";

fn image(number: u64) -> CheckpointId {
    CheckpointId {
        generation: 1,
        number,
    }
}

fn report_image(hand: &mut Hand, run: &AttemptSpec, what: Imaged) -> Vec<Action> {
    hand.step(Event::Image {
        instance: run.instance,
        attempt: run.attempt,
        what,
    })
}

fn taken(hand: &mut Hand, run: &AttemptSpec, number: u64) -> Vec<Action> {
    taken_of(hand, run, number, 10 * MB)
}

fn taken_of(hand: &mut Hand, run: &AttemptSpec, number: u64, bytes: u64) -> Vec<Action> {
    let what = Imaged::Taken {
        id: image(number),
        bytes,
        stopped: 0,
        took: 0,
    };
    report_image(hand, run, what)
}

/// Whither images are to be copied.
fn copies(actions: &[Action]) -> Vec<(CheckpointId, TierRef)> {
    let copy = |a: &Action| match &a.what {
        Do::CopyImage { image, to, .. } => Some((*image, *to)),
        _ => None,
    };
    actions.iter().filter_map(copy).collect()
}

fn lost(hand: &mut Hand, run: &AttemptSpec) -> Vec<AttemptSpec> {
    hand.step(Event::NodeLost {
        node: run.nodes[0].node,
        why: "its tarnd is gone".into(),
    });
    runs_in(&died(hand, run, RunErrorKind::NodeLost, None))
}

#[test]
fn a_step_whose_node_is_lost_goes_on_where_a_copy_of_its_image_is() {
    let (mut hand, begun) = Hand::begin(&begin(IMAGED, 3));
    let first = runs_in(&begun).remove(0);
    let ordered = copies(&taken(&mut hand, &first, 1));
    let [(id, to)] = ordered[..] else {
        panic!("{ordered:?}");
    };
    assert_eq!(id, image(1));
    assert_ne!(to.node, first.nodes[0].node);
    // One at a time; then the newest.
    assert_eq!(copies(&taken(&mut hand, &first, 2)), []);
    let copied = Imaged::Copied {
        id,
        at: to,
        took: 0,
    };
    let next = copies(&report_image(&mut hand, &first, copied));
    assert_eq!(next, [(image(2), to)]);
    let failed = Imaged::NotCopied {
        id: image(2),
        at: to,
        why: "it is said to".into(),
    };
    report_image(&mut hand, &first, failed);
    let second = lost(&mut hand, &first).remove(0);
    assert_eq!(second.nodes, [to]);
    let after = hand.commits(&second, None, 0);
    let goes = |a: &Action| matches!(&a.what, Do::Forget { at, .. } if at.contains(&to));
    assert!(after.iter().any(goes), "the copies go too");
    assert_eq!(hand.engine.outcome(), Some(Outcome::Done));
}

#[test]
fn a_copy_that_is_lost_or_not_whole_is_no_place_to_go_on() {
    let (mut hand, begun) = Hand::begin(&begin(IMAGED, 3));
    let first = runs_in(&begun).remove(0);
    let (_, to) = copies(&taken(&mut hand, &first, 1))[0];
    let copied = Imaged::Copied {
        id: image(1),
        at: to,
        took: 0,
    };
    report_image(&mut hand, &first, copied);
    hand.step(Event::NodeLost {
        node: to.node,
        why: "its tarnd is gone".into(),
    });
    // The next one goes to the node that is left.
    let (_, other) = copies(&taken(&mut hand, &first, 2))[0];
    assert!(other.node != to.node && other.node != first.nodes[0].node);
    let second = lost(&mut hand, &first).remove(0);
    assert_eq!(second.nodes, [other], "no other is left; it begins anew");
    let why = copies(&taken(&mut hand, &second, 1));
    assert_eq!(why, []);
}

/// The newest copy stays until the next is whole; a copy on a node that has become too small stays until the step has
/// committed.
#[test]
fn space_of_copies_is_counted_as_long_as_they_lie_there() {
    let text = format!(
        "name = \"w\"\n{}[data.made]\nsize = \"45 MB\"\n\
         [[step]]\nname = \"b\"\nrun = \"x\"\n\
         [[step]]\nname = \"c\"\nrun = \"x\"\ncores = 2\nafter = [\"b\"]\nout = \"made\"\n",
        IMAGED.replace("checkpoints = \"60 MB\"\n", "")
    );
    // Copies go to the other host first, to the small node, on which alone `c` can run.
    let mut cluster = cluster(3, 1, &[100 * MB]);
    cluster.hosts.push(cluster.hosts[0].clone());
    (cluster.nodes[2].host, cluster.nodes[2].cores) = (1, 2);
    cluster.nodes[2].tiers[0].capacity = 50 * MB;
    let s = start(workflow(&text), cluster, policy("data"));
    let (mut hand, begun) = Hand::begin(&s);
    let mut runs = runs_in(&begun);
    runs.sort_by_key(|r| r.instance);
    let [a, b] = &runs[..] else {
        panic!("{runs:?}");
    };
    assert_eq!(a.nodes, [fast(1)]);
    let reserves = |actions: &[Action]| {
        let copy = |a: &Action| match &a.what {
            Do::CopyImage { to, reserve, .. } => Some((*to, *reserve)),
            _ => None,
        };
        actions.iter().filter_map(copy).collect::<Vec<_>>()
    };
    let copied = |hand: &mut Hand, number, at| {
        let (id, took) = (image(number), 0);
        report_image(hand, a, Imaged::Copied { id, at, took })
    };
    let ordered = taken_of(&mut hand, a, 1, 10 * MB);
    assert_eq!(reserves(&ordered), [(fast(2), 20 * MB)]);
    copied(&mut hand, 1, fast(2));
    let ordered = taken_of(&mut hand, a, 2, 30 * MB);
    assert_eq!(reserves(&ordered), [(fast(0), 60 * MB)]);
    copied(&mut hand, 2, fast(0));
    // A smaller one is beside the one before.
    let ordered = taken_of(&mut hand, a, 3, 28 * MB);
    assert_eq!(reserves(&ordered), [(fast(0), 60 * MB)]);
    copied(&mut hand, 3, fast(0));
    let waits = Reason::WaitForSpace {
        tier_ref: fast(2),
        want: 45 * MB,
        free: 30 * MB,
    };
    let after = hand.commits(b, None, 0);
    assert_eq!(after.last().map(|a| &a.why), Some(&waits), "{after:?}");
    let after = hand.commits(a, None, 0);
    assert_eq!(runs_in(&after)[0].nodes, [fast(2)]);
}

#[test]
fn without_space_on_another_node_no_copy_is_made_and_it_is_said() {
    let (mut hand, begun) = Hand::begin(&begin(IMAGED, 1));
    let first = runs_in(&begun).remove(0);
    let actions = taken(&mut hand, &first, 1);
    let why = Reason::NoBuddy { bytes: 60 * MB };
    assert!(actions.iter().any(|a| a.why == why), "{actions:?}");
    assert_eq!(taken(&mut hand, &first, 2), [], "once");
}
