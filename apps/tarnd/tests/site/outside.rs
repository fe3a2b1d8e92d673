//! Deliveries outside take the place of data that tarn has put there, and of nothing else.

use crate::node::*;
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use tarn_proto::local::Code;
use tarn_proto::site::*;

const OWNER: &str = "site u20001 w mesh";

/// A part of Alice's that holds one file with this text.
fn made(session: &mut Session, node: &Node, version: u32, text: &str) -> (Part, Proof) {
    session.done(ALICE, prepare(version, "mesh"));
    let write = format!("echo {text} > store/u20001/j/{version}/w/mesh/r");
    node.as_user(ALICE, &write);
    let (proof, _) = session.proven(ALICE, publish(ALICE, version, "mesh", version));
    (part(ALICE, "mesh", version), proof)
}

fn send((part, proof): &(Part, Proof), dest: &Path, owner: &str) -> Work {
    Work::Send {
        parts: vec![(part.clone(), None, proof.clone())],
        dest: dest.into(),
        owner: owner.into(),
    }
}

fn look(dest: &Path, owner: &str) -> Work {
    Work::CheckDest {
        dest: dest.into(),
        owner: owner.into(),
    }
}

/// A folder that Alice may write to.
fn out(node: &Node) -> PathBuf {
    let out = node.path("outside/out");
    fs::create_dir(&out).unwrap();
    chown(&out, Some(ALICE), Some(ALICE)).unwrap();
    out
}

fn read(file: PathBuf) -> String {
    fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// The only file in a folder whose name ends so.
fn record(folder: &Path, ending: &str) -> PathBuf {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut all = entries.filter(|p| p.to_string_lossy().ends_with(ending));
    let first = all.next();
    assert!(all.next().is_none());
    first.unwrap_or_else(|| panic!("no {ending} in {}", folder.display()))
}

#[test]
fn what_tarn_has_put_outside_is_replaced_and_nothing_else() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let out = out(&node);
    let [one, two] = [(1, "one"), (2, "two")].map(|(n, text)| made(&mut session, &node, n, text));

    // A folder with files that tarn has never put there stays as it is, and is refused before a job begins.
    let theirs = out.join("theirs");
    node.as_user(
        ALICE,
        "cd outside/out; mkdir theirs; echo years > theirs/precious",
    );
    for work in [look(&theirs, OWNER), send(&one, &theirs, OWNER)] {
        let (code, text) = session.refused(ALICE, work);
        assert_eq!(code, Code::Exists, "{text}");
        assert!(
            text.contains("outside/out/theirs") && text.contains("`precious`"),
            "{text}"
        );
    }
    assert_eq!(read(theirs.join("precious")), "years\n");
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 1);
    node.as_user(
        ALICE,
        "cd outside/out; mkdir empty; echo text > file; ln -s empty link",
    );
    assert_eq!(
        session.refused(ALICE, look(&out.join("file"), OWNER)).0,
        Code::Exists
    );
    assert_eq!(
        session
            .refused(ALICE, send(&one, &out.join("file"), OWNER))
            .0,
        Code::Exists
    );
    assert_eq!(read(out.join("file")), "text\n");

    // A missing file, an empty one, and a link's target are written, and written again.
    for name in ["new/deep", "empty", "link"] {
        let dest = out.join(name);
        for (made, text) in [(&one, "one\n"), (&two, "two\n"), (&one, "one\n")] {
            session.done(ALICE, look(&dest, OWNER));
            session.proven(ALICE, send(made, &dest, OWNER));
            assert_eq!(read(dest.join("r")), text);
        }
    }
    assert!(out.join("link").is_symlink());

    // Another dataset's data is not replaced, nor data changed since.
    let dest = out.join("new/deep");
    let (code, _) = session.refused(ALICE, look(&dest, "site u20001 other mesh"));
    assert_eq!(code, Code::Exists);
    node.as_user(ALICE, "echo by hand > outside/out/new/deep/notes");
    for work in [look(&dest, OWNER), send(&two, &dest, OWNER)] {
        let (code, text) = session.refused(ALICE, work);
        assert!(code == Code::Exists && text.contains("`notes`"), "{text}");
    }
    assert_eq!(
        (read(dest.join("notes")), read(dest.join("r"))),
        ("by hand\n".into(), "one\n".into())
    );
    node.as_user(ALICE, "rm outside/out/new/deep/notes");
    session.proven(ALICE, send(&two, &dest, OWNER));
    assert_eq!(read(dest.join("r")), "two\n");
}

#[test]
fn a_delivery_that_was_killed_before_its_record_is_known_as_tarns_own() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let out = out(&node);
    let all = [(1, "one"), (2, "two"), (3, "three")];
    let [one, two, three] = all.map(|(n, text)| made(&mut session, &node, n, text));
    let dest = out.join("result");
    session.proven(ALICE, send(&one, &dest, OWNER));
    let known = record(&out, ".manifest");
    let before = fs::read(&known).unwrap();
    session.proven(ALICE, send(&two, &dest, OWNER));
    // As a worker leaves it that dies between the exchange and the record of it.
    fs::rename(&known, known.with_extension("intent")).unwrap();
    fs::write(&known, before).unwrap();
    chown(&known, Some(ALICE), Some(ALICE)).unwrap();
    session.done(ALICE, look(&dest, OWNER));
    session.proven(ALICE, send(&three, &dest, OWNER));
    assert_eq!(read(dest.join("r")), "three\n");
    assert!(!known.with_extension("intent").exists());
    session.proven(ALICE, send(&one, &dest, OWNER));
    assert_eq!(read(dest.join("r")), "one\n");
}

#[test]
fn attack_what_another_user_claims_to_be_tarns_is_not_believed() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let out = out(&node);
    let one = made(&mut session, &node, 1, "one");
    let dest = out.join("result");
    session.proven(ALICE, send(&one, &dest, OWNER));
    let known = record(&out, ".manifest");
    // Bob may write to the folder above, and has copied a true record; or leads to one by a link.
    chown(&known, Some(BOB), Some(BOB)).unwrap();
    assert_eq!(session.refused(ALICE, look(&dest, OWNER)).0, Code::Exists);
    let elsewhere = node.path("outside/elsewhere");
    fs::rename(&known, &elsewhere).unwrap();
    chown(&elsewhere, Some(ALICE), Some(ALICE)).unwrap();
    symlink(&elsewhere, &known).unwrap();
    assert_eq!(
        session.refused(ALICE, send(&one, &dest, OWNER)).0,
        Code::Exists
    );
    assert_eq!(read(dest.join("r")), "one\n");
}
