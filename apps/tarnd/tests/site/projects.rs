//! A project's data on a node.

use crate::node::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;
use tarn_proto::local::Code;
use tarn_proto::site::*;

/// No group of the machine has this number.
const PROJECT: Gid = 20_777;

fn shared(version: u32) -> Part {
    Part {
        owner: Owner::Project(PROJECT),
        workflow: Owner::NO_WORKFLOW.into(),
        dataset: "forcing".into(),
        version,
        part: 0,
    }
}

/// As a member's job has it done: users that the node does not know are in the given group.
fn order(session: &mut Session, user: Uid, group: Gid, work: Work) -> WorkResult {
    let work = Box::new(work);
    match session.order(NodeOrder::Do { user, group, work }) {
        Report::Worked { what, .. } => what,
        other => panic!("{other:?}"),
    }
}

fn proven(what: WorkResult) -> Proof {
    match what {
        WorkResult::Proven { proof, .. } => proof,
        other => panic!("{other:?}"),
    }
}

fn refused(what: WorkResult) -> Code {
    match what {
        WorkResult::Failed(why) => why.code,
        other => panic!("it was to be refused: {other:?}"),
    }
}

/// A member makes a version on a node.
fn make(node: &Node, session: &mut Session, user: Uid, version: u32) -> Proof {
    let job = 100 + version;
    let made = order(session, user, PROJECT, prepare(job, "forcing"));
    assert_eq!(made, WorkResult::Done);
    let script = format!(
        "cd store/u{user}/j/{job}/w/forcing; umask 077; mkdir deep; echo {user} > deep/a; ln -s a deep/link"
    );
    node.as_user(user, &script);
    let publish = Work::Publish {
        store: String::new(),
        sealed: false,
        job,
        part: shared(version),
        slice: None,
    };
    proven(order(session, user, PROJECT, publish))
}

#[test]
fn members_make_versions_beside_each_others_and_the_group_reads_them() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    make(&node, &mut session, ALICE, 1);
    make(&node, &mut session, BOB, 2);
    let top = node.path(&format!("store/p{PROJECT}"));
    for (folder, mode) in [("", 0o2750), ("d", 0o2750), ("d/named", 0o2770)] {
        let about = fs::metadata(top.join(folder)).unwrap();
        let is = (about.uid(), about.gid(), about.mode() & 0o7777);
        assert_eq!(is, (0, PROJECT, mode), "{folder}");
    }
    for (user, version) in [(ALICE, 1), (BOB, 2)] {
        let tree = top.join(format!("d/named/forcing/{version}/0/tree"));
        for (path, mode) in [("", 0o755), ("deep", 0o750), ("deep/a", 0o640)] {
            let about = fs::symlink_metadata(tree.join(path)).unwrap();
            let is = (about.uid(), about.gid(), about.permissions().mode() & 0o777);
            assert_eq!(is, (user, PROJECT, mode), "{path}");
        }
        // It is the published part, with the modes that it has.
        let result = order(&mut session, 0, 0, Work::Check(shared(version)));
        assert!(matches!(result, WorkResult::Proven { .. }), "{result:?}");
    }
    // The node knows whose worker is to remove each part, and that it is gone already.
    for version in [1, 2, 3] {
        let remove = Work::Remove(vec![StoreContent::Part(shared(version))]);
        assert_eq!(order(&mut session, 0, 0, remove), WorkResult::Done);
    }
    assert!(!top.join("d/named/forcing/1").exists());
    assert!(top.join("d/named").exists(), "root's folders stay");
}

