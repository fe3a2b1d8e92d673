//! Encrypted data: ciphertext in the store, in clear in the memory of jobs alone.

use crate::munged::Daemon;
use crate::node::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use tarn_proto::local::Code;
use tarn_proto::site::*;

const JOB: SlurmJobId = 17;
const TEXT: &str = "nobody but alice knows";
const MEMORY: Option<u64> = Some(16 << 20);

/// Mounts that tarnd makes are gone with the test.
fn site() -> Option<Daemon> {
    let daemon = munge()?;
    tarn_sys::namespace::own_mounts().unwrap();
    Some(daemon)
}

fn fetch_sealed(user: Uid, dataset: &str, from: &Path) -> Work {
    Work::Fetch {
        store: String::new(),
        part: part(user, dataset, 0),
        from: Origin::Outside(from.to_owned()),
        proof: None,
        sealed: true,
    }
}

fn view(job: SlurmJobId, parts: Vec<Part>, memory: Option<u64>) -> Work {
    Work::View {
        hashes: Vec::new(),
        store: String::new(),
        job,
        dataset: parts[0].dataset.clone(),
        parts,
        memory,
    }
}

fn write_anew(job: SlurmJobId, dataset: &str, parts: Vec<Part>) -> Work {
    Work::Prepare {
        hashes: Vec::new(),
        store: String::new(),
        job,
        dataset: dataset.into(),
        parts,
        memory: MEMORY,
    }
}

fn publish_sealed(dataset: &str, version: u32) -> Work {
    Work::Publish {
        store: String::new(),
        job: JOB,
        part: part(ALICE, dataset, version),
        slice: None,
        sealed: true,
    }
}

/// Whether any file below holds some bytes.
fn holds(folder: &Path, bytes: &str) -> bool {
    let found = Process::new("grep")
        .args(["-r", "-q", "-F", bytes])
        .arg(folder)
        .status();
    found.unwrap().success()
}

fn clear(node: &Node, rest: &str) -> PathBuf {
    node.path(&format!("run/clear/all/{JOB}/u{ALICE}/{rest}"))
}

fn in_store(node: &Node, dataset: &str, rest: &str) -> PathBuf {
    node.path(&format!("store/u{ALICE}/d/w/{dataset}/0/0/{rest}"))
}

/// A source of two files; its folder.
fn source(node: &Node) -> PathBuf {
    let file = node.outside("mesh/a", TEXT, ALICE, 0o600);
    let other = format!("another one {TEXT}");
    node.outside("mesh/b", &other, ALICE, 0o600);
    let folder = file.parent().unwrap().to_owned();
    chown(&folder, Some(ALICE), Some(ALICE)).unwrap();
    folder
}

/// For example a part whose removal never came to this node: it was in clear, and is to be sealed now.
#[test]
fn what_was_left_in_clear_is_not_taken_for_what_is_sealed() {
    let Some(daemon) = site() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let from = source(&node);
    let (left, _) = session.proven(ALICE, fetch(ALICE, "mesh", &from));
    assert!(!left.sealed && holds(&node.path("store"), "alice knows"));
    let (proof, moved) = session.proven(ALICE, fetch_sealed(ALICE, "mesh", &from));
    assert!(proof.sealed && moved > 0);
    assert!(!holds(&node.path("store"), "alice knows"));
    let known = Some(proof.clone());
    let again = match fetch_sealed(ALICE, "mesh", &from) {
        Work::Fetch {
            part, from, store, ..
        } => Work::Fetch {
            part,
            from,
            proof: known,
            sealed: true,
            store,
        },
        other => other,
    };
    assert_eq!(session.proven(ALICE, again), (proof, 0));
    // Nor is it for a job's output, of a number that was given once more.
    session.proven(ALICE, fetch(ALICE, "made", &from));
    session.done(ALICE, write_anew(JOB, "made", Vec::new()));
    let made = clear(&node, "w/made/m");
    fs::write(&made, "made now").unwrap();
    chown(&made, Some(ALICE), Some(ALICE)).unwrap();
    let (proof, _) = session.proven(ALICE, publish_sealed("made", 0));
    assert!(proof.sealed && proof.entries == 1, "{proof:?}");
    assert!(!holds(&node.path("store"), "alice knows"));
}

