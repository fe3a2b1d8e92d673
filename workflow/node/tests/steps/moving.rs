//! Listing, transfers, evictions.

use crate::Test;
use crate::bench::{Bench, data, held, part_ref, ranked, tier_ref, tree};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tarn_mover::Trees;
use tarn_ports::{NodeWorld, World};
use tarn_types::action::Do;
use tarn_types::event::{Event, RunErrorKind};
use tarn_types::id::{DataId, TransferId};
use tarn_types::layout::TierDir;
use tarn_types::part::{PartClass, PartInfo, PartMove, Place, Transfer, TransferKind, Verify};
use tarn_types::units::SECOND;
use tarn_types::workflow::{Dataset, VersionPartitioning};

pub(crate) const TESTS: &[Test] = &[
    (
        "moving::a_missing_source_is_told_with_a_hint",
        a_missing_source_is_told_with_a_hint,
    ),
    (
        "moving::sources_are_divided_and_their_hashes_remembered",
        sources_are_divided_and_their_hashes_remembered,
    ),
    (
        "moving::a_source_is_what_it_is_now",
        a_source_is_what_it_is_now,
    ),
    ("moving::parts_go_round", parts_go_round),
    ("moving::a_source_may_be_one_file", a_source_may_be_one_file),
    (
        "moving::a_destination_of_somebody_else_is_refused",
        a_destination_of_somebody_else_is_refused,
    ),
    (
        "moving::an_abandoned_transfer_fails_whole",
        an_abandoned_transfer_fails_whole,
    ),
    (
        "moving::a_vanished_source_is_told",
        a_vanished_source_is_told,
    ),
    (
        "moving::a_replica_that_has_changed_is_damaged",
        a_replica_that_has_changed_is_damaged,
    ),
    (
        "moving::the_damaged_part_of_several_is_named",
        the_damaged_part_of_several_is_named,
    ),
    (
        "moving::waiting_without_anything_to_wait_for_is_an_error",
        waiting_for_nothing_is_an_error,
    ),
];

fn bench(partition: VersionPartitioning) -> Bench {
    let mut bench = Bench::new(
        vec![Dataset {
            partition,
            ..ranked("raw")
        }],
        vec![],
    );
    for (name, text) in [("raw/p0/f", "a"), ("raw/p1/f", "bb"), ("raw/c", "ccc")] {
        bench.write(name, text);
    }
    bench.workflow.data[0].source = Some(bench.path("raw"));
    bench
}

fn a_missing_source_is_told_with_a_hint() {
    let mut bench = bench(VersionPartitioning::Whole);
    bench.workflow.data[0].source = Some(bench.path("row"));
    let failure = bench.world().list(0).unwrap_err();
    assert!(
        failure.message.contains("[data.raw]") && failure.message.contains("row"),
        "{}",
        failure.message
    );
}

fn age(bench: &Bench, names: &[&str]) {
    for name in names {
        let old = std::time::SystemTime::now() - Duration::from_secs(3600);
        let times = std::fs::FileTimes::new().set_modified(old);
        std::fs::File::options()
            .write(true)
            .open(bench.path(name))
            .unwrap()
            .set_times(times)
            .unwrap();
    }
}

/// A transfer of these parts of the first dataset from its source.
fn order(infos: &[PartInfo]) -> Transfer {
    let part = |i: &PartInfo| PartMove {
        part: part_ref(0, 0, i.seq),
        from: Place::Source,
    };
    Transfer {
        id: TransferId(1),
        data: DataId(0),
        version: 0,
        parts: infos.iter().map(part).collect(),
        to: Place::Node(tier_ref(1)),
        kind: TransferKind::ExternalIn,
        verify: Verify::Copy,
        priority: 1,
    }
}

/// Nanoseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_nanos()).unwrap()
}

