//! Links that carry nothing: between two nodes that tarn still reaches, and of a node in the middle of a transfer.

use crate::{Fixture, LATER, TIER, began, cluster, wait_for_begin};
use std::time::{Duration, Instant};
use tarn_tests::slurm::{Cluster, wait_until};

/// Two steps need at the same time the output of the first on one node: each takes all cores of one.
const READ_TWICE: &str = r#"
name = "twice"

[data.raw]
source = "in"

[[step]]
name = "one"
run = "cat $TARN_raw/f > $TARN_WORKFLOW_DIR/first; echo $TARN_NODE >> $TARN_WORKFLOW_DIR/began; while [ ! -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.1; done"
in = ["raw"]

[[step]]
name = "two"
cores = 8
run = "cat $TARN_raw/f > $TARN_WORKFLOW_DIR/two; while [ ! -e $TARN_WORKFLOW_DIR/three ]; do sleep 0.1; done"
in = ["raw"]
after = ["one"]

[[step]]
name = "three"
cores = 8
run = "cat $TARN_raw/f > $TARN_WORKFLOW_DIR/three; while [ ! -e $TARN_WORKFLOW_DIR/two ]; do sleep 0.1; done"
in = ["raw"]
after = ["one"]
"#;

/// A step of two nodes.
const BOTH: &str = r#"
name = "both"

[[step]]
name = "one"
run = "echo $TARN_NODE >> $TARN_WORKFLOW_DIR/began; while [ ! -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.1; done"

[[step]]
name = "two"
nodes = 2
retries = 1
run = "echo no >> $TARN_WORKFLOW_DIR/ran"
after = ["one"]
"#;

/// A node of the cluster runs this as an administrator.
fn on(cluster: &Cluster, node: usize, script: &str) -> String {
    let output = cluster.node(node).exec("root", &["bash", "-c", script]);
    output.unwrap_or_else(|e| panic!("{e:#}"))
}

/// The first two nodes do not reach each other any more.
fn part(cluster: &Cluster) {
    for (node, other) in [(1, "node2"), (2, "node1")] {
        let script =
            format!("ip route add prohibit $(getent ahostsv4 {other} | head -1 | cut -d ' ' -f 1)");
        on(cluster, node, &script);
    }
}

