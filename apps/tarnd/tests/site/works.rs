//! The works of users.

use crate::node::*;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, chown};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tarn_proto::local::Code;
use tarn_proto::site::*;

#[test]
fn what_a_user_has_comes_in_is_changed_published_and_goes_out() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let source = node.outside("mesh/a", "one", ALICE, 0o600);
    let mesh = source.parent().unwrap();
    chown(mesh, Some(ALICE), Some(ALICE)).unwrap();
    let (proof, moved) = session.proven(ALICE, fetch(ALICE, "mesh", mesh));
    assert_eq!((proof.bytes, moved), (3, 3));
    // Asked for once more, nothing is read.
    assert_eq!(
        session.proven(ALICE, fetch(ALICE, "mesh", mesh)),
        (proof, 0)
    );
    // A source that has changed since is not the one that was read.
    let other = node.outside("mesh/new", "x", ALICE, 0o600);
    let (code, text) = session.refused(ALICE, fetch(ALICE, "mesh", mesh));
    assert_eq!(code, Code::Changed, "{text}");
    fs::remove_file(other).unwrap();
    let tree = node.path("store/u20001/d/w/mesh/0/0/tree");
    let about = fs::metadata(tree.join("a")).unwrap();
    assert_eq!((about.uid(), about.gid()), (ALICE, ALICE));
    let begin = Work::Prepare {
        hashes: Vec::new(),
        store: String::new(),
        memory: None,
        job: 5,
        dataset: "mesh".into(),
        parts: vec![part(ALICE, "mesh", 0)],
    };
    session.done(ALICE, begin.clone());
    node.as_user(ALICE, "cd store/u20001/j/5/w/mesh; echo two > b; rm a");
    // It is not made again when it is requested once more.
    session.done(ALICE, begin);
    let (made, _) = session.proven(ALICE, publish(ALICE, 5, "mesh", 1));
    assert_eq!((made.bytes, made.entries), (4, 1));
    assert!(tree.join("a").exists(), "the version before is as it was");
    session.proven(ALICE, Work::Check(part(ALICE, "mesh", 1)));
    let out = node.path("outside/out");
    fs::create_dir(&out).unwrap();
    chown(&out, Some(ALICE), Some(ALICE)).unwrap();
    let send = Work::Send {
        parts: vec![(part(ALICE, "mesh", 1), None, made)],
        dest: out.join("result"),
        owner: String::new(),
    };
    assert_eq!(session.proven(ALICE, send).1, 4);
    assert_eq!(fs::read_to_string(out.join("result/b")).unwrap(), "two\n");
    assert_eq!(fs::metadata(out.join("result/b")).unwrap().uid(), ALICE);
    let all = vec![
        StoreContent::Job(5),
        StoreContent::Part(part(ALICE, "mesh", 0)),
    ];
    session.done(ALICE, Work::Remove(all.clone()));
    session.done(ALICE, Work::Remove(all));
    let WorkResult::Inventory { holds: left, .. } =
        session.work(ALICE, Work::Inventory(Vec::new()))
    else {
        panic!("no inventory");
    };
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].held, StoreContent::Part(part(ALICE, "mesh", 1)));
    node.audited("Publish");
}

#[test]
fn what_is_ordered_twice_at_the_same_time_is_done_once() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    for at in 0..200 {
        node.outside(&format!("many/{at}"), "some bytes", ALICE, 0o644);
    }
    let source = node.path("outside/many");
    for _ in 0..8 {
        session.number += 1;
        let work = Box::new(fetch(ALICE, "many", &source));
        let order = NodeOrder::Do {
            user: ALICE,
            group: ALICE,
            work,
        };
        let number = session.number;
        session.send_order(order, number);
    }
    let mut moved = Vec::new();
    while moved.len() < 8 {
        match session.reader.receive(SOON).unwrap() {
            Report::Alive => {}
            Report::Worked {
                what: WorkResult::Proven { moved: bytes, .. },
                ..
            } => moved.push(bytes),
            other => panic!("{other:?}"),
        }
    }
    moved.sort_unstable();
    assert_eq!(moved, [0, 0, 0, 0, 0, 0, 0, 2000]);
    session.proven(ALICE, Work::Check(part(ALICE, "many", 0)));
}

