//! Requests to a tarnd by the calls of `tarn.h`, and an object that is fetched.

use crate::calls::{How, sweep};
use crate::nodes::ports::free_port;
use crate::{compiled, ran};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tarn_client::Client;
use tempfile::TempDir;

/// Node `a`, whose tarnd is started for one program at a time, and its peer `b`.
struct World {
    dir: TempDir,
    b: Child,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.b.kill();
        let _ = self.b.wait();
    }
}

fn tarnd(dir: &Path, node: &str) -> Command {
    let mut command = Command::new(program());
    let own = dir.join(node);
    command
        .args(["--node-name", node, "--socket"])
        .arg(own.join("socket"))
        .arg("--state")
        .arg(own.join("state"))
        .arg("--peers")
        .arg(dir.join("peers"))
        .arg("--space")
        .arg(format!("fast={}:64MiB", own.join("fast").display()));
    command
}

fn program() -> PathBuf {
    let tarnd = Path::new(env!("CARGO_BIN_EXE_tarn")).with_file_name("tarnd");
    assert!(tarnd.is_file(), "build tarnd: `cargo test --workspace`");
    tarnd
}

impl World {
    fn new(folder: &str, program: &Path) -> Self {
        let dir = tempfile::tempdir_in(folder).unwrap();
        let [a, b] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
        let key = "5a".repeat(32);
        let peers = format!(
            "key = \"{key}\"\n[nodes.a]\naddress = \"{a}\"\n[nodes.b]\naddress = \"{b}\"\n"
        );
        let file = dir.path().join("peers");
        std::fs::write(&file, peers).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        for folder in ["a/fast/store", "a/old", "a/gone", "a/new", "b/fast/store"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let there =
            tarn_objects::NodeObjectStore::open(Some(&dir.path().join("b/fast/store"))).unwrap();
        there.put("k", b"there", "").unwrap();
        let mut far = tarnd(dir.path(), "b");
        far.stdin(Stdio::null()).stderr(Stdio::null());
        let world = Self {
            b: far.spawn().unwrap(),
            dir,
        };
        let until = Instant::now() + Duration::from_secs(60);
        while Client::connect(&world.dir.path().join("b/socket"), None).is_err() {
            assert!(Instant::now() < until, "tarnd does not serve");
            std::thread::sleep(Duration::from_millis(5));
        }
        let made = ran(&mut world.command(program, &["make"]));
        assert!(made.contains("made\n"), "{made}");
        world
    }

    /// The program with its arguments, under a new tarnd of node `a`.
    fn command(&self, program: &Path, what: &[&str]) -> Command {
        let mut command = tarnd(self.dir.path(), "a");
        let own = self.dir.path().join("a");
        command.env("TARN_SOCKET", own.join("socket"));
        command.arg("--").arg(program).arg(own).args(what);
        command
    }
}

#[test]
fn tasks() {
    let program = compiled("inject_tasks");
    for folder in ["/dev/shm", env!("CARGO_TARGET_TMPDIR")] {
        let prepare = || World::new(folder, &program);
        let command = |world: &World| {
            let command = world.command(&program, &["change"]);
            (world.dir.path().join("a"), command)
        };
        let names = "tarnd,inject_tasks";
        sweep("tasks", names, prepare, command, |world, hit| {
            let (what, ran_out, err) = (&hit.what, &hit.ran.out, &hit.ran.err);
            let ended = ran_out.contains("changed\n");
            assert!(!hit.done() || ended, "{what}: {ran_out}{err}");
            assert!(hit.how == How::Kill || ended || !err.is_empty(), "{what}");
            let look = ran(&mut world.command(&program, &["look", ran_out]));
            assert!(
                look.contains("whole\n"),
                "{what} ({folder}): {ran_out}{err}; then {look}"
            );
        });
    }
}
