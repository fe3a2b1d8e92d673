//! Data that is found damaged outside: it is brought there again, and the other data there stays.

mod common;
use common::*;
use tarn_types::action::Action;
use tarn_types::event::{Event, PriorDest, RunErrorKind, version_hash};
use tarn_types::hash::Hash;
use tarn_types::part::{PartClass, PartRef, Place, Transfer};

/// Two instances make data that two others read, each alone on a node, once it is at its `dest`.
const READ_AT_DEST: &str = r#"
name = "delivered"
[data.made]
dest = "/out"
[[step]]
name = "make"
run = "m"
foreach = ["a", "b"]
out = "made"
[[step]]
name = "read"
run = "r"
foreach = [1, 2]
in = "made"
"#;

fn at_dest() -> Place {
    Place::External("/out".into())
}

fn made(origin: u32) -> PartRef {
    PartRef {
        data: data(0),
        version: 1,
        origin,
        seq: 0,
    }
}

fn begin(text: &str, prior_dest: Vec<PriorDest>) -> (Hand, Vec<Action>) {
    let mut s = start(
        workflow(text),
        cluster(2, 1, &[1000 * MB]),
        policy("fcfs+stage-through"),
    );
    s.prior_dest = prior_dest;
    Hand::begin(&s)
}

/// Both make, it is delivered, and both nodes read it part by part.
fn delivered() -> (Hand, Vec<Transfer>) {
    let (mut hand, begun) = begin(READ_AT_DEST, Vec::new());
    let mut actions = Vec::new();
    for run in runs_in(&begun) {
        actions = hand.commits(&run, Some((0, MB)), 1);
    }
    let out = transfers_in(&actions);
    assert_eq!((out.len(), &out[0].to), (1, &at_dest()), "{actions:?}");
    let reads = transfers_in(&hand.brought(&out[0], MB));
    assert_eq!(reads.len(), 4, "{reads:?}");
    (hand, reads)
}

/// All that read this part at the `dest` find it damaged.
fn all_find_damaged(hand: &mut Hand, reads: &[Transfer], part: PartRef) -> Vec<Action> {
    let mut actions = Vec::new();
    for t in reads.iter().filter(|t| t.parts[0].part == part) {
        assert_eq!(t.parts[0].from, at_dest());
        actions = hand.finds_damaged(t, 0);
    }
    actions
}

/// The first part is found damaged and made again, and goes out with the other one, when nobody reads that there any more.
fn renewed() -> (Hand, Transfer) {
    let (mut hand, reads) = delivered();
    let again = runs_in(&all_find_damaged(&mut hand, &reads, made(0)));
    assert_eq!(again.len(), 1, "only what was damaged is made again");
    assert_eq!(again[0].instance, instance(0, 0));
    let to_dest = |actions: &[Action]| {
        let all = transfers_in(actions).into_iter();
        all.filter(|t| t.to == at_dest()).collect::<Vec<_>>()
    };
    let early = to_dest(&hand.commits(&again[0], Some((0, MB)), 1));
    assert_eq!(early, [], "what is read there is not exchanged");
    let mut out = Vec::new();
    for read in reads.iter().filter(|t| t.parts[0].part == made(1)) {
        assert_eq!(out, []);
        out = to_dest(&hand.brought(read, MB));
    }
    let out = out.pop().expect("it goes to its `dest` anew");
    (hand, out)
}

/// The parts that the engine believes to be at the `dest`.
fn believed(hand: &Hand) -> Vec<PartRef> {
    let all = hand.engine.replicas().into_iter();
    all.filter(|(.., at)| *at == at_dest())
        .map(|(part, ..)| part)
        .collect()
}

#[test]
fn what_lies_at_a_dest_stays_while_it_is_written_anew_and_when_that_fails() {
    let (mut hand, out) = renewed();
    assert_eq!(believed(&hand), [made(1)]);
    let failed = hand.failed(out.id, RunErrorKind::Io);
    assert_eq!(runs_in(&failed), [], "nothing is lost");
    assert_eq!(believed(&hand), [made(1)]);
    let next = transfers_in(&hand.step(Event::Timer));
    let next = next.iter().find(|t| t.to == at_dest());
    assert_eq!(next.map(|t| &t.parts), Some(&out.parts));
}

#[test]
fn what_is_found_damaged_before_it_is_written_anew_is_made_again_and_goes_out_with_it() {
    let (mut hand, reads) = delivered();
    let mut again = runs_in(&all_find_damaged(&mut hand, &reads, made(0)));
    again.extend(runs_in(&all_find_damaged(&mut hand, &reads, made(1))));
    let instances: Vec<_> = again.iter().map(|run| run.instance).collect();
    assert_eq!(instances, [instance(0, 0), instance(0, 1)]);
    assert_eq!(believed(&hand), []);
    assert_eq!(runs_in(&hand.commits(&again[0], Some((0, MB)), 1)), []);
    let out = transfers_in(&hand.commits(&again[1], Some((0, MB)), 1));
    let out = out.iter().find(|t| t.to == at_dest());
    let parts = &out.expect("both go to the `dest`").parts;
    assert!(parts.iter().all(|moved| moved.from != at_dest()) && parts.len() == 2);
}

#[test]
fn a_dest_that_an_earlier_run_has_left_is_believed_once() {
    let text = READ_AT_DEST.replace(r#"["a", "b"]"#, r#"["a"]"#);
    let hash = version_hash([(&PartClass::Whole, Hash(1))]);
    let prior = PriorDest {
        data: data(0),
        hash,
    };
    let (mut hand, begun) = begin(&text, vec![prior]);
    let reads = transfers_in(&hand.commits(&runs_in(&begun)[0], Some((0, MB)), 1));
    assert!(
        reads.iter().all(|t| t.parts[0].from == at_dest()),
        "{reads:?}"
    );
    let again = runs_in(&all_find_damaged(&mut hand, &reads, made(0)));
    let out = transfers_in(&hand.commits(&again[0], Some((0, MB)), 1));
    assert!(out.iter().any(|t| t.to == at_dest()), "{out:?}");
}

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
