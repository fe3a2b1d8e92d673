//! The catalogue, and that it holds nothing that the logs do not.

mod common;

use common::{WALL, act, cluster, part, start, story, tier_ref, transfer, workflow};
use std::fs;
use std::path::Path;
use tarn_journal::changes::{ChangeKind, ReplicaChange, StoredAt};
use tarn_journal::{Catalogue, LogWriter, runs};
use tarn_ports::{Journal, Record};
use tarn_types::action::{Action, Do, Outcome};
use tarn_types::bounds::CACHE_LEASE;
use tarn_types::event::{Event, PriorInstance, version_hash};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, NodeId, TierId};
use tarn_types::layout::StateDir;
use tarn_types::part::{PartClass, Place, StoreKey, TransferKind};
use tarn_types::reason::Reason;
use tarn_types::units::SECOND;

fn state() -> (tempfile::TempDir, StateDir) {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir(dir.path().join(".tarn"));
    (dir, state)
}

fn add_run(state: &StateDir, records: impl FnOnce(&str) -> Vec<Record>) -> String {
    let run = runs::allocate(state, "w").unwrap();
    let mut log = LogWriter::create(&state.log(&run)).unwrap();
    log.append(&records(&run)).unwrap();
    run
}

fn node(name: &str) -> StoredAt {
    StoredAt::Node {
        name: name.into(),
        tier: "tmpfs".into(),
        root: "/tier".into(),
        machine: false,
    }
}

fn mid(run: &str) -> StoreKey {
    StoreKey(format!("{run}.s0.0"))
}

/// The results of all queries, as text.
fn everything(catalogue: &Catalogue) -> String {
    let cluster = cluster(&["n0", "n1"], "/tier");
    format!(
        "{:#?}\n{:#?}\n{:#?}\n{:#?}\n{:#?}",
        catalogue.runs().unwrap(),
        catalogue.datasets().unwrap(),
        catalogue.replicas("w", None).unwrap(),
        catalogue.dests("w").unwrap(),
        catalogue
            .prior(&workflow(), "w-abc", &cluster, false)
            .unwrap(),
    )
}

#[test]
fn a_run_is_indexed() {
    let (_dir, state) = state();
    let mut catalogue = Catalogue::open(&state).unwrap();
    assert!(catalogue.runs().unwrap().is_empty());
    let run = add_run(&state, |run| story(run, WALL));
    catalogue.index(&run).unwrap();

    let rows = catalogue.runs().unwrap();
    let row = &rows[0];
    assert_eq!(
        (row.name.as_str(), row.workflow.as_str(), row.wall),
        ("w-1", "w", WALL)
    );
    assert_eq!(
        (row.ended, row.outcome),
        (Some(WALL + 8), Some(Outcome::Done))
    );
    assert_eq!((row.instances, row.done), (2, 2));
    let bytes = row.bytes;
    assert_eq!(
        (
            bytes.external_in,
            bytes.external_out,
            bytes.peer,
            bytes.retained
        ),
        (100, 30, 50, 5)
    );

    let data: Vec<_> = catalogue.datasets().unwrap();
    let data: Vec<_> = data
        .iter()
        .map(|d| (d.dataset.as_str(), d.version, d.at.clone(), d.bytes))
        .collect();
    let dest = StoredAt::External("/lustre/out".into());
    assert_eq!(
        data,
        [
            ("mid", 1, node("n0"), 50),
            ("mid", 1, node("n1"), 50),
            ("out", 1, dest, 30),
            ("out", 1, node("n1"), 30)
        ]
    );
    let replica = &catalogue.replicas("w", Some("mid")).unwrap()[0];
    assert_eq!(replica.path(), Path::new("/tier/w-abc/n0/parts/w-1.s0.0"));
    assert_eq!(
        replica.kept_until,
        Some(WALL + 8 + 3600),
        "the lease begins when the run ends"
    );
    assert_eq!(catalogue.expired(WALL + 8 + 3599).unwrap(), []);
    assert_eq!(catalogue.expired(WALL + 8 + 3600).unwrap().len(), 2);

    let dest = &catalogue.dests("w").unwrap()[0];
    assert_eq!(
        (dest.dataset.as_str(), dest.path.as_path(), dest.version),
        ("out", Path::new("/lustre/out"), 1)
    );
    assert_eq!(
        (dest.hash, dest.wall),
        (version_hash([(&PartClass::Whole, Hash(9))]), WALL + 8)
    );
}

