//! Starts of a program that know nothing of each other, and calls that do not go together.

use crate::cluster::*;
use crate::hall::Hall;
use tarn_checkpoint_core::manifest::CHUNK;
use tarn_checkpoint_core::{CheckpointErrorCode, Empty, PersistenceLevel, Shape, StagingShare};

/// Two starts on other nodes have the same generation and numbers. Parts of both are no version, and where both are whole one is taken.
#[test]
fn versions_of_starts_that_knew_nothing_of_each_other_are_never_mixed() {
    let mut cluster = Cluster {
        staging: StagingShare::None,
        ..Cluster::new(&["one", "two"])
    };
    for (nodes, step) in [(["one", "two"], 10), (["three", "four"], 20)] {
        cluster.nodes = nodes.to_vec();
        cluster.start(|of, mut rank, _| {
            assert_eq!(commit(&mut rank, of, step), id(1, 1));
            rank.end().unwrap();
        });
    }
    cluster.nodes = vec!["one", "four"];
    cluster.start(|_, mut rank, _| {
        let refused = restart(&mut rank).unwrap_err();
        assert_eq!(refused.code, CheckpointErrorCode::Corrupt);
        assert!(refused.text.contains("no version is complete"), "{refused}");
    });
    cluster.nodes = vec!["three", "four"];
    restarts(&cluster, id(1, 1), 20);
    // Four ranks, of which two stand for those that are there: they find a version of one start or of the other, the same for all.
    cluster.nodes = vec!["one", "two", "three", "four"];
    let found = cluster.start(|_, mut rank, _| {
        let mut same = vec![0; SIZES[3]];
        let mut objects = [Empty {
            key: KEYS[3],
            shape: Shape::Own,
            bytes: &mut same,
        }];
        // It was its rank's own, so that it cannot be divided: that is found out once a version was chosen.
        let code = rank.restart(None, &mut objects).unwrap_err().code;
        (code, rank.restorable().len())
    });
    assert_eq!(found, [(CheckpointErrorCode::Shape, 2); 4]);
}

/// It would be unclear which of two nodes may write to it, and one would lose the versions that the other gives up.
#[test]
fn a_tier_that_two_nodes_see_is_refused() {
    let mut cluster = Cluster::new(&["one", "two"]);
    cluster.start(|of, mut rank, _| {
        commit(&mut rank, of, 1);
        rank.end().unwrap();
    });
    std::fs::remove_dir_all(cluster.tier_of("two")).unwrap();
    std::os::unix::fs::symlink(cluster.tier_of("one"), cluster.tier_of("two")).unwrap();
    // Not even through a link.
    assert!(std::panic::catch_unwind(|| cluster.begin(&Hall::new(&["one", "two"]), 1)).is_err());
    std::fs::remove_file(cluster.tier_of("two")).unwrap();
    let copy = cluster.tier_of("two").join("1");
    std::fs::create_dir_all(&copy).unwrap();
    let arena = cluster.tier_of("one").join("1/0.arena");
    std::fs::copy(arena, copy.join("0.arena")).unwrap();
    cluster.nodes = vec!["one", "two"];
    let hall = Hall::new(&cluster.nodes);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (cluster, hall) = (&cluster, &hall);
            scope.spawn(move || {
                let refused = cluster.begin(hall, rank).map(drop).unwrap_err();
                assert_eq!(refused.code, CheckpointErrorCode::Invalid);
                assert!(
                    refused
                        .text
                        .contains("1/0.arena on two is the same arena as 1/0.arena on one"),
                    "{refused}"
                );
            });
        }
    });
}

#[test]
fn a_rank_that_tries_again_alone_is_stopped() {
    let cluster = Cluster::new(&["one", "two"]);
    let together = Gate::new(2);
    cluster.start(|of, mut rank, _| {
        commit(&mut rank, of, 1);
        together.wait();
        if of == 1 {
            let state = state(of, 2);
            let mut twice = items(&state);
            twice[0].key = twice[1].key;
            for _ in 0..31 {
                assert_eq!(
                    rank.commit(&twice).unwrap_err().code,
                    CheckpointErrorCode::Exists
                );
            }
            let stopped = rank.commit(&twice).unwrap_err();
            assert_eq!(stopped.code, CheckpointErrorCode::Invalid);
            assert!(stopped.text.contains("none tries again alone"), "{stopped}");
        }
        together.wait();
    });
    restarts(&cluster, id(1, 1), 1);
}

/// Staged bytes that are damaged, without a copy, cost one version of all ranks, and stop none of them.
#[test]
fn a_version_that_is_damaged_while_it_is_staged_is_given_up_and_the_program_goes_on() {
    let cluster = Cluster {
        staging: StagingShare::All,
        helpers: 0,
        ..Cluster::new(&["one", "two"])
    };
    let together = Gate::new(2);
    cluster.start(|of, mut rank, _| {
        commit(&mut rank, of, 1);
        rank.wait(id(1, 1), PersistenceLevel::Durable, MOST)
            .unwrap();
        commit(&mut rank, of, 2);
        if of == 1 {
            let staged = cluster.memory_of("two").join("1.staging");
            damage(&staged, 65536 + CHUNK..65537 + CHUNK);
        }
        together.wait();
        let next = rank.commit(&items(&state(of, 3))).unwrap();
        assert_eq!(next.id, id(1, 3));
        assert_eq!(next.degraded.is_some(), of == 1, "{next:?}");
        if let Some(why) = next.degraded {
            assert!(why.contains("version 1.2 is lost"), "{why}");
            assert_eq!(rank.stats().damaged, 1);
        }
        together.wait();
        let lost = rank
            .wait(id(1, 2), PersistenceLevel::Committed, MOST)
            .unwrap_err();
        assert_eq!(lost.code, CheckpointErrorCode::NotFound);
        // Version 3 is not de-staged either.
        if of == 1 {
            let staged = cluster.memory_of("two").join("1.staging");
            damage(&staged, 65536 + CHUNK..65537 + CHUNK);
        }
    });
    restarts(&cluster, id(1, 1), 1);
}

#[test]
fn ranks_that_make_other_calls_are_told() {
    let cluster = Cluster::new(&["one", "one"]);
    cluster.start(|of, mut rank, _| {
        rank.require(VERSIONS).unwrap();
        for step in 1..=2 {
            commit(&mut rank, of, step);
        }
        rank.end().unwrap();
    });
    cluster.start(|of, mut rank, _| {
        // The newest, and another one.
        let which = (of == 1).then_some(id(1, 1));
        let other = rank.restart(which, &mut []).unwrap_err();
        assert_eq!(other.code, CheckpointErrorCode::Invalid);
        assert!(other.text.contains("all ranks ask for the same"), "{other}");
        // As often as it is wanted, before the first commit.
        for which in [id(1, 2), id(1, 1), id(1, 2)] {
            assert_eq!(rank.restart(Some(which), &mut []).unwrap(), Some(which));
        }
        match of {
            // It keeps its versions: its end does not depend on others.
            0 => rank.end().unwrap(),
            _ => {
                let ended = rank.restart(None, &mut []).unwrap_err();
                assert!(ended.text.contains("rank 0 ends, and this one restarts"));
            }
        }
    });
    cluster.start(|of, mut rank, _| {
        rank.restart(Some(id(1, 1)), &mut []).unwrap();
        commit(&mut rank, of, 3);
        let late = rank.restart(None, &mut []).unwrap_err();
        assert_eq!(late.code, CheckpointErrorCode::Invalid, "{late}");
    });
    restarts(&cluster, id(3, 1), 3);
}
