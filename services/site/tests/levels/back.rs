//! Nodes that come back: with other stores, and from the middle of a move.

use super::{TWO, ends, makes, reads, runs, setup, world};
use crate::world::*;
use std::collections::BTreeSet;
use tarn_proto::local::Code;
use tarn_proto::site::{ControllerReply, ControllerRequest, NodeOrder, Report, Stage};
use tarn_site::{Config, SiteServiceEvent};
use tarn_types::workflow::Distribution::Single;
use tarn_types::workflow::Role;

fn again(world: &mut World, node: &str) {
    world.close(node);
    world.open(node);
    world.settle();
}

#[test]
fn a_store_that_is_not_mounted_has_lost_nothing() {
    let mut world = world(1, &TWO, Config::default());
    let mut low = dataset("low");
    low.tier = Some("nvme".into());
    world.whole(1, script("low", 1, vec![(Role::Out, Single, low)]), &["n1"]);
    world.whole(2, makes("x"), &["n1"]);
    world
        .nodes
        .get_mut("n1")
        .unwrap()
        .away
        .insert("nvme".into());
    again(&mut world, "n1");
    // It is not available now, and not reported as lost.
    setup(&mut world, 3, reads("low"));
    let reply = world.pre_run(3, &["n1"]);
    assert_eq!(refused(&reply).code, Code::Lost);
    assert!(
        refused(&reply)
            .text
            .contains("wait until the nodes that have it are back: n1"),
        "{reply:?}"
    );
    // Data in the other store is there, and outputs go there.
    runs(&mut world, 4, reads("x"), "n1");
    ends(&mut world, 4);
    // Data that is removed meanwhile goes when the store is back.
    let gone = ControllerRequest::Remove {
        owner: tarn_proto::site::Owner::User(ALICE),
        workflow: "x".into(),
        dataset: None,
        version: None,
    };
    let token = world.ask_as(ALICE, false, gone);
    world.settle();
    assert_eq!(world.answers.remove(&token), Some(ControllerReply::Done));
    world.nodes.get_mut("n1").unwrap().away.clear();
    again(&mut world, "n1");
    assert!(
        !format!("{:?}", world.log).contains("Check"),
        "nothing was given up"
    );
    assert_eq!(world.pre_run(3, &["n1"]), ControllerReply::Done);
    ends(&mut world, 3);
    // A dataset whose store is away is removed from it later.
    let mut low = dataset("late");
    low.tier = Some("nvme".into());
    world.whole(
        5,
        script("late", 1, vec![(Role::Out, Single, low)]),
        &["n1"],
    );
    world
        .nodes
        .get_mut("n1")
        .unwrap()
        .away
        .insert("nvme".into());
    again(&mut world, "n1");
    let gone = ControllerRequest::Remove {
        owner: tarn_proto::site::Owner::User(ALICE),
        workflow: "late".into(),
        dataset: None,
        version: None,
    };
    world.ask_as(ALICE, false, gone);
    world.settle();
    assert_eq!(world.places("n1", "late"), ["nvme"]);
    world.nodes.get_mut("n1").unwrap().away.clear();
    again(&mut world, "n1");
    assert!(world.places("n1", "late").is_empty());
    world.check_replay(Config::default());
}

#[test]
fn a_node_has_more_stores_or_fewer_or_other_names() {
    let mut world = World::new(1, Config::default());
    world.size = 900 << 10;
    world.whole(1, makes("x"), &["n1"]);
    // Its one store gets a name, and another one beside it.
    let rename = |world: &mut World, name: &str| {
        let node = world.nodes.get_mut("n1").unwrap();
        for part in node.parts.keys() {
            node.places
                .insert(part.clone(), BTreeSet::from([name.to_owned()]));
        }
    };
    rename(&mut world, "nvme");
    world.levels = TWO.to_vec();
    again(&mut world, "n1");
    runs(&mut world, 2, reads("x"), "n1");
    assert_eq!(world.places("n1", "x"), ["pmem"], "up, into the new one");
    ends(&mut world, 2);
    // The other way round.
    world.levels = vec![TWO[1], TWO[0]];
    again(&mut world, "n1");
    runs(&mut world, 3, reads("x"), "n1");
    assert_eq!(
        world.places("n1", "x"),
        ["nvme"],
        "which is the faster one now"
    );
    ends(&mut world, 3);
    // Without that store its data is given up; with it again, the data is believed once it was read.
    world.levels = vec![TWO[0]];
    world
        .nodes
        .get_mut("n1")
        .unwrap()
        .away
        .insert("nvme".into());
    again(&mut world, "n1");
    setup(&mut world, 4, reads("x"));
    assert_eq!(refused(&world.pre_run(4, &["n1"])).code, Code::Lost);
    world.levels = TWO.to_vec();
    world.nodes.get_mut("n1").unwrap().away.clear();
    world.close("n1");
    world.open("n1");
    assert!(format!("{:?}", world.queue).contains("CheckIn"));
    world.settle();
    assert_eq!(world.pre_run(4, &["n1"]), ControllerReply::Done);
    world.check_replay(Config::default());
}

