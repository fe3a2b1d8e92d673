//! Nodes without a tier that borrow one, on a real Slurm: their steps work, by ordinary files, in the memory of a node that has it
//! (Schürmann 2014, section 3; Jackson 2019). And its bad days.

use std::process::Command;
use std::time::{Duration, Instant};
use tarn_tests::fixture::{self, Fixture, ended};
use tarn_tests::slurm::{Cluster, Node, run_for_output, wait_until};
use tarn_tests::tree;

const SOON: Duration = Duration::from_secs(180);
/// A node without a tier is emulated: its administrator has not mounted it.
const LACKS: &str = "umount /scm";

/// A cluster with tarn whose jobs are held to their memory, or a reason on stderr why there is none.
fn cluster(nodes: usize, without: &[usize]) -> Option<Cluster> {
    let known = "PATH=$PATH:/usr/sbin command -v glusterfsd";
    let found = Command::new("sh").args(["-c", known]).output();
    if !found.expect("sh").status.success() {
        eprintln!("SKIPPED: no glusterfsd here: scripts/deps.sh test installs it");
        return None;
    }
    let cluster = fixture::cluster(nodes, &["tarn", "tarnd"], &["memory", "fuse"], &[])?;
    for node in without {
        on(&cluster.node(*node), LACKS);
    }
    Some(cluster)
}

/// Without it no node can lend.
fn with_brick(cluster: &Cluster) {
    let mut build = Command::new(tree::root().join("scripts/brick.sh"));
    run_for_output(build.arg(cluster.shared().join("bin"))).unwrap_or_else(|e| panic!("{e:#}"));
}

fn on(node: &Node<'_>, script: &str) -> String {
    let output = node.exec("root", &["bash", "-c", script]);
    output.unwrap_or_else(|e| panic!("{e:#}")).trim().to_owned()
}

fn allocated(fixture: &Fixture<'_>, options: &str, command: &str) -> (Option<i32>, String) {
    ended(fixture.allocated(&format!("--no-kill {options}"), command))
}