/// A step of both fails by name, as often as it may be tried: neither node is lost.
#[test]
fn a_step_of_nodes_that_cannot_reach_each_other_fails_by_name() {
    let Some(cluster) = cluster(2) else { return };
    let fixture = Fixture::new(&cluster, "alice", BOTH);
    let running = fixture.start("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    wait_for_begin(&fixture, 1);
    part(&cluster);
    fixture.write("go", "");
    let (status, text) = running.end();
    assert!(status.is_some_and(|status| status != 0), "{text}");
    let names = [
        "node node1 could not give node node2",
        "node node2 could not give node node1",
    ];
    assert!(names.iter().any(|name| text.contains(name)), "{text}");
    assert!(!fixture.path("ran").exists(), "{text}");
    let log = fixture.read(".tarn/runs/both-1/events.log");
    assert_eq!(log.matches("\"how\":\"failed\"").count(), 2, "{log}");
    assert!(!log.contains("node-lost"), "{log}");
}

/// Two nodes cannot reach each other, and tarn reaches both: the other node reads its data outside.
#[test]
fn nodes_that_cannot_reach_each_other_read_outside() {
    let Some(cluster) = cluster(2) else { return };
    let fixture = Fixture::new(&cluster, "alice", READ_TWICE);
    fixture.write("in/f", "both\n");
    let running = fixture.start("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    wait_for_begin(&fixture, 1);
    part(&cluster);
    fixture.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    for read in ["two", "three"] {
        assert_eq!(fixture.read(read), "both\n");
    }
    let log = fixture.read(".tarn/runs/twice-1/events.log");
    let failed = log.matches("\"event\":\"transfer-failed\"").count();
    assert_eq!(failed, 1, "the peer was asked once: {log}");
}

/// The output of one node is read on two, and goes out.
const GIVEN: &str = r#"
name = "given"

[data.x]
dest = "out"

[[step]]
name = "one"
run = "head -c 8000000 /dev/zero > $TARN_x/f"
out = ["x"]

[[step]]
name = "two"
nodes = 2
run = "test $(stat -c %s $TARN_x/f) = 8000000"
in = ["x:broadcast"]
"#;

/// A transfer from node to node keeps to the requested rate, a transfer to the outside does not.
#[test]
fn a_rate_between_nodes_is_kept() {
    let Some(cluster) = cluster(2) else { return };
    let fixture = Fixture::new(&cluster, "alice", GIVEN);
    let command = format!("tarn run {TIER} --peer-rate 1MB/s wf.toml");
    let output = fixture.run("-N2 -n16", &command);
    assert!(output.contains("at most 1 MB/s"), "{output}");
    let log = fixture.read(".tarn/runs/given-1/events.log");
    // Each line has a checksum and a record, but for the first, which names the format.
    let records = log
        .lines()
        .skip(1)
        .filter_map(|l| l.find('{').map(|at| &l[at..]));
    let records: Vec<serde_json::Value> =
        records.map(|r| serde_json::from_str(r).expect(r)).collect();
    let actions = || records.iter().filter_map(|r| r["actions"].as_array());
    let took = |kind: &str| -> f64 {
        let order = actions()
            .flatten()
            .find(|a| a["do"] == "transfer" && a["kind"] == kind);
        let order = order.unwrap_or_else(|| panic!("no {kind} in {log}"));
        let done = |r: &&serde_json::Value| r["event"] == "transfer-done" && r["id"] == order["id"];
        let done = records.iter().find(done);
        let done = done.unwrap_or_else(|| panic!("no end of {order} in {log}"));
        done["took"].as_f64().expect("nanoseconds") / 1e9
    };
    // 8 MB at 1 MB/s; a transfer without the limit is faster on a busy machine too.
    let (peer, out) = (took("peer"), took("external-out"));
    assert!(peer > 7.6 && out < 7.0, "{peer} s, {out} s");
    // On one machine tarn reports that it is of no use.
    let local = fixture.shell("tarn nodes --local --peer-rate 4MB/s");
    assert!(local.contains("no effect on one machine"), "{local}");
}

/// The output of one node is wanted on two; the last step wants all three, the cut one too.
const MADE: &str = r#"
name = "made"

[data.x]

[data.all]
dest = "out"

[data.end]
dest = "end"

[[step]]
name = "one"
run = "head -c 33554432 /dev/urandom > $TARN_x/f; cat $TARN_x/f | sha256sum > $TARN_WORKFLOW_DIR/sum; echo $TARN_NODE >> $TARN_WORKFLOW_DIR/began; while [ ! -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.1; done"
out = ["x"]

[[step]]
name = "two"
nodes = 2
run = "sha256sum < $TARN_x/f > $TARN_all/sum"
in = ["x:broadcast"]
out = ["all:single"]

[[step]]
name = "waits"
run = "while [ ! -e $TARN_WORKFLOW_DIR/back ]; do sleep 0.1; done"

[[step]]
name = "three"
nodes = 3
run = "sha256sum < $TARN_x/f > $TARN_end/sum"
in = ["x:broadcast"]
out = ["end:single"]
after = ["waits", "two"]
"#;

/// The node that sends is cut off in the middle of a transfer, and is back a minute later: the others continue without it, and
/// then with it.
#[test]
fn a_link_is_cut_in_the_middle_of_a_transfer() {
    let Some(cluster) = cluster(3) else { return };
    // A node is not taken from its job for being silent a minute: so it is on sites (there it is 300 s).
    let patient = "sed -i 's/^SlurmdTimeout=.*/SlurmdTimeout=300/' /etc/slurm/slurm.conf";
    on(&cluster, 1, patient);
    cluster.restart_ctld().unwrap_or_else(|e| panic!("{e:#}"));
    let fixture = Fixture::new(&cluster, "alice", MADE);
    let running = fixture.start("-N3 -n24 --no-kill", &format!("tarn run {TIER} wf.toml"));
    let sender = wait_for_begin(&fixture, 1);
    let node = cluster.node(sender);
    node.shape_link(Some(20))
        .unwrap_or_else(|e| panic!("{e:#}"));
    fixture.write("go", "");
    // Some of it has arrived somewhere, and not all.
    let others = (1..=3).filter(|n| *n != sender);
    let arrived = |n: usize| -> u64 {
        let script = "du -s --block-size=1 /scm | cut -f 1";
        on(&cluster, n, script).trim().parse().expect("bytes")
    };
    let middle = 2_000_000..28_000_000;
    let waited = wait_until("a transfer", LATER, || {
        others.clone().any(|n| middle.contains(&arrived(n)))
    });
    waited.unwrap_or_else(|e| panic!("{e:#}"));
    node.cut_link().unwrap_or_else(|e| panic!("{e:#}"));
    let cut = Instant::now();
    // It is made again, and goes from there.
    let second = wait_for_begin(&fixture, 2);
    assert_ne!(second, sender);
    let done = wait_until("the two others", LATER, || fixture.path("out/sum").exists());
    done.unwrap_or_else(|e| panic!("{e:#}"));
    let minute = Duration::from_secs(60).saturating_sub(cut.elapsed());
    std::thread::sleep(minute);
    node.heal_link().unwrap_or_else(|e| panic!("{e:#}"));
    node.shape_link(None).unwrap_or_else(|e| panic!("{e:#}"));
    let log = || fixture.read(".tarn/runs/made-1/events.log");
    let back = wait_until("the node", LATER, || log().contains("node-back"));
    back.unwrap_or_else(|e| panic!("{e:#}\n{}", log()));
    fixture.write("back", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(fixture.read("out/sum"), fixture.read("sum"));
    assert_eq!(fixture.read("end/sum"), fixture.read("sum"));
    assert_eq!(began(&fixture).len(), 2);
    let log = log();
    for event in ["node-lost", "node-back", "transfer-failed"] {
        assert!(log.contains(event), "{event}: {log}");
    }
}