#[test]
fn prior_speaks_of_the_present_cluster() {
    let (_dir, state) = state();
    add_run(&state, |run| story(run, WALL));
    let catalogue = Catalogue::open(&state).unwrap();
    let held = |names: &[&str], root: &str, workspace: &str| {
        let cluster = cluster(names, root);
        let prior = catalogue
            .prior(&workflow(), workspace, &cluster, false)
            .unwrap();
        assert_eq!(prior.len(), 2);
        let make = prior.into_iter().find(|p| p.identity == Hash(100)).unwrap();
        assert_eq!(make.outputs[0].parts[0].0.hash, Some(Hash(8)));
        make.held
    };
    let at = |node| (0, 0, Place::Node(tier_ref(node)));
    assert_eq!(held(&["n0", "n1"], "/tier", "w-abc"), [at(0), at(1)]);
    assert_eq!(held(&["x", "n1"], "/tier", "w-abc"), [at(1)], "n0 is gone");
    assert_eq!(
        held(&["n1", "n0"], "/tier", "w-abc"),
        [at(1), at(0)],
        "numbered otherwise"
    );
    assert_eq!(
        held(&["n0", "n1"], "/other", "w-abc"),
        [],
        "another tier of the same name"
    );
    assert_eq!(
        held(&["n0", "n1"], "/tier", "w-xyz"),
        [],
        "another workspace"
    );
    let other = tarn_types::workflow::Workflow {
        name: "v".into(),
        ..workflow()
    };
    assert_eq!(
        catalogue
            .prior(&other, "w-abc", &cluster(&["n0"], "/tier"), false)
            .unwrap(),
        []
    );
}

/// A later run reuses the output of the first one, drains it and evicts it from a node.
fn second_run(run: &str, prior: Vec<PriorInstance>) -> Vec<Record> {
    let mut start = start(run, WALL + 1000);
    start.prior = prior;
    let at = start
        .prior
        .iter()
        .position(|p| p.identity == Hash(100))
        .unwrap();
    let reuse = Do::Reuse {
        instance: common::instance(0),
        prior: at as u32,
    };
    let n0 = Place::Node(tier_ref(0));
    let evict = Do::Evict {
        part: part(1, 1),
        key: mid("w-1"),
        at: n0.clone(),
    };
    let drain = transfer(
        0,
        part(1, 1),
        n0.clone(),
        Place::Drained,
        TransferKind::ExternalOut,
        Reason::Rescue,
    );
    let drained = Event::TransferDone {
        id: tarn_types::id::TransferId(0),
        bytes: 50,
        hashes: vec![Hash(8)],
        stored: vec![50],
        took: SECOND,
    };
    let evicted = Event::Evicted {
        part: part(1, 1),
        at: n0,
    };
    let finish: Vec<Action> = vec![act(
        Do::Finish {
            outcome: Outcome::Failed,
        },
        Reason::AllDone,
    )];
    common::number(vec![
        (
            Event::Started(Box::new(start)),
            vec![act(reuse, Reason::Unchanged), drain],
        ),
        (drained, vec![act(evict, Reason::NotNeeded)]),
        (evicted, finish),
    ])
}

/// Two runs, then somebody pins a replica and removes another.
fn lived_in(state: &StateDir) -> Catalogue {
    add_run(state, |run| story(run, WALL));
    let prior = |state: &StateDir| {
        let catalogue = Catalogue::open(state).unwrap();
        catalogue
            .prior(
                &workflow(),
                "w-abc",
                &cluster(&["n0", "n1"], "/tier"),
                false,
            )
            .unwrap()
    };
    let known = prior(state);
    add_run(state, |run| second_run(run, known));
    let mut catalogue = Catalogue::open(state).unwrap();
    let change = |key: &str, at, change| ReplicaChange {
        wall: WALL + 2000,
        key: StoreKey(key.into()),
        at,
        change,
    };
    let pin = change("w-1.s0.0", node("n1"), ChangeKind::KeptUntil(None));
    let gone = change("w-1.s1.0", node("n1"), ChangeKind::Removed);
    catalogue.record(&[pin, gone]).unwrap();
    catalogue
}