fn sources_are_divided_and_their_hashes_remembered() {
    let bench = bench(VersionPartitioning::Entries);
    age(&bench, &["raw/p0/f", "raw/c"]);
    // Until a file's inode is old enough to be trusted as well.
    std::thread::sleep(Duration::from_millis(2100));
    let young = std::fs::read_to_string(bench.path("raw/p1/f")).unwrap();
    bench.write("raw/p1/f", &young);
    let mut world = bench.world();
    let infos = world.list(0).unwrap();
    let classes: Vec<_> = infos.iter().map(|i| i.class.clone()).collect();
    assert_eq!(
        classes,
        ["c", "p0", "p1"].map(|n| PartClass::Entry(n.into()))
    );
    assert!(infos.iter().all(|i| i.hash.is_none() && i.stored > 0));
    let to = Place::Node(tier_ref(0));
    assert_eq!(
        world.transfer(0, 0, &infos, &Place::Source, &to).unwrap(),
        6
    );
    drop(world);
    let again = bench.world().list(0).unwrap();
    let known: Vec<bool> = again.iter().map(|i| i.hash.is_some()).collect();
    // p1/f is too young to trust its time stamp.
    assert_eq!(known, [true, true, false]);
    // The same when the world of another node has read them, and this one ends at once.
    std::fs::remove_dir_all(bench.state().sources("ws")).unwrap();
    let mut world = bench.world();
    let parts = infos.iter().map(|i| (part_ref(0, 0, i.seq), i.clone()));
    world.local.know(parts.collect()).unwrap();
    world.local.learned(&order(&infos), now());
    drop(world);
    let learned = bench.world().list(0).unwrap();
    assert!(learned[..2].iter().all(|i| i.hash.is_some()), "{learned:?}");
    // Same size, same time, other content: its inode shows it.
    let length = std::fs::metadata(bench.path("raw/c")).unwrap().len();
    let before = std::fs::metadata(bench.path("raw/c")).unwrap().modified();
    bench.write("raw/c", &"d".repeat(length as usize));
    let times = std::fs::FileTimes::new().set_modified(before.unwrap());
    let file = std::fs::File::options()
        .write(true)
        .open(bench.path("raw/c"));
    file.unwrap().set_times(times).unwrap();
    let changed = bench.world().list(0).unwrap();
    assert!(changed[0].hash.is_none() && changed[0].key != again[0].key);
    assert!(changed[1].hash.is_some());
    // Another folder with files that look the same is another source.
    let mut elsewhere = bench;
    std::fs::rename(elsewhere.path("raw"), elsewhere.path("moved")).unwrap();
    elsewhere.workflow.data[0].source = Some(elsewhere.path("moved"));
    assert!(
        elsewhere
            .world()
            .list(0)
            .unwrap()
            .iter()
            .all(|i| i.hash.is_none())
    );
}

