//! Requirements that objects make of versions: they hold when a commit returns, or the commit reports why not.

use crate::cluster::*;
use std::time::Duration;
use tarn_checkpoint_core::rank::Replicate;
use tarn_checkpoint_core::{
    CheckpointErrorCode, PersistenceLevel, StagingShare, VersionRequirements,
};

/// As many versions as ever, with this.
fn requires(replicas: usize, persistence: PersistenceLevel) -> VersionRequirements {
    VersionRequirements {
        versions: 1,
        replicas,
        persistence,
    }
}

/// The version of a commit, which is not degraded.
fn commits(rank: &mut LocalRank, of: u32, step: u64) {
    let committed = rank.commit(&items(&state(of, step))).unwrap();
    assert_eq!(committed.degraded, None);
}

#[test]
fn what_is_to_be_durable_is_not_staged_as_long_as_that_is_asked() {
    let cluster = Cluster {
        helpers: 0,
        staging: StagingShare::All,
        ..Cluster::new(&["one", "two"])
    };
    cluster.start(|of, mut rank, _| {
        rank.require(requires(0, PersistenceLevel::Durable))
            .unwrap();
        commits(&mut rank, of, 1);
        assert_eq!(rank.stats().staged, 0);
        rank.require(requires(0, PersistenceLevel::Committed))
            .unwrap();
        commits(&mut rank, of, 2);
        let staged = rank.stats().last_staged;
        assert!(staged > 0);
        rank.require(requires(0, PersistenceLevel::Durable))
            .unwrap();
        commits(&mut rank, of, 3);
        assert_eq!(rank.stats().last_staged, 0);
        // Each rank stages by its own requirements.
        rank.require(
            requires(0, PersistenceLevel::Committed).and(requires(0, PersistenceLevel::Durable)),
        )
        .unwrap();
        if of == 1 {
            rank.require(requires(0, PersistenceLevel::Committed))
                .unwrap();
        }
        commits(&mut rank, of, 4);
        let wanted = if of == 1 { staged } else { 0 };
        assert_eq!(rank.stats().last_staged, wanted);
    });
    // Only staged bytes are lost with the memory of their node.
    std::fs::remove_dir_all(cluster.memory_of("one")).unwrap();
    restarts(&cluster, id(1, 4), 4);
}

#[test]
fn replicas_can_be_more_and_fewer_while_the_program_runs() {
    for (replicas, lost, left) in [
        (2, ["one", "two"], 2),
        // The version before was de-staged.
        (0, ["three", "three"], 1),
    ] {
        let cluster = Cluster {
            helpers: 0,
            staging: StagingShare::All,
            buddies: 1,
            ..Cluster::new(&["one", "two", "three"])
        };
        cluster.start(|of, mut rank, _| {
            rank.require(requires(2 - replicas, PersistenceLevel::Committed))
                .unwrap();
            commits(&mut rank, of, 1);
            rank.require(requires(replicas, PersistenceLevel::Committed))
                .unwrap();
            commits(&mut rank, of, 2);
            rank.wait(id(1, 2), PersistenceLevel::Committed, MOST)
                .unwrap();
        });
        for node in lost {
            let _ = std::fs::remove_dir_all(cluster.memory_of(node));
        }
        restarts(&cluster, id(1, left), left);
    }
}

#[test]
fn a_version_is_on_other_nodes_when_its_commit_returns() {
    let mut cluster = Cluster {
        replicate: Replicate::Copies(1),
        tier: u64::MAX,
        ..Cluster::new(&["one", "two"])
    };
    cluster.start(|of, mut rank, _| {
        rank.require(requires(0, PersistenceLevel::Replicated))
            .unwrap();
        for step in 1..=3 {
            commits(&mut rank, of, step);
            // It is there already.
            rank.wait(id(1, step), PersistenceLevel::Replicated, Duration::ZERO)
                .unwrap();
        }
        let stats = rank.stats();
        assert_eq!(stats.staged, 0);
        assert!(stats.waited <= stats.commit && stats.last_commit <= stats.commit);
    });
    std::fs::remove_dir_all(cluster.folder.path().join("one")).unwrap();
    cluster.nodes = vec!["new", "two"];
    restarts(&cluster, id(1, 3), 3);
}

