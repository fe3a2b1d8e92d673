//! C and Python programs against a real tarnd.

mod common;
#[path = "../../libtarn/tests/common/mod.rs"]
mod linked;
#[path = "../../libtarn/tests/common/page.rs"]
mod page;

use common::*;
use linked::{compiler, library, said, source};
use std::process::Command;

#[test]
fn the_c_example_and_the_c_test() {
    let (daemon, other) = pair(&[]);
    for file in ["../../examples/tasks/tasks.c", "tests/calls.c"] {
        let program = daemon.path("program");
        let flags = ["-std=c11", "-Wpedantic"];
        said(&mut compiler("cc", &flags, &[file], &program));
        let text = said(
            Command::new(&program)
                .arg(daemon.path("out"))
                .env("TARN_PEER", "b")
                .env("TARN_SOCKET", daemon.socket()),
        );
        assert!(
            text.contains("checkpoint saved: 8388608 bytes") || text.contains("all calls"),
            "{text}"
        );
    }
    assert_eq!(read(&daemon.path("fast/input")), b"the next input\n");
    assert_eq!(read(&other.path("fast/from-c")), b"from C");
}

/// The same program as with folders' paths, by names of a dataspace.
#[test]
fn partitions_are_used_by_their_names() {
    // In memory, where all has ended with its doorbell.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let daemon = Daemon::start_in(folder, "64MiB", &[]);
    let program = daemon.path("program");
    let flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L"];
    let file = ["../libtarn/tests/dsa.c"];
    said(&mut compiler("cc", &flags, &file, &program));
    let mut command = Command::new(&program);
    command
        .args(["fast", "run"])
        .env("TARN_SOCKET", daemon.socket());
    let text = said(&mut command);
    assert!(
        text.starts_with("field has 1048576 bytes, 1 may have it\n"),
        "{text}"
    );
    assert!(text.contains("1000 read, the same\n"), "{text}");
    assert_eq!(daemon.client().partitions("fast", b"").unwrap(), []);
}

/// The program of docs/dsa.md, by the name of a partition of another node.
#[test]
fn partitions_of_another_node_are_used_by_their_names() {
    let (here, there) = pair(&[]);
    let program = page::of_page("dsa.md", here.dir.path());
    let run = |name: &str| {
        let mut command = Command::new(&program);
        command.arg(name).env("TARN_SOCKET", here.socket());
        said(&mut command)
    };
    for name in ["b:fast/field", "fast/field", "b:fast/field"] {
        assert_eq!(run(name), "no error, 8\nno error, 0\n", "{name}");
    }
    assert_eq!(there.client().partitions("fast", b"").unwrap(), []);
}

#[test]
fn the_python_tests_and_the_python_example() {
    let (daemon, other) = pair(&[]);
    for program in ["bindings/python/test_tarn.py", "examples/tasks/tasks.py"] {
        let text = said(
            Command::new("/usr/bin/python3")
                .arg("-B")
                .arg(source("../..").join(program))
                .arg(daemon.path("out"))
                .env("TARN_SOCKET", daemon.socket())
                .env("TARN_PEER", "b")
                .env("TARN_LIBRARY", library().join("libtarn.so"))
                .env("PYTHONPATH", source("../../bindings/python")),
        );
        assert!(
            text.contains("OK") || text.contains("checkpoint saved: 8388608 bytes"),
            "{text}"
        );
    }
    assert_eq!(read(&other.path("fast/from-python")), b"from Python");
}
