//! Ranks of a program: they get their commits back, whatever has happened to some of them.

mod cluster;
mod flush;
#[path = "../common/hall.rs"]
mod hall;
mod replicas;
mod requirements;
mod sealed;
mod starts;

use cluster::*;
use hall::Hall;
use std::ops::Range;
use tarn_checkpoint_core::manifest::CHUNK;
use tarn_checkpoint_core::{
    CheckpointErrorCode, CommitObject, Empty, PersistenceLevel, Shape, StagingShare,
};

#[test]
fn what_is_committed_comes_back_in_the_next_start() {
    for staging in [
        StagingShare::None,
        StagingShare::Half,
        StagingShare::All,
        StagingShare::Bytes(CHUNK),
    ] {
        for helpers in [0, 1, 3] {
            let cluster = Cluster {
                staging,
                helpers,
                ..Cluster::new(&["one"])
            };
            cluster.start(|of, mut rank, _| {
                assert_eq!(restart(&mut rank).unwrap(), None);
                for step in 1..=5 {
                    assert_eq!(commit(&mut rank, of, step), id(1, step));
                }
                let stats = rank.stats();
                assert_eq!((stats.commits, stats.degraded), (5, 0));
                assert_eq!(
                    stats.staged > 0,
                    staging != StagingShare::None,
                    "{staging:?} {helpers}"
                );
                rank.wait(id(1, 5), PersistenceLevel::Durable, MOST)
                    .unwrap();
                assert_eq!(
                    rank.wait(id(1, 6), PersistenceLevel::Committed, MOST)
                        .unwrap_err()
                        .code,
                    CheckpointErrorCode::NotFound
                );
                rank.end().unwrap();
            });
            restarts(&cluster, id(1, 5), 5);
            // That start has committed nothing: the next finds the same.
            restarts(&cluster, id(1, 5), 5);
        }
    }
}

/// The helper gets no further than to report the version durable, until its figures were looked at.
#[test]
fn who_sees_a_version_durable_sees_what_its_destaging_took() {
    let cluster = Cluster {
        staging: StagingShare::All,
        ..Cluster::new(&["one"])
    };
    let hall = Hall::new(&cluster.nodes);
    let (go, gone) = std::sync::mpsc::channel::<()>();
    hall.after_each(move |reached| {
        if reached.durable > 0 {
            // The test hangs up once it has looked.
            let _ = gone.recv_timeout(MOST);
        }
    });
    let mut rank = cluster.begin(&hall, 0).unwrap();
    commit(&mut rank, 0, 1);
    let waited = rank.wait(id(1, 1), PersistenceLevel::Durable, MOST);
    let stats = rank.stats();
    drop(go);
    waited.unwrap();
    assert!(stats.last_staged > 0);
    assert!(!stats.last_destage.is_zero());
    assert_eq!(stats.destage, stats.last_destage);
}

/// The process ends at once after a commit: the staged bytes are in memory only.
#[test]
fn what_was_staged_as_the_process_ended_is_found_by_the_next() {
    let cluster = Cluster {
        helpers: 0,
        staging: StagingShare::All,
        ..Cluster::new(&["one", "one"])
    };
    cluster.start(|of, mut rank, _| {
        commit(&mut rank, of, 1);
        commit(&mut rank, of, 2);
        assert!(rank.stats().last_staged > 0);
    });
    restarts(&cluster, id(1, 2), 2);
    // And it continues.
    cluster.start(|of, mut rank, _| {
        restart(&mut rank).unwrap();
        // Each start has a number of its own, also one that commits nothing.
        assert_eq!(commit(&mut rank, of, 3), id(3, 1));
    });
    restarts(&cluster, id(3, 1), 3);
}

/// One node loses its memory, as by a loss of power: the buddy has its staged bytes.
#[test]
fn the_buddy_has_what_was_staged_on_a_node_that_lost_its_memory() {
    for nodes in [["one", "two"], ["one", "one"]] {
        let cluster = Cluster {
            helpers: 0,
            staging: StagingShare::All,
            buddies: 1,
            same_node: true,
            ..Cluster::new(&nodes)
        };
        cluster.start(|of, mut rank, _| {
            commit(&mut rank, of, 1);
            assert_eq!(rank.stats().degraded, 0);
            rank.wait(id(1, 1), PersistenceLevel::Committed, MOST)
                .unwrap();
        });
        let lost = cluster.memory_of("one");
        match nodes[1] {
            "two" => std::fs::remove_dir_all(lost).unwrap(),
            _ => std::fs::remove_file(lost.join("0.staging")).unwrap(),
        }
        restarts(&cluster, id(1, 1), 1);
    }
}