#[test]
fn a_source_that_becomes_a_projects_is_read_by_the_group_and_goes_from_node_to_node() {
    let Some(daemon) = munge() else { return };
    let (one, two) = (Node::start("n1", &daemon), Node::start("n2", &daemon));
    let (mut first, mut second) = (one.begin(&daemon), two.begin(&daemon));
    let source = one.outside("era5/a", "weather", ALICE, 0o600);
    let folder = source.parent().unwrap();
    chown(folder, Some(ALICE), Some(ALICE)).unwrap();
    let fetch = |from| Work::Fetch {
        store: String::new(),
        sealed: false,
        part: shared(0),
        from,
        proof: None,
    };
    let proof = proven(order(
        &mut first,
        ALICE,
        PROJECT,
        fetch(Origin::Outside(folder.to_owned())),
    ));
    let file = format!("store/p{PROJECT}/d/named/forcing/0/0/tree/a");
    assert_eq!(fs::metadata(one.path(&file)).unwrap().mode() & 0o777, 0o640);
    // Bob's worker takes it from Bob's worker there.
    let served = first.order(NodeOrder::Serve {
        user: BOB,
        group: PROJECT,
    });
    let Report::Serving { port, .. } = served else {
        panic!("{served:?}");
    };
    let peer = WorkerAddress {
        node: "n1".into(),
        host: "127.0.0.1".into(),
        port,
    };
    let near = Work::Fetch {
        store: String::new(),
        sealed: false,
        part: shared(0),
        from: Origin::Peer(peer),
        proof: Some(proof.clone()),
    };
    assert_eq!(proven(order(&mut second, BOB, PROJECT, near)), proof);
    let about = fs::metadata(two.path(&file)).unwrap();
    assert_eq!(
        (about.uid(), about.gid(), about.mode() & 0o777),
        (BOB, PROJECT, 0o640)
    );
    let result = order(&mut second, 0, 0, Work::Check(shared(0)));
    assert!(matches!(result, WorkResult::Proven { .. }), "{result:?}");
}

const MEMORY: Option<u64> = Some(16 << 20);

/// A member makes an encrypted version on a node.
fn make_sealed(node: &Node, session: &mut Session, user: Uid, version: u32) -> Proof {
    let job = 100 + version;
    let write = Work::Prepare {
        hashes: Vec::new(),
        store: String::new(),
        job,
        dataset: "forcing".into(),
        parts: Vec::new(),
        memory: MEMORY,
    };
    assert_eq!(order(session, user, PROJECT, write), WorkResult::Done);
    let made = node.path(&format!("run/clear/all/{job}/u{user}/w/forcing/a"));
    fs::write(&made, format!("{user} knows")).unwrap();
    chown(&made, Some(user), Some(user)).unwrap();
    fs::set_permissions(&made, fs::Permissions::from_mode(0o600)).unwrap();
    let publish = Work::Publish {
        store: String::new(),
        sealed: true,
        job,
        part: shared(version),
        slice: None,
    };
    proven(order(session, user, PROJECT, publish))
}

/// A member's view of a version in a job's memory.
fn opened(node: &Node, session: &mut Session, user: Uid, version: u32) -> Result<String, Code> {
    let job = 200 + version;
    let view = Work::View {
        hashes: Vec::new(),
        store: String::new(),
        job,
        dataset: "forcing".into(),
        parts: vec![shared(version)],
        memory: MEMORY,
    };
    let what = order(session, user, PROJECT, view);
    let seen = node.path(&format!("run/clear/all/{job}/u{user}/v/forcing/a"));
    let text = fs::read_to_string(seen);
    session.order(NodeOrder::Dismiss(job));
    match what {
        WorkResult::Done => Ok(text.unwrap()),
        other => Err(refused(other)),
    }
}

#[test]
fn what_is_encrypted_is_opened_by_each_member_with_the_projects_keys() {
    let Some(daemon) = munge() else { return };
    tarn_sys::namespace::own_mounts().unwrap();
    let (one, two) = (Node::start("n1", &daemon), Node::start("n2", &daemon));
    let (mut first, mut second) = (one.begin(&daemon), two.begin(&daemon));
    let proof = make_sealed(&one, &mut first, ALICE, 1);
    assert!(proof.sealed);
    let alices = format!("{ALICE} knows");
    assert_eq!(opened(&one, &mut first, BOB, 1), Ok(alices.clone()));
    // It goes to another node as it is stored, by any of them who runs there.
    let fetch = Work::Fetch {
        store: String::new(),
        sealed: true,
        part: shared(1),
        from: Origin::Peer(WorkerAddress {
            node: "n1".into(),
            host: "127.0.0.1".into(),
            port: first.port(BOB),
        }),
        proof: Some(proof.clone()),
    };
    assert_eq!(proven(order(&mut second, BOB, PROJECT, fetch)), proof);
    assert_eq!(opened(&two, &mut second, ALICE, 1), Ok(alices.clone()));
    for node in [&one, &two] {
        let store = node.path("store");
        let found = std::process::Command::new("grep")
            .args(["-rqF", "knows"])
            .arg(store)
            .status();
        assert!(!found.unwrap().success());
    }
    // A user who is in the group on no node opens nothing, not even with a copy of all that is stored there.
    assert_eq!(
        refused(order(
            &mut first,
            BOB,
            BOB,
            Work::View {
                hashes: Vec::new(),
                store: String::new(),
                job: 9,
                dataset: "x".into(),
                parts: vec![shared(1)],
                memory: MEMORY,
            },
        )),
        Code::Denied
    );
}

