//! Data of other workflows: read where it is, never moved or removed, and the end of a run that loses it.

mod common;
use common::*;
use std::path::PathBuf;
use tarn_types::action::{Action, Do, Outcome, Subject};
use tarn_types::event::{Event, PriorData, PriorPart, RunErrorKind, Start};
use tarn_types::hash::Hash;
use tarn_types::id::{NodeId, TierId, TierRef};
use tarn_types::part::{PartClass, PartInfo, PartRef, Place, StoreKey, TransferKind};
use tarn_types::reason::Reason;

const READS: &str = r#"
name = "use"
[data.genome]
of = "foam/genome"
[data.out]
dest = "/out"
[[step]]
name = "read"
run = "r"
foreach = ["a", "b", "c", "d"]
in = "genome"
out = "out"
"#;

fn tier_ref(node: u32) -> TierRef {
    TierRef {
        node: NodeId(node),
        tier: TierId(0),
    }
}

fn genome() -> PartRef {
    PartRef {
        data: data(0),
        version: 0,
        origin: 0,
        seq: 0,
    }
}

/// A run that reads 100 MB which are on these nodes, where no tier has space for as much again.
fn reads(policy_text: &str, on: &[u32]) -> Start {
    let mut s = start(
        workflow(READS),
        cluster(2, 1, &[90 * MB]),
        policy(policy_text),
    );
    let info = PartInfo {
        seq: 0,
        class: PartClass::Whole,
        bytes: 100 * MB,
        stored: 100 * MB,
        files: 1,
        hash: Some(Hash(7)),
        key: StoreKey("genome.of.1.0".into()),
    };
    let at = on.iter().map(|n| (tier_ref(*n), PathBuf::from("/theirs")));
    s.prior_data = vec![PriorData {
        data: data(0),
        workflow: "foam".into(),
        workspace: "foam".into(),
        dataset: "genome".into(),
        parts: vec![PriorPart {
            info,
            at: at.collect(),
        }],
        set_aside: Vec::new(),
    }];
    s
}

#[test]
fn it_is_read_in_place_under_every_policy_and_takes_no_space() {
    for text in ["data", "heft", "fcfs+cache", "fcfs+stage-through"] {
        let mut s = reads(text, &[0, 1]);
        s.workflow.external = Some("/external".into());
        let simulated = simulate(&s, estimates(MB));
        assert_eq!(
            simulated.outcome,
            Outcome::Done,
            "{text}: {}",
            simulated.trace()
        );
        for action in simulated.actions() {
            match &action.what {
                Do::Transfer(t) => assert_ne!(t.data, data(0), "{text}: {t:?}"),
                Do::Evict { part, .. } => assert_ne!(*part, genome(), "{text}"),
                _ => {}
            }
        }
    }
}

