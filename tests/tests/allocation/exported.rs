//! Partitions of steps that run over the nodes of an allocation.

use super::{Fixture, TIER, cluster, left_on};

/// Both steps run on both nodes; each node has its own of each partition, and keeps one from one step to the next.
const FILE: &str = r#"
name = "lent"
[partition.field]
size = "1 MiB"
keep = "workflow"
[partition.log]
size = "40 KiB"
unit = "8 KiB"
[[step]]
name = "write"
nodes = 2
partitions = ["field", "log"]
run = """
for node in $(cut -d' ' -f1 $TARN_HOSTFILE); do
    tarn exec $node 'tarn --json partition ls $(dirname $TARN_PARTITION_log)
        printf %s $TARN_NODE | dd of=$TARN_PARTITION_field.partition bs=1 seek=3000000 conv=notrunc status=none' || exit
done
"""
[[step]]
name = "read"
nodes = 2
after = ["write"]
partitions = ["field"]
run = """
for node in $(cut -d' ' -f1 $TARN_HOSTFILE); do
    tarn exec $node 'echo $TARN_NODE has $(dd if=$TARN_PARTITION_field.partition bs=1 skip=3000000 count=5 status=none)' || exit
done >> $TARN_WORKFLOW_DIR/has
"""
"#;

#[test]
fn each_node_of_a_step_has_its_partitions_and_keeps_what_is_kept() {
    let Some(cluster) = cluster(2) else { return };
    let fixture = Fixture::new(&cluster, "alice", FILE);
    fixture.run("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    let mut has: Vec<String> = fixture.read("has").lines().map(str::to_owned).collect();
    has.sort();
    assert_eq!(has, ["node1 has node1", "node2 has node2"]);
    let log = fixture.read(".tarn/runs/lent-1/steps/write-0.1.log");
    assert_eq!(log.matches("\"unit\":8192").count(), 2, "{log}");
    for node in 1..=2 {
        assert_eq!(left_on(&cluster, node), "", "on node{node}");
    }
}
