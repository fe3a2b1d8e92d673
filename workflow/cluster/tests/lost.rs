//! Nodes that are lost and come back: the engine's events, and their order.

mod common;
use common::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tarn_cluster::NodeLink;
use tarn_ports::{NodeWorld, World};
use tarn_proto::node::{NodeCommand, NodeNotification, NodeReply, NodeRequest};
use tarn_types::action::Do;
use tarn_types::event::{
    AttemptOutcome, Event, IntactReplica, Output, RunError, RunErrorKind, Usage,
};
use tarn_types::id::{DataId, NodeId, TierId, TransferId};
use tarn_types::nodes::Staying;
use tarn_types::part::{Place, StoreKey};

fn is_lost(event: &Event, node: u32) -> bool {
    matches!(event, Event::NodeLost { node: n, .. } if n.0 == node)
}

/// Transfers and attempts that ended because a node is lost.
fn lost_end(event: &Event) -> Option<u64> {
    match event {
        Event::TransferFailed { id, failure, .. } if failure.kind == RunErrorKind::NodeLost => {
            Some(id.0)
        }
        Event::Ended {
            instance,
            ended: AttemptOutcome::Failed { failure, .. },
            ..
        } if failure.kind == RunErrorKind::NodeLost => Some(1000 + u64::from(instance.index)),
        _ => None,
    }
}

fn io(id: u64) -> Event {
    let (kind, message) = (RunErrorKind::Io, "its peer is silent".into());
    Event::TransferFailed {
        id: TransferId(id),
        failure: RunError { kind, message },
        damaged: None,
    }
}

fn exit(index: u32) -> Event {
    let (kind, message) = (RunErrorKind::Exit, "status 1".into());
    Event::Ended {
        instance: instance(index),
        attempt: 1,
        ended: AttemptOutcome::Failed {
            failure: RunError { kind, message },
            log_tail: "mpirun: a rank is gone".into(),
            newest: None,
        },
        usage: Usage::default(),
    }
}

#[test]
fn what_it_performed_ends_at_once_and_what_others_do_with_it_when_they_say_so() {
    let mut p = Script::new(3).open();
    p.perform(Do::Transfer(transfer(1, &[(0, Place::Source)], at(1))));
    p.perform(Do::Run(Box::new(run(0, &[1, 2], &[]))));
    p.perform(Do::Evict {
        part: part(0),
        key: info(0, 0).key,
        at: at(1),
    });
    p.perform(Do::Transfer(transfer(2, &[(2, at(1))], at(2))));
    p.perform(Do::Run(Box::new(run(1, &[0, 1], &[]))));
    p.perform(Do::Transfer(transfer(3, &[(0, Place::Source)], at(2))));
    p.perform(Do::Transfer(transfer(4, &[(2, at(1)), (1, at(2))], at(0))));
    p.session(1).orders(3);
    let old = p.session(1);
    p.loses(1);
    let lost = p.event();
    assert!(
        is_lost(&lost, 1) && format!("{lost:?}").contains("it died"),
        "{lost:?}"
    );
    let ends = BTreeSet::from([lost_end(&p.event()), lost_end(&p.event())]);
    assert_eq!(ends, [Some(1), Some(1000)].into());
    // Ordered before the engine has acted on the loss.
    p.perform(Do::Run(Box::new(run(2, &[2, 1], &[]))));
    p.perform(Do::Transfer(transfer(5, &[(0, at(1))], Place::Drained)));
    p.perform(Do::Evict {
        part: part(0),
        key: info(0, 0).key,
        at: at(1),
    });
    assert_eq!(lost_end(&p.event()), Some(1002));
    assert_eq!(lost_end(&p.event()), Some(5));
    old.happens(done(1, 1));
    p.gets_back(1);
    p.quiet("two of its ends are owed, so it cannot be back");
    let abandon = |id| Do::Abandon { id: TransferId(id) };
    let stop = Do::Stop {
        instance: instance(1),
        attempt: 1,
    };
    assert_eq!(p.session(2).orders(3)[2], abandon(2));
    assert_eq!(p.session(0).orders(4)[2..], [abandon(4), stop]);
    p.session(0)
        .receives(|t| *t == NodeCommand::NodeLost(NodeId(1)));
    p.session(2).happens(io(2));
    assert_eq!(lost_end(&p.event()), Some(2));
    p.session(0).happens(exit(1));
    let end = p.event();
    assert_eq!(lost_end(&end), Some(1001));
    assert!(format!("{end:?}").contains("a rank is gone"), "{end:?}");
    p.quiet("one of its ends is owed, so it cannot be back");
    // It was read in time, after all.
    p.session(0).happens(done(4, 2));
    assert_eq!(p.event(), done(4, 2));
    assert!(matches!(
        p.event(),
        Event::NodeBack {
            node: NodeId(1),
            ..
        }
    ));
    p.session(2).happens(io(3));
    assert_eq!(p.event(), io(3), "it had nothing to do with the loss");
}