/// The point at which a move, and its report, are interrupted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cut {
    /// The node has not begun.
    Before,
    /// It is whole in both stores.
    Between,
    /// It is done, and nobody has the report.
    After,
    /// The node's tarnd continues it while the controller has another session.
    Meanwhile,
}

#[test]
fn a_move_that_is_interrupted_anywhere_is_ended_and_loses_nothing() {
    for cut in [Cut::Before, Cut::Between, Cut::After, Cut::Meanwhile] {
        for controller_dies in [false, true] {
            for is_removed in [false, true] {
                interrupted(cut, controller_dies, is_removed);
            }
        }
    }
}

fn interrupted(cut: Cut, controller_dies: bool, is_removed: bool) {
    let what = format!("{cut:?} {controller_dies} {is_removed}");
    let mut world = world(1, &TWO, Config::default());
    world.whole(1, makes("x"), &["n1"]);
    world.whole(2, makes("y"), &["n1"]);
    setup(&mut world, 3, makes("z"));
    let gate = Stage::PreRun(vec!["n1".into()]);
    world.stage(3, gate.clone());
    let at = world
        .queue
        .iter()
        .position(|(_, _, o)| format!("{o:?}").contains("Move"));
    let (node, number, order) = world.queue.remove(at.expect("a move"));
    let part = world.nodes["n1"]
        .parts
        .keys()
        .find(|p| p.dataset == "x")
        .cloned()
        .unwrap();
    // The node does it, and nobody gets the report.
    let silently = |world: &mut World, order: NodeOrder| {
        let log_length = world.log.len();
        let site = world.site.clone();
        world.perform(&node, number, order);
        world.site = site;
        world.log.truncate(log_length);
    };
    match cut {
        Cut::Before | Cut::Meanwhile => {}
        Cut::Between => {
            let places = world.nodes.get_mut("n1").unwrap();
            places.places.get_mut(&part).unwrap().insert("nvme".into());
        }
        Cut::After => silently(&mut world, order.clone()),
    }
    world.close("n1");
    if controller_dies {
        world.event(SiteServiceEvent::began(2));
    }
    if is_removed {
        let gone = ControllerRequest::Remove {
            owner: tarn_proto::site::Owner::User(ALICE),
            workflow: "x".into(),
            dataset: None,
            version: None,
        };
        let token = world.ask_as(ALICE, false, gone);
        assert_eq!(
            world.answers.remove(&token),
            Some(ControllerReply::Done),
            "{what}"
        );
    }
    world.open("n1");
    if cut == Cut::Meanwhile {
        // It had reported its content before this ended.
        silently(&mut world, order);
    }
    world.settle();
    world.answers.clear();
    assert_eq!(world.staged(3, gate), ControllerReply::Done, "{what}");
    match is_removed {
        false => assert_eq!(world.places("n1", "x"), ["nvme"], "{what}"),
        true => assert!(world.places("n1", "x").is_empty(), "{what}"),
    }
    ends(&mut world, 3);
    // The site's belief is the truth.
    if !is_removed {
        runs(&mut world, 4, reads("x"), "n1");
        ends(&mut world, 4);
    }
    world.pass(8 * 24 * 3600);
    assert!(world.nodes["n1"].parts.is_empty(), "{what}");
    world.check_replay(Config::default());
    // A report of an order that nobody knows any more changes nothing.
    let report = Report::Worked {
        number,
        what: tarn_proto::site::WorkResult::Done,
    };
    world.event(SiteServiceEvent::Reported {
        order: number,
        report,
    });
}
