//! `tarn data get --from`: an object goes from one node's store to another's by their tarnds.

#[path = "../../checkpoint/ranks/tests/common/ports.rs"]
mod ports;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tarn_tests::programs::built;

/// A tarnd, which ends with the test.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn node(name: &str, folder: &Path) -> Node {
    let at = |what: &str| folder.join(name).join(what);
    std::fs::create_dir_all(at("fast/store")).unwrap();
    let tarnd = Command::new(built("tarnd").unwrap())
        .args(["--node-name", name, "--log-level", "error", "--socket"])
        .arg(at("socket"))
        .arg("--state")
        .arg(at("state"))
        .arg("--peers")
        .arg(folder.join("peers"))
        .arg("--space")
        .arg(format!("fast={}:64MiB", at("fast").display()))
        .spawn();
    let node = Node(tarnd.unwrap());
    let until = Instant::now() + Duration::from_secs(30);
    while !at("socket").exists() {
        assert!(Instant::now() < until, "tarnd does not serve");
        std::thread::sleep(Duration::from_millis(5));
    }
    node
}

#[test]
fn an_object_is_got_from_another_node() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let [a, b] = [(); 2].map(|()| ports::free_port());
    let peers = format!(
        "key = \"{}\"\n[nodes.a]\naddress = \"127.0.0.1:{a}\"\n[nodes.b]\naddress = \"127.0.0.1:{b}\"\n",
        "5a".repeat(32)
    );
    std::fs::write(folder.join("peers"), peers).unwrap();
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(folder.join("peers"), private).unwrap();
    let _nodes = [node("a", folder), node("b", folder)];
    let on = |node: &str, line: &str| {
        let mut tarn = Command::new(built("tarn").unwrap());
        tarn.args(line.split(' ')).current_dir(folder);
        tarn.env("TARN_OBJECTS", folder.join(node).join("fast/store"));
        tarn.env("TARN_SOCKET", folder.join(node).join("socket"));
        let Output {
            status,
            stdout,
            stderr,
        } = tarn.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
        (status.code().unwrap(), text)
    };
    std::fs::write(folder.join("in"), "what a node has computed").unwrap();
    assert_eq!(on("b", "data put in rho --object"), (0, "rho 1\n".into()));
    let (code, text) = on("a", "data get rho --object");
    assert_eq!(code, 7, "{text}");
    let (code, text) = on("a", "data get rho out --object --from b");
    assert_eq!(code, 0, "{text}");
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert_eq!(read("out"), read("in"));
    assert_eq!(
        read("a/fast/store/rho/1.obj"),
        read("b/fast/store/rho/1.obj")
    );
    let (code, text) = on("a", "data get none --object --from b");
    assert_eq!(code, 7, "{text}");
}
