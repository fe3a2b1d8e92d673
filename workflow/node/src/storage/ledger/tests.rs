use super::*;
use std::path::Path;
use tarn_types::cluster::{Host, Link, Node, Tier};

fn cluster(root: &Path, nodes: u32, capacity: u64) -> Cluster {
    let link = Link {
        read: 1,
        write: 1,
        latency: 0,
        streams: 1,
        emulated: false,
    };
    let node = |i: u32| Node {
        name: format!("n{i}"),
        host: 0,
        cores: 1,
        memory: 0,
        gpus: 0,
        tiers: vec![Tier {
            name: "t".into(),
            root: root.into(),
            capacity,
            read: 1,
            write: 1,
            lender: None,
        }],
    };
    Cluster {
        hosts: vec![Host {
            name: "h".into(),
            cores: 1,
            memory: 0,
            sockets: Vec::new(),
            draw: Default::default(),
        }],
        nodes: (0..nodes).map(node).collect(),
        external: link.clone(),
        peer: link,
    }
}

const TIER: TierRef = TierRef {
    node: NodeId(0),
    tier: TierId(0),
};

#[test]
fn two_runs_never_exceed_one_tier() {
    let root = tempfile::tempdir().unwrap();
    let a = Ledgers::open(&cluster(root.path(), 2, 1000), &OwnedNodes::All, "a").unwrap();
    let b = Ledgers::open(&cluster(root.path(), 2, 1000), &OwnedNodes::All, "b").unwrap();
    let mut held = a.reserve(TIER, 1500, &|| false).unwrap();
    assert_eq!(
        b.report_capacities()
            .iter()
            .map(|(_, n)| *n)
            .collect::<Vec<_>>(),
        [250, 250]
    );
    assert!(b.report_capacities().is_empty());
    assert!(b.reserve(TIER, 400, &|| true).is_ok());
    let refused = b.reserve(TIER, 600, &|| true).unwrap_err();
    assert_eq!(refused.kind, RunErrorKind::Cancelled);
    // Bytes that have arrived turn from reserved to used, and are never both.
    held.arrived(&StoreKey("k".into()), 700);
    assert_eq!(held_by_others(root.path(), "b"), 1500);
    drop(held);
    assert_eq!(held_by_others(root.path(), "b"), 700);
    assert!(b.reserve(TIER, 1300, &|| true).is_ok());
    assert!(b.reserve(TIER, 1301, &|| true).is_err());
    a.left(TIER, &StoreKey("k".into()));
    assert_eq!(
        b.report_capacities()
            .iter()
            .map(|(_, n)| *n)
            .collect::<Vec<_>>(),
        [1000, 1000]
    );
}

#[test]
fn a_claim_grows_into_what_the_others_leave() {
    let root = tempfile::tempdir().unwrap();
    let a = Ledgers::open(&cluster(root.path(), 2, 1000), &OwnedNodes::All, "a").unwrap();
    a.found(TIER, &StoreKey("old".into()), 100);
    let mut one = a.reserve(TIER, 10, &|| false).unwrap();
    let mut two = a.reserve(TIER, 10, &|| false).unwrap();
    one.grow(520).unwrap();
    assert_eq!(two.grow(520), Err(620));
    two.grow(380).unwrap();
    // Bytes that have arrived are not claimed as well, and another node's tier is its own.
    one.arrived(&StoreKey("new".into()), 500);
    let node = NodeId(1);
    let elsewhere = a.reserve(TierRef { node, ..TIER }, 0, &|| false);
    elsewhere.unwrap().grow(1000).unwrap();
    assert_eq!(two.grow(381), Err(620));
    drop(one);
    two.grow(400).unwrap();
    assert_eq!(two.grow(401), Err(600));
    // Bytes that are not this run's count, whether the tier's size includes them or not.
    a.found(TierRef { node, ..TIER }, &StoreKey("kept".into()), 300);
    let mut three = a.reserve(TierRef { node, ..TIER }, 0, &|| false).unwrap();
    assert_eq!(three.grow(701), Err(300));
    a.enlarge(TierRef { node, ..TIER }, 300);
    three.grow(1000).unwrap();
    drop((two, three));
    // Another run's claim is in the way too.
    let b = Ledgers::open(&cluster(root.path(), 2, 1000), &OwnedNodes::All, "b").unwrap();
    let held = b.reserve(TIER, 900, &|| true).unwrap();
    let mut four = a.reserve(TIER, 100, &|| true).unwrap();
    assert_eq!(four.grow(300), Err(1500));
    drop(held);
    four.grow(300).unwrap();
}