#[test]
fn a_node_that_lacks_it_is_brought_a_copy_of_its_own_which_goes_again() {
    let mut s = reads("data", &[0]);
    for node in &mut s.cluster.nodes {
        node.tiers[0].capacity = 150 * MB;
    }
    // Nothing runs where it is.
    s.cluster.nodes[0].cores = 0;
    let simulated = simulate(&s, estimates(MB));
    assert_eq!(simulated.outcome, Outcome::Done, "{}", simulated.trace());
    let moved: Vec<_> = simulated
        .actions()
        .filter_map(|a| match &a.what {
            Do::Transfer(t) if t.data == data(0) => Some((t.kind, t.to.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(moved, [(TransferKind::Peer, Place::Node(tier_ref(1)))]);
    let gone: Vec<_> = simulated
        .actions()
        .filter_map(|a| match &a.what {
            Do::Evict { part, at, .. } if *part == genome() => Some(at.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(gone, [Place::Node(tier_ref(1))]);
}

/// A run on one node that loses the data while its first step reads it; the decisions from then on, and the other steps
/// that ran.
fn loses_it(text: &str, fail_fast: bool) -> (Hand, Vec<Action>, Vec<u32>) {
    let mut s = reads("data", &[0]);
    s.workflow = workflow(text);
    s.cluster.nodes.truncate(1);
    s.options.fail_fast = fail_fast;
    let (mut hand, begun) = Hand::begin(&s);
    let run = runs_in(&begun).into_iter().next().expect("one runs");
    assert_eq!(run.views[0][0][0].tier_ref, tier_ref(0));
    let gone = Event::Evicted {
        part: genome(),
        at: Place::Node(tier_ref(0)),
    };
    let mut all = [hand.step(gone), hand.fails(&run, RunErrorKind::Corrupt)].concat();
    let (mut ran, mut new) = (Vec::new(), all.clone());
    while let Some(run) = runs_in(&new).into_iter().next() {
        let step = run.instance.step.0;
        ran.push(step);
        new = hand.commits(&run, Some((step + 1, MB)), 1);
        for t in transfers_in(&new) {
            new.extend(hand.brought(&t, MB));
        }
        all.extend(new.iter().cloned());
    }
    (hand, all, ran)
}

#[test]
fn a_run_that_loses_it_ends_and_says_whose_it_was() {
    for fail_fast in [true, false] {
        let (hand, actions, ran) = loses_it(READS, fail_fast);
        let message = actions.iter().find_map(|a| match &a.why {
            Reason::Failed { message } if fail_fast => Some(message.clone()),
            Reason::GaveUp { message } if !fail_fast => Some(message.clone()),
            _ => None,
        });
        let message = message.expect("it fails");
        assert!(message.contains("`genome` of workflow foam"), "{message}");
        assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
        assert!(ran.is_empty());
    }
}

#[test]
fn who_does_not_need_what_was_lost_goes_on() {
    let text = "name = \"use\"\n[data.genome]\nof = \"foam/genome\"\n[data.a]\n[data.b]\n[data.c]\ndest = \"/c\"\n[data.d]\n[data.e]\n\
        [[step]]\nname = \"reads\"\nretries = 1\nrun = \"x\"\nin = \"genome\"\nout = \"a\"\n\
        [[step]]\nname = \"other\"\nrun = \"x\"\nout = \"b\"\n\
        [[step]]\nname = \"after\"\nrun = \"x\"\nin = \"b\"\nout = \"c\"\n\
        [[step]]\nname = \"next\"\nrun = \"x\"\nin = \"a\"\nout = \"d\"\n\
        [[step]]\nname = \"last\"\nrun = \"x\"\nin = \"d\"\nout = \"e\"\n";
    let (hand, actions, ran) = loses_it(text, false);
    assert_eq!(ran, [1, 2], "{actions:?}");
    let failed = Subject::Instance(instance(0, 0));
    let gave_up = actions.iter().find_map(|a| match (&a.what, &a.why) {
        (Do::Note { about }, Reason::GaveUp { message }) => Some((*about, message.clone())),
        _ => None,
    });
    let (about, message) = gave_up.expect("one is given up");
    assert_eq!(about, failed);
    assert!(
        message.starts_with("step reads failed: `genome` of workflow foam"),
        "{message}"
    );
    let end = actions.last().map(|a| a.why.clone());
    assert!(
        matches!(&end, Some(Reason::Incomplete { failed: all, .. }) if *all == [failed]),
        "{end:?}"
    );
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
    // With `fail_fast` an instance that has a place by then may run, and nothing after it.
    assert!(!loses_it(text, true).2.contains(&2));
}

#[test]
fn a_resumed_run_reads_what_was_found_and_all_where_an_older_log_says_nothing() {
    let (mut hand, _) = Hand::begin(&reads("data", &[0, 1]));
    let place = |node| (genome(), Place::Node(tier_ref(node)));
    for (found, is_read) in [
        (vec![], true),
        (vec![place(1)], false),
        (vec![place(0), place(1)], true),
    ] {
        let actions = hand.step(Event::Resumed {
            found,
            pinned: Vec::new(),
            set_aside: None,
        });
        let is_of_genome = |d: &Do| matches!(d, Do::Evict { part, .. } if *part == genome());
        assert!(!actions.iter().any(|a| is_of_genome(&a.what)));
        let runs = runs_in(&actions);
        let mut views = runs.iter().flat_map(|r| r.views.iter().flatten().flatten());
        assert_eq!(
            views.any(|v| v.tier_ref == tier_ref(0)),
            is_read,
            "{runs:?}"
        );
    }
}
