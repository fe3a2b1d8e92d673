//! A run whose job is cancelled: what is kept on its nodes stays known and stays there, and the run goes on with it.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use tarn_tests::programs::install;
use tarn_tests::slurm::{Cluster, Doctor, said, wait_until};

const SOON: Duration = Duration::from_secs(60);
const TIER: &str = "--tier scm=/scm/alice:64MiB";

/// Four kept pieces, each made where there is room, and then nothing.
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

/// The same, and what waits to be cancelled.
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

struct Desk {
    cluster: Cluster,
    work: PathBuf,
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

impl Desk {
    fn new(nodes: usize, options: &[&str]) -> Option<Self> {
        let doctor = Doctor::ask().expect("slurm-cluster doctor");
        if let Some(why) = doctor.lacks(&[]) {
            eprintln!("SKIPPED: no Slurm cluster here: {why}");
            return None;
        }
        let cluster = Cluster::up_with(nodes, options).unwrap_or_else(|e| panic!("{e:#}"));
        install(&cluster, &["tarn", "tarnd"]).unwrap_or_else(|e| panic!("{e:#}"));
        said(&mut cluster.command("alice", &["mkdir", "work"])).expect("mkdir");
        let work = cluster.shared().join("home/alice/work");
        Some(Self { cluster, work })
    }

    fn write(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.work.join(name);
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("its mode");
    }

    fn lines(&self, name: &str) -> usize {
        let text = std::fs::read_to_string(self.work.join(name));
        text.unwrap_or_default().lines().count()
    }

    /// A command of alice in the folder: how it ended, and all that it said.
    fn shell(&self, line: &str) -> (Option<i32>, String) {
        let line = format!("cd work && {line}");
        let output = self
            .cluster
            .command("alice", &["bash", "-c", &line])
            .output();
        let output = output.expect("bash");
        (output.status.code(), text(&output))
    }

    /// The same inside a new allocation; it must succeed.
    fn allocated(&self, options: &str, command: &str) -> String {
        let (status, text) = self.shell(&format!("exec salloc -Q {options} {command}"));
        assert_eq!(status, Some(0), "{command}: {text}");
        text
    }

