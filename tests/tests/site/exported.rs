//! Partitions that jobs request in their scripts.

use crate::attacks::ran;
use crate::setup::Site;
use std::fs;
use tarn_tests::programs;

/// Two partitions of different units at once, on each node, through `tarn h5` and by their files.
const SCRIPT: &str = "\
#TARN partition.field = { size = \"4 MiB\" }
#TARN partition.log = { size = \"40 KiB\", unit = \"8 KiB\" }
#TARN [[step]]
#TARN partitions = [\"field\", \"log\"]
echo $TARN_PARTITION_field $TARN_PARTITION_log :$TARN_DATASETS: > ~/names
srun sh -c 'stat -Lc \"%U %a %s\" $TARN_PARTITION_field.partition $TARN_PARTITION_log.partition > ~/stat-$SLURM_PROCID'
srun sh -c '/shared/bin/tarn --json partition ls $(dirname $TARN_PARTITION_log) > ~/ls-$SLURM_PROCID'
";

#[test]
fn a_job_has_partitions_on_its_nodes_as_long_as_it_is_there() {
    let Some(site) = Site::up(2) else { return };
    let left = |node: usize| {
        let command = "find /scm/tarn/u*/j -name '*.partition' 2> /dev/null | wc -l; ls /run/tarn/jobs | wc -l";
        let output = site.cluster.node(node).exec("root", &["sh", "-c", command]);
        output
            .map(|s| s.split_whitespace().collect::<Vec<_>>().join(" "))
            .unwrap_or_default()
    };
    let submit = |script: &str, options: &[&str]| {
        let job = site.submit("alice", "job.sh", script, options);
        job.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()))
    };
    let job = submit(&format!("#SBATCH -N2 -n2\n{SCRIPT}sleep 300\n"), &[]);
    site.wait_for(&job, "RUNNING");
    let home = site.home("alice");
    site.wait("both nodes have said what they see", || {
        (0..2).all(|n| fs::metadata(home.join(format!("ls-{n}"))).is_ok_and(|m| m.len() > 0))
    });
    let read = |name: &str| fs::read_to_string(home.join(name)).unwrap_or_default();
    let names = "/run/tarn/data/field/field /run/tarn/data/log/log ::\n";
    assert_eq!(read("names"), names, "{}", site.logs());
    for node in 0..2 {
        let stat = read(&format!("stat-{node}"));
        assert_eq!(stat, "alice 600 6291456\nalice 600 2138112\n");
        assert!(read(&format!("ls-{node}")).contains("\"unit\":8192"));
    }
    // Nobody else gets to them, on the same node.
    assert_eq!((left(1), left(2)), ("2 1".into(), "2 1".into()));
    let looks = format!(
        "cat /scm/tarn/u7001/j/{job}/p/field/field.partition; ls /run/tarn/data; /shared/bin/tarn partition ls /scm/tarn/u7001/j/{job}/p/field; true"
    );
    let output = ran(&site, "bob", &looks);
    assert!(
        output.contains("denied") && !output.contains("4.00 MiB"),
        "{output}"
    );
    // Their space is taken from 512 MiB: 6 MiB and 2.05 MiB.
    let status = site.root(&["tarn", "slurm", "status"]);
    assert!(status.contains("503.95 MiB free"), "{status}");
    site.alice(&["scancel", &job]);
    site.wait("nothing is left", || {
        (left(1), left(2)) == ("0 0".into(), "0 0".into())
    });
    // A partition that no node can hold is refused with the reason; mistakes, when the script is submitted.
    let large = submit(
        "#SBATCH -N1\n#TARN partition.field.size = \"2 GiB\"\n#TARN [[step]]\n#TARN partitions = \"field\"\ntrue\n",
        &[],
    );
    site.wait("the reason is told", || {
        let shown = site.root(&["scontrol", "show", "job", &large]);
        shown.contains("partitions included")
    });
    site.alice(&["scancel", &large]);
    for bad in [
        "size = \"1 MiB\", keep = \"workflow\"",
        "size = \"1 MiB\", unit = \"3 KiB\"",
        "unit = \"4 KiB\"",
    ] {
        let script = format!(
            "#SBATCH -N1\n#TARN partition.field = {{ {bad} }}\n#TARN [[step]]\n#TARN partitions = \"field\"\ntrue\n"
        );
        let refused = site.submit("alice", "bad.sh", &script, &[]);
        assert!(refused.is_err(), "{bad}: {refused:?}");
    }
    // A node loses power with a job's partitions on it, and is back.
    let job = submit(
        &format!("#SBATCH -N1 -n1\n{SCRIPT}sleep 300\n"),
        &["-w", "node1", "--no-requeue"],
    );
    site.wait_for(&job, "RUNNING");
    site.wait("they are there", || left(1) == "2 1");
    let node = site.cluster.node(1);
    node.power_cut().unwrap_or_else(|e| panic!("{e:#}"));
    site.wait_for(&job, "NODE_FAIL");
    node.start().unwrap_or_else(|e| panic!("{e:#}"));
    site.start_node(1);
    let again = submit(&format!("#SBATCH -N1 -n1\n{SCRIPT}"), &["-w", "node1"]);
    site.wait_for(&again, "COMPLETED");
    site.wait("nothing is left", || left(1) == "0 0");
}