/// A memory that is wrong costs reading again, not the run.
fn a_source_is_what_it_is_now() {
    let bench = bench(VersionPartitioning::Whole);
    age(&bench, &["raw/p0/f", "raw/p1/f", "raw/c"]);
    std::thread::sleep(Duration::from_millis(2100));
    let mut world = bench.world();
    let infos = world.list(0).unwrap();
    let to = Place::Node(tier_ref(0));
    world.transfer(0, 0, &infos, &Place::Source, &to).unwrap();
    drop(world);
    let mut world = bench.world();
    let infos = world.list(0).unwrap();
    let right = infos[0].hash.expect("remembered");
    // As if another content had been remembered: the manifest of the listing has it.
    let file = bench.state().manifest("ws", &infos[0].key);
    let mut manifest =
        tarn_types::manifest::Manifest::decode(&std::fs::read(&file).unwrap()).unwrap();
    for entry in &mut manifest.entries {
        if let tarn_types::manifest::EntryKind::File { hash, .. } = &mut entry.kind {
            *hash = Some(tarn_types::hash::Hash(1));
        }
    }
    std::fs::write(&file, manifest.encode()).unwrap();
    let id = world.order(0, 0, &infos, &Place::Source, &to);
    match world.next() {
        Event::TransferDone {
            id: done, hashes, ..
        } => {
            assert_eq!((done, hashes), (id, vec![right]));
        }
        other => panic!("{other:?}"),
    }
    drop(world);
    let kept = tarn_types::manifest::Manifest::decode(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(kept.hash(), Some(right));
}

fn parts_go_round() {
    let mut bench = bench(VersionPartitioning::Ranks);
    bench.nodes = 2;
    let mut world = bench.world();
    let infos = world.list(0).unwrap();
    assert_eq!(infos.len(), 3);
    let (here, there) = (Place::Node(tier_ref(0)), Place::Node(tier_ref(1)));
    world.transfer(0, 0, &infos, &Place::Source, &here).unwrap();
    world.transfer(0, 0, &infos, &here, &there).unwrap();
    for view in held(0, 0, &infos, 0) {
        let key = view.key.clone();
        world.perform(Do::Evict {
            part: view.part,
            key: view.key,
            at: here.clone(),
        });
        assert!(matches!(world.next(), Event::Evicted { .. }));
        assert!(
            !TierDir::new(&bench.path("tier"), "ws", "n0")
                .part(&key)
                .exists()
        );
    }
    world
        .transfer(0, 0, &infos, &there, &Place::Drained)
        .unwrap();
    let dest = Place::External(bench.path("out"));
    world
        .transfer(0, 0, &infos, &Place::Drained, &dest)
        .unwrap();
    assert_eq!(tree(&bench.path("out")), tree(&bench.path("raw")));
    assert!(tarn_node::destination_intact(
        &bench.state(),
        "ws",
        &bench.path("out"),
        &Trees::new()
    ));
    world.transfer(0, 0, &infos, &dest, &here).unwrap();
    let found: BTreeSet<String> = held(0, 0, &infos, 0)
        .iter()
        .flat_map(|v| tree(&TierDir::new(&bench.path("tier"), "ws", "n0").part(&v.key)))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(found, tree(&bench.path("raw")).into_keys().collect());
}

fn a_source_may_be_one_file() {
    for partition in [VersionPartitioning::Whole, VersionPartitioning::Entries] {
        let mut bench = bench(partition);
        bench.workflow.data[0].source = Some(bench.write("one.dat", "1"));
        let view = bench.world().stage(0, 0);
        let part = TierDir::new(&bench.path("tier"), "ws", "n0").part(&view[0].key);
        assert_eq!(tree(&part)["one.dat"], "1");
    }
}

fn a_destination_of_somebody_else_is_refused() {
    let bench = bench(VersionPartitioning::Whole);
    let mut world = bench.world();
    let infos = world.list(0).unwrap();
    let dest = Place::External(bench.path("out"));
    bench.write("out/precious", "mine");
    let refused = world
        .transfer(0, 0, &infos, &Place::Source, &dest)
        .unwrap_err();
    assert_eq!(refused.kind, RunErrorKind::Conflict);
    assert_eq!(tree(&bench.path("out"))["precious"], "mine");
    std::fs::remove_file(bench.path("out/precious")).unwrap();
    world.transfer(0, 0, &infos, &Place::Source, &dest).unwrap();
    // tarn may replace its own files, but not files that were changed since.
    world.transfer(0, 0, &infos, &Place::Source, &dest).unwrap();
    bench.write("out/c", "edited");
    assert!(world.transfer(0, 0, &infos, &Place::Source, &dest).is_err());
    assert_eq!(tree(&bench.path("out"))["c"], "edited");
}

fn an_abandoned_transfer_fails_whole() {
    let mut bench = bench(VersionPartitioning::Whole);
    bench.external_latency = 10 * SECOND;
    let mut world = bench.world();
    let infos = world.list(0).unwrap();
    let to = Place::Node(tier_ref(0));
    let first = world.order(0, 0, &infos, &Place::Source, &to);
    while world.progress().transfers().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // The external store has one stream: this one waits.
    let second = world.order(0, 0, &infos, &Place::Source, &Place::Drained);
    std::thread::sleep(Duration::from_millis(150));
    let moving = world.progress().transfers();
    assert_eq!((moving.len(), moving[0].id, moving[0].total), (1, first, 6));
    for id in [second, first] {
        world.perform(Do::Abandon { id });
        match world.next() {
            Event::TransferFailed {
                id: ended, failure, ..
            } => {
                assert_eq!((ended, failure.kind), (id, RunErrorKind::Cancelled));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(
        !TierDir::new(&bench.path("tier"), "ws", "n0")
            .part(&infos[0].key)
            .exists()
    );
}

fn a_vanished_source_is_told() {
    let bench = bench(VersionPartitioning::Whole);
    let mut world = bench.world();
    let infos = world.list(0).unwrap();
    std::fs::rename(bench.path("raw"), bench.path("elsewhere")).unwrap();
    let to = Place::Node(tier_ref(0));
    let failure = world
        .transfer(0, 0, &infos, &Place::Source, &to)
        .unwrap_err();
    assert_eq!(
        failure.kind,
        RunErrorKind::SourceChanged,
        "{}",
        failure.message
    );
    assert!(
        failure.message.contains("`raw`") && failure.message.contains("vanished"),
        "{}",
        failure.message
    );
}

fn a_replica_that_has_changed_is_damaged() {
    let bench = bench(VersionPartitioning::Whole);
    let mut world = bench.world();
    let infos = world.list(0).unwrap();
    let at = Place::Node(tier_ref(0));
    world.transfer(0, 0, &infos, &Place::Source, &at).unwrap();
    let file = TierDir::new(&bench.path("tier"), "ws", "n0")
        .part(&infos[0].key)
        .join("p1/f");
    for change in [
        |f: &Path| std::fs::write(f, "b"),
        |f: &Path| std::fs::remove_file(f),
    ] {
        change(&file).unwrap();
        let moved = world.transfer(0, 0, &infos, &at, &Place::Drained);
        let failure = moved.unwrap_err();
        assert_eq!(failure.kind, RunErrorKind::Corrupt, "{}", failure.message);
    }
}

fn the_damaged_part_of_several_is_named() {
    let bench = bench(VersionPartitioning::Entries);
    let mut world = bench.world();
    let infos = world.list(0).unwrap();
    let at = Place::Node(tier_ref(0));
    world.transfer(0, 0, &infos, &Place::Source, &at).unwrap();
    let tier = TierDir::new(&bench.path("tier"), "ws", "n0");
    let file = tier.part(&infos[1].key).join("p0/f");
    std::fs::write(file, "b").unwrap();
    for to in [Place::External(bench.path("out")), Place::Drained] {
        world.order(0, 0, &infos, &at, &to);
        match world.next() {
            Event::TransferFailed {
                failure, damaged, ..
            } => {
                assert_eq!(failure.kind, RunErrorKind::Corrupt, "{}", failure.message);
                assert_eq!(damaged, Some(part_ref(0, 0, infos[1].seq)), "{to:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    // A source that has changed is not damaged.
    bench.write("raw/p1/f", "changed");
    world.order(0, 0, &infos, &Place::Source, &Place::Drained);
    match world.next() {
        Event::TransferFailed {
            failure, damaged, ..
        } => assert_eq!(
            (failure.kind, damaged),
            (RunErrorKind::SourceChanged, None),
            "{}",
            failure.message
        ),
        other => panic!("{other:?}"),
    }
}

fn waiting_for_nothing_is_an_error() {
    let bench = Bench::new(vec![data("d")], vec![]);
    let mut world = bench.world();
    assert!(world.local.next(None).is_err());
    let now = world.local.now();
    let (then, event) = world.local.next(Some(now + 1_000_000)).unwrap();
    assert!(then >= now + 1_000_000 && matches!(event, Event::Timer));
}
