//! A run whose job is cancelled: what is kept on its nodes stays known and stays there, and the run goes on with it.

use std::path::{Path, PathBuf};
use std::process::Output;
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
    fn new(nodes: usize) -> Option<Self> {
        let doctor = Doctor::ask().expect("slurm-cluster doctor");
        if let Some(why) = doctor.lacks(&[]) {
            eprintln!("SKIPPED: no Slurm cluster here: {why}");
            return None;
        }
        let cluster = Cluster::up(nodes).unwrap_or_else(|e| panic!("{e:#}"));
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
    let Some(desk) = Desk::new(2) else { return };
    desk.write("wf.toml", FIRST);
    desk.allocated("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    let early = desk.parts(2);
    assert_eq!((early.len(), desk.lines("early")), (4, 4), "{early:?}");

    desk.write("wf.toml", &format!("{FIRST}{SECOND}"));
    let job = desk.batch("-N2 -n16", &format!("tarn run {TIER} wf.toml"));
    desk.wait_for("the last step", &desk.work.join("began"));
    desk.scancel(&job, 2);
    let log = std::fs::read_to_string(desk.work.join("log")).unwrap_or_default();
    let left = desk.parts(2);
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
}
