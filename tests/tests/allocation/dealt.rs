//! Partitions that are spread over the nodes of a step in an allocation: one from each node, by one name.

use super::pieces::shim;
use super::{Fixture, LATER, SOON, TIER, left_on};
use tarn_tests::fixture;
use tarn_tests::slurm::{Cluster, run_for_output, wait_until};

fn cluster(nodes: usize) -> Option<Cluster> {
    fixture::cluster(nodes, &["tarn", "tarnd", "examples/dealt"], &[], &[])
}

/// Each node writes to all blocks, and reads the other one's data; a later step finds it.
const WORDS: &str = r#"
name = "dealt"
[partition.field]
size = "1 MiB"
spread = "64 KiB"
keep = "workflow"
[partition.own]
size = "64 KiB"
spread = "16 KiB"
unit = "4 KiB"
[[step]]
name = "write"
nodes = 2
partitions = ["field", "own"]
run = """
set -e
each() { for node in $(cut -d' ' -f1 $TARN_HOSTFILE); do tarn exec $node "$1"; done; }
each 'for at in 0 65536 131072; do dealt write @step/field $(($at + 100 * ${TARN_NODE#node})) $TARN_NODE-$at; done'
each 'for at in 0 65536 131072; do dealt read @step/field $(($at + 300 - 100 * ${TARN_NODE#node})); done'
each 'dealt add @step/field 8; dealt add @step/field 65544'
each 'dealt write @step/own $((16384 * ${TARN_NODE#node})) $TARN_NODE'
each 'dealt read @step/own 16384; dealt read @step/own 32768'
dealt read $(echo $TARN_PARTITION_field | cut -d, -f2) 100
dealt read $(echo $TARN_PARTITION_field | cut -d, -f1) 65636
each 'dealt read $(hostname):@step/field 100; ls $(dirname $TARN_SCRATCH)/.partitions; echo $TARN_PARTITION_field by $TARN_BLOCK_field'
"""
[[step]]
name = "read"
nodes = 2
after = ["write"]
partitions = ["field"]
run = "dealt read @step/field 65736; dealt add @step/field 8"
"#;

/// The output of the step if its first node is `first`, and the other one `second`.
fn words(first: &str, second: &str) -> String {
    let mut text = String::new();
    for other in [second, first] {
        for at in [0, 65536, 131_072] {
            text += &format!("{other}-{at} of 1048576\n");
        }
    }
    for n in [0, 0, 1, 1] {
        text += &format!("was {n}\n");
    }
    for _ in 0..2 {
        text += "node1 of 65536\nnode2 of 65536\n";
    }
    // Block 1 is the second node's first, and block 2 the first one's second.
    let pieces = ["node1-65536", "node1-131072"];
    text += &format!("{} of 524288\n{} of 524288\n", pieces[0], pieces[1]);
    for at in [0, 65536] {
        text += &format!("node1-{at} of 524288\ntarnd\n");
        text += &format!("{first}:@step/field,{second}:@step/field by 65536\n");
    }
    text
}

fn writes_and_reads(cluster: &Cluster, options: &str) {
    let fixture = Fixture::new(cluster, "alice", WORDS);
    fixture.shell("rm -rf .tarn");
    let output = fixture.run("-N2 -n16", &format!("tarn run {TIER} {options} wf.toml"));
    let log = fixture.read(".tarn/runs/dealt-1/steps/write-0.1.log");
    let either = [words("node1", "node2"), words("node2", "node1")];
    assert!(either.contains(&log), "{output}\n{log}");
    let log = fixture.read(".tarn/runs/dealt-1/steps/read-0.1.log");
    assert_eq!(log, "node2-65536 of 1048576\nwas 2\n");
    for node in 1..=2 {
        assert_eq!(left_on(cluster, node), "", "on node{node}");
    }
}

#[test]
fn each_node_writes_to_all_of_one_partition_and_reads_what_the_other_wrote() {
    let Some(cluster) = cluster(2) else { return };
    writes_and_reads(&cluster, "");
    writes_and_reads(&cluster, "--transport sealed");
    if shim(&cluster) {
        writes_and_reads(&cluster, "--transport libfabric");
    }
}

/// One that watches all pieces until that fails, and one that ends on request.
const WATCHED: &str = r#"
name = "watched"
[partition.field]
size = "8 MiB"
spread = "64 KiB"
[data.end]
dest = "out"
[[step]]
name = "watch"
nodes = 2
partitions = ["field"]
out = ["end:single"]
run = """
cut -d' ' -f1 $TARN_HOSTFILE | tr '\\n' ' ' >> $TARN_WORKFLOW_DIR/began
echo >> $TARN_WORKFLOW_DIR/began
(dealt watch @step/field; echo over) >> $TARN_WORKFLOW_DIR/watched 2>&1 &
until [ -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.1; done
dealt write @step/field 65536 done && dealt read @step/field 65536 > $TARN_end/text
"""
"#;

