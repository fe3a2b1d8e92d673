//! The test cluster is a real Slurm, as harsh as a site, and leaves nothing behind.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tarn_tests::slurm::{Cluster, Doctor, run_for_output, wait_until};

const SOON: Duration = Duration::from_secs(60);
/// Slurm takes some 17 s to call a node down, and looks for jobs over their time every 30 s.
const LATER: Duration = Duration::from_secs(180);
const MIB: u64 = 1 << 20;

/// Started by srun, ranks of Open MPI 4.1.4 do not all wait in `MPI_Init` until the others are through what receives messages:
/// once in 300 runs a message came before that and called nothing (a fault in `btl_tcp`). So they wait before the first one.
const HELLO: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
    int rank, sum = 0, length;
    char host[MPI_MAX_PROCESSOR_NAME];
    MPI_Init(&count, &words);
    sleep(1);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Get_processor_name(host, &length);
    rank++;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("%s %d\n", host, sum);
    return MPI_Finalize();
}"#;

/// Notes the request to end, and continues.
const STUBBORN: &str = r#"#!/bin/bash
trap ': > asked' TERM
exec 3<> <(:)
while :; do : > alive; read -rt 0.1 -u 3; done
"#;

fn cluster(nodes: usize, features: &[&str]) -> Option<Cluster> {
    let doctor = Doctor::ask().expect("slurm-cluster doctor");
    if let Some(why) = doctor.lacks(features) {
        eprintln!("SKIPPED: no Slurm cluster here: {why}");
        return None;
    }
    let start = Instant::now();
    let cluster = Cluster::up(nodes).unwrap_or_else(|e| panic!("{e:#}"));
    eprintln!(
        "{nodes} nodes of Slurm are up after {:.1?}",
        start.elapsed()
    );
    Some(cluster)
}

fn alice(cluster: &Cluster, words: &[&str]) -> String {
    let answer = cluster.exec("alice", words);
    answer.unwrap_or_else(|e| panic!("{e:#}")).trim().to_owned()
}

/// Submits a shell command; the job's number.
fn submit(cluster: &Cluster, options: &[&str], command: &str) -> String {
    let mut words = vec!["sbatch", "--parsable", "--no-requeue", "-o", "job.%j"];
    words.extend(options);
    words.extend(["--wrap", command]);
    alice(cluster, &words)
}

fn state(cluster: &Cluster, job: &str) -> String {
    alice(
        cluster,
        &["squeue", "-h", "-t", "all", "-o", "%T", "-j", job],
    )
}

fn wait_for_state(cluster: &Cluster, job: &str, wanted: &str) {
    let what = format!("job {job} {wanted}");
    let waited = wait_until(&what, LATER, || state(cluster, job) == wanted);
    waited.unwrap_or_else(|e| panic!("{e:#}; it is {}", state(cluster, job)));
}

fn node_is(cluster: &Cluster, node: &str, state: &str) -> bool {
    let of_node = ["sinfo", "-h", "-n", node, "-t", state, "-o", "%N"];
    alice(cluster, &of_node) == node
}

fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().map(str::trim).collect()
}

#[test]
fn programs_run_over_nodes() {
    let Some(cluster) = cluster(4, &[]) else {
        return;
    };
    let both = alice(&cluster, &["srun", "-N2", "hostname"]);
    assert_eq!(lines(&both), BTreeSet::from(["node1", "node2"]));
    let all = alice(&cluster, &["salloc", "-N4", "srun", "hostname"]);
    assert_eq!(lines(&all).len(), 4, "{all}");
    assert!(cluster.exec("mallory", &["true"]).is_err());

    // A step takes all that the job has: another runs beside it with --overlap only.
    let script = "srun sh -c 'touch began.$SLURM_PROCID; exec sleep 60' &
        until [ -e began.0 ] && [ -e began.1 ]; do sleep 0.1; done
        srun --immediate=1 hostname && echo 'two at once'
        srun --overlap hostname
        kill -0 $! && echo 'still running'";
    let job = submit(&cluster, &["-N2", "-n2"], script);
    wait_for_state(&cluster, &job, "COMPLETED");
    let out = alice(&cluster, &["cat", &format!("job.{job}")]);
    let printed = lines(&out);
    let wanted = BTreeSet::from(["node1", "node2", "still running"]);
    assert!(
        printed.is_superset(&wanted) && !printed.contains("two at once"),
        "{out}"
    );

    // job_container/tmpfs: /tmp is the job's own, whichever CPU its namespace was made on.
    for _ in 0..4 {
        let left = "ls -A /tmp | grep left; touch /tmp/left";
        assert_eq!(alice(&cluster, &["srun", "-N4", "sh", "-c", left]), "");
    }
}