/// Two buddies, each on a node of its own: this node and one of theirs lose their memory.
#[test]
fn of_several_buddies_one_is_enough() {
    let cluster = Cluster {
        helpers: 0,
        staging: StagingShare::All,
        buddies: 2,
        ..Cluster::new(&["one", "two", "three", "three"])
    };
    cluster.start(|of, mut rank, _| {
        commit(&mut rank, of, 1);
        assert_eq!(rank.stats().degraded, 0);
        rank.wait(id(1, 1), PersistenceLevel::Committed, MOST)
            .unwrap();
    });
    for node in ["one", "two"] {
        std::fs::remove_dir_all(cluster.memory_of(node)).unwrap();
    }
    restarts(&cluster, id(1, 1), 1);
    // Three other nodes there are not.
    let cluster = Cluster {
        buddies: 3,
        ..cluster
    };
    cluster.start(|of, mut rank, _| {
        restart(&mut rank).unwrap();
        let committed = rank.commit(&items(&state(of, 2))).unwrap();
        let why = committed.degraded.unwrap();
        assert!(why.contains("start ranks on more nodes"), "{why}");
    });
}

/// Without a copy only the version before is left, on all ranks.
#[test]
fn a_version_that_one_rank_has_lost_is_nobodys() {
    let cluster = Cluster {
        helpers: 0,
        staging: StagingShare::All,
        ..Cluster::new(&["one", "two"])
    };
    cluster.start(|of, mut rank, _| {
        commit(&mut rank, of, 1);
        commit(&mut rank, of, 2);
    });
    std::fs::remove_dir_all(cluster.memory_of("two")).unwrap();
    restarts(&cluster, id(1, 1), 1);
    // Rank 0's remains of version 2 never meet the version 2 of this start.
    cluster.start(|of, mut rank, _| {
        restart(&mut rank).unwrap();
        commit(&mut rank, of, 11);
    });
    restarts(&cluster, id(3, 1), 11);
}

#[test]
fn a_damaged_version_is_told_and_the_one_before_is_taken() {
    let cluster = Cluster {
        staging: StagingShare::None,
        ..Cluster::new(&["one", "two"])
    };
    cluster.start(|of, mut rank, _| {
        rank.require(VERSIONS).unwrap();
        for step in 1..=2 {
            commit(&mut rank, of, step);
        }
        rank.end().unwrap();
    });
    // The first object of the newer version.
    let arena = cluster.tier_of("two").join("1/1.arena");
    let at = place(&arena, id(1, 2), b"large");
    damage(&arena, at + 5..at + 6);
    cluster.start(|of, mut rank, _| {
        let (found, now) = restart(&mut rank).unwrap().expect("a version");
        assert_eq!(found, id(1, 1));
        assert!(now == state(of, 1));
        assert_eq!(rank.stats().damaged, 1);
    });
}

#[test]
fn a_buddy_that_fails_costs_copies_and_no_data() {
    let cluster = Cluster {
        staging: StagingShare::All,
        buddies: 1,
        ..Cluster::new(&["one", "two", "three"])
    };
    cluster.start(|of, mut rank, hall| {
        commit(&mut rank, of, 1);
        rank.wait(id(1, 1), PersistenceLevel::Durable, MOST)
            .unwrap();
        hall.deafen(1);
        let committed = rank.commit(&items(&state(of, 2))).unwrap();
        // Rank 0 was rank 1's to keep.
        assert_eq!(committed.degraded.is_some(), of == 0, "{committed:?}");
        rank.wait(id(1, 2), PersistenceLevel::Durable, MOST)
            .unwrap();
        // Another pair: nothing is missing any more.
        assert_eq!(rank.commit(&items(&state(of, 3))).unwrap().degraded, None);
        rank.wait(id(1, 3), PersistenceLevel::Durable, MOST)
            .unwrap();
        rank.end().unwrap();
    });
    restarts(&cluster, id(1, 3), 3);
}

