//! Replicas are read again on their nodes: `tarn data verify`.

use super::*;
use ReplicaState::{Damaged, Unread, Whole};

fn verify(version: Option<u32>) -> ControllerRequest {
    ControllerRequest::Verify {
        owner: Owner::User(ALICE),
        workflow: "w".into(),
        dataset: "x".into(),
        version,
    }
}

fn states(reply: ControllerReply) -> Vec<(String, ReplicaState)> {
    match reply {
        ControllerReply::Replicas(all) => all.into_iter().map(|r| (r.node, r.state)).collect(),
        other => panic!("{other:?}"),
    }
}

/// `x` of Alice's workflow `w` on two nodes.
fn x_twice() -> World {
    let mut world = with_x(2);
    let reads = by(ALICE, "w", vec![(Role::In, dataset("x"))]);
    world.whole(2, reads, &["n2"]);
    world
}

#[test]
fn all_replicas_are_read_again_for_whom_they_belong_to_alone() {
    let mut world = x_twice();
    let of = |one, two| vec![("n1".to_owned(), one), ("n2".to_owned(), two)];
    assert_eq!(
        states(send_request(&mut world, ALICE, verify(None))),
        of(Whole, Whole)
    );
    assert_eq!(
        states(send_request(&mut world, 0, verify(Some(1)))),
        of(Whole, Whole)
    );
    for (user, version, code) in [
        (BOB, None, Code::Denied),
        (CAROL, Some(1), Code::Denied),
        (ALICE, Some(7), Code::NotFound),
    ] {
        match send_request(&mut world, user, verify(version)) {
            ControllerReply::Refused(why) => assert_eq!(why.code, code),
            other => panic!("{other:?}"),
        }
    }
    // A reader who is not the owner may not verify it.
    send_request(&mut world, ALICE, grant(Owner::User(BOB), true));
    assert!(matches!(
        send_request(&mut world, BOB, verify(None)),
        ControllerReply::Refused(_)
    ));
    // An older one was put back, whole: the log knows which it was.
    let parts = &mut world.nodes.get_mut("n2").unwrap().parts;
    let published = parts.values().next().unwrap().clone();
    for proof in parts.values_mut() {
        proof.hash = tarn_types::hash::Hash(7);
    }
    assert_eq!(
        states(send_request(&mut world, ALICE, verify(None))),
        of(Whole, Damaged)
    );
    for proof in world.nodes.get_mut("n2").unwrap().parts.values_mut() {
        *proof = published.clone();
    }
    for (code, state) in [
        (Code::Corrupt, Damaged),
        (Code::NotFound, Damaged),
        (Code::Io, Unread),
        (Code::Denied, Unread),
        (Code::Invalid, Unread),
    ] {
        world.refuses = Some((|work| matches!(work, Work::Check(_)), code));
        assert_eq!(
            states(send_request(&mut world, ALICE, verify(None))),
            of(state, state)
        );
    }
    world.refuses = None;
    // Nobody waits for a node that goes while it reads, nor for one that is away.
    let token = world.ask_as(ALICE, false, verify(None));
    // Once at a time for each user, and of each owner.
    for user in [ALICE, 0] {
        let busy = immediate_reply(&mut world, user, verify(None));
        assert!(matches!(busy, ControllerReply::Refused(why) if why.code == Code::Busy));
    }
    world.close("n2");
    world.settle();
    let reply = world.answers.remove(&token).expect("an answer");
    assert_eq!(states(reply), of(Whole, Unread));
    assert_eq!(
        states(send_request(&mut world, ALICE, verify(None))),
        of(Whole, Unread)
    );
    // A request under an earlier controller keeps nobody from a new one.
    world.ask_as(ALICE, false, verify(None));
    world.queue.clear();
    world.event(tarn_site::SiteServiceEvent::began(2));
    for node in ["n1", "n2"] {
        world.open(node);
    }
    world.settle();
    assert_eq!(
        states(send_request(&mut world, ALICE, verify(None))),
        of(Whole, Whole)
    );
    world.check_replay(Config::default());
}

/// The reply before any node has done anything.
fn immediate_reply(world: &mut World, user: Uid, ask: ControllerRequest) -> ControllerReply {
    let token = world.ask_as(user, false, ask);
    world.answers.remove(&token).expect("an answer")
}

/// A version without a replica is reported as absent, and no order is given for it.
#[test]
fn a_version_without_any_replica_is_said_to_be_absent() {
    let mut world = with_x(1);
    world.close("n1");
    world.nodes.get_mut("n1").unwrap().parts.clear();
    world.open("n1");
    world.settle();
    let replicas = states(immediate_reply(&mut world, ALICE, verify(None)));
    assert_eq!(replicas, [(String::new(), ReplicaState::Absent)]);
}

/// A part that goes while it is to be read is not damaged.
#[test]
fn a_part_that_is_removed_meanwhile_is_not_said_to_be_damaged() {
    let mut world = x_twice();
    world.refuses = Some((|work| matches!(work, Work::Check(_)), Code::NotFound));
    let token = world.ask_as(ALICE, false, verify(None));
    let remove = ControllerRequest::Remove {
        owner: Owner::User(ALICE),
        workflow: "w".into(),
        dataset: Some("x".into()),
        version: None,
    };
    world.ask_as(ALICE, false, remove);
    world.settle();
    let replicas = states(world.answers.remove(&token).expect("an answer"));
    assert!(
        replicas.iter().all(|(_, state)| *state == Unread),
        "{replicas:?}"
    );
}

/// A part that had been given up, and is there again, is read before it is believed. A failed check loses nothing.
#[test]
fn what_could_not_be_read_again_is_not_removed_for_it() {
    for is_cut in [true, false] {
        let mut world = with_x(1);
        let kept = world.nodes["n1"].parts.clone();
        world.close("n1");
        world.nodes.get_mut("n1").unwrap().parts.clear();
        world.open("n1");
        world.settle();
        world.close("n1");
        world.nodes.get_mut("n1").unwrap().parts = kept.clone();
        if !is_cut {
            world.refuses = Some((|work| matches!(work, Work::Check(_)), Code::Io));
        }
        world.open("n1");
        assert!(!world.queue.is_empty(), "it is to be read");
        if is_cut {
            world.close("n1");
        }
        world.settle();
        world.refuses = None;
        world.close("n1");
        world.open("n1");
        world.settle();
        assert_eq!(world.nodes["n1"].parts, kept);
        let replicas = states(send_request(&mut world, ALICE, verify(None)));
        assert_eq!(replicas, [("n1".to_owned(), ReplicaState::Whole)]);
    }
}
