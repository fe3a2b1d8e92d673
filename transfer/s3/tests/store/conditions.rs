//! Somebody else puts objects where a delivery is under way: theirs stay, in stores with conditions and without.

use crate::common::{Act, Bucket, Conditions, Proxy, refusal};
use crate::faults::first;
use crate::{content, deliver, mover, url};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tarn_ports::{Control, MoverError, ObjectStore, ObjectStoreError, Replaces, Tags};
use tarn_types::event::RunErrorKind;
use tarn_types::object::ObjectUrl;

/// Goes up in two parts.
const LARGE: usize = (8 << 20) + 77;

/// Somebody puts this object just before the first request with these words reaches the store.
fn intruder(
    bucket: &Bucket,
    key: &str,
    words: &'static [&'static str],
) -> impl Fn(&str, usize) -> Act + Send + Sync + 'static {
    let (at, store) = (bucket.at(key), Arc::clone(&bucket.store));
    let came = AtomicBool::new(false);
    move |request, _| {
        if words.iter().all(|w| request.contains(w)) && !came.swap(true, Ordering::SeqCst) {
            put(&store, &at, b"theirs");
        }
        Act::Pass
    }
}

fn put(store: &Arc<dyn ObjectStore>, at: &ObjectUrl, bytes: &[u8]) {
    let (tags, control) = (Tags::new(), Control::default());
    let put = store.put(at, bytes, &tags, Replaces::Anything, &control);
    put.unwrap();
}

/// A tree with a small file and one that goes up in parts.
fn tree(folder: &Path, size: usize) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("small"), format!("small {size}")).unwrap();
    fs::write(folder.join("large"), content(size)).unwrap();
}

fn is_theirs(error: &MoverError, key: &str) {
    assert_eq!(error.failure.kind, RunErrorKind::Conflict, "{error}");
    assert_eq!(error.refused, Some(ObjectStoreError::Occupied), "{error}");
    let message = error.to_string();
    assert!(
        message.contains(key) && message.contains("somebody else has put"),
        "{message}"
    );
}

#[test]
fn what_somebody_else_puts_during_a_delivery_stays() {
    let bucket = Bucket::new("intruder");
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    tree(&old, LARGE);
    tree(&new, LARGE + 1);
    // A store with conditions gets one request; where there are none, somebody comes before tarn looks the last time.
    let cases: [(Conditions, &str, &'static [&'static str]); 6] = [
        (Conditions::Kept, "small", &["PUT", "/small"]),
        (Conditions::Kept, "large", &["POST", "/large", "uploadId="]),
        (Conditions::AsStore, "small", &["PUT", "partNumber="]),
        (Conditions::AsStore, "large", &["PUT", "partNumber="]),
        (Conditions::Ignored, "small", &["PUT", "partNumber="]),
        (Conditions::Ignored, "large", &["PUT", "partNumber="]),
    ];
    for (n, (conditions, name, words)) in cases.into_iter().enumerate() {
        for is_there in [false, true] {
            let case = format!("{n}-{is_there}");
            let dest = url(&bucket, &format!("{case}/"));
            if is_there {
                deliver(&mover(Arc::clone(&bucket.store)), &old, &dest, "w").unwrap();
            }
            let key = format!("{case}/{name}");
            let proxy = Proxy::new(intruder(&bucket, &key, words)).with(conditions);
            let trees = mover(proxy.client());
            let error = deliver(&trees, &new, &dest, "w").unwrap_err();
            is_theirs(&error, &key);
            assert_eq!(bucket.read(&key), b"theirs", "{case}");
            // Nothing is half, and nothing declares it whole.
            let keys = bucket.keys(&format!("{case}/"));
            assert!(!keys.iter().any(|k| k.contains(".tarn-")), "{keys:?}");
            assert!(bucket.uploads(&case).is_empty(), "{case}");
            // A delivery that moves it away has it delivered.
            bucket
                .store
                .remove(&bucket.at(&key), None, &Control::default())
                .unwrap();
            deliver(&trees, &new, &dest, "w").unwrap();
            assert!(bucket.read(&format!("{case}/large")) == content(LARGE + 1));
        }
    }
}

