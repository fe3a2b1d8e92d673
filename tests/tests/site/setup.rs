//! A cluster with Slurm's plug-ins, a controller and nodes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use tarn_tests::slurm::{Cluster, Doctor, wait_until};
use tarn_tests::{programs, tree};
use tempfile::TempDir;

/// Slurm looks at staged data every few seconds.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(240);

/// With its other options in `$0`.
const CONTROLLER: &str = "PATH=/shared/clients:$PATH setsid /shared/bin/tarnd --controller --state /shared/controller $0 < /dev/null >> /shared/controller.log 2>&1 & echo $! > /run/controller.pid";
const KILL_CONTROLLER: &str = "kill -KILL $(cat /run/controller.pid)";

/// A client of Slurm as the controller and the stages run it. `rule` says what goes wrong with those that read Slurm's
/// queue, or that none of them reaches slurmctld.
const CLIENT: &str = r#"#!/bin/sh
name=${0##*/}
echo "$name $*" >> /shared/clients/log
rule=$(cat /shared/clients/rule)
# Nobody listens at that port.
[ "$rule" != cut ] || export SLURM_CONF=/shared/clients/cut.conf
if [ "$name" = squeue ]; then
    case $rule in
        slow)
            mkdir /shared/clients/busy || echo "squeue beside another" >> /shared/clients/log
            sleep 1
            rmdir /shared/clients/busy ;;
        late) sleep 11 ;;
        fail) echo "squeue: error: no" >&2; exit 1 ;;
        killed) kill -9 $$ ;;
    esac
fi
exec /usr/bin/$name "$@"
"#;

/// Programs before those of Slurm in the controller's PATH.
pub(crate) struct ClientWrappers(PathBuf);

impl ClientWrappers {
    pub(crate) fn set(&self, rule: &str) {
        fs::write(self.0.join("rule"), rule).expect("a rule");
    }

    /// Forgets those that were run.
    pub(crate) fn forget(&self) {
        fs::write(self.0.join("log"), "").expect("the log");
    }

    /// Each client that was run, in a line.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }
}

/// A site.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    _root: TempDir,
}

impl Site {
    /// A site of so many nodes; `None`, with a message, where it cannot be tried.
    pub(crate) fn up(nodes: usize) -> Option<Self> {
        Self::up_with(nodes, "")
    }

    /// With more lines of slurm.conf.
    pub(crate) fn up_with(nodes: usize, conf: &str) -> Option<Self> {
        Self::up_of(nodes, conf, &[])
    }

    /// With a clock that can be set for Slurm and tarn.
    pub(crate) fn up_with_clock(nodes: usize, conf: &str) -> Option<Self> {
        Self::up_as(nodes, conf, &[], &["--clock", "file"])
    }

    /// The clock of Slurm, of tarn and of root differs from the machine's by so many seconds.
    pub(crate) fn set_clock(&self, seconds: i64) {
        let path = self.cluster.shared().join("clock");
        // Read at any moment: it is replaced as a whole.
        let new = path.with_extension("new");
        fs::write(&new, format!("{seconds:+}\n")).expect("its file");
        fs::rename(new, path).expect("its place");
    }

    /// Runs a scenario in which Slurm puts a job back, and again if it was false: slurmd of 22.05 may begin the script of such a
    /// job before the job's own /tmp is there, and the job fails.
    pub(crate) fn with_jobs_put_back(nodes: usize, scenario: impl Fn(&Self) -> bool) {
        for _ in 0..3 {
            let Some(site) = Self::up(nodes) else { return };
            if scenario(&site) {
                return;
            }
        }
        panic!("Slurm began the script without its /tmp three times");
    }

    /// Has Slurm begin a job that was put back at once, where it would wait for two minutes; `words` change the job, too. slurmd
    /// forgets a job's former start only if it has not looked for 2 s (`_clear_expired_job_states` in `slurm_cred.c`); else it
    /// makes no /tmp for the new one.
    pub(crate) fn start_again(&self, job: &str, words: &[&str]) {
        self.wait("Slurm has put it back", || self.state(job) == "PENDING");
        std::thread::sleep(Duration::from_secs(4));
        let id = format!("jobid={job}");
        let update = ["scontrol", "update", &id];
        self.root(&[&update[..], words, &["starttime=now"]].concat());
    }

    /// Waits until a job that was put back has begun; false if slurmd began it without its /tmp.
    pub(crate) fn begins_again(&self, what: &str, has_begun: impl Fn() -> bool) -> bool {
        self.wait(what, || has_begun() || self.is_begun_without_tmp());
        has_begun()
    }

    pub(crate) fn is_begun_without_tmp(&self) -> bool {
        // There may be two nodes.
        (1..=3).any(|node| {
            let log = format!("log/slurmd.node{node}.log");
            let log = fs::read_to_string(self.cluster.folder().join(log)).unwrap_or_default();
            log.contains("container_p_join: open failed")
        })
    }

    /// With programs beside slurm.conf, too.
    pub(crate) fn up_of(nodes: usize, conf: &str, programs: &[(&str, &str)]) -> Option<Self> {
        Self::up_as(nodes, conf, programs, &[])
    }

