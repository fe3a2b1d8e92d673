//! Two nodes of a run with encrypted datasets: each has the keys that the run has handed to it, and a node gets the other one's
//! data as it is stored.

use crate::Test;
use crate::bed::*;
use crate::peers::{transfer, tree, until_ended};
use tarn_proto::node::{NodeCommand, NodeConfig, NodeReply, NodeRequest, WorkspaceKeys};
use tarn_types::event::{AttemptOutcome, Event, RunErrorKind};
use tarn_types::nodes::Staying;

pub(crate) const TESTS: &[Test] = &[
    (
        "sealed::what_is_encrypted_goes_as_it_lies_by_keys_that_the_run_hands_out",
        what_is_encrypted_goes_as_it_lies_by_keys_that_the_run_hands_out,
    ),
    (
        "sealed::a_node_without_the_run_s_keys_is_refused_and_one_with_others_opens_nothing",
        a_node_without_the_run_s_keys_is_refused_and_one_with_others_opens_nothing,
    ),
];

/// As a user's file has one.
fn keys(of: &str) -> WorkspaceKeys {
    let text = format!("tarn-key 1 {} {}\n", of.repeat(16), of.repeat(32));
    WorkspaceKeys(text.into())
}

/// The whole configuration of a node, with some datasets encrypted.
fn encrypted(mut node_config: NodeConfig, keys: Option<WorkspaceKeys>) -> NodeConfig {
    for at in [LARGE, PAIR] {
        node_config.workflow.data[at as usize].encrypt = true;
    }
    node_config.keys = keys;
    node_config
}

/// Two nodes, opened; none where this machine has no namespaces.
fn pair(bed: &Bed, of: [&str; 2]) -> Option<[(Node, Client); 2]> {
    let nodes = ["n1", "n2"].map(|name| bed.start(name, &[]));
    let clients = nodes.each_ref().map(|node| bed.connect(&node.started));
    let both: Vec<_> = nodes.iter().zip(&clients).collect();
    for (at, of) in of.into_iter().enumerate() {
        let node_config = encrypted(bed.node_config(&both, at as u32), Some(keys(of)));
        match clients[at].call(NodeRequest::Open(Box::new(node_config))) {
            NodeReply::Opened { several: None, .. } => {}
            NodeReply::Opened {
                several: Some(why), ..
            } => {
                eprintln!("skipped: {why}");
                return None;
            }
            other => panic!("{other:?}"),
        }
    }
    clients.iter().for_each(|c| c.clean(Staying::default()));
    let [one, two] = nodes;
    let [first, second] = clients;
    Some([(one, first), (two, second)])
}

fn what_is_encrypted_goes_as_it_lies_by_keys_that_the_run_hands_out() {
    let bed = Bed::make();
    let Some([(_one, first), (_two, second)]) = pair(&bed, ["ab", "ab"]) else {
        return;
    };
    let large = first.run(LARGE, 0);
    second.send_command(NodeCommand::Know(vec![(part(LARGE), large.clone())]));
    second.order(transfer(1));
    match second.event() {
        Event::TransferDone { hashes, .. } => assert_eq!(hashes, [large.hash.unwrap()]),
        other => panic!("{other:?}"),
    }
    let [from, to] = ["n1", "n2"].map(|n| tree(&bed.tier(n).part(&large.key)));
    assert_eq!((from.len(), to.len()), (9, 9));
    for (name, bytes) in &from {
        assert!(bytes.starts_with(b"TARNSEAL"), "{name}");
        // A file that fits one piece is sealed again where it arrives.
        let small = name == "e/y";
        assert!((to[name] == *bytes) != small, "{name}");
        assert!(to[name].starts_with(b"TARNSEAL"), "{name}");
    }
    // Output of the second node in a step of both is stored sealed on the first, to which it belongs.
    first.begin_on(PAIR, 1, &[0, 1]);
    let outputs = match until_ended(&first, &second, |_| ()) {
        AttemptOutcome::Committed { outputs, .. } => outputs,
        AttemptOutcome::Failed {
            failure, log_tail, ..
        } => panic!("{failure:?}\n{log_tail}"),
    };
    let made = tree(&bed.tier("n1").part(&outputs[0].parts[0].0.key));
    let made = &made["f"];
    assert!(made.starts_with(b"TARNSEAL") && !made.windows(7).any(|w| w == b"from n2"));
    // Nodes forget no keys: whether others need them they do not know.
    first.clean(Staying::default());
    let left = tree(&bed.state().keys(WORKSPACE));
    assert_eq!(left.len(), 2, "{:?}", left.keys());
}

fn a_node_without_the_run_s_keys_is_refused_and_one_with_others_opens_nothing() {
    let bed = Bed::make();
    let node = bed.start("n1", &[]);
    let client = bed.connect(&node.started);
    let node_config = |keys| encrypted(bed.node_config(&[(&node, &client)], 0), keys);
    let why = client.failed(NodeRequest::Open(Box::new(node_config(None))));
    assert!(why.contains("no key"), "{why}");
    let secret = WorkspaceKeys("tarn-key 1 cafe\n".to_owned().into());
    assert!(!format!("{secret:?}").contains("cafe"));
    let why = client.failed(NodeRequest::Open(Box::new(node_config(Some(secret)))));
    assert!(
        why.contains("keys of the run's data") && !why.contains("cafe"),
        "{why}"
    );
    drop((client, node));
    let bed = Bed::make();
    let Some([(_one, first), (_two, second)]) = pair(&bed, ["ab", "cd"]) else {
        return;
    };
    let large = first.run(LARGE, 0);
    second.send_command(NodeCommand::Know(vec![(part(LARGE), large)]));
    second.order(transfer(1));
    match second.event() {
        Event::TransferFailed { failure, .. } => {
            assert_eq!(failure.kind, RunErrorKind::Corrupt, "{}", failure.message);
        }
        other => panic!("{other:?}"),
    }
    let arrived = bed.tier("n2").parts();
    let arrived = arrived.read_dir().map_or(0, Iterator::count);
    assert_eq!(arrived, 0, "nothing of it is there");
}
