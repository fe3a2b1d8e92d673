//! Bad days of a site in mode `drive` that its users make. docs/internals/driving-slurm.md, "When things fail".

use crate::drive::{Driven, FIRST, ORDINARY, SECOND};
use std::fs;

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
/// Users may not read Slurm's accounting.
const CONF: &str = "JobCompType=jobcomp/filetxt\nJobCompLoc=/var/log/slurm/jobcomp.log\n";
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
        "for i in $(seq {CROWD}); do sbatch -Q -n1 -t 1 --mem=100 -o /dev/null --wrap true || exit 1; done"
    );
    site.cluster
        .exec("bob", &["sh", "-c", &crowd])
        .unwrap_or_else(|e| panic!("{e:#}"));
    let lines: String = (0..10_000)
        .map(|i| format!("#TARN data.d{i}.size = \"1 KiB\"\n"))
        .collect();
    let lines =
        format!("#SBATCH -N1 -t 5 --exclusive\n#TARN name = \"lines\"\n{lines}#TARN [[step]]\n");
    let many = site.submit("bob", "lines.sh", &lines, &[]);
    println!("LINES {many:?}");
    let flows: Vec<String> = (0..30)
        .map(|i| {
            let flow = FIRST.replace("\"wing\"", &format!("\"bob{i}\"")).replace(
                "until [ -e /shared/home/alice/go ]; do sleep 0.2; done\n",
                "",
            );
            let job = site.submit("bob", &format!("flow{i}.sh"), &flow, &[]);
            job.expect("it is taken")
        })
        .collect();
    let second = driven.submit("alice", SECOND);
    driven.wait_reserved();
    driven.end_first_step();
    site.alice(&["scancel", &driven.busy]);
    site.wait("the workflow is complete", || {
        assert!(driven.reservations().len() <= 5, "4 of a user");
        site.state(&second) == "COMPLETED"
    });
    assert!(fs::exists(site.home("alice")).expect("a home"));
    println!("FLOWS {flows:?}");
    println!(
        "Q {}",
        site.root(&["squeue", "-h", "-o", "%T %r %Q %u"])
            .lines()
            .count()
    );
    println!("{}", driven.log());
}
