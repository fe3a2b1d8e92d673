//! Versions on other nodes too: a node that is gone with all that it had.

use crate::cluster::*;
use tarn_checkpoint_core::rank::Replicate;
use tarn_checkpoint_core::{
    Arena, CheckpointErrorCode, PersistenceLevel, PieceLocation, StagingShare,
};
use tarn_media::ReadOnlyMapping;

fn lose(cluster: &Cluster, node: &str) {
    std::fs::remove_dir_all(cluster.folder.path().join(node)).unwrap();
}

/// Five versions, of which every second is on other nodes; then nodes are replaced.
fn replaced(replicate: Replicate, nodes: &[&'static str], lost: &[&'static str]) -> Cluster {
    let mut cluster = Cluster {
        staging: StagingShare::Half,
        replicate,
        replicate_every: 2,
        tier: u64::MAX,
        ..Cluster::new(nodes)
    };
    cluster.start(|of, mut rank, _| {
        for step in 1..=5 {
            commit(&mut rank, of, step);
        }
        rank.wait(id(1, 4), PersistenceLevel::Replicated, MOST)
            .unwrap();
        let odd = rank
            .wait(id(1, 5), PersistenceLevel::Replicated, MOST)
            .unwrap_err();
        assert_eq!(odd.code, CheckpointErrorCode::NotFound);
        assert!(odd.text.contains("every 2th is"), "{odd}");
        let stats = rank.stats();
        assert_eq!((stats.replicated, stats.bare, stats.degraded), (2, 0, 0));
    });
    for node in lost {
        lose(&cluster, node);
    }
    let new = |node: &&'static str| if lost.contains(node) { "new" } else { node };
    cluster.nodes = nodes.iter().map(new).collect();
    cluster
}

/// The program resumes from version 4, is replicated again, and loses another node.
fn goes_on(mut cluster: Cluster, next: &'static str) {
    cluster.start(|of, mut rank, _| {
        let (found, now) = restart(&mut rank).unwrap().expect("a version");
        assert_eq!(found, id(1, 4), "rank {of}");
        assert!(now == state(of, 4), "rank {of} has another state");
        commit(&mut rank, of, 11);
        // The restored version is kept until others have a new one.
        rank.wait(id(2, 1), PersistenceLevel::Durable, MOST)
            .unwrap();
    });
    restarts(&cluster, id(2, 1), 11);
    cluster.start(|of, mut rank, _| {
        restart(&mut rank).unwrap();
        for step in 21..=22 {
            commit(&mut rank, of, step);
        }
        rank.end().unwrap();
    });
    lose(&cluster, next);
    for node in &mut cluster.nodes {
        if *node == next {
            *node = "newer";
        }
    }
    restarts(&cluster, id(4, 2), 22);
    // Only files of the last two starts are left.
    let left = std::fs::read_dir(cluster.tier_of(cluster.nodes[0])).unwrap();
    let left: Vec<_> = left
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        left.iter()
            .all(|folder| folder != "1" || cluster.nodes[0] != "new"),
        "{left:?}"
    );
}

#[test]
fn a_node_that_is_gone_is_replaced_from_copies() {
    let nodes = ["one", "one", "two", "three"];
    let cluster = replaced(Replicate::Copies(1), &nodes, &["one"]);
    goes_on(cluster, "three");
    // Two nodes at once take two copies.
    let cluster = replaced(
        Replicate::Copies(2),
        &["one", "two", "three"],
        &["one", "two"],
    );
    restarts(&cluster, id(1, 4), 4);
}

#[test]
fn a_node_that_is_gone_is_made_again_from_its_set() {
    let nodes = ["one", "two", "three", "one", "two"];
    let cluster = replaced(Replicate::Parity(3), &nodes, &["two"]);
    goes_on(cluster, "three");
    // Sets of two and three.
    let nodes = ["one", "two", "three", "four", "five"];
    let cluster = replaced(Replicate::Parity(2), &nodes, &["five"]);
    restarts(&cluster, id(1, 4), 4);
}

/// The error names the ranks whose parts are lost.
#[test]
fn two_nodes_of_one_set_are_too_many() {
    let nodes = ["one", "two", "three"];
    let cluster = replaced(Replicate::Parity(3), &nodes, &["one", "two"]);
    cluster.start(|_, mut rank, _| {
        let refused = restart(&mut rank).unwrap_err();
        assert_eq!(refused.code, CheckpointErrorCode::Corrupt);
        assert!(refused.text.contains("the part of rank 0, 1"), "{refused}");
    });
}

/// A damaged parity is no reason to fail where it is not needed, and none to restore anything else where it is.
#[test]
fn a_damaged_parity_gives_nothing_wrong() {
    let nodes = ["one", "two", "three"];
    let cluster = replaced(Replicate::Parity(3), &nodes, &[]);
    let file = cluster.tier_of("three").join("1/2.parity");
    let length = file.metadata().unwrap().len();
    damage(&file, length / 4..length / 4 + 1);
    for at in (65536..length).step_by(4096) {
        damage(&file, at..at + 1);
    }
    restarts(&cluster, id(1, 5), 5);
    lose(&cluster, "one");
    cluster.start(|_, mut rank, _| {
        assert_eq!(
            restart(&mut rank).unwrap_err().code,
            CheckpointErrorCode::Corrupt
        );
    });
}