#[test]
fn it_is_in_clear_only_in_the_memory_of_a_job() {
    let Some(daemon) = site() else { return };
    let mut node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let (proof, _) = session.proven(ALICE, fetch_sealed(ALICE, "mesh", &source(&node)));
    assert!(proof.sealed && proof.bytes > 2 * TEXT.len() as u64);
    session.done(ALICE, view(JOB, vec![part(ALICE, "mesh", 0)], MEMORY));
    assert_eq!(fs::read_to_string(clear(&node, "v/mesh/a")).unwrap(), TEXT);
    assert_eq!(fs::metadata(clear(&node, "v/mesh/a")).unwrap().uid(), ALICE);
    session.done(ALICE, write_anew(JOB, "mesh", vec![part(ALICE, "mesh", 0)]));
    session.done(ALICE, write_anew(JOB, "made", Vec::new()));
    let made = clear(&node, "w/made/m");
    fs::write(&made, format!("{TEXT} now")).unwrap();
    chown(&made, Some(ALICE), Some(ALICE)).unwrap();
    fs::remove_file(clear(&node, "w/mesh/b")).unwrap();

    // A tarnd that is started again finds it as it was.
    drop(session);
    node.restart();
    let mut session = node.begin(&daemon);
    let (made, _) = session.proven(ALICE, publish_sealed("made", 1));
    // Asked once more, it is there.
    assert_eq!(session.proven(ALICE, publish_sealed("made", 1)).0, made);
    let (mesh, _) = session.proven(ALICE, publish_sealed("mesh", 1));
    assert_eq!((mesh.entries, mesh.sealed), (1, true));
    assert!(!holds(&node.path("store"), "alice knows"));

    // Delivered data is in clear again: it is the user's own there.
    let out = node.path("outside/out");
    fs::create_dir(&out).unwrap();
    chown(&out, Some(ALICE), Some(ALICE)).unwrap();
    let send = Work::Send {
        parts: vec![(part(ALICE, "made", 1), None, made)],
        dest: out.join("result"),
        owner: String::new(),
    };
    session.proven(ALICE, send);
    assert_eq!(
        fs::read_to_string(out.join("result/m")).unwrap(),
        format!("{TEXT} now")
    );

    // The job leaves: no mount, no folder, and nothing for a process that still has it open.
    let open = fs::File::open(clear(&node, "v")).unwrap();
    session.order(NodeOrder::Dismiss(JOB));
    assert!(!node.path(&format!("run/clear/all/{JOB}")).exists());
    assert_eq!(open.metadata().unwrap().nlink(), 0, "it is removed");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("run/clear/all/17"), "{mounts}");
}

#[test]
fn attack_what_is_encrypted_is_not_put_into_the_clear_nor_reached_by_a_path() {
    let Some(daemon) = site() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    session.proven(ALICE, fetch_sealed(ALICE, "mesh", &source(&node)));
    let parts = vec![part(ALICE, "mesh", 0), part(ALICE, "mesh", 0)];
    let (code, why) = session.refused(ALICE, view(JOB, parts.clone(), None));
    assert_eq!(code, Code::Denied, "{why}");
    let plain = Work::Prepare {
        hashes: Vec::new(),
        store: String::new(),
        job: JOB,
        dataset: "mesh".into(),
        parts: parts.clone(),
        memory: None,
    };
    assert_eq!(session.refused(ALICE, plain).0, Code::Denied);
    // Bob cannot have it opened for him.
    assert_eq!(
        session.refused(BOB, view(JOB, parts.clone(), MEMORY)).0,
        Code::Denied
    );
    session.done(ALICE, view(JOB, vec![part(ALICE, "mesh", 0)], MEMORY));
    // Neither bob nor other programs of alice get there.
    for user in [BOB, ALICE] {
        let file = format!("{JOB}/u{ALICE}/v/mesh/a");
        let by_worker = format!("/proc/[0-9]*/cwd/{file}");
        let paths = format!("run/clear/all/{file} {by_worker}");
        let script = format!(
            "for p in {paths}; do if cat $p; then exit 1; fi; done; if ls run/clear; then exit 1; fi"
        );
        node.as_user(user, &script);
    }
    // More than the node has.
    let much = view(18, vec![part(ALICE, "mesh", 0)], Some(1 << 50));
    let (code, why) = session.refused(ALICE, much);
    assert_eq!(code, Code::NoSpace, "{why}");
    assert!(!node.path("run/clear/all/18").exists());
}

