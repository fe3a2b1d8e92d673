//! A store that misbehaves: busy, silent in the middle, with other bytes than it announced.

use crate::common::{Act, Bucket, Proxy, busy, refusal};
use crate::{content, deliver, fetch, mover, source, url};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tarn_ports::{Control, CopySource, DeliveryJob, Mover, Over, Replaces};
use tarn_types::event::RunErrorKind;
use tarn_types::part::Verify;

/// Larger than an object put in one piece, and than the share that one thread reads.
const LARGE: usize = (20 << 20) + 77;

/// The first so many requests that match are treated so.
pub(crate) fn first(
    count: usize,
    words: &'static [&'static str],
    act: fn() -> Act,
) -> impl Fn(&str, usize) -> Act + Send + Sync + 'static {
    let left = AtomicUsize::new(count);
    move |request, _| {
        let matches = words.iter().all(|w| request.contains(w));
        let take = |n: usize| n.checked_sub(1);
        match matches
            && left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                .is_ok()
        {
            true => act(),
            false => Act::Pass,
        }
    }
}

#[test]
fn a_busy_store_is_asked_again() {
    let bucket = Bucket::new("busy");
    bucket.put("in/a", b"1");
    let proxy = Proxy::new(first(3, &["GET"], busy));
    let dir = tempfile::tempdir().unwrap();
    let trees = mover(proxy.client());
    fetch(
        &trees,
        source(&url(&bucket, "in/")),
        &dir.path().join("back"),
    )
    .unwrap();
    // A cancelled thread leaves a store that stays busy at once.
    proxy.set(|_, _| busy());
    let control = Control::default();
    let at = url(&bucket, "in/");
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            control.cancel.store(true, Ordering::Relaxed);
        });
        let error = trees.list(&at, &control).unwrap_err();
        assert_eq!(error.failure.kind, RunErrorKind::Cancelled, "{error}");
    });
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_connection_that_is_cut_goes_on_where_it_was() {
    let bucket = Bucket::new("cut");
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("large"), content(LARGE)).unwrap();
    let dest = url(&bucket, "out/");
    let trees = mover(Arc::clone(&bucket.store));
    deliver(&trees, &from, &dest, "w").unwrap();
    let proxy = Proxy::new(first(5, &["GET", "/out/large"], || Act::CutAnswer(700_000)));
    let back = dir.path().join("back");
    fetch(&mover(proxy.client()), source(&dest), &back).unwrap();
    assert!(fs::read(back.join("large")).unwrap() == content(LARGE));
    // And a part that is being put is put again.
    let proxy = Proxy::new(first(2, &["PUT", "partNumber="], || {
        Act::CutRequest(100_000)
    }));
    deliver(&mover(proxy.client()), &from, &url(&bucket, "cut/"), "w").unwrap();
    assert!(bucket.read("cut/large") == content(LARGE));
}

#[test]
fn a_list_that_is_cut_off_is_asked_for_again() {
    let bucket = Bucket::new("cut-list");
    bucket.put("in/a", b"1");
    let proxy = Proxy::new(first(2, &["GET", "list-type"], || Act::CutAnswer(100)));
    assert_eq!(listed(&mover(proxy.client()), &url(&bucket, "in/")), ["a"]);
}

#[test]
fn an_upload_whose_end_goes_wrong_is_completed_and_no_part_is_sent_again() {
    let bucket = Bucket::new("completes");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("large"), content(LARGE)).unwrap();
    let wrong: [fn() -> Act; 3] = [
        // Errors after the answer has begun well.
        || refusal("200 OK", "", "InternalError", "Please try again."),
        || Act::CutAnswer(40),
        // It was completed, whatever the answer.
        || Act::Change(vec![("HTTP/1.1 200 OK".into(), "HTTP/1.1 403 No".into())]),
    ];
    for (n, wrong) in wrong.into_iter().enumerate() {
        let proxy = Proxy::new(first(2, &["POST", "uploadId="], wrong));
        let out = format!("out-{n}/");
        deliver(&mover(proxy.client()), dir.path(), &url(&bucket, &out), "w").unwrap();
        let seen = proxy.seen.lock().unwrap().clone();
        let sent = |r: &&String| r.starts_with("PUT") && r.contains("partNumber=");
        assert_eq!(seen.iter().filter(sent).count(), 3, "{n}");
        assert_eq!(
            bucket.keys(&out),
            [format!("{out}.tarn-manifest"), format!("{out}large")]
        );
        assert!(bucket.uploads(&out).is_empty());
        assert!(bucket.read(&format!("{out}large")) == content(LARGE));
    }
}

