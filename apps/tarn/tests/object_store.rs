//! `tarn run` with a real object store as the place that data comes from and goes to.

mod common;
#[path = "../../../transfer/s3/tests/common/mod.rs"]
mod store;

use common::{Site, files, send, until};
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::{Act, Bucket, Conditions, KEY, Proxy, SECRET, swift};
use tarn_ports::{Control, Replaces};

const WORKFLOW: &str = r#"
name = "words"
[data.text]
source = "s3://BUCKET/books/"
[data.counts]
keep = "forever"
[data.total]
dest = "s3://BUCKET/result/"
[[step]]
name = "count"
foreach = "text/*"
run = 'wc -w < "$TARN_text/$TARN_ITEM" > "$TARN_counts/$TARN_ITEM"'
in = ["text/{item}"]
out = ["counts"]
[[step]]
name = "sum"
run = 'cat "$TARN_counts"/* | awk "{s+=\$1} END {print s}" > $TARN_total/words; ln -s words $TARN_total/link; EXTRA'
in = ["counts"]
out = ["total"]
"#;

/// A site whose commands know this store.
fn tarn(site: &Site, endpoint: &str, secret: &str, arguments: &[&str]) -> Command {
    let mut command = site.command(arguments);
    command
        .env("AWS_ENDPOINT_URL", endpoint)
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", secret)
        .env("HOME", site.dir.path());
    command
}

fn ran(site: &Site, endpoint: &str, arguments: &[&str]) -> common::Ran {
    common::Ran::of(
        tarn(site, endpoint, SECRET, arguments)
            .output()
            .expect("tarn starts"),
    )
}

fn site(bucket: &Bucket, extra: &str) -> Site {
    Site::new(
        &WORKFLOW
            .replace("BUCKET", &bucket.name)
            .replace("EXTRA", extra),
    )
}

#[test]
fn a_run_reads_from_a_store_and_delivers_there() {
    let bucket = Bucket::new("run");
    bucket.put("books/one two.txt", b"a b c\n");
    bucket.put("books/three", b"d\n");
    let site = site(&bucket, ":");
    let endpoint = &swift().endpoint;
    let arguments = [site.run_arguments(), vec!["--nodes", "2"]].concat();
    ran(&site, endpoint, &["plan", "workflow.toml"]).exits(0);
    let steps = |ran: &common::Ran| ran.err.matches(" done in ").count();
    let first = ran(&site, endpoint, &arguments).exits(0);
    assert_eq!(
        (steps(&first), bucket.read("result/words")),
        (3, b"4\n".to_vec())
    );
    assert_eq!(
        site.moved()
            .iter()
            .filter(|((kind, _), _)| kind == "external-out")
            .map(|(_, bytes)| bytes)
            .sum::<u64>(),
        2
    );
    // Nothing has changed: nothing runs. An object that has: the step that reads it runs.
    let second = ran(&site, endpoint, &arguments).exits(0);
    assert_eq!(steps(&second), 0, "{}", second.err);
    bucket.put("books/three", b"e\n");
    bucket.put("books/four", b"f g\n");
    let third = ran(&site, endpoint, &arguments).exits(0);
    assert_eq!(
        (steps(&third), bucket.read("result/words")),
        (3, b"6\n".to_vec())
    );
    // No file that tarn keeps has the secret, nor any signature.
    let mut all: Vec<PathBuf> = Vec::new();
    files(site.dir.path(), &mut all);
    for file in all {
        let bytes = std::fs::read(&file).unwrap_or_default();
        for word in [&b"X-Amz-Signature"[..], SECRET.as_bytes()] {
            assert!(
                !bytes.windows(word.len()).any(|w| w == word),
                "{}",
                file.display()
            );
        }
    }
    // Somebody has put something there: nothing is started.
    bucket.put("result/words", b"mine");
    let refused = ran(&site, endpoint, &arguments).exits(3);
    assert!(refused.err.contains("`words`"), "{}", refused.err);
    assert_eq!(bucket.read("result/words"), b"mine");
}

#[test]
fn what_somebody_puts_into_the_destination_during_a_delivery_stays() {
    let bucket = Bucket::new("meanwhile");
    bucket.put("books/one", b"a b c\n");
    let site = site(&bucket, ":");
    let (at, store) = (bucket.at("result/words"), Arc::clone(&bucket.store));
    let came = AtomicBool::new(false);
    let proxy = Proxy::new(move |request, _| {
        let puts = request.starts_with("PUT") && request.contains("/result/words");
        if puts && !came.swap(true, Ordering::SeqCst) {
            let (none, control) = (Vec::new(), Control::default());
            let put = store.put(&at, b"theirs", &none, Replaces::Anything, &control);
            put.expect("put");
        }
        Act::Pass
    })
    .with(Conditions::Kept);
    let failed = ran(&site, &proxy.endpoint, &site.run_arguments()).exits(1);
    let expected = "result/words: somebody else has put an object there since tarn looked";
    assert!(failed.err.contains(expected), "{}", failed.err);
    assert_eq!(bucket.read("result/words"), b"theirs");
    assert!(!bucket.keys("result/").iter().any(|k| k.contains(".tarn")));
    // It stays until it is moved away.
    let refused = ran(&site, &proxy.endpoint, &["resume"]);
    assert!(!refused.err.contains(" done in "), "{}", refused.err);
    assert_eq!(bucket.read("result/words"), b"theirs");
    let control = Control::default();
    let removed = bucket
        .store
        .remove(&bucket.at("result/words"), None, &control);
    removed.expect("removed");
    let resumed = ran(&site, &proxy.endpoint, &["resume"]).exits(0);
    assert!(!resumed.err.contains(" done in "), "{}", resumed.err);
    assert_eq!(bucket.read("result/words"), b"3\n");
}