#[test]
fn mpi_runs_over_nodes() {
    let Some(cluster) = cluster(2, &["pmix"]) else {
        return;
    };
    let source = cluster.shared().join("hello.c");
    std::fs::write(&source, HELLO).expect("a source");
    let mut compiler = Command::new("mpicc");
    compiler.arg("-o").arg(cluster.shared().join("hello"));
    run_for_output(compiler.arg(&source))
        .unwrap_or_else(|e| panic!("mpicc (libopenmpi-dev): {e:#}"));
    let out = alice(
        &cluster,
        &["srun", "-N2", "-n4", "--ntasks-per-node=2", "/shared/hello"],
    );
    let mut ranks: Vec<_> = out.lines().collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["node1 10", "node1 10", "node2 10", "node2 10"]);
}

#[test]
fn the_tier_belongs_to_its_user_and_counts_against_the_job() {
    let Some(cluster) = cluster(1, &["memory"]) else {
        return;
    };
    let write = |mib: u64, file: &str| format!("dd if=/dev/zero of={file} bs=1M count={mib}");
    let size = |file: &str| {
        let size = cluster.node(1).exec("alice", &["stat", "-c", "%s", file]);
        size.map_or(0, |s| s.trim().parse::<u64>().expect("a size"))
    };
    let mkdir = "mkdir -m 700 /scm/alice && ";
    let job = submit(
        &cluster,
        &["--mem=200"],
        &(mkdir.to_owned() + &write(50, "/scm/alice/small")),
    );
    wait_for_state(&cluster, &job, "COMPLETED");
    // It outlives the job.
    assert_eq!(size("/scm/alice/small"), 50 * MIB);
    let mine = cluster.node(1).exec("alice", &["ls", "/scm/alice"]);
    assert_eq!(mine.expect("her own").trim(), "small");
    let theirs = cluster.exec("bob", &["srun", "cat", "/scm/alice/small"]);
    let refused = format!("{:#}", theirs.expect_err("bob reads what is alice's"));
    assert!(refused.contains("Permission denied"), "{refused}");

    let job = submit(&cluster, &["--mem=200"], &write(400, "/scm/alice/big"));
    wait_for_state(&cluster, &job, "RUNNING");
    let gone = || {
        cluster
            .node(1)
            .exec("root", &["pgrep", "-x", "dd"])
            .is_err()
    };
    let began = || size("/scm/alice/big") > 100 * MIB;
    wait_until("the job writes", SOON, began).expect("began");
    wait_until("the job is killed for memory", SOON, gone).expect("killed");
    // Short of the wanted size, and not by the tier's own size of 1024 MiB.
    let written = size("/scm/alice/big");
    assert!(written < 200 * MIB, "{written}");
    assert_ne!(state(&cluster, &job), "COMPLETED");
}

/// Together, since Slurm takes its time for both.
#[test]
fn jobs_and_nodes_end_badly() {
    let Some(cluster) = cluster(2, &[]) else {
        return;
    };
    std::thread::scope(|scope| {
        scope.spawn(|| a_job_that_ignores_sigterm_is_killed(&cluster));
        a_node_loses_its_power(&cluster);
    });
}

fn a_job_that_ignores_sigterm_is_killed(cluster: &Cluster) {
    let home = cluster.shared().join("home/alice");
    let stubborn = |name: &str| {
        let folder = home.join(name);
        let script = home.join(format!("{name}.sh"));
        std::fs::write(&script, format!("mkdir {name}; cd {name}\n{STUBBORN}")).expect("a script");
        let job = submit(cluster, &["-w", "node1"], &format!("exec bash {name}.sh"));
        wait_until("it runs", SOON, || folder.join("alive").exists()).expect("runs");
        (job, folder)
    };
    let killed_after_kill_wait = |folder: &Path| {
        let changed = |file: &str| {
            let meta = folder.join(file).metadata().expect("a file");
            Duration::new(
                u64::try_from(meta.mtime()).expect("after 1970"),
                u32::try_from(meta.mtime_nsec()).expect("nanoseconds"),
            )
        };
        let lived = changed("alive").saturating_sub(changed("asked"));
        // KillWait is 3 s. It starts no program, which takes a busy machine its time.
        let kill_wait = Duration::from_secs(2)..Duration::from_secs(60);
        assert!(kill_wait.contains(&lived), "{lived:?}");
    };
    let (limited, of_limited) = stubborn("limited");
    let update = format!("jobid={limited}");
    alice(cluster, &["scontrol", "update", &update, "endtime=now+1"]);
    let (cancelled, of_cancelled) = stubborn("cancelled");
    alice(cluster, &["scancel", &cancelled]);
    wait_for_state(cluster, &cancelled, "CANCELLED");
    wait_for_state(cluster, &limited, "TIMEOUT");
    killed_after_kill_wait(&of_cancelled);
    killed_after_kill_wait(&of_limited);
}

