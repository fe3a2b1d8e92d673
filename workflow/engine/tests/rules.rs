//! The rules that hold the engine of a run to account (`sim::Rules`) let a good log pass and each of them can fail: a log is
//! tampered with, and the rule that it then breaks is named.

mod common;
use common::*;
use tarn_ports::Record;
use tarn_simulator::{BrokenRule, Rules};
use tarn_types::action::{Action, Do, Outcome};
use tarn_types::event::{AttemptOutcome, Event, Start};
use tarn_types::id::NodeId;
use tarn_types::part::{PartRef, Place, StoreKey, Transfer};
use tarn_types::reason::Reason;

const TEXT: &str = r#"
name = "w"
[data.i]
source = "/i"
[data.o]
[data.e]
dest = "/e"
[[step]]
name = "a"
run = "x"
in = ["i"]
out = ["o"]
[[step]]
name = "b"
run = "x"
nodes = 2
in = ["o"]
out = ["e:single"]
"#;

fn log() -> Vec<Record> {
    let s = start(workflow(TEXT), cluster(2, 2, &[100 * MB]), policy("data"));
    let mut e = estimates(10 * MB);
    e.sources.insert(data(0), Ok(source(None, 20 * MB)));
    let p = simulate(&s, e);
    assert_eq!(p.outcome, Outcome::Done, "{}", p.failure());
    p.records
}

fn checked(records: &[Record]) -> Result<(), BrokenRule> {
    let mut rules = Rules::new();
    records.iter().try_for_each(|r| rules.check(r))
}

/// Tampers with a good log; the rule that it breaks must be this.
#[track_caller]
fn breaks(rule: &str, tamper: impl FnOnce(&mut Vec<Record>)) {
    let mut records = log();
    tamper(&mut records);
    let broken = checked(&records).expect_err("a rule is broken");
    assert_eq!(broken.rule, rule, "{broken}");
}

/// The position of the record in which this is decided, and that of the action.
fn find(records: &[Record], test: impl Fn(&Do) -> bool) -> (usize, usize) {
    let at = |r: &Record| r.actions.iter().position(|a| test(&a.what));
    let found = records
        .iter()
        .enumerate()
        .find_map(|(n, r)| Some((n, at(r)?)));
    found.expect("it is in the log")
}

fn find_event(records: &[Record], test: impl Fn(&Event) -> bool) -> usize {
    records
        .iter()
        .position(|r| test(&r.event))
        .expect("it is in the log")
}

fn runs(step: u32) -> impl Fn(&Do) -> bool {
    move |what| matches!(what, Do::Run(run) if run.instance.step.0 == step)
}

fn moves(test: impl Fn(&Transfer) -> bool) -> impl Fn(&Do) -> bool {
    move |what| matches!(what, Do::Transfer(t) if test(t))
}

fn committed(step: u32) -> impl Fn(&Event) -> bool {
    move |event| matches!(event, Event::Ended { instance, ended: AttemptOutcome::Committed { .. }, .. } if instance.step.0 == step)
}

fn begun(records: &mut [Record]) -> &mut Start {
    match &mut records[0].event {
        Event::Started(start) => start,
        event => panic!("{event:?}"),
    }
}

/// An order to remove the output of `a` from the node where it made it.
fn drop_output(records: &[Record]) -> Action {
    let made = find_event(records, committed(0));
    let Event::Ended {
        ended: AttemptOutcome::Committed { outputs, .. },
        ..
    } = &records[made].event
    else {
        panic!("it has committed");
    };
    let (info, tier_refs) = &outputs[0].parts[0];
    let what = Do::Evict {
        part: PartRef {
            data: outputs[0].data,
            version: outputs[0].version,
            origin: 0,
            seq: info.seq,
        },
        key: info.key.clone(),
        at: Place::Node(tier_refs[0]),
    };
    Action {
        what,
        why: Reason::NotNeeded,
    }
}

