//! Workflows by the options of the NEXTGenIO fork.

use crate::setup::Site;
use std::fs;

const MAKES: &str = "\
#SBATCH -N1 -n1 --workflow-start
#TARN [[step]]
#TARN out = [\"x\"]
hostname > $TARN_x/first
";
/// Without a line of its own.
const BETWEEN: &str = "#SBATCH -N1 -n1 --workflow-same-nodes\nhostname > ~/between\n";
const READS: &str = "\
#SBATCH -N1 -n1 --workflow-end
#TARN [[step]]
#TARN in = [\"x\"]
cat $TARN_x/first > ~/seen; hostname >> ~/seen
";

#[test]
fn a_workflow_told_by_jobs_is_held_until_its_end_is_named() {
    let Some(site) = Site::up(2) else { return };
    let submit = |name: &str, script: &str, words: &[&str]| {
        site.submit("alice", name, script, words)
            .unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()))
    };
    // sbatch refuses options that make no sense.
    for (words, expected) in [
        (&["--workflow-end"][..], "--workflow-prior-dependency"),
        (
            &["--workflow-start", "--workflow-prior-dependency=1"],
            "one of them",
        ),
    ] {
        let why = site.submit("alice", "bad.sh", "true\n", words);
        let why = format!("{:#}", why.expect_err("it is refused"));
        assert!(why.contains(expected), "{why}");
    }
    let first = submit("first.sh", MAKES, &["-w", "node2"]);
    let prior = format!("--workflow-prior-dependency={first}");
    let second = submit("between.sh", BETWEEN, &[&prior]);
    let reason = |job: &str| site.root(&["squeue", "-h", "-j", job, "-o", "%T %r"]);
    assert_eq!(reason(&first).trim(), "PENDING JobHeldUser");
    let shown = site.root(&["scontrol", "show", "job", &second]);
    let after = format!("afterok:{first}(unfulfilled),afterburstbuffer:{first}(unfulfilled)");
    assert!(shown.contains(&after), "{shown}");
    let prior = format!("--workflow-prior-dependency={second}");
    let third = submit("reads.sh", READS, &[&prior]);
    for job in [&first, &second, &third] {
        site.wait_for(job, "COMPLETED");
    }
    let home = site.home("alice");
    let read = |name| fs::read_to_string(home.join(name)).expect("what a job wrote");
    assert_eq!(read("between"), "node2\n");
    // It goes where the data is, too.
    assert_eq!(read("seen"), "node2\nnode2\n");
    site.wait("nothing is left on the nodes", || {
        let command = "find /scm/tarn/u*/d /scm/tarn/u*/j -type f | wc -l";
        let left = site.cluster.node(2).exec("root", &["sh", "-c", command]);
        left.is_ok_and(|output| output.trim() == "0")
    });
    // Somebody else does not get into it, and learns why.
    let prior = format!("--workflow-prior-dependency={first}");
    let stranger = site.submit("bob", "reads.sh", READS, &[&prior]);
    let stranger = stranger.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()));
    site.wait("bob is told", || {
        let shown = site.root(&["scontrol", "show", "job", &stranger]);
        shown.contains("somebody else's")
    });
}
