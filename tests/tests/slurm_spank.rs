//! What each job sees of its data through the SPANK plug-in, on a real Slurm; and what comes of job files and stores that lie. The files
//! that a node's tarnd writes are written here by hand (docs/site.md, "What a job sees").

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tarn_tests::slurm::{Cluster, Doctor, said, wait_until};
use tarn_tests::tree;
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(40);
/// Numbers of the cluster's users (tests/cluster/site.sh).
const ALICE: u32 = 7001;

/// A store as a node's tarnd has it, and alice's data in it: `mesh` is published, `grid` a plain file, `fields` what a job writes.
const STORE: &str = "\
set -e
install -d -m 755 /run/tarn
install -d -m 700 /run/tarn/jobs
install -d -m 711 /scm/tarn
for user in alice bob; do
    store=/scm/tarn/u$(id -u $user)
    install -d -o $user -g $user -m 700 $store
    install -d -o $user -g $user $store/d $store/d/foam $store/d/foam/mesh $store/j $store/j/1 $store/j/1/fields
    echo \"$user's points on $(hostname)\" > $store/d/foam/mesh/points
    echo \"$user's grid\" > $store/d/foam/grid
    chown -R $user:$user $store
done
install -d -o root -g alice -m 2770 /scm/tarn/p7001 /scm/tarn/p7001/fields
";
/// Says what the plug-in has told Slurm of the job: the words that job_submit.lua of a site asks for.
const JOB_SUBMIT: &str = r#"
function slurm_job_submit(job, partitions, uid)
    local all = {}
    for i = 0, (job.spank_job_env_size or 0) - 1 do
        all[#all + 1] = string.match(job.spank_job_env[i], "^TARN_WORKFLOW_.*$")
    end
    slurm.log_info("of %s: %s.", job.name, table.concat(all, " "))
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end
return slurm.SUCCESS
"#;

struct Site {
    cluster: Cluster,
    nodes: usize,
    _etc: TempDir,
}

impl Site {
    /// A cluster with the plug-in; `needed` is its word in plugstack.conf.
    fn up(nodes: usize, container: &str, needed: &str) -> Option<Self> {
        let doctor = Doctor::ask().expect("slurm-cluster doctor");
        if let Some(why) = doctor.lacks(&[]) {
            eprintln!("SKIPPED: no Slurm cluster here: {why}");
            return None;
        }
        let etc = tempfile::tempdir().expect("a folder");
        let mut build = Command::new(tree::root().join("scripts/spank.sh"));
        let output = build.arg(etc.path()).output().expect("spank.sh");
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(3) {
            eprintln!("SKIPPED: {errors}");
            return None;
        }
        assert!(output.status.success(), "{errors}");
        let write = |name: &str, text: &str| {
            fs::write(etc.path().join(name), text).expect(name);
        };
        write(
            "plugstack.conf",
            &format!("{needed} /etc/slurm/spank_tarn.so\n"),
        );
        write("slurm.conf", "JobSubmitPlugins=lua\n");
        write("job_submit.lua", JOB_SUBMIT);
        let folder = etc.path().to_str().expect("a path");
        let options = ["--etc", folder, "--container", container];
        let cluster = Cluster::up_with(nodes, &options).unwrap_or_else(|e| panic!("{e:#}"));
        let site = Self {
            cluster,
            nodes,
            _etc: etc,
        };
        for node in 1..=nodes {
            site.root(node, STORE);
        }
        Some(site)
    }

    /// What an administrator's command says on a node.
    fn root(&self, node: usize, script: &str) -> String {
        let said = self
            .cluster
            .node(node)
            .exec("root", &["bash", "-c", script]);
        said.unwrap_or_else(|e| panic!("{e:#}")).trim().to_owned()
    }

    fn user(&self, user: &str, words: &[&str]) -> String {
        let answer = self.cluster.exec(user, words);
        answer.unwrap_or_else(|e| panic!("{e:#}")).trim().to_owned()
    }

    /// A job that is held until its file is there; its number.
    fn held(&self, user: &str, options: &[&str], script: &str) -> String {
        let mut words = vec!["sbatch", "-H", "--parsable", "--no-requeue", "--mem=50"];
        words.extend(["-o", "job.%j"]);
        words.extend(options);
        words.extend(["--wrap", script]);
        self.user(user, &words)
    }

    /// The job's file, on all nodes, as tarnd would leave it.
    fn job_file(&self, job: &str, text: &str) {
        let shared = self.cluster.shared().join(format!("file.{job}"));
        fs::write(&shared, text).expect("a job's file");
        for node in 1..=self.nodes {
            self.root(
                node,
                &format!("install -m 600 /shared/file.{job} /run/tarn/jobs/{job}"),
            );
        }
    }

    fn release(&self, jobs: &[String]) {
        self.user("root", &["scontrol", "release", &jobs.join(",")]);
    }

    /// By the number of an array its elements' states, where they differ.
    fn state(&self, job: &str) -> String {
        let shown = ["squeue", "-h", "-t", "all", "-o", "%T", "-j", job];
        let shown = self.user("root", &shown);
        lines(&shown).into_iter().collect::<Vec<_>>().join(" ")
    }

    /// All that a job has said, once it has ended so.
    fn ended(&self, user: &str, job: &str, wanted: &str) -> String {
        let home = self.cluster.shared().join("home").join(user);
        let out = || fs::read_to_string(home.join(format!("job.{job}"))).unwrap_or_default();
        let reached = || self.state(job) == wanted;
        wait_until(&format!("job {job} {wanted}"), SOON, reached)
            .unwrap_or_else(|e| panic!("{e:#}; it is {}: {}", self.state(job), out()));
        out()
    }

    fn run(&self, user: &str, text: Option<&str>, options: &[&str], script: &str) -> String {
        let job = self.held(user, options, script);
        if let Some(text) = text {
            self.job_file(&job, text);
        }
        self.release(std::slice::from_ref(&job));
        self.ended(user, &job, "COMPLETED")
    }

    fn shared(&self, name: &str) -> std::path::PathBuf {
        self.cluster.shared().join(name)
    }

    /// Nothing of any job's data is on a node, in whatever namespace.
    fn nothing_is_left(&self, node: usize) {
        let look = "grep -l ' /run/tarn/data' /proc/[0-9]*/mountinfo; ls -A /run/tarn/data; true";
        let left = || self.root(node, look);
        wait_until("nothing is left", SOON, || left().is_empty())
            .unwrap_or_else(|e| panic!("{e:#}: {}", left()));
    }
}

/// A job's file: each mount is its fields, with spaces between.
fn text(user: u32, mounts: &[&str]) -> String {
    let mut text = format!("tarn-job 1\nuser\t{user}\nroot\t/scm/tarn\n");
    for mount in mounts {
        text += &format!("mount\t{}\n", mount.replace(' ', "\t"));
    }
    text
}

fn alices() -> String {
    text(
        ALICE,
        &[
            "ro mesh u7001 u7001/d/foam/mesh",
            "ro grid u7001 u7001/d/foam/grid",
            "rw fields u7001 u7001/j/1/fields",
            "rw ours p7001 p7001/fields",
        ],
    )
}

/// bob may read alice's mesh, and has fields of his own.
fn bobs() -> String {
    text(
        7002,
        &[
            "ro mesh u7001 u7001/d/foam/mesh",
            "rw his u7002 u7002/j/1/fields",
        ],
    )
}

fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().map(str::trim).collect()
}

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

    let said = site.ended("alice", &jobs[0], "COMPLETED");
    for wanted in [
        "alice's points on node1",
        "alice's grid",
        "/run/tarn/data/mesh",
        "names: mesh grid fields ours, fields, grid, mesh, ours",
    ] {
        assert!(lines(&said).contains(wanted), "{wanted}: {said}");
    }
    assert_eq!(said.matches("Read-only file system").count(), 2, "{said}");
    let step = site.root(
        1,
        "cd /scm/tarn/u7001/j/1/fields; cat step; stat -c %U step",
    );
    assert_eq!(step, "of alice\nalice", "where the store has it");

    let said = site.ended("bob", &jobs[1], "COMPLETED");
    assert!(lines(&said).contains("alice's points on node1"), "{said}");
    assert_eq!(said.matches("Permission denied").count(), 2, "{said}");
    assert!(
        lines(&said).contains("names: mesh his, his, mesh"),
        "{said}"
    );
    assert_eq!(site.ended("alice", &jobs[2], "COMPLETED"), "");
}

