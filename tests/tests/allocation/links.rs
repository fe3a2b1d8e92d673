//! Links that carry nothing: between two nodes that tarn still reaches, and of a node in the middle of a transfer.

use crate::{Desk, LATER, TIER, began, cluster, wait_for_begin};
use std::time::{Duration, Instant};
use tarn_tests::slurm::{Cluster, wait_until};

/// The second step needs on two nodes what the first has read on one of them.
const READ_TWICE: &str = r#"
name = "twice"

[data.raw]
source = "in"

[data.all]
dest = "out"

[[step]]
name = "one"
run = "cat $TARN_raw/f > $TARN_WORKFLOW_DIR/first; echo $TARN_NODE >> $TARN_WORKFLOW_DIR/began; while [ ! -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.1; done"
in = ["raw"]

[[step]]
name = "two"
nodes = 2
run = "cat $TARN_raw/f > $TARN_all/text"
in = ["raw:broadcast"]
out = ["all:single"]
after = ["one"]
"#;

/// A node of the cluster runs this as an administrator.
fn on(cluster: &Cluster, node: usize, script: &str) -> String {
    let said = cluster.node(node).exec("root", &["bash", "-c", script]);
    said.unwrap_or_else(|e| panic!("{e:#}"))
}

/// Two nodes cannot reach each other, and tarn reaches both: what one has, the other reads outside.
#[test]
fn nodes_that_cannot_reach_each_other_read_outside() {
    let Some(cluster) = cluster(2) else { return };
    let desk = Desk::new(&cluster, "alice", READ_TWICE);
    desk.write("in/f", "both\n");
    let running = desk.start("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    wait_for_begin(&desk, 1);
    for (node, other) in [(1, "node2"), (2, "node1")] {
        let script =
            format!("ip route add prohibit $(getent ahostsv4 {other} | head -1 | cut -d ' ' -f 1)");
        on(&cluster, node, &script);
    }
    desk.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(desk.read("out/text"), "both\n");
    let log = desk.read(".tarn/runs/twice-1/events.log");
    let failed = log.matches("\"event\":\"transfer-failed\"").count();
    assert_eq!(failed, 1, "the peer was asked once: {log}");
}

/// What one node makes is wanted on two; the last step wants all three, the cut one too.
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

/// The node that sends is cut off in the middle of a transfer, and is back a minute later: the others go on without it, and
/// then with it.
#[test]
fn a_link_is_cut_in_the_middle_of_a_transfer() {
    let Some(cluster) = cluster(3) else { return };
    // A node is not taken from its job for being silent a minute: so it is on sites (there it is 300 s).
    let patient = "sed -i 's/^SlurmdTimeout=.*/SlurmdTimeout=300/' /etc/slurm/slurm.conf";
    on(&cluster, 1, patient);
    cluster.restart_ctld().unwrap_or_else(|e| panic!("{e:#}"));
    let desk = Desk::new(&cluster, "alice", MADE);
    let running = desk.start("-N3 -n24 --no-kill", &format!("tarn run {TIER} wf.toml"));
    let sender = wait_for_begin(&desk, 1);
    let node = cluster.node(sender);
    node.shape_link(Some(40))
        .unwrap_or_else(|e| panic!("{e:#}"));
    desk.write("go", "");
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
    let second = wait_for_begin(&desk, 2);
    assert_ne!(second, sender);
    let done = wait_until("the two others", LATER, || desk.path("out/sum").exists());
    done.unwrap_or_else(|e| panic!("{e:#}"));
    let minute = Duration::from_secs(60).saturating_sub(cut.elapsed());
    std::thread::sleep(minute);
    node.heal_link().unwrap_or_else(|e| panic!("{e:#}"));
    node.shape_link(None).unwrap_or_else(|e| panic!("{e:#}"));
    let log = || desk.read(".tarn/runs/made-1/events.log");
    let back = wait_until("the node", LATER, || log().contains("node-back"));
    back.unwrap_or_else(|e| panic!("{e:#}\n{}", log()));
    desk.write("back", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(desk.read("out/sum"), desk.read("sum"));
    assert_eq!(desk.read("end/sum"), desk.read("sum"));
    assert_eq!(began(&desk).len(), 2);
    let log = log();
    for event in ["node-lost", "node-back", "transfer-failed"] {
        assert!(log.contains(event), "{event}: {log}");
    }
}
