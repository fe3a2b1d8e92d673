//! A part that many nodes of an allocation lack is read outside once and passed on from node to node while it arrives.

mod common;
use common::*;
use tarn_simulator::Rules;
use tarn_types::action::{Action, Do, Outcome};
use tarn_types::event::{RunErrorKind, Start};
use tarn_types::id::{NodeId, TierRef};
use tarn_types::part::{Place, Transfer, TransferKind};
use tarn_types::reason::Reason;

const TEXT: &str = r#"
name = "w"
[data.i]
source = "/i"
[[step]]
name = "wide"
run = "x"
nodes = 8
in = ["i"]
"#;

const BYTES: u64 = 100 * MB;

fn begin(nodes: u32, allocation: bool) -> Start {
    let text = TEXT.replace("nodes = 8", &format!("nodes = {nodes}"));
    let cluster = cluster(nodes, 1, &[1000 * MB]);
    let mut s = start(workflow(&text), cluster, policy("data"));
    s.allocation = allocation.then(|| "1".into());
    s
}

fn node(place: &Place) -> Option<NodeId> {
    match place {
        Place::Node(TierRef { node, .. }) => Some(*node),
        _ => None,
    }
}

/// From which node, if from one, to which.
fn ways(transfers: &[Transfer]) -> Vec<(Option<u32>, u32)> {
    let way = |t: &Transfer| {
        let from = node(&t.parts[0].from).map(|n| n.0);
        (from, node(&t.to).unwrap().0)
    };
    transfers.iter().map(way).collect()
}

#[test]
fn what_eight_nodes_lack_is_read_once_and_passed_on() {
    for (allocation, outside) in [(true, 1), (false, 8)] {
        let s = begin(8, allocation);
        let mut e = estimates(0);
        e.sources.insert(data(0), Ok(source(None, BYTES)));
        let simulated = simulate(&s, e);
        assert_eq!(simulated.outcome, Outcome::Done, "{}", simulated.trace());
        let mut rules = Rules::new();
        simulated
            .records
            .iter()
            .try_for_each(|r| rules.check(r))
            .unwrap();
        assert_eq!(simulated.moved(TransferKind::ExternalIn), outside * BYTES);
        assert_eq!(simulated.moved(TransferKind::Peer), (8 - outside) * BYTES);
        if allocation {
            let actions: Vec<_> = simulated.actions().cloned().collect();
            let mut senders: Vec<_> = ways(&transfers_in(&actions)).iter().map(|w| w.0).collect();
            senders.sort_unstable();
            senders.dedup();
            assert_eq!(senders.len(), 8, "no node sends it twice");
            // All at the same time: hardly longer than one copy at the store's 100 MB/s, and the step's second.
            assert!(simulated.end() < 2_100_000_000, "{}", simulated.trace());
        }
    }
}

#[test]
fn when_a_copy_fails_what_follows_it_is_given_up_and_ordered_anew_and_is_no_failed_try() {
    let (mut hand, _) = Hand::begin(&begin(4, true));
    let orders = transfers_in(&hand.listed(0, source(None, BYTES)));
    assert_eq!(
        ways(&orders),
        [(None, 0), (Some(0), 1), (Some(1), 2), (Some(2), 3)]
    );
    let given_up = |actions: &[Action]| {
        let given_up = actions.iter().filter(|a| a.why == Reason::ChainBroken);
        let id = |a: &Action| match a.what {
            Do::Abandon { id } => id,
            _ => panic!("{a:?}"),
        };
        given_up.map(id).collect::<Vec<_>>()
    };
    // The second node's copy fails: it reads outside now, the others follow whom they can.
    let after = hand.failed(orders[1].id, RunErrorKind::Io);
    assert_eq!(given_up(&after), [orders[2].id, orders[3].id]);
    assert_eq!(ways(&transfers_in(&after)), [(None, 1)]);
    let second = transfers_in(&after).remove(0);
    let after = hand.failed(orders[2].id, RunErrorKind::Cancelled);
    assert_eq!(ways(&transfers_in(&after)), [(Some(0), 2)]);
    let third = transfers_in(&after).remove(0);
    let after = hand.failed(orders[3].id, RunErrorKind::SourceChanged);
    let message = "what a chain says of the source is not believed";
    assert_eq!(ways(&transfers_in(&after)), [(None, 3)], "{message}");
    let fourth = transfers_in(&after).remove(0);
    for t in [&orders[0], &second, &third] {
        let after = hand.brought(t, BYTES);
        assert!(after.is_empty(), "{after:?}");
    }
    assert_eq!(runs_in(&hand.brought(&fourth, BYTES)).len(), 1);
}

#[test]
fn when_the_first_copy_fails_the_whole_chain_goes_and_a_new_one_begins() {
    let (mut hand, _) = Hand::begin(&begin(3, true));
    let orders = transfers_in(&hand.listed(0, source(None, BYTES)));
    assert_eq!(ways(&orders), [(None, 0), (Some(0), 1), (Some(1), 2)]);
    let after = hand.failed(orders[0].id, RunErrorKind::Io);
    let given_up = |id| {
        let is = |a: &Action| a.what == Do::Abandon { id } && a.why == Reason::ChainBroken;
        after.iter().any(is)
    };
    assert!(
        given_up(orders[1].id) && given_up(orders[2].id),
        "{after:?}"
    );
    let again = transfers_in(&after).remove(0);
    assert_eq!(ways(std::slice::from_ref(&again)), [(None, 0)]);
    // Transfers that had been given up end late: the new ones follow the replica on its way, then the replica that is
    // there.
    let second = transfers_in(&hand.failed(orders[1].id, RunErrorKind::Cancelled));
    assert_eq!(ways(&second), [(Some(0), 1)]);
    hand.brought(&again, BYTES);
    let third = transfers_in(&hand.failed(orders[2].id, RunErrorKind::Cancelled));
    assert_eq!(
        ways(&third),
        [(Some(1), 2)],
        "the first sends to the second still"
    );
}