#[test]
fn it_brings_back_what_is_whole_and_everybody_is_told_where_it_is() {
    let mut script = Script::new(3);
    script.answers = Arc::new(|n, call| match call {
        // Of three replicas the second is not whole any more.
        NodeRequest::Inventory(wanted) if n == NodeId(1) => {
            let mut there: Vec<_> = wanted.iter().map(|(p, _, at)| (*p, at.clone())).collect();
            if there.len() > 1 {
                there.remove(1);
            }
            Some(NodeReply::Found(there))
        }
        _ => None,
    });
    let mut p = script.open();
    let infos = [
        (part(0), info(0, 10)),
        (part(1), info(1, 10)),
        (part(4), info(4, 10)),
    ];
    p.world().know(infos.to_vec()).unwrap();
    let offered = [(StoreKey("earlier".into()), at(1))].into();
    p.world()
        .offer(Vec::new(), &offered, &BTreeSet::new())
        .unwrap();
    p.world().clean(&Staying::default()).unwrap();
    for (id, seq) in [(1, 0), (2, 1), (4, 4)] {
        p.perform(Do::Transfer(transfer(id, &[(seq, Place::Source)], at(1))));
        p.session(1).happens(done(id, 1));
        p.event();
    }
    p.perform(Do::Run(Box::new(run(3, &[1], &[]))));
    let output = Output {
        data: DataId(1),
        version: 1,
        parts: vec![(info(8, 20), vec![tier_ref(1)])],
    };
    p.session(1)
        .happens(committed(instance(3), 1, vec![output]));
    p.event();
    p.perform(Do::Evict {
        part: part(4),
        key: info(4, 0).key,
        at: at(1),
    });
    let evicted = Event::Evicted {
        part: part(4),
        at: at(1),
    };
    p.session(1).happens(evicted.clone());
    assert_eq!(p.event(), evicted);
    p.loses(1);
    p.loses(2);
    assert!(is_lost(&p.event(), 1));
    assert!(is_lost(&p.event(), 2));
    p.gets_back(1);
    let Event::NodeBack {
        node,
        capacities,
        whole,
    } = p.event()
    else {
        panic!("it is not back")
    };
    assert_eq!((node, capacities), (NodeId(1), vec![1000]));
    let made = tarn_types::part::PartRef {
        data: DataId(1),
        version: 1,
        origin: 3,
        seq: 8,
    };
    let brought = |part, key: &str, stored| IntactReplica {
        part,
        key: StoreKey(key.into()),
        tier: TierId(0),
        stored,
    };
    assert_eq!(
        whole,
        [brought(part(0), "d.0", 10), brought(made, "d.8", 20)]
    );
    let back = p.session(1);
    let called = back.called.lock().unwrap().clone();
    let names: Vec<_> = called.iter().map(std::mem::discriminant).collect();
    assert_eq!(names.len(), 4, "open, inventory, offer, clean: {called:?}");
    assert!(matches!(&called[0], NodeRequest::Open(o) if o.node == NodeId(1) && o.epoch > 0));
    assert!(matches!(&called[2], NodeRequest::Offer { there, .. } if *there == offered));
    let kept = |s: &Staying| s.keep.len() == 3 && s.resumed;
    assert!(
        matches!(&called[3], NodeRequest::Clean(s) if kept(s)),
        "{called:?}"
    );
    back.receives(|t| *t == NodeCommand::NodeLost(NodeId(2)));
    let address = ("node1".to_owned(), 7001);
    p.session(0)
        .receives(|t| *t == NodeCommand::NodeBack(NodeId(1), address.clone()));
    p.perform(Do::Transfer(transfer(9, &[(0, Place::Source)], at(1))));
    assert_eq!(back.orders(1).len(), 1);
}

