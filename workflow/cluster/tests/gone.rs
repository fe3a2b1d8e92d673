//! When the last replica of an encrypted part has gone from all nodes, and who is believed about what is missed where.

mod common;
use common::*;
use tarn_ports::NodeWorld;
use tarn_types::action::Do;
use tarn_types::event::{Event, RunError, RunErrorKind};
use tarn_types::id::{NodeId, TransferId};
use tarn_types::part::{PartInfo, Place, StoreKey};

#[test]
fn the_key_of_a_part_goes_with_the_last_replica_on_any_node() {
    let mut script = Script::new(3);
    script.workflow.data[0].encrypt = true;
    let mut p = script.open();
    p.world().know(vec![(part(0), info(0, 100))]).unwrap();
    let key = info(0, 0).key;
    let evict = |node| Do::Evict {
        part: part(0),
        key: info(0, 0).key,
        at: at(node),
    };
    let evicted = |node| Event::Evicted {
        part: part(0),
        at: at(node),
    };
    let gone = |p: &SimulatedRun| p.home.lock().unwrap().gone.clone();
    for node in 0..2 {
        let id = u64::from(node) + 1;
        p.perform(Do::Transfer(transfer(id, &[(0, Place::Source)], at(node))));
        p.session(node).orders(1);
        p.session(node).happens(done(id, 1));
        assert_eq!(p.event(), done(id, 1));
    }
    // Another node has it still.
    p.perform(evict(0));
    p.session(0).orders(2);
    p.session(0).happens(evicted(0));
    assert_eq!(p.event(), evicted(0));
    assert_eq!(gone(&p), []);
    // None has it, but it is on its way to one, which seals it with this key.
    p.perform(Do::Transfer(transfer(3, &[(0, Place::Source)], at(2))));
    p.perform(evict(1));
    p.session(1).orders(2);
    p.session(1).happens(evicted(1));
    assert_eq!(p.event(), evicted(1));
    assert_eq!(gone(&p), []);
    p.session(2).orders(1);
    p.session(2).happens(done(3, 1));
    assert_eq!(p.event(), done(3, 1));
    // A node that is lost may come back with it.
    p.loses(2);
    assert!(matches!(p.event(), Event::NodeLost { .. }));
    p.perform(Do::Transfer(transfer(4, &[(0, Place::Source)], at(0))));
    p.session(0).orders(3);
    // A corrupt transfer drops the key only if no node can hold a replica: node 2, which is lost, still can.
    let failed = Event::TransferFailed {
        id: TransferId(4),
        failure: RunError {
            kind: RunErrorKind::Corrupt,
            message: "it does not open".into(),
        },
        damaged: None,
    };
    p.session(0).happens(failed.clone());
    assert_eq!(p.event(), failed);
    assert_eq!(gone(&p), []);
    p.gets_back(2);
    while !matches!(p.event(), Event::NodeBack { .. }) {}
    p.perform(evict(2));
    p.session(2).orders(1);
    p.session(2).happens(evicted(2));
    assert_eq!(p.event(), evicted(2));
    assert_eq!(gone(&p), [(part(0), key)]);
}

/// The newest commit of a part may have another key while what was to bring an older one is still under way.
#[test]
fn the_key_of_an_older_commit_goes_with_the_run_at_the_latest() {
    let mut script = Script::new(2);
    script.workflow.data[0].encrypt = true;
    let mut p = script.open();
    let home = p.home.clone();
    p.world().know(vec![(part(0), info(0, 100))]).unwrap();
    let older = info(0, 0).key;
    p.perform(Do::Transfer(transfer(1, &[(0, Place::Source)], at(0))));
    p.session(0).orders(1);
    let newer = StoreKey("newer".into());
    let again = PartInfo {
        key: newer.clone(),
        ..info(0, 100)
    };
    p.world().know(vec![(part(0), again)]).unwrap();
    let failed = Event::TransferFailed {
        id: TransferId(1),
        failure: RunError {
            kind: RunErrorKind::Io,
            message: "it was given up".into(),
        },
        damaged: None,
    };
    p.session(0).happens(failed.clone());
    assert_eq!(p.event(), failed);
    assert_eq!(home.lock().unwrap().gone, []);
    p.world.unwrap().leave();
    let gone = home.lock().unwrap().gone.clone();
    assert_eq!(gone, [(part(0), newer), (part(0), older)]);
}

#[test]
fn who_leads_a_step_tells_what_its_other_nodes_have_missed_and_nobody_else_does() {
    let mut p = Script::new(3).open();
    p.world().know(vec![(part(0), info(0, 100))]).unwrap();
    p.perform(Do::Transfer(transfer(1, &[(0, Place::Source)], at(1))));
    p.session(1).orders(1);
    p.session(1).happens(done(1, 1));
    assert_eq!(p.event(), done(1, 1));
    p.perform(Do::Run(Box::new(run(0, &[0, 1], &[(0, 1)]))));
    p.session(0).orders(1);
    let evicted = Event::Evicted {
        part: part(0),
        at: at(1),
    };
    p.session(0).happens(evicted.clone());
    assert_eq!(p.event(), evicted);
    p.session(2).happens(evicted);
    assert!(matches!(p.event(), Event::NodeLost { node, .. } if node == NodeId(2)));
}
