//! Links in the sources of a site's jobs.

use crate::node::*;
use std::fs;
use std::os::unix::fs::{chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tarn_proto::local::Code;
use tarn_proto::site::*;

/// A folder outside that is Alice's.
fn folder(node: &Node, name: &str) -> PathBuf {
    let path = node.path("outside").join(name);
    fs::create_dir_all(&path).unwrap();
    chown(&path, Some(ALICE), Some(ALICE)).unwrap();
    path
}

fn tree(node: &Node, dataset: &str) -> PathBuf {
    node.path(&format!("store/u{ALICE}/d/w/{dataset}/0/0/tree"))
}

fn reads(path: PathBuf) -> String {
    let text = fs::read_to_string(&path);
    text.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn links_of_a_source_count_as_in_a_run() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let annex = folder(&node, "annex");
    let far = node.outside("annex/000123.dat", "one", ALICE, 0o600);
    node.outside("annex/more/deep", "two", ALICE, 0o644);
    // A source that is a link keeps its name, absolute or not, a file or a folder.
    for (dataset, target) in [("a", far.clone()), ("b", "annex/000123.dat".into())] {
        let link = node.path("outside").join(format!("{dataset}.fastq"));
        symlink(target, &link).unwrap();
        let (proof, _) = session.proven(ALICE, fetch(ALICE, dataset, &link));
        let name = format!("{dataset}.fastq");
        assert_eq!((proof.file.as_deref(), proof.bytes), (Some(&name[..]), 3));
        let come = tree(&node, dataset).join(&name);
        assert!(!come.is_symlink());
        assert_eq!(reads(come), "one");
    }
    let link = node.path("outside/current");
    symlink("annex", &link).unwrap();
    let (proof, _) = session.proven(ALICE, fetch(ALICE, "current", &link));
    assert_eq!((proof.file, proof.bytes), (None, 6));
    assert_eq!(reads(tree(&node, "current").join("more/deep")), "two");
    // In a folder: a link that leads out counts as its target, a link that stays inside is a link.
    let samples = folder(&node, "samples");
    node.outside("samples/own", "own", ALICE, 0o644);
    symlink(&far, samples.join("s1")).unwrap();
    symlink("../annex/more", samples.join("s2")).unwrap();
    symlink("own", samples.join("same")).unwrap();
    let (proof, _) = session.proven(ALICE, fetch(ALICE, "samples", &samples));
    assert_eq!(proof.bytes, 9);
    let come = tree(&node, "samples");
    assert!(!come.join("s1").is_symlink() && !come.join("s2").is_symlink());
    assert_eq!(reads(come.join("s1")), "one");
    assert_eq!(reads(come.join("s2/deep")), "two");
    assert_eq!(fs::read_link(come.join("same")).unwrap(), Path::new("own"));
    // Nothing has changed; then a link's target has.
    let again = session.proven(ALICE, fetch(ALICE, "samples", &samples));
    assert_eq!(again, (proof, 0));
    node.outside("annex/000123.dat", "other", ALICE, 0o600);
    for (dataset, source) in [("samples", &samples), ("current", &link)] {
        let (code, text) = session.refused(ALICE, fetch(ALICE, dataset, source));
        assert_eq!(code, Code::Changed, "{text}");
    }
    // A link that leads nowhere, or round and round, is refused by name.
    let nowhere = node.path("outside/nowhere");
    symlink(annex.join("gone"), &nowhere).unwrap();
    let (code, text) = session.refused(ALICE, fetch(ALICE, "x", &nowhere));
    assert_eq!(code, Code::NotFound);
    assert!(text.contains("a link that leads nowhere"), "{text}");
    symlink(annex.join("gone"), samples.join("lost")).unwrap();
    let (_, text) = session.refused(ALICE, fetch(ALICE, "x", &samples));
    let expected = ["samples/lost", "leads nowhere"];
    assert!(expected.iter().all(|s| text.contains(s)), "{text}");
    fs::remove_file(samples.join("lost")).unwrap();
    symlink("..", samples.join("above")).unwrap();
    let (_, text) = session.refused(ALICE, fetch(ALICE, "x", &samples));
    assert!(
        text.contains("leads to a folder that contains it"),
        "{text}"
    );
}

/// Links are followed with the user's rights alone, and nothing of the worker's own can be reached by one.
#[test]
fn attack_links_of_a_source_lead_to_nothing_that_its_user_may_not_read() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let samples = folder(&node, "samples");
    let bobs = node.outside("bobs/secret", "bob's", BOB, 0o600);
    let roots = node.outside("roots", "root's", 0, 0o600);
    let closed = bobs.parent().unwrap();
    chown(closed, Some(BOB), Some(BOB)).unwrap();
    let none_of_alices = [
        bobs.as_path(),
        &roots,
        Path::new("/etc/shadow"),
        Path::new("/proc/self/environ"),
        Path::new("/proc/self/mem"),
        Path::new("/proc/self/maps"),
        &node.path("store/.tarn-site/x"),
        &node.path(&format!("store/u{BOB}")),
    ];
    for target in none_of_alices {
        let link = samples.join("link");
        symlink(target, &link).unwrap();
        for source in [&link, &samples] {
            let (_, text) = session.refused(ALICE, fetch(ALICE, "x", source));
            assert!(!text.contains("bob's") && !text.contains("root's"));
        }
        fs::remove_file(link).unwrap();
    }
    // Descriptors of the worker: at best files that Alice may open herself.
    for number in 0..32 {
        let link = samples.join("link");
        symlink(format!("/proc/self/fd/{number}"), &link).unwrap();
        let what = session.work(ALICE, fetch(ALICE, "fd", &link));
        if matches!(what, WorkResult::Proven { .. }) {
            let part = StoreContent::Part(part(ALICE, "fd", 0));
            session.done(ALICE, Work::Remove(vec![part]));
        }
        fs::remove_file(link).unwrap();
    }
    // A device or FIFO behind a link is neither read nor waited for.
    node.as_user(ALICE, "mkfifo outside/samples/pipe");
    let pipe = samples.join("pipe");
    fs::rename(&pipe, node.path("outside/pipe")).unwrap();
    for target in [node.path("outside/pipe"), "/dev/zero".into()] {
        symlink(target, samples.join("link")).unwrap();
        session.refused(ALICE, fetch(ALICE, "x", &samples));
        session.refused(ALICE, fetch(ALICE, "x", &samples.join("link")));
        fs::remove_file(samples.join("link")).unwrap();
    }
    assert!(!tree(&node, "x").exists());
}

