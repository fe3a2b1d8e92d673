//! Folders of some ranks, and of checkpoints.

use crate::node::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use tarn_proto::local::Code;
use tarn_proto::site::*;
use tarn_types::hash::Hash;

fn slice(first: u32, end: u32) -> Slice {
    Slice {
        rule: tarn_types::pattern::ScatterRule::new("p{rank}").unwrap(),
        first,
        end,
        rest: true,
    }
}

type Sources = Vec<(Part, Option<Origin>, Option<Proof>)>;

fn work(job: SlurmJobId, parts: Sources, slice: Slice, written: bool) -> Work {
    Work::Slice {
        job,
        dataset: "x".into(),
        parts,
        slice,
        written,
        store: String::new(),
    }
}

/// The files of a folder with their content, by name.
fn files(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match path.is_dir() {
            true => all.extend(files(&path).into_iter().map(|f| format!("{name}/{f}"))),
            false => all.push(format!("{name}={}", fs::read_to_string(&path).unwrap())),
        }
    }
    all.sort();
    all
}

#[test]
fn a_node_gets_the_entries_of_its_ranks_from_wherever_they_are() {
    let Some(daemon) = munge() else { return };
    let (one, two) = (Node::start("n1", &daemon), Node::start("n2", &daemon));
    let (mut first, mut second) = (one.begin(&daemon), two.begin(&daemon));
    // A part on the first node, which has all ranks and the rest.
    first.done(ALICE, prepare(7, "x"));
    let script = "cd store/u20001/j/7/w/x; mkdir p0 p1 p2; for r in 0 1 2; do printf $r > p$r/a; done; ln p2/a p2/b; printf r > rest";
    one.as_user(ALICE, script);
    let (proof, _) = first.proven(ALICE, publish(ALICE, 7, "x", 1));
    let made = part(ALICE, "x", 1);
    let here: Sources = vec![(made.clone(), None, Some(proof.clone()))];
    // Read there, its files are linked: nothing moves, and nothing is taken.
    let (taken, moved) = first.proven(ALICE, work(8, here.clone(), slice(0, 1), false));
    assert_eq!((taken.bytes, moved), (0, 0));
    let read = one.path("store/u20001/j/8/v/x");
    assert_eq!(files(&read), ["p0/a=0", "rest=r"]);
    let linked = fs::metadata(one.path("store/u20001/d/w/x/1/0/tree/p0/a")).unwrap();
    assert_eq!(fs::metadata(read.join("p0/a")).unwrap().ino(), linked.ino());
    // Written, it is a copy of its own.
    first.proven(ALICE, work(9, here.clone(), slice(0, 2), true));
    let written = one.path("store/u20001/j/9/w/x");
    assert_eq!(files(&written), ["p0/a=0", "p1/a=1", "rest=r"]);
    assert_ne!(
        fs::metadata(written.join("p0/a")).unwrap().ino(),
        linked.ino()
    );

    // On the other node only the entries of its ranks come; requested again, none.
    let from = Origin::Peer(WorkerAddress {
        node: "n1".into(),
        host: "127.0.0.1".into(),
        port: first.port(ALICE),
    });
    let far: Sources = vec![(made.clone(), Some(from.clone()), Some(proof.clone()))];
    let order = work(8, far.clone(), slice(2, u32::MAX), false);
    let (taken, moved) = second.proven(ALICE, order.clone());
    assert!(
        taken.bytes <= 3 && moved == taken.bytes,
        "{taken:?} {moved}"
    );
    let read = two.path("store/u20001/j/8/v/x");
    assert_eq!(files(&read), ["p2/a=2", "p2/b=2", "rest=r"]);
    assert!(!two.path("store/u20001/d/w/x").exists());
    assert_eq!(second.proven(ALICE, order).1, 0);
    // Another content than was published is refused, and so is somebody else's part.
    let other = Proof {
        hash: Hash(7),
        ..proof.clone()
    };
    for (session, from) in [(&mut first, None), (&mut second, Some(from))] {
        let parts = vec![(made.clone(), from, Some(other.clone()))];
        let (code, text) = session.refused(ALICE, work(11, parts, slice(0, 1), false));
        assert_eq!(code, Code::Corrupt, "{text}");
    }
    let (code, _) = first.refused(BOB, work(12, here, slice(0, 1), false));
    assert_eq!(code, Code::Denied);

    // A source is read by ranks, too; a single file has none.
    let source = one.outside("case/p1/a", "one", ALICE, 0o600);
    one.outside("case/p2/a", "two", ALICE, 0o600);
    one.outside("case/dict", "rules", ALICE, 0o600);
    let case = source.ancestors().nth(2).unwrap();
    for folder in [case.to_owned(), case.join("p1"), case.join("p2")] {
        chown(folder, Some(ALICE), Some(ALICE)).unwrap();
    }
    let outside = |path: &Path| -> Sources {
        let from = Origin::Outside(path.to_owned());
        vec![(part(ALICE, "x", 0), Some(from), None)]
    };
    let (taken, moved) = first.proven(ALICE, work(13, outside(case), slice(1, 2), false));
    assert_eq!((taken.bytes, moved), (8, 8));
    let read = one.path("store/u20001/j/13/v/x");
    assert_eq!(files(&read), ["dict=rules", "p1/a=one"]);
    let (code, text) = first.refused(ALICE, work(14, outside(&source), slice(1, 2), false));
    assert!(
        code == Code::Invalid && text.contains("single file"),
        "{text}"
    );
    let gone = StoreContent::Job(13);
    first.done(ALICE, Work::Remove(vec![gone]));
    assert!(!one.path("store/u20001/j/13").exists());
}