fn a_node_loses_its_power(cluster: &Cluster) {
    let node = cluster.node(2);
    let job = submit(cluster, &["-w", "node2"], "touch /scm/mine; exec sleep 600");
    let has_it = || node.exec("alice", &["test", "-e", "/scm/mine"]).is_ok();
    wait_until("the job writes", SOON, has_it).expect("a file");
    node.power_cut().expect("off");
    assert!(node.power_cut().is_err() && node.cut_link().is_err());
    let down = wait_until("node2 is down", LATER, || node_is(cluster, "node2", "down"));
    eprintln!("Slurm noticed after {:.1?}", down.expect("down"));
    wait_for_state(cluster, &job, "NODE_FAIL");

    node.start().expect("on");
    assert!(node.start().is_err());
    let left = node.exec("alice", &["ls", "-A", "/scm", "/tmp", "/dev/shm"]);
    assert_eq!(left.expect("ls"), "/dev/shm:\n\n/scm:\n\n/tmp:\n");
    wait_until("node2 is back", LATER, || node_is(cluster, "node2", "idle")).expect("idle");
    assert_eq!(
        alice(cluster, &["srun", "-w", "node2", "hostname"]),
        "node2"
    );
}

#[test]
fn links_and_slurmctld_have_bad_days() {
    let Some(cluster) = cluster(2, &["shaping"]) else {
        return;
    };
    let (near, far) = (cluster.node(1), cluster.node(2));
    // slurmd's port: a node that is reached replies at once.
    let reach = ["timeout", "2", "bash", "-c", ": > /dev/tcp/node2/6818"];
    near.exec("alice", &reach).expect("reached");
    far.cut_link().expect("cut");
    assert!(near.exec("alice", &reach).is_err());
    far.heal_link().expect("healed");
    near.exec("alice", &reach).expect("reached again");

    let job = submit(&cluster, &[], "touch began; exec sleep 600");
    wait_for_state(&cluster, &job, "RUNNING");
    // slurmctld writes its state some seconds later.
    let state_file = "/run/slurmctld/state/job_state";
    let newer = ["find", state_file, "-newer", "/shared/home/alice/began"];
    let saved = || {
        cluster
            .exec("root", &newer)
            .is_ok_and(|found| !found.is_empty())
    };
    let took = wait_until("the job is written down", LATER, saved);
    eprintln!("slurmctld wrote after {:.1?}", took.expect("written"));
    cluster.restart_ctld().expect("it comes back");
    wait_for_state(&cluster, &job, "RUNNING");
    alice(&cluster, &["scancel", &job]);

    // 4 MB over 4 Mbit/s take 8 s.
    let listen = "import socket
s = socket.create_server(('', 5000))
open('/shared/home/alice/listens', 'w')
for _ in range(3):
    c = s.accept()[0]
    while c.recv(1 << 20): pass
    c.sendall(b'.')";
    let mut listener = far
        .command("alice", &["/usr/bin/python3", "-c", listen])
        .spawn()
        .expect("python3");
    let listens = cluster.shared().join("home/alice/listens");
    wait_until("it listens", SOON, || listens.exists()).expect("listens");
    let send = "import socket, time
s = socket.create_connection(('node2', 5000))
start = time.time()
s.sendall(bytes(4000000))
s.shutdown(socket.SHUT_WR)
s.recv(1)
print(time.time() - start)";
    let seconds = || {
        let took = near.exec("alice", &["/usr/bin/python3", "-c", send]);
        took.expect("sent").trim().parse::<f64>().expect("seconds")
    };
    let free = seconds();
    far.shape_link(Some(4)).expect("shaped");
    let shaped = seconds();
    far.shape_link(None).expect("free again");
    let freed = seconds();
    assert!(listener.wait().expect("it ends").success());
    assert!(
        shaped > 6.0 && free < 6.0 && freed < 6.0,
        "{free} {shaped} {freed}"
    );
}