    fn up_as(
        nodes: usize,
        conf: &str,
        programs: &[(&str, &str)],
        options: &[&str],
    ) -> Option<Self> {
        let doctor = Doctor::ask().expect("slurm-cluster doctor");
        if let Some(why) = doctor.lacks(&[]) {
            eprintln!("SKIPPED: no Slurm cluster here: {why}");
            return None;
        }
        // An administrator's folder of Slurm's files, as that of an image.
        let root = tempfile::tempdir().expect("a folder");
        let etc = root.path().join("etc/slurm");
        fs::create_dir_all(&etc).expect("its folder");
        fs::write(etc.join("slurm.conf"), conf).expect("slurm.conf");
        for (name, text) in programs {
            fs::write(etc.join(name), text).expect(name);
            let executable = fs::Permissions::from_mode(0o755);
            fs::set_permissions(etc.join(name), executable).expect(name);
        }
        let built = Command::new(tree::root().join("scripts/spank.sh"))
            .arg(&etc)
            .status();
        if built.expect("scripts/spank.sh").code() == Some(3) {
            eprintln!("SKIPPED: the SPANK plug-in cannot be built: install libslurm-dev");
            return None;
        }
        let installed = Command::new(programs::built("tarn").unwrap_or_else(|e| panic!("{e:#}")))
            .args(["slurm", "install", "--conf", "/etc/slurm", "--root"])
            .arg(root.path())
            .args(["--program", "/shared/bin/tarn"])
            .args(["--plugin", "/etc/slurm/spank_tarn.so"])
            // Less than a node reports.
            .args(["--dram", "3 GiB"])
            .stdout(Stdio::null())
            .status();
        assert!(installed.expect("tarn slurm install").success());
        let folder = etc.to_str().expect("a path");
        let cluster = Cluster::up_with(nodes, &[&["--etc", folder], options].concat())
            .unwrap_or_else(|e| panic!("{e:#}"));
        programs::install(&cluster, &["tarn", "tarnd"]).unwrap_or_else(|e| panic!("{e:#}"));
        let site = Self {
            cluster,
            _root: root,
        };
        for number in 1..=nodes {
            site.start_node(number);
        }
        site.start_controller();
        Some(site)
    }

    pub(crate) fn start_node(&self, number: usize) {
        self.start_node_with(number, "--store /scm/tarn:512MiB --volatile");
    }

