//! `tarn bench dsa`, small.

#[path = "../../tarn/tests/nodes/mod.rs"]
mod nodes;
#[path = "../../tarn/tests/common/program.rs"]
mod program;

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The results of some cases, by their names; nothing is left.
fn results(options: &[&str]) -> Vec<(String, Value)> {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let out = bench(&folder, options).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{stderr}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let results = report["results"].as_array().unwrap().iter();
    let named = results.map(|result| {
        assert!(result["ratio"].as_f64().unwrap() > 0.0, "{result}");
        (result["name"].as_str().unwrap().to_owned(), result.clone())
    });
    named.collect()
}

fn bench(folder: &TempDir, options: &[&str]) -> Command {
    let mut command = Command::new(program::tarn());
    command
        .args(["bench", "dsa", "--json", "--rounds", "1", "--warm", "1"])
        .args(["--mib", "4", "--requests", "1000", "--batch", "64", "--dir"])
        .arg(folder.path())
        .args(options);
    command
}

#[test]
fn queue_pairs_are_measured_beside_plain_copies_and_nothing_is_left() {
    let cases = [
        "read-4k-random",
        "read-32b-random",
        "write-4k-persist",
        "write-32b-random",
        "latency-4k-read",
    ];
    let options: Vec<_> = cases.iter().flat_map(|case| ["--case", case]).collect();
    let results = results(&options);
    // By one thread, by two, and these beside each other.
    assert_eq!(results.len(), 3 * cases.len());
    for (results, case) in results.chunks(3).zip(cases) {
        assert!(results[0].0.starts_with(&format!("{case}, 1 threads")));
        assert!(results[1].0.starts_with(&format!("{case}, 2 threads")));
        assert_eq!(results[2].0, format!("{case}, 2 threads beside one"));
    }
}

#[test]
fn a_table_over_partitions_and_threads_is_measured() {
    let results = results(&["--case", "scaling", "--threads", "2"]);
    let shapes: Vec<String> = [1, 2, 4, 8]
        .iter()
        .flat_map(|n| [1, 2].map(|t| format!("scaling, {n} partitions, {t} threads")))
        .collect();
    assert_eq!(results.len(), shapes.len());
    for ((name, _), shape) in results.iter().zip(&shapes) {
        assert!(name.starts_with(shape), "{name}");
    }
}

#[test]
fn queue_pairs_are_measured_beside_fio() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| Path::new(&folder).join("fio").is_file()) {
        eprintln!("SKIPPED: no fio");
        return;
    }
    let cases = ["read-4k-random-fio", "write-4k-persist-fio-mmap"];
    let options: Vec<_> = cases.iter().flat_map(|case| ["--case", case]).collect();
    let results = results(&options);
    assert_eq!(results.len(), cases.len());
    for ((name, result), (case, engine)) in
        results.iter().zip(cases.iter().zip(["libpmem", "mmap"]))
    {
        assert!(name.starts_with(case), "{name}");
        assert_eq!(result["against"]["name"], format!("fio's {engine} engine"));
    }
}

#[test]
fn another_process_is_measured_beside_libfabric_alone() {
    if !nodes::library() {
        return;
    }
    let cases = ["remote-tcp", "remote-shm"];
    let options: Vec<_> = cases.iter().flat_map(|case| ["--case", case]).collect();
    let results = results(&options);
    // Writes and reads, several at the same time and one after the other.
    assert_eq!(results.len(), 4 * cases.len());
    for (results, case) in results.chunks(4).zip(cases) {
        for ((name, result), what) in results.iter().zip(["writes", "reads"].iter().cycle()) {
            assert!(name.starts_with(&format!("{case}, {what}")), "{name}");
            assert_eq!(result["against"]["name"], "libfabric alone");
        }
    }
}

#[test]
fn phases_are_as_asked_for_and_what_is_read_is_looked_at() {
    let usual = results(&["--case", "phases", "--verify"]);
    let [(write, _), (read, _)] = &usual[..] else {
        panic!("{usual:?}");
    };
    assert!(
        write.starts_with("phases, write Sequential, 4.00 MiB by 4.00 KiB"),
        "{write}"
    );
    assert!(
        read.starts_with("phases, read Random, 4.00 MiB by 4.00 KiB"),
        "{read}"
    );
    let odd = [
        "--case=phases",
        "--verify",
        "--write-order=random",
        "--write-mixed",
        "--read-mixed",
        "--write-size=32B",
        "--read-size=100B",
        "--host-align=1B",
        "--storage-align=8B",
        "--depth=128",
        "--signal=7",
        "--persistent",
        "--pattern=counting",
        "--threads=2",
    ];
    let odd = results(&odd);
    assert!(
        odd[0].0.contains("write Random mixed, 4.00 MiB by 32 B"),
        "{}",
        odd[0].0
    );
    assert!(
        odd[1]
            .0
            .contains("128 deep, 64 a doorbell, every 7. signalled, Persistent"),
        "{}",
        odd[1].0
    );
}

#[test]
fn phases_are_measured_on_partitions_that_are_named() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let names = ["one", "two"].map(|name| folder.path().join(name).display().to_string());
    for name in &names {
        tarn_partitions::Partition::create(Path::new(name), 1 << 20, Vec::new()).unwrap();
    }
    let [one, two] = &names;
    let options = [
        "--case=phases",
        "--threads=1",
        "--pattern=counting",
        "--block=64KiB",
    ];
    let named = ["--partition", one, "--partition", two];
    let results = results(&[&options[..], &named[..]].concat());
    assert!(
        results[0].0.contains("2.00 MiB by 4.00 KiB"),
        "{}",
        results[0].0
    );
    for name in &names {
        let file = std::fs::read(format!("{name}.partition")).unwrap();
        let data = &file[file.len() - (1 << 20)..];
        assert!(data.iter().any(|byte| *byte != 0), "{name} was written");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    for (option, why) in [
        ("--host-align=3B", "power of two"),
        ("--write-size=8MiB", "larger than a thread's part"),
        ("--depth=100", "power of two"),
        ("--threads=200", "not 1 MiB a thread"),
    ] {
        let out = bench(&folder, &["--case=phases", option]).output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(
            !out.status.success() && stderr.contains(why),
            "{option}: {stderr}"
        );
    }
}

#[test]
fn partitions_of_a_disk_are_measured_beside_io_uring_alone_and_nothing_is_left() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let measured = |more: &[&str]| {
        let mut bench = Command::new(program::tarn());
        bench.args(["bench", "dsa", "--json", "--rounds", "1", "--mib", "4"]);
        bench.args(["--requests", "1600", "--case", "disk-read-4k-random"]);
        bench.args(["--case", "disk-write-4k-random"]).args(more);
        bench.output().unwrap()
    };
    let place = folder.path().to_str().unwrap();
    let out = measured(&["--disk", place]);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    for (result, case) in results.iter().zip(["disk-read", "disk-write"]) {
        assert!(
            result["name"].as_str().unwrap().starts_with(case),
            "{result}"
        );
        assert!(result["ratio"].as_f64().unwrap() > 0.0, "{result}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let out = measured(&[]);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(
        !out.status.success() && stderr.contains("--disk"),
        "{stderr}"
    );
}
