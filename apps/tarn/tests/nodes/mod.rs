//! Two nodes, as far as partitions are concerned: a tarnd each, that know each other, with a dataspace in memory and one on a disk.
//! They reach each other by streams, or by windows of libfabric.
#![allow(dead_code)]

#[path = "../../../../checkpoint/ranks/tests/common/ports.rs"]
pub(crate) mod ports;

use crate::program::tarn;
use ports::free_port;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tarn_client::Client;
use tempfile::TempDir;

/// The capacity of the dataspaces.
const SPACE: &str = "96MiB";

pub(crate) struct Node {
    name: &'static str,
    options: &'static [&'static str],
    memory: TempDir,
    disk: TempDir,
    tarnd: Option<Child>,
}

impl Node {
    fn new(name: &'static str, peers: &str, options: &'static [&'static str]) -> Self {
        let node = Self {
            name,
            options,
            memory: tempfile::tempdir_in("/dev/shm").unwrap(),
            disk: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
            tarnd: None,
        };
        let file = node.memory.path().join("peers");
        std::fs::write(&file, peers).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        for folder in [node.fast(), node.disk()] {
            std::fs::create_dir(folder).unwrap();
        }
        node
    }

    /// The root of its dataspace `fast`, which is memory.
    pub(crate) fn fast(&self) -> PathBuf {
        self.memory.path().join("fast")
    }

    /// The root of its dataspace `disk`.
    pub(crate) fn disk(&self) -> PathBuf {
        self.disk.path().join("disk")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.memory.path().join("socket")
    }

    /// Starts its tarnd, and waits until it serves.
    pub(crate) fn start(&mut self) {
        let tarnd = tarn().with_file_name("tarnd");
        assert!(
            tarnd.is_file(),
            "{} is not there: `cargo build -p tarnd` builds it, or `cargo test --workspace`",
            tarnd.display()
        );
        let at = |name: &str| self.memory.path().join(name);
        let space = |name: &str, root: PathBuf| format!("{name}={}:{SPACE}", root.display());
        let tarnd = Command::new(tarnd)
            .args(["--node-name", self.name, "--socket"])
            .arg(self.socket())
            .arg("--state")
            .arg(at("state"))
            .arg("--peers")
            .arg(at("peers"))
            .args(["--space", &space("fast", self.fast())])
            .args(["--space", &space("disk", self.disk())])
            .args(self.options)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.tarnd = Some(tarnd.unwrap());
        let until = Instant::now() + Duration::from_secs(30);
        while Client::connect(&self.socket(), None).is_err() {
            assert!(Instant::now() < until, "tarnd does not serve");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// `kill -9` of its tarnd: all streams to its partitions are cut.
    pub(crate) fn kill(&mut self) {
        if let Some(mut tarnd) = self.tarnd.take() {
            let _ = tarnd.kill();
            let _ = tarnd.wait();
        }
    }

    /// The output of `tarn` there, when it succeeds.
    pub(crate) fn tarn(&self, arguments: &[&str]) -> String {
        let (good, text) = self.run_tarn(arguments);
        assert!(good, "{arguments:?}: {text}");
        text
    }

    /// The output of `tarn` there, when it fails.
    pub(crate) fn fails(&self, arguments: &[&str]) -> String {
        let (good, text) = self.run_tarn(arguments);
        assert!(!good, "{arguments:?}: {text}");
        text
    }

    fn run_tarn(&self, arguments: &[&str]) -> (bool, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = Command::new(tarn())
            .args(arguments)
            .env("TARN_SOCKET", self.socket())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
        (status.success(), text)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Has the library for libfabric beside the programs; false where there are no headers of libfabric.
pub(crate) fn library() -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let beside = tarn().parent().unwrap();
    let mut build = Command::new(root.join("scripts/shim.sh"));
    let code = build.arg(beside).status().unwrap().code();
    if code == Some(3) {
        eprintln!("SKIPPED: no libfabric-dev");
        return false;
    }
    assert_eq!(code, Some(0));
    true
}

/// Nodes `a` and `b`, and whether they use windows: once they do not, and once they do.
pub(crate) fn pairs() -> impl Iterator<Item = ([Node; 2], bool)> {
    let windows: &[&str] = &["--transport", "libfabric"];
    let streams = std::iter::once((pair(), false));
    let windows = std::iter::once_with(move || library().then(|| (pair_with(windows), true)));
    streams.chain(windows.flatten())
}

/// Nodes `a` and `b`.
pub(crate) fn pair() -> [Node; 2] {
    pair_with(&[])
}

fn pair_with(options: &'static [&'static str]) -> [Node; 2] {
    let [a, b] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let peers = format!(
        "key = \"{}\"\n[nodes.a]\naddress = \"{a}\"\n[nodes.b]\naddress = \"{b}\"\n",
        "5a".repeat(32)
    );
    ["a", "b"].map(|name| {
        let mut node = Node::new(name, &peers, options);
        node.start();
        node
    })
}