/// A user who may read the dataset may also have made the link: a folder where others write is a source too.
#[test]
fn attack_links_of_other_users_lead_nowhere() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let samples = folder(&node, "samples");
    let private = node.outside("private/key", "alice's", ALICE, 0o600);
    node.outside("samples/a", "a", ALICE, 0o644);
    let link = |path: &Path, target: &Path, owner| {
        symlink(target, path).unwrap();
        lchown(path, Some(owner), Some(owner)).unwrap();
    };
    let in_it = samples.join("link");
    let beside = node.path("outside/current");
    // One of Alice's that leads to one of Bob's, and one that has one on its way.
    let through = node.path("outside/through");
    let way = node.path("outside/way");
    link(&through, &beside, ALICE);
    link(&way, &beside.join("."), ALICE);
    for target in [private.as_path(), private.parent().unwrap()] {
        for (place, sources) in [
            (&in_it, vec![&in_it, &samples]),
            (&beside, vec![&beside, &through, &way]),
        ] {
            link(place, target, BOB);
            for source in sources {
                let (code, text) = session.refused(ALICE, fetch(ALICE, "x", source));
                assert_eq!(code, Code::Denied, "{text}");
                let expected = [
                    place.to_str().unwrap(),
                    &format!("belongs to user {BOB}"),
                    "copy what it leads to",
                ];
                assert!(expected.iter().all(|s| text.contains(s)), "{text}");
            }
            fs::remove_file(place).unwrap();
        }
    }
    assert!(!tree(&node, "x").exists());
    // The user's own are followed, and those of root, who could read all of it anyway.
    link(&in_it, &private, ALICE);
    link(&samples.join("more"), private.parent().unwrap(), 0);
    let (proof, _) = session.proven(ALICE, fetch(ALICE, "x", &samples));
    assert_eq!(proof.bytes, 15);
    assert_eq!(reads(tree(&node, "x").join("more/key")), "alice's");
}

/// A link that points here and there while it is read: it is Alice's file, or the order fails.
#[test]
fn attack_a_link_that_is_swapped_while_it_is_read_leaks_nothing() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let samples = folder(&node, "samples");
    let own = node.outside("own", "alices", ALICE, 0o600);
    let secret = node.outside("secret", "secret", BOB, 0o600);
    let (ended, link) = (AtomicBool::new(false), samples.join("link"));
    symlink(&own, &link).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let new = node.path("outside/new");
            while !ended.load(Ordering::Relaxed) {
                for target in [&secret, &own] {
                    symlink(target, &new).unwrap();
                    fs::rename(&new, &link).unwrap();
                    std::thread::yield_now();
                }
            }
        });
        let mut read = || {
            let mut come = 0;
            for round in 0..60 {
                let source = [&samples, &link][round % 2];
                if let WorkResult::Proven { .. } = session.work(ALICE, fetch(ALICE, "x", source)) {
                    assert_eq!(reads(tree(&node, "x").join("link")), "alices");
                    come += 1;
                    session.done(
                        ALICE,
                        Work::Remove(vec![StoreContent::Part(part(ALICE, "x", 0))]),
                    );
                }
            }
            come
        };
        let come = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut read));
        ended.store(true, Ordering::Relaxed);
        println!("{} of 60 have come", come.unwrap());
    });
}