/// A port that leads to another one, and the bytes that came from there.
fn seen(port: u16) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let all = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&all);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut up, &mut down));
            let all = Arc::clone(&theirs);
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(n @ 1..) = server.read(&mut buffer) {
                    all.lock().unwrap().extend_from_slice(&buffer[..n]);
                    if client.write_all(&buffer[..n]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    (own, all)
}

/// One of both nodes is enough.
#[test]
fn a_site_that_wants_it_sends_no_content_in_clear() {
    let Some(daemon) = munge() else { return };
    let sealed: &[&str] = &["--transport", "sealed"];
    for (options, is_sealed) in [
        ([sealed, &[]], true),
        ([&[], sealed], true),
        ([&[], &[]], false),
    ] {
        let one = Node::start_with("n1", &daemon, options[0]);
        let two = Node::start_with("n2", &daemon, options[1]);
        let (mut first, mut second) = (one.begin(&daemon), two.begin(&daemon));
        let content = "what nobody on the network is to read ".repeat(5000);
        let source = one.outside("mesh/a", &content, ALICE, 0o600);
        let mesh = source.parent().unwrap();
        chown(mesh, Some(ALICE), Some(ALICE)).unwrap();
        let (proof, _) = first.proven(ALICE, fetch(ALICE, "mesh", mesh));
        let (port, came) = seen(first.port(ALICE));
        let work = Work::Fetch {
            store: String::new(),
            sealed: false,
            part: part(ALICE, "mesh", 0),
            from: Origin::Peer(WorkerAddress {
                node: "n1".into(),
                host: "127.0.0.1".into(),
                port,
            }),
            proof: Some(proof.clone()),
        };
        let bytes = content.len() as u64;
        assert_eq!(second.proven(ALICE, work), (proof, bytes));
        let came = came.lock().unwrap();
        assert!(came.len() as u64 > bytes);
        let word = b"nobody on the network";
        assert_eq!(!came.windows(word.len()).any(|w| w == word), is_sealed);
    }
}

/// By workers, which have the rights of users.
#[test]
fn a_node_that_is_to_erase_overwrites_what_it_removes() {
    let Some(daemon) = munge() else { return };
    for (options, erases) in [(&["--erase"][..], true), (&[], false)] {
        let node = Node::start_with("n1", &daemon, options);
        let mut session = node.begin(&daemon);
        let source = node.outside("mesh/a", "secret", ALICE, 0o400);
        let mesh = source.parent().unwrap();
        chown(mesh, Some(ALICE), Some(ALICE)).unwrap();
        session.proven(ALICE, fetch(ALICE, "mesh", mesh));
        session.done(ALICE, prepare(7, "x"));
        node.as_user(ALICE, "echo -n secret > store/u20001/j/7/w/x/made");
        let files = ["d/w/mesh/0/0/tree/a", "j/7/w/x/made"];
        let open = |file| fs::File::open(node.path("store/u20001").join(file)).unwrap();
        let held = files.map(open);
        let all = vec![
            StoreContent::Part(part(ALICE, "mesh", 0)),
            StoreContent::Job(7),
        ];
        session.done(ALICE, Work::Remove(all));
        for mut file in held {
            assert_eq!(file.metadata().unwrap().nlink(), 0);
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            let expected = if erases { "\0\0\0\0\0\0" } else { "secret" };
            assert_eq!(text, expected);
        }
    }
}

#[test]
fn parts_go_from_node_to_node_and_are_merged() {
    let Some(daemon) = munge() else { return };
    let (one, two) = (Node::start("n1", &daemon), Node::start("n2", &daemon));
    let (mut first, mut second) = (one.begin(&daemon), two.begin(&daemon));
    let mut parts = Vec::new();
    for (at, (node, session)) in [(&one, &mut first), (&two, &mut second)]
        .into_iter()
        .enumerate()
    {
        session.done(ALICE, prepare(7, "x"));
        let script = format!(
            "cd store/u20001/j/7/w/x; mkdir p0 p1; echo {at} > p0/a; echo {at} > p1/b; echo {at} > rest"
        );
        node.as_user(ALICE, &script);
        let slice = Slice {
            rule: tarn_types::pattern::ScatterRule::new("p{rank}").unwrap(),
            first: at as u32,
            end: at as u32 + 1,
            rest: at == 0,
        };
        let part = Part {
            part: at as u32,
            ..part(ALICE, "x", 1)
        };
        let work = Work::Publish {
            store: String::new(),
            sealed: false,
            job: 7,
            part: part.clone(),
            slice: Some(slice),
        };
        parts.push((part, session.proven(ALICE, work).0));
    }
    let from = WorkerAddress {
        node: "n2".into(),
        host: "127.0.0.1".into(),
        port: second.port(ALICE),
    };
    let (part, proof) = parts[1].clone();
    let work = Work::Fetch {
        store: String::new(),
        sealed: false,
        part,
        from: Origin::Peer(from.clone()),
        proof: Some(proof.clone()),
    };
    assert_eq!(first.proven(ALICE, work), (proof, 2));
    let view = Work::View {
        hashes: Vec::new(),
        store: String::new(),
        memory: None,
        job: 8,
        dataset: "x".into(),
        parts: parts.iter().map(|(part, _)| part.clone()).collect(),
    };
    first.done(ALICE, view);
    let read =
        |name: &str| fs::read_to_string(one.path("store/u20001/j/8/v/x").join(name)).unwrap();
    assert_eq!(
        (&*read("p0/a"), &*read("p1/b"), &*read("rest")),
        ("0\n", "1\n", "0\n")
    );
    let out = one.path("outside");
    chown(&out, Some(ALICE), Some(ALICE)).unwrap();
    let send = Work::Send {
        parts: vec![
            (parts[0].0.clone(), None, parts[0].1.clone()),
            (parts[1].0.clone(), Some(from), parts[1].1.clone()),
        ],
        dest: out.join("x"),
        owner: String::new(),
    };
    first.proven(ALICE, send);
    assert_eq!(fs::read_to_string(out.join("x/p1/b")).unwrap(), "1\n");
}

#[test]
fn what_a_node_holds_is_told_after_it_was_killed_and_half_done_work_is_gone() {
    let Some(daemon) = munge() else { return };
    let mut node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    session.done(ALICE, prepare(5, "x"));
    node.as_user(ALICE, "echo x > store/u20001/j/5/w/x/a");
    let (proof, _) = session.proven(ALICE, publish(ALICE, 5, "x", 1));
    node.as_user(
        ALICE,
        "mkdir store/u20001/d/w/x/1/.tarn-1.whole; echo y > store/u20001/d/w/x/1/.tarn-1.whole/y",
    );
    node.restart();
    let session = node.begin(&daemon);
    let part = Holding {
        store: String::new(),
        is_behind: false,
        held: StoreContent::Part(part(ALICE, "x", 1)),
        stored: proof.bytes,
        proof: Some(proof),
    };
    assert!(
        session.holds.contains(&(ALICE, part)),
        "{:?}",
        session.holds
    );
    assert!(
        session
            .holds
            .iter()
            .any(|(_, h)| h.held == StoreContent::Job(5))
    );
    assert!(!node.path("store/u20001/d/w/x/1/.tarn-1.whole").exists());
}

/// While a site is updated, its controller may be of another version than a node's tarnd.
#[test]
fn controllers_of_other_versions_are_understood_as_far_as_they_speak_a_common_one() {
    use serde_json::{Value, json};
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let source = node.outside("mesh/a", "one", ALICE, 0o644);
    let greeted = |greeting: Value| {
        let stream = std::net::TcpStream::connect(("127.0.0.1", node.port)).unwrap();
        let secrets = [9, 10].map(|byte| tarn_munge::SecretBytes::new([byte; 32]));
        let halves = tarn_munge::open(stream, "n1", 0, &secrets, &daemon.munge());
        let (mut reader, mut writer) = halves.unwrap();
        writer.send(&greeting).unwrap();
        let welcome: NodeWelcome = reader.receive(SOON).unwrap();
        (reader, writer, welcome)
    };
    // A controller without a version that is known here gets the known ones.
    let next = VERSION + 1;
    let (_, _, welcome) = greeted(json!({"oldest": next, "newest": next, "epoch": 1}));
    assert_eq!(welcome, NodeWelcome::Version(OLDEST, VERSION));
    // Unknown fields of a newer controller are passed over; fields that an older one lacks have their defaults.
    let newer = json!({"oldest": OLDEST, "newest": next, "epoch": 1, "since": "tomorrow"});
    let older = json!({"oldest": 0, "newest": VERSION, "epoch": 1});
    for (at, (greeting, more)) in [(newer, true), (older, false)].into_iter().enumerate() {
        let (mut reader, mut writer, welcome) = greeted(greeting);
        let NodeWelcome::Ready { version, .. } = welcome else {
            panic!("{welcome:?}");
        };
        assert_eq!(version, VERSION);
        let part = part(ALICE, "mesh", at as u32);
        let mut fetch = json!({
            "part": part, "from": {"Outside": source.parent()}, "proof": null,
        });
        if more {
            fetch["hurry"] = json!({"until": "tomorrow"});
        }
        let work = json!({"Fetch": fetch});
        let order = json!({"Do": {"user": ALICE, "group": ALICE, "work": work}});
        writer.send(&json!({"number": 1, "order": order})).unwrap();
        let proven = loop {
            match reader.receive::<Report>(SOON).unwrap() {
                Report::Alive => {}
                Report::Worked { what, .. } => break what,
                other => panic!("{other:?}"),
            }
        };
        assert!(
            matches!(proven, WorkResult::Proven { moved: 3, .. }),
            "{proven:?}"
        );
    }
}

#[test]
fn a_job_is_let_in_by_a_file_of_roots_and_forgotten() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let mount = Mount {
        store: String::new(),
        in_memory: false,
        partition: false,
        spread: None,
        checkpoints: None,
        dataset: "mesh".into(),
        owner: Owner::User(ALICE),
        path: "u20001/d/w/mesh/0/0/tree".into(),
        writable: false,
    };
    let admit = |mounts| NodeOrder::Admit {
        job: 17,
        user: ALICE,
        mounts,
    };
    assert!(format!("{:?}", session.order(admit(vec![mount.clone()]))).contains("Done"));
    let path = node.path("run/jobs/17");
    let text = fs::read_to_string(&path).unwrap();
    let root = node.path("store");
    let expected = format!(
        "tarn-job 1\nuser\t{ALICE}\nroot\t{}\nmount\tro\tmesh\tu{ALICE}\tu20001/d/w/mesh/0/0/tree\n",
        root.display()
    );
    assert_eq!(text, expected);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    for (dataset, path) in [
        ("a/b", "u1/x"),
        ("x", "../x"),
        ("x", "/etc"),
        ("x", "a\tb"),
        ("x\n", "y"),
    ] {
        let bad = Mount {
            dataset: dataset.into(),
            path: path.into(),
            ..mount.clone()
        };
        let report = format!("{:?}", session.order(admit(vec![bad])));
        assert!(report.contains("Invalid"), "{report}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    for _ in 0..2 {
        assert!(format!("{:?}", session.order(NodeOrder::Dismiss(17))).contains("Done"));
    }
    assert!(!path.exists());
}

#[test]
fn a_worker_that_is_killed_fails_its_work_and_the_next_order_begins_another() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    session.done(ALICE, prepare(5, "x"));
    let before = session.port(ALICE);
    node.kill_workers();
    let until = Instant::now() + SOON;
    loop {
        match session.work(ALICE, prepare(6, "x")) {
            WorkResult::Done => break,
            WorkResult::Failed(why) => assert_eq!(why.code, Code::Io, "{}", why.text),
            other => panic!("{other:?}"),
        }
        assert!(Instant::now() < until, "no other worker is begun");
    }
    assert_ne!(session.port(ALICE), before);
}

