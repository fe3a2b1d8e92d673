//! Partitions of jobs.

use crate::world::*;
use tarn_proto::local::Code;
use tarn_proto::site::{ControllerReply, ControllerRequest, JobSubmission, Stage, Work};
use tarn_site::{Config, SiteServiceEvent};
use tarn_types::id::StepId;
use tarn_types::workflow::Distribution::{Broadcast, Single};
use tarn_types::workflow::{KeepPartition, Role, StoragePartition};

const HEAD: u64 = StoragePartition::HEAD;

pub(crate) fn partition(name: &str, size: u64) -> StoragePartition {
    StoragePartition {
        name: name.into(),
        size,
        unit: None,
        tier: None,
        spread: None,
        keep: KeepPartition::Step,
        steps: vec![StepId(0)],
    }
}

fn job(nodes: u32, partitions: Vec<StoragePartition>) -> JobSubmission {
    let mut job = script("w", nodes, Vec::new());
    job.workflow.partitions = partitions;
    job
}

fn setup(world: &mut World, id: u64, job: JobSubmission) -> ControllerReply {
    world.staged(id as _, Stage::Setup(Box::new(job)))
}

#[test]
fn a_jobs_partitions_take_space_on_each_of_its_nodes_until_it_has_left() {
    let mut world = World::new(2, Config::default());
    world.capacity = 8 << 20;
    world.open("n1");
    world.open("n2");
    let field = || vec![partition("field", 4 << 20), partition("log", 1 << 20)];
    // 4 and 1 MiB, and a header of 2 MiB each: 9 of 8.
    let reply = setup(&mut world, 1, job(1, field()));
    assert_eq!(refused(&reply).code, Code::NoSpace, "{reply:?}");
    assert!(refused(&reply).text.contains("partitions included"));
    let one = || job(2, vec![partition("field", 4 << 20)]);
    assert_eq!(setup(&mut world, 2, one()), ControllerReply::Done);
    assert_eq!(world.pre_run(2, &["n1", "n2"]), ControllerReply::Done);
    // Another one finds no space on these nodes: the gate reports it.
    assert_eq!(
        setup(&mut world, 3, job(1, vec![partition("x", 1 << 20)])),
        ControllerReply::Done
    );
    let reply = world.pre_run(3, &["n2"]);
    assert_eq!(refused(&reply).code, Code::NoSpace, "{reply:?}");
    // Two nodes, 6 MiB each, for an hour.
    let used = |world: &World| {
        let ask = ControllerRequest::Usage(0);
        match world.site.answer(ALICE, &groups(ALICE), false, &ask) {
            Some(ControllerReply::Usage(all)) => all.iter().map(|u| u.mib_seconds).sum::<u64>(),
            other => panic!("{other:?}"),
        }
    };
    let hour = 12 * 3600..12 * 3700;
    world.pass(3600);
    assert!(hour.contains(&used(&world)), "{}", used(&world));
    assert!(world.nodes.values().all(|n| n.jobs.len() == 1));
    world.staged(2, Stage::PostRun { ok: true });
    world.staged(2, Stage::DataOut);
    world.staged(2, Stage::Teardown { hurry: false });
    world.pass(24 * 3600);
    assert!(hour.contains(&used(&world)), "{}", used(&world));
    assert!(world.nodes.values().all(|n| n.jobs.is_empty()));
    assert_eq!(world.pre_run(3, &["n2"]), ControllerReply::Done);
    world.check_replay(Config::default());
}

fn spread(name: &str, size: u64) -> StoragePartition {
    StoragePartition {
        spread: Some(65536),
        ..partition(name, size)
    }
}

/// The addresses that a node got for the pieces that the others export.
fn peers(world: &World, node: &str) -> Vec<(String, u16)> {
    let peers = world.nodes[node].shared.get(&1);
    let peers = peers.into_iter().flatten();
    peers.map(|peer| (peer.node.clone(), peer.port)).collect()
}

#[test]
fn what_lies_over_a_jobs_nodes_is_exported_by_each_until_it_has_left() {
    let mut world = World::new(3, Config::default());
    for (port, node) in (7001..).zip(world.nodes.values_mut()) {
        node.port = port;
    }
    let parts = || vec![spread("field", 4 << 20), partition("own", 1 << 20)];
    assert_eq!(setup(&mut world, 1, job(2, parts())), ControllerReply::Done);
    assert_eq!(world.pre_run(1, &["n1", "n2"]), ControllerReply::Done);
    let all = |first, second| vec![("n1".to_owned(), first), ("n2".to_owned(), second)];
    for node in ["n1", "n2"] {
        assert_eq!(peers(&world, node), all(7001, 7002));
        let mounts = &world.nodes[node].admitted[&1];
        let dealt = mounts[0].spread.as_ref().expect("it is spread");
        assert_eq!((dealt.block, dealt.nodes.len()), (65536, 2));
        assert_eq!(mounts[1].spread, None);
    }
    // Half of it and the other one, with a header each, on each node.
    let reply = setup(
        &mut world,
        2,
        job(1, vec![partition("x", (1 << 30) - (8 << 20))]),
    );
    assert_eq!(reply, ControllerReply::Done);
    assert_eq!(refused(&world.pre_run(2, &["n1"])).code, Code::NoSpace);
    // The tarnd of a node starts again: its worker exports the piece again, elsewhere, and the other gets the new port.
    world.close("n2");
    let node = world.nodes.get_mut("n2").unwrap();
    node.shared.clear();
    node.port = 7012;
    world.open("n2");
    world.settle();
    for node in ["n1", "n2"] {
        assert_eq!(peers(&world, node), all(7001, 7012));
    }
    // So does the controller, while a node does not answer: the others do not wait for it.
    world.close("n2");
    world.event(SiteServiceEvent::began(2));
    world.open("n1");
    world.settle();
    world.nodes.get_mut("n2").unwrap().shared.clear();
    world.open("n2");
    world.settle();
    assert_eq!(peers(&world, "n2"), all(7001, 7012));
    // A piece that is not there any more fails only its opens.
    world.refuses = Some((|work| matches!(work, Work::Share { .. }), Code::NotFound));
    world.close("n2");
    world.open("n2");
    world.settle();
    world.refuses = None;
    world.staged(1, Stage::PostRun { ok: true });
    world.staged(1, Stage::DataOut);
    world.staged(1, Stage::Teardown { hurry: false });
    let is_left = |node: &Store| !node.shared.is_empty() || !node.jobs.is_empty();
    assert!(!world.nodes.values().any(is_left));
    world.check_replay(Config::default());
}