/// The namespaces of the cluster's login node and nodes, and its control groups.
fn belongings(cluster: &Cluster) -> (BTreeSet<String>, String) {
    let mut namespaces = BTreeSet::new();
    let settings = std::fs::read_to_string(cluster.folder().join("settings")).expect("settings");
    let group = settings.lines().find_map(|l| l.strip_prefix("group="));
    let init = std::fs::read_to_string(cluster.folder().join("init.pid")).expect("a number");
    namespaces.extend(namespaces_of(
        Path::new("/proc").join(init.trim()).as_path(),
    ));
    for node in [1, 2] {
        for kind in ["net", "mnt", "pid"] {
            let link = format!("/proc/self/ns/{kind}");
            let name = cluster.node(node).exec("root", &["readlink", &link]);
            namespaces.insert(name.expect("a namespace").trim().to_owned());
        }
    }
    (namespaces, group.expect("a group").to_owned())
}

fn namespaces_of(process: &Path) -> impl Iterator<Item = String> {
    let links = ["net", "mnt", "pid"].map(|kind| process.join("ns").join(kind).read_link());
    let names = links.into_iter().flatten();
    names.map(|name| name.to_string_lossy().into_owned())
}

fn processes_in(namespaces: &BTreeSet<String>) -> Vec<String> {
    processes_before(u64::MAX, namespaces)
}

/// When a process has begun, in ticks since the machine has.
fn began(process: &Path) -> Option<u64> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Those of them that began before another did: the number of a namespace that has gone may be that of another test's by then.
fn processes_before(most: u64, namespaces: &BTreeSet<String>) -> Vec<String> {
    let all = Path::new("/proc").read_dir().expect("/proc").flatten();
    all.map(|entry| entry.path())
        .filter(|process| namespaces_of(process).any(|name| namespaces.contains(&name)))
        .filter(|process| began(process).is_some_and(|at| at < most))
        .map(|process| process.display().to_string())
        .collect()
}

/// Folders of control groups of this name, in either version's place.
fn groups(name: &str) -> Vec<String> {
    let root = Path::new("/sys/fs/cgroup");
    let mut places = vec![root.to_path_buf()];
    places.extend(
        root.read_dir()
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path()),
    );
    let found = places
        .into_iter()
        .map(|p| p.join(name))
        .filter(|p| p.exists());
    found.map(|p| p.display().to_string()).collect()
}

#[test]
fn two_clusters_run_at_once_and_leave_nothing() {
    let (Some(one), Some(two)) = (cluster(2, &[]), cluster(2, &[])) else {
        return;
    };
    submit(&one, &["-N2"], "touch /scm/mark; exec sleep 600");
    let marked = |c: &Cluster| {
        c.node(1)
            .exec("alice", &["test", "-e", "/scm/mark"])
            .is_ok()
    };
    wait_until("the job runs", SOON, || marked(&one)).expect("runs");
    assert!(!marked(&two));
    assert_eq!(alice(&two, &["squeue", "-h"]), "");
    let interfaces = || run_for_output(Command::new("ip").args(["-o", "link"])).expect("ip");
    assert!(!interfaces().contains("node1"), "{}", interfaces());

    let (of_one, group_one) = belongings(&one);
    let (of_two, group_two) = belongings(&two);
    assert!(of_one.is_disjoint(&of_two) && of_one.len() == 9);
    assert!(processes_in(&of_one).len() > 8);
    let folder = one.folder().to_path_buf();
    drop(one);
    let uptime = std::fs::read_to_string("/proc/uptime").expect("uptime");
    let seconds: f64 = uptime
        .split(' ')
        .next()
        .expect("seconds")
        .parse()
        .expect("a number");
    // The kernel counts times of processes in hundredths of a second on all machines.
    let now = (seconds * 100.0) as u64;
    let gone = || processes_before(now, &of_one).is_empty();
    wait_until("nothing of it runs", SOON, gone).expect("gone");
    assert_eq!(groups(&group_one), [""; 0]);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(!mounts.contains(&*folder.to_string_lossy()), "{mounts}");
    assert!(!folder.exists());

    // The other is as it was; and the death of its first process is the end of all of it.
    assert_eq!(alice(&two, &["srun", "-N2", "hostname"]).lines().count(), 2);
    let init = std::fs::read_to_string(two.folder().join("init.pid")).expect("a number");
    run_for_output(Command::new("kill").args(["-KILL", init.trim()])).expect("killed");
    let gone = || processes_in(&of_two).is_empty() && groups(&group_two).is_empty();
    wait_until("everything is gone", SOON, gone).expect("gone");
}
