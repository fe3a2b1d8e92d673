//! The folders in which a program begins, and the objects that it must have made when it continues.

use std::path::Path;
use tarn_checkpoint::{
    CheckpointError, CheckpointErrorCode, CheckpointSession, Options, Properties, Shape,
};

fn begin(
    tier: &Path,
    memory: &Path,
    rank: u32,
    ranks: u32,
) -> Result<CheckpointSession, CheckpointError> {
    CheckpointSession::begin(Options {
        run: Some("run".into()),
        tier: Some(tier.to_owned()),
        memory: Some(memory.to_owned()),
        rank,
        ranks,
        replicas: Some(0),
        ..Options::default()
    })
}

fn make(session: &mut CheckpointSession, key: &str) {
    let shared = Properties {
        shape: Shape::Replicated,
        ..Properties::default()
    };
    session.create(key, 800, 8, shared).unwrap();
}

#[test]
fn a_tier_that_is_not_there_is_not_made_on_the_root_disk() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let good = folder.path().join("new");
    let lost = format!("/tarn-no-such-{}", std::process::id());
    let below = format!("{lost}/nvme/me");
    let up = format!("/tmp/..{lost}/me");
    for (tier, memory, why) in [
        (
            Path::new(&lost),
            &*good,
            "would be made on the node's root disk",
        ),
        (
            Path::new(&below),
            &good,
            "would be made on the node's root disk",
        ),
        (
            Path::new(&up),
            &good,
            "would be made on the node's root disk",
        ),
        (
            Path::new("no-such-tier/me"),
            &good,
            "is not an absolute path",
        ),
        (
            &good,
            Path::new(&below),
            "the folder of memory (`memory`, or TARN_PHX_MEMORY)",
        ),
    ] {
        let fault = begin(tier, memory, 0, 1).err().unwrap();
        assert_eq!(fault.code, CheckpointErrorCode::Invalid, "{fault}");
        assert!(fault.to_string().contains(why), "{fault}");
        assert!(fault.to_string().contains("mkdir -p"), "{fault}");
    }
    assert!(!Path::new(&lost).exists() && !Path::new("no-such-tier").exists());
    assert!(!good.exists());
    // In a file system of its own all folders are made.
    let session = begin(&good.join("a/b"), &good.join("memory"), 0, 1).unwrap();
    session.end().unwrap();
}

#[test]
fn a_restart_that_would_leave_out_an_object_is_refused() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (tier, memory) = (folder.path().join("tier"), folder.path().join("memory"));
    let mut session = begin(&tier, &memory, 0, 1).unwrap();
    for key in ["a", "b"] {
        make(&mut session, key);
        session.values::<u64>(key).unwrap().fill(7);
    }
    session.commit().unwrap();
    session.end().unwrap();
    let mut session = begin(&tier, &memory, 0, 1).unwrap();
    make(&mut session, "a");
    let fault = session.restart(None).unwrap_err();
    assert_eq!(fault.code, CheckpointErrorCode::Invalid);
    let text = "the version has object \"b\" of 800 bytes, which this program has not: create it before restarting";
    assert!(fault.to_string().contains(text), "{fault}");
    assert_eq!(session.values::<u64>("a").unwrap()[0], 0);
    // It continues once it has that, and later versions may be without it.
    make(&mut session, "b");
    assert!(session.restart(None).unwrap().is_some());
    assert_eq!(session.values::<u64>("b").unwrap()[99], 7);
    session.destroy(b"b").unwrap();
    session.commit().unwrap();
    session.end().unwrap();
    let mut session = begin(&tier, &memory, 0, 1).unwrap();
    make(&mut session, "a");
    assert!(session.restart(None).unwrap().is_some());
    assert_eq!(session.values::<u64>("a").unwrap()[99], 7);
    session.end().unwrap();
    // With another number of ranks, too, on all of them.
    let ends: Vec<_> = (0..2)
        .map(|rank| {
            let (tier, memory) = (tier.clone(), memory.clone());
            std::thread::spawn(move || {
                let mut session = begin(&tier, &memory, rank, 2).unwrap();
                let fault = session.restart(None).unwrap_err();
                make(&mut session, "a");
                assert!(session.restart(None).unwrap().is_some());
                assert_eq!(session.values::<u64>("a").unwrap()[99], 7);
                session.end().unwrap();
                fault
            })
        })
        .collect();
    for end in ends {
        let fault = end.join().unwrap();
        assert!(fault.to_string().contains("has object \"a\""), "{fault}");
    }
}