#[test]
fn what_is_taken_back_goes_though_its_upload_cannot_be_ended() {
    let bucket = Bucket::new("unended");
    let (store, control) = (&bucket.store, Control::default());
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), b"a").unwrap();
    let dest = url(&bucket, "out/");
    let trees = mover(Arc::clone(store));
    let withdraw = |trees: &tarn_mover::Trees| trees.withdraw(&dest, "w", true, &control);
    let own = vec![("tarn-owner".to_owned(), "w".to_owned())];
    let note = bucket.at("out/.tarn-upload");
    // Nobody can read which it is.
    deliver(&trees, dir.path(), &dest, "w").unwrap();
    store
        .put(&note, b"?", &own, Replaces::Anything, &control)
        .unwrap();
    let error = withdraw(&trees).unwrap_err();
    assert!(error.to_string().contains(".tarn-upload"), "{error}");
    assert_eq!(bucket.keys("out/"), ["out/.tarn-upload"]);
    store.remove(&note, None, &control).unwrap();
    // The store refuses to end it.
    deliver(&trees, dir.path(), &dest, "w").unwrap();
    let begun = store.begin(&bucket.at("out/a"), &own, &control).unwrap();
    let text = format!("tarn-upload 1\nout/a\n{}\n", begun.id);
    store
        .put(&note, text.as_bytes(), &own, Replaces::Anything, &control)
        .unwrap();
    let proxy = Proxy::new(|request, _| {
        match request.starts_with("DELETE") && request.contains("uploadId=") {
            true => refusal("403 Forbidden", "", "AccessDenied", "No."),
            false => Act::Pass,
        }
    });
    withdraw(&mover(proxy.client())).unwrap_err();
    assert_eq!(bucket.keys("out/"), ["out/.tarn-upload"]);
    assert_eq!(bucket.uploads("out/"), ["out/a"]);
    // The next clean-up finds it by its note.
    withdraw(&trees).unwrap();
    assert!(bucket.keys("out/").is_empty() && bucket.uploads("out/").is_empty());
}

#[test]
fn an_object_that_is_replaced_while_it_is_read_is_no_mixture() {
    let bucket = Arc::new(Bucket::new("replaced"));
    let control = Control::default();
    let dir = tempfile::tempdir().unwrap();
    let at = url(&bucket, "in/");
    bucket.put("in/large", &content(LARGE));
    bucket.put("in/small", b"small");
    let trees = mover(Arc::clone(&bucket.store));
    let listed = trees.list(&at, &control).unwrap();
    // Between two stretches of it.
    let (other, gets) = (Arc::clone(&bucket), AtomicUsize::new(0));
    let proxy = Proxy::new(move |request, _| {
        if request.contains("/in/large") && gets.fetch_add(1, Ordering::SeqCst) == 1 {
            other.put("in/large", &vec![7; LARGE]);
        }
        Act::Pass
    });
    let manifest = Some(listed.clone());
    let back = dir.path().join("back");
    let error = fetch(
        &mover(proxy.client()),
        CopySource {
            manifest,
            ..source(&at)
        },
        &back,
    )
    .unwrap_err();
    assert_eq!(error.failure.kind, RunErrorKind::SourceChanged, "{error}");
    assert!(!back.exists());
    // Since it was listed, in the second in which it was put perhaps.
    bucket.put("in/large", &content(LARGE));
    let listed = trees.list(&at, &control).unwrap();
    bucket.put("in/small", b"SMALL");
    let error = fetch(
        &trees,
        CopySource {
            manifest: Some(listed),
            ..source(&at)
        },
        &back,
    )
    .unwrap_err();
    assert_eq!(error.failure.kind, RunErrorKind::SourceChanged, "{error}");
    assert!(error.to_string().contains("small"), "{error}");
    // A range is cut off and the object replaced before the read continues.
    let listed = trees.list(&at, &control).unwrap();
    let (other, gets) = (Arc::clone(&bucket), AtomicUsize::new(0));
    let proxy = Proxy::new(move |request, _| match request.contains("/in/small") {
        true if gets.fetch_add(1, Ordering::SeqCst) == 0 => Act::CutAnswer(2),
        true => {
            other.put("in/small", b"other");
            Act::Pass
        }
        false => Act::Pass,
    });
    let error = fetch(
        &mover(proxy.client()),
        CopySource {
            manifest: Some(listed),
            ..source(&at)
        },
        &back,
    )
    .unwrap_err();
    assert_eq!(error.failure.kind, RunErrorKind::SourceChanged, "{error}");
}

