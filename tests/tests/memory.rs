//! Memory of an allocation's nodes, on a real Slurm where files on a tier count against the job's: what fills it, and what it
//! stands in for.

use std::time::{Duration, Instant};
use tarn_tests::fixture::{self, Fixture, ended};
use tarn_tests::slurm::Cluster;

/// Less than the timeout with a helper that does not end.
const SOON: Duration = Duration::from_secs(30);

/// A cluster whose users have tarn and whose jobs are held to their memory, or a reason on stderr why there is none.
fn cluster(nodes: usize) -> Option<Cluster> {
    fixture::cluster(nodes, &["tarn", "tarnd"], &["memory"], &[])
}

/// The status and all output of a command in an allocation that outlives its nodes.
fn allocated(fixture: &Fixture<'_>, options: &str, command: &str) -> (Option<i32>, String) {
    ended(fixture.allocated(&format!("--no-kill {options}"), command))
}

fn words(fixture: &Fixture<'_>, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(fixture.path(name)).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// One step fills its node's memory through its tier, alone or from the node that another step of two nodes leads; another
/// waits to see that.
const HOG: &str = r#"
name = "hog"

[data.junk]

[data.far]
scatter = "p{rank}"

[data.good]
dest = "out"

[[step]]
name = "hog"
run = "echo $TARN_NODE >> $TARN_WORKFLOW_DIR/began; for i in 1 2 3; do dd if=/dev/zero of=$TARN_junk/$i bs=1M count=300 status=none & done; wait"
out = ["junk"]

[[step]]
name = "good"
run = "sleep 4; echo good > $TARN_good/file"
out = ["good"]
"#;

const FAR: &str = r#"
[[step]]
name = "wide"
nodes = 2
tasks = 2
run = "other=$(sed -n 2p $TARN_HOSTFILE | cut -d ' ' -f 1); echo wide $other >> $TARN_WORKFLOW_DIR/began; tarn exec $other -- bash -c 'mkdir $TARN_far/p1; dd if=/dev/zero of=$TARN_far/p1/f bs=1M count=900 status=none'"
out = ["far:scatter"]
"#;

fn a_hog(workflow: &str) -> Option<(Cluster, String, Vec<String>)> {
    let cluster = cluster(2)?;
    let fixture = Fixture::new(&cluster, "alice", workflow);
    let tarn = "tarn run --tier scm=/scm/$USER:256MiB wf.toml";
    let begun = Instant::now();
    let (status, text) = allocated(&fixture, "-N2 -n16 --mem=600", tarn);
    assert!(begun.elapsed() < SOON, "{:?}: {text}", begun.elapsed());
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("out of memory: it has written") && text.contains("more than were reserved"),
        "{text}"
    );
    // No node was lost, so tarnd lives, and the rest of the run has ended well.
    assert!(!text.contains("is lost"), "{text}");
    assert_eq!(words(&fixture, "out/file"), ["good"], "{text}");
    let began = words(&fixture, "began");
    Some((cluster, text, began))
}

#[test]
fn a_step_that_fills_memory_through_its_tier_is_ended_and_nothing_else() {
    let Some((cluster, _, began)) = a_hog(HOG) else {
        return;
    };
    assert_eq!(began.len(), 1, "{began:?}");
    for node in 1..=2 {
        let look = "find /scm -type f -size +1M 2>/dev/null; true";
        let left = cluster.node(node).exec("root", &["bash", "-c", look]);
        assert_eq!(left.expect("a look").trim(), "", "on node{node}");
    }
}

#[test]
fn so_is_one_that_does_it_on_its_second_node() {
    let (start, good) = HOG.split_once("[[step]]\nname = \"hog\"").expect("the hog");
    let (_, good) = good.split_once("[[step]]").expect("the other");
    let Some((_, text, began)) = a_hog(&format!("{start}[[step]]{good}{FAR}")) else {
        return;
    };
    let [_, other] = &began[..] else {
        panic!("{began:?}")
    };
    assert!(text.contains(&format!("of node `{other}`")), "{text}");
}

/// Each node gets some of it, and the work of two nodes together continues beside that.
const SPREAD: &str = r#"
name = "spread"

[data.raw]

[data.piece]

[data.wide]

[data.all]
dest = "out"

[[step]]
name = "make"
run = "for i in 1 2 3 4 5 6; do head -c 100000 /dev/urandom > $TARN_raw/f$i; done"
out = ["raw"]

[[step]]
name = "work"
foreach = ["f1", "f2", "f3", "f4", "f5", "f6"]
cores = 4
run = "sleep 0.5; cp $TARN_raw/$TARN_ITEM $TARN_piece; echo $TARN_NODE > $TARN_piece/$TARN_ITEM.node"
in = ["raw"]
out = ["piece"]

[[step]]
name = "two"
nodes = 2
run = "cut -d ' ' -f 1 $TARN_HOSTFILE > $TARN_wide/hosts"
out = ["wide:single"]

[[step]]
name = "gather"
run = "for f in $TARN_raw/*; do cmp $f $TARN_piece/${f##*/} || exit 1; done; cat $TARN_piece/*.node | sort -u > $TARN_all/nodes; cp $TARN_wide/hosts $TARN_all"
in = ["raw", "piece", "wide"]
out = ["all"]
"#;

#[test]
fn a_node_without_the_tier_works() {
    let Some(cluster) = cluster(3) else { return };
    let fixture = Fixture::new(&cluster, "alice", SPREAD);
    let without = cluster.node(2);
    without
        .exec("root", &["umount", "/scm"])
        .unwrap_or_else(|e| panic!("{e:#}"));
    let tier = "--tier scm=/scm/$USER:64MiB";
    // A look makes nothing: neither where the tier should be, nor its stand-in, nor a state folder.
    for verb in [format!("plan {tier} wf.toml"), format!("nodes {tier}")] {
        let (status, text) = allocated(&fixture, "-N3 -n24 --mem=600", &format!("tarn {verb}"));
        assert_eq!(status, Some(0), "{text}");
        let made = "ls -A /scm; ls /dev/shm | grep -e stand-in -e borrowed; true";
        let made = without.exec("root", &["sh", "-c", made]);
        assert_eq!(made.unwrap_or_else(|e| panic!("{e:#}")), "", "{verb}");
        if verb.starts_with("plan") {
            assert!(!fixture.path(".tarn").exists());
        }
    }
    let (status, text) = allocated(
        &fixture,
        "-N3 -n24 --mem=600",
        &format!("tarn run {tier} wf.toml"),
    );
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("node2 does not have tier `scm`"), "{text}");
    assert_eq!(words(&fixture, "out/nodes"), ["node1", "node2", "node3"]);
    let mut hosts = words(&fixture, "out/hosts");
    hosts.sort_unstable();
    assert_eq!(
        hosts,
        ["node1", "node3"],
        "the same path on all nodes of a step"
    );
    let (status, text) = allocated(
        &fixture,
        "-N3 -n24 --mem=600",
        &format!("tarn nodes {tier}"),
    );
    assert_eq!(status, Some(0), "{text}");
    let row = text.lines().find(|l| l.starts_with("node2 "));
    assert!(row.is_some_and(|r| r.contains("stand-in")), "{text}");
    // A tier that no node has is somebody's mistake.
    let (status, text) = allocated(
        &fixture,
        "-N1 -w node2 --mem=600",
        &format!("tarn run {tier} wf.toml"),
    );
    assert!(
        status != Some(0) && text.contains("none of the nodes"),
        "{text}"
    );
}
