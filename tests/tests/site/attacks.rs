//! Two ordinary users on one site.

use crate::setup::Site;

/// What a job of a user says; whether it ended well does not matter.
pub(crate) fn ran(site: &Site, user: &str, script: &str) -> String {
    let job = site.submit(user, "job.sh", &format!("#SBATCH -N1 -n1\n{script}"), &[]);
    let job = job.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()));
    site.wait("it has ended", || {
        matches!(site.state(&job).as_str(), "COMPLETED" | "FAILED")
    });
    let output = site.home(user).join(format!("slurm-{job}.out"));
    std::fs::read_to_string(output).unwrap_or_default()
}

#[test]
fn attack_a_users_data_is_nobody_elses() {
    let Some(site) = Site::up(1) else { return };
    let make = "\
#TARN name = \"w\"
#TARN data.secret.keep = \"forever\"
#TARN [[step]]
#TARN out = [\"secret\"]
echo precious > $TARN_secret/a; sleep 20
";
    let job = site.submit("alice", "make.sh", &format!("#SBATCH -N1 -n1\n{make}"), &[]);
    let job = job.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()));
    site.wait_for(&job, "RUNNING");
    // While Alice's job runs on the same node, and after it.
    let store = "/scm/tarn/u7001";
    let looks = format!(
        "ls {store}; cat {store}/j/{job}/w/secret/a {store}/d/w/secret/1/0/tree/a; ls /scm/tarn; ls -A /run/tarn/data; ls /run/tarn/jobs; \
         touch {store}/x; rm -rf {store}; ln -s {store} /scm/tarn/u7002/link; \
         for p in $(pgrep -u alice); do ls /proc/$p/root/run/tarn/data; done; true"
    );
    let said = ran(&site, "bob", &looks);
    assert!(
        !said.contains("precious") && !said.contains("secret\n"),
        "{said}"
    );
    site.wait_for(&job, "COMPLETED");
    let said = ran(&site, "bob", &looks);
    assert!(!said.contains("precious"), "{said}");
    // A workflow of the same name is another one.
    let read = "#TARN name = \"w\"\n#TARN [[step]]\n#TARN in = [\"secret\"]\ncat $TARN_secret/a\n";
    let reader = site.submit("bob", "read.sh", &format!("#SBATCH -N1 -n1\n{read}"), &[]);
    let reader = reader.unwrap_or_else(|e| panic!("{e:#}"));
    site.wait("the reason is told", || {
        site.root(&["scontrol", "show", "job", &reader])
            .contains("nobody makes dataset")
    });
    // The stages of jobs are Slurm's to say, not a user's.
    for words in [
        &["tarn", "slurm", "teardown", &job][..],
        &["tarn", "slurm", "post-run", &job],
        &["tarn", "slurm", "pre-run", &job],
        &["tarn", "slurm", "data-out", &job],
        &["tarn", "slurm", "end", "w"],
        &["tarn", "slurm", "why", &job],
    ] {
        let said = site.cluster.exec("bob", words);
        assert!(said.is_err(), "{words:?}: {said:?}");
    }
    // It is there all the time, for who has made it.
    let said = ran(&site, "alice", read);
    assert_eq!(said, "precious\n");
}

#[test]
fn attack_a_task_gets_no_further_than_its_own_data() {
    let Some(site) = Site::up(1) else { return };
    site.alice(&[
        "sh",
        "-c",
        "mkdir -p ~/case; echo mesh > ~/case/mesh; chmod 700 ~",
    ]);
    let script = "\
#TARN data.case.source = \"case\"
#TARN [[step]]
#TARN in = [\"case\"]
#TARN out = [\"x\"]
#TARN [data.x]
(echo changed > $TARN_case/mesh) 2> /dev/null && echo written
touch $TARN_case/new 2> /dev/null && echo made
rm -f $TARN_case/mesh 2> /dev/null && echo removed
chmod 777 $TARN_case 2> /dev/null && echo opened
umount $TARN_case 2> /dev/null && echo unmounted
mount -o remount,rw $TARN_case 2> /dev/null && echo remounted
touch /run/tarn/data/y 2> /dev/null && echo placed
ln -s /etc/shadow $TARN_x/link && cat $TARN_x/link 2> /dev/null && echo read
rm $TARN_x/link
cat $TARN_case/mesh
";
    let said = ran(&site, "alice", script);
    assert_eq!(said, "mesh\n");
}