#[test]
fn a_store_that_sends_what_was_not_asked_for_is_not_believed() {
    let bucket = Bucket::new("lies");
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("a"), b"0123456789").unwrap();
    let dest = url(&bucket, "out/");
    deliver(&mover(Arc::clone(&bucket.store)), &from, &dest, "w").unwrap();
    let back = dir.path().join("back");
    for (word, other) in [
        ("bytes 0-9/10", "bytes 1-9/10"),
        ("bytes 0-9/10", "bytes 0-9/99"),
        ("0123456789", "0123456780"),
    ] {
        let proxy = Proxy::new(move |request, _| match request.contains("/out/a") {
            true => Act::Change(vec![(word.into(), other.into())]),
            false => Act::Pass,
        });
        let error = fetch(&mover(proxy.client()), source(&dest), &back).unwrap_err();
        assert!(!back.exists(), "{error}");
    }
    // An object that is read back otherwise than it was put is damaged, and does not stay.
    let proxy = Proxy::new(|request, _| {
        match request.contains("GET /lies") && request.contains("/new/a?") {
            true => Act::Change(vec![("0123456789".into(), "0123456780".into())]),
            false => Act::Pass,
        }
    });
    let error = deliver(&mover(proxy.client()), &from, &url(&bucket, "new/"), "w").unwrap_err();
    assert_eq!(error.failure.kind, RunErrorKind::Corrupt, "{error}");
    assert!(bucket.keys("new/").is_empty());
}

#[test]
fn what_fails_in_the_middle_leaves_no_half_object_and_goes_on_from_there() {
    let bucket = Bucket::new("half");
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("first"), content(10 << 20)).unwrap();
    fs::write(from.join("large"), content(LARGE)).unwrap();
    let dest = url(&bucket, "out/");
    let refused = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let fails = |request: &str| request.contains("/out/large") && request.contains("partNumber=2");
    let proxy = Proxy::new(move |request, _| match fails(request) {
        true => Act::Answer(refused.into()),
        false => Act::Pass,
    });
    let trees = mover(proxy.client());
    deliver(&trees, &from, &dest, "w").unwrap_err();
    assert_eq!(bucket.keys("out/"), ["out/first"]);
    assert!(bucket.uploads("out/").is_empty());
    // Somebody else's, below the prefix and even of the same key.
    for key in ["out/large", "out/theirs"] {
        bucket
            .store
            .begin(&bucket.at(key), &Vec::new(), &Control::default())
            .unwrap();
    }
    // One that is killed aborts nothing: the next delivery continues it, and the others stay.
    proxy.set(
        move |request, _| match fails(request) || request.starts_with("DELETE") {
            true => Act::Answer(refused.into()),
            false => Act::Pass,
        },
    );
    deliver(&trees, &from, &dest, "w").unwrap_err();
    assert_eq!(bucket.keys("out/"), ["out/.tarn-upload", "out/first"]);
    assert_eq!(bucket.uploads("out/").len(), 3);
    // It is no part of the tree.
    assert_eq!(listed(&trees, &dest), ["first"]);
    let other = deliver(&trees, &from, &dest, "another").unwrap_err();
    assert!(other.to_string().contains("`.tarn-upload`"), "{other}");
    proxy.set(|_, _| Act::Pass);
    let manifest = Some(trees.digest(&from, &Control::default()).unwrap());
    let job = DeliveryJob {
        sources: vec![CopySource {
            manifest,
            ..source(&from)
        }],
        dest: dest.clone(),
        single: false,
        owner: "w".into(),
        over: Over::Own,
        verify: Verify::Copy,
        rate: 0,
        latency: 0,
    };
    let report = trees.deliver(&job, &Control::default()).unwrap();
    // The second of three parts was refused.
    assert_eq!(report.bytes + report.resumed, LARGE as u64 + (10 << 20));
    assert!(report.bytes >= 8 << 20, "{report:?}");
    assert_eq!(bucket.uploads("out/"), ["out/large", "out/theirs"]);
    assert_eq!(
        bucket.keys("out/"),
        ["out/.tarn-manifest", "out/first", "out/large"]
    );
    assert!(bucket.read("out/large") == content(LARGE));
}

