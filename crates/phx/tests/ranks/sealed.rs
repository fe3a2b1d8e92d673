//! Versions that are sealed: all other tests of ranks have such versions, too.

use crate::cluster::*;
use std::path::Path;
use tarn_phx::manifest::{CHUNK, Piece, Place};
use tarn_phx::rank::Replicate;
use tarn_phx::{Arena, Code, Level, Staging};
use tarn_ports::Vault;

/// Whether some of what ranks held lies anywhere below a folder.
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
            staging: Staging::Half,
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
                rank.wait(version, Level::Replicated, MOST).unwrap();
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
        staging: Staging::None,
        ..Cluster::new(&["one"])
    };
    cluster.start(|of, mut rank, _| {
        rank.ask(VERSIONS).unwrap();
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
    for (secret, says) in [(Some(2), "another key"), (None, "not asked for encryption")] {
        cluster.secret = secret;
        cluster.start(|_, mut rank, _| {
            let fault = restart(&mut rank).unwrap_err();
            assert_eq!(fault.code, Code::Invalid, "{fault}");
            assert!(fault.text.contains(says), "{fault}");
        });
    }
    cluster.secret = Some(1);
    restarts(&cluster, id(1, 2), 2);
}

#[test]
fn a_program_begins_to_seal_what_it_had_in_clear() {
    let mut cluster = committed(None);
    cluster.secret = Some(1);
    cluster.start(|of, mut rank, _| {
        let (found, now) = restart(&mut rank).unwrap().expect("a version");
        assert_eq!((found, now == state(of, 2)), (id(1, 2), true));
        commit(&mut rank, of, 3);
        rank.end().unwrap();
    });
    restarts(&cluster, id(2, 1), 3);
}

/// Who may write to a tier puts chunks of a version into each other's places, and makes all checksums right.
#[test]
fn attack_chunks_that_changed_places_are_found() {
    let cluster = committed(Some(1));
    let device = std::sync::Arc::new(tarn_media::Device::new(tarn_media::Profile::none()));
    let tier = tarn_media::Folder::new(&cluster.tier_of("one"), device).unwrap();
    let mut medium = tier.open("1/0.arena").unwrap();
    let mut arena = {
        use tarn_ports::Medium;
        let all = 0..medium.size();
        let windows = medium.windows(std::slice::from_ref(&all)).unwrap();
        Arena::open(&windows[0]).unwrap()
    };
    let newest = arena.versions().iter().find(|v| v.id == id(1, 2)).unwrap();
    let mut manifest = newest.manifest.clone();
    let odd = manifest.objects.iter_mut().find(|o| *o.key == *b"odd");
    let odd = odd.unwrap();
    let [piece] = &odd.pieces[..] else {
        panic!("{} pieces", odd.pieces.len());
    };
    let Place::Arena(at) = piece.place else {
        panic!("it is staged");
    };
    let chunk = |n: u64| Piece {
        length: CHUNK,
        place: Place::Arena(at + n * CHUNK),
        sums: vec![piece.sums[n as usize]],
    };
    odd.pieces = [1, 0, 2].map(chunk).into();
    {
        use tarn_ports::Medium;
        let all = 0..medium.size();
        let mut windows = medium.windows(std::slice::from_ref(&all)).unwrap();
        let new = Some((id(1, 2), Level::Durable, manifest));
        arena
            .publish(&mut windows[0], new, |v| v.id != id(1, 2))
            .unwrap();
    }
    drop(medium);
    cluster.start(|of, mut rank, _| {
        let (found, now) = restart(&mut rank).unwrap().expect("a version");
        assert_eq!((found, now == state(of, 1)), (id(1, 1), true));
        assert_eq!(rank.stats().damaged, 1);
    });
}