/// One over both nodes, which each task writes to and reads, wherever its blocks are; then tasks that read all of it until
/// that fails, and the other node's piece until that is to be had.
const SPREAD: &str = "\
#SBATCH -N2 -n2 --no-kill
#TARN partition.field = { size = \"1 MiB\", spread = \"64 KiB\" }
#TARN partition.own = { size = \"64 KiB\" }
#TARN [[step]]
#TARN partitions = [\"field\", \"own\"]
echo $TARN_PARTITION_field $TARN_BLOCK_field $TARN_STEP_SOCKET $TARN_PARTITION_own > ~/names
srun sh -c 'dealt write @step/field $((65536 * (1 - SLURM_PROCID) + 100)) rank$SLURM_PROCID'
srun sh -c 'dealt read @step/field $((65536 * SLURM_PROCID + 100)) > ~/read-$SLURM_PROCID'
srun sh -c 'dealt write $TARN_PARTITION_own 0 own$SLURM_PROCID; dealt read $TARN_PARTITION_own 0 > ~/own-$SLURM_PROCID'
echo watching > ~/watching
dealt watch @step/field > ~/watch 2>&1
echo over >> ~/watch
until dealt read @step/field 65636 > ~/again 2> ~/not-yet; do sleep 0.2; done
sleep 600
";

#[test]
fn a_partition_lies_over_the_nodes_of_a_job_for_its_tasks_alone() {
    let Some(site) = Site::up(2) else { return };
    let installed = programs::install(&site.cluster, &["examples/dealt"]);
    installed.unwrap_or_else(|e| panic!("{e:#}"));
    let home = site.home("alice");
    let read = |name: &str| fs::read_to_string(home.join(name)).unwrap_or_default();
    let on = |node: usize, user: &str, command: &str| {
        let output = site.cluster.node(node).exec(user, &["sh", "-c", command]);
        output.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()))
    };
    let left = |node: usize| {
        let look = "find /scm/tarn \\( -name '*.partition' -o -type s \\) 2> /dev/null | wc -l; ls /run/tarn/jobs | wc -l";
        let output = site.cluster.node(node).exec("root", &["sh", "-c", look]);
        output
            .map(|s| s.split_whitespace().collect::<Vec<_>>().join(" "))
            .unwrap_or_default()
    };
    let submit = || {
        for name in ["watch", "again"] {
            let _ = fs::remove_file(home.join(name));
        }
        let job = site.submit("alice", "job.sh", SPREAD, &["--no-requeue"]);
        let job = job.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()));
        site.wait("its task watches both pieces", || {
            read("watch").contains("watching")
        });
        job
    };
    let job = submit();
    let names = "node1:@step/field,node2:@step/field 65536 /run/tarn/data/field/tarnd /run/tarn/data/own/own\n";
    assert_eq!(read("names"), names);
    for rank in 0..2 {
        let expected = format!("rank{} of 1048576\n", 1 - rank);
        assert_eq!(read(&format!("read-{rank}")), expected, "{}", site.logs());
        let expected = format!("own{rank} of 65536\n");
        assert_eq!(read(&format!("own-{rank}")), expected);
    }
    // Neither another user nor root is answered, though they find the socket.
    let socket = format!("/scm/tarn/u7001/j/{job}/p/field/tarnd");
    for node in 1..=2 {
        assert_eq!(left(node), "3 1");
        for (user, why) in [("bob", "ermission denied"), ("root", "are user ")] {
            for piece in ["node1:@step/field", "node2:@step/field"] {
                let ask =
                    format!("TARN_STEP_SOCKET={socket} /shared/bin/dealt read {piece} 2>&1; true");
                let output = on(node, user, &ask);
                assert!(output.contains(why), "{user}: {output}");
            }
        }
    }
    // The other node's tarnd is killed: what is open fails with LOST, and is to be had again when there is one.
    on(2, "root", "pkill -KILL -x tarnd; true");
    site.wait("the piece is lost", || read("watch").contains("over"));
    assert!(
        read("watch").contains("failed with 14"),
        "{}",
        read("watch")
    );
    site.start_node(2);
    site.wait("it is there again", || {
        read("again") == "rank0 of 1048576\n"
    });
    site.alice(&["scancel", &job]);
    site.wait("nothing is left", || {
        (left(1), left(2)) == ("0 0".into(), "0 0".into())
    });
    // A node loses power: its task learns that the piece is lost, or has waited for a minute.
    let job = submit();
    let node = site.cluster.node(2);
    node.power_cut().unwrap_or_else(|e| panic!("{e:#}"));
    site.wait("the piece is lost", || read("watch").contains("over"));
    site.alice(&["scancel", &job]);
    site.wait("nothing is left", || left(1) == "0 0");
    node.start().unwrap_or_else(|e| panic!("{e:#}"));
    site.start_node(2);
    site.wait("nothing is left there", || left(2) == "0 0");
}
