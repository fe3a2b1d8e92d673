//! A cluster with the plug-in, and stores and job files on its nodes as a node's tarnd has them.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tarn_tests::slurm::{Cluster, Doctor, wait_until};
use tarn_tests::tree;
use tempfile::TempDir;

pub(crate) const SOON: Duration = Duration::from_secs(40);
/// Numbers of the cluster's users (tests/cluster/site.sh).
pub(crate) const ALICE: u32 = 7001;

/// A store as a node's tarnd has it, and alice's data in it: `mesh` is published, `grid` a plain file, `fields` the output
/// of a job.
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
/// Logs the variables that the plug-in has set for the job: those that job_submit.lua of a site reads.
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

pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    nodes: usize,
    _etc: TempDir,
}

impl Site {
    /// A cluster with the plug-in; `needed` is its word in plugstack.conf.
    pub(crate) fn up(nodes: usize, container: &str, needed: &str) -> Option<Self> {
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

    /// The output of an administrator's command on a node.
    pub(crate) fn root(&self, node: usize, script: &str) -> String {
        let output = self
            .cluster
            .node(node)
            .exec("root", &["bash", "-c", script]);
        output.unwrap_or_else(|e| panic!("{e:#}")).trim().to_owned()
    }

    pub(crate) fn user(&self, user: &str, words: &[&str]) -> String {
        let answer = self.cluster.exec(user, words);
        answer.unwrap_or_else(|e| panic!("{e:#}")).trim().to_owned()
    }

    /// A job that is held until its file is there; its number.
    pub(crate) fn held(&self, user: &str, options: &[&str], script: &str) -> String {
        let mut words = vec!["sbatch", "-H", "--parsable", "--no-requeue", "--mem=50"];
        words.extend(["-o", "job.%j"]);
        words.extend(options);
        words.extend(["--wrap", script]);
        self.user(user, &words)
    }

    /// The job's file, on all nodes, as tarnd would leave it.
    pub(crate) fn job_file(&self, job: &str, text: &str) {
        let shared = self.cluster.shared().join(format!("file.{job}"));
        fs::write(&shared, text).expect("a job's file");
        for node in 1..=self.nodes {
            self.root(
                node,
                &format!("install -m 600 /shared/file.{job} /run/tarn/jobs/{job}"),
            );
        }
    }

    pub(crate) fn release(&self, jobs: &[String]) {
        self.user("root", &["scontrol", "release", &jobs.join(",")]);
    }

    /// By the number of an array its elements' states, where they differ.
    pub(crate) fn state(&self, job: &str) -> String {
        let shown = ["squeue", "-h", "-t", "all", "-o", "%T", "-j", job];
        let shown = self.user("root", &shown);
        lines(&shown).into_iter().collect::<Vec<_>>().join(" ")
    }

    /// All output of a job, once it has ended so.
    pub(crate) fn ended(&self, user: &str, job: &str, wanted: &str) -> String {
        let home = self.cluster.shared().join("home").join(user);
        let out = || fs::read_to_string(home.join(format!("job.{job}"))).unwrap_or_default();
        let reached = || self.state(job) == wanted;
        wait_until(&format!("job {job} {wanted}"), SOON, reached)
            .unwrap_or_else(|e| panic!("{e:#}; it is {}: {}", self.state(job), out()));
        out()
    }

    pub(crate) fn run(
        &self,
        user: &str,
        text: Option<&str>,
        options: &[&str],
        script: &str,
    ) -> String {
        let job = self.held(user, options, script);
        if let Some(text) = text {
            self.job_file(&job, text);
        }
        self.release(std::slice::from_ref(&job));
        self.ended(user, &job, "COMPLETED")
    }

    pub(crate) fn shared(&self, name: &str) -> PathBuf {
        self.cluster.shared().join(name)
    }

    /// Nothing of any job's data is on a node, in any namespace.
    pub(crate) fn nothing_is_left(&self, node: usize) {
        let look = "grep -l ' /run/tarn/data' /proc/[0-9]*/mountinfo; ls -A /run/tarn/data; true";
        let left = || self.root(node, look);
        wait_until("nothing is left", SOON, || left().is_empty())
            .unwrap_or_else(|e| panic!("{e:#}: {}", left()));
    }
}

/// A job's file: each mount is its fields, with spaces between.
pub(crate) fn text(user: u32, mounts: &[&str]) -> String {
    let mut text = format!("tarn-job 1\nuser\t{user}\nroot\t/scm/tarn\n");
    for mount in mounts {
        text += &format!("mount\t{}\n", mount.replace(' ', "\t"));
    }
    text
}

pub(crate) fn alices() -> String {
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
pub(crate) fn bobs() -> String {
    text(
        7002,
        &[
            "ro mesh u7001 u7001/d/foam/mesh",
            "rw his u7002 u7002/j/1/fields",
        ],
    )
}

pub(crate) fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().map(str::trim).collect()
}
