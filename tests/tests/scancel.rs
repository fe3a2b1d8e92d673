//! A run whose job is cancelled: data that is kept on its nodes stays known and stays there, and the run resumes with it.

use std::time::Duration;
use tarn_tests::fixture::{self, Fixture};
use tarn_tests::slurm::{Cluster, wait_until};

const SOON: Duration = Duration::from_secs(60);
const TIER: &str = "--tier scm=/scm/alice:64MiB";

/// Four kept pieces, each made where there is space, and then nothing.
const FIRST: &str = r#"
name = "kept"

[data.early]
keep = "forever"

[[step]]
name = "early"
foreach = ["1", "2", "3", "4"]
cores = 4
run = "sleep 0.3; head -c 1M /dev/urandom > $TARN_early/$TARN_ITEM; echo $TARN_ITEM >> $TARN_WORKFLOW_DIR/early"
out = ["early"]
"#;

/// The same, and a step that waits to be cancelled.
const SECOND: &str = r#"
[data.late]
keep = "forever"

[data.passing]

[data.end]
dest = "out"

[[step]]
name = "late"
run = "cp $TARN_early/1 $TARN_late/l; echo p > $TARN_passing/p; echo late >> $TARN_WORKFLOW_DIR/late"
in = ["early"]
out = ["late", "passing"]

[[step]]
name = "waits"
run = "touch $TARN_WORKFLOW_DIR/began; while [ ! -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.1; done; cat $TARN_early/* $TARN_late/l $TARN_passing/p | wc -c > $TARN_end/size"
in = ["early", "late", "passing"]
out = ["end"]
"#;

fn cluster(nodes: usize, options: &[&str]) -> Option<Cluster> {
    fixture::cluster(nodes, &["tarn", "tarnd"], &[], options)
}

fn lines(fixture: &Fixture<'_>, name: &str) -> usize {
    let text = std::fs::read_to_string(fixture.path(name));
    text.unwrap_or_default().lines().count()
}