#[test]
fn attack_what_was_changed_on_the_tier_is_not_believed() {
    let Some(daemon) = site() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let folder = source(&node);
    for dataset in ["mesh", "other"] {
        session.proven(ALICE, fetch_sealed(ALICE, dataset, &folder));
    }
    let kept = node.path("kept");
    let copied = Process::new("cp")
        .arg("-a")
        .args([in_store(&node, "mesh", ""), kept.clone()])
        .status();
    assert!(copied.unwrap().success());
    let file = |name: &str| in_store(&node, "mesh", name);
    let swap = |one: &str, other: &str| {
        let (one, other) = (file(one), file(other));
        let between = one.with_extension("between");
        fs::rename(&one, &between).unwrap();
        fs::rename(&other, &one).unwrap();
        fs::rename(&between, &other).unwrap();
    };
    let change = |name: &str| {
        let mut bytes = fs::read(file(name)).unwrap();
        let at = bytes.len() - 30;
        bytes[at] ^= 1;
        fs::write(file(name), bytes).unwrap();
    };
    type Attack<'a> = (&'a str, &'a dyn Fn());
    let attacks: [Attack<'_>; 7] = [
        ("a piece", &|| change("tree/a")),
        ("two files", &|| swap("tree/a", "tree/b")),
        ("a manifest", &|| change("manifest")),
        ("a key", &|| change("key")),
        ("no key", &|| fs::remove_file(file("key")).unwrap()),
        ("another's key", &|| {
            fs::copy(in_store(&node, "other", "key"), file("key")).unwrap();
        }),
        ("all of another", &|| {
            fs::remove_dir_all(file("tree")).unwrap();
            for name in ["tree", "manifest", "key"] {
                let from = in_store(&node, "other", name);
                let copied = Process::new("cp")
                    .arg("-aT")
                    .args([from, file(name)])
                    .status();
                assert!(copied.unwrap().success());
            }
        }),
    ];
    for (what, attack) in attacks {
        attack();
        let opened = session.work(ALICE, view(JOB, vec![part(ALICE, "mesh", 0)], MEMORY));
        match opened {
            WorkResult::Failed(why) if why.code == Code::Corrupt => {}
            other => panic!("{what}: {other:?}"),
        }
        assert!(!clear(&node, "v/mesh").exists(), "{what}");
        let restored = Process::new("cp")
            .args(["-aT"])
            .args([kept.clone(), in_store(&node, "mesh", "")])
            .status();
        assert!(restored.unwrap().success());
    }
    session.done(ALICE, view(JOB, vec![part(ALICE, "mesh", 0)], MEMORY));
}

/// A user who can write the store, or the medium below it, has kept a part that was there under the same name: valid in itself,
/// with its own key.
#[test]
fn attack_an_older_part_that_was_put_back_is_not_believed() {
    let Some(daemon) = site() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let folder = source(&node);
    let mesh = || part(ALICE, "mesh", 0);
    let remove = || Work::Remove(vec![StoreContent::Part(mesh())]);
    let (older, _) = session.proven(ALICE, fetch_sealed(ALICE, "mesh", &folder));
    let kept = node.path("kept");
    let copy = |from: &Path, to: &Path| {
        let copied = Process::new("cp").arg("-aT").args([from, to]).status();
        assert!(copied.unwrap().success());
    };
    copy(&in_store(&node, "mesh", ""), &kept);
    session.done(ALICE, remove());
    fs::write(folder.join("a"), "newer").unwrap();
    let (newer, _) = session.proven(ALICE, fetch_sealed(ALICE, "mesh", &folder));
    assert_ne!(older.hash, newer.hash);
    let roll_back = |dataset: &str| {
        let at = in_store(&node, dataset, "");
        fs::remove_dir_all(&at).unwrap();
        copy(&kept, &at);
    };
    roll_back("mesh");

    // It opens by itself, so only the published hash tells it apart.
    session.done(ALICE, view(16, vec![mesh()], MEMORY));
    let read = Work::View {
        hashes: vec![newer.hash],
        store: String::new(),
        job: JOB,
        dataset: "mesh".into(),
        parts: vec![mesh()],
        memory: MEMORY,
    };
    let change = Work::Prepare {
        hashes: vec![newer.hash],
        store: String::new(),
        job: JOB,
        dataset: "mesh".into(),
        parts: vec![mesh()],
        memory: MEMORY,
    };
    let out = node.path("outside/out");
    fs::create_dir(&out).unwrap();
    chown(&out, Some(ALICE), Some(ALICE)).unwrap();
    let send = Work::Send {
        parts: vec![(mesh(), None, newer.clone())],
        dest: out.join("result"),
        owner: String::new(),
    };
    for work in [read, change, send] {
        let (code, why) = session.refused(ALICE, work);
        assert_eq!(code, Code::Corrupt, "{why}");
        assert!(why.contains("is not what was published"), "{why}");
    }
    assert!(!clear(&node, "v/mesh").exists() && !clear(&node, "w/mesh").exists());
    assert!(!out.join("result").exists());
    // A check, and an inventory, say which one it is.
    assert_eq!(session.proven(ALICE, Work::Check(mesh())).0, older);
    drop(session);
    let mut session = node.begin(&daemon);
    assert!(
        session
            .holds
            .iter()
            .any(|(_, h)| h.proof == Some(older.clone()))
    );

    // A source is read again, not taken from unknown data stored there, whatever is beside that.
    let print = newer.origin.unwrap().to_string();
    fs::write(in_store(&node, "mesh", "source"), print).unwrap();
    let (again, moved) = session.proven(ALICE, fetch_sealed(ALICE, "mesh", &folder));
    assert!(moved > 0 && again.hash != older.hash);
    session.done(ALICE, view(JOB, vec![mesh()], MEMORY));
    assert_eq!(
        fs::read_to_string(clear(&node, "v/mesh/a")).unwrap(),
        "newer"
    );
}