/// Each member's worker wraps the keys of its user's parts: another could not.
#[test]
fn the_keys_of_all_members_are_wrapped_anew_when_the_secret_is_rotated() {
    let Some(daemon) = munge() else { return };
    tarn_sys::namespace::own_mounts().unwrap();
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    make_sealed(&node, &mut session, ALICE, 1);
    make_sealed(&node, &mut session, BOB, 2);
    let key = |version| node.path(&format!("store/p{PROJECT}/d/named/forcing/{version}/0/key"));
    let old = [1, 2].map(|version| fs::read(key(version)).unwrap());
    // One of them cannot be: that is reported, and the other one is.
    let folder = key(2).parent().unwrap().to_owned();
    let mode = |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o550);
    let session = node.begin_with(&[9, 11, 10], &daemon);
    assert!(session.is_behind);
    mode(0o755);
    assert_ne!(fs::read(key(1)).unwrap(), old[0]);
    assert_eq!(fs::read(key(2)).unwrap(), old[1]);
    let session = node.begin_with(&[9, 11, 10], &daemon);
    assert!(!session.is_behind);
    assert_ne!(fs::read(key(2)).unwrap(), old[1]);
    // So the older one can be forgotten.
    let mut session = node.begin_with(&[9, 11], &daemon);
    for (by, version) in [(BOB, 1), (ALICE, 2)] {
        let text = format!("{} knows", if by == BOB { ALICE } else { BOB });
        assert_eq!(opened(&node, &mut session, by, version), Ok(text));
    }
}

#[test]
fn attack_who_is_not_in_the_group_has_nothing_to_do_with_what_is_its() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    make(&node, &mut session, ALICE, 1);
    let works = [
        Work::Publish {
            store: String::new(),
            sealed: false,
            job: 5,
            part: shared(2),
            slice: None,
        },
        Work::Remove(vec![StoreContent::Part(shared(1))]),
        Work::Check(shared(1)),
        Work::Fetch {
            store: String::new(),
            sealed: false,
            part: shared(3),
            from: Origin::Outside("/etc/hostname".into()),
            proof: None,
        },
        Work::View {
            hashes: Vec::new(),
            store: String::new(),
            memory: None,
            job: 5,
            dataset: "x".into(),
            parts: vec![shared(1)],
        },
        Work::Prepare {
            hashes: Vec::new(),
            store: String::new(),
            memory: None,
            job: 5,
            dataset: "x".into(),
            parts: vec![shared(1)],
        },
    ];
    for work in works {
        let what = format!("{work:?}");
        let result = order(&mut session, BOB, BOB, work);
        assert_eq!(refused(result), Code::Denied, "{what}");
    }
    for script in [
        format!("! ls store/p{PROJECT}"),
        format!("! cat store/p{PROJECT}/d/named/forcing/1/0/tree/deep/a"),
        format!("! rm -r store/p{PROJECT}/d"),
    ] {
        node.as_user(BOB, &format!("{script} 2> /dev/null"));
    }
    // Root's group is no project.
    let zero = Part {
        owner: Owner::Project(0),
        ..shared(1)
    };
    let result = order(&mut session, BOB, 0, Work::Check(zero));
    assert_eq!(refused(result), Code::Denied);
    assert!(!node.path("store/p0").exists());
    // Nobody is chosen for a user's own part.
    let alices = Work::Remove(vec![StoreContent::Part(part(ALICE, "x", 1))]);
    assert_eq!(refused(order(&mut session, 0, 0, alices)), Code::Denied);
    node.audited("is not in that group");
}