/// Has an upload of a single object killed when all its parts but the second are there.
fn killed(bucket: &Bucket, job: &DeliveryJob) {
    let refused = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let sent = Arc::new(AtomicUsize::new(0));
    let proxy = Proxy::new(move |request, _| {
        if request.starts_with("DELETE") {
            return Act::Answer(refused.into());
        }
        if request.contains("partNumber=2") {
            while sent.load(Ordering::SeqCst) < 2 {
                std::thread::sleep(Duration::from_millis(10));
            }
            // The others were requested before this one is answered; they end with it.
            return Act::Answer(refused.into());
        }
        if request.contains("partNumber=") {
            sent.fetch_add(1, Ordering::SeqCst);
        }
        Act::Pass
    });
    let failed = mover(proxy.client()).deliver(job, &Control::default());
    failed.unwrap_err();
    assert_eq!(bucket.uploads("one"), ["one"]);
}

#[test]
fn an_upload_that_was_killed_goes_on_with_the_parts_that_are_there() {
    let bucket = Bucket::new("parts");
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("large");
    let job = DeliveryJob {
        sources: vec![CopySource {
            as_entry: Some("one".into()),
            ..source(&from)
        }],
        dest: url(&bucket, "one"),
        single: true,
        owner: "w".into(),
        over: Over::Own,
        verify: Verify::Readback,
        rate: 0,
        latency: 0,
    };
    let control = Control::default();
    let part = 8 << 20;
    // Seen by the store, and the same upload.
    let again = |job: &DeliveryJob| {
        let proxy = Proxy::new(|_, _| Act::Pass);
        let report = mover(proxy.client()).deliver(job, &control).unwrap();
        assert_eq!(bucket.keys("one"), ["one"]);
        assert!(bucket.uploads("one").is_empty());
        let seen = proxy.seen.lock().unwrap().clone();
        let count = |words: &[&str]| {
            let has = |r: &&String| words.iter().all(|w| r.contains(w));
            seen.iter().filter(has).count()
        };
        let begun = count(&["POST", "?uploads"]) + count(&["POST", "&uploads"]);
        (report, count(&["PUT", "partNumber="]), begun)
    };
    std::fs::write(&from, content(LARGE)).unwrap();
    killed(&bucket, &job);
    let (report, sent, begun) = again(&job);
    assert_eq!((sent, begun), (1, 0), "only the part that was missing");
    assert_eq!(
        (report.bytes, report.resumed),
        (part as u64, (LARGE - part) as u64)
    );
    assert!(bucket.read("one") == content(LARGE));
    // A source that has changed since, in the first part alone, begins again: none of the existing parts is taken for it.
    std::fs::write(&from, [vec![1; 4], content(LARGE)].concat()).unwrap();
    killed(&bucket, &job);
    let mut changed = [vec![2; 4], content(LARGE)].concat();
    std::fs::write(&from, &changed).unwrap();
    let (report, sent, begun) = again(&job);
    assert_eq!((sent, begun, report.resumed), (3, 1, 0));
    assert!(bucket.read("one") == changed);
    // One that the store has forgotten, or somebody has ended.
    changed[0] = 3;
    std::fs::write(&from, &changed).unwrap();
    killed(&bucket, &job);
    bucket.end_uploads("one");
    let (_, sent, begun) = again(&job);
    assert_eq!((sent, begun), (3, 1));
    assert!(bucket.read("one") == changed);
    // A wrong part is sent again.
    changed[0] = 4;
    std::fs::write(&from, &changed).unwrap();
    killed(&bucket, &job);
    let upload = bucket.upload("one");
    bucket
        .store
        .part(&upload, 1, &vec![5; part], &control)
        .unwrap();
    let (_, sent, begun) = again(&job);
    assert_eq!((sent, begun), (2, 0));
    assert!(bucket.read("one") == changed);
}

