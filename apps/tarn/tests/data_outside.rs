//! `tarn data` and `external` with a real object store.

mod common;
#[path = "../../../transfer/s3/tests/common/mod.rs"]
mod store;

use common::{Ran, Site, send, until};
use rustix::process::Signal;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::{Act, Bucket, KEY, Proxy, SECRET, refusal, swift};

fn command(site: &Site, endpoint: &str, arguments: &[&str]) -> Command {
    let mut command = site.command(arguments);
    command
        .env("AWS_ENDPOINT_URL", endpoint)
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("HOME", site.dir.path());
    command
}

fn tarn(site: &Site, arguments: &[&str]) -> Ran {
    let output = command(site, &swift().endpoint, arguments).output();
    Ran::of(output.expect("tarn starts"))
}

fn at(bucket: &Bucket, key: &str) -> String {
    bucket.at(key).to_string()
}

const MADE: &str = r#"
name = "made"
[data.d]
keep = "forever"
[[step]]
name = "make"
run = "mkdir $TARN_d/sub; echo one > $TARN_d/a; echo two > $TARN_d/sub/b; chmod 750 $TARN_d/sub/b"
out = ["d"]
"#;

#[test]
fn trees_and_files_are_copied_to_a_store_and_from_it() {
    let bucket = Bucket::new("copy");
    let site = Site::new(MADE);
    site.write("in/a", "one\n");
    site.write("in/sub/b", "two\n");
    std::fs::set_permissions(site.path("in/sub/b"), PermissionsExt::from_mode(0o750)).unwrap();
    let copy = |from: &str, to: &str| tarn(&site, &["data", "copy", from, to]);
    let tree = at(&bucket, "tree/");
    copy("in", &tree).exits(0);
    let keys = ["tree/.tarn-manifest", "tree/a", "tree/sub/b"];
    assert_eq!(bucket.keys("tree/"), keys);
    copy(&tree, "back").exits(0);
    assert_eq!(
        (site.read("back/a"), site.read("back/sub/b")),
        ("one\n".into(), "two\n".into())
    );
    let mode = site.path("back/sub/b").metadata().unwrap().mode();
    assert_eq!(mode & 0o777, 0o750);
    // Into a folder that is there, under its own name; once more it is there.
    std::fs::create_dir(site.path("folder")).unwrap();
    copy(&tree, "folder").exits(0);
    assert_eq!(site.read("folder/tree/a"), "one\n");
    let again = copy(&tree, "folder").exits(2);
    assert!(again.err.contains("exists already"), "{}", again.err);
    // A file becomes an object of that name, or of its own name in a tree.
    copy("in/a", &at(&bucket, "one/file")).exits(0);
    copy("in/a", &at(&bucket, "one/")).exits(0);
    assert_eq!(bucket.keys("one/"), ["one/a", "one/file"]);
    copy(&at(&bucket, "one/file"), "folder").exits(0);
    copy(&at(&bucket, "one/file"), "named").exits(0);
    assert_eq!(
        (site.read("folder/file"), site.read("named")),
        ("one\n".into(), "one\n".into())
    );
    copy(&at(&bucket, "one/file"), &at(&bucket, "two/")).exits(0);
    assert_eq!(bucket.read("two/file"), b"one\n");
    // An existing object stays, unless it is to be replaced.
    for to in ["one/file", "tree/"] {
        let from = if to == "tree/" { "in/sub" } else { "in/sub/b" };
        let refused = copy(from, &at(&bucket, to)).exits(1);
        assert!(refused.err.contains("exists already"), "{}", refused.err);
        tarn(
            &site,
            &["data", "copy", from, &at(&bucket, to), "--replace"],
        )
        .exits(0);
    }
    assert_eq!(bucket.read("one/file"), b"two\n");
    assert_eq!(bucket.keys("tree/"), ["tree/.tarn-manifest", "tree/b"]);
    // Requests that make no sense.
    let missing = copy(&at(&bucket, "none"), "x").exits(1);
    assert!(
        missing.err.contains("there is no object"),
        "{}",
        missing.err
    );
    copy("in", &at(&bucket, "tree")).exits(2);
    copy("in", &format!("s3://{}", bucket.name)).exits(1);
    copy(&tree, &at(&bucket, "tree/in/")).exits(2);
    copy("none", &at(&bucket, "x")).exits(2);
    let object = ["data", "put", &at(&bucket, "one/file"), "key", "--object"];
    let refused = tarn(&site, &object).exits(2);
    assert!(refused.err.contains("tarn data copy"), "{}", refused.err);
}

