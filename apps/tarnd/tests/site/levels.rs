//! Several stores of a node, on two file systems: moves between them, and their state when something fails.

use crate::munged::Daemon;
use crate::node::*;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tarn_proto::local::Code;
use tarn_proto::site::*;
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// A node whose stores are of two file systems.
struct Two {
    node: Node,
    shm: TempDir,
}

fn two(daemon: &Daemon, options: &'static [&'static str]) -> Option<Two> {
    let near = tempfile::tempdir_in("/dev/shm").unwrap();
    let far = tempfile::tempdir().unwrap();
    let device = |folder: &TempDir| fs::metadata(folder.path()).unwrap().dev();
    if device(&near) == device(&far) {
        println!("SKIPPED: /dev/shm and the folder of temporary files are of one file system");
        return None;
    }
    fs::set_permissions(near.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let stores = stores(near.path(), far.path());
    let node = Node::start_in(("n1", options), daemon, far, stores);
    Some(Two { node, shm: near })
}

fn stores(near: &Path, far: &Path) -> Vec<String> {
    let path = |folder: &Path| folder.join("store").display().to_string();
    vec![
        format!("fast={}:1GiB,volatile", path(near)),
        format!("slow={}:2GiB", path(far)),
    ]
}

impl Drop for Two {
    fn drop(&mut self) {
        // It may be a file system of its own, whose folder is to go.
        let _ = rustix::mount::unmount(self.shm.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

impl Two {
    fn at(&self, store: &str, rest: &str) -> PathBuf {
        match store {
            "fast" => self.shm.path().join("store").join(rest),
            _ => self.node.path("store").join(rest),
        }
    }

    fn tree(&self, store: &str, dataset: &str) -> PathBuf {
        self.at(store, &format!("u{ALICE}/d/w/{dataset}/0/0/tree"))
    }

    /// Half-done and hidden files in a store.
    fn hidden(&self, store: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.at(store, &format!("u{ALICE}"))];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with(".tarn-") {
                    found.push(entry.path());
                } else if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                }
            }
        }
        found
    }
}

/// A dataset of two files and a link, in this store.
fn brought(two: &Two, session: &mut Session, dataset: &str, store: &str, size: usize) -> Proof {
    let content = |at: usize| {
        (0..size)
            .map(|i| ((i * 7 + at) % 251) as u8)
            .collect::<Vec<u8>>()
    };
    let first = two.node.outside(&format!("{dataset}/a"), "", ALICE, 0o640);
    fs::write(&first, content(1)).unwrap();
    let deep = two
        .node
        .outside(&format!("{dataset}/deep/b"), "", ALICE, 0o600);
    fs::write(deep, content(2)).unwrap();
    let folder = first.parent().unwrap().to_owned();
    std::os::unix::fs::symlink("deep/b", folder.join("link")).unwrap();
    for path in [&folder, &folder.join("deep")] {
        chown(path, Some(ALICE), Some(ALICE)).unwrap();
    }
    let Work::Fetch {
        part,
        from,
        proof,
        sealed,
        ..
    } = fetch(ALICE, dataset, &folder)
    else {
        unreachable!()
    };
    let work = Work::Fetch {
        part,
        from,
        proof,
        sealed,
        store: store.into(),
    };
    session.proven(ALICE, work).0
}

fn moves(dataset: &str, (from, to): (&str, &str), proof: &Proof, keep: bool) -> Work {
    Work::Move {
        part: part(ALICE, dataset, 0),
        from: from.into(),
        to: to.into(),
        proof: proof.clone(),
        keep,
    }
}

fn check(session: &mut Session, dataset: &str, store: &str) {
    session.proven(ALICE, Work::CheckIn(part(ALICE, dataset, 0), store.into()));
}

/// The stores in which a node reports a dataset.
fn reported_stores(session: &Session, dataset: &str) -> Vec<String> {
    let held = StoreContent::Part(part(ALICE, dataset, 0));
    let own = session.holds.iter().filter(|(_, h)| h.held == held);
    own.map(|(_, h)| h.store.clone()).collect()
}