#[test]
fn checkpoints_outlive_workers_and_jobs_until_they_are_removed() {
    let Some(daemon) = munge() else { return };
    let mut node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let folder = CheckpointFolder {
        workflow: "heat".into(),
        step: "solve".into(),
    };
    let order = Work::Checkpoints {
        folder: folder.clone(),
        store: String::new(),
    };
    session.done(ALICE, order.clone());
    let path = node.path("store/u20001/c/heat/solve");
    node.as_user(ALICE, "echo 7 > store/u20001/c/heat/solve/n");
    // Made again, it is as it was: the next job's.
    session.done(ALICE, order);
    assert_eq!(fs::read_to_string(path.join("n")).unwrap(), "7\n");
    let about = fs::metadata(&path).unwrap();
    assert_eq!((about.uid(), about.mode() & 0o777), (ALICE, 0o700));
    // Nothing is in memory: that is no error.
    let destage = Work::Destage {
        folder: folder.clone(),
        store: String::new(),
    };
    session.done(ALICE, destage);
    session.done(ALICE, Work::Remove(vec![StoreContent::Job(7)]));
    node.as_user(ALICE, "mkdir store/u20001/c/heat/.tarn-other.gone");
    node.restart();
    let mut session = node.begin(&daemon);
    let held = StoreContent::Checkpoints(folder.clone());
    assert!(
        session
            .holds
            .iter()
            .any(|(user, h)| *user == ALICE && h.held == held),
        "{:?}",
        session.holds
    );
    assert!(!node.path("store/u20001/c/heat/.tarn-other.gone").exists());
    // Names that lead elsewhere are refused.
    let bad = CheckpointFolder {
        step: "../x".into(),
        ..folder
    };
    let order = Work::Checkpoints {
        folder: bad,
        store: String::new(),
    };
    assert_eq!(session.refused(ALICE, order).0, Code::Invalid);
    session.done(ALICE, Work::Remove(vec![held.clone()]));
    session.done(ALICE, Work::Remove(vec![held]));
    assert!(!node.path("store/u20001/c/heat").exists());
}
