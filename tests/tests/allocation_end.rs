//! The end of an allocation: a run stops in time, and resumes in the next one, on other nodes.

use tarn_tests::fixture::{self, Fixture, ended};

/// The inputs of the second step are kept on the node of the first, and some of them are brought out when the end is near.
const CHAIN: &str = r#"
name = "chain"
external = "ext"

[data.a]
keep = "forever"

[data.safe]
on_failure = "drain"

[data.b]
dest = "out"

[[step]]
name = "first"
run = "echo made > $TARN_a/a; echo safe > $TARN_safe/f; head -c 8M /dev/urandom > $TARN_safe/large; echo x >> $TARN_WORKFLOW_DIR/first"
out = ["a", "safe"]

[[step]]
name = "second"
run = "touch $TARN_WORKFLOW_DIR/began; while [ ! -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.1; done; cat $TARN_a/a > $TARN_b/b"
in = ["a", "safe"]
out = ["b"]
"#;

fn allocated(fixture: &Fixture<'_>, options: &str, command: &str) -> (Option<i32>, String) {
    ended(fixture.allocated(options, command))
}

#[test]
fn a_run_stops_before_its_allocation_ends_and_goes_on_elsewhere() {
    let Some(cluster) = fixture::cluster(2, &["tarn", "tarnd"], &[], &[]) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", CHAIN);
    let tier = "--tier scm=/scm/alice:64MiB";

    let (status, text) = allocated(
        &fixture,
        "-N1 -w node1 -t 2",
        &format!("tarn run {tier} --margin 600 wf.toml"),
    );
    assert!(
        status == Some(2) && text.contains("nothing was started"),
        "{status:?} {text}"
    );
    // Not even a tarnd, and no run is left.
    assert!(!text.contains("ready after"), "{text}");
    let runs = std::fs::read_dir(fixture.path(".tarn/runs"));
    assert_eq!(runs.map_or(0, Iterator::count), 0);

    let (status, text) = allocated(
        &fixture,
        "-N1 -w node1 -t 2",
        &format!("tarn run {tier} --margin 96 --external-rate 2MB/s wf.toml"),
    );
    assert_eq!(status, Some(143), "{text}");
    assert!(
        text.contains("the run is interrupted now")
            && text.contains("(--margin 96, and 4 s for data to be drained)")
            && text.contains("tarn resume"),
        "{text}"
    );
    // Data that is brought out is not in this message.
    let at_risk = "the parts of `a`, `b` made by then are lost with its nodes";
    assert!(text.contains(at_risk), "{text}");
    assert!(fixture.path("began").exists(), "{text}");
    let rescued = std::fs::read_dir(fixture.path("ext")).expect("what was drained");
    let rescued = rescued.map(|entry| entry.expect("an entry").path().join("safe/f"));
    let rescued: Vec<_> = rescued.map(std::fs::read_to_string).collect();
    assert!(
        matches!(&rescued[..], [Ok(text)] if text == "safe\n"),
        "{rescued:?} {text}"
    );
    let listed = fixture.shell("tarn data ls");
    assert!(listed.contains("node1/scm"), "{listed}");

    fixture.write("go", "");
    let (status, text) = allocated(&fixture, "-N1 -w node2", "tarn resume");
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("does not have node1"), "{text}");
    assert_eq!(fixture.read("out/b"), "made\n");

    // Data that was kept on the first node is listed still, and is not called lost where nobody can look.
    assert!(!text.contains("is gone"), "{text}");
    let listed = fixture.shell("tarn data ls");
    assert!(listed.contains("node1/scm"), "{listed}");
    let rm = fixture.shell("tarn data rm a 2>&1 && tarn data rm safe 2>&1 && echo both");
    assert!(rm.contains("node1") && rm.ends_with("both\n"), "{rm}");
    let (status, text) = allocated(&fixture, "-N2", "tarn data rm --orphans");
    assert_eq!(status, Some(0), "{text}");
    let parts = "find /scm/alice -path '*/parts/*' -type f ; true";
    for node in [1, 2] {
        let left = cluster.node(node).exec("root", &["bash", "-c", parts]);
        assert_eq!(left.expect("find").trim(), "", "on node{node}: {text}");
    }
}
