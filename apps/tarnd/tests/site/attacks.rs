//! Attacks that are refused, and logged.

use crate::node::*;
use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use tarn_proto::local::Code;
use tarn_proto::site::*;

#[test]
fn attack_a_controller_of_an_earlier_term_acts_on_nothing() {
    let Some(daemon) = munge() else { return };
    let mut node = Node::start("n1", &daemon);
    let mut old = node.try_begin(4, &daemon).ok().unwrap();
    let mut new = node.try_begin(5, &daemon).ok().unwrap();
    // The old controller is cut off, and cannot come back, not even after the node was restarted.
    let number = 1;
    let order = NodeOrder::Look;
    let _ = old.try_send_order(order, number);
    assert!(old.reader.receive::<Report>(SOON).is_err());
    assert!(matches!(
        new.order(NodeOrder::Look),
        Report::Capacity { .. }
    ));
    node.restart();
    assert_eq!(
        node.try_begin(4, &daemon).err(),
        Some(Box::new(NodeWelcome::Stale(5)))
    );
    node.audited("is replaced");
}

#[test]
fn attack_what_a_user_may_not_read_is_not_read_for_them() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let secret = node.outside("secret", "bob's", BOB, 0o600);
    let (code, text) = session.refused(ALICE, fetch(ALICE, "x", &secret));
    assert_eq!(code, Code::Denied, "{text}");
    // Not by a link that is the user's own either, nor by a folder with such a link in it.
    let link = node.path("outside/link");
    symlink(&secret, &link).unwrap();
    assert_eq!(
        session.refused(ALICE, fetch(ALICE, "x", &link)).0,
        Code::Denied
    );
    assert!(!node.path("store/u20001/d/w/x/0/0").exists());
    node.audited("Fetch");
}

#[test]
fn attack_a_result_is_not_written_where_its_user_may_not_write() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let bobs = node.outside("home/file", "bob's", BOB, 0o644);
    let home = bobs.parent().unwrap();
    chown(home, Some(BOB), Some(BOB)).unwrap();
    session.done(ALICE, prepare(5, "x"));
    node.as_user(ALICE, "echo x > store/u20001/j/5/w/x/a");
    let (proof, _) = session.proven(ALICE, publish(ALICE, 5, "x", 1));
    for dest in [
        home.join("new"),
        bobs.clone(),
        PathBuf::from("/etc/tarn-attack"),
    ] {
        let send = Work::Send {
            parts: vec![(part(ALICE, "x", 1), None, proof.clone())],
            dest,
            owner: String::new(),
        };
        assert_eq!(session.refused(ALICE, send).0, Code::Denied);
    }
    assert_eq!(fs::read_to_string(&bobs).unwrap(), "bob's");
    // Nor into the store, past the account there.
    let send = Work::Send {
        parts: vec![(part(ALICE, "x", 1), None, proof)],
        dest: node.path("store/u20001/loot"),
        owner: String::new(),
    };
    assert_eq!(session.refused(ALICE, send).0, Code::Invalid);
}

#[test]
fn attack_a_worker_touches_nothing_of_another_user() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    session.done(BOB, prepare(5, "x"));
    node.as_user(BOB, "echo x > store/u20002/j/5/w/x/a");
    let (proof, _) = session.proven(BOB, publish(BOB, 5, "x", 1));
    let bobs = || part(BOB, "x", 1);
    let works = [
        Work::Check(bobs()),
        Work::Remove(vec![StoreContent::Part(bobs())]),
        publish(BOB, 5, "x", 2),
        fetch(BOB, "y", Path::new("/etc/hostname")),
        Work::View {
            hashes: Vec::new(),
            store: String::new(),
            memory: None,
            job: 6,
            dataset: "x".into(),
            parts: vec![bobs()],
        },
        Work::Prepare {
            hashes: Vec::new(),
            store: String::new(),
            memory: None,
            job: 6,
            dataset: "x".into(),
            parts: vec![bobs()],
        },
        Work::Send {
            parts: vec![(bobs(), None, proof)],
            dest: node.path("outside/x"),
            owner: String::new(),
        },
    ];
    for work in works {
        let what = format!("{work:?}");
        assert_eq!(session.refused(ALICE, work).0, Code::Denied, "{what}");
    }
    assert!(node.path("store/u20002/d/w/x/1/0/tree/a").exists());
    node.audited("belongs to u20002");
}

