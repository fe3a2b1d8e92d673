//! Changes by users of a waiting job, beside tarn: they stay, whatever tarn sets just then.

use crate::drive::ORDINARY;
use crate::setup::Site;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const MAKES: &str = "\
#SBATCH -N1 --exclusive
#TARN name = \"w\"
#TARN data.d = {}
#TARN [[step]]
#TARN out = [\"d\"]
until [ -e /shared/home/alice/go ]; do sleep 0.2; done
echo a > $TARN_d/a
";
const READS: &str = "\
#SBATCH -N1 --exclusive
#TARN name = \"w\"
#TARN [[step]]
#TARN in = [\"d\"]
cat $TARN_d/a
";

/// A field of a job, as `scontrol` shows it.
fn field(site: &Site, job: &str, name: &str) -> String {
    let shown = site.root(&["scontrol", "-o", "show", "job", job]);
    let words = shown.split_whitespace();
    let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    values.next().unwrap_or_default().to_owned()
}

#[test]
fn nodes_that_a_user_excludes_later_stay_excluded() {
    let Some(site) = Site::up(2) else { return };
    let busy = site.hold("node[1-2]");
    let job = site
        .submit("alice", "makes.sh", MAKES, &[])
        .expect("it is taken");
    site.wait_taken_in(&job);
    let id = format!("jobid={job}");
    site.alice(&["scontrol", "update", &id, "excnodelist=node1"]);
    // tarn looks at exclusions every 5 s.
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(field(&site, &job, "ExcNodeList"), "node1");
    // The next controller knows it too.
    site.kill_controller();
    site.start_controller();
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(field(&site, &job, "ExcNodeList"), "node1");
    site.alice(&["scontrol", "update", &id, "excnodelist="]);
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(field(&site, &job, "ExcNodeList"), "(null)");
    site.alice(&["scancel", &job, &busy]);
}

/// Slurm's client that the stages read a job's conditions by: the user changes the job just before.
const SQUEUE: &str = r#"#!/bin/sh
case "$*" in
    *Dependency:32768*)
        if [ -s /shared/clients/change ] && mkdir /shared/clients/done 2>/dev/null; then
            /usr/bin/scontrol update $(cat /shared/clients/change)
        fi ;;
esac
exec /usr/bin/squeue "$@"
"#;

#[test]
fn a_change_between_the_controllers_reading_and_its_own_update_stays() {
    let Some(site) = Site::up(2) else { return };
    let shared = site.cluster.shared();
    let folder = shared.join("clients");
    let executable = || fs::Permissions::from_mode(0o777);
    fs::create_dir_all(&folder).expect("a folder");
    fs::set_permissions(&folder, executable()).expect("a folder");
    fs::write(folder.join("squeue"), SQUEUE).expect("squeue");
    fs::set_permissions(folder.join("squeue"), executable()).expect("squeue");
    fs::rename(shared.join("bin/tarn"), shared.join("bin/tarn-itself")).expect("tarn");
    let stages = "#!/bin/sh\nPATH=/shared/clients:$PATH exec /shared/bin/tarn-itself \"$@\"\n";
    fs::write(shared.join("bin/tarn"), stages).expect("tarn");
    fs::set_permissions(shared.join("bin/tarn"), executable()).expect("tarn");

    let submit = |name: &str, script: &str, words: &[&str]| {
        let job = site.submit("alice", name, script, words);
        job.expect("it is taken")
    };
    let other = submit("other.sh", ORDINARY, &["--hold"]);
    let makes = submit("makes.sh", MAKES, &[]);
    site.wait_for(&makes, "RUNNING");
    // Held until its user's change is prepared: Slurm then calls for its setup, which has it wait for the first job.
    let reads = submit("reads.sh", READS, &["--hold"]);
    let change = format!("jobid={reads} dependency=afterany:{other} prefer=node2");
    fs::write(folder.join("change"), change).expect("a change");
    site.root(&[
        "scontrol",
        "update",
        "nodename=node2",
        "availablefeatures=node2",
    ]);
    site.alice(&["scontrol", "release", &reads]);
    site.wait("it waits for both", || {
        let dependency = field(&site, &reads, "Dependency");
        dependency.contains(&format!("afterany:{other}"))
            && dependency.contains(&format!("afterok:{makes}"))
    });
    assert_eq!(field(&site, &reads, "Prefer"), "node2", "{}", site.logs());
    fs::write(site.home("alice").join("go"), "").expect("a file");
    site.wait_for(&makes, "COMPLETED");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(site.state(&reads), "PENDING", "it waits for the other job");
    site.alice(&["scancel", &other]);
    site.wait_for(&reads, "COMPLETED");
}
