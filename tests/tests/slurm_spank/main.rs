//! Each job's view of its data through the SPANK plug-in, on a real Slurm; and the treatment of false job files and stores.
//! The files that a node's tarnd writes are written here by hand (docs/internals/site.md, "What a job sees").

mod attacks;
mod ranks;
mod site;

use site::{ALICE, SOON, Site, alices, bobs, lines, text};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use tarn_tests::slurm::{run_for_output, wait_until};
use tarn_tests::tree;

#[test]
fn each_job_sees_its_own_data() {
    let Some(site) = Site::up(2, "tmpfs", "required") else {
        return;
    };
    two_users_at_once(&site);
    every_kind_of_task(&site);
    elements_of_an_array(&site);
    flags_reach_job_submit(&site);
    for node in 1..=2 {
        site.nothing_is_left(node);
    }
}

/// Two jobs of two users, and one that has no data, on one node at the same time.
fn two_users_at_once(site: &Site) {
    let meet = |name: &str| {
        format!("touch /shared/{name}; until [ -e /shared/looked ]; do sleep 0.1; done; ")
    };
    let hers = meet("alice")
        + "echo $$ > /shared/her; ls $TARN_fields; cat $TARN_mesh/points $TARN_grid; echo of alice > $TARN_fields/step
           echo $TARN_mesh; (echo x > $TARN_mesh/new) 2>&1; (echo x > $TARN_grid) 2>&1; echo names: $TARN_DATASETS, $(ls -m /run/tarn/data)";
    let his = meet("bob")
        + "cat $TARN_mesh/points; ls /scm/tarn/u7001 2>&1; cat /proc/$(cat /shared/her)/root/run/tarn/data/grid 2>&1
           echo names: $TARN_DATASETS, $(ls -m /run/tarn/data)";
    let none = meet("none") + "ls -A /run/tarn/data; env | grep ^TARN_; true";
    let jobs = [
        site.held("alice", &["-w", "node1"], &hers),
        site.held("bob", &["-w", "node1"], &his),
        site.held("alice", &["-w", "node1"], &none),
    ];
    site.job_file(&jobs[0], &alices());
    site.job_file(&jobs[1], &bobs());
    site.release(&jobs);
    wait_until("all three run", SOON, || {
        ["alice", "bob", "none"]
            .iter()
            .all(|n| site.shared(n).exists())
    })
    .unwrap_or_else(|e| panic!("{e:#}; {}", site.state(&jobs[0])));
    let host = site.root(
        1,
        "grep -c /run/tarn /proc/self/mountinfo; ls -A /run/tarn/data",
    );
    assert_eq!(host, "0", "the node itself sees nothing");
    fs::write(site.shared("her"), "1").expect("a number, until hers is there");
    fs::write(site.shared("looked"), "").expect("a file");

    let output = site.ended("alice", &jobs[0], "COMPLETED");
    for wanted in [
        "alice's points on node1",
        "alice's grid",
        "/run/tarn/data/mesh",
        "names: mesh grid fields ours, fields, grid, mesh, ours",
    ] {
        assert!(lines(&output).contains(wanted), "{wanted}: {output}");
    }
    assert_eq!(
        output.matches("Read-only file system").count(),
        2,
        "{output}"
    );
    let step = site.root(
        1,
        "cd /scm/tarn/u7001/j/1/fields; cat step; stat -c %U step",
    );
    assert_eq!(step, "of alice\nalice", "where the store has it");

    let output = site.ended("bob", &jobs[1], "COMPLETED");
    assert!(
        lines(&output).contains("alice's points on node1"),
        "{output}"
    );
    assert_eq!(output.matches("Permission denied").count(), 2, "{output}");
    assert!(
        lines(&output).contains("names: mesh his, his, mesh"),
        "{output}"
    );
    assert_eq!(site.ended("alice", &jobs[2], "COMPLETED"), "");
}