#[test]
fn what_is_kept_counts_once_it_is_in_the_way_and_what_is_aside_always() {
    let root = tempfile::tempdir().unwrap();
    let a = Ledgers::open(&cluster(root.path(), 1, 1000), &OwnedNodes::All, "a").unwrap();
    let key = StoreKey("k".into());
    a.found(TIER, &key, 300);
    a.leave(TIER, key.clone(), root.path().join("k"), true);
    assert_eq!(a.kept_in_the_way(TIER, 700), None);
    assert!(a.report_capacities().is_empty());
    assert_eq!(a.kept_in_the_way(TIER, 701), Some(vec![(TIER, 700)]));
    assert_eq!(a.kept_in_the_way(TIER, 701), None, "it is said once");
    assert!(a.take_over(TIER, &key));
    assert_eq!(a.report_capacities(), [(TIER, 1000)]);
    // Of 1000, 200 are not this run's; of a resumed run the capacity is without them.
    for (capacity, resumed) in [(1000, false), (800, true)] {
        let root = tempfile::tempdir().unwrap();
        let a = Ledgers::open(&cluster(root.path(), 1, capacity), &OwnedNodes::All, "a").unwrap();
        a.found(TIER, &key, 200);
        match resumed {
            true => a.enlarge(TIER, 200),
            false => a.set_aside(TIER, 200),
        }
        assert!(a.report_capacities().is_empty());
        let b = Ledgers::open(&cluster(root.path(), 1, 1000), &OwnedNodes::All, "b").unwrap();
        let held = b.reserve(TIER, 500, &|| true).unwrap();
        assert_eq!(a.report_capacities(), [(TIER, 400)]);
        assert!(a.reserve(TIER, 300, &|| true).is_ok());
        assert!(a.reserve(TIER, 301, &|| true).is_err());
        drop(held);
        assert_eq!(a.report_capacities(), [(TIER, 800)]);
    }
}

#[test]
fn the_dead_keep_what_they_use_as_long_as_their_folder_is_there() {
    let root = tempfile::tempdir().unwrap();
    let claim = WorkspaceClaim {
        workspace: "gone".into(),
        pid: i32::MAX,
        start: 1,
        limit: 10,
        used: 300,
        reserved: 500,
        cached: 0,
        waiting: None,
    };
    let page = TierClaims {
        entries: vec![claim],
    };
    std::fs::write(
        root.path().join("ledger"),
        serde_json::to_vec(&page).unwrap(),
    )
    .unwrap();
    std::fs::create_dir(root.path().join("gone")).unwrap();
    let b = Ledgers::open(&cluster(root.path(), 1, 1000), &OwnedNodes::All, "b").unwrap();
    assert!(b.reserve(TIER, 701, &|| true).is_err());
    assert!(b.reserve(TIER, 700, &|| true).is_ok());
    std::fs::remove_dir(root.path().join("gone")).unwrap();
    assert!(b.reserve(TIER, 1000, &|| true).is_ok());
}

