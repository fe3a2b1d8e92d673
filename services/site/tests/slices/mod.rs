//! Inputs that are scattered over a job's nodes.

use crate::end;
use crate::world::*;
use std::path::Path;
use tarn_proto::local::Code;
use tarn_proto::site::{ControllerReply, JobSubmission, Stage};
use tarn_site::{Config, SiteServiceEvent};
use tarn_types::workflow::Distribution::{Broadcast, Scatter, Single};
use tarn_types::workflow::{Dataset, Role};

fn fields() -> Dataset {
    let mut fields = dataset("fields");
    fields.scatter = Some(rule());
    fields
}

/// On so many nodes, with so many ranks.
fn job(nodes: u32, tasks: u32, data: Vec<(Role, Dataset)>) -> JobSubmission {
    let data = data.into_iter().map(|(role, d)| (role, Scatter, d));
    let mut job = script("foam", nodes, data.collect());
    job.workflow.steps[0].tasks = tasks;
    job
}

/// The ranks that a node has, whether it has the rest, and the numbers of the parts that they came from.
fn ranks(world: &World, node: &str, dataset: &str) -> (u32, u32, bool, Vec<u32>) {
    let (slice, parts) = &world.slices[&(node.to_owned(), dataset.to_owned())];
    let parts = parts.iter().map(|part| part.part).collect();
    (slice.first, slice.end, slice.rest, parts)
}

#[test]
fn each_node_gets_its_ranks_from_the_parts_that_have_them() {
    let mut world = World::new(4, Config::default());
    let decompose = script("foam", 1, vec![(Role::Out, Single, fields())]);
    world.whole(1, decompose, &["n1"]);
    // Ranks beyond the last task are the last node's.
    let solve = || job(3, 7, vec![(Role::Inout, fields())]);
    world.whole(2, solve(), &["n1", "n2", "n3"]);
    assert_eq!(ranks(&world, "n1", "fields"), (0, 3, true, vec![0]));
    assert_eq!(ranks(&world, "n2", "fields"), (3, 6, true, vec![0]));
    assert_eq!(ranks(&world, "n3", "fields"), (6, u32::MAX, true, vec![0]));
    // No node has got a part for that.
    assert_eq!(world.parts_on("n2"), ["fields/2.1"]);
    // Of the same division, each needs its own part, and the rest, which is the first one's.
    world.whole(3, solve(), &["n1", "n2", "n3"]);
    assert_eq!(ranks(&world, "n3", "fields").3, [0, 2]);
    // Of another one, those whose ranks it has.
    let reads = job(2, 7, vec![(Role::In, fields())]);
    world.whole(4, reads, &["n2", "n4"]);
    assert_eq!(ranks(&world, "n2", "fields"), (0, 4, true, vec![0, 1]));
    assert_eq!(
        ranks(&world, "n4", "fields"),
        (4, u32::MAX, true, vec![0, 1, 2])
    );
    assert!(world.parts_on("n4").is_empty());
    // A script need not repeat the rule.
    let mut without = fields();
    without.scatter = None;
    world.whole(5, job(2, 2, vec![(Role::In, without)]), &["n1", "n2"]);
    assert_eq!(
        ranks(&world, "n2", "fields"),
        (1, u32::MAX, true, vec![0, 1, 2])
    );
    end(&mut world, "foam");
    for node in ["n1", "n2", "n3", "n4"] {
        assert!(world.parts_on(node).is_empty() && world.nodes[node].jobs.is_empty());
    }
    world.check_replay(Config::default());
}

/// Workers end when they are idle: of an input that comes from three nodes all addresses may be old at once.
#[test]
fn workers_that_began_again_are_found_whatever_they_serve() {
    let mut world = World::new(5, Config::default());
    let parts = || job(3, 3, vec![(Role::Out, fields())]);
    let reads = || job(2, 2, vec![(Role::In, fields())]);
    world.whole(1, parts(), &["n1", "n2", "n3"]);
    world.whole(2, reads(), &["n4", "n5"]);
    for (number, port) in [(3, 7_100), (4, 7_200)] {
        for store in world.nodes.values_mut() {
            store.port = port;
        }
        world.whole(number, reads(), &["n4", "n5"]);
        assert_eq!(ranks(&world, "n5", "fields").3, [0, 1, 2]);
    }
    // A delivery takes parts of three nodes, too.
    let mut out = fields();
    out.dest = Some("/lustre/out".into());
    for store in world.nodes.values_mut() {
        store.port += 1;
    }
    world.whole(
        5,
        job(3, 3, vec![(Role::Out, out.clone())]),
        &["n1", "n2", "n3"],
    );
    assert_eq!(world.sent[Path::new("/lustre/out")].len(), 3);
    world.check_replay(Config::default());
}

