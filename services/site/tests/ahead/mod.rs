//! Data is brought to the nodes that are reserved for a job, while it waits. docs/internals/driving-slurm.md, "Bringing data ahead".

mod seeds;

use crate::world::*;
use std::path::Path;
use tarn_proto::local::Code;
use tarn_proto::site::{
    ControllerReply, ControllerRequest, JobSubmission, Origin, Owner, SlurmJobId, Stage, Work,
};
use tarn_site::{Config, SiteServiceEvent};
use tarn_types::workflow::Distribution::{Broadcast, Scatter, Single};
use tarn_types::workflow::Role;

fn makes(name: &str, nodes: u32) -> JobSubmission {
    script(name, nodes, vec![(Role::Out, Single, dataset(name))])
}

fn reads(name: &str, nodes: u32) -> JobSubmission {
    script(name, nodes, vec![(Role::In, Broadcast, dataset(name))])
}

fn set_up(world: &mut World, job: SlurmJobId, script: JobSubmission) {
    let stage = Stage::Setup(Box::new(script));
    assert_eq!(world.staged(job, stage), ControllerReply::Done);
}

/// Nodes are reserved for a job, and what follows is under way.
fn reserve(world: &mut World, job: SlurmJobId, nodes: &[&str]) {
    let nodes = nodes.iter().map(|n| (*n).to_owned()).collect();
    world.event(SiteServiceEvent::Advised { job, nodes });
}

fn ends(world: &mut World, job: SlurmJobId) {
    for stage in [
        Stage::PostRun { ok: true },
        Stage::DataOut,
        Stage::Teardown { hurry: false },
    ] {
        world.staged(job, stage);
    }
}

/// Copies that are ordered of a node.
fn fetches(world: &World, node: &str) -> usize {
    let is_fetch = |(at, _, order): &&(String, u64, tarn_proto::site::NodeOrder)| {
        let text = format!("{order:?}");
        at == node && text.contains("Fetch")
    };
    world.queue.iter().filter(is_fetch).count()
}

fn history(world: &World, job: SlurmJobId) -> Vec<String> {
    let ask = ControllerRequest::Job(job);
    let Some(ControllerReply::Job(info)) = world.site.answer(0, &[0], true, &ask) else {
        panic!("job {job} is known");
    };
    info.history.into_iter().map(|(_, what)| what).collect()
}

fn moved(world: &World) -> u64 {
    let ask = ControllerRequest::Usage(0);
    let Some(ControllerReply::Usage(usage)) = world.site.answer(0, &[0], true, &ask) else {
        panic!("there is usage");
    };
    // Of the user; the project of its group has the same.
    let mut own = usage.iter().filter(|of| of.owner == Owner::User(ALICE));
    own.next().map_or(0, |of| of.between_nodes)
}

/// A site on which job 1 has made a dataset of this name on `n1`, and job 2, which reads it, waits.
fn made(nodes: usize, name: &str, config: &Config) -> World {
    let mut world = World::new(nodes, config.clone());
    world.whole(1, makes(name, 1), &["n1"]);
    set_up(&mut world, 2, reads(name, 2));
    world
}

/// The next step's nodes have the bytes before it begins: as soon as its input is made, on nodes that did not make it.
#[test]
fn what_a_step_makes_goes_to_the_reserved_nodes_of_the_next_one_at_once() {
    let config = Config::default();
    let mut world = World::new(4, config.clone());
    set_up(&mut world, 1, makes("x", 1));
    set_up(&mut world, 2, reads("x", 2));
    assert_eq!(world.pre_run(1, &["n1"]), ControllerReply::Done);
    reserve(&mut world, 2, &["n2", "n3"]);
    // Nothing is made yet.
    assert_eq!(fetches(&world, "n2") + fetches(&world, "n3"), 0);
    assert_eq!(
        world.staged(1, Stage::PostRun { ok: true }),
        ControllerReply::Done
    );
    for node in ["n2", "n3"] {
        assert_eq!(world.parts_on(node), ["x/1.0"]);
    }
    assert!(world.parts_on("n4").is_empty());
    let text = "what it reads is on its reserved nodes".to_owned();
    assert!(history(&world, 2).contains(&text));
    // Slurm does not wait for it, and the gate brings nothing twice.
    let before = moved(&world);
    assert_eq!(
        world.staged(2, Stage::Ahead(vec!["n4".into()])),
        ControllerReply::Done
    );
    let token = world.stage(2, Stage::PreRun(vec!["n2".into(), "n3".into()]));
    assert_eq!(fetches(&world, "n2") + fetches(&world, "n3"), 0);
    world.settle();
    assert_eq!(world.answers.remove(&token), Some(ControllerReply::Done));
    assert_eq!((moved(&world), before), (before, 2 * world.size));
    world.check_replay(config);
}

