//! Sealed trees: files sealed on their way are opened again, copied as they are, resumed, and refused when they were
//! changed.

mod common;

use common::{Scratch, build, bytes, clean, contents, job, model, quiet, source, trees};
use proptest::prelude::*;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tarn_mover::Trees;
use tarn_ports::{Control, CopyJob, CopyReport, CopySource, Mover, MoverError};
use tarn_seal::file::{HEADER, PIECE, TRAILER, sealed_len};
use tarn_types::event::RunErrorKind;
use tarn_types::key::{DataKey, KeyId};
use tarn_types::part::Verify;
use zeroize::Zeroizing;

fn key(of: u8) -> Arc<DataKey> {
    let secret = Zeroizing::new([of ^ 0x5a; 32]);
    Arc::new(DataKey::new(KeyId([of; 16]), secret))
}

/// A job from a tree that is sealed or not to one that is sealed or not.
fn turn(from: &Path, of: Option<&Arc<DataKey>>, to: &Path, by: Option<&Arc<DataKey>>) -> CopyJob {
    let from = CopySource {
        sealed: of.cloned(),
        ..source(from)
    };
    CopyJob {
        seal: by.cloned(),
        ..job(vec![from], to)
    }
}

fn run(job: &CopyJob) -> Result<CopyReport, MoverError> {
    Trees::new().copy(job, &quiet())
}

/// As many threads as share a large file.
fn run_by(threads: usize, job: &CopyJob) -> Result<CopyReport, MoverError> {
    Trees::new().with_threads(threads).copy(job, &quiet())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_tree_comes_back(entries in trees(), level in 0usize..3) {
        let dir = Scratch::new();
        let at = |name: &str| dir.at(name);
        build(&at("from"), &entries);
        let verify = [Verify::None, Verify::Copy, Verify::Readback][level];
        let with = |job: CopyJob| CopyJob { verify, ..job };
        let key = key(1);
        let sealed = run(&with(turn(&at("from"), None, &at("sealed"), Some(&key)))).unwrap();
        let whole = Trees::new().digest(&at("from"), &quiet()).unwrap();
        prop_assert_eq!(sealed.manifests[0].hash(), whole.hash());
        let there = Trees::new().digest_sealed(&at("sealed"), &key, &quiet()).unwrap();
        prop_assert_eq!(there.hash(), whole.hash());
        // Once more as it is, and open, where it must be what it was.
        let known = |from: &str| {
            let mut job = with(turn(&at(from), Some(&key), &at("to"), None));
            job.sources[0].manifest = Some(sealed.manifests[0].clone());
            job
        };
        let same = CopyJob { seal: Some(Arc::clone(&key)), dest: at("same"), staging: at("same.s"), ..known("sealed") };
        prop_assert_eq!(run(&same).unwrap().manifests[0].hash(), whole.hash());
        run(&known("same")).unwrap();
        prop_assert_eq!(model(&at("to")), model(&at("from")));
        for entry in &whole.entries {
            let name = std::str::from_utf8(&entry.path);
            if let (Ok(name), tarn_types::manifest::EntryKind::File { size, .. }) = (name, &entry.kind) {
                let stored = at("sealed").join(name).metadata().unwrap();
                prop_assert_eq!(Some(stored.size()), sealed_len(*size));
            }
        }
    }
}

/// A tree with a file that several threads share, one of a piece, an empty one, and one with holes.
fn varied(from: &Path) {
    std::fs::create_dir_all(from).unwrap();
    std::fs::write(from.join("large"), bytes(21 * (1 << 20) + 5, 3)).unwrap();
    std::fs::write(from.join("piece"), bytes(PIECE, 4)).unwrap();
    std::fs::write(from.join("empty"), b"").unwrap();
    let holes = std::fs::File::create(from.join("holes")).unwrap();
    holes.set_len(5 << 20).unwrap();
    holes.write_all_at(b"here", (3 << 20) + 77).unwrap();
}

