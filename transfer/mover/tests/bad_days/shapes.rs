//! Trees of unusual shape, and many jobs on one slow store.

use crate::common::*;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;
use tarn_mover::Trees;
use tarn_ports::{CopySource, Mover};
use tarn_types::manifest::EntryKind;
use tarn_types::part::Verify;

/// Folders with two links each to the next one hold twice as much at every step: they end before memory does.
#[test]
fn links_do_not_multiply_a_few_folders_without_end() {
    let dir = Scratch::new();
    let from = dir.at("from");
    let long = |first: &str| format!("{first}{}", "x".repeat(249));
    let folder = |at: usize| dir.at(&format!("d{at}"));
    std::fs::create_dir_all(&from).unwrap();
    for at in 0..15 {
        std::fs::create_dir_all(folder(at)).unwrap();
        for first in ["a", "b"] {
            symlink(folder(at + 1), folder(at).join(long(first))).unwrap();
        }
    }
    std::fs::create_dir_all(folder(15)).unwrap();
    symlink(folder(0), from.join("all")).unwrap();
    let why = Trees::new().list_source(&from, &quiet()).unwrap_err();
    let why = why.failure.message;
    assert!(
        why.contains("again and again") && why.contains("64 MiB"),
        "{why}"
    );
    // A few times are well.
    std::fs::remove_file(from.join("all")).unwrap();
    symlink(folder(10), from.join("some")).unwrap();
    let some = Trees::new().list_source(&from, &quiet()).unwrap();
    assert_eq!(some.entries.len(), 63);
}

#[test]
fn holes_links_and_attributes_are_kept() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir_all(from.join("d")).unwrap();
    let sparse = std::fs::File::create(from.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(&bytes(5000, 1), 10 << 20).unwrap();
    sparse
        .write_all_at(&bytes(100, 2), (40 << 20) + 123)
        .unwrap();
    std::fs::File::create(from.join("hole"))
        .unwrap()
        .set_len(3 << 20)
        .unwrap();
    std::fs::write(from.join("one"), "linked").unwrap();
    std::fs::hard_link(from.join("one"), from.join("d/two")).unwrap();
    let mover = Trees::new();
    let can = mover.capabilities(&dir.0).unwrap();
    if can.xattrs {
        for path in ["d", "one"] {
            let file = std::fs::File::open(from.join(path)).unwrap();
            rustix::fs::fsetxattr(
                &file,
                "user.tarn-test",
                b"value\0x",
                rustix::fs::XattrFlags::empty(),
            )
            .unwrap();
        }
    }
    std::fs::set_permissions(from.join("one"), std::fs::Permissions::from_mode(0o444)).unwrap();
    let mut job = job(vec![source(&from)], &to);
    job.verify = Verify::Readback;
    let report = mover.copy(&job, &quiet()).unwrap();
    assert_eq!(report.lost, Vec::<String>::new());
    assert_eq!(model(&from), model(&to));
    let blocks = |path: &str| std::fs::metadata(to.join(path)).unwrap().blocks() * 512;
    if can.sparse {
        assert!(blocks("sparse") < 1 << 20, "{}", blocks("sparse"));
        assert!(blocks("hole") < 1 << 20);
        let entry = report.manifests[0].find(b"sparse").unwrap();
        let EntryKind::File { extents, .. } = &entry.kind else {
            panic!()
        };
        assert!(extents.iter().map(|e| e.1).sum::<u64>() < 1 << 20);
        // A listing shows as well how little a sparse file takes.
        let listed = mover.list(&from, &quiet()).unwrap();
        let listed = &listed.find(b"sparse").unwrap().kind;
        assert!(matches!(listed, EntryKind::File { extents: e, .. } if e == extents));
    }
    let inode = |path: &str| std::fs::metadata(to.join(path)).unwrap().ino();
    assert_eq!(inode("one"), inode("d/two"));
    if can.xattrs {
        let mut value = [0; 64];
        let file = std::fs::File::open(to.join("d/two")).unwrap();
        let n = rustix::fs::fgetxattr(&file, "user.tarn-test", &mut value[..]).unwrap();
        assert_eq!(&value[..n], b"value\0x");
        assert_eq!(report.manifests[0].find(b"d").unwrap().xattrs.len(), 1);
    }
    // The hash that a dense copy would have.
    let dense = dir.at("dense");
    std::fs::create_dir(&dense).unwrap();
    std::fs::write(
        dense.join("sparse"),
        std::fs::read(from.join("sparse")).unwrap(),
    )
    .unwrap();
    let dense = mover.digest(&dense, &quiet()).unwrap();
    let hash = |m: &tarn_types::manifest::Manifest| match &m.find(b"sparse").unwrap().kind {
        EntryKind::File { hash, .. } => *hash,
        _ => None,
    };
    assert_eq!(hash(&dense), hash(&report.manifests[0]));
    assert!(mover.stored(&to).unwrap() < 4 << 20);
}