#[test]
fn a_killed_copy_is_gone_on_with_by_the_same_call() {
    let bucket = Bucket::new("gone-on");
    let site = Site::new(MADE);
    for n in 0..5 {
        site.write(&format!("in/{n}"), &n.to_string());
    }
    site.write("in/zlast", "z");
    let reached = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&reached);
    let proxy = Proxy::new(move |request, _| {
        if request.starts_with("PUT") && request.contains("/zlast") {
            seen.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_secs(20));
        }
        Act::Pass
    });
    let tree = at(&bucket, "tree/");
    let arguments = ["data", "copy", "in", &tree];
    let mut child = command(&site, &proxy.endpoint, &arguments)
        .spawn()
        .expect("tarn starts");
    until("all but one are there", || {
        reached.load(Ordering::SeqCst) && bucket.keys("tree/").len() == 5
    });
    send(Signal::KILL, &child);
    child.wait().expect("it ends");
    // Another source would make a mixture.
    site.write("other/x", "x");
    tarn(&site, &["data", "copy", "other", &tree]).exits(1);
    let ended = tarn(&site, &arguments).exits(0);
    assert!(ended.err.contains("by an earlier call"), "{}", ended.err);
    assert_eq!(bucket.keys("tree/").len(), 7);
}

#[test]
fn a_dataset_goes_from_the_nodes_to_a_store_and_comes_onto_them() {
    let bucket = Bucket::new("get");
    let site = Site::new(MADE);
    site.run().exits(0);
    let (out, drained) = (at(&bucket, "got/"), at(&bucket, "drained/"));
    tarn(&site, &["data", "get", "d", &out]).exits(0);
    let keys = ["got/.tarn-manifest", "got/a", "got/sub/b"];
    assert_eq!(bucket.keys("got/"), keys);
    // A complete copy stays.
    let again = tarn(&site, &["data", "get", "d", &out]).exits(1);
    assert!(again.err.contains("exists already"), "{}", again.err);
    bucket.put("mine/x", b"mine");
    tarn(&site, &["data", "drain", "d", &at(&bucket, "mine/")]).exits(1);
    assert!(!site.left_on_tier().is_empty());
    tarn(&site, &["data", "drain", "d", &drained]).exits(0);
    assert_eq!(bucket.read("drained/sub/b"), b"two\n");
    site.leaves_nothing_on_its_tier();
    // And back onto a tier.
    let put = [
        &["data", "put", &drained, "d"][..],
        &["--tier", &site.options[1]],
    ]
    .concat();
    tarn(&site, &put).exits(0);
    tarn(&site, &["data", "get", "d", "back"]).exits(0);
    assert_eq!(site.read("back/sub/b"), "two\n");
}

#[test]
fn a_drain_that_was_killed_when_all_was_put_frees_the_nodes() {
    let bucket = Bucket::new("drain-again");
    let site = Site::new(MADE);
    site.run().exits(0);
    let drained = at(&bucket, "drained/");
    let call = |what: &str, to: &str| tarn(&site, &["data", what, "d", to]);
    // As the killed call leaves it; somebody has changed it since.
    let changed = at(&bucket, "changed/");
    call("get", &changed).exits(0);
    bucket.put("changed/a", b"ONE\n");
    let refused = call("drain", &changed).exits(1);
    assert!(refused.err.contains("exists already"), "{}", refused.err);
    assert!(!site.left_on_tier().is_empty());
    call("get", &drained).exits(0);
    let ended = call("drain", &drained).exits(0);
    assert!(ended.err.contains("by an earlier call"), "{}", ended.err);
    assert_eq!(bucket.read("drained/sub/b"), b"two\n");
    site.leaves_nothing_on_its_tier();
}

