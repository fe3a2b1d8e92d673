//! Users who hold up, crowd out or fill a node: others' jobs do not notice.

use crate::munged::Daemon;
use crate::node::*;
use crate::quiet::{Miss, Quiet, attempted};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Gid, Mode, OFlags, Uid, fchown, mkdirat, openat};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};
use tarn_proto::local::Code;
use tarn_proto::site::{
    Holding, NodeOrder, Owner, Report, SlurmJobId, StoreContent, Work, WorkResult, is_name,
};

/// The longest time until a worker that does not answer was given up, and another one is started.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// The worker of a user.
fn worker_of(node: &Node, user: u32) -> Pid {
    let is_theirs = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("Uid:"));
        line.is_some_and(|line| line.contains(&format!("\t{user}\t")))
    };
    let found = node.workers().into_iter().find(is_theirs);
    Pid::from_raw(found.expect("a worker") as i32).unwrap()
}

fn signal(worker: Pid, signal: Signal) {
    kill_process(worker, signal).unwrap();
}

/// Orders something, and does not wait for it.
pub(crate) fn send(session: &mut Session, user: u32, work: Work) -> u64 {
    session.number += 1;
    let number = session.number;
    let work = Box::new(work);
    let order = NodeOrder::Do {
        user,
        group: user,
        work,
    };
    session.send_order(order, number);
    number
}

/// The next order that something has come of.
pub(crate) fn next(session: &mut Session) -> (u64, WorkResult) {
    loop {
        if let Report::Worked { number, what } = session.reader.receive(SOON).unwrap() {
            return (number, what);
        }
    }
}

/// The result of an order; results of others before it are skipped.
fn result_of(session: &mut Session, wanted: u64) -> WorkResult {
    loop {
        let (number, what) = next(session);
        if number == wanted {
            return what;
        }
    }
}

