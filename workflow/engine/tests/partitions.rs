//! Partitions that steps get: their space, the places of kept ones, their removal, and the loss of a node.

mod common;

use common::*;
use tarn_types::action::{Action, AttemptSpec, Do, Outcome};
use tarn_types::event::{Event, RunErrorKind, Start};
use tarn_types::id::{NodeId, PartitionId, TierId};
use tarn_types::reason::Reason;

/// One that is kept, of 30 MB, steps that use it one after the other, and one that has nothing to do with it.
const KEPT: &str = "[partition.field]\nsize = \"30 MB\"\nkeep = \"workflow\"\n\
    [[step]]\nname = \"a\"\nrun = \"x\"\npartitions = [\"field\"]\nretries = 1\n\
    [[step]]\nname = \"b\"\nrun = \"x\"\npartitions = [\"field\"]\nafter = [\"a\"]\n\
    [[step]]\nname = \"c\"\nrun = \"x\"\n";

fn begin(text: &str, nodes: u32, tiers: &[u64]) -> Start {
    let text = format!("name = \"w\"\n{text}");
    start(workflow(&text), cluster(nodes, 1, tiers), policy("data"))
}

fn run_of(actions: &[Action], step: u32) -> Option<AttemptSpec> {
    let mut all = runs_in(actions).into_iter();
    all.find(|r| r.instance == instance(step, 0))
}

fn discards(actions: &[Action]) -> Vec<Reason> {
    let all = actions.iter();
    let all = all.filter(|a| matches!(a.what, Do::Discard { .. }));
    all.map(|a| a.why.clone()).collect()
}

fn lose(node: u32) -> Event {
    Event::NodeLost {
        node: NodeId(node),
        why: "it is said to".into(),
    }
}

#[test]
fn what_is_kept_binds_its_steps_to_its_node_and_goes_with_the_last() {
    let (mut hand, begun) = Hand::begin(&begin(KEPT, 2, &[100 * MB]));
    let first = run_of(&begun, 0).expect("it runs");
    let node = first.nodes[0].node;
    assert!(!first.partitions[0].filled && first.partitions[0].tier_refs == first.nodes);
    // A failed attempt leaves it, under the name that it has.
    let again = hand.fails(&first, RunErrorKind::Exit);
    let second = run_of(&again, 0).expect("it runs again");
    assert_eq!(second.partitions, first.partitions);
    assert_eq!(second.nodes[0].node, node);
    let after = hand.commits(&second, None, 0);
    let why = Reason::PartitionThere {
        node,
        partition: PartitionId(0),
    };
    assert!(after.iter().any(|a| a.why == why), "{after:?}");
    assert!(discards(&after).is_empty());
    let last = run_of(&after, 1).expect("the next one runs");
    assert!(last.partitions[0].filled && last.partitions[0].key == first.partitions[0].key);
    assert_eq!(discards(&hand.commits(&last, None, 0)), [Reason::Used]);
}

#[test]
fn what_no_step_has_filled_is_made_anew_elsewhere_when_its_node_is_lost() {
    let (mut hand, begun) = Hand::begin(&begin(KEPT, 2, &[100 * MB]));
    let first = run_of(&begun, 0).expect("it runs");
    let other = run_of(&begun, 2).expect("so does the other one");
    hand.commits(&other, None, 0);
    let node = first.nodes[0].node;
    let mut after = hand.step(lose(node.0));
    after.extend(hand.fails(&first, RunErrorKind::NodeLost));
    assert_eq!(discards(&after), [Reason::NodeLost { node }]);
    let anew = run_of(&after, 0).expect("it runs elsewhere");
    assert_ne!(anew.nodes[0].node, node);
    assert_ne!(anew.partitions[0].key, first.partitions[0].key);
}

#[test]
fn what_a_step_has_filled_is_waited_for_and_the_run_fails_when_nothing_else_is_left() {
    let (mut hand, begun) = Hand::begin(&begin(KEPT, 2, &[100 * MB]));
    let first = run_of(&begun, 0).expect("it runs");
    let node = first.nodes[0].node;
    let other = run_of(&begun, 2).expect("so does the other one");
    let after = hand.commits(&first, None, 0);
    let second = run_of(&after, 1).expect("the next one runs");
    hand.step(lose(node.0));
    let after = hand.fails(&second, RunErrorKind::NodeLost);
    assert!(
        runs_in(&after).is_empty() && discards(&after).is_empty(),
        "{after:?}"
    );
    // While something else is under way, the node may come back.
    assert_eq!(hand.engine.outcome(), None);
    let back = Event::NodeBack {
        node,
        capacities: vec![100 * MB],
        whole: Vec::new(),
    };
    let after = hand.step(back);
    let again = run_of(&after, 1).expect("it continues there");
    assert_eq!(again.partitions[0].key, first.partitions[0].key);
    hand.step(lose(node.0));
    hand.fails(&again, RunErrorKind::NodeLost);
    hand.commits(&other, None, 0);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
}

