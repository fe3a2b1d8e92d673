//! Checkpoints of a program on the nodes of a real cluster: nodes lose their power with all that is in their memory, and the program
//! resumes from the data of other nodes and of the external store.

use std::time::Duration;
use tarn_tests::fixture::{self, Fixture};
use tarn_tests::slurm::{Cluster, wait_until};

const TIMEOUT: Duration = Duration::from_secs(120);

/// A rank on each node, which talk to each other by TCP; the tier is memory, as the staging file is, both lost with the power. A rank that
/// fails ends the others (`srun -K`) only where a node is lost: their output as they fail by themselves would be lost with them.
fn counts(steps: u64, more: &str) -> String {
    counts_on((3, 3), steps, more)
}

/// So many nodes, and ranks on all of them together.
fn counts_on((nodes, ranks): (usize, usize), steps: u64, more: &str) -> String {
    format!(
        "env TARN_PHX_RUN=counts TARN_PHX_TIER=/scm/alice/tier TARN_PHX_MEMORY=/scm/alice TARN_PHX_MEET=node1:28417 \
         TARN_PHX_KEY=hex:{} {more} srun --cpu-bind=none -N{nodes} -n{ranks} -l --export=ALL counts {steps}",
        "5a".repeat(32)
    )
}

/// The version from which the ranks resumed, by their output: all the same. Its name, and the step.
fn restored(output: &str) -> (String, u64) {
    restored_by(3, output)
}

fn restored_by(ranks: usize, output: &str) -> (String, u64) {
    let lines = output
        .lines()
        .filter_map(|line| line.split_once(": version "));
    let mut all: Vec<(&str, u64)> = lines
        .map(|(_, rest)| {
            let mut words = rest.split(", ");
            let (id, step) = (words.next().unwrap(), words.next().unwrap());
            assert_eq!(words.next(), Some("whole"), "{output}");
            (id, step.trim_start_matches("step ").parse().unwrap())
        })
        .collect();
    assert_eq!(all.len(), ranks, "{output}");
    all.dedup();
    assert_eq!(all.len(), 1, "{output}");
    (all[0].0.to_owned(), all[0].1)
}

/// The newest step that other nodes have a copy of.
fn replicated(fixture: &Fixture) -> Option<u64> {
    let text = std::fs::read_to_string(fixture.path("replicated")).unwrap_or_default();
    let (_, step) = text.split_once(' ')?;
    step.parse().ok()
}

fn lose(cluster: &Cluster, nodes: &[usize]) {
    for node in nodes {
        cluster
            .node(*node)
            .power_cut()
            .unwrap_or_else(|e| panic!("{e:#}"));
    }
}

/// Starts nodes again, of so many.
fn replace(cluster: &Cluster, nodes: &[usize], all: usize) {
    for node in nodes {
        cluster
            .node(*node)
            .start()
            .unwrap_or_else(|e| panic!("{e:#}"));
    }
    let idle = || {
        let output = cluster.exec("alice", &["sinfo", "-h", "-o", "%t %D"]);
        output.is_ok_and(|output| output.trim() == format!("idle {all}"))
    };
    wait_until("all nodes idle", TIMEOUT, idle).unwrap_or_else(|e| panic!("{e:#}"));
}