#[test]
fn a_job_that_gets_other_nodes_leaves_no_piece_on_those_before() {
    let mut world = World::new(3, Config::default());
    let field = vec![spread("field", 1 << 20)];
    assert_eq!(setup(&mut world, 1, job(2, field)), ControllerReply::Done);
    world.refuses = Some((|work| matches!(work, Work::Join { .. }), Code::NoSpace));
    assert_eq!(
        refused(&world.pre_run(1, &["n1", "n2"])).code,
        Code::NoSpace
    );
    world.refuses = None;
    assert_eq!(world.pre_run(1, &["n2", "n3"]), ControllerReply::Done);
    assert!(world.nodes["n1"].shared.is_empty() && world.nodes["n1"].jobs.is_empty());
    assert_eq!(peers(&world, "n2").len(), 2);
}

#[test]
fn a_job_whose_pieces_have_too_long_names_is_turned_back_and_told_why() {
    let mut world = World::new(0, Config::default());
    let names = ["a", "b"].map(|name| name.repeat(60_000));
    for name in &names {
        world.nodes.insert(name.clone(), Store::default());
        world.open(name);
    }
    let nodes = names.each_ref().map(String::as_str);
    let dealt = job(2, vec![spread("field", 1 << 20)]);
    assert_eq!(setup(&mut world, 1, dealt), ControllerReply::Done);
    let reply = world.pre_run(1, &nodes);
    let why = refused(&reply);
    assert_eq!(why.code, Code::Invalid, "{reply:?}");
    assert!(why.text.contains("120000 fit into $TARN_PARTITION_field"));
    // Each node's own is called otherwise.
    assert_eq!(
        setup(&mut world, 2, job(2, vec![partition("field", 1)])),
        ControllerReply::Done
    );
    assert_eq!(world.pre_run(2, &nodes), ControllerReply::Done);
}

#[test]
fn a_users_quota_counts_partitions_on_all_nodes() {
    let config = || Config {
        quota: 2 * ((1 << 20) + HEAD),
        ..Config::default()
    };
    let mut world = World::new(3, config());
    assert_eq!(
        setup(&mut world, 1, job(2, vec![partition("field", 1 << 20)])),
        ControllerReply::Done
    );
    let reply = setup(&mut world, 2, job(3, vec![partition("field", 1 << 20)]));
    assert_eq!(refused(&reply).code, Code::Quota, "{reply:?}");
    assert_eq!(world.pre_run(1, &["n1", "n2"]), ControllerReply::Done);
    let reply = setup(&mut world, 3, job(1, vec![partition("field", 1 << 20)]));
    assert_eq!(refused(&reply).code, Code::Quota, "{reply:?}");
}

#[test]
fn what_a_job_cannot_have_is_refused_and_what_fails_is_tried_again() {
    let mut world = World::new(1, Config::default());
    let kept = StoragePartition {
        keep: KeepPartition::Workflow,
        ..partition("field", 1)
    };
    let tiered = StoragePartition {
        tier: Some("nvme".into()),
        ..partition("field", 1)
    };
    for (bad, code) in [
        (kept, Code::Unsupported),
        // No node has a store of that name.
        (tiered, Code::Invalid),
    ] {
        let reply = setup(&mut world, 1, job(1, vec![bad]));
        assert_eq!(refused(&reply).code, code, "{reply:?}");
    }
    // Encrypted data would be stored in it in clear.
    let mut secret = dataset("secret");
    (secret.encrypt, secret.size) = (true, Some(1 << 20));
    let makes = script("w", 1, vec![(Role::Out, Single, secret)]);
    world.whole(2, makes, &["n1"]);
    let mut reads = script("w", 1, vec![(Role::In, Broadcast, dataset("secret"))]);
    reads.workflow.partitions = vec![partition("field", 1)];
    let reply = setup(&mut world, 3, reads);
    assert_eq!(refused(&reply).code, Code::Unsupported, "{reply:?}");
    // More pieces than can be opened as one.
    let reply = setup(&mut world, 3, job(1025, vec![spread("field", 1 << 20)]));
    assert_eq!(refused(&reply).code, Code::Invalid, "{reply:?}");
    // The node reports why it cannot.
    assert_eq!(
        setup(&mut world, 4, job(1, vec![partition("field", 1)])),
        ControllerReply::Done
    );
    world.refuses = Some((|work| matches!(work, Work::Export { .. }), Code::NoSpace));
    assert_eq!(refused(&world.pre_run(4, &["n1"])).code, Code::NoSpace);
    world.refuses = None;
    assert_eq!(world.pre_run(4, &["n1"]), ControllerReply::Done);
}
