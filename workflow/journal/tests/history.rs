//! The history that the shared read model makes of a log.

mod common;

use common::{WALL, act, assign, instance, part, start, story, tier_ref};
use std::collections::BTreeMap;
use tarn_ports::Record;
use tarn_types::action::{Action, Do, Outcome, Subject};
use tarn_types::event::{Event, Output, PriorInstance, RunErrorKind, version_hash};
use tarn_types::hash::Hash;
use tarn_types::history::{AttemptEnd, DeedKind, History, InstanceState, MAX_DEEDS, TransferEnd};
use tarn_types::id::{DataId, NodeId, TransferId};
use tarn_types::part::{PartClass, Place, StoreKey, TransferKind};
use tarn_types::reason::Reason;
use tarn_types::units::SECOND;

fn replay(records: &[Record]) -> History {
    let mut history = History::new();
    for r in records {
        history.apply(r.now, &r.event, &r.actions);
    }
    history
}

fn places(history: &History) -> Vec<(u32, Place)> {
    let all = history.replicas.iter();
    all.flat_map(|(p, places)| places.keys().map(|place| (p.data.0, place.clone())))
        .collect()
}

#[test]
fn a_whole_run_is_understood() {
    let h = replay(&story("w-1", WALL));
    let dest = Place::External("/lustre/out".into());
    let (n0, n1) = (Place::Node(tier_ref(0)), Place::Node(tier_ref(1)));
    assert_eq!(
        places(&h),
        [(1, n0.clone()), (1, n1.clone()), (2, n1), (2, dest)]
    );
    assert_eq!(
        h.removed,
        BTreeMap::from([((StoreKey("src.raw".into()), n0), 5 * SECOND)])
    );
    let moved = BTreeMap::from([
        (TransferKind::ExternalIn, 100),
        (TransferKind::Peer, 50),
        (TransferKind::ExternalOut, 30),
    ]);
    assert_eq!((h.moved(), h.retained), (moved, 5));
    assert_eq!(h.outcome, Some((8 * SECOND, Outcome::Done)));

    let make = &h.instances[&instance(0)];
    assert_eq!(
        (make.state, make.attempts.len()),
        (InstanceState::Committed, 2)
    );
    let (at, AttemptEnd::Failed { failure, log_tail }) = make.attempts[0].ended.as_ref().unwrap()
    else {
        panic!("the first attempt failed")
    };
    assert_eq!((*at, failure.kind), (3 * SECOND, RunErrorKind::Exit));
    assert!(log_tail.ends_with("line 2\n"));
    assert_eq!(make.attempts[1].usage.wall, SECOND);
    assert_eq!(
        (make.attempts[1].assigned, make.attempts[1].started),
        (SECOND, 3 * SECOND)
    );

    let fetch = &h.transfers[&TransferId(0)];
    assert_eq!(
        (fetch.instance, fetch.expected, fetch.bytes()),
        (Some(instance(0)), 100, 100)
    );
    assert_eq!(
        h.parts[&part(0, 0)].hash,
        Some(Hash(7)),
        "known since it was read"
    );
    assert_eq!(
        h.delivered[&DataId(2)].hash,
        Some(version_hash([(&PartClass::Whole, Hash(9))]))
    );
    assert_eq!(h.instance_name(instance(1)), "finish");
}

#[test]
fn tiers_fill_and_empty() {
    let h = replay(&story("w-1", WALL));
    let (raw, mid) = (100 + 4096, 50 + 4096);
    let n0 = [
        (2 * SECOND, raw),
        (4 * SECOND, raw + mid),
        (5 * SECOND, mid),
    ];
    assert_eq!(h.fill[&tier_ref(0)], n0);
    assert_eq!(h.held(tier_ref(0)), mid);
    assert_eq!(h.held(tier_ref(1)), mid + 30 + 4096);
}

#[test]
fn every_reason_is_found_by_what_it_is_about() {
    let h = replay(&story("w-1", WALL));
    let about =
        |s: Subject| -> Vec<DeedKind> { h.deeds[&s].kept.iter().map(|d| d.what.clone()).collect() };
    let place = Place::Node(tier_ref(0));
    assert_eq!(
        about(Subject::Data(DataId(0))),
        [
            DeedKind::List,
            DeedKind::Transfer(TransferId(0)),
            DeedKind::Evict(part(0, 0), place)
        ]
    );
    assert_eq!(
        about(Subject::Instance(instance(1))),
        [
            DeedKind::Assign(vec![tier_ref(1)]),
            DeedKind::Transfer(TransferId(1)),
            DeedKind::Note,
            DeedKind::Run(1)
        ]
    );
    assert_eq!(about(Subject::Run), [DeedKind::Finish(Outcome::Done)]);
    assert_eq!(h.evictions[0].done, Some(5 * SECOND));
}