#[test]
fn the_gate_takes_over_what_is_under_way() {
    let config = Config::default();
    let mut world = made(3, "x", &config);
    reserve(&mut world, 2, &["n2", "n3"]);
    // The address of the node that has it is requested first.
    let (node, number, order) = world.queue.remove(0);
    world.perform(&node, number, order);
    // One copy at a time leaves the node for jobs without nodes.
    assert_eq!(fetches(&world, "n2") + fetches(&world, "n3"), 1);
    let token = world.stage(2, Stage::PreRun(vec!["n2".into(), "n3".into()]));
    assert_eq!((fetches(&world, "n2"), fetches(&world, "n3")), (1, 1));
    world.settle();
    assert_eq!(world.answers.remove(&token), Some(ControllerReply::Done));
    assert_eq!(moved(&world), 2 * world.size);
    world.check_replay(config);
}

#[test]
fn other_nodes_and_none_stop_what_is_under_way() {
    let config = Config::default();
    let mut world = made(4, "x", &config);
    reserve(&mut world, 2, &["n2", "n3"]);
    let (node, number, order) = world.queue.remove(0);
    world.perform(&node, number, order);
    assert_eq!(fetches(&world, "n2"), 1);
    // The same again changes nothing.
    let before = world.queue.len();
    reserve(&mut world, 2, &["n2", "n3"]);
    assert_eq!(world.queue.len(), before);
    reserve(&mut world, 2, &["n3", "n4"]);
    assert_eq!(fetches(&world, "n2"), 0);
    world.settle();
    assert!(world.parts_on("n2").is_empty());
    assert_eq!(world.parts_on("n3"), ["x/1.0"]);
    assert_eq!(world.parts_on("n4"), ["x/1.0"]);
    // It is given up: what came stays, and nothing is brought any more.
    reserve(&mut world, 2, &["n2", "n3"]);
    reserve(&mut world, 2, &[]);
    world.settle();
    assert!(world.parts_on("n2").is_empty());
    assert_eq!(world.parts_on("n4"), ["x/1.0"]);
    let text = "no nodes are reserved for it any more".to_owned();
    assert_eq!(history(&world, 2).last(), Some(&text));
    // It begins elsewhere: the copies to reserved nodes stop.
    reserve(&mut world, 2, &["n2", "n3"]);
    let token = world.stage(2, Stage::PreRun(vec!["n3".into(), "n4".into()]));
    world.settle();
    assert_eq!(world.answers.remove(&token), Some(ControllerReply::Done));
    assert!(world.parts_on("n2").is_empty());
    world.check_replay(config);
}

/// Slurm waits until data is where it expects the job: not once nodes are reserved elsewhere.
#[test]
fn slurm_does_not_wait_for_copies_to_nodes_that_the_job_will_not_have() {
    let config = Config {
        ahead: true,
        ..Config::default()
    };
    let mut world = made(4, "x", &config);
    let token = world.stage(2, Stage::Ahead(vec!["n4".into()]));
    let (node, number, order) = world.queue.remove(0);
    world.perform(&node, number, order);
    assert_eq!(
        (fetches(&world, "n4"), world.answers.get(&token)),
        (1, None)
    );
    reserve(&mut world, 2, &["n2", "n3"]);
    assert_eq!(world.answers.remove(&token), Some(ControllerReply::Done));
    world.settle();
    assert!(world.parts_on("n4").is_empty());
    assert_eq!(world.parts_on("n3"), ["x/1.0"]);
    world.check_replay(config);
}

#[test]
fn a_node_that_is_lost_or_refuses_only_ends_the_bringing_there() {
    let config = Config::default();
    let mut world = made(3, "x", &config);
    world.close("n3");
    reserve(&mut world, 2, &["n2", "n3"]);
    world.settle();
    assert_eq!(world.parts_on("n2"), ["x/1.0"]);
    // It is back while the job waits.
    world.open("n3");
    let (node, number, order) = world.queue.remove(0);
    world.perform(&node, number, order);
    world.close("n3");
    world.open("n3");
    world.settle();
    assert_eq!(world.parts_on("n3"), ["x/1.0"]);
    // The node that has it is lost while it is copied, and comes back.
    world.whole(3, makes("y", 1), &["n1"]);
    set_up(&mut world, 4, reads("y", 2));
    world.close("n1");
    reserve(&mut world, 4, &["n2", "n3"]);
    world.settle();
    assert!(!world.parts_on("n2").contains(&"y/1.0".to_owned()));
    world.open("n1");
    world.settle();
    assert!(world.parts_on("n2").contains(&"y/1.0".to_owned()));
    // A worker that cannot do it is not tried without end, and the job is not failed by it.
    set_up(&mut world, 5, makes("z", 1));
    set_up(&mut world, 6, reads("z", 1));
    assert_eq!(world.pre_run(5, &["n1"]), ControllerReply::Done);
    reserve(&mut world, 6, &["n2"]);
    world.refuses = Some((|work| matches!(work, Work::Fetch { .. }), Code::NoSpace));
    ends(&mut world, 5);
    world.refuses = None;
    assert!(history(&world, 6).last().unwrap().starts_with("n2: "));
    assert_eq!(world.pre_run(6, &["n2"]), ControllerReply::Done);
    assert_eq!(world.pre_run(2, &["n2", "n3"]), ControllerReply::Done);
    world.check_replay(config);
}

