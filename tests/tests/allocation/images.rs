//! A step resumes on another node from a copy of the image of its processes.

use super::{LATER, cluster};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use tarn_tests::fixture::Fixture;
use tarn_tests::slurm::{Cluster, wait_until};

/// It counts, alone, with connections and shared memory, until there is a file `go`.
const COUNTS: &str = r#"
name = "counts"
[data.result]
dest = "result"
[[step]]
name = "count"
out = ["result"]
restart = "image"
images = "1s"
alone = true
buddy = true
env = { OWN = "own" }                # Slurm removes /tmp when another node fails
run = "python3 $TARN_WORKFLOW_DIR/count.py 60 0.5 alone 9"
"#;
const STEPS: u64 = 60;

/// The CRIU that scripts/criu.sh has found or fetched.
fn criu() -> Option<PathBuf> {
    let test = std::env::current_exe().expect("this test");
    let criu = test.ancestors().nth(3)?.join("criu/criu");
    if !criu.is_file() {
        eprintln!("SKIPPED: no {}", criu.display());
        return None;
    }
    Some(criu)
}

/// The output of an attempt: numbers.
fn printed(fixture: &Fixture<'_>, attempt: u32) -> Vec<u64> {
    let log = fixture.path(&format!(".tarn/runs/counts-1/steps/count-0.{attempt}.log"));
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().filter_map(|l| l.parse().ok()).collect()
}

/// Paths of images on a node.
fn images(cluster: &Cluster, node: usize) -> Vec<PathBuf> {
    let look = "find /scm -path '*/checkpoints/*' -name '1.*' 2>/dev/null; true";
    let found = cluster.node(node).exec("root", &["bash", "-c", look]);
    let found = found.unwrap_or_else(|e| panic!("{e:#}"));
    found.lines().map(PathBuf::from).collect()
}

/// A run whose step's node is lost after `harm` was done to the folder of copies on the other. Its output.
fn loses_its_node(how: impl Fn(&Cluster, usize), harm: Option<&str>) {
    let Some(criu) = criu() else { return };
    let Some(cluster) = cluster(2) else { return };
    let fixture = Fixture::new(&cluster, "alice", COUNTS);
    fixture.write(
        "count.py",
        include_str!("../../../apps/tarn/tests/count.py"),
    );
    let command = format!(
        "env TARN_CRIU={} tarn run --tier scm=/scm/alice:300MiB wf.toml",
        criu.display()
    );
    let running = fixture.start("-N2 -n16 --no-kill", &command);
    // In the middle of its work; it waits at the end of it.
    let counts = || printed(&fixture, 1).len() > 3 && copied(&fixture) > 1;
    let waited = wait_until("a copy of an image", LATER, counts);
    waited.unwrap_or_else(|e| panic!("{e:#}"));
    let step = ["pgrep", "-f", "count.py 60"];
    let runs = |n: &usize| cluster.node(*n).exec("root", &step).is_ok();
    let home = (1..=2).find(runs).expect("it runs");
    let there = images(&cluster, 3 - home);
    let folder = there
        .first()
        .and_then(|p| Some(p.parent()?.display().to_string()));
    let folder = folder.expect("a copy");
    let harms = harm.map(|harm| {
        // Its node is silent first: data on its way comes, is harmed too, and then the node is lost.
        signal(&cluster, home, "-STOP");
        harming(&cluster, 3 - home, &harm.replace("FOLDER", &folder))
    });
    if harms.is_none() {
        how(&cluster, home);
    }
    let waited = wait_until("it goes on", LATER, || !printed(&fixture, 2).is_empty());
    waited.unwrap_or_else(|e| panic!("{e:#}"));
    if let Some(mut harms) = harms {
        harms.kill().expect("the end of the harm");
        harms.wait().expect("its end");
        how(&cluster, home);
    }
    fixture.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    let numbers: String = (0..STEPS).map(|n| format!("{n} {}\n", n * n)).collect();
    assert_eq!(fixture.read("result/numbers"), numbers);
    assert_eq!(fixture.read("result/begun"), "begun\n");
    let first = printed(&fixture, 2)[0];
    match harm {
        None => assert!(
            first > 0 && text.contains("resumes from image 1."),
            "{first}: {text}"
        ),
        Some(_) => assert!(
            first == 0 && text.contains("cannot be used"),
            "{first}: {text}"
        ),
    }
    let left = images(&cluster, 3 - home);
    assert!(left.is_empty(), "{left:?}");
}

/// Does harm on a node, again and again.
fn harming(cluster: &Cluster, node: usize, harm: &str) -> Child {
    let line = format!("{harm}; echo done; while :; do {harm}; sleep 0.05; done 2> /dev/null");
    let mut command = cluster.node(node).command("root", &["bash", "-c", &line]);
    let mut harms = command.stdout(Stdio::piped()).spawn().expect("bash");
    let mut done = String::new();
    let out = harms.stdout.as_mut().expect("its output");
    BufReader::new(out).read_line(&mut done).expect("a line");
    assert_eq!(done, "done\n");
    harms
}

/// How many images were copied.
fn copied(fixture: &Fixture<'_>) -> usize {
    let log = std::fs::read(fixture.path(".tarn/runs/counts-1/events.log"));
    let log = String::from_utf8_lossy(&log.unwrap_or_default()).into_owned();
    log.matches("\"copied\":{").count()
}

fn signal(cluster: &Cluster, node: usize, signal: &str) {
    let words = ["pkill", signal, "-x", "tarnd"];
    let sent = cluster.node(node).exec("root", &words);
    sent.unwrap_or_else(|e| panic!("{e:#}"));
}

fn kill(cluster: &Cluster, node: usize) {
    signal(cluster, node, "-KILL");
}

#[test]
fn a_step_whose_node_loses_its_power_goes_on_at_its_buddy() {
    let cut = |cluster: &Cluster, node| {
        let cut = cluster.node(node).power_cut();
        cut.unwrap_or_else(|e| panic!("{e:#}"));
    };
    loses_its_node(cut, None);
}

#[test]
fn from_copies_with_garbage_in_them_a_step_begins_anew() {
    let harm = "for f in FOLDER/1.*/image/processes/pages-*.img; do dd if=/dev/urandom of=$f bs=4k count=1 conv=notrunc status=none; done";
    loses_its_node(kill, Some(harm));
}

#[test]
fn without_the_copies_that_were_made_a_step_begins_anew() {
    loses_its_node(kill, Some("rm -rf FOLDER/1.*"));
}
