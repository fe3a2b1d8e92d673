//! examples/training: PyTorch on two nodes of a real cluster, of which one loses its power with all that it had. The
//! training resumes from the data in the memory of the other one, and ends as if nothing had happened.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tarn_tests::fixture::{self, Fixture};
use tarn_tests::slurm::{Cluster, wait_until};
use tarn_tests::{programs, tree};

const TIMEOUT: Duration = Duration::from_secs(120);
const STEPS: u64 = 150;

fn is_here() -> bool {
    let import = Command::new("/usr/bin/python3")
        .args(["-c", "import torch.distributed"])
        .output();
    let here = import.is_ok_and(|a| a.status.success());
    if !here {
        eprintln!("SKIPPED: no PyTorch here: scripts/deps.sh test installs it");
    }
    here
}

/// The example in a user's folder, with the package beside it.
fn lay_out(fixture: &Fixture) {
    let copy = |from: PathBuf, to: &str| {
        std::fs::copy(&from, fixture.path(to))
            .unwrap_or_else(|e| panic!("{}: {e}", from.display()));
    };
    for name in ["train.py", "train.sbatch"] {
        copy(tree::root().join("examples/training").join(name), name);
    }
    programs::built("libtarn_python.so").unwrap_or_else(|e| panic!("{e:#}"));
    programs::python(&fixture.path("")).unwrap_or_else(|e| panic!("{e:#}"));
}

fn train(tier: &str, more: &str) -> String {
    format!(
        "env TARN_PHX_TIER=/scm/alice/{tier} TARN_PHX_MEMORY=/scm/alice bash ./train.sbatch --steps {STEPS} --width 64 {more}"
    )
}

/// The text behind a word in the last line that begins in some way.
fn value_after<'a>(text: &'a str, line: &str, word: &str) -> Option<&'a str> {
    let found = text.lines().rev().find(|l| l.starts_with(line))?;
    let rest = found.split_once(&format!("{word} "))?.1;
    rest.split(',').next()
}

fn replace(cluster: &Cluster, node: usize) {
    let started = cluster.node(node).start();
    started.unwrap_or_else(|e| panic!("{e:#}"));
    let idle = || {
        let output = cluster.exec("alice", &["sinfo", "-h", "-o", "%t %D"]);
        output.is_ok_and(|output| output.trim() == "idle 2")
    };
    wait_until("both nodes idle", TIMEOUT, idle).unwrap_or_else(|e| panic!("{e:#}"));
}

#[test]
fn training_goes_on_from_a_buddys_memory_when_a_node_is_lost() {
    if !is_here() {
        return;
    }
    let Some(cluster) = fixture::cluster(2, &[], &[], &[]) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", "");
    lay_out(&fixture);
    let whole = fixture.run("-N2", &train("whole", ""));
    let expected = value_after(&whole, "done", "loss").unwrap_or_else(|| panic!("{whole}"));
    assert!(whole.contains("from None, step 0,"), "{whole}");

    let log = fixture.path("log");
    let read_log = || std::fs::read_to_string(&log).unwrap_or_default();
    let command = format!("bash -c '{} > log 2>&1'", train("tier", ""));
    let running = fixture.start("-N2 --no-kill", &command);
    let safe = || value_after(&read_log(), "step", "safe").and_then(|n| n.parse::<u64>().ok());
    let far = || safe().is_some_and(|n| n >= 20);
    wait_until("twenty steps", TIMEOUT, far).unwrap_or_else(|e| panic!("{e:#}\n{}", read_log()));
    // The second rank's node, with its processes, its memory, and the tier in it.
    let cut = cluster.node(2).power_cut();
    cut.unwrap_or_else(|e| panic!("{e:#}"));
    // Slurm would notice by itself, later.
    fixture.shell("scancel -u alice");
    let (status, text) = running.end();
    assert_ne!(status, Some(0), "{text}\n{}", read_log());
    let before = safe().expect("it has said so");
    assert!(before < STEPS, "it was faster: {}", read_log());
    replace(&cluster, 2);

    let again = fixture.run("-N2", &train("tier", ""));
    let step = value_after(&again, "from", "step").and_then(|n| n.parse::<u64>().ok());
    assert!(
        step.is_some_and(|n| n >= before && n < STEPS),
        "{before}: {again}"
    );
    assert_eq!(
        value_after(&again, "done", "loss"),
        Some(expected),
        "{again}"
    );
}
