//! Sources whose bytes, entries or modes have changed.

use crate::common::*;
use crate::{CHUNK, fails, meanwhile, refused, with_manifest, writable};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tarn_mover::Trees;
use tarn_ports::{Control, CopySource, Mover};
use tarn_types::event::RunErrorKind;
use tarn_types::part::Verify;

#[test]
fn a_flipped_byte_is_found_by_copy_and_verify() {
    let (_dir, from, to) = Scratch::with_source();
    for size in [100, 3 * CHUNK + 5] {
        std::fs::write(from.join("f"), bytes(size, 1)).unwrap();
        let job = with_manifest(&from, &to);
        let file = writable(from.join("f"));
        let time = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(&[bytes(size, 1)[size - 1] ^ 1], size as u64 - 1)
            .unwrap();
        file.set_modified(time).unwrap();
        refused(&job, RunErrorKind::Corrupt, "does not match its hash");
        assert!(!to.exists() && clean(&job));
        let manifest = job.sources[0].manifest.as_ref().unwrap();
        let failure = Trees::new()
            .verify(&from, manifest, &quiet())
            .unwrap_err()
            .failure;
        assert_eq!(failure.kind, RunErrorKind::Corrupt);
        assert!(failure.message.contains("/from/f"), "{}", failure.message);
    }
}

#[test]
fn of_several_sources_the_bad_one_is_named() {
    let (dir, _, to) = Scratch::with_source();
    let mut sources = Vec::new();
    for (name, size) in [("a", 100), ("b", 3 * CHUNK), ("c", 10)] {
        let root = dir.at(&format!("part-{name}"));
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join(name), bytes(size, 1)).unwrap();
        sources.append(&mut with_manifest(&root, &to).sources);
    }
    let job = job(sources, &to);
    let named = |kind| {
        let error = Trees::new().copy(&job, &quiet()).unwrap_err();
        assert_eq!(error.failure.kind, kind, "{error}");
        assert!(!to.exists() && clean(&job));
        error.tree
    };
    let b = dir.at("part-b/b");
    let time = b.metadata().unwrap().modified().unwrap();
    writable(b.clone())
        .write_all_at(b"x", 2 * CHUNK as u64)
        .unwrap();
    assert_eq!(named(RunErrorKind::SourceChanged), Some(1));
    writable(b.clone()).set_modified(time).unwrap();
    assert_eq!(named(RunErrorKind::Corrupt), Some(1));
    std::fs::write(&b, bytes(3 * CHUNK, 1)).unwrap();
    writable(b).set_modified(time).unwrap();
    std::fs::remove_dir_all(dir.at("part-c")).unwrap();
    assert_eq!(named(RunErrorKind::SourceChanged), Some(2));
    std::fs::create_dir(dir.at("part-c")).unwrap();
    assert_eq!(named(RunErrorKind::SourceChanged), Some(2));
    std::fs::create_dir(dir.at("part-c/c")).unwrap();
    assert_eq!(named(RunErrorKind::SourceChanged), Some(2));
}

#[test]
fn a_source_that_is_not_what_it_was() {
    let (_dir, from, to) = Scratch::with_source();
    std::fs::write(from.join("f"), "one").unwrap();
    std::fs::write(from.join("g"), "two").unwrap();
    let job = with_manifest(&from, &to);
    let fails = |expected| refused(&job, RunErrorKind::SourceChanged, expected);
    std::fs::write(from.join("f"), "ONE").unwrap();
    fails("other content");
    std::fs::write(from.join("f"), "longer").unwrap();
    fails("another size");
    std::fs::remove_file(from.join("f")).unwrap();
    fails("is missing");
    std::fs::create_dir(from.join("f")).unwrap();
    fails("another kind");
    std::fs::remove_dir(from.join("f")).unwrap();
    std::fs::write(from.join("f"), "one").unwrap();
    std::fs::write(from.join("new"), "").unwrap();
    fails("not in the manifest");
    std::fs::remove_file(from.join("new")).unwrap();
    std::fs::set_permissions(from.join("f"), std::fs::Permissions::from_mode(0o640)).unwrap();
    fails("another mode");
    assert!(!to.exists() && clean(&job));
}