#[test]
fn a_part_goes_from_one_file_system_to_another_and_back() {
    let Some(daemon) = munge() else { return };
    let Some(two) = two(&daemon, &["--erase"]) else {
        return;
    };
    let mut session = two.node.begin(&daemon);
    let names: Vec<_> = session
        .stores
        .iter()
        .map(|s| (&s.name[..], s.capacity.persistent))
        .collect();
    assert_eq!(names, [("fast", false), ("slow", true)]);
    let proof = brought(&two, &mut session, "x", "fast", 3 * MIB);
    assert!(two.tree("fast", "x").exists() && !two.tree("slow", "x").exists());
    let mut old = fs::File::open(two.tree("fast", "x").join("a")).unwrap();
    let down = moves("x", ("fast", "slow"), &proof, false);
    let bytes = 6 * MIB as u64;
    assert_eq!(session.proven(ALICE, down.clone()), (proof.clone(), bytes));
    // It is as it was, in the one place alone; in the other it is overwritten.
    check(&mut session, "x", "slow");
    assert!(!two.at("fast", &format!("u{ALICE}/d/w")).exists());
    let mut left = vec![1; 9];
    old.read_exact(&mut left).unwrap();
    assert_eq!(left, [0; 9]);
    let about = fs::metadata(two.tree("slow", "x").join("a")).unwrap();
    assert_eq!(
        (about.uid(), about.gid(), about.mode() & 0o777),
        (ALICE, ALICE, 0o640)
    );
    assert_eq!(
        fs::read_link(two.tree("slow", "x").join("link")).unwrap(),
        Path::new("deep/b")
    );
    // Ordered again it is found, and its source is the same still.
    assert_eq!(session.proven(ALICE, down).1, 0);
    let source = two.node.path("outside/x");
    assert_eq!(
        session.proven(ALICE, fetch(ALICE, "x", &source)),
        (proof.clone(), 0)
    );
    // Up again, as a copy: it is in both stores, and each is reported.
    let up = moves("x", ("slow", "fast"), &proof, true);
    assert_eq!(session.proven(ALICE, up.clone()).1, bytes);
    assert_eq!(session.proven(ALICE, up).1, 0);
    check(&mut session, "x", "fast");
    drop(session);
    let mut session = two.node.begin(&daemon);
    assert_eq!(reported_stores(&session, "x"), ["fast", "slow"]);
    // One of both goes; then the other.
    let copy =
        |store: &str| Work::Remove(vec![StoreContent::Copy(part(ALICE, "x", 0), store.into())]);
    session.done(ALICE, copy("fast"));
    assert!(!two.tree("fast", "x").exists() && two.tree("slow", "x").exists());
    session.done(
        ALICE,
        Work::Remove(vec![StoreContent::Part(part(ALICE, "x", 0))]),
    );
    assert!(!two.tree("slow", "x").exists());
    // A part that is not there cannot be moved, nor can a part be moved to a store that is not there.
    assert_eq!(
        session
            .refused(ALICE, moves("x", ("fast", "slow"), &proof, false))
            .0,
        Code::NotFound
    );
    let nowhere = moves("x", ("fast", "tape"), &proof, false);
    assert!(
        session
            .refused(ALICE, nowhere)
            .1
            .contains("no store `tape`")
    );
}