#[test]
fn later_runs_and_people_change_what_is_there() {
    let (_dir, state) = state();
    let catalogue = lived_in(&state);
    let rows = catalogue.replicas("w", None).unwrap();
    let rows: Vec<_> = rows
        .into_iter()
        .map(|r| (r.key.0, r.at, r.kept_until))
        .collect();
    let (mid, out) = ("w-1.s0.0".to_owned(), "w-1.s1.0".to_owned());
    let drained = StoredAt::Drained("/lustre/scratch".into());
    let dest = StoredAt::External("/lustre/out".into());
    assert_eq!(
        rows,
        [
            // The pin is on the part, wherever it is stored.
            (mid.clone(), drained, None),
            (mid, node("n1"), None),
            (out, dest, None)
        ]
    );
    // A part that was drained is held where the same external store is used.
    let prior = catalogue
        .prior(&workflow(), "w-abc", &cluster(&["n1"], "/tier"), false)
        .unwrap();
    let n1 = tarn_types::id::TierRef {
        node: NodeId(0),
        tier: TierId(0),
    };
    let make = prior.iter().find(|p| p.identity == Hash(100)).unwrap();
    assert_eq!(make.held, [(0, 0, Place::Drained), (0, 0, Place::Node(n1))]);
    assert_eq!(make.outputs[0].parts[0].1, [n1]);
    assert_eq!(prior.len(), 2, "one for each identity");
    assert_eq!(make.outputs[0].data, DataId(1));
}

/// A later run takes over data that an earlier one had to keep, and loses the node: nobody knows that it is gone.
#[test]
fn what_a_lost_node_keeps_stays_listed() {
    let (_dir, state) = state();
    add_run(&state, |run| story(run, WALL));
    let mut catalogue = Catalogue::open(&state).unwrap();
    let there = cluster(&["n0", "n1"], "/tier");
    let prior = catalogue.prior(&workflow(), "w-abc", &there, false);
    let prior = prior.unwrap();
    let second = add_run(&state, |run| {
        let mut records = second_run(run, prior);
        let lost = |node| Event::NodeLost {
            node: NodeId(node),
            why: "cancelled".into(),
        };
        // Before anything is drained or evicted.
        records.truncate(1);
        let then = common::number(vec![(lost(0), vec![]), (lost(1), vec![])]);
        records.extend(then.into_iter().map(|r| Record {
            seq: r.seq + 1,
            now: r.now + SECOND,
            ..r
        }));
        records
    });
    catalogue.index(&second).unwrap();
    let known = |catalogue: &Catalogue| {
        let rows = catalogue.replicas("w", Some("mid")).unwrap();
        assert!(rows.iter().all(|r| r.kept && r.run == second), "{rows:?}");
        rows.into_iter().map(|r| r.at).collect::<Vec<_>>()
    };
    assert_eq!(known(&catalogue), [node("n0"), node("n1")]);
    fs::remove_file(state.catalogue()).unwrap();
    let catalogue = Catalogue::open(&state).unwrap();
    assert_eq!(known(&catalogue), [node("n0"), node("n1")]);
    // The next run looks for them.
    let prior = catalogue.prior(&workflow(), "w-abc", &there, false);
    let prior = prior.unwrap().into_iter();
    let held: Vec<_> = prior.map(|p| p.held.len()).collect();
    assert!(held.contains(&2), "{held:?}");
}