#[test]
fn nothing_of_the_content_is_to_be_seen_and_every_copy_has_salts_of_its_own() {
    let dir = Scratch::new();
    varied(&dir.at("from"));
    for to in ["one", "two"] {
        run_by(3, &turn(&dir.at("from"), None, &dir.at(to), Some(&key(1)))).unwrap();
    }
    for (name, needle) in [("large", 4096), ("piece", 4096), ("holes", 3 << 20)] {
        let plain = std::fs::read(dir.at("from").join(name)).unwrap();
        let needle = &plain[needle..needle + 100];
        let sealed = ["one", "two"].map(|d| std::fs::read(dir.at(d).join(name)).unwrap());
        assert!(!sealed[0].windows(100).any(|w| w == needle), "{name}");
        let chunks = sealed[0][HEADER..].chunks(4096);
        let same = chunks
            .zip(sealed[1][HEADER..].chunks(4096))
            .filter(|(a, b)| a == b);
        assert_eq!(same.count(), 0, "{name}");
    }
    run_by(
        3,
        &turn(&dir.at("one"), Some(&key(1)), &dir.at("back"), None),
    )
    .unwrap();
    assert_eq!(
        contents(&model(&dir.at("back"))),
        contents(&model(&dir.at("from")))
    );
}

#[test]
fn a_sealed_file_is_copied_as_it_is_or_sealed_with_another_key() {
    let dir = Scratch::new();
    varied(&dir.at("from"));
    run(&turn(&dir.at("from"), None, &dir.at("one"), Some(&key(1)))).unwrap();
    run_by(
        3,
        &turn(
            &dir.at("one"),
            Some(&key(1)),
            &dir.at("same"),
            Some(&key(1)),
        ),
    )
    .unwrap();
    let read = |d: &str| std::fs::read(dir.at(d).join("large")).unwrap();
    assert!(read("one") == read("same"), "piece by piece");
    run_by(
        3,
        &turn(
            &dir.at("one"),
            Some(&key(1)),
            &dir.at("other"),
            Some(&key(2)),
        ),
    )
    .unwrap();
    run(&turn(
        &dir.at("other"),
        Some(&key(2)),
        &dir.at("back"),
        None,
    ))
    .unwrap();
    assert_eq!(
        contents(&model(&dir.at("back"))),
        contents(&model(&dir.at("from")))
    );
}

#[test]
fn what_was_touched_is_refused_and_nothing_of_it_appears() {
    let dir = Scratch::new();
    varied(&dir.at("from"));
    run(&turn(
        &dir.at("from"),
        None,
        &dir.at("sealed"),
        Some(&key(1)),
    ))
    .unwrap();
    let stride = (PIECE + TRAILER) as u64;
    let places = [
        ("large", 3),
        ("large", 60),
        ("large", HEADER as u64 + 70 * stride + 9),
        ("large", HEADER as u64 + stride - 1),
        ("piece", HEADER as u64),
        ("empty", HEADER as u64 + 2),
        ("holes", HEADER as u64 + 10 * stride),
    ];
    for (name, at) in places {
        let path = dir.at("sealed").join(name);
        let before = path.metadata().unwrap().modified().unwrap();
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        let touch = |byte: u8| {
            file.write_all_at(&[byte], at).unwrap();
            file.set_modified(before).unwrap();
        };
        touch(byte[0] ^ 8);
        // Opened, copied as it is, or only read.
        for (to, by) in [("to", None), ("same", Some(key(1)))] {
            let job = turn(&dir.at("sealed"), Some(&key(1)), &dir.at(to), by.as_ref());
            let refused = run_by(3, &job).unwrap_err().failure;
            assert_eq!(
                refused.kind,
                RunErrorKind::Corrupt,
                "{name} {at}: {}",
                refused.message
            );
            assert!(refused.message.contains(name), "{}", refused.message);
            assert!(!dir.at(to).exists() && clean(&job));
        }
        assert!(
            Trees::new()
                .digest_sealed(&dir.at("sealed"), &key(1), &quiet())
                .is_err()
        );
        touch(byte[0]);
    }
    let length = dir.at("sealed/large").metadata().unwrap().len();
    let file = std::fs::File::options()
        .write(true)
        .open(dir.at("sealed/large"))
        .unwrap();
    file.set_len(length - stride).unwrap();
    let cut = run(&turn(&dir.at("sealed"), Some(&key(1)), &dir.at("to"), None)).unwrap_err();
    assert!(cut.failure.message.contains("cut off"), "{cut}");
}

#[test]
fn another_key_or_none_is_said() {
    let dir = Scratch::new();
    varied(&dir.at("from"));
    run(&turn(
        &dir.at("from"),
        None,
        &dir.at("sealed"),
        Some(&key(1)),
    ))
    .unwrap();
    let other = run(&turn(&dir.at("sealed"), Some(&key(2)), &dir.at("to"), None)).unwrap_err();
    assert!(other.failure.message.contains("another key"), "{other}");
    let plain = run(&turn(&dir.at("from"), Some(&key(1)), &dir.at("to"), None)).unwrap_err();
    assert!(
        plain.failure.message.contains("not sealed by tarn")
            || plain.failure.message.contains("cut off"),
        "{plain}"
    );
}