/// Only free space is used, and copies without a job make way for jobs with nodes, pinned elsewhere or not.
#[test]
fn it_takes_no_space_from_others() {
    let config = Config::default();
    let mut world = World::new(3, config.clone());
    world.capacity = 3 << 20;
    for node in ["n1", "n2", "n3"] {
        world.close(node);
        world.open(node);
    }
    let sized = |name: &str, mib: u64| {
        let mut data = dataset(name);
        data.size = Some(mib << 20);
        script(name, 1, vec![(Role::Out, Single, data)])
    };
    world.whole(1, sized("x", 1), &["n1"]);
    set_up(&mut world, 2, reads("x", 1));
    // A job is promised all that is left: nothing is brought.
    set_up(&mut world, 3, sized("big", 3));
    assert_eq!(world.pre_run(3, &["n2"]), ControllerReply::Done);
    reserve(&mut world, 2, &["n2"]);
    world.settle();
    assert!(world.parts_on("n2").is_empty());
    let history = history(&world, 2);
    assert!(
        history.last().unwrap().contains("has no space"),
        "{history:?}"
    );
    let over = Stage::Teardown { hurry: false };
    world.staged(3, over);
    // Space comes free: it is brought, without anybody's request.
    world.pass(60);
    assert_eq!(world.parts_on("n2"), ["x/1.0"]);
    // The next job there needs all of it, while another one reads the same version elsewhere.
    set_up(&mut world, 4, reads("x", 1));
    assert_eq!(world.pre_run(4, &["n3"]), ControllerReply::Done);
    set_up(&mut world, 5, sized("bigger", 3));
    let excluded = world.advices[&5].exclude.clone().unwrap().full;
    assert!(!excluded.contains(&"n2".to_owned()), "{excluded:?}");
    assert_eq!(world.pre_run(5, &["n2"]), ControllerReply::Done);
    assert!(world.parts_on("n2").is_empty());
    world.check_replay(config);
}

/// Copies that tarn makes by itself do not count in a quota.
#[test]
fn no_quota_is_used_up_by_it() {
    let config = Config {
        quota: 3 << 20,
        ..Config::default()
    };
    let mut world = made(3, "x", &config);
    reserve(&mut world, 2, &["n2", "n3"]);
    world.settle();
    assert_eq!(world.parts_on("n3"), ["x/1.0"]);
    let mut data = dataset("z");
    data.size = Some(1 << 20);
    set_up(
        &mut world,
        3,
        script("z", 1, vec![(Role::Out, Single, data)]),
    );
    assert_eq!(world.pre_run(3, &["n1"]), ControllerReply::Done);
    world.check_replay(config);
}

/// Scattered inputs are divided at the gate; an encrypted one is opened there, and brought sealed.
#[test]
fn what_is_divided_waits_for_the_gate_and_what_is_encrypted_stays_so() {
    let config = Config::default();
    let mut world = World::new(3, config.clone());
    let mut fields = dataset("fields");
    fields.scatter = Some(rule());
    let mut secret = dataset("secret");
    secret.encrypt = true;
    secret.size = Some(2 << 20);
    let uses = |role: Role| {
        vec![
            (role, Scatter, fields.clone()),
            (role, Single, secret.clone()),
        ]
    };
    world.whole(1, script("w", 1, uses(Role::Out)), &["n1"]);
    set_up(&mut world, 2, script("w", 2, uses(Role::In)));
    reserve(&mut world, 2, &["n2", "n3"]);
    world.settle();
    // Only the first of its nodes reads the other one.
    assert_eq!(world.parts_on("n2"), ["secret/1.0"]);
    assert!(world.parts_on("n3").is_empty());
    assert!(world.nodes["n2"].parts.values().all(|proof| proof.sealed));
    assert_eq!(world.pre_run(2, &["n2", "n3"]), ControllerReply::Done);
    world.check_replay(config);
}