/// Transfers leave a part of a node's network and of the store outside to other jobs.
#[test]
fn what_comes_and_goes_keeps_to_the_nodes_rates() {
    let Some(daemon) = munge() else { return };
    let node = Node::start_with("n1", &daemon, &["--external-rate", "8 MiB/s"]);
    let far = Node::start_with("n2", &daemon, &["--peer-rate", "8 MiB/s"]);
    let (mut session, mut other) = (node.begin(&daemon), far.begin(&daemon));
    let size = 8_u64 << 20;
    let source = node.outside("mesh/a", &"x".repeat(size as usize), ALICE, 0o600);
    let mesh = source.parent().unwrap();
    chown(mesh, Some(ALICE), Some(ALICE)).unwrap();
    // A second each, but for the bytes that may come at once.
    let takes = |work: &mut dyn FnMut() -> u64| {
        let began = Instant::now();
        assert_eq!(work(), size);
        let took = began.elapsed();
        assert!(took.as_millis() >= 500, "{took:?}");
    };
    let mut proof = None;
    takes(&mut || {
        let (there, moved) = session.proven(ALICE, fetch(ALICE, "mesh", mesh));
        proof = Some(there);
        moved
    });
    let proof = proof.unwrap();
    let out = node.path("outside/out");
    fs::create_dir(&out).unwrap();
    chown(&out, Some(ALICE), Some(ALICE)).unwrap();
    takes(&mut || {
        let parts = vec![(part(ALICE, "mesh", 0), None, proof.clone())];
        let dest = out.join("result");
        session
            .proven(
                ALICE,
                Work::Send {
                    parts,
                    dest,
                    owner: String::new(),
                },
            )
            .1
    });
    let from = WorkerAddress {
        node: "n1".into(),
        host: "127.0.0.1".into(),
        port: session.port(ALICE),
    };
    takes(&mut || {
        let work = Work::Fetch {
            store: String::new(),
            sealed: false,
            part: part(ALICE, "mesh", 0),
            from: Origin::Peer(from.clone()),
            proof: Some(proof.clone()),
        };
        other.proven(ALICE, work).1
    });
}