#[test]
fn what_somebody_else_puts_is_neither_removed_nor_called_tarns() {
    let bucket = Bucket::new("removes");
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    for (folder, names) in [(&old, &["gone", "kept"][..]), (&new, &["kept", "more"])] {
        fs::create_dir(folder).unwrap();
        for name in names {
            fs::write(folder.join(name), name).unwrap();
        }
    }
    let cases: [(Conditions, &str, &'static [&'static str]); 5] = [
        (Conditions::Kept, "gone", &["DELETE", "/gone"]),
        (Conditions::AsStore, "gone", &["PUT", "/more"]),
        (
            Conditions::Kept,
            ".tarn-manifest",
            &["PUT", "/.tarn-manifest"],
        ),
        (Conditions::AsStore, ".tarn-manifest", &["PUT", "/more"]),
        (
            Conditions::Kept,
            ".tarn-manifest",
            &["DELETE", "/.tarn-manifest"],
        ),
    ];
    for (n, (conditions, name, words)) in cases.into_iter().enumerate() {
        let dest = url(&bucket, &format!("{n}/"));
        deliver(&mover(Arc::clone(&bucket.store)), &old, &dest, "w").unwrap();
        let key = format!("{n}/{name}");
        let proxy = Proxy::new(intruder(&bucket, &key, words)).with(conditions);
        let error = deliver(&mover(proxy.client()), &new, &dest, "w").unwrap_err();
        is_theirs(&error, &key);
        assert_eq!(bucket.read(&key), b"theirs", "{n}");
    }
}

#[test]
fn what_is_sent_again_as_its_answer_was_lost_is_no_conflict() {
    let bucket = Bucket::new("lost");
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    tree(&old, LARGE);
    tree(&new, LARGE + 1);
    // The first answer to each of these.
    let lost = || {
        let of: [&'static [&'static str]; 5] = [
            &["PUT", "/small"],
            &["POST", "/large", "uploadId="],
            &["PUT", "/.tarn-upload"],
            &["PUT", "/.tarn-manifest"],
            &["DELETE", "/.tarn-upload"],
        ];
        let lose = of.map(|words| first(1, words, || Act::LoseAnswer));
        move |request: &str, n: usize| {
            let acts = lose.iter().map(|lose| lose(request, n));
            acts.fold(Act::Pass, |one, other| match one {
                Act::Pass => other,
                one => one,
            })
        }
    };
    for conditions in [Conditions::Kept, Conditions::AsStore, Conditions::Ignored] {
        let prefix = format!("{conditions:?}/");
        let dest = url(&bucket, &prefix);
        // A new one, and one that takes an old one's place.
        for (from, size) in [(&old, LARGE), (&new, LARGE + 1)] {
            let proxy = Proxy::new(lost()).with(conditions);
            deliver(&mover(proxy.client()), from, &dest, "w").unwrap();
            let names = [".tarn-manifest", "large", "small"];
            assert_eq!(bucket.keys(&prefix), names.map(|n| format!("{prefix}{n}")));
            assert!(bucket.read(&format!("{prefix}large")) == content(size));
            assert!(bucket.uploads(&prefix).is_empty());
        }
    }
}

#[test]
fn a_request_that_meets_another_one_is_sent_again() {
    let conflict = || {
        refusal(
            "409 Conflict",
            "",
            "ConditionalRequestConflict",
            "The conditional request cannot succeed due to a conflicting operation against this resource.",
        )
    };
    let bucket = Bucket::new("crossed");
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), LARGE);
    let proxy = Proxy::new(first(2, &["PUT", "/small"], conflict)).with(Conditions::Kept);
    deliver(&mover(proxy.client()), dir.path(), &url(&bucket, "a/"), "w").unwrap();
    // An upload in parts is uploaded again, as Amazon demands.
    let proxy = Proxy::new(first(1, &["POST", "uploadId="], conflict)).with(Conditions::Kept);
    deliver(&mover(proxy.client()), dir.path(), &url(&bucket, "b/"), "w").unwrap();
    let seen = proxy.seen.lock().unwrap().clone();
    let begun = seen
        .iter()
        .filter(|r| r.contains("POST") && r.contains("uploads="));
    assert_eq!(begun.count(), 2);
    for prefix in ["a/", "b/"] {
        assert!(bucket.read(&format!("{prefix}large")) == content(LARGE));
        assert_eq!(
            bucket.read(&format!("{prefix}small")),
            format!("small {LARGE}").as_bytes()
        );
        assert!(bucket.uploads(prefix).is_empty());
    }
    // One that meets others each time reports it.
    let proxy = Proxy::new(first(9, &["POST", "uploadId="], conflict)).with(Conditions::Kept);
    let error = deliver(&mover(proxy.client()), dir.path(), &url(&bucket, "c/"), "w").unwrap_err();
    assert!(error.to_string().contains("at the same time"), "{error}");
    assert!(bucket.uploads("c/").is_empty());
}

