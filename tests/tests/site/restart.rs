//! Jobs that continue from checkpoints: after a node is lost, after their limit, after their user has cancelled them.

use crate::setup::Site;
use std::fs;
use tarn_tests::programs;

/// A program with libtarn on two nodes, each of which has a copy of the other's versions.
const SOLVE: &str = "\
#SBATCH -N2 -n2 --ntasks-per-node=1 --open-mode=append
#TARN name = \"heat\"
#TARN data.result.dest = \"result\"
#TARN [[step]]
#TARN name = \"solve\"
#TARN restart = \"phx\"
#TARN checkpoints = \"64 MiB\"
#TARN out = [\"result:single\"]
export TARN_PHX_MEET=$(scontrol show hostnames | head -1):$PORT TARN_PHX_KEY=hex:DIGITS
echo \"$SLURM_JOB_NODELIST $TARN_CHECKPOINTS $TARN_PHX_TIER ${TARN_PHX_MEMORY:-none}\" >> ~/starts
srun --cpu-bind=none counts $(cat ~/steps) >> ~/counted 2>> ~/failed || exit 1
echo done > $TARN_result/done
";

fn solve(port: u16) -> String {
    let script = SOLVE.replace("$PORT", &port.to_string());
    script.replace("DIGITS", &"5a".repeat(32))
}

fn submit(site: &Site, user: &str, script: &str, words: &[&str]) -> String {
    let job = site.submit(user, "job.sh", script, words);
    job.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()))
}

fn read(site: &Site, user: &str, name: &str) -> String {
    fs::read_to_string(site.home(user).join(name)).unwrap_or_default()
}

/// The newest step that the other node has a copy of.
fn replicated(site: &Site, user: &str) -> u64 {
    let text = read(site, user, "replicated");
    let step = text.split_once(' ').and_then(|(_, step)| step.parse().ok());
    step.unwrap_or(0)
}

/// The step from which the ranks continued, in the order of their starts: all ranks from the same one.
fn continued(site: &Site, user: &str) -> Vec<u64> {
    let output = read(site, user, "counted");
    let of = |line: &str| {
        assert!(line.ends_with("whole"), "{output}");
        let (_, step) = line.split_once("step ").expect("a step");
        let (step, _) = step.split_once(',').expect("its end");
        step.parse::<u64>().expect("a number")
    };
    let all: Vec<u64> = output.lines().map(of).collect();
    // The other rank of the last start may be about to print.
    for ranks in all.chunks_exact(2) {
        assert_eq!(ranks[0], ranks[1], "{output}");
    }
    all.chunks_exact(2).map(|ranks| ranks[0]).collect()
}