#[test]
fn one_that_is_lost_while_it_comes_back_comes_back_later() {
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fails);
    let mut script = Script::new(2);
    script.answers = Arc::new(move |_, call| match call {
        NodeRequest::Inventory(_) if failing.load(Ordering::Relaxed) => {
            Some(NodeReply::Failed("its disk is not mounted yet".into()))
        }
        _ => None,
    });
    let mut p = script.open();
    fails.store(true, Ordering::Relaxed);
    p.session(1).dies();
    assert!(is_lost(&p.event(), 1));
    for _ in 0..3 {
        p.quiet("it cannot be made ready");
    }
    let tries = p.sessions.lock().unwrap().len();
    assert!(tries > 3, "{tries} sessions");
    fails.store(false, Ordering::Relaxed);
    assert!(matches!(p.event(), Event::NodeBack { .. }));
    p.perform(Do::Run(Box::new(run(0, &[1], &[]))));
    p.session(1).orders(1);
    p.session(1).dies();
    assert!(is_lost(&p.event(), 1), "and it can be lost again");
    assert_eq!(lost_end(&p.event()), Some(1000));
}

#[test]
fn what_its_new_world_says_of_its_tiers_comes_with_it() {
    let mut script = Script::new(2);
    script.acts = Arc::new(|n, command| match command {
        NodeCommand::Know(_) => vec![
            NodeNotification::Event(Event::Capacity {
                tier_ref: tier_ref(n.0),
                bytes: 600,
            }),
            NodeNotification::Event(done(1, 1)),
        ],
        _ => Vec::new(),
    });
    let mut p = script.open();
    p.session(1).dies();
    assert!(is_lost(&p.event(), 1));
    match p.event() {
        Event::NodeBack { capacities, .. } => assert_eq!(capacities, [600]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_that_takes_nothing_for_long_is_given_up() {
    let mut script = Script::new(2);
    script.timeout = 300;
    let mut p = script.open();
    let hangs = p.session(0);
    hangs.is_stuck(true);
    p.quiet("nothing is said to it");
    p.perform(Do::Run(Box::new(run(0, &[0], &[]))));
    p.perform(Do::Run(Box::new(run(1, &[0, 1], &[]))));
    let lost = p.event();
    assert!(is_lost(&lost, 0) && format!("{lost:?}").contains("taken nothing"));
    let ends = [lost_end(&p.event()), lost_end(&p.event())];
    assert_eq!(ends, [Some(1000), Some(1001)]);
    until(|| hangs.over().is_some(), "the end of its session");
    assert!(hangs.orders(0).is_empty());
    assert!(matches!(
        p.event(),
        Event::NodeBack {
            node: NodeId(0),
            ..
        }
    ));
}

#[test]
fn a_node_lost_before_the_run_begins_is_told_of_when_it_does() {
    let mut p = Script::new(2).open();
    p.loses(0);
    let wanted = [
        (part(0), info(0, 0).key, at(0)),
        (part(1), info(1, 0).key, at(1)),
    ];
    let found = p.world().inventory(&wanted).unwrap();
    assert_eq!(found, [(part(1), at(1))]);
    let (_, first) = p.world().poll().expect("an event");
    assert!(is_lost(&first, 0));
    assert!(p.world().next(None).is_err(), "nothing is under way");
}

/// A job that is cancelled takes all nodes at once: the run is interrupted, and that is known before anybody is lost.
#[test]
fn who_is_told_to_end_interrupts_the_run() {
    let mut p = Script::new(2).open();
    p.perform(Do::Run(Box::new(run(0, &[0], &[]))));
    p.session(0).orders(1);
    for n in [1, 0] {
        p.session(n).sends(NodeNotification::Ending);
    }
    let first = p.event();
    assert!(
        matches!(first, Event::Interrupted { signal: 15 }),
        "{first:?}"
    );
    let lost = p.event();
    assert!(
        is_lost(&lost, 1) && format!("{lost:?}").contains("was cancelled"),
        "{lost:?}"
    );
    assert!(is_lost(&p.event(), 0), "once is enough");
    assert_eq!(lost_end(&p.event()), Some(1000));
    assert!(
        matches!(p.event(), Event::NodeBack { .. }),
        "nobody is interrupted twice"
    );
}

#[test]
fn who_ends_while_it_is_asked_is_lost_and_the_run_goes_on() {
    let mut script = Script::new(2);
    script.answers = Arc::new(|n, call| match call {
        NodeRequest::Exist(_) if n.0 == 1 => Some(NodeReply::Ending),
        _ => None,
    });
    let mut p = script.open();
    let folder = |n| std::path::PathBuf::from(format!("/tier/w/node{n}/parts/k"));
    let folders = [folder(0), folder(1)];
    assert_eq!(p.world().exist(&folders).unwrap(), [Some(true), None]);
    assert!(is_lost(&p.event(), 1));
}