#[test]
fn attack_nobody_looks_into_anothers_folder() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    session.done(BOB, prepare(5, "x"));
    for script in [
        "ls store",
        "ls store/u20002",
        "cat store/u20002/j/5/w/x/a",
        "touch store/u20002/y",
        "mkdir store/u20003",
        "touch store/.tarn-site",
        "ls run/jobs",
        "touch run/data/x",
        "rm -rf store/u20002",
    ] {
        let id = ALICE.to_string();
        let tried = Process::new("setpriv")
            .args([
                "--reuid",
                &id,
                "--regid",
                &id,
                "--clear-groups",
                "sh",
                "-c",
                script,
            ])
            .current_dir(node.folder.path())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(!tried.success(), "{script}");
    }
    assert!(node.path("store/u20002/j/5/w/x").exists());
}

#[test]
fn attack_links_in_the_store_lead_nowhere() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    session.done(ALICE, prepare(5, "x"));
    let target = node.path("outside/target");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("precious"), "x").unwrap();
    chown(&target, Some(ALICE), Some(ALICE)).unwrap();
    let outside = target.display();
    // A folder above a place is a link out.
    node.as_user(
        ALICE,
        &format!("mkdir -p store/u20001/d; ln -s {outside} store/u20001/d/w"),
    );
    assert_eq!(
        session.refused(ALICE, publish(ALICE, 5, "x", 1)).0,
        Code::Denied
    );
    let source = node.outside("s", "s", ALICE, 0o644);
    assert_eq!(
        session.refused(ALICE, fetch(ALICE, "y", &source)).0,
        Code::Denied
    );
    assert_eq!(
        session
            .refused(
                ALICE,
                Work::Remove(vec![StoreContent::Part(part(ALICE, "x", 1))])
            )
            .0,
        Code::Denied
    );
    // A job's folder is one: it is removed, not its target.
    node.as_user(ALICE, &format!("ln -s {outside} store/u20001/j/6"));
    session.done(ALICE, Work::Remove(vec![StoreContent::Job(6)]));
    // One within removed data is removed itself.
    node.as_user(ALICE, &format!("ln -s {outside} store/u20001/j/5/w/x/out"));
    session.done(ALICE, Work::Remove(vec![StoreContent::Job(5)]));
    assert_eq!(fs::read_to_string(target.join("precious")).unwrap(), "x");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
}

#[test]
fn attack_a_part_that_its_owner_has_changed_is_found_out_by_who_fetches_it() {
    let Some(daemon) = munge() else { return };
    let (one, two) = (Node::start("n1", &daemon), Node::start("n2", &daemon));
    let (mut first, mut second) = (one.begin(&daemon), two.begin(&daemon));
    first.done(ALICE, prepare(5, "x"));
    one.as_user(ALICE, "echo right > store/u20001/j/5/w/x/a");
    let (proof, _) = first.proven(ALICE, publish(ALICE, 5, "x", 1));
    one.as_user(ALICE, "echo wrong > store/u20001/d/w/x/1/0/tree/a");
    let peer = WorkerAddress {
        node: "n1".into(),
        host: "127.0.0.1".into(),
        port: first.port(ALICE),
    };
    let work = Work::Fetch {
        store: String::new(),
        sealed: false,
        part: part(ALICE, "x", 1),
        from: Origin::Peer(peer),
        proof: Some(proof),
    };
    let (code, text) = second.refused(ALICE, work);
    assert!(
        matches!(code, Code::Corrupt | Code::Changed),
        "{code:?} {text}"
    );
    assert!(!two.path("store/u20001/d/w/x/1/0").exists());
    assert_eq!(
        first.refused(ALICE, Work::Check(part(ALICE, "x", 1))).0,
        Code::Corrupt
    );
}