/// Alice's orders are done again in the end.
fn alice_is_served_again(session: &mut Session, job: SlurmJobId) {
    let until = Instant::now() + GIVEN_UP;
    loop {
        let number = send(session, ALICE, prepare(job, "x"));
        match result_of(session, number) {
            WorkResult::Done => return,
            what => assert!(Instant::now() < until, "{what:?}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A user's program that runs in the background.
struct Program(Child);

impl Program {
    fn of(node: &Node, user: u32, words: &[&str]) -> Self {
        let id = user.to_string();
        let begun = Process::new("setpriv")
            .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
            .args(words)
            .current_dir(node.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(begun.unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A part of a user's, published.
fn publish_one(node: &Node, session: &mut Session, user: u32) {
    session.done(user, prepare(5, "x"));
    node.as_user(user, &format!("echo x > store/u{user}/j/5/w/x/a"));
    session.proven(user, publish(user, 5, "x", 1));
}

fn has(session: &Session, user: u32) -> bool {
    let wanted = StoreContent::Part(part(user, "x", 1));
    let mut holds = session.holds.iter();
    holds.any(|(who, h)| *who == user && h.held == wanted && h.proof.is_some())
}

/// So many folders, one in the other, and a file at the bottom: no path is as long.
fn dig(top: &Path, depth: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at: OwnedFd = openat(CWD, top, flags, Mode::empty()).unwrap();
    let (user, group) = (Uid::from_raw(ALICE), Gid::from_raw(ALICE));
    for _ in 0..depth {
        mkdirat(&at, "d", Mode::from_raw_mode(0o777)).unwrap();
        at = openat(&at, "d", flags, Mode::empty()).unwrap();
        fchown(&at, Some(user), Some(group)).unwrap();
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    openat(&at, "f", flags, Mode::RUSR).unwrap();
}

#[test]
fn attack_a_worker_that_its_user_stops_holds_up_that_user_alone() {
    attempted(a_worker_that_its_user_stops_holds_up_that_user_alone);
}

fn a_worker_that_its_user_stops_holds_up_that_user_alone(daemon: &Daemon) -> Result<(), Miss> {
    let mut node = Node::start("n1", daemon);
    let mut session = node.begin(daemon);
    publish_one(&node, &mut session, ALICE);
    publish_one(&node, &mut session, BOB);
    let mut quiet = Quiet::beside(&mut session, daemon);
    let stopped = worker_of(&node, ALICE);
    signal(stopped, Signal::STOP);
    // More than the socket between them holds.
    let many: Vec<u64> = (0..2000)
        .map(|n| send(&mut session, ALICE, prepare(n + 100, &"y".repeat(60))))
        .collect();
    quiet.bob_is_served(&mut session)?;
    let WorkResult::Failed(why) = result_of(&mut session, many[0]) else {
        panic!("a stopped worker has done something");
    };
    assert!(why.text.contains("does not answer"), "{why:?}");
    quiet.bob_is_served(&mut session)?;
    alice_is_served_again(&mut session, 8);
    node.audited("does not answer");

    // One that is stopped when tarnd is killed is no worker of the next tarnd's, and does not live on.
    let stopped = worker_of(&node, ALICE);
    signal(stopped, Signal::STOP);
    drop(session);
    node.restart();
    let mut session = node.begin(daemon);
    assert!(has(&session, BOB) && !session.partial.contains(&Owner::User(BOB)));
    quiet.bob_is_served(&mut session)?;
    alice_is_served_again(&mut session, 9);
    assert_ne!(worker_of(&node, ALICE), stopped);
    Ok(())
}

#[test]
fn attack_a_locked_folder_holds_up_nobody() {
    attempted(a_locked_folder_holds_up_nobody);
}

fn a_locked_folder_holds_up_nobody(daemon: &Daemon) -> Result<(), Miss> {
    let node = Node::start("n1", daemon);
    let mut session = node.begin(daemon);
    publish_one(&node, &mut session, ALICE);
    let mut quiet = Quiet::beside(&mut session, daemon);
    let _lock = Program::of(
        &node,
        ALICE,
        &[
            "flock",
            "-F",
            "-x",
            "store/u20001",
            "sh",
            "-c",
            "touch store/u20001/locked; exec sleep 600",
        ],
    );
    let until = Instant::now() + SOON;
    while !node.path("store/u20001/locked").exists() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(worker_of(&node, ALICE), Signal::KILL);
    quiet.bob_is_served(&mut session)?;
    alice_is_served_again(&mut session, 6);
    quiet.bob_is_served(&mut session)?;
    Ok(())
}

#[test]
fn attack_what_a_user_puts_beside_a_part_is_neither_waited_for_nor_followed() {
    attempted(what_a_user_puts_beside_a_part_is_neither_waited_for_nor_followed);
}

fn what_a_user_puts_beside_a_part_is_neither_waited_for_nor_followed(
    daemon: &Daemon,
) -> Result<(), Miss> {
    let mut node = Node::start("n1", daemon);
    let mut session = node.begin(daemon);
    publish_one(&node, &mut session, ALICE);
    publish_one(&node, &mut session, BOB);
    let mut quiet = Quiet::beside(&mut session, daemon);
    let beside = "store/u20001/d/w/x/1/0";
    for planted in [
        "mkfifo {}/file {}/source {}/key",
        "truncate -s 300M store/u20001/big; ln -s ../../../../../big {}/file",
        "cp --sparse=always store/u20001/big {}/file; cp --sparse=always store/u20001/big {}/source",
        "rm {}/manifest; mkfifo {}/manifest",
        "rm {}/manifest; ln -s /dev/zero {}/manifest",
    ] {
        let script = format!("rm -f {{}}/file {{}}/source {{}}/key; {planted}");
        node.as_user(ALICE, &script.replace("{}", beside));
        drop(session);
        node.restart();
        session = quiet.begins(&node)?;
        quiet.bob_is_served(&mut session)?;
        assert!(
            session.partial.is_empty(),
            "{planted}: {:?}",
            session.partial
        );
        assert!(has(&session, BOB));
        let held = StoreContent::Part(part(ALICE, "x", 1));
        let found = session.holds.iter().find(|(_, h)| h.held == held);
        let proof = found.and_then(|(_, h)| h.proof.clone());
        let file = proof.and_then(|proof| proof.file);
        assert_eq!(file, None, "{planted}");
        let worker = worker_of(&node, ALICE).as_raw_nonzero();
        let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        let peak = status
            .lines()
            .find_map(|l| l.strip_prefix("VmHWM:"))
            .unwrap();
        let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(peak < 150 << 10, "{planted}: {peak} KiB");
    }
    Ok(())
}

#[test]
fn attack_who_has_very_much_is_cut_short_and_nobody_else() {
    attempted(who_has_very_much_is_cut_short_and_nobody_else);
}

fn who_has_very_much_is_cut_short_and_nobody_else(daemon: &Daemon) -> Result<(), Miss> {
    let mut node = Node::start("n1", daemon);
    let mut session = node.begin(daemon);
    publish_one(&node, &mut session, ALICE);
    publish_one(&node, &mut session, BOB);
    let mut quiet = Quiet::beside(&mut session, daemon);
    // Folders of the right shape, in names of all kinds, for which the 4 MiB that are reported of one user do not suffice.
    let script = "w=$(printf '\\001%.0s' $(seq 255)); l=$(printf 'a%.0s' $(seq 60)); n=$(printf 'a\\nb'); \
        cd store/u20001/d; mkdir -p \"$w/$w/1\" \"$n/x/1/0\" $l/$l/1; \
        (cd \"$w/$w/1\"; seq 7000 | xargs mkdir); cd $l/$l/1; seq 9000 | xargs mkdir";
    node.as_user(ALICE, script);
    // A node looks at its data when a session begins.
    quiet.bob_is_served(&mut session)?;
    drop(session);
    node.restart();
    let mut session = quiet.begins(&node)?;
    quiet.bob_is_served(&mut session)?;
    assert_eq!(session.partial, [Owner::User(ALICE)]);
    assert!(has(&session, BOB));
    let of_alice: Vec<&Holding> = session
        .holds
        .iter()
        .filter(|(user, _)| *user == ALICE)
        .map(|(_, holding)| holding)
        .collect();
    assert!(of_alice.iter().map(|h| h.weight()).sum::<usize>() <= 4 << 20);
    assert!(of_alice.len() > 1000);
    // A folder without the name of a dataset is none.
    let parts = of_alice.iter().filter_map(|h| h.held.part());
    assert!(parts.clone().count() > 1000);
    for part in parts {
        assert!(
            is_name(&part.workflow) && is_name(&part.dataset),
            "{part:?}"
        );
    }
    node.audited("has more here than is reported for one owner");
    Ok(())
}

#[test]
fn attack_silent_strangers_do_not_keep_the_controller_out() {
    attempted(silent_strangers_do_not_keep_the_controller_out);
}

fn silent_strangers_do_not_keep_the_controller_out(daemon: &Daemon) -> Result<(), Miss> {
    let node = Node::start("n1", daemon);
    let mut quiet = Quiet::beside(&mut node.begin(daemon), daemon);
    let mut strangers = Vec::new();
    for _ in 0..400 {
        strangers.push(TcpStream::connect(("127.0.0.1", node.port)).unwrap());
    }
    let mut session = quiet.begins(&node)?;
    quiet.bob_is_served(&mut session)?;
    node.audited("too many at a time");
    // The rest are closed soon: all that they have received is the node's name, and a number.
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(SOON)).unwrap();
        let mut received = Vec::new();
        let _ = stranger.read_to_end(&mut received);
        assert!(received.len() <= 40, "{}", received.len());
    }
    // A crowd's lines do not fill the log.
    let audit = fs::read_to_string(node.path("audit")).unwrap();
    let lines = audit.lines().filter(|line| line.contains("127.0.0.1"));
    assert!(lines.count() < 100);
    Ok(())
}

#[test]
fn attack_very_deep_folders_go_and_hold_up_nobody() {
    attempted(very_deep_folders_go_and_hold_up_nobody);
}

fn very_deep_folders_go_and_hold_up_nobody(daemon: &Daemon) -> Result<(), Miss> {
    let node = Node::start("n1", daemon);
    let mut session = node.begin(daemon);
    let mut quiet = Quiet::beside(&mut session, daemon);
    let in_memory = Work::Prepare {
        hashes: Vec::new(),
        store: String::new(),
        job: 17,
        dataset: "x".into(),
        parts: Vec::new(),
        memory: Some(64 << 20),
    };
    session.done(ALICE, in_memory);
    session.done(ALICE, prepare(18, "x"));
    let memory = node.path("run/clear/all/17/u20001/w/x");
    dig(&memory, 60_000);
    // Somebody has it open still.
    let open = fs::File::open(&memory).unwrap();
    let store = node.path("store/u20001/j/18/w/x");
    dig(&store, 20_000);
    session.number += 1;
    let dismissed = session.number;
    session.send_order(NodeOrder::Dismiss(17), dismissed);
    let removed = send(
        &mut session,
        ALICE,
        Work::Remove(vec![StoreContent::Job(18)]),
    );
    let mut left = vec![dismissed, removed];
    quiet.bob_is_served_among(&mut session, |number, what| {
        assert_eq!(what, WorkResult::Done, "{number}");
        left.retain(|n| *n != number);
    })?;
    while !left.is_empty() {
        let (number, what) = next(&mut session);
        assert_eq!(what, WorkResult::Done, "{number}");
        left.retain(|n| *n != number);
    }
    assert!(!node.path("run/clear/all/17").exists());
    assert!(!node.path("store/u20001/j/18").exists());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let inner = openat(&open, "d", flags, Mode::empty());
    assert!(
        inner.is_err(),
        "whoever still has it open sees nothing any more"
    );
    Ok(())
}

#[test]
fn attack_what_was_refused_is_not_logged_as_done() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let secret = node.outside("se\u{202e}cret\nuser 20002: done", "bob's", BOB, 0o600);
    let (code, text) = session.refused(ALICE, fetch(ALICE, "x", &secret));
    assert_eq!(code, Code::Denied);
    let own = node.outside("own", "hers", ALICE, 0o600);
    session.proven(ALICE, fetch(ALICE, "y", &own));
    node.audited("\"done\"");
    let audit = fs::read_to_string(node.path("audit")).unwrap();
    let lines: Vec<serde_json::Value> = audit
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |dataset: &str| {
        let named = format!("dataset: \"{dataset}\"");
        let lines = lines
            .iter()
            .filter(|l| l["what"].as_str().unwrap().contains(&named));
        lines
            .map(|l| l["result"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("y"), ["done"]);
    assert_eq!(of("x").len(), 1);
    assert!(of("x")[0] != "done", "{:?}", of("x"));
    // A file's name forges no line, and turns none round.
    for output in [audit, node.log(), text] {
        assert!(!output.contains('\u{202e}'), "{output}");
        assert!(!output.contains("\nuser 20002"), "{output}");
    }
    let _ = chown(&secret, Some(ALICE), Some(ALICE));
}
