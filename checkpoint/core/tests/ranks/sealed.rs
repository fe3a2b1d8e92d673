//! Versions that are sealed: all other tests of ranks have such versions, too.

use crate::cluster::*;
use std::path::Path;
use tarn_checkpoint_core::manifest::{CHUNK, ObjectPiece, PieceLocation, RankManifest};
use tarn_checkpoint_core::rank::Replicate;
use tarn_checkpoint_core::{Arena, CheckpointErrorCode, PersistenceLevel, StagingShare};
use tarn_ports::{Medium, Vault};
use tarn_types::block::{self, BlockKind};

/// Whether some of the ranks' content is stored anywhere below a folder.
fn is_to_be_seen(folder: &Path, needles: &[Vec<u8>]) -> bool {
    let mut files = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => {
                    files += 1;
                    let bytes = std::fs::read(entry.path()).unwrap();
                    // They begin at lines.
                    let mut lines = bytes.chunks(64);
                    if lines.any(|line| needles.iter().any(|n| line.starts_with(n))) {
                        return true;
                    }
                }
            }
        }
    }
    assert!(files >= 4, "{files} files");
    false
}

/// On tiers, in memory, with buddies, and as copies; while some of it is staged, and afterwards.
#[test]
fn nothing_of_a_sealed_version_lies_anywhere() {
    for secret in [Some(1), None] {
        let cluster = Cluster {
            secret,
            staging: StagingShare::Half,
            buddies: 1,
            replicate: Replicate::Copies(1),
            ..Cluster::new(&["one", "two"])
        };
        let needles: Vec<Vec<u8>> = (0..2)
            .flat_map(|rank| (1..=2).map(move |step| filled(1, rank, step)[..48].to_vec()))
            .collect();
        let gate = Gate::new(2);
        cluster.start(|of, mut rank, _| {
            for step in 1..=2 {
                let version = commit(&mut rank, of, step);
                gate.wait();
                let seen = is_to_be_seen(cluster.folder.path(), &needles);
                assert_eq!(seen, secret.is_none());
                gate.wait();
                rank.wait(version, PersistenceLevel::Replicated, MOST)
                    .unwrap();
            }
            rank.end().unwrap();
        });
        let seen = is_to_be_seen(cluster.folder.path(), &needles);
        assert_eq!(seen, secret.is_none());
        restarts(&cluster, id(1, 2), 2);
    }
}

fn committed(secret: Option<u8>) -> Cluster {
    let cluster = Cluster {
        secret,
        staging: StagingShare::None,
        ..Cluster::new(&["one"])
    };
    cluster.start(|of, mut rank, _| {
        rank.require(VERSIONS).unwrap();
        for step in 1..=2 {
            commit(&mut rank, of, step);
        }
        rank.end().unwrap();
    });
    cluster
}

#[test]
fn without_its_key_a_version_is_refused_and_stays() {
    let mut cluster = committed(Some(1));
    for (secret, expected) in [(Some(2), "another key"), (None, "not asked for encryption")] {
        cluster.secret = secret;
        cluster.start(|_, mut rank, _| {
            let fault = restart(&mut rank).unwrap_err();
            assert_eq!(fault.code, CheckpointErrorCode::Invalid, "{fault}");
            assert!(fault.text.contains(expected), "{fault}");
        });
    }
    cluster.secret = Some(1);
    restarts(&cluster, id(1, 2), 2);
}

#[test]
fn a_program_begins_to_seal_what_it_had_in_clear() {
    let mut cluster = committed(None);
    cluster.secret = Some(1);
    cluster.clear = true;
    cluster.start(|of, mut rank, _| {
        let (found, now) = restart(&mut rank).unwrap().expect("a version");
        assert_eq!((found, now == state(of, 2)), (id(1, 2), true));
        commit(&mut rank, of, 3);
        rank.end().unwrap();
    });
    cluster.clear = false;
    restarts(&cluster, id(2, 1), 3);
}

/// An attacker who may write to a tier puts known content in clear there.
#[test]
fn attack_a_version_in_clear_is_refused_by_who_seals() {
    let mut cluster = committed(None);
    cluster.secret = Some(1);
    cluster.start(|_, mut rank, _| {
        let fault = restart(&mut rank).unwrap_err();
        assert_eq!(fault.code, CheckpointErrorCode::Invalid, "{fault}");
        assert!(fault.text.contains("TARN_PHX_CLEAR=1"), "{fault}");
    });
}

/// An arena of rank 0, with all its checksums right: version 1.2 is made of 1.1 and 1.2.
fn forge(cluster: &Cluster, of: impl Fn(&RankManifest, &RankManifest) -> RankManifest) {
    let device = std::sync::Arc::new(tarn_media::Device::new(tarn_media::Profile::none()));
    let tier = tarn_media::Folder::new(&cluster.tier_of("one"), device).unwrap();
    let mut medium = tier.open("1/0.arena").unwrap();
    let all = 0..medium.size();
    let mut windows = medium.windows(std::slice::from_ref(&all)).unwrap();
    let mut arena = Arena::open(&windows[0]).unwrap();
    let kept = |number| {
        let mut versions = arena.versions().iter();
        let version = versions.find(|v| v.id == id(1, number)).unwrap();
        version.manifest.clone()
    };
    let manifest = of(&kept(1), &kept(2));
    let new = Some((id(1, 2), PersistenceLevel::Durable, manifest));
    arena
        .publish(&mut windows[0], new, |v| v.id != id(1, 2))
        .unwrap();
}