#[test]
fn what_is_noted_forever_is_bounded() {
    let mut h = History::new();
    let about = Subject::Tier(tier_ref(0));
    let note = act(Do::Note { about }, Reason::Needed);
    for now in 0..MAX_DEEDS as u64 + 5 {
        h.apply(now, &Event::Timer, std::slice::from_ref(&note));
    }
    let deeds = &h.deeds[&about];
    assert_eq!(
        (deeds.kept.len(), deeds.forgotten, deeds.kept[0].at),
        (MAX_DEEDS, 5, 5)
    );
}

#[test]
fn after_an_interruption_only_what_was_found_is_there() {
    let records = story("w-1", WALL);
    // The second attempt runs, only transfers that are ordered then are in flight.
    let mut h = replay(&records[..5]);
    let kept = (part(1, 1), Place::Node(tier_ref(0)));
    let event = Event::Resumed {
        found: vec![kept.clone(), (part(0, 0), Place::Source)],
        pinned: vec![],
        set_aside: None,
    };
    h.apply(20 * SECOND, &event, &[assign(1, 0)]);
    assert_eq!(places(&h), [(1, kept.1)]);
    assert!(
        h.removed
            .contains_key(&(StoreKey("src.raw".into()), Place::Node(tier_ref(0))))
    );
    assert_eq!(h.held(tier_ref(0)), 50 + 4096);
    let ended = |id| h.transfers[&TransferId(id)].ended.as_ref().map(|e| &e.1);
    assert!(matches!(ended(0), Some(TransferEnd::Done { .. })));
    assert_eq!(ended(1), Some(&TransferEnd::Interrupted));
    assert_eq!(h.instances[&instance(0)].state, InstanceState::Committed);
    assert_eq!(
        h.instances[&instance(1)].state,
        InstanceState::Assigned,
        "anew"
    );
    assert_eq!(h.resumptions, [20 * SECOND]);

    let mut h = replay(&records[..4]);
    h.apply(
        9 * SECOND,
        &Event::Resumed {
            found: vec![],
            pinned: vec![],
            set_aside: None,
        },
        &[],
    );
    let make = &h.instances[&instance(0)];
    assert_eq!(make.state, InstanceState::Waiting);
    assert_eq!(
        make.attempts[1].ended,
        Some((9 * SECOND, AttemptEnd::Interrupted))
    );
}

#[test]
fn reuse_takes_outputs_by_position_and_what_is_held() {
    let mut start = start("w-2", WALL);
    let old = Output {
        data: DataId(9),
        version: 4,
        parts: vec![(common::info("old", 50, Some(8)), vec![tier_ref(7)])],
    };
    let place = Place::Node(tier_ref(1));
    start.prior = vec![PriorInstance {
        identity: Hash(100),
        outputs: vec![old],
        held: vec![(0, 0, place.clone()), (3, 3, Place::Drained)],
    }];
    let mut h = History::new();
    let reuse = Do::Reuse {
        instance: instance(0),
        prior: 0,
    };
    h.apply(
        0,
        &Event::Started(Box::new(start)),
        &[act(reuse, Reason::Unchanged)],
    );
    assert_eq!(places(&h), [(1, place)]);
    let made = &h.instances[&instance(0)];
    assert_eq!(
        (made.state, made.identity),
        (InstanceState::Reused, Some(Hash(100)))
    );
    assert_eq!(
        (made.outputs[0].data, made.outputs[0].version),
        (DataId(1), 1)
    );
    assert_eq!(made.outputs[0].parts[0].1, [tier_ref(1)]);
    assert_eq!(h.held(tier_ref(1)), 50 + 4096);
}

/// Logs of other versions of tarn may have records that make no sense to this one.
#[test]
fn nonsense_does_no_harm() {
    let records = story("w-1", WALL);
    for skip in 0..records.len() {
        let mut some: Vec<Record> = records.clone();
        some.remove(skip);
        some.reverse();
        let h = replay(&some);
        assert_eq!(h.now, some.iter().map(|r| r.now).max().unwrap());
    }
    let wild: Vec<Action> = vec![
        act(
            Do::Reuse {
                instance: instance(99),
                prior: 5,
            },
            Reason::Unchanged,
        ),
        act(Do::Abandon { id: TransferId(77) }, Reason::NotNeeded),
        act(
            Do::Unassign {
                instance: instance(98),
            },
            Reason::FirstFree { node: NodeId(9) },
        ),
    ];
    let mut h = replay(&records);
    h.apply(1, &Event::Timer, &wild);
    assert_eq!(h.instance_name(instance(99)), "s99.0");
    assert_eq!(h.now, 8 * SECOND, "time never goes back");
}

fn lost(node: u32) -> Event {
    Event::NodeLost {
        node: NodeId(node),
        why: "its tarnd is gone".into(),
    }
}