#[test]
fn a_jobs_partitions_are_its_users_own_and_go_with_its_folders() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let export = |partition: &str, size, unit| Work::Export {
        job: 5,
        partition: partition.into(),
        size,
        unit,
        store: String::new(),
    };
    session.done(ALICE, export("field", 1 << 20, 0));
    session.done(ALICE, export("log", 40_000, 8192));
    let folder = node.path("store/u20001/j/5/p");
    let about = |name: &str| fs::metadata(folder.join(format!("{name}/{name}.partition"))).unwrap();
    for name in ["field", "log"] {
        assert_eq!(
            (about(name).uid(), about(name).mode() & 0o777),
            (ALICE, 0o600)
        );
    }
    assert_eq!(
        (about("field").len(), about("log").len()),
        (3 << 20, (2 << 20) + 40_960)
    );
    let list = tarn_partitions::Partition::list(&folder.join("log")).unwrap();
    assert_eq!(
        (list[0].unit, list[0].owner, list[0].grants.len()),
        (8192, ALICE, 0)
    );
    // Requested once more, it stays as it is.
    let before = about("field").ino();
    session.done(ALICE, export("field", 1 << 20, 0));
    assert_eq!(about("field").ino(), before);
    for (name, size, unit) in [("../x", 1, 0), ("x", 0, 0), ("x", 1, 3000)] {
        let (code, text) = session.refused(ALICE, export(name, size, unit));
        assert_eq!(code, Code::Invalid, "{text}");
    }
    assert!(!folder.join("x").exists());
    session.done(ALICE, Work::Remove(vec![StoreContent::Job(5)]));
    assert!(!folder.exists());
    let WorkResult::Inventory { holds: left, .. } =
        session.work(ALICE, Work::Inventory(Vec::new()))
    else {
        panic!("no inventory");
    };
    assert!(left.is_empty(), "{left:?}");
}

