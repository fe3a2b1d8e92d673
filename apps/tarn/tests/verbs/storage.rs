//! Storage memory, by the device: partitions that programs map themselves, and those of the storage peer.

use crate::fixture::{Fixture, Talks, failed};
use crate::linked::output_of;
use crate::nodes::pairs;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The offset of a partition's bytes in its file (docs/reference/formats.md).
const DATA: u64 = 2 << 20;

fn make(fixture: &Fixture, name: &str, more: &[&str]) {
    output_of(
        fixture
            .tarn(&["partition", "create", name, "2 MiB"])
            .args(more),
    );
}

/// Bytes of a partition of this folder.
fn content(fixture: &Fixture, name: &str, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let file = File::open(fixture.path(&format!("{name}.partition"))).unwrap();
    file.read_exact_at(&mut bytes, DATA).unwrap();
    bytes
}

/// The benchmark's server has a partition for its buffer, as it would have any file, and the client writes there by RDMA.
#[test]
fn an_unmodified_benchmark_writes_to_a_partition() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    make(&fixture, "./field", &[]);
    assert!(
        content(&fixture, "field", 1 << 17)
            .iter()
            .all(|&byte| byte == 0)
    );
    let file = fixture.path("field.partition");
    let server = ["--mmap", &file, "--mmap-offset", "2097152"];
    let outputs = fixture.both("ib_write_bw", &["-n", "50", "-s", "65536"], &server);
    assert!(outputs[1].contains("65536"), "{}", outputs[1]);
    let written = content(&fixture, "field", 1 << 17);
    assert!(written.iter().filter(|&&byte| byte != 0).count() > 1 << 15);
    assert!(output_of(&mut fixture.tarn(&["partition", "ls", "."])).contains("field"));
}

/// The example of the guide, on memory and on a disk, in all ways that the peer serves.
#[test]
fn a_program_of_libibverbs_alone_uses_a_partition() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let example = fixture.program("example", "");
    make(&fixture, "./field", &[]);
    make(&fixture, "./units", &["--unit", "4 KiB"]);
    let run = |options: &[&str], partition: &str| {
        let mut command = fixture.tarn(&["verbs", "exec", "--partition", partition]);
        command.args(options).args(["--", &example, partition]);
        command
    };
    for name in ["field", "units"] {
        let output = output_of(&mut run(&[], &format!("./{name}")));
        assert_eq!(output, "2097152 bytes: written, read, counted\n");
        let words: Vec<_> = content(&fixture, name, 4096)
            .chunks(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!((words[0], words[1], words[511]), (42, 1, 511 * 511));
    }
    // Memory is not persistent, and no flush makes it so, unless that is taken.
    let output = failed(run(&[], "./field").env("FLUSH", "1"));
    assert!(output.contains("remote operation error"), "{output}");
    let output = failed(&mut run(&["--level", "persistent"], "./field"));
    assert!(
        output.contains("does not outlive a loss of power"),
        "{output}"
    );
    let output =
        output_of(run(&["--level", "persistent", "--volatile"], "./field").env("FLUSH", "1"));
    assert!(output.ends_with("counted, flushed\n"), "{output}");
    let output = failed(&mut run(&["--read-only"], "./field"));
    assert!(output.contains("remote access error"), "{output}");
    let output = failed(&mut run(&[], "./none"));
    assert!(output.contains("./none"), "{output}");
    // The program's own end is the command's.
    let mut command = fixture.tarn(&["verbs", "exec", "--partition", "./field", "--"]);
    let status = command.args(["sh", "-c", "exit 7"]).status().unwrap();
    assert_eq!(status.code(), Some(7));
    assert!(fixture.is_tidy());
}

/// A served partition gives back its resources, whatever has been written in the folder of devices.
#[test]
fn partitions_are_served_and_given_back() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    make(&fixture, "./field", &[]);
    let storage = fixture.program("storage", "");
    let output = output_of(&mut fixture.exec(&[&storage, "own", &fixture.path("field")]));
    assert_eq!(output, "ok\n");
    assert!(fixture.is_tidy());
}

