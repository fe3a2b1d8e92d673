//! `tarn bench dsa`, small.

use serde_json::Value;
use std::process::Command;

#[test]
fn queue_pairs_are_measured_beside_plain_copies_and_nothing_is_left() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_tarn"))
        .args(["bench", "dsa", "--json", "--rounds", "1", "--mib", "4"])
        .args(["--requests", "1000", "--batch", "64", "--dir"])
        .arg(folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{told}");
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    let results = said["results"].as_array().unwrap();
    // Five cases, by one thread and by two, and these beside each other.
    assert_eq!(results.len(), 15);
    let name = results[0]["name"].as_str().unwrap();
    assert!(name.starts_with("read-4k-random, 1 threads"), "{name}");
    for result in results {
        assert!(result["ratio"].as_f64().unwrap() > 0.0, "{result}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn partitions_of_a_disk_are_measured_beside_io_uring_alone_and_nothing_is_left() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let measured = |more: &[&str]| {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_tarn"));
        bench.args(["bench", "dsa", "--json", "--rounds", "1", "--mib", "4"]);
        bench.args(["--requests", "1600", "--case", "disk-read-4k-random"]);
        bench.args(["--case", "disk-write-4k-random"]).args(more);
        bench.output().unwrap()
    };
    let place = folder.path().to_str().unwrap();
    let out = measured(&["--disk", place]);
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{told}");
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    let results = said["results"].as_array().unwrap();
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
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && told.contains("--disk"), "{told}");
}
