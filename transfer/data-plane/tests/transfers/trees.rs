//! All that a copy must keep is kept when it comes from a peer.

use crate::common::*;
use rustix::fs::{XattrFlags, setxattr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tarn_mover::Trees;
use tarn_ports::{Control, Mover};
use tarn_types::event::RunErrorKind;
use tarn_types::part::Verify;

/// Sizes around every border of the mover: nothing, a piece, a chunk, a run of chunks, the work that threads share.
const SIZES: &[usize] = &[
    0,
    1,
    4095,
    65_536,
    65_537,
    131_072,
    131_073,
    1 << 20,
    (1 << 20) + 1,
    (3 << 20) + 5,
    16 << 20,
    (16 << 20) + 1,
    (19 << 20) + 77,
];

fn fill(ends: &Ends) {
    for (n, size) in SIZES.iter().enumerate() {
        ends.write(&format!("case/{}/f{n}", n % 3), &bytes(*size, n as u8));
    }
    for n in 0..200 {
        ends.write(&format!("many/d{}/{n}", n % 7), &bytes(n * 13, n as u8));
    }
    let at = |p: &str| ends.from.join(p);
    symlink("../case/0/f0", at("many/link")).unwrap();
    symlink("gone", at("dangling")).unwrap();
    std::fs::hard_link(at("case/0/f12"), at("again")).unwrap();
    std::fs::hard_link(at("many/d1/1"), at("many/d2/alias")).unwrap();
    std::fs::create_dir(at("empty")).unwrap();
    setxattr(at("many/d1/1"), "user.unit", b"m\0/s", XattrFlags::empty()).unwrap();
    setxattr(at("empty"), "user.why", b"none", XattrFlags::empty()).unwrap();
    let old = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    for (path, mode) in [
        ("many/d1/1", 0o640),
        ("case/0/f12", 0o755),
        ("many/d3/3", 0o400),
        ("empty", 0o711),
    ] {
        let path = at(path);
        std::fs::File::open(&path)
            .unwrap()
            .set_modified(old)
            .unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

#[test]
fn a_tree_arrives_as_it_is() {
    for verify in [Verify::None, Verify::Readback] {
        let ends = Ends::new();
        fill(&ends);
        let mut job = ends.job();
        job.verify = verify;
        let report = copy(&job).unwrap();
        let manifest = ends.manifest();
        assert_eq!(model(&ends.to), model(&ends.from));
        assert_eq!(digest(&ends.to), manifest);
        assert_eq!(report.manifests, [manifest]);
        assert_eq!((report.bytes, report.resumed), (ends.manifest().bytes(), 0));
        // Files of several names were sent once, and nothing twice.
        assert_eq!(ends.server.counts().bytes, report.bytes);
        let alias = std::fs::metadata(ends.to.join("again")).unwrap();
        assert_eq!(
            alias.ino(),
            std::fs::metadata(ends.to.join("case/0/f12")).unwrap().ino()
        );
        assert!(clean(&job));
    }
}

#[test]
fn holes_are_not_sent() {
    let ends = Ends::new();
    let make = |name: &str, size: u64, data: &[(u64, usize)]| {
        let file = std::fs::File::create(ends.from.join(name)).unwrap();
        file.set_len(size).unwrap();
        for (offset, len) in data {
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes(*len, 3), *offset).unwrap();
        }
    };
    make("large", 64 << 20, &[(5 << 20, 100_000), (40 << 20, 4096)]);
    make("medium", 4 << 20, &[(1 << 20, 5000)]);
    make("small", 100_000, &[(40_960, 10)]);
    make("nothing", 30 << 20, &[]);
    let report = ends.fetch().unwrap();
    assert_eq!(model(&ends.to), model(&ends.from));
    assert_eq!(report.bytes, ends.manifest().bytes());
    let sent = ends.server.counts().bytes;
    assert!(sent < 1 << 20, "{sent}");
    for name in ["large", "medium", "nothing"] {
        let blocks = |root: &Path| std::fs::metadata(root.join(name)).unwrap().blocks();
        assert!(blocks(&ends.to) <= blocks(&ends.from) + 8, "{name}");
    }
}

#[test]
fn every_byte_of_a_file_name() {
    let ends = Ends::new();
    for byte in (1..=255u8).filter(|b| *b != b'/') {
        let name = [b"n".as_slice(), &[byte]].concat();
        let folder = ends.from.join(std::ffi::OsStr::from_bytes(&[b'd', byte]));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join(std::ffi::OsStr::from_bytes(&name)), [byte]).unwrap();
        // A name of this byte alone, but for the two that every folder has.
        let alone = ends
            .from
            .join(std::ffi::OsStr::from_bytes(&[byte, byte, byte]));
        std::fs::write(alone, [byte; 3]).unwrap();
    }
    ends.fetch().unwrap();
    assert_eq!(model(&ends.to), model(&ends.from));
    assert_eq!(model(&ends.to).len(), 3 * 254);
}

#[test]
fn ten_thousand_small_files() {
    let ends = Ends::new();
    for n in 0..10_000u32 {
        if n.is_multiple_of(100) {
            std::fs::create_dir(ends.from.join(format!("{}", n / 100))).unwrap();
        }
        let path = ends.from.join(format!("{}/file{n}", n / 100));
        std::fs::write(path, n.to_le_bytes().repeat(n as usize % 50)).unwrap();
    }
    let report = ends.fetch().unwrap();
    assert_eq!(report.manifests, [ends.manifest()]);
    assert_eq!(model(&ends.to), model(&ends.from));
}

#[test]
fn local_and_remote_trees_unite() {
    let ends = Ends::new();
    let here = ends.dir.path().join("here");
    std::fs::create_dir_all(here.join("both")).unwrap();
    ends.write("both/theirs", &bytes(200_000, 1));
    ends.write("both/shared", &bytes(20 << 20, 2));
    ends.write("small", b"alike");
    std::fs::write(here.join("both/ours"), b"ours").unwrap();
    std::fs::write(here.join("both/shared"), bytes(20 << 20, 2)).unwrap();
    std::fs::write(here.join("small"), b"alike").unwrap();
    for remote_first in [false, true] {
        let mut sources = vec![local(&here), remote(&ends.client, ends.manifest())];
        if remote_first {
            sources.reverse();
        }
        let job = job(sources, &ends.to);
        copy(&job).unwrap();
        let got = digest(&ends.to);
        let names: Vec<_> = got
            .entries
            .iter()
            .map(|e| String::from_utf8_lossy(&e.path))
            .collect();
        assert_eq!(
            names,
            ["both", "both/ours", "both/shared", "both/theirs", "small"]
        );
        assert_eq!(
            std::fs::read(ends.to.join("both/shared")).unwrap(),
            bytes(20 << 20, 2)
        );
        Trees::new().remove(&ends.to).unwrap();
    }
    // Two that differ are a conflict, before anything is sent.
    std::fs::write(here.join("small"), b"other").unwrap();
    let before = ends.server.counts();
    let conflict = job(
        vec![local(&here), remote(&ends.client, ends.manifest())],
        &ends.to,
    );
    assert_eq!(
        copy(&conflict).unwrap_err().failure.kind,
        RunErrorKind::Conflict
    );
    assert_eq!(ends.server.counts(), before);
}

#[test]
fn chosen_paths_alone_are_sent() {
    let ends = Ends::new();
    ends.write("a/one", b"1");
    ends.write("a/two", b"22");
    ends.write("b/three", b"333");
    let mut job = ends.job();
    job.sources[0].only = Some(vec![b"a/two".as_slice().into()]);
    copy(&job).unwrap();
    assert_eq!(
        model(&ends.to).into_keys().collect::<Vec<_>>(),
        [Path::new("a"), Path::new("a/two")]
    );
    assert_eq!(ends.server.counts().bytes, 2);
}

#[test]
fn a_rate_holds_for_a_peer_too() {
    let ends = Ends::new();
    ends.write("f", &bytes(6 << 20, 1));
    let mut job = ends.job();
    job.rate = 20 << 20;
    let start = std::time::Instant::now();
    copy(&job).unwrap();
    assert!(
        start.elapsed() >= Duration::from_millis(250),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn without_hashes_the_content_is_hashed_here() {
    let ends = Ends::new();
    ends.write("f", &bytes(3 << 20, 1));
    ends.write("g", b"g");
    let listed = Trees::new().list(&ends.from, &Control::default()).unwrap();
    let report = copy(&job(vec![remote(&ends.client, listed)], &ends.to)).unwrap();
    assert_eq!(report.manifests, [ends.manifest()]);
}

#[test]
fn a_tree_without_a_manifest_is_refused() {
    let ends = Ends::new();
    let mut job = ends.job();
    job.sources[0].manifest = None;
    assert!(copy(&job).unwrap_err().failure.message.contains("manifest"));
    let mut bad = ends.job();
    let mut entry = {
        ends.write("f", b"f");
        ends.manifest().entries.remove(0)
    };
    entry.path = b"../f".as_slice().into();
    bad.sources[0]
        .manifest
        .as_mut()
        .unwrap()
        .entries
        .push(entry);
    assert_eq!(copy(&bad).unwrap_err().failure.kind, RunErrorKind::Escape);
    assert!(Arc::strong_count(&ends.replica_registry) >= 2);
}