#[test]
fn a_listed_source_that_changed_before_it_was_read() {
    let (_dir, from, to) = Scratch::with_source();
    std::fs::write(from.join("f"), "one").unwrap();
    let manifest = Trees::new().list(&from, &quiet()).unwrap();
    std::fs::write(from.join("f"), "two").unwrap();
    let file = writable(from.join("f"));
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    let source = CopySource {
        manifest: Some(manifest),
        ..source(&from)
    };
    let outcome = Trees::new().copy(&job(vec![source], &to), &quiet());
    fails(outcome, RunErrorKind::SourceChanged, "since it was listed");
}

#[test]
fn a_source_changes_or_vanishes_while_it_is_copied() {
    let (_dir, from, to) = Scratch::with_source();
    let big = from.join("big");
    let write = || std::fs::write(&big, bytes(40 * CHUNK, 3)).unwrap();
    let job = job(vec![source(&from)], &to);
    let change = |change: &(dyn Fn() + Sync)| {
        write();
        let outcome = meanwhile(&job, &Control::default(), change);
        fails(outcome, RunErrorKind::SourceChanged, "/from");
        assert!(!to.exists() && clean(&job));
    };
    let open = || writable(&big);
    change(&|| open().write_all_at(b"changed", 39 << 20).unwrap());
    change(&|| open().set_len(5).unwrap());
    change(&|| std::fs::remove_file(&big).unwrap());
    change(&|| std::fs::write(from.join("appears"), "").unwrap());
}

/// The bytes that are read back differ from those written: no source is to blame.
#[test]
fn a_destination_that_changes_is_found_when_it_is_read_back() {
    let (dir, from, to) = Scratch::with_source();
    std::fs::write(from.join("big"), bytes(40 * CHUNK, 3)).unwrap();
    let mut job = job(vec![source(&from)], &to);
    job.verify = Verify::Readback;
    job.rate = 80 << 20;
    let ended = AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        let spoil = || {
            while !ended.load(Ordering::Relaxed) {
                if let Ok(file) = OpenOptions::new().write(true).open(job.staging.join("big")) {
                    let _ = file.write_all_at(b"spoilt", 3 * CHUNK as u64);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        scope.spawn(spoil);
        let outcome = Trees::new().with_threads(2).copy(&job, &quiet());
        ended.store(true, Ordering::Relaxed);
        outcome.unwrap_err()
    });
    assert_eq!(error.failure.kind, RunErrorKind::Corrupt, "{error}");
    assert_eq!(error.tree, None, "{error}");
    assert!(!to.exists() && clean(&job));
    // In peace it is well, holes and all, on any number of threads.
    let sparse = writable(from.join("big"));
    sparse.set_len(60 * CHUNK as u64 + 7).unwrap();
    sparse.write_all_at(b"end", 60 * CHUNK as u64 + 1).unwrap();
    job.rate = 0;
    for threads in [1, 2, 5] {
        job.dest = dir.at(&format!("copy-{threads}"));
        let movers = Trees::new().with_threads(threads);
        movers.copy(&job, &quiet()).unwrap();
        assert_eq!(model(&from), model(&job.dest));
    }
}

#[test]
fn a_new_hard_link_to_a_source_is_no_change() {
    let (dir, from, to) = Scratch::with_source();
    std::fs::write(from.join("big"), bytes(24 * CHUNK, 3)).unwrap();
    let job = job(vec![source(&from)], &to);
    let link = || std::fs::hard_link(from.join("big"), dir.at("view")).unwrap();
    meanwhile(&job, &Control::default(), link).unwrap();
    assert_eq!(model(&from), model(&to));
}