#[test]
fn what_lies_in_another_store_is_served_merged_and_let_in_from_there() {
    let Some(daemon) = munge() else { return };
    let Some(two) = two(&daemon, &[]) else { return };
    let mut session = two.node.begin(&daemon);
    let low = brought(&two, &mut session, "low", "slow", 1000);
    brought(&two, &mut session, "up", "fast", 1000);
    // Another node of one store has it from there.
    let other = Node::start("n2", &daemon);
    let mut far = other.begin(&daemon);
    let work = Work::Fetch {
        store: String::new(),
        sealed: false,
        part: part(ALICE, "low", 0),
        from: Origin::Peer(WorkerAddress {
            node: "n1".into(),
            host: "127.0.0.1".into(),
            port: session.port(ALICE),
        }),
        proof: Some(low.clone()),
    };
    assert_eq!(far.proven(ALICE, work), (low, 2000));
    // A view is made where the parts are stored, output where it is to be; its initial content may be stored elsewhere.
    session.done(
        ALICE,
        Work::View {
            hashes: Vec::new(),
            store: "slow".into(),
            memory: None,
            job: 5,
            dataset: "low".into(),
            parts: vec![part(ALICE, "low", 0)],
        },
    );
    assert!(two.at("slow", &format!("u{ALICE}/j/5/v/low/a")).exists());
    session.done(
        ALICE,
        Work::Prepare {
            hashes: Vec::new(),
            store: "fast".into(),
            memory: None,
            job: 5,
            dataset: "made".into(),
            parts: vec![part(ALICE, "low", 0)],
        },
    );
    assert!(
        two.at("fast", &format!("u{ALICE}/j/5/w/made/deep/b"))
            .exists()
    );
    let mount = |dataset: &str, store: &str, path: &str, writable| Mount {
        store: store.into(),
        in_memory: false,
        partition: false,
        spread: None,
        checkpoints: None,
        dataset: dataset.into(),
        owner: Owner::User(ALICE),
        path: format!("u{ALICE}/{path}").into(),
        writable,
    };
    let mounts = vec![
        mount("made", "fast", "j/5/w/made", true),
        mount("low", "slow", "j/5/v/low", false),
        mount("up", "fast", "d/w/up/0/0/tree", false),
    ];
    let admitted = session.order(NodeOrder::Admit {
        job: 5,
        user: ALICE,
        mounts,
    });
    assert!(format!("{admitted:?}").contains("Done"), "{admitted:?}");
    let (fast, slow) = (two.at("fast", ""), two.at("slow", ""));
    let root = |path: &Path| path.display().to_string().trim_end_matches('/').to_owned();
    let expected = format!(
        "tarn-job 3\nuser\t{ALICE}\nroot\t{}\nroot\t{}\nmount\trw\tmade\tu{ALICE}\tu{ALICE}/j/5/w/made\n\
         mount\t1-ro\tlow\tu{ALICE}\tu{ALICE}/j/5/v/low\nmount\tro\tup\tu{ALICE}\tu{ALICE}/d/w/up/0/0/tree\n",
        root(&fast),
        root(&slow)
    );
    assert_eq!(
        fs::read_to_string(two.node.path("run/jobs/5")).unwrap(),
        expected
    );
    // If all of it is in one store, that is the one root, as ever.
    let one = vec![mount("low", "slow", "j/5/v/low", false)];
    session.order(NodeOrder::Admit {
        job: 6,
        user: ALICE,
        mounts: one,
    });
    let text = fs::read_to_string(two.node.path("run/jobs/6")).unwrap();
    let first = format!(
        "tarn-job 1\nuser\t{ALICE}\nroot\t{}\nmount\tro\tlow",
        root(&slow)
    );
    assert!(text.starts_with(&first), "{text}");
    let publish = Work::Publish {
        store: "fast".into(),
        sealed: false,
        job: 5,
        part: part(ALICE, "made", 1),
        slice: None,
    };
    session.proven(ALICE, publish);
    assert!(
        two.at("fast", &format!("u{ALICE}/d/w/made/1/0/tree/a"))
            .exists()
    );
    // A job's data is removed from all stores.
    session.done(ALICE, Work::Remove(vec![StoreContent::Job(5)]));
    for store in ["fast", "slow"] {
        assert!(!two.at(store, &format!("u{ALICE}/j/5")).exists());
    }
}

