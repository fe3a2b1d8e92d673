//! Workflows with `encrypt`, and `tarn key`, by the real binary: results as ever, and nothing in clear on the tier.

mod common;
use common::{Site, files};
use std::path::PathBuf;

const NEEDLE: &str = "kryptonite";

const FLOW: &str = r#"
name = "flow"
[data.text]
source = "books"
encrypt = true
[data.counts]
encrypt = true
keep = "forever"
[data.total]
dest = "result"
encrypt = true
[[step]]
name = "count"
foreach = "text/*.txt"
run = """
cp $TARN_text/$TARN_ITEM left-behind; cp $TARN_text/$TARN_ITEM /tmp/; cp $TARN_text/$TARN_ITEM /var/tmp/
if grep -rq --exclude-dir=at kryptonite TIER; then echo in clear; exit 9; fi
(cat $TARN_text/$TARN_ITEM; wc -w < $TARN_text/$TARN_ITEM) > $TARN_counts/$TARN_ITEM
"""
in = ["text/{item}"]
out = ["counts"]
[[step]]
name = "sum"
run = "test -e OK && cat $TARN_counts/*.txt | grep -c kryptonite > $TARN_total/words"
in = ["counts"]
out = ["total"]
"#;

/// The site, unless this machine has no namespaces: then it says so.
fn site(flow: &str) -> Option<Site> {
    let probe = Site::new(flow);
    let (tier, ok) = (probe.path("tier"), probe.path("ok"));
    let text = flow
        .replace("TIER", &tier.display().to_string())
        .replace("OK", &ok.display().to_string());
    probe.write("workflow.toml", &text);
    let site = probe.with(&["--nodes", "2"]);
    site.write("ok", "");
    site.write("books/a.txt", "kryptonite one\n");
    site.write("books/b.txt", "two kryptonite\n");
    let doctor = site.tarn(&["doctor"]);
    let namespaces = site.tarn(&["key", "new"]).exits(0).err.contains("is in");
    assert!(namespaces);
    if doctor.out.contains("steps of several nodes: no") {
        eprintln!("skipped: this machine allows no namespaces");
        return None;
    }
    Some(site)
}

/// Nothing that the tier or the state folder's keys hold has the word.
#[track_caller]
fn nothing_in_clear(site: &Site) -> usize {
    let mut all = Vec::new();
    files(&site.path("tier"), &mut all);
    files(&site.path(".tarn/keys"), &mut all);
    for path in &all {
        let bytes = std::fs::read(path).unwrap_or_default();
        let clear = bytes.windows(NEEDLE.len()).any(|w| w == NEEDLE.as_bytes());
        assert!(!clear, "{} is in clear", path.display());
    }
    all.len()
}

fn keys(site: &Site) -> usize {
    let mut all = Vec::new();
    files(&site.path(".tarn/keys"), &mut all);
    all.len()
}

#[test]
fn the_result_is_right_and_what_stays_is_sealed() {
    let Some(site) = site(FLOW) else { return };
    site.run().exits(0);
    assert_eq!(site.read("result/words"), "2\n");
    assert!(nothing_in_clear(&site) > 2);
    assert_eq!(keys(&site), 2, "of the parts that are kept");
    // Again: nothing has changed, and kept data is believed.
    let again = site.run().exits(0);
    assert!(!again.err.contains("done in"), "{}", again.err);
    site.tarn(&["data", "get", "counts", "got"]).exits(0);
    assert_eq!(site.read("got/a.txt"), "kryptonite one\n2\n");
    site.tarn(&["key", "rotate", "--drop"])
        .exits(0)
        .prints("2 keys of data were wrapped again");
    site.tarn(&["data", "get", "counts", "again"]).exits(0);
    assert_eq!(site.read("again/b.txt"), "two kryptonite\n2\n");
    site.tarn(&["data", "rm", "counts"]).exits(0);
    assert_eq!(keys(&site), 0, "what is left of it anywhere is noise");
    site.leaves_nothing_on_its_tier();
}