#[test]
fn attack_nobody_acts_as_the_owner_of_a_copy_that_was_made_of_somebody_elses_file() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    std::fs::create_dir(&from).unwrap();
    let other = Some(1234);
    let files = [
        ("own", None, None, 0o6755),
        ("owner", other, None, 0o755),
        ("group", None, other, 0o4755),
    ];
    for (name, user, group, _) in files {
        let path = from.join(name);
        std::fs::write(&path, "#!/bin/sh").unwrap();
        if std::os::unix::fs::chown(&path, user, group).is_err() {
            eprintln!("SKIPPED: only root can give files away");
            return;
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o6755)).unwrap();
    }
    let report = copy(&from, &to).unwrap();
    for (name, _, _, mode) in files {
        let copied = to.join(name).metadata().unwrap();
        assert_eq!(copied.mode() & 0o7777, mode, "{name}");
        assert_eq!(
            report.manifests[0].find(name.as_bytes()).unwrap().mode,
            mode
        );
    }
    Trees::new()
        .verify(&to, &report.manifests[0], &quiet())
        .unwrap();
}

#[test]
fn deep_trees_do_not_need_many_open_files() {
    let dir = Scratch::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    let mut at = from.clone();
    for _ in 0..700 {
        at.push("d");
    }
    std::fs::create_dir_all(&at).unwrap();
    std::fs::write(at.join("f"), "deep").unwrap();
    let report = copy(&from, &to).unwrap();
    assert_eq!(report.manifests[0].entries.len(), 701);
    Trees::new()
        .verify(&to, &report.manifests[0], &quiet())
        .unwrap();
    assert_eq!(Trees::new().list(&to, &quiet()).unwrap().entries.len(), 701);
}

#[test]
fn one_file_or_link_is_a_tree_of_one_entry() {
    let dir = Scratch::new();
    let (file, link, folder) = (dir.at("file"), dir.at("link"), dir.at("folder"));
    std::fs::write(&file, "content").unwrap();
    symlink("elsewhere", &link).unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("in"), "in").unwrap();
    let named = |root: &Path, name: Option<&str>| CopySource {
        peer: None,
        as_entry: name.map(Into::into),
        ..source(root)
    };
    let to = dir.at("to");
    let sources = vec![
        named(&file, None),
        named(&file, Some("renamed")),
        named(&link, None),
        named(&folder, Some("sub")),
    ];
    let report = Trees::new().copy(&job(sources, &to), &quiet()).unwrap();
    let all: Vec<_> = model(&to)
        .into_keys()
        .map(|k| String::from_utf8(k).unwrap())
        .collect();
    assert_eq!(all, ["file", "link", "renamed", "sub", "sub/in"]);
    assert_eq!(&*report.manifests[1].entries[0].path, b"renamed");
    assert_eq!(
        Trees::new().list(&file, &quiet()).unwrap().entries[0].path,
        report.manifests[0].entries[0].path
    );
    assert_eq!(
        Trees::new().digest(&file, &quiet()).unwrap(),
        report.manifests[0]
    );
}

#[test]
fn many_small_sources_share_one_rate() {
    let dir = Scratch::new();
    let mover = Trees::new().with_threads(4);
    let jobs: Vec<_> = (0..2)
        .map(|i| {
            let from = dir.at(&format!("from{i}"));
            std::fs::create_dir(&from).unwrap();
            for f in 0..4 {
                std::fs::write(from.join(f.to_string()), bytes(500_000, f)).unwrap();
            }
            let mut job = job(vec![source(&from)], &dir.at(&format!("to{i}")));
            job.rate = 10_000_000;
            job
        })
        .collect();
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for job in &jobs {
            scope.spawn(|| mover.copy(job, &quiet()).unwrap());
        }
    });
    // 4 MB at 10 MB/s for both jobs together.
    let took = start.elapsed();
    assert!(
        took >= Duration::from_millis(380) && took < Duration::from_secs(3),
        "{took:?}"
    );
}