/// A source is read outside once, and looked at again at the gate; a version that its reader may not have any more is not brought.
#[test]
fn sources_are_read_once_and_grants_count() {
    let config = Config::default();
    let mut world = World::new(3, config.clone());
    let mut case = dataset("case");
    case.source = Some("/lustre/case".into());
    set_up(
        &mut world,
        1,
        script("foam", 2, vec![(Role::In, Broadcast, case)]),
    );
    reserve(&mut world, 1, &["n2", "n3"]);
    world.settle();
    assert_eq!(world.parts_on("n3"), ["case/0.0"]);
    assert_eq!(world.read[Path::new("/lustre/case")], world.size);
    world.changes.insert("/lustre/case".into(), 1);
    assert_eq!(world.pre_run(1, &["n2", "n3"]), ControllerReply::Done);
    assert_eq!(world.parts_on("n2"), ["case/0.1"]);

    world.whole(2, makes("x", 1), &["n1"]);
    let grant = |may| ControllerRequest::Grant {
        owner: Owner::User(ALICE),
        workflow: "x".into(),
        dataset: "x".into(),
        to: Owner::User(BOB),
        may,
    };
    let token = world.ask_as(ALICE, false, grant(true));
    assert_eq!(world.answers.remove(&token), Some(ControllerReply::Done));
    let mut of_bob = reads("x", 1);
    of_bob.user = BOB;
    of_bob.workflow.data[0].of = Some("alice/x/x".parse().expect("a name"));
    of_bob.owners = [("alice".to_owned(), Owner::User(ALICE))].into();
    set_up(&mut world, 3, of_bob);
    let token = world.ask_as(ALICE, false, grant(false));
    assert_eq!(world.answers.remove(&token), Some(ControllerReply::Done));
    reserve(&mut world, 3, &["n3"]);
    world.settle();
    assert!(!world.parts_on("n3").contains(&"x/1.0".to_owned()));
    world.check_replay(config);
}

/// A new controller has no reservations: it reserves again, and continues with what is there.
#[test]
fn a_new_controller_reserves_again() {
    let config = Config::default();
    let mut world = made(3, "x", &config);
    reserve(&mut world, 2, &["n2", "n3"]);
    world.queue.clear();
    world.event(SiteServiceEvent::began(2));
    for node in ["n1", "n2", "n3"] {
        world.open(node);
    }
    world.settle();
    assert!(world.parts_on("n2").is_empty());
    reserve(&mut world, 2, &["n2", "n3"]);
    world.settle();
    assert_eq!(world.parts_on("n2"), ["x/1.0"]);
    world.check_replay(config);
    // One that is unknown, has its nodes or reads nothing is no reason for anything.
    assert_eq!(world.pre_run(2, &["n2", "n3"]), ControllerReply::Done);
    let before = format!("{:?}", world.site);
    for job in [1, 2, 99] {
        reserve(&mut world, job, &["n1"]);
    }
    assert!(world.queue.is_empty());
    assert_eq!(format!("{:?}", world.site), before);
}

/// The second node gets its copy from the first one, too: `Origin::Peer` only, nothing from outside.
#[test]
fn a_part_without_a_source_comes_from_nodes_alone() {
    let config = Config::default();
    let mut world = made(3, "x", &config);
    reserve(&mut world, 2, &["n2", "n3"]);
    while !world.queue.is_empty() {
        let (node, number, order) = world.queue.remove(0);
        if let tarn_proto::site::NodeOrder::Do { work, .. } = &order
            && let Work::Fetch { from, .. } = &**work
        {
            assert!(matches!(from, Origin::Peer(_)), "{from:?}");
        }
        world.perform(&node, number, order);
    }
    assert_eq!(world.parts_on("n3"), ["x/1.0"]);
    world.check_replay(config);
}

/// Of two readers, the second one gets the node to which the input is on its way for the first, and a third job needs space there.
#[test]
fn a_copy_that_comes_for_one_job_stays_for_another_that_has_the_node() {
    let config = Config::default();
    let mut world = World::new(2, config.clone());
    world.capacity = 3 << 20;
    for node in ["n1", "n2"] {
        world.close(node);
        world.open(node);
    }
    world.whole(1, makes("x", 1), &["n1"]);
    set_up(&mut world, 2, reads("x", 1));
    set_up(&mut world, 3, reads("x", 1));
    reserve(&mut world, 2, &["n2"]);
    // The address of the node that has it is requested first.
    let (node, number, order) = world.queue.remove(0);
    world.perform(&node, number, order);
    assert_eq!(fetches(&world, "n2"), 1);
    assert_eq!(world.pre_run(3, &["n2"]), ControllerReply::Done);
    assert_eq!(world.parts_on("n2"), ["x/1.0"]);
    // It needs all of the store.
    let mut large = dataset("large");
    large.size = Some(3 << 20);
    let large = script("large", 1, vec![(Role::Out, Single, large)]);
    set_up(&mut world, 4, large);
    world.stage(4, Stage::PreRun(vec!["n2".into()]));
    world.settle();
    assert_eq!(world.parts_on("n2"), ["x/1.0"]);
    world.check_replay(config);
}
