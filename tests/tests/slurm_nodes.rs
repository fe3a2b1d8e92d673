//! One srun starts a program on each node of a real allocation, sends it commands, reads its replies, and ends it.

use std::time::Duration;
use tarn_tests::slurm::{Cluster, wait_until};
use tarn_tests::{fixture, programs};

const SOON: Duration = Duration::from_secs(30);

/// Replies as a tarnd, as it is called on each node; one of them may fail. Ends with its standard input.
const NODE: &str = r#"#!/bin/bash
read -r start
echo "$start" > /shared/home/alice/told.$SLURMD_NODENAME
[ "$SLURMD_NODENAME" != "$(cat /shared/home/alice/fails 2> /dev/null)" ] || { echo "no luck here" >&2; exit 3; }
env | grep -c '^PMI' > /shared/home/alice/pmi.$SLURMD_NODENAME
echo "{\"node\": \"$SLURMD_NODENAME\", \"control\": $$, \"data\": 2}"
read -r never
touch /shared/home/alice/ended.$SLURMD_NODENAME
"#;

fn cluster(nodes: usize) -> Option<Cluster> {
    fixture::cluster(nodes, &[], &[], &[])
}

/// The example program of the crate, and the stand-in for tarnd, where the cluster's users find them.
fn install(cluster: &Cluster) {
    use std::os::unix::fs::PermissionsExt;
    programs::install(cluster, &["examples/nodes"]).unwrap_or_else(|e| panic!("{e:#}"));
    let bin = cluster.shared().join("bin");
    let node = bin.join("node");
    std::fs::write(&node, NODE).expect("a script");
    std::fs::set_permissions(&node, std::fs::Permissions::from_mode(0o755)).expect("its mode");
}

fn file(cluster: &Cluster, name: &str) -> std::path::PathBuf {
    cluster.shared().join("home/alice").join(name)
}

#[test]
fn every_node_is_started_told_and_ended() {
    let Some(cluster) = cluster(3) else { return };
    install(&cluster);
    let from_login = [
        "salloc",
        "-Q",
        "-N2",
        "-t",
        "10",
        "nodes",
        "/shared/bin/node",
    ];
    let from_batch = [
        "sbatch",
        "--wait",
        "-Q",
        "-N3",
        "-n3",
        "-o",
        "out",
        "--wrap",
        "nodes /shared/bin/node",
    ];
    let of_login = cluster
        .exec("alice", &from_login)
        .unwrap_or_else(|e| panic!("{e:#}"));
    let batch = cluster.exec("alice", &from_batch);
    let of_batch = std::fs::read_to_string(file(&cluster, "out")).expect("its output");
    assert!(batch.is_ok(), "{batch:?}\n{of_batch}");
    // Of ten minutes: all of them, or not quite.
    let some = ["seconds left: 5", "seconds left: 600"];
    for (output, nodes, left) in [(of_login, 2, &some[..]), (of_batch, 3, &["no end"])] {
        assert!(left.iter().any(|left| output.contains(left)), "{output}");
        for n in 1..=nodes {
            assert!(output.contains(&format!("node{n} started")), "{output}");
            let notification = std::fs::read_to_string(file(&cluster, &format!("told.node{n}")));
            assert!(
                notification
                    .expect("it was told")
                    .contains("\"run\":\"r1\"")
            );
            assert!(
                file(&cluster, &format!("ended.node{n}")).exists(),
                "{output}"
            );
            let pmi = std::fs::read_to_string(file(&cluster, &format!("pmi.node{n}")));
            assert_eq!(pmi.expect("counted").trim(), "0");
        }
    }
    assert_eq!(
        cluster
            .exec("alice", &["squeue", "-h"])
            .expect("squeue")
            .trim(),
        ""
    );
}

#[test]
fn a_node_that_does_not_start_is_named_and_the_others_are_ended() {
    let Some(cluster) = cluster(2) else { return };
    install(&cluster);
    std::fs::write(file(&cluster, "fails"), "node2\n").expect("a file");
    let words = ["salloc", "-Q", "-N2", "nodes", "/shared/bin/node"];
    let refused = cluster.exec("alice", &words).expect_err("one is missing");
    let message = format!("{refused:#}");
    assert!(message.contains("did not start on node2 ("), "{message}");
    assert!(message.contains("no luck here"), "{message}");
    let ended = || file(&cluster, "ended.node1").exists();
    wait_until("the end of node1's", SOON, ended).unwrap_or_else(|e| panic!("{e:#}"));
    let missing = cluster.exec(
        "alice",
        &["salloc", "-Q", "-N2", "nodes", "/shared/bin/nothing"],
    );
    assert!(format!("{:#}", missing.expect_err("no program")).contains("beside tarn"));
    let outside = cluster
        .exec("alice", &["nodes", "/shared/bin/node"])
        .expect_err("no job");
    assert!(format!("{outside:#}").contains("this is no allocation"));
}