/// Folders of checkpoints in the store, and of libtarn in memory.
fn left(site: &Site, node: usize) -> String {
    let look = "ls -d /scm/tarn/u*/c/*/* 2> /dev/null | wc -l; ls -d /dev/shm/tarn-phx-*/c* 2> /dev/null | wc -l";
    let output = site.cluster.node(node).exec("root", &["sh", "-c", look]);
    let output = output.unwrap_or_default();
    output.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_program_continues_where_its_node_was_lost_its_time_was_over_and_its_user_cancelled_it() {
    Site::with_jobs_put_back(3, continues_from_its_checkpoints);
}

/// False if Slurm did not begin the script after the loss of its node.
fn continues_from_its_checkpoints(site: &Site) -> bool {
    let installed = programs::install(&site.cluster, &["examples/counts"]);
    installed.unwrap_or_else(|e| panic!("{e:#}"));
    let endless = |user: &str| fs::write(site.home(user).join("steps"), "1000000").expect("steps");
    endless("alice");
    let busy = site.hold("node3");
    let job = submit(site, "alice", &solve(28417), &[]);
    site.wait("six steps", || replicated(site, "alice") >= 6);
    let folder = "/run/tarn/data/.checkpoints";
    let started = format!("node[1-2] {folder} {folder} none\n");
    assert_eq!(read(site, "alice", "starts"), started);
    // Its space is taken, on its nodes alone.
    let status = site.root(&["tarn", "slurm", "status"]);
    assert_eq!(status.matches("448.00 MiB free").count(), 2, "{status}");

    // A node loses power. The job runs again where its other checkpoints are: the third node gets the lost rank's from there.
    let before = replicated(site, "alice");
    let node = site.cluster.node(2);
    node.power_cut().unwrap_or_else(|e| panic!("{e:#}"));
    site.alice(&["scancel", &busy]);
    site.start_again(&job, &[]);
    if !site.begins_again("it has continued", || continued(site, "alice").len() == 1) {
        return false;
    }
    let first = continued(site, "alice")[0];
    assert!(first >= before, "{first} < {before}");
    assert!(read(site, "alice", "starts").contains("\nnode[1,3] "));
    site.wait("more steps", || replicated(site, "alice") >= first + 4);
    node.start().unwrap_or_else(|e| panic!("{e:#}"));
    site.start_node(2);
    site.wait("all nodes are there", || {
        let states = site.root(&["sinfo", "-hN", "-o", "%T"]);
        states
            .lines()
            .all(|state| state == "idle" || state == "mixed" || state == "allocated")
    });

    // Its time is over: its checkpoints stay, and nothing in memory.
    let id = format!("jobid={job}");
    let before = replicated(site, "alice");
    site.root(&["scontrol", "update", &id, "timelimit=1"]);
    site.wait_for(&job, "TIMEOUT");
    site.wait("it has left", || {
        site.why("alice", &job)
            .contains("its checkpoints stay on node1, node3")
    });
    assert_eq!(
        (left(site, 1), left(site, 2), left(site, 3)),
        ("1 0".into(), "0 0".into(), "1 0".into())
    );
    let seen = "cat /scm/tarn/u7001/c/heat/solve/* 2>&1; ls /scm/tarn/u7001/c 2>&1; true";
    let output = site.cluster.node(1).exec("bob", &["sh", "-c", seen]);
    let output = output.unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(output.matches("denied").count(), 2, "{output}");

    // Submitted again, it continues on the same nodes. Cancelled, it leaves its checkpoints to the next.
    let again = submit(site, "alice", &solve(28418), &[]);
    site.wait("it has continued", || continued(site, "alice").len() == 2);
    let second = continued(site, "alice")[1];
    assert!(second >= before, "{second} < {before}");
    assert!(
        site.why("alice", &again)
            .contains("checkpoints of its step are on node1, node3")
    );
    let starts = read(site, "alice", "starts");
    assert!(
        starts.ends_with(&format!("node[1,3] {folder} {folder} none\n")),
        "{starts}"
    );
    // Another job of the step would write them too, and is refused at its gate; somebody else's has its own.
    let twice = submit(site, "alice", &solve(28419), &[]);
    site.wait("the reason is given", || {
        site.why("alice", &twice)
            .contains("has the checkpoints of step `solve`")
    });
    site.alice(&["scancel", &twice]);
    endless("bob");
    let bobs = submit(site, "bob", &solve(28420), &[]);
    site.wait("bob's has come far", || replicated(site, "bob") >= 2);
    assert_eq!(read(site, "bob", "counted"), "");
    site.wait("more steps", || replicated(site, "alice") >= second + 4);
    site.alice(&["scancel", &again]);
    site.root(&["scancel", &bobs]);
    site.wait("both have left", || {
        site.why("alice", &again).contains(": ended") && site.why("bob", &bobs).contains(": ended")
    });
    site.cluster
        .exec("bob", &["tarn", "data", "rm", "heat/solve"])
        .unwrap_or_else(|e| panic!("{e:#}"));

    // The last one ends well: its result is outside, and nothing is left.
    let before = replicated(site, "alice");
    fs::write(site.home("alice").join("steps"), (before + 20).to_string()).expect("steps");
    let last = submit(site, "alice", &solve(28421), &[]);
    site.wait_for(&last, "COMPLETED");
    let third = *continued(site, "alice").last().expect("a start");
    assert!(
        third >= before,
        "{third} < {before}: {}",
        read(site, "alice", "failed")
    );
    site.wait("nothing is left", || {
        (1..=3).all(|node| left(site, node) == "0 0")
    });
    let result = site.home("alice").join("result/done");
    assert_eq!(fs::read_to_string(result).expect("the result"), "done\n");
    true
}

/// Its own files, as a step of a workflow file that Slurm puts back: after a failure, and before its limit.
const COUNT: &str = r#"
name = "count"
[data.result]
dest = "result"

[[step]]
name    = "count"
restart = "files"
checkpoints = "1 MiB"
retries = 2
time    = "2m"
run     = '''
n=$(cat $TARN_CHECKPOINTS/n 2> /dev/null || echo 0)
echo "from $n on $(hostname)" >> $TARN_WORKFLOW_DIR/starts
while [ $n -lt 5 ]; do
    n=$((n + 1))
    echo $n > $TARN_CHECKPOINTS/n
    [ $n != 2 ] || exit 3
    while [ $n = 4 ]; do sleep 1; [ -e $TARN_WORKFLOW_DIR/go ] && break; done
done
echo $n > $TARN_result/n
'''
out     = ["result"]
"#;

#[test]
fn a_step_of_a_workflow_file_is_put_back_and_continues_from_its_files() {
    Site::with_jobs_put_back(2, |site| {
        if !continues_from_its_files(site) {
            return false;
        }
        // Images are refused where they are asked for.
        let script = "#TARN name = \"i\"\n#TARN [[step]]\n#TARN restart = \"image\"\ntrue\n";
        let refused = site.submit("alice", "image.sh", script, &[]);
        let why = format!("{:#}", refused.expect_err("images"));
        assert!(
            why.contains("line 4") && why.contains("Slurm's children"),
            "{why}"
        );
        true
    });
}

/// False if Slurm did not begin the script.
fn continues_from_its_files(site: &Site) -> bool {
    site.alice(&["mkdir", "-p", "work"]);
    let folder = site.home("alice").join("work");
    fs::write(folder.join("count.toml"), COUNT).expect("a workflow");
    let output = site.alice(&["sh", "-c", "cd work && tarn submit count.toml 2> told"]);
    let (job, _) = output.split_once(' ').expect("a job");
    let starts = || fs::read_to_string(folder.join("starts")).unwrap_or_default();
    // It fails in the middle, and asks Slurm for another start.
    site.wait("it has failed", || starts().lines().count() == 1);
    site.start_again(job, &[]);
    site.wait("it has begun again", || starts().lines().count() == 2);
    // Its time is nearly over: its shell gets the signal, and asks again.
    site.start_again(job, &[]);
    fs::write(folder.join("go"), "").expect("a file");
    site.wait("it has ended", || {
        matches!(&site.state(job)[..], "COMPLETED" | "FAILED")
    });
    if site.state(job) == "FAILED" && site.is_begun_without_tmp() {
        return false;
    }
    site.wait_for(job, "COMPLETED");
    let starts = starts();
    let from: Vec<&str> = starts.lines().collect();
    assert!(from[0].starts_with("from 0 on node"), "{starts}");
    // On the same node, after the failure and after its time.
    let node = from[0].trim_start_matches("from 0 on ");
    let expected = ["2", "4"].map(|n| format!("from {n} on {node}"));
    assert_eq!(from[1..], expected, "{starts}");
    let result = fs::read_to_string(folder.join("result/n"));
    assert_eq!(result.expect("the result"), "5\n");
    site.wait("nothing is left", || {
        (left(site, 1), left(site, 2)) == ("0 0".into(), "0 0".into())
    });
    true
}
