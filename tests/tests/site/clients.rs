//! How many clients of Slurm a job costs.

use crate::setup::Site;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// The clients of one reading of everything: these come by time, not by jobs.
const OF_A_READING: usize = 7;
/// For one job, whatever its stages are: three readings of the queue, the job's origin, its script, its conditions now, and a
/// change of it.
const MAX_OF_A_JOB: usize = 7;
/// Looks at its progress: at the gate, at its teardown, and until its nodes are taken back, which takes longer on a busy machine.
const MAX_LOOKS: usize = 8;

#[test]
fn a_job_costs_few_clients_of_slurm() {
    let Some(site) = Site::up(2) else { return };
    let clients = site.wrap_clients();
    let shared = site.cluster.shared();
    // The stages, which slurmctld starts, run the same wrappers.
    fs::rename(shared.join("bin/tarn"), shared.join("bin/tarn-itself")).expect("tarn");
    let stages = "#!/bin/sh\nPATH=/shared/clients:$PATH exec /shared/bin/tarn-itself \"$@\"\n";
    fs::write(shared.join("bin/tarn"), stages).expect("tarn");
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(shared.join("bin/tarn"), executable).expect("tarn");
    site.kill_controller();
    // The text that sinfo shows of nodes changes with the data on them, not with jobs.
    fs::write(shared.join("site.toml"), "sinfo = false\n").expect("site.toml");
    site.start_controller_with("--config /shared/site.toml");

    let script = |used: &str| {
        format!(
            "#SBATCH -N1 -n1\n#TARN name = \"w\"\n#TARN data.d = {{}}\n#TARN data.r = {{}}\n#TARN [[step]]\n{used}echo a > $TARN_MADE/a\n"
        )
    };
    let makes = script("#TARN out = [\"d\"]\n").replace("MADE", "d");
    let uses = script("#TARN in = [\"d\"]\n#TARN out = [\"r\"]\n").replace("MADE", "r");
    // The first ones give nodes their features.
    for text in [&makes, &uses] {
        let job = site
            .submit("alice", "job.sh", text, &[])
            .expect("it is taken");
        site.wait_for(&job, "COMPLETED");
    }
    clients.forget();
    site.wait("Slurm's nodes are read with these", || {
        clients.log().contains("show licenses")
    });
    clients.forget();
    let job = site
        .submit("alice", "job.sh", &uses, &[])
        .expect("it is taken");
    site.wait_for(&job, "COMPLETED");
    site.wait("it has left", || site.why("alice", &job).contains("ended"));
    let log = clients.log();
    let readings = log.matches("scontrol show config").count();
    let lines = log.lines().filter(|line| !is_of_accounts(line));
    let (looks, others): (Vec<&str>, Vec<&str>) =
        lines.partition(|line| line.contains("exit_code"));
    let of_the_job = others.len() - OF_A_READING * readings;
    assert!(of_the_job <= MAX_OF_A_JOB, "{of_the_job}:\n{log}");
    assert!((2..=MAX_LOOKS).contains(&looks.len()), "{log}");
    // Its origin and its script were read at least.
    assert!(of_the_job >= 2, "{log}");
}

/// A reading of ended jobs: these come by time too.
fn is_of_accounts(line: &str) -> bool {
    line.starts_with("squeue -h -a -r -t all -O")
}