/// A part whose key is another's, changed or gone is not whole, though its files are.
#[test]
fn attack_a_part_without_its_own_key_is_not_whole() {
    let Some(daemon) = site() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let folder = source(&node);
    for dataset in ["mesh", "other"] {
        session.proven(ALICE, fetch_sealed(ALICE, dataset, &folder));
    }
    let mesh = || part(ALICE, "mesh", 0);
    let (proof, _) = session.proven(ALICE, Work::Check(mesh()));
    let key = in_store(&node, "mesh", "key");
    let right = fs::read(&key).unwrap();
    let others = fs::read(in_store(&node, "other", "key")).unwrap();
    let mut changed = right.clone();
    *changed.last_mut().unwrap() ^= 1;
    for wrong in [others, changed] {
        fs::write(&key, wrong).unwrap();
        let (code, why) = session.refused(ALICE, Work::Check(mesh()));
        assert_eq!(code, Code::Corrupt, "{why}");
    }
    // Without a key it is not the part that the controller knows.
    fs::remove_file(&key).unwrap();
    let (found, _) = session.proven(ALICE, Work::Check(mesh()));
    assert_eq!((found == proof, found.sealed), (false, false));
    fs::write(&key, right).unwrap();
    assert_eq!(session.proven(ALICE, Work::Check(mesh())).0, proof);
}

/// A job that begins again makes the same version once more: output of an earlier try is put there before it publishes.
#[test]
fn attack_an_older_part_is_not_published_in_place_of_what_was_made() {
    let Some(daemon) = site() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let make = |session: &mut Session, content: &str| {
        session.done(ALICE, write_anew(JOB, "made", Vec::new()));
        let file = clear(&node, "w/made/m");
        fs::write(&file, content).unwrap();
        chown(&file, Some(ALICE), Some(ALICE)).unwrap();
    };
    make(&mut session, "older");
    let (older, _) = session.proven(ALICE, publish_sealed("made", 0));
    make(&mut session, "newer");
    let (newer, _) = session.proven(ALICE, publish_sealed("made", 0));
    assert_ne!(older.hash, newer.hash);
    let read = Work::View {
        hashes: vec![newer.hash],
        store: String::new(),
        job: JOB,
        dataset: "made".into(),
        parts: vec![part(ALICE, "made", 0)],
        memory: MEMORY,
    };
    session.done(ALICE, read);
    assert_eq!(
        fs::read_to_string(clear(&node, "v/made/m")).unwrap(),
        "newer"
    );
    // Asked for once more, with nothing left to be made of, it is there.
    assert_eq!(session.proven(ALICE, publish_sealed("made", 0)).0, newer);
}