    /// The whole replicas on the tiers of all nodes.
    fn parts(&self, nodes: usize) -> Vec<String> {
        let find = "find /scm -path '*/parts/*' -prune -printf '%P\n'; true";
        let on = |n: usize| {
            let found = self.cluster.node(n).exec("root", &["bash", "-c", find]);
            found.unwrap_or_else(|e| panic!("{e:#}"))
        };
        let all: Vec<String> = (1..=nodes).map(on).collect();
        let lines = all.iter().flat_map(|text| text.lines());
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Begins a run of `wf.toml` in a batch job; its number.
    fn batch(&self, options: &str, script: &str) -> String {
        self.write("job.sh", &format!("#!/bin/bash\ncd ~/work\n{script}\n"));
        let line = format!("cd work && sbatch --parsable {options} -o log job.sh");
        let said = self.cluster.exec("alice", &["bash", "-c", &line]);
        said.unwrap_or_else(|e| panic!("{e:#}")).trim().to_owned()
    }

    fn wait_for(&self, what: &str, path: &Path) {
        let waited = wait_until(what, SOON, || path.exists());
        waited.unwrap_or_else(|e| {
            panic!(
                "{e:#}: {:?}",
                std::fs::read_to_string(self.work.join("log"))
            )
        });
    }

    /// Cancels a job and waits until nothing is left of it on the nodes.
    fn scancel(&self, job: &str, nodes: usize) {
        self.cluster
            .exec("alice", &["scancel", job])
            .expect("scancel");
        let over = || {
            let queue = self.cluster.exec("alice", &["squeue", "-h"]);
            let dead = |n| {
                self.cluster
                    .node(n)
                    .exec("root", &["pgrep", "-x", "tarnd"])
                    .is_err()
            };
            queue.is_ok_and(|q| q.trim().is_empty()) && (1..=nodes).all(dead)
        };
        wait_until("the job's end", SOON, over).unwrap_or_else(|e| panic!("{e:#}"));
    }
}

#[test]
fn what_is_kept_outlives_a_cancelled_job() {
    let Some(desk) = Desk::new(2, &[]) else {
        return;
    };
    desk.write("wf.toml", FIRST);
    desk.allocated("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    let early = desk.parts(2);
    assert_eq!((early.len(), desk.lines("early")), (4, 4), "{early:?}");

    desk.write("wf.toml", &format!("{FIRST}{SECOND}"));
    let run = format!("trap : TERM\ntarn run {TIER} wf.toml\necho $? > status");
    let job = desk.batch("-N2 -n16", &run);
    desk.wait_for("the last step", &desk.work.join("began"));
    desk.scancel(&job, 2);
    let log = std::fs::read_to_string(desk.work.join("log")).unwrap_or_default();
    let left = desk.parts(2);
    // Whether the signal came to tarn first or to its nodes: nothing has failed.
    let cancelled = |log: &str| log.contains("was interrupted") && !log.contains("kept-2 failed");
    assert!(cancelled(&log), "{log}");
    let status = std::fs::read_to_string(desk.work.join("status"));
    assert_eq!(status.unwrap_or_default(), "143\n", "{log}");
    assert!(early.iter().all(|p| left.contains(p)), "{left:?}\n{log}");
    assert!(left.len() >= 6, "the second run's own: {left:?}\n{log}");

    // It is known, and nobody removes it.
    let listed = desk.shell("tarn data ls").1;
    for name in ["early", "late", "passing"] {
        assert!(listed.contains(name), "{name}: {listed}\n{log}");
    }
    let orphans = desk.allocated("-N2 -n16", "tarn data rm --orphans");
    assert!(orphans.contains("kept: 0 replicas removed"), "{orphans}");
    assert_eq!(desk.parts(2), left);

    // So it is where the signal comes to the nodes only, as with salloc on the login node.
    std::fs::remove_file(desk.work.join("began")).expect("it began");
    let line = "cd work && exec salloc -Q -N2 -n16 tarn resume";
    let mut resumed = desk.cluster.command("alice", &["bash", "-c", line]);
    let resumed = resumed
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let resumed = resumed.expect("salloc");
    desk.wait_for("the last step", &desk.work.join("began"));
    let job = desk.cluster.exec("alice", &["squeue", "-h", "-o", "%i"]);
    desk.scancel(job.expect("squeue").trim(), 2);
    let output = resumed.wait_with_output().expect("its end");
    let said = text(&output);
    assert!(cancelled(&said), "{said}");
    assert_eq!(output.status.code(), Some(143), "{said}");
    assert!(said.contains("was told to end"), "{said}");
    assert_eq!(desk.parts(2), left);

    // Nothing is made again when the run goes on.
    desk.write("go", "");
    let said = desk.allocated("-N2 -n16", "tarn resume");
    assert_eq!((desk.lines("early"), desk.lines("late")), (4, 1), "{said}");
    let size = std::fs::read_to_string(desk.work.join("out/size")).expect("delivered");
    assert_eq!(size.trim(), (5 * (1 << 20) + 2).to_string());
    let kept = desk.parts(2);
    assert!(early.iter().all(|p| kept.contains(p)), "{kept:?}");
    assert!(kept.len() < left.len(), "what is not kept goes: {kept:?}");
    let listed = desk.shell("tarn data ls").1;
    assert!(
        listed.contains("early") && !listed.contains("passing"),
        "{listed}"
    );

    // Let go of where nobody can look, it is removed where somebody can.
    let removed = desk.shell("tarn data rm early").1;
    assert!(
        removed.contains("lie on node1") && !removed.contains("took no room"),
        "{removed}"
    );
    let orphans = desk.allocated("-N2 -n16", "tarn data rm --orphans");
    let late = desk.parts(2);
    assert!(late.iter().all(|p| !early.contains(p)), "{orphans}");
    assert!(!late.is_empty(), "{orphans}");
    let listed = desk.shell("tarn data ls").1;
    assert!(!listed.contains("early"), "{listed}");
}

/// A tier that later runs do not use, and that is full, is looked at all the same.
#[test]
fn what_a_cancelled_job_left_is_removed_whatever_came_later() {
    let Some(desk) = Desk::new(2, &[]) else {
        return;
    };
    let passing = FIRST.replace("keep = \"forever\"", "");
    let second = SECOND.replace("keep = \"forever\"", "");
    desk.write("wf.toml", &format!("{passing}{second}"));
    let job = desk.batch("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    desk.wait_for("the last step", &desk.work.join("began"));
    desk.scancel(&job, 2);
    let left = desk.parts(2);
    assert!(left.len() >= 6, "{left:?}");
    let orphans = desk.allocated("-N2 -n16", "tarn data rm --orphans");
    assert!(
        orphans.contains("0 replicas removed") && orphans.contains("stay for `tarn resume`"),
        "{orphans}"
    );
    assert_eq!(desk.parts(2), left);

    desk.write("go", "");
    desk.allocated("-N2 -n16", "tarn run --tier other=/scm/other:32MiB wf.toml");
    assert_eq!(desk.parts(2), left, "it did not look there");
    for node in 1..=2 {
        let fill = "dd if=/dev/zero of=/scm/full bs=1M status=none; true";
        let filled = desk.cluster.node(node).exec("root", &["bash", "-c", fill]);
        filled.unwrap_or_else(|e| panic!("{e:#}"));
    }
    let orphans = desk.allocated("-N1 -w node1", "tarn data rm --orphans");
    assert!(orphans.contains("runs were on node2 too"), "{orphans}");
    let orphans = desk.allocated("-N2 -n16", "tarn data rm --orphans");
    assert_eq!(desk.parts(2), [""; 0], "{orphans}");
    let listed = desk.shell("tarn data ls").1;
    assert!(!listed.contains("/scm"), "{listed}");
}

/// A job that survives the loss of a node goes on with those that it has. With containers it cannot, in Slurm 22.05: these go
/// with the node, everywhere.
#[test]
fn a_job_without_one_of_its_nodes_goes_on() {
    let Some(desk) = Desk::new(3, &["--container", "none"]) else {
        return;
    };
    desk.write("wf.toml", &format!("{FIRST}{SECOND}"));
    desk.write(
        "job.sh",
        &format!("#!/bin/bash\ntarn run {TIER} wf.toml\necho over > over\nuntil [ -e go ]; do sleep 0.1; done\ntarn resume && exec tarn data rm --orphans\n"),
    );
    let line = "cd work && exec salloc -Q -N3 -n24 --no-kill ./job.sh";
    let mut job = desk.cluster.command("alice", &["bash", "-c", line]);
    let job = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let job = job.expect("salloc");
    desk.wait_for("the last step", &desk.work.join("began"));
    desk.cluster
        .node(3)
        .power_cut()
        .unwrap_or_else(|e| panic!("{e:#}"));
    let down = || {
        let states = desk
            .cluster
            .exec("root", &["sinfo", "-h", "-N", "-o", "%N %T"]);
        states.is_ok_and(|s| s.contains("node3 down"))
    };
    wait_until("node3 down", SOON, down).unwrap_or_else(|e| panic!("{e:#}"));
    let cancelled = desk.shell("tarn cancel").1;
    assert!(cancelled.contains("has stopped"), "{cancelled}");
    desk.wait_for("the end of the run", &desk.work.join("over"));
    desk.write("go", "");
    let output = job.wait_with_output().expect("its end");
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("node3 of job 1 is left out"), "{said}");
    assert!(desk.work.join("out/size").exists(), "{said}");
}