#[test]
fn a_single_object_that_was_killed_when_it_was_whole_goes_on() {
    let bucket = Bucket::new("whole");
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("large");
    std::fs::write(&from, content(LARGE)).unwrap();
    let dest = url(&bucket, "one");
    let job = |owner: &str, over| DeliveryJob {
        sources: vec![CopySource {
            as_entry: Some("one".into()),
            ..source(&from)
        }],
        dest: dest.clone(),
        single: true,
        owner: owner.into(),
        over,
        verify: Verify::Readback,
        rate: 0,
        latency: 0,
    };
    let refused = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let proxy = Proxy::new(move |request, _| {
        match request.starts_with("GET") || request.starts_with("DELETE") {
            true => Act::Answer(refused.into()),
            false => Act::Pass,
        }
    });
    let trees = mover(proxy.client());
    let control = Control::default();
    let unfinished = |owner: &str| trees.deliver(&job(owner, Over::Unfinished), &control);
    unfinished("w").unwrap_err();
    assert_eq!(bucket.keys("one"), ["one", "one.tarn-upload"]);
    proxy.set(|_, _| Act::Pass);
    let other = unfinished("another").unwrap_err();
    assert!(other.to_string().contains("exists already"), "{other}");
    let report = unfinished("w").unwrap();
    assert_eq!((report.bytes, report.resumed), (0, LARGE as u64));
    assert_eq!(bucket.keys("one"), ["one"]);
    // A whole object is there for everybody; only its owner has delivered it.
    let again = unfinished("w").unwrap_err();
    assert!(again.to_string().contains("exists already"), "{again}");
    let is_delivered = |owner| trees.is_delivered(&dest, owner, &control).unwrap();
    assert!(is_delivered("w") && !is_delivered("another"));
    // A delivery that replaces everything ends the upload that another owner's killed delivery has under way.
    proxy.set(move |request, _| {
        match request.contains("partNumber=2") || request.starts_with("DELETE") {
            true => Act::Answer(refused.into()),
            false => Act::Pass,
        }
    });
    trees
        .deliver(&job("another", Over::All), &control)
        .unwrap_err();
    assert_eq!(bucket.uploads("one"), ["one"]);
    proxy.set(|_, _| Act::Pass);
    trees.deliver(&job("third", Over::All), &control).unwrap();
    assert!(bucket.uploads("one").is_empty());
    assert_eq!(bucket.keys("one"), ["one"]);
}

#[test]
fn half_a_tree_is_not_delivered() {
    let bucket = Bucket::new("partial");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), b"a").unwrap();
    let dest = url(&bucket, "out/");
    let refused = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let proxy = Proxy::new(move |request, _| match request.contains(".tarn-manifest") {
        true => Act::Answer(refused.into()),
        false => Act::Pass,
    });
    deliver(&mover(proxy.client()), dir.path(), &dest, "w").unwrap_err();
    assert_eq!(bucket.keys("out/"), ["out/a"]);
    let trees = mover(bucket.store.clone());
    let is_delivered = || {
        let is = trees.is_delivered(&dest, "w", &Control::default());
        is.unwrap()
    };
    assert!(!is_delivered());
    deliver(&trees, dir.path(), &dest, "w").unwrap();
    assert!(is_delivered());
    trees
        .withdraw(&dest, "w", true, &Control::default())
        .unwrap();
    assert!(bucket.keys("out/").is_empty());
}

/// The paths of a tree in a store.
fn listed(trees: &tarn_mover::Trees, dest: &std::path::Path) -> Vec<String> {
    let tree = trees.list(dest, &Control::default()).unwrap();
    let name = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    tree.entries.iter().map(|e| name(&e.path)).collect()
}