#[test]
fn a_version_is_on_the_external_store_when_its_commit_returns() {
    let cluster = Cluster::flushing(&["one", "one"], 1);
    cluster.start(|of, mut rank, _| {
        rank.require(requires(0, PersistenceLevel::Flushed))
            .unwrap();
        for step in 1..=4 {
            commits(&mut rank, of, step);
            assert!(cluster.latest() >= Some(id(1, step)));
            // Each is done with before the next.
            let stats = rank.stats();
            assert_eq!((stats.flushed, stats.flushes_skipped), (step, 0));
        }
    });
}

/// The version is committed nevertheless.
#[test]
fn what_did_not_come_to_what_was_asked_is_degraded() {
    let cluster = Cluster {
        replicate: Replicate::Copies(1),
        ..Cluster::new(&["one", "two"])
    };
    cluster.start(|of, mut rank, hall| {
        rank.require(requires(0, PersistenceLevel::Replicated))
            .unwrap();
        hall.deafen(1 - of);
        let committed = rank.commit(&items(&state(of, 1))).unwrap();
        let why = committed.degraded.unwrap();
        let wanted = "version 1.1 is not on other nodes yet";
        assert!(why.starts_with(wanted), "{why}");
        assert_eq!(rank.stats().degraded, 1);
        let next = rank.commit(&items(&state(of, 2))).unwrap();
        let why = next.degraded.unwrap();
        // Both reasons, and counted once.
        assert!(why.contains("version 1.1 is not on other nodes: "), "{why}");
        let wanted = "; version 1.2 is not on other nodes yet";
        assert!(why.contains(wanted), "{why}");
        assert_eq!(rank.stats().degraded, 2);
    });
    restarts(&cluster, id(1, 2), 2);
    let cluster = Cluster::flushing(&["one"], 1);
    cluster.start(|of, mut rank, _| {
        rank.require(requires(0, PersistenceLevel::Flushed))
            .unwrap();
        cluster.store.does[0].lose();
        let committed = rank.commit(&items(&state(of, 1))).unwrap();
        let why = committed.degraded.unwrap();
        let wanted = "version 1.1 is not on the external store yet";
        assert!(why.starts_with(wanted), "{why}");
    });
    cluster.store.does[0].find();
    restarts(&cluster, id(1, 1), 1);
}

#[test]
fn what_no_version_of_this_start_can_have_is_refused_and_changes_nothing() {
    let plain = || Cluster {
        helpers: 0,
        staging: StagingShare::All,
        ..Cluster::new(&["one", "one"])
    };
    let some = Cluster {
        replicate: Replicate::Parity(2),
        replicate_every: 2,
        ..plain()
    };
    let refused = |cluster: &Cluster, requirements: VersionRequirements, code, expected: &str| {
        cluster.start(|of, mut rank, _| {
            let refused = rank.require(requirements).unwrap_err();
            assert_eq!(refused.code, code, "{refused}");
            assert!(refused.text.contains(expected), "{refused}");
            commits(&mut rank, of, 1);
            assert!(rank.stats().last_staged > 0 || cluster.staging == StagingShare::None);
        });
    };
    let (committed, replicated) = (PersistenceLevel::Committed, PersistenceLevel::Replicated);
    let many = VersionRequirements {
        versions: 14,
        ..requires(0, committed)
    };
    refused(&plain(), many, CheckpointErrorCode::Invalid, "1 to 13");
    let few = "1 ranks of other nodes, each of another one, are to keep copies of what is staged, and 0 are left";
    refused(
        &plain(),
        requires(1, committed),
        CheckpointErrorCode::Unsupported,
        few,
    );
    let near = Cluster {
        same_node: true,
        ..plain()
    };
    let few = few.replace("1 ranks", "2 ranks").replace("0 are", "1 are");
    refused(
        &near,
        requires(2, committed),
        CheckpointErrorCode::Unsupported,
        &few,
    );
    let none = "none is at all: ask for copies or parity";
    refused(
        &plain(),
        requires(0, replicated),
        CheckpointErrorCode::Invalid,
        none,
    );
    refused(
        &some,
        requires(0, replicated),
        CheckpointErrorCode::Invalid,
        "only every 2. one is at all: ask for copies or parity of each version",
    );
    let none = "none is at all: name an external store";
    refused(
        &plain(),
        requires(0, PersistenceLevel::Flushed),
        CheckpointErrorCode::Invalid,
        none,
    );
    let some = "only every 3. one is at all: name an external store, and flush each version";
    let store = Cluster::flushing(&["one"], 3);
    refused(
        &store,
        requires(0, PersistenceLevel::Flushed),
        CheckpointErrorCode::Invalid,
        some,
    );
}
