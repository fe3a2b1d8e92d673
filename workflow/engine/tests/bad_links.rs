//! Nodes that cannot read from each other, though both are there: other places are tried first, and a part is tried
//! again after a pause.

mod common;
use common::*;
use tarn_engine::{Engine, replay};
use tarn_ports::Record;
use tarn_simulator::{FaultPlan, Rules, Simulation};
use tarn_types::action::{Action, Outcome};
use tarn_types::event::{Event, RunErrorKind, Start};
use tarn_types::part::{Place, Transfer, TransferKind};
use tarn_types::units::SECOND;

const BYTES: u64 = 100 * MB;

/// Two nodes of three read data that one of them has read or made.
const TEXT: &str = r#"
name = "w"
[data.i]
source = "/i"
[data.x]
[[step]]
name = "one"
run = "x"
in = ["i"]
out = ["x"]
[[step]]
name = "wide"
run = "x"
nodes = 2
in = ["i", "x"]
after = ["one"]
"#;

fn begin(text: &str, nodes: u32) -> Start {
    let cluster = cluster(nodes, 1, &[1000 * MB]);
    let mut s = start(workflow(text), cluster, policy("data"));
    s.allocation = Some("1".into());
    s
}

fn only_source() -> String {
    TEXT.replace("in = [\"i\", \"x\"]", "in = [\"i\"]")
}

/// Every link between nodes is bad: a part that is outside is read there at the second try, and nothing fails.
#[test]
fn what_no_peer_gives_is_read_outside() {
    let s = begin(&only_source(), 2);
    let mut e = estimates(MB);
    e.sources.insert(data(0), Ok(source(None, BYTES)));
    let faults = FaultPlan {
        link_failure_probability: 1.0,
        ..FaultPlan::default()
    };
    let simulated = simulate_in(&s, Simulation::new(&s, e).with_faults(faults));
    assert_eq!(simulated.outcome, Outcome::Done, "{}", simulated.trace());
    let mut rules = Rules::new();
    let kept = simulated.records.iter().try_for_each(|r| rules.check(r));
    kept.unwrap();
    let actions: Vec<Action> = simulated.actions().cloned().collect();
    let kinds: Vec<_> = transfers_in(&actions).iter().map(|t| t.kind).collect();
    use TransferKind::{ExternalIn, Peer};
    assert_eq!(
        kinds,
        [ExternalIn, Peer, ExternalIn],
        "{}",
        simulated.trace()
    );
}

/// The hand of a run whose `one` has made `x` on node 0, and the transfers for `wide` then.
fn made(s: &Start) -> (Hand, Vec<Transfer>) {
    let (mut hand, _) = Hand::begin(s);
    let first = transfers_in(&hand.listed(0, source(None, BYTES)));
    let run = runs_in(&hand.brought(&first[0], BYTES)).remove(0);
    let after = hand.commits(&run, Some((1, BYTES)), 7);
    (hand, transfers_in(&after))
}

fn of(transfers: &[Transfer], dataset: u32) -> Transfer {
    let mut found = transfers.iter().filter(|t| t.data == data(dataset));
    found.next().expect("a transfer of it").clone()
}

/// A part that only one node has is requested again, later each time, and then the run fails.
#[test]
fn what_only_one_node_has_is_asked_for_again_after_pauses() {
    let (mut hand, moves) = made(&begin(TEXT, 2));
    let x = of(&moves, 1);
    hand.brought(&of(&moves, 0), BYTES);
    let after = hand.failed(x.id, RunErrorKind::Io);
    assert!(after.is_empty(), "{after:?}");
    assert_eq!(hand.next_step_in(), Some(SECOND / 2));
    let second = of(&transfers_in(&hand.step(Event::Timer)), 1);
    assert_eq!(second.parts[0].from, x.parts[0].from);
    let after = hand.failed(second.id, RunErrorKind::Io);
    assert!(after.is_empty(), "{after:?}");
    assert_eq!(hand.next_step_in(), Some(2 * SECOND));
    // Something else happens meanwhile: nothing is tried before its time.
    assert!(hand.step(Event::Timer).is_empty());
    assert_eq!(hand.next_step_in(), Some(SECOND));
    let third = of(&transfers_in(&hand.step(Event::Timer)), 1);
    hand.failed(third.id, RunErrorKind::Io);
    assert_eq!(hand.engine.outcome(), Some(Outcome::Failed));
}

/// A replica on a third node is tried next, and a failure between two nodes does not count against the others.
#[test]
fn another_replica_is_asked_first() {
    let text = TEXT.replace("nodes = 2", "nodes = 3");
    let (mut hand, moves) = made(&begin(&text, 3));
    let mut moves: Vec<_> = moves.into_iter().filter(|t| t.data == data(1)).collect();
    moves.sort_by_key(|t| t.to.clone());
    let [second, third] = &moves[..] else {
        panic!("{moves:?}")
    };
    // The third follows the second, which has it from the first; the next source is not the failed one.
    hand.brought(second, BYTES);
    let from = |t: &Transfer| t.parts[0].from.clone();
    let again = of(&transfers_in(&hand.failed(third.id, RunErrorKind::Io)), 1);
    assert_ne!(from(&again), from(third));
    assert!(matches!(from(&again), Place::Node(_)));
    // Both have failed: after a pause they are tried again.
    assert!(transfers_in(&hand.failed(again.id, RunErrorKind::Io)).is_empty());
    let once_more = of(&transfers_in(&hand.step(Event::Timer)), 1);
    assert!([from(third), from(&again)].contains(&from(&once_more)));
}

/// An engine rebuilt from the log waits as long and tries the same place.
#[test]
fn a_rebuilt_engine_remembers_who_failed() {
    let s = begin(TEXT, 2);
    let mut log = Log::default();
    let mut live = Engine::new();
    let mut now = 0;
    let mut step = |event: Event, log: &mut Log| {
        let mut actions = Vec::new();
        now += SECOND;
        live.step(now, &event, &mut actions);
        log.note(now, event, actions.clone());
        (actions, live.deadline())
    };
    step(Event::Started(Box::new(s.clone())), &mut log);
    let listed = Event::SourceListed {
        data: data(0),
        parts: source(None, BYTES),
    };
    let first = of(&transfers_in(&step(listed, &mut log).0), 0);
    let failure = tarn_types::event::RunError {
        kind: RunErrorKind::Io,
        message: "cut".into(),
    };
    let failed = Event::TransferFailed {
        id: first.id,
        failure,
        damaged: None,
    };
    let (actions, deadline) = step(failed, &mut log);
    assert!(actions.is_empty() && deadline.is_some());
    let (mut again, ..) = replay(&log.0);
    let mut early = Vec::new();
    again.step(3 * SECOND + SECOND / 4, &Event::Timer, &mut early);
    assert!(early.is_empty(), "{early:?}");
    assert_eq!(again.deadline(), deadline);
    let mut late = Vec::new();
    again.step(4 * SECOND, &Event::Timer, &mut late);
    assert_eq!(late, step(Event::Timer, &mut log).0);
    assert_eq!(of(&transfers_in(&late), 0).parts, first.parts);
}

#[derive(Default)]
struct Log(Vec<Record>);

impl Log {
    fn note(&mut self, now: u64, event: Event, actions: Vec<Action>) {
        self.0.push(Record {
            seq: self.0.len() as u64,
            now,
            engine: tarn_engine::ENGINE_VERSION,
            event,
            actions,
        });
    }
}
