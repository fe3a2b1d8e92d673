//! Data of other workflows: read where it is, never moved or removed, and what becomes of a run that loses it.

mod common;
use common::*;
use std::path::PathBuf;
use tarn_base::action::{Do, Outcome};
use tarn_base::event::{Event, FailureKind, PriorData, PriorPart, Start};
use tarn_base::hash::Hash;
use tarn_base::id::{NodeId, Spot, TierId};
use tarn_base::part::{PartClass, PartInfo, PartRef, Place, StoreKey, TransferKind};
use tarn_base::reason::Reason;

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

fn spot(node: u32) -> Spot {
    Spot {
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

/// A run that reads 100 MB which are on these nodes, where no tier has room for as much again.
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
    let at = on.iter().map(|n| (spot(*n), PathBuf::from("/theirs")));
    s.prior_data = vec![PriorData {
        data: data(0),
        workflow: "foam".into(),
        workspace: "foam".into(),
        dataset: "genome".into(),
        parts: vec![PriorPart {
            info,
            at: at.collect(),
        }],
    }];
    s
}

#[test]
fn it_is_read_in_place_under_every_policy_and_takes_no_room() {
    for text in ["data", "heft", "fcfs+cache", "fcfs+stage-through"] {
        let mut s = reads(text, &[0, 1]);
        s.workflow.external = Some("/external".into());
        let played = play(&s, estimates(MB));
        assert_eq!(played.outcome, Outcome::Done, "{text}: {}", played.trace());
        for action in played.actions() {
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
    let played = play(&s, estimates(MB));
    assert_eq!(played.outcome, Outcome::Done, "{}", played.trace());
    let moved: Vec<_> = played
        .actions()
        .filter_map(|a| match &a.what {
            Do::Transfer(t) if t.data == data(0) => Some((t.kind, t.to.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(moved, [(TransferKind::Peer, Place::Node(spot(1)))]);
    let gone: Vec<_> = played
        .actions()
        .filter_map(|a| match &a.what {
            Do::Evict { part, at, .. } if *part == genome() => Some(at.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(gone, [Place::Node(spot(1))]);
}

#[test]
fn a_run_that_loses_it_ends_and_says_whose_it_was() {
    let mut hand_start = reads("data", &[0]);
    hand_start.cluster.nodes.truncate(1);
    let (mut hand, begun) = Hand::begin(&hand_start);
    let run = runs_in(&begun).into_iter().next().expect("one runs");
    assert_eq!(run.views[0][0][0].spot, spot(0));
    let gone = Event::Evicted {
        part: genome(),
        at: Place::Node(spot(0)),
    };
    let actions = [hand.says(gone), hand.fails(&run, FailureKind::Corrupt)].concat();
    let said = actions.iter().find_map(|a| match &a.why {
        Reason::Failed { message } => Some(message.clone()),
        _ => None,
    });
    let said = said.expect("it fails");
    assert!(said.contains("`genome` of workflow foam"), "{said}");
}