fn words(fixture: &Fixture<'_>, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(fixture.path(name)).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Neither a process nor a mount of any loan is left on these nodes.
fn nothing_runs(cluster: &Cluster, nodes: &[usize]) {
    for n in nodes {
        let node = cluster.node(*n);
        let gone = || on(&node, "pgrep -x 'glusterfsd?|tarnd' || true").is_empty();
        wait_until("the end of tarnd and GlusterFS", SOON, gone)
            .unwrap_or_else(|e| panic!("{e:#}"));
        let ours = r#"awk '$3 == "fuse.glusterfs" && $2 ~ "^/(scm|dev/shm)/"' /proc/mounts"#;
        assert_eq!(on(&node, ours), "", "on node{n}");
    }
}

/// Nor a file.
fn nothing_left(cluster: &Cluster, nodes: &[usize]) {
    nothing_runs(cluster, nodes);
    for n in nodes {
        let node = cluster.node(*n);
        let left = "find /scm /dev/shm -path '*/lent*' -o -name '*.borrowed' -o -name '*.stand-in' -o -name .glusterfs";
        assert_eq!(on(&node, left), "", "on node{n}");
    }
}

/// An instance on each of two nodes writes, the one without a tier more than its job has memory; then one on each reads all.
const LARGE: &str = r#"
name = "large"

[data.seed]
source = "in"
[data.big]
size = "180 MB"
[data.seen]
dest = "out"

[[step]]
name = "make"
foreach = ["a", "b"]
cores = 8
run = """set -e; cp $TARN_seed/word $TARN_big/$TARN_ITEM.word; n=1000000
if [ $TARN_NODE = node2 ]; then n=170000000; fi
(yes $TARN_ITEM || true) | head -c $n > $TARN_big/$TARN_ITEM; echo $n > $TARN_big/$TARN_ITEM.size
echo $TARN_ITEM > $HOME/work/written.$TARN_NODE
for i in $(seq 600); do if [ -e $HOME/work/go ]; then exit; fi; sleep 0.1; done; exit 1"""
in = ["seed"]
out = ["big"]

[[step]]
name = "read"
foreach = ["1", "2"]
cores = 8
run = """set -e; for f in a b; do
test "$(cat $TARN_big/$f.word)" = seed
(yes $f || true) | head -c $(cat $TARN_big/$f.size) | cmp - $TARN_big/$f; done
cat $TARN_big/*.size > $TARN_seen/$TARN_NODE; sleep 2"""
in = ["big"]
out = ["seen"]
"#;

#[test]
fn a_step_writes_more_than_its_node_has_memory_into_another_nodes_tier() {
    let Some(cluster) = cluster(2, &[1, 2]) else {
        return;
    };
    with_brick(&cluster);
    // The lender's is on a disk: data there counts against no job's memory, so that a job of 150 MiB can hold 170 MB.
    on(
        &cluster.node(1),
        "mkdir -p /shared/disk && chmod 1777 /shared/disk && mount --bind /shared/disk /scm",
    );
    let fixture = Fixture::new(&cluster, "alice", LARGE);
    fixture.write("in/word", "seed\n");
    let run = fixture.start(
        "-N2 -n16 --mem=150",
        "tarn run --tier scm=/scm/$USER:1GiB --without-tier borrow wf.toml",
    );
    let written =
        || fixture.path("written.node1").exists() && fixture.path("written.node2").exists();
    let begun = wait_until("both steps", SOON, written);
    if begun.is_err() {
        panic!("{:?}: {:?}", begun, run.end());
    }
    // While it runs, the bytes are the lender's, in a folder of the user alone; and none are the borrower's.
    let exported =
        "f=/scm/alice/lent/large-*/node2; stat -c '%a %U' $f; du -sm $f/brick | cut -f 1";
    let exported = on(&cluster.node(1), exported);
    let held: Vec<&str> = exported.lines().collect();
    assert_eq!(held[0], "700 alice", "{exported}");
    assert!(
        held[1]
            .parse::<u32>()
            .is_ok_and(|mb| (162..256).contains(&mb)),
        "{exported}"
    );
    let own = on(
        &cluster.node(2),
        "du -sm --total /scm /dev/shm /tmp | tail -n 1 | cut -f 1",
    );
    assert!(own.parse::<u32>().is_ok_and(|mb| mb < 32), "{own} MiB");
    fixture.write("go", "");
    let (status, output) = run.end();
    assert_eq!(status, Some(0), "{output}");
    assert!(
        output.contains("node2 borrows tier `scm` from node1: 512.00 MiB, "),
        "{output}"
    );
    for node in ["node1", "node2"] {
        let mut sizes = words(&fixture, &format!("out/{node}"));
        sizes.sort_unstable();
        assert_eq!(sizes, ["1000000", "170000000"], "{output}");
    }
    nothing_left(&cluster, &[1, 2]);
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
run = "for i in 1 2 3 4 5 6; do head -c 100000 /dev/urandom > $TARN_raw/f$i; done; ln -s f1 $TARN_raw/link; chmod 600 $TARN_raw/f2"
out = ["raw"]

[[step]]
name = "work"
foreach = ["f1", "f2", "f3", "f4", "f5", "f6"]
cores = 4
run = "sleep 0.5; cp -p $TARN_raw/$TARN_ITEM $TARN_piece; echo $TARN_NODE > $TARN_piece/$TARN_ITEM.node"
in = ["raw"]
out = ["piece"]

[[step]]
name = "three"
nodes = 3
run = "for n in $(cut -d ' ' -f 1 $TARN_HOSTFILE); do tarn exec $n -- sh -c 'cat $TARN_raw/f3; echo $TARN_NODE >> $HOME/work/hosts' | cmp - $TARN_raw/f3 || exit 1; done; echo ok > $TARN_wide/ok"
in = ["raw:broadcast"]
out = ["wide:single"]

[[step]]
name = "gather"
run = "for f in $TARN_raw/f?; do cmp $f $TARN_piece/${f##*/} || exit 1; done; stat -c %a $TARN_piece/f2 > $TARN_all/mode; cat $TARN_piece/*.node | sort -u > $TARN_all/nodes; cp $TARN_wide/ok $TARN_all"
in = ["raw", "piece", "wide"]
out = ["all"]
"#;

#[test]
fn several_nodes_borrow_of_one_and_take_part_in_steps_of_several() {
    let Some(cluster) = cluster(3, &[2, 3]) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", SPREAD);
    let options = "--tier scm=/scm/$USER:96MiB --without-tier borrow";
    let nodes = format!("tarn nodes {options}");
    // If nobody can lend, memory stands in, and the output gives the reason.
    let (status, text) = allocated(&fixture, "-N3 -n24 --mem=600", &nodes);
    assert_eq!(status, Some(0), "{text}");
    assert!(
        text.contains("stands in for it, as nobody lends it: node1 does not lend it: there is no libtarnbrick.so"),
        "{text}"
    );
    with_brick(&cluster);
    let (status, text) = allocated(&fixture, "-N3 -n24 --mem=600", &nodes);
    assert_eq!(status, Some(0), "{text}");
    // Together never more than the tier has.
    for (node, by) in [("node1", false), ("node2", true), ("node3", true)] {
        let row = text.lines().find(|l| l.starts_with(&format!("{node} ")));
        let row = row.unwrap_or_else(|| panic!("{node}: {text}"));
        assert!(row.contains(" 32.00 MiB"), "{text}");
        assert_eq!(
            row.contains("/scm/alice (borrowed from node1)"),
            by,
            "{text}"
        );
    }
    nothing_left(&cluster, &[1, 2, 3]);
    let (status, text) = allocated(
        &fixture,
        "-N3 -n24 --mem=600",
        &format!("tarn run {options} wf.toml"),
    );
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(words(&fixture, "out/nodes"), ["node1", "node2", "node3"]);
    assert_eq!(words(&fixture, "out/mode"), ["600"]);
    let mut hosts = words(&fixture, "hosts");
    hosts.sort_unstable();
    assert_eq!(hosts, ["node1", "node2", "node3"], "{text}");
    nothing_left(&cluster, &[1, 2, 3]);
}

/// An instance on each node; the first on the node without a tier waits for the event of the test.
const WAITS: &str = r#"
name = "waits"
[data.base]
[data.piece]
[data.all]
dest = "out"
[[step]]
name = "base"
foreach = ["1", "2", "3"]
cores = 8
run = "echo $TARN_NODE >> $HOME/work/based; echo $TARN_ITEM > $TARN_base/$TARN_ITEM; sleep 1"
out = ["base"]
[[step]]
name = "hold"
foreach = ["1", "2", "3"]
cores = 8
run = """cat $TARN_base/* > $TARN_piece/$TARN_ITEM; sleep 1
if [ $TARN_NODE = node2 ] && mkdir $HOME/work/tried 2> /dev/null; then while echo more >> $TARN_piece/$TARN_ITEM.more; do sleep 0.1; done; exit 1; fi"""
in = ["base"]
out = ["piece"]
[[step]]
name = "end"
run = "cat $TARN_piece/[123] | sort | uniq -c | tr -d '\n' > $TARN_all/text"
in = ["piece"]
out = ["all"]
"#;
const RUN: &str = "tarn run --tier scm=/scm/$USER:64MiB --without-tier borrow wf.toml";
const THREE: &str = "-N3 -n24 --mem=600 --no-kill";

/// A run whose step on node2, which borrows, is under way.
fn under_way(fixture: &Fixture<'_>) -> fixture::Running {
    let _ = fixture.shell("rm -rf tried based out .tarn");
    let run = fixture.start(THREE, RUN);
    let tried = || fixture.path("tried").exists();
    if let Err(e) = wait_until("the step", SOON, tried) {
        panic!("{e:#}: {:?}", run.end());
    }
    run
}

fn ends_well(fixture: &Fixture<'_>, run: fixture::Running) -> String {
    let begun = Instant::now();
    let (status, output) = run.end();
    assert_eq!(status, Some(0), "{output}");
    assert!(begun.elapsed() < SOON, "{output}");
    assert_eq!(
        words(fixture, "out/text"),
        ["3", "1", "3", "2", "3", "3"],
        "{output}"
    );
    output
}

#[test]
fn what_borrows_is_lost_with_what_it_borrows_and_the_run_goes_on() {
    let Some(cluster) = cluster(3, &[2]) else {
        return;
    };
    with_brick(&cluster);
    let fixture = Fixture::new(&cluster, "alice", WAITS);
    let gone = "node2 is lost (it cannot run steps any more: its tier `scm`, which it borrows from node1, has gone";

    // The brick dies: the lender stays.
    let run = under_way(&fixture);
    on(&cluster.node(1), "kill -9 $(pgrep -x glusterfsd)");
    let output = ends_well(&fixture, run);
    assert!(
        output.contains(gone) && !output.contains("node1 is lost"),
        "{output}"
    );
    nothing_runs(&cluster, &[1, 2, 3]);

    // Its client is stopped, and so answers nobody: it is not waited for without end.
    let run = under_way(&fixture);
    on(&cluster.node(2), "kill -STOP $(pgrep -x glusterfs)");
    let output = ends_well(&fixture, run);
    assert!(output.contains("node2 is lost"), "{output}");
    nothing_runs(&cluster, &[1, 2, 3]);

    // The borrower's tarnd is killed.
    let run = under_way(&fixture);
    on(&cluster.node(2), "kill -9 $(pgrep -x tarnd)");
    let output = ends_well(&fixture, run);
    assert!(
        output.contains("node2 is lost") && !output.contains("node1 is lost"),
        "{output}"
    );
    nothing_runs(&cluster, &[1, 2, 3]);

    // The lender's is.
    let run = under_way(&fixture);
    on(&cluster.node(1), "kill -9 $(pgrep -x tarnd)");
    let output = ends_well(&fixture, run);
    assert!(
        output.contains("node1 is lost") && output.contains("node2 is lost"),
        "{output}"
    );
    nothing_runs(&cluster, &[1, 2, 3]);

    // Data of lost nodes stays there, as ever; the next run brings all of it in order.
    let (status, output) = allocated(&fixture, THREE, RUN);
    assert_eq!(status, Some(0), "{output}");
    nothing_left(&cluster, &[1, 2, 3]);
}

#[test]
fn what_lies_in_a_borrowed_tier_outlives_the_run_that_is_killed() {
    let Some(cluster) = cluster(3, &[2]) else {
        return;
    };
    with_brick(&cluster);
    let fixture = Fixture::new(&cluster, "alice", WAITS);
    let run = under_way(&fixture);
    let based = words(&fixture, "based");
    assert!(based.contains(&"node2".to_owned()), "{based:?}");
    let tarn = "kill -9 $(pgrep -u alice -x tarn | head -n 1)";
    let _ = cluster.exec("root", &["bash", "-c", tarn]);
    let _ = run.end();
    nothing_runs(&cluster, &[1, 2, 3]);
    // Uncommitted output of the step is gone; its inputs are there.
    let exported = "find /scm/alice/lent -type f -path '*/parts/*' | wc -l; find /scm/alice/lent -name '*.more' | wc -l";
    let exported = on(&cluster.node(1), exported);
    assert!(
        !exported.starts_with("0\n") && exported.ends_with("\n0"),
        "{exported}"
    );
    let (status, output) = ended(fixture.allocated(THREE, "tarn resume"));
    assert_eq!(status, Some(0), "{output}");
    assert!(
        output.contains("node2 borrows tier `scm` from node1: 32.00 MiB"),
        "{output}"
    );
    assert_eq!(
        words(&fixture, "out/text"),
        ["3", "1", "3", "2", "3", "3"],
        "{output}"
    );
    assert_eq!(
        words(&fixture, "based"),
        based,
        "nothing was made again: {output}"
    );
    nothing_left(&cluster, &[1, 2, 3]);
}