/// The list of the set's members and their manifests is damaged where it would be read first: another of the set has it too.
#[test]
fn a_set_of_which_one_list_is_damaged_is_made_again_by_another() {
    let nodes = ["one", "two", "three"];
    let cluster = replaced(Replicate::Parity(3), &nodes, &[]);
    let file = cluster.tier_of("two").join("1/1.parity");
    let arena = Arena::open(&ReadOnlyMapping::open(&file).unwrap()).unwrap();
    for version in arena.versions() {
        let mut objects = version.manifest.objects.iter();
        let members = objects.find(|o| *o.key == *b"members").unwrap();
        let PieceLocation::Arena(at) = members.pieces[0].place else {
            panic!("it is whole");
        };
        damage(&file, at + 3..at + 4);
    }
    lose(&cluster, "one");
    restarts(&cluster, id(1, 4), 4);
}

/// A file that was kept for others and cannot be opened is removed with the other remains of earlier starts, and not before.
#[test]
fn what_is_kept_and_cannot_be_opened_is_removed_once_a_newer_start_is_kept() {
    for (replicate, name) in [
        (Replicate::Copies(1), "1/0.copy"),
        (Replicate::Parity(2), "1/1.parity"),
    ] {
        let cluster = replaced(replicate, &["one", "two"], &[]);
        let file = cluster.tier_of("two").join(name);
        damage(&file, 7..8);
        cluster.start(|of, mut rank, _| {
            restart(&mut rank).unwrap();
            assert!(file.exists());
            for step in 6..=7 {
                commit(&mut rank, of, step);
            }
            rank.end().unwrap();
        });
        assert!(!file.exists(), "{name}");
        restarts(&cluster, id(2, 2), 7);
    }
}

#[test]
fn a_rank_that_nobody_can_keep_is_told() {
    let cluster = Cluster {
        replicate: Replicate::Copies(1),
        ..Cluster::new(&["one", "one"])
    };
    cluster.start(|of, mut rank, _| {
        commit(&mut rank, of, 1);
        let bare = rank
            .wait(id(1, 1), PersistenceLevel::Replicated, MOST)
            .unwrap_err();
        assert_eq!(bare.code, CheckpointErrorCode::NoSpace, "{bare}");
        let next = rank.commit(&items(&state(of, 2))).unwrap();
        let why = next.degraded.unwrap();
        let wanted = "version 1.1 is not on other nodes: versions are to be on 1 other nodes";
        assert!(why.contains(wanted), "{why}");
        rank.end().unwrap();
    });
    restarts(&cluster, id(1, 2), 2);
}

/// One rank cannot be reached any more: of the versions since, some keep their part and others cannot. All keep the last that all
/// had.
#[test]
fn a_version_that_some_could_not_keep_takes_the_place_of_none() {
    let mut cluster = Cluster {
        staging: StagingShare::None,
        replicate: Replicate::Parity(3),
        replicate_every: 2,
        tier: u64::MAX,
        ..Cluster::new(&["one", "two", "three"])
    };
    let together = Gate::new(3);
    cluster.start(|of, mut rank, hall| {
        for step in 1..=2 {
            commit(&mut rank, of, step);
        }
        rank.wait(id(1, 2), PersistenceLevel::Replicated, MOST)
            .unwrap();
        hall.deafen(1);
        together.wait();
        for step in 3..=9 {
            rank.commit(&items(&state(of, step))).unwrap();
        }
        let bare = rank
            .wait(id(1, 8), PersistenceLevel::Replicated, MOST)
            .unwrap_err();
        assert_eq!(bare.code, CheckpointErrorCode::NoSpace, "{bare}");
        let next = rank.commit(&items(&state(of, 10))).unwrap();
        let why = next.degraded.unwrap();
        assert!(why.contains("is not on other nodes"), "{why}");
    });
    lose(&cluster, "one");
    cluster.nodes = vec!["new", "two", "three"];
    restarts(&cluster, id(1, 2), 2);
}

/// Damaged pieces of a rank's own arena are read from the copy.
#[test]
fn a_copy_stands_in_for_what_is_damaged() {
    let cluster = replaced(Replicate::Copies(1), &["one", "two"], &[]);
    // Only version 4 is elsewhere.
    let arena = cluster.tier_of("two").join("1/1.arena");
    for step in 4..=5 {
        let at = place(&arena, id(1, step), b"large");
        damage(&arena, at + 5..at + 6);
    }
    restarts(&cluster, id(1, 4), 4);
}

#[test]
fn ranks_that_are_told_otherwise_are_refused() {
    let one = Cluster {
        replicate: Replicate::Copies(1),
        ..Cluster::new(&["one", "two"])
    };
    let hall = crate::hall::Hall::new(&one.nodes);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (one, hall) = (&one, &hall);
            scope.spawn(move || {
                let replicate_every = 1 + u64::from(rank);
                let folder = tempfile::tempdir_in("/dev/shm").unwrap();
                let own = Cluster {
                    folder,
                    nodes: one.nodes.clone(),
                    replicate_every,
                    store: crate::flush::Store::default(),
                    ..*one
                };
                let refused = own.begin(hall, rank).map(drop).unwrap_err();
                assert_eq!(refused.code, CheckpointErrorCode::Invalid);
                assert!(
                    refused.text.contains("give all ranks the same settings"),
                    "{refused}"
                );
            });
        }
    });
}
