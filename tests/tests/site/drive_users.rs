//! Bad days of a site in mode `drive` that its users make. docs/internals/driving-slurm.md, "When things fail".

use crate::drive::{Driven, FIRST, ORDINARY, SECOND};

/// A step between others of `wing`.
const MIDDLE: &str = "\
#SBATCH -N1
#SBATCH --exclusive
#SBATCH -t 5
#TARN name = \"wing\"
#TARN [data.flow]
#TARN [[step]]
#TARN in = [\"mesh\"]
#TARN out = [\"flow\"]
cp $TARN_mesh/it $TARN_flow/it
";
const LAST: &str = "\
#SBATCH -N1
#SBATCH --exclusive
#SBATCH -t 5
#TARN name = \"wing\"
#TARN [[step]]
#TARN in = [\"flow\"]
[ \"$(cat $TARN_flow/it)\" = yes ]
";
/// No node has so much space.
const IMPOSSIBLE: &str = "\
#SBATCH -N1
#SBATCH --exclusive
#SBATCH -t 5
#TARN name = \"giant\"
#TARN data.sea.size = \"1 TiB\"
#TARN [[step]]
#TARN out = [\"sea\"]
true
";
/// The audit reads Slurm's accounting. Slurm stages a job that its backfill looks at: by default, one of the first 500.
const CONF: &str = "\
JobCompType=jobcomp/filetxt
JobCompLoc=/var/log/slurm/jobcomp.log
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=5,bf_max_job_test=5000
";
/// More jobs than the cluster runs while the workflow does.
const CROWD: usize = 1000;

/// Half of a workflow is cancelled, one can never run, and a limit runs out.
#[test]
fn a_workflow_that_ends_early_or_can_never_run_keeps_no_nodes() {
    let Some(driven) = Driven::up() else { return };
    let site = &driven.site;
    let impossible = driven.submit("alice", IMPOSSIBLE);
    let middle = driven.submit("alice", MIDDLE);
    let last = driven.submit("alice", LAST);
    driven.wait_kept_for(&middle);
    // Slurm holds it, and shows the same.
    let waits_for = |job: &str, what: &str| {
        site.wait(what, || site.why("alice", job).contains(what));
    };
    waits_for(
        &impossible,
        "no nodes: a stage of its data failed: burst_buffer/lua",
    );
    assert!(!driven.log().contains("giant"), "{}", driven.log());
    site.alice(&["scancel", &middle]);
    driven.wait_unreserved("nothing is kept for a job that is cancelled");
    waits_for(&last, "the job that it waits for ended otherwise");
    assert_eq!(driven.field(&driven.first, "JobState"), "RUNNING");
    site.alice(&["scancel", &last, &impossible]);

    // Another step takes the place of those, and the time of the first one is over.
    let second = driven.submit("alice", SECOND);
    driven.wait_kept_for(&second);
    let first = format!("jobid={}", driven.first);
    site.root(&["scontrol", "update", &first, "endtime=now+1"]);
    site.wait_for(&driven.first, "TIMEOUT");
    driven.wait_unreserved("nothing is kept for a step whose data was not made");
    waits_for(&second, "the job that it waits for ended otherwise");
    let ordinary = driven.submit("bob", ORDINARY);
    site.wait_for(&ordinary, "COMPLETED");
    site.alice(&["scancel", &second]);
    driven.assert_nothing_left(&["wing", "giant"]);
}

/// A crowd of ordinary jobs comes between two steps, and a user who hopes that data lines make them first.
#[test]
fn a_crowd_and_a_user_with_ten_thousand_lines_change_no_order() {
    let Some(driven) = Driven::up_with(2, CONF) else {
        return;
    };
    let site = &driven.site;
    let crowd = format!(
        "for i in $(seq {CROWD}); do sbatch -Q -n1 -t 1 --mem=100 -J crowd -o /dev/null --wrap 'sleep 2' || exit 1; done"
    );
    site.cluster
        .exec("bob", &["sh", "-c", &crowd])
        .unwrap_or_else(|e| panic!("{e:#}"));
    let flow = |at: usize| {
        let name = format!("flow{at}");
        let script = FIRST
            .replace("\"wing\"", &format!("\"{name}\""))
            .replace("until ", "exit 0; until ");
        let job = site.submit("bob", &format!("{name}.sh"), &script, &[]);
        job.expect("it is taken")
    };
    let flows: Vec<String> = (0..20).map(flow).collect();
    let lines = |name: &str, count: usize| {
        site.submit("bob", &format!("{name}.sh"), &with_lines(name, count), &[])
    };
    // sbatch refuses a job with so many, and the site refuses more to a user who has so many.
    let why = lines("all", 10_000).expect_err("it is too much");
    assert!(format!("{why:#}").contains("at most 65536"), "{why:#}");
    for at in 0..10 {
        lines(&format!("many{at}"), 1000).expect("it is taken");
    }
    lines("more", 1000).expect("it is taken");
    let second = driven.submit("alice", SECOND);
    driven.wait_kept_for(&second);
    site.alice(&["scancel", &driven.busy]);
    driven.end_first_step();
    site.wait("the workflow is complete", || {
        let shown = site.root(&["scontrol", "-o", "show", "reservation"]);
        let of_bob = shown.lines().filter(|line| line.contains(" Users=bob "));
        assert!(of_bob.count() <= 4, "{shown}");
        site.state(&second) == "COMPLETED"
    });
    // The crowd before it, and the workflows behind it, are still there: none is lost, or held.
    let queue = site.root(&["squeue", "-h", "-r", "-u", "bob", "-o", "%j %T %v %Q"]);
    let waiting = |name: &str| {
        let lines = queue.lines().filter(|line| line.starts_with(name));
        lines.filter(|line| line.contains(" PENDING ")).count()
    };
    assert!(
        waiting("crowd") > 0 && waiting("flow") == flows.len(),
        "{queue}"
    );
    for line in queue.lines().filter(|line| !line.starts_with("more")) {
        assert!(!line.ends_with(" 0"), "it is held: {line}");
    }
    let done = [
        "squeue", "-h", "-r", "-u", "bob", "-n", "crowd", "-t", "all",
    ];
    assert_eq!(site.root(&done).lines().count(), CROWD);
    let listed = site.cluster.exec("bob", &["tarn", "data", "ls", "--site"]);
    let listed = listed.unwrap_or_else(|e| panic!("{e:#}"));
    let datasets = listed.lines().filter(|line| line.contains("/d")).count();
    assert_eq!(datasets, 10_000, "the next job has none");
    // Slurm's own accounting says whom the workflow delayed.
    let report = site.root(&["tarn", "slurm", "audit", "--json", "--bound", "10m"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["delayed"], 0, "{report}");
    site.root(&["scancel", "-u", "bob"]);
    driven.assert_nothing_left(&["wing"]);
}

/// A job that makes so many datasets, each declared in a line.
fn with_lines(name: &str, count: usize) -> String {
    let lines: String = (0..count)
        .map(|at| format!("#TARN data.d{at}.size = \"1 KiB\"\n"))
        .collect();
    let made: Vec<String> = (0..count).map(|at| format!("\"d{at}\"")).collect();
    let made = made.join(", ");
    format!(
        "#SBATCH -N1 -t 5 --exclusive\n#TARN name = \"{name}\"\n{lines}#TARN [[step]]\n#TARN out = [{made}]\ntrue\n"
    )
}
