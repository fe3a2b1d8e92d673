//! Several stores on a node: where data goes, comes down and goes up. docs/internals/site.md, "Moves between stores".

mod back;
mod seeds;

use crate::exported::partition;
use crate::world::*;
use std::collections::BTreeMap;
use std::path::Path;
use tarn_proto::local::Code;
use tarn_proto::site::{ControllerReply, ControllerRequest, JobSubmission, Mount, Stage, Work};
use tarn_site::{Config, SiteServiceEvent};
use tarn_types::workflow::Distribution::{Broadcast, Scatter, Single};
use tarn_types::workflow::{Dataset, Role, StoragePartition};

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;
/// A fast store with space for two outputs of these jobs, and a slow one for many.
pub(crate) const TWO: [(&str, u64, bool); 2] = [("pmem", 2 * MIB, true), ("nvme", 40 * MIB, true)];

/// Nodes with these stores. Each output is a little less than a MiB.
pub(crate) fn world(nodes: usize, levels: &[(&'static str, u64, bool)], config: Config) -> World {
    let mut world = World::new(nodes, config);
    world.size = 900 * KIB;
    world.levels = levels.to_vec();
    for at in 1..=nodes {
        world.close(&format!("n{at}"));
        world.open(&format!("n{at}"));
    }
    world
}

fn sized(name: &str) -> Dataset {
    let mut data = dataset(name);
    data.size = Some(900 * KIB);
    data
}

/// A job that makes a dataset of a workflow of that name.
pub(crate) fn makes(name: &str) -> JobSubmission {
    script(name, 1, vec![(Role::Out, Single, sized(name))])
}

pub(crate) fn reads(name: &str) -> JobSubmission {
    script(name, 1, vec![(Role::In, Single, dataset(name))])
}

fn source(name: &str) -> JobSubmission {
    let mut data = dataset(name);
    data.source = Some(format!("/lustre/{name}").into());
    script(name, 1, vec![(Role::In, Single, data)])
}

pub(crate) fn setup(world: &mut World, job: u32, script: JobSubmission) {
    assert_eq!(
        world.staged(job, Stage::Setup(Box::new(script))),
        ControllerReply::Done
    );
}

/// A job that has begun on a node.
pub(crate) fn runs(world: &mut World, job: u32, script: JobSubmission, node: &str) {
    setup(world, job, script);
    assert_eq!(world.pre_run(job, &[node]), ControllerReply::Done);
}

pub(crate) fn ends(world: &mut World, job: u32) {
    for stage in [
        Stage::PostRun { ok: true },
        Stage::DataOut,
        Stage::Teardown { hurry: false },
    ] {
        assert_eq!(world.staged(job, stage), ControllerReply::Done);
    }
}

fn mounts(world: &World, node: &str, job: u32) -> BTreeMap<String, Mount> {
    let mounts = world.nodes[node].admitted[&job].iter();
    mounts.map(|m| (m.dataset.clone(), m.clone())).collect()
}

fn history(world: &World, job: u32) -> String {
    match world
        .site
        .answer(ALICE, &[], false, &ControllerRequest::Job(job))
    {
        Some(ControllerReply::Job(job)) => job
            .history
            .iter()
            .map(|(_, what)| format!("{what}\n"))
            .collect(),
        other => panic!("{other:?}"),
    }
}

fn notification_text(world: &World) -> String {
    world
        .notifications
        .iter()
        .map(|(_, text)| format!("{text}\n"))
        .collect()
}

#[test]
fn a_partition_lies_in_the_store_that_is_wished_or_the_fastest_with_space_and_takes_space_there() {
    let mut world = world(1, &TWO, Config::default());
    let mut job = script("w", 1, Vec::new());
    let slow = StoragePartition {
        tier: Some("nvme".into()),
        ..partition("slow", MIB)
    };
    // With its header it has no space in the fast one, whose 2 MiB are all the header takes.
    job.workflow.partitions = vec![slow, partition("large", 4 * MIB)];
    runs(&mut world, 1, job, "n1");
    let seen = mounts(&world, "n1", 1);
    for name in ["slow", "large"] {
        assert!(seen[name].partition);
        assert_eq!(seen[name].store, "nvme", "{name}");
    }
    let taken = |world: &World| match world
        .site
        .answer(ALICE, &[], true, &ControllerRequest::Nodes)
    {
        Some(ControllerReply::Nodes(all)) => all[0].stores[1].taken,
        other => panic!("{other:?}"),
    };
    assert_eq!(taken(&world), (1 + 4 + 2 * 2) * MIB);
    ends(&mut world, 1);
    assert_eq!(taken(&world), 0);
}

#[test]
fn what_is_made_goes_to_the_fastest_store_with_space_or_to_the_one_that_is_wished() {
    let mut world = world(1, &TWO, Config::default());
    let mut wished = sized("slow");
    wished.tier = Some("nvme".into());
    world.whole(
        1,
        script("slow", 1, vec![(Role::Out, Single, wished.clone())]),
        &["n1"],
    );
    assert_eq!(world.places("n1", "slow"), ["nvme"]);
    // The job's own wish, where its dataset has none.
    let mut script = makes("step");
    script.workflow.steps[0].tier = Some("nvme".into());
    world.whole(2, script, &["n1"]);
    assert_eq!(world.places("n1", "step"), ["nvme"]);
    // Three at a time: two have space in the fast one.
    for (job, name, store) in [(3, "a", "pmem"), (4, "b", "pmem"), (5, "c", "nvme")] {
        runs(&mut world, job, makes(name), "n1");
        assert_eq!(mounts(&world, "n1", job)[name].store, store);
    }
    for (job, name, store) in [(3, "a", "pmem"), (4, "b", "pmem"), (5, "c", "nvme")] {
        ends(&mut world, job);
        assert_eq!(world.places("n1", name), [store]);
    }
    // A store that no node has, and more than any store holds.
    wished.tier = Some("nvem".into());
    let typo = crate::world::script("x", 1, vec![(Role::Out, Single, wished)]);
    let reply = world.staged(6, Stage::Setup(Box::new(typo)));
    assert_eq!(refused(&reply).code, Code::Invalid);
    assert!(
        refused(&reply).text.contains("the stores are nvme, pmem"),
        "{reply:?}"
    );
    let mut large = sized("large");
    large.size = Some(41 * MIB);
    let large = crate::world::script("x", 1, vec![(Role::Out, Single, large)]);
    let reply = world.staged(7, Stage::Setup(Box::new(large)));
    assert_eq!(refused(&reply).code, Code::NoSpace);
    world.check_replay(Config::default());
}

/// Weiland 2018, section 3.2: between the levels of a node, without the program. Jobs hand on data that came down meanwhile.
#[test]
fn what_is_not_needed_soon_comes_down_and_goes_up_before_it_is_read() {
    let mut world = world(1, &TWO, Config::default());
    world.whole(1, makes("x"), &["n1"]);
    world.whole(2, makes("y"), &["n1"]);
    assert_eq!(world.places("n1", "x"), ["pmem"]);
    // Its reader waits already, and the space is another's for now: unneeded data comes down first.
    setup(&mut world, 3, reads("x"));
    world.whole(4, makes("z"), &["n1"]);
    assert_eq!(
        (world.places("n1", "x"), world.places("n1", "y")),
        (vec!["pmem".into()], vec!["nvme".into()])
    );
    assert!(
        history(&world, 4).contains("1 parts go to slower stores of n1, for space in store `pmem`")
    );
    assert!(
        notification_text(&world)
            .contains("goes from store `pmem` of node n1 to `nvme`: job 4 needs the space")
    );
    // A running job holds its space: then data that somebody will need comes down too.
    runs(&mut world, 5, reads("z"), "n1");
    world.whole(6, makes("w"), &["n1"]);
    assert_eq!(world.places("n1", "x"), ["nvme"]);
    assert_eq!(world.places("n1", "z"), ["pmem"]);
    ends(&mut world, 5);
    // Now it is read: it goes up, and unneeded data makes space.
    assert_eq!(world.pre_run(3, &["n1"]), ControllerReply::Done);
    assert_eq!(world.places("n1", "x"), ["pmem"]);
    let mount = &mounts(&world, "n1", 3)["x"];
    assert_eq!(
        (&mount.store[..], &*mount.path),
        ("pmem", Path::new("u1000/d/x/x/1/0/tree"))
    );
    assert!(
        history(&world, 3).contains("from store `nvme` of node n1 to `pmem`, to be read there")
    );
    ends(&mut world, 3);
    // Nothing was read outside, and nothing was lost.
    assert!(world.read.is_empty());
    for name in ["x", "y", "z", "w"] {
        assert_eq!(world.places("n1", name).len(), 1, "{name}");
    }
    world.check_replay(Config::default());
}

#[test]
fn what_finds_no_space_above_is_read_where_it_lies() {
    let mut world = world(1, &TWO, Config::default());
    let mut low = sized("low");
    low.tier = Some("nvme".into());
    world.whole(1, script("low", 1, vec![(Role::Out, Single, low)]), &["n1"]);
    for (job, name) in [(2, "a"), (3, "b")] {
        runs(&mut world, job, makes(name), "n1");
    }
    runs(&mut world, 4, reads("low"), "n1");
    assert_eq!(mounts(&world, "n1", 4)["low"].store, "nvme");
    // A running job's data stays where it is, also when there is space.
    for job in [2, 3] {
        assert_eq!(
            world.staged(job, Stage::PostRun { ok: false }),
            ControllerReply::Done
        );
        assert_eq!(
            world.staged(job, Stage::Teardown { hurry: false }),
            ControllerReply::Done
        );
    }
    runs(&mut world, 5, reads("low"), "n1");
    assert_eq!(
        world.places("n1", "low"),
        ["nvme", "pmem"],
        "a copy, for the second one"
    );
    assert_eq!(mounts(&world, "n1", 5)["low"].store, "pmem");
    assert_eq!(mounts(&world, "n1", 4)["low"].store, "nvme");
    ends(&mut world, 4);
    ends(&mut world, 5);
    // The copy is the first to go: nothing is moved for it.
    let moves = world.moves.len();
    for (job, name) in [(6, "c"), (7, "d")] {
        runs(&mut world, job, makes(name), "n1");
    }
    assert_eq!(
        (world.places("n1", "low"), world.moves.len()),
        (vec!["nvme".into()], moves)
    );
    world.check_replay(Config::default());
}

#[test]
fn space_is_made_of_what_others_have_then_by_moving_down_then_of_sources() {
    // The slow store has space for one.
    let levels = [("pmem", 3 * MIB, true), ("nvme", MIB, true)];
    let mut world = world(2, &levels, Config::default());
    let mut copied = sized("copied");
    copied.copies = 2;
    world.whole(1, source("outside"), &["n1"]);
    world.whole(2, makes("alone"), &["n1"]);
    world.whole(
        3,
        script("copied", 1, vec![(Role::Out, Single, copied)]),
        &["n1"],
    );
    for name in ["outside", "alone", "copied"] {
        assert_eq!(world.places("n1", name), ["pmem"]);
    }
    // The newest, but the other node has it.
    runs(&mut world, 4, makes("one"), "n1");
    assert!(world.places("n1", "copied").is_empty());
    assert_eq!(world.places("n2", "copied"), ["pmem"]);
    assert!(world.moves.is_empty());
    // The longest unused that is here alone moves down, though it could be read again.
    runs(&mut world, 5, makes("two"), "n1");
    assert_eq!(
        (world.places("n1", "outside"), world.moves.len()),
        (vec!["nvme".into()], 1)
    );
    // Below, data that can be read again makes space.
    runs(&mut world, 6, makes("three"), "n1");
    assert!(world.places("n1", "outside").is_empty());
    assert_eq!(world.places("n1", "alone"), ["nvme"]);
    let text = notification_text(&world);
    assert!(
        text.contains("goes from store `nvme` of node n1, as it can be fetched again: job 6"),
        "{text}"
    );
    // Nothing else goes.
    setup(&mut world, 7, makes("four"));
    let reply = world.pre_run(7, &["n1"]);
    assert_eq!(refused(&reply).code, Code::NoSpace);
    assert!(
        refused(&reply).text.contains("of 1048576 in store `nvme`"),
        "{reply:?}"
    );
    assert_eq!(world.places("n1", "alone"), ["nvme"]);
    world.check_replay(Config::default());
}

/// Weiland 2018, section 2.2: a job's inputs are brought up before it has nodes, if that takes nobody's space.
#[test]
fn what_is_read_goes_up_ahead_where_space_is_free() {
    let config = Config {
        ahead: true,
        ..Config::default()
    };
    let mut world = world(1, &TWO, config.clone());
    for name in ["one", "two", "three"] {
        let mut low = sized(name);
        low.tier = Some("nvme".into());
        let job = 1 + world.log.len() as u32;
        world.whole(
            job,
            script(name, 1, vec![(Role::Out, Single, low)]),
            &["n1"],
        );
    }
    for (job, name, store) in [
        (901, "one", "pmem"),
        (902, "two", "pmem"),
        (903, "three", "nvme"),
    ] {
        setup(&mut world, job, reads(name));
        assert_eq!(
            world.staged(job, Stage::Ahead(vec!["n1".into()])),
            ControllerReply::Done
        );
        assert_eq!(world.places("n1", name), [store]);
    }
    let moves = world.moves.len();
    assert_eq!(world.pre_run(901, &["n1"]), ControllerReply::Done);
    assert_eq!(world.moves.len(), moves, "it was there");
    world.check_replay(config);
}

#[test]
fn two_jobs_that_want_a_part_while_it_moves_both_get_it() {
    let mut world = world(2, &TWO, Config::default());
    let mut low = sized("low");
    low.tier = Some("nvme".into());
    world.whole(1, script("low", 1, vec![(Role::Out, Single, low)]), &["n1"]);
    for job in [2, 3, 4] {
        setup(&mut world, job, reads("low"));
    }
    // The first one has it moved up; nobody has done that yet.
    let tokens: Vec<_> = [(2, "n1"), (3, "n1"), (4, "n2")]
        .map(|(job, node)| world.stage(job, Stage::PreRun(vec![node.into()])))
        .into();
    let moves = |world: &World| {
        let orders = world.queue.iter().map(|(_, _, order)| format!("{order:?}"));
        orders.filter(|order| order.contains("Move")).count()
    };
    assert_eq!(moves(&world), 1);
    assert!(
        !format!("{:?}", world.queue).contains("Fetch"),
        "it is not read while it moves"
    );
    world.settle();
    for token in tokens {
        assert_eq!(world.answers.remove(&token), Some(ControllerReply::Done));
    }
    assert_eq!(
        (world.places("n1", "low"), world.moves.len()),
        (vec!["pmem".into()], 1)
    );
    assert_eq!(world.places("n2", "low"), ["pmem"]);
    for (job, node) in [(2, "n1"), (3, "n1"), (4, "n2")] {
        assert_eq!(mounts(&world, node, job)["low"].store, "pmem");
    }
    world.check_replay(Config::default());
}

/// A dataset of several parts is merged by links, so in one store.
#[test]
fn parts_that_lie_in_several_stores_are_read_in_one() {
    let mut world = world(2, &TWO, Config::default());
    let mut fields = sized("fields");
    fields.scatter = Some(rule());
    let both = script("w", 2, vec![(Role::Out, Scatter, fields.clone())]);
    world.whole(1, both, &["n1", "n2"]);
    // One part comes to the fast store that has the other one.
    let reader = || script("w", 1, vec![(Role::In, Broadcast, dataset("fields"))]);
    runs(&mut world, 2, reader(), "n1");
    assert_eq!(world.places("n1", "fields"), ["pmem", "pmem"]);
    assert_eq!(mounts(&world, "n1", 2)["fields"].store, "pmem");
    ends(&mut world, 2);
    // One of them goes, as the other node has it; when it comes again, there is space for both below only.
    runs(&mut world, 3, makes("x"), "n1");
    assert_eq!(world.places("n1", "fields"), ["pmem"]);
    runs(&mut world, 4, reader(), "n1");
    assert_eq!(world.places("n1", "fields"), ["nvme", "nvme"]);
    let mount = &mounts(&world, "n1", 4)["fields"];
    assert_eq!(
        (&mount.store[..], &*mount.path),
        ("nvme", Path::new("u1000/j/4/v/fields"))
    );
    ends(&mut world, 3);
    ends(&mut world, 4);
    world.check_replay(Config::default());
}

/// Data that outlives a loss of power is not left to a store that does not.
#[test]
fn a_volatile_store_takes_copies_and_stands_for_nothing_that_lasts() {
    let levels = [("dram", 2 * MIB, false), ("nvme", 2 * MIB, true)];
    let mut world = world(2, &levels, Config::default());
    let mut low = sized("low");
    low.tier = Some("nvme".into());
    world.whole(
        1,
        script("low", 1, vec![(Role::Out, Single, low.clone())]),
        &["n1"],
    );
    world.whole(2, reads("low"), &["n1"]);
    assert_eq!(world.places("n1", "low"), ["dram", "nvme"]);
    // Another node has it in its memory alone.
    world.whole(3, reads("low"), &["n2"]);
    assert_eq!(world.places("n2", "low"), ["dram"]);
    let mut large = sized("large");
    (large.size, large.tier) = (Some(2 * MIB), Some("nvme".into()));
    setup(
        &mut world,
        4,
        script("large", 1, vec![(Role::Out, Single, large.clone())]),
    );
    assert_eq!(world.pre_run(4, &["n1"]), ControllerReply::Done);
    // So it is not taken from where it lasts: the job gets the other store, from which the copy goes.
    assert_eq!(mounts(&world, "n1", 4)["large"].store, "dram");
    assert_eq!(world.places("n1", "low"), ["nvme"]);
    // Volatile data may come down to a store where it lasts.
    let mut world = self::world(1, &levels, Config::default());
    world.whole(1, makes("a"), &["n1"]);
    large.tier = None;
    runs(
        &mut world,
        2,
        script("large", 1, vec![(Role::Out, Single, large)]),
        "n1",
    );
    assert_eq!(world.places("n1", "a"), ["nvme"]);
    // After a loss of power, data in the volatile store alone is lost, and the rest is not.
    world.close("n1");
    let node = world.nodes.get_mut("n1").unwrap();
    for places in node.places.values_mut() {
        places.remove("dram");
    }
    world.open("n1");
    world.settle();
    runs(&mut world, 3, reads("a"), "n1");
    world.check_replay(Config::default());
}

#[test]
fn what_cannot_be_moved_stays_and_is_not_tried_at_once_again() {
    let mut world = world(1, &TWO, Config::default());
    world.whole(1, makes("x"), &["n1"]);
    world.whole(2, makes("y"), &["n1"]);
    world.refuses = Some((|w| matches!(w, Work::Move { .. }), Code::NoSpace));
    // Neither comes down: the job has the slow store.
    runs(&mut world, 3, makes("z"), "n1");
    assert_eq!(mounts(&world, "n1", 3)["z"].store, "nvme");
    assert_eq!(world.places("n1", "x"), ["pmem"]);
    assert!(
        notification_text(&world)
            .contains("stays in store `pmem` of node n1, and does not go to `nvme`")
    );
    world.refuses = None;
    ends(&mut world, 3);
    runs(&mut world, 4, makes("v"), "n1");
    assert_eq!(mounts(&world, "n1", 4)["v"].store, "nvme");
    // Some minutes later it is.
    world.pass(301);
    runs(&mut world, 5, makes("u"), "n1");
    assert_eq!(mounts(&world, "n1", 5)["u"].store, "pmem");
    world.check_replay(Config::default());
}

#[test]
fn what_is_there_is_told_by_store() {
    let mut world = world(1, &TWO, Config::default());
    world.whole(1, makes("x"), &["n1"]);
    let Some(ControllerReply::Nodes(nodes)) =
        world
            .site
            .answer(ALICE, &[], false, &ControllerRequest::Nodes)
    else {
        panic!("no nodes");
    };
    let names: Vec<&str> = nodes[0].stores.iter().map(|s| &s.name[..]).collect();
    assert_eq!(names, ["pmem", "nvme"]);
    assert_eq!(nodes[0].stores[0].taken, world.bytes_in("n1", "pmem"));
    assert_eq!(
        (nodes[0].capacity, nodes[0].taken),
        (42 * MIB, nodes[0].stores[0].taken)
    );
    let Some(ControllerReply::Datasets(all)) =
        world
            .site
            .answer(ALICE, &[], false, &ControllerRequest::Datasets)
    else {
        panic!("no datasets");
    };
    assert_eq!(all[0].stores["n1"], ["pmem"]);
    // Other users' files take space.
    world.close("n1");
    let store = |free| tarn_proto::site::NodeStoreReport {
        name: "pmem".into(),
        capacity: tarn_proto::site::StoreCapacity {
            root: "/scm".into(),
            bytes: 2 * MIB,
            free,
            persistent: true,
        },
        is_away: false,
    };
    let store = store(100 * KIB);
    world.event(SiteServiceEvent::Opened {
        node: "n1".into(),
        capacity: store.capacity.clone(),
        stores: vec![store],
        holds: Vec::new(),
        partial: Vec::new(),
        jobs: Vec::new(),
    });
    let Some(ControllerReply::Nodes(nodes)) =
        world
            .site
            .answer(ALICE, &[], false, &ControllerRequest::Nodes)
    else {
        panic!("no nodes");
    };
    assert_eq!(nodes[0].stores[0].taken, 2 * MIB - 100 * KIB);
    assert_eq!(nodes[0].taken, nodes[0].stores[0].taken);
}