/// The nodes of an attempt, first and second, once it watches.
fn begins(fixture: &Fixture<'_>, attempt: usize) -> [usize; 2] {
    let lines = |name: &str| std::fs::read_to_string(fixture.path(name)).unwrap_or_default();
    let watching = || lines("watched").matches("watching").count() >= attempt;
    let waited = wait_until("the step watches", LATER, watching);
    waited.unwrap_or_else(|e| panic!("{e:#}: {}", lines("watched")));
    let began = lines("began");
    let nodes = began.lines().nth(attempt - 1).expect("its nodes");
    let numbers = nodes.split_whitespace();
    let numbers = numbers.map(|n| n.strip_prefix("node").and_then(|n| n.parse().ok()));
    let numbers: Option<Vec<usize>> = numbers.collect();
    let numbers = numbers.expect("names of nodes");
    numbers.try_into().expect("two nodes")
}

/// Files of partitions, and sockets for them, on a node.
fn pieces_on(cluster: &Cluster, node: usize) -> Vec<String> {
    let look = "find /scm -name '*.partition' -o -type s -name tarnd";
    let found = cluster.node(node).exec("root", &["bash", "-c", look]);
    let found = found.unwrap_or_else(|e| panic!("{e:#}"));
    found.lines().map(str::to_owned).collect()
}

/// Neither another user nor root has a piece, though they find the socket.
fn strangers_are_refused(cluster: &Cluster, node: usize) {
    let there = pieces_on(cluster, node);
    assert_eq!(there.len(), 2, "a piece and a socket: {there:?}");
    let socket = there.iter().find(|path| path.ends_with("/tarnd"));
    let socket = socket.expect("a socket");
    for (user, why) in [("bob", "Permission denied"), ("root", "are user ")] {
        for name in [
            "node1:@step/field",
            "node2:@step/field",
            "node3:@step/field",
        ] {
            let ask = format!("TARN_STEP_SOCKET={socket} dealt read {name} 2>&1; true");
            let refused = cluster.node(node).exec(user, &["bash", "-c", &ask]);
            let refused = refused.unwrap_or_else(|e| panic!("{e:#}"));
            assert!(refused.contains(why), "{user}: {refused}");
        }
    }
}

/// The tarnd of a node of the step is killed: the step learns which node, and runs on others. The next run removes that
/// node's data.
#[test]
fn a_node_with_a_piece_is_lost_and_the_step_runs_elsewhere() {
    let Some(cluster) = cluster(3) else { return };
    let fixture = Fixture::new(&cluster, "alice", WATCHED);
    let running = fixture.start("-N3 -n24 --no-kill", &format!("tarn run {TIER} wf.toml"));
    let [first, second] = begins(&fixture, 1);
    strangers_are_refused(&cluster, first);
    let kill = ["pkill", "-KILL", "-x", "tarnd"];
    let killed = cluster.node(second).exec("root", &kill);
    killed.unwrap_or_else(|e| panic!("{e:#}"));
    let again = begins(&fixture, 2);
    assert!(!again.contains(&second), "{again:?}");
    fixture.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(fixture.read("out/text"), "done of 8388608\n", "{text}");
    let lost = format!("node{second} is lost (");
    assert!(text.contains(&lost), "{text}");
    let why = fixture.run("-N1", "tarn why watch");
    assert!(
        why.contains(&format!("node `node{second}` was lost")),
        "{why}"
    );
    for node in again {
        assert_eq!(left_on(&cluster, node), "", "on node{node}");
    }
    fixture.shell("rm -rf out");
    fixture.run("-N3 -n24", &format!("tarn run {TIER} wf.toml"));
    for node in 1..=3 {
        assert_eq!(left_on(&cluster, node), "", "on node{node}");
    }
}

/// tarn is killed: the pieces of its step are nobody's, on any node, when it resumes.
#[test]
fn tarn_is_killed_and_its_pieces_are_made_anew() {
    let Some(cluster) = cluster(2) else { return };
    let fixture = Fixture::new(&cluster, "alice", WATCHED);
    let script = format!(
        "#!/bin/bash\ntarn run {TIER} wf.toml\necho $? > status\nuntil [ -e again ]; do sleep 0.1; done\nexec tarn resume\n"
    );
    fixture.write("job.sh", &script);
    let running = fixture.start("-N2 -n16", "./job.sh");
    begins(&fixture, 1);
    let before = [pieces_on(&cluster, 1), pieces_on(&cluster, 2)];
    run_for_output(&mut cluster.command("root", &["pkill", "-KILL", "-x", "tarn"])).expect("pkill");
    let ended = || fixture.path("status").exists();
    let waited = wait_until("its end", SOON, ended);
    waited.unwrap_or_else(|e| panic!("{e:#}"));
    let alive = || {
        (1..=2).any(|n| {
            cluster
                .node(n)
                .exec("root", &["pgrep", "-x", "dealt"])
                .is_ok()
        })
    };
    let waited = wait_until("the program's end", SOON, || !alive());
    waited.unwrap_or_else(|e| panic!("{e:#}"));
    fixture.write("again", "");
    begins(&fixture, 2);
    for (node, before) in (1..=2).zip(&before) {
        let now = pieces_on(&cluster, node);
        assert!(before.len() == 2 && now.len() == 2, "{before:?} {now:?}");
        assert!(now.iter().all(|path| !before.contains(path)), "{now:?}");
    }
    fixture.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(fixture.read("out/text"), "done of 8388608\n");
    for node in 1..=2 {
        assert_eq!(left_on(&cluster, node), "", "on node{node}");
    }
}
