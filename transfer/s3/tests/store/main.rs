//! Trees in a real object store: there and back, replaced, and its answers when it refuses.

#[path = "../common/mod.rs"]
mod common;
mod conditions;
mod faults;
mod lies;
mod tls;

use common::{Bucket, Proxy, busy, client, many, refusal, swift};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_mover::Trees;
use tarn_ports::{
    Control, CopyJob, CopyReport, CopySource, DeliveryJob, Mover, MoverError, ObjectStore, Over,
    PeerStream, PeerTree, Piece, Watch,
};
use tarn_types::event::RunErrorKind;
use tarn_types::key::{DataKey, KeyId};
use tarn_types::manifest::{EntryKind, Manifest};
use tarn_types::part::Verify;

pub(crate) fn mover(store: Arc<dyn ObjectStore>) -> Trees {
    Trees::new().with_store(store)
}

pub(crate) fn source(root: &Path) -> CopySource {
    CopySource::of(root)
}

pub(crate) fn url(bucket: &Bucket, key: &str) -> PathBuf {
    PathBuf::from(bucket.at(key).to_string())
}

/// Puts a folder into a store, read again.
pub(crate) fn deliver(
    trees: &Trees,
    from: &Path,
    to: &Path,
    owner: &str,
) -> Result<CopyReport, MoverError> {
    let job = DeliveryJob {
        sources: vec![source(from)],
        dest: to.to_path_buf(),
        single: false,
        owner: owner.into(),
        over: Over::Own,
        verify: Verify::Readback,
        rate: 0,
        latency: 0,
    };
    trees.deliver(&job, &Control::default())
}

/// Copies a source into a folder.
pub(crate) fn fetch(trees: &Trees, from: CopySource, to: &Path) -> Result<CopyReport, MoverError> {
    let job = CopyJob {
        sources: vec![from],
        dest: to.to_path_buf(),
        staging: to.with_extension("incoming"),
        replace: false,
        verify: Verify::Copy,
        sync: false,
        rate: 0,
        latency: 0,
        arrivals: None,
        seal: None,
    };
    trees.copy(&job, &Control::default())
}

/// Bytes that differ by place.
pub(crate) fn content(len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((i * 31) >> 3) as u8 ^ (i >> 17) as u8)
        .collect()
}