#[test]
fn a_program_outlives_its_nodes() {
    let Some(cluster) = fixture::cluster(3, &["examples/counts"], &[], &[]) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", "");
    let replicated = || replicated(&fixture);
    let flushed = "TARN_PHX_EXTERNAL=$PWD TARN_PHX_FLUSH_EVERY=2";

    // A node with all it has.
    let endless = counts(1_000_000, "").replace("srun", "srun -K");
    let running = fixture.start("-N3 --no-kill", &endless);
    let far = || replicated().is_some_and(|step| step >= 6);
    wait_until("six steps", TIMEOUT, far).unwrap_or_else(|e| panic!("{e:#}"));
    lose(&cluster, &[3]);
    let (status, output) = running.end();
    assert_ne!(status, Some(0), "{output}");
    let before = replicated().unwrap();
    replace(&cluster, &[3], 3);
    let output = fixture.run("-N3", &counts(before + 20, ""));
    let (id, step) = restored(&output);
    assert!(step >= before && id.starts_with("1."), "{before}: {output}");

    // Two at once: with one copy that is too many, and a message names the ranks of missing parts.
    lose(&cluster, &[2, 3]);
    replace(&cluster, &[2, 3], 3);
    let (status, output) = fixture::ended(fixture.allocated("-N3", &counts(before + 40, "")));
    assert_ne!(status, Some(0), "{output}");
    assert!(
        output.contains("no version is complete") && output.contains("the part of rank 1"),
        "{output}"
    );

    // The newest that was flushed is left when all nodes are gone.
    lose(&cluster, &[1, 2, 3]);
    replace(&cluster, &[1, 2, 3], 3);
    let output = fixture.run("-N3", &counts(9, flushed));
    assert!(!output.contains("version 1."), "{output}");
    lose(&cluster, &[1, 2, 3]);
    replace(&cluster, &[1, 2, 3], 3);
    let output = fixture.run("-N3", &counts(12, flushed));
    let (id, step) = restored(&output);
    assert!(step >= 2 && id == format!("1.{step}"), "{output}");
}

/// Fernando 2016, section II: a buddy is one switch away, or two. With two, nothing is lost with all nodes of a switch.
#[test]
fn buddies_are_where_slurms_topology_and_the_user_want_them() {
    let etc = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(etc.path().join(name), text).unwrap();
    write("slurm.conf", "TopologyPlugin=topology/tree\n");
    write(
        "topology.conf",
        "SwitchName=s1 Nodes=node[1-2]\nSwitchName=s2 Nodes=node[3-4]\nSwitchName=top Switches=s[1-2]\n",
    );
    let options = ["--etc", etc.path().to_str().unwrap()];
    let Some(cluster) = fixture::cluster(4, &["examples/counts"], &[], &options) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", "");
    let four = |run: &str, steps, buddies: &str| {
        let more = format!("TARN_PHX_RUN={run} TARN_PHX_BUDDIES={buddies}");
        counts_on((4, 4), steps, &more)
    };
    for run in ["far", "near"] {
        fixture.run("-N4", &four(run, 6, run));
    }
    lose(&cluster, &[3, 4]);
    replace(&cluster, &[3, 4], 4);
    let output = fixture.run("-N4", &four("far", 9, "far"));
    let (_, step) = restored_by(4, &output);
    assert!(step >= 5, "{output}");
    let (status, output) = fixture::ended(fixture.allocated("-N4", &four("near", 9, "near")));
    assert_ne!(status, Some(0), "{output}");
    assert!(output.contains("no version is complete"), "{output}");
}

/// As many nodes, and ranks on each, as Fernando 2016 has in section III.
#[test]
fn four_nodes_with_twelve_ranks_each_go_on_after_one_is_lost() {
    let Some(cluster) = fixture::cluster(4, &["examples/counts"], &[], &["--cpus", "12"]) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", "");
    let all = (4, 48);
    let endless = counts_on(all, 1_000_000, "").replace("srun", "srun -K");
    let running = fixture.start("-N4 -n48 --no-kill", &endless);
    let far = || replicated(&fixture).is_some_and(|step| step >= 4);
    wait_until("four steps", TIMEOUT, far).unwrap_or_else(|e| panic!("{e:#}"));
    lose(&cluster, &[3]);
    fixture.shell("scancel -u alice");
    let (status, output) = running.end();
    assert_ne!(status, Some(0), "{output}");
    let before = replicated(&fixture).unwrap();
    replace(&cluster, &[3], 4);
    let output = fixture.run("-N4 -n48", &counts_on(all, before + 4, ""));
    let (id, step) = restored_by(48, &output);
    assert!(step >= before && id.starts_with("1."), "{before}: {output}");
}