#[test]
fn what_a_run_has_delivered_to_a_store_is_got_from_there() {
    let bucket = Bucket::new("delivered");
    let dest = format!("keep = \"forever\"\ndest = \"{}\"", at(&bucket, "result/"));
    let site = Site::new(&MADE.replace("keep = \"forever\"", &dest));
    tarn(&site, &site.run_arguments()).exits(0);
    // Nothing is left of it on the nodes.
    std::fs::remove_dir_all(site.path("tier")).unwrap();
    std::fs::create_dir(site.path("tier")).unwrap();
    let got = tarn(&site, &["data", "get", "d", "back"]);
    assert_eq!(got.code, Some(0), "{}", got.err);
    assert_eq!(site.read("back/sub/b"), "two\n");
}

const RESCUED: &str = r#"
name = "w"
external = "EXTERNAL"
[data.d]
on_failure = "drain"
[[step]]
name = "make"
run = "echo n > $TARN_d/n"
out = ["d"]
[[step]]
name = "fail"
run = "false"
in = ["d"]
"#;

#[test]
fn what_is_rescued_goes_to_a_store() {
    let bucket = Bucket::new("rescue");
    let at = |key: &str| RESCUED.replace("EXTERNAL", &at(&bucket, key));
    let site = Site::new(&at("ext/"));
    tarn(&site, &site.run_arguments()).exits(1);
    let keys = ["ext/rescued-w-1/d/.tarn-manifest", "ext/rescued-w-1/d/n"];
    assert_eq!(bucket.keys("ext/"), keys);
    // A store that cannot be used is found out before anything starts.
    let none = RESCUED.replace("EXTERNAL", "s3://none-such/ext/");
    let site = Site::new(&none);
    let refused = tarn(&site, &site.run_arguments()).exits(3);
    assert!(
        refused.err.contains("there is no bucket `none-such`"),
        "{}",
        refused.err
    );
    assert!(!refused.err.contains(" done in "), "{}", refused.err);
    for wrong in ["s3://a", "s3://bucket/a//b/"] {
        let site = Site::new(&RESCUED.replace("EXTERNAL", wrong));
        let refused = tarn(&site, &site.run_arguments()).exits(3);
        assert!(refused.err.contains("`external`"), "{}", refused.err);
    }
}

/// `a` and `b` have no space on the tier together, and `a` is read when `b` is over.
const CROWDED: &str = r#"
name = "w"
external = "EXTERNAL"
[data.a]
size = "12 MB"
OF_A
[data.b]
size = "12 MB"
[data.c]
[data.r]
dest = "out"
[[step]]
name = "make-a"
run = "(yes needle || true) | head -c 12000000 > $TARN_a/f; echo made >> $TARN_WORKFLOW_DIR/made"
out = ["a"]
[[step]]
name = "make-b"
run = "head -c 12000000 /dev/zero > $TARN_b/f"
after = ["make-a"]
out = ["b"]
[[step]]
name = "use-b"
run = "AT_B; wc -c < $TARN_b/f > $TARN_c/n"
in = ["b"]
out = ["c"]
[[step]]
name = "use-a"
run = "cat $TARN_a/f $TARN_c/n | cksum > $TARN_r/sum"
in = ["a", "c"]
out = ["r"]
"#;

/// The site; the external store is below `ext/` of the bucket.
fn crowded(bucket: &Bucket, of_a: &str, at_b: &str) -> Site {
    let text = CROWDED
        .replace("EXTERNAL", &at(bucket, "ext/"))
        .replace("OF_A", of_a)
        .replace("AT_B", at_b);
    let mut site = Site::new(&text);
    site.options[1] = site.options[1].replace("64MiB", "20MiB");
    site
}

/// The result is right, and nothing is left of the run's own.
#[track_caller]
fn all_is_well(site: &Site, bucket: &Bucket) {
    let mut content: Vec<u8> = b"needle\n"
        .iter()
        .copied()
        .cycle()
        .take(12_000_000)
        .collect();
    content.extend(b"12000000\n");
    site.write("expected", std::str::from_utf8(&content).unwrap());
    let sum = Command::new("cksum")
        .stdin(std::fs::File::open(site.path("expected")).unwrap())
        .output()
        .unwrap();
    assert_eq!(site.read("out/sum").as_bytes(), sum.stdout);
    assert_eq!(site.read("made"), "made\n");
    let none: [&str; 0] = [];
    assert_eq!(bucket.keys("ext/"), none);
    assert_eq!(bucket.uploads("ext/"), none);
    site.leaves_nothing_on_its_tier();
}

