//! What is found damaged outside: it is brought there anew, and what else lies there stays.

mod common;
use common::*;
use tarn_base::part::Place;

#[test]
fn what_was_drained_and_is_damaged_is_drained_anew_at_once() {
    let text = r#"
name = "drained"
external = "/ext"
[data.made]
[[step]]
name = "make"
run = "m"
out = "made"
[[step]]
name = "read"
run = "r"
nodes = 2
in = "made:broadcast"
"#;
    let s = start(
        workflow(text),
        cluster(2, 1, &[1000 * MB]),
        policy("easy+cache"),
    );
    let (mut hand, begun) = Hand::begin(&s);
    let drains = transfers_in(&hand.commits(&runs_in(&begun)[0], Some((0, MB)), 1));
    let reads = transfers_in(&hand.brought(&drains[0], MB));
    assert_eq!(reads[0].parts[0].from, Place::Drained);
    let anew = transfers_in(&hand.finds_damaged(&reads[0], 0));
    let from = Place::Node(fast(0));
    assert!(
        anew.iter()
            .any(|t| t.to == Place::Drained && t.parts[0].from == from),
        "{anew:?}"
    );
}