#[test]
fn keys_are_not_forgotten_before_all_is_wrapped_anew() {
    let Some(site) = site(FLOW) else { return };
    site.run().exits(0);
    let key = site.read("config/tarn/key");
    // A folder that is not there is a mistake, and so is none.
    site.tarn(&["key", "rotate", "--drop", "elsewhere"])
        .exits(7)
        .prints("nothing was changed");
    site.tarn(&["--state", "elsewhere", "key", "rotate", "--drop"])
        .exits(7)
        .prints("no state folder");
    assert_eq!(site.read("config/tarn/key"), key);
    // As many as there may be: dropped without another one.
    for _ in 1..16 {
        site.tarn(&["key", "rotate"]).exits(0);
    }
    site.tarn(&["key", "rotate"]).exits(5).prints("--drop");
    // Key files that were being forgotten when the machine stopped are removed.
    let mut all = Vec::new();
    files(&site.path(".tarn/keys"), &mut all);
    let forgotten = all[0].clone();
    std::fs::write(&forgotten, [0; 92]).expect("a key file");
    let mut half = forgotten.clone().into_os_string();
    half.push(".1.tmp");
    let half = PathBuf::from(half);
    std::fs::write(&half, b"half").expect("a file");
    site.tarn(&["key", "rotate", "--drop"]).exits(0);
    assert_eq!(site.read("config/tarn/key").lines().count(), 1);
    assert!(!forgotten.exists() && !half.exists());
    assert_eq!(keys(&site), 1);
}

#[test]
fn a_failed_run_goes_on_from_what_is_sealed() {
    let Some(site) = site(FLOW) else { return };
    std::fs::remove_file(site.path("ok")).expect("a file");
    site.run().exits(1).prints("sum");
    assert!(nothing_in_clear(&site) > 2);
    site.write("ok", "");
    let resumed = site.tarn(&["resume"]).exits(0);
    assert!(
        !resumed.err.contains("count[a.txt] done"),
        "{}",
        resumed.err
    );
    assert_eq!(site.read("result/words"), "2\n");
}

#[test]
fn without_the_key_what_is_sealed_is_made_again() {
    let Some(site) = site(FLOW) else { return };
    std::fs::remove_file(site.path("ok")).expect("a file");
    site.run().exits(1);
    std::fs::remove_file(site.path("config/tarn/key")).expect("the key");
    site.tarn(&["resume"]).exits(5).prints("`tarn key new`");
    site.tarn(&["key", "new"]).exits(0);
    site.write("ok", "");
    let resumed = site.tarn(&["resume"]).exits(0);
    assert!(resumed.err.contains("count[a.txt] done"), "{}", resumed.err);
    assert_eq!(site.read("result/words"), "2\n");
}

#[test]
fn it_is_refused_before_anything_starts_where_it_cannot_be_had() {
    let Some(site) = site(FLOW) else { return };
    site.tarn(&["key", "new"])
        .exits(5)
        .prints("tarn key rotate");
    let off = [&site.run_arguments()[..], &["--isolation", "off"]].concat();
    site.tarn(&off).exits(4).prints("no_encryption");
    std::fs::remove_file(site.path("config/tarn/key")).expect("the key");
    site.run().exits(4).prints("`tarn key new`");
    site.tarn(&["key", "rotate"])
        .exits(5)
        .prints("`tarn key new`");
    assert!(!site.path("result").exists());
}

#[test]
fn taking_encryption_away_makes_the_steps_run_again() {
    let Some(site) = site(FLOW) else { return };
    site.run().exits(0);
    let text = site.read("workflow.toml");
    site.write("workflow.toml", &text.replace("encrypt = true", ""));
    // Now its replicas are in clear, which the step itself finds.
    let clear = site.run().exits(1);
    assert!(clear.err.contains("count[a.txt]"), "{}", clear.err);
}

#[test]
fn a_step_of_two_nodes_scatters_what_is_sealed() {
    let flow = r#"
name = "flow"
[data.text]
source = "books"
encrypt = true
[data.parts]
scatter = "p{rank}"
dest = "result"
encrypt = true
[[step]]
name = "write"
nodes = 2
run = "for n in $(cut -d' ' -f1 $TARN_HOSTFILE); do tarn exec $n -- sh -c 'mkdir $TARN_parts/p${TARN_NODE#node}; cat $TARN_text/a.txt > $TARN_parts/p${TARN_NODE#node}/x'; done"
in = ["text"]
out = ["parts:scatter"]
[[step]]
name = "change"
nodes = 2
run = "for n in $(cut -d' ' -f1 $TARN_HOSTFILE); do tarn exec $n -- sh -c 'for p in $TARN_parts/p*; do echo more >> $p/x; done'; done"
inout = ["parts:scatter"]
"#;
    let Some(site) = site(flow) else { return };
    site.run().exits(0);
    for part in ["p0", "p1"] {
        let content = site.read(&format!("result/{part}/x"));
        assert_eq!(content, "kryptonite one\nmore\n", "{part}");
    }
    site.leaves_nothing_on_its_tier();
    assert_eq!(keys(&site), 0);
}