/// Bytes that went to the external store and came from it again.
fn outside(site: &Site) -> (u64, u64) {
    let moved = site.moved();
    let sum = |kind: &str| {
        moved
            .iter()
            .filter(|((k, _), _)| k == kind)
            .map(|(_, n)| n)
            .sum()
    };
    (sum("external-out"), sum("external-in"))
}

const WAITS: &str =
    "test -e $TARN_WORKFLOW_DIR/go || { touch $TARN_WORKFLOW_DIR/waits; sleep 60; }";

#[test]
fn a_run_whose_tier_is_too_small_overflows_to_a_store() {
    let bucket = Bucket::new("overflow");
    let site = crowded(&bucket, "", "true");
    bucket.put("ext/theirs", b"mine");
    tarn(&site, &site.run_arguments()).exits(0);
    let (out, back) = outside(&site);
    assert!(out > 12_000_000 && back >= 12_000_000, "{out} {back}");
    // Objects of others stay.
    assert_eq!(bucket.keys("ext/"), ["ext/theirs"]);
    let at = bucket.at("ext/theirs");
    bucket
        .store
        .remove(&at, None, &tarn_ports::Control::default())
        .unwrap();
    all_is_well(&site, &bucket);
}

#[test]
fn what_is_to_be_kept_and_lies_in_a_store_is_got_and_removed() {
    let bucket = Bucket::new("kept");
    let site = crowded(&bucket, "keep = \"forever\"", "true");
    tarn(&site, &site.run_arguments()).exits(0);
    let part = |key: &String| key.starts_with("ext/tarn-w-") && key.ends_with("/f");
    assert_eq!(bucket.keys("ext/").iter().filter(|k| part(k)).count(), 1);
    // From there, where no tier has it.
    std::fs::remove_dir_all(site.path("tier")).unwrap();
    std::fs::create_dir(site.path("tier")).unwrap();
    tarn(&site, &["data", "get", "a", "back"]).exits(0);
    assert_eq!(
        std::fs::metadata(site.path("back/f")).unwrap().len(),
        12_000_000
    );
    tarn(&site, &["data", "rm", "--orphans"]).exits(0);
    assert_eq!(bucket.keys("ext/").iter().filter(|k| part(k)).count(), 1);
    tarn(&site, &["data", "rm", "a"]).exits(0);
    all_is_well(&site, &bucket);
}

/// A run is killed when it has drained a part to the store: the keys that are there.
fn killed_when_drained(site: &Site, bucket: &Bucket) -> Vec<String> {
    let mut child = command(site, &swift().endpoint, &site.run_arguments())
        .spawn()
        .expect("tarn starts");
    until("use-b runs", || site.path("waits").exists());
    send(Signal::KILL, &child);
    child.wait().expect("it ends");
    let there = bucket.keys("ext/");
    assert_eq!(there.len(), 2, "{there:?}");
    there
}

#[test]
fn a_run_that_was_killed_reads_what_it_had_drained_to_a_store() {
    let bucket = Bucket::new("resumes");
    let site = crowded(&bucket, "", WAITS);
    let there = killed_when_drained(&site, &bucket);
    // It stays for a resumed run.
    tarn(&site, &["data", "rm", "--orphans"]).exits(0);
    assert_eq!(bucket.keys("ext/"), there);
    site.write("go", "");
    tarn(&site, &["resume"]).exits(0);
    all_is_well(&site, &bucket);
}

#[test]
fn what_a_store_does_not_tell_of_is_not_taken_for_lost() {
    let bucket = Bucket::new("untold");
    let site = crowded(&bucket, "", WAITS);
    let there = killed_when_drained(&site, &bucket);
    site.write("go", "");
    let resume = |words: &'static [&'static str]| {
        let proxy = Proxy::new(
            move |request, _| match words.iter().all(|w| request.contains(w)) {
                true => refusal("403 Forbidden", "", "AccessDenied", "Not now."),
                false => Act::Pass,
            },
        );
        let output = command(&site, &proxy.endpoint, &["resume"]).output();
        Ran::of(output.expect("tarn starts"))
    };
    // It lists what is there, and does not say whether that is whole.
    let refused = resume(&["HEAD", "/tarn-w-", ".tarn-manifest"]).exits(5);
    assert!(
        refused.err.contains("ext/tarn-w-") && refused.err.contains("`tarn resume`"),
        "{}",
        refused.err
    );
    assert_eq!(bucket.keys("ext/"), there);
    // It is tried before anything resumes.
    let refused = resume(&["PUT", ".tarn-probe"]).exits(3);
    assert!(refused.err.contains("`external`"), "{}", refused.err);
    assert_eq!(bucket.keys("ext/"), there);
    tarn(&site, &["resume"]).exits(0);
    all_is_well(&site, &bucket);
}

