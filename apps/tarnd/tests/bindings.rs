//! C and Python programs against a real tarnd.

mod common;
#[path = "../../../bindings/c/tests/common/mod.rs"]
mod linked;
#[path = "../../../bindings/c/tests/common/page.rs"]
mod page;

use common::*;
use linked::{compiler, library, output_of, source};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tarn_proto::local::{Allocation, Code, TaskOperation, TaskSpec};
use tarn_types::grant::{Grant, Grantee};

#[test]
fn the_c_example_and_the_c_test() {
    let (daemon, other) = pair(&[]);
    for file in ["../../examples/tasks/tasks.c", "tests/calls.c"] {
        let program = daemon.path("program");
        let flags = ["-std=c11", "-Wpedantic"];
        output_of(&mut compiler("cc", &flags, &[file], &program));
        let text = output_of(
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
    let file = ["../../bindings/c/tests/dsa.c"];
    output_of(&mut compiler("cc", &flags, &file, &program));
    let mut command = Command::new(&program);
    command
        .args(["fast", "run"])
        .env("TARN_SOCKET", daemon.socket());
    let text = output_of(&mut command);
    assert!(
        text.starts_with("field has 1048576 bytes, 1 may have it\n"),
        "{text}"
    );
    assert!(text.contains("1000 read, the same\n"), "{text}");
    assert_eq!(daemon.client().partitions(None, "fast", b"").unwrap(), []);
}

/// The program of docs/guide/direct-access.md, by the name of a partition of another node.
#[test]
fn partitions_of_another_node_are_used_by_their_names() {
    let (here, there) = pair(&[]);
    let program = page::of_page("guide/direct-access.md", here.dir.path());
    let run = |name: &str| {
        let mut command = Command::new(&program);
        command.arg(name).env("TARN_SOCKET", here.socket());
        output_of(&mut command)
    };
    for name in ["b:fast/field", "fast/field", "b:fast/field"] {
        assert_eq!(run(name), "no error, 8\nno error, 0\n", "{name}");
    }
    assert_eq!(there.client().partitions(None, "fast", b"").unwrap(), []);
}

/// Schürmann 2014, section 4: compute nodes without storage memory use that of others.
#[test]
fn a_node_without_any_dataspace_uses_the_partitions_of_another() {
    let (mut here, there) = pair(&[]);
    here.again_without_spaces();
    let program = page::of_page("guide/direct-access.md", here.dir.path());
    let ran = |name: &str| {
        let mut command = Command::new(&program);
        command.arg(name).env("TARN_SOCKET", here.socket());
        command.output().unwrap()
    };
    let far = ran("b:fast/field");
    assert_eq!(far.stdout, b"no error, 8\nno error, 0\n", "{far:?}");
    let own = ran("fast/field");
    assert!(!own.status.success(), "{own:?}");
    let text = here.client().partitions(None, "fast", b"");
    let text = text.unwrap_err().to_string();
    assert!(text.contains("no dataspace `fast` on this node"), "{text}");
    assert_eq!(there.client().partitions(None, "fast", b"").unwrap(), []);
}

/// libtarn's tests use partitions of a folder, by names of one's own node and of another one.
#[test]
fn programs_of_two_nodes_change_neighbours_in_a_unit_of_their_own_choice() {
    // Their streams are sealed.
    let (here, there) = pair_in(&std::env::temp_dir(), &["--transport", "sealed"], &[]);
    let program = here.path("units");
    let flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L"];
    let file = ["../../bindings/c/tests/units.c"];
    output_of(&mut compiler("cc", &flags, &file, &program));
    let units_command = |daemon: &Daemon, name: &str, what: &[&str]| {
        let mut command = Command::new(&program);
        command
            .arg(name)
            .args(what)
            .env("TARN_SOCKET", daemon.socket());
        command
    };
    output_of(&mut units_command(&here, "b:fast/field", &["make", "8192"]));
    std::thread::scope(|scope| {
        let programs = [
            (&there, "fast/field", "1"),
            (&here, "b:fast/field", "2"),
            (&here, "b:fast/field", "3"),
        ];
        for (daemon, name, number) in programs {
            let mut command = units_command(daemon, name, &["neighbour", number, "40"]);
            scope.spawn(move || output_of(&mut command));
        }
    });
    for (daemon, name) in [(&there, "fast/field"), (&here, "b:fast/field")] {
        let words = output_of(&mut units_command(daemon, name, &["show", "4"]));
        assert_eq!(words, "120 40 40 40 of 8192\n");
    }
}

#[test]
fn attack_other_users_change_neighbours_in_a_unit_that_is_exported_to_them_and_readers_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return;
    }
    let daemon = Daemon::start(&["--guests"]);
    std::fs::set_permissions(daemon.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = daemon.path("units");
    let flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L"];
    let file = ["../../bindings/c/tests/units.c"];
    output_of(&mut compiler("cc", &flags, &file, &program));
    // The other users may enter this folder.
    std::fs::copy(library().join("libtarn.so"), daemon.path("libtarn.so")).unwrap();
    let (own, writer, reader) = (0, 65534, 65533);
    let grant = |user, write| Grant {
        who: Grantee::User(user),
        write,
    };
    let how = Allocation::Make {
        grants: vec![grant(writer, true), grant(reader, false)],
        unit: Some(8192),
    };
    let (at, bytes) = (fast("field.partition"), 1 << 20);
    let made = TaskSpec::new(TaskOperation::Allocate { at, bytes, how });
    daemon.client().carry_out(made, LONG).unwrap();
    let units_command = |user: u32, what: &[&str]| {
        let mut command = Command::new(&program);
        command
            .arg("fast/field")
            .args(what)
            .env("TARN_SOCKET", daemon.socket())
            .env("LD_LIBRARY_PATH", daemon.dir.path())
            .uid(user)
            .gid(user);
        command
    };
    std::thread::scope(|scope| {
        for (user, number) in [(own, "1"), (writer, "2"), (writer, "3")] {
            let mut command = units_command(user, &["neighbour", number, "40"]);
            scope.spawn(move || output_of(&mut command));
        }
    });
    for user in [own, writer, reader] {
        let words = output_of(&mut units_command(user, &["show", "5"]));
        assert_eq!(words, "120 40 40 40 0 of 8192\n");
    }
    let refused = units_command(reader, &["neighbour", "4", "1"])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    // One that is killed keeps nobody from its unit.
    let mut killed = units_command(writer, &["neighbour", "4", "1000000"]);
    let mut killed = killed.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(killed.stdout.take().unwrap()).lines();
    let first: Vec<_> = lines.by_ref().take(5).collect();
    assert_eq!(first.len(), 5);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let last_count = lines.map_while(Result::ok).last();
    let last_count: u64 = last_count.map_or(5, |last| last.parse().unwrap());
    output_of(&mut units_command(own, &["neighbour", "1", "50"]));
    let words = output_of(&mut units_command(reader, &["show", "5"]));
    let words: Vec<u64> = words.split(' ').map_while(|w| w.parse().ok()).collect();
    assert_eq!(words[1..4], [50, 40, 40]);
    assert!(
        (last_count..=last_count + 1).contains(&words[4]),
        "{last_count} {words:?}"
    );
    assert!(
        (170 + last_count..=171 + last_count).contains(&words[0]),
        "{words:?}"
    );
    // Nobody has it open any more.
    let gone = daemon
        .client()
        .carry_out(remove(fast("field.partition")), LONG);
    assert!(gone.is_ok(), "{gone:?}");
    let none = daemon
        .client()
        .open_partition(None, "fast", b"field.partition", false);
    assert_eq!(none.unwrap_err().code, Code::NotFound);
}

#[test]
fn the_python_tests_and_the_python_example() {
    let (daemon, other) = pair(&[]);
    let out = daemon.path("out");
    let programs = [
        ("bindings/python/tests/test_tasks.py", out.as_path()),
        ("bindings/python/tests/doctests.py", Path::new("tarn.tasks")),
        ("examples/tasks/tasks.py", out.as_path()),
    ];
    for (program, argument) in programs {
        let text = output_of(
            Command::new("/usr/bin/python3")
                .arg("-B")
                .arg(source("../..").join(program))
                .arg(argument)
                .env("TARN_SOCKET", daemon.socket())
                .env("TARN_PEER", "b")
                .env("TARN_LIBRARY", library().join("libtarn.so"))
                .env("PYTHONPATH", source("../../bindings/python/python")),
        );
        assert!(
            text.contains("OK") || text.contains("checkpoint saved: 8388608 bytes"),
            "{text}"
        );
    }
    assert_eq!(read(&other.path("fast/from-python")), b"from Python");
}
