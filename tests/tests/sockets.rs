//! Processor sockets on nodes of a real Slurm, pretended (`HWLOC_SYNTHETIC`) of two real processors.

use std::process::Command;
use tarn_tests::fixture;
use tarn_tests::slurm::run_for_output;

/// A step on each node that prints where it runs, and one that reads that of both from a peer.
const WORKFLOW: &str = r#"
name = "bound"
[data.where]
scatter = "part{rank}"
[data.all]
dest = "out"
[[step]]
name = "work"
nodes = 2
tasks = 2
run = """
mkdir $TARN_where/part0
grep Cpus_allowed_list /proc/self/status > $TARN_where/part0/cpus
other=$(sed -n 2p $TARN_HOSTFILE | cut -d ' ' -f 1)
tarn exec $other 'mkdir $TARN_where/part1; grep Cpus_allowed_list /proc/self/status > $TARN_where/part1/cpus'
"""
out = ["where:scatter"]
[[step]]
name = "gather"
run = "cp -r $TARN_where/. $TARN_all"
in = ["where:gather"]
out = ["all"]
"#;

/// Two processors of this machine.
fn two() -> Option<(u32, u32)> {
    let mut cpus = Vec::new();
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let list = status
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    for range in list.expect("a list").trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |n: &str| n.parse::<u32>().expect("a number");
        cpus.extend(number(first)..=number(last));
    }
    Some((*cpus.first()?, *cpus.get(1)?))
}

fn succeeds(mut command: Command) -> String {
    run_for_output(&mut command).unwrap_or_else(|e| panic!("{e:#}"))
}

#[test]
fn what_slurm_gave_is_divided() {
    let Some((first, second)) = two() else {
        return eprintln!("SKIPPED: it takes two processors");
    };
    let Some(cluster) = fixture::cluster(2, &["tarn", "tarnd"], &[], &[]) else {
        return;
    };
    let alice = |options: &str, tarn: &str| {
        let pretend = format!("HWLOC_SYNTHETIC='pack:2 core:1 pu:1(indexes={first},{second})'");
        let line = format!("{pretend} exec salloc -Q -N2 {options} tarn {tarn}");
        succeeds(cluster.command("alice", &["bash", "-c", &line]))
    };
    // The whole node is the job's; or one of its processors, and nobody selects which.
    let shown = alice("--exclusive", "nodes");
    for node in ["node1", "node2"] {
        for (number, cpu) in [(0, first), (1, second)] {
            let socket = format!("{node}: socket {number} has processors {cpu}\n");
            assert!(shown.contains(&socket), "{shown}");
        }
    }
    let shown = alice("-c1", "nodes");
    assert!(
        shown.contains("node2") && !shown.contains("socket"),
        "{shown}"
    );
    let folder = cluster.shared().join("home/alice");
    std::fs::write(folder.join("wf.toml"), WORKFLOW).expect("a file");
    alice("--exclusive", "run wf.toml");
    let cpus = |rank: u32| {
        let path = folder.join(format!("out/part{rank}/cpus"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{e}"));
        text.split_whitespace().last().expect("a list").to_owned()
    };
    // On each node it is the first step.
    assert_eq!([cpus(0), cpus(1)], [first.to_string(), first.to_string()]);
}