fn rich(folder: &Path) {
    fs::create_dir_all(folder.join("sub/deep")).unwrap();
    fs::create_dir(folder.join("empty")).unwrap();
    fs::write(folder.join("none"), b"").unwrap();
    fs::write(folder.join("sub/a b+c%20ü&<>'\"~"), b"odd").unwrap();
    fs::write(folder.join("sub/deep/run.sh"), b"#!/bin/sh\n").unwrap();
    fs::write(folder.join("large"), content((20 << 20) + 12_345)).unwrap();
    fs::hard_link(folder.join("none"), folder.join("sub/other-none")).unwrap();
    fs::hard_link(folder.join("sub/deep/run.sh"), folder.join("again.sh")).unwrap();
    symlink("sub/deep/run.sh", folder.join("link")).unwrap();
    for (name, mode) in [
        ("sub/deep/run.sh", 0o750),
        ("empty", 0o711),
        ("large", 0o600),
    ] {
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
}

#[test]
fn a_tree_goes_out_and_comes_back() {
    let bucket = Bucket::new("round");
    let dir = tempfile::tempdir().unwrap();
    let trees = mover(Arc::clone(&bucket.store));
    let from = dir.path().join("from");
    rich(&from);
    let dest = url(&bucket, "there/tree/");
    trees.may_deliver(&dest, "w", &Control::default()).unwrap();
    let report = deliver(&trees, &from, &dest, "w").unwrap();
    let is = trees.digest(&from, &Control::default()).unwrap();
    assert_eq!(report.manifests[0].hash(), is.hash());
    // The keys that other tools see: an object for each file, and tarn's own.
    let keys = bucket.keys("there/tree/");
    let names = [
        ".tarn-manifest",
        "again.sh",
        "large",
        "none",
        "sub/a b+c%20ü&<>'\"~",
        "sub/deep/run.sh",
        "sub/other-none",
    ];
    let mut wanted: Vec<_> = names.iter().map(|n| format!("there/tree/{n}")).collect();
    wanted.sort();
    assert_eq!(keys, wanted);
    assert!(bucket.read("there/tree/large") == content((20 << 20) + 12_345));
    assert!(bucket.uploads("there/").is_empty());
    // The tree that tarn sees: as it was, times and hashes too, without reading it.
    let listed = trees.list(&dest, &Control::default()).unwrap();
    assert_eq!(listed.hash(), is.hash());
    let times = |m: &Manifest| -> BTreeMap<Box<[u8]>, i64> {
        m.entries
            .iter()
            .map(|e| (e.path.clone(), e.mtime))
            .collect()
    };
    assert_eq!(times(&listed), times(&is));
    let back = dir.path().join("back");
    let copied = fetch(&trees, source(&dest), &back).unwrap();
    assert_eq!(copied.manifests[0].hash(), is.hash());
    let again = trees.digest(&back, &Control::default()).unwrap();
    assert_eq!((again.hash(), times(&again)), (is.hash(), times(&is)));
    assert_eq!(fs::metadata(back.join("again.sh")).unwrap().nlink(), 2);
    assert_eq!(
        trees.digest(&dest, &Control::default()).unwrap().hash(),
        is.hash()
    );
}

#[test]
fn what_others_put_is_a_tree_too() {
    let bucket = Bucket::new("plain");
    let trees = mover(Arc::clone(&bucket.store));
    let dir = tempfile::tempdir().unwrap();
    for (key, bytes) in [
        ("in/", ""),
        ("in/a/one", "1"),
        ("in/a/b/two", "22"),
        ("in/empty/", ""),
        ("in/top", ""),
        ("inside", "no"),
    ] {
        bucket.put(key, bytes.as_bytes());
    }
    let at = url(&bucket, "in/");
    let listed = trees.list(&at, &Control::default()).unwrap();
    let paths: Vec<_> = listed
        .entries
        .iter()
        .map(|e| String::from_utf8_lossy(&e.path).into_owned())
        .collect();
    assert_eq!(paths, ["a", "a/b", "a/b/two", "a/one", "empty", "top"]);
    assert_eq!(listed.hash(), None);
    let back = dir.path().join("back");
    let manifest = Some(listed.clone());
    fetch(
        &trees,
        CopySource {
            manifest,
            ..source(&at)
        },
        &back,
    )
    .unwrap();
    assert_eq!(fs::read_to_string(back.join("a/b/two")).unwrap(), "22");
    let meta = fs::metadata(back.join("a/one")).unwrap();
    assert_eq!(
        (meta.mode() & 0o777, meta.mtime_nsec()),
        (0o644, listed.find(b"a/one").unwrap().mtime % 1_000_000_000)
    );
    // One object.
    let one = url(&bucket, "in/a/b/two");
    let listed = trees.list(&one, &Control::default()).unwrap();
    assert_eq!((&*listed.entries[0].path, listed.bytes()), (&b"two"[..], 2));
    fetch(&trees, source(&one), &dir.path().join("one")).unwrap();
    assert_eq!(
        fs::read_to_string(dir.path().join("one/two")).unwrap(),
        "22"
    );
    // Other content of the same length, put in the same second perhaps, is another file.
    let before = trees.list(&at, &Control::default()).unwrap();
    bucket.put("in/a/one", b"2");
    let after = trees.list(&at, &Control::default()).unwrap();
    assert_ne!(
        before.find(b"a/one").unwrap().mtime,
        after.find(b"a/one").unwrap().mtime
    );
    for (key, expected) in [
        ("nothing/", "there is nothing at"),
        ("in/a", "with a `/` at its end"),
    ] {
        let error = trees
            .list(&url(&bucket, key), &Control::default())
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn keys_that_are_no_paths_are_refused() {
    let bucket = Bucket::new("keys");
    bucket.put("double/a//b", b"x");
    bucket.put("both/a", b"x");
    bucket.put("both/a/b", b"x");
    bucket.put("dots/XX/b", b"x");
    // A client cannot ask for such a key; a store may list it.
    let proxy =
        Proxy::new(|_, _| common::Act::Change(vec![("dots/XX/b".into(), "dots/../b".into())]));
    let trees = mover(proxy.client());
    for (prefix, kind, expected) in [
        ("double/", RunErrorKind::Escape, "`double/a//b`"),
        ("both/", RunErrorKind::Io, "`a` in"),
        ("dots/", RunErrorKind::Escape, "`dots/../b`"),
    ] {
        let error = trees
            .list(&url(&bucket, prefix), &Control::default())
            .unwrap_err();
        assert_eq!(error.failure.kind, kind, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// Of 100 objects each (scripts/swift.py); in the soak of 1,000, as stores have them.
#[test]
fn a_tree_of_several_pages() {
    let count = many().unwrap_or(250);
    let bucket = Bucket::new("pages");
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    for i in 0..count {
        let folder = from.join(format!("{:02}", i % 25));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{i}")), format!("{i}")).unwrap();
    }
    let trees = mover(Arc::clone(&bucket.store));
    let dest = url(&bucket, "many/");
    deliver(&trees, &from, &dest, "w").unwrap();
    assert_eq!(bucket.keys("many/").len(), count + 1);
    let back = dir.path().join("back");
    let report = fetch(&trees, source(&dest), &back).unwrap();
    assert_eq!(report.manifests[0].files(), count as u64);
    let last = format!("{}", count - 8);
    let path = back.join(format!("{:02}", (count - 8) % 25)).join(&last);
    assert_eq!(fs::read_to_string(path).unwrap(), last);
}

#[test]
fn only_what_is_the_owners_is_replaced() {
    let bucket = Bucket::new("owners");
    let trees = mover(Arc::clone(&bucket.store));
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("gone")).unwrap();
    fs::write(from.join("gone/x"), b"x").unwrap();
    fs::write(from.join("kept"), content(300_000)).unwrap();
    fs::write(from.join("changed"), b"before").unwrap();
    let dest = url(&bucket, "out/");
    deliver(&trees, &from, &dest, "w").unwrap();
    // Another version: unchanged files are not sent again, removed files go.
    fs::remove_dir_all(from.join("gone")).unwrap();
    fs::write(from.join("changed"), b"later").unwrap();
    let report = deliver(&trees, &from, &dest, "w").unwrap();
    assert_eq!((report.bytes, report.resumed), (5, 300_000));
    assert_eq!(
        bucket.keys("out/"),
        ["out/.tarn-manifest", "out/changed", "out/kept"]
    );
    assert_eq!(bucket.read("out/changed"), b"later");
    // Somebody else's workflow, and somebody's object.
    let refused = |owner: &str, expected: &str| {
        for error in [
            trees
                .may_deliver(&dest, owner, &Control::default())
                .unwrap_err(),
            deliver(&trees, &from, &dest, owner).unwrap_err(),
        ] {
            assert_eq!(error.failure.kind, RunErrorKind::Conflict, "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    };
    refused("another", ".tarn-manifest");
    bucket.put("out/kept", b"mine");
    refused("w", "`kept`");
    bucket.put("out/kept", b"mine");
    assert_eq!(bucket.read("out/kept"), b"mine");
    // A whole bucket is nobody's.
    let whole = PathBuf::from(format!("s3://{}/", bucket.name));
    let error = trees
        .may_deliver(&whole, "w", &Control::default())
        .unwrap_err();
    assert!(error.to_string().contains("name a prefix"), "{error}");
}

#[test]
fn a_name_that_can_be_no_key_is_refused_before_anything_is_put() {
    use std::os::unix::ffi::OsStrExt;
    let bucket = Bucket::new("names");
    let trees = mover(Arc::clone(&bucket.store));
    for name in [
        &b"\xff"[..],
        b"new\nline",
        b".tarn-manifest",
        b".tarn-upload",
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(std::ffi::OsStr::from_bytes(name)), b"x").unwrap();
        fs::write(dir.path().join("a"), b"x").unwrap();
        deliver(&trees, dir.path(), &url(&bucket, "out/"), "w").unwrap_err();
        assert!(bucket.keys("out/").is_empty(), "{name:?}");
    }
}

#[test]
fn refusals_say_what_to_do() {
    let bucket = Bucket::new("refusals");
    let at = url(&bucket, "x/");
    let list = |store| {
        mover(store)
            .list(&at, &Control::default())
            .unwrap_err()
            .to_string()
    };
    let wrong = list(client(&swift().endpoint, common::KEY, "guessed"));
    assert!(
        wrong.contains("check key and secret") && !wrong.contains("guessed"),
        "{wrong}"
    );
    let none = PathBuf::from("s3://no-such-bucket-here/x/");
    let none = mover(Arc::clone(&bucket.store))
        .list(&none, &Control::default())
        .unwrap_err()
        .to_string();
    assert!(
        none.contains("there is no bucket `no-such-bucket-here`"),
        "{none}"
    );
    let proxy = Proxy::new(|_, _| busy());
    let far = "Date: Tue, 15 Nov 1994 08:12:31 GMT\r\n";
    for (status, headers, code, expected) in [
        (
            "403 Forbidden",
            "",
            "AccessDenied",
            "ask the bucket's owner",
        ),
        ("403 Forbidden", far, "AccessDenied", "set the clock"),
        ("403 Forbidden", "", "RequestTimeTooSkewed", "set the clock"),
        (
            "301 Moved",
            "x-amz-bucket-region: eu-7\r\n",
            "PermanentRedirect",
            "AWS_REGION=eu-7",
        ),
        ("400 Bad", "", "ExpiredToken", "get a new one"),
        ("507 Full", "", "XMinioStorageFull", "free space"),
    ] {
        let (status, headers) = (status.to_owned(), headers.to_owned());
        proxy.set(move |_, _| refusal(&status, &headers, code, "words"));
        let error = list(proxy.client());
        assert!(
            error.contains(expected) && error.contains(&at.display().to_string()),
            "{error}"
        );
        assert!(
            !error.contains("X-Amz-") && !error.contains("testing"),
            "{error}"
        );
    }
}

#[test]
fn files_of_a_manifest_that_was_changed_count_as_their_objects() {
    let bucket = Bucket::new("edited");
    let trees = mover(Arc::clone(&bucket.store));
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), b"one").unwrap();
    fs::write(dir.path().join("b"), b"two").unwrap();
    let dest = url(&bucket, "out/");
    deliver(&trees, dir.path(), &dest, "w").unwrap();
    bucket.put("out/a", b"ONE");
    let listed = trees.list(&dest, &Control::default()).unwrap();
    let hash = |path: &[u8]| match listed.find(path).map(|e| &e.kind) {
        Some(EntryKind::File { hash, .. }) => *hash,
        _ => None,
    };
    assert!(hash(b"a").is_none() && hash(b"b").is_some());
    let back = dir.path().join("back");
    fetch(&trees, source(&dest), &back).unwrap();
    assert_eq!(fs::read(back.join("a")).unwrap(), b"ONE");
}

/// A folder that is read as another node's is.
#[derive(Debug)]
struct Near(PathBuf);

struct NearStream<'a> {
    root: &'a Path,
    /// Bytes that were requested and not read yet, piece by piece.
    coming: VecDeque<Vec<u8>>,
}

impl PeerTree for Near {
    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn open<'a>(&'a self, _: &'a dyn Watch) -> Result<Box<dyn PeerStream + 'a>, MoverError> {
        let (root, coming) = (&*self.0, VecDeque::new());
        Ok(Box::new(NearStream { root, coming }))
    }
}

impl PeerStream for NearStream<'_> {
    fn ask(&mut self, pieces: &[Piece<'_>]) -> Result<(), MoverError> {
        for piece in pieces {
            let mut bytes = vec![0; piece.len as usize];
            let path = self.root.join(OsStr::from_bytes(piece.path));
            let file = fs::File::open(path).unwrap();
            file.read_exact_at(&mut bytes, piece.offset).unwrap();
            self.coming.push_back(bytes);
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<(), MoverError> {
        let piece = self.coming.front_mut().expect("what was asked for");
        buffer.copy_from_slice(&piece[..buffer.len()]);
        piece.drain(..buffer.len());
        if piece.is_empty() {
            self.coming.pop_front();
        }
        Ok(())
    }
}

#[test]
fn sealed_trees_and_trees_of_other_stores_go_out_in_clear() {
    let bucket = Bucket::new("sealed");
    let trees = mover(Arc::clone(&bucket.store));
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    rich(&from);
    let secret = zeroize::Zeroizing::new([7; 32]);
    let key = Arc::new(DataKey::new(KeyId([1; 16]), secret));
    let sealed = dir.path().join("sealed");
    let job = CopyJob {
        sources: vec![source(&from)],
        dest: sealed.clone(),
        staging: dir.path().join("incoming"),
        replace: false,
        verify: Verify::Copy,
        sync: false,
        rate: 0,
        latency: 0,
        arrivals: None,
        seal: Some(Arc::clone(&key)),
    };
    let manifest = trees
        .copy(&job, &Control::default())
        .unwrap()
        .manifests
        .remove(0);
    let is = manifest.hash();
    let delivery = |from: CopySource, to: &str| DeliveryJob {
        sources: vec![from],
        dest: url(&bucket, to),
        single: false,
        owner: "w".into(),
        over: Over::Own,
        verify: Verify::Copy,
        rate: 0,
        latency: 0,
    };
    let opened = CopySource {
        sealed: Some(Arc::clone(&key)),
        manifest: Some(manifest),
        ..source(&sealed)
    };
    trees
        .deliver(&delivery(opened.clone(), "one/"), &Control::default())
        .unwrap();
    assert!(bucket.read("one/large") == content((20 << 20) + 12_345));
    // The same from another node, which sends the stored bytes.
    let far = CopySource {
        root: PathBuf::new(),
        peer: Some(Arc::new(Near(sealed.clone()))),
        ..opened
    };
    let report = trees
        .deliver(&delivery(far.clone(), "far/"), &Control::default())
        .unwrap();
    assert_eq!(report.manifests[0].hash(), is);
    assert!(bucket.read("far/large") == content((20 << 20) + 12_345));
    let mut damaged = fs::read(sealed.join("large")).unwrap();
    damaged[1 << 20] ^= 1;
    fs::write(sealed.join("large"), damaged).unwrap();
    let refused = trees.deliver(&delivery(far, "bad/"), &Control::default());
    assert_eq!(refused.unwrap_err().failure.kind, RunErrorKind::Corrupt);
    // Files from a store are sealed on their way in.
    let job = CopyJob {
        sources: vec![source(&url(&bucket, "one/"))],
        dest: dir.path().join("again"),
        ..job
    };
    trees.copy(&job, &Control::default()).unwrap();
    let again = trees.digest_sealed(&job.dest, &key, &Control::default());
    assert_eq!(again.unwrap().hash(), is);
    // From one place in a store to another, as from another node's memory: through streams.
    let at = url(&bucket, "one/");
    let report = trees
        .deliver(&delivery(source(&at), "two/"), &Control::default())
        .unwrap();
    assert_eq!(report.manifests[0].hash(), is);
    assert_eq!(
        trees
            .digest(&url(&bucket, "two/"), &Control::default())
            .unwrap()
            .hash(),
        is
    );
}