#[test]
fn a_killed_delivery_goes_on() {
    let bucket = Bucket::new("killed");
    bucket.put("books/one", b"a b c\n");
    let site = site(
        &bucket,
        "head -c 30000000 /dev/zero | tr \"\\\\0\" x > $TARN_total/large",
    );
    let reached = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&reached);
    let proxy = Proxy::new(move |request, _| {
        if request.contains("partNumber=3") {
            seen.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_secs(20));
        }
        Act::Pass
    });
    let mut child = tarn(&site, &proxy.endpoint, SECRET, &site.run_arguments())
        .spawn()
        .expect("tarn starts");
    until("all parts but one are there", || {
        reached.load(Ordering::SeqCst) && bucket.parts("result/large") == [1, 2, 4]
    });
    send(Signal::KILL, &child);
    child.wait().expect("it ends");
    let theirs = bucket.at("result/theirs");
    let begun = bucket
        .store
        .begin(&theirs, &Vec::new(), &Control::default());
    begun.expect("somebody else's upload");
    assert_eq!(bucket.uploads("result/").len(), 2);
    assert!(
        !bucket
            .keys("result/")
            .iter()
            .any(|k| k.ends_with("large") || k.ends_with("manifest"))
    );
    let proxy = Proxy::new(|_, _| Act::Pass);
    let resumed = ran(&site, &proxy.endpoint, &["resume"]).exits(0);
    assert!(!resumed.err.contains(" done in "), "{}", resumed.err);
    let seen = proxy.seen.lock().expect("whole").clone();
    let sent = seen.iter().filter(|r| r.contains("partNumber="));
    let sent: Vec<_> = sent.filter(|r| r.starts_with("PUT")).collect();
    assert!(
        matches!(&sent[..], [only] if only.contains("partNumber=3")),
        "{sent:?}"
    );
    assert_eq!(bucket.uploads("result/"), ["result/theirs"]);
    assert_eq!(bucket.read("result/large").len(), 30_000_000);
}

#[test]
fn wrong_keys_and_missing_sources_stop_a_run_with_what_to_do() {
    let bucket = Bucket::new("wrong");
    bucket.put("books/one", b"a\n");
    let site = site(&bucket, ":");
    let run = site.run_arguments();
    let wrong = common::Ran::of(
        tarn(&site, &swift().endpoint, "guessed", &run)
            .output()
            .expect("tarn starts"),
    )
    .exits(3);
    assert!(
        wrong.err.contains("check key and secret") && !wrong.err.contains("guessed"),
        "{}",
        wrong.err
    );
    bucket
        .store
        .remove(&bucket.at("books/one"), None, &Control::default())
        .expect("removed");
    // Named before anything begins, by the run and by its plan.
    let none = ran(&site, &swift().endpoint, &run).exits(3);
    let plan = ran(&site, &swift().endpoint, &["plan", "workflow.toml"]);
    assert_ne!(plan.code, Some(0));
    let nowhere = format!("s3://{}/books/", bucket.name);
    for ran in [none, plan] {
        assert!(
            ran.err.contains(&format!("there is nothing at {nowhere}")),
            "{}",
            ran.err
        );
    }
    assert!(!site.dir.path().join(".tarn/runs").exists());
    let elsewhere = WORKFLOW
        .replace("s3://BUCKET/books/", "s3://no-such-bucket/books/")
        .replace("BUCKET", &bucket.name)
        .replace("EXTRA", ":");
    let elsewhere = Site::new(&elsewhere);
    let none = ran(&elsewhere, &swift().endpoint, &elsewhere.run_arguments()).exits(3);
    assert!(
        none.err.contains("the source of dataset `text`")
            && none.err.contains("there is no bucket `no-such-bucket`"),
        "{}",
        none.err
    );
}

#[test]
fn places_that_are_none_are_refused_in_the_file() {
    for (from, to, expected) in [
        ("s3://BUCKET/result/", "s3://some-bucket", "whole bucket"),
        (
            "s3://BUCKET/books/",
            "s3://some-bucket/a//b/",
            "`source` of dataset `text`",
        ),
        (
            "s3://BUCKET/result/",
            "s3://BUCKET/books/result/",
            "the dest of `total` is inside the source of `text`",
        ),
    ] {
        let text = WORKFLOW.replace(from, to).replace("BUCKET", "some-bucket");
        let site = Site::new(&text.replace("EXTRA", ":"));
        let refused = site.run().exits(3);
        assert!(refused.err.contains(expected), "{}", refused.err);
    }
}