#[test]
fn a_store_that_keeps_conditions_is_not_asked_before_each_object() {
    let bucket = Bucket::new("asked");
    let dir = tempfile::tempdir().unwrap();
    for n in 0..40 {
        fs::write(dir.path().join(format!("f{n}")), format!("{n}")).unwrap();
    }
    let looks = |conditions| {
        let proxy = Proxy::new(|_: &str, _| Act::Pass).with(conditions);
        let trees = mover(proxy.client());
        let dest = url(&bucket, &format!("{conditions:?}/"));
        deliver(&trees, dir.path(), &dest, "w").unwrap();
        // A known fact holds for the whole process.
        proxy.seen.lock().unwrap().clear();
        for n in 0..40 {
            fs::write(dir.path().join(format!("f{n}")), format!("again {n}")).unwrap();
        }
        deliver(&trees, dir.path(), &dest, "w").unwrap();
        proxy.seen.lock().unwrap().clear();
        for n in 0..40 {
            fs::write(dir.path().join(format!("f{n}")), format!("once more {n}")).unwrap();
        }
        deliver(&trees, dir.path(), &dest, "w").unwrap();
        let seen = proxy.seen.lock().unwrap().clone();
        let of = |method| seen.iter().filter(|r| r.starts_with(method)).count();
        assert_eq!(of("PUT"), 41, "{conditions:?}: {seen:?}");
        of("HEAD")
    };
    assert!(looks(Conditions::Kept) < 10);
    // The first request to a store without them has many bytes.
    let only = dir.path().join("only");
    fs::create_dir(&only).unwrap();
    fs::write(only.join("one"), content(7 << 20)).unwrap();
    let began = Instant::now();
    deliver(
        &mover(Arc::clone(&bucket.store)),
        &only,
        &url(&bucket, "only/"),
        "w",
    )
    .unwrap();
    assert!(bucket.read("only/one") == content(7 << 20));
    assert!(began.elapsed() < Duration::from_secs(60));
    fs::remove_dir_all(&only).unwrap();
    for without in [Conditions::AsStore, Conditions::Ignored] {
        assert!(looks(without) >= 40);
    }
}

#[test]
fn attack_a_store_that_says_what_is_not_so_of_conditions_is_one_without() {
    let failed = || {
        let message = "At least one of the pre-conditions you specified did not hold";
        refusal("412 Precondition Failed", "", "PreconditionFailed", message)
    };
    let bucket = Bucket::new("contradicts");
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), LARGE);
    for (n, words) in [&["PUT", "/small"][..], &["POST", "uploadId="]]
        .into_iter()
        .enumerate()
    {
        let proxy = Proxy::new(first(3, words, failed)).with(Conditions::Kept);
        let dest = url(&bucket, &format!("{n}/"));
        deliver(&mover(proxy.client()), dir.path(), &dest, "w").unwrap();
        assert!(bucket.read(&format!("{n}/large")) == content(LARGE));
    }
    // One that never stops is left.
    let proxy = Proxy::new(first(99, &["PUT", "/small"], failed)).with(Conditions::Kept);
    let error = deliver(&mover(proxy.client()), dir.path(), &url(&bucket, "z/"), "w").unwrap_err();
    assert!(error.to_string().contains("small"), "{error}");
}