#[test]
fn a_rank_without_a_buddy_on_another_node_is_told() {
    let cluster = Cluster {
        buddies: 1,
        ..Cluster::new(&["one", "one"])
    };
    cluster.start(|of, mut rank, _| {
        let committed = rank.commit(&items(&state(of, 1))).unwrap();
        assert!(
            committed
                .degraded
                .unwrap()
                .contains("start ranks on more nodes")
        );
        assert_eq!(rank.stats().staged, 0);
    });
    restarts(&cluster, id(1, 1), 1);
}

/// A rank whose commit failed has no such version; the others wait for it no longer than needed, and no slot is given up for it.
#[test]
fn a_commit_that_fails_on_one_rank_leaves_a_version_that_all_have() {
    let cluster = Cluster::new(&["one", "two"]);
    cluster.start(|of, mut rank, _| {
        commit(&mut rank, of, 1);
        let state_now = state(of, 2);
        let mut two = items(&state_now);
        if of == 1 {
            // Twice the same key.
            two[0].key = two[1].key;
        }
        assert_eq!(
            rank.commit(&two).map_err(|e| e.code).err(),
            (of == 1).then_some(CheckpointErrorCode::Exists)
        );
        assert_eq!(
            rank.wait(id(1, 2), PersistenceLevel::Committed, MOST)
                .unwrap_err()
                .code,
            CheckpointErrorCode::NotFound
        );
    });
    restarts(&cluster, id(1, 1), 1);
    cluster.start(|of, mut rank, _| {
        for step in 1..=5 {
            let state_now = state(of, step);
            let mut now = items(&state_now);
            if of == 1 && step == 2 {
                now[0].key = now[1].key;
            }
            assert_eq!(rank.commit(&now).is_ok(), of == 0 || step != 2);
        }
    });
    restarts(&cluster, id(3, 5), 5);
}

/// Boxes with ghosts, rows and copies, from four ranks to three to five, byte by byte.
#[test]
fn shaped_objects_are_divided_among_any_number_of_ranks() {
    const ROWS: u64 = 61;
    const COLUMNS: u64 = 7;
    const ROW: u64 = 24;
    const ALL_ROWS: u64 = 100;
    let element = |y: u64, x: u64, step: u64| (y * 1000 + x * 10 + step).to_le_bytes();
    // By rows, with two ghosts.
    let cut = |rank: u64, ranks: u64| {
        let (first, last) = (ROWS * rank / ranks, ROWS * (rank + 1) / ranks);
        let first = if rank > 0 { first - 2 } else { first };
        let last = if rank + 1 < ranks { last + 2 } else { last };
        [[ROWS, first, last - first, 2], [COLUMNS, 0, COLUMNS, 0]]
    };
    let block = |shape: [[u64; 4]; 2], step: u64| -> Vec<u8> {
        let rows = shape[0][1]..shape[0][1] + shape[0][2];
        rows.flat_map(|y| (0..COLUMNS).flat_map(move |x| element(y, x, step)))
            .collect()
    };
    // Later ranks have more.
    let share = |rank: u64, ranks: u64| {
        ALL_ROWS * rank * rank / (ranks * ranks)
            ..ALL_ROWS * (rank + 1) * (rank + 1) / (ranks * ranks)
    };
    let rows = |range: Range<u64>, step: u64| -> Vec<u8> {
        range
            .flat_map(|r| (0..ROW).map(move |b| (r * 7 + b + step) as u8))
            .collect()
    };
    let mut cluster = Cluster::new(&["one", "one", "two", "two"]);
    let same: Vec<u8> = vec![42; 1000];
    let mut step = 0;
    for (nodes, generation) in [
        (vec!["one", "one", "two", "two"], 1),
        (vec!["two", "two", "one"], 2),
        (vec!["one", "two", "one", "two", "one"], 3),
    ] {
        cluster.nodes = nodes;
        let ranks = cluster.nodes.len() as u64;
        cluster.start(|of, mut rank, _| {
            let shape = cut(of.into(), ranks);
            let mine = share(of.into(), ranks);
            if step > 0 {
                let mut filled = [
                    vec![0; block(shape, 0).len()],
                    vec![0; rows(mine.clone(), 0).len()],
                    vec![0; same.len()],
                ];
                let [a, b, c] = &mut filled;
                let mut objects = [
                    Empty {
                        key: b"block",
                        shape: Shape::Block(shape.to_vec()),
                        bytes: a,
                    },
                    Empty {
                        key: b"rows",
                        shape: Shape::Irregular(ROW),
                        bytes: b,
                    },
                    Empty {
                        key: b"same",
                        shape: Shape::Replicated,
                        bytes: c,
                    },
                ];
                assert_eq!(
                    rank.restart(None, &mut objects).unwrap(),
                    Some(id(generation - 1, 2))
                );
                assert!(
                    filled[0] == block(shape, step)
                        && filled[1] == rows(mine.clone(), step)
                        && filled[2] == same,
                    "rank {of} of {ranks}"
                );
            }
            for now in [step + 1, step + 2] {
                let (a, b) = (block(shape, now), rows(mine.clone(), now));
                let items = [
                    CommitObject {
                        key: b"block",
                        unit: 8,
                        shape: Shape::Block(shape.to_vec()),
                        bytes: &a,
                    },
                    CommitObject {
                        key: b"rows",
                        unit: 1,
                        shape: Shape::Irregular(ROW),
                        bytes: &b,
                    },
                    CommitObject {
                        key: b"same",
                        unit: 1,
                        shape: Shape::Replicated,
                        bytes: &same,
                    },
                ];
                rank.commit(&items).unwrap();
            }
            rank.wait(id(generation, 2), PersistenceLevel::Durable, MOST)
                .unwrap();
            rank.end().unwrap();
        });
        step += 2;
    }
    // The remains of earlier starts are gone.
    for (node, arenas) in [("one", 3), ("two", 2)] {
        let tier = cluster.tier_of(node);
        let folders: Vec<_> = std::fs::read_dir(&tier)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(folders, ["3"], "{node}");
        assert_eq!(std::fs::read_dir(tier.join("3")).unwrap().count(), arenas);
        assert_eq!(
            std::fs::read_dir(cluster.memory_of(node)).unwrap().count(),
            0
        );
    }
    // Half of it is on a node that is not there.
    cluster.nodes = vec!["one"];
    cluster.start(|_, mut rank, _| {
        let lost = rank.restart(None, &mut []).unwrap_err();
        assert_eq!(lost.code, CheckpointErrorCode::Corrupt);
        assert!(
            lost.text
                .contains("version 3.2 the part of rank 1, 3 is not"),
            "{lost}"
        );
    });
    // An object of each rank alone (`Shape::Own`) cannot be divided.
    cluster.nodes = vec!["one", "two"];
    cluster.start(|_, mut rank, _| {
        let mut bytes = vec![0; 1000];
        let mut objects = [Empty {
            key: b"same",
            shape: Shape::Own,
            bytes: &mut bytes,
        }];
        assert_eq!(
            rank.restart(None, &mut objects).unwrap_err().code,
            CheckpointErrorCode::Shape
        );
    });
}