    /// Again, with an emulated meter of its power.
    pub(crate) fn start_node_with_meter(&self, number: usize, watts: u64) {
        let folder = format!("sys/node{number}/class/hwmon/hwmon0");
        let folder = self.cluster.shared().join(folder);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("name"), "power_meter\n").expect("its name");
        let microwatts = format!("{}\n", watts * 1_000_000);
        fs::write(folder.join("power1_average"), microwatts).expect("its power");
        let stop = format!("pkill -f '[n]ode-name node{number} '");
        self.root(&["sh", "-c", &stop]);
        self.start_node(number);
    }

    /// With these stores.
    pub(crate) fn start_node_with(&self, number: usize, stores: &str) {
        let node = self.cluster.node(number);
        let command = format!(
            "TARN_SYSFS=/shared/sys/{0} setsid /shared/bin/tarnd --site {stores} --node-name {0} --audit /shared/audit-{0} \
             < /dev/null > /shared/site-{0}.log 2>&1 &",
            node.name()
        );
        node.exec("root", &["sh", "-c", &command])
            .unwrap_or_else(|e| panic!("{e:#}"));
    }

    /// Another controller, on a node, that takes over when there is none.
    pub(crate) fn start_backup(&self, number: usize) {
        let node = self.cluster.node(number);
        let done = node.exec("root", &["sh", "-c", CONTROLLER, ""]);
        done.unwrap_or_else(|e| panic!("{e:#}"));
    }

    pub(crate) fn kill_backup(&self, number: usize) {
        let node = self.cluster.node(number);
        let done = node.exec("root", &["sh", "-c", KILL_CONTROLLER]);
        done.unwrap_or_else(|e| panic!("{e:#}"));
    }

    pub(crate) fn start_controller(&self) {
        self.start_controller_with("");
    }

    pub(crate) fn start_controller_with(&self, options: &str) {
        self.root(&["sh", "-c", CONTROLLER, options]);
        let nodes = self.root(&["sinfo", "-hN", "-o", "%N"]).lines().count();
        self.wait("all nodes take orders", || {
            let status = self.cluster.exec("alice", &["tarn", "slurm", "status"]);
            status.is_ok_and(|output| output.matches(" up ").count() == nodes)
        });
    }

    /// From the next start of the controller on, it runs Slurm's clients by wrappers.
    pub(crate) fn wrap_clients(&self) -> ClientWrappers {
        let folder = self.cluster.shared().join("clients");
        fs::create_dir_all(&folder).expect("a folder");
        for name in ["squeue", "sinfo", "scontrol"] {
            let path = folder.join(name);
            fs::write(&path, CLIENT).expect(name);
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect(name);
        }
        let cut = "{ grep -v ^SlurmctldPort= /etc/slurm/slurm.conf; echo SlurmctldPort=1; } > /shared/clients/cut.conf";
        self.root(&["sh", "-c", cut]);
        let clients = ClientWrappers(folder);
        clients.set("");
        clients.forget();
        // Slurm's user runs the stages.
        let everybody = fs::Permissions::from_mode(0o666);
        fs::set_permissions(clients.0.join("log"), everybody).expect("the log");
        clients
    }

    pub(crate) fn kill_controller(&self) {
        self.root(&["sh", "-c", KILL_CONTROLLER]);
    }

    pub(crate) fn root(&self, words: &[&str]) -> String {
        let output = self.cluster.exec("root", words);
        output.unwrap_or_else(|e| panic!("{e:#}\n{}", self.logs()))
    }

    pub(crate) fn alice(&self, words: &[&str]) -> String {
        let output = self.cluster.exec("alice", words);
        output
            .unwrap_or_else(|e| panic!("{e:#}\n{}", self.logs()))
            .trim()
            .to_owned()
    }

    /// Writes a script into a user's home and submits it.
    pub(crate) fn submit(
        &self,
        user: &str,
        name: &str,
        script: &str,
        words: &[&str],
    ) -> anyhow::Result<String> {
        let path = self.home(user).join(name);
        fs::write(&path, format!("#!/bin/bash\n{script}")).expect("a script");
        let mut all = vec!["sbatch", "--parsable", "-D"];
        let home = format!("/shared/home/{user}");
        let script = format!("{home}/{name}");
        all.push(&home);
        all.extend(words);
        all.push(&script);
        self.cluster
            .exec(user, &all)
            .map(|output| output.trim().to_owned())
    }

    /// Slurm has all replies that it requests before a job has nodes.
    pub(crate) fn wait_taken_in(&self, job: &str) {
        self.wait("the job is taken in", || {
            let state = ["squeue", "-h", "-j", job, "-O", "BurstBufferState:20"];
            let output = self.cluster.exec("root", &state);
            output.is_ok_and(|output| output.trim() == "staged-in")
        });
    }

    /// Keeps these nodes busy, and returns the job that does: jobs for them wait as long as their test wants.
    pub(crate) fn hold(&self, nodes: &str) -> String {
        let job =
            format!("sbatch --parsable -w {nodes} --exclusive -o /dev/null --wrap 'sleep 600'");
        let job = self.alice(&["sh", "-c", &job]);
        self.wait_for(&job, "RUNNING");
        job
    }

    /// Ends such a job; waiting jobs begin when all nodes are idle, so that a preference has the choice among them.
    pub(crate) fn let_go(&self, job: &str) {
        let partition = |state: &str| {
            let state = format!("state={state}");
            self.root(&["scontrol", "update", "partition=main", &state])
        };
        partition("down");
        self.alice(&["scancel", job]);
        self.wait("all nodes are idle", || {
            let states = self.root(&["sinfo", "-hN", "-o", "%T"]);
            states.lines().all(|state| state == "idle")
        });
        partition("up");
    }

    pub(crate) fn home(&self, user: &str) -> PathBuf {
        self.cluster.shared().join("home").join(user)
    }

    pub(crate) fn state(&self, job: &str) -> String {
        let output = self.root(&["scontrol", "-o", "show", "job", job]);
        let field = output
            .split_whitespace()
            .find_map(|word| word.strip_prefix("JobState="));
        field.unwrap_or_default().to_owned()
    }

    pub(crate) fn wait(&self, what: &str, is_reached: impl FnMut() -> bool) {
        if let Err(e) = wait_until(what, TIMEOUT, is_reached) {
            panic!("{e:#}\n{}", self.logs());
        }
    }

    pub(crate) fn wait_for(&self, job: &str, state: &str) {
        self.wait(&format!("job {job} is {state}"), || {
            self.state(job) == state
        });
    }

    pub(crate) fn why(&self, user: &str, job: &str) -> String {
        let output = self
            .cluster
            .command(user, &["tarn", "slurm", "why", job])
            .output();
        output
            .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
            .unwrap_or_default()
    }

    pub(crate) fn logs(&self) -> String {
        let mut all = String::new();
        let names = [
            "controller.log",
            "controller/plan.log",
            "site-node1.log",
            "site-node2.log",
        ];
        let places = names.map(|name| self.cluster.shared().join(name));
        let outputs = fs::read_dir(self.home("alice"))
            .into_iter()
            .flatten()
            .flatten();
        let outputs = outputs
            .map(|e| e.path())
            .filter(|p| p.extension().is_some_and(|e| e == "out"));
        let slurm = ["slurmctld.log", "slurmd.node1.log", "slurmd.node2.log"]
            .map(|name| self.cluster.folder().join("log").join(name));
        for path in places.into_iter().chain(slurm).chain(outputs) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(40)..];
            all += &format!("== {}\n{}\n", path.display(), last.join("\n"));
        }
        all += &self
            .cluster
            .exec("root", &["squeue", "-o", "%i %T %r %R"])
            .unwrap_or_default();
        all
    }
}