/// Batch script, steps on two nodes, and steps of salloc. `srun -Q`: a node that is not yet free of the step before is not
/// reported.
fn every_kind_of_task(site: &Site) {
    let script = "srun -Q sh -c 'cat $TARN_mesh/points; echo $SLURM_NODEID > $TARN_fields/node'
        TARN_old=/run/tarn/data/old TARN_other=/elsewhere TARN_mesh=/wrong srun -Q -n1 -N1 sh -c 'env | grep ^TARN_'
        srun -Q --export=NONE -n1 -N1 /bin/sh -c 'echo alone: $TARN_mesh'";
    let out = site.run("alice", Some(&alices()), &["-N2", "-n2"], script);
    let wanted = BTreeSet::from([
        "alice's points on node1",
        "alice's points on node2",
        "TARN_mesh=/run/tarn/data/mesh",
        "TARN_grid=/run/tarn/data/grid",
        "TARN_fields=/run/tarn/data/fields",
        "TARN_ours=/run/tarn/data/ours",
        "TARN_DATASETS=mesh grid fields ours",
        "TARN_other=/elsewhere",
        "alone: /run/tarn/data/mesh",
    ]);
    assert_eq!(lines(&out), wanted, "{out}");
    for (node, id) in [(1, "0"), (2, "1")] {
        assert_eq!(site.root(node, "cat /scm/tarn/u7001/j/1/fields/node"), id);
    }

    let wait = "echo $SLURM_JOB_ID > /shared/home/alice/number
        until [ -e /shared/go ]; do sleep 0.1; done; srun cat /run/tarn/data/grid; srun sh -c 'echo $TARN_grid'";
    let mut salloc = site
        .cluster
        .command("alice", &["salloc", "-Q", "bash", "-c", wait]);
    let salloc = salloc.stdout(Stdio::piped()).spawn().expect("salloc");
    let number = || fs::read_to_string(site.shared("home/alice/number")).unwrap_or_default();
    wait_until("salloc has a job", SOON, || number().ends_with('\n')).expect("a number");
    site.job_file(number().trim(), &alices());
    fs::write(site.shared("go"), "").expect("a file");
    let output = salloc.wait_with_output().expect("salloc's end");
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(out, "alice's grid\n/run/tarn/data/grid\n");
}

/// Each element is a job of its own.
fn elements_of_an_array(site: &Site) {
    let script = "echo $SLURM_ARRAY_TASK_ID: $TARN_DATASETS $(cat $TARN_a1/points $TARN_a2/points)";
    let array = site.held("alice", &["--array=1-2"], script);
    // An element that is changed alone gets its number.
    for element in ["_1", "_2"] {
        let id = format!("jobid={array}{element}");
        site.user("root", &["scontrol", "update", &id, "comment=alone"]);
    }
    let shown = site.user(
        "root",
        &[
            "squeue",
            "-r",
            "-h",
            "-O",
            "ArrayTaskID,JobID",
            "-j",
            &array,
        ],
    );
    let jobs: Vec<(&str, String)> = shown
        .lines()
        .map(|line| {
            let (element, job) = line.trim().split_once(' ').expect("two columns");
            (element, job.trim().to_owned())
        })
        .collect();
    assert_eq!(jobs.len(), 2, "{shown}");
    for (element, job) in &jobs {
        let mount = format!("ro a{element} u7001 u7001/d/foam/mesh");
        site.job_file(job, &text(ALICE, &[&mount]));
    }
    site.release(&jobs.iter().map(|(_, job)| job.clone()).collect::<Vec<_>>());
    for (element, job) in &jobs {
        let out = site.ended("alice", job, "COMPLETED");
        assert!(
            out.contains(&format!("{element}: a{element} alice's points on node")),
            "{out}"
        );
    }
}