#[test]
fn attack_another_users_worker_serves_nothing_to_whoever_lacks_its_key() {
    let Some(daemon) = munge() else { return };
    let (one, two) = (Node::start("n1", &daemon), Node::start("n2", &daemon));
    let (mut first, mut second) = (one.begin(&daemon), two.begin(&daemon));
    first.done(BOB, prepare(5, "x"));
    one.as_user(BOB, "echo right > store/u20002/j/5/w/x/a");
    let (proof, _) = first.proven(BOB, publish(BOB, 5, "x", 1));
    // Alice's worker is sent to Bob's port, under her own name: it has her key.
    let peer = WorkerAddress {
        node: "n1".into(),
        host: "127.0.0.1".into(),
        port: first.port(BOB),
    };
    let work = Work::Fetch {
        store: String::new(),
        sealed: false,
        part: part(ALICE, "x", 1),
        from: Origin::Peer(peer.clone()),
        proof: Some(proof),
    };
    let (code, _) = second.refused(ALICE, work);
    assert_eq!(code, Code::Io);
    let mut stranger = TcpStream::connect(("127.0.0.1", peer.port)).unwrap();
    std::io::Write::write_all(
        &mut stranger,
        b"GET /u20002/d/w/x/1/0/tree/a HTTP/1.0\r\n\r\n",
    )
    .unwrap();
    let mut received = Vec::new();
    let _ = stranger.read_to_end(&mut received);
    assert!(!String::from_utf8_lossy(&received).contains("right"));
}

#[test]
fn attack_system_users_have_no_worker() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    for user in [0, 1, 999] {
        assert_eq!(session.refused(user, prepare(5, "x")).0, Code::Denied);
        let served = session.order(NodeOrder::Serve { user, group: user });
        assert!(format!("{served:?}").contains("Denied"));
    }
}

#[test]
fn attack_names_that_are_none_reach_no_file() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let source = node.outside("s", "s", ALICE, 0o644);
    for name in ["..", "../../u20002", "a/b", "", ".hidden", "a\nb", "x\0y"] {
        assert_eq!(
            session.refused(ALICE, fetch(ALICE, name, &source)).0,
            Code::Invalid,
            "{name:?}"
        );
        assert_eq!(
            session.refused(ALICE, prepare(5, name)).0,
            Code::Invalid,
            "{name:?}"
        );
        let work = Work::Remove(vec![StoreContent::Part(part(ALICE, name, 0))]);
        assert_eq!(session.refused(ALICE, work).0, Code::Invalid, "{name:?}");
    }
}

#[test]
fn attack_a_worker_can_neither_be_looked_into_nor_does_it_keep_roots_rights() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    session.done(ALICE, prepare(5, "x"));
    let worker = node.workers().first().copied();
    let worker = worker.expect("a worker");
    let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name)).unwrap();
        line.split_whitespace()
            .skip(1)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let own = ALICE.to_string();
    assert!(field("Uid:").iter().all(|id| *id == own) && field("Gid:").iter().all(|id| *id == own));
    for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
        assert_eq!(field(set), ["0000000000000000"], "{set}");
    }
    assert_eq!(field("NoNewPrivs:"), ["1"]);
    // Not dumpable: its files in /proc are root's, so its user reads neither memory nor environment.
    assert_eq!(
        fs::metadata(format!("/proc/{worker}/environ"))
            .unwrap()
            .uid(),
        0
    );
    let words = fs::read_to_string(format!("/proc/{worker}/cmdline")).unwrap();
    assert!(words.ends_with("--worker\0"), "{words:?}");
    assert_eq!(fs::read(format!("/proc/{worker}/environ")).unwrap(), b"");
    assert!(!node.log().contains("09090909"), "no secret is in the log");
}