#[test]
fn a_run_that_was_killed_while_it_drained_to_a_store_goes_on_part_by_part() {
    let bucket = Bucket::new("half");
    let site = crowded(&bucket, "", "true");
    let reached = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&reached);
    let proxy = Proxy::new(move |request, _| {
        if request.contains("partNumber=2") {
            seen.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_secs(30));
        }
        Act::Pass
    });
    let mut child = command(&site, &proxy.endpoint, &site.run_arguments())
        .spawn()
        .expect("tarn starts");
    until("the first part is there", || {
        reached.load(Ordering::SeqCst) && bucket.parts("ext/") == [1]
    });
    send(Signal::KILL, &child);
    child.wait().expect("it ends");
    let proxy = Proxy::new(|_, _| Act::Pass);
    let output = command(&site, &proxy.endpoint, &["resume"]).output();
    Ran::of(output.expect("tarn starts")).exits(0);
    let seen = proxy.seen.lock().expect("whole").clone();
    let sent = |r: &&String| r.starts_with("PUT") && r.contains("partNumber=1");
    assert_eq!(seen.iter().filter(sent).count(), 0);
    all_is_well(&site, &bucket);
}

#[test]
fn a_policy_that_puts_everything_outside_takes_a_store() {
    let bucket = Bucket::new("through");
    let site = crowded(&bucket, "", "true");
    let through = [site.run_arguments(), vec!["--policy", "stage-through"]].concat();
    tarn(&site, &through).exits(0);
    let (out, back) = outside(&site);
    assert!(out > 24_000_000 && back > 24_000_000, "{out} {back}");
    all_is_well(&site, &bucket);
}

#[test]
fn what_is_encrypted_lies_sealed_in_a_store() {
    let bucket = Bucket::new("encrypted");
    let site = crowded(&bucket, "encrypt = true", WAITS);
    if site
        .tarn(&["doctor"])
        .out
        .contains("steps of several nodes: no")
    {
        eprintln!("skipped: this machine allows no namespaces");
        return;
    }
    tarn(&site, &["key", "new"]).exits(0);
    let there = killed_when_drained(&site, &bucket);
    for key in there {
        let bytes = bucket.read(&key);
        let is_clear = bytes.windows(6).any(|w| w == b"needle");
        assert!(!is_clear, "{key} is in clear");
    }
    site.write("go", "");
    tarn(&site, &["resume"]).exits(0);
    all_is_well(&site, &bucket);
    let mut keys = Vec::new();
    common::files(&site.path(".tarn/keys"), &mut keys);
    assert!(keys.is_empty(), "{keys:?}");
}

#[test]
fn an_external_store_that_cannot_be_used_stops_a_run_before_it_starts() {
    let bucket = Bucket::new("refused");
    let site = crowded(&bucket, "", "true");
    let text = site.read("workflow.toml");
    let wrong = command(&site, &swift().endpoint, &site.run_arguments())
        .env("AWS_SECRET_ACCESS_KEY", "guessed")
        .output();
    let wrong = Ran::of(wrong.expect("tarn starts")).exits(3);
    let assert_reports = |ran: &Ran, what: &str| {
        assert!(
            ran.err.contains("`external`") && ran.err.contains(what),
            "{}",
            ran.err
        );
    };
    assert_reports(&wrong, "check key and secret");
    site.write("workflow.toml", &text.replace(&bucket.name, "none-such"));
    let none = tarn(&site, &site.run_arguments()).exits(3);
    assert_reports(&none, "there is no bucket `none-such`");
    assert!(!site.path("made").exists());
}