#[test]
fn a_cancelled_sealing_goes_on_under_nonces_of_its_own() {
    let dir = Scratch::new();
    std::fs::create_dir(dir.at("from")).unwrap();
    std::fs::write(dir.at("from/large"), bytes(40 << 20, 3)).unwrap();
    let sealed = Some(key(1));
    let job = CopyJob {
        // Slow enough to be caught in the middle.
        rate: 80 << 20,
        ..turn(&dir.at("from"), None, &dir.at("to"), sealed.as_ref())
    };
    let control = Control::default();
    let mover = Trees::new().with_threads(2);
    let cancelled = std::thread::scope(|scope| {
        let copying = scope.spawn(|| mover.copy(&job, &control));
        while control.done.load(Ordering::Relaxed) < 16 << 20 && !copying.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        control.cancel.store(true, Ordering::Relaxed);
        copying.join().unwrap()
    });
    assert_eq!(cancelled.unwrap_err().failure.kind, RunErrorKind::Cancelled);
    let half = std::fs::read(job.staging.join("large")).unwrap();
    let attempt = |file: &[u8], piece: usize| {
        let end = HEADER + (piece + 1) * (PIECE + TRAILER);
        file[end - 8..end].to_vec()
    };
    // One of the chunks that are there is damaged meanwhile: it is found, and only it is sealed again.
    let file = std::fs::File::options()
        .write(true)
        .open(job.staging.join("large"))
        .unwrap();
    file.write_all_at(&[half[HEADER] ^ 1], HEADER as u64)
        .unwrap();
    let again = run(&CopyJob {
        rate: 0,
        ..job.clone()
    })
    .unwrap();
    assert!(
        again.resumed >= 7 << 20 && again.resumed < 40 << 20,
        "{}",
        again.resumed
    );
    assert_eq!(again.bytes + again.resumed, 40 << 20);
    let whole = std::fs::read(dir.at("to/large")).unwrap();
    assert_eq!(whole[..HEADER], half[..HEADER], "the file goes on");
    assert_ne!(
        attempt(&whole, 0),
        attempt(&half, 0),
        "a nonce is used once"
    );
    run(&turn(&dir.at("to"), sealed.as_ref(), &dir.at("back"), None)).unwrap();
    assert_eq!(
        contents(&model(&dir.at("back"))),
        contents(&model(&dir.at("from")))
    );
}

#[test]
fn what_another_key_has_begun_is_begun_anew() {
    let dir = Scratch::new();
    varied(&dir.at("from"));
    let first = turn(&dir.at("from"), None, &dir.at("to"), Some(&key(1)));
    let control = Control::default();
    control.cancel.store(true, Ordering::Relaxed);
    assert!(Trees::new().copy(&first, &control).is_err());
    // As if it had come far: all files, and the record of them.
    run(&CopyJob {
        dest: dir.at("done"),
        ..first.clone()
    })
    .unwrap();
    std::fs::rename(dir.at("done"), &first.staging).unwrap();
    let second = CopyJob {
        seal: Some(key(2)),
        ..first
    };
    assert_eq!(run(&second).unwrap().resumed, 0);
    run(&turn(&dir.at("to"), Some(&key(2)), &dir.at("back"), None)).unwrap();
    assert_eq!(
        contents(&model(&dir.at("back"))),
        contents(&model(&dir.at("from")))
    );
}

#[test]
fn several_sources_are_merged_into_a_sealed_tree() {
    let dir = Scratch::new();
    varied(&dir.at("from"));
    std::fs::create_dir(dir.at("more")).unwrap();
    std::fs::write(dir.at("more/empty"), b"").unwrap();
    std::fs::write(dir.at("more/added"), b"more").unwrap();
    let mut both = turn(&dir.at("from"), None, &dir.at("to"), Some(&key(1)));
    both.sources.push(source(&dir.at("more")));
    run(&both).unwrap();
    std::fs::write(dir.at("more/piece"), b"other").unwrap();
    both.dest = dir.at("conflict");
    assert_eq!(run(&both).unwrap_err().failure.kind, RunErrorKind::Conflict);
    run(&turn(&dir.at("to"), Some(&key(1)), &dir.at("back"), None)).unwrap();
    assert_eq!(std::fs::read(dir.at("back/added")).unwrap(), b"more");
    assert_eq!(
        std::fs::read(dir.at("back/piece")).unwrap(),
        bytes(PIECE, 4)
    );
}