/// The options reach job_submit.lua from all three commands and from `#SBATCH` lines.
fn flags_reach_job_submit(site: &Site) {
    let script = site.shared("script");
    let options = "#!/bin/bash\n#SBATCH --workflow-start\n#SBATCH --workflow-same-nodes\n#SBATCH -J lines -o /dev/null\n";
    fs::write(
        &script,
        options.to_owned() + "sbatch -J inner -o /dev/null --wrap true\n",
    )
    .expect("a script");
    site.user("alice", &["sbatch", "--wait", "/shared/script"]);
    let prior = "--workflow-prior-dependency=17_3";
    site.user("alice", &["srun", "-J", "srun", prior, "true"]);
    site.user(
        "alice",
        &["salloc", "-J", "salloc", "--workflow-end", "true"],
    );
    let log = fs::read_to_string(site.cluster.folder().join("log/slurmctld.log")).expect("a log");
    for wanted in [
        "of lines: TARN_WORKFLOW_START=1 TARN_WORKFLOW_SAME_NODES=1.",
        "of srun: TARN_WORKFLOW_PRIOR=17_3.",
        "of salloc: TARN_WORKFLOW_END=1.",
        "of inner: .",
    ] {
        assert!(log.contains(wanted), "{wanted}: {log}");
    }
    for wrong in [
        "x",
        "",
        "0",
        "17_",
        "17_3_2",
        "1:2",
        "12345678901234567890123456",
    ] {
        let option = format!("--workflow-prior-dependency={wrong}");
        let refused = site
            .cluster
            .exec("alice", &["sbatch", &option, "--wrap", "true"]);
        let refused = format!("{:#}", refused.expect_err("no job's number"));
        assert!(
            refused.contains("give the number of the job before this one"),
            "{refused}"
        );
    }
    let help = site.user("alice", &["sbatch", "--help"]);
    for option in ["start", "prior-dependency=JOBID", "end", "same-nodes"] {
        assert!(
            help.contains(&format!("--workflow-{option} "))
                || help.contains(&format!("--workflow-{option}\n")),
            "{help}"
        );
    }
}

/// Without containers of jobs a task's namespace is made from the node's own, whose mounts are shared on a site; and `optional` lets no
/// task through.
#[test]
fn it_needs_no_job_containers() {
    let Some(site) = Site::up(1, "none", "optional") else {
        return;
    };
    site.root(
        1,
        "mount --make-rshared /; mkdir /run/late; mount -o remount,bind,noexec /scm; install -m 755 /bin/true /scm/tarn/u7001/d/foam/mesh/program
        chown alice /scm/tarn/u7001/d/foam/mesh/program",
    );
    let script = "cat $TARN_mesh/points; (echo x > $TARN_mesh/new) 2>&1; echo x > $TARN_fields/x && echo x > $TARN_ours/x; $TARN_mesh/program 2>&1
        srun cat $TARN_grid; touch /shared/up; until [ -e /shared/seen ]; do sleep 0.1; done; ls /run/late";
    let job = site.held("alice", &[], script);
    site.job_file(&job, &alices());
    site.release(std::slice::from_ref(&job));
    wait_until("it runs", SOON, || site.shared("up").exists()).expect("runs");
    let host = site.root(1, "grep -c /run/tarn /proc/self/mountinfo; ls -A /run/tarn/data; mount -t tmpfs late /run/late; touch /run/late/arrived");
    assert_eq!(host, "0");
    fs::write(site.shared("seen"), "").expect("a file");
    let out = site.ended("alice", &job, "COMPLETED");
    for wanted in ["alice's points on node1", "alice's grid", "arrived"] {
        assert!(lines(&out).contains(wanted), "{wanted}: {out}");
    }
    assert!(
        out.contains("Read-only file system") && out.contains("Permission denied"),
        "{out}"
    );

    let job = site.held("alice", &[], "echo it began");
    site.job_file(&job, "nonsense\n");
    site.release(std::slice::from_ref(&job));
    let out = site.ended("alice", &job, "FAILED");
    assert!(
        out.contains("line 1: not `tarn-job 1`") && !out.contains("it began"),
        "{out}"
    );
    site.nothing_is_left(1);
}

/// The parser of job files alone, under sanitizers; `TARN_ROUNDS` gives it more.
#[test]
fn job_files_are_parsed_whatever_they_hold() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("jobfile");
    let sources = tree::root().join("plugins/slurm");
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-D_GNU_SOURCE",
    ]);
    cc.args([
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-o",
    ]);
    cc.arg(&program).arg(sources.join("tests/jobfile.c"));
    run_for_output(cc.arg(sources.join("jobfile.c"))).unwrap_or_else(|e| panic!("cc: {e:#}"));
    let rounds = std::env::var("TARN_ROUNDS").unwrap_or_else(|_| "100000".to_owned());
    for seed in ["1", "2"] {
        let out = run_for_output(Command::new(Path::new(&program)).args([seed, &rounds]));
        eprintln!(
            "seed {seed}: {}",
            out.unwrap_or_else(|e| panic!("{e:#}")).trim()
        );
    }
}