#[test]
fn objects_that_are_not_as_they_were_are_refused() {
    let cluster = Cluster::new(&["one"]);
    cluster.start(|of, mut rank, _| {
        commit(&mut rank, of, 1);
        rank.end().unwrap();
    });
    for (key, size, code) in [
        (&b"small"[..], 101, CheckpointErrorCode::Invalid),
        (b"other", 100, CheckpointErrorCode::Invalid),
    ] {
        cluster.start(|_, mut rank, _| {
            let mut bytes = vec![0; size];
            let mut objects = [Empty {
                key,
                shape: Shape::Own,
                bytes: &mut bytes,
            }];
            assert_eq!(rank.restart(None, &mut objects).unwrap_err().code, code);
            assert_eq!(
                rank.restart(Some(id(9, 9)), &mut []).unwrap_err().code,
                CheckpointErrorCode::NotFound
            );
        });
    }
}

/// An arena that cannot be read is no reason to begin from nothing: the new one would take its place.
#[test]
fn an_arena_that_cannot_be_opened_is_told_and_kept() {
    let cluster = Cluster::new(&["one"]);
    cluster.start(|of, mut rank, _| {
        commit(&mut rank, of, 1);
        rank.end().unwrap();
    });
    let arena = cluster.tier_of("one").join("1/0.arena");
    let whole = std::fs::read(&arena).unwrap();
    // Of another version of tarn.
    damage(&arena, 7..8);
    let hall = Hall::new(&["one"]);
    let refused = cluster.begin(&hall, 0).map(drop).unwrap_err();
    assert_eq!(refused.code, CheckpointErrorCode::Corrupt);
    assert!(
        refused.text.contains("1/0.arena: this is no arena"),
        "{refused}"
    );
    damage(&arena, 7..8);
    assert!(std::fs::read(&arena).unwrap() == whole);
    restarts(&cluster, id(1, 1), 1);
}