#[test]
fn an_older_run_that_waits_goes_first() {
    let root = tempfile::tempdir().unwrap();
    let elder = Ledgers::open(&cluster(root.path(), 1, 1000), &OwnedNodes::All, "elder").unwrap();
    let younger =
        Ledgers::open(&cluster(root.path(), 1, 1000), &OwnedNodes::All, "younger").unwrap();
    // Both are in this process; the younger borrows the name of one that was started later.
    let mut sleeper = std::process::Command::new("sleep")
        .arg("100")
        .spawn()
        .unwrap();
    let pid = i32::try_from(sleeper.id()).unwrap();
    if let Ok(mut mine) = younger.accounts[0].state.lock() {
        mine.claim.pid = pid;
        mine.claim.start = tarn_sys::process::start_time(pid).unwrap();
    }
    let begun = Instant::now();
    let late = || begun.elapsed() > Duration::from_secs(20);
    let key = StoreKey("k".into());
    elder.found(TIER, &key, 400);
    younger.found(TIER, &key, 400);
    std::thread::scope(|s| {
        let waiting = s.spawn(|| elder.reserve(TIER, 500, &late).is_ok());
        let since = Instant::now();
        let refused = younger.reserve(TIER, 500, &late).unwrap_err();
        assert_eq!(refused.kind, RunErrorKind::Cancelled, "{}", refused.message);
        assert!(since.elapsed() >= GIVE_WAY, "{:?}", since.elapsed());
        assert!(
            younger.in_the_way().is_empty(),
            "it waits no longer, so it may go on"
        );
        assert_eq!(
            younger.report_capacities(),
            [(TIER, 400)],
            "nothing new for it"
        );
        younger.idle(Some(Instant::now()));
        younger.report_capacities();
        assert_eq!(younger.in_the_way(), [(TIER, key.clone())]);
        assert_eq!(elder.in_the_way(), []);
        younger.left(TIER, &key);
        assert!(waiting.join().unwrap());
    });
    younger.idle(None);
    younger.report_capacities();
    assert!(younger.reserve(TIER, 500, &|| true).is_ok());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[test]
fn threads_of_two_runs_race_for_the_last_bytes() {
    let root = tempfile::tempdir().unwrap();
    let runs: Vec<_> = ["a", "b"]
        .iter()
        .map(|w| Ledgers::open(&cluster(root.path(), 1, 1000), &OwnedNodes::All, w).unwrap())
        .collect();
    // So that each has a claim that the other sees.
    let base: Vec<_> = runs
        .iter()
        .map(|r| r.reserve(TIER, 1, &|| true).unwrap())
        .collect();
    let held = std::sync::atomic::AtomicU64::new(2);
    std::thread::scope(|s| {
        for run in &runs {
            for _ in 0..2 {
                s.spawn(|| {
                    for _ in 0..50 {
                        if let Ok(r) = run.reserve(TIER, 400, &|| true) {
                            let sum =
                                held.fetch_add(400, std::sync::atomic::Ordering::SeqCst) + 400;
                            assert!(sum <= 1000, "{sum}");
                            held.fetch_sub(400, std::sync::atomic::Ordering::SeqCst);
                            drop(r);
                        }
                    }
                });
            }
        }
    });
    drop(base);
}

#[test]
fn what_is_exported_is_nobodys_twice() {
    let root = tempfile::tempdir().unwrap();
    let export = "lent/a/n9";
    std::fs::create_dir_all(root.path().join(export)).unwrap();
    record_export(root.path(), export, 100, 300).unwrap();
    // Of 1,000 bytes the run that has lent 400 has 600 left, and knows that.
    let a = Ledgers::open(&cluster(root.path(), 1, 600), &OwnedNodes::All, "a").unwrap();
    let b = Ledgers::open(&cluster(root.path(), 1, 1000), &OwnedNodes::All, "b").unwrap();
    assert_eq!(a.report_capacities(), []);
    assert_eq!(b.report_capacities(), [(TIER, 600)]);
    let held = a.reserve(TIER, 600, &|| true).unwrap();
    assert!(b.reserve(TIER, 1, &|| true).is_err());
    drop(held);
    assert!(b.reserve(TIER, 600, &|| true).is_ok() && b.reserve(TIER, 601, &|| true).is_err());
    record_export(root.path(), export, 0, 0).unwrap();
    assert!(b.reserve(TIER, 1000, &|| true).is_ok());
}

#[test]
fn what_ended_runs_have_cached_goes_oldest_first_and_no_more_than_is_wanted() {
    let root = tempfile::tempdir().unwrap();
    let node = root.path().join("gone/n0");
    std::fs::create_dir_all(node.join("cached")).unwrap();
    for (n, (key, bytes)) in [("a", 100), ("b", 150)].into_iter().enumerate() {
        std::fs::create_dir_all(node.join("parts").join(key)).unwrap();
        let mark = std::fs::File::create(node.join(format!("cached/{bytes}.{key}"))).unwrap();
        let since = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(n as u64);
        mark.set_modified(since).unwrap();
    }
    // The process that removed this one was killed before it took the mark away.
    std::fs::write(node.join("cached/70.c"), "").unwrap();
    // This one is to be kept.
    std::fs::create_dir_all(node.join("parts/kept")).unwrap();
    let claim = WorkspaceClaim {
        workspace: "gone".into(),
        pid: i32::MAX,
        start: 1,
        limit: 400,
        used: 300,
        reserved: 0,
        cached: 250,
        waiting: None,
    };
    let page = TierClaims {
        entries: vec![claim],
    };
    page.write(root.path()).unwrap();
    let cluster = cluster(root.path(), 1, 400);
    let ledgers = Ledgers::open(&cluster, &OwnedNodes::All, "own").unwrap();
    assert_eq!(held_by_others(root.path(), "own"), 50);
    let left = || {
        let page = TierClaims::read(root.path()).unwrap();
        let gone = page.entries.iter().find(|c| c.workspace == "gone");
        gone.map(|c| (c.used, c.cached)).unwrap_or_default()
    };
    let mover = tarn_mover::Trees::new();
    ledgers.clear_others_cache(TIER, 100, &mover);
    assert_eq!(left(), (300, 250), "there is room");
    ledgers.clear_others_cache(TIER, 150, &mover);
    assert_eq!(left(), (200, 150), "the oldest is enough");
    assert!(!node.join("parts/a").exists() && node.join("parts/b").exists());
    ledgers.clear_others_cache(TIER, 1000, &mover);
    assert_eq!(left(), (50, 0));
    assert!(!node.join("parts/b").exists() && node.join("parts/kept").exists());
    assert!(!node.join("cached/70.c").exists());
}

/// Two runs on one tier of 1 MiB.
fn two_runs(root: &Path) -> (Ledgers, Ledgers) {
    let open = |run| Ledgers::open(&cluster(root, 1, 1 << 20), &OwnedNodes::All, run).unwrap();
    (open("a"), open("b"))
}

#[test]
fn a_refused_claim_is_given_back_once_if_the_page_cannot_be_written() {
    let root = tempfile::tempdir().unwrap();
    let (a, b) = two_runs(root.path());
    let held = a.reserve(TIER, 100, &|| false).unwrap();
    let _other = b.reserve(TIER, 500_000, &|| false).unwrap();
    std::fs::create_dir(root.path().join("ledger.tmp")).unwrap();
    assert!(a.reserve(TIER, 900_000, &|| true).is_err());
    drop(held);
    std::fs::remove_dir(root.path().join("ledger.tmp")).unwrap();
    assert!(a.reserve(TIER, 500_000, &|| true).is_ok());
}

#[test]
fn a_claim_that_cannot_grow_keeps_its_size_if_the_page_cannot_be_written() {
    let root = tempfile::tempdir().unwrap();
    let (a, b) = two_runs(root.path());
    let mut held = a.reserve(TIER, 100, &|| false).unwrap();
    let _other = b.reserve(TIER, 500_000, &|| false).unwrap();
    std::fs::create_dir(root.path().join("ledger.tmp")).unwrap();
    assert!(held.grow(900_000).is_err());
    drop(held);
    std::fs::remove_dir(root.path().join("ledger.tmp")).unwrap();
    assert!(a.reserve(TIER, 500_000, &|| true).is_ok());
}