fn mid() -> StoreKey {
    StoreKey("w-1.s0.0".into())
}

#[test]
fn what_a_lost_node_had_is_neither_there_nor_gone() {
    let records = story("w-1", WALL);
    // `mid` is made on the first node, and on its way to the second.
    let mut h = replay(&records[..5]);
    h.apply(20 * SECOND, &lost(0), &[]);
    let n0 = Place::Node(tier_ref(0));
    assert_eq!(places(&h), []);
    let lost_replica = h.unreachable[&(mid(), n0.clone())];
    assert_eq!((lost_replica.part, lost_replica.bytes), (part(1, 1), 50));
    assert_eq!(lost_replica.replica.stored, 50 + 4096);
    assert!(!h.removed.contains_key(&(mid(), n0.clone())));
    assert!(
        h.removed.contains_key(&(StoreKey("src.raw".into()), n0)),
        "it was told to go"
    );
    assert_eq!((h.losses[0].replicas, h.held(tier_ref(0))), (2, 0));
    assert_eq!(h.losses[0].alone[&part(1, 1).data], 50 + 4096);
}

#[test]
fn a_node_that_is_back_has_what_it_says_and_nothing_else() {
    let n0 = Place::Node(tier_ref(0));
    for there in [true, false] {
        let mut h = replay(&story("w-1", WALL)[..5]);
        h.apply(20 * SECOND, &lost(0), &[]);
        let whole = tarn_types::event::IntactReplica {
            part: part(1, 1),
            key: mid(),
            tier: tier_ref(0).tier,
            stored: 60,
        };
        let back = Event::NodeBack {
            node: NodeId(0),
            capacities: vec![1 << 30],
            whole: if there { vec![whole] } else { vec![] },
        };
        h.apply(30 * SECOND, &back, &[]);
        assert!(h.unreachable.is_empty());
        assert_eq!(places(&h).contains(&(1, n0.clone())), there);
        assert_eq!(h.removed.contains_key(&(mid(), n0.clone())), !there);
    }
}

#[test]
fn what_is_made_again_or_comes_to_a_lost_node_is_known() {
    let mut h = replay(&story("w-1", WALL)[..5]);
    h.apply(20 * SECOND, &lost(0), &[]);
    let (n0, n1) = (Place::Node(tier_ref(0)), Place::Node(tier_ref(1)));
    let made = |key: &str, node| Event::Ended {
        instance: instance(0),
        attempt: 3,
        ended: tarn_types::event::AttemptOutcome::Committed {
            outputs: vec![Output {
                data: DataId(1),
                version: 1,
                parts: vec![(common::info(key, 50, Some(8)), vec![tier_ref(node)])],
            }],
            undeclared: tarn_types::event::Undeclared::default(),
        },
        usage: tarn_types::event::Usage::default(),
    };
    h.apply(30 * SECOND, &made("again", 1), &[]);
    assert_eq!(places(&h), [(1, n1)]);
    assert!(h.unreachable.is_empty(), "the older one is of no use");
    assert!(h.removed.contains_key(&(mid(), n0.clone())));
    // A part whose commit is reported after the loss of its node may be there.
    h.apply(40 * SECOND, &made("late", 0), &[]);
    assert_eq!(places(&h), []);
    assert!(h.unreachable.contains_key(&(StoreKey("late".into()), n0)));
}

#[test]
fn what_was_out_of_reach_counts_where_it_is_found() {
    let n0 = Place::Node(tier_ref(0));
    let at = (mid(), n0.clone());
    let mut h = replay(&story("w-1", WALL)[..5]);
    let since = h.replicas[&part(1, 1)][&n0].since;
    h.apply(20 * SECOND, &lost(0), &[]);
    let mut missed = h.clone();
    let found = vec![(part(1, 1), n0.clone())];
    h.apply(
        30 * SECOND,
        &Event::Resumed {
            found,
            pinned: Vec::new(),
            set_aside: None,
        },
        &[],
    );
    assert_eq!(h.replicas[&part(1, 1)][&n0].since, since);
    assert!(h.unreachable.is_empty() && !h.is_lost(NodeId(0)));
    // A replica that a resumed run does not find is gone, unless its node was not there for the check.
    missed.apply(
        30 * SECOND,
        &Event::Resumed {
            found: vec![],
            pinned: vec![],
            set_aside: None,
        },
        &[],
    );
    assert!(missed.unreachable.is_empty() && missed.removed.contains_key(&at));
    missed.apply(30 * SECOND, &lost(0), &[]);
    assert!(missed.unreachable.contains_key(&at) && !missed.removed.contains_key(&at));
    missed.apply(31 * SECOND, &lost(1), &[]);
    assert!(missed.unreachable.contains_key(&at));
}