/// The whole replicas on the tiers of all nodes.
fn parts(cluster: &Cluster, nodes: usize) -> Vec<String> {
    let find = "find /scm -path '*/parts/*' -prune -printf '%P\n'; true";
    let on = |n: usize| {
        let found = cluster.node(n).exec("root", &["bash", "-c", find]);
        found.unwrap_or_else(|e| panic!("{e:#}"))
    };
    let all: Vec<String> = (1..=nodes).map(on).collect();
    let lines = all.iter().flat_map(|text| text.lines());
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Begins a run of `wf.toml` in a batch job on two nodes; its number.
fn batch(fixture: &Fixture<'_>, script: &str) -> String {
    fixture.write("job.sh", &format!("#!/bin/bash\ncd ~/work\n{script}\n"));
    let job = fixture.shell("sbatch --parsable -N2 -n16 -o log job.sh");
    job.trim().to_owned()
}

fn wait_for(fixture: &Fixture<'_>, name: &str) {
    let waited = wait_until(name, SOON, || fixture.path(name).exists());
    let log = || std::fs::read_to_string(fixture.path("log"));
    waited.unwrap_or_else(|e| panic!("{e:#}: {:?}", log()));
}

/// Cancels a job and waits until nothing is left of it on the two nodes.
fn scancel(cluster: &Cluster, job: &str) {
    cluster.exec("alice", &["scancel", job]).expect("scancel");
    let over = || {
        let queue = cluster.exec("alice", &["squeue", "-h"]);
        let tarnd = |n| cluster.node(n).exec("root", &["pgrep", "-x", "tarnd"]);
        queue.is_ok_and(|q| q.trim().is_empty()) && [1, 2].map(tarnd).iter().all(Result::is_err)
    };
    wait_until("the job's end", SOON, over).unwrap_or_else(|e| panic!("{e:#}"));
}

#[test]
fn what_is_kept_outlives_a_cancelled_job() {
    let Some(cluster) = cluster(2, &[]) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", FIRST);
    fixture.run("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    let early = parts(&cluster, 2);
    assert_eq!((early.len(), lines(&fixture, "early")), (4, 4), "{early:?}");

    fixture.write("wf.toml", &format!("{FIRST}{SECOND}"));
    let run = format!("trap : TERM\ntarn run {TIER} wf.toml\necho $? > status");
    let job = batch(&fixture, &run);
    wait_for(&fixture, "began");
    scancel(&cluster, &job);
    let log = std::fs::read_to_string(fixture.path("log")).unwrap_or_default();
    let left = parts(&cluster, 2);
    // Whether the signal came to tarn first or to its nodes: nothing has failed.
    let cancelled = |log: &str| log.contains("was interrupted") && !log.contains("kept-2 failed");
    assert!(cancelled(&log), "{log}");
    let status = std::fs::read_to_string(fixture.path("status"));
    assert_eq!(status.unwrap_or_default(), "143\n", "{log}");
    assert!(early.iter().all(|p| left.contains(p)), "{left:?}\n{log}");
    assert!(left.len() >= 6, "the second run's own: {left:?}\n{log}");

    // It is known, and nobody removes it.
    let listed = fixture.shell("tarn data ls");
    for name in ["early", "late", "passing"] {
        assert!(listed.contains(name), "{name}: {listed}\n{log}");
    }
    let orphans = fixture.run("-N2 -n16", "tarn data rm --orphans");
    assert!(orphans.contains("kept: 0 replicas removed"), "{orphans}");
    assert_eq!(parts(&cluster, 2), left);

    // So it is where the signal comes to the nodes only, as with salloc on the login node.
    std::fs::remove_file(fixture.path("began")).expect("it began");
    let resumed = fixture.start("-N2 -n16", "tarn resume");
    wait_for(&fixture, "began");
    let job = cluster.exec("alice", &["squeue", "-h", "-o", "%i"]);
    scancel(&cluster, job.expect("squeue").trim());
    let (status, output) = resumed.end();
    assert!(cancelled(&output), "{output}");
    assert_eq!(status, Some(143), "{output}");
    assert!(output.contains("was told to end"), "{output}");
    assert_eq!(parts(&cluster, 2), left);

    // Nothing is made again when the run resumes.
    fixture.write("go", "");
    let output = fixture.run("-N2 -n16", "tarn resume");
    assert_eq!(
        (lines(&fixture, "early"), lines(&fixture, "late")),
        (4, 1),
        "{output}"
    );
    let size = fixture.read("out/size");
    assert_eq!(size.trim(), (5 * (1 << 20) + 2).to_string());
    let kept = parts(&cluster, 2);
    assert!(early.iter().all(|p| kept.contains(p)), "{kept:?}");
    assert!(kept.len() < left.len(), "what is not kept goes: {kept:?}");
    let listed = fixture.shell("tarn data ls");
    assert!(
        listed.contains("early") && !listed.contains("passing"),
        "{listed}"
    );

    // Let go of where nobody can look, it is removed where somebody can.
    let removed = fixture.shell("tarn data rm early");
    assert!(
        removed.contains("are stored on node1") && !removed.contains("took no space"),
        "{removed}"
    );
    let orphans = fixture.run("-N2 -n16", "tarn data rm --orphans");
    let late = parts(&cluster, 2);
    assert!(late.iter().all(|p| !early.contains(p)), "{orphans}");
    assert!(!late.is_empty(), "{orphans}");
    let listed = fixture.shell("tarn data ls");
    assert!(!listed.contains("early"), "{listed}");
}

/// A tier that later runs do not use, and that is full, is looked at all the same.
#[test]
fn what_a_cancelled_job_left_is_removed_whatever_came_later() {
    let Some(cluster) = cluster(2, &[]) else {
        return;
    };
    let passing = FIRST.replace("keep = \"forever\"", "");
    let second = SECOND.replace("keep = \"forever\"", "");
    let fixture = Fixture::new(&cluster, "alice", &format!("{passing}{second}"));
    let job = batch(&fixture, &format!("tarn run {TIER} wf.toml"));
    wait_for(&fixture, "began");
    scancel(&cluster, &job);
    let left = parts(&cluster, 2);
    assert!(left.len() >= 6, "{left:?}");
    let orphans = fixture.run("-N2 -n16", "tarn data rm --orphans");
    assert!(
        orphans.contains("0 replicas removed") && orphans.contains("stay for `tarn resume`"),
        "{orphans}"
    );
    assert_eq!(parts(&cluster, 2), left);

    fixture.write("go", "");
    fixture.run("-N2 -n16", "tarn run --tier other=/scm/other:32MiB wf.toml");
    assert_eq!(parts(&cluster, 2), left, "it did not look there");
    for node in 1..=2 {
        let fill = "dd if=/dev/zero of=/scm/full bs=1M status=none; true";
        let filled = cluster.node(node).exec("root", &["bash", "-c", fill]);
        filled.unwrap_or_else(|e| panic!("{e:#}"));
    }
    let orphans = fixture.run("-N1 -w node1", "tarn data rm --orphans");
    assert!(orphans.contains("runs were on node2 too"), "{orphans}");
    let orphans = fixture.run("-N2 -n16", "tarn data rm --orphans");
    assert_eq!(parts(&cluster, 2), [""; 0], "{orphans}");
    let listed = fixture.shell("tarn data ls");
    assert!(!listed.contains("/scm"), "{listed}");
}

/// A job that survives the loss of a node continues with those that it has. With containers it cannot, in Slurm 22.05: these go
/// with the node, everywhere.
#[test]
fn a_job_without_one_of_its_nodes_goes_on() {
    let Some(cluster) = cluster(3, &["--container", "none"]) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", &format!("{FIRST}{SECOND}"));
    fixture.write(
        "job.sh",
        &format!("#!/bin/bash\ntarn run {TIER} wf.toml\necho over > over\nuntil [ -e go ]; do sleep 0.1; done\ntarn resume && exec tarn data rm --orphans\n"),
    );
    let job = fixture.start("-N3 -n24 --no-kill", "./job.sh");
    wait_for(&fixture, "began");
    cluster
        .node(3)
        .power_cut()
        .unwrap_or_else(|e| panic!("{e:#}"));
    let down = || {
        let states = cluster.exec("root", &["sinfo", "-h", "-N", "-o", "%N %T"]);
        states.is_ok_and(|s| s.contains("node3 down"))
    };
    wait_until("node3 down", SOON, down).unwrap_or_else(|e| panic!("{e:#}"));
    let cancelled = fixture.shell("tarn cancel");
    assert!(cancelled.contains("has stopped"), "{cancelled}");
    wait_for(&fixture, "over");
    fixture.write("go", "");
    let (status, output) = job.end();
    assert_eq!(status, Some(0), "{output}");
    assert!(output.contains("node3 of job 1 is left out"), "{output}");
    assert!(fixture.path("out/size").exists(), "{output}");
}
