//! A tarnd in a folder of its own, which ends with the test. Each test program uses some of it.
#![allow(dead_code)]

#[path = "../../../../checkpoint/ranks/tests/common/ports.rs"]
mod free;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tarn_client::{Client, WaitCondition};
use tarn_proto::local::*;
use tempfile::TempDir;

/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(120);

pub(crate) struct Daemon {
    pub(crate) dir: TempDir,
    child: Option<Child>,
    options: Vec<String>,
}

impl Daemon {
    /// With a space `fast` of 64 MiB.
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), "64MiB", options)
    }

    pub(crate) fn start_in(dir: TempDir, size: &str, options: &[&str]) -> Self {
        std::fs::create_dir_all(dir.path().join("fast")).unwrap();
        std::fs::create_dir_all(dir.path().join("out")).unwrap();
        let space = format!("fast={}:{size}", dir.path().join("fast").display());
        let mut all = vec!["--space".to_owned(), space];
        all.extend(options.iter().map(|o| (*o).to_owned()));
        let mut daemon = Self {
            dir,
            child: None,
            options: all,
        };
        daemon.again();
        daemon
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tarnd"));
        command
            .arg("--socket")
            .arg(self.socket())
            .arg("--state")
            .arg(self.dir.path().join("state"))
            .args(&self.options)
            .stderr(Stdio::null());
        command
    }

    /// Starts it (again) and waits until it serves.
    pub(crate) fn again(&mut self) {
        let mut command = self.command();
        self.start_by(&mut command);
    }

    /// Starts it again without its dataspaces: as on a node that has no storage memory.
    pub(crate) fn again_without_spaces(&mut self) {
        assert!(self.terminate().success());
        while let Some(at) = self.options.iter().position(|o| o == "--space") {
            self.options.drain(at..at + 2);
        }
        self.again();
    }

    /// The same by another command.
    pub(crate) fn start_by(&mut self, command: &mut Command) {
        self.child = Some(command.spawn().unwrap());
        let until = Instant::now() + LONG;
        while Client::connect(&self.socket(), None).is_err() {
            assert!(Instant::now() < until, "tarnd does not serve");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket(), None).unwrap()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        child.wait().unwrap()
    }

    /// Waits for its end.
    pub(crate) fn ends(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        let until = Instant::now() + LONG;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() >= until {
                child.kill().unwrap();
                panic!("tarnd does not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// An external place.
    pub(crate) fn outside(&self, name: &str) -> TaskLocation {
        use std::os::unix::ffi::OsStrExt;
        TaskLocation::External(self.path(name).as_os_str().as_bytes().into())
    }

    /// Half-done things of tasks, anywhere.
    pub(crate) fn leftovers(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.dir.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path
                    .file_name()
                    .unwrap()
                    .to_string_lossy()
                    .starts_with(".tarn-")
                {
                    found.push(path);
                } else if path.is_dir() && !path.is_symlink() {
                    folders.push(path);
                }
            }
        }
        found
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A key of peers.
pub(crate) const KEY: &str = "5f1d0e2c3b4a59687786958493a2b1c05f1d0e2c3b4a59687786958493a2b1c0";

/// Ports that nobody has.
pub(crate) fn ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| free::free_port())
}

/// A file of peers; the text after each address is its entry's rest.
pub(crate) fn peers(dir: &Path, key: &str, nodes: &[(&str, u16, &str)]) -> String {
    let mut text = format!("key = \"{key}\"\n");
    for (name, port, rest) in nodes {
        text += &format!("[nodes.{name}]\naddress = \"127.0.0.1:{port}\"\n{rest}\n");
    }
    let path = dir.join("peers.toml");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.display().to_string()
}

/// A tarnd among others.
pub(crate) fn start_peer(
    name: &str,
    key: &str,
    nodes: &[(&str, u16, &str)],
    options: &[&str],
) -> Daemon {
    start_peer_in(tempfile::tempdir().unwrap(), name, key, nodes, options)
}

fn start_peer_in(
    dir: TempDir,
    name: &str,
    key: &str,
    nodes: &[(&str, u16, &str)],
    options: &[&str],
) -> Daemon {
    let file = peers(dir.path(), key, nodes);
    let mut all = vec!["--node-name", name, "--peers", &file];
    all.extend(options);
    Daemon::start_in(dir, "64MiB:48MiB", &all)
}

/// Nodes `a` and `b`.
pub(crate) fn pair(options: &[&str]) -> (Daemon, Daemon) {
    pair_in(&std::env::temp_dir(), options, options)
}

/// The same, in folders of a folder, each with options of its own.
pub(crate) fn pair_in(folder: &Path, of_a: &[&str], of_b: &[&str]) -> (Daemon, Daemon) {
    let [a, b] = ports();
    let nodes = [("a", a, ""), ("b", b, "")];
    let start = |name, options| {
        let dir = tempfile::tempdir_in(folder).unwrap();
        start_peer_in(dir, name, KEY, &nodes, options)
    };
    (start("a", of_a), start("b", of_b))
}

pub(crate) fn fast(path: &str) -> TaskLocation {
    TaskLocation::Space {
        name: "fast".into(),
        path: path.as_bytes().into(),
    }
}

pub(crate) fn copy(from: TaskLocation, to: TaskLocation) -> TaskSpec {
    TaskSpec::new(TaskOperation::Copy { from, to })
}

pub(crate) fn moved(from: TaskLocation, to: TaskLocation) -> TaskSpec {
    TaskSpec::new(TaskOperation::Move { from, to })
}

pub(crate) fn remove(at: TaskLocation) -> TaskSpec {
    TaskSpec::new(TaskOperation::Remove { at })
}

/// Submits one task.
pub(crate) fn submit(client: &Client, task: TaskSpec) -> Result<TaskId, RequestError> {
    client.submit(&[task])?.pop().unwrap()
}

/// Submits one task and waits for its end.
pub(crate) fn run(client: &Client, task: TaskSpec) -> TaskOutcome {
    let id = submit(client, task).unwrap();
    wait(client, id)
}

pub(crate) fn wait(client: &Client, id: TaskId) -> TaskOutcome {
    let mut all = client.wait(&[id], WaitCondition::All, Some(LONG)).unwrap();
    all.pop()
        .unwrap_or_else(|| panic!("task {id} is not known"))
}

/// The code that a task failed with.
pub(crate) fn code(outcome: &TaskOutcome) -> Option<Code> {
    match &outcome.end {
        TaskEnd::Done => None,
        TaskEnd::Failed(why) => Some(why.code),
    }
}

/// Bytes that depend on their place and a seed.
pub(crate) fn content(length: usize, seed: u8) -> Vec<u8> {
    let byte = |n: usize| (n.wrapping_mul(2_654_435_761) >> 7) as u8 ^ seed;
    (0..length).map(byte).collect()
}

/// The checksum that docs/reference/manifest-format.md describes.
pub(crate) fn checksum(bytes: &[u8]) -> Checksum {
    let mut hasher = tarn_mover::ContentHasher::default();
    hasher.update(bytes);
    hasher.finish().0.to_be_bytes()
}

pub(crate) fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path);
    file.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}