/// The socket of a job's pieces answers its user alone, and goes with them; the exporting node keeps its address.
#[test]
fn pieces_of_a_job_are_exported_to_its_user_alone_until_it_has_left() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let share = || Work::Share {
        job: 5,
        partitions: vec![("field".into(), String::new())],
    };
    // Before there is a piece.
    assert_eq!(session.refused(ALICE, share()).0, Code::NotFound);
    let export = Work::Export {
        job: 5,
        partition: "field".into(),
        size: 1 << 20,
        unit: 0,
        store: String::new(),
    };
    session.done(ALICE, export);
    let port = session.port(ALICE);
    for _ in 0..2 {
        assert_eq!(session.work(ALICE, share()), WorkResult::Serving { port });
    }
    let join = || Work::Join {
        job: 5,
        peers: Vec::new(),
    };
    session.done(ALICE, join());
    let socket = node.path("store/u20001/j/5/p/field/tarnd");
    let refused = tarn_client::Client::connect(&socket, None).unwrap_err();
    assert_eq!(refused.code, Code::Denied, "{refused}");
    assert_eq!(fs::metadata(&socket).unwrap().uid(), ALICE);
    session.done(ALICE, Work::Remove(vec![StoreContent::Job(5)]));
    assert!(!socket.exists());
    assert_eq!(session.refused(ALICE, join()).0, Code::Busy);
    assert_eq!(session.refused(ALICE, share()).0, Code::NotFound);
}