#[test]
fn it_goes_from_node_to_node_as_it_lies() {
    let Some(daemon) = site() else { return };
    let (one, two) = (Node::start("n1", &daemon), Node::start("n2", &daemon));
    let (mut first, mut second) = (one.begin(&daemon), two.begin(&daemon));
    let (proof, _) = first.proven(ALICE, fetch_sealed(ALICE, "mesh", &source(&one)));
    let peer = WorkerAddress {
        node: "n1".into(),
        host: "127.0.0.1".into(),
        port: first.port(ALICE),
    };
    let fetch = Work::Fetch {
        store: String::new(),
        part: part(ALICE, "mesh", 0),
        from: Origin::Peer(peer.clone()),
        proof: Some(proof.clone()),
        sealed: true,
    };
    assert_eq!(second.proven(ALICE, fetch.clone()).0, proof);
    assert!(!holds(&two.path("store"), "alice knows"));
    assert_eq!(
        second.proven(ALICE, Work::Check(part(ALICE, "mesh", 0))).0,
        proof
    );
    second.done(ALICE, view(JOB, vec![part(ALICE, "mesh", 0)], MEMORY));
    assert_eq!(fs::read_to_string(clear(&two, "v/mesh/a")).unwrap(), TEXT);

    // A part that is delivered from another node is here for so long only.
    second.done(
        ALICE,
        Work::Remove(vec![StoreContent::Part(part(ALICE, "mesh", 0))]),
    );
    let out = two.path("outside/out");
    fs::create_dir(&out).unwrap();
    chown(&out, Some(ALICE), Some(ALICE)).unwrap();
    let send = Work::Send {
        parts: vec![(part(ALICE, "mesh", 0), Some(peer), proof)],
        dest: out.join("result"),
        owner: String::new(),
    };
    second.proven(ALICE, send);
    assert_eq!(fs::read_to_string(out.join("result/a")).unwrap(), TEXT);
    assert!(!in_store(&two, "mesh", "").exists());
}

#[test]
fn a_secret_that_was_rotated_and_forgotten_opens_nothing_any_more() {
    let Some(daemon) = site() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    session.proven(ALICE, fetch_sealed(ALICE, "mesh", &source(&node)));
    let opens = |session: &mut Session| {
        let opened = session.work(ALICE, view(JOB, vec![part(ALICE, "mesh", 0)], MEMORY));
        session.order(NodeOrder::Dismiss(JOB));
        opened
    };
    let image = fs::read(in_store(&node, "mesh", "key")).unwrap();
    assert_eq!(opens(&mut session), WorkResult::Done);
    // A key that cannot be wrapped again, as if the tier were full, is reported: then no secret is forgotten.
    let folder = in_store(&node, "mesh", "");
    let mode = |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o500);
    let behind = node.begin_with(&[9, 11, 10], &daemon);
    assert!(behind.is_behind && behind.holds.len() == 1);
    mode(0o755);
    // With the session, and the worker that there is, comes another secret: stored keys are wrapped with it.
    let mut session = node.begin_with(&[9, 11, 10], &daemon);
    assert!(!session.is_behind && session.holds.len() == 1);
    assert_eq!(opens(&mut session), WorkResult::Done);
    assert_ne!(fs::read(in_store(&node, "mesh", "key")).unwrap(), image);
    // So the older one can be forgotten.
    let mut session = node.begin_with(&[9, 11], &daemon);
    assert_eq!(opens(&mut session), WorkResult::Done);
    // An image of the tier from before is noise then, and so is all if the newest one is lost.
    let newest = fs::read(in_store(&node, "mesh", "key")).unwrap();
    fs::write(in_store(&node, "mesh", "key"), image).unwrap();
    for _ in 0..2 {
        match opens(&mut session) {
            WorkResult::Failed(why) => {
                assert_eq!(why.code, Code::Corrupt);
                assert!(why.text.contains("forgotten"), "{why}");
            }
            other => panic!("{other:?}"),
        }
        fs::write(in_store(&node, "mesh", "key"), &newest).unwrap();
        session = node.begin_with(&[9, 12], &daemon);
    }
    let mut session = node.begin_with(&[9, 11], &daemon);
    assert_eq!(opens(&mut session), WorkResult::Done);
    // The removal of a part erases its key first.
    let key = fs::File::open(in_store(&node, "mesh", "key")).unwrap();
    session.done(
        ALICE,
        Work::Remove(vec![StoreContent::Part(part(ALICE, "mesh", 0))]),
    );
    let mut left = Vec::new();
    std::io::Read::read_to_end(&mut &key, &mut left).unwrap();
    assert!(left.len() == newest.len() && left.iter().all(|b| *b == 0));
}