#[test]
fn attack_a_member_leads_nobody_astray_by_links() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    make(&node, &mut session, ALICE, 1);
    // A member can put nothing in the place of folders that root makes.
    let top = node.path(&format!("store/p{PROJECT}"));
    for script in [
        "mv d e",
        "mv d/named d/e",
        "rmdir d",
        "ln -s /etc d/etc",
        "touch x",
    ] {
        let (user, group) = (ALICE.to_string(), PROJECT.to_string());
        let tried = std::process::Command::new("setpriv")
            .args(["--reuid", &user, "--regid", &group, "--clear-groups"])
            .args(["sh", "-c", script])
            .current_dir(&top)
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(!tried.success(), "{script}");
    }
    let precious = node.outside("precious", "x", BOB, 0o600);
    // The part's folder is a link to another user's folder: its removal removes no more than the link's folder allows.
    let part = format!("store/p{PROJECT}/d/named/forcing/1/0");
    let outside = precious.parent().unwrap().display().to_string();
    node.as_user(
        ALICE,
        &format!("mv store/p{PROJECT}/d/named/forcing/1/0/tree store/u{ALICE}/t || true"),
    );
    let _ = fs::remove_dir_all(node.path(&part));
    std::os::unix::fs::symlink(&outside, node.path(&part)).unwrap();
    let remove = Work::Remove(vec![StoreContent::Part(shared(1))]);
    let what = order(&mut session, 0, 0, remove);
    assert!(matches!(what, WorkResult::Failed(_)), "{what:?}");
    assert!(Path::new(&precious).exists());
}

/// A project's members read its source's content at once: no link in it leads to a private file of the member who fetches it.
#[test]
fn attack_a_link_in_a_projects_source_publishes_nothing_that_lies_outside_of_it() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let private = node.outside("home/key", "alice's", ALICE, 0o600);
    let given = node.outside("given/a", "weather", BOB, 0o644);
    let folder = given.parent().unwrap();
    let fetch = |from: &Path| Work::Fetch {
        store: String::new(),
        sealed: false,
        part: shared(0),
        from: Origin::Outside(from.to_owned()),
        proof: None,
    };
    symlink(&private, folder.join("b")).unwrap();
    let what = order(&mut session, ALICE, PROJECT, fetch(folder));
    let WorkResult::Failed(why) = what else {
        panic!("{what:?}");
    };
    assert!(why.text.contains("project's source"), "{}", why.text);
    fs::remove_file(folder.join("b")).unwrap();
    // Nor may the source be one, whoever has made it: Bob could turn it to a private folder.
    let (bobs, own) = (node.path("outside/current"), node.path("outside/own"));
    for (link, target) in [(&bobs, private.parent().unwrap()), (&own, folder)] {
        symlink(target, link).unwrap();
    }
    lchown(&bobs, Some(BOB), Some(BOB)).unwrap();
    for link in [&bobs, &own] {
        let what = order(&mut session, ALICE, PROJECT, fetch(link));
        let WorkResult::Failed(why) = what else {
            panic!("{what:?}");
        };
        assert_eq!(why.code, Code::Denied);
        assert!(why.text.contains("is a symbolic link"), "{}", why.text);
    }
    // A link on the way to it is no part of it, but not Bob's to turn.
    let what = order(&mut session, ALICE, PROJECT, fetch(&bobs.join("key")));
    assert_eq!(refused(what), Code::Denied);
    proven(order(&mut session, ALICE, PROJECT, fetch(folder)));
    let file = format!("store/p{PROJECT}/d/named/forcing/0/0/tree/a");
    assert_eq!(fs::read_to_string(node.path(&file)).unwrap(), "weather");
}

/// A group that a user is not in is not given to the user's worker, where the node knows the user.
#[test]
fn attack_a_worker_has_no_group_that_its_user_is_not_in() {
    let Some(daemon) = munge() else { return };
    let mut known = fs::read_to_string("/etc/passwd").unwrap();
    known.retain(|c| c != '\r');
    let nobody = known.lines().find_map(|line| {
        let words: Vec<&str> = line.split(':').collect();
        let uid: Uid = words.get(2)?.parse().ok()?;
        let gid: Gid = words.get(3)?.parse().ok()?;
        (uid >= 1000 && gid != PROJECT).then_some((uid, gid))
    });
    let Some((user, own)) = nobody else {
        println!("SKIPPED: this machine knows no user with a number from 1000 on");
        return;
    };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let made = order(&mut session, user, PROJECT, prepare(5, "x"));
    assert_eq!(made, WorkResult::Done);
    let about = fs::metadata(node.path(&format!("store/u{user}/j/5/w/x"))).unwrap();
    assert_eq!((about.uid(), about.gid()), (user, own));
    let result = order(&mut session, user, PROJECT, Work::Check(shared(1)));
    assert_eq!(refused(result), Code::Denied);
}