#[test]
fn a_move_that_is_killed_in_the_middle_has_lost_nothing_and_is_ended() {
    let Some(daemon) = munge() else { return };
    let Some(mut two) = two(&daemon, &["--move-rate", "2 MiB/s"]) else {
        return;
    };
    let mut session = two.node.begin(&daemon);
    let proof = brought(&two, &mut session, "x", "fast", 4 * MIB);
    let down = || moves("x", ("fast", "slow"), &proof, false);
    let order = |session: &mut Session| {
        session.number += 1;
        let order = NodeOrder::Do {
            user: ALICE,
            group: ALICE,
            work: Box::new(down()),
        };
        session.send_order(order, session.number);
    };
    for how in ["tarnd", "worker"] {
        order(&mut session);
        let until = Instant::now() + SOON;
        while two.hidden("slow").is_empty() {
            assert!(
                Instant::now() < until,
                "it does not begin: {}",
                two.node.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(200));
        match how {
            "tarnd" => two.node.kill(),
            _ => two.node.kill_workers(),
        }
        assert!(
            two.tree("fast", "x").exists() && !two.tree("slow", "x").exists(),
            "{how}"
        );
        if how == "tarnd" {
            two.node.restart_killed();
        }
        session = two.node.begin(&daemon);
        assert_eq!(reported_stores(&session, "x"), ["fast"], "{how}");
        assert_eq!(
            two.hidden("slow"),
            Vec::<PathBuf>::new(),
            "{how}: what was half done is swept"
        );
    }
    assert_eq!(session.proven(ALICE, down()).1, 8 * MIB as u64);
    check(&mut session, "x", "slow");
    assert!(!two.tree("fast", "x").exists());
}

/// Between the last byte there and the first that goes here.
#[test]
fn a_move_that_was_interrupted_between_both_is_ended_and_what_is_damaged_is_copied_anew() {
    let Some(daemon) = munge() else { return };
    let Some(two) = two(&daemon, &[]) else { return };
    let mut session = two.node.begin(&daemon);
    let proof = brought(&two, &mut session, "x", "fast", 5000);
    let down = || moves("x", ("fast", "slow"), &proof, false);
    session.proven(ALICE, moves("x", ("fast", "slow"), &proof, true));
    assert_eq!(session.proven(ALICE, down()).1, 0);
    assert!(!two.tree("fast", "x").exists());
    check(&mut session, "x", "slow");
    // The one above is whole, the one below is not.
    session.proven(ALICE, moves("x", ("slow", "fast"), &proof, true));
    let file = two.tree("slow", "x").join("a");
    let mut bytes = fs::read(&file).unwrap();
    bytes[77] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(session.proven(ALICE, down()).1, 10_000);
    check(&mut session, "x", "slow");
    // A part that is damaged at its source is not moved, and stays.
    let file = two.tree("slow", "x").join("deep/b");
    fs::write(&file, "wrong").unwrap();
    let up = moves("x", ("slow", "fast"), &proof, false);
    let (code, text) = session.refused(ALICE, up);
    assert!(
        matches!(code, Code::Corrupt | Code::Changed),
        "{code:?} {text}"
    );
    assert!(file.exists() && !two.tree("fast", "x").exists());
    assert_eq!(two.hidden("fast"), Vec::<PathBuf>::new());
}

/// The syncs and renames of the one worker while something was done, as strace saw them.
fn traced(two: &Two, act: impl FnOnce()) -> Option<Vec<String>> {
    let trace = two.node.path("trace");
    let [worker] = two.node.workers()[..] else {
        panic!("one user, one worker");
    };
    let mut strace = std::process::Command::new("strace");
    strace.args(["-f", "-y", "-e", "trace=fsync,renameat,renameat2", "-o"]);
    strace.arg(&trace).args(["-p", &worker.to_string()]);
    let skip = || println!("SKIPPED: strace cannot look at a worker here");
    let Ok(mut strace) = strace.stderr(std::process::Stdio::null()).spawn() else {
        skip();
        return None;
    };
    let is_seen = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        !status.contains("TracerPid:\t0\n")
    };
    let tasks = || fs::read_dir(format!("/proc/{worker}/task")).unwrap();
    while !tasks().all(|task| is_seen(task.unwrap())) {
        if strace.try_wait().unwrap().is_some() {
            skip();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    act();
    let strace_id = rustix::process::Pid::from_child(&strace);
    rustix::process::kill_process(strace_id, rustix::process::Signal::INT).unwrap();
    strace.wait().unwrap();
    let text = fs::read_to_string(trace).unwrap();
    Some(text.lines().map(str::to_owned).collect())
}

/// So it is for a loss of power at any moment, and where the worker before was killed between the name and its sync.
#[test]
fn what_has_come_is_durable_before_its_source_goes() {
    let Some(daemon) = munge() else { return };
    let Some(two) = two(&daemon, &[]) else { return };
    let mut session = two.node.begin(&daemon);
    let proof = brought(&two, &mut session, "x", "fast", 5000);
    let in_slow = two.tree("slow", "x").ancestors().nth(2).unwrap().to_owned();
    let places = |calls: &[String], name: &str, text: &str| -> Vec<usize> {
        let all = calls.iter().enumerate();
        let found = all.filter(|(_, call)| call.contains(name) && call.contains(text));
        found.map(|(at, _)| at).collect()
    };
    let name_synced = format!("{}>", in_slow.display());
    let is_kept = |calls: &[String]| {
        let gone = places(calls, "renameat(", ".gone\"");
        let kept = places(calls, "fsync(", &name_synced);
        (kept[..].last() < gone.first() && !gone.is_empty()).then_some(kept)
    };
    let down = |keep| moves("x", ("fast", "slow"), &proof, keep);
    let Some(calls) = traced(&two, || drop(session.proven(ALICE, down(false)))) else {
        return;
    };
    let kept = is_kept(&calls).unwrap_or_else(|| panic!("{calls:#?}"));
    let named = places(&calls, "renameat2(", ".moved\"");
    let manifest = places(&calls, "fsync(", ".moved/manifest>");
    let inside = places(&calls, "fsync(", ".moved>");
    let order = [manifest.last(), inside.last(), named.last(), kept.last()];
    assert!(order[0].is_some() && order.is_sorted(), "{calls:#?}");
    // It is in both stores, and is ordered again.
    session.proven(ALICE, moves("x", ("slow", "fast"), &proof, true));
    let calls = traced(&two, || drop(session.proven(ALICE, down(false)))).unwrap();
    assert!(
        is_kept(&calls).is_some_and(|kept| !kept.is_empty()),
        "{calls:#?}"
    );
}

#[test]
fn a_store_that_is_full_keeps_nothing_of_what_did_not_fit() {
    let Some(daemon) = munge() else { return };
    tarn_sys::namespace::own_mounts().unwrap();
    let small = tempfile::tempdir().unwrap();
    tarn_sys::namespace::mount_memory(small.path(), 2 << 20).unwrap();
    fs::set_permissions(small.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let far = tempfile::tempdir().unwrap();
    let stores = stores(small.path(), far.path());
    let node = Node::start_in(("n1", &[]), &daemon, far, stores);
    let two = Two { node, shm: small };
    let mut session = two.node.begin(&daemon);
    // Another user's file takes space, and the controller gets the free space.
    let free = session.stores[0].capacity.free;
    assert!(free <= 2 << 20, "{free}");
    fs::write(two.shm.path().join("foreign"), vec![1; MIB]).unwrap();
    drop(session);
    session = two.node.begin(&daemon);
    assert!(session.stores[0].capacity.free <= free - MIB as u64);
    let proof = brought(&two, &mut session, "x", "slow", MIB);
    let (code, text) = session.refused(ALICE, moves("x", ("slow", "fast"), &proof, false));
    assert_eq!(code, Code::NoSpace, "{text}");
    check(&mut session, "x", "slow");
    assert_eq!(two.hidden("fast"), Vec::<PathBuf>::new());
    drop(session);
    session = two.node.begin(&daemon);
    assert!(
        session.stores[0].capacity.free > MIB as u64 / 2,
        "what it took is free again"
    );
    fs::remove_file(two.shm.path().join("foreign")).unwrap();
    let small = brought(&two, &mut session, "small", "slow", MIB / 2);
    session.proven(ALICE, moves("small", ("slow", "fast"), &small, false));
    check(&mut session, "small", "fast");
}

#[test]
fn a_node_is_started_with_other_stores_than_the_last_time() {
    let Some(daemon) = munge() else { return };
    let Some(mut two) = two(&daemon, &[]) else {
        return;
    };
    let mut session = two.node.begin(&daemon);
    brought(&two, &mut session, "low", "slow", 1000);
    brought(&two, &mut session, "up", "fast", 1000);
    drop(session);
    let both = two.node.stores.clone();
    let begin = |two: &mut Two, stores: &[String]| {
        two.node.stores = stores.to_vec();
        two.node.restart();
        two.node.begin(&daemon)
    };
    // The other way round.
    let session = begin(&mut two, &[both[1].clone(), both[0].clone()]);
    assert_eq!(session.stores[0].name, "slow");
    assert_eq!(
        (
            reported_stores(&session, "low"),
            reported_stores(&session, "up")
        ),
        (vec!["slow".into()], vec!["fast".into()])
    );
    // One that is not mounted: its folder is there, and empty.
    let (slow, aside) = (two.node.path("store"), two.node.path("aside"));
    fs::rename(&slow, &aside).unwrap();
    fs::create_dir(&slow).unwrap();
    let mut session = begin(&mut two, &both);
    let away: Vec<_> = session
        .stores
        .iter()
        .map(|s| (&s.name[..], s.is_away))
        .collect();
    assert_eq!(away, [("fast", false), ("slow", true)]);
    assert_eq!(
        (
            reported_stores(&session, "low"),
            reported_stores(&session, "up").len()
        ),
        (Vec::<String>::new(), 1)
    );
    assert!(two.node.log().contains("this store is not mounted"));
    let up = part(ALICE, "up", 0);
    let proof = session
        .holds
        .iter()
        .find(|(_, h)| h.held == StoreContent::Part(up.clone()));
    let proof = proof.unwrap().1.proof.clone().unwrap();
    assert_eq!(
        session
            .refused(ALICE, moves("up", ("fast", "slow"), &proof, false))
            .0,
        Code::Invalid
    );
    drop(session);
    assert_eq!(
        fs::read_dir(&slow).unwrap().count(),
        0,
        "nothing is written there"
    );
    fs::remove_dir(&slow).unwrap();
    fs::rename(&aside, &slow).unwrap();
    let session = begin(&mut two, &both);
    assert_eq!(reported_stores(&session, "low"), ["slow"]);
    assert!(!session.stores[1].is_away);
    drop(session);
    // A third one is new; without the second, and with an empty one in its place, that is new too.
    let third = format!("third={}:1GiB", two.node.path("third").display());
    let more = [both.clone(), vec![third.clone()]].concat();
    assert!(
        begin(&mut two, &more)
            .stores
            .iter()
            .all(|store| !store.is_away)
    );
    drop(begin(&mut two, &[both[0].clone(), third]));
    fs::rename(&slow, &aside).unwrap();
    let session = begin(&mut two, &more);
    assert!(session.stores.iter().all(|store| !store.is_away));
    assert_eq!(reported_stores(&session, "low"), Vec::<String>::new());
    drop(session);
    // In each other's places they do not serve.
    let swapped = [
        both[0].replace("fast", "slow"),
        both[1].replace("slow", "fast"),
    ];
    two.node.stores = swapped.to_vec();
    two.node.kill();
    assert_eq!(two.node.ends_at_once(), Some(5), "{}", two.node.log());
    assert!(two.node.log().contains("mounted in each other's places"));
    // As one store without a name, its data is found.
    let lone = both[0]
        .trim_start_matches("fast=")
        .trim_end_matches(",volatile")
        .to_owned();
    let session = begin_after(&mut two, &[lone], &daemon);
    assert_eq!(
        (session.stores.len(), reported_stores(&session, "up")),
        (0, vec![String::new()])
    );
}

fn begin_after(two: &mut Two, stores: &[String], daemon: &Daemon) -> Session {
    two.node.stores = stores.to_vec();
    two.node.restart_killed();
    two.node.begin(daemon)
}

/// By a member, whoever orders it: the member who has made a project's part there moves it. And encrypted, as it is stored.
#[test]
fn what_is_a_projects_or_sealed_moves_as_it_is() {
    let Some(daemon) = munge() else { return };
    let Some(two) = two(&daemon, &[]) else { return };
    let mut session = two.node.begin(&daemon);
    const PROJECT: Gid = 20_778;
    let shared = Part {
        owner: Owner::Project(PROJECT),
        workflow: Owner::NO_WORKFLOW.into(),
        ..part(BOB, "forcing", 1)
    };
    let order = |session: &mut Session, user, group, work: Work| {
        let work = Box::new(work);
        match session.order(NodeOrder::Do { user, group, work }) {
            Report::Worked { what, .. } => what,
            other => panic!("{other:?}"),
        }
    };
    order(&mut session, BOB, PROJECT, prepare(9, "forcing"));
    let write = format!(
        "echo weather > {}",
        two.at("fast", &format!("u{BOB}/j/9/w/forcing/a")).display()
    );
    two.node.as_user(BOB, &write);
    let publish = Work::Publish {
        store: "fast".into(),
        sealed: false,
        job: 9,
        part: shared.clone(),
        slice: None,
    };
    let made = order(&mut session, BOB, PROJECT, publish);
    let WorkResult::Proven { proof, .. } = made else {
        panic!("{made:?}")
    };
    let down = Work::Move {
        part: shared,
        from: "fast".into(),
        to: "slow".into(),
        proof,
        keep: false,
    };
    let moved = order(&mut session, 0, 0, down);
    assert!(
        matches!(moved, WorkResult::Proven { moved: 8, .. }),
        "{moved:?}"
    );
    let file = two.at("slow", &format!("p{PROJECT}/d/named/forcing/1/0/tree/a"));
    let about = fs::metadata(&file).unwrap();
    assert_eq!(
        (about.uid(), about.gid(), about.mode() & 0o777),
        (BOB, PROJECT, 0o644)
    );

    let source = two
        .node
        .outside("secret", "nobody but alice knows", ALICE, 0o600);
    let sealed = Work::Fetch {
        store: "fast".into(),
        part: part(ALICE, "secret", 0),
        from: Origin::Outside(source),
        proof: None,
        sealed: true,
    };
    let (proof, _) = session.proven(ALICE, sealed);
    assert!(proof.sealed);
    session.proven(ALICE, moves("secret", ("fast", "slow"), &proof, false));
    check(&mut session, "secret", "slow");
    let bytes = fs::read(two.tree("slow", "secret").join("secret")).unwrap();
    assert!(!bytes.windows(5).any(|w| w == b"alice"));
    // With another secret of the site the key is wrapped again where it is stored.
    drop(session);
    let mut session = two.node.begin_with(&[9, 11, 10], &daemon);
    assert!(!session.is_behind);
    session.proven(ALICE, moves("secret", ("slow", "fast"), &proof, true));
    drop(session);
    let session = two.node.begin_with(&[9, 11], &daemon);
    assert!(!session.is_behind, "in both stores");
    assert_eq!(reported_stores(&session, "secret"), ["fast", "slow"]);
}

#[test]
fn attack_a_move_follows_no_link_out_of_a_store() {
    let Some(daemon) = munge() else { return };
    let Some(two) = two(&daemon, &[]) else { return };
    let mut session = two.node.begin(&daemon);
    let proof = brought(&two, &mut session, "x", "fast", 1000);
    let target = two.node.path("outside/target");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("precious"), "bob's").unwrap();
    chown(target.join("precious"), Some(BOB), Some(BOB)).unwrap();
    chown(&target, Some(ALICE), Some(ALICE)).unwrap();
    let (to, slow) = (target.display(), two.at("slow", &format!("u{ALICE}")));
    let down = || moves("x", ("fast", "slow"), &proof, false);
    // At its destination, a folder above it leads out; or its own name does.
    for link in ["d", "d/w/x/0/0"] {
        let above = Path::new(link).parent().unwrap();
        let script = format!(
            "cd {0}; mkdir -p ./{1}; ln -sfn {to} {link}",
            slow.display(),
            above.display()
        );
        two.node.as_user(ALICE, &script);
        match link {
            "d" => assert_eq!(session.refused(ALICE, down()).0, Code::Denied),
            // It is no part: it is removed, not its target.
            _ => drop(session.proven(ALICE, down())),
        }
        let script = format!("cd {}; [ ! -L d ] || rm d", slow.display());
        two.node.as_user(ALICE, &script);
    }
    check(&mut session, "x", "slow");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
    // At its source, the published tree is a link.
    let tree = two.tree("slow", "x");
    let script = format!("mv {0} {0}.old; ln -s {to} {0}", tree.display());
    two.node.as_user(ALICE, &script);
    let (code, text) = session.refused(ALICE, moves("x", ("slow", "fast"), &proof, false));
    assert!(
        matches!(
            code,
            Code::Corrupt | Code::Changed | Code::Denied | Code::Io
        ),
        "{code:?} {text}"
    );
    assert_eq!(
        fs::read_to_string(target.join("precious")).unwrap(),
        "bob's"
    );
    // Nobody moves another user's data.
    let bobs = session.refused(BOB, down());
    assert_eq!(bobs.0, Code::Denied, "{}", bobs.1);
    for script in ["ls", "touch x", "rm -rf u20001"] {
        let store = two.at("fast", "");
        let id = BOB.to_string();
        let tried = std::process::Command::new("setpriv")
            .args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-c"])
            .arg(format!("cd {} && {script}", store.display()))
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(!tried.success(), "{script}");
    }
}