#[test]
fn a_part_that_was_changed_on_its_node_is_read_again_before_a_job_uses_it() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let source = node.outside("mesh/a", "right", ALICE, 0o644);
    session.proven(ALICE, fetch(ALICE, "mesh", source.parent().unwrap()));
    let view = |job| Work::View {
        hashes: Vec::new(),
        store: String::new(),
        memory: None,
        job,
        dataset: "mesh".into(),
        parts: vec![part(ALICE, "mesh", 0)],
    };
    let begin = |job| Work::Prepare {
        hashes: Vec::new(),
        store: String::new(),
        memory: None,
        job,
        dataset: "mesh".into(),
        parts: vec![part(ALICE, "mesh", 0)],
    };
    session.done(ALICE, view(1));
    // Only its time is another.
    let file = "store/u20001/d/w/mesh/0/0/tree/a";
    node.as_user(ALICE, &format!("touch -d 2001-01-01 {file}"));
    session.done(ALICE, view(2));
    session.done(ALICE, begin(2));
    // Of the same size, with other bytes.
    node.as_user(ALICE, &format!("chmod u+w {file}; printf wrong > {file}"));
    for work in [view(3), begin(3)] {
        let (code, text) = session.refused(ALICE, work);
        assert_eq!(code, Code::Corrupt, "{text}");
        assert!(text.contains("was changed on this node"), "{text}");
    }
    node.as_user(ALICE, &format!("printf right > {file}"));
    session.done(ALICE, view(3));
}
