//! A real Slurm of several nodes on this machine, for tests: a thin layer over `tests/cluster/slurm-cluster`. Its abilities and
//! limits: docs/internals/testing-slurm.md.

use anyhow::{Context, bail, ensure};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Seconds until a command on the cluster is killed: srun waits for ever for a node that never answers.
const TIMEOUT: &str = "300";

fn script() -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/slurm-cluster"))
}

/// The abilities of this machine.
#[derive(Debug)]
pub struct Doctor {
    report: String,
    capable: bool,
}

impl Doctor {
    /// Finds it out by trying.
    ///
    /// # Errors
    /// When the script cannot be run.
    pub fn ask() -> anyhow::Result<Self> {
        let output = script().arg("doctor").output().context("slurm-cluster")?;
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(Self {
            report,
            capable: output.status.success(),
        })
    }

    /// Why a test that needs these features (`memory`, `pmix`, ...) cannot run, if it cannot.
    #[must_use]
    pub fn lacks(&self, features: &[&str]) -> Option<&str> {
        self.report.lines().find(|line| {
            let missing = !self.capable && line.starts_with("missing ");
            let without = line.strip_prefix("without ");
            missing
                || without.is_some_and(|w| {
                    features
                        .iter()
                        .any(|f| w.strip_prefix(f).is_some_and(|w| w.starts_with(':')))
                })
        })
    }
}

/// A cluster: ends when it is dropped, and when the process that holds it ends in any way.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    /// Its standard input is the cluster's life.
    holder: Child,
}

impl Cluster {
    /// A cluster of so many nodes, all idle.
    ///
    /// # Errors
    /// When it does not come up, with its log.
    pub fn up(nodes: usize) -> anyhow::Result<Self> {
        Self::up_with(nodes, &[])
    }

    /// The same with more options of `slurm-cluster hold`.
    ///
    /// # Errors
    /// When it does not come up, with its log.
    pub fn up_with(nodes: usize, options: &[&str]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("holder.log");
        let mut holder = script()
            .args(["hold", "--nodes", &nodes.to_string(), "--dir"])
            .arg(folder.path())
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .context("slurm-cluster")?;
        let mut line = String::new();
        let stdout = holder.stdout.take().context("its output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let cluster = Self { folder, holder };
        ensure!(
            line == "ready\n",
            "no cluster: {}",
            std::fs::read_to_string(&log)?
        );
        Ok(cluster)
    }

    /// The folder that the script knows the cluster by.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder that all its nodes see as `/shared`; the users' homes are in it, and `bin` in it is in their `PATH`.
    #[must_use]
    pub fn shared(&self) -> PathBuf {
        self.folder.path().join("shared")
    }

    /// A node, counted from 1.
    #[must_use]
    pub fn node(&self, number: usize) -> Node<'_> {
        Node {
            cluster: self,
            name: format!("node{number}"),
        }
    }

    /// A command that will run on the login node.
    #[must_use]
    pub fn command(&self, user: &str, words: &[&str]) -> Command {
        self.command_at("login", user, words)
    }

    /// Runs it on the login node; its output.
    ///
    /// # Errors
    /// When it fails, with all its output.
    pub fn exec(&self, user: &str, words: &[&str]) -> anyhow::Result<String> {
        run_for_output(&mut self.command(user, words))
    }

    /// Kills slurmctld and starts it again.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn restart_ctld(&self) -> anyhow::Result<()> {
        self.act("restart-ctld", &[])
    }

    /// The same; the settings of nodes by `scontrol` had not reached its disk.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn restart_ctld_without_its_nodes(&self) -> anyhow::Result<()> {
        self.act("restart-ctld", &["--", "--forget-nodes"])
    }

    fn command_at(&self, place: &str, user: &str, words: &[&str]) -> Command {
        let mut command = script();
        command.arg("exec").arg("--dir").arg(self.folder());
        command.args(["--node", place, "--user", user, "--"]);
        command.args(["timeout", "-k", "1", TIMEOUT]).args(words);
        command.stdin(Stdio::null());
        command
    }

    fn act(&self, verb: &str, words: &[&str]) -> anyhow::Result<()> {
        let mut command = script();
        command
            .arg(verb)
            .arg("--dir")
            .arg(self.folder())
            .args(words);
        run_for_output(&mut command).map(drop)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        if let Err(e) = self.holder.wait() {
            eprintln!("the cluster's holder was lost: {e}");
        }
    }
}

/// A node of a cluster, and the events that can happen to it.
#[derive(Debug)]
pub struct Node<'a> {
    cluster: &'a Cluster,
    name: String,
}

impl Node<'_> {
    /// As Slurm names it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run on it, beside Slurm: as an administrator looks at a node.
    #[must_use]
    pub fn command(&self, user: &str, words: &[&str]) -> Command {
        self.cluster.command_at(&self.name, user, words)
    }

    /// Runs it there; its output.
    ///
    /// # Errors
    /// When it fails, with all its output.
    pub fn exec(&self, user: &str, words: &[&str]) -> anyhow::Result<String> {
        run_for_output(&mut self.command(user, words))
    }

    /// All its processes and all that it had in memory are gone at once.
    ///
    /// # Errors
    /// When it is off already.
    pub fn power_cut(&self) -> anyhow::Result<()> {
        self.cluster.act("kill-node", &[&self.name])
    }

    /// Empty, after a power cut.
    ///
    /// # Errors
    /// When it is on, or does not start.
    pub fn start(&self) -> anyhow::Result<()> {
        self.cluster.act("start-node", &[&self.name])
    }

    /// Takes its cable out.
    ///
    /// # Errors
    /// When it is off.
    pub fn cut_link(&self) -> anyhow::Result<()> {
        self.cluster.act("cut-link", &[&self.name])
    }

    /// Puts its cable back.
    ///
    /// # Errors
    /// When it is off.
    pub fn heal_link(&self) -> anyhow::Result<()> {
        self.cluster.act("heal-link", &[&self.name])
    }

    /// Limits its link to so many Mbit/s each way, or lifts the limit.
    ///
    /// # Errors
    /// When it is off, or the kernel cannot.
    pub fn shape_link(&self, mbit: Option<u32>) -> anyhow::Result<()> {
        let rate = mbit.map_or_else(|| "off".to_owned(), |m| m.to_string());
        self.cluster.act("shape-link", &[&self.name, &rate])
    }
}

/// Runs a command; its standard output.
///
/// # Errors
/// When it fails, with all its output.
pub fn run_for_output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}: {text}{errors}", output.status);
    }
    Ok(text)
}

/// Asks until the answer is yes; the time that took.
///
/// # Errors
/// When it is still no after `timeout`.
pub fn wait_until(
    what: &str,
    timeout: Duration,
    mut is_reached: impl FnMut() -> bool,
) -> anyhow::Result<Duration> {
    let start = Instant::now();
    while !is_reached() {
        ensure!(start.elapsed() < timeout, "{what}: not after {timeout:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(start.elapsed())
}