/// Orders have numbers, which later events of a log name: what an older version wrote is replayed by its rules.
#[test]
fn a_log_of_an_older_version_is_replayed_as_that_had_it() {
    let mut world = World::new(5, Config::default());
    let parts = job(3, 3, vec![(Role::Out, fields())]);
    let reads = || job(2, 2, vec![(Role::In, fields())]);
    world.event(SiteServiceEvent::Began { epoch: 2, rules: 0 });
    for node in ["n1", "n2", "n3", "n4", "n5"] {
        world.open(node);
    }
    world.settle();
    world.whole(1, parts, &["n1", "n2", "n3"]);
    world.whole(2, reads(), &["n4", "n5"]);
    for store in world.nodes.values_mut() {
        store.port = 7_100;
    }
    // It requested one address of three again at each of its tries.
    let set_up = Stage::Setup(Box::new(reads()));
    assert_eq!(world.staged(3, set_up), ControllerReply::Done);
    assert_eq!(refused(&world.pre_run(3, &["n4", "n5"])).code, Code::Io);
    world.check_replay(Config::default());
    let old: SiteServiceEvent =
        serde_json::from_str("{\"Began\":{\"epoch\":3}}").expect("as before");
    assert_eq!(old, SiteServiceEvent::Began { epoch: 3, rules: 0 });
}

#[test]
fn a_source_is_read_by_ranks_and_its_space_is_counted() {
    let mut world = World::new(2, Config::default());
    let mut case = fields();
    case.source = Some("/lustre/case".into());
    case.size = Some(100 << 20);
    let reads = || job(2, 4, vec![(Role::In, case.clone())]);
    let set_up = Stage::Setup(Box::new(reads()));
    assert_eq!(world.staged(1, set_up), ControllerReply::Done);
    assert_eq!(world.pre_run(1, &["n1", "n2"]), ControllerReply::Done);
    // Each node has read its own ranks; the declared size was promised, and is what it takes now.
    assert_eq!(world.read[Path::new("/lustre/case")], 2 * world.size);
    let taken: Vec<u64> = world.site.node_infos().iter().map(|n| n.taken).collect();
    assert_eq!(taken, [world.size + 8192; 2]);
    for node in ["n1", "n2"] {
        let mounts = &world.nodes[node].admitted[&1];
        assert_eq!(mounts[0].path, Path::new("u1000/j/1/v/fields"));
        assert!(world.parts_on(node).is_empty());
    }
    for stage in [
        Stage::PostRun { ok: true },
        Stage::DataOut,
        Stage::Teardown { hurry: false },
    ] {
        assert_eq!(world.staged(1, stage), ControllerReply::Done);
    }
    assert!(world.site.node_infos().iter().all(|n| n.taken == 0));
    // So is that of a source whose size nobody knew.
    let mut unknown = fields();
    unknown.source = Some("/lustre/other".into());
    let mut reads_it = job(2, 4, vec![(Role::In, unknown)]);
    reads_it.workflow.name = "other".into();
    world.staged(9, Stage::Setup(Box::new(reads_it)));
    assert_eq!(world.pre_run(9, &["n1", "n2"]), ControllerReply::Done);
    let taken: Vec<u64> = world.site.node_infos().iter().map(|n| n.taken).collect();
    assert_eq!(taken, [world.size + 8192; 2]);
    world.staged(9, Stage::Teardown { hurry: false });
    // Read whole by another job, it comes from there.
    let whole = script("foam", 2, vec![(Role::In, Broadcast, case.clone())]);
    world.whole(2, whole, &["n1", "n2"]);
    let before = world.read[Path::new("/lustre/case")];
    world.whole(3, reads(), &["n1", "n2"]);
    assert_eq!(world.read[Path::new("/lustre/case")], before);
    assert_eq!(ranks(&world, "n2", "fields"), (2, u32::MAX, true, vec![0]));
    // More than a node has for tarn is refused at the gate, and nothing stays promised.
    case.size = Some(2 << 30);
    let mut large = job(2, 4, vec![(Role::In, case)]);
    large.workflow.name = "large".into();
    world.staged(4, Stage::Setup(Box::new(large)));
    let reply = world.pre_run(4, &["n1", "n2"]);
    assert_eq!(refused(&reply).code, Code::NoSpace);
    world.staged(4, Stage::Teardown { hurry: false });
    world.check_replay(Config::default());
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let mut world = World::new(3, Config::default());
    let mut unknown = fields();
    unknown.scatter = None;
    unknown.source = Some("/lustre/case".into());
    let reply = world.staged(
        1,
        Stage::Setup(Box::new(job(2, 2, vec![(Role::In, unknown.clone())]))),
    );
    assert!(
        refused(&reply).text.contains("must give the rule"),
        "{reply:?}"
    );
    // One node has everything anyway.
    world.whole(2, job(1, 2, vec![(Role::In, unknown)]), &["n1"]);
    // A part that is lost holds the job, as ever; another node's ranks are not concerned.
    let mut made = fields();
    made.name = "made".into();
    world.whole(3, job(2, 2, vec![(Role::Out, made.clone())]), &["n1", "n2"]);
    world.close("n2");
    world.pass(120);
    let reads = job(3, 2, vec![(Role::In, made)]);
    world.staged(4, Stage::Setup(Box::new(reads)));
    world.open("n2");
    world.close("n1");
    world.pass(120);
    let reply = world.pre_run(4, &["n2", "n3"]);
    let why = refused(&reply);
    assert_eq!(why.code, Code::Lost, "{why}");
    world.open("n1");
    assert_eq!(world.pre_run(4, &["n2", "n3"]), ControllerReply::Done);
}