#[test]
fn it_is_made_again_from_the_logs() {
    let (_dir, state) = state();
    let before = everything(&lived_in(&state));
    let file = state.catalogue();
    let good = fs::read(&file).unwrap();
    let mut damaged = good.clone();
    let half = damaged.len() / 2;
    damaged[100..half].fill(0x5a);
    let mut other_version = good.clone();
    // Bytes 60 to 63 of a SQLite file are its user_version.
    other_version[60..64].copy_from_slice(&77u32.to_be_bytes());
    let images = [
        None,
        Some(b"this is no database, but long enough to look".to_vec()),
        Some(damaged),
    ];
    for image in images
        .into_iter()
        .chain([Some(other_version), Some(vec![]), Some(good)])
    {
        match image {
            Some(bytes) => fs::write(&file, bytes).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        assert_eq!(everything(&Catalogue::open(&state).unwrap()), before);
    }
}

#[test]
fn a_growing_log_is_indexed_again_and_a_damaged_one_is_skipped() {
    let (_dir, state) = state();
    let records = story("w-1", WALL);
    let run = runs::allocate(&state, "w").unwrap();
    let mut log = LogWriter::create(&state.log(&run)).unwrap();
    let mut catalogue = Catalogue::open(&state).unwrap();
    let mut seen = Vec::new();
    let mut sources_seen = false;
    for record in &records {
        log.append(std::slice::from_ref(record)).unwrap();
        catalogue.index(&run).unwrap();
        let rows = catalogue.runs().unwrap();
        let replicas = catalogue.replicas("w", None).unwrap();
        for r in replicas.iter().filter(|r| r.dataset == "mid") {
            // A lease on time begins with the replica, and again when the run ends.
            let from = rows[0].ended.unwrap_or(r.since);
            assert_eq!((r.kept, r.kept_until), (true, Some(from + 3600)));
            assert!(r.is_kept(from + 3599) && !r.is_kept(from + 3600));
        }
        let sources = replicas.iter().filter(|r| r.version == 0);
        assert!(sources.clone().all(|r| !r.kept && !r.is_kept(0)));
        sources_seen |= sources.count() > 0;
        seen.push((rows[0].done, replicas.len(), rows[0].outcome));
    }
    assert!(sources_seen);
    let running = [
        (0, 0),
        (0, 0),
        (0, 1),
        (0, 1),
        (1, 2),
        (1, 1),
        (1, 2),
        (2, 3),
    ];
    let mut want: Vec<_> = running
        .iter()
        .map(|(done, replicas)| (*done, *replicas, None))
        .collect();
    want.push((2, 4, Some(Outcome::Done)));
    assert_eq!(seen, want);
    drop(catalogue);

    add_run(&state, |run| story(run, WALL + 50));
    let path = state.log("w-1");
    let text = fs::read_to_string(&path)
        .unwrap()
        .replacen("transfer-done", "transfer-dome", 1);
    fs::write(&path, text + "\n").unwrap();
    let catalogue = Catalogue::open(&state).unwrap();
    let skipped: Vec<_> = catalogue
        .skipped()
        .iter()
        .map(|(run, _)| run.as_str())
        .collect();
    assert_eq!(skipped, ["w-1"]);
    assert_eq!(
        catalogue.runs().unwrap().len(),
        2,
        "what was known of it stays"
    );
}

#[test]
fn a_change_outlives_a_torn_one() {
    let (_dir, state) = state();
    drop(lived_in(&state));
    let log = state.0.join("data.log");
    let mut bytes = fs::read(&log).unwrap();
    bytes.truncate(bytes.len() - 3);
    fs::write(&log, bytes).unwrap();
    fs::remove_file(state.catalogue()).unwrap();
    let mut catalogue = Catalogue::open(&state).unwrap();
    // The pin is whole, the removal was torn: nothing reported it as done.
    let rows = catalogue.replicas("w", None).unwrap();
    assert_eq!(rows.iter().filter(|r| r.key.0 == "w-1.s1.0").count(), 2);
    assert!(
        rows.iter()
            .any(|r| r.at == node("n1") && r.key == mid("w-1") && r.kept_until.is_none())
    );
    let again = ReplicaChange {
        wall: WALL + 2001,
        key: StoreKey("w-1.s1.0".into()),
        at: node("n1"),
        change: ChangeKind::Removed,
    };
    catalogue.record(&[again]).unwrap();
    fs::remove_file(state.catalogue()).unwrap();
    let catalogue = Catalogue::open(&state).unwrap();
    let rows = catalogue.replicas("w", Some("out")).unwrap();
    assert_eq!(rows.len(), 1, "only the dest is left");
}

#[test]
fn what_a_run_leaves_that_nobody_asks_to_keep_is_cached_for_a_week() {
    let rows = |cache: u8, ends: bool| {
        let (_dir, state) = state();
        let mut catalogue = Catalogue::open(&state).unwrap();
        let run = add_run(&state, |run| {
            let mut records = story(run, WALL);
            if let Event::Started(start) = &mut records[0].event {
                start.options.cache = cache;
            }
            if !ends {
                records.pop();
            }
            records
        });
        catalogue.index(&run).unwrap();
        let mut rows = catalogue.replicas("w", None).unwrap();
        rows.retain(|r| !r.kept && matches!(r.at, StoredAt::Node { .. }));
        assert!(!rows.is_empty());
        rows
    };
    let end = WALL + 8 + CACHE_LEASE;
    for row in rows(25, true) {
        assert_eq!(row.kept_until, Some(end));
        assert!(row.is_cached(end - 1) && !row.is_cached(end) && !row.is_kept(WALL));
    }
    for row in rows(0, true).into_iter().chain(rows(25, false)) {
        assert_eq!(row.kept_until, None);
        assert!(!row.is_cached(WALL) && !row.is_kept(WALL));
    }
}
