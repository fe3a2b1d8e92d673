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