/// Batch script, steps on two nodes, and steps of salloc.
fn every_kind_of_task(site: &Site) {
    let script = "srun sh -c 'cat $TARN_mesh/points; echo $SLURM_NODEID > $TARN_fields/node'
        TARN_old=/run/tarn/data/old TARN_other=/elsewhere TARN_mesh=/wrong srun -n1 -N1 sh -c 'env | grep ^TARN_'
        srun --export=NONE -n1 -N1 /bin/sh -c 'echo alone: $TARN_mesh'";
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

/// What job_submit.lua sees of the options, from all three commands and from `#SBATCH` lines.
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

/// Job files and stores that lie: no task of such a job begins.
#[test]
fn attack_files_and_stores_that_lie() {
    let Some(site) = Site::up(1, "tmpfs", "required") else {
        return;
    };
    site.root(
        1,
        "cd /scm/tarn/u7001/d/foam
        ln -s /etc out; ln -s mesh within; ln -s ../../../u7002 up
        install -d -o bob -g bob stolen; install -o bob -g alice -m 644 grid his; ln his linked
        install -d -o alice over; mount -t tmpfs -o uid=7001 over over; mkdir over/x; chown alice over/x
        mkfifo -m 644 pipe; chown alice pipe; install -d -o alice -g bob /scm/tarn/p7001/his",
    );
    let of = |mount: &str| text(ALICE, &[mount]);
    let good = alices();
    let many: Vec<String> = (0..1025)
        .map(|i| format!("ro d{i} u7001 u7001/d/foam/mesh"))
        .collect();
    let many = text(ALICE, &many.iter().map(String::as_str).collect::<Vec<_>>());
    // The file, what is done to it as $f, and the reason.
    let cases: Vec<(String, &str, &str)> = vec![
        (
            of("ro x u7001 u7001/d/foam/out"),
            "",
            "a symbolic link in u7001/d/foam/out",
        ),
        (of("ro x u7001 u7001/d/foam/out/ssh"), "", "a symbolic link"),
        (
            of("ro x u7001 u7001/d/foam/within/points"),
            "",
            "a symbolic link",
        ),
        (of("rw x u7001 u7001/d/foam/up/j"), "", "a symbolic link"),
        (
            of("ro x u7001 u7001/../u7002/d"),
            "",
            "line 4: this is no path below the store",
        ),
        (
            of("ro x u7001 u7002/d"),
            "",
            "line 4: the path is not in the folder of its owner",
        ),
        (
            of("rw x u7002 u7002/j"),
            "",
            "line 4: data of another user to be written",
        ),
        (
            of("ro x/y u7001 u7001/d"),
            "",
            "line 4: this is no name of a dataset",
        ),
        (
            of("ro x u7001 u7001/d/foam/stolen"),
            "",
            "u7001/d/foam/stolen is not of user 7001",
        ),
        (
            of("ro x u7001 u7001/d/foam/linked"),
            "",
            "u7001/d/foam/linked is not of user 7001",
        ),
        (
            of("ro x u7001 u7001/d/foam/pipe"),
            "",
            "is neither a folder nor a file",
        ),
        (
            of("ro x u7001 u7001/d/foam/over/x"),
            "",
            "over another mount",
        ),
        (
            of("ro x u7001 u7001/d/gone"),
            "",
            "u7001/d/gone cannot be opened: No such file",
        ),
        (
            of("rw x p7001 p7001/his"),
            "",
            "p7001/his is not of group 7001",
        ),
        (
            good.replace("/scm/tarn", "/scm"),
            "",
            "/scm is not root's alone",
        ),
        (
            good.replace("/scm/tarn", "/proc/self/root/scm/tarn"),
            "",
            "a symbolic link in /proc/self/root",
        ),
        (
            good.replace("7001\nroot", "7002\nroot"),
            "",
            "data of another user",
        ),
        (text(7002, &[]), "", "this is user 7001's"),
        (many, "", "more than 1024 mounts"),
        ("x".repeat(300 << 10), "", "more than 262144 bytes"),
        ("\u{1}\u{2}nothing".to_owned(), "", "byte 0 is no text"),
        (String::new(), "", "it ends before line 3"),
        (
            good.clone(),
            "chown alice $f",
            "it is no file that only root can read and write",
        ),
        (good.clone(), "chmod 644 $f", "it is no file that only root"),
        (
            good.clone(),
            "mv $f /run/moved; ln -s /run/moved $f",
            "a symbolic link in it",
        ),
        (
            good.clone(),
            "rm $f; mkfifo -m 600 $f",
            "it is no file that only root",
        ),
        (
            good,
            "rm $f; mkdir -m 600 $f",
            "it is no file that only root",
        ),
    ];
    let jobs: Vec<String> = cases
        .iter()
        .map(|(file, act, _)| {
            let job = site.held("alice", &[], "echo it began");
            site.job_file(&job, file);
            site.root(1, &format!("f=/run/tarn/jobs/{job}; {act}"));
            job
        })
        .collect();
    site.release(&jobs);
    for (job, (file, act, reason)) in jobs.iter().zip(&cases) {
        let out = site.ended("alice", job, "FAILED");
        let file = &file[..file.len().min(200)];
        assert!(
            out.contains("error: tarn: the task does not start: "),
            "{file}{act}: {out}"
        );
        assert!(
            out.contains(reason) && !out.contains("it began"),
            "{reason}: {file}{act}: {out}"
        );
    }
    // A step says it too, and the node takes the next job.
    let job = site.held("alice", &[], "srun true");
    site.job_file(&job, &alices());
    site.root(1, "chmod 777 /run/tarn/jobs");
    site.release(std::slice::from_ref(&job));
    let out = site.ended("alice", &job, "FAILED");
    assert!(out.contains("/run/tarn/jobs is not root's alone"), "{out}");
    site.root(1, "chmod 700 /run/tarn/jobs");
    let out = site.run("alice", Some(&alices()), &[], "cat $TARN_grid");
    assert_eq!(out, "alice's grid\n");
    site.nothing_is_left(1);
}

/// A task that wants to write what it may read, or to see what lies below; then jobs that end badly.
#[test]
fn attack_mounts_from_within_and_end_badly() {
    let Some(site) = Site::up(1, "tmpfs", "required") else {
        return;
    };
    from_within(&site);

    let script = "echo $PPID > /shared/stepd.$SLURM_JOB_ID; echo $$ > /shared/task.$SLURM_JOB_ID; exec sleep 300";
    let jobs = [(); 2].map(|()| site.held("alice", &[], script));
    for job in &jobs {
        site.job_file(job, &alices());
    }
    site.release(&jobs);
    let number = |what: &str, job: &str| {
        let path = site.shared(&format!("{what}.{job}"));
        fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    wait_until("both run", SOON, || {
        jobs.iter().all(|job| !number("task", job).is_empty())
    })
    .expect("both");
    let seen = |job: &str| {
        site.root(
            1,
            &format!(
                "grep -c /run/tarn/data /proc/{}/mountinfo",
                number("task", job)
            ),
        )
    };
    for job in &jobs {
        assert_eq!(seen(job), "5");
    }
    site.user("alice", &["scancel", &jobs[0]]);
    // As its parent is no more, the task goes on; and then it is killed as well.
    site.root(1, &format!("kill -9 {}", number("stepd", &jobs[1])));
    assert_eq!(seen(&jobs[1]), "5");
    site.root(1, &format!("kill -9 {}", number("task", &jobs[1])));
    site.nothing_is_left(1);
    site.user("root", &["scancel", &jobs[1]]);
}

/// What a user may try, with and without a user namespace.
fn from_within(site: &Site) {
    let script = r#"
        fails() { if "$@" 2> /dev/null; then echo "went through: $*"; fi; }
        try() {
            fails umount $TARN_mesh; fails umount $TARN_fields; fails umount /run/tarn/data
            fails umount -l $TARN_mesh; fails umount -l /run/tarn/data
            fails mount -o remount,rw,bind $TARN_mesh; fails mount -o remount,rw,bind /run/tarn/data
            fails mount -o remount,suid,dev,bind $TARN_fields; fails mount -o remount,rw $TARN_mesh
            fails touch $TARN_mesh/new; fails rm $TARN_mesh/points; fails mv $TARN_mesh/points $TARN_fields
            fails ln $TARN_mesh/points $TARN_fields/points; fails chmod 777 $TARN_mesh
            fails touch /run/tarn/data/new; fails rmdir $TARN_mesh; fails mv $TARN_mesh /run/tarn/data/other
            fails ls /run/tarn/jobs; fails ls /scm/tarn
        }
        export -f fails try
        try
        if unshare -Urm true; then echo namespaces; unshare -Urm bash -c 'try; echo inside'; fi
        grep -o ' /run/tarn/data[^ ]* [^ ]*' /proc/self/mountinfo"#;
    let script_file = site.shared("within");
    fs::write(&script_file, script).expect("a script");
    let out = site.run("alice", Some(&alices()), &[], "bash /shared/within");
    if !out.contains("namespaces\n") {
        eprintln!("SKIPPED: no user namespaces in a job here");
    }
    let mounts = BTreeSet::from([
        "/run/tarn/data ro,nosuid,nodev,noexec,relatime",
        "/run/tarn/data/mesh ro,nosuid,nodev,relatime",
        "/run/tarn/data/grid ro,nosuid,nodev,relatime",
        "/run/tarn/data/fields rw,nosuid,nodev,relatime",
        "/run/tarn/data/ours rw,nosuid,nodev,relatime",
    ]);
    let mut said = lines(&out);
    assert_eq!(said.remove("inside"), said.remove("namespaces"), "{out}");
    assert_eq!(said, mounts, "{out}");
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
    said(cc.arg(sources.join("jobfile.c"))).unwrap_or_else(|e| panic!("cc: {e:#}"));
    let rounds = std::env::var("TARN_ROUNDS").unwrap_or_else(|_| "100000".to_owned());
    for seed in ["1", "2"] {
        let out = said(Command::new(Path::new(&program)).args([seed, &rounds]));
        eprintln!(
            "seed {seed}: {}",
            out.unwrap_or_else(|e| panic!("{e:#}")).trim()
        );
    }
}