fn lost(records: &[Record], at: usize, node: NodeId) -> Record {
    Record {
        event: Event::NodeLost {
            node,
            why: String::new(),
        },
        actions: Vec::new(),
        ..records[at].clone()
    }
}

#[test]
fn a_good_log_passes() {
    assert_eq!(checked(&log()), Ok(()));
}

#[test]
fn who_begins_has_its_data_its_place_and_its_cores() {
    breaks("a step waits for its data", |r| {
        let (n, at) = find(
            r,
            |w| matches!(w, Do::Assign { instance, .. } if instance.step.0 == 1),
        );
        let early = r[n].actions[at].clone();
        r[1].actions.push(early);
    });
    breaks("who runs has a place", |r| {
        let (n, at) = find(r, runs(0));
        let twice = r[n].actions[at].clone();
        r[n].actions.push(twice);
    });
    breaks("attempts are numbered", |r| {
        let (n, at) = find(r, runs(0));
        if let Do::Run(run) = &mut r[n].actions[at].what {
            run.attempt += 1;
        }
    });
    breaks("a step sees its data", |r| {
        let (n, at) = find(r, runs(1));
        if let Do::Run(run) = &mut r[n].actions[at].what {
            run.views[0][1].clear();
        }
    });
    breaks("what is read is there", |r| {
        let (n, at) = find(r, runs(1));
        if let Do::Run(run) = &mut r[n].actions[at].what {
            run.views[0][0][0].key = StoreKey("of an earlier make".into());
        }
    });
    breaks("no host is overcommitted", |r| {
        begun(r).cluster.hosts[0].cores = 1
    });
    breaks("a node is large enough", |r| {
        begun(r).cluster.nodes[0].cores = 0
    });
}

#[test]
fn what_moves_is_there_and_has_space() {
    breaks("what is read is there", |r| {
        let (n, at) = find(r, moves(|t| matches!(t.parts[0].from, Place::Source)));
        if let Do::Transfer(t) = &mut r[n].actions[at].what {
            t.parts[0].from = Place::Drained;
        }
    });
    breaks("nothing moves to where it is", |r| {
        let (n, at) = find(r, moves(|t| matches!(t.to, Place::Node(_))));
        let mut twice = r[n].actions[at].clone();
        if let Do::Transfer(t) = &mut twice.what {
            t.id.0 += 1000;
        }
        r[n].actions.push(twice);
    });
    breaks("capacity is never exceeded", |r| {
        let nodes = &mut begun(r).cluster.nodes;
        nodes.iter_mut().for_each(|n| n.tiers[0].capacity = 15 * MB);
    });
    breaks("what ends was under way", |r| {
        let done = find_event(r, |e| matches!(e, Event::TransferDone { .. }));
        let again = r[done].event.clone();
        r.last_mut().expect("a record").event = again;
    });
}

#[test]
fn what_is_needed_or_read_stays() {
    breaks("nothing is dropped while it is needed", |r| {
        let n = find_event(r, committed(0));
        let drop = drop_output(r);
        r[n].actions.insert(0, drop);
    });
    breaks("leases are honoured", |r| {
        let (n, at) = find(r, runs(1));
        let drop = drop_output(r);
        r[n].actions.insert(at + 1, drop);
    });
    breaks("what is removed is there", |r| {
        let n = find_event(r, committed(1));
        let mut drop = drop_output(r);
        if let Do::Evict { key, .. } = &mut drop.what {
            *key = StoreKey("of an earlier make".into());
        }
        r[n].actions.insert(0, drop);
    });
}

#[test]
fn nothing_happens_on_a_lost_node() {
    breaks("nothing is done on a lost node", |r| {
        let record = lost(r, 1, NodeId(0));
        r.insert(1, record);
    });
    breaks("who comes back was lost", |r| {
        let mut back = lost(r, 1, NodeId(0));
        back.event = Event::NodeBack {
            node: NodeId(0),
            capacities: vec![100 * MB],
            whole: Vec::new(),
        };
        r.insert(1, back);
    });
    breaks("what is made again was made", |r| {
        let about = tarn_types::action::Subject::Instance(instance(1, 0));
        let again = Action {
            what: Do::Note { about },
            why: Reason::OutputLost { data: data(1) },
        };
        r[1].actions.push(again);
    });
}

