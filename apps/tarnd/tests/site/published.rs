//! The output of a job becomes a part: once, whatever is killed between that and its report.

use crate::node::*;
use std::fs;
use std::time::{Duration, Instant};
use tarn_proto::local::Code;
use tarn_proto::site::*;

const TREE: &str = "store/u20001/d/w/x/1/0/tree";

fn write(node: &Node, session: &mut Session, content: &str) {
    session.done(ALICE, prepare(5, "x"));
    let script = format!("printf '{content}' > store/u20001/j/5/w/x/a");
    node.as_user(ALICE, &script);
}

fn reads(node: &Node) -> String {
    fs::read_to_string(node.path(TREE).join("a")).unwrap()
}

/// Its report was lost, and Slurm has restarted the job, which makes the same version: the second run's result counts.
#[test]
fn what_a_job_that_began_anew_has_made_is_published_and_not_what_was_there() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    write(&node, &mut session, "first");
    let (first, _) = session.proven(ALICE, publish(ALICE, 5, "x", 1));
    // Requested once more, as its report was lost, it is there.
    assert_eq!(session.proven(ALICE, publish(ALICE, 5, "x", 1)).0, first);
    write(&node, &mut session, "second");
    let (second, _) = session.proven(ALICE, publish(ALICE, 5, "x", 1));
    assert_ne!(first.hash, second.hash);
    assert_eq!(reads(&node), "second");
    assert_eq!(session.proven(ALICE, publish(ALICE, 5, "x", 1)).0, second);
}

/// The worker is killed at any moment of it, up to after its end and before its report.
#[test]
fn a_worker_that_is_killed_while_it_publishes_loses_and_repeats_nothing() {
    let Some(daemon) = munge() else { return };
    let mut node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    session.done(ALICE, prepare(5, "x"));
    let fill = "cd store/u20001/j/5/w/x; for n in $(seq 200); do echo $n > $n; done; head -c 8000000 /dev/zero > large";
    node.as_user(ALICE, fill);
    for round in 0..6 {
        session.number += 1;
        let number = session.number;
        let order = NodeOrder::Do {
            user: ALICE,
            group: ALICE,
            work: Box::new(publish(ALICE, 5, "x", 1)),
        };
        session.send_order(order, number);
        std::thread::sleep(Duration::from_millis(7 * round));
        match round % 3 {
            2 => {
                // The node's tarnd with it.
                node.restart();
                session = node.begin(&daemon);
            }
            _ => {
                node.kill_workers();
                // Done, if it was before, or failed.
                while let Report::Alive = session.reader.receive(SOON).unwrap() {}
            }
        }
    }
    let until = Instant::now() + SOON;
    let proof = loop {
        match session.work(ALICE, publish(ALICE, 5, "x", 1)) {
            WorkResult::Proven { proof, .. } => break proof,
            WorkResult::Failed(why) => assert_eq!(why.code, Code::Io, "{}", why.text),
            other => panic!("{other:?}"),
        }
        assert!(Instant::now() < until, "it is not published");
    };
    assert_eq!((proof.entries, proof.bytes), (201, 8_000_692));
    assert_eq!(
        session.proven(ALICE, Work::Check(part(ALICE, "x", 1))).0,
        proof
    );
    assert!(!node.path("store/u20001/j/5/w/x").exists());
    // Nothing half done is beside it.
    let beside = fs::read_dir(node.path("store/u20001/d/w/x/1")).unwrap();
    let names: Vec<_> = beside.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["0"]);
}

/// A change between the end of a publication and the use of the part is found at that use.
#[test]
fn a_part_that_is_changed_before_its_report_was_heard_is_not_used() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    write(&node, &mut session, "right");
    let (proof, _) = session.proven(ALICE, publish(ALICE, 5, "x", 1));
    node.as_user(
        ALICE,
        &format!("chmod u+w {TREE}/a; printf wrong > {TREE}/a"),
    );
    node.kill_workers();
    // Requested once more, it is the published part.
    let until = Instant::now() + SOON;
    loop {
        match session.work(ALICE, publish(ALICE, 5, "x", 1)) {
            WorkResult::Proven { proof: again, .. } => {
                assert_eq!(again, proof);
                break;
            }
            WorkResult::Failed(why) => assert_eq!(why.code, Code::Io, "{}", why.text),
            other => panic!("{other:?}"),
        }
        assert!(Instant::now() < until, "no other worker is begun");
    }
    let out = node.path("outside/out");
    fs::create_dir(&out).unwrap();
    std::os::unix::fs::chown(&out, Some(ALICE), Some(ALICE)).unwrap();
    let view = Work::View {
        hashes: vec![proof.hash],
        store: String::new(),
        memory: None,
        job: 6,
        dataset: "x".into(),
        parts: vec![part(ALICE, "x", 1)],
    };
    let send = Work::Send {
        parts: vec![(part(ALICE, "x", 1), None, proof)],
        dest: out.join("result"),
        owner: String::new(),
    };
    for work in [view, Work::Check(part(ALICE, "x", 1)), send] {
        let about = format!("{work:?}");
        let (code, why) = session.refused(ALICE, work);
        let is_found = matches!(code, Code::Corrupt | Code::Changed);
        assert!(is_found, "{about}: {why}");
    }
    assert!(!out.join("result").exists());
}