#[test]
fn space_for_partitions_is_waited_for_and_what_can_never_fit_is_refused() {
    // Two kinds at once, on tiers of their own; a third does not fit beside the outputs.
    let text = |mb: u64| {
        format!(
            "[partition.small]\nsize = \"10 MB\"\n[partition.large]\nsize = \"{mb} MB\"\ntier = \"slow\"\n\
             [[step]]\nname = \"a\"\nrun = \"x\"\nforeach = [1, 2, 3]\npartitions = [\"small\", \"large\"]\n"
        )
    };
    let s = begin(&text(60), 1, &[100 * MB, 200 * MB]);
    let (_, begun) = Hand::begin(&s);
    let run = runs_in(&begun).remove(0);
    let tiers: Vec<TierId> = run.partitions.iter().map(|p| p.tier_refs[0].tier).collect();
    assert_eq!(tiers, [TierId(0), TierId(1)], "{run:?}");
    let simulated = simulate(&s, estimates(0));
    assert_eq!(simulated.outcome, Outcome::Done);
    assert_eq!(simulated.runs_of(0), 3);
    let simulated = simulate(&begin(&text(200), 1, &[100 * MB, 200 * MB]), estimates(0));
    assert_ne!(simulated.outcome, Outcome::Done, "{}", simulated.trace());
    let alone = "[partition.p]\nsize = \"99 MB\"\n[[step]]\nname = \"a\"\nrun = \"x\"\npartitions = [\"p\"]\n";
    let simulated = simulate(&begin(alone, 1, &[100 * MB]), estimates(0));
    assert_eq!(
        simulated.outcome,
        Outcome::Refused,
        "{}",
        simulated.failure()
    );
    assert!(simulated.failure().contains("no tier holds more than"));
}

/// Partitions that one step uses together are on the same nodes.
#[test]
fn partitions_that_a_step_uses_together_lie_together() {
    let text = "[partition.p]\nsize = \"1 MB\"\nkeep = \"workflow\"\n[partition.q]\nsize = \"1 MB\"\nkeep = \"workflow\"\n\
        [[step]]\nname = \"a\"\nrun = \"x\"\npartitions = [\"p\"]\n[[step]]\nname = \"b\"\nrun = \"x\"\npartitions = [\"q\"]\n\
        [[step]]\nname = \"c\"\nrun = \"x\"\npartitions = [\"p\", \"q\"]\nafter = [\"a\", \"b\"]\n";
    for orders in ["data", "fcfs", "heft", "easy"] {
        let mut s = begin(text, 3, &[100 * MB]);
        s.options.policy = policy(orders);
        let simulated = simulate(&s, estimates(0));
        assert_eq!(simulated.outcome, Outcome::Done, "{}", simulated.trace());
        let nodes: Vec<NodeId> = simulated.runs().iter().map(|r| r.nodes[0].node).collect();
        assert!(nodes.iter().all(|n| *n == nodes[0]), "{orders}: {nodes:?}");
    }
}

/// One that spans two nodes has its share of space on each before its step starts there, and as long as it is kept.
#[test]
fn space_of_one_that_is_spread_is_taken_on_all_nodes_of_its_step() {
    let begin = |mb: u64| {
        let text = format!(
            "name = \"w\"\n[partition.field]\nsize = \"{mb} MB\"\nspread = \"64 KiB\"\nkeep = \"workflow\"\n\
             [partition.own]\nsize = \"30 MB\"\n\
             [[step]]\nname = \"wide\"\nrun = \"x\"\nnodes = 2\npartitions = [\"field\"]\n\
             [[step]]\nname = \"again\"\nrun = \"x\"\nnodes = 2\npartitions = [\"field\"]\nafter = [\"wide\"]\n\
             [[step]]\nname = \"alone\"\nrun = \"x\"\npartitions = [\"own\"]\n"
        );
        // There are cores for all at once.
        start(workflow(&text), cluster(2, 4, &[60 * MB]), policy("data"))
    };
    let (_, begun) = Hand::begin(&begin(20));
    assert_eq!(runs_in(&begun).len(), 2, "both have room: 12 MB and 32");
    let (mut hand, begun) = Hand::begin(&begin(80));
    let wide = run_of(&begun, 0).expect("it runs");
    assert!(wide.nodes.len() == 2 && wide.partitions[0].tier_refs == wide.nodes);
    assert_eq!(run_of(&begun, 2), None, "42 of 60 MB are taken on each");
    // Its second user finds the pieces in the same order.
    let after = hand.commits(&wide, None, 0);
    let again = run_of(&after, 1).expect("the next one runs");
    assert_eq!(again.nodes, wide.nodes);
    assert_eq!(again.partitions[0].tier_refs, wide.partitions[0].tier_refs);
    assert_eq!(run_of(&after, 2), None, "it is kept");
    let after = hand.commits(&again, None, 0);
    assert_eq!(discards(&after), [Reason::Used]);
    assert!(run_of(&after, 2).is_some(), "now there is room");
    // A partition that fits on no node is refused, though both together have as much.
    let simulated = simulate(&begin(119), estimates(0));
    assert_eq!(simulated.outcome, Outcome::Refused, "{}", simulated.trace());
}

/// A node with a piece is lost: all of it is made again, over other nodes.
#[test]
fn one_that_is_spread_is_made_anew_over_other_nodes_when_one_is_lost() {
    for (keep, discarded) in [("step", 0), ("workflow", 1)] {
        let text = format!(
            "[partition.field]\nsize = \"80 MB\"\nspread = \"64 KiB\"\nkeep = \"{keep}\"\n\
             [[step]]\nname = \"wide\"\nrun = \"x\"\nnodes = 2\npartitions = [\"field\"]\n"
        );
        let (mut hand, begun) = Hand::begin(&begin(&text, 3, &[60 * MB]));
        let first = run_of(&begun, 0).expect("it runs");
        let lost = first.nodes[1].node;
        let mut after = hand.step(lose(lost.0));
        after.extend(hand.fails(&first, RunErrorKind::NodeLost));
        assert_eq!(discards(&after).len(), discarded, "{keep}");
        let anew = run_of(&after, 0).expect("it runs on others");
        assert!(anew.nodes.iter().all(|s| s.node != lost), "{anew:?}");
        assert_eq!(anew.partitions[0].tier_refs, anew.nodes);
        assert_ne!(anew.partitions[0].key, first.partitions[0].key);
        let over = hand.commits(&anew, None, 0);
        assert_eq!(discards(&over).len(), discarded, "{keep}");
    }
}