#[test]
fn a_run_ends_when_all_is_done_and_nothing_is_left() {
    let finish = |what: &Do| matches!(what, Do::Finish { .. });
    breaks("a run is done when all steps are", |r| {
        let (n, at) = find(r, finish);
        let end = r[n].actions[at].clone();
        r[1].actions = vec![end];
    });
    breaks("a run ends when nothing is under way", |r| {
        let (n, at) = find(r, finish);
        let end = r[n].actions[at].clone();
        let (n, _) = find(r, runs(0));
        r[n].actions.push(end);
    });
    breaks("a run is done when all is at its dest", |r| {
        begun(r).workflow.data[0].dest = Some("/x".into());
    });
    breaks("nothing is left behind", |r| {
        let gone =
            |r: &Record| matches!(r.event, Event::Evicted { part, .. } if part.data == data(2));
        r.retain(|record| record.actions.iter().any(|a| finish(&a.what)) || !gone(record));
        for record in r.iter_mut() {
            let evicts =
                |a: &Action| matches!(a.what, Do::Evict { part, .. } if part.data == data(2));
            record.actions.retain(|a| !evicts(a));
        }
        let last = r.last_mut().expect("a record");
        last.event = Event::Timer;
    });
    breaks("nothing is done when the run is over", |r| {
        let end = r.last().expect("a record").clone();
        r.push(end);
    });
    breaks("time goes on", |r| r[1].now = u64::MAX);
}

#[test]
fn a_node_whose_tier_is_stood_in_for_runs_steps_of_one_node_only() {
    let text = "name = \"w\"\n[[step]]\nname = \"a\"\nforeach = [\"1\", \"2\", \"3\"]\nrun = \"x\"\n[[step]]\nname = \"wide\"\nrun = \"x\"\nnodes = 2\nafter = [\"a\"]\n";
    let mut s = start(workflow(text), cluster(3, 1, &[100 * MB]), policy("data"));
    s.cluster.nodes[0].tiers[0].root = "/dev/shm/tarn-1-fast.stand-in".into();
    let (mut hand, begun) = Hand::begin(&s);
    let single = runs_in(&begun);
    let mut on: Vec<u32> = single.iter().map(|r| r.nodes[0].node.0).collect();
    on.sort_unstable();
    assert_eq!(on, [0, 1, 2]);
    let mut after = Vec::new();
    for run in &single {
        after = hand.commits(run, None, 0);
    }
    let wide: Vec<u32> = runs_in(&after)[0].nodes.iter().map(|s| s.node.0).collect();
    assert_eq!(wide, [1, 2]);
}

#[test]
fn a_node_with_a_borrowed_tier_takes_part_in_all_but_shared_namespaces() {
    let step = |uses: &str| {
        format!(
            "name = \"w\"\n[data.x]\n[[step]]\nname = \"wide\"\nrun = \"x\"\nnodes = 2\nout = [\"x:{uses}\"]\n"
        )
    };
    let on = |uses: &str, root: &str| {
        let mut s = start(
            workflow(&step(uses)),
            cluster(3, 1, &[100 * MB]),
            policy("data"),
        );
        let tier = &mut s.cluster.nodes[0].tiers[0];
        (tier.root, tier.lender) = (root.into(), Some(tarn_types::id::NodeId(2)));
        let (_, begun) = Hand::begin(&s);
        let nodes = runs_in(&begun)[0].nodes.clone();
        nodes.iter().map(|s| s.node.0).collect::<Vec<u32>>()
    };
    assert_eq!(on("single", "/t"), [0, 1]);
    assert_eq!(on("shared", "/t"), [1, 2]);
    assert_eq!(
        on("single", "/dev/shm/tarn-1-t.borrowed/at.borrowed"),
        [1, 2]
    );
}
