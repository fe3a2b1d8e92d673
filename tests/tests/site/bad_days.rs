//! Failures on a site, and the rules that then hold.

use crate::setup::Site;
use std::fs;
use std::time::Duration;
use tarn_tests::slurm::wait_until;

/// Reads a source, writes a result outside.
const COPIES: &str = "\
#SBATCH -N1 -n1
#TARN data.case.source = \"case\"
#TARN data.result.dest = \"out/result\"
#TARN [[step]]
#TARN in = [\"case\"]
#TARN out = [\"result\"]
cat $TARN_case/mesh > $TARN_result/mesh
";

fn case(site: &Site) {
    site.alice(&[
        "sh",
        "-c",
        "mkdir -p ~/case ~/out; echo mesh > ~/case/mesh; chmod 700 ~",
    ]);
}

fn submit(site: &Site, script: &str, words: &[&str]) -> String {
    let job = site.submit("alice", "job.sh", script, words);
    job.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()))
}

#[test]
fn mistakes_are_told_where_their_user_looks() {
    let Some(site) = Site::up(1) else { return };
    // sbatch itself refuses lines that make no sense, and names the line.
    for (script, expected) in [
        ("#TARN [[step]]\n#TARN inn = [\"case\"]\n", "line 3"),
        ("#TARN [[step]]\n#TARN in = [\"case\"]\n", "case"),
        ("#TARN name = \"a b\"\n#TARN [[step]]\n", "a b"),
        (
            "#TARN data.x.source = \"/x\"\n#TARN data.x.source = \"/y\"\n",
            "line 3",
        ),
        ("#TARN [[step]]\n#TARN nodes = 5\n", "nodes"),
        ("#TARN \u{1b}[2J = 5\n", "line 2"),
    ] {
        let why = site
            .submit("alice", "bad.sh", script, &[])
            .expect_err(script);
        let why = format!("{why:#}");
        assert!(why.contains(expected), "{script}: {why}");
        assert!(!why.contains('\u{1b}'), "{why:?}");
    }
    // Jobs without lines for tarn are none of its business.
    let plain = submit(&site, "echo well\n", &[]);
    site.wait_for(&plain, "COMPLETED");
    // A source that is not there holds the job, with the reason; when it is there, the job continues.
    site.alice(&["sh", "-c", "mkdir -p ~/out"]);
    let job = submit(&site, COPIES, &[]);
    site.wait("the reason is told", || {
        let shown = site.root(&["scontrol", "show", "job", &job]);
        shown.contains("/shared/home/alice/case") && shown.contains("No such file")
    });
    let why = site.why("alice", &job);
    assert!(
        why.contains("node1: cannot read `/shared/home/alice/case`"),
        "{why}"
    );
    // `squeue` itself shows no more of a failed gate: the job's comment does.
    let comment = || site.root(&["squeue", "-h", "-j", &job, "-o", "%k"]);
    site.wait("the comment says why", || {
        comment().contains("tarn: node1: cannot read `/shared/home/alice/case`")
    });
    case(&site);
    // Slurm lets a job wait two minutes that was put back.
    let id = format!("jobid={job}");
    site.root(&["scontrol", "release", &job]);
    site.root(&["scontrol", "update", &id, "starttime=now"]);
    site.wait_for(&job, "COMPLETED");
    let shown = site.root(&["scontrol", "show", "job", &job]);
    assert!(!shown.contains("Comment=tarn: "), "{shown}");
    let result = fs::read_to_string(site.home("alice").join("out/result/mesh"));
    assert_eq!(result.expect("the result"), "mesh\n");
}

#[test]
fn controllers_begin_anew_while_a_job_is_staged() {
    let Some(site) = Site::up(1) else { return };
    case(&site);
    // No other job before it: slurmctld comes back as it was a while ago, and would have that run again.
    let job = submit(&site, COPIES, &["--begin=now+12"]);
    site.wait_taken_in(&job);
    site.kill_controller();
    site.wait("the job stands at its gate", || {
        site.state(&job) == "CONFIGURING"
    });
    // Slurm's controller dies and comes back in the middle; tarn's a while later.
    site.cluster
        .restart_ctld_without_its_nodes()
        .unwrap_or_else(|e| panic!("{e:#}"));
    site.start_controller();
    site.wait("the result is outside", || {
        site.home("alice").join("out/result/mesh").exists()
    });
    site.wait("it has left", || site.why("alice", &job).contains("ended"));
}

