//! Encrypted data between jobs.

use crate::setup::Site;
use std::fs;

/// The secret that jobs hand on; it must not be found where it does not belong.
const SECRET: &str = "what-only-alice-knows";

/// A member's encrypted dataset is read and changed by another member, on another node.
#[test]
fn what_a_project_keeps_encrypted_its_members_read_and_change() {
    let Some(site) = Site::up(2) else { return };
    let job = |node: usize, role: &str, line: &str| {
        format!(
            "#SBATCH -N1 -n1 -w node{node} -o ran.out\n#TARN name = \"w\"\n\
             #TARN data.forcing = {{ project = \"climate\", encrypt = true, size = \"1 MiB\" }}\n\
             #TARN [[step]]\n#TARN {role} = [\"forcing\"]\nset -e\n{line}\n"
        )
    };
    let ran = |user: &str, script: &str| {
        let id = site
            .submit(user, "member.sh", script, &[])
            .expect("it is taken");
        site.wait_for(&id, "COMPLETED");
        fs::read_to_string(site.home(user).join("ran.out")).expect("its output")
    };
    let make = format!("umask 077; echo {SECRET} > $TARN_forcing/one; stat -f -c %T $TARN_forcing");
    assert_eq!(ran("alice", &job(1, "out", &make)), "tmpfs\n");
    let change = "cat $TARN_forcing/one; echo bobs > $TARN_forcing/two";
    let seen = ran("bob", &job(2, "inout", change));
    assert_eq!(seen, format!("{SECRET}\n"), "{}", site.logs());
    let read = "cat $TARN_forcing/one $TARN_forcing/two";
    let seen = ran("alice", &job(1, "in", read));
    assert_eq!(seen, format!("{SECRET}\nbobs\n"), "{}", site.logs());
    assert!(!is_in_store(&site, 1) && !is_in_store(&site, 2));
}

/// Whether a node's store has the secret somewhere in the clear.
fn is_in_store(site: &Site, node: usize) -> bool {
    let command = format!("grep -rqF {SECRET} /scm/tarn");
    let node = site.cluster.node(node);
    node.exec("root", &["sh", "-c", &command]).is_ok()
}

#[test]
fn what_jobs_hand_on_encrypted_is_in_clear_only_where_they_run() {
    let Some(site) = Site::up(2) else { return };
    let home = site.home("alice");
    let prepare = format!("mkdir -p ~/case; echo {SECRET} > ~/case/mesh; chmod 700 ~");
    site.alice(&["sh", "-c", &prepare]);
    let first = "\
#SBATCH -N1 -n1 -w node1 -o first.out
#TARN name = \"w\"
#TARN data.case = { source = \"case\", encrypt = true }
#TARN data.made = { encrypt = true, size = \"1 MiB\" }
#TARN [[step]]
#TARN in = [\"case\"]
#TARN out = [\"made\"]
set -e
sed s/^/first:/ $TARN_case/mesh > $TARN_made/m
stat -f -c %T $TARN_case $TARN_made
touch $TARN_case/x 2> /dev/null && exit 1
touch ~/first-runs
while [ -e ~/first-runs ]; do sleep 0.2; done
";
    // The second one runs elsewhere, and does not set `encrypt` for the data that it takes over.
    let second = "\
#SBATCH -N1 -n1 -w node2 -o second.out
#TARN name = \"w\"
#TARN data.made = { size = \"1 MiB\", dest = \"result\" }
#TARN [[step]]
#TARN inout = [\"made\"]
set -e
srun sh -c 'sed -i s/^/second:/ $TARN_made/m'
";
    for (name, script) in [("first.sh", first), ("second.sh", second)] {
        fs::write(home.join(name), format!("#!/bin/bash\n{script}")).expect("a script");
    }
    let submitted = site.alice(&["sh", "-c", "cd && tarn submit --open first.sh second.sh"]);
    let jobs = submitted.lines().map(|l| l.split(' ').next().expect("one"));
    let [first, second] = jobs.collect::<Vec<_>>().try_into().expect("two jobs");
    site.wait("the first runs", || home.join("first-runs").exists());
    // While it runs, nobody else sees it: not bob, nor alice by another way.
    assert!(!is_in_store(&site, 1));
    for user in ["bob", "alice"] {
        let node = site.cluster.node(1);
        let path = format!("cat /run/tarn/clear/all/{first}/*/v/case/mesh");
        let reached = node.exec(user, &["sh", "-c", &path]);
        assert!(reached.is_err(), "{user}: {reached:?}");
    }
    // The site's key is rotated meanwhile.
    let refused = site.cluster.exec("alice", &["tarn", "slurm", "rotate-key"]);
    assert!(format!("{refused:?}").contains("only root"), "{refused:?}");
    site.root(&["tarn", "slurm", "rotate-key"]);
    site.wait("the older one is not needed any more", || {
        let words = ["tarn", "slurm", "rotate-key", "--drop"];
        site.cluster.exec("root", &words).is_ok()
    });
    fs::remove_file(home.join("first-runs")).expect("it goes on");
    site.wait_for(first, "COMPLETED");
    site.wait_for(second, "COMPLETED");
    site.wait("the result is outside", || home.join("result/m").exists());
    let result = fs::read_to_string(home.join("result/m")).expect("the result");
    assert_eq!(
        result,
        format!("second:first:{SECRET}\n"),
        "{}",
        site.logs()
    );
    assert_eq!(
        fs::read_to_string(home.join("first.out")).expect("its output"),
        "tmpfs\ntmpfs\n"
    );
    site.wait("they have left", || {
        [first, second]
            .iter()
            .all(|job| site.why("alice", job).contains("ended"))
    });
    for node in [1, 2] {
        assert!(!is_in_store(&site, node));
        let kept = "find /scm/tarn -name key | grep -c . ; ls /run/tarn/clear/all | wc -l";
        let output = site.cluster.node(node).exec("root", &["sh", "-c", kept]);
        let output = output.expect("what is there");
        let numbers: Vec<&str> = output.split_whitespace().collect();
        assert!(numbers[0] != "0" && numbers[1] == "0", "{numbers:?}");
    }
    // Data that is not needed goes, with its keys.
    site.alice(&["tarn", "slurm", "end", "w"]);
    for node in [1, 2] {
        site.wait("nothing is left", || {
            let find = "find /scm/tarn/u*/d -type f | wc -l";
            let left = site.cluster.node(node).exec("root", &["sh", "-c", find]);
            left.is_ok_and(|output| output.trim() == "0")
        });
    }
    // Without a size, sbatch names the missing key.
    let words = "printf '#!/bin/sh\\n#TARN data.x.encrypt = true\\n#TARN [[step]]\\n#TARN out = [\"x\"]\\n' > x.sh; sbatch x.sh";
    let refused = site.cluster.exec("alice", &["sh", "-c", words]);
    assert!(format!("{refused:?}").contains("`size`"), "{refused:?}");
}
