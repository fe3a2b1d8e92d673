//! A folder with a workflow, tiers of its own, and the real `tarn` in it.
#![allow(dead_code)]

pub(crate) mod program;

pub(crate) mod workflows;

pub(crate) use program::tarn;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) struct Site {
    pub(crate) dir: TempDir,
    /// Options of every `run`.
    pub(crate) options: Vec<String>,
}

impl Site {
    /// A folder with `workflow.toml` and one node with a tier of 64 MiB.
    pub(crate) fn new(workflow: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::write(dir.path().join("workflow.toml"), workflow).expect("write");
        let tier = format!("fast={}:64MiB", dir.path().join("tier").display());
        fs::create_dir(dir.path().join("tier")).expect("mkdir");
        Self {
            dir,
            options: vec!["--tier".into(), tier],
        }
    }

    pub(crate) fn with(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|o| (*o).to_owned()));
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("mkdir");
        fs::write(path, content).expect("write");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// `tarn` with these arguments, in the site's folder.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut c = Command::new(tarn());
        c.args(arguments)
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        c.env_remove("TARN_STATE")
            .env_remove("TARN_CRASH_AT")
            // Only the tests of the cache want runs to leave data on their tier.
            .env("TARN_CACHE", "0")
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("NO_COLOR", "1");
        c
    }

    pub(crate) fn tarn(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().expect("tarn starts"))
    }

    /// The arguments of `tarn run workflow.toml` here.
    pub(crate) fn run_arguments(&self) -> Vec<&str> {
        let mut all = vec!["run", "workflow.toml"];
        all.extend(self.options.iter().map(String::as_str));
        all
    }

    pub(crate) fn run(&self) -> Ran {
        self.tarn(&self.run_arguments())
    }

    /// `tarn plan` of the same run.
    pub(crate) fn plan(&self) -> Ran {
        let mut arguments = self.run_arguments();
        arguments[0] = "plan";
        self.tarn(&arguments)
    }

    /// A run that continues beside the test; [`Ran::end`] waits for it.
    pub(crate) fn begin(&self, more: &[&str]) -> Child {
        let mut command = self.command(&[&self.run_arguments(), more].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("tarn starts")
    }

    /// The records of the newest run, as JSON.
    pub(crate) fn log(&self) -> Vec<serde_json::Value> {
        let mut runs: Vec<_> = fs::read_dir(self.path(".tarn/runs"))
            .expect("runs")
            .map(|e| e.expect("entry").path())
            .collect();
        runs.sort();
        let text =
            fs::read_to_string(runs.last().expect("a run").join("events.log")).expect("a log");
        text.lines()
            .skip(1)
            .map(|l| serde_json::from_str(&l[9..]).expect("JSON"))
            .collect()
    }

    /// Bytes that the newest run's log says were moved, by kind and by the step of the instance they were moved
    /// for (`u64::MAX` for none).
    pub(crate) fn moved(&self) -> BTreeMap<(String, u64), u64> {
        let log = self.log();
        let actions = log.iter().flat_map(|r| r["actions"].as_array());
        let transfers = actions.flatten().filter(|a| a["do"] == "transfer");
        let orders: BTreeMap<u64, (String, u64)> = transfers
            .map(|a| {
                let kind = a["kind"].as_str().expect("a kind").to_owned();
                let step = a["why"]["instance"]["step"].as_u64();
                let id = a["id"].as_u64().expect("an id");
                (id, (kind, step.unwrap_or(u64::MAX)))
            })
            .collect();
        let mut sums = BTreeMap::new();
        for done in log.iter().filter(|r| r["event"] == "transfer-done") {
            let order = &orders[&done["id"].as_u64().expect("an id")];
            *sums.entry(order.clone()).or_default() += done["bytes"].as_u64().expect("bytes");
        }
        sums
    }

    #[track_caller]
    pub(crate) fn leaves_nothing_on_its_tier(&self) {
        assert_eq!(self.left_on_tier(), Vec::<PathBuf>::new());
    }

    /// Files below the tier, or where there are none its folders; but for the ledger's lock.
    pub(crate) fn left_on_tier(&self) -> Vec<PathBuf> {
        let mut all = Vec::new();
        files(&self.path("tier"), &mut all);
        if all.iter().all(|p| p.ends_with("ledger.lock")) {
            let entries = fs::read_dir(self.path("tier")).expect("the tier");
            all = entries.map(|e| e.expect("an entry").path()).collect();
        }
        all.retain(|p| !p.ends_with("ledger.lock"));
        all
    }
}

pub(crate) fn files(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            files(&path, all);
        } else {
            all.push(path);
        }
    }
}

/// Waits until `there` is true.
#[track_caller]
pub(crate) fn until(what: &str, mut there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !there() {
        let timeout = Duration::from_secs(60);
        assert!(begun.elapsed() < timeout, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn send(signal: Signal, to: &Child) {
    kill_process(Pid::from_child(to), signal).expect("kill");
}

impl Drop for Site {
    /// Every run of every test is decided again from its log as it was.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let runs = fs::read_dir(self.path(".tarn/runs"));
        for run in runs.into_iter().flatten().flatten() {
            let log = run.path().join("events.log");
            let ran = self.tarn(&["sim", "--replay", &log.display().to_string()]);
            // 7: it died before its first record.
            let agrees = matches!(ran.code, Some(0 | 7));
            assert!(agrees, "{}: {}{}", log.display(), ran.out, ran.err);
        }
    }
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(o: Output) -> Self {
        Self {
            code: o.status.code(),
            out: String::from_utf8_lossy(&o.stdout).into_owned(),
            err: String::from_utf8_lossy(&o.stderr).into_owned(),
        }
    }

    /// Waits for the child of [`Site::begin`].
    pub(crate) fn end(child: Child) -> Self {
        Self::of(child.wait_with_output().expect("it ends"))
    }

    /// The last object that `--json` prints.
    pub(crate) fn summary(&self) -> serde_json::Value {
        let last = self.out.lines().last().expect("a summary");
        serde_json::from_str(last).expect("JSON")
    }

    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "stdout:\n{}\nstderr:\n{}",
            self.out,
            self.err
        );
        self
    }

    #[track_caller]
    pub(crate) fn prints(self, text: &str) -> Self {
        assert!(
            self.err.contains(text) || self.out.contains(text),
            "no {text:?} in\n{}\n{}",
            self.out,
            self.err
        );
        self
    }
}