/// Slurm forgets the settings of nodes by `scontrol`, 24.11 always and others when they are killed soon after, and never
/// begins then the jobs that prefer nodes by it.
#[test]
fn features_that_slurm_forgets_are_given_back_to_nodes_and_held_jobs_begin() {
    let Some(site) = Site::up(2) else { return };
    let makes = "\
#TARN name = \"foam\"
#TARN data.fields.size = \"1 MiB\"
#TARN [[step]]
#TARN out = [\"fields\"]
echo here > $TARN_fields/f
";
    let reads = "\
#TARN name = \"foam\"
#TARN [[step]]
#TARN in = [\"fields\"]
cat $TARN_fields/f > ~/read && hostname > ~/where
";
    submit(&site, makes, &["-w", "node2"]);
    // Its name is no answer of Slurm's about it.
    let name = "x Prefer=node1 y";
    let job = submit(&site, reads, &["--begin=now+45", "-J", name]);
    site.wait("it prefers the node that has its data", || {
        let shown = site.root(&["scontrol", "-o", "show", "job", &job]);
        shown.contains(" Prefer=node2 ")
    });
    // Slurm writes its jobs down every few seconds; one that it has not written is lost with it.
    site.root(&["touch", "/run/preferred"]);
    site.wait("Slurm has written the job down", || {
        let newer = [
            "find",
            "/run/slurmctld/state/job_state",
            "-newer",
            "/run/preferred",
        ];
        let found = site.cluster.exec("root", &newer);
        found.is_ok_and(|found| !found.trim().is_empty())
    });
    site.cluster
        .restart_ctld_without_its_nodes()
        .unwrap_or_else(|e| panic!("{e:#}"));
    site.wait_for(&job, "COMPLETED");
    let read = |name: &str| fs::read_to_string(site.home("alice").join(name)).expect(name);
    assert_eq!(read("read"), "here\n");
    assert_eq!(read("where"), "node2\n");
}

#[test]
fn a_backup_takes_over_and_a_minute_without_any_controller_costs_a_minute() {
    // The controller's host and its backup's are those of slurmctld; only the first has one here.
    let Some(site) = Site::up_with(2, "SlurmctldHost=node2\n") else {
        return;
    };
    case(&site);
    site.start_backup(2);
    let log = site.cluster.shared().join("controller.log");
    let is_logged = |what: &str| fs::read_to_string(&log).is_ok_and(|text| text.contains(what));
    site.wait("the backup waits", || is_logged("this is the backup"));
    let busy = site.hold("node1");
    let job = submit(&site, COPIES, &["-w", "node1"]);
    site.wait_taken_in(&job);
    site.kill_controller();
    site.alice(&["scancel", &busy]);
    // The users' commands and Slurm's scripts find the other one, which knows the job.
    site.wait("the backup is the controller", || is_logged("epoch=2"));
    site.wait_for(&job, "COMPLETED");
    site.wait("it has left", || site.why("alice", &job).contains("ended"));
    let result = site.home("alice").join("out/result/mesh");
    assert_eq!(fs::read_to_string(result).expect("the result"), "mesh\n");
    // Now there is none, for a minute: jobs come to their gate, and others end.
    let waits = COPIES.replace("cat ", "while [ -e ~/runs ]; do sleep 0.2; done; cat ");
    site.alice(&["touch", "runs"]);
    let running = submit(
        &site,
        &waits.replace("out/result", "out/other"),
        &["-w", "node1"],
    );
    site.wait_for(&running, "RUNNING");
    let busy = site.hold("node2");
    let third = COPIES.replace("out/result", "out/third");
    let comes = submit(&site, &third, &["-w", "node2"]);
    site.wait_taken_in(&comes);
    site.kill_backup(2);
    site.alice(&["scancel", &busy]);
    site.alice(&["rm", "runs"]);
    std::thread::sleep(Duration::from_secs(60));
    assert_eq!(site.state(&comes), "CONFIGURING");
    assert!(!site.home("alice").join("out/other").exists());
    site.start_controller();
    for job in [&running, &comes] {
        site.wait_for(job, "COMPLETED");
        site.wait("it has left", || site.why("alice", job).contains("ended"));
    }
    for name in ["other", "third"] {
        let result = site.home("alice").join("out").join(name).join("mesh");
        assert_eq!(fs::read_to_string(result).expect(name), "mesh\n");
    }
}

