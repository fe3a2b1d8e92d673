//! A node that is lost, and the consequences, in every view of a run.

mod common;

use common::{Log, MIB, MS, info, instance, part, tier_ref};
use tarn_ports::Record;
use tarn_report::{Summary, render, status, why};
use tarn_types::action::{AttemptSpec, Do, Subject};
use tarn_types::event::{
    AttemptOutcome, Event, IntactReplica, Output, RunError, RunErrorKind, Undeclared, Usage,
};
use tarn_types::hash::Hash;
use tarn_types::history::{History, InstanceState};
use tarn_types::id::{NodeId, TierId};
use tarn_types::part::{PartClass, Place};
use tarn_types::reason::Reason;

/// The bytes of the one output on its tier.
const STORED: u64 = 3 * MIB + 4096;

fn run(index: u32, node: u32) -> Do {
    Do::Run(Box::new(AttemptSpec {
        instance: instance(0, index),
        attempt: 1,
        item: Some(format!("t{index}.fits")),
        nodes: vec![tier_ref(node)],
        views: vec![vec![vec![]], vec![]],
        identity: Hash(u128::from(index)),
        store: format!("project.{index}.m-1.1"),
        reserve: MIB,
        partitions: Vec::new(),
    }))
}

fn place(index: u32, node: u32) -> Do {
    Do::Assign {
        instance: instance(0, index),
        nodes: vec![tier_ref(node)],
        reserve: MIB,
        end: 0,
    }
}

/// An instance committed on a node that is lost while another runs there; its output comes back.
fn log(back: bool) -> Vec<Record> {
    let mut log = Log::default();
    let workflow = common::shape::workflow("project");
    let made = workflow.steps[0]
        .uses
        .iter()
        .find_map(|u| Some((u.data, u.makes?)));
    let (data, version) = made.expect("it makes something");
    let started = common::shape::start(workflow, common::shape::cluster(2, 1));
    log.add(0, Event::Started(Box::new(started)), vec![]);
    for index in 0..2 {
        log.act(MS, place(index, 1), Reason::FirstFree { node: NodeId(1) });
        log.act(MS, run(index, 1), Reason::Ready);
    }
    let output = info("project.0.m-1.1.0", 0, PartClass::Whole, 3 * MIB);
    let committed = AttemptOutcome::Committed {
        outputs: vec![Output {
            data,
            version,
            parts: vec![(output.clone(), vec![tier_ref(1)])],
        }],
        undeclared: Undeclared::default(),
    };
    let ended = |index, ended| Event::Ended {
        instance: instance(0, index),
        attempt: 1,
        ended,
        usage: Usage::default(),
    };
    log.add(10 * MS, ended(0, committed), vec![]);
    let lost = Event::NodeLost {
        node: NodeId(1),
        why: "no heartbeat for 10 s".into(),
    };
    let about = Subject::Instance(instance(0, 0));
    let again = common::act(Do::Note { about }, Reason::OutputLost { data });
    log.add(20 * MS, lost, vec![again]);
    let failure = RunError {
        kind: RunErrorKind::NodeLost,
        message: "node n1 is lost".into(),
    };
    let failed = AttemptOutcome::Failed {
        failure,
        log_tail: String::new(),
        newest: None,
    };
    log.add(21 * MS, ended(1, failed), vec![]);
    if back {
        let whole = IntactReplica {
            part: part(data.0, version, 0, 0),
            key: output.key,
            tier: TierId(0),
            stored: output.stored,
        };
        let event = Event::NodeBack {
            node: NodeId(1),
            capacities: vec![64 * MIB],
            whole: vec![whole],
        };
        let taken = common::act(Do::Note { about }, Reason::OutputBack { data });
        log.add(40 * MS, event, vec![taken]);
    }
    log.records()
}

fn history(records: &[Record]) -> History {
    let mut h = History::new();
    records
        .iter()
        .for_each(|r| h.apply(r.now, &r.event, &r.actions));
    h
}

#[test]
fn what_was_on_a_lost_node_is_not_there_until_it_is_back() {
    let (lost, back) = (history(&log(false)), history(&log(true)));
    let at = |h: &History| {
        h.replicas
            .values()
            .flatten()
            .map(|(p, _)| p.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(at(&lost), []);
    assert_eq!(at(&back), [Place::Node(tier_ref(1))]);
    assert_eq!(
        (lost.held(tier_ref(1)), back.held(tier_ref(1))),
        (0, STORED)
    );
    let state = |h: &History| h.instances[&instance(0, 0)].state;
    assert_eq!(state(&lost), InstanceState::Waiting);
    assert_eq!(state(&back), InstanceState::Committed);
    assert!(lost.is_lost(NodeId(1)) && !back.is_lost(NodeId(1)));
    let mut resumed = lost;
    resumed.apply(
        50 * MS,
        &Event::Resumed {
            found: vec![],
            pinned: vec![],
            set_aside: None,
        },
        &[],
    );
    assert!(
        !resumed.is_lost(NodeId(1)),
        "a run that goes on believes in all of its nodes"
    );
}

#[test]
fn status_why_and_report_tell_of_it() {
    let records = log(true);
    let now = status(&records, 0).unwrap();
    let lost = &now.lost_nodes[0];
    assert_eq!((lost.replicas, lost.bytes, lost.attempts), (1, STORED, 1));
    assert_eq!((lost.at_ns, lost.back_ns), (20 * MS, Some(40 * MS)));
    let line = format!(
        "lost: {} at 20 ms with 1 replica(s), 3.00 MiB, and 1 running attempt(s): no heartbeat for 10 s; back at 40 ms",
        lost.node
    );
    assert!(now.to_string().contains(&line), "{now}");
    let text = render(&why(&records, &lost.node).unwrap());
    for words in [
        "is lost\n",
        "because no heartbeat for 10 s",
        "is back\n",
        "complete there: 1 replica",
    ] {
        assert!(text.contains(words), "{text}");
    }
    let text = render(&why(&records, "project[t0.fits]").unwrap());
    assert!(text.contains("it need not be made again"), "{text}");
    let summary = Summary::of(&records).unwrap();
    assert_eq!(summary.lost_nodes, now.lost_nodes);
    assert!(summary.to_string().contains(&line[6..]), "{summary}");
    let page = tarn_report::html(&records, &tarn_report::PageLinks::default()).unwrap();
    assert!(
        page.contains(&format!("<h3>{} is lost", lost.node)),
        "the page lists it"
    );
    let open = status(&log(false), 0).unwrap();
    let tier = open.tiers.iter().find(|t| t.node == lost.node).unwrap();
    assert_eq!(
        (tier.held, tier.capacity),
        (0, 0),
        "nothing of a lost node can be used"
    );
    let states = |s: &tarn_report::RunStatus| s.nodes.iter().map(|n| n.lost).collect::<Vec<_>>();
    assert_eq!(
        (states(&now), states(&open)),
        (vec![false; 2], vec![false, true])
    );
    assert!(open.to_string().contains("  n1    lost   0"), "{open}");
    assert!(open.line().ends_with("; lost: n1"), "{}", open.line());
}