/// The older version is taken, whole.
fn is_found(cluster: &Cluster) {
    cluster.start(|of, mut rank, _| {
        let (found, now) = restart(&mut rank).unwrap().expect("a version");
        assert_eq!((found, now == state(of, 1)), (id(1, 1), true));
        assert_eq!(rank.stats().damaged, 1);
    });
}

/// An attacker who may write to a tier exchanges chunks of a version, and makes all checksums right.
#[test]
fn attack_chunks_that_changed_places_are_found() {
    let cluster = committed(Some(1));
    forge(&cluster, |_, newest| {
        let mut manifest = newest.clone();
        let odd = manifest.objects.iter_mut().find(|o| *o.key == *b"odd");
        let odd = odd.unwrap();
        let [piece] = &odd.pieces[..] else {
            panic!("{} pieces", odd.pieces.len());
        };
        let PieceLocation::Arena(at) = piece.place else {
            panic!("it is staged");
        };
        let chunk = |n: u64| ObjectPiece {
            length: CHUNK,
            place: PieceLocation::Arena(at + n * CHUNK),
            sums: vec![piece.sums[n as usize]],
        };
        odd.pieces = [1, 0, 2].map(chunk).into();
        manifest
    });
    is_found(&cluster);
}

/// An earlier version of the same start, or a part of one, comes back as the newest.
#[test]
fn attack_what_was_sealed_earlier_is_not_the_newest_version() {
    let earlier = |older: &RankManifest, _: &RankManifest| older.clone();
    let one_object = |older: &RankManifest, newest: &RankManifest| {
        let mut manifest = newest.clone();
        let (now, then) = (
            manifest.seal.as_mut().unwrap(),
            older.seal.as_ref().unwrap(),
        );
        let odd = newest.objects.iter().position(|o| *o.key == *b"odd");
        let odd = odd.unwrap();
        manifest.objects[odd].clone_from(&older.objects[odd]);
        now.proofs[odd].clone_from(&then.proofs[odd]);
        manifest
    };
    let one_less = |_: &RankManifest, newest: &RankManifest| {
        let mut manifest = newest.clone();
        manifest.objects.pop();
        manifest.seal.as_mut().unwrap().proofs.pop();
        manifest
    };
    let other_unit = |_: &RankManifest, newest: &RankManifest| {
        let mut manifest = newest.clone();
        manifest.objects[0].unit += 1;
        manifest
    };
    let in_clear =
        |_: &RankManifest, newest: &RankManifest| RankManifest::of(newest.objects.clone());
    forge_and(&earlier);
    forge_and(&one_object);
    forge_and(&one_less);
    forge_and(&other_unit);
    let cluster = committed(Some(1));
    forge(&cluster, in_clear);
    cluster.start(|_, mut rank, _| {
        assert_eq!(
            restart(&mut rank).unwrap_err().code,
            CheckpointErrorCode::Invalid
        );
    });
}

fn forge_and(of: &dyn Fn(&RankManifest, &RankManifest) -> RankManifest) {
    let cluster = committed(Some(1));
    forge(&cluster, of);
    is_found(&cluster);
}

/// A wrapped key that is none is damage: an older version is taken.
#[test]
fn attack_a_key_that_is_none_costs_one_version_only() {
    forge_and(&|_, newest| {
        let mut manifest = newest.clone();
        manifest.seal.as_mut().unwrap().key = [0; 60].into();
        manifest
    });
}

/// Two ranks' parts changed places.
#[test]
fn attack_a_rank_s_part_is_not_another_s() {
    let cluster = Cluster {
        staging: StagingShare::None,
        ..Cluster::new(&["one", "one"])
    };
    cluster.start(|of, mut rank, _| {
        rank.require(VERSIONS).unwrap();
        for step in 1..=2 {
            commit(&mut rank, of, step);
        }
        rank.end().unwrap();
    });
    let path = |rank: u32| cluster.tier_of("one").join(format!("1/{rank}.arena"));
    // The header ends with the rank, and of how many.
    let taken_for = |rank: u32, other: u32| {
        const BLOCK: usize = 4096;
        let mut bytes = std::fs::read(path(rank)).unwrap();
        let (identity, payload) = block::unseal(BlockKind::Header, 0, &bytes[..BLOCK]).unwrap();
        let mut header = payload.to_vec();
        let at = header.len() - 8;
        assert_eq!(header[at..at + 4], rank.to_le_bytes());
        header[at..at + 4].copy_from_slice(&other.to_le_bytes());
        let header = block::seal(BlockKind::Header, identity, 0, &header, BLOCK);
        bytes[..BLOCK].copy_from_slice(&header);
        bytes
    };
    let swapped = [taken_for(1, 0), taken_for(0, 1)];
    for (rank, bytes) in (0..).zip(swapped) {
        std::fs::write(path(rank), bytes).unwrap();
    }
    cluster.start(|_, mut rank, _| {
        let fault = restart(&mut rank).unwrap_err();
        assert_eq!(fault.code, CheckpointErrorCode::Corrupt, "{fault}");
    });
}