#[test]
fn a_node_that_was_off_and_a_job_that_is_cancelled_leave_nothing_behind() {
    let Some(site) = Site::up(2) else { return };
    case(&site);
    let waits = COPIES.replace("cat ", "sleep 300; cat ");
    let job = submit(&site, &waits, &["-w", "node2"]);
    site.wait_for(&job, "RUNNING");
    let left = |node: usize| {
        let command = "find /scm/tarn/u*/d /scm/tarn/u*/j -type f 2> /dev/null | wc -l; ls /run/tarn/jobs | wc -l";
        let output = site.cluster.node(node).exec("root", &["sh", "-c", command]);
        output
            .map(|s| s.split_whitespace().collect::<Vec<_>>().join(" "))
            .unwrap_or_default()
    };
    // The source, its manifest, its state when it was read; the job's file.
    assert_eq!(left(2), "3 1");
    site.alice(&["scancel", "--hurry", &job]);
    site.wait("nothing is left on node2", || left(2) == "0 0");
    // A node loses power with a job's data on it: the job is notified, the node is used again when it is back.
    let job = submit(&site, &waits, &["-w", "node1", "--no-requeue"]);
    site.wait_for(&job, "RUNNING");
    let node = site.cluster.node(1);
    node.power_cut().unwrap_or_else(|e| panic!("{e:#}"));
    site.wait_for(&job, "NODE_FAIL");
    node.start().unwrap_or_else(|e| panic!("{e:#}"));
    site.start_node(1);
    let again = submit(&site, COPIES, &["-w", "node1"]);
    site.wait_for(&again, "COMPLETED");
    site.wait("nothing is left on node1", || left(1) == "0 0");
}

/// As many tasks as `TARN_MANY` has; each waits at the gate, all read one copy.
#[test]
fn an_array_of_many_tasks_reads_one_copy() {
    let Some(site) = Site::up(1) else { return };
    let many = std::env::var("TARN_MANY").map_or(12, |n| n.parse().expect("TARN_MANY"));
    case(&site);
    let script = "\
#SBATCH -N1 -n1 --mem=10 -o /dev/null
#TARN name = \"many\"
#TARN data.case.source = \"case\"
#TARN [[step]]
#TARN in = [\"case\"]
[ \"$(cat $TARN_case/mesh)\" = mesh ] && mkdir -p out/$SLURM_ARRAY_TASK_ID && stat -c %d:%i $TARN_case/mesh > out/$SLURM_ARRAY_TASK_ID/is
";
    let tasks = format!("--array=1-{many}");
    let job = submit(&site, script, &[&tasks]);
    let place = site.home("alice").join("out");
    let ended = || fs::read_dir(&place).map_or(0, Iterator::count);
    let timeout = Duration::from_secs(240 + 4 * many);
    wait_until("all have run", timeout, || {
        ended() as u64 == many && site.alice(&["squeue", "-h", "-r"]).is_empty()
    })
    .unwrap_or_else(|e| panic!("{e:#}: {} of {many}\n{}", ended(), site.logs()));
    let seen: std::collections::BTreeSet<String> = fs::read_dir(&place)
        .expect("the folders")
        .map(|task| fs::read_to_string(task.expect("a folder").path().join("is")).expect("a file"))
        .collect();
    assert_eq!(seen.len(), 1, "{seen:?}");
    site.alice(&["tarn", "slurm", "end", "many"]);
    site.wait("nothing is left", || {
        site.alice(&["tarn", "data", "ls", "--site"]).is_empty()
    });
    assert!(!site.why("alice", &job).is_empty());
}