/// A file at the place of its socket stays, unless it is a socket that nobody listens at any more.
#[test]
fn the_peer_replaces_no_file() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    make(&fixture, "./field", &[]);
    let file = fixture.path("results.dat");
    std::fs::write(&file, "results").unwrap();
    std::os::unix::fs::symlink(&file, fixture.path("link")).unwrap();
    for name in ["results.dat", "link"] {
        let output = failed(&mut fixture.tarn(&["verbs", "serve", "--socket", name, "./field"]));
        assert!(output.contains("is no socket"), "{output}");
    }
    assert_eq!(
        std::fs::read_to_string(fixture.path("link")).unwrap(),
        "results"
    );
    assert!(fixture.is_tidy());
}

/// On a disk what was written is persistent by a flush, or at once.
#[test]
fn a_partition_on_a_disk_is_used_in_units() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let name = disk.path().join("field").to_str().unwrap().to_owned();
    make(&fixture, &name, &[]);
    let (example, storage) = (
        fixture.program("example", ""),
        fixture.program("storage", ""),
    );
    for level in ["visible", "persistent"] {
        let options = [
            "verbs",
            "exec",
            "--level",
            level,
            "--partition",
            &name,
            "--",
        ];
        let output = output_of(
            fixture
                .tarn(&options)
                .args([&example, &name])
                .env("FLUSH", "1"),
        );
        assert!(output.ends_with("flushed\n"), "{output}");
        assert_eq!(
            output_of(fixture.tarn(&options).args([&storage, "check", &name])),
            "ok\n"
        );
    }
}

/// Another node's by this node's name for it, by streams and by windows.
#[test]
fn partitions_of_this_node_and_of_another_come_out_as_they_went_in() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let storage = fixture.program("storage", "");
    for (nodes, _) in pairs() {
        for name in ["fast/field", "disk/field", "b:fast/field", "b:disk/field"] {
            nodes[0].tarn(&["partition", "create", name, "2 MiB"]);
            let mut command = fixture.tarn(&["verbs", "exec", "--partition", name, "--"]);
            command.args([&storage, "check", name]);
            let output = output_of(command.env("TARN_SOCKET", nodes[0].socket()));
            assert_eq!(output, "ok\n", "{name}");
        }
    }
}

fn serve(fixture: &Fixture, socket: &str, partitions: &[&str]) -> Talks {
    let mut command = fixture.tarn(&["verbs", "serve", "--socket", socket]);
    command.args(partitions);
    let mut served = Talks::begin(command);
    let line = served.line();
    assert!(
        line.starts_with("serving ") && line.contains(socket),
        "{line}"
    );
    served
}

/// A program that loses the peer gets an error, and a killed one harms nobody: the partition has the written data, and the peer
/// serves others.
#[test]
fn the_peer_or_a_program_is_killed_in_the_middle() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let storage = fixture.program("storage", "");
    let socket = fixture.path("socket");
    make(&fixture, "./field", &[]);
    make(&fixture, "./other", &[]);
    let client = |what: &str, partition: &str| {
        let mut command = fixture.exec(&[&storage, what, partition]);
        command.env("TARN_VERBS_PEER", &socket);
        command
    };
    let mut served = serve(&fixture, &socket, &["./field", "./other"]);
    let output = failed(fixture.tarn(&["partition", "rm", "./field"]).env("X", ""));
    assert!(output.contains("open"), "{output}");
    // A program dies, several times.
    for _ in 0..3 {
        let mut writes = Talks::begin(client("write", "./field"));
        assert_eq!(writes.line(), "writes\n");
        writes.kill();
        assert_eq!(output_of(&mut client("check", "./other")), "ok\n");
    }
    // The peer dies: its clients get an error at once, and another may serve at the same place.
    let mut writes = Talks::begin(client("write", "./field"));
    assert_eq!(writes.line(), "writes\n");
    let since = Instant::now();
    served.kill();
    assert_eq!(writes.end(), "ok\n");
    assert!(since.elapsed() < Duration::from_secs(20));
    assert!(
        content(&fixture, "field", 1 << 20)
            .iter()
            .any(|&byte| byte != 0)
    );
    let served = serve(&fixture, &socket, &["./field"]);
    assert_eq!(output_of(&mut client("check", "./field")), "ok\n");
    let pid = Pid::from_raw(served.child.id() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    served.end();
    assert!(!std::path::Path::new(&socket).exists() && fixture.is_tidy());
}
